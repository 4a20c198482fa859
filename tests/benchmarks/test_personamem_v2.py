"""PersonaMem-v2 on a made-up folder in its layout: download, rank, ask, score, make tables."""

import csv
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import hub_server
import pytest
from api_server import Reply
from test_personamem import ask, choose, server, small_model, with_other_secrets  # noqa: F401

import evaluate_responses
from prompts import load_prompt
from retrieval import rank_dataset
from utils import download_datasets, make_controls, make_table, report, select_responses, train_generator
from utils.base.errors import UserError
from utils.base.json_files import read_json
from utils.base.manifest import publish
from utils.benchmarks import tasks
from utils.benchmarks.personamem.letters import LETTERS
from utils.benchmarks.personamem.v2 import SECRET_COLUMNS, TYPES, UPDATED
from utils.data.datasets import read_dataset
from utils.models.model_folder import ModelFolder
from utils.runs.own_method import Question
from utils.show.pages import unseen_texts
from utils.training.lessons import seen_in_training

TABLE, CONTEXTS = "benchmark/text/benchmark.csv", "PersonaMem-v2_32k_contexts.jsonl"
LINK, LINKED = "chat_history_32k_link", "data/chat_history_32k/"


def history(persona, size):
    turns = [("system", f"card of {persona}"), ("user", f"I like thing {persona}."), ("assistant", "Noted.")]
    turns += [("user", f"And {size}, said {persona}."), *[("assistant", "More.")] * (size == "128k")]
    return [{"role": role, "content": content} for role, content in turns]


def row(number):
    """Return one of questions 0 to 13: two per type, personas 0 to 2, every fourth on others, every fifth updated."""
    columns = {"persona_id": str(number % 3), "pref_type": list(TYPES)[number % 7], "topic_query": f"t{number % 2}"}
    columns |= {"correct_answer": f"T{number}", "incorrect_answers": json.dumps([f"{number}: {i}" for i in range(3)])}
    for size, distance in (("32k", 2000), ("128k", "n/a")):
        columns[f"chat_history_{size}_link"] = f"data/chat_history_{size}/p{number % 3}.json"
        columns[f"total_tokens_in_chat_history_{size}"] = 100 + 20 * number
        columns[f"distance_from_related_snippet_to_query_{size}"] = distance
    columns |= {"who": "self" if number % 4 else "others", "updated": str(number % 5 == 0)}
    query = repr({"role": "user", "content": f'What\'s "it", {number}?'})
    columns["preference"] = f"Prefers T{number}"
    return columns | {"user_query": query, **dict.fromkeys(SECRET_COLUMNS, "TOLD")}


ROWS = [row(number) for number in range(14)]


def save(folder, rows=ROWS, files=None):
    """Write a folder in the published layout with these rows and additional files."""
    files = {"benchmark/multimodal/benchmark.csv": "not ours", "benchmark/multimodal/train.csv": "", **(files or {})}
    files[TABLE] = ""
    for size, persona in ((size, persona) for size in ("32k", "128k") for persona in "012"):
        content = json.dumps({"metadata": {"persona_id": persona}, "chat_history": history(persona, size)})
        files.setdefault(f"data/chat_history_{size}/p{persona}.json", content)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    with (folder / TABLE).open("w", newline="") as file:
        csv.writer(file).writerows([rows[0], *(columns.values() for columns in rows)])
    return folder


def run(command, *flags):
    assert command.main(list(map(str, flags))) == 0


