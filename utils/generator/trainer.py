"""The generator's training loop: transformers' Trainer, evaluated by scoring the model's texts.

It imports torch and transformers, so utils/train_generator.py imports it only after all checks.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel, get_peft_model
from transformers import Trainer, TrainingArguments, set_seed

from utils.cli.flags import Arguments
from utils.generation.beams import batches, fuse, pad_passages, room_of, write
from utils.generation.chat import passages_of
from utils.generation.encoder_decoder import NUM_BEAMS
from utils.generator.examples import Example
from utils.models import devices
from utils.training import NO_LOSS, base_model
from utils.training.base_model import target_loss, write_reply
from utils.training.checkpoints import Run, Selection
from utils.training.recorder import Recorder
from utils.training.resumable import Resumable, common_settings

Score = Callable[[dict[str, tuple[str, bool]]], float]  # takes, by question, a text and whether it was cut
Written = tuple[Example, Any, bool]  # the example, the token ids written for it, and whether they were cut


@dataclass(frozen=True)
class Setup:
    """What a trainer is made from."""

    flags: Namespace
    model: Any
    bf16: bool
    chat: Any
    examples: list[Example]
    validation: list[Example]
    recorder: Recorder
    score: Score  # scores the texts of an evaluation
    run: Run

    def settings(self) -> dict[str, Any]:
        """Return its `TrainingArguments`."""
        return common_settings(self.flags, self.bf16, bool(self.validation), self.run.begins_with_evaluation)


def train(
    args: Namespace,
    source: dict[str, Any],
    chat: Any,
    examples: list[Example],
    validation: list[Example],
    manifest: dict[str, Any],
    run: Run,
    score: Score,
    selection: Selection,
    own: type | None = None,
) -> dict[str, Any]:
    """Train from the base model or the run's checkpoint, up to --max_steps or until patience runs out.

    Args:
        own: the objective's trainer, which replaces the usual one.

    Returns:
        steps, best_step and best_score; the latter two are None if nothing was evaluated.
    """
    base_model.quiet_libraries()
    base_model.set_pad_token(chat)
    bf16 = devices.has_bf16()
    recorder = Recorder(run, manifest, selection)
    if args.lora_rank is None:
        kind = EncoderDecoderTrainer
        # Steps of 5e-5 need float32 weights; with bf16, only the computation is in bfloat16.
        model = base_model.load_encoder_decoder(args.model_addr, source, torch.float32)
    else:
        kind, model = CausalTrainer, load_with_lora(args, source, bf16)
    trainer = (own or kind)(Setup(args, model, bf16, chat, examples, validation, recorder, score, run))
    manifest.update(device=base_model.device_name(trainer.accelerator.num_processes), bf16=bf16)
    return trainer.learn(
        run,
        f"{manifest['device']}; {'bf16' if bf16 else 'fp32'}; learns "
        f"{model.num_parameters(only_trainable=True):,} of {model.num_parameters():,} parameters",
    )


def collate(examples: Sequence[Example], pad: int) -> dict[str, torch.Tensor]:
    """Return a batch: prompts as in `pad_passages`, a plain one as a single passage, and `labels` (B, T)."""
    batch = pad_passages([passages_of(example.prompt) for example in examples], pad, "cpu")
    targets = [torch.tensor(list(example.target)) for example in examples]
    labels = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=NO_LOSS)
    return {**batch, "labels": labels}


@contextmanager
def in_own_type(model: Any) -> Iterator[Any]:
    """Make a model that accelerate has wrapped for bf16 compute in its weights' type, as its checkpoint will later."""
    wrapped = vars(model).pop("forward", None)
    try:
        yield model
    finally:
        if wrapped is not None:
            model.forward = wrapped


