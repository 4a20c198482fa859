"""A local model's files, checked and read once. Imports no torch, to be fast."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from utils.base.errors import UserError, setting_up_client
from utils.base.json_files import read_json
from utils.base.manifest import file_hash, folder_settings, is_hash_kept
from utils.base.progress import announce
from utils.models.adapters import check_modules, check_served, read_adapter
from utils.models.hub import (
    API_NAMES,
    CONFIGS,
    MissingError,
    ask_hub,
    cached_folder,
    check_cache_dir,
    how_to_fetch,
    hub_errors,
    is_folder,
    is_offline,
)
from utils.models.loading import Headers, read_headers

CHOSEN = "chosen.json"  # the file that utils/select_model.py adds to the folder of the model that it chose
# Files besides the weights that affect a model's answers: architecture, tokenizer, default sampling.
SETTINGS = (*CONFIGS, "generation_config.json", "tokenizer*", "vocab*", "chat_template*")
# Files in a hub model's top folder that vLLM reads: no pickled weights, and no second copy in another format.
FETCHED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
NOT_FETCHED = ["*/*", "consolidated*"]
GB = 10**9  # bytes; hashing more than this takes seconds


@dataclass(frozen=True)
class ModelFolder:
    """A local model: a folder, or a hub model at its cached commit. Each property is read once, when first needed.

    Call `checked` before anything else. Properties that read files of a hub model raise UserError if the hub refuses a
    request or fails.
    """

    addr: str  # a folder, or a name on the hub
    cache_dir: str | None = None

    @cached_property
    def path(self) -> Path | None:
        """The folder; for a hub model, the cached folder of its main commit, or None if it is not cached."""
        return cached_folder(self.addr, self.cache_dir)

    @property
    def commit(self) -> str | None:
        """The commit of a cached hub model, so that exactly this commit is loaded; None for any other model."""
        return self.path.name if self.path and not is_folder(self.addr) else None

    @cached_property
    def adapter(self) -> dict[str, Any] | None:
        """A LoRA adapter's settings; None for other models. UserError if they are damaged."""
        return read_adapter(self.addr)

    @cached_property
    def base(self) -> "ModelFolder":
        """An adapter's base model; other models are their own base."""
        return ModelFolder(self.adapter["base_model_name_or_path"], self.cache_dir) if self.adapter else self

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config.json; empty if it is missing, or damaged (loading the model will report that)."""
        path = self.file("config.json")
        try:
            config = json.loads(path.read_text(encoding="utf-8")) if path else {}
        except (ValueError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    @cached_property
    def headers(self) -> Headers:
        """The result of `read_headers`, from the hub if the weights are not fetched yet; empty if it is unknown."""
        if self.path is not None and any(self.path.glob("*.safetensors")):
            return read_headers(self.path)
        if is_folder(self.addr) or is_offline():
            return {}
        from huggingface_hub import HfApi, errors

        with self._hub_errors(), suppress(errors.NotASafetensorsRepoError, errors.SafetensorsParsingError):
            files = ask_hub(HfApi().get_safetensors_metadata, self.addr, revision=self.commit).files_metadata.values()
            return {key: (list(tensor.shape), tensor.dtype) for file in files for key, tensor in file.tensors.items()}
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """`owner/model@commit`, or for a folder, `sha256:...`, wherever the folder is.

        The hash covers names and contents of the files with settings or weights.
        """
        if not is_folder(self.addr):
            return f"{self.addr}@{self.commit or 'main'}"
        settings = sorted({path for pattern in SETTINGS for path in self.path.glob(pattern) if path.is_file()})
        files, digest = [*settings, *_weights(self.path)], hashlib.sha256()
        if (size := sum(path.stat().st_size for path in files if not is_hash_kept(path))) > GB:
            announce(f"hashing the weights of {self.addr} ({size / GB:.0f} GB), once for all runs")
        for path in files:
            digest.update(f"{path.name} {file_hash(path)}\n".encode())
        return f"sha256:{digest.hexdigest()}"

    @property
    def identity(self) -> str:
        """The model's unique id in the keys of stored completions; an adapter's includes that of its base model."""
        return self.fingerprint + (f" on {self.base.fingerprint}" if self.adapter else "")

    @cached_property
    def made_with(self) -> dict[str, Any]:
        """The settings of the training that made the model, from the manifest beside it; empty for other models."""
        path = self.file("manifest.json")
        return folder_settings(path.parent) if path else {}

    @property
    def trained(self) -> dict[str, Any]:
        """`made_with`, if utils/train_generator.py trained the model; empty for other models."""
        return self.made_with if self.made_with.get("script") == "utils/train_generator.py" else {}

    @cached_property
    def chosen(self) -> dict[str, list[str]]:
        """The `judges` and `inputs` with which utils/select_model.py has chosen this model; empty if it never has."""
        path = self.path / CHOSEN if is_folder(self.addr) else None  # in a hub model, the file would be someone else's
        if path is None or not path.is_file():
            return {}
        chosen = read_json(path)
        if not isinstance(chosen, dict) or not all(isinstance(chosen.get(name), list) for name in ("judges", "inputs")):
            raise UserError(f"{path}: not a file of utils/select_model.py; delete it")
        return chosen

    @property
    def rewarded_by(self) -> list[str]:
        """The identities of the judges whose scores trained the model, chose its texts, or chose it among models."""
        return sorted({*self.made_with.get("rewarded_by", ()), *self.chosen.get("judges", ())})

    @property
    def trained_on(self) -> list[str]:
        """The hashes of the datasets that trained or chose this model, or the model that its training began with."""
        used = {self.trained.get("validation"), self.trained.get("inputs"), *self.trained.get("trained_before_on", ())}
        return sorted({*used, *self.chosen.get("inputs", ())} - {None})

    @property
    def is_encoder_decoder(self) -> bool:
        return not self.adapter and self.config.get("is_encoder_decoder") is True

    @property
    def is_classifier(self) -> bool:
        """Whether it is a sequence classifier. UserError if it has several labels, because a reward model has one."""
        config = self.base.config
        try:
            kinds = [str(kind) for kind in config.get("architectures") or ()]
            num_labels = config.get("num_labels") or len(config.get("id2label") or "ab")  # transformers' default is two
        except TypeError:
            return False  # loading it reports the problem
        is_classifier = any(kind.endswith("ForSequenceClassification") for kind in kinds)
        if is_classifier and num_labels != 1:
            raise UserError(f"{self.addr}: has {num_labels} labels, but a reward model must have exactly one")
        return is_classifier

    @property
    def is_float32(self) -> bool:
        """Whether the model's own type is float32. If its config names no type, the weights decide, as in vLLM."""
        types = [part[name] for part in self._configs for name in ("dtype", "torch_dtype") if part.get(name)]
        headers = {} if types else self.base.headers
        return types[0] == "float32" if types else not headers or any(kind == "F32" for _, kind in headers.values())

    @property
    def pads_with_end(self) -> bool:
        """Whether a dialogue may end with the padding token, because the config has one.

        The template decides which token ends a turn; it may differ from the config's end token.
        """
        return any(part.get("pad_token_id") is not None for part in self._configs)

    @property
    def _configs(self) -> list[dict[str, Any]]:
        config = self.base.config
        return [part for part in (config, config.get("text_config")) if isinstance(part, dict)]

    @cached_property
    def source(self) -> dict[str, Any]:
        """transformers' arguments for loading the model: its cached commit, and no remote code.

        If the hub cannot be reached, transformers will read only the cache (see `is_offline`).
        """
        if not is_folder(self.addr):
            is_offline()  # sets HF_HUB_OFFLINE, which transformers obeys
        return {"cache_dir": self.cache_dir, "revision": self.commit or "main", "trust_remote_code": False}

    def checked(self, safetensors_only: bool = False) -> "ModelFolder":
        """Check, without loading weights, that this model (and an adapter's base model) can be loaded; return it.

        If a hub model is not cached, only its config is fetched; later steps load the commit that this caches.
        With `safetensors_only`, pickled weights (*.bin) of a whole model are refused; those of an adapter always are.

        UserError if the folder or its files are missing, incomplete or refused because they are pickled; vLLM does not
        serve this kind of adapter; the adapter does not fit its base model; the hub has no such model; or the hub
        cannot be reached and the cache lacks the model.
        """
        with setting_up_client():  # transformers imports it for folders too
            from huggingface_hub import constants, hf_hub_download
            from huggingface_hub.errors import RemoteEntryNotFoundError

        remedy = "pass the folder that holds config.json and the weights"
        if not is_folder(self.addr):
            check_cache_dir(self.cache_dir)
            if cached_folder(self.addr, self.cache_dir) is None:
                if API_NAMES.match(self.addr):
                    raise MissingError(f"{self.addr}: neither a local folder nor a hub name (owner/model)")
                is_offline()  # so that the client does not try again and again
                for config in CONFIGS:
                    with hub_errors(self.addr, self.cache_dir), suppress(RemoteEntryNotFoundError):
                        hf_hub_download(self.addr, config, cache_dir=self.cache_dir)
                        return self
                raise UserError(f"{self.addr}: has neither config.json nor adapter_config.json")
            if not constants.HF_HUB_OFFLINE:
                return self
            remedy = how_to_fetch(self.addr, self.cache_dir)
        _check_folder(self.path, remedy, safetensors_only or self.adapter is not None)
        if self.adapter is not None:
            check_served(self.path, self.adapter, self.headers)
            try:
                self.base.checked(safetensors_only)
            except UserError as error:
                where = f"{self.path}: its base model cannot be used"
                where += " (base_model_name_or_path in its adapter_config.json)"
                raise type(error)(f"{where}\n  {error}") from None
            check_modules(self.path, self.headers, self.base.addr, self.base.headers)
        return self

    def file(self, name: str) -> Path | None:
        """Return the path of one file of the model; None if the model has no such file, or the hub is out of reach.

        A hub model's file is fetched, unless the cache has it or records that the commit lacks it.
        """
        if is_folder(self.addr):
            path = self.path / name
            return path if path.is_file() else None
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import RemoteEntryNotFoundError

        path = try_to_load_from_cache(self.addr, name, cache_dir=self.cache_dir, revision=self.commit)
        if path is None and not is_offline():
            with self._hub_errors(), suppress(RemoteEntryNotFoundError):
                path = hf_hub_download(self.addr, name, revision=self.commit, cache_dir=self.cache_dir)
        return Path(path) if isinstance(path, str) else None  # otherwise, a marker that the hub lacks the file

    def fetch(self) -> Path:
        """Fetch the files that the cache lacks, if the hub can be reached, and return the model's folder.

        UserError if the hub refuses, if the cache lacks weights and the hub cannot be reached, or if all weights are
        pickled.
        """
        if is_folder(self.addr):
            return self.path
        from huggingface_hub import HfApi, snapshot_download

        if not any(self.path.glob("*.safetensors")):
            announce(f"downloading the weights of {self.addr} from the hub (gigabytes take minutes)")
        if not is_offline():
            with self._hub_errors():
                wanted = {"allow_patterns": FETCHED, "ignore_patterns": NOT_FETCHED}
                ask_hub(snapshot_download, self.addr, revision=self.commit, cache_dir=self.cache_dir, **wanted)
                if not any(self.path.glob("*.safetensors")):  # the client is silent if the hub refuses
                    ask_hub(HfApi().model_info, self.addr, revision=self.commit)
        missing = "the hub has no such file, or cannot be reached"
        missing += "; pickled weights (*.bin) are not read: they may run code"
        _check_folder(self.path, missing, safetensors_only=True)
        return self.path

    def _hub_errors(self) -> Any:
        return hub_errors(self.addr, self.cache_dir, revision=self.commit)


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
