"""Odd and broken input for every script that reads it: refused in one to three lines that name it, nothing changed.

A table says which commands read which file; every damage to a kind of file is tried on every command that reads one.
What is odd but legal stands at the end: there the scripts work.
"""

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
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder
from zygote import obey_modes, set_capabilities

from utils import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

# Commands, as they are run in a folder that `make_folder` fills. None of them needs more than the API's address.

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
    "download": "utils/download_datasets.py --dataset_name hub --cache_dir cache --dataset_save_directory downloaded",
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
    "humans.json": ["compare"],
    "made/evaluators.json": ["figure 4"],
}
OUTPUTS = {
    command: found[1]
    for command, arguments in COMMANDS.items()
    if (found := re.search(r"--(?:output|score|output_dataset)_addr (made/\S+)", arguments))
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
SCORED = [
    {
        "id": f"q{number}",
        "category": "cooking",
        "question_sha256": f"{number}",
        "answered": True,
        "score": 0.5,
        "details": [{"aspect": "Price — é", "score": 1}],
    }
    for number in range(2)
]
PAIRS = [
    {
        "id": f"q{number}",
        "question_sha256": f"{number}",
        "answered": [True, True],
        "result": "win",
        "details": 2 * [{"preferred": "first", "reason": "Rye — é"}],
    }
    for number in range(2)
]


@pytest.fixture(scope="module")
def server():
    with serve() as server:
        yield server


@pytest.fixture(scope="module")
def whole(tmp_path_factory, server):
    """A folder with good input of every kind, and what the scripts made of it."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_whole(folder, lambda command: load(command).main(arguments_of(command, server.url)))
    gc.collect()
    gc.freeze()  # see `refuse`: what is loaded by now need not be looked through again and again
    yield folder
    gc.unfreeze()


def make_whole(folder, run):
    """Fill it; `run` takes a command, runs it there and returns its exit code."""
    write(folder / "data.json", RECORDS)
    write(folder / "train.json", RECORDS)
    write(folder / "responses.json", {"q0": [{"output": "Rye — é."}], "q1": [{"output": "Wheat."}]})
    write(folder / "plans.json", {"q0": [{"aspects": ["Price — é"]}], "q1": [{"aspects": None}]})
    write(folder / "scores.json", {"score": 0.5, "num_unanswered": 0, "per_question_scores": SCORED})
    write(folder / "other.json", {"score": 0.5, "num_unanswered": 0, "per_question_scores": SCORED})
    write(folder / "pairs.json", {"strategy": "pairwise", "num_unanswered": [0, 0], "per_question_scores": PAIRS})
    write(folder / "humans.json", {"q0": ["first", "tie"], "q1": ["second", "second"], "not scored — é": 2 * ["tie"]})
    write(folder / "key.txt", "sk-test")
    (folder / "planner").mkdir()
    write(folder / "planner/training_log.jsonl", '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n')
    (folder / "prompts").mkdir()
    for name in ("no_personalization", "rag", "planpers", "planner", "aspect_judge"):
        shutil.copy(ROOT / f"prompts/lampqa/{name}.txt", folder / "prompts")
    write_hub(folder / "hub")
    for name in ("data", "train"):
        (folder / f"{name}.json").rename(folder / "given.json")
        assert run(COMMANDS["rank"].replace("data.json", "given.json").replace("made/ranked", name)) == 0
        (folder / "given.json").unlink()
    for command in COMMANDS.values():
        assert run(command) == 0


def write(path, content):
    """A new file with bytes, a text, or anything else as JSON."""
    path.unlink(missing_ok=True)  # it may be a link
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1))


def write_hub(folder):
    """The dataset as its hub page has it: a card that names the files of a category, and one of them."""
    files = "- config_name: Art_and_Entertainment\n  data_files:\n  - split: train\n    path: train.json\n"
    folder.mkdir()
    write(folder / "README.md", f"---\nconfigs:\n{files}---\n")
    write(folder / "train.json", RECORDS)


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")  # train_planner.py need not ask torch how many GPUs there are
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("SLURM_ARRAY_TASK_COUNT", raising=False)


@pytest.fixture
def folder(whole, alone, tmp_path, monkeypatch):
    """A copy of `whole` to work in, which others may look into too."""
    shutil.copytree(whole, tmp_path / "work")
    (tmp_path / "work").chmod(0o755)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def inputs(whole, alone, tmp_path, monkeypatch):
    """`whole` in hard links, which takes a tenth of the time: for damages that put another file in a file's place."""
    shutil.copytree(whole, tmp_path / "work", copy_function=os.link)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def load(command):
    return importlib.import_module(command.split()[0].removesuffix(".py").replace("/", "."))


def arguments_of(command, url):
    return shlex.split(command.replace("$URL", url))[1:]


def run_process(folder, command, url):
    script, *arguments = shlex.split(command.replace("$URL", url))
    command = [sys.executable, ROOT / script, *arguments]
    environment = {**os.environ, "LOCAL_RANK": "0", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, env=environment)


def snapshot(folder):
    """All names in a folder, with the bytes of regular files and the targets of links."""
    found = {}
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(parent, name)  # not a Path: this is called some 5,000 times, for 75 names each
            found[path] = os.readlink(path) if os.path.islink(path) else read_regular(path)
    return found


def read_regular(path):
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def refuse(folder, command, url, capsys, expected, user=nullcontext):
    """The command ends with code 2 and a message that matches, and leaves every file as it was.

    So does its dry run, with the same message, if the script has one.
    """
    before = snapshot(folder)
    told = []
    for one in (command, f"{command} --dry_run") if command.startswith(DRY_RUNS) else (command,):
        capsys.readouterr()
        with user(), pytest.raises(SystemExit) as left:
            cli.run_script(lambda one=one: load(one).main(arguments_of(one, url)))
        out, err = capsys.readouterr()
        code = left.value.code
        del left  # it holds the command's frames, and so its locks
        if list(folder.glob("*/*.lock")):
            gc.collect()  # a lock goes with its owner
        assert (code, out) == (2, ""), err
        check_message(err, expected)
        assert snapshot(folder) == before
        told.append(err)
    assert told == told[:1] * len(told)


def check_message(err, expected):
    lines = err.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("error: "))
    assert all(line.startswith(("note: ", "  ")) for line in lines[:first]), err
    assert len(lines) - first <= 3 and max(map(len, lines)) <= 2000, err
    assert re.match(expected, "\n".join(lines[first:]).removeprefix("error: ")), err


