"""The trainer's callback: it writes the run's files, shows progress, and saves and stops on SIGTERM or Ctrl-C."""

import json
import math
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import torch
from transformers import TrainerCallback

from utils.base import cli
from utils.base.errors import UserError, count_noun
from utils.base.manifest import read_folder_manifest, write_folder_manifest
from utils.base.progress import Progress, announce
from utils.base.writing import open_appending, sync_folder, write_line
from utils.training.checkpoints import (
    Run,
    Selection,
    find_checkpoints,
    is_interim,
    link_checkpoints,
    remove_checkpoint,
    step_of,
)

INTERIM_SECONDS = 900  # longest time without a checkpoint, and so the most work that a kill costs
SAME_SIGNAL = 2  # seconds in which a second signal is ignored, because torch's launcher forwards the first one again
LOG_FIELDS = (
    "step", "epoch", "loss", "grad_norm", "learning_rate", "mean_token_accuracy",
    "eval_loss", "eval_aspect_recall", "eval_plans", "eval_plans_without_an_aspect", "eval_score", "eval_seconds",
    "rewards/margins", "rewards/accuracies", "train_runtime",
)  # fmt: skip


class Signals:
    """A context that records the first SIGINT or SIGTERM; a second one ends the process immediately."""

    def __init__(self) -> None:
        self.first: float | None = None  # when it came, by time.monotonic

    def __enter__(self) -> "Signals":
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        if self.first is None:
            self.first = time.monotonic()
            if cli.is_first_process():
                with suppress(OSError):  # not print, which the signal may have interrupted
                    os.write(sys.stderr.fileno(), b"stopping once a step is saved; a second signal ends the run now\n")
        elif time.monotonic() - self.first > SAME_SIGNAL:
            os._exit(cli.INTERRUPTED)


