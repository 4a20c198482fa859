"""Before a job: are the models whole, are the GPUs free, and do the ones fit on the others. Fetches nothing."""

import os
import shutil
import sysconfig
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

from utils.benchmarks import task_of
from utils.checks.commands import STEPS
from utils.checks.disk import free_bytes, training_room
from utils.checks.estimate import judge_length
from utils.checks.report import Report
from utils.cli import UserError
from utils.generation.chat import PAPER_LENGTH, LocalChat, choose_length
from utils.generation.plain_text import PlainText
from utils.generation.templates import template_variables
from utils.generation.thinking import find_thoughts
from utils.models import memory
from utils.models.devices import MEANT, check_devices, find_capabilities, has_gpu
from utils.models.hub import adapter_base, cached_commit, cached_folder, check_model, suggesting_openai
from utils.models.memory import GB


class Model(NamedTuple):
    """A model that is whole; lengths are tokens of prompt and output together."""

    name: str
    size: memory.ModelSize | None  # None where transformers runs it, in the memory that it needs, not a share of all
    length: int = 0  # that vLLM is to load it for
    limit: int | None = None  # that it was made for; None where its config doesn't say


def check_models(report: Report, args: Namespace, records: list[dict[str, Any]]) -> None:
    """Check --model_addr and --evaluator_llm, which are to see `records`, the GPUs, and what of them fits on these."""
    models = [(name, False) for name in args.model_addr or []]
    models += [(args.evaluator_llm, True)] if args.evaluator_llm else []
    found = [report.attempt(check_local_model, report, name, args, records, judges) for name, judges in models]
    report.attempt(check_memory, report, args, found)


def check_local_model(report: Report, name: str, args: Namespace, records: list[dict[str, Any]], judges: bool) -> Model:
    """Raise UserError unless a model is whole, which answers these questions, or judges the answers to them."""
    with suggesting_openai():
        check_model(name, args.cache_dir, why_offline=args.why_offline)
    base = adapter_base(name) or name
    folder, commit = cached_folder(base, args.cache_dir), cached_commit(base, args.cache_dir)
    source = f"commit {commit}" if commit else "a folder"
    config = memory.load_config(folder)
    if memory.is_encoder(config):
        report.ok(f"model {name}: an encoder, {source}")
        return Model(name, None)
    check_model(name, args.cache_dir, safetensors_only=True)  # as vLLM reads them
    if config.is_encoder_decoder and not judges:
        PlainText(name, args.cache_dir)
        report.ok(f"model {name}: an encoder-decoder, {source}")
        if args.step == "generator" and args.output_addr:  # of which all weights are learnt
            report.attempt(check_room, report, name, args)
        return Model(name, None)
    size = memory.read_size(folder, config, args.dtype)
    chat = LocalChat(name, args.cache_dir, template_variables(args))
    if judges:
        length = judge_length(report, args, records, chat)
    else:
        wanted = (task_of("--inputs_addr", [record]).prompt_length or PAPER_LENGTH for record in records)
        is_set, room = "max_tokens" in args.given, 0
        if writes_text(args):
            room = find_thoughts(args, chat, name).room(is_set, args.max_model_len, chat.model_limit)
        told = args.max_tokens if is_set and not args.choose else 0  # a planner's default is another one
        length = choose_length(chat, args.max_model_len, told, max(wanted, default=PAPER_LENGTH) + room)
        if room:
            report.note(f"model {name}: thinks, so {room} of its {length} tokens are for thoughts (a guess)")
    what = f"adapter on {base}, " if base != name else ""
    report.ok(f"model {name}: {what}{size.parameters:,} parameters, {source}")
    return Model(name, size, length, chat.model_limit)


def writes_text(args: Namespace) -> bool:
    """Do models here write what may have thoughts? Not those that choose, rank or are trained."""
    return not args.choose and args.step not in STEPS.values()


def check_room(report: Report, name: str, args: Namespace) -> None:
    """Raise UserError where the disk has no room for the checkpoints of a training."""
    folder = str(Path(args.output_addr[0]).parent)
    if room := training_room(name, args.cache_dir, folder):
        free = free_bytes(folder)
        what = f"disk of {folder}: {free / GB:.1f} GB free, the training's checkpoints take up to {room[0] / GB:.1f} GB"
        if free < room[0]:
            raise UserError(f"{what}\n  free some, or give an output on another disk")
        report.ok(what)


def check_memory(report: Report, args: Namespace, models: list[Model | None]) -> None:
    """The GPUs, and what of the models fits on them; None stands for a model that is not whole."""
    if all(model and model.size is None for model in models):
        if args.gpu_memory is None:
            check_devices()
        return
    if (gpu_memory := check_gpus(report, args)) is None:
        return
    for model in models:
        if model and model.size:
            report.attempt(check_fit, report, model, gpu_memory, args)
    if args.gpu_memory is None:
        report.attempt(check_compiler, report)