# Damages to a whole file: a function of its path that does them, and what is said after its name


def replaced(content):
    """The file's bytes become these, or what a function makes of them."""
    return lambda path: write(path, content(path.read_bytes()) if callable(content) else content)


def encoded(encoding):
    return replaced(lambda content: content.decode().replace("—", "-").encode(encoding))


def swapped(make):
    """Something else in the file's place."""

    def damage(path):
        path.unlink()
        make(path)

    return damage


# Path.resolve() raises a RuntimeError.
NOT_REGULAR = "a pipe or a device; give a regular file"
NO_FORM = "not a score file|not an object|has no list 'evaluators'"
FILE_DAMAGES = {
    "empty": (replaced(b""), "the file is empty"),
    "white space": (replaced(b" \n\t\n"), "the file is empty"),
    "a mark and nothing else": (replaced(b"\xef\xbb\xbf"), "the file is empty"),
    "UTF-16 with a mark": (encoded("utf-16"), r"not UTF-8 text \(byte 0\)"),
    "UTF-16 without a mark": (encoded("utf-16-le"), r"(not UTF-8 text|not JSON)"),
    "Latin-1": (encoded("latin-1"), r"not UTF-8 text \(byte \d+\)"),
    "gzip": (replaced(gzip.compress), r"not UTF-8 text \(byte 1\)"),
    "zeros, as after a crash": (replaced(bytes(4096)), "not JSON"),
    "cut short": (replaced(lambda content: content[:-20]), r"the JSON breaks off at line \d+, column \d+"),
    "trailing garbage": (replaced(lambda content: content + b"]"), r"more than one JSON value \(line \d+"),
    "twice itself": (replaced(lambda content: 2 * content), r"more than one JSON value \(line \d+"),
    "Python's quotes": (replaced(lambda content: content.replace(b'"', b"'")), "not JSON: "),
    "too deep": (replaced(b"[" * 100_000), "nested too deeply"),
    "too deep an object": (replaced(b'{"a":' * 100_000), "nested too deeply"),
    "a huge integer": (replaced(b"9" * 5000), "holds a number of thousands of digits"),
    "a number": (replaced(b"7"), rf"(holds 7;|{NO_FORM})"),
    "NaN": (replaced(b"NaN"), rf"(holds NaN;|{NO_FORM})"),
    "a text": (replaced(b'"q0"'), rf"(holds the text 'q0';|{NO_FORM})"),
    "null": (replaced(b"null"), rf"(holds missing or null;|{NO_FORM})"),
    "an unknown object": (replaced(b'{"version": 2}'), rf"(holds an object;|id 'version': 2 where|{NO_FORM})"),
    "a list of numbers": (replaced(b"[1, 2]"), rf"(record 0: 1 where|holds a list;|{NO_FORM})"),
    "a key twice": (replaced(b'{"q0": [], "q0": []}'), "'q0' stands twice in one object; names are unique"),
    "gone": (Path.unlink, "no such file"),
    "a folder": (swapped(Path.mkdir), "a folder; give the file"),
    "a pipe": (swapped(os.mkfifo), NOT_REGULAR),
    "/dev/null": (swapped(lambda path: path.symlink_to("/dev/null")), NOT_REGULAR),
    "a link to nothing": (swapped(lambda path: path.symlink_to("nowhere")), "no such file"),
    "a link to itself": (swapped(lambda path: path.symlink_to(path.name)), "cannot be read: Too many levels of"),
}


def file_cases():
    return [(command, name, damage) for damage in FILE_DAMAGES for name in READERS for command in READERS[name]]


@pytest.mark.alike("command")
@pytest.mark.parametrize(("command", "name", "damage"), file_cases())
def test_a_file_that_is_none_of_its_kind(inputs, server, capsys, command, name, damage):
    change, expected = FILE_DAMAGES[damage]
    change(inputs / name)
    refuse(inputs, (COMMANDS | OTHERS)[command], server.url, capsys, f"{name}: {expected}")


# JSON Lines: a dataset's other form

LINES_DAMAGES = {
    "a broken line": ('{"id": "q2", "question"', "line 3 is not JSON: Expecting ':' delimiter at column 24"),
    "a line cut short": ('{"id": "q2", "quest', "line 3 is not JSON: Unterminated string"),
    "a key twice": ('{"id": "q2", "id": "q3"}', "line 3: 'id' stands twice; names are unique"),
    "too deep": ("[" * 100_000, "line 3: nested too deeply"),
    "a huge integer": ('{"id": ' + "9" * 5000 + "}", "line 3: holds a number of thousands of digits"),
    "not an object": ("[1, 2]", "record 2: a list where a question object belongs"),
    "the whole array": (json.dumps(RECORDS), "record 2: a list where a question object belongs"),
    "two on one line": ('{"id": "q2"} {"id": "q3"}', "line 3 is not JSON: Extra data at column 14"),
    "an id twice": (json.dumps(RECORDS[0]), "records 0 and 2 both have id 'q0'; ids are unique"),
}


@pytest.mark.alike("command")
@pytest.mark.parametrize("damage", LINES_DAMAGES)
@pytest.mark.parametrize("command", EACH_SCRIPT)
def test_a_bad_line(inputs, server, capsys, command, damage):
    line, expected = LINES_DAMAGES[damage]
    write(inputs / "data.jsonl", "".join(json.dumps(record) + "\n" for record in RECORDS) + line + "\n")
    refuse(inputs, with_input(command, "data.jsonl"), server.url, capsys, f"data.jsonl: {re.escape(expected)}")


