"""The trainer's callback that writes a run's files, shows its progress, and stops it on SIGTERM or Ctrl-C."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import TrainerCallback

from utils import cli
from utils.cli.errors import counted
from utils.cli.progress import Progress, announce
from utils.files.manifest import read_folder_manifest, write_folder_manifest
from utils.files.writing import open_appending, sync_folder, write_atomically, write_line
from utils.training.checkpoints import (
    Run,
    Selection,
    find_checkpoints,
    has_mark,
    link_checkpoints,
    remove_checkpoint,
    step_of,
)

INTERIM_SECONDS = 900  # save an interim checkpoint after this time without one: the most that a kill costs
SAME_SIGNAL = 2  # seconds in which a second signal counts as the first: torch's launcher forwards it to all processes
LOG_FIELDS = (
    "step", "epoch", "loss", "grad_norm", "learning_rate", "mean_token_accuracy",
    "eval_loss", "eval_aspect_recall", "eval_plans", "eval_plans_without_an_aspect", "eval_score", "eval_seconds",
    "rewards/margins", "rewards/accuracies", "train_runtime",
)  # fmt: skip


class Stopper:
    """A context that records signals; the training checks for them where it can be resumed.

    A second signal ends the process immediately.
    """

    def __init__(self) -> None:
        self.has_signal = False
        self.step = 0  # the last finished step
        self.saved = 0  # the step of the checkpoint to resume from; 0 without a checkpoint
        self._first = 0.0
        self._at_once = False

    def __enter__(self) -> "Stopper":
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind not in (KeyboardInterrupt, SystemExit):  # a leaving process must not be interrupted again
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _message(self) -> str:
        if self.step == 0:
            return "stopped before the end of the first step, so nothing is kept; run the same command again"
        return f"stopped after step {self.step}; {self.kept}, run the same command again"

    @property
    def kept(self) -> str:
        return f"checkpoint-{self.saved} is kept" if self.saved else "no checkpoint is kept"

    def leave(self) -> NoReturn:
        """Leave as `run_script` expects on a signal; only the first process prints a message."""
        if cli.is_first_process():
            raise KeyboardInterrupt(self._message())
        raise SystemExit(cli.INTERRUPTED)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the process immediately, while no unsaved step can be lost."""
        self._at_once = True
        try:
            if self.has_signal:
                self.leave()
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: object) -> None:
        if self.has_signal:
            if time.monotonic() - self._first > SAME_SIGNAL:
                if cli.is_first_process():
                    _print(self._message())
                os._exit(cli.INTERRUPTED)
            return
        self.has_signal, self._first = True, time.monotonic()
        if self._at_once:
            self.leave()
        if cli.is_first_process():
            _print("stopping after this step, with a checkpoint; a second signal leaves now")


def _print(text: str) -> None:
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode())  # the signal may have interrupted print