def download(source, output, size="32k", *more):
    flags = ["--dataset", f"PersonaMem-v2-{size}", "--source_dir", source, "--output_dir", output, *more]
    run(download_datasets, *flags)
    return output / f"PersonaMem-v2_{size}.json"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return download(save(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("data"))


def test_records(dataset, tmp_path):
    records = read_dataset(dataset, needs=["profile", "options", "target", "persona_id"])
    seen = set(Question(records[0], tasks()["PersonaMem-v2-32k"]))  # by a method
    shown = {"task", "id", "question", "options", "profile", "topic", "topic_query", "persona_id"}
    assert {name for name in seen if "chat_history" not in name} == shown | {"context_length_in_tokens"}
    assert [record["persona_id"] for record in records] == list("00000111112222")
    for record in records:
        [entry] = [
            entry for entry in ROWS if entry["user_query"] == repr({"role": "user", "content": record["question"]})
        ]
        assert record["options"][LETTERS.index(record["target"])] == entry["correct_answer"]
        assert sorted(record["options"]) == sorted([entry["correct_answer"], *json.loads(entry["incorrect_answers"])])
        assert record["profile"].messages == history(entry["persona_id"], "32k")
        assert (record["group"], record["topic"]) == (entry["pref_type"], entry["topic_query"])
        assert record["preference"] == entry["preference"]
    assert {record["target"] for record in records} == set(LETTERS) and "TOLD" not in dataset.read_text()
    large = read_json(download(save(tmp_path / "large"), tmp_path, "128k"))
    assert {entry["id"]: entry["options"] for entry in large} == {entry["id"]: entry["options"] for entry in records}
    assert {entry["profile"]["end"] for entry in large} == {5} and large[0]["distance_to_ref_in_tokens"] == "n/a"
    # Neither the order of rows nor of options changes a record; a duplicate row gets its own id.
    turned = [
        {**entry, "incorrect_answers": json.dumps(json.loads(entry["incorrect_answers"])[::-1])} for entry in ROWS
    ]
    path = download(save(tmp_path / "source", turned[::-1] + turned[:1]), tmp_path / "out")
    first, second = ({record["id"]: record for record in read_json(file)} for file in (dataset, path))
    [twin] = second.keys() - first.keys()
    assert second.pop(twin) == {**first[twin.removesuffix("-2")], "id": twin} and first == second
    (tmp_path / "source" / TABLE).touch()  # so that it is made again
    assert not list(download(tmp_path / "source", tmp_path / "out").parent.glob("*.tmp"))
    assert path.with_name(CONTEXTS).read_bytes() == dataset.with_name(CONTEXTS).read_bytes()


def test_the_longest_end_of_a_link_counts(tmp_path):
    links = {"../own/p0.json": "benchmark/own/", "p0.json": "benchmark/text/", f"http://x/{LINKED}p0.json?x=y": LINKED}
    histories = {f"{name}p0.json": [{"role": "user", "content": name}] for name in ("", *links.values())}
    files = {path: json.dumps({"chat_history": messages}) for path, messages in histories.items()}
    rows = [{**columns, LINK: link} for columns, link in zip(ROWS, links, strict=False)]
    path = download(save(tmp_path / "source", rows, files), tmp_path / "out")
    read = {link: messages for line in path.with_name(CONTEXTS).open() for link, messages in json.loads(line).items()}
    assert read == {link: histories[f"{name}p0.json"] for link, name in links.items()}


def test_the_hub_gives_the_same_file_and_a_finished_one_is_skipped(dataset, tmp_path):
    source, home = save(tmp_path / "source"), {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*.*")}
    command = [sys.executable, download_datasets.__file__, "--dataset", "PersonaMem-v2-32k", "--output_dir", tmp_path]
    with hub_server.serve({"README.md": b"# v2\n", **files}) as hub:
        own = {"env": {**os.environ, **home, "HF_ENDPOINT": hub.url}, "text": True, "cwd": tmp_path}
        assert ["skipped" in subprocess.check_output(command, **own) for _ in range(2)] == [False, True]
        assert set(hub.fetched) == {"README.md", TABLE, *(f"{LINKED}p{persona}.json" for persona in "012")}
    assert (tmp_path / dataset.name).read_bytes() == dataset.read_bytes()


def test_from_the_files_to_a_table(dataset, server, choose, tmp_path, capsys):
    """The server knows the right option; without a history, it answers (a)."""
    records, systems = read_json(dataset), []
    targets = {record["question"]: record["target"] for record in records}
    letter = lambda messages: targets[messages[-1]["content"].split("\n")[0]] if len(messages) > 1 else "a"  # noqa: E731
    server.reply = lambda request: Reply(f"<final_answer>({letter(request['messages'])})")
    ways = {"none": (dataset, 1, ["--rag", "--num_contexts", 0]), "whole": (dataset, 5, [])}
    for unit, size in (("message", 3), ("session", 5)):  # messages: the card, the chosen ones, the question
        ways[unit] = tmp_path / f"{unit}.json", size, ["--rag", "--num_contexts", 1, "--unranked"]
        flags = ["--ranker", "bm25", "--unit", unit, "--input_dataset_addr", dataset]
        run(rank_dataset, *flags, "--output_dataset_addr", ways[unit][0])
    for way, (path, size, flags) in ways.items():
        out, scores = tmp_path / f"{way}_out", tmp_path / f"{way}_scores"
        assert {len(messages) for messages in ask(server, path, out, *flags)} == {size}
        bodies = list(server.requests)
        ask(server, with_other_secrets(path), tmp_path / f"{way}_again", *flags)
        assert server.requests == bodies and len(bodies) == 14
        run(evaluate_responses, "--inputs_addr", dataset, "--response_addr", out, "--score_addr", scores)
        assert way == "none" or read_json(scores)["score"] == 1
        systems += ["--system", way, scores]
    divisions = {"group": TYPES, "who": ("self", "others"), "updated": UPDATED.values(), "topic": ("t0", "t1")}
    for name, values in divisions.items():
        capsys.readouterr()
        run(make_table, *([] if name == "group" else ["--by", name]), *systems)
        head, _, row, *_ = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[:6])
        right = [
            [record["target"] == "a" for record in records if value in (UPDATED.get(record[name], record[name]), "")]
            for value in (*values, "")
        ]
        assert head[1 : len(right) + 1] == [*values, "All questions"]
        assert row[: len(right) + 1] == ["none", *(f"{sum(values) / len(values):.4f}" for values in right)]
    run(report, "--inputs_addr", dataset, "--output_addr", tmp_path / "x.html", *systems[-3:-1], out, scores)
    assert len(choose(tmp_path / "likeliest", path=dataset)) == 14


@pytest.mark.parametrize(
    ("columns", "history", "match"),
    [
        ({"user_query": "{'role': 'user', 'content': 3}"}, None, "row 2: user_query .* has no message of the user"),
        ({"incorrect_answers": '["a", "b"]'}, None, "row 2: incorrect_answers .* is not a JSON list of three texts"),
        ({"pref_type": "other"}, None, "row 2: pref_type 'other' is not one of stereotypical_pref"),
        ({LINK: "data/chat_history_128k/old/p0.json"}, None, f"row 2: {LINK}: no file 'data/.*\n  use the complete"),
        ({}, '{"chat_history": [', r"p0\.json: Input data was truncated\n  copy it again"),
        ({}, '{"chat_history": [{"role": "tool", "content": ""}]}', r"chat_history: Invalid enum value 'tool' - at"),
        ({}, '{"chat": {}}', r"p0\.json: has no list of messages, such as 'chat_history'"),
    ],
)
def test_wrong_files_are_refused(columns, history, match, tmp_path):
    source = save(tmp_path / "source", [{**ROWS[0], **columns}], history and {f"{LINKED}p0.json": history})
    with pytest.raises(UserError, match=match):
        download(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.json*")) and not Path("hacked").exists()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ('{"role": "user", "content": "It\'s?"}', "It's?"),
        ("{'role': 'user', 'content': \"It's?\"}", "It's?"),
        ('"It\'s?"', None),  # JSON of a text, which has no content
        ("'It is?' or", "It is?' or"),
        ("__import__('os').system('touch hacked')", "__import__('os').system('touch hacked')"),
    ],
)
def test_a_query_is_json_or_a_literal_or_a_text(query, text, tmp_path):
    source = save(tmp_path / "source", [{**ROWS[0], "user_query": query}])
    if text is None:
        with pytest.raises(UserError, match="has no message of the user"):
            download(source, tmp_path / "out")
    else:
        [record] = read_json(download(source, tmp_path / "out"))
        assert record["question"] == text and not Path("hacked").exists()


