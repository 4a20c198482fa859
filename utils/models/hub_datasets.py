"""Datasets by hub name or folder: contents, commit, and files.

The hub's client fetches them: it caches finished files, resumes after a lost connection, and compares sizes.
"""

import fnmatch
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from utils.cli import UserError
from utils.cli.environment import OF_HUB, check_before_hub, check_environment
from utils.cli.progress import announce, announce_file
from utils.models.hub import is_folder

CARD = "README.md"
SUFFIXES = (".json", ".jsonl", ".parquet")


class UnreachableError(UserError):
    """The hub does not answer, and the cache lacks the requested files."""


class Source(NamedTuple):
    """A dataset on the hub as of a commit, or in a folder (commit None)."""

    name: str
    commit: str | None
    folder: Path  # has its card; for a dataset on the hub, the commit's folder in the cache
    sizes: dict[str, int]  # bytes of its files, by their paths relative to `folder`
    cache_dir: str | None = None

    @property
    def is_folder(self) -> bool:
        return self.commit is None

    def fetch(self, path: str) -> Path:
        """Return a file of the dataset, from the hub if the cache lacks it; UserError if it cannot be fetched.

        `snapshot_download` is not used, because its threads continue with gigabytes after a Ctrl-C.
        """
        if self.is_folder:
            return self.folder / path
        from huggingface_hub import hf_hub_download

        if not (self.folder / path).exists():
            announce_file("fetching", path, self.sizes[path])
        where = {"repo_id": self.name, "repo_type": "dataset", "cache_dir": self.cache_dir}
        with _explaining(self.name, self.commit, self.cache_dir):
            return Path(hf_hub_download(**where, revision=self.commit, filename=path))


def find_source(name: str, revision: str | None, cache_dir: str) -> Source:
    """Return the dataset in a folder or on the hub; if the hub does not answer, the commit in the cache.

    UserError if there is none or it cannot be fetched; UnreachableError if only the hub's answer is missing.
    """
    if is_folder(name):
        return find_folder(name, "--dataset_name", revision)
    check_before_hub()
    from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    if not constants.HF_HUB_OFFLINE:
        check_environment(OF_HUB)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it shows addresses, which may hold secrets
    where = {"repo_id": name, "repo_type": "dataset", "cache_dir": cache_dir}
    unreachable = None
    try:  # snapshot_download would wait without a limit, and use the cache's commit silently
        with _explaining(name, revision, cache_dir):
            HfApi().dataset_info(name, revision=revision, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    except UnreachableError as error:
        unreachable = error
    card = {"allow_patterns": CARD, "local_files_only": unreachable is not None}
    try:
        with _explaining(name, revision, cache_dir), disable_progress_bars():
            folder = Path(snapshot_download(**where, revision=revision, **card))
            tree = get_cached_repo_tree(**where, revision=folder.name)
    except (UnreachableError, CachedRepoTreeNotFoundError) as error:
        raise unreachable or error from None
    if unreachable is not None and not constants.HF_HUB_OFFLINE:
        announce(f"note: {str(unreachable).splitlines()[0]}")
        announce(f"  continuing with the commit in --cache_dir {cache_dir}")
    return Source(name, folder.name, folder, {entry.path: entry.size for entry in tree}, cache_dir)


def find_folder(name: str, flag: str, revision: str | None = None) -> Source:
    """Return the files in a folder given by `flag`; UserError if it does not exist."""
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"{flag} {name}: {'not a folder' if folder.exists() else 'no such folder'}")
    if revision is not None:
        raise UserError(f"--revision {revision}: {name} is a folder, so it has no revisions")
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return Source(name, None, folder, sizes)


def files_of(source: Source, config: str, split: str) -> list[str]:
    """Return the files of a config's split, according to the card or to file names; UserError if there are none."""
    patterns = _card_patterns(source, config, split) or [f"*{config}/{split}/*", f"*{config}/{split}[-.]*"]
    readable = [path for path in sorted(source.sizes) if path.endswith(SUFFIXES)]
    files = [path for path in readable if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
    if not files:
        what = f"{source.name}, {config}, {split}: cannot be downloaded"
        raise UserError(f"{what}: it has no file {patterns[0]!r} of a supported type ({', '.join(SUFFIXES)})")
    return files


def _card_patterns(source: Source, config: str, split: str) -> list[str]:
    """Return the card's patterns for a split's files: `configs: [{config_name, data_files: [{split, path}]}]`."""
    from huggingface_hub.repocard import metadata_load, yaml

    if CARD not in source.sizes:
        return []
    try:
        configs = (metadata_load(source.folder / CARD) or {}).get("configs") or []
        lists = [part.get("data_files", []) for part in configs if part["config_name"] == config]
        entries = [entry for files in lists for entry in files]
        paths = [entry["path"] for entry in entries if entry["split"] == split]
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{source.name}: cannot be downloaded: its {CARD} does not list its files") from None
    return [str(path) for path in paths for path in (path if isinstance(path, list) else [path])]


@contextmanager
def _explaining(name: str, revision: str | None, cache_dir: str) -> Iterator[None]:
    """Turn the hub client's errors into UserErrors, without their text, which may repeat the request with the token.

    Raises:
        UserError: the hub or the client fails; UnreachableError if the same command may succeed later or elsewhere.
        OSError: the cache cannot be written.
    """
    from huggingface_hub import constants, errors

    mistakes = {  # the first one that fits: a gated repository counts as not found
        errors.GatedRepoError: f"{name}: a gated dataset; ask for access on its page, then `hf auth login`",
        errors.RepositoryNotFoundError: f"{name}: no such folder, and no such dataset on the hub, or a private one "
        "(`hf auth login`)",
        errors.RevisionNotFoundError: f"--revision {revision}: {name} has no such branch, tag or commit",
        errors.HFValidationError: f"{name!r}: neither a folder nor a valid name on the hub",
    }
    try:
        yield
    except tuple(mistakes) as error:
        raise UserError(next(text for kind, text in mistakes.items() if isinstance(error, kind))) from None
    except (errors.HTTPError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk
            error.filename = error.filename or cache_dir
            raise
        cause = (isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__) or error
        status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else None
        if status is not None and status < 500:
            problem = f"the hub returned status {status}; check the token with `hf auth whoami`"
            raise UserError(f"{name}: cannot be downloaded: {problem}") from None
        copy = "without internet copy the dataset's folder here and give it as --dataset_name"
        if constants.HF_HUB_OFFLINE:
            missing = f"incomplete in --cache_dir {cache_dir}, and HF_HUB_OFFLINE is set"
            raise UnreachableError(f"{name}: {missing}\n  {copy}") from None
        problem = f"the hub returned status {status}"
        if "Consistency check" in str(error):
            problem = "a file has another size than the hub reports"
        elif status is None:
            problem = f"the hub cannot be reached ({type(cause).__name__})"
        again = f"run the same command again, or {copy}"
        raise UnreachableError(f"{name}: cannot be downloaded: {problem}\n  {again}") from None
