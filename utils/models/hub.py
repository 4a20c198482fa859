"""Models by hub name or folder: check that a model exists, and identify it. Does not import torch, so it is fast."""

import functools
import hashlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from utils.cli import UserError
from utils.cli.environment import OF_HUB, check_before_hub, check_environment
from utils.cli.errors import quote
from utils.cli.progress import announce
from utils.files.file_hashes import file_hash, is_kept
from utils.models.loading import adapter_base, adapter_config, inner_name, ranks_of, read_headers

CONFIGS = ("config.json", "adapter_config.json")  # a whole model, a LoRA adapter
# Files that change a model's answers besides its weights: architecture, tokenizer, default sampling.
SETTINGS = (*CONFIGS, "generation_config.json", "tokenizer*", "vocab*", "chat_template*")
# Files in a hub model's top folder that vLLM reads: no pickled weights, and no second copy in another format.
FETCHED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
NOT_FETCHED = ["*/*", "consolidated*"]
# API models; no model on the hub has such a name without an owner.
API_NAMES = re.compile(r"(gpt-|chatgpt-|claude-|gemini-|o\d+(-|$))")
CONNECT_SECONDS, ANSWER_SECONDS = 5, 10  # to reach the hub; how slow it may be does not matter
NOT_TO_BE_HAD = "no such folder, not cached, and the hub cannot be reached"
GB = 10**9  # bytes: hashing more takes seconds
MOST_RANK = 512  # of an adapter in vLLM 0.32 (MaxLoRARanks)
# Settings of adapters that vLLM 0.32 does not serve (`PEFTHelper`), tensors that it reads, and initial weights that do
# not change the base model.
NOT_SERVED = (
    "use_dora", "modules_to_save", "trainable_token_indices", "lora_bias", "layer_replication",
    "alora_invocation_tokens", "use_bdlora", "use_qalora",
)  # fmt: skip
SERVED = re.compile(r"\.(lora_[AB]\.weight|lora_embedding_[AB]|(embed_tokens|lm_head)\.base_layer\.weight)$")
PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")


class NoModelError(UserError):
    """A model does not exist, here or on the hub, or cannot be fetched now."""


@contextmanager
def suggesting_openai() -> Iterator[None]:
    """Suggest --openai if a model is not found, because it may be an API's."""
    try:
        yield
    except NoModelError as error:
        raise UserError(f"{error}\n  for an API model add --openai") from None


def check_model(name: str, cache_dir: str | None = None, safetensors_only: bool = False) -> None:
    """Check, before anything expensive starts, that a model (and a LoRA adapter's base model) can be loaded.

    For a hub model that is not cached, only the config is fetched, which pins the commit.

    Args:
        name: a folder with config.json or adapter_config.json and weights, or a hub name (`owner/model`, `model`).
        safetensors_only: refuse a whole model's pickled weights (*.bin); an adapter's are always refused.

    Raises:
        UserError: the folder or its files are missing or incomplete; the weights are pickled; vLLM does not serve this
            kind of adapter, or the adapter does not fit its base model; the hub has no such model, or cannot be reached
            and the cache lacks it.
    """
    check_before_hub()  # transformers imports it for folders too
    if is_folder(name):
        folder, remedy = Path(name), "give the folder that holds config.json and the weights"
    else:
        from huggingface_hub import constants

        check_cache_dir(cache_dir)
        folder = cached_folder(name, cache_dir)
        if folder is None and API_NAMES.match(name):
            raise NoModelError(f"{name}: neither a local folder nor a hub name (owner/model)")
        if not constants.HF_HUB_OFFLINE:
            if folder is None:
                _fetch_config(name, cache_dir)
            return
        place = cache_dir or constants.HF_HUB_CACHE
        remedy = f"on a node with internet, run: hf download {name} --cache-dir {place}"
        if folder is None:
            where = f"neither a folder nor in the hub cache {place}, and HF_HUB_OFFLINE is set"
            raise NoModelError(f"{name}: {where}\n  {remedy}")
    _check_folder(folder, remedy)
    is_adapter = adapter_base(name) is not None
    if (is_adapter or safetensors_only) and not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder}: has only pickled weights (*.bin), which may run code; convert them to safetensors")
    if is_adapter:
        _check_adapter(folder, cache_dir, safetensors_only)


