"""Download LaMP-QA: its three categories x three splits, a JSON array each, named <category>_<split>.json.

  python utils/download_datasets.py --dataset_save_directory data --cache_dir ./cache

A finished file is left alone, so the same command again fetches what is missing. <file>.manifest.json beside each holds
the dataset's name, its commit on the hub, and hashes. Without internet: give a folder with a copy of the dataset as
--dataset_name, or set HF_HUB_OFFLINE=1 where --cache_dir holds what an earlier run has fetched.
"""

import argparse
import fnmatch
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.cli import UserError
from utils.cli.progress import Progress
from utils.files.json_files import read_json
from utils.files.lock import Lock
from utils.files.manifest import describe_run, file_hash, prepare_output, publish_staged, read_manifest
from utils.files.writing import check_writable, staged_path, write_array
from utils.models.hub import check_cache_dir, is_folder
from utils.records.datasets import read_dataset
from utils.records.stream import stream_places
from utils.tables.dataset_counts import PAPER_TABLE

# Questions by category and split, in the paper's Table 1.
QUESTIONS = {tuple(stem.rsplit("_", 1)): entry["questions"] for stem, entry in read_json(PAPER_TABLE)["files"].items()}
CARD = "README.md"
SUFFIXES = (".json", ".jsonl", ".parquet")
PAUSES = (1, 4, 16)  # seconds before a file is asked for again where the hub is in trouble
DEAD_SECONDS = 3600  # half a download that was not written to for so long is nobody's
MEGABYTE = 10**6
LARGE = 50 * MEGABYTE  # files from this size on show their progress
T = TypeVar("T")
COPY = "without internet copy the dataset's folder here and give it as --dataset_name"


class UnreachableError(UserError):
    """The hub gives no answer, and the cache does not hold what is wanted."""


@dataclass(frozen=True)
class Source:
    """A dataset on the hub as of a commit, or in a folder (commit None).

    Attributes:
        folder: holds its card; of a dataset on the hub it is the folder in the cache.
        files: the paths of all its files, from `folder`.
    """

    name: str
    commit: str | None
    folder: Path
    files: list[str]


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--dataset_save_directory", required=True, metavar="DIR", help="where the nine files go")
    parser.add_argument("--cache_dir", default="./cache", help="where the hub's own files are kept (%(default)s)")
    parser.add_argument(
        "--dataset_name", default="alireza7/LaMP-QA", help="hub name, or a folder with a copy of it (%(default)s)"
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: the newest)")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that was made with other settings")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_cache_dir(args.cache_dir)
    folder = Path(args.dataset_save_directory)
    outputs = {(category, split): folder / f"{category}_{split}.json" for category, split in QUESTIONS}
    if not args.overwrite:
        outputs = {key: path for key, path in outputs.items() if not is_the_users_own(path)}
    if not outputs:
        return 0
    check_writable(next(iter(outputs.values())))
    try:
        source = find_source(args)
    except UnreachableError as error:
        if args.overwrite or not all(path.exists() for path in outputs.values()):
            raise
        print(f"note: {error}", file=sys.stderr)
        print(f"{folder}: all files are there, left alone; not compared with the hub")
        return 0
    if not args.overwrite:
        check_commits(outputs.values(), source)
    described = describe_run(vars(args), {}, None)  # it takes longer than a small file
    for (category, split), path in outputs.items():
        make_file(args, source, category, split, path, described)
    return 0


# What is there already


def is_the_users_own(path: Path) -> bool:
    """There without a manifest, so not written by this script: left alone, and said so.

    Raises:
        UserError: it does not end as a JSON array does.
    """
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
    others = {path: commit for path, commit in commits.items() if commit not in (None, source.commit)}
    if not others or source.commit is None:
        return
    path, commit = next(iter(others.items()))
    more = f" ({len(others) - 1} more files differ too)" if len(others) > 1 else ""
    raise UserError(
        f"{path}: made from commit {commit}; {source.name} is at {source.commit}{more}\n"
        f"  --revision {commit} goes on with that one, --overwrite makes all of them anew"
    )


