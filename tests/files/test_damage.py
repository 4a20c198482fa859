"""A full disk, lost permissions and damaged journals: the final file is the undisturbed run's, or one error says why.

The error takes one to three lines, names the file and what to do, and ends the run with exit code 2; what is there
already stays as it was.
"""

import json
import random
import shutil
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from api_server import default_reply
from crash_cases import BEFORE, check_whole, journal_path, make_case, read_whole, run_whole
from test_crashes import case, data, server, zygotes  # noqa: F401 (fixtures)
from utils.files.journal import Journal
from utils.files.journal_lines import read_journal

pytestmark = pytest.mark.slow

CASES = ["baselines", "evaluate_responses", "planpers", "rank_dataset", "rank_dataset bm25", "merge_shards"]
WITH_STORE = ["baselines with a store", *CASES]
PAGE = 4096  # bytes: what a tmpfs gives at a time


def error_of(run):
    """What a run said that its user can mend: after the program's notes and counts, one to three lines."""
    assert run.wait() == 2, run.errors
    assert "Traceback" not in run.errors and "ignored" not in run.errors, run.errors
    _, found, error = run.errors.rpartition("error: ")
    assert found and 1 <= error.count("\n") <= 3, run.errors
    return error


def check_unharmed(case, whole):
    """No final file is anything but whole, and every journal and every file of a store ends with a whole line."""
    for output in case.outputs:
        assert not output.exists() or output.read_bytes() == whole.contents[output]
        journal = journal_path(output)
        assert not journal.exists() or journal.read_bytes()[-1:] in (b"", b"\n")
    assert all(path.read_bytes()[-1:] in (b"", b"\n") for path in case.folder.glob("completions/*/*.jsonl"))


# A full disk


@pytest.mark.parametrize("case", WITH_STORE, indirect=True)
def test_files_that_may_not_grow(case, zygotes):
    whole = run_whole(case, zygotes)
    dice, largest = random.Random(case.name), max(map(len, whole.contents.values()))
    sizes = sorted(dice.randrange(1000, 2 * largest) for _ in range(7))  # less would not hold the error itself
    refused = 0
    for size in sizes:
        before = case.finished()
        run = case.start(zygotes, limit_file_size=size)
        if run.wait() == 0:
            check_whole(case, whole)
            break
        error = error_of(run)
        assert error.endswith(
            "File too large\n  raise the limit on a file's size (ulimit -f); what is finished is kept, "
            "run the same command again\n"
        )
        assert error.startswith(str(case.folder.parent))
        check_unharmed(case, whole)
        assert all(before[output] <= found for output, found in case.finished().items())
        refused += 1
    assert refused >= 1
    case.finish(zygotes)
    check_whole(case, whole)