def test_a_history_is_a_list_or_the_first_list_of_a_file(dataset, tmp_path):
    turns = {persona: history(persona, "32k") for persona in "012"}
    forms = [turns["0"], {"about": {}, "turns": turns["1"], "others": []}, {"others": [], "chat_history": turns["2"]}]
    files = {f"{LINKED}p{persona}.json": json.dumps(form) for persona, form in enumerate(forms)}
    path = download(save(tmp_path / "source", files=files), tmp_path / "out")
    assert path.with_name(CONTEXTS).read_bytes() == dataset.with_name(CONTEXTS).read_bytes()


def test_an_option_with_the_right_text_is_right(tmp_path):
    texts = {"correct_answer": "Right", "incorrect_answers": json.dumps(["Wrong", "Right ", "No"])}
    path = download(save(tmp_path / "source", [{**ROWS[0], **texts}]), tmp_path)
    [record] = read_json(path)
    twin = LETTERS[record["options"].index("Right ")]
    assert record["options"][LETTERS.index(record["target"])] == "Right"
    (tmp_path / "out.json").write_text(json.dumps({record["id"]: [{"output": twin}]}))
    addresses = ["--response_addr", tmp_path / "out.json", "--score_addr", tmp_path / "scores.json"]
    run(evaluate_responses, "--inputs_addr", path, *addresses)
    made = read_json(tmp_path / "scores.json")
    assert (made["score"], made["num_identical_to_right"]) == (1, 1)