class Recorder(TrainerCallback):
    """Writes the run's files and shows its progress, in the first process only.

    training_log.jsonl has one line of figures per step and evaluation; a resumed run rewrites it from its checkpoint's
    log. A checkpoint is complete once it has a manifest.json.
    """

    def __init__(self, run: Run, manifest: dict[str, Any], selection: Selection, accelerator: Any):
        self.stopper = Stopper()
        self._run, self._selection, self._accelerator = run, selection, accelerator
        self._manifest = manifest  # written to every checkpoint
        self._log: Any = None
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # otherwise a resumed run would use the checkpoint's --save_steps
        self.stopper.step = self.stopper.saved = state.global_step
        self._saved_at = time.monotonic()
        if not state.is_world_process_zero:
            return
        for checkpoint in self._run.replaced:  # only now, after all checks of the settings
            remove_checkpoint(checkpoint)
        if self._run.checkpoint is None:
            for name in ("best", "last", "trainer_state.json"):
                (self._run.folder / name).unlink(missing_ok=True)
        elif self._run.begins_with_evaluation:  # drop this step's evaluation, which a killed run may have logged
            state.log_history[:] = [
                entry
                for entry in state.log_history
                if self._selection.figure not in entry or entry["step"] < state.global_step
            ]
        log = self._run.folder / "training_log.jsonl"
        log.unlink(missing_ok=True)
        self._log = open_appending(log)
        for figures in state.log_history:
            self._write(figures)
        write_folder_manifest(self._run.folder, self._manifest)
        if state.global_step < state.max_steps:
            self._progress = Progress(state.max_steps, "steps", initial=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        figures = state.log_history[-1]
        if state.is_world_process_zero:
            self._write(figures)
        if self._progress is not None and "loss" in figures:  # the step's own loss, which is not known before
            self._progress.update(1, loss=f"{figures['loss']:.3f}")
            if state.global_step == state.max_steps:
                self._progress.close()  # saving and evaluating are not part of it

    def _write(self, figures: dict[str, Any]) -> None:
        kept = {name: figures[name] for name in LOG_FIELDS if name in figures}
        write_line(self._log, json.dumps(kept).encode() + b"\n", self._run.folder / "training_log.jsonl")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopper.step = state.global_step
        is_due = time.monotonic() - self._saved_at >= INTERIM_SECONDS
        if self._in_any_process(self.stopper.has_signal or is_due) and state.global_step < state.max_steps:
            control.should_save = True

    def _in_any_process(self, is_so: bool) -> bool:
        """Return whether `is_so` is True in any process; all processes must call this, and wait for each other here."""
        if self._accelerator.num_processes == 1:
            return is_so
        return self._accelerator.reduce(torch.tensor(int(is_so), device=self._accelerator.device), "sum").item() > 0

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        figures, patience = self._evaluations(state), self._selection.patience
        best = self._selection.best_of(figures) or 0
        stops = patience is not None and sum(step > best for step in figures) >= patience
        if state.is_world_process_zero:
            recall = metrics.get("eval_aspect_recall")
            score = f"{self._selection.words} {metrics[self._selection.figure]:z.4f}"
            if recall is not None:
                score += f", aspect recall {recall:.3f} of {counted(metrics['eval_plans'], 'plan')}"
            announce(f"step {state.global_step}: {score}")
            is_interim = has_mark(self._checkpoint(state.global_step), "interim")
            self._complete(state, interim=is_interim, stopped_early=stops)
            if not self._selection.keeps_all:  # because AdamW's states triple a full model's size
                kept = {state.global_step, self.best(state)["best_step"]}
                for checkpoint in find_checkpoints(self._run.folder):
                    if step_of(checkpoint) not in kept:
                        remove_checkpoint(checkpoint)
        if stops:
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Complete a checkpoint once all processes have written their parts; then leave if any process got a signal.

        All processes leave at the same point, because saving needs all of them.
        """
        self._accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            checkpoint = self._checkpoint(state.global_step)
            (checkpoint / "README.md").unlink(missing_ok=True)  # PEFT's, an empty template
            with suppress(OSError):  # safetensors makes files readable for their owner only; not all disks have modes
                for weights in checkpoint.glob("*.safetensors"):
                    shutil.copymode(checkpoint / "trainer_state.json", weights)
            interim = state.global_step % state.save_steps > 0 and state.global_step < state.max_steps
            self._complete(state, interim=interim, unevaluated=control.should_evaluate)
            for earlier in find_checkpoints(self._run.folder):
                is_whole = read_folder_manifest(earlier) is not None and not has_mark(earlier, "interim")
                if step_of(earlier) < state.global_step and not is_whole:
                    remove_checkpoint(earlier)
        self.stopper.saved, self._saved_at = state.global_step, time.monotonic()
        is_unfinished = state.global_step < state.max_steps or control.should_evaluate
        if self._in_any_process(self.stopper.has_signal) and is_unfinished:
            self.stopper.leave()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._save_state(state, self._run.folder)

    def _complete(self, state: Any, **marks: bool) -> None:
        """Write the manifest that completes a checkpoint, then link it if it is the best or last one."""
        folder, checkpoint = self._run.folder, self._checkpoint(state.global_step)
        best = self.best(state)
        self._save_state(state, checkpoint)
        self._save_state(state, folder)
        sync_folder(checkpoint)  # a power cut leaves it whole, or without a manifest
        marks = {name: True for name, is_so in marks.items() if is_so}
        write_folder_manifest(checkpoint, {**self._manifest, "step": state.global_step, **best, **marks})
        link_checkpoints(folder, checkpoint)

    def _save_state(self, state: Any, folder: Path) -> None:
        """Write trainer_state.json atomically, as `TrainerState.save_to_json` would."""
        write_atomically(folder / "trainer_state.json", json.dumps(asdict(state), indent=2, sort_keys=True) + "\n")

    def best(self, state: Any) -> dict[str, Any]:
        """Return step and figure of the best evaluated checkpoint that is not interim; both None if there is none."""
        figures = {
            step: figure
            for step, figure in self._evaluations(state).items()
            if (path := self._checkpoint(step)).is_dir() and not has_mark(path, "interim")
        }
        step = self._selection.best_of(figures)
        return {"best_step": step, self._selection.name: figures.get(step)}

    def _evaluations(self, state: Any) -> dict[int, float]:
        figure = self._selection.figure
        return {entry["step"]: entry[figure] for entry in state.log_history if figure in entry}

    def _checkpoint(self, step: int) -> Path:
        return self._run.folder / f"checkpoint-{step}"
