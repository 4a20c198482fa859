"""Odd and broken input for every script: it is refused in one to three lines that name it, and nothing changes.

A table lists which commands read which file; every damage is tried on every command that reads such a file. Odd but
legal inputs come last: with these, the scripts work.
"""

import functools
import gc
import gzip
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from api_server import serve
from zygote import LAUNCHED, obey_modes, set_capabilities

from utils.base import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

# Commands, run in the prepared folder. They need only the API's address.

API = "--openai --api_key_addr key.txt --base_url $URL"
COMMANDS = {
    "none": f"baselines.py {API} --model_addr m --inputs_addr data.json --output_addr made/none.json",
    "rag": f"baselines.py {API} --model_addr m --rag --inputs_addr data.json --output_addr made/rag.json",
    "planpers": f"planpers.py {API} --model_addr m --plans_addr plans.json --inputs_addr data.json "
    "--output_addr made/planpers.json",
    "gold": f"planpers.py {API} --model_addr m --gold_plan --inputs_addr data.json --output_addr made/gold.json",
    "evaluate": f"evaluate_responses.py {API} --evaluator_llm m --inputs_addr data.json "
    "--response_addr responses.json --score_addr made/scores.json",
    "rank": "retrieval/rank_dataset.py --ranker bm25 --input_dataset_addr data.json "
    "--output_dataset_addr made/ranked.json",
    "table": "utils/make_table.py --system RAG scores.json --output_addr made/table.md",
    "direct": "utils/make_table.py --system RAG direct.json --output_addr made/direct.md",
    "show": "utils/show_answers.py --inputs_addr data.json --response_addr responses.json --score_addr scores.json",
    "training curve": "utils/make_figures.py --figure training --training_dir planner --output_addr drawn/training",
    "compare": "utils/compare_evaluators.py --evaluator Café scores.json other.json --evaluator Pairs pairs.json "
    "--human_addr humans.json --output_addr made/evaluators.json",
    "figure 2": "utils/make_figures.py --figure 2 --system 0 scores.json --system 10 other.json --output_addr drawn/2",
    "figure 4": "utils/make_figures.py --figure 4 --agreement_addr made/evaluators.json --output_addr drawn/4",
    "figure 5": "utils/make_figures.py --figure 5 --inputs_addr data.json --output_addr drawn/5",
}
# Refused before they look at a model, in the tables below.
TRAIN = "train_planner.py --model_addr m --output_dir planner"
OTHERS = {
    "train": f"{TRAIN} --inputs_addr data.json",
    "train, validation": f"{TRAIN} --inputs_addr train.json --validation_addr data.json",
}

# The fields that a command needs of a dataset.
DATASET = {
    "none": "",
    "rag": "profile",
    "planpers": "profile",
    "gold": "profile rubric_aspects",
    "evaluate": "narrative rubric_aspects",
    "rank": "profile",
    "show": "",
    "figure 5": "",
    "train": "profile rubric_aspects",
    "train, validation": "profile rubric_aspects",
}
EACH_SCRIPT = ["none", "planpers", "evaluate", "rank", "show", "train"]
READERS = {
    "data.json": list(DATASET),
    "responses.json": ["evaluate", "show"],
    "plans.json": ["planpers"],
    "scores.json": ["table", "show", "compare", "figure 2"],
    "other.json": ["compare"],
    "pairs.json": ["compare"],
    "direct.json": ["direct"],
    "humans.json": ["compare"],
    "made/evaluators.json": ["figure 4"],
}
OUTPUTS = {
    command: match[1]
    for command, arguments in COMMANDS.items()
    if (match := re.search(r"--(?:output|score|output_dataset)_addr (made/\S+)", arguments))
}
DRY_RUNS = ("baselines.py", "planpers.py", "evaluate_responses.py", "train_planner.py", "retrieval/rank_dataset.py")
WITH_MANIFEST = ["rag", "planpers", "evaluate", "rank"]

RECORDS = [
    {
        "id": f"q{number}",
        "question": f"Which bread {number} — at Café Zoë?",
        "narrative": "I bake on Sundays.",
        "category": "cooking",
        "rubric_aspects": [{"aspect": "Price", "evidence": "how much", "reason": "a small budget"}],
        "profile": [{"id": "p1", "text": "Rye or wheat bread?", "category": "cooking"}],
    }
    for number in range(2)
]


COMMON = [{"id": f"q{number}", "question_sha256": f"{number}"} for number in range(2)]
OF_ONE = {"category": "cooking", "answered": True, "score": 0.5, "details": [{"aspect": "Price — é", "score": 1}]}
OF_TWO = {"answered": [True] * 2, "result": "win", "details": 2 * [{"preferred": "first", "reason": "Rye — é"}]}
SCORED = [common | OF_ONE for common in COMMON]
PAIRS = [common | OF_TWO for common in COMMON]


@pytest.fixture(scope="module")
def server():
    with serve() as server:
        yield server


