"""Flags, processes and messages that all training commands share. It imports torch only when needed."""

import argparse
import math
import os
from argparse import Namespace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from utils.base import cli
from utils.base.errors import UserError, count_noun, count_plural, num_processes
from utils.base.manifest import describe_run, file_hash, read_folder_manifest, refuse_unranked
from utils.base.progress import announce
from utils.benchmarks.checks import Record
from utils.data.datasets import Needs, read_dataset
from utils.models.devices import check_devices, set_up_allocator
from utils.models.loading import blaming, loading
from utils.models.machine import check_before_fetching, describe_weights
from utils.models.model_folder import ModelFolder
from utils.training.checkpoints import STATES, check_run, drop_states, open_run, step_of
from utils.training.examples import Training

WAIT = timedelta(minutes=30)  # how long processes wait for each other, because disks may be slow; NCCL's default is 10


def add_data_arguments(parser: cli.FlagParser, model_help: str) -> None:
    """Add the flags for data and model."""
    # fmt: off
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="ranked dataset to learn from")
    add("--validation_addr", metavar="FILE", help="ranked dataset to evaluate on (default: none)")
    add("--output_dir", required=True, metavar="DIR", help="folder for checkpoints and logs")
    add("--model_addr", required=True, metavar="MODEL", help=model_help)
    add("--cache_dir", help="where hub models are kept (default: Hugging Face's own cache)")
    # fmt: on
    parser.not_a_setting("--inputs_addr --validation_addr --output_dir --model_addr", "their hashes are settings")
    parser.not_a_setting("--cache_dir", "it only says where models are kept")
    parser.names_model("--model_addr")


def add_run_arguments(parser: cli.FlagParser) -> None:
    """Add the flags of the run itself; only the seed and the prompts affect the result."""
    # fmt: off
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--gradient_checkpointing", action=argparse.BooleanOptionalAction, default=True,
        help="recompute activations to save memory: a third slower, but long prompts fit (on)")
    add("--seed", type=cli.non_negative_int, default=0, help="seed of all sampling (%(default)s)")
    add("--resume", action=argparse.BooleanOptionalAction, default=True,
        help="resume from the last checkpoint; --no-resume deletes all and starts over (on)")
    add("--overwrite", action="store_true", help="replace an output that was made with other settings")
    add("--prompts_dir", metavar="DIR", help="prompts to use instead of the ones in prompts/")
    add("--report_to", metavar="NAME", default="none",
        help="also log to a tracker, by its name in transformers, such as wandb or tensorboard (%(default)s)")
    cli.add_dry_run_argument(parser, group, "report what would be trained and what this machine lacks; load no "
        "weights, write nothing")
    cli.add_log_argument(parser, group)
    # fmt: on
    parser.not_a_setting(
        "--per_device_train_batch_size --gradient_accumulation_steps",
        "their product with the number of devices is a setting",
    )
    parser.not_a_setting("--gradient_checkpointing", "it only changes speed and memory")
    parser.not_a_setting("--prompts_dir", "the prompt's hash is a setting")
    parser.not_a_setting("--report_to", "it only sends figures to a tracker")
    parser.not_a_setting("--resume --overwrite", "they only say what may be replaced")


def read_datasets(args: Namespace, needs: Needs) -> list[list[Record]]:
    """Return the training records and the validation records (an empty list without --validation_addr)."""
    return [read_dataset(path, needs) if path else [] for path in (args.inputs_addr, args.validation_addr)]


def check_ranked(args: Namespace) -> None:
    """Raise UserError if a dataset is not ranked, unless --unranked is set."""
    for path in filter(None, (args.inputs_addr, args.validation_addr)):
        refuse_unranked(path, args.unranked)


def settings_of(args: cli.Arguments, script: str, model: str, prompt: dict[str, str]) -> dict[str, Any]:
    """Return the settings that determine the trained model, with the effective batch size."""
    return args.settings() | {
        "script": script,
        "model": model,
        "inputs": file_hash(args.inputs_addr),
        "validation": args.validation_addr and file_hash(args.validation_addr),
        "prompt": prompt,
        "effective_batch_size": effective_batch_size(args),
    }


