"""Encoder-decoders such as FlanT5, which learn references and are evaluated by beam search."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from utils.generation.beams import batches, fuse, pad_passages, room_of, write
from utils.generation.chat import passages_of
from utils.generation.encoder_decoder import NUM_BEAMS
from utils.models.base_model import NO_LOSS
from utils.training.examples import Example
from utils.training.trainer import TextTrainer, Written


class EncoderDecoderTrainer(TextTrainer):
    @staticmethod
    def collate(examples: Sequence[Example], pad: int) -> dict[str, torch.Tensor]:
        """Return a batch: prompts as in `pad_passages`, a plain one as a single passage, and `labels` (B, T)."""
        batch = pad_passages([passages_of(example.prompt) for example in examples], pad, "cpu")
        targets = [torch.tensor(list(example.target)) for example in examples]
        labels = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=NO_LOSS)
        return {**batch, "labels": labels}

    def counts(self) -> str:
        return f"questions: {len(self._training.validation)}, beams: {NUM_BEAMS}"

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
        plain, most_tokens = self.accelerator.unwrap_model(self.model), self._training.args.max_target_length
        room = room_of(plain, NUM_BEAMS, most_tokens)
        for numbers in batches([example.prompt for example in examples], room):
            prompts = [examples[number].prompt for number in numbers]
            with in_own_type(plain) as model:
                written = write(model, self._chat.tokenizer, prompts, NUM_BEAMS, most_tokens)
            for number, (ids, is_cut) in zip(numbers, written, strict=True):
                yield examples[number], ids, is_cut


@contextmanager
def in_own_type(model: Any) -> Iterator[Any]:
    """Make a model that accelerate has wrapped for bf16 compute in its weights' type, as its checkpoint will later."""
    wrapped = vars(model).pop("forward", None)
    try:
        yield model
    finally:
        if wrapped is not None:
            model.forward = wrapped