def with_input(command, name):
    """The command with another file in the place of data.json."""
    return (COMMANDS | OTHERS)[command].replace("data.json", name)


# Damages to one record, by the field that a command must need to see them: the path into the record, and the values

MISSING = object()
NO_TEXT = (MISSING, None, "", " \n", 5, True, [], {}, "half \ud800")
NO_LIST = (MISSING, None, 5, "text", {})
NO_OBJECT = (None, 5, "text", [])
RECORD_DAMAGES = [
    ("", (), NO_OBJECT, r"record 1: .* where a question object belongs"),
    ("", ("id",), (MISSING, None, "", True, 1.5, [], {}, "\ud800"), "record 1: field 'id' is "),
    ("", ("id",), ("q0",), "records 0 and 1 both have id 'q0'; ids are unique"),
    ("", ("task",), (None, 5, [], {}, "Quiz"), r"record 1 \(id 'q1'\): there is no task "),
    ("", ("question",), NO_TEXT, r"record 1 \(id 'q1'\): field 'question' "),
    ("narrative", ("narrative",), NO_TEXT, r"record 1 \(id 'q1'\): field 'narrative' "),
    ("profile", ("profile",), NO_LIST, r"record 1 \(id 'q1'\): field 'profile' is "),
    ("profile", ("profile", 0), NO_OBJECT, r"record 1 \(id 'q1'\): field 'profile', item 0 is "),
    (
        "profile",
        ("profile", 0, "text"),
        NO_TEXT,
        r"record 1 \(id 'q1'\): field 'profile', item 0 \(id 'p1'\): field 'text' ",
    ),
    ("rubric_aspects", ("rubric_aspects",), NO_LIST, r"record 1 \(id 'q1'\): field 'rubric_aspects' is "),
    ("rubric_aspects", ("rubric_aspects", 0), NO_OBJECT, r"record 1 \(id 'q1'\): field 'rubric_aspects', item 0 is "),
    (
        "rubric_aspects",
        ("rubric_aspects", 0, "aspect"),
        NO_TEXT,
        r"record 1 \(id 'q1'\): field 'rubric_aspects', item 0: field 'aspect' ",
    ),
    *(
        (
            "rubric_aspects",
            ("rubric_aspects", 0, field),
            (None, 5, " ", [], "half \ud800"),  # missing or empty is fine
            rf"record 1 \(id 'q1'\): field 'rubric_aspects', item 0: field '{field}' ",
        )
        for field in ("evidence", "reason")
    ),
    *(
        ("", path, (float("nan"), float("-inf")), r"record 1 \(id 'q1'\): holds NaN or an infinite number")
        for path in (("votes",), ("profile", 0, "votes"))
    ),
    *(
        ("", path, ("\ud800",), r"record 1 \(id 'q1'\): holds half a character")
        for path in (("title",), ("category",), ("profile", 0, "category"))
    ),
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
    """A copy of a JSON value in which the part at the path is another one, or missing."""
    if not path:
        return new
    if not isinstance(value, dict):
        return [put(item, path[1:], new) if number == path[0] else item for number, item in enumerate(value)]
    changed = value | {path[0]: put(value.get(path[0]), path[1:], new)}
    return {name: part for name, part in changed.items() if part is not MISSING}


@pytest.mark.alike("command")
@pytest.mark.parametrize(("command", "path", "value", "expected"), record_cases())
def test_a_record_with_a_part_of_another_kind(inputs, server, capsys, command, path, value, expected):
    write(inputs / "data.json", json.dumps([RECORDS[0], put(RECORDS[1], path, value)]))
    refuse(inputs, (COMMANDS | OTHERS)[command], server.url, capsys, f"data.json: {expected}")


@pytest.mark.alike("command")
@pytest.mark.parametrize("command", DATASET)
def test_a_name_twice_in_a_record(inputs, server, capsys, command):
    replaced(lambda content: content.replace(b'"id": "q1"', b'"id": "q1", "category": "law"'))(inputs / "data.json")
    refuse(inputs, (COMMANDS | OTHERS)[command], server.url, capsys, "data.json: 'category' stands twice in one object")


# Damages to responses, plans and scores

NO_SAMPLES = (None, 5, "text", {}, [])
NO_TITLE = (5, "text", {}, [5], [None], [""], [" "], [[]], ["\ud800"])
SAMPLE_DAMAGES = [
    ("responses.json", ("q1",), NO_SAMPLES, r"id 'q1': .* where \[\{\"output\": \.\.\.\}\] belongs"),
    ("responses.json", ("q1", 0), (*NO_OBJECT, {}, {"text": "Rye."}), "id 'q1': response 0 has no field 'output'"),
    ("responses.json", ("q1", 0, "output"), (5, True, [], {}, "\ud800"), "id 'q1': response 0: 'output' is "),
    ("plans.json", ("q1",), NO_SAMPLES, r"id 'q1': .* where \[\{\"aspects\": \[\.\.\.\]\}\] belongs"),
    ("plans.json", ("q1", 0), (*NO_OBJECT, {}, {"titles": []}), "id 'q1': plan 0 has no field 'aspects'"),
    ("plans.json", ("q1", 0, "aspects"), NO_TITLE, "id 'q1': plan 0: 'aspects' (is|holds) "),
    ("humans.json", ("q1",), (None, 5, "both", {}, []), "id 'q1': "),
    ("humans.json", ("q1", 1), (None, 5, True, "both", [], {}), "id 'q1': .* belongs"),
]
ITEM = ("per_question_scores", 1)
SCORE_DAMAGES = [
    ("scores.json", ("task",), (None, 5, [], {}, "Quiz"), "there is no task "),
    ("scores.json", ("per_question_scores",), NO_LIST, "not a score file: it has no list 'per_question_scores'"),
    ("scores.json", ITEM, NO_OBJECT, "per_question_scores, item 1: not a scored question: it has no field 'id'"),
    ("scores.json", (*ITEM, "id"), (MISSING,), "per_question_scores, item 1: not a scored question"),
    ("scores.json", (*ITEM, "id"), (None, 0.5, []), "per_question_scores, item 1: field 'id' is "),
    (
        "scores.json",
        (*ITEM, "details"),
        (*NO_LIST, [5], [{}], [{"aspect": "Price"}], [{"score": 1}]),
        "question 'q1': field 'details' is not a list of scored aspects",
    ),
    ("scores.json", (*ITEM, "details", 0, "aspect"), (None, 5, []), "question 'q1': field 'details' is not a list"),
    (
        "scores.json",
        (*ITEM, "details", 0, "score"),
        (3, -1, 1.0, True, "1", [], {}, float("nan"), 10**50),
        "question 'q1': .* is not a verdict: the integer 0, 1 or 2, or None",
    ),
    (
        "scores.json",
        (*ITEM, "score"),
        (MISSING, None, 0.75, True, "0.5", [], float("nan"), float("inf"), 10**400),
        "question 'q1': its score is .*, but its aspects give 0.5",
    ),
    ("scores.json", (*ITEM, "answered"), (MISSING, None, 1, "no", []), "question 'q1': field 'answered' is "),
    ("scores.json", (*ITEM, "answered"), (False,), "question 'q1': its score is 0.5 without an answer, which is 0"),
    ("scores.json", ("num_unanswered",), (MISSING,), "doesn't say which answers are missing"),
    (
        "scores.json",
        (*ITEM, "question_sha256"),
        (MISSING, None, 5, [], {}),
        "question 'q1': field 'question_sha256' is ",
    ),
]
PAIR_DAMAGES = [
    ("pairs.json", ("per_question_scores",), NO_LIST, "not a score file: it has no list 'per_question_scores'"),
    ("pairs.json", ITEM, NO_OBJECT, "per_question_scores, item 1: not a scored question: it has no field 'id'"),
    ("pairs.json", (*ITEM, "id"), (MISSING,), "per_question_scores, item 1: not a scored question"),
    ("pairs.json", (*ITEM, "id"), (None, 0.5, []), "per_question_scores, item 1: field 'id' is "),
    ("pairs.json", (*ITEM, "id"), ("q0",), "question 'q0' stands twice"),
    ("pairs.json", (*ITEM, "details"), (*NO_LIST, [], [5, 5], [{}, {}]), "question 'q1': field 'details' is not the"),
    ("pairs.json", (*ITEM, "details", 0, "preferred"), (MISSING, 5, "tie", [], {}), "question 'q1': field 'details'"),
    ("pairs.json", (*ITEM, "answered"), (None, 5, [], [True], "both", {}), "question 'q1': field 'answered' is "),
    ("pairs.json", (*ITEM, "answered"), ([False, True],), "question 'q1': its result is 'win', but its missing"),
    ("pairs.json", ("num_unanswered",), (MISSING,), "doesn't say which answers are missing"),
    ("pairs.json", (*ITEM, "result"), (MISSING, None, 5, "tie", [], {}), "question 'q1': its result is .*'win'"),
]
ROW = ("evaluators", 1)
EVALUATOR_DAMAGES = [
    ("made/evaluators.json", ("evaluators",), (*NO_LIST, []), "(has no list 'evaluators'|evaluators: 0 are given)"),
    ("made/evaluators.json", ROW, NO_OBJECT, "evaluators, item 1: .* where an evaluator's figures belong"),
    ("made/evaluators.json", (*ROW, "name"), (MISSING, None, "", 5, []), "evaluators, item 1: field 'name' is "),
    *(
        (
            "made/evaluators.json",
            (*ROW, field),
            (True, "0.5", -1, 1.5, [], float("nan"), 10**400),
            rf"evaluators, item 1 \('Pairs'\): field '{field}' is .*; it must be ",
        )
        for field in ("accuracy", "mean_score", "accuracy_interval")
    ),
]


def part_cases():
    return [
        pytest.param(
            command, name, path, value, expected, id=f"{command}-{'.'.join(map(str, path))}-{shown(value)[:20]}"
        )
        for name, path, values, expected in (*SAMPLE_DAMAGES, *SCORE_DAMAGES, *PAIR_DAMAGES, *EVALUATOR_DAMAGES)
        for value in values
        for command in READERS[name]
        if command not in ("show", "compare") or path[-1] != "category"  # they know no category
    ]


@pytest.mark.alike("command")
@pytest.mark.parametrize(("command", "name", "path", "value", "expected"), part_cases())
def test_a_file_with_a_part_of_another_kind(inputs, server, capsys, command, name, path, value, expected):
    good = json.loads((inputs / name).read_text())
    write(inputs / name, json.dumps(put(good, path, value)))
    refuse(inputs, COMMANDS[command], server.url, capsys, f"{name}: {expected}")


ID_DAMAGES = [
    ("evaluate", "responses.json", {"q1": MISSING}, "only a part of the questions has a response"),
    ("evaluate", "responses.json", {"q2": [{"output": "a"}]}, "its ids are not the dataset's"),
    ("show", "responses.json", {"q1": MISSING}, "scores.json: id 'q1' is not in the dataset and the responses"),
    ("planpers", "plans.json", {"q1": MISSING}, "lacks 1 of the 2 plans of this run: 'q1'"),
    ("compare", "humans.json", {"q0": MISSING, "q1": MISSING}, "has no question in common with --evaluator "),
]


@pytest.mark.parametrize(("command", "name", "change", "expected"), ID_DAMAGES)
def test_a_file_that_lacks_a_question_or_has_a_foreign_one(inputs, server, capsys, command, name, change, expected):
    samples = json.loads((inputs / name).read_text()) | change
    write(inputs / name, {key: value for key, value in samples.items() if value is not MISSING})
    refuse(inputs, COMMANDS[command], server.url, capsys, expected if command == "show" else f"{name}: {expected}")


# A training log

LOG_DAMAGES = {
    "not JSON": b"step 1, loss 2.5",
    "cut short": b'{"step": 1, "lo',
    "a list": b"[1, 2.5]",
    "a number": b"7",
    "Latin-1": b'{"step": 1, "note": "\xe9"}',
    "too deep": b"[" * 100_000,
    "a huge integer": b'{"step": ' + b"9" * 5000 + b"}",
    **{
        f"{field} {value}": json.dumps({"step": 1, "loss": 2.5, field: value}).encode()
        for field in ("step", "loss", "eval_loss", "eval_aspect_recall")
        for value in (None, "1", [1], True, 10**400)
    },
}


@pytest.mark.parametrize("damage", LOG_DAMAGES)
def test_a_bad_line_in_a_training_log(inputs, server, capsys, damage):
    log = inputs / "planner/training_log.jsonl"
    write(log, LOG_DAMAGES[damage] + b"\n" + log.read_bytes())
    expected = r"planner/training_log\.jsonl: line 1 is damaged; delete that line"
    refuse(inputs, COMMANDS["training curve"], server.url, capsys, expected)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("empty", "holds no loss yet"),
        ("gone", "no such file"),
        ("a folder", "a folder; give the file"),
        ("a pipe", NOT_REGULAR),
        ("/dev/null", NOT_REGULAR),
        ("UTF-16 with a mark", "line 1 is damaged"),
        ("gzip", "line 1 is damaged|holds no loss yet"),  # a damaged last line is one that is being written
    ],
)
def test_a_training_log_that_is_none(inputs, server, capsys, damage, expected):
    FILE_DAMAGES[damage][0](inputs / "planner/training_log.jsonl")
    refuse(inputs, COMMANDS["training curve"], server.url, capsys, rf"planner/training_log\.jsonl: ({expected})")


