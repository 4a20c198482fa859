"""What a download makes of a benchmark's own files: one file of records, with a manifest that tells what it is from."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from utils.benchmarks.published import OnHub, OnServer, Originals
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.progress import announce_file
from utils.files.manifest import file_hash, prepare_output, publish_staged, read_manifest
from utils.files.web_files import Server
from utils.files.writing import staged_path, write_array
from utils.models.hub_datasets import Source, cached_blob
from utils.records.datasets import read_dataset
from utils.records.originals import read_originals
from utils.records.stream import stream_parquet, stream_places


def make_file(
    task: Task,
    published: OnHub | OnServer,
    split: str,
    source: Source | Server,
    path: Path,
    overwrite: bool,
    run: dict[str, Any],
) -> None:
    """Put one file in place, whole or not at all, and its manifest, which begins with `run`; say what it holds."""
    originals = published.originals(source, split)
    names = [*originals.questions, *filter(None, [originals.outputs])]
    name = "a folder" if source.is_folder else source.name  # its content alone tells it from another
    fingerprint: dict[str, Any] = {"dataset_name": name, "commit": source.commit, **published.identity, "split": split}
    local = [source.fetch(name) for name in names] if source.is_folder else []
    if is_as_it_was(path, fingerprint, local):
        print(f"{path}: already there, left alone")
        return
    if local:
        fingerprint["sha256"] = list(map(file_hash, local))
    if prepare_output(path, fingerprint, overwrite):
        print(f"{path}: already there, left alone")
        return
    started = time.monotonic()
    files = {name: source.fetch(name) for name in names}
    hashes = {name: checked_hash(file) for name, file in files.items()}
    what = ", ".join([*published.identity.values(), split])
    questions = write_questions(task, originals, source, files, path, what)
    figures: dict[str, Any] = {"questions": questions}
    expected, note = published.questions[split], ""
    if expected is not None:
        figures["published_questions"] = {"number": expected, "source": published.said_by}
        note = "" if questions == expected else f"; {published.said_by} says {expected}"
    figures |= {"source_sha256": hashes, "wall_seconds": round(time.monotonic() - started, 3)}
    figures["file_stats"] = stats_of([staged_path(path), *local])
    publish_staged(path, {**run, "fingerprint": fingerprint, **figures})
    at = f" of commit {source.commit[:12]}" if source.commit else ""
    print(f"{path}: {questions} questions{at}{note}", flush=True)


def is_as_it_was(path: Path, fingerprint: dict[str, Any], local: list[Path]) -> bool:
    """Is a file there as it was made of these, and all of them untouched since? Hashes of gigabytes take seconds.

    As git does it, by sizes and times; where these differ, the hashes decide.
    """
    manifest = read_manifest(path)
    if manifest is None or not path.exists():
        return False
    told = {name: value for name, value in manifest["fingerprint"].items() if name != "sha256"}
    return told == fingerprint and manifest.get("file_stats") == stats_of([path, *local])


def stats_of(paths: list[Path]) -> list[list[int]]:
    """Bytes, and the time of the last change in nanoseconds, of each file."""
    return [[stat.st_size, stat.st_mtime_ns] for stat in map(os.stat, paths)]


def checked_hash(path: Path) -> str:
    """SHA-256 of a file; UserError where a large one in the hub's cache, which is named by it, is another."""
    digest, blob = file_hash(path), cached_blob(path)
    if re.fullmatch("[0-9a-f]{64}", blob.name) and digest != blob.name:
        blob.unlink()
        raise UserError(f"{path}: damaged on its way from the hub, and deleted\n  run the same command again")
    return digest


def write_questions(
    task: Task, originals: Originals, source: Source | Server, files: dict[str, Path], path: Path, what: str
) -> int:
    """Stage the records of these files as one JSON array and return their number; UserError where one is damaged."""
    questions = [files[name] for name in originals.questions]
    announce_file("writing", path, sum(file.stat().st_size for file in questions))
    blobs = " ".join(os.path.normpath(cached_blob(file)) for file in files.values())
    again = "copy it again" if source.is_folder else f"delete {blobs} to have it fetched again"
    if task.convert is not None:
        outputs = originals.outputs and files[originals.outputs]
        try:
            return write_array(staged_path(path), read_originals(task, questions, outputs, originals.rows), indent=4)
        except UserError as error:
            raise UserError(str(error) if "\n" in str(error) else f"{error}\n  {again}") from None
    try:
        return write_array(staged_path(path), (record for file in questions for record in read_records(file)), indent=4)
    except (ValueError, RecursionError) as error:
        reason = error
        try:  # the reader of datasets says what is wrong, and where
            for file in questions:
                if file.suffix != ".parquet":
                    read_dataset(file)
        except UserError as refusal:
            reason = refusal
        problem = f"cannot be downloaded: {str(reason).splitlines()[0]}"
        raise UserError(f"{source.name}, {what}: {problem}\n  {again}") from None


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file that holds such, one in memory at a time; ValueError where it is damaged."""
    if path.suffix == ".parquet":
        yield from stream_parquet(path)
        return
    with path.open("rb") as file:
        for number, (record, *_) in enumerate(stream_places(file, path.suffix)):
            if not isinstance(record, dict):
                raise ValueError(f"{path}: record {number} is no question")
            yield record
