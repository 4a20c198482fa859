"""Models by hub name or folder: check that a model exists, and identify it. It is fast, as it does not import torch."""

import functools
import hashlib
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from utils.base.environment import OF_HUB, check_before_hub, check_environment
from utils.base.errors import PassingError, UserError
from utils.base.manifest import file_hash, is_hash_kept
from utils.base.progress import announce
from utils.base.web_files import LONGEST_WAIT, read_retry_after
from utils.models.adapters import adapter_base, check_modules, check_served
from utils.models.loading import read_headers

CONFIGS = ("config.json", "adapter_config.json")  # of a whole model, and of a LoRA adapter
# Files besides the weights that affect a model's answers: architecture, tokenizer, default sampling.
SETTINGS = (*CONFIGS, "generation_config.json", "tokenizer*", "vocab*", "chat_template*")
# Files in a hub model's top folder that vLLM reads: no pickled weights, and no second copy in another format.
FETCHED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
NOT_FETCHED = ["*/*", "consolidated*"]
# Names of API models; no model on the hub has such a name without an owner.
API_NAMES = re.compile(r"(gpt-|chatgpt-|claude-|gemini-|o\d+(-|$))")
CONNECT_SECONDS, ANSWER_SECONDS = 5, 10  # to reach the hub; a hub that answers later than that counts as reached
TRIES = 6  # of a request that the hub fails; the hub's client tries as often
GB = 10**9  # bytes; hashing more than this takes seconds


T = TypeVar("T")


class MissingError(UserError):
    """A model or dataset does not exist, here or on the hub, or cannot be fetched now."""


class UnreachableError(MissingError):
    """The hub does not answer, and the cache lacks the requested files."""


class HubFailedError(PassingError):
    """The hub fails, or limits the rate of requests."""


def check_model(name: str, cache_dir: str | None = None, safetensors_only: bool = False) -> None:
    """Check, before anything expensive starts, that a model (and a LoRA adapter's base model) can be loaded.

    Of a hub model that is not cached, only the config is fetched; later steps load the commit that this leaves cached.

    Args:
        name: a folder with config.json or adapter_config.json and weights, or a hub name (`owner/model`, `model`).
        safetensors_only: refuse pickled weights (*.bin) of a whole model; those of an adapter are always refused.

    Raises:
        UserError: the folder or its files are missing or incomplete; the weights are refused because they are pickled;
            vLLM does not serve this kind of adapter; the adapter does not fit its base model; the hub has no such
            model; or the hub cannot be reached and the cache lacks the model.
    """
    check_before_hub()  # transformers imports it for folders too
    if is_folder(name):
        folder, remedy = Path(name), "give the folder that holds config.json and the weights"
    else:
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub.errors import RemoteEntryNotFoundError

        check_cache_dir(cache_dir)
        folder = cached_folder(name, cache_dir)
        if folder is None:
            if API_NAMES.match(name):
                raise MissingError(f"{name}: neither a local folder nor a hub name (owner/model)")
            is_offline()  # so that the client does not try again and again
            for config in CONFIGS:
                with hub_errors(name, cache_dir), suppress(RemoteEntryNotFoundError):
                    hf_hub_download(name, config, cache_dir=cache_dir)
                    return
            raise UserError(f"{name}: has neither config.json nor adapter_config.json")
        if not constants.HF_HUB_OFFLINE:
            return
        remedy = _how_to_fetch(name, cache_dir)
    base = adapter_base(name)
    _check_folder(folder, remedy, safetensors_only or base is not None)
    if base is not None:
        check_served(folder)
        try:
            check_model(base, cache_dir, safetensors_only)
        except UserError as error:
            where = f"{folder}: its base model cannot be used (base_model_name_or_path in its adapter_config.json)"
            raise type(error)(f"{where}\n  {error}") from None
        check_modules(folder, base, read_headers(cached_folder(base, cache_dir)))


