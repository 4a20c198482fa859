"""The memory that a model needs, and whether the GPUs here have it. Loads no weights.

Sizes are in bytes; GB is 10^9 bytes.
"""

from argparse import Namespace
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from utils.cli import UserError
from utils.models.devices import ask_nvidia_smi
from utils.models.hub import find_headers

GB = 10**9
GIB = 2**30
BLOCK = 16  # tokens that vLLM's KV cache gives out at a time

# What vLLM needs on each GPU besides weights and KV cache; it measures that at each start (`determine_available_memory`
# in its v1/worker/gpu_worker.py). A guess from users' published logs of models with 8 to 32 billion parameters: 1.3 GiB
# of activations, 0.3 to 1.8 outside torch (CUDA, NCCL, attention's workspace), 0.3 to 1.1 of CUDA graphs. The most in
# those logs are 4.2 GiB, and 6 on each of two GPUs (3.6 of them outside torch; vLLM's pull request 10511, of 2024).
ALLOWANCE = 3 * GIB

_CAST = ("F64", "F32", "F16", "BF16")  # safetensors' types that --dtype changes; quantized weights stay
_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}  # of other types; 1 if not listed


class Gpu(NamedTuple):
    """One GPU; torch and nvidia-smi may number it differently."""

    index: int
    name: str
    free: int  # bytes
    total: int  # bytes


class ModelSize(NamedTuple):
    """The sizes that decide a model's memory in vLLM."""

    weights: int  # bytes, on all GPUs together
    heads: int  # attention heads, which vLLM divides between the GPUs
    kv_heads: int
    head_bytes: int  # bytes of KV cache per token and KV head

    def token_bytes(self, num_gpus: int = 1) -> int:
        """Return each GPU's bytes of KV cache per token, for at least one head; layers with a window may need less."""
        return max(1, self.kv_heads // num_gpus) * self.head_bytes

    def request_bytes(self, length: int, num_gpus: int = 1) -> int:
        """Return each GPU's bytes of KV cache for `length` tokens of prompt and output, in whole blocks."""
        return -(-length // BLOCK) * BLOCK * self.token_bytes(num_gpus)

    def loaded_bytes(self, num_gpus: int = 1) -> int:
        """Return each GPU's bytes without KV cache."""
        return -(-self.weights // num_gpus) + ALLOWANCE

    def gpu_bytes(self, length: int, utilization: float, num_gpus: int = 1) -> float:
        """Return the bytes that each GPU must have for a request of `length` tokens."""
        return (self.loaded_bytes(num_gpus) + self.request_bytes(length, num_gpus)) / utilization


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
    name: str, cache_dir: str | None, gpu_memory: int | None, value_bytes: int = 2, num_gpus: int = 1, **limit: Any
) -> None:
    """Raise UserError if a model of known size surely cannot fit, before it is fetched or loaded.

    Args:
        gpu_memory: bytes of a GPU; None skips the check.
        value_bytes: bytes per weight; in a training of all weights, with gradient and AdamW's averages.
        limit: further arguments of `refuse_too_large`.
    """
    if gpu_memory is not None and (headers := find_headers(name, cache_dir)):
        needed = count_bytes(headers, value_bytes, without_head=True)  # the head may be tied
        refuse_too_large(f"the weights of {name}", -(-needed // num_gpus), gpu_memory, **limit)


def smallest_gpu() -> int | None:
    """Return the smallest GPU's bytes; None without a GPU, or if nvidia-smi does not tell, as for a part of one."""
    import torch

    lines = ask_nvidia_smi("memory.total") if torch.cuda.is_available() else None
    return min(map(int, lines)) * 2**20 if lines and all(map(str.isdigit, lines)) else None


def count_gpus(args: Namespace) -> int:
    """Return how many GPUs the flags of `cli.add_engine_arguments` ask for."""
    return args.tensor_parallel_size * args.data_parallel_size


def gpu_problems(gpus: Sequence[Gpu], args: Namespace) -> list[str]:
    """Return why vLLM would fail later on these GPUs: too few for the flags, or in use by another process."""
    count, copies, utilization, problems = count_gpus(args), args.data_parallel_size, args.gpu_memory_utilization, []
    if count > len(gpus):
        flags = f"--tensor_parallel_size {args.tensor_parallel_size}" + f" --data_parallel_size {copies}" * (copies > 1)
        problems.append(f"{flags}: this machine has only {len(gpus)} GPUs")
    for gpu in gpus[:count]:
        if gpu.free < utilization * gpu.total:
            problems.append(
                f"GPU {gpu.index} has {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free, "
                f"--gpu_memory_utilization {utilization} asks for {utilization * gpu.total / GIB:.1f}\n"
                "  another process uses it (see nvidia-smi): wait for it, use another GPU, or lower the flag"
            )
    return problems
