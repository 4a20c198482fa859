"""Before a job: are the models whole, are the GPUs free, and do the ones fit on the others. Fetches nothing."""

import os
import shutil
import sysconfig
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.checks.judge_length import judge_length
from utils.checks.report import Report
from utils.cli import UserError
from utils.generation.chat import PAPER_LENGTH, LocalChat, choose_length
from utils.models.devices import MEANT, check_devices, find_capabilities, has_gpu
from utils.models.hub import adapter_base, cached_commit, cached_folder, check_model, suggesting_openai
from utils.models.memory import (
    ALLOWANCE,
    GB,
    Gpu,
    ModelSize,
    check_gpu_count,
    check_gpu_free,
    find_gpus,
    fit_model,
    is_encoder,
    load_config,
    most_allowance,
    read_size,
)


@dataclass(frozen=True)
class Generator:
    """A model that writes text, in vLLM.

    Attributes:
        length: tokens of prompt and output together that it is to be loaded for.
        limit: the most that it was made for; None where its config doesn't say.
    """

    size: ModelSize
    length: int
    limit: int | None


def check_models(report: Report, args: Namespace, records: list[dict[str, Any]]) -> None:
    """Check --model_addr, --evaluator_llm, the GPUs, and what of the models fits on them.

    Args:
        args: the flags of utils/preflight.py, and why nothing is asked of the hub (`check_model`).
        records: the questions that a judge is to see.
    """

    def of_generator(chat: LocalChat) -> int:
        return choose_length(chat, args.max_model_len, 0, PAPER_LENGTH)

    def of_judge(chat: LocalChat) -> int:
        return judge_length(report, args, records, chat)

    lengths = [(name, of_generator) for name in args.model_addr or []]
    lengths += [(args.evaluator_llm, of_judge)] if args.evaluator_llm else []
    found = [(name, report.attempt(check_local_model, report, name, args, length)) for name, length in lengths]
    if all(model == "encoder" for _, model in found):
        if args.gpu_memory is None:
            report.attempt(check_devices)
        return  # it takes the memory it needs, not a share of the GPU
    gpu_memory = report.attempt(check_gpus, report, args)
    for name, model in found:
        if isinstance(model, Generator) and gpu_memory is not None:
            report.attempt(check_fit, report, name, model, gpu_memory, args)
    if gpu_memory is not None and args.gpu_memory is None:
        report.attempt(check_compiler, report)


def check_local_model(
    report: Report, name: str, args: Namespace, length: Callable[[LocalChat], int]
) -> Generator | str:
    """A model that is whole: a generator, or "encoder".

    Args:
        length: tokens that a generator is to be loaded for.

    Raises:
        UserError: it is not whole, or a generator with pickled weights, without a chat template, or with a lower
            limit than --max_model_len.
    """
    with suggesting_openai():
        check_model(name, args.cache_dir, why_offline=args.why_offline)
    base = adapter_base(name) or name
    commit = cached_commit(base, args.cache_dir)
    source = f"commit {commit}" if commit else "a folder"
    config = load_config(cached_folder(base, args.cache_dir))
    if is_encoder(config):
        report.ok(f"model {name}: an encoder, {source}")
        return "encoder"
    for part in dict.fromkeys([name, base]):
        if not any(cached_folder(part, args.cache_dir).glob("*.safetensors")):
            raise UserError(f"{part}: its weights are pickled (*.bin); vLLM reads them from *.safetensors only")
    size = read_size(cached_folder(base, args.cache_dir), config, args.dtype)
    chat = LocalChat(name, args.cache_dir)
    tokens = length(chat)
    what = f"adapter on {base}, " if base != name else ""
    report.ok(f"model {name}: {what}{size.parameters:,} parameters, {source}")
    return Generator(size, tokens, chat.model_limit)