@contextmanager
def small_disk(folder, pages):
    """A file system of so many pages on a folder, by root alone."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE}", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("case", WITH_STORE, indirect=True)
def test_a_full_disk(case, zygotes):
    whole = run_whole(case, zygotes)
    room = 30
    with small_disk(case.folder, room):
        dice, refused = random.Random(case.name), []
        for free in [0, 1, 2, 3, 4, *sorted(dice.sample(range(5, 20), 2))]:
            filler = case.folder / "filler"
            used = sum(-(-path.stat().st_size // PAGE) for path in case.folder.rglob("*"))
            filler.write_bytes(b"x" * PAGE * (room - used - free))
            run = case.start(zygotes)
            if run.wait() == 0:
                filler.unlink()
                break
            refused.append(error_of(run))
            check_unharmed(case, whole)
            assert not list(case.folder.rglob("*.tmp")) and not list(case.folder.glob("*.probe"))
            filler.unlink()
        case.finish(zygotes)
        check_whole(case, whole)
    assert refused
    for error in refused:
        assert error.startswith(f"{case.folder}/")
        assert error.endswith(
            "No space left on device\n  free some space on its disk; what is finished is kept, "
            "run the same command again\n"
        )


def test_a_full_embedding_cache(data, server, tmp_path, zygotes):
    case = make_case("rank_dataset", data, tmp_path, server.url)
    whole = run_whole(case, zygotes)
    cache = tmp_path / "cache"
    shutil.rmtree(cache)
    cache.mkdir()
    with small_disk(cache, pages=5):
        error = error_of(case.start(zygotes))
        assert error.startswith(f"{cache}/") and "No space left on device\n  free some space" in error
        assert not list(cache.rglob("*.tmp"))
        check_unharmed(case, whole)
        assert case.place(case.finished()) != BEFORE
        subprocess.run(["mount", "-o", f"remount,size={99 * PAGE}", cache], check=True)
        case.finish(zygotes)
    check_whole(case, whole)


def test_a_full_store(data, server, tmp_path, zygotes):
    """On a disk of its own: what it took is not requested again, though no output is left."""
    case = make_case("baselines", data, tmp_path, server.url)
    whole, asked = run_whole(case, zygotes), len(server.requests)
    store = tmp_path / "completions"
    store.mkdir()
    case.arguments += ["--completions", str(store)]
    with small_disk(store, pages=2):
        error = error_of(case.start(zygotes))
        assert error.startswith(f"{store}/") and "No space left on device\n  free some space" in error
        assert not list(store.rglob("*.tmp"))
        check_unharmed(case, whole)
        case.clear()
        kept = sum(path.read_bytes().count(b"\n") - 1 for path in store.glob("*/*.jsonl"))
        subprocess.run(["mount", "-o", f"remount,size={99 * PAGE}", store], check=True)
        before = len(server.requests)
        case.finish(zygotes)
        assert len(server.requests) - before == asked - kept < asked
    assert read_whole(case).contents == whole.contents


@pytest.mark.parametrize("failing", range(6))
def test_a_journal_goes_on_after_a_write_that_failed(tmp_path, failing, monkeypatch):
    """In the same process: what one piece left half written is not in the way of the next."""
    output = tmp_path / "answers.json"
    journal = Journal(output, {"model": "m"})
    if failing > 0:
        journal.add(("q1", 0), "first")
    really = journal._file

    class HalfFullDisk:
        def __getattr__(self, name):
            return getattr(really, name)

        def write(self, line):
            if failing == 5:
                raise OSError(28, "No space left on device")
            taken = really.write(line[: 1 + 9 * failing])
            monkeypatch.setattr(self, "write", self.refuse, raising=False)
            return taken

        def refuse(self, line):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "_file", HalfFullDisk())
    with pytest.raises(OSError, match="No space left on device") as raised:
        journal.add(("q2", 0), "lost")
    assert raised.value.filename == str(journal_path(output))
    assert ("q2", 0) not in journal.entries
    monkeypatch.setattr(journal, "_file", really)
    journal.add(("q3", 0), "later")
    journal.close()
    kept = {("q1", 0): "first", ("q3", 0): "later"} if failing > 0 else {("q3", 0): "later"}
    assert read_journal(journal_path(output)) == ({"model": "m"}, kept)


# Lost permissions


WAYS = ["modes", "immutable"]


def forbid(way, folder):
    """Take the right to write into a folder away; `allow` gives it back."""
    if way == "modes":
        folder.chmod(0o555)
    elif subprocess.run(["chattr", "+i", folder], capture_output=True).returncode != 0:
        pytest.skip("only root makes folders immutable, and not on every file system")


def allow(way, folder):
    folder.chmod(0o755) if way == "modes" else subprocess.run(["chattr", "-i", folder], check=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_folder_that_may_not_be_written(case, way, server, zygotes):
    whole = run_whole(case, zygotes)
    forbid(way, case.folder)
    try:
        asked = len(server.requests)
        error = error_of(case.start(zygotes, obey_modes=None))
        assert error.startswith(f"{case.folder}/") and ": cannot be written: " in error
        assert error.endswith("have it made writable, or give another path; what is finished is kept\n")
        assert len(server.requests) == asked and not list(case.folder.iterdir())
    finally:
        allow(way, case.folder)
    case.finish(zygotes)
    check_whole(case, whole)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ["baselines", "evaluate_responses", "planpers"], indirect=True)
def test_a_folder_that_may_not_be_written_any_more(case, way, server, zygotes):
    whole = run_whole(case, zygotes)
    allowed, before = threading.Event(), len(server.requests)

    def reply(request):
        if len(server.requests) > before + 6:
            allowed.wait()
        return default_reply(request)

    server.reply = reply
    run = case.start(zygotes, obey_modes=None)
    server.wait_for(before + 7)
    forbid(way, case.folder)
    try:
        allowed.set()
        error = error_of(run)
        assert error.startswith(f"{case.folder}/") and ".json" in error
        assert error.endswith("have it made writable, or give another path; what is finished is kept\n")
        check_unharmed(case, whole)
        assert case.place(case.finished()) != BEFORE
    finally:
        allow(way, case.folder)
    case.finish(zygotes)
    check_whole(case, whole)


# A damaged journal


@pytest.fixture
def finished(case, zygotes):
    """A case whose final files are lost: (the case, what it had written, its last journal's lines)."""
    whole = run_whole(case, zygotes)
    case.finish(zygotes)
    for output in case.outputs:
        output.unlink()
        Path(f"{output}.manifest.json").unlink()
    journal = journal_path(case.outputs[-1])
    return case, whole, journal, journal.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_last_line_that_is_torn_is_done_again(finished, zygotes, server):
    case, whole, journal, lines = finished
    dice = random.Random(case.name)
    length = len(lines[-1])
    for kept in [0, 1, length - 1, *dice.sample(range(2, length - 1), 3)]:
        journal.write_bytes(b"".join([*lines[:-1], lines[-1][:kept]]))
        for path in case.folder.glob("*.json"):
            path.unlink()
        asked = len(server.requests)
        case.finish(zygotes)
        check_whole(case, whole)
        assert len(server.requests) - asked == 0 or case.asks
        assert len(server.requests) - asked <= 4  # one piece, with its retries
        assert sorted(journal.read_bytes().splitlines(keepends=True)) == sorted(lines)


@pytest.mark.parametrize("case", CASES, indirect=True)
@pytest.mark.parametrize("header", ["nothing", "half", "zeros"])
def test_a_torn_header_begins_anew(finished, zygotes, header):
    case, whole, journal, lines = finished
    half = lines[0][: len(lines[0]) // 2]
    journal.write_bytes({"nothing": b"", "half": half, "zeros": b"\0" * 5000}[header])
    case.finish(zygotes)
    check_whole(case, whole)
    assert sorted(journal.read_bytes().splitlines(keepends=True)) == sorted(lines)


def flip_a_bit(lines, number, dice):
    line = bytearray(lines[number])
    line[dice.randrange(len(line))] ^= 1 << dice.randrange(8)
    lines[number] = bytes(line)


def cut_a_line(lines, number, dice):
    lines[number] = lines[number][: dice.randrange(len(lines[number]) - 1)] + b"\n"


def join_lines(lines, number, dice):
    lines[number] = lines[number][:-1]


def put_in_a_foreign_line(lines, number, dice):
    lines.insert(number, dice.choice([b"\n", b"7\n", b"hello\n", b'{"key": ["q1", 0], "value": {"value": "x"}}\n']))


def put_in_zeros(lines, number, dice):
    start = dice.randrange(len(lines[number]))
    lines[number] = lines[number][:start] + b"\0" * (len(lines[number]) - start)


def put_zeros_at_the_end(lines, number, dice):
    lines.append(b"\0" * dice.randrange(1, 5000))


DAMAGES = [flip_a_bit, cut_a_line, join_lines, put_in_a_foreign_line, put_in_zeros, put_zeros_at_the_end]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_damaged_line_is_named(finished, zygotes, server, damage):
    case, whole, journal, lines = finished
    dice = random.Random(f"{case.name} {damage.__name__}")
    for number in [0, *(dice.randrange(1, len(lines) - 1) for _ in range(3))]:
        damaged = list(lines)
        damage(damaged, number, dice)
        journal.write_bytes(b"".join(damaged))
        asked = len(server.requests)
        run = case.start(zygotes)
        if run.wait() == 0:  # nothing but a torn end was to be dropped, and nothing wrong taken for an answer
            check_whole(case, whole)
            for path in case.folder.glob("*.json"):
                path.unlink()
            continue
        assert error_of(run).startswith(f"{journal}: ")
        assert journal.read_bytes() == b"".join(damaged)
        assert len(server.requests) == asked and not case.outputs[-1].exists()


@pytest.mark.parametrize("case", ["baselines"], indirect=True)
def test_the_remedy_for_a_damaged_line(finished, zygotes):
    case, whole, journal, lines = finished
    damaged = list(lines)
    damaged[5] = damaged[5].replace(b"answer", b"Answer", 1)
    assert damaged[5] != lines[5]
    journal.write_bytes(b"".join(damaged))
    assert error_of(case.start(zygotes)) == (
        f"{journal}: line 6 is damaged\n  delete that line to have its piece done again, or the file to begin anew\n"
    )
    journal.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    case.finish(zygotes)
    check_whole(case, whole)


def test_a_line_of_another_run_is_no_piece_of_this_one(data, server, tmp_path, zygotes):
    case = make_case("baselines", data, tmp_path, server.url)
    case.finish(zygotes)
    journal = journal_path(case.outputs[0])
    other = journal.read_bytes().splitlines(keepends=True)[1]
    assert json.loads(other)["key"]
    case.clear()
    case.finish(zygotes, "--temperature", 0.5)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines, other]))
    error = error_of(case.start(zygotes, "--temperature", 0.5))
    assert error.startswith(f"{journal}: line {len(lines) + 1} is damaged\n")