def test_other_tables_are_settings_of_the_download(dataset, tmp_path):
    """Each table has its own file of questions and of histories."""
    table = (save(tmp_path / "source") / TABLE).read_text()
    (tmp_path / "source/benchmark/text/train.csv").write_text(table)
    download(tmp_path / "source", tmp_path / "out", "32k", "--setting", "train")
    names = {path.name for path in (tmp_path / "out").iterdir() if "manifest" not in path.name}
    assert names == {"PersonaMem-v2_train_32k.json", "PersonaMem-v2_train_32k_contexts.jsonl"}
    train = read_json(tmp_path / "out/PersonaMem-v2_train_32k.json")
    assert [record | {"profile": 0} for record in train] == [
        record | {"profile": 0} for record in read_json(dataset)
    ]  # but for the name of the histories' file
    with pytest.raises(UserError, match="--setting test: PersonaMem-v2-32k has no such setting; its settings: "):
        download(tmp_path / "source", tmp_path / "out", "32k", "--setting", "test")
    with pytest.raises(UserError, match=r"has no file val\.csv"):
        download(tmp_path / "source", tmp_path / "out", "32k", "--setting", "validation")


# The public code's way of asking


def test_the_official_way_shows_the_options_after_the_question(dataset, server, tmp_path, capsys):
    """Options A to D in a system message; a letter that the public rule does not read is not an answer."""
    records, texts = {record["question"]: record for record in read_json(dataset)}, {}

    def reply(request):
        asked, options = (message["content"] for message in request["messages"][-2:])
        [question] = [question for question in records if asked.startswith(question)]
        texts.setdefault(question, [asked, options])
        right = records[question]["options"]["abcd".index(records[question]["target"])]
        letter = next(line[0] for line in options.splitlines() if line[1:] == f". {right}")
        return Reply(f"I think so.\nFinal Answer: {letter}" if question != first else "Final Answer: [B]")

    first, server.reply = next(iter(records)), reply
    out, scores = tmp_path / "official.json", tmp_path / "scores.json"
    more = ["--asking", "official", "--num_generated_outputs", 2, "--max_retries", 0]
    messages = ask(server, dataset, out, *more)
    assert {tuple(message["role"] for message in one[-2:]) for one in messages} == {("user", "system")}
    prompt = load_prompt("personamem/choice_official")
    for question, record in records.items():
        shown = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", record["options"], strict=True))
        assert [message["content"] for message in prompt.messages(question=question, options=shown)] == texts[question]
    run(evaluate_responses, "--inputs_addr", dataset, "--response_addr", out, "--score_addr", scores)
    made = read_json(scores)
    assert (made["num_unanswered"], made["score"]) == (1, 13 / 14) and made["score_over_orders"] == 13 / 14
    with pytest.raises(UserError, match="was made with --asking official; --strategy open is for responses made with "):
        judging = ["--strategy", "open", "--evaluator_llm", "j", "--openai", "--score_addr", tmp_path / "open.json"]
        run(evaluate_responses, "--inputs_addr", dataset, "--response_addr", out, *judging)
    capsys.readouterr()
    run(make_table, "--system", "Whole history", scores, "--paper", "Qwen3-4B base", "--paper_table", "32k")
    table = capsys.readouterr().out
    assert "0.305" in table and "Not asked as" not in table
    server.reply = lambda request: Reply("<final_answer>(a)")
    ask(server, dataset, tmp_path / "ours.json")
    ours = ["--response_addr", tmp_path / "ours.json", "--score_addr", tmp_path / "ours_scores.json"]
    run(evaluate_responses, "--inputs_addr", dataset, *ours)
    both = ["--system", "Whole history", scores, "--system", "Ours", tmp_path / "ours_scores.json"]
    run(make_table, *both, "--paper", "Qwen3-4B base", "--paper_table", "32k")
    assert "Without --asking official, which asks as the paper's code does: Ours." in capsys.readouterr().out
    with pytest.raises(UserError, match=r"no such table of PersonaMem-v2-32k's accuracy; the tables are 32k$"):
        run(make_table, "--system", "Whole history", scores, "--paper", "GPT-4.1", "--paper_table", "32k open")


