"""A full disk and lost permissions: the final file equals an undisturbed run's, or one error says why.

The error has one to three lines, names the file and a remedy, and ends the run with exit code 2; existing files do not
change.
"""

import random
import subprocess
import threading
from contextlib import contextmanager

import pytest
from api_server import default_reply
from crash_cases import BEFORE, check_whole, run_whole
from test_crashes import case, data, server, zygotes  # noqa: F401 (fixtures)

pytestmark = pytest.mark.slow

CASES = ["planpers", "rank_dataset"]
KEPT = "finished work is kept, run the same command again to resume\n"
PAGE = 4096  # bytes per page of a tmpfs


def error_of(run):
    """Return a run's user error: one to three lines after the program's notes and counts."""
    assert run.wait() == 2, run.errors
    assert "Traceback" not in run.errors and "ignored" not in run.errors, run.errors
    _, found, error = run.errors.rpartition("error: ")
    assert found and 1 <= error.count("\n") <= 3, run.errors
    return error


def check_unharmed(case, whole):
    """Check that final files are complete, and that every store file ends with a complete line."""
    assert all(not output.exists() or output.read_bytes() == whole.contents[output] for output in case.outputs)
    assert all(path.read_bytes()[-1:] in (b"", b"\n") for path in case.folder.glob("*/*/*.jsonl"))


# A full disk


@pytest.mark.parametrize("case", CASES, indirect=True)
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
        assert error.endswith(f"File too large\n  raise the limit on a file's size (ulimit -f); {KEPT}")
        assert error.startswith(str(case.folder.parent))
        check_unharmed(case, whole)
        assert all(before[unit] <= found for unit, found in case.finished().items())
        refused += 1
    assert refused >= 1
    case.finish(zygotes)
    check_whole(case, whole)


@contextmanager
def small_disk(folder, pages):
    """Mount a file system with this many pages on a folder; only root can."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE}", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("case", CASES, indirect=True)
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
            assert not list(case.folder.rglob("*.tmp"))
            filler.unlink()
        case.finish(zygotes)
        check_whole(case, whole)
    assert refused
    for error in refused:
        assert error.startswith(f"{case.folder}/")
        assert error.endswith(f"No space left on device\n  free some space on its disk; {KEPT}")


# Lost permissions


@pytest.mark.parametrize("case", ["baselines", "evaluate_responses", "planpers"], indirect=True)
def test_a_folder_that_becomes_read_only(case, server, zygotes):
    whole = run_whole(case, zygotes)
    allowed, before = threading.Event(), len(server.requests)

    def reply(request):
        if len(server.requests) > before + 6:
            allowed.wait()
        return default_reply(request)

    server.reply = reply
    run = case.start(zygotes, obey_modes=None)
    server.wait_for(before + 7)
    case.folder.chmod(0o555)
    try:
        allowed.set()
        error = error_of(run)
        assert error.startswith(f"{case.folder}/") and ".json" in error
        assert error.endswith("make it writable, or choose another path; finished work is kept\n")
        check_unharmed(case, whole)
        assert case.place() != BEFORE
    finally:
        case.folder.chmod(0o755)
    case.finish(zygotes)
    check_whole(case, whole)