def load_with_lora(args: Arguments, source: dict[str, Any], bf16: bool) -> Any:
    """Load a causal model with a new adapter, with the planner's settings except for the rank, or the given adapter."""
    dtype = torch.bfloat16 if bf16 else torch.float32
    attention = base_model.choose_attention(bf16, args.model_addr, source)
    model = base_model.load_base(args.model_addr, source, dtype, attention)
    model.enable_input_require_grads()  # gradient checkpointing needs it, because the embeddings are frozen
    if (start := vars(args).get("start_adapter")) is not None:
        return PeftModel.from_pretrained(model, start, is_trainable=True)
    settings = args.replaced(lora_alpha=16, lora_dropout=0.05, lora_target_modules=None)
    set_seed(args.seed)  # adapter weights are drawn here, before Trainer sets the seed
    return get_peft_model(model, base_model.make_lora_config(settings, model))


class GeneratorTrainer(Resumable, Trainer):
    """Trainer with a loss on the targets only, evaluated by the task's metric on the model's texts.

    Subclasses define how a batch is made (`collate`), its loss (`summed_loss`), and how texts are written
    (`write_all`).
    """

    length_flag = "--max_input_length"

    def __init__(self, setup: Setup):
        tokenizer = setup.chat.tokenizer
        super().__init__(
            setup.model,
            TrainingArguments(**setup.settings(), remove_unused_columns=False),
            train_dataset=setup.examples,
            eval_dataset=setup.validation or None,
            processing_class=tokenizer,
            data_collator=partial(self.collate, pad=tokenizer.pad_token_id),
        )
        self.follow(setup.recorder, [example.length for example in setup.examples])
        # `compute_loss` returns a share of the step's loss, so Trainer must not divide it by the step's batches.
        self.model_accepts_loss_kwargs = True
        self._chat, self._tokenizer, self._validation, self._score = (
            setup.chat,
            tokenizer,
            setup.validation,
            setup.score,
        )
        self._written = setup.flags.max_target_length

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return a batch's share of the step's mean cross-entropy (nats) over all its target tokens."""
        # The number of targets is that of all processes, but the gradients are averaged over processes.
        return self.summed_loss(model, inputs) / num_items_in_batch * self.accelerator.num_processes

    def figures(self) -> dict[str, float]:
        mine = self._mine(self._validation)
        texts = {
            example.record["id"]: (self._tokenizer.decode(ids, skip_special_tokens=True), is_cut)
            for example, ids, is_cut in self.write_all(mine)
        }
        everyones = gather_object([texts])
        return {
            "eval_score": self._score(
                {key: text for texts_of_process in everyones for key, text in texts_of_process.items()}
            )
        }


class EncoderDecoderTrainer(GeneratorTrainer):
    collate = staticmethod(collate)

    def counts(self) -> str:
        return f"questions: {len(self._validation)}, beams: {NUM_BEAMS}"

    def summed_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        labels, plain = inputs.pop("labels"), self.accelerator.unwrap_model(model)
        with self.accelerator.autocast():
            encoded = fuse(plain, **inputs)
            before = plain.prepare_decoder_input_ids_from_labels(labels=labels)
            logits = model(**encoded, decoder_input_ids=before, use_cache=False).logits.float()
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LOSS, reduction="sum"
        )

    def write_all(self, examples: list[Example]) -> Iterator[Written]:
        room = room_of(self.accelerator.unwrap_model(self.model), NUM_BEAMS, self._written)
        for numbers in batches([example.prompt for example in examples], room):
            prompts = [examples[number].prompt for number in numbers]
            with in_own_type(self.accelerator.unwrap_model(self.model)) as model:
                written = write(model, self._tokenizer, prompts, NUM_BEAMS, self._written)
            for number, (ids, is_cut) in zip(numbers, written, strict=True):
                yield examples[number], ids, is_cut


class CausalTrainer(GeneratorTrainer):
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
        return f"questions: {len(self._validation)}, greedy"

    def summed_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        return target_loss(model, **inputs)[0]

    def write_all(self, examples: list[Example]) -> Iterator[Written]:
        for example in examples:
            with self.accelerator.autocast():
                yield example, *write_reply(self.model, self._chat, example.prompt, self._written)