def model_folder(name: str, cache_dir: str | None = None) -> Path:
    """Return the folder with all files of a model; for a hub model, those of its cached commit. First, `check_model`.

    Files that the cache lacks are fetched, unless HF_HUB_OFFLINE is set or the hub cannot be reached.

    Raises:
        UserError: the hub refuses; it cannot be reached and the cache lacks weights; or it has only pickled weights.
    """
    from huggingface_hub import HfApi, snapshot_download

    folder = cached_folder(name, cache_dir)
    if is_folder(name):
        return folder
    if not any(folder.glob("*.safetensors")):
        announce(f"downloading the weights of {name} from the hub (gigabytes take minutes)")
    if not is_offline():
        with hub_errors(name, cache_dir, revision=folder.name):
            wanted = {"allow_patterns": FETCHED, "ignore_patterns": NOT_FETCHED}
            ask_hub(snapshot_download, name, revision=folder.name, cache_dir=cache_dir, **wanted)
            if not any(folder.glob("*.safetensors")):  # the client is silent if the hub refuses and a part is cached
                ask_hub(HfApi().model_info, name, revision=folder.name)
    missing = "the hub has no such file, or cannot be reached; pickled weights (*.bin) are not read: they may run code"
    _check_folder(folder, missing, safetensors_only=True)
    return folder


def model_file(name: str, file: str, cache_dir: str | None = None) -> Path | None:
    """Return the path of one file of a model; None if the model has no such file. Call `check_model` first.

    For a hub model, it is the file of the cached commit. If the cache does not know whether the commit has the file, it
    is fetched from the hub; None if the hub cannot be reached.

    Raises:
        UserError: the hub refuses the request or fails.
    """
    if is_folder(name):
        path = Path(name) / file
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    commit = cached_commit(name, cache_dir)
    path = try_to_load_from_cache(name, file, cache_dir=cache_dir, revision=commit)
    if path is None and not is_offline():
        with hub_errors(name, cache_dir, revision=commit), suppress(RemoteEntryNotFoundError):
            path = hf_hub_download(name, file, revision=commit, cache_dir=cache_dir)
    return Path(path) if isinstance(path, str) else None  # otherwise, a marker that the hub lacks the file


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set or the hub cannot be reached (refused, no such host, no route).

    A hub that is slow or fails counts as reached. This function tries once. The hub's own client would try seven times
    for each missing file, in 23 s or more; so if the hub cannot be reached, HF_HUB_OFFLINE is set for this process.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError

    if not constants.HF_HUB_OFFLINE:
        check_environment(OF_HUB)
        try:  # timeouts to connect, to read, to write, and for a free connection
            get_session().head(constants.ENDPOINT, timeout=(CONNECT_SECONDS, *[ANSWER_SECONDS] * 3))
        except HTTPError as error:  # by name, because the client may use any HTTP library
            constants.HF_HUB_OFFLINE = type(error).__name__ in ("ConnectError", "ConnectTimeout")
    return constants.HF_HUB_OFFLINE


def ask_hub(call: Callable[..., T], *args: Any, **more: Any) -> T:
    """Call a function of the hub's client that does not repeat failed requests (`hf_hub_download` does).

    While the hub fails (5xx) or limits the rate of requests (429), wait as long as it asks, or up to half a minute.
    """
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import parse_ratelimit_headers

    for tries in range(1, TRIES + 1):
        try:
            return call(*args, **more)
        except (HfHubHTTPError, OSError) as error:  # `snapshot_download` wraps it
            response = getattr(error if isinstance(error, HfHubHTTPError) else error.__cause__, "response", None)
            if response is None or not (response.status_code == 429 or response.status_code >= 500) or tries == TRIES:
                raise
            limits = parse_ratelimit_headers(response.headers)
            reset = limits.reset_in_seconds if limits and not limits.remaining else 0
            pause = read_retry_after(response.headers) or (reset if reset <= LONGEST_WAIT else 0) or 2 ** (tries - 1)
            announce(f"the hub returned status {response.status_code}; retrying in {pause:.0f} s")
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


