"""An output and its manifest, however a run ends."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from utils.base.cli import Arguments
from utils.base.errors import UserError
from utils.base.manifest import file_hash, manifest_of, noted_settings, read_manifest
from utils.base.writing import Lock
from utils.runs.stage import StageFile

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"model": "small", "temperature": 0.1, "inputs": "a" * 64}
OTHER = {**SETTINGS, "model": "large"}
PIECES = {
    ("q1", 0): {"value": "two\nlines"},
    ("q1", 1): {"value": None, "reason": "odd"},
    ("日本-’", 0): {"value": "🎸"},
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.json"


class Answers(StageFile):
    unit = "answers"

    def content(self):
        return [self.pieces[key]["value"] for key in sorted(self.pieces)]


def make(path, settings=SETTINGS, keys=tuple(PIECES), pieces=PIECES, dataset=None, **args):
    flags = Arguments(**{"overwrite": False, "max_retries": 3, **args})
    pieces = {key: pieces[key] for key in keys if key in pieces}
    return Answers(str(path), settings, flags, keys, pieces, dataset)


def write(path, **more):
    output = make(path, **more)
    output.open()
    assert output.finish(output.content(), "CPU", counts={"answers": 3})


def is_finished(path, **more):
    """Check an output without changing anything, and return the result."""
    before = snapshot(path.parent)
    try:
        return make(path, **more).is_finished()
    except UserError as error:
        return str(error)
    finally:
        assert snapshot(path.parent) == before


def snapshot(folder):
    return {path: (path.is_file() and path.read_bytes(), path.lstat().st_mtime_ns) for path in folder.rglob("*")}


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def message(call, *args):
    """Return a UserError's message. The exception is not kept, so its open files are closed on return."""
    try:
        call(*args)
    except UserError as error:
        return str(error)
    pytest.fail("no UserError")


# Finished, missing, or refused