def test_open_answers_are_judged_by_the_majority_of_three(dataset, server, tmp_path, capsys):
    """The judge sees the end of the history, the preference and the right option; the answerer sees none of these."""
    records = {record["question"]: record for record in read_json(dataset)}
    server.reply, out, scores = lambda request: Reply("Well, I do."), tmp_path / "open.json", tmp_path / "scores.json"
    for messages in ask(server, dataset, out, "--asking", "open"):
        [record] = [record for question, record in records.items() if messages[-1]["content"].startswith(question)]
        assert messages[-1] == load_prompt("personamem/open").messages(question=record["question"])[0]
        assert not any(text in json.dumps(messages) for text in ("Prefers", *record["options"]))
    planned = ["YNYNYNNYYY"[number % 7 : number % 7 + 3] for number in range(13)] + ["Y??"]  # the last lacks verdicts
    votes = {question: iter(three) for question, three in zip(records, planned, strict=True)}

    def judge(request):
        shown = request["messages"][-1]["content"]
        [question] = [question for question in records if f"request:\n{question}\n" in shown]
        example = records[question]["options"]["abcd".index(records[question]["target"])]
        for text in (records[question]["preference"], example, "system: card of", "Well, I do."):
            assert text in shown
        return Reply({"Y": r"So \boxed{Yes}", "N": "No, it is not."}.get(next(votes[question]), "Who knows?"))

    server.reply = judge
    server.requests.clear()
    flags = ["--inputs_addr", dataset, "--response_addr", out, "--score_addr", scores, "--strategy", "open"]
    flags += ["--evaluator_llm", "j", "--openai", "--base_url", server.url, "--max_retries", 0, "--max_concurrency", 1]
    run(evaluate_responses, *flags)
    assert len(server.requests) == 42 and {request["temperature"] for request in server.requests} == {1.0}
    made, expected = read_json(scores), [int(three.count("Y") > 1) for three in planned[:-1]]
    assert [entry["score"] for entry in made["per_question_scores"]] == [*expected, None]
    assert (made["num_verdicts"], made["num_missing_verdicts"], made["num_unscored"]) == (3, 2, 1)
    assert -1 <= made["krippendorff_alpha_interval"] <= 1 and made["score"] == sum(expected) / 13
    server.reply = lambda request: Reply("yes")
    run(evaluate_responses, *flags, "--max_retries", 1)  # asks for the two missing ones alone
    assert len(server.requests) == 44 and read_json(scores)["per_question_scores"][-1]["score"] == 1
    capsys.readouterr()
    run(make_table, "--system", "Whole history", scores, "--paper", "Qwen3-4B base", "--paper_table", "32k open")
    printed = capsys.readouterr().out
    assert "0.383" in printed and "Verdicts differ" not in printed  # three verdicts are the paper's
    assert "- The paper's scoring rule differs: its public code takes a verdict's first box, then" in printed
    run(make_controls, "--inputs_addr", dataset, "--output_dir", tmp_path)
    choices = "--strategy accuracy is for responses made without --asking or with --asking official"
    for path, wrong, match in (
        (out, ["--strategy", "accuracy"], f"was made with --asking open; {choices}"),
        (tmp_path / "longest.json", flags[6:], "was made without --asking; --strategy open is for responses made with"),
        (out, [*flags[6:], "--temperature", 0], "--strategy open: a greedy judge always gives the same verdict"),
    ):
        with pytest.raises(UserError, match=match):
            addresses = ["--response_addr", path, "--score_addr", tmp_path / "other.json"]
            run(evaluate_responses, "--inputs_addr", dataset, *addresses, *wrong)


