"""A command's requirements as --dry_run prints them: GPUs, memory, a C compiler, disk.

The dry run may be on another machine than the run, such as a login node. So a missing requirement is a line that begins
with "missing:", not an error. No weights are loaded.
"""

import functools
import math
import os
import shutil
import sysconfig
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from utils.cli import UserError
from utils.cli.errors import printable
from utils.models.adapters import adapter_base
from utils.models.devices import MEANT, find_capabilities, has_gpu
from utils.models.hub import cached_folder, find_headers
from utils.models.loading import load_config
from utils.models.memory import (
    ALLOWANCE,
    BLOCK,
    GB,
    Gpu,
    count_bytes,
    count_gpus,
    gpu_problems,
    read_size,
    refuse_too_large,
)


class Loaded(NamedTuple):
    """A model that vLLM would load. Both lengths are tokens of prompt and output together."""

    name: str
    length: int
    limit: int | None  # the model's own limit; None if its config does not say


def _or_missing(check: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Make a check return its lines, or one that begins with "missing:" if it raises UserError."""

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
    """Describe the GPUs here and each model that vLLM would load on them (flags of `cli.add_engine_arguments`)."""
    gpus = _find_gpus()
    lines = _describe_gpus(gpus)
    if gpus:
        lines += [*map(_missing, gpu_problems(gpus, args)), *_check_bfloat16(args.dtype)]
    used = gpus[: count_gpus(args)]
    return lines + [line for model in dict.fromkeys(models) for line in _describe_model(args, model, used)]


@_or_missing
def describe_weights(name: str, cache_dir: str | None, value_bytes: int, what: str = "weights") -> list[str]:
    """Describe the GPUs here and a model that transformers would load with `value_bytes` per weight."""
    gpus = _find_gpus()
    lines = _describe_gpus(gpus)
    if headers := find_headers(name, cache_dir):  # unknown for pickled weights
        needed = count_bytes(headers, value_bytes, without_head=False)
        lines.append(f"{name}: {needed / GB:.1f} GB of {what} per GPU; activations come on top")
        try:
            refuse_too_large(f"the {what} of {name}", needed, min((gpu.total for gpu in gpus), default=math.inf))
        except UserError as error:
            lines.append(_missing(str(error)))
    return lines


@_or_missing
def describe_disk(path: str, needed: int = 0) -> list[str]:
    """Describe the disk of an output that takes up to `needed` bytes (0: not mentioned)."""
    folder = next(folder for folder in Path(path).absolute().parents if folder.exists())
    free = shutil.disk_usage(folder).free
    line = f"disk of {folder}: {free / GB:.1f} GB free"
    line += f", the output takes up to {math.ceil(needed / 10**6):,} MB" if needed else ""
    if free < needed:
        raise UserError(f"{line}\n  free some space, or put the output on another disk")
    return [line]


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
    lines = [f"GPU {gpu.index}: {gpu.name}, {gpu.free / GB:.1f} of {gpu.total / GB:.1f} GB free" for gpu in gpus]
    return lines + _check_compiler()


@_or_missing
def _describe_model(args: Namespace, model: Loaded, gpus: list[Gpu]) -> list[str]:
    """Describe a model's requirements, and how it fits on these GPUs."""
    name, length, num_gpus, count = model.name, model.length, args.tensor_parallel_size, count_gpus(args)
    utilization = args.gpu_memory_utilization
    base = adapter_base(name) or name
    config = load_config(cached_folder(base, args.cache_dir))
    size = read_size(find_headers(base, args.cache_dir), config, args.dtype)
    if size is None:
        return [f"note: {name}: memory needs unknown"]
    if size.heads % num_gpus:
        raise UserError(f"--tensor_parallel_size {num_gpus}: does not divide the model's {size.heads} attention heads")
    loaded, request = size.loaded_bytes(num_gpus), size.request_bytes(length, num_gpus)
    needed, token_bytes = size.gpu_bytes(length, utilization, num_gpus), size.token_bytes(num_gpus)
    lines = [
        f"{name}: needs {count} GPU{'s' * (count > 1)} of {needed / GB:.1f} GB at --gpu_memory_utilization "
        f"{utilization:g}: {(loaded - ALLOWANCE) / GB:.1f} GB of weights, {ALLOWANCE / GB:.1f} for vLLM itself "
        "(a guess; up to 4.5, or 6.4 on several GPUs), "
        f"{request / GB:.2f} for a request of {length} tokens ({token_bytes / 1024:g} KiB per token)"
    ]
    if gpus:
        total = min(gpu.total for gpu in gpus)
        cache = int(utilization * total) - loaded
        longest = max(0, cache // (token_bytes * BLOCK)) * BLOCK  # in whole blocks
        if longest < length:
            shorter = f", or give --max_model_len {longest}" if longest else ""
            larger = "use larger GPUs, or more of them (--tensor_parallel_size)"
            return [*lines, f"missing: memory for {name} on GPUs of {total / GB:.1f} GB; {larger}{shorter}"]
        lines.append(
            f"{name}: {cache / GB:.1f} GB are left for the KV cache: {cache // request} requests of {length} tokens "
            f"at a time, longest --max_model_len {min(longest, model.limit or longest)}"
        )
    return lines


@_or_missing
def _check_bfloat16(dtype: str) -> list[str]:
    """Raise UserError if --dtype is bfloat16 and a GPU lacks it; otherwise, return a note for such a GPU."""
    for gpu, capability in find_capabilities().items():
        if capability < MEANT:
            what = f"{gpu} has compute capability {capability}, but bfloat16 and FlashAttention need at least {MEANT}"
            if dtype == "bfloat16":
                raise UserError(f"{what}\n  use another --dtype or a newer GPU")
            return [f"note: {what}: with --dtype auto, vLLM uses float16 (float32 for Gemma 2, with twice the memory)"]
    return []


@_or_missing
def _check_compiler() -> list[str]:
    """Raise UserError unless Triton, which vLLM and the trainings use on a GPU, can compile."""
    compiler = os.environ.get("CC", shutil.which("gcc") or shutil.which("clang"))
    if compiler is None or shutil.which(compiler) is None:
        problem = "no gcc or clang" if compiler is None else f"CC={compiler}: no such program"
        raise UserError(
            f"a C compiler, which Triton needs on a GPU: {problem}\n  load a module that has one, or set CC"
        )
    header = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")  # the scheme that Triton uses
    if not header.is_file():
        raise UserError(f"{header}, which Triton needs on a GPU\n  install Python's headers (python3-dev)")
    return [f"C compiler: {compiler}, with Python's headers"]
