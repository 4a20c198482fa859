"""Write files completely or not at all, by renaming a temporary file; and lock outputs.

`<output>.lock` names the host and the process that is writing the output.
"""

import errno
import fcntl
import glob
import json
import os
import re
import secrets
import shutil
import socket
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError, describe_os_error
from utils.cli.errors import AWAY
from utils.cli.progress import announce

LOST = (*AWAY, errno.ENOSPC, errno.EDQUOT)  # errors that mean that data was not saved
OWN = secrets.token_hex(4)  # in the names of this process's temporary files, with its pid
STAGED = "[0-9a-f]" * 16 + ".tmp"  # the end of these names, as a pattern
PATIENCE = 10  # seconds to wait for another process that is about to finish writing
PROBE_BYTES = 2500  # more than fit into a directory entry, which a full disk may still have


def check_could_write(path: Path, links: bool = False) -> None:
    """Raise UserError if `path`, or with `links` a symbolic link, could not be written there. Creates nothing."""
    with as_user_error(path):
        if path.is_dir():
            raise UserError(f"{path}: is a folder; give a file")
        _staged(path.with_name(f"{path.name}.manifest.json")).exists()  # fails if the longest derived name is too long
        _probe(next(folder for folder in real_path(path).absolute().parents if folder.exists()), links)


def _probe(folder: Path, links: bool) -> None:
    """Do in a folder all that our outputs need: append to a file, empty it, replace it by another. Nothing is left."""
    probe = folder / f".probe-{secrets.token_hex(8)}"
    try:
        with open_appending(probe) as file:
            write_line(file, b"0" * PROBE_BYTES, probe)
            sync(file)
            file.truncate(0)
        write_atomically(probe, "0")
        if links:
            try:
                replace_link(probe, "nowhere")
            except OSError as error:
                problem = f"symbolic links cannot be made there ({error.strerror})"
                raise UserError(f"{folder}: {problem}; give a folder on another file system") from None
    finally:
        probe.unlink(missing_ok=True)


