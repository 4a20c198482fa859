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
from utils.benchmarks.personamem_v2 import TYPES
from utils.cli import UserError
from utils.files.manifest import read_manifest
from utils.parsing.letters import LETTERS
from utils.records.datasets import read_dataset

ROOT = Path(__file__).resolve().parents[2]
TABLE, FOLDER = "benchmark/text/benchmark.csv", "data/chat_history_{}"


def history(persona, size):
    turns = [("user", f"I like thing {persona}."), ("assistant", "Noted."), ("user", f"And {size}, said {persona}.")]
    turns = [("system", f"card of {persona}"), *turns, *[("assistant", "More.")] * (size == "128k")]
    return [{"role": role, "content": content} for role, content in turns]


def row(number):
    """Questions 0 to 13: two of each type; of personas 0, 1 and 2; every fourth is of others, every fifth updated."""
    persona, texts = str(number % 3), {"who": "self" if number % 4 else "others", "updated": str(number % 5 == 0)}
    links = {f"chat_history_{size}_link": f"{FOLDER.format(size)}/p{persona}.json" for size in ("32k", "128k")}
    secrets = dict.fromkeys(("preference", "prev_pref", "raw_persona_file", "short_persona", "expanded_persona"), "TOLD")
    query = repr({"role": "user", "content": f"What's \"it\", {number}?"})
    options = {"correct_answer": f"Thing {number}", "incorrect_answers": json.dumps([f"{number}: {i}" for i in range(3)])}
    sizes = {"total_tokens_in_chat_history_32k": 100 + 20 * number, "distance_from_related_snippet_to_query_32k": 2000,
             "total_tokens_in_chat_history_128k": 9000, "distance_from_related_snippet_to_query_128k": "n/a"}  # fmt: skip
    found = {"persona_id": persona, **links, **secrets, "user_query": query, **options, "topic_query": f"t{number % 2}"}
    found |= {"pref_type": list(TYPES)[number % 7], "related_conversation_snippet": "TOLD", **texts, **sizes}
    return {**found, "conversation_scenario": "email"}


ROWS = [row(number) for number in range(14)]


def save(folder, rows=ROWS, files=None):
    """A folder of the published layout, with these rows, and these files too."""
    files = {"benchmark/multimodal/benchmark.csv": "not ours", **(files or {})}
    for size in ("32k", "128k"):
        for persona in "012":
            content = {"metadata": {"persona_id": persona}, "chat_history": history(persona, size)}
            files.setdefault(f"{FOLDER.format(size)}/p{persona}.json", json.dumps(content))
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / TABLE).parent.mkdir(parents=True, exist_ok=True)
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
    assert [record["persona_id"] for record in records] == list("000001111122222"[1:])  # 5, 5 and 4, side by side
    by_question = {record["question"]: record for record in records}
    for number, one in enumerate(ROWS):
        record = by_question[f"What's \"it\", {number}?"]
        assert record["options"][LETTERS.index(record["target"])] == one["correct_answer"]
        assert sorted(record["options"]) == sorted([one["correct_answer"], *json.loads(one["incorrect_answers"])])
        assert record["profile"].messages == history(one["persona_id"], "32k")
        assert (record["group"], record["topic"], record["who"]) == (one["pref_type"], f"t{number % 2}", one["who"])
        assert len(record["profile"].by("session")) == 1 and len(record["profile"]) == 3
    assert {record["target"] for record in records} == set(LETTERS) and "TOLD" not in dataset.read_text()
    large = read(download(save(tmp_path / "source"), tmp_path, "128k"))
    assert "14 questions; a count by others of the published file says 5000" in capsys.readouterr().out
    same = ("id", "options", "target")
    assert [[one[name] for name in same] for one in large] == [[one[name] for name in same] for one in records]
    assert {one["profile"]["end"] for one in large} == {5} and large[0]["context_length_in_tokens"] == "9000"