# Prompts

PROMPT_OF = {
    "none": "no_personalization",
    "rag": "rag",
    "planpers": "planpers",
    "gold": "rag",
    "evaluate": "aspect_judge",
}
PROMPT_OF["train"] = PROMPT_OF["train, validation"] = "planner"
WRONG_NAMES = "must hold each of .* exactly once, and no other name in braces"
NO_PARTS = r"a prompt is a line \[system\], its text, a line \[user\], its text"
PROMPT_DAMAGES = {
    "an unknown placeholder": (replaced(lambda content: content + b"{user_name}"), WRONG_NAMES),
    "a missing placeholder": (replaced(lambda content: content.replace(b"{question}", b"")), WRONG_NAMES),
    "a misspelt placeholder": (replaced(lambda content: content.replace(b"{question}", b"{Question}")), WRONG_NAMES),
    "a placeholder twice": (replaced(lambda content: content + b"{question}"), WRONG_NAMES),
    "Latin-1": (replaced(lambda content: content + b"caf\xe9"), r"not UTF-8 text \(byte \d+\)"),
    "UTF-16": (encoded("utf-16"), r"not UTF-8 text \(byte 0\)"),
    "gzip": (replaced(gzip.compress), r"not UTF-8 text \(byte 1\)"),
    "empty": (replaced(b""), NO_PARTS),
    "one part": (replaced(lambda content: content.replace(b"[system]\n", b"")), NO_PARTS),
    "a link to nothing": (swapped(lambda path: path.symlink_to("nowhere")), "no such file"),
    "a folder": (swapped(Path.mkdir), "a folder; give the file"),
    "a pipe": (swapped(os.mkfifo), NOT_REGULAR),
}