def model_folder(name: str, cache_dir: str | None = None) -> Path:
    """Return the folder with all files of a model (a hub model's commit in its fingerprint); call `check_model` first.

    Files that the cache lacks are fetched into it, unless HF_HUB_OFFLINE is set.

    Raises:
        UserError: the hub cannot be reached or refuses and the cache lacks weights; the hub has only pickled ones.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    folder = cached_folder(name, cache_dir)
    if is_folder(name) or constants.HF_HUB_OFFLINE:
        return folder  # check_model has checked it
    if not sys.stderr.isatty():
        disable_progress_bars()
    if not any(folder.glob("*.safetensors")):
        announce(f"downloading the weights of {name} from the hub (gigabytes take minutes)")
    with _hub_errors(name), skipping_absent_hub(name):
        wanted = {"allow_patterns": FETCHED, "ignore_patterns": NOT_FETCHED}
        snapshot_download(name, revision=folder.name, cache_dir=cache_dir, **wanted)
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{name}: the hub has no *.safetensors for it, or cannot be reached\n"
            "  pickled weights (*.bin) are not read, because they may run code"
        )
    _check_folder(folder, "the hub cannot be reached, or does not have this file")
    return folder


def model_file(name: str, file: str, cache_dir: str | None = None) -> Path | None:
    """Return the path of a model's file (a hub model's at its cached commit); None if it has no such file.

    If the cache does not know, the hub is asked; None if it cannot be reached. Call `check_model` first.

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
    if path is None and not is_hub_away():
        with _hub_errors(name), suppress(RemoteEntryNotFoundError):
            path = hf_hub_download(name, file, revision=commit, cache_dir=cache_dir)
    return Path(path) if isinstance(path, str) else None  # otherwise, a marker that the hub lacks the file


@contextmanager
def skipping_absent_hub(name: str) -> Iterator[None]:
    """Load a hub model only from the cache if the hub cannot be reached (`local_files_only` does not do that).

    Otherwise, each missing file would take half a minute.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or (not is_folder(name) and is_hub_away())
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def is_hub_away() -> bool:
    """Return whether the hub cannot be reached (refused, no such host, no route); a slow or failing hub can be.

    Tries once; the hub's own client tries seven times, in 23 s or more.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError

    if constants.HF_HUB_OFFLINE:
        return True
    check_environment(OF_HUB)
    try:  # timeouts to connect, to read, to write, and for a free connection
        get_session().head(constants.ENDPOINT, timeout=(CONNECT_SECONDS, *[ANSWER_SECONDS] * 3))
    except HTTPError as error:  # by name, because the client may use any HTTP library
        return type(error).__name__ in ("ConnectError", "ConnectTimeout")
    return False


def cached_folder(name: str, cache_dir: str | None = None) -> Path | None:
    """Return a model's folder; for a hub model, that of the main commit in the cache, or None if it is not cached."""
    if is_folder(name):
        return Path(name)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise UserError(f"{name!r}: neither a folder nor a valid name on the hub") from None
    paths = (try_to_load_from_cache(name, config, cache_dir=cache_dir) for config in CONFIGS)
    return next((Path(path).parent for path in paths if isinstance(path, str)), None)


def check_cache_dir(cache_dir: str | None) -> None:
    """Raise UserError if --cache_dir exists and is not a folder."""
    if cache_dir is not None and Path(cache_dir).exists() and not Path(cache_dir).is_dir():
        raise UserError(f"--cache_dir {cache_dir}: not a folder")