def test_neither_the_order_of_rows_nor_of_options_tells_anything(dataset, tmp_path):
    turned = [{**one, "incorrect_answers": json.dumps(json.loads(one["incorrect_answers"])[::-1])} for one in ROWS]
    path = download(save(tmp_path / "source", turned[::-1] + turned[:1]), tmp_path / "out")
    first, second = ({one["id"]: one for one in read(one)} for one in (dataset, path))
    [twin] = second.keys() - first.keys()
    assert second.pop(twin) == {**first[twin.removesuffix("-2")], "id": twin} and first == second
    contexts = [one.with_name("PersonaMem-v2_32k_contexts.jsonl").read_bytes() for one in (dataset, path)]
    assert contexts[0] == contexts[1] and contexts[0].count(b"\n") == 3


HUB = "https://hub.test/datasets/x/resolve/main/data/chat_history_32k/p0.json?download=true"


@pytest.mark.parametrize("link", [HUB, "/home/me/data/chat_history_32k/p0.json", "../own/p0.json", "p0.json"])
def test_a_link_is_found_by_its_end(link, tmp_path):
    """A file of the same name nearer to the table, or on top, is only taken where no longer end of the link is there."""
    messages = [[{"role": "user", "content": name}] for name in ("beside", "own", "top", "theirs")]
    places = ("benchmark/text/p0.json", "benchmark/own/p0.json", "p0.json", "data/chat_history_32k/p0.json")
    files = {place: json.dumps({"chat_history": its}) for place, its in zip(places, messages, strict=True)}
    path = download(save(tmp_path / "source", [{**ROWS[0], "chat_history_32k_link": link}], files), tmp_path / "out")
    [record] = read_dataset(path, needs=["profile"])
    expected = {"p0.json": "beside", "../own/p0.json": "own"}.get(link, "theirs")
    assert [one["content"] for one in record["profile"].messages] == [expected]


def test_the_hub_gives_the_same_and_nothing_is_made_twice(dataset, tmp_path, capsys):
    source = save(tmp_path / "source")
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    flags = ["--dataset", "PersonaMem-v2-32k", "--output_dir", tmp_path / "out", "--cache_dir", tmp_path / "cache"]
    with hub_server.serve({"README.md": b"# v2\n", **files}) as hub:
        places = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
        for _ in range(2):
            command = [sys.executable, ROOT / "utils/download_datasets.py", *flags]
            done = subprocess.run(command, env=os.environ | places, check=True, capture_output=True, text=True)
    assert "already there, left alone" in done.stdout
    assert (tmp_path / "out" / dataset.name).read_bytes() == dataset.read_bytes()
    assert len(read_manifest(tmp_path / "out" / dataset.name)["source_sha256"]) == 4  # the table, three histories


def test_from_the_files_to_a_table(dataset, server, tmp_path, capsys):
    """The server knows the right option; without a history it says (a), which is right as often as it is the target."""
    records, prompt = read(dataset), load_prompt("personamem/choice")
    asked = {prompt.messages(question=one["question"], options=options_text(one["options"]))[0]["content"]: one
             for one in records}  # fmt: skip
    knows = lambda messages: asked[messages[-1]["content"]]["target"] if len(messages) > 1 else "a"
    server.reply = lambda request: Reply(f"<final_answer>({knows(request['messages'])})")
    for unit in ("message", "session"):
        ranked = ["--input_dataset_addr", dataset, "--output_dataset_addr", tmp_path / f"{unit}.json"]
        run(rank_dataset, "--ranker", "bm25", "--unit", unit, *ranked)
    ways = {"whole": (dataset, []), "none": (dataset, ["--rag", "--num_contexts", 0])}
    ways |= {unit: (tmp_path / f"{unit}.json", ["--rag", "--num_contexts", 1]) for unit in ("message", "session")}
    sizes, systems = {}, []
    for way, (path, flags) in ways.items():
        requests = ask(server, path, tmp_path / f"{way}_out.json", *flags)
        sizes[way] = {len(messages) for messages in requests}
        bodies = list(server.requests)
        ask(server, with_other_secrets(path), tmp_path / f"{way}_again.json", *flags)
        assert server.requests == bodies and len(bodies) == 14 and "TOLD" not in json.dumps(bodies)
        scores = ["--response_addr", tmp_path / f"{way}_out.json", "--score_addr", tmp_path / f"{way}_scores.json"]
        run(evaluate_responses, "--inputs_addr", dataset, *scores)
        systems += ["--system", way, tmp_path / f"{way}_scores.json"]
    assert sizes == {"whole": {5}, "none": {1}, "message": {3}, "session": {5}}  # the card, the turns, the question
    right = [record["target"] == "a" for record in records]
    assert read(tmp_path / "none_scores.json")["score"] == sum(right) / 14 and 0 < sum(right) < 14
    capsys.readouterr()
    run(make_table, *systems)
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in TYPES)
    assert [line for line in printed.splitlines() if line.startswith("| whole ")][0].count("1.0000") == 8
    for name, values in (("who", "| self | others |"), ("updated", "| True | False |"), ("topic", "| t0 | t1 |")):
        run(make_table, "--by", name, *systems)
        assert values in capsys.readouterr().out
    pages = ["--output_addr", tmp_path / "page.html", "--system", "whole", tmp_path / "whole_out.json"]
    run(report, "--inputs_addr", dataset, *pages, tmp_path / "whole_scores.json")