def check_gpus(report: Report, args: Namespace) -> float | None:
    """Bytes of the smallest GPU that is to be used, None where there is none to compute for."""
    count = memory.count_gpus(args)
    if args.gpu_memory is not None:
        report.note(f"GPU: computed for {count} of {args.gpu_memory:g} GB; those here are not looked at")
        return args.gpu_memory * GB
    if not has_gpu():
        report.note("GPU: none here, so memory is not checked; --gpu_memory GB computes for one that is elsewhere")
        return None
    gpus = memory.find_gpus()
    report.attempt(memory.check_gpu_count, len(gpus), args)
    report.attempt(check_bfloat16, report, args.dtype)
    for index, gpu in enumerate(gpus[:count]):
        report.attempt(check_gpu, report, index, gpu, args.gpu_memory_utilization)
    return min(gpu.total for gpu in gpus[:count])


def check_gpu(report: Report, index: int, gpu: memory.Gpu, utilization: float) -> None:
    memory.check_gpu_free(index, gpu.free, gpu.total, utilization)
    report.ok(f"GPU {index}: {gpu.name}, {gpu.free / GB:.1f} of {gpu.total / GB:.1f} GB free")


def check_bfloat16(report: Report, dtype: str) -> None:
    """Raise UserError where --dtype asks for bfloat16 of a GPU without; else say what is computed in instead."""
    for gpu, capability in find_capabilities().items():
        if capability >= MEANT:
            continue
        what = f"{gpu} has compute capability {capability}, and bfloat16 and FlashAttention begin at {MEANT}"
        if dtype == "bfloat16":
            raise UserError(f"{what}\n  take another --dtype or a newer GPU")
        instead = "vLLM takes float16 (for Gemma 2 float32, with twice the memory), the planner is trained in fp32"
        report.note(f"{what}: with --dtype auto {instead}")


def check_compiler(report: Report) -> None:
    """Raise UserError unless Triton, which vLLM and the planner's training compute with on a GPU, can compile."""
    compiler = os.environ.get("CC", shutil.which("gcc") or shutil.which("clang"))
    if compiler is None:
        remedy = "load a module that has gcc, or name one in CC"
        raise UserError(f"no C compiler is here, and Triton needs one on a GPU\n  {remedy}")
    if shutil.which(compiler) is None:
        raise UserError(f"CC={compiler}: no such program, and Triton needs a C compiler on a GPU\n  name it alone")
    header = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")  # the scheme that Triton takes
    if not header.is_file():
        remedy = "install Python's headers (python3-dev), or take a Python that has them"
        raise UserError(f"{header}: no such file, and Triton needs it on a GPU\n  {remedy}")
    report.ok(f"C compiler: {compiler}, with Python's headers")


def check_fit(report: Report, model: Model, gpu_memory: float, args: Namespace) -> None:
    """Raise UserError unless the model, and one sequence of the length it is loaded for, fit on the GPUs.

    A note where they fit by the guessed allowance, and not if vLLM takes the most that logs of others have.
    """
    length, utilization, num_gpus = model.length, args.gpu_memory_utilization, args.tensor_parallel_size
    fit = memory.fit_model(model.size, gpu_memory, utilization, num_gpus)
    block = memory.BLOCK * fit.token_bytes  # of the KV cache, which needs one at least
    what, more = f"the weights of {model.name}", "more of them (--tensor_parallel_size)"
    memory.refuse_too_large(what, fit.weights, gpu_memory, utilization, memory.ALLOWANCE + block, more)
    longest = min(fit.tokens, model.limit or fit.tokens)
    sum_up = (
        f"memory {model.name}: of {utilization:g} x {gpu_memory / GB:.1f} GB a GPU, {fit.weights / GB:.1f} are weights "
        f"and {memory.ALLOWANCE / GB:.1f} a guessed allowance; {max(fit.cache, 0) / GB:.1f} are left for a KV cache of "
        f"{fit.token_bytes / 1024:g} KiB a token"
    )
    if fit.tokens < length:
        raise UserError(f"{sum_up}\n  {length} tokens do not fit, --max_model_len {longest} may; or take more GPUs")
    sum_up += f"; {fit.requests(length)} requests of {length} tokens at once; longest --max_model_len {longest}"
    most = memory.most_allowance(num_gpus)
    surest = memory.fit_model(model.size, gpu_memory, utilization, num_gpus, most).tokens
    if surest >= length:
        report.ok(sum_up)
        return
    way_out = f"--max_model_len {surest} or more GPUs" if surest else "larger GPUs or more of them"
    allowance = f"{most / GB:.1f}{' on each of several GPUs' if num_gpus > 1 else ''}"
    doubt = f"may not fit: by published logs the allowance may be up to {allowance}"
    report.note(f"{sum_up}; {doubt}; try it before a long job, or take {way_out}")
