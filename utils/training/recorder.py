"""The trainer's callback that writes a run's files and shows its progress."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from utils.cli.progress import Progress, announce
from utils.files.manifest import write_folder_manifest
from utils.files.writing import open_appending, sync_folder, write_atomically, write_line
from utils.training.checkpoints import (
    Run,
    Selection,
    find_checkpoints,
    is_interim,
    link_checkpoints,
    remove_checkpoint,
    remove_superseded,
    step_of,
)
from utils.training.stopping import Stopper

LOG_FIELDS = (
    "step", "epoch", "loss", "grad_norm", "learning_rate", "mean_token_accuracy",
    "eval_loss", "eval_aspect_recall", "eval_plans", "eval_plans_without_an_aspect", "eval_score", "eval_seconds",
    "rewards/margins", "rewards/accuracies", "reward", "reward_std", "completions/mean_length", "train_runtime",
)  # fmt: skip


def describe_evaluation(selection: Selection, metrics: dict[str, float]) -> str:
    """Return an evaluation's figure in words, for a planner also its aspect recall."""
    recall = metrics.get("eval_aspect_recall")
    plans = "" if recall is None else f", aspect recall {recall:.3f} of {metrics['eval_plans']} plans"
    return f"{selection.words} {metrics[selection.figure]:.4f}{plans}"


class Recorder(TrainerCallback):
    """Writes the run's files and shows its progress, in the first process only.

    training_log.jsonl has one line of figures per step and evaluation; a resumed run rewrites it from its checkpoint's
    log. A checkpoint without manifest.json is incomplete.
    """

    def __init__(self, run: Run, manifest: dict[str, Any], selection: Selection):
        self.manifest = manifest  # written to every checkpoint
        self._selection = selection
        self.stopper = Stopper()
        self._run = run
        self._log: Any = None
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # else a resumed run would use the checkpoint's --save_steps
        self.stopper.step = self.stopper.saved = state.global_step
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
        write_folder_manifest(self._run.folder, self.manifest)
        if state.global_step < state.max_steps:
            self._progress = Progress(state.max_steps, "steps", initial=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._write(state.log_history[-1])

    def _write(self, figures: dict[str, Any]) -> None:
        kept = {name: figures[name] for name in LOG_FIELDS if name in figures}
        write_line(self._log, json.dumps(kept).encode() + b"\n", self._run.folder / "training_log.jsonl")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopper.step = state.global_step
        if self._progress is not None:
            last = next((f"{entry['loss']:.3f}" for entry in reversed(state.log_history) if "loss" in entry), "-")
            self._progress.update(1, loss=last)
            if state.global_step == state.max_steps:
                self._progress.close()  # saving and evaluating are not part of it

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        stops = self._is_out_of_patience(state)
        if state.is_world_process_zero:
            announce(f"step {state.global_step}: {describe_evaluation(self._selection, metrics)}")
            self._call_whole(state, interim=is_interim(self._checkpoint(state.global_step)), stops=stops)
            if not self._selection.keeps_all:
                self._remove_others(state)
        if stops:
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            interim = state.global_step % state.save_steps > 0 and state.global_step < state.max_steps
            self._call_whole(state, interim, unevaluated=control.should_evaluate)
            remove_superseded(self._run.folder, state.global_step)
        self.stopper.saved = state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._save_state(state, self._run.folder)

    def _call_whole(self, state: Any, interim: bool, unevaluated: bool = False, stops: bool = False) -> None:
        """Write the manifest that completes a checkpoint, then link it if it is the best or last one."""
        folder, checkpoint, best = self._run.folder, self._checkpoint(state.global_step), self.best(state)
        self._save_state(state, checkpoint)
        self._save_state(state, folder)
        sync_folder(checkpoint)  # a power cut leaves it whole, or without a manifest
        found = {"interim": interim, "unevaluated": unevaluated, "stopped_early": stops}
        marks = {name: True for name, is_so in found.items() if is_so}
        manifest = {**self.manifest, "step": state.global_step, **best, **marks}
        write_folder_manifest(checkpoint, manifest)
        link_checkpoints(folder, checkpoint)

    def _save_state(self, state: Any, folder: Path) -> None:
        """Write trainer_state.json atomically, as `TrainerState.save_to_json` would."""
        write_atomically(folder / "trainer_state.json", json.dumps(asdict(state), indent=2, sort_keys=True) + "\n")

    def best(self, state: Any) -> dict[str, Any]:
        """Return step and figure of the best evaluated checkpoint that is not interim; None without one."""
        found = self._evaluations(state)
        saved = [step for step in found if (path := self._checkpoint(step)).is_dir() and not is_interim(path)]
        step = self._selection.best_of({step: found[step] for step in saved})
        return {"best_step": step, self._selection.name: found.get(step)}

    def _evaluations(self, state: Any) -> dict[int, float]:
        figure = self._selection.figure
        return {entry["step"]: entry[figure] for entry in state.log_history if figure in entry}

    def _is_out_of_patience(self, state: Any) -> bool:
        found = self._evaluations(state)
        best, patience = self._selection.best_of(found), self._selection.patience
        return patience is not None and sum(step > (best or 0) for step in found) >= patience

    def _remove_others(self, state: Any) -> None:
        """Delete all checkpoints but this step's and the best, because AdamW's states triple a full model's size."""
        kept = {state.global_step, self.best(state)["best_step"]}
        for checkpoint in find_checkpoints(self._run.folder):
            if step_of(checkpoint) not in kept:
                remove_checkpoint(checkpoint)

    def _checkpoint(self, step: int) -> Path:
        return self._run.folder / f"checkpoint-{step}"
