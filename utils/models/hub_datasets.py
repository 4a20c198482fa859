"""Datasets by hub name or folder: contents, commit, and files.

The hub's client fetches the files: it caches finished files, resumes after a lost connection, and compares sizes.
"""

import fnmatch
from pathlib import Path
from typing import NamedTuple

from utils.cli import UserError
from utils.cli.environment import OF_HUB, check_before_hub, check_environment
from utils.cli.progress import announce, announce_file
from utils.models.hub import HubFailedError, UnreachableError, ask_hub, hub_errors, is_folder

CARD = "README.md"
SUFFIXES = (".json", ".jsonl", ".parquet")


class Source(NamedTuple):
    """A dataset at a commit on the hub, or in a folder."""

    name: str
    commit: str | None  # None for a folder
    folder: Path  # the folder with the dataset's card; for a dataset on the hub, the commit's folder in the cache
    sizes: dict[str, int]  # bytes of the dataset's files, by their paths relative to `folder`
    cache_dir: str | None = None

    @property
    def is_folder(self) -> bool:
        return self.commit is None

    def fetch(self, path: str) -> Path:
        """Return the local path of a dataset's file, fetched if the cache lacks it; UserError if it cannot be fetched.

        `snapshot_download` is not used, because its threads continue to download gigabytes after a Ctrl-C.
        """
        if self.is_folder:
            return self.folder / path
        from huggingface_hub import hf_hub_download

        if not (self.folder / path).exists():
            announce_file("fetching", path, self.sizes[path])
        where = {"repo_id": self.name, "repo_type": "dataset", "cache_dir": self.cache_dir}
        with hub_errors(self.name, self.cache_dir, "dataset", self.commit):
            return Path(hf_hub_download(**where, revision=self.commit, filename=path))


def find_source(name: str, revision: str | None, cache_dir: str) -> Source:
    """Return the dataset in a folder or on the hub; if the hub does not answer, the dataset at the cached commit.

    UserError if there is no such dataset or it cannot be fetched; UnreachableError if the hub does not answer and the
    cache lacks the dataset.
    """
    if is_folder(name):
        return find_folder(name, "--dataset_name", revision)
    check_before_hub()
    from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not constants.HF_HUB_OFFLINE:
        check_environment(OF_HUB)
    where, unreachable = {"repo_id": name, "repo_type": "dataset", "cache_dir": cache_dir}, None
    try:  # snapshot_download would wait without a limit, and use the cache's commit silently
        with hub_errors(name, cache_dir, "dataset", revision):
            ask_hub(HfApi().dataset_info, name, revision=revision, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    except (UnreachableError, HubFailedError) as error:
        unreachable = error
    card = {"allow_patterns": CARD, "local_files_only": unreachable is not None}
    try:
        with hub_errors(name, cache_dir, "dataset", revision), disable_progress_bars():
            folder = Path(ask_hub(snapshot_download, **where, revision=revision, **card))
            tree = get_cached_repo_tree(**where, revision=folder.name)
    except (UnreachableError, HubFailedError) as error:
        raise unreachable or error from None
    if unreachable is not None and not constants.HF_HUB_OFFLINE:
        announce(f"note: {str(unreachable).splitlines()[0]}")
        announce(f"  continuing with the commit in --cache_dir {cache_dir}")
    return Source(name, folder.name, folder, {entry.path: entry.size for entry in tree}, cache_dir)


def find_folder(name: str, flag: str, revision: str | None = None) -> Source:
    """Return the dataset in a folder that `flag` names; UserError if it is not a folder, or a revision is given."""
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"{flag} {name}: {'not a folder' if folder.exists() else 'no such folder'}")
    if revision is not None:
        raise UserError(f"--revision {revision}: {name} is a folder, so it has no revisions")
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return Source(name, None, folder, sizes)


def files_of(source: Source, config: str, split: str) -> list[str]:
    """Return the paths of a split's files, listed in the card, or else found by their names; UserError without any.

    A card has `configs: [{config_name, data_files: [{split, path}]}]`; a path is a pattern, or a list of patterns.
    """
    from huggingface_hub.repocard import metadata_load, yaml

    try:
        card = metadata_load(source.folder / CARD) if CARD in source.sizes else None
        configs = [part for part in (card or {}).get("configs") or [] if part["config_name"] == config]
        entries = [entry for part in configs for entry in part.get("data_files", [])]
        listed = [entry["path"] for entry in entries if entry["split"] == split]
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{source.name}: cannot be downloaded: its {CARD} does not list its files") from None
    patterns = [str(path) for paths in listed for path in (paths if isinstance(paths, list) else [paths])]
    patterns = patterns or [f"*{config}/{split}/*", f"*{config}/{split}[-.]*"]
    readable = [path for path in sorted(source.sizes) if path.endswith(SUFFIXES)]
    files = [path for path in readable if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
    if not files:
        what = f"{source.name}, {config}, {split}: cannot be downloaded"
        raise UserError(f"{what}: it has no file {patterns[0]!r} of a supported type ({', '.join(SUFFIXES)})")
    return files
