"""The planner's training loop: TRL's SFTTrainer on LoRA, with its own evaluation and resumable checkpoints.

It imports torch, transformers, peft and trl, so train_planner.py imports it only after all checks.
"""

import random
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from utils.generation.chat import LocalChat
from utils.models import devices
from utils.parsing import Parsed
from utils.parsing.plans import aspect_recall, plan_parser
from utils.planner.examples import Example
from utils.training import NO_LOSS, base_model
from utils.training.base_model import target_loss, write_reply
from utils.training.checkpoints import Run, Selection
from utils.training.recorder import Recorder
from utils.training.resumable import Resumable, common_settings

PLAN_TOKENS = 256  # limit of a generated plan, three times the usual length; an untrained model never stops


def train(
    args: Namespace,
    source: dict[str, Any],
    chat: LocalChat,
    examples: list[Example],
    validation: list[Example],
    manifest: dict[str, Any],
    run: Run,
    selection: Selection,
    lead_in: str | None,
) -> dict[str, Any]:
    """Train from the base model, or resume from the run's checkpoint, up to --max_steps.

    Args:
        source: where the base model is, from `pinned_source`.
        validation: if empty, nothing is evaluated.
        manifest: written with every adapter.
        lead_in: the beginning of the targets (utils/parsing/plans).

    Returns:
        steps, best_step and best_loss; the latter two are None if nothing was evaluated.
    """
    base_model.quiet_libraries()
    base_model.set_pad_token(chat)
    bf16 = devices.has_bf16()
    attention = base_model.choose_attention(bf16, args.model_addr, source)
    model = base_model.load_base(args.model_addr, source, torch.bfloat16 if bf16 else torch.float32, attention)
    recorder = Recorder(run, manifest, selection)
    config = SFTConfig(
        **common_settings(args, bf16, bool(validation), run.begins_with_evaluation),
        dataset_kwargs={"skip_prepare_dataset": True},  # the rows are tokenized and fit, with the labels set
        max_length=None,
    )
    trainer = PlannerTrainer(args, model, config, chat, examples, validation, recorder, plan_parser(lead_in))
    manifest.update(device=base_model.device_name(trainer.accelerator.num_processes), attention=attention, bf16=bf16)
    trainable, total = trainer.model.get_nb_trainable_parameters()
    modules = ", ".join(sorted({name.split(".")[-1] for name in trainer.model.active_peft_config.target_modules}))
    return trainer.learn(
        run,
        f"{manifest['device']}; {'bf16' if bf16 else 'fp32'}; attention: {attention}; "
        f"LoRA on {modules}: {trainable:,} of {total:,} parameters",
    )


class PlannerTrainer(Resumable, SFTTrainer):
    """SFTTrainer with the planner's evaluation: loss over target tokens, and aspect recall of generated plans."""

    length_flag = "--max_seq_length"

    def __init__(
        self,
        flags: Namespace,
        model: Any,
        config: SFTConfig,
        chat: LocalChat,
        examples: list[Example],
        validation: list[Example],
        recorder: Recorder,
        parse: Callable[[str, bool], Parsed],
    ):
        super().__init__(
            model,
            config,
            train_dataset=Dataset.from_list([example.row for example in examples]),
            eval_dataset=Dataset.from_list([example.row for example in validation]) if validation else None,
            processing_class=chat.tokenizer,
            peft_config=base_model.make_lora_config(flags, model),
        )
        self.follow(recorder, [example.length for example in examples])
        self._chat, self._max_seq_length, self._parse = chat, flags.max_seq_length, parse
        self._validation = validation
        self._sample = random.Random(flags.seed).sample(validation, min(flags.eval_generate, len(validation)))

    def counts(self) -> str:
        return f"questions: {len(self._validation)}, plans: {len(self._sample)}"

    def figures(self) -> dict[str, Any]:
        return {"eval_loss": self._target_loss(), **self._plan_figures()}

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return a batch's share of the step's mean cross-entropy (nats) over all its target tokens.

        On a GPU, this is SFTTrainer's own loss; elsewhere, that would project every position to the vocabulary.
        """
        if self.accelerator.device.type == "cuda" or self.aux_loss_enabled or num_items_in_batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss, num_right = target_loss(model, **inputs)
        num_targets = (inputs["labels"][:, 1:] != NO_LOSS).sum()
        num_right, num_targets = self.accelerator.reduce(torch.stack([num_right, num_targets]), "sum").tolist()
        self._metrics["train"]["mean_token_accuracy"].append(num_right / num_targets)  # SFTTrainer logs their mean
        # `num_items_in_batch` counts the targets of all processes, but gradients are averaged over processes.
        return loss / num_items_in_batch * self.accelerator.num_processes

    @torch.no_grad()
    def _target_loss(self) -> float:
        """Return the mean cross-entropy (nats) over all target tokens of the validation set."""

        def figures(example: Example) -> tuple[torch.Tensor, int]:
            row = {name: torch.tensor([ids], device=self.accelerator.device) for name, ids in example.row.items()}
            with self.accelerator.autocast():
                return target_loss(self.model, **row)[0], len(example.target)

        loss, num_targets = self._sum_over(self._validation, figures)
        return loss / num_targets

    def _plan_figures(self) -> dict[str, float]:
        """Return the mean aspect recall of the sample's greedy plans, and counts; empty without a sample."""
        if not self._sample:
            return {}

        def figures(example: Example) -> tuple[float, bool]:
            planned = self._parse(*self._generate(example)).value
            return aspect_recall(example.aspects, planned or []), planned is None

        recall, without = self._sum_over(self._sample, figures)
        return {
            "eval_aspect_recall": recall / len(self._sample),
            "eval_plans": len(self._sample),
            "eval_plans_without_an_aspect": int(without),
        }

    def _generate(self, example: Example) -> tuple[str, bool]:
        """Return the greedy plan for a question, and whether it was cut."""
        room = min(PLAN_TOKENS, self._max_seq_length - len(example.prompt))
        with self.accelerator.autocast():
            plan, is_cut = write_reply(self.model, self._chat, example.prompt, room)
        return self._chat.tokenizer.decode(plan, skip_special_tokens=True), is_cut
