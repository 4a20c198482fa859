"""The processes of a training, and what they say together. Free of torch until asked."""

import ctypes
import os
import signal
from argparse import Namespace
from datetime import timedelta
from pathlib import Path

from utils import cli
from utils.cli import UserError
from utils.models.machine import describe_disk, describe_weights

PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl  # here, for no library is to be opened between fork and exec
WAIT = timedelta(minutes=30)  # of a process for the others, which may load from a slow disk; NCCL's own is 10


def add_idle_flags(parser: cli.FlagParser) -> None:
    """Name the flags of every training that decide nothing about what it learns."""
    parser.decides_nothing("--inputs_addr --validation_addr --output_dir --model_addr --prompts_dir", "their hashes do")
    parser.decides_nothing(
        "--per_device_train_batch_size --gradient_accumulation_steps", "their product with the number of devices does"
    )
    parser.decides_nothing("--cache_dir --gradient_checkpointing", "how fast it trains")
    parser.decides_nothing("--report_to", "what is seen of a training")
    parser.decides_nothing("--resume --overwrite", "what may be replaced")


def say(text: str) -> None:
    """Print, once for all processes."""
    if cli.is_first_process():
        print(text, flush=True)


def say_machine(args: Namespace, value_bytes: int, what: str, disk: int = 0) -> None:
    """Print what this machine has and lacks for a training (--dry_run); see utils/models/machine.py."""
    lines = describe_weights(args.model_addr, args.cache_dir, value_bytes, what)
    say("\n".join([*lines, *describe_disk(f"{args.output_dir}/manifest.json", disk)]))


def num_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def effective_batch_size(args: Namespace) -> int:
    """Questions that one step learns from."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * num_processes()


def describe_batch(args: Namespace, what: str, paper: int) -> str:
    """How many of `what` a step learns from, and where that is another number than the paper's."""
    size = effective_batch_size(args)
    return (
        f"effective batch: {args.per_device_train_batch_size} on a device x {args.gradient_accumulation_steps} "
        f"accumulated x {num_processes()} processes = {size} {what} a step"
        + ("" if size == paper else f" (the paper's is {paper})")
    )


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone, however that ended."""
    _PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)


def check_launch(script: str) -> None:
    """Raise UserError where several GPUs are visible to one process, which could use only one.

    Of several processes each ends with torch's launcher. That gives each a session of its own, so what kills the
    launcher does not reach them, and they would go on and hold the GPUs.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    if "LOCAL_RANK" in os.environ:
        return
    import torch

    if (count := torch.cuda.device_count()) > 1:
        raise UserError(
            f"{count} GPUs are visible to one process\n"
            f"  use them all: accelerate launch --multi_gpu --num_processes {count} {script} ...\n"
            f"  or one of them: CUDA_VISIBLE_DEVICES=0 python {script} ..."
        )


def check_report_to(tracker: str) -> None:
    """Raise UserError unless transformers knows this tracker and its package is installed."""
    if tracker == "none":
        return
    from transformers.integrations import get_available_reporting_integrations

    if tracker not in (available := get_available_reporting_integrations()):
        found = ", ".join(available) or "none"
        raise UserError(f"--report_to {tracker}: not installed, or unknown to transformers; installed: {found}")


def describe_best(output_dir: str | Path, steps: int, best_step: int | None, found: str) -> str:
    """How a training has ended; `found` is what the best checkpoint's evaluation said."""
    if best_step is None:
        return f"{output_dir}: {steps} steps; nothing was evaluated, so no checkpoint is linked as best"
    return f"{output_dir}: {steps} steps; best is checkpoint-{best_step}, {found}"
