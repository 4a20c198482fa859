"""Lock outputs, so that only one process writes them; `<output>.lock` has the id and the host of that process."""

import os
import shutil
import socket
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from utils.base.errors import UserError
from utils.base.progress import announce
from utils.base.writing import as_user_error, naming, real_path

if TYPE_CHECKING:
    from filelock import BaseFileLock

PATIENCE = 10  # seconds to wait for another process that is about to finish writing


@contextmanager
def fill_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`, and rename it on exit, so that `folder` is either complete or absent.

    `folder` is locked meanwhile.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    with locked(folder), naming(folder):
        if partial.exists():  # left over from an interrupted run
            shutil.rmtree(partial)
        partial.mkdir()
        yield partial
        partial.replace(folder)


def check_free(output: str | Path) -> None:
    """Raise UserError if another process holds an output's lock. Creates no lock file, so a dry run may call it."""
    if Path(f"{real_path(output)}.lock").exists():
        Lock(output).release()


class HeldError(UserError):
    """Another process holds the lock."""


@contextmanager
def locked(*outputs: str | Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the locks of these outputs; HeldError if another process still holds one after `patience` seconds."""
    with ExitStack() as stack:
        for output in sorted(outputs):  # in one order: no two processes wait for each other
            try:
                lock = Lock(output, min(patience, PATIENCE))
            except HeldError as error:
                if patience <= PATIENCE:
                    raise
                announce(f"note: {error}")
                lock = Lock(output, patience)
            stack.callback(lock.release)
        yield


class Lock:
    """Reserves an output for this process while this object exists.

    The kernel releases the lock however the process ends; the next run takes over a leftover lock file. On a file
    system without `flock`, the lock file itself is the lock, and filelock takes over that of a process that has ended
    on this host.
    """

    def __init__(self, output: str | Path, patience: float = 0):
        """Take the lock, and create the output's folder if necessary.

        HeldError if another process still holds it after `patience` seconds; UserError if it cannot be written.
        """
        import filelock  # here, so that --help needs no package

        path = Path(f"{real_path(output)}.lock")
        lock = filelock.FileLock(path, patience, thread_local=False)
        own = f"{os.getpid()}\n{socket.gethostname()}"
        with as_user_error(Path(output)):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with warnings.catch_warnings(action="ignore"):  # filelock warns if there is no `flock`
                    lock.acquire()
            except filelock.Timeout:
                raise HeldError(f"{output}: {_holder(path)}") from None
            # Also called when this object is garbage-collected, or the process ends.
            self.release = weakref.finalize(self, _let_go, lock)
            if not path.read_text().startswith(own):  # without `flock`, filelock has written it
                path.write_text(f"{own}\n")


def _let_go(lock: "BaseFileLock") -> None:
    if lock.is_locked:  # not in a fork of the holder
        with suppress(OSError):  # the folder may be read-only by now; the next run takes over the file
            os.unlink(lock.lock_file)
        lock.release()


def _holder(path: Path) -> str:
    """Return who holds the lock and what to do, for a message."""
    with suppress(OSError, ValueError):
        pid, host = path.read_text().split()[:2]
        host = host.partition("?")[0]  # filelock adds a container's number
        remedy = "stop it" if host == socket.gethostname() else f"delete {path} if it has ended"
        return f"process {pid} on {host} is writing it; wait for that process, or {remedy}"
    return f"another process is writing it; wait for that process, or delete {path} if it has ended"
