"""The lock on an output: `<output>.lock` names the host and the process that write it."""

import fcntl
import json
import os
import socket
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from utils.cli import UserError
from utils.files.writing import naming, open_appending


def check_free(output: str | Path) -> None:
    """Raise UserError where `Lock` would; nothing is made: for a dry run."""
    if Path(f"{output}.lock").exists():
        Lock(output).release()


class Lock:
    """An output is this process's alone while this object lives.

    The kernel lets the lock go when its process dies, however it dies: a file left over is taken over by the next run.
    """

    def __init__(self, output: str | Path):
        """Take the lock; UserError where another process holds it, named by host and pid."""
        path = Path(f"{output}.lock")
        file = _open_locked(path, Path(output))
        try:
            file.truncate(0)
            with naming(path):
                file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode() + b"\n")
        except OSError:
            _let_go(file, path, os.getpid())
            raise
        os.register_at_fork(after_in_child=file.close)  # a fork that outlives this process is not to keep the lock
        # Also when this object is forgotten, or the process ends.
        self.release = weakref.finalize(self, _let_go, file, path, os.getpid())


def _open_locked(path: Path, output: Path) -> IO[bytes]:
    while True:
        file = open_appending(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{output}: {_holder(file)} is writing it; wait for it, or end it") from None
        except OSError:  # a file system that knows no locks: all there is to go by is the name in the file
            if not _is_gone(file):
                problem = f"{_holder(file)} is writing it\n  if that process is gone, delete {path}"
                raise UserError(f"{output}: {problem}") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its holder deleted it while it was being opened


def _let_go(file: IO[bytes], path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not a fork of the holder
        with suppress(OSError):  # the folder may not be writable any more; what is left over is taken over
            path.unlink()
    file.close()


def _read_holder(file: IO[bytes]) -> tuple[str, int] | None:
    """Host and pid in a lock file, None where nobody has written theirs yet."""
    file.seek(0)
    try:
        holder = json.loads(file.read())
        return holder["host"], holder["pid"]
    except (ValueError, TypeError, KeyError):
        return None


def _holder(file: IO[bytes]) -> str:
    """Who holds a lock, in words."""
    holder = _read_holder(file)
    return f"process {holder[1]} on {holder[0]}" if holder else "another process"


def _is_gone(file: IO[bytes]) -> bool:
    """Nobody is named in a lock file, or a process of this host that is gone."""
    holder = _read_holder(file)
    return holder is None or (holder[0] == socket.gethostname() and not Path(f"/proc/{holder[1]}").exists())
