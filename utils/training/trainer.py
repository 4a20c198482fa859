"""The training loop: transformers' Trainer with a loss on the targets only, evaluated by scoring generated texts.

This module imports torch, transformers and peft, so commands import it only after all checks.
"""

import random
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel, get_peft_model
from transformers import Trainer, TrainingArguments, set_seed

from utils.base.errors import num_processes
from utils.base.progress import announce
from utils.models import base_model, devices
from utils.models.base_model import NO_LOSS, target_loss, write_reply
from utils.training.checkpoints import Run
from utils.training.examples import Example, Texts, Training
from utils.training.recorder import Recorder
from utils.training.resumable import Resumable

MAX_GRADIENT_NORM = 1.0  # LaMP-QA's paper, appendix E, and transformers' default
PLAN_TOKENS = 256  # limit of a generated plan: three times the usual length, because an untrained model never stops

Written = tuple[Example, Any, bool]  # the example, the token ids written for it, and whether they were cut


def train(training: Training, run: Run, manifest: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """Train from the base model or the run's checkpoint, up to --max_steps or until patience runs out.

    Args:
        manifest: what to write with every checkpoint.
        source: the base model's source, `ModelFolder.source`.

    Returns:
        steps, best_step and the best step's figure; the latter two are None if nothing was evaluated.
    """
    base_model.quiet_libraries()
    args, chat, bf16 = training.args, training.chat, devices.has_bf16()
    if chat.tokenizer.pad_token_id is None:  # padding is masked, so any token will do
        chat.tokenizer.pad_token = chat.tokenizer.convert_ids_to_tokens(chat.end_of_turn)
    if args.lora_rank is None:
        # Steps of 5e-5 need float32 weights; with bf16, only the computation is in bfloat16.
        model, trained = base_model.load_encoder_decoder(args.model_addr, source, torch.float32), "all weights"
    else:
        manifest["attention"] = base_model.choose_attention(bf16, args.model_addr, source)
        model = load_with_lora(args, source, bf16, manifest["attention"])
        modules = sorted({name.split(".")[-1] for name in model.base_model.targeted_module_names})
        trained = f"attention: {manifest['attention']}; LoRA on {', '.join(modules)}"
    trainer = training.load_trainer()(training, model, trainer_settings(training, bf16))
    manifest.update(device=base_model.device_name(trainer.accelerator.num_processes), bf16=bf16)
    return trainer.learn(
        Recorder(run, manifest, training.selection, trainer.accelerator),
        run.checkpoint,
        f"{manifest['device']}; {'bf16' if bf16 else 'fp32'}; {trained}: "
        f"{model.num_parameters(only_trainable=True):,} of {model.num_parameters():,} parameters",
    )


def load_with_lora(args: Namespace, source: dict[str, Any], bf16: bool, attention: str) -> Any:
    """Load a chat model with a new adapter, or with the adapter to train further (`start_adapter`)."""
    model = base_model.load_base(args.model_addr, source, torch.bfloat16 if bf16 else torch.float32, attention)
    if args.gradient_checkpointing:  # checkpointing needs inputs with gradients, but the embeddings are frozen
        model.enable_input_require_grads()
    if args.start_adapter is not None:
        return PeftModel.from_pretrained(model, args.start_adapter, is_trainable=True)
    set_seed(args.seed)  # the adapter's weights are drawn here, before Trainer sets the seed
    return get_peft_model(model, base_model.make_lora_config(args, model))


def trainer_settings(training: Training, bf16: bool) -> dict[str, Any]:
    """Return the TrainingArguments that all objectives share, from the flags."""
    args, evaluates = training.args, bool(training.validation)
    # With one example per batch on one process, grouping by length saves nothing: no padding, and no waiting.
    is_alone = args.per_device_train_batch_size == num_processes() == 1
    same_name = (
        "output_dir per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing learning_rate "
        "weight_decay warmup_steps max_steps seed save_steps"
    )
    return {
        **{name: getattr(args, name) for name in same_name.split()},
        "optim": "adamw_torch",
        "lr_scheduler_type": args.schedule,
        "max_grad_norm": MAX_GRADIENT_NORM,
        "bf16": bf16,
        "use_cpu": not torch.cuda.is_available(),
        "data_seed": args.seed,
        "train_sampling_strategy": "random" if is_alone else "group_by_length",
        "eval_strategy": "steps" if evaluates else "no",
        "eval_steps": args.save_steps if evaluates else None,
        "metric_for_best_model": training.selection.figure if evaluates else None,
        "greater_is_better": training.selection.higher_is_better,
        "ddp_find_unused_parameters": False,
        "remove_unused_columns": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # the filter would log NaN as 0, and wait for every batch's loss
        "report_to": args.report_to,
        "disable_tqdm": True,
    }


class TextTrainer(Resumable, Trainer):
    """Trainer with a loss on the targets only, evaluated by the score of the texts that the model writes.

    Subclasses define how a batch is made (`collate`), its loss (`summed_loss`), how texts are written (`write_all`),
    and the description of an evaluation (`counts`).
    """

    # Whether `compute_loss` returns a batch's share of its step's loss. Trainer must then not divide it by the number
    # of batches per step.
    returns_share = True

    def __init__(self, training: Training, model: Any, settings: dict[str, Any]):
        self._training, self._chat = training, training.chat
        # transformers groups examples by the length of `input_ids`.
        rows = [{"input_ids": range(example.length), "example": example} for example in training.examples]
        collate, pad = self.collate, training.chat.tokenizer.pad_token_id
        super().__init__(
            model,
            TrainingArguments(**settings),
            train_dataset=rows,
            eval_dataset=training.validation or None,
            processing_class=training.chat.tokenizer,
            data_collator=lambda batch: collate([row["example"] for row in batch], pad),
        )
        self.model_accepts_loss_kwargs = self.returns_share

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return a batch's share of the step's mean cross-entropy (nats) over all its target tokens."""
        # Trainer counts the target tokens of all processes, but gradients are averaged over processes.
        return self.summed_loss(model, inputs) / num_items_in_batch * self.accelerator.num_processes

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        started = time.monotonic()
        announce(f"step {self.state.global_step}: evaluating ({self.counts()})")
        self.model.eval()
        metrics = self.figures()
        metrics["eval_seconds"] = round(time.monotonic() - started, 1)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def figures(self) -> dict[str, float]:
        return self._training.score(self.write_texts(self._training.validation))

    def write_texts(self, examples: list[Example]) -> Texts:
        """Return the model's texts for these examples; the processes divide the work."""
        mine = {
            example.record["id"]: (self._chat.tokenizer.decode(ids, skip_special_tokens=True), is_cut)
            for example, ids, is_cut in self.write_all(self._share(examples))
        }
        return {key: text for texts in gather_object([mine]) for key, text in texts.items()}

    def _share(self, examples: list[Example]) -> list[Example]:
        """Return this process's share of the examples; shares are balanced by length, to end at about the same time."""
        if self.accelerator.num_processes > 1:
            examples = sorted(examples, key=lambda example: -example.length)
        return examples[self.accelerator.process_index :: self.accelerator.num_processes]


class CausalTrainer(TextTrainer):
    @staticmethod
    def collate(examples: Sequence[Example], pad: int) -> dict[str, torch.Tensor]:
        """Return a batch: input_ids, attention_mask and labels, each (B, T); prompt tokens have no loss."""
        columns = {
            "input_ids": ([[*example.prompt, *example.target] for example in examples], pad),
            "attention_mask": ([[1] * example.length for example in examples], 0),
            "labels": ([[NO_LOSS] * len(example.prompt) + list(example.target) for example in examples], NO_LOSS),
        }
        return {
            name: torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), True, padding)
            for name, (rows, padding) in columns.items()
        }

    def counts(self) -> str:
        return f"questions: {len(self._training.validation)}, greedy"

    def summed_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        return target_loss(model, **inputs)[0]

    def write_all(self, examples: list[Example]) -> Iterator[Written]:
        for example in examples:
            with self.accelerator.autocast():
                yield example, *write_reply(self.model, self._chat, example.prompt, self.most_tokens(example))

    def most_tokens(self, example: Example) -> int:
        """Return the maximum number of tokens that an evaluation generates for this example."""
        return self._training.args.max_target_length


