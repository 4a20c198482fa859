"""The lock on an output: one process has it at a time, however the others end."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_output import ROOT, is_finished, make, message, names_in, path, write  # noqa: F401 (fixture)

from utils.base.writing import Lock

HOLD = """
import sys
from utils.base.writing import Lock
lock = Lock(sys.argv[1])
print("ready", flush=True)
input()
"""


@contextmanager
def start(code, *arguments):
    """Start a process and wait for its `print("ready")`; it is killed at the end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def lock_of(path):
    return Path(f"{path}.lock")


def in_use(path, pid):
    """Return the message to the second of two processes."""
    return f"{path}: process {pid} on {socket.gethostname()} is writing it; wait for that process, or stop it"


def test_a_lock_blocks_others_until_it_is_released(path, tmp_path):
    lock, elsewhere = Lock(path), Lock(str(tmp_path / "b.json"))
    assert message(Lock, path) == is_finished(path) == in_use(path, os.getpid())
    lock.release()
    lock.release()  # a second release changes nothing
    output = make(path)
    output.open()
    lock.release()
    assert is_finished(path, overwrite=True) == in_use(path, os.getpid())
    del output, elsewhere  # forgotten
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_lock_ends_with_its_process(path, end):
    with start(HOLD, path) as holder:
        assert message(Lock, path) == in_use(path, holder.pid)
        holder.send_signal(end) if end else holder.communicate("\n")
        assert (holder.wait() == 0) == (end is None)
        assert lock_of(path).exists() == (end is not None)
        write(path)  # the next process takes over its lock file
    assert not lock_of(path).exists()


FORK = """
import os, signal, sys
from utils.base.writing import Lock
lock = Lock(sys.argv[1])
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    {ending}
    os.write(writing, b".")
    signal.pause()
os.read(reading, 1)
print("ready", child, sep="\\n", flush=True)
input()
"""


@pytest.mark.parametrize("ending", ["lock.release()", "del lock", "pass"])
def test_a_fork_neither_releases_nor_keeps_a_lock(path, ending):
    with start(FORK.format(ending=ending), path) as holder:
        child = int(holder.stdout.readline())
        try:
            assert message(Lock, path) == in_use(path, holder.pid)
            holder.kill()
            holder.wait()
            Lock(path).release()
        finally:
            os.kill(child, signal.SIGKILL)


RACE = """
import os, sys
from utils.base.errors import UserError
from utils.base.writing import Lock
output, rounds = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
input()
while rounds:
    try:
        lock = Lock(output)
    except UserError:
        continue
    os.close(os.open(output + ".inside", os.O_CREAT | os.O_EXCL))  # fails where another process is inside too
    os.unlink(output + ".inside")
    lock.release()
    rounds -= 1
print("done", flush=True)
"""


WITHOUT = """
import fcntl
def refuse(file, how):
    raise OSError(38, "Function not implemented")
fcntl.flock = refuse
"""


def refuse(file, how):
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_without_file_locks_that_of_an_ended_process_is_taken_over_on_the_same_host(path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", refuse)
    with start(WITHOUT + HOLD, path) as holder:
        assert message(Lock, path) == in_use(path, holder.pid)
        holder.kill()
        holder.wait()
        write(path)
    assert not lock_of(path).exists()
    lock_of(path).write_text("1\nnode7\n")
    assert message(Lock, path).endswith(
        f"process 1 on node7 is writing it; wait for that process, or delete {lock_of(path)} if it has ended"
    )


@pytest.mark.parametrize("without", ["", WITHOUT], ids=["locks", "no locks"])
def test_only_one_of_racing_processes_has_the_lock(path, without):
    with start(without + RACE, path, 200) as first, start(without + RACE, path, 200) as second:
        for process in (first, second):
            process.stdin.write("\n")
            process.stdin.flush()
        assert (first.stdout.read(), second.stdout.read()) == ("done\n", "done\n")
    assert names_in(path.parent) == set()


KILLED = """
import sys
from utils.base.errors import UserError
from utils.base.writing import locked
print("ready", flush=True)
while True:
    with locked(sys.argv[1]):
        open(sys.argv[1] + ".inside", "x").close()
        __import__("os").unlink(sys.argv[1] + ".inside")
"""


@pytest.mark.parametrize("without", ["", WITHOUT], ids=["locks", "no locks"])
def test_a_lock_is_free_after_a_kill_at_any_moment(path, without, monkeypatch):
    """Except, without locks, between the making of the lock file and the writing of its holder's name."""
    if without:
        monkeypatch.setattr("fcntl.flock", refuse)
    inside, empty = Path(f"{path}.inside"), 0
    for number in range(20):
        with start(without + KILLED, path) as process:
            time.sleep(number / 500)
            process.kill()
            process.wait()
        inside.unlink(missing_ok=True)
        if without and lock_of(path).exists() and not lock_of(path).read_text():
            empty += 1
            lock_of(path).unlink()
        Lock(path).release()
    assert empty < 10
