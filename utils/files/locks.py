"""Lock outputs, so that only one process writes them; `<output>.lock` has the host and the id of that process."""

import fcntl
import json
import os
import shutil
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError
from utils.cli.progress import announce
from utils.files.writing import (
    LOST,
    filling,
    open_appending,
    real_path,
    rename_synced,
    staged_path,
    sync_folder,
    write_line,
)

PATIENCE = 10  # seconds to wait for another process that is about to finish writing


@contextmanager
def fill_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`, and rename it on exit, so that `folder` is either complete or absent.

    `folder` is locked meanwhile. UserError, which suggests another --output_dir, if the folder cannot be created.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    with ExitStack() as stack:
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
            if partial.exists():  # left over from an interrupted run
                shutil.rmtree(partial)
            partial.mkdir()
        except OSError as error:
            raise UserError(f"{partial}: cannot be created: {error.strerror}; give another --output_dir") from None
        with filling(partial):
            yield partial
        sync_folder(partial)
        rename_synced(partial, folder)


def check_free(output: str | Path) -> None:
    """Raise UserError if another process holds an output's lock. Creates no lock file, so a dry run may call it."""
    if Path(f"{real_path(output)}.lock").exists():
        Lock(output).release()


class HeldError(UserError):
    """Another process holds the lock."""


@contextmanager
def locked(*outputs: str | Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the locks of these outputs; HeldError if another process still holds one after `patience` seconds."""
    locks: list[Lock] = []
    end, is_announced = time.monotonic() + patience, patience <= PATIENCE
    while len(locks) < len(outputs):
        try:
            locks.append(Lock(sorted(outputs)[len(locks)]))  # in one order: no two processes wait for each other
        except HeldError as error:
            if time.monotonic() > end:
                raise
            if not is_announced:
                announce(f"note: {error}")
            is_announced = True
            time.sleep(0.1)
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


class Lock:
    """Reserves an output for this process while this object exists.

    The kernel releases the lock however the process ends; the next run takes over a leftover lock file. On a file
    system without locks, the process that created the lock file holds the lock until it deletes the file; if it has
    ended, only a process on the same host can take the lock over.
    """

    def __init__(self, output: str | Path):
        """Take the lock, and create the output's folder if necessary; HeldError if another process holds the lock."""
        path = Path(f"{real_path(output)}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _open_locked(path, Path(output))
        try:
            file.truncate(0)
            holder = {"host": socket.gethostname(), "pid": os.getpid()}
            write_line(file, json.dumps(holder).encode() + b"\n", path)
        except OSError:
            _let_go(file, path, os.getpid())
            raise
        os.register_at_fork(after_in_child=file.close)  # a fork that outlives this process must not keep the lock
        # Also called when this object is garbage-collected, or the process ends.
        self.release = weakref.finalize(self, _let_go, file, path, os.getpid())


def _open_locked(path: Path, output: Path) -> IO[bytes]:
    for is_new in cycle((True, False)):
        try:
            file, remedy = open_appending(path, is_new), None
        except FileExistsError:
            continue
        except FileNotFoundError:  # another process deleted the file; or its folder does not exist
            if is_new:
                raise
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BlockingIOError:
            remedy = "stop it"
        except OSError as error:  # a file system without locks
            if error.errno in LOST:
                raise
            if is_new:
                return file
            if not _take_over(file, path):
                remedy = f"delete {path} if it has ended"
        holder = _holder(file)
        file.close()  # not locked, or another process deleted it between opening and locking
        if remedy:
            who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
            raise HeldError(f"{output}: {who} is writing it; wait for that process, or {remedy}")


def _take_over(file: IO[bytes], path: Path) -> bool:
    """Delete a lock file if its process ran on this host and has ended; return whether the lock may be free now."""
    holder = _holder(file)
    if holder is None or holder["host"] != socket.gethostname():
        return False
    with suppress(PermissionError):  # another user's process
        try:
            os.kill(holder["pid"], 0)
        except ProcessLookupError:
            taken = staged_path(path)
            with suppress(FileNotFoundError):
                path.rename(taken)
                with open(taken, "rb") as moved:
                    is_other = _holder(moved) != holder  # whether another process took the lock over first
                taken.rename(path) if is_other else taken.unlink()
            return True
    return False


def _let_go(file: IO[bytes], path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not a fork of the holder
        with suppress(OSError):  # the folder may be read-only by now; the next run takes over the file
            path.unlink()
    with suppress(OSError):
        file.close()


def _holder(file: IO[bytes]) -> dict[str, Any] | None:
    """Return host and pid of the process that holds a lock, from its file; None if they are not written yet."""
    file.seek(0)
    with suppress(ValueError, TypeError, KeyError):
        holder = json.loads(file.read())
        return {"host": str(holder["host"]), "pid": int(holder["pid"])}
    return None
