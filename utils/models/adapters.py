"""LoRA adapters in folders: their settings, and whether vLLM can serve an adapter on its base model."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from utils.base.errors import UserError, quote
from utils.models.loading import Headers

MOST_RANK = 512  # the highest rank of an adapter in vLLM 0.32 (MaxLoRARanks)
# Adapter settings that vLLM 0.32 does not serve (`PEFTHelper`).
NOT_SERVED = (
    "use_dora", "modules_to_save", "trainable_token_indices", "lora_bias", "layer_replication",
    "alora_invocation_tokens", "use_bdlora", "use_qalora",
)  # fmt: skip
HEADS = ("score", "classifier")  # names of a classifier's last layer
# Names of adapter tensors that vLLM 0.32 reads.
SERVED = re.compile(r"\.(lora_[AB]\.weight|lora_embedding_[AB]|(embed_tokens|lm_head)\.base_layer\.weight)$")
# Values of init_lora_weights that do not change the base model.
PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")


def read_adapter(name: str) -> dict[str, Any] | None:
    """Return a LoRA adapter's settings; None if `name` is not an adapter's folder. UserError if they are damaged."""
    path = Path(name) / "adapter_config.json"
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        base = config["base_model_name_or_path"]
        if any(type(rank) is not int for rank in ranks_of(config)) or "\0" in (base or ""):
            raise ValueError
        if config["peft_type"] == "LORA" and isinstance(base, str) and base and min(ranks_of(config)) > 0:
            return config
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{path}: damaged; use another checkpoint") from None
    raise UserError(
        f"{path}: not a LoRA adapter, or without the name of its base model; use a LoRA adapter that PEFT saved"
    )


def ranks_of(config: dict[str, Any]) -> list[int]:
    """Return the ranks in an adapter's settings: the general rank, and those set for some modules only."""
    return [config["r"], *(config.get("rank_pattern") or {}).values()]


def check_served(adapter: Path, config: dict[str, Any], weights: Iterable[str]) -> None:
    """Raise UserError for an adapter that vLLM does not serve; its process would die at the first request.

    `weights` are the names of the adapter's weights, and `config` is the result of `read_adapter`.
    """
    if heads := [name for name in config.get("modules_to_save") or () if name in HEADS]:
        raise UserError(
            f"{adapter}: an adapter with a classifier's head (modules_to_save {quote(heads)}) is not served; vLLM 0.32 "
            "loads such a head only onto a base model that is a classifier\n"
            "  merge both: PEFT's AutoPeftModelForSequenceClassification.from_pretrained(…, num_labels=1)"
            ".merge_and_unload(), saved with the tokenizer"
        )
    bias, start, rank = config.get("bias"), config.get("init_lora_weights"), max(ranks_of(config))
    unserved = [f"{name} {quote(config[name])}" for name in NOT_SERVED if config.get(name)]
    unserved += [f"bias {quote(bias)}"] if bias not in (None, "none") else []
    is_plain = type(start) is not str or start.lower() in PLAIN_STARTS
    unserved += [] if is_plain else [f"init_lora_weights {quote(start)}"]
    unserved += [f"rank {rank} (at most {MOST_RANK})"] if rank > MOST_RANK else []
    unserved += [f"the weight {name}" for name in weights if not SERVED.search(name)]
    if unserved:
        raise UserError(
            f"{adapter}: vLLM does not serve an adapter with {unserved[0]}\n"
            "  merge it into its base model (PEFT's merge_and_unload), or train an adapter without it"
        )


def check_modules(adapter: Path, headers: Headers, base: str, base_headers: Headers) -> None:
    """Raise UserError unless the base model has the adapter's modules, with matching sizes.

    Without headers of the base model (they are unknown, or its weights are pickled), nothing is checked.
    """
    # Names are compared inside the stack of layers: their prefixes differ between checkpoints of one architecture.
    shapes = {_inner_name(name): shape for name, (shape, _) in base_headers.items()}
    for name, (shape, _) in headers.items() if shapes else ():
        module, _, part = name.partition(".lora_")
        if part not in ("A.weight", "B.weight"):
            continue
        axis = 1 if part == "A.weight" else 0
        of_base = shapes.get(_inner_name(f"{module}.weight"))
        if of_base is None or of_base[axis] != shape[axis]:
            problem = "the base model has no such module"
            if of_base is not None:
                problem = f"this module has width {of_base[axis]} in the base model, but {shape[axis]} in the adapter"
            raise UserError(
                f"{adapter}: adapter does not match the architecture of {base}\n"
                f"  {module.removeprefix('base_model.model.')}: {problem}"
            )


def _inner_name(name: str) -> str:
    """Return a weight's name inside the stack of layers.

    `base_model.model.model.layers.0.mlp.up_proj.weight` -> `layers.0.mlp.up_proj.weight`
    """
    return re.sub(r"^.*?(?=\b(?:layers|h|blocks)\.\d+\.)", "", name)
