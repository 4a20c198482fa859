"""Download LaMP-QA: its three categories x three splits, a JSON array each, named <category>_<split>.json.

  python utils/download_datasets.py --dataset_save_directory data --cache_dir ./cache

A finished file is left alone, so the same command again fetches what is missing. <file>.manifest.json beside each holds
the dataset's name, its commit on the hub, and hashes. Without internet: give a folder with a copy of the dataset as
--dataset_name, or set HF_HUB_OFFLINE=1 where --cache_dir holds what an earlier run has fetched.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks.lampqa import paper_files
from utils.cli import UserError
from utils.cli.progress import announce_file
from utils.files.lock import Lock
from utils.files.manifest import describe_run, file_hash, prepare_output, publish_staged, read_manifest
from utils.files.writing import check_writable, staged_path, write_array
from utils.models.hub import check_cache_dir
from utils.models.hub_datasets import Source, UnreachableError, cached_blob, fetch, files_of, find_source
from utils.records.datasets import read_dataset
from utils.records.stream import stream_places

# Questions by category and split, in the paper's Table 1.
QUESTIONS = {tuple(stem.rsplit("_", 1)): printed["questions"] for stem, printed in paper_files().items()}


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--dataset_save_directory", required=True, metavar="DIR", help="where the nine files go")
    add("--cache_dir", default="./cache", help="where the hub's own files are kept (%(default)s)")
    add("--dataset_name", default="alireza7/LaMP-QA", help="hub name, or a folder with a copy of it (%(default)s)")
    add("--revision", help="branch, tag or commit on the hub (default: the newest)")
    add("--overwrite", action="store_true", help="replace an output that was made with other settings")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_cache_dir(args.cache_dir)
    folder = Path(args.dataset_save_directory)
    outputs = {key: folder / "{}_{}.json".format(*key) for key in QUESTIONS}
    if not args.overwrite:
        outputs = {key: path for key, path in outputs.items() if not is_the_users_own(path)}
    if not outputs:
        return 0
    check_writable(next(iter(outputs.values())))
    try:
        source = find_source(args.dataset_name, args.revision, args.cache_dir)
    except UnreachableError as error:
        if args.overwrite or not all(path.exists() for path in outputs.values()):
            raise
        print(f"note: {error}", file=sys.stderr)
        print(f"{folder}: all files are there, left alone; not compared with the hub")
        return 0
    if not args.overwrite:
        check_commits(outputs.values(), source)
    run = describe_run(vars(args), {}, None)  # it takes longer than a small file
    for (category, split), path in outputs.items():
        check_writable(path)
        lock = Lock(path)
        try:
            make_file(source, category, split, path, args.overwrite, run)
        finally:
            lock.release()
    return 0


def is_the_users_own(path: Path) -> bool:
    """There without a manifest, so not written by this script: left alone, and said so; UserError where cut short."""
    if not path.is_file() or read_manifest(path) is not None:
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 100))
        if not file.read().rstrip().endswith(b"]"):
            raise UserError(f"{path}: cut short, and was not written by this script\n  delete it, or --overwrite")
    print(f"{path}: already there, left alone; without a manifest nothing is known of its origin")
    return True


def check_commits(outputs: Iterable[Path], source: Source) -> None:
    """Raise UserError where finished files are of another commit than the source: no mix is made of two."""
    manifests = {path: read_manifest(path) for path in outputs if path.exists()}
    commits = {path: found["fingerprint"].get("commit") for path, found in manifests.items() if found}
    others = [path for path, commit in commits.items() if commit not in (None, source.commit)]
    if others and source.commit is not None:
        path, commit = others[0], commits[others[0]]
        more = f" ({len(others) - 1} more files differ too)" if len(others) > 1 else ""
        raise UserError(
            f"{path}: made from commit {commit}; {source.name} is at {source.commit}{more}\n"
            f"  --revision {commit} goes on with that one, --overwrite makes all of them anew"
        )


def make_file(source: Source, category: str, split: str, path: Path, overwrite: bool, run: dict[str, Any]) -> None:
    """Put one file in place, whole or not at all, and its manifest, which begins with `run`; say what it holds."""
    names = files_of(source, category, split)
    fingerprint = {"dataset_name": source.name, "commit": source.commit, "category": category, "split": split}
    if source.commit is None:  # its content alone tells a folder from another
        fingerprint |= {"dataset_name": "a folder", "sha256": [file_hash(source.folder / name) for name in names]}
    if prepare_output(path, fingerprint, overwrite):
        print(f"{path}: already there, left alone")
        return
    started = time.monotonic()
    files = [fetch(source, name) for name in names]
    hashes = {name: checked_hash(file) for name, file in zip(names, files, strict=True)}
    questions = write_questions(source, files, path, f"{category}, {split}")
    figures = {"questions": questions, "source_sha256": hashes, "wall_seconds": round(time.monotonic() - started, 3)}
    publish_staged(path, {**run, "fingerprint": fingerprint, **figures})
    expected = QUESTIONS[category, split]
    note = "" if questions == expected else f"; the paper's Table 1 says {expected}"
    at = f" of commit {source.commit[:12]}" if source.commit else ""
    print(f"{path}: {questions} questions{at}{note}", flush=True)


def checked_hash(path: Path) -> str:
    """SHA-256 of a file; UserError where a large one in the cache, which is named by it, is another."""
    digest, blob = file_hash(path), cached_blob(path)
    if re.fullmatch("[0-9a-f]{64}", blob.name) and digest != blob.name:
        blob.unlink()
        raise UserError(f"{path}: damaged on its way from the hub, and deleted\n  run the same command again")
    return digest


def write_questions(source: Source, files: list[Path], path: Path, what: str) -> int:
    """Stage the records of these files as one JSON array and return their number; UserError where one is damaged."""
    announce_file("writing", path, sum(file.stat().st_size for file in files))
    try:
        return write_array(staged_path(path), (record for file in files for record in read_records(file)), indent=4)
    except (ValueError, RecursionError) as error:
        reason = error
        try:  # the reader of datasets says what is wrong, and where
            for file in files:
                if file.suffix != ".parquet":
                    read_dataset(file)
        except UserError as refusal:
            reason = refusal
        blobs = " ".join(os.path.normpath(cached_blob(file)) for file in files)
        again = "copy it again" if source.commit is None else f"delete {blobs} to have it fetched again"
        problem = f"cannot be downloaded: {str(reason).splitlines()[0]}"
        raise UserError(f"{source.name}, {what}: {problem}\n  {again}") from None


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file in the dataset, one in memory at a time; ValueError where it is damaged."""
    if path.suffix == ".parquet":
        from datasets import load_dataset

        yield from load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        return
    with path.open("rb") as file:
        for number, (record, *_) in enumerate(stream_places(file, path.suffix)):
            if not isinstance(record, dict):
                raise ValueError(f"{path}: record {number} is no question")
            yield record


if __name__ == "__main__":
    cli.run_script(main)