def execute(training: Training) -> int:
    """Train or resume, or with --dry_run only describe the training; return the exit code.

    UserError if the learning rate would be 0 in every step: a warm-up begins at 0.
    """
    args, settings = training.args, training.settings
    model = ModelFolder(args.model_addr, args.cache_dir)
    if args.learning_rate == 0 or (args.max_steps == 1 and args.warmup_steps):
        raise UserError(
            f"the learning rate would be 0 in every step: --learning_rate {args.learning_rate}, "
            f"{count_noun(args.max_steps, 'step')}, {args.warmup_steps} of them warm-up\n"
            "  use a higher rate, less warm-up or more steps"
        )
    if args.dry_run:
        check_run(args, settings)
        check_settings(args, model)
        what = "weights" if training.value_bytes == 2 else "weights, gradients and AdamW's averages"
        lines = describe_weights(model, training.value_bytes, what)
        say("\n".join([training.description, *lines]))
        return 0

    from accelerate import PartialState

    processes = PartialState(timeout=WAIT)
    with processes.main_process_first():  # the others then find the files as the first one left them
        run = open_run(args, settings)
    best_step = run.checkpoint and read_folder_manifest(run.checkpoint).get("best_step")
    if run.checkpoint and training.selection.is_over(args, step_of(run.checkpoint), best_step):
        say(f"{args.output_dir}: already finished; skipped")
    else:
        for name in STATES[:2]:  # without these files, transformers would silently start with new states
            if run.checkpoint is not None and not (run.checkpoint / name).is_file():
                what = f"{name} is missing, so training cannot resume; it is deleted when training has finished"
                raise UserError(f"{run.checkpoint}: {what}\n  add --no-resume to start over")
        check_settings(args, model)
        check_devices()
        check_before_fetching(model, training.value_bytes)
        say(training.description)
        announce(f"loading {args.model_addr}")
        from utils.training.trainer import train

        manifest = describe_run(vars(args), settings, None)
        manifest["notes"] = list(training.notes)
        figures = train(training, run, manifest, model.source)
        say(f"{args.output_dir}: {training.selection.describe_end(figures)}")
    if cli.is_first_process():
        drop_states(Path(args.output_dir))
    # Without this call, the group's threads may abort a process that has finished. After an error there is no call,
    # because it might wait for the other processes.
    processes.destroy_process_group()
    return 0


def check_settings(args: Namespace, model: ModelFolder) -> None:
    """Raise UserError if an encoder-decoder's config lacks a token that training needs, or cannot be saved.

    transformers validates some settings only when it saves a checkpoint. An adapter's checkpoint has none of them.
    """
    if args.lora_rank is not None:
        return
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig

    addr = model.addr
    with TemporaryDirectory() as folder:
        with loading(addr, "config.json"), torch.device("meta"):
            without_weights = AutoModelForSeq2SeqLM.from_config(AutoConfig.from_pretrained(addr, **model.source))
            without_weights.config.save_pretrained(folder)
        for name in ("pad_token_id", "decoder_start_token_id"):
            if getattr(without_weights.config, name, None) is None:
                raise UserError(
                    f"{addr}: its config.json has no {name}, which training needs\n  add it in a copy of the model"
                )
        path = model.file("generation_config.json")
        with blaming(
            lambda: (
                f"{addr}: its generation_config.json is invalid and cannot be saved; correct it in a copy of the model"
            )
        ):
            config = GenerationConfig.from_pretrained(path.parent) if path else without_weights.generation_config
            config.save_pretrained(folder)


def say(text: str) -> None:
    """Print a text in the first process only."""
    if cli.is_first_process():
        print(text, flush=True)


def effective_batch_size(args: Namespace) -> int:
    """Return the number of questions per step, over all processes."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * num_processes()


def steps_per_epoch(args: Namespace, num_examples: int) -> int:
    """Return the number of steps in one pass over the examples; the last step may have fewer examples."""
    at_once = args.per_device_train_batch_size * num_processes()
    return math.ceil(math.ceil(num_examples / at_once) / args.gradient_accumulation_steps)


def describe_batch(args: Namespace, items: str, paper: int | None) -> str:
    """Describe how many items, such as "questions", a step learns from, and the paper's number if it differs."""
    size = effective_batch_size(args)
    return (
        f"effective batch size: {args.per_device_train_batch_size} per device "
        f"x {count_noun(args.gradient_accumulation_steps, 'accumulation step')} "
        f"x {count_noun(num_processes(), 'process', 'processes')} = {count_plural(size, items)} per step"
        + ("" if paper in (None, size) else f" (paper: {paper})")
    )


def set_up(args: Namespace, script: str) -> None:
    """Set up the log and torch's memory, and check how the script was started.

    UserError if transformers does not know the tracker (--report_to) or its package is not installed, or if several
    GPUs are visible to one process, which would use only one.
    """
    cli.set_up_logging(args.log_level)
    set_up_allocator()
    if args.report_to != "none":
        from transformers.integrations import get_available_reporting_integrations

        if args.report_to not in (available := get_available_reporting_integrations()):
            names = ", ".join(available) or "none"
            raise UserError(
                f"--report_to {args.report_to}: not installed, or unknown to transformers; installed: {names}"
            )
    if cli.is_launched():
        return
    for name in cli.LAUNCHED:  # left from another program: torch would wait for processes that nobody starts
        os.environ.pop(name, None)
    import torch

    if (count := torch.cuda.device_count()) > 1:
        raise UserError(
            f"{count} GPUs are visible to one process\n"
            f"  use them all: accelerate launch --multi_gpu --num_processes {count} {script} ...\n"
            f"  or one of them: CUDA_VISIBLE_DEVICES=0 python {script} ..."
        )