def model_fingerprint(name: str, cache_dir: str | None = None) -> str:
    """Return a model's identity, independent of its place: `owner/model@commit`, or `sha256:...` for a folder.

    The hash covers the names and all bytes of its settings and weights files. Call `check_model` first.
    """
    if not is_folder(name):
        return f"{name}@{cached_commit(name, cache_dir) or 'main'}"
    folder, digest = Path(name), hashlib.sha256()
    settings = sorted({path for pattern in SETTINGS for path in folder.glob(pattern) if path.is_file()})
    files = [*settings, *_weights(folder)]
    if (size := sum(path.stat().st_size for path in files if not is_kept(path))) > GB:
        announce(f"hashing the weights of {name} ({size / GB:.0f} GB), once for all runs")
    for path in files:
        digest.update(f"{path.name} {file_hash(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def identify_local_model(model_addr: str, cache_dir: str | None) -> str:
    """Return the identity of a local model; an adapter's includes its base model."""
    check_model(model_addr, cache_dir, safetensors_only=True)
    identity = model_fingerprint(model_addr, cache_dir)
    if base := adapter_base(model_addr):
        identity += f" on {model_fingerprint(base, cache_dir)}"
    return identity


def cached_commit(name: str, cache_dir: str | None = None) -> str | None:
    """Return the commit of a cached hub model, to load exactly that one; None for a folder or an uncached model."""
    folder = None if is_folder(name) else cached_folder(name, cache_dir)
    return folder and folder.name


def pinned_source(name: str, cache_dir: str | None = None) -> dict[str, Any]:
    """Return transformers' arguments for loading a model: its cached commit, and no remote code."""
    return {"cache_dir": cache_dir, "revision": cached_commit(name, cache_dir) or "main", "trust_remote_code": False}


@functools.cache
def find_headers(name: str, cache_dir: str | None = None) -> dict[str, tuple[list[int], str]]:
    """Return a model's `read_headers`, from the hub if it is not fetched yet; empty if they are unknown.

    Raises:
        UserError: the hub refuses the request or fails.
    """
    folder = cached_folder(name, cache_dir)
    if folder is not None and any(folder.glob("*.safetensors")):
        return read_headers(folder)
    if is_folder(name) or is_hub_away():
        return {}
    from huggingface_hub import HfApi, errors
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    with _hub_errors(name), suppress(errors.NotASafetensorsRepoError, errors.SafetensorsParsingError):
        files = HfApi().get_safetensors_metadata(name, revision=cached_commit(name, cache_dir)).files_metadata.values()
        return {key: (list(tensor.shape), tensor.dtype) for file in files for key, tensor in file.tensors.items()}
    return {}


def is_folder(name: str) -> bool:
    """Return whether a name is a folder's, not a hub model's: it exists, looks like a path, or has two slashes."""
    return Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") > 1


def _check_folder(folder: Path, remedy: str) -> None:
    from safetensors import SafetensorError, safe_open

    if not folder.is_dir():
        raise UserError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}; {remedy}")
    if not any((folder / config).is_file() for config in CONFIGS):
        raise UserError(f"{folder}: has no config.json (or adapter_config.json)\n  {remedy}")
    if not _weights(folder):
        raise UserError(f"{folder}: has no weights (*.safetensors or *.bin)\n  {remedy}")
    for path in sorted(path for pattern in (*FETCHED, "*.bin") for path in folder.glob(pattern)):
        if not path.is_file():
            raise UserError(f"{path}: a folder, a pipe or a broken link, not a file\n  {remedy}")
    for path in folder.glob("*.safetensors"):
        try:
            safe_open(path, "numpy")
        except SafetensorError as error:  # left by an interrupted copy
            raise UserError(f"{path}: damaged or incomplete ({error})\n  {remedy}") from None
    for index in (*folder.glob("*.safetensors.index.json"), *folder.glob("*.bin.index.json")):
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UserError(f"{index}: damaged\n  {remedy}") from None
        if missing:
            raise UserError(f"{folder}: lacks {missing[0]}, which is listed in {index.name}\n  {remedy}")


