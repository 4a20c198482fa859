"""What all trainers share: training that can be stopped and resumed, and advice when memory runs out.

It imports torch and transformers.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback

from utils.base import cli
from utils.models.devices import fitting
from utils.training.recorder import Recorder


class Resumable:
    """A mixin; list it before a Trainer class."""

    length_flag = "--max_input_length"  # the flag that shortens sequences

    def learn(self, recorder: Recorder, checkpoint: Path | None, description: str) -> dict[str, Any]:
        """Train from the checkpoint, or from the start if it is None, up to --max_steps or until patience runs out.

        After a signal, raise what `run_script` expects; only the first process prints a message.

        Args:
            description: a line to print first, on the device and the trained parameters.

        Returns:
            steps, best_step, and the best step's figure; the latter two are None if nothing was evaluated.
        """
        self.add_callback(recorder)
        self.remove_callback(PrinterCallback)
        if self.is_world_process_zero():
            print(description + (f"\nresuming from {checkpoint}" if checkpoint else ""), flush=True)
        with recorder.signals:
            self.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        step = self.state.global_step
        if recorder.is_stopped and self.is_world_process_zero():
            raise KeyboardInterrupt(f"stopped after step {step}; checkpoint-{step} is kept, run the same command again")
        if recorder.is_stopped:
            raise SystemExit(cli.INTERRUPTED)
        return {"steps": step, **recorder.best(self.state)}

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        what = f"a batch of shape {tuple(inputs['input_ids'].shape)}, on {self.accelerator.device}"
        with fitting(what, self._remedy()):
            return super().training_step(model, inputs, *args, **kwargs)

    def _remedy(self) -> str:
        """Return flags that need less memory, if possible with the same batch per step, so that the run can resume."""
        size, steps = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        if size > 1:
            more = steps * size // (size // 2)
            return f"--per_device_train_batch_size {size // 2} --gradient_accumulation_steps {more}"
        if not self.args.gradient_checkpointing:
            return "remove --no-gradient_checkpointing"
        return f"use a GPU with more memory, or a smaller {self.length_flag}"
