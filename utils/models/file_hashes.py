"""SHA-256 of files. That of a large one is kept in the user's cache, so that only the first run reads gigabytes."""

import hashlib
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from utils.cli.progress import LARGE

SETTLED = 2 * 10**9  # nanoseconds: a younger file may change again within one tick of its file system's clock


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    if (kept := kept_hash(path)) is not None:
        return kept
    status, key = path.stat(), _key(path)
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if status.st_size >= LARGE and time.time_ns() - status.st_mtime_ns > SETTLED:
        _keep(key, found)
    return found


def kept_hash(path: Path) -> str | None:
    """The hash that is kept of a file with this path, size and time of change (mtime); None where none is."""
    return _read().get(_key(path))


def _key(path: Path) -> str:
    status = path.stat()
    return f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lampqa" / "hashes.json"


def _read() -> dict[str, str]:
    """All that is kept; nothing where it cannot be read: then files are hashed again."""
    with suppress(OSError, ValueError, RuntimeError):  # the last of a user without a home, and of endless nesting
        kept = json.loads(_cache().read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else {}
    return {}


def _keep(key: str, found: str) -> None:
    """Add a hash in place of an older one of the same file. Processes may do so at once: the last one wins."""
    same_file = key.partition("\n")[0] + "\n"
    with suppress(OSError, ValueError, RuntimeError):
        kept = {other: hash for other, hash in _read().items() if not other.startswith(same_file)}
        cache = _cache()
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            staged = Path(folder) / cache.name
            staged.write_text(json.dumps({**kept, key: found}), encoding="utf-8")
            staged.replace(cache)
