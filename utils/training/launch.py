"""The processes of a training, and what they say together. Free of torch until asked."""

import os
from argparse import Namespace
from datetime import timedelta
from pathlib import Path

from utils import cli
from utils.cli import UserError

WAIT = timedelta(minutes=30)  # of a process for the others, which may load from a slow disk; NCCL's own is 10


def say(text: str) -> None:
    """Print, once for all processes."""
    if cli.is_first_process():
        print(text, flush=True)


def num_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def effective_batch_size(args: Namespace) -> int:
    """Questions that one step learns from."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * num_processes()


def check_single_device(script: str = "train_planner.py") -> None:
    """Raise UserError where several GPUs are visible to one process, which could use only one."""
    import torch

    if (count := torch.cuda.device_count()) > 1:
        raise UserError(
            f"{count} GPUs are visible to one process\n"
            f"  use them all: accelerate launch --multi_gpu --num_processes {count} {script} ...\n"
            f"  or one of them: CUDA_VISIBLE_DEVICES=0 python {script} ..."
        )


def describe_best(output_dir: str | Path, steps: int, best_step: int | None, found: str) -> str:
    """How a training has ended; `found` is what the best checkpoint's evaluation said."""
    if best_step is None:
        return f"{output_dir}: {steps} steps; nothing was evaluated, so no checkpoint is linked as best"
    return f"{output_dir}: {steps} steps; best is checkpoint-{best_step}, {found}"
