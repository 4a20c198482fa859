"""Read a model's files with libraries, and turn their exceptions into errors that name the file."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from utils.base.errors import UserError, kind, printable, quote

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
# Types of RoPE whose scaling factor is already part of the config's limit.
WITHIN_LIMIT = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
Headers = dict[str, tuple[list[int], str]]  # (shape, type) of a model's tensors, by name
MODEL_FILES = ("config.json", "generation_config.json", "weights")


@contextmanager
def loading(name: str | Path, *files: str) -> Iterator[None]:
    """Wrap a library call that reads only these files of a model.

    Raises:
        UserError: the library raises an exception. The message names the first file that is damaged (not a JSON
            object), or all files if none is.
    """

    def what() -> str:
        damaged = [file for file in files if not _may_be_right(Path(name) / file)]
        return f"{name}: its {' or '.join(damaged[:1] or files)} cannot be loaded"

    with blaming(what):
        yield


@contextmanager
def blaming(what: Callable[[], str]) -> Iterator[None]:
    """Turn a library's exception into a UserError with the text of `what` and the library's message, in one line."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:  # a damaged file
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # from tokenizers' Rust
            raise
        raise UserError(f"{what()}: {in_short(error)}") from error


def load_config(folder: Path) -> Any:
    """Return transformers' config of the model in a folder; UserError if it is damaged or of an unknown kind."""
    from transformers import AutoConfig

    with loading(folder, "config.json"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not isinstance(config.architectures, list | None):
            raise ValueError(f"architectures: found {kind(config.architectures)}, expected a list")
        return config


def check_weights(folder: Path) -> None:
    """Raise UserError if a model's weights do not match its config. Call this only after an engine failed to load them.

    Before that, it would also refuse quantized weights and weights with older names, which engines can load.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with loading(folder, "config.json"), torch.device("meta"):  # without weights
        wanted = AutoModelForCausalLM.from_config(load_config(folder)).state_dict()
    shapes = {name: shape for name, (shape, _) in read_headers(folder).items()}
    for name, tensor in wanted.items():
        if shapes.get(name, list(tensor.shape)) != list(tensor.shape):
            what = f"{name} has shape {shapes[name]}, but config.json implies {list(tensor.shape)}"
            raise UserError(f"{folder}: its weights do not match its config.json: {what}")
    if unknown := sorted(shapes.keys() - wanted.keys()):
        raise UserError(f"{folder}: its weights do not match its config.json, which does not include {unknown[0]}")


def check_special_tokens(tokenizer: Any, config: Any, *names: str) -> None:
    """Raise UserError if a tokenizer or its model lacks one of these tokens, such as "pad_token"."""
    size = getattr(config, "vocab_size", None)
    for name in names:
        if (token := getattr(tokenizer, name)) is None:
            raise UserError(f"{tokenizer.name_or_path}: its tokenizer_config.json has no {name}")
        if type(size) is int and tokenizer.convert_tokens_to_ids(token) >= size:
            raise UserError(
                f"{tokenizer.name_or_path}: its tokenizer_config.json has {quote(token)} as {name}, which is not one "
                f"of the model's {size} tokens"
            )


def check_tokens(ids: Sequence[int], tokenizer: Any, size: int | None) -> None:
    """Raise UserError if an id is not one of the model's `size` tokens; it would end the engine or the training."""
    if type(size) is int and (highest := max(ids, default=0)) >= size:
        token = quote(tokenizer.convert_ids_to_tokens(highest))
        raise UserError(
            f"{tokenizer.name_or_path}: its tokenizer does not match the model: it returns token {highest} ({token}), "
            f"but the model has {size} tokens\n  use the tokenizer files that belong to the weights"
        )


def longest_sequence(config: Any) -> int | None:
    """Return the most tokens that vLLM allows in a sequence, from a model's text config; None if it has no limit.

    For some kinds of RoPE, the config's limit must be multiplied by RoPE's factor; for others, the limit includes it
    (`_get_and_verify_max_len` in vLLM's config/model.py).
    """
    limit = getattr(config, "model_max_length", None) or getattr(config, "max_position_embeddings", None)
    ropes = getattr(config, "rope_parameters", None) or {}
    if limit is None or "gemma3" in config.model_type:
        return limit
    factor = 1.0
    nested = [rope for rope in ropes.values() if isinstance(rope, dict)]  # per type of layer
    for rope in nested or [ropes]:
        if rope.get("rope_type") not in WITHIN_LIMIT:
            factor = rope.get("factor", factor)
    return int(limit * (factor or 1))


def in_short(error: BaseException) -> str:
    """Return a library's error as one printable line: its message, or the name of its type if it has no message."""
    lines = [line.strip() for line in printable(str(error)).strip().splitlines()] or [type(error).__name__]
    is_title = lines[0].endswith(":") or "validation error" in lines[0]  # the latter is from pydantic
    return " ".join(lines[: 2 if is_title else 1])[:300]


def _may_be_right(path: Path) -> bool:
    """Return False only for a file that is named *.json and is not a JSON object."""
    try:
        return path.suffix != ".json" or not path.is_file() or isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False


def read_headers(folder: Path) -> Headers:
    """Return (shape, type) of every tensor in a folder's safetensors, by the tensor's name; only headers are read.

    As in vLLM, if there is an index, only the files that it names count: some repositories have every weight twice.
    """
    from safetensors import safe_open

    index, tensors = folder / "model.safetensors.index.json", {}
    named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else None
    for path in sorted(folder.glob("*.safetensors")):
        if named is None or path.name in named:
            with safe_open(path, "numpy") as file:
                parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                tensors |= {name: (part.get_shape(), part.get_dtype()) for name, part in parts.items()}
    return tensors