def _refuse_unserved(folder: Path) -> None:
    """Raise UserError for an adapter on which vLLM's process would die, at its first request."""
    config = adapter_config(str(folder))
    bias, start, rank = config.get("bias"), config.get("init_lora_weights"), max(ranks_of(config))
    unserved = [f"{name} {quote(config[name])}" for name in NOT_SERVED if config.get(name)]
    unserved += [f"bias {quote(bias)}"] if bias not in (None, "none") else []
    is_plain = type(start) is not str or start.lower() in PLAIN_STARTS
    unserved += [] if is_plain else [f"init_lora_weights {quote(start)}"]
    unserved += [f"rank {rank} (at most {MOST_RANK})"] if rank > MOST_RANK else []
    unserved += [f"the weight {name}" for name in read_headers(folder) if not SERVED.search(name)]
    if unserved:
        raise UserError(
            f"{folder}: vLLM does not serve an adapter with {unserved[0]}\n"
            "  merge it into its base model (PEFT's merge_and_unload), or train one without it"
        )


def _check_adapter(folder: Path, cache_dir: str | None, safetensors_only: bool) -> None:
    """Raise UserError unless vLLM serves this kind, and the base model has the adapter's modules with their shapes."""
    _refuse_unserved(folder)
    base = adapter_base(str(folder))
    try:
        check_model(base, cache_dir, safetensors_only)
    except UserError as error:
        where = f"{folder}: its base model cannot be used (base_model_name_or_path in its adapter_config.json)"
        raise UserError(f"{where}\n  {error}") from None
    base_folder = cached_folder(base, cache_dir)
    # By names inside the stack of layers, because prefixes differ between checkpoints of one architecture.
    shapes = {inner_name(name): shape for name, (shape, _) in read_headers(base_folder).items()}
    if not shapes:
        return  # a hub model without fetched weights, or without safetensors
    for name, (shape, _) in read_headers(folder).items():
        module, _, part = name.partition(".lora_")
        axis = {"A.weight": 1, "B.weight": 0}.get(part)
        if axis is None:
            continue
        own = shapes.get(inner_name(f"{module}.weight"))
        if own is None or own[axis] != shape[axis]:
            what = "has no such module" if own is None else f"has {own[axis]} there, the adapter {shape[axis]}"
            raise UserError(
                f"{folder}: adapter does not match the architecture of {base}\n"
                f"  {module.removeprefix('base_model.model.')}: the base model {what}"
            )


def _weights(folder: Path) -> list[Path]:
    """Return the weights files, sorted by name; *.bin only if there are no safetensors, as in transformers."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def _fetch_config(name: str, cache_dir: str | None) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    if is_hub_away():
        raise NoModelError(f"{name}: {NOT_TO_BE_HAD}")
    for config in CONFIGS:
        with _hub_errors(name), suppress(RemoteEntryNotFoundError):  # an adapter has adapter_config.json only
            hf_hub_download(name, config, cache_dir=cache_dir)
            return
    raise UserError(f"{name}: has neither config.json nor adapter_config.json")


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turn the hub's errors about a model into UserErrors."""
    from huggingface_hub import errors

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # otherwise, it warns of every retry
    try:
        yield
    except errors.GatedRepoError:
        raise UserError(f"{name}: a gated model; ask for access on its page, then `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise NoModelError(f"{name}: neither a folder here nor a model on the hub") from None
    except errors.LocalEntryNotFoundError:
        raise NoModelError(f"{name}: {NOT_TO_BE_HAD}") from None
    except errors.HfHubHTTPError as error:  # its text may repeat the request with the token
        status = error.response.status_code
        raise UserError(f"{name}: the hub returned status {status}; check the token with `hf auth whoami`") from None
    except (errors.HTTPError, RuntimeError):  # within a file; RuntimeError is from the client's own downloader
        raise UserError(f"{name}: the connection to the hub broke off; run the same command again to resume") from None