@contextmanager
def hub_errors(name: str, cache_dir: str | None, kind: str = "model", revision: str | None = None) -> Iterator[None]:
    """Turn errors of the hub's client into UserErrors without the errors' texts, which may contain the token.

    The client's own messages are turned off, and unless stderr is a terminal, its progress bars too.

    Raises:
        MissingError: the hub has no such model or dataset (`kind`).
        UnreachableError: the files cannot be fetched now; the same command may succeed later or elsewhere.
        HubFailedError: the hub fails, or limits the rate of requests.
        UserError: the hub refuses.
        OSError: the cache cannot be written.
    """
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it shows addresses, which may hold secrets
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    except errors.GatedRepoError:
        raise UserError(f"{name}: a gated {kind}; ask for access on its page, then `hf auth login`") from None
    except errors.RepositoryNotFoundError as error:
        _check_token(name, error)
        problem = f"no such folder, and no such {kind} on the hub, or a private one (`hf auth login`)"
        raise MissingError(f"{name}: {problem}") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: the hub has no branch, tag or commit {revision} of it") from None
    except errors.HFValidationError:
        raise UserError(f"{name!r}: neither a folder nor a valid name on the hub") from None
    except (errors.HTTPError, errors.CachedRepoTreeNotFoundError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk
            error.filename = error.filename or cache_dir
            raise
        if constants.HF_HUB_OFFLINE:
            problem = "no such folder, missing or incomplete in the cache"
            problem += ", and the hub cannot be reached or HF_HUB_OFFLINE is set"
            raise UnreachableError(f"{name}: {problem}\n  {_how_to_fetch(name, cache_dir, kind)}") from None
        cause = (isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__) or error
        status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else None
        _check_token(name, cause)
        if status == 429:
            problem = "the hub limits the rate of requests (status 429)"
            remedy = "wait, log in with `hf auth login`, or fetch the files once (utils/slurm/prefetch.sh)"
            raise HubFailedError(f"{name}: {problem}\n  {remedy} and set HF_HUB_OFFLINE=1") from None
        if status is not None and status < 500:
            problem = f"the hub returned status {status}; check the token with `hf auth whoami`"
            raise UserError(f"{name}: cannot be downloaded: {problem}") from None
        problem = f"the hub returned status {status}" if status else f"the connection failed ({type(cause).__name__})"
        if "Consistency check" in str(error):
            problem = "the size of a file differs from the size that the hub reports"
        remedy = "run the same command again to resume, or copy its folder here and give that "
        remedy += "as --dataset_name" if kind == "dataset" else "instead of the name"
        kind_of_error = HubFailedError if status else UnreachableError
        raise kind_of_error(f"{name}: cannot be downloaded: {problem}\n  {remedy}") from None


def _check_token(name: str, error: Exception) -> None:
    """Raise UserError if the hub does not know the token that was sent; without a token, 401 means no such model."""
    response = getattr(error, "response", None)
    if response is not None and response.status_code == 401 and "authorization" in response.request.headers:
        problem = "the hub does not accept the token (HF_TOKEN, or of `hf auth login`): it has expired or was revoked"
        raise UserError(f"{name}: {problem}\n  log in again with `hf auth login`, or remove the token") from None


def cached_folder(name: str, cache_dir: str | None = None) -> Path | None:
    """Return a model's folder; for a hub model, the cached folder of its main commit, or None if it is not cached."""
    if is_folder(name):
        return Path(name)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import validate_repo_id

    with hub_errors(name, cache_dir):
        validate_repo_id(name)
    paths = (try_to_load_from_cache(name, config, cache_dir=cache_dir) for config in CONFIGS)
    return next((Path(path).parent for path in paths if isinstance(path, str)), None)


def check_cache_dir(cache_dir: str | None) -> None:
    """Raise UserError if --cache_dir exists and is not a folder."""
    if cache_dir is not None and Path(cache_dir).exists() and not Path(cache_dir).is_dir():
        raise UserError(f"--cache_dir {cache_dir}: not a folder")


def model_fingerprint(name: str, cache_dir: str | None = None) -> str:
    """Return a model's identity: `owner/model@commit`, or for a folder, `sha256:...`, wherever the folder is.

    The hash covers names and contents of the files with settings or weights. Call `check_model` first.
    """
    if not is_folder(name):
        return f"{name}@{cached_commit(name, cache_dir) or 'main'}"
    folder, digest = Path(name), hashlib.sha256()
    settings = sorted({path for pattern in SETTINGS for path in folder.glob(pattern) if path.is_file()})
    files = [*settings, *_weights(folder)]
    if (size := sum(path.stat().st_size for path in files if not is_hash_kept(path))) > GB:
        announce(f"hashing the weights of {name} ({size / GB:.0f} GB), once for all runs")
    for path in files:
        digest.update(f"{path.name} {file_hash(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def identify_local_model(model_addr: str, cache_dir: str | None) -> str:
    """Return the identity of a local model; that of an adapter includes the identity of its base model."""
    check_model(model_addr, cache_dir, safetensors_only=True)
    identity = model_fingerprint(model_addr, cache_dir)
    if base := adapter_base(model_addr):
        identity += f" on {model_fingerprint(base, cache_dir)}"
    return identity


def cached_commit(name: str, cache_dir: str | None = None) -> str | None:
    """Return the commit of a cached hub model, so that exactly this commit is loaded; None for any other model."""
    folder = None if is_folder(name) else cached_folder(name, cache_dir)
    return folder and folder.name


def pinned_source(name: str, cache_dir: str | None = None) -> dict[str, Any]:
    """Return transformers' arguments for loading a model: its cached commit, and no remote code.

    If the hub cannot be reached, transformers will read only the cache (see `is_offline`).
    """
    if not is_folder(name):
        is_offline()  # for its effect on transformers
    return {"cache_dir": cache_dir, "revision": cached_commit(name, cache_dir) or "main", "trust_remote_code": False}


@functools.cache
def find_headers(name: str, cache_dir: str | None = None) -> dict[str, tuple[list[int], str]]:
    """Return a model's `read_headers`, from the hub if the weights are not fetched yet; empty if they are unknown.

    Raises:
        UserError: the hub refuses the request or fails.
    """
    folder = cached_folder(name, cache_dir)
    if folder is not None and any(folder.glob("*.safetensors")):
        return read_headers(folder)
    if is_folder(name) or is_offline():
        return {}
    from huggingface_hub import HfApi, errors

    with hub_errors(name, cache_dir), suppress(errors.NotASafetensorsRepoError, errors.SafetensorsParsingError):
        metadata = ask_hub(HfApi().get_safetensors_metadata, name, revision=cached_commit(name, cache_dir))
        files = metadata.files_metadata.values()
        return {key: (list(tensor.shape), tensor.dtype) for file in files for key, tensor in file.tensors.items()}
    return {}


def is_folder(name: str) -> bool:
    """Return whether a name is a folder, not a hub name: it exists, begins like a path, or has two slashes or more."""
    return Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") > 1


def _how_to_fetch(name: str, cache_dir: str | None, kind: str = "model") -> str:
    from huggingface_hub import constants

    place = cache_dir or constants.HF_HUB_CACHE
    return f"on a node with internet, run: hf download {name} --repo-type {kind} --cache-dir {place}"


def _weights(folder: Path) -> list[Path]:
    """Return the weights files, sorted by name; *.bin only if there are no safetensors, as in transformers."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def _check_folder(folder: Path, remedy: str, safetensors_only: bool) -> None:
    """Raise UserError unless a folder has a config and complete weights."""
    from safetensors import SafetensorError, safe_open

    if not folder.is_dir():
        raise UserError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}; {remedy}")
    if not any((folder / config).is_file() for config in CONFIGS):
        raise UserError(f"{folder}: has no config.json (or adapter_config.json)\n  {remedy}")
    if not _weights(folder):
        raise UserError(f"{folder}: has no weights (*.safetensors or *.bin)\n  {remedy}")
    if safetensors_only and not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder}: has only pickled weights (*.bin), which may run code; convert them to safetensors")
    for path in sorted(path for pattern in (*FETCHED, "*.bin") for path in folder.glob(pattern)):
        if not path.is_file():
            raise UserError(f"{path}: a folder, a pipe or a broken link, not a file\n  {remedy}")
        try:
            if path.suffix == ".safetensors":
                safe_open(path, "numpy")
            shards = json.loads(path.read_bytes())["weight_map"].values() if path.name.endswith(".index.json") else ()
            missing = sorted(shard for shard in set(shards) if not (folder / shard).is_file())
        except SafetensorError as error:  # left by an interrupted copy
            raise UserError(f"{path}: damaged or incomplete ({error})\n  {remedy}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UserError(f"{path}: damaged\n  {remedy}") from None
        if missing:
            raise UserError(f"{folder}: lacks {missing[0]}, which is listed in {path.name}\n  {remedy}")