# Where the dataset is


def find_source(args: argparse.Namespace) -> Source:
    """The dataset's folder, or its commit on the hub with card and list of files.

    Without an answer from the hub it is the commit that the cache holds.

    Raises:
        UserError: there is none, or it cannot be had; UnreachableError where only the hub's answer is missing.
    """
    name = args.dataset_name
    if is_folder(name):
        folder = Path(name)
        if not folder.is_dir():
            raise UserError(f"--dataset_name {name}: {'not a folder' if folder.exists() else 'no such folder'}")
        if args.revision is not None:
            raise UserError(f"--revision {args.revision}: {name} is a folder, which has none")
        files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        return Source(name, None, folder, sorted(files))
    return find_on_hub(args)


def find_on_hub(args: argparse.Namespace) -> Source:
    from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    # Its lines show addresses, which may hold secrets, and what it cannot mend is told below.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    disable_progress_bars()
    name, revision, unreachable = args.dataset_name, args.revision, None
    where = {"repo_id": name, "repo_type": "dataset", "cache_dir": args.cache_dir}
    try:  # the requests below have no time limit
        ask_hub(lambda: HfApi().dataset_info(name, revision=revision, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT), args)
    except UnreachableError as error:
        unreachable = error
    card = {"allow_patterns": CARD, "local_files_only": unreachable is not None}
    try:
        folder = Path(ask_hub(lambda: snapshot_download(**where, revision=revision, **card), args))
        tree = get_cached_repo_tree(**where, revision=folder.name)
    except (UnreachableError, CachedRepoTreeNotFoundError) as error:
        raise unreachable or error from None
    if unreachable is not None and not constants.HF_HUB_OFFLINE:
        print(f"note: {str(unreachable).splitlines()[0]}", file=sys.stderr)
        print(f"  going on with the commit that --cache_dir {args.cache_dir} holds", file=sys.stderr)
    return Source(name, folder.name, folder, sorted(entry.path for entry in tree))


