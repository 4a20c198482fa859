"""How a study's training takes the GPUs of a node: a process each, which share the batch of one, or the first alone."""

import os
import re
import sys
from collections.abc import Iterable
from math import prod

from utils.benchmarks import tasks
from utils.checks.commands import module_of
from utils.cli import UserError
from utils.models.devices import check_devices
from utils.studies.state import Pending
from utils.studies.study import Study
from utils.training.launch import divide_batch

LAUNCHER = ("-m", "accelerate.commands.launch", "--multi_gpu", "--main_process_port", "0")  # 0 takes a free one
ASKED = re.compile(r"--gres[= ]\S*?gpu(?::[^:,\s]+)??(?::(\d+))?(?=[,(\s]|$)|--gpus(?:-per-\w+)?[= ](?:[^:\s]+:)?(\d+)")


def count_gpus(pending: list[Pending]) -> int:
    """GPUs that a training here would see; 0 where none is left to do."""
    if all(one.step.kind != "train" for one in pending):
        return 0
    import torch

    return torch.cuda.device_count()


def count_asked(words: Iterable[str]) -> int:
    """The GPUs that options of sbatch ask for, of which the last counts; 1 without any, as in train.sbatch."""
    found = ASKED.findall(" ".join(words))
    return int("".join(found[-1]) or 1) if found else 1


def check_training(study: Study, pending: list[Pending], is_submitted: bool) -> None:
    """Say where GPUs here cannot share a step, so that the training takes one.

    Raises:
        UserError: torch cannot use the GPUs that are here; a job asks for some that cannot share a step.
    """
    trainings = [one for one in pending if one.step.kind == "train"]
    if trainings and not is_submitted:
        check_devices()
    num_gpus = asked_for_training(study) if is_submitted else count_gpus(pending)
    if num_gpus < 2:
        return
    uneven = {prod(batch_of(one)) for one in trainings if batch_flags(one, num_gpus) is None}
    for step in sorted(uneven):
        text = f"{num_gpus} GPUs cannot share a step of {step} questions evenly"
        if is_submitted:
            raise UserError(f"{study.path}: slurm: train_resources: {text}; ask for a number that divides it")
        print(f"note: {text}, so training uses only the first", file=sys.stderr)


def asked_for_training(study: Study) -> int:
    return count_asked([*study.slurm["sbatch_args"], *study.slurm["train_resources"]])


def batch_of(one: Pending) -> tuple[int, int]:
    """A training's batch size and accumulation, as its flags and their defaults are for one process."""
    args = one.arguments()
    module_of(one.step.script).make_fingerprint(args, tasks()[one.step.task])  # works out defaults
    return args.per_device_train_batch_size, args.gradient_accumulation_steps


def batch_flags(one: Pending, num_gpus: int) -> list[str] | None:
    """What has each process of a training do its share of a step; None where they cannot share it evenly."""
    if (batch := divide_batch(*batch_of(one), num_gpus)) is None:
        return None
    return ["--per_device_train_batch_size", str(batch[0]), "--gradient_accumulation_steps", str(batch[1])]


def launch(one: Pending, words: list[str], num_gpus: int) -> tuple[dict[str, str], list[str]]:
    """A command as it is run here: variables, and the words behind the interpreter.

    Args:
        one: the step.
        words: its script, by a path from here, and flags.
        num_gpus: those that torch sees.
    """
    if one.step.kind != "train" or num_gpus < 2:
        return {}, words
    if (flags := batch_flags(one, num_gpus)) is None:
        return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]}, words
    return {}, [*LAUNCHER, "--num_processes", str(num_gpus), *words, *flags]