@contextmanager
def as_user_error(path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError that names `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {describe_os_error(error)}") from None


def sync(file: IO[Any] | int) -> None:
    """Wait until a file or a folder is on disk; not where the file system (CIFS, FUSE) cannot tell.

    OSError if the disk did not keep it.
    """
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno in LOST:
            raise


def check_regular(path: Path) -> None:
    """Raise UserError if a path exists and is not a regular file, because it could not be replaced later."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file; move it away, or give another output")


def open_appending(path: Path, is_new: bool | None = None) -> IO[bytes]:
    """Open a file for reading and appending, without a buffer, so that failed writes are not repeated later.

    With `is_new`, the file must be new (FileExistsError) or exist (FileNotFoundError); else it is made if necessary.
    UserError if the path is not a regular file, or is a symbolic link: its target is not ours to write to.
    """
    check_regular(path)
    if path.is_symlink():
        raise UserError(f"{path}: a symbolic link; move it away, or give another output")
    flags = os.O_RDWR | os.O_APPEND | {None: os.O_CREAT, True: os.O_CREAT | os.O_EXCL, False: 0}[is_new]
    return open(path, "a+b", buffering=0, opener=lambda name, _: os.open(name, flags, 0o666))


def own_name() -> str:
    """Return a name for a file to which only this process appends; names of older files sort first."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"{now}-{host}-{os.getpid()}-{secrets.token_hex(8)}"


def write_line(file: IO[bytes], line: bytes, path: Path) -> None:
    """Write a line to an unbuffered file, which may take it in parts; an OSError names `path`."""
    try:
        while line:
            line = line[file.write(line) :]
    except OSError as error:  # not by `naming`, which costs more than a short write
        error.filename = str(path)
        raise


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on exit, the file there replaces `path`, or is deleted after an error.

    Readers see the old file or the new one.
    """
    path = real_path(path)
    staged = _staged(path)
    try:
        yield staged
        _rename(staged, path)
    except BaseException:
        staged.unlink(missing_ok=True)  # free the space on a full disk
        raise


def write_atomically(path: str | Path, text: str) -> None:
    with replacing(path) as staged:
        write_synced(staged, text)


def delete_leftovers(path: Path) -> None:
    """Delete the temporary files of killed processes for a file and its manifest. The caller holds the file's lock."""
    path = real_path(path)
    for name in (path.name, f"{path.name}.manifest.json"):
        for staged in path.parent.glob(f"{glob.escape(name)}.{STAGED}"):
            staged.unlink(missing_ok=True)


def replace_link(link: Path, target: str) -> None:
    """Point a symbolic link to `target`; readers see the old link or the new one."""
    staged = _staged(link)
    staged.symlink_to(target)
    _rename(staged, link)


def write_synced(path: Path, text: str) -> None:
    with open_whole(path) as file:
        file.write(text)


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file; an iterator's items are written as a list. Lone surrogates are written as escapes."""
    if isinstance(data, Iterator):
        write_array(path, data, indent=2)
        return
    with open_whole(path, "wb") as file:  # in parts: as one text it would take several times its size in memory
        file.writelines(part.encode(errors="backslashreplace") for part in _json_parts(data))
        file.write(b"\n")


_json_parts = json.JSONEncoder(ensure_ascii=False, indent=2).iterencode


def write_array(path: Path, items: Iterable[Any], indent: int) -> int:
    """Write a JSON array with one item in memory at a time, and return its length.

    The text is json.dumps(list(items), ensure_ascii=False, indent=indent) and a line break. ValueError without items,
    or if an item cannot be written.
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
    """Open a file for writing. On exit it is complete on disk."""
    with naming(path), open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file
        file.flush()
        sync(file)


@contextmanager
def fill_folder(folder: Path) -> Iterator[Path]:
    """Make an empty folder beside `folder` and rename it on exit, so that `folder` is complete or absent.

    UserError, which names --output_dir, if it cannot be made.
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
        _rename(partial, folder)


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Turn write errors of torch, safetensors and tokenizers into an OSError that names the folder."""
    try:
        with naming(folder):
            yield
    except OSError:
        raise
    except Exception as error:  # tokenizers' are plain ones
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from None
        if "inline_container" not in str(error) and "PytorchStreamWriter" not in str(error):
            raise
        problem = "No space left on device, or a limit on the size of a file"  # torch does not say which
        raise OSError(errno.ENOSPC, problem, str(folder)) from None


def _rename(staged: Path, path: Path) -> None:
    os.replace(staged, path)
    with suppress(PermissionError):  # files may be made in the folder but not listed
        sync_path(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until all that is in a folder is on disk."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Wait until a file's content, or a folder's list of files, is on disk (`sync`)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            sync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add a file's name to an OSError without one, such as a failed write's."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _staged(path: Path) -> Path:
    """Return the temporary name, this process's own, under which a file is written."""
    return path.with_name(f"{path.name}.{os.getpid():08x}{OWN}.tmp")


def real_path(path: str | Path) -> Path:
    """Return the path, or the one that it links to, so that a link that is an output stays a link."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def check_free(output: str | Path) -> None:
    """Raise UserError if another process holds the lock. Creates no lock file, so a dry run may call it."""
    if Path(f"{real_path(output)}.lock").exists():
        Lock(output).release()


class HeldError(UserError):
    """Another process holds the lock."""


@contextmanager
def locked(*outputs: str | Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the locks of outputs; HeldError if another process still has one after `patience` seconds."""
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
    system without locks, the process that made the lock file has it, until it deletes it or ends on the same host.
    """

    def __init__(self, output: str | Path):
        """Take the lock, in a new folder if necessary; HeldError, naming host and pid, if another process holds it."""
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
        except FileNotFoundError:  # another process deleted it; or there is no folder
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
        file.close()  # another process deleted it between opening and locking
        if remedy:
            who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
            raise HeldError(f"{output}: {who} is writing it; wait for that process, or {remedy}")


def _take_over(file: IO[bytes], path: Path) -> bool:
    """Delete the lock file of a process that has ended on this host; return whether the lock may be free now."""
    holder = _holder(file)
    if holder is None or holder["host"] != socket.gethostname():
        return False
    with suppress(PermissionError):  # another user's process
        try:
            os.kill(holder["pid"], 0)
        except ProcessLookupError:
            taken = _staged(path)
            with suppress(FileNotFoundError):
                path.rename(taken)
                with open(taken, "rb") as moved:
                    is_other = _holder(moved) != holder  # another process took it over first
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
    """Return host and pid of the process that has a lock; None if it has not written them yet."""
    file.seek(0)
    with suppress(ValueError, TypeError, KeyError):
        holder = json.loads(file.read())
        return {"host": str(holder["host"]), "pid": int(holder["pid"])}
    return None
