"""PersonaMem-v2 on a made-up folder of its layout: downloaded, ranked, asked, scored, put into tables."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import hub_server
import pytest
from api_server import Reply
from test_personamem import ask, choose, server, small_model, take_log, with_other_secrets  # noqa: F401

import evaluate_responses
from prompts import load_prompt
from retrieval import rank_dataset
from utils import dataset_statistics, download_datasets, make_table, report
from utils.benchmarks.personamem import options_text
from utils.benchmarks.personamem_v2 import SECRET_COLUMNS, TYPES
from utils.cli import UserError
from utils.parsing.letters import LETTERS
from utils.records.datasets import read_dataset

COMMAND = Path(__file__).resolve().parents[2] / "utils/download_datasets.py"
TABLE, CONTEXTS = "benchmark/text/benchmark.csv", "PersonaMem-v2_32k_contexts.jsonl"


def history(persona, size):
    turns = [("system", f"card of {persona}"), ("user", f"I like thing {persona}."), ("assistant", "Noted.")]
    turns += [("user", f"And {size}, said {persona}."), *[("assistant", "More.")] * (size == "128k")]
    return [{"role": role, "content": content} for role, content in turns]


def row(number):
    """Questions 0 to 13, two of each type, to personas 0, 1 and 2; every fourth is of others, every fifth updated."""
    query = {"role": "user", "content": f'What\'s "it", {number}?'}
    found = {"persona_id": str(number % 3), "pref_type": list(TYPES)[number % 7], "topic_query": f"t{number % 2}"}
    found |= {"updated": str(number % 5 == 0), "who": "self" if number % 4 else "others", "user_query": repr(query)}
    found |= {"correct_answer": f"T{number}", "incorrect_answers": json.dumps([f"{number}: {i}" for i in range(3)])}
    for size, distance in (("32k", 2000), ("128k", "n/a")):
        found[f"chat_history_{size}_link"] = f"data/chat_history_{size}/p{number % 3}.json"
        found[f"total_tokens_in_chat_history_{size}"] = 100 + 20 * number
        found[f"distance_from_related_snippet_to_query_{size}"] = distance
    return found | dict.fromkeys(SECRET_COLUMNS, "TOLD")


ROWS = [row(number) for number in range(14)]


def save(folder, rows=ROWS, files=None):
    """A folder of the published layout, with these rows, and these files too."""
    files = {"benchmark/multimodal/benchmark.csv": "not ours", TABLE: "", **(files or {})}
    for size, persona in ((size, persona) for size in ("32k", "128k") for persona in "012"):
        content = json.dumps({"metadata": {"persona_id": persona}, "chat_history": history(persona, size)})
        files.setdefault(f"data/chat_history_{size}/p{persona}.json", content)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    with (folder / TABLE).open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return folder


def run(command, *flags):
    assert command.main(list(map(str, flags))) == 0


def download(source, output, size="32k"):
    run(download_datasets, "--dataset", f"PersonaMem-v2-{size}", "--source_dir", source, "--output_dir", output)
    return output / f"PersonaMem-v2_{size}.json"


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return download(save(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("data"))


def test_records(dataset, tmp_path, capsys):
    records = read_dataset(dataset, needs=["profile", "options", "target", "score"])
    assert [record["persona_id"] for record in records] == list("00000111112222")
    by_question = {record["question"]: record for record in records}
    for number, one in enumerate(ROWS):
        record = by_question[f'What\'s "it", {number}?']
        assert record["options"][LETTERS.index(record["target"])] == one["correct_answer"]
        assert sorted(record["options"]) == sorted([one["correct_answer"], *json.loads(one["incorrect_answers"])])
        assert record["profile"].messages == history(one["persona_id"], "32k")
        assert (record["group"], record["topic"], record["who"]) == (one["pref_type"], f"t{number % 2}", one["who"])
    assert {record["target"] for record in records} == set(LETTERS) and "TOLD" not in dataset.read_text()
    large = read(download(save(tmp_path / "source"), tmp_path, "128k"))
    assert "14 questions; a count by others of the published file says 5000" in capsys.readouterr().out
    assert {one["id"]: one["options"] for one in large} == {one["id"]: one["options"] for one in records}
    assert {one["profile"]["end"] for one in large} == {5} and large[0]["distance_to_ref_in_tokens"] == "n/a"


def test_neither_the_order_of_rows_nor_of_options_tells_anything(dataset, tmp_path):
    turned = [{**one, "incorrect_answers": json.dumps(json.loads(one["incorrect_answers"])[::-1])} for one in ROWS]
    path = download(save(tmp_path / "source", turned[::-1] + turned[:1]), tmp_path / "out")
    first, second = ({one["id"]: one for one in read(one)} for one in (dataset, path))
    [twin] = second.keys() - first.keys()
    assert second.pop(twin) == {**first[twin.removesuffix("-2")], "id": twin} and first == second
    assert path.with_name(CONTEXTS).read_bytes() == dataset.with_name(CONTEXTS).read_bytes()


def test_the_longest_end_of_a_link_counts(tmp_path):
    links = {"https://hub.test/x/resolve/main/data/chat_history_32k/p0.json?download=true": "data/chat_history_32k/",
             "../own/p0.json": "benchmark/own/", "p0.json": "benchmark/text/"}  # fmt: skip
    histories = {f"{name}p0.json": [{"role": "user", "content": name}] for name in ("", *links.values())}
    files = {path: json.dumps({"chat_history": messages}) for path, messages in histories.items()}
    rows = [{**one, "chat_history_32k_link": link} for one, link in zip(ROWS, links, strict=False)]
    path = download(save(tmp_path / "source", rows, files), tmp_path / "out")
    found = {link: its for line in path.with_name(CONTEXTS).open() for link, its in json.loads(line).items()}
    assert found == {link: histories[f"{name}p0.json"] for link, name in links.items()}


def test_the_hub_gives_the_same_and_a_finished_file_is_left_alone(dataset, tmp_path):
    source, own = save(tmp_path / "source"), {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*.*") if path.is_file()}
    command = [sys.executable, COMMAND, "--dataset", "PersonaMem-v2-32k", "--output_dir", tmp_path, "--cache_dir"]
    with hub_server.serve({"README.md": b"# v2\n", **files}) as hub:
        own |= {**os.environ, "HF_ENDPOINT": hub.url} | own
        done = [subprocess.check_output([*command, tmp_path / "cache"], env=own, text=True) for _ in range(2)]
        names = {"README.md", TABLE, *(f"data/chat_history_32k/p{persona}.json" for persona in "012")}
        assert set(hub.fetched) == names and ["left alone" in one for one in done] == [False, True]
    assert (tmp_path / dataset.name).read_bytes() == dataset.read_bytes()


def test_from_the_files_to_a_table(dataset, server, tmp_path, capsys):
    """The server knows the right option; to a question without history it says (a)."""
    records, prompt, ways = read(dataset), load_prompt("personamem/choice"), {}
    asked = [prompt.messages(question=one["question"], options=options_text(one["options"]))[0] for one in records]
    targets = {message["content"]: one["target"] for message, one in zip(asked, records, strict=True)}
    letter = lambda messages: targets[messages[-1]["content"]] if len(messages) > 1 else "a"  # noqa: E731
    server.reply = lambda request: Reply(f"<final_answer>({letter(request['messages'])})")
    for unit in ("message", "session"):
        flags = ["--ranker", "bm25", "--unit", unit, "--input_dataset_addr", dataset]
        run(rank_dataset, *flags, "--output_dataset_addr", tmp_path / f"{unit}.json")
        ways[unit] = (tmp_path / f"{unit}.json", ["--rag", "--num_contexts", 1, "--unranked"])
    ways |= {"none": (dataset, ["--rag", "--num_contexts", 0]), "whole": (dataset, [])}
    sizes = {"message": 3, "session": 5, "none": 1, "whole": 5}  # the card, the chosen turns, the question
    for way, (path, flags) in ways.items():
        assert {len(messages) for messages in ask(server, path, tmp_path / way, *flags)} == {sizes[way]}
        bodies = list(server.requests)
        ask(server, with_other_secrets(path), tmp_path / f"{way}_again", *flags)
        assert server.requests == bodies and len(bodies) == 14
        scores = ["--response_addr", tmp_path / way, "--score_addr", tmp_path / f"{way}_scores"]
        run(evaluate_responses, "--inputs_addr", dataset, *scores)
    assert read(tmp_path / "whole_scores")["score"] == read(tmp_path / "message_scores")["score"] == 1
    divisions = {"group": TYPES, "who": ("self", "others"), "updated": ("True", "False"), "topic": ("t0", "t1")}
    for name, values in divisions.items():
        capsys.readouterr()
        by = [] if name == "group" else ["--by", name]
        run(make_table, *by, *(flag for way in sizes for flag in ("--system", way, tmp_path / f"{way}_scores")))
        head, _, *rows = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[:6])
        right = [[one["target"] == "a" for one in records if value in (one[name], "")] for value in (*values, "")]
        assert head[1 : len(right) + 1] == [*values, "All questions"]
        assert rows[2][: len(right) + 1] == ["none", *(f"{sum(its) / len(its):.4f}" for its in right)]
    shown = ["--system", "whole", tmp_path / "whole", tmp_path / "whole_scores"]
    run(report, "--inputs_addr", dataset, "--output_addr", tmp_path / "page.html", *shown)


def test_the_likeliest_option(choose, dataset, tmp_path):
    assert choose(tmp_path / "out", path=dataset).wait() == 0 and len(take_log(tmp_path)) == 14
    assert all(answer["output"] in LETTERS for [answer] in read(tmp_path / "out").values())


def test_statistics(dataset, capsys):
    """By hand: the lengths 100, 120, ..., 360 have the mean 230; their variance is 400 · (14² - 1) / 12, or 80.6²."""
    run(dataset_statistics, "--inputs_addr", dataset)
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:8]]
    assert dict(lines) == {
        "Questions": "14", "Users (by persona_id)": "3", "Profile size (items)": "3.0 ± 0.0",
        "Question length (words)": "3.0 ± 0.0", "Context length (tokens)": "230.0 ± 80.6",
        "Distance to the reference (tokens)": "2000.0 ± 0.0",
    }  # fmt: skip


LINK, NO_LINK = "chat_history_32k_link", r"record 0: chat_history_32k_link: no file '.*'\n  give the whole dataset"


@pytest.mark.parametrize(
    ("columns", "history", "match"),
    [
        ({"user_query": "__import__('os').system('touch hacked')"}, None, "0: user_query .* is not a Python dict"),
        ({"user_query": "{'role': 'user', 'content': 5}"}, None, "record 0: user_query"),
        ({"incorrect_answers": '["a", "b"]'}, None, "0: incorrect_answers .* is not a JSON list of three texts"),
        ({"correct_answer": " "}, None, "record 0: field 'correct_answer'"),
        ({"pref_type": "other"}, None, "record 0: pref_type 'other' is not one of stereotypical_pref"),
        ({LINK: "data/chat_history_128k/old/p0.json"}, None, NO_LINK),
        ({LINK: ""}, None, NO_LINK),
        ({}, '{"chat_history": [', r"p0\.json: the JSON breaks off at .*\n  copy it again"),
        ({}, "[]", r"p0\.json: no list of messages as 'chat_history'"),
        ({}, '{"chat_history": [{"role": "tool", "content": ""}]}', "message 0 is no object with a role of system"),
        ({}, '{"chat_history": [{"role": "user", "content": [{"type": "image"}]}]}', "its content is a list"),
    ],
)
def test_wrong_files_are_refused(columns, history, match, tmp_path):
    files = {} if history is None else {"data/chat_history_32k/p0.json": history}
    with pytest.raises(UserError, match=match):
        download(save(tmp_path / "source", [{**ROWS[0], **columns}], files), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.json*")) and not Path("hacked").exists()