class PlannerTrainer(CausalTrainer):
    """Evaluates the loss on all targets, and generated plans on a sample of the questions; logs the token accuracy."""

    length_flag = "--max_seq_length"

    def __init__(self, training: Training, *others: Any):
        super().__init__(training, *others)
        number = min(training.args.eval_generate, len(training.validation))
        self._sample = random.Random(training.args.seed).sample(training.validation, number)
        # For each batch since the last log: the number of target tokens predicted right, and of all target tokens.
        self._token_counts: list[torch.Tensor] = []

    def counts(self) -> str:
        return f"questions: {len(self._training.validation)}, plans: {len(self._sample)}"

    def figures(self) -> dict[str, float]:
        loss = self._target_loss()
        return {"eval_loss": loss, **(self._training.score(self.write_texts(self._sample)) if self._sample else {})}

    def most_tokens(self, example: Example) -> int:
        return min(PLAN_TOKENS, self._training.args.max_seq_length - len(example.prompt))

    def summed_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss, num_right = target_loss(model, **inputs)
        self._token_counts.append(torch.stack([num_right, (inputs["labels"][:, 1:] != NO_LOSS).sum()]))
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            counts = self.accelerator.reduce(torch.stack(self._token_counts), "sum").tolist()
            shares = [num_right / num_targets for num_right, num_targets in counts]
            logs["mean_token_accuracy"] = sum(shares) / len(shares)
            self._token_counts = []
        super().log(logs, start_time)

    @torch.no_grad()
    def _target_loss(self) -> float:
        """Return the mean cross-entropy (nats) over all target tokens of the validation set."""
        total = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)
        for example in self._share(self._training.validation):
            inputs = {name: ids.to(total.device) for name, ids in self.collate([example], 0).items()}
            with self.accelerator.autocast():
                loss, _ = target_loss(self.model, **inputs)
            total += torch.tensor([loss, len(example.target)], device=total.device)
        loss, num_targets = self.accelerator.reduce(total, "sum").tolist()
        return loss / num_targets