def check_gpus(report: Report, args: Namespace) -> float | None:
    """Bytes of the smallest GPU that is to be used, None where there is none to compute for."""
    count, utilization = args.tensor_parallel_size, args.gpu_memory_utilization
    if args.gpu_memory is not None:
        report.note(f"GPU: computed for {count} of {args.gpu_memory:g} GB; those here are not looked at")
        return args.gpu_memory * GB
    if not has_gpu():
        report.note("GPU: none here, so memory is not checked; --gpu_memory GB computes for one that is elsewhere")
        return None
    gpus = find_gpus()
    report.attempt(check_gpu_count, len(gpus), count)
    report.attempt(check_bfloat16, report, args.dtype)
    for index, gpu in enumerate(gpus[:count]):
        report.attempt(check_gpu, report, index, gpu, utilization)
    return min(gpu.total for gpu in gpus[:count])


def check_bfloat16(report: Report, dtype: str) -> None:
    """Raise UserError where --dtype asks for bfloat16 of a GPU without; else say what is computed in instead."""
    for gpu, capability in find_capabilities().items():
        if capability >= MEANT:
            continue
        what = f"{gpu} has compute capability {capability}, and bfloat16 and FlashAttention begin at {MEANT}"
        if dtype == "bfloat16":
            raise UserError(f"{what}\n  take another --dtype or a newer GPU")
        report.note(
            f"{what}: with --dtype auto vLLM takes float16 (for Gemma 2 float32, with twice the memory), "
            "the planner is trained in fp32"
        )


def check_gpu(report: Report, index: int, gpu: Gpu, utilization: float) -> None:
    check_gpu_free(index, gpu.free, gpu.total, utilization)
    report.ok(f"GPU {index}: {gpu.name}, {gpu.free / GB:.1f} of {gpu.total / GB:.1f} GB free")


def check_compiler(report: Report) -> None:
    """Raise UserError unless Triton, which vLLM and the planner's training compute with on a GPU, can compile."""
    compiler = os.environ.get("CC", shutil.which("gcc") or shutil.which("clang"))
    if compiler is None:
        raise UserError(
            "no C compiler is here, and Triton needs one on a GPU\n  load a module that has gcc, or name one in CC"
        )
    if shutil.which(compiler) is None:
        raise UserError(f"CC={compiler}: no such program, and Triton needs a C compiler on a GPU\n  name it alone")
    header = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")  # the scheme that Triton takes
    if not header.is_file():
        raise UserError(
            f"{header}: no such file, and Triton needs it on a GPU\n"
            "  install Python's headers (python3-dev), or take a Python that has them"
        )
    report.ok(f"C compiler: {compiler}, with Python's headers")


def check_fit(report: Report, name: str, model: Generator, gpu_memory: float, args: Namespace) -> None:
    """Raise UserError unless the model, and one sequence of the length it is loaded for, fit on the GPUs.

    A note where they fit by the guessed allowance, and not if vLLM takes the most that logs of others have.
    """
    length, utilization, num_gpus = model.length, args.gpu_memory_utilization, args.tensor_parallel_size
    fit = fit_model(model.size, gpu_memory, utilization, num_gpus)
    longest = min(fit.tokens, model.limit or fit.tokens)
    sum_up = (
        f"memory {name}: of {utilization:g} x {gpu_memory / GB:.1f} GB a GPU, {fit.weights / GB:.1f} are weights and "
        f"{ALLOWANCE / GB:.1f} a guessed allowance; {max(fit.cache, 0) / GB:.1f} are left for a KV cache of "
        f"{fit.token_bytes / 1024:g} KiB a token"
    )
    if fit.tokens == 0:
        raise UserError(f"{sum_up}\n  take a larger GPU, or more of them (--tensor_parallel_size)")
    if fit.tokens < length:
        raise UserError(f"{sum_up}\n  {length} tokens do not fit, --max_model_len {longest} may; or take more GPUs")
    sum_up += f"; {fit.requests(length)} requests of {length} tokens at once; longest --max_model_len {longest}"
    most = most_allowance(num_gpus)
    surest = fit_model(model.size, gpu_memory, utilization, num_gpus, most).tokens
    if surest < length:
        way_out = f"--max_model_len {surest} or more GPUs" if surest else "larger GPUs or more of them"
        report.note(
            f"{sum_up}; may not fit: by published logs the allowance may be up to {most / GB:.1f}"
            f"{' on each of several GPUs' if num_gpus > 1 else ''}; try it before a long job, or take {way_out}"
        )
    else:
        report.ok(sum_up)
