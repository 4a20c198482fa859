"""Stopping and resuming trainings, beyond what transformers' Trainer does.

It imports torch, transformers and accelerate.
"""

import math
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerState

from utils.cli import UserError
from utils.cli.progress import announce
from utils.files.writing import filling
from utils.models.devices import fitting
from utils.models.loading import in_short
from utils.training.checkpoints import STATES, Run, step_of
from utils.training.recorder import Recorder

MAX_GRADIENT_NORM = 1.0  # LaMP-QA's paper, appendix E, and transformers' default
INTERIM_SECONDS = 900  # save an interim checkpoint after this time without one: the most that a kill costs


def common_settings(args: Namespace, bf16: bool, evaluates: bool, evaluates_first: bool) -> dict[str, Any]:
    """Return the TrainingArguments that all trainings share, from their flags."""
    same = (
        "output_dir per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing learning_rate "
        "weight_decay warmup_steps max_steps seed save_steps"
    )
    return {
        **{name: getattr(args, name) for name in same.split()},
        "optim": "adamw_torch",
        "lr_scheduler_type": vars(args).get("schedule", "linear"),
        "max_grad_norm": MAX_GRADIENT_NORM,
        "bf16": bf16,
        "use_cpu": not torch.cuda.is_available(),
        "data_seed": args.seed,
        "eval_strategy": "steps" if evaluates else "no",
        "eval_steps": args.eval_steps if evaluates else None,
        "eval_on_start": evaluates and evaluates_first,
        "ddp_find_unused_parameters": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # the filter logs NaN as 0, and waits for every batch's loss
        "report_to": args.report_to,
        "disable_tqdm": True,
    }


