"""The memory of the GPUs here, and the memory that a model needs in vLLM. Loads no weights.

Sizes are in bytes; GB is 10^9 bytes.
"""

from argparse import Namespace
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from utils.cli import UserError
from utils.cli.errors import kind
from utils.models.devices import ask_nvidia_smi
from utils.models.hub import find_headers
from utils.models.loading import loading, read_headers

GB = 10**9
GIB = 2**30
BLOCK = 16  # tokens that vLLM's KV cache gives out at a time

# What vLLM needs on each GPU besides weights and KV cache; it measures that at each start (`determine_available_memory`
# in its v1/worker/gpu_worker.py). A guess from users' published logs of models with 8 to 32 billion parameters: 1.3 GiB
# of activations, 0.3 to 1.8 outside torch (CUDA, NCCL, attention's workspace), 0.3 to 1.1 of CUDA graphs.
ALLOWANCE = 3 * GIB
# The most in those logs; one with two GPUs has 3.6 GiB outside torch on each (vLLM's pull request 10511, of 2024).
MOST_ALLOWANCE = int(4.2 * GIB)
MOST_ALLOWANCE_OF_SEVERAL = int(6.0 * GIB)

_CAST = ("F64", "F32", "F16", "BF16")  # safetensors' types that --dtype changes; quantized weights stay
_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}  # of other types; 1 if not listed


class Gpu(NamedTuple):
    """One GPU."""

    name: str
    free: int  # bytes
    total: int  # bytes