@pytest.fixture(scope="module")
def whole(tmp_path_factory, server):
    """A folder with good input of every kind, and the scripts' outputs."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_whole(folder, lambda command: load(command).main(arguments_of(command, server.url)))
    gc.collect()
    gc.freeze()  # see `refuse`: garbage collection need not scan loaded modules again
    yield folder
    gc.unfreeze()


def make_whole(folder, run):
    """Fill the folder; `run` runs a command in it and returns the exit code."""
    write(folder / "data.json", RECORDS)
    write(folder / "train.json", RECORDS)
    write(folder / "responses.json", {"q0": [{"output": "Rye — é."}], "q1": [{"output": "Wheat."}]})
    write(folder / "plans.json", {"q0": [{"aspects": ["Price — é"]}], "q1": [{"aspects": ["Time"]}]})
    write(folder / "scores.json", {"score": 0.5, "num_unanswered": 0, "per_question_scores": SCORED})
    write(folder / "other.json", {"score": 0.5, "num_unanswered": 0, "per_question_scores": SCORED})
    write(folder / "pairs.json", {"strategy": "pairwise", "num_unanswered": [0, 0], "per_question_scores": PAIRS})
    direct = [common | OF_ONE | {"details": [{"score": 0.5, "raw": "Rye — é"}]} for common in COMMON]
    write(folder / "direct.json", {"strategy": "direct", "num_unanswered": 0, "per_question_scores": direct})
    write(folder / "humans.json", {"q0": ["first", "tie"], "q1": ["second", "second"], "not scored — é": 2 * ["tie"]})
    write(folder / "key.txt", "sk-test")
    (folder / "planner").mkdir()
    write(folder / "planner/training_log.jsonl", '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n')
    (folder / "prompts").mkdir()
    for name in ("no_personalization", "rag", "planpers", "planner", "aspect_judge"):
        shutil.copy(ROOT / f"prompts/lampqa/{name}.txt", folder / "prompts")
    for name in ("data", "train"):
        (folder / f"{name}.json").rename(folder / "given.json")
        assert run(COMMANDS["rank"].replace("data.json", "given.json").replace("made/ranked", name)) == 0
        (folder / "given.json").unlink()
    for command in COMMANDS.values():
        assert run(command) == 0


def write(path, content):
    """Write a new file with bytes, a text, or anything else as JSON."""
    path.unlink(missing_ok=True)  # it may be a link
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1))


@pytest.fixture
def alone(monkeypatch):
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("SLURM_ARRAY_TASK_COUNT", raising=False)


@pytest.fixture
def folder(whole, alone, tmp_path, monkeypatch):
    """A working copy of `whole`, which others may read too."""
    return copy_of(whole, tmp_path / "work", monkeypatch)


@pytest.fixture
def inputs(whole, alone, tmp_path, monkeypatch):
    """A copy of `whole` by hard links, ten times faster, for damages that replace a file by another."""
    return copy_of(whole, tmp_path / "work", monkeypatch, copy_function=os.link)


def copy_of(whole, folder, monkeypatch, **how):
    shutil.copytree(whole, folder, **how)
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    return folder


def load(command):
    return importlib.import_module(command.split()[0].removesuffix(".py").replace("/", "."))


def arguments_of(command, url):
    return shlex.split(command.replace("$URL", url))[1:]


def snapshot(folder):
    """Return all names in a folder, with the bytes of regular files and the targets of links."""
    contents = {}
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(parent, name)  # not a Path: this is called some 5,000 times, for 75 names each
            contents[path] = os.readlink(path) if os.path.islink(path) else read_regular(path)
    return contents


def read_regular(path):
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def refuse(folder, command, url, capsys, expected, user=nullcontext):
    """Check that the command exits with code 2 and a matching message, and changes no file.

    Also its dry run, if the script has one, with the same message.
    """
    before = snapshot(folder)
    messages = []
    for given in (command, f"{command} --dry_run") if command.startswith(DRY_RUNS) else (command,):
        capsys.readouterr()
        with user(), pytest.raises(SystemExit) as left:
            cli.run_script(lambda given=given: load(given).main(arguments_of(given, url)))
        out, err = capsys.readouterr()
        code = left.value.code
        del left  # it holds the command's frames, and so its locks
        if list(folder.glob("*/*.lock")):
            gc.collect()  # a lock goes with its owner
        assert (code, out) == (2, ""), err
        check_message(err, expected)
        assert snapshot(folder) == before
        messages.append(err)
    assert messages == messages[:1] * len(messages)


def check_message(err, expected):
    lines = err.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("error: "))
    assert all(line.startswith(("note: ", "  ")) for line in lines[:first]), err
    assert len(lines) - first <= 3 and max(map(len, lines)) <= 2000, err
    assert re.match(expected, "\n".join(lines[first:]).removeprefix("error: ")), err


# Damages to a whole file: a function of its path, and the message after its name


def replaced(content):
    """Return a damage that replaces the file's bytes by these, or by a function's result."""
    return lambda path: write(path, content(path.read_bytes()) if callable(content) else content)


def encoded(encoding):
    return replaced(lambda content: content.decode().replace("—", "-").encode(encoding))


def swapped(make):
    """Return a damage that replaces the file by something else."""

    def damage(path):
        path.unlink()
        make(path)

    return damage


NOT_REGULAR = "is a pipe or a device; use a regular file"
NO_FORM = "not a score file|must be a non-empty object|Expected `object`|Object missing required field `evaluators`"
FILE_DAMAGES = {
    "empty": (replaced(b""), "the file is empty"),
    "a mark and white space": (replaced(b"\xef\xbb\xbf \n"), "the file is empty"),
    "UTF-16": (encoded("utf-16"), r"not UTF-8 text \(byte 0\)"),
    "Latin-1": (encoded("latin-1"), r"not UTF-8 text \(byte \d+\)"),
    "gzip": (replaced(gzip.compress), r"not UTF-8 text \(byte 1\)"),
    "zeros, as after a crash": (replaced(bytes(4096)), "not JSON"),
    "cut short": (replaced(lambda content: content[:-20]), r"the JSON ends early at line \d+, column \d+"),
    "trailing garbage": (replaced(lambda content: content + b"]"), r"more than one JSON value \(line \d+"),
    "Python's quotes": (replaced(lambda content: content.replace(b'"', b"'")), "not JSON: "),
    "CSV": (replaced(b"id,answer\nq1,Yes.\n"), "looks like CSV; use a JSON file"),
    "too deep": (replaced(b"[" * 100_000), "nested too deeply"),
    "a huge integer": (replaced(b"9" * 5000), "has a number with thousands of digits"),
    "NaN": (replaced(b"NaN"), rf"(found NaN;|{NO_FORM})"),
    "null": (replaced(b"null"), rf"(found missing or null;|{NO_FORM})"),
    "an unknown object": (replaced(b'{"version": 2}'), rf"(found an object;|id .version.: |{NO_FORM})"),
    "a list of numbers": (replaced(b"[1, 2]"), rf"(record 0: found 1,|found a list;|{NO_FORM})"),
    "a key twice": (replaced(b'{"q0": [], "q0": []}'), "duplicate key 'q0'"),
    "gone": (Path.unlink, "no such file"),
    "a folder": (swapped(Path.mkdir), "is a folder; pass the file"),
    "a pipe": (swapped(os.mkfifo), NOT_REGULAR),
    "/dev/null": (swapped(lambda path: path.symlink_to("/dev/null")), NOT_REGULAR),
    "a link to itself": (swapped(lambda path: path.symlink_to(path.name)), "cannot be read: Too many levels of"),
}


def file_cases():
    return [(command, name, damage) for damage in FILE_DAMAGES for name in READERS for command in READERS[name]]


@pytest.mark.alike("command")
@pytest.mark.parametrize(("command", "name", "damage"), file_cases())
def test_a_file_of_the_wrong_kind(inputs, server, capsys, command, name, damage):
    change, expected = FILE_DAMAGES[damage]
    change(inputs / name)
    refuse(inputs, (COMMANDS | OTHERS)[command], server.url, capsys, f"{name}: {expected}")


# JSON Lines: a dataset's other form

LINES_DAMAGES = {
    "a line cut short": ('{"id": "q2", "quest', "line 3 is not JSON: Unterminated string"),
    "a key twice": ('{"id": "q2", "id": "q3"}', "line 3: duplicate key 'id'"),
    "too deep": ("[" * 100_000, "line 3: nested too deeply"),
    "the whole array": (json.dumps(RECORDS), "record 2: found a list, expected a question object"),
    "two on one line": ('{"id": "q2"} {"id": "q3"}', "line 3 is not JSON: Extra data at column 14"),
    "an id twice": (json.dumps(RECORDS[0]), "records 0 and 2 both have id 'q0'; ids must be unique"),
}


@pytest.mark.alike("command")
@pytest.mark.parametrize("damage", LINES_DAMAGES)
@pytest.mark.parametrize("command", EACH_SCRIPT)
def test_a_bad_line(inputs, server, capsys, command, damage):
    line, expected = LINES_DAMAGES[damage]
    write(inputs / "data.jsonl", "".join(json.dumps(record) + "\n" for record in RECORDS) + line + "\n")
    command = (COMMANDS | OTHERS)[command].replace("data.json", "data.jsonl").replace("made/", "new/")
    refuse(inputs, command, server.url, capsys, f"data.jsonl: {re.escape(expected)}")


# Damages to one record, by the field that a command must need to see them: the path into the record, and the values

MISSING = object()
NO_TEXT = (MISSING, None, " \n", 5, [], "half \ud800")
NO_LIST = (MISSING, None, 5, "text", {})
NO_OBJECT = (None, "text", [])
RECORD = r"record 1 \(id 'q1'\): "
ASPECT = rf"{RECORD}field 'rubric_aspects\[0\]"
RECORD_DAMAGES = [
    ("", (), NO_OBJECT, r"record 1: found .*, expected a question object"),
    ("", ("id",), (MISSING, None, "", "\n\u2028", True, 1.5, [], "\ud800"), "record 1: field 'id' is "),
    ("", ("id",), ("q0",), "records 0 and 1 both have id 'q0'; ids must be unique"),
    ("", ("task",), (None, [], "Quiz"), rf"{RECORD}unknown task "),
    ("", ("tags",), (functools.reduce(lambda inner, _: [inner], range(600), []),), rf"{RECORD}nested too deeply"),
    ("", ("question",), NO_TEXT, rf"{RECORD}((no )?field 'question'|.*has half)"),
    ("narrative", ("narrative",), NO_TEXT, rf"{RECORD}((no )?field 'narrative'|.*has half)"),
    ("profile", ("profile",), NO_LIST, rf"{RECORD}(no )?field 'profile'"),
    ("profile", ("profile", 0), NO_OBJECT, rf"{RECORD}(no )?field 'profile\[0\]': "),
    ("profile", ("profile", 0, "text"), NO_TEXT, rf"{RECORD}((no )?field 'profile\[0\]|.*has half)"),
    ("profile", ("profile", 0, "id"), (["p1"], {"a": 1}, True, 1.5), rf"{RECORD}field 'profile\[0\]\.id'"),
    ("rubric_aspects", ("rubric_aspects",), NO_LIST, rf"{RECORD}(no )?field 'rubric_aspects'"),
    ("rubric_aspects", ("rubric_aspects", 0), NO_OBJECT, rf"{ASPECT}': "),
    ("rubric_aspects", ("rubric_aspects", 0, "aspect"), NO_TEXT, rf"({ASPECT}|{RECORD}.*has half)"),
    # missing or empty is fine
    ("rubric_aspects", ("rubric_aspects", 0, "reason"), (None, 5, "half \ud800"), rf"({ASPECT}|{RECORD}.*has half)"),
    ("rubric_aspects", ("rubric_aspects", 0, "evidence"), (None, []), rf"{ASPECT}.evidence'"),
    ("", ("profile", 0, "votes"), (float("nan"), float("-inf")), rf"{RECORD}has NaN or an infinite number"),
    ("", ("title",), ("\ud800",), rf"{RECORD}has half a character"),
    ("", ("profile", 0, "category"), ("\ud800",), rf"{RECORD}has half a character"),
]


def record_cases():
    return [
        pytest.param(command, path, value, expected, id=f"{command}-{'.'.join(map(str, path))}-{shown(value)}")
        for need, path, values, expected in RECORD_DAMAGES
        for value in values
        for command in (DATASET if need else EACH_SCRIPT)
        if need in DATASET[command]
    ]


def shown(value):
    return "missing" if value is MISSING else ascii(value)[:20]


def put(value, path, new):
    """Return a copy of a JSON value with the part at the path replaced or missing."""
    if not path:
        return new
    if not isinstance(value, dict):
        return [put(item, path[1:], new) if number == path[0] else item for number, item in enumerate(value)]
    changed = value | {path[0]: put(value.get(path[0]), path[1:], new)}
    return {name: part for name, part in changed.items() if part is not MISSING}


@pytest.mark.alike("command")
@pytest.mark.parametrize(("command", "path", "value", "expected"), record_cases())
def test_a_record_with_a_part_of_the_wrong_type(inputs, server, capsys, command, path, value, expected):
    write(inputs / "data.json", json.dumps([RECORDS[0], put(RECORDS[1], path, value)]))
    refuse(inputs, (COMMANDS | OTHERS)[command], server.url, capsys, f"data.json: {expected}")


# Damages to responses, plans and scores

NO_SAMPLES = (None, "text", {}, [])
NO_TITLE = (5, "text", {}, [None], [""], [[]], ["\ud800"])
NO_FIGURE = (True, "0.5", -1, 1.5, [], float("nan"), 10**400)
NO_VERDICT = (3, -1, 1.0, True, "1", [], float("nan"), 10**50)
ITEM = ("per_question_scores", 1)
ROW = ("evaluators", 1)
NO_SAMPLE = r"id 'q1': field '\[0\]': (Object missing|Expected `object`)"
PART_DAMAGES = [
    ("responses.json", ("q1",), NO_SAMPLES, "id 'q1': found .*; responses look like {"),
    ("responses.json", ("q1", 0), (*NO_OBJECT, {}, {"text": "Rye."}), NO_SAMPLE),
    ("responses.json", ("q1", 0, "output"), (5, [], {}, "\ud800"), r"id 'q1': (field '\[0\].output'|.*has half)"),
    ("plans.json", ("q1",), NO_SAMPLES, "id 'q1': found .*; plans look like {"),
    ("plans.json", ("q1", 0), (*NO_OBJECT, {}, {"titles": []}), NO_SAMPLE),
    ("plans.json", ("q1", 0, "aspects"), NO_TITLE, r"id 'q1': (field '\[0\].aspects.*': Expected|.*has half)"),
    ("humans.json", ("q1",), (None, "both", {}, []), "id 'q1': "),
    ("humans.json", ("q1", 1), (None, True, "both", []), "id 'q1': found .*, expected "),
    ("scores.json", ("task",), (None, [], "Quiz"), "unknown task "),
    ("scores.json", ITEM[:1], NO_LIST, "not a score file: it has no list 'per_question_scores'"),
    ("scores.json", ITEM, NO_OBJECT, "per_question_scores, item 1: not a scored question, because it has no field 'i"),
    ("scores.json", (*ITEM, "id"), (None, 0.5, []), "per_question_scores, item 1: field 'id' is "),
    ("scores.json", (*ITEM, "details"), (MISSING, 5, [{}], [{"score": 1}]), "question 'q1': .*(`details`|'details')"),
    ("scores.json", (*ITEM, "details", 0, "aspect"), (None, []), "question 'q1': field 'details' is not a list"),
    ("scores.json", (*ITEM, "details", 0, "score"), NO_VERDICT, "question 'q1': .* is not a verdict: the integer 0, "),
    ("scores.json", (*ITEM, "score"), (MISSING, None, 0.75, True, "0.5", 10**400), "question 'q1': its score is .* gi"),
    ("scores.json", (*ITEM, "answered"), (MISSING, None, 1, []), "question 'q1': .*answered"),
    ("scores.json", (*ITEM, "answered"), (False,), "question 'q1': its score is 0.5 without an answer; it must be 0"),
    ("scores.json", ("num_unanswered",), (MISSING,), "has no questions or no 'num_unanswered'"),
    ("scores.json", (*ITEM, "question_sha256"), (MISSING, 5, []), "question 'q1': .*question_sha256"),
    ("direct.json", (*ITEM, "details"), ([], [{}]), "question 'q1': field 'details' "),
    ("direct.json", (*ITEM, "details", 0, "score"), (0.8,), "question 'q1': .* is not a level: one of 0, 0.25,"),
    (
        "direct.json",
        (*ITEM, "details", 0, "score"),
        (True,),
        "question 'q1': True is not a score: a number from 0 to 1",
    ),
    ("direct.json", (*ITEM, "score"), (0.75,), "question 'q1': its score is 0.75, but its responses give 0.5"),
    ("pairs.json", (*ITEM, "id"), ("q0",), "question 'q0' is repeated"),
    ("pairs.json", (*ITEM, "details"), (MISSING, [], [5, 5], [{}, {}]), "question 'q1': .*details"),
    ("pairs.json", (*ITEM, "details", 0, "preferred"), (MISSING, 5, "tie"), "question 'q1': field 'details"),
    ("pairs.json", (*ITEM, "answered"), (None, [True], "both"), "question 'q1': .*answered"),
    ("pairs.json", (*ITEM, "answered"), ([False, True],), "question 'q1': its result is 'win', but its verdicts"),
    ("pairs.json", (*ITEM, "result"), (MISSING, None, "tie", []), "question 'q1': its result is .*'win'"),
    ("made/evaluators.json", ROW[:1], (MISSING, {}, []), "(Object missing|Expected `array`|has 0 evaluators; )"),
    ("made/evaluators.json", ROW, NO_OBJECT, r"Expected `object`, got .* - at `\$.evaluators\[1\]`"),
    ("made/evaluators.json", (*ROW, "name"), (MISSING, []), r".* - at `\$.evaluators\[1\]"),
    ("made/evaluators.json", (*ROW, "accuracy"), NO_FIGURE, r"(.*`\$.evaluators\[1\].accuracy`|evaluators, item 1: )"),
]


def part_cases():
    return [
        pytest.param(command, name, path, value, expected, id=f"{command}-{'.'.join(map(str, path))}-{shown(value)}")
        for name, path, values, expected in PART_DAMAGES
        for value in values
        for command in READERS[name]
    ]


@pytest.mark.alike("command")
@pytest.mark.parametrize(("command", "name", "path", "value", "expected"), part_cases())
def test_a_file_with_a_part_of_the_wrong_type(inputs, server, capsys, command, name, path, value, expected):
    good = json.loads((inputs / name).read_text())
    write(inputs / name, json.dumps(put(good, path, value)))
    refuse(inputs, COMMANDS[command], server.url, capsys, f"{name}: {expected}")


ID_DAMAGES = [
    ("evaluate", "responses.json", {"q1": MISSING}, "some questions have no response"),
    ("evaluate", "responses.json", {"q2": [{"output": "a"}]}, "its ids do not match the dataset"),
    ("show", "responses.json", {"q1": MISSING}, "scores.json: id 'q1' is missing from the dataset or the responses"),
    ("planpers", "plans.json", {"q1": MISSING}, "lacks 1 of 2 plans of this run: 'q1'"),
    ("compare", "humans.json", {"q0": MISSING, "q1": MISSING}, "has no question in common with --evaluator "),
]


@pytest.mark.parametrize(("command", "name", "change", "expected"), ID_DAMAGES)
def test_a_file_with_a_missing_or_unknown_question(inputs, server, capsys, command, name, change, expected):
    samples = json.loads((inputs / name).read_text()) | change
    write(inputs / name, {key: value for key, value in samples.items() if value is not MISSING})
    refuse(inputs, COMMANDS[command], server.url, capsys, expected if command == "show" else f"{name}: {expected}")


# Prompts

PROMPT_OF = {"none": "no_personalization", "rag": "rag", "planpers": "planpers", "gold": "rag",
             "evaluate": "aspect_judge"}  # fmt: skip


@pytest.mark.parametrize("command", PROMPT_OF)
def test_an_invalid_prompt(inputs, server, capsys, command):
    name = f"prompts/{PROMPT_OF[command]}.txt"
    wrong = "must contain each of .* exactly once and no other name in braces"
    for change, expected in (
        (lambda content: content + b"{user_name}", wrong),
        (lambda content: content.replace(b"{question}", b"{Question}"), wrong),
        (lambda content: content + b"caf\xe9", r"not UTF-8 text \(byte \d+\)"),
    ):
        before = (inputs / name).read_bytes()
        write(inputs / name, change(before))
        given = f"{(COMMANDS | OTHERS)[command]} --prompts_dir prompts"
        refuse(inputs, given, server.url, capsys, f"{name}: {expected}")
        write(inputs / name, before)


# Files that may not be read, and folders that may not be written


@contextmanager
def obeying_modes():
    held = obey_modes()
    try:
        yield
    finally:
        set_capabilities(held)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((COMMANDS[commands[-1]], name) for name, commands in READERS.items() if name != "data.json"),
        *(((COMMANDS | OTHERS)[command], "data.json") for command in EACH_SCRIPT),
        (f"{COMMANDS['rag']} --prompts_dir prompts", "prompts/rag.txt"),
        (COMMANDS["training curve"], "planner/training_log.jsonl"),
    ],
)
def test_an_unreadable_file(folder, server, capsys, command, name):
    (folder / name).chmod(0)
    refuse(folder, command, server.url, capsys, f"{name}: no permission to read it", obeying_modes)


# Outputs: invalid places

NO_PLACES = {
    "data.json/out.json": "data.json/out.json(.plans.json)?: cannot be written: (Not a directory|File exists)",
    "prompts": "prompts: is a folder; choose a file name",
    "long" * 64: "(long)+(.plans.json)?: cannot be written: File name too long",
}


@pytest.mark.alike("command")
@pytest.mark.parametrize("place", NO_PLACES)
@pytest.mark.parametrize("command", OUTPUTS)
def test_an_unwritable_output(folder, server, capsys, command, place):
    given = COMMANDS[command].replace(OUTPUTS[command], place)
    refuse(folder, given, server.url, capsys, NO_PLACES[place])


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_read_only_folder(folder, server, capsys, command):
    (folder / "closed").mkdir(mode=0o555)
    command = COMMANDS[command].replace(OUTPUTS[command], "closed/out.json")
    said = "closed/out.json(.plans.json)?: cannot be written: Permission denied"
    refuse(folder, command, server.url, capsys, said, obeying_modes)


def inputs_of(command):
    return [name for name, commands in READERS.items() if command in commands]


def input_cases():
    for command in OUTPUTS:
        for name in (*inputs_of(command), "link.json"):
            yield command, name


@pytest.mark.alike("command")
@pytest.mark.parametrize(("command", "name"), input_cases())
def test_an_output_that_is_an_input(folder, server, capsys, command, name):
    (folder / "link.json").symlink_to(inputs_of(command)[0])
    given = COMMANDS[command].replace(OUTPUTS[command], f"prompts/../{name}")
    refuse(folder, f"{given} --overwrite", server.url, capsys, f"prompts/../{name}: is also an input; choose ")


# Damages to manifests


MANIFEST_DAMAGES = {
    "empty": b"",
    "a list": b"[]",
    "cut short": b'{"settings": {',
    "Latin-1": b'{"note": "caf\xe9"}',
    "too deep": b"[" * 100_000,
    "a hash that is a number": b'{"settings": {}, "output_sha256": 7}',
    "settings that are a list": {"settings": []},
    "half a character": {"versions": {"python": "\ud800"}},
    "flags in a list": {"arguments": ["--seed"]},
    "a folder": None,
    "a pipe": None,
    "a link to itself": None,
}


@pytest.mark.alike("command")
@pytest.mark.parametrize("damage", MANIFEST_DAMAGES)
@pytest.mark.parametrize("command", WITH_MANIFEST)
def test_a_damaged_manifest(folder, server, capsys, command, damage):
    manifest = folder / f"{OUTPUTS[command]}.manifest.json"
    content = MANIFEST_DAMAGES[damage]
    if isinstance(content, dict):
        content = json.dumps(json.loads(manifest.read_text()) | content).encode()
    if content is None:
        FILE_DAMAGES[damage][0](manifest)
    else:
        manifest.write_bytes(content)
    refuse(folder, COMMANDS[command], server.url, capsys, rf"{OUTPUTS[command]}(\.manifest\.json)?: ")


RAG, NO_KEY = COMMANDS["rag"], "--api_key_addr "
LOCAL = "baselines.py --inputs_addr data.json --output_addr made/x.json"


@pytest.mark.parametrize("damage", ["a pipe", "/dev/null"])
@pytest.mark.parametrize("command", WITH_MANIFEST)
def test_a_finished_output_that_is_no_longer_a_file(folder, server, capsys, command, damage):
    FILE_DAMAGES[damage][0](folder / OUTPUTS[command])
    refuse(folder, COMMANDS[command], server.url, capsys, f"{OUTPUTS[command]}: not a regular file; move it away")


# Folders and files of models, caches and keys

PLACES = [
    (COMMANDS["training curve"].replace("planner", "data.json"), "data.json/training_log.jsonl: "),
    (COMMANDS["figure 2"].replace("drawn/2", "data.json/2.pdf"), "data.json/2.pdf: cannot be written"),
    (COMMANDS["figure 4"].replace("made/evaluators.json", "drawn/4.pdf"), "drawn/4.pdf: is also an input"),
    (f"{LOCAL} --model_addr owner/model --cache_dir data.json", "--cache_dir data.json: not a folder"),
    (f"{LOCAL} --model_addr ./data.json", "data.json: not a folder"),
    (RAG.replace("key.txt", "no.txt"), f"{NO_KEY}no.txt: cannot be read: No s"),
    (RAG.replace("key.txt", "prompts"), f"{NO_KEY}prompts: not a regular file; "),
    (RAG.replace("key.txt", "pipe"), f"{NO_KEY}pipe: not a regular file; "),
]


@pytest.mark.parametrize(("command", "expected"), PLACES)
def test_a_file_for_a_folder_or_a_folder_for_a_file(folder, server, capsys, command, expected):
    os.mkfifo(folder / "pipe")
    refuse(folder, command, server.url, capsys, expected)


@pytest.mark.parametrize("key", [b"k\x01y", b"two keys", b"caf\xc3\xa9", b""])
def test_a_key_that_no_header_can_hold(folder, server, capsys, key):
    (folder / "key.txt").write_bytes(key)
    refuse(folder, COMMANDS["rag"], server.url, capsys, "--api_key_addr key.txt: must contain only the key")


ADDRESSES = [
    "http://127.0.0.1:99999/v1",
    "http://user:se#cret@127.0.0.1/v1",
    "http://user:se/cret@127.0.0.1/v1",
    "ftp://user:secret@127.0.0.1/v1",
    "http://[::1/v1",
    "http://127.0.0.1/\x1b[2J",
]


@pytest.mark.alike("place")
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("place", ["flag", "OPENAI_BASE_URL"])
def test_an_invalid_address_is_refused_without_showing_it(folder, server, capsys, monkeypatch, address, place):
    command, url = COMMANDS["rag"], address if place == "flag" else server.url
    if place == "OPENAI_BASE_URL":
        monkeypatch.setenv(place, address)
        command = command.replace("--base_url $URL", "")
    before = snapshot(folder)
    with pytest.raises(SystemExit) as left:
        cli.run_script(lambda: load(command).main(arguments_of(command, url)))
    err = capsys.readouterr().err
    assert left.value.code == 2 and "not an address such as" in err and err.count("\n") <= 3
    assert "cret" not in err and "\x1b" not in err
    assert snapshot(folder) == before


@pytest.mark.parametrize("script", ["baselines.py", "utils/make_table.py"])
def test_a_name_that_is_not_utf_8(folder, capsys, script):
    with pytest.raises(SystemExit) as left:
        load(script).main(["--some_flag", "odd_\udcff.json"])
    assert left.value.code == 2
    message = "error: 'odd_\\udcff.json' is not UTF-8; rename the file, or use another name\n"
    assert capsys.readouterr().err == message


# The same as real processes: nothing more is said, by Python or a library


@pytest.mark.parametrize(
    ("command", "damage", "name"), [("train", "gzip", "data.json"), ("table", "NaN", "scores.json")]
)
def test_a_real_process_ends_the_same_way(folder, server, command, damage, name):
    change, expected = FILE_DAMAGES[damage]
    change(folder / name)
    before = snapshot(folder)
    script, *arguments = shlex.split((COMMANDS | OTHERS)[command])
    environment = {**os.environ, **LAUNCHED, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, ROOT / script, *arguments], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    check_message(done.stderr, f"{name}: {expected}")
    assert snapshot(folder) == before


@pytest.mark.parametrize("command", [name for name in OUTPUTS if COMMANDS[name].startswith(DRY_RUNS)])
def test_a_dry_run_of_good_input_writes_and_requests_nothing(folder, server, capsys, command):
    before, num_requests = snapshot(folder), len(server.keys)
    said = work(f"{COMMANDS[command].replace('made/', 'new/')} --dry_run", server.url, capsys)
    assert said
    assert snapshot(folder) == before and len(server.keys) == num_requests


# Odd but legal


def work(command, url, capsys):
    """Run a command that must succeed, or exit with 1 if half of few answers are unusable; return its output."""
    capsys.readouterr()
    assert load(command).main(arguments_of(command, url)) in (0, 1)
    return capsys.readouterr().out


def chain(folder, url, capsys):
    """Rank, answer in three shards, plan, judge, show, and make a table; return the output."""
    said = work(COMMANDS["rank"].replace("made", "new"), url, capsys)
    rag = f"baselines.py {API} --model_addr m --rag --inputs_addr new/ranked.json --output_addr new/rag.json"
    for shard in range(3):
        said += work(f"{rag} --num_shards 3 --shard_index {shard}", url, capsys)
    said += work(f"{rag} --cached_only", url, capsys)
    said += work(COMMANDS["gold"].replace("data.json", "new/ranked.json").replace("made", "new"), url, capsys)
    judge = COMMANDS["evaluate"].replace("responses.json", "new/rag.json").replace("made", "new")
    said += work(judge, url, capsys)
    said += work(COMMANDS["show"].replace("responses", "new/rag").replace("scores", "new/scores"), url, capsys)
    return said + work(COMMANDS["table"].replace("scores.json", "new/scores.json").replace("made", "new"), url, capsys)


def record(**changes):
    return RECORDS[0] | changes


ODD_RECORDS = [
    *(record(id=key) for key in ("../../etc/passwd", "/a//b", "c:\\d", "a\r\nb", "a\n\u2028b", "\"'", "\0")),
    *(record(id=key) for key in (0, -7, int("9" * 4000), "q" * 5000, "猫" * 1000, "Q", "q", "é", "e\u0301")),
    record(id="controls", question="Why\0 \x1b[31m?", narrative="\0n"),
    record(id="braces", question="{question} {plan} {{}} %s", narrative="{response}"),
    record(id="beyond 16 bits", question="Why 😀 \U0010ffff?", narrative="🥖"),
    record(id="unknown", votes=int("9" * 4000), tags={"a": [[[[[]]]]]}, profile=[{"text": "t", "tags": {"a": 1}}]),
    record(id="ids of posts", profile=[{"text": "t", "id": post_id} for post_id in (None, "", 7, "7", "7")]),
    record(id="no posts", profile=[]),
    record(id="no aspects", rubric_aspects=[]),
    record(id="no reason", rubric_aspects=[{"aspect": "The\nprice\tof it"}]),
]


def test_odd_records_go_through_every_script(folder, server, capsys):
    write(folder / "data.json", ODD_RECORDS)
    said = chain(folder, server.url, capsys)
    ids = [str(record["id"]) for record in ODD_RECORDS]
    assert list(json.loads((folder / "new/rag.json").read_text())) == ids
    scores = json.loads((folder / "new/scores.json").read_text())
    assert [question["id"] for question in scores["per_question_scores"]] == ids
    assert "\x1b" not in said
    kept = [record["profile"] for record in json.loads((folder / "new/ranked.json").read_text())]
    assert kept == [record["profile"] for record in ODD_RECORDS]


ODD_FILES = {
    "a mark and Windows' line ends": lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
    "escapes and white space": lambda text: b"\n\n  " + json.dumps(json.loads(text)).encode() + b" \n\t\n",
}


@pytest.mark.parametrize("case", ODD_FILES)
def test_odd_files_are_read_by_every_script(folder, server, capsys, case):
    for name in READERS:
        text = (folder / name).read_text()
        write(folder / name, ODD_FILES[case](text))
    for command, arguments in COMMANDS.items():
        if not command.startswith(("figure 2", "figure 4")):  # drawing is slow: the table reads scores.json too
            work(arguments.replace("made/", "new/"), server.url, capsys)


def test_links_are_followed(folder, server, capsys):
    (folder / "elsewhere").mkdir()
    (folder / "data.json").rename(folder / "elsewhere/data.json")
    (folder / "data.json").symlink_to("elsewhere/data.json")
    (folder / "new").symlink_to("elsewhere")
    chain(folder, server.url, capsys)
    assert (folder / "elsewhere/scores.json").is_file()