def test_the_likeliest_option(choose, dataset, tmp_path):
    assert choose(tmp_path / "out.json", path=dataset).wait() == 0
    assert len(take_log(tmp_path)) == 14 == sum(one["output"] in LETTERS for [one] in read(tmp_path / "out.json").values())


def test_statistics(dataset, capsys):
    """By hand: lengths 100, 120, ..., 360 have mean 230, and a variance of 400 times (14² - 1) / 12, so 80.6."""
    run(dataset_statistics, "--inputs_addr", dataset)
    lines = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines()[2:8]]
    assert {name.strip(): value.strip() for name, value in lines} == {
        "Questions": "14", "Users (by persona_id)": "3", "Profile size (items)": "3.0 ± 0.0",
        "Question length (words)": "3.0 ± 0.0", "Context length (tokens)": "230.0 ± 80.6",
        "Distance to the reference (tokens)": "2000.0 ± 0.0",
    }  # fmt: skip


def wrong(**columns):
    return [{**ROWS[0], **columns}, *ROWS[1:]], {}


def broken(content):
    return ROWS, {"data/chat_history_32k/p1.json": content if isinstance(content, str) else json.dumps(content)}


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (wrong(user_query="__import__('os').system('touch hacked')"), r"record 0: user_query .* is not a Python dict"),
        (wrong(user_query="{'role': 'user', 'content': 5}"), "record 0: user_query"),
        (wrong(incorrect_answers='["a", "b"]'), "record 0: incorrect_answers .* is not a JSON list of three texts"),
        (wrong(incorrect_answers="['a', 'b', 'c']"), "record 0: incorrect_answers"),
        (wrong(correct_answer=" "), "record 0: field 'correct_answer'"),
        (wrong(pref_type="other"), "record 0: pref_type 'other' is not one of stereotypical_pref"),
        (wrong(chat_history_32k_link="gone.json"), r"record 0: chat_history_32k_link: no file 'gone.json'\n  give the"),
        (wrong(chat_history_32k_link="data/chat_history_128k/gone/p0.json"), "no file 'data"),
        (([{"persona_id": "1"}], {}), "record 0: chat_history_32k_link: no file ''"),
        (([{key: one for key, one in ROWS[0].items() if key != "user_query"}], {}), "no column 'user_query'"),
        ((ROWS, {"copy/benchmark.csv": "x"}), "benchmark/text/benchmark.csv and copy/benchmark.csv may be of two"),
        (broken('{"chat_history": ['), r"p1\.json: the JSON breaks off at .*\n  copy it again"),
        (broken([]), r"p1\.json: no list of messages as 'chat_history'"),
        (broken({"chat_history": [{"role": "tool", "content": ""}]}), r"p1\.json: message 0 is no object with a role"),
        (broken({"chat_history": [{"role": "user", "content": [{"type": "image_url"}]}]}), "its content is a list"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused(source, match, tmp_path):
    with pytest.raises(UserError, match=match):
        download(save(tmp_path / "source", *source), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.json*")) and not Path("hacked").exists()