def test_what_only_the_scorer_sees_is_told(dataset, tmp_path):
    """Not the user, nor what all prompts show; of several metrics, the one that scored."""
    task, [record, *_] = tasks()["PersonaMem-v2-32k"], read_json(dataset)
    assert [*unseen_texts(task, record)] == ["target", "preference"]
    metric, of_scores = task.metrics["open"], {"task": task.name, "strategy": "open"}
    publish(tmp_path / "scores.json", {}, {"settings": of_scores, "arguments": {}})
    assert select_responses.describe_scorer(tmp_path / "scores.json", of_scores, metric)["saw"] == [
        "target",
        "preference",
    ]
    args = Namespace(objective="grpo", score_addr=tmp_path / "scores.json", model_addr="none", target_addr=None,
                     worst_addr=None, response_addr=tmp_path / "out.json")  # fmt: skip
    assert seen_in_training(args, task, load_prompt("personamem/choice"), ModelFolder(args.model_addr)) == [
        "preference",
        "target",
    ]


def test_calls_with_histories_can_be_learnt_from_their_scores(dataset, server, small_model, tmp_path, capsys):
    """Four answers per question, about half of them right; each call is learnt after its whole dialogue."""
    target = {record["question"]: record["target"] for record in read_json(dataset)}

    def reply(request):
        [right] = [
            letter for question, letter in target.items() if request["messages"][-1]["content"].startswith(question)
        ]
        return Reply(f"<final_answer>({right if request['seed'] % 2 else LETTERS[LETTERS.index(right) - 1]})")

    server.reply, out = reply, tmp_path / "samples.json"
    ask(server, dataset, out, "--num_generated_outputs", 4, "--temperature", 1, "--trace")
    scores = tmp_path / "scores.json"
    words = ["--samples", "all", "--inputs_addr", dataset, "--response_addr", out, "--score_addr", scores]
    run(evaluate_responses, *words)
    learning = ["--objective", "grpo", "--trace_addr", f"{out}.trace.jsonl", "--score_addr", scores]
    learning += ["--model_addr", small_model, "--lora_rank", 4, "--inputs_addr", dataset, "--dry_run"]
    run(train_generator, *learning, "--output_dir", tmp_path / "policy")
    printed = capsys.readouterr().out
    mixed = sum(len(set(entry["samples"])) > 1 for entry in read_json(scores)["per_question_scores"])
    assert f": {4 * mixed} calls of {mixed} questions" in printed and mixed > 0
