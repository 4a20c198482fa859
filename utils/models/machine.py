"""The GPUs and memory that a command needs, checked before a run and printed by --dry_run.

A dry run may be on a different machine from the run, such as a login node. It therefore prints a missing requirement as
a line that begins with "missing:", instead of raising an error. No weights are loaded. Sizes are in bytes; GB is 10^9.
"""

import functools
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from utils.base.errors import UserError, count_noun, printable
from utils.models.devices import ask_nvidia_smi, has_gpu
from utils.models.loading import Headers, load_config
from utils.models.model_folder import ModelFolder

GB = 10**9
GIB = 2**30

_CAST = ("F64", "F32", "F16", "BF16")  # safetensors' types that --dtype converts; quantized weights stay as they are
_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}  # bytes of other types; 1 if not listed


class Gpu(NamedTuple):
    """One GPU; torch and nvidia-smi may number it differently."""

    index: int
    name: str
    free: int  # bytes
    total: int  # bytes


class ModelSize(NamedTuple):
    """The sizes on which a model's memory in vLLM depends."""

    weights: int  # bytes, on all GPUs together
    kv_heads: int  # heads of keys and values, which vLLM divides between the GPUs
    head_bytes: int  # bytes of KV cache per token and KV head

    def token_bytes(self, num_gpus: int = 1) -> int:
        """Return the bytes of KV cache per token on each GPU, which has at least one KV head.

        Layers with sliding-window attention may need less.
        """
        return max(1, self.kv_heads // num_gpus) * self.head_bytes


class Loaded(NamedTuple):
    """A model that vLLM would load."""

    model: ModelFolder
    length: int  # tokens of prompt and output of the longest request
    dtype: str  # --dtype; a reward model's may differ from the other models'


# Before a run


def read_size(headers: Headers, config: Any, dtype: str = "auto") -> ModelSize | None:
    """Return the size of a model, from its config and headers; None if they do not determine it.

    Args:
        dtype: --dtype. With `auto`, vLLM uses 16 bits per number, even for weights stored in 32.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    if not headers or not heads or not getattr(text, "num_hidden_layers", None):
        return None
    value_bytes = 4 if dtype == "float32" else 2
    # If the embeddings are tied, vLLM does not load an output layer, even if the files have one.
    weights = count_bytes(headers, value_bytes, without_head=getattr(text, "tie_word_embeddings", False))
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    head_bytes = 2 * text.num_hidden_layers * head_dim * value_bytes  # keys and values
    return ModelSize(weights, getattr(text, "num_key_value_heads", None) or heads, head_bytes)


def count_bytes(headers: Headers, value_bytes: int, without_head: bool) -> int:
    """Return the bytes of all weights, with `value_bytes` per unquantized number; `without_head` leaves out lm_head."""
    return sum(
        math.prod(shape) * (value_bytes if kind in _CAST else _BYTES.get(kind, 1))
        for name, (shape, kind) in headers.items()
        if not (without_head and name.endswith("lm_head.weight"))
    )


def size_problems(
    what: str, needed: int, gpu_memory: float, share: float = 1, remedy: str = "a smaller model"
) -> list[str]:
    """Return a message if `needed` bytes do not fit into this share of a GPU's memory; empty if they do."""
    if needed <= share * gpu_memory:
        return []
    part = f"{share:g} x " if share < 1 else ""
    sizes = f"{needed / GB:.1f} GB per GPU do not fit into {part}{gpu_memory / GB:.1f} GB"
    return [f"{what}: {sizes}\n  use a larger GPU, or {remedy}"]


def check_before_fetching(
    model: ModelFolder,
    value_bytes: int = 2,
    gpu_memory: int | None = None,
    num_gpus: int = 1,
    **limit: Any,
) -> None:
    """Raise UserError, before a model is fetched or loaded, if its size is known and certainly too large.

    Args:
        value_bytes: bytes per weight; in a training of all weights, including the gradient and AdamW's averages.
        gpu_memory: bytes of a GPU (default: those of the smallest GPU here; without a GPU, or with only a part of one,
            nothing is checked).
        limit: further arguments of `size_problems`.
    """
    if gpu_memory is None:
        import torch

        lines = (ask_nvidia_smi("memory.total") if torch.cuda.is_available() else None) or []
        gpu_memory = min((int(line) * 2**20 for line in lines), default=None) if all(map(str.isdigit, lines)) else None
    if gpu_memory is not None and model.headers:
        needed = count_bytes(model.headers, value_bytes, without_head=True)  # the head may be tied
        for problem in size_problems(f"the weights of {model.addr}", -(-needed // num_gpus), gpu_memory, **limit):
            raise UserError(problem)


def count_gpus(args: Namespace) -> int:
    """Return how many GPUs the flags of `cli.add_engine_arguments` ask for."""
    return args.tensor_parallel_size * args.data_parallel_size


def gpu_problems(gpus: Sequence[Gpu], args: Namespace) -> list[str]:
    """Return why vLLM would fail later on these GPUs: too few for the flags, or in use by another process."""
    count, copies, utilization, problems = count_gpus(args), args.data_parallel_size, args.gpu_memory_utilization, []
    if count > len(gpus):
        flags = f"--tensor_parallel_size {args.tensor_parallel_size}" + f" --data_parallel_size {copies}" * (copies > 1)
        problems.append(f"{flags}: this machine has only {count_noun(len(gpus), 'GPU')}")
    for gpu in gpus[:count]:
        if gpu.free < utilization * gpu.total:
            problems.append(
                f"GPU {gpu.index} has {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free, "
                f"--gpu_memory_utilization {utilization} asks for {utilization * gpu.total / GIB:.1f}\n"
                "  another process uses it (see nvidia-smi): wait for it, use another GPU, or lower the flag"
            )
    return problems


# What --dry_run prints


def _or_missing(check: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Decorate a check: if it raises UserError, the error is returned as a line that begins with "missing:"."""

    @functools.wraps(check)
    def run(*args: Any) -> list[str]:
        try:
            return [printable(line) for line in check(*args)]
        except UserError as error:
            return [_missing(str(error))]

    return run


def _missing(problem: str) -> str:
    return printable("missing: " + "; ".join(line.strip() for line in problem.splitlines()))


@_or_missing
def describe_engine(args: Namespace, models: Sequence[Loaded]) -> list[str]:
    """Return lines about the GPUs here and each model to load; `args` has the flags of `cli.add_engine_arguments`."""
    gpus = _find_gpus()
    lines = _describe_gpus(gpus)
    if gpus:
        lines += map(_missing, gpu_problems(gpus, args))
    used = gpus[: count_gpus(args)]
    return lines + [line for model in dict.fromkeys(models) for line in _describe_model(args, model, used)]


@_or_missing
def describe_weights(model: ModelFolder, value_bytes: int, what: str = "weights") -> list[str]:
    """Return lines about the GPUs here and a model that transformers would load with `value_bytes` per weight."""
    gpus = _find_gpus()
    lines = _describe_gpus(gpus)
    if model.headers:  # unknown for pickled weights
        needed = count_bytes(model.headers, value_bytes, without_head=False)
        lines.append(f"{model.addr}: {needed / GB:.1f} GB of {what} per GPU, plus activations")
        smallest = min((gpu.total for gpu in gpus), default=math.inf)
        lines += map(_missing, size_problems(f"the {what} of {model.addr}", needed, smallest))
    return lines


def _find_gpus() -> list[Gpu]:
    """Return the GPUs that this process may use, in torch's order; UserError if one exists but cannot be used."""
    if not has_gpu():
        return []
    from torch import cuda

    try:
        indices = range(cuda.device_count())
        return [Gpu(i, cuda.get_device_properties(i).name, *cuda.mem_get_info(i)) for i in indices]
    except RuntimeError as error:  # the driver refuses, or another process uses it exclusively
        raise UserError(f"the GPUs cannot be used: {str(error).strip().splitlines()[0]}; see nvidia-smi") from None


def _describe_gpus(gpus: list[Gpu]) -> list[str]:
    if not gpus:
        return ["note: there is no GPU here, so GPU memory could not be checked"]
    return [f"GPU {gpu.index}: {gpu.name}, {gpu.free / GB:.1f} of {gpu.total / GB:.1f} GB free" for gpu in gpus]


@_or_missing
def _describe_model(args: Namespace, loaded: Loaded, gpus: list[Gpu]) -> list[str]:
    """Return lines on the memory that a model and its longest request need, and whether its weights fit."""
    name, num_gpus, base = loaded.model.addr, args.tensor_parallel_size, loaded.model.base
    size = read_size(base.headers, load_config(base.path), loaded.dtype)
    if size is None:
        return [f"note: {name}: unknown memory requirements"]
    weights, request = -(-size.weights // num_gpus), size.token_bytes(num_gpus) * loaded.length
    longest = f"the longest request, of {loaded.length} tokens, takes {request / GB:.2f} GB of KV cache"
    lines = [f"{name}: {weights / GB:.1f} GB of weights per GPU; {longest}"]
    smallest = min((gpu.total for gpu in gpus), default=math.inf)
    limit = {"share": args.gpu_memory_utilization, "remedy": "more of them (--tensor_parallel_size)"}
    return lines + list(map(_missing, size_problems(f"the weights of {name}", weights, smallest, **limit)))