@pytest.mark.alike("command")
@pytest.mark.parametrize("damage", PROMPT_DAMAGES)
@pytest.mark.parametrize("command", PROMPT_OF)
def test_a_prompt_that_cannot_be_used(inputs, server, capsys, command, damage):
    name = f"prompts/{PROMPT_OF[command]}.txt"
    change, expected = PROMPT_DAMAGES[damage]
    change(inputs / name)
    command = f"{(COMMANDS | OTHERS)[command]} --prompts_dir prompts"
    refuse(inputs, command, server.url, capsys, f"{name}: {expected}")


FOLDER_DAMAGES = {
    "no prompt's name": (lambda folder: write(folder / "prompts/rags.txt", "x"), "rags.txt is no prompt's name"),
    "a file": (lambda folder: (shutil.rmtree(folder / "prompts"), write(folder / "prompts", "x")), "no such folder"),
    "gone": (lambda folder: shutil.rmtree(folder / "prompts"), "no such folder"),
    "empty": (lambda folder: (shutil.rmtree(folder / "prompts"), (folder / "prompts").mkdir()), "holds no prompt"),
}


@pytest.mark.alike("command")
@pytest.mark.parametrize("damage", FOLDER_DAMAGES)
@pytest.mark.parametrize("command", PROMPT_OF)
def test_a_folder_of_prompts_that_is_none(inputs, server, capsys, command, damage):
    change, expected = FOLDER_DAMAGES[damage]
    change(inputs)
    command = f"{(COMMANDS | OTHERS)[command]} --prompts_dir prompts"
    refuse(inputs, command, server.url, capsys, f"--prompts_dir prompts: {expected}")


# Files that may not be read, and folders that may not be written


@contextmanager
def obeying_modes():
    held = obey_modes()
    try:
        yield
    finally:
        set_capabilities(held)


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for name, commands in READERS.items() for command in commands]
)
def test_a_file_that_may_not_be_read(folder, server, capsys, command, name):
    (folder / name).chmod(0)
    command = (COMMANDS | OTHERS)[command]
    refuse(folder, command, server.url, capsys, f"{name}: no permission to read it", obeying_modes)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (f"{COMMANDS['rag']} --prompts_dir prompts", "prompts/rag.txt"),
        (COMMANDS["training curve"], "planner/training_log.jsonl"),
    ],
)
def test_another_file_that_may_not_be_read(folder, server, capsys, command, name):
    (folder / name).chmod(0)
    refuse(folder, command, server.url, capsys, f"{name}: no permission to read it", obeying_modes)