def test_an_output_is_published_with_its_runs_figures(path):
    output = make(path, keys=[*PIECES, ("q2", 0)], base_url="https://user:secret@host/v1")
    assert not output.is_finished() and output.missing() == [("q2", 0)]
    output.open()
    assert output.finish(output.content(), "CPU", counts={"answers": 3})
    del output
    assert path.read_text(encoding="utf-8") == '[\n  "two\\nlines",\n  null,\n  "🎸"\n]\n'
    manifest = read_manifest(path)
    assert manifest["settings"] == SETTINGS
    figures = ("pieces", "missing", "unusable", "counts", "device", "output_sha256")
    assert [manifest[name] for name in figures] == [3, 1, 1, {"answers": 3}, "CPU", file_hash(path)]
    assert manifest["arguments"] == {"overwrite": False, "max_retries": 3, "base_url": "https://host/v1"}
    assert 0 <= manifest["wall_seconds"] < 60 and json.loads(json.dumps(manifest)) == manifest
    assert manifest["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert manifest["versions"]["numpy"] == metadata.version("numpy")
    assert names_in(path.parent) == {"answers.json", "answers.json.manifest.json"}


def test_a_complete_output_of_this_command_is_finished(path, capsys):
    write(path)
    assert is_finished(path) is True
    assert is_finished(path, overwrite=True) is False  # it is made again, whatever the manifest says
    assert is_finished(path, keys=list(reversed(PIECES)), max_retries=0) is True
    assert is_finished(path, settings={**SETTINGS, "num_beams": 4}) is True  # found out by a run
    assert is_finished(path, max_retries=4) is False  # more tries for unusable pieces
    assert is_finished(path, keys=[*PIECES, ("q2", 0)]) is False
    assert is_finished(path, keys=[("q2", 0), *list(PIECES)[1:]]) is False
    assert is_finished(path, settings={**SETTINGS, "inputs": "b" * 64}) is False
    assert is_finished(path.with_name("new") / "folder" / "answers.json") is False
    make(path).report_finished()
    printed, errors = capsys.readouterr()
    assert printed == f"{path}: already finished; skipped\n"
    assert errors == f"{path}: 1 of 3 answers unusable; a higher --max_retries retries them\n"
    path.unlink()
    assert is_finished(path) is False
    write(path, pieces={("q1", 0): PIECES["q1", 0]})  # a server failed to give the others
    assert is_finished(path) is False


@pytest.mark.parametrize("num_shards", [1, 2])
def test_beam_search_is_not_asked_again(path, capsys, num_shards):
    settings = {**SETTINGS, "num_beams": 4}
    output = make(path, keys=[("q1", 1)], num_shards=num_shards, settings=settings)
    output.open()
    assert output.finish(output.content(), "CPU") == (num_shards == 1)
    assert output.report_failed() == 0
    if num_shards == 1:
        make(path, keys=[("q1", 1)], settings=settings).report_finished()
    printed = capsys.readouterr().err
    assert "1 of 1 answer unusable" in printed and "--max_retries" not in printed


def made_with_other_settings(path):
    write(path, settings=OTHER)


def written_by_something_else(path):
    path.write_text("a user's own file")


def changed_since(path):
    write(path)
    path.write_text(path.read_text() + " ")


def with_a_broken_manifest(path):
    write(path)
    Path(f"{path}.manifest.json").write_text("[]")


def larger(path):
    write(path, keys=[*PIECES, ("q2", 0)], pieces={**PIECES, ("q2", 0): {"value": "more"}})


UNKNOWN = "exists, and was not written by this script or was changed since"


@pytest.mark.parametrize(
    ("begin", "problem"),
    [
        (made_with_other_settings, 'was made with other settings: model: "large", now "small"\n'),
        (written_by_something_else, f"{UNKNOWN}: answers.json.manifest.json is missing\n"),
        (changed_since, f"{UNKNOWN}\n"),
        (with_a_broken_manifest, f"{UNKNOWN}\n"),
        (larger, "has 4 answers, but this command makes only 3\n"),
    ],
)
def test_another_commands_output_is_refused_without_overwrite(path, begin, problem):
    begin(path)
    message = is_finished(path)
    assert message.startswith(f"{path}: {problem}  choose another output, or add --overwrite to replace it")
    assert is_finished(path, overwrite=True) is False  # it is kept until its replacement exists
    without_inputs = {name: value for name, value in SETTINGS.items() if name != "inputs"}
    # An earlier step gave fewer keys.
    assert is_finished(path, settings=without_inputs) == (begin != larger and message)
    write(path, overwrite=True)
    assert is_finished(path) is True


def test_an_unfinished_output_is_made_again_whatever_it_has(path):
    """By a command for fewer pieces, and by a run in which a server gives less than before."""
    more = [*PIECES, ("q2", 0), ("q3", 0)]
    write(path, keys=more, pieces={**PIECES, ("q2", 0): {"value": "more"}})
    assert read_manifest(path)["pieces"] == 4 and is_finished(path) is False
    write(path)
    assert is_finished(path) is True
    changed = {**SETTINGS, "inputs": "b" * 64}
    assert is_finished(path, settings=changed) is False
    write(path, settings=changed, pieces={("q1", 0): PIECES["q1", 0]})
    assert [read_manifest(path)[name] for name in ("pieces", "missing")] == [1, 2]
    assert is_finished(path, settings=changed) is False and path.read_text() == '[\n  "two\\nlines"\n]\n'


def test_a_shard_has_pieces_only(path):
    path.write_text("somebody else's")
    lock = Lock(path)
    output = make(path, num_shards=2)
    assert output.is_finished() is False
    output.open()
    assert output.finish(output.content(), "CPU") is False and len(output.pieces) == 3
    lock.release()
    assert names_in(path.parent) == {"answers.json"} and path.read_text() == "somebody else's"


FAILED = {"value": None, "reason": "no answer in 12 tokens", "attempts": 4, "raw": "Well", "finish_reason": "stop"}
TOO_LONG = {"value": None, "reason": "a prompt of 9 tokens is too long"}
SCORED = {**FAILED, "mean_log_probs": {}}


@pytest.mark.parametrize(
    ("failed", "more", "remedy"),
    [
        (FAILED, True, "try another model, or a prompt of your own"),
        (TOO_LONG, False, "try a higher --max_model_len, or fewer posts"),
        (SCORED, False, "try another model, or generated text"),
    ],
)
def test_a_run_fails_if_half_of_its_pieces_are_unusable(path, capsys, failed, more, remedy):
    keys = [(f"q{number}", 0) for number in range(4)]
    pieces = {key: failed if key[0] in ("q1", "q3") else {"value": "x"} for key in keys}
    assert make(path, keys=keys, pieces=pieces).report_failed() == 1
    first, reason, tried, last = capsys.readouterr().err.splitlines()
    again = "; a higher --max_retries retries them" if more else ""
    assert first == f"{path}: 2 of 4 answers unusable{again}"
    assert re.match(r"  2 × .*, such as 'q1'", reason) and tried.strip().startswith(remedy) and "--overwrite" in last
    unanswered = {("q0", 0): {"value": None, "answered": [False]}}
    assert make(path, keys=keys, pieces={**pieces, **unanswered}).report_failed() == 1  # that piece was never requested
    assert make(path, keys=[*keys, ("q4", 0)], pieces={**pieces, ("q4", 0): {"value": "x"}}).report_failed() == 0


# Killed while it is published

# Publishes in folders 0, 1, ..., each time in a process that is gone, as after kill -9, at the next file operation.
KILLED = """
import json, os, sys
from pathlib import Path
from utils.base.manifest import publish

older, newer = json.loads(sys.argv[2])
left = 0

def counted(operation):
    def call(*args, **more):
        global left
        if left == 0:
            os._exit(9)
        left -= 1
        return operation(*args, **more)
    return call

for folder in (Path(sys.argv[1]) / str(number) for number in range(100)):
    folder.mkdir()
    if child := os.fork():
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        continue
    if older:
        publish(folder / "answers.json", older[0], {"settings": older[1]})
    os.replace, os.fsync, os.open = counted(os.replace), counted(os.fsync), counted(os.open)
    left = int(folder.name)
    publish(folder / "answers.json", newer[0], {"settings": newer[1]})
    os._exit(0)
"""


@pytest.mark.parametrize("older", [None, ["older text " * 20, OTHER], ["older text " * 20, SETTINGS]])
def test_a_kill_while_publishing_leaves_nothing_half_done(tmp_path, older):
    """The next run makes the output again, over whole files and leftovers, and deletes the leftovers."""
    newer = ["newer text " * 30, SETTINGS]
    subprocess.run([sys.executable, "-c", KILLED, tmp_path, json.dumps([older, newer])], cwd=ROOT, check=True)
    folders, seen = list(tmp_path.iterdir()), set()
    assert len(folders) >= 9  # two files synced, two renames, two folders opened and synced, and the end
    for folder in folders:
        path = folder / "answers.json"
        (folder / f"answers.json.{'0' * 16}.tmp").write_text('"newer te')
        text = path.read_text() if path.exists() else None
        is_new = noted_settings(path) == SETTINGS
        seen.add((text, is_new))
        assert (manifest_of(path, or_older=True) is None) == (text is None)
        refused = is_finished(path)  # False: it has none of the keys
        assert refused is False if is_new or text is None else "was made with other settings" in refused
        write(path, overwrite=bool(refused))
        assert is_finished(path) is True and names_in(folder) == {"answers.json", "answers.json.manifest.json"}
    texts = [None if entry is None else json.dumps(entry[0]) + "\n" for entry in (older, newer)]
    assert seen == {(texts[0], older is not None and older[1] == SETTINGS), (texts[0], True), (texts[1], True)}


def test_another_dataset_is_refused_and_a_changed_one_is_not(tmp_path):
    """Wherever it lies: the same file by another path, or another content under its path, is not another dataset."""
    output, (data, other) = tmp_path / "answers.json", (tmp_path / "data.json", tmp_path / "other.json")
    link = tmp_path / "link.json"
    link.symlink_to(data)
    write(output, settings={**SETTINGS, "inputs": "1"}, dataset=str(data))
    for dataset, inputs in ((data, "2"), (link, "2"), (other, "1")):  # the last one is a copy
        assert is_finished(output, settings={**SETTINGS, "inputs": inputs}, dataset=str(dataset)) is (inputs == "1")
    refused = {"settings": {**SETTINGS, "inputs": "2"}, "dataset": str(other)}
    message = (
        f"{output}: was made from {data}, not from {other}\n  choose another output, or add --overwrite to replace it"
    )
    assert is_finished(output, **refused) == message
    assert is_finished(output, **refused, overwrite=True) is False


def test_what_another_process_has_finished_meanwhile_is_checked_under_the_lock(tmp_path):
    """A process that is slow to start does not replace what it did not see."""
    path = tmp_path / "answers.json"
    slow, alike = make(path, settings=OTHER), make(path)
    assert not slow.is_finished() and not alike.is_finished()
    write(path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="was made with other settings"):
        slow.open()
    slow.close()
    alike.open()
    alike.close()
    assert path.read_bytes() == before
