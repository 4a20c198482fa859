"""LoRA adapters in folders, and the shapes of weights."""

import json
import re
from pathlib import Path
from typing import Any

from utils.cli import UserError


def adapter_base(name: str) -> str | None:
    """The base model that a LoRA adapter folder names, None for anything else."""
    config = adapter_config(name)
    return config and config["base_model_name_or_path"]


def adapter_config(name: str) -> dict[str, Any] | None:
    """The settings of a LoRA adapter folder, None for anything else; UserError where they are damaged."""
    path = Path(name) / "adapter_config.json"
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        rank, base = config["r"], config["base_model_name_or_path"]
        if type(rank) is not int or "\0" in (base or ""):
            raise ValueError
        if config["peft_type"] == "LORA" and isinstance(base, str) and base and rank > 0:
            return config
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{path}: damaged; take another checkpoint") from None
    raise UserError(f"{path}: not a LoRA adapter on a named base model")


def read_headers(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Shape and type by name of every tensor in the safetensors that vLLM reads, from their headers.

    Those are the files that the index names, where there is one: some repositories hold every weight twice.
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


def inner_name(name: str) -> str:
    """Return a weight's name inside the stack of layers.

    `base_model.model.model.layers.0.mlp.up_proj.weight` -> `layers.0.mlp.up_proj.weight`
    """
    return re.sub(r"^.*?(?=\b(?:layers|h|blocks)\.\d+\.)", "", name)