# Outputs: where they cannot go

NO_FOLDER = "cannot be written: (Not a directory|File exists)"


def output_cases():
    for command, output in OUTPUTS.items():
        yield (
            command,
            output,
            "data.json/out.json",
            "data.json/out.json: cannot be written: (Not a directory|File exists)",
        )
        yield command, output, "prompts", "prompts: is a folder; give the name of a file in it"
        yield (
            command,
            output,
            "/dev/null/out.json",
            f"/dev/null/out.json: {NO_FOLDER}",
        )
        # of 256 characters, one more than a file system takes
        yield command, output, f"{'long' * 64}", r"(long)+: cannot be written: File name too long"
        yield command, output, "/proc/out.json", "/proc/out.json: cannot be written: "


@pytest.mark.alike("command", "output")
@pytest.mark.parametrize(
    ("command", "output", "other", "expected"),
    output_cases(),
)
def test_an_output_that_cannot_be_written(folder, server, capsys, command, output, other, expected):
    refuse(folder, COMMANDS[command].replace(output, other), server.url, capsys, expected)


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_folder_that_may_not_be_written(folder, server, capsys, command):
    (folder / "closed").mkdir(mode=0o555)
    command = COMMANDS[command].replace(OUTPUTS[command], "closed/out.json")
    refuse(folder, command, server.url, capsys, "closed/out.json: cannot be written: Permission denied", obeying_modes)


def inputs_of(command):
    return [name for name, commands in READERS.items() if command in commands]


def input_cases():
    for command, output in OUTPUTS.items():
        for name in (*inputs_of(command), "link.json"):
            yield command, output, name


@pytest.mark.alike("command", "output")
@pytest.mark.parametrize(("command", "output", "name"), input_cases())
def test_an_output_that_is_an_input(folder, server, capsys, command, output, name):
    (folder / "link.json").symlink_to(inputs_of(command)[0])
    given = COMMANDS[command].replace(output, f"prompts/../{name}")
    refuse(folder, f"{given} --overwrite", server.url, capsys, f"prompts/../{name}: is (an|the) input too; give ")


RUNS = ["none", "rag", "planpers", "gold", "evaluate", "rank"]
FINISHED = [OUTPUTS[command] for command in RUNS]


@pytest.mark.alike("command")
@pytest.mark.parametrize("other", FINISHED)
@pytest.mark.parametrize("command", RUNS)
def test_an_output_of_another_script_or_run(folder, server, capsys, command, other):
    if OUTPUTS[command] == other:
        other = "notes.json"
        write(folder / other, "my own")
    given = COMMANDS[command].replace(OUTPUTS[command], other)
    expected = f"{other}: (was made with other settings: |exists, and was not written by this script)"
    refuse(folder, given, server.url, capsys, expected)


# Damages to manifests


NO_MANIFEST = "exists, and was not written by this script or was changed since"
MANIFEST_DAMAGES = {
    "empty": b"",
    "a number": b"7",
    "a list": b"[]",
    "an object": b"{}",
    "cut short": b'{"settings": {',
    "Latin-1": b'{"note": "caf\xe9"}',
    "UTF-16": '{"settings": {}}'.encode("utf-16"),
    "zeros": bytes(100),
    "too deep": b"[" * 100_000,
    "a huge integer": b"9" * 5000,
    "no hash": b'{"settings": {}}',
    "a hash that is a number": b'{"settings": {}, "output_sha256": 7}',
    "settings that is a list": {"settings": []},
    "settings that is null": {"settings": None},
    "NaN": {"wall_seconds": float("nan")},
    "half a character": {"versions": {"python": "\ud800"}},
    "flags in a list": {"arguments": ["--seed"]},
}


@pytest.mark.alike("command")
@pytest.mark.parametrize(
    "damage",
    MANIFEST_DAMAGES,
)
@pytest.mark.parametrize("command", WITH_MANIFEST)
def test_a_damaged_manifest(folder, server, capsys, command, damage):
    manifest = folder / f"{OUTPUTS[command]}.manifest.json"
    content = MANIFEST_DAMAGES[damage]
    if isinstance(content, dict):
        content = json.dumps(json.loads(manifest.read_text()) | content).encode()
    manifest.write_bytes(content)
    refuse(folder, COMMANDS[command], server.url, capsys, rf"{OUTPUTS[command]}(\.manifest\.json)?: ")


@pytest.mark.alike("command")
@pytest.mark.parametrize("damage", ["a folder", "a pipe", "/dev/null", "a link to itself"])
@pytest.mark.parametrize("command", WITH_MANIFEST)
def test_a_manifest_that_is_no_file(folder, server, capsys, command, damage):
    FILE_DAMAGES[damage][0](folder / f"{OUTPUTS[command]}.manifest.json")
    refuse(folder, COMMANDS[command], server.url, capsys, rf"{OUTPUTS[command]}(\.manifest\.json)?: ")


@pytest.mark.parametrize("damage", ["a pipe", "/dev/null"])
@pytest.mark.parametrize("command", WITH_MANIFEST)
def test_a_finished_output_that_is_no_file_any_more(folder, server, capsys, command, damage):
    FILE_DAMAGES[damage][0](folder / OUTPUTS[command])
    refuse(folder, COMMANDS[command], server.url, capsys, f"{OUTPUTS[command]}: not a regular file; move it away")


@pytest.mark.parametrize("command", WITH_MANIFEST)
def test_a_pipe_beside_a_finished_output(folder, server, capsys, command):
    os.mkfifo(folder / f"{OUTPUTS[command]}.tmp")
    assert "already finished, left alone" in work(COMMANDS[command], server.url, capsys)


# Folders and files of models, caches and keys

