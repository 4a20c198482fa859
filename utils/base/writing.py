"""Write files completely or not at all, by renaming a temporary file, and only one process at a time.

The lock `<output>.lock` has the id and the host of the process that holds it."""

import errno
import glob
import json
import os
import re
import secrets
import shutil
import socket
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from utils.base.errors import AWAY, UserError, describe_os_error
from utils.base.progress import announce

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOST = (*AWAY, errno.ENOSPC, errno.EDQUOT)  # errors that mean that data was not saved
OWN = secrets.token_hex(4)  # part of the names of this process's temporary files, after its pid
STAGED = "[0-9a-f]" * 16 + ".tmp"  # a glob pattern for the end of these names
_json_parts = json.JSONEncoder(ensure_ascii=False, indent=2).iterencode
PATIENCE = 10  # seconds to wait for another process that is about to finish writing


def check_could_write(path: Path) -> None:
    """Raise UserError if writing to `path` is certain to fail: it is a folder, not permitted, or on a full disk."""
    with as_user_error(path):
        if path.is_dir():
            raise UserError(f"{path}: is a folder; choose a file name")
        longest = path.with_name(f"{path.name}.manifest.json")
        staged_path(longest).exists()  # fails if the name is too long
        folder = next(folder for folder in real_path(path).absolute().parents if folder.exists())
        if not folder.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        disk = os.statvfs(folder)
        if disk.f_blocks and not disk.f_bavail:  # before a run pays for results that it could not keep
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def as_user_error(path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError that names `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {describe_os_error(error)}") from None


def sync(file: IO[Any] | int) -> None:
    """Wait until a file or a folder is on disk; return at once if the file system (CIFS, FUSE) does not support that.

    OSError if the data was not saved.
    """
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno in LOST:
            raise


def check_regular(path: Path) -> None:
    """Raise UserError if a path exists and is not a regular file, because it could not be replaced later."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file; move it away, or choose another output")


def open_appending(path: Path) -> IO[bytes]:
    """Open a file for reading and appending, without a buffer, so that failed writes are not repeated later.

    UserError if the path is not a regular file, or is a symbolic link, because its target is not ours.
    """
    check_regular(path)
    if path.is_symlink():
        raise UserError(f"{path}: a symbolic link; move it away, or choose another output")
    return open(path, "a+b", buffering=0)


def own_name() -> str:
    """Return a unique name for a file to which only this process appends. Names of older files sort first."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"{now}-{host}-{os.getpid()}-{secrets.token_hex(8)}"


def write_line(file: IO[bytes], line: bytes, path: Path) -> None:
    """Write a whole line to an unbuffered file, in several writes if necessary; an OSError names `path`."""
    try:
        while line:
            line = line[file.write(line) :]
    except OSError as error:  # without `naming`, which takes longer than a short write
        error.filename = str(path)
        raise


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. On exit, the file there replaces `path`; after an error, it is deleted.

    At any time, also after a power cut, readers see either the old file or the new one. An OSError names the file.
    """
    path = real_path(path)
    staged = staged_path(path)
    try:
        with naming(path):
            yield staged
        sync_path(staged)
        os.replace(staged, path)
        with suppress(PermissionError):  # the folder may be writable but not readable
            sync_path(path.parent)
    except BaseException:  # any error: free the space
        staged.unlink(missing_ok=True)
        raise


def write_atomically(path: str | Path, text: str) -> None:
    with replacing(path) as staged:
        staged.write_text(text, encoding="utf-8")


def delete_leftovers(path: Path) -> None:
    """Delete temporary files that killed processes left of a file and its manifest. The caller holds the lock."""
    path = real_path(path)
    for name in (path.name, f"{path.name}.manifest.json"):
        for staged in path.parent.glob(f"{glob.escape(name)}.{STAGED}"):
            staged.unlink(missing_ok=True)


def replace_link(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target`; at any time, readers see either the old link or the new one."""
    staged = staged_path(link)
    staged.symlink_to(target)
    staged.replace(link)


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file; an iterator's items are written as a list. Lone surrogates are written as escapes."""
    if isinstance(data, Iterator):
        write_array(path, data, indent=2)
        return
    with open_whole(path, "wb") as file:  # in parts: as one text it would take several times its size in memory
        file.writelines(part.encode(errors="backslashreplace") for part in _json_parts(data))
        file.write(b"\n")


def write_array(path: Path, items: Iterable[Any], indent: int) -> int:
    """Write a JSON array with only one item in memory at a time, and return the number of items.

    The file has the text of json.dumps(list(items), ensure_ascii=False, indent=indent) and a line break. ValueError if
    there are no items, or an item is not JSON.
    """
    number, margin = 0, " " * indent
    with open_whole(path) as file:
        for number, item in enumerate(items, 1):
            text = json.dumps(item, ensure_ascii=False, allow_nan=False, indent=indent)
            file.write(",\n" if number > 1 else "[\n")
            file.write(margin + text.replace("\n", "\n" + margin))
        if number == 0:
            raise ValueError("an empty file")
        file.write("\n]\n")
    return number


@contextmanager
def open_whole(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file for writing. An OSError names the file."""
    with naming(path), open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file


def sync_folder(folder: Path) -> None:
    """Wait until everything in a folder, at any depth, is on disk."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Wait until a file's content, or a folder's list of files, is on disk, as `sync` does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            sync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the name `path` to an OSError that names no file, such as that of a failed write."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def staged_path(path: Path) -> Path:
    """Return the temporary path at which this process writes a file before it replaces `path`."""
    return path.with_name(f"{path.name}.{os.getpid():08x}{OWN}.tmp")


def real_path(path: str | Path) -> Path:
    """Return the path, or the target if it is a symbolic link, so that an output that is a link stays a link."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


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
        for output in sorted(outputs):  # always in the same order, so that no two processes wait for each other
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
    """A lock on an output, held by this process while this object exists.

    The kernel releases the lock however the process ends; the next run takes over a leftover lock file. On a file
    system without `flock`, the lock file itself is the lock, and filelock takes over a lock file whose process has
    ended on this host.
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
