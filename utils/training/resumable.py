"""Stopping and resuming trainings, beyond what transformers' Trainer does.

It imports torch, transformers and accelerate.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerState

from utils.cli import UserError
from utils.cli.progress import announce
from utils.files.writing import naming
from utils.models.devices import fitting
from utils.models.loading import in_short
from utils.training.checkpoints import STATES, step_of
from utils.training.recorder import Recorder


class ByLengthInSteps(SeedableRandomSampler):
    """A random order in which each step's sequences are sorted by length, longest first.

    Batches then need little padding, and batches that several processes compute at the same time have similar lengths:
    accelerate deals batches out in turn, and all processes wait for the slowest. A step's sequences do not depend on
    how they are batched.

    An epoch is filled up to a multiple of `at_once` with the first sequences of its random order. Accelerate would fill
    it with the first sequences of the sorted order, which are the longest of the first step.
    """

    def __init__(self, lengths: list[int], step_size: int, seed: int, at_once: int = 1):
        super().__init__(lengths, data_seed=seed)  # as accelerate does
        self._lengths, self._step_size, self._at_once = lengths, step_size, at_once

    def __len__(self) -> int:
        return -(-len(self._lengths) // self._at_once) * self._at_once

    def __iter__(self) -> Iterator[int]:
        order = list(islice(cycle(list(super().__iter__())), len(self)))
        for start in range(0, len(order), self._step_size):
            yield from sorted(order[start : start + self._step_size], key=lambda index: -self._lengths[index])


class Resumable:
    """A mixin before a Trainer: it saves before evaluating and, on a signal, after the current step.

    A trainer has its Training as `_training`. A trainer that evaluates defines the evaluation (`figures`) and its
    description (`counts`).
    """

    length_flag = "--max_input_length"  # shortens sequences

    def learn(self, recorder: Recorder, checkpoint: Path | None, description: str) -> dict[str, Any]:
        """Train from the checkpoint, or from the start without one, up to --max_steps or until patience runs out.

        Args:
            description: a line on the device and the trained parameters, printed first.

        Returns:
            steps, best_step, and the best step's figure; the latter two are None if nothing was evaluated.
        """
        self.add_callback(recorder)
        self.remove_callback(PrinterCallback)
        self._stopper = recorder.stopper
        if self.is_world_process_zero():
            print(description + (f"\nresuming from {checkpoint}" if checkpoint else ""), flush=True)
        with self._stopper:
            self.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        return {"steps": self.state.global_step, **recorder.best(self.state)}

    def _load_from_checkpoint(self, checkpoint: str, *args: Any, **kwargs: Any) -> None:
        folder = Path(checkpoint)
        if not any(any(folder.glob(pattern)) for pattern in STATES):
            what = "is from a finished training without its later checkpoints; its optimizer state was deleted"
            raise UserError(f"{checkpoint}: {what}\n  --no-resume starts over")
        with reading(checkpoint):
            for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt"):
                if not (folder / name).is_file():  # transformers would silently reset that part
                    raise ValueError(f"{name} is missing")
            state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
            if state.global_step != step_of(folder) or not all("step" in entry for entry in state.log_history):
                raise ValueError("trainer_state.json is of another training")
            super()._load_from_checkpoint(checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with reading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with reading(checkpoint):
            super()._load_rng_state(checkpoint)

    def get_train_dataloader(self) -> DataLoader:
        loader, num_processes = super().get_train_dataloader(), self.accelerator.num_processes
        at_once = self.args.per_device_train_batch_size * num_processes
        if at_once > 1:  # otherwise there is no padding or waiting
            step_size = at_once * self.args.gradient_accumulation_steps
            filled = at_once if num_processes > 1 else 1  # otherwise the last batch is smaller
            # Set here, so that a run resumed within an epoch has it too.
            lengths = [example.length for example in self._training.examples]
            loader.set_sampler(ByLengthInSteps(lengths, step_size, self.args.seed, filled))
        return loader

    def _run_epoch(self, **kwargs: Any) -> None:
        # Skip training if the run resumes only for its last evaluation.
        if self.state.global_step < self.state.max_steps and not self.control.should_training_stop:
            super()._run_epoch(**kwargs)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        what = f"a batch of shape {tuple(inputs['input_ids'].shape)}, on {self.accelerator.device}"
        with fitting(what, self._remedy()):
            return super().training_step(model, inputs, *args, **kwargs)

    def _remedy(self) -> str:
        """Return flags that need less memory, if possible without changing a step, so that the run can resume."""
        size, steps = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        if size > 1:
            more = steps * size // (size // 2)
            return f"--per_device_train_batch_size {size // 2} --gradient_accumulation_steps {more}"
        if not self.args.gradient_checkpointing:
            return "leave out --no-gradient_checkpointing"
        return f"use a GPU with more memory, or a smaller {self.length_flag}"

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> float:
        """Return the norm of a step's unclipped gradients; called right before the optimizer's step.

        Reading it waits for the GPU, as the log would after the step anyway. All processes have the same gradients.

        Raises:
            UserError: the norm is not finite; weights and checkpoints still are those of the steps before.
        """
        norm = float(super()._get_grad_norm(*args, **kwargs))
        if not math.isfinite(norm):
            raise UserError(
                f"step {self.state.global_step + 1}: the gradient norm is {norm}, so this step cannot train anything; "
                f"{self._stopper.kept}\n"
                "  run the same command again; if the same step fails, lower --learning_rate in another --output_dir,\n"
                "  or run make test-gpu, which checks that the GPU computes attention correctly (docs/gpu.md)"
            )
        return norm

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        started = time.monotonic()
        if self.state.global_step > self._stopper.saved:  # first, so that a kill during the evaluation costs nothing
            self._save_checkpoint(self.model, None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        announce(f"step {self.state.global_step}: evaluating ({self.counts()})")
        self.model.eval()
        with self._stopper.at_once():
            metrics = self.figures()
        metrics["eval_seconds"] = round(time.monotonic() - started, 1)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        announce(f"step {self.state.global_step}: saving {checkpoint}")
        with naming(checkpoint):
            super()._save_checkpoint(model, trial)


@contextmanager
def reading(checkpoint: str | Path | None) -> Iterator[None]:
    """Turn a library's error about a damaged checkpoint into a UserError; let OSError and lack of memory pass."""
    try:
        yield
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{checkpoint}: damaged: {in_short(error)}\n  delete it, and the same command continues from the one before"
        ) from error