class ByLengthInSteps(SeedableRandomSampler):
    """A random order in which each step's sequences are sorted by length, longest first.

    Batches then need little padding, and batches that several processes compute at the same time have similar lengths:
    accelerate deals batches out in turn, and all processes wait for the slowest. A step's sequences do not depend on
    how they are batched.

    An epoch is filled up to a multiple of `at_once` with the first sequences of its random order. Accelerate would fill
    it with the first ones of the sorted order, the longest of the first step.
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

    Subclasses define an evaluation (`figures`), its description (`counts`), and the flag that shortens sequences
    (`length_flag`).
    """

    length_flag: str

    def follow(self, recorder: Recorder, lengths: Sequence[int]) -> None:
        """Attach the recorder, once after construction; `lengths` are the training sequences' numbers of tokens."""
        self.add_callback(recorder)
        self.remove_callback(PrinterCallback)
        self._recorder, self._stopper, self._lengths = recorder, recorder.stopper, lengths

    def learn(self, run: Run, told: str) -> dict[str, Any]:
        """Train from the run's checkpoint, if any, up to --max_steps or until patience runs out.

        Args:
            told: a line on the device and the trained parameters, printed first.

        Returns:
            steps, best_step, and the best step's figure; None if nothing was evaluated.
        """
        if self.is_world_process_zero():
            print(told + (f"\ngoing on from {run.checkpoint}" if run.checkpoint else ""), flush=True)
        if run.checkpoint is not None:
            check_whole(run.checkpoint)
        self._saved_at = time.monotonic()
        with self._stopper:
            self.train(resume_from_checkpoint=run.checkpoint and str(run.checkpoint))
        return {"steps": self.state.global_step, **self._recorder.best(self.state)}

    def _load_from_checkpoint(self, checkpoint: str, *args: Any, **kwargs: Any) -> None:
        with reading(checkpoint):
            super()._load_from_checkpoint(checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with reading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with reading(checkpoint):
            super()._load_rng_state(checkpoint)

    def get_train_dataloader(self) -> DataLoader:
        loader = super().get_train_dataloader()
        if self.args.per_device_train_batch_size * self.accelerator.num_processes > 1:  # else no padding or waiting
            loader.set_sampler(self._steps_by_length())  # here, so that a run resumed within an epoch has it too
        return loader

    def _steps_by_length(self) -> ByLengthInSteps:
        at_once = self.args.per_device_train_batch_size * self.accelerator.num_processes
        step_size = at_once * self.args.gradient_accumulation_steps
        fill_up = at_once if self.accelerator.num_processes > 1 else 1  # else its last batch is smaller
        return ByLengthInSteps(self._lengths, step_size, self.args.seed, fill_up)

    def _remedy(self) -> str:
        """Return flags that need less memory, if possible without changing a step, so that the run can resume."""
        size, steps = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        if size > 1:
            return (
                f"--per_device_train_batch_size {size // 2} --gradient_accumulation_steps {steps * size // (size // 2)}"
            )
        if not self.args.gradient_checkpointing:
            return "leave out --no-gradient_checkpointing"
        return f"take a GPU with more memory, or a smaller {self.length_flag}"

    def _run_epoch(self, **kwargs: Any) -> None:
        # Skip training if the run resumes only for its last evaluation.
        if self.state.global_step < self.state.max_steps and not self.control.should_training_stop:
            super()._run_epoch(**kwargs)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        with fitting(f"a batch {self.describe_batch(inputs)}, on {self.accelerator.device}", self._remedy()):
            return super().training_step(model, inputs, *args, **kwargs)

    def describe_batch(self, inputs: Any) -> str:
        return f"of shape {tuple(inputs['input_ids'].shape)}"

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._tr_loss.zero_()  # transformers subtracts the logged loss from itself, so a NaN would stay
        if self.state.global_step < self.state.max_steps:
            is_unsaved = self.state.global_step > self._stopper.saved
            if is_unsaved and self._any(time.monotonic() - self._saved_at >= INTERIM_SECONDS):
                self._save_now()
            self._stop_if_asked()

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> float:
        """Return the norm of a step's unclipped gradients; called right before the optimizer's step.

        Reading it waits for the GPU, as the log would after the step anyway. All processes have the same gradients.

        Raises:
            UserError: the norm is not finite; weights and checkpoints still are those of the steps before.
        """
        norm = float(super()._get_grad_norm(*args, **kwargs))
        if not math.isfinite(norm):
            kept = f"checkpoint-{self._stopper.saved} is kept" if self._stopper.saved else "no checkpoint is kept"
            raise UserError(
                f"step {self.state.global_step + 1}: the norm of the gradients is {norm}; nothing is learnt from it, "
                f"{kept}\n"
                "  run the same command again; if the same step fails, lower --learning_rate in another --output_dir,\n"
                "  or run make test-gpu, which checks that the GPU computes attention correctly (docs/gpu.md)"
            )
        return norm

    def _stop_if_asked(self) -> None:
        """Leave if any process got a signal, with a checkpoint of the step that has just ended.

        All processes check at the same points and leave at the same one, because saving needs all of them.
        """
        if not self._any(self._stopper.asked):
            return
        if self.state.global_step > self._stopper.saved:
            self._save_now()
            self.accelerator.wait_for_everyone()  # the first process completes it before the launcher ends the others
        self._stopper.leave()

    def _any(self, wanted: bool) -> bool:
        """Tell whether `wanted` is true in any process; all processes must call this."""
        if self.accelerator.num_processes == 1:
            return wanted
        return self.accelerator.reduce(torch.tensor(int(wanted), device=self.accelerator.device), "sum").item() > 0

    def _save_now(self) -> None:
        self._save_checkpoint(self.model, None)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        started = time.monotonic()
        if self.state.global_step > self._stopper.saved:  # first, so that a kill during the evaluation costs nothing
            self._save_now()
        self._stop_if_asked()
        announce(f"step {self.state.global_step}: evaluating ({self.counts()})")
        self.model.eval()
        with self._stopper.at_once():
            metrics = self.figures()
        metrics["eval_seconds"] = round(time.monotonic() - started, 1)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _sum_over(self, examples: list[Any], figures: Callable[[Any], tuple[Any, Any]]) -> list[float]:
        """Return the sums of two figures per example, over all processes."""
        total = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)
        for example in self._mine(examples):
            total += torch.tensor(figures(example), device=total.device)
        return self.accelerator.reduce(total, "sum").tolist()

    def _mine(self, examples: list[Any]) -> list[Any]:
        """Return this process's share of the examples; shares are balanced by length, to end at about the same time."""
        if self.accelerator.num_processes > 1:
            examples = sorted(examples, key=lambda example: -example.length)
        return examples[self.accelerator.process_index :: self.accelerator.num_processes]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        announce(f"step {self.state.global_step}: saving {checkpoint}")
        with filling(checkpoint):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            (checkpoint / "README.md").unlink(missing_ok=True)  # PEFT's, an empty template
            with suppress(OSError):  # safetensors makes files readable for their owner only; not all disks have modes
                for weights in checkpoint.glob("*.safetensors"):
                    shutil.copymode(checkpoint / "trainer_state.json", weights)
        self.accelerator.wait_for_everyone()  # each process writes a part; Recorder.on_save then marks it complete
        self._saved_at = time.monotonic()

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: TRL's knows neither base model nor data; manifest.json has both."""


def check_whole(checkpoint: Path) -> None:
    """Raise UserError if a checkpoint lacks a file for resuming; transformers would silently reset that part."""
    if not any(any(checkpoint.glob(pattern)) for pattern in STATES):
        what = "is from a finished training without its later checkpoints; its optimizer state was deleted"
        raise UserError(f"{checkpoint}: {what}\n  --no-resume trains from the beginning")
    for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt"):
        if not (checkpoint / name).is_file():
            raise _cannot_be_read(checkpoint, f"{name} is missing")
    with reading(checkpoint):
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        if state.global_step != step_of(checkpoint) or not all("step" in entry for entry in state.log_history):
            raise ValueError("trainer_state.json is of something else")


@contextmanager
def reading(checkpoint: str | Path | None) -> Iterator[None]:
    """Turn a library's error about a damaged checkpoint into a UserError; let OSError and lack of memory pass."""
    try:
        yield
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _cannot_be_read(checkpoint, in_short(error)) from error


def _cannot_be_read(checkpoint: str | Path | None, why: str) -> UserError:
    return UserError(f"{checkpoint}: damaged: {why}\n  delete it, and the same command continues from the one before")