def find_files(source: Source, category: str, split: str) -> list[str]:
    """The files that hold one split of one category: those that the card names, else those that are called so.

    Raises:
        UserError: there are none.
    """
    patterns = card_patterns(source, category, split) or [f"*{category}/{split}/*", f"*{category}/{split}[-.]*"]
    readable = [path for path in source.files if path.endswith(SUFFIXES)]
    found = [path for path in readable if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
    if not found:
        what = f"{source.name}, {category}, {split}: cannot be downloaded"
        raise UserError(f"{what}: no file {patterns[0]!r} in it that is one of {', '.join(SUFFIXES)}")
    return found


def card_patterns(source: Source, category: str, split: str) -> list[str]:
    """What the card says of one split's files, in `configs: [{config_name, data_files: [{split, path}]}]`."""
    from huggingface_hub.repocard import metadata_load, yaml

    if CARD not in source.files:
        return []
    try:
        configs = (metadata_load(source.folder / CARD) or {}).get("configs") or []
        entries = [
            entry for config in configs if config["config_name"] == category for entry in config.get("data_files", [])
        ]
        paths = [entry["path"] for entry in entries if entry["split"] == split]
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{source.name}: cannot be downloaded: its {CARD} does not say which files it has") from None
    return [str(path) for path in paths for path in (path if isinstance(path, list) else [path])]


# From the hub


class ByteCount:
    """Shows how much of a large file is done; it is called as the hub's client calls a tqdm."""

    def __init__(self, total: int | None = None, initial: int = 0, doing: str = "downloaded", **_: Any):
        self._done = initial
        self._progress = None
        if (total or 0) >= LARGE:
            self._progress = Progress(total // MEGABYTE, f"MB {doing}", initial // MEGABYTE)

    def update(self, size: int = 1) -> None:
        before, self._done = self._done, self._done + size
        if self._progress is not None:
            self._progress.update(self._done // MEGABYTE - before // MEGABYTE)

    def update_transfer(self, size: int) -> None:
        """Bytes from the network: those on disk are counted."""

    def set_postfix_str(self, *_: Any, **__: Any) -> None:
        """The rate by another measure."""

    def refresh(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()

    def __enter__(self) -> "ByteCount":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fetch(args: argparse.Namespace, source: Source, path: str) -> Path:
    """A file of the dataset, from the cache or, where it is not there, from the hub; UserError where it cannot be."""
    if source.commit is None:
        return source.folder / path
    from huggingface_hub import hf_hub_download

    delete_dead_downloads(source.folder.parent.parent)
    where = {"repo_id": source.name, "repo_type": "dataset", "revision": source.commit, "cache_dir": args.cache_dir}
    found = ask_hub(lambda: hf_hub_download(**where, filename=path, tqdm_class=ByteCount), args)
    return check_download(Path(found))


def ask_hub(call: Callable[[], T], args: argparse.Namespace) -> T:
    """What a call of the hub's client returns; where the hub is in trouble it is made again after a pause.

    Raises:
        UserError: it failed; UnreachableError where the same command may succeed later or elsewhere.
        OSError: the cache cannot be written.
    """
    from huggingface_hub.errors import HFValidationError, HTTPError

    pauses = iter(PAUSES)
    while True:
        try:
            return call()
        except (HTTPError, OSError, HFValidationError, RuntimeError) as error:
            pause, status = next(pauses, None), status_of(error)
            if pause is None or status is None or status < 500:
                raise explain(error, args) from None
        print(f"note: the hub answers {status}; asking again in {pause} s", file=sys.stderr, flush=True)
        time.sleep(pause)


def status_of(error: Exception) -> int | None:
    """The HTTP status that the hub has answered with, if it has."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
    return cause.response.status_code if isinstance(cause, HfHubHTTPError) else None


def explain(error: Exception, args: argparse.Namespace) -> Exception:
    """What to raise where the hub's client fails: not its own text, which may repeat what was sent, the token too."""
    from huggingface_hub import constants, errors

    name, status = args.dataset_name, status_of(error)
    if isinstance(error, OSError) and error.errno is not None:  # the disk
        error.filename = error.filename or args.cache_dir
        return error
    if isinstance(error, errors.GatedRepoError):
        return UserError(f"{name}: a gated dataset; ask for access on its page, then `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError):
        return UserError(f"{name}: no such folder, and no such dataset on the hub, or a private one (`hf auth login`)")
    if isinstance(error, errors.RevisionNotFoundError):
        return UserError(f"--revision {args.revision}: {name} has no such branch, tag or commit")
    if isinstance(error, errors.HFValidationError):
        return UserError(f"{name!r}: neither a folder nor a name that a dataset on the hub can have")
    if status is not None and status < 500:
        return UserError(
            f"{name}: cannot be downloaded: the hub answers {status}; is the token right (`hf auth whoami`)?"
        )
    if constants.HF_HUB_OFFLINE:
        where = f"--cache_dir {args.cache_dir}"
        return UnreachableError(f"{name}: not whole in {where}, and HF_HUB_OFFLINE is set\n  {COPY}")
    if status is not None:
        problem = f"the hub answers {status}"
    elif "Consistency check" in str(error):
        problem = "a file came with another size than the hub says"
    else:
        problem = f"the hub cannot be reached ({type(error.__cause__ or error).__name__})"
    return UnreachableError(f"{name}: cannot be downloaded: {problem}\n  run the same command again, or {COPY}")


def check_download(path: Path) -> Path:
    """Raise UserError where a large file in the cache, which is named by its SHA-256, is not what its name says."""
    blob = cached_blob(path)
    if re.fullmatch("[0-9a-f]{64}", blob.name) and file_hash(blob) != blob.name:
        blob.unlink()
        raise UserError(f"{path}: damaged on its way from the hub, and deleted\n  run the same command again")
    return path


def cached_blob(path: Path) -> Path:
    """What a file in the cache links to; it may be a link itself, to what several caches share."""
    return path.parent / path.readlink() if path.is_symlink() else path


def delete_dead_downloads(folder: Path) -> None:
    """Delete what killed runs have left in a dataset's cache: the hub's client never goes on with it."""
    for path in folder.glob("blobs/*.incomplete"):
        with suppress(FileNotFoundError):  # another process was quicker
            if time.time() - path.stat().st_mtime > DEAD_SECONDS:
                path.unlink()


# Writing


def make_file(
    args: argparse.Namespace, source: Source, category: str, split: str, path: Path, described: dict[str, Any]
) -> None:
    """Put one file in place with its manifest, whole or not at all, and say how many questions it holds.

    Args:
        described: the part of the manifest that is the run's.
    """
    check_writable(path)
    lock = Lock(path)
    try:
        names = find_files(source, category, split)
        fingerprint = {"dataset_name": source.name, "commit": source.commit, "category": category, "split": split}
        if source.commit is None:  # its content alone tells a folder from another
            fingerprint |= {"dataset_name": "a folder", "sha256": hash_files([source.folder / name for name in names])}
        if prepare_output(path, fingerprint, args.overwrite):
            print(f"{path}: already there, left alone")
            return
        started = time.monotonic()
        files = [fetch(args, source, name) for name in names]
        num_questions = convert(
            files, staged_path(path), f"{source.name}, {category}, {split}", source.commit is not None
        )
        figures = {
            "questions": num_questions,
            "source_sha256": dict(zip(names, hash_files(files), strict=True)),
            "wall_seconds": round(time.monotonic() - started, 3),
        }
        publish_staged(path, {**described, "fingerprint": fingerprint, **figures})
    finally:
        lock.release()
    expected = QUESTIONS[category, split]
    note = "" if num_questions == expected else f"; the paper's Table 1 says {expected}"
    at = f" of commit {source.commit[:12]}" if source.commit else ""
    print(f"{path}: {num_questions} questions{at}{note}", flush=True)


def hash_files(paths: Iterable[Path]) -> list[str]:
    return [file_hash(path) for path in paths]


def convert(files: list[Path], staged: Path, what: str, are_cached: bool) -> int:
    """Write the records of these files as one JSON array and return their number; UserError where one is damaged."""
    try:
        return write_array(staged, (record for file in files for record in read_records(file)), indent=4)
    except (ValueError, RecursionError) as error:
        reason = describe_damage(files) or str(error).splitlines()[0]
        blobs = " ".join(os.path.normpath(cached_blob(file)) for file in files)
        again = f"delete {blobs} to have it fetched again" if are_cached else "copy it again"
        raise UserError(f"{what}: cannot be downloaded: {reason}\n  {again}") from None


def describe_damage(files: list[Path]) -> str | None:
    """What the reader of datasets says against the first of these that it refuses."""
    for file in files:
        if file.suffix != ".parquet":
            try:
                read_dataset(file)
            except UserError as error:
                return str(error).splitlines()[0]
    return None


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file in the dataset, one in memory at a time; ValueError where it is damaged."""
    if path.suffix == ".parquet":
        from datasets import load_dataset

        yield from load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        return
    with path.open("rb") as file, ByteCount(path.stat().st_size, doing="written") as count:
        place = 0
        for number, (record, *_) in enumerate(stream_places(file, path.suffix)):
            if not isinstance(record, dict):
                raise ValueError(f"{path}: record {number} is no question")
            yield record
            count.update(file.tell() - place)
            place = file.tell()


if __name__ == "__main__":
    cli.run_script(main)
