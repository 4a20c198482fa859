"""SHA-256 of files. The hashes of large files are kept in the user's cache, so that only the first run reads them."""

import hashlib
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from utils.base.errors import UserError
from utils.base.progress import LARGE
from utils.base.writing import check_regular, naming

SAMPLES, SAMPLE_BYTES = 16, 1 << 17  # parts of a large file that are read to recognize it: their number and size
SETTLED = 2 * 10**9  # nanoseconds; so soon after a change, another one may leave the file's time as it is


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file in hex; UserError if the file does not exist, or is not regular (such as a pipe)."""
    check_regular(Path(path))
    if not Path(path).exists():
        raise UserError(f"{path}: no such file")
    with naming(path), open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size < LARGE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        if (kept := _read().get(key := _key(Path(path)))) is not None:
            return kept
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - status.st_mtime_ns > SETTLED:
        with suppress(OSError, RuntimeError):  # if it cannot be kept, the next run hashes again
            _keep({**_read(), key: digest})
    return digest


def is_kept(path: Path) -> bool:
    """Return whether the cache has the hash of this file."""
    return _key(path) in _read()


def _key(path: Path) -> str:
    """Return a text that changes with a file: path, size, times, inode, and a hash of samples of its content."""
    with open(path, "rb") as file:
        status, samples = os.fstat(file.fileno()), hashlib.sha256()
        for number in range(SAMPLES):
            samples.update(os.pread(file.fileno(), SAMPLE_BYTES, number * status.st_size // SAMPLES))
    times = f"{status.st_mtime_ns}\n{status.st_ctime_ns}"
    return f"{path.resolve()}\n{status.st_size}\n{times}\n{status.st_ino}\n{samples.hexdigest()}"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lampqa" / "hashes.json"


def _read() -> dict[str, str]:
    """Return all kept hashes; empty if they cannot be read."""
    with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: no home folder, or endless nesting
        kept = json.loads(_cache().read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else {}
    return {}


def _keep(hashes: dict[str, str]) -> None:
    """Save the hashes in the cache; if several processes do so at the same time, only the last one's are kept."""
    _cache().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_cache().parent) as folder:
        staged = Path(folder) / "hashes.json"
        staged.write_text(json.dumps(hashes), encoding="utf-8")
        staged.replace(_cache())
