"""Datasets by hub name or folder: commit and files.

The hub's client fetches the files: it caches finished files, resumes after a lost connection, and compares sizes.
"""

from functools import partial
from pathlib import Path

from utils.base.environment import OF_HUB, check_before_hub, check_environment
from utils.base.errors import UserError
from utils.base.progress import announce, announce_file
from utils.benchmarks.published import CARD, Source
from utils.models.hub import HubFailedError, UnreachableError, ask_hub, hub_errors, is_folder


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
    sizes = {entry.path: entry.size for entry in tree}
    return Source(name, folder.name, folder, sizes, partial(_fetch, name, folder, sizes, cache_dir))


def _fetch(name: str, folder: Path, sizes: dict[str, int], cache_dir: str, path: str) -> Path:
    """Return the local path of a hub dataset's file, fetched if the cache lacks it; UserError if it cannot be fetched.

    `snapshot_download` is not used, because its threads continue to download gigabytes after a Ctrl-C.
    """
    from huggingface_hub import hf_hub_download

    if not (folder / path).exists():
        announce_file("fetching", path, sizes[path])
    where = {"repo_id": name, "repo_type": "dataset", "cache_dir": cache_dir}
    with hub_errors(name, cache_dir, "dataset", folder.name):
        return Path(hf_hub_download(**where, revision=folder.name, filename=path))


def find_folder(name: str, flag: str, revision: str | None = None) -> Source:
    """Return the dataset in a folder that `flag` names; UserError if it is not a folder, or a revision is given."""
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"{flag} {name}: {'not a folder' if folder.exists() else 'no such folder'}")
    if revision is not None:
        raise UserError(f"--revision {revision}: {name} is a folder, so it has no revisions")
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return Source(name, None, folder, sizes, folder.joinpath)