class Recorder(TrainerCallback):
    """Writes the run's files and shows progress, in the first process only; decides when to save and to stop.

    training_log.jsonl has one line of figures per step and per evaluation; a resumed run rewrites it from the log in
    its checkpoint. A checkpoint is complete once it has a manifest.json.
    """

    def __init__(self, run: Run, manifest: dict[str, Any], selection: Selection, accelerator: Any):
        self.signals = Signals()
        self.is_stopped = False  # by a signal, before the last step
        self._run, self._selection, self._accelerator = run, selection, accelerator
        self._manifest = manifest  # written to every checkpoint
        self._log: Any = None
        self._progress: Progress | None = None
        self._batches = 0  # finished in the current step

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved_at = time.monotonic()
        if not state.is_world_process_zero:
            return
        for checkpoint in self._run.replaced:  # not earlier, because all settings had to be checked first
            remove_checkpoint(checkpoint)
        if self._run.checkpoint is None:
            for name in ("best", "last"):
                (self._run.folder / name).unlink(missing_ok=True)
        log = self._run.folder / "training_log.jsonl"
        log.unlink(missing_ok=True)
        self._log = open_appending(log)
        for figures in state.log_history:
            self._write(figures)
        write_folder_manifest(self._run.folder, self._manifest)
        if state.global_step < state.max_steps:
            self._progress = Progress(state.max_steps, "steps", initial=state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any, **kwargs: Any) -> None:
        """Draw the order from seed and epoch alone, so that a run resumed within the epoch draws the same one."""
        batches = train_dataloader.batch_sampler
        sampler = getattr(batches, "batch_sampler", batches).sampler  # accelerate wraps it for several processes
        sampler.generator = torch.Generator().manual_seed(args.seed + int(state.epoch))

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Show the finished batches of the current step, because a step may take minutes."""
        self._batches += 1
        if self._progress is not None:
            self._progress.update(0, batches=f"{self._batches}/{args.gradient_accumulation_steps}")

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write and show a step's or an evaluation's figures.

        Raises:
            UserError: the norm of the step's gradients is not finite. All processes raise it, before the step is saved,
                so the checkpoints of earlier steps stay.
        """
        figures = state.log_history[-1]
        if not math.isfinite(norm := figures.get("grad_norm", 0.0)):
            raise UserError(
                f"step {state.global_step}: the gradient norm is {norm}, so training cannot continue; "
                "checkpoints of earlier steps are kept\n"
                "  run the same command again; if it fails again, use a lower --learning_rate and a new --output_dir,\n"
                "  or run make test-gpu, which checks that the GPU computes attention correctly (docs/gpu.md)"
            )
        if state.is_world_process_zero:
            self._write(figures)
        if self._progress is not None and "loss" in figures:  # a step's line, not an evaluation's
            self._batches, size = 0, args.gradient_accumulation_steps
            batches = {"batches": f"0/{size}"} if size > 1 else {}
            self._progress.update(1, loss=f"{figures['loss']:.3f}", **batches)
            if state.global_step == state.max_steps:
                self._progress.close()  # before the last save and evaluation

    def _write(self, figures: dict[str, Any]) -> None:
        kept = {name: figures[name] for name in LOG_FIELDS if name in figures}
        write_line(self._log, json.dumps(kept).encode() + b"\n", self._run.folder / "training_log.jsonl")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop if any process got a signal, or save if it is time; all processes decide together."""
        is_due = time.monotonic() - self._saved_at >= INTERIM_SECONDS
        votes = torch.tensor([self.signals.first is not None, is_due], device=self._accelerator.device, dtype=torch.int)
        is_stopped, is_due = (self._accelerator.reduce(votes, "sum") > 0).tolist()
        if state.global_step < state.max_steps and (is_stopped or is_due):
            self.is_stopped, control.should_training_stop, control.should_save = is_stopped, is_stopped, True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        score = f"{self._selection.words} {metrics[self._selection.figure]:z.4f}"
        if "eval_aspect_recall" in metrics:
            score += (
                f", aspect recall {metrics['eval_aspect_recall']:.3f} of {count_noun(metrics['eval_plans'], 'plan')}"
            )
        announce(f"step {state.global_step}: {score}")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Complete a checkpoint once all processes have written their parts, then delete the ones that it replaces."""
        self._accelerator.wait_for_everyone()
        self._saved_at, step, best = time.monotonic(), state.global_step, self.best(state)
        control.should_training_stop |= self._selection.is_over(args, step, best["best_step"])
        if not state.is_world_process_zero:
            return
        checkpoint = self._run.folder / f"checkpoint-{step}"
        (checkpoint / "README.md").unlink(missing_ok=True)  # PEFT's empty template
        # TRL's copy of the reference model, which every start makes again.
        shutil.rmtree(checkpoint / "ref", ignore_errors=True)
        # Only the owner can read the files that safetensors writes; some file systems have no permissions to copy.
        with suppress(OSError):
            for weights in checkpoint.glob("*.safetensors"):
                shutil.copymode(checkpoint / "trainer_state.json", weights)
        sync_folder(checkpoint)  # after a power cut, it is complete or has no manifest
        write_folder_manifest(checkpoint, {**self._manifest, "step": step, **best})
        link_checkpoints(self._run.folder, checkpoint, args)
        announce(f"step {step}: saved {checkpoint}")
        last = step - step % args.save_steps if is_interim(args, step) else step
        for earlier in find_checkpoints(self._run.folder):
            number = step_of(earlier)
            is_regular = read_folder_manifest(earlier) is not None and not is_interim(args, number)
            is_kept = self._selection.keeps_all or best["best_step"] in (None, number) or number == last
            if number < step and not (is_regular and is_kept):
                remove_checkpoint(earlier)

    def best(self, state: Any) -> dict[str, Any]:
        """Return step and figure of the best evaluation (the first of equal ones); both None if no figure is finite."""
        figure = None if state.best_global_step is None else state.best_metric
        return {"best_step": state.best_global_step, self._selection.name: figure}