@dataclass(frozen=True)
class ModelSize:
    """The sizes that decide a model's memory."""

    weights: int  # bytes of its weights in vLLM
    heads: int  # attention heads, which vLLM divides between the GPUs
    kv_heads: int
    head_bytes: int  # bytes of KV cache per token and KV head

    def token_bytes(self, num_gpus: int = 1) -> int:
        """Return each GPU's bytes of KV cache per token, for at least one head; layers with a window may need less."""
        return max(1, self.kv_heads // num_gpus) * self.head_bytes


class Fit(NamedTuple):
    """How a model fits on each of its GPUs, in bytes."""

    weights: int
    cache: int  # left for the KV cache; negative if not even the weights fit
    token_bytes: int  # KV cache per token

    @property
    def tokens(self) -> int:
        """The number of tokens that the KV cache holds, in whole blocks: the longest sequence that fits."""
        return max(0, self.cache // (self.token_bytes * BLOCK)) * BLOCK

    def requests(self, length: int) -> int:
        """Return how many sequences of `length` tokens the KV cache holds at a time."""
        return self.tokens // (-(-length // BLOCK) * BLOCK)


def most_allowance(num_gpus: int) -> int:
    """Return the most that vLLM itself takes per GPU in published logs, instead of `ALLOWANCE`."""
    return MOST_ALLOWANCE if num_gpus == 1 else MOST_ALLOWANCE_OF_SEVERAL


def fit_model(
    size: ModelSize, gpu_memory: int, utilization: float, num_gpus: int = 1, allowance: int = ALLOWANCE
) -> Fit:
    """Return the memory left on GPUs with `gpu_memory` bytes each when vLLM has loaded a model.

    Raises:
        UserError: the attention heads cannot be divided between that many GPUs.
    """
    if size.heads % num_gpus:
        raise UserError(f"--tensor_parallel_size {num_gpus}: does not divide the model's {size.heads} attention heads")
    weights = -(-size.weights // num_gpus)
    cache = int(utilization * gpu_memory) - weights - allowance
    return Fit(weights, cache, size.token_bytes(num_gpus))


def load_config(folder: Path) -> Any:
    """Load the configuration of the model in a folder; UserError if it is damaged or unknown to transformers."""
    from transformers import AutoConfig

    with loading(folder, "config.json"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not isinstance(config.architectures, list | None):
            raise ValueError(f"architectures: found {kind(config.architectures)}, expected a list")
        return config


def read_size(headers: dict[str, tuple[list[int], str]], config: Any, dtype: str = "auto") -> ModelSize | None:
    """Return the size of a model, from its configuration and `find_headers`; None if these do not tell.

    Args:
        dtype: --dtype. With `auto`, vLLM uses 16 bits per number, even for weights stored in 32.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    if not headers or not heads or not getattr(text, "num_hidden_layers", None):
        return None
    value_bytes = 4 if dtype == "float32" else 2
    # If the embeddings are tied, vLLM leaves out an output layer that a file has.
    weights = count_bytes(headers, value_bytes, without_head=getattr(text, "tie_word_embeddings", False))
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    head_bytes = 2 * text.num_hidden_layers * head_dim * value_bytes  # keys and values
    return ModelSize(weights, heads, getattr(text, "num_key_value_heads", None) or heads, head_bytes)


def count_bytes(headers: dict[str, tuple[list[int], str]], value_bytes: int, without_head: bool) -> int:
    """Return the bytes of the weights, with `value_bytes` for each unquantized number."""
    return sum(
        prod(shape) * (value_bytes if kind in _CAST else _BYTES.get(kind, 1))
        for name, (shape, kind) in headers.items()
        if not (without_head and name.endswith("lm_head.weight"))
    )


def refuse_too_large(
    what: str, needed: int, gpu_memory: float, share: float = 1, remedy: str = "a smaller model"
) -> None:
    """Raise UserError if `needed` bytes exceed this share of a GPU's memory."""
    if needed > share * gpu_memory:
        part = f"{share:g} x " if share < 1 else ""
        sizes = f"{needed / GB:.1f} GB per GPU do not fit into {part}{gpu_memory / GB:.1f} GB"
        raise UserError(f"{what}: {sizes}\n  use a larger GPU, or {remedy}")


def check_before_fetching(
    name: str,
    cache_dir: str | None,
    gpu_memory: int | None,
    value_bytes: int = 2,
    share: float = 1,
    num_gpus: int = 1,
    remedy: str = "a smaller model",
) -> None:
    """Raise UserError if a model of known size surely cannot fit, before it is fetched or loaded.

    Args:
        gpu_memory: bytes of a GPU; None skips the check.
        value_bytes: bytes per weight; in a training of all weights, with gradient and AdamW's averages.
    """
    if gpu_memory is not None and (headers := find_headers(name, cache_dir)):
        needed = count_bytes(headers, value_bytes, without_head=True)  # the head may be tied
        refuse_too_large(f"the weights of {name}", -(-needed // num_gpus), gpu_memory, share, remedy)


def smallest_gpu() -> int | None:
    """Return the smallest GPU's bytes; None without a GPU, or if nvidia-smi does not tell, as for a part of one."""
    import torch

    lines = ask_nvidia_smi("memory.total") if torch.cuda.is_available() else None
    return min(map(int, lines)) * 2**20 if lines and all(map(str.isdigit, lines)) else None


def check_weights(folder: Path) -> None:
    """Raise UserError if the weights of a model that an engine could not load do not match its config.

    Not called before loading, because quantized weights and weights with older names do load.
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


def count_gpus(args: Namespace) -> int:
    """Return how many GPUs the flags of `cli.add_engine_arguments` ask for."""
    return args.tensor_parallel_size * args.data_parallel_size


def check_gpu_count(num_gpus: int, args: Namespace) -> None:
    """Raise UserError if there are fewer GPUs than the flags ask for."""
    if count_gpus(args) > num_gpus:
        copies = args.data_parallel_size
        flags = f"--tensor_parallel_size {args.tensor_parallel_size}" + f" --data_parallel_size {copies}" * (copies > 1)
        raise UserError(f"{flags}: this machine has only {num_gpus} GPUs")


def check_gpu_free(index: int, free: float, total: float, utilization: float) -> None:
    """Raise UserError if a GPU has less than `utilization` of its bytes free, because vLLM would fail later."""
    if free < utilization * total:
        raise UserError(
            f"GPU {index} has {free / GIB:.1f} of {total / GIB:.1f} GiB free, "
            f"--gpu_memory_utilization {utilization} asks for {utilization * total / GIB:.1f}\n"
            "  another process uses it (see nvidia-smi): wait for it, use another GPU, or lower the flag"
        )