PLACES = {
    "training curve, a file for the folder": (
        COMMANDS["training curve"].replace("planner", "data.json"),
        "data.json/training_log.jsonl: ",
    ),
    "training curve, no folder": (
        COMMANDS["training curve"].replace("planner", "nowhere"),
        "nowhere/training_log.jsonl: ",
    ),
    "figure, onto a folder": (COMMANDS["figure 5"].replace("drawn/5", "prompts"), "--output_addr prompts: a folder; g"),
    "figure, below a file": (
        COMMANDS["figure 2"].replace("drawn/2", "data.json/2.pdf"),
        "data.json/2.png: cannot be written",
    ),
    "figure, onto the input": (
        COMMANDS["figure 4"].replace("made/evaluators.json", "drawn/4.pdf"),
        "drawn/4.pdf: is an input too",
    ),
    "download, onto a file": (
        OTHERS["download"].replace("downloaded", "data.json"),
        r"data\.json/Art_and_Entertainment_train\.json: cannot be written",
    ),
    "download, a file for the cache": (
        OTHERS["download"].replace("--cache_dir cache", "--cache_dir data.json"),
        "--cache_dir data.json: not a folder",
    ),
    "a file for the cache of models": (
        "baselines.py --model_addr owner/model --cache_dir data.json --inputs_addr data.json --output_addr made/x.json",
        "--cache_dir data.json: not a folder",
    ),
    "a file for a model": (
        "baselines.py --model_addr ./data.json --inputs_addr data.json --output_addr made/x.json",
        "data.json: not a folder",
    ),
    "no file for the key": (
        COMMANDS["rag"].replace("key.txt", "no.txt"),
        "--api_key_addr no.txt: cannot be read: No s",
    ),
    "a folder for the key": (
        COMMANDS["rag"].replace("key.txt", "prompts"),
        "--api_key_addr prompts: not a regular file; ",
    ),
    "a dataset for the key": (COMMANDS["rag"].replace("key.txt", "data.json"), "--api_key_addr data.json: must hold "),
    "a pipe for the key": (
        COMMANDS["rag"].replace("key.txt", "pipe"),
        "--api_key_addr pipe: not a regular file; ",
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_file_for_a_folder_or_a_folder_for_a_file(folder, server, capsys, case):
    command, expected = PLACES[case]
    write(folder / "empty.toml", "")
    os.mkfifo(folder / "pipe")
    refuse(folder, command, server.url, capsys, expected)


@pytest.mark.parametrize("key", [b"k\x01y", b"two keys", b"caf\xc3\xa9", b"", b"k\x1b[2J"])
def test_a_key_that_no_header_takes(folder, server, capsys, key):
    (folder / "key.txt").write_bytes(key)
    refuse(folder, COMMANDS["rag"], server.url, capsys, "--api_key_addr key.txt: must hold the key and nothing else")


def test_a_key_behind_a_byte_order_mark(folder, server):
    (folder / "key.txt").write_bytes(b"\xef\xbb\xbfthe-key\r\n")
    asked, command = len(server.keys), COMMANDS["rag"].replace("made/", "new/")
    assert load(command).main(arguments_of(command, server.url)) == 0
    assert set(server.keys[asked:]) == {"the-key"}


ADDRESSES = [
    "http://127.0.0.1:99999/v1",
    "http://127.0.0.1:port/v1",
    "http://user:se#cret@127.0.0.1/v1",
    "http://user:se/cret@127.0.0.1/v1",
    "ftp://user:secret@127.0.0.1/v1",
    "127.0.0.1:8000/v1",
    "http://[::1/v1",
    "http:///v1",
    "http://127.0.0.1/\x1b[2J",
    "http://127.0.0.1/v 1",
]


@pytest.mark.alike("place")
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("place", ["flag", "OPENAI_BASE_URL", "HTTP_PROXY", "ALL_PROXY"])
def test_an_address_that_is_none_is_refused_without_a_part_of_it(folder, server, capsys, monkeypatch, address, place):
    command, url = COMMANDS["rag"], server.url
    if place == "flag":
        url = address.replace(" ", "\\ ")
    else:
        monkeypatch.setenv(place, address)
    if place == "OPENAI_BASE_URL":
        command = command.replace("--base_url $URL", "")
    if "PROXY" in place and "://" not in address:
        return  # as proxies may be written
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
    message = "error: 'odd_\\udcff.json' is not UTF-8; rename the file, or give another name\n"
    assert capsys.readouterr().err == message


def test_a_file_for_the_folder_of_a_planner(folder, server, capsys, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK")
    save_tiny_chat(folder / "chat")
    train = "train_planner.py --model_addr ./chat --inputs_addr data.json --output_dir"
    for place in ("data.json", "data.json/planner", "/dev/null"):
        refuse(folder, f"{train} {place}", server.url, capsys, f"{place}(/manifest.json)?: cannot be written: ")


def test_a_file_for_the_folder_of_embeddings(folder, server, capsys):
    save_tiny_encoder(folder / "encoder")
    rank = COMMANDS["rank"].replace("bm25", "contriever --model_name ./encoder").replace("made/ranked", "made/dense")
    refuse(folder, f"{rank} --embedding_cache data.json", server.url, capsys, "--embedding_cache data.json: cannot be")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b'[{"id": 1}, 7]', gzip.compress(b"[]", mtime=0)])
def test_a_copy_of_the_dataset_that_is_damaged(folder, server, capsys, content):
    write(folder / "hub/train.json", content)
    (folder / "downloaded").mkdir()
    (folder / "cache").mkdir()
    arguments = arguments_of(OTHERS["download"], server.url)
    with pytest.raises(SystemExit) as left:
        cli.run_script(lambda: load(OTHERS["download"]).main(arguments))
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    check_message(err, "hub, Art_and_Entertainment, train: cannot be downloaded: ")
    assert list((folder / "downloaded").iterdir()) == []


# The same as real processes: nothing more is said, by Python or a library


@pytest.mark.parametrize(
    ("command", "damage", "name"),
    [
        ("rag", "Latin-1", "data.json"),
        ("planpers", "too deep", "plans.json"),
        ("evaluate", "a pipe", "responses.json"),
        ("rank", "UTF-16 with a mark", "data.json"),
        ("train", "gzip", "data.json"),
        ("gold", "a huge integer", "data.json"),
        ("table", "NaN", "scores.json"),
        ("show", "/dev/null", "responses.json"),
        ("training curve", "a pipe", "planner/training_log.jsonl"),
        ("compare", "cut short", "humans.json"),
        ("figure 4", "a list of numbers", "made/evaluators.json"),
        ("figure 5", "a key twice", "data.json"),
    ],
)
def test_a_process_ends_likewise(folder, server, command, damage, name):
    change, expected = FILE_DAMAGES[damage]
    change(folder / name)
    before = snapshot(folder)
    done = run_process(folder, (COMMANDS | OTHERS)[command], server.url)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    check_message(done.stderr, f"{name}: {expected}")
    assert snapshot(folder) == before


@pytest.mark.parametrize("command", [name for name in OUTPUTS if COMMANDS[name].startswith(DRY_RUNS)])
@pytest.mark.parametrize("place", ["made/", "new/"])
def test_a_dry_run_of_good_input_writes_and_asks_nothing(folder, server, capsys, command, place):
    before, asked = snapshot(folder), len(server.keys)
    said = work(f"{COMMANDS[command].replace('made/', place)} --dry_run", server.url, capsys)
    assert f"\ndisk of {folder}" in said
    assert snapshot(folder) == before and len(server.keys) == asked


# Odd but legal


def work(command, url, capsys):
    """The command does its work, for some on so few questions that one unusable answer is half; what it printed."""
    capsys.readouterr()
    assert load(command).main(arguments_of(command, url)) in (0, 1)
    return capsys.readouterr().out


def chain(folder, url, capsys):
    """Rank, answer in three shards, plan, judge, show and put into a table; what was printed."""
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


ODD_RECORDS = {
    "ids with slashes": [record(id="../../etc/passwd"), record(id="/a//b"), record(id="c:\\d")],
    "ids with line breaks": [record(id="a\nb"), record(id="a\r\nb", rubric_aspects=[]), record(id="\n\u2028")],
    "ids that are numbers": [record(id=0), record(id=-7), record(id=int("9" * 4000))],
    "long ids": [record(id="q" * 5000), record(id="猫" * 1000)],
    "ids of white space, quotes and zeros": [record(id=" "), record(id="\"'"), record(id="\0"), record(id="null")],
    "ids that differ in case and form": [record(id="Q"), record(id="q"), record(id="é"), record(id="e\u0301")],
    "zeros and controls in texts": [record(question="Why\0 \x1b[31m?", narrative="\0n")],
    "braces in texts": [record(question="{question} {plan} {{}} %s", narrative="{response}")],
    "characters beyond 16 bits": [record(question="Why 😀 \U0010ffff?", narrative="🥖")],
    "unknown fields": [record(votes=10**300, tags={"a": [[[[[]]]]]}, profile=[{"text": "t", "id": {"a": 1}}])],
    "huge integers where nobody looks": [record(votes=int("9" * 4000))],
    "empty lists": [record(profile=[]), record(id="q1", rubric_aspects=[])],
    "no evidence or reason": [record(rubric_aspects=[{"aspect": "Price"}])],
    "an aspect of several lines": [record(rubric_aspects=[{"aspect": "The\nprice\tof it"}])],
}


@pytest.mark.parametrize("case", ODD_RECORDS)
def test_odd_records_go_through_every_script(folder, server, capsys, case):
    write(folder / "data.json", ODD_RECORDS[case])
    said = chain(folder, server.url, capsys)
    ids = [str(record["id"]) for record in ODD_RECORDS[case]]
    assert list(json.loads((folder / "new/rag.json").read_text())) == ids
    scores = json.loads((folder / "new/scores.json").read_text())
    assert [question["id"] for question in scores["per_question_scores"]] == ids
    assert "\x1b" not in said
    kept = [record["profile"] for record in json.loads((folder / "new/ranked.json").read_text())]
    assert kept == [record["profile"] for record in ODD_RECORDS[case]]


ODD_FILES = {
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "the line ends of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "escapes": lambda text: json.dumps(json.loads(text)).encode(),
    "white space around it": lambda text: b"\n\n  " + text.encode() + b" \n\t\n",
    "one line": lambda text: json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode(),
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


# 10 MB in one place: a prompt that is too long, or a post that is cut; the others go on


@pytest.mark.parametrize("unit", ["bread ", "b", "猫"])
@pytest.mark.parametrize("field", ["question", "post", "narrative"])
def test_ten_megabytes_in_one_field(folder, server, capsys, field, unit):
    long = unit * (10**7 // len(unit.encode()))
    change = (
        {"profile": [{"id": "p1", "text": long}, {"id": "p2", "text": "Rye?"}]} if field == "post" else {field: long}
    )
    write(folder / "data.json", [RECORDS[1], RECORDS[0] | change])
    work(COMMANDS["rank"].replace("made", "new"), server.url, capsys)
    rag = COMMANDS["rag"].replace("data.json", "new/ranked.json").replace("made", "new")
    asked = len(server.requests)
    work(rag, server.url, capsys)
    answers = json.loads((folder / "new/rag.json").read_text())
    assert answers["q1"][0]["output"] is not None or answers["q1"][0]["attempts"] > 1
    if field == "question":
        assert answers["q0"][0]["output"] is None
        assert answers["q0"][0]["reason"] == "the prompt is longer than the model takes"
    if field == "post":
        assert answers["q0"][0]["num_contexts_used"] + answers["q0"][0]["num_contexts_dropped"] == 2
    prompts = server.users()[asked:]
    assert max(map(len, prompts)) < 8192 * 3  # the estimate of three bytes a token
    judge = f"{COMMANDS['evaluate'].replace('made', 'new')} --max_model_len 8192"
    work(judge, server.url, capsys)
    unscored = json.loads((folder / "new/scores.json").read_text())["num_unscored"]
    assert unscored >= (field != "post")
