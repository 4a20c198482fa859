"""Prompts of an encoder-decoder: plain text without a chat template, in one passage or in one per item."""

from array import array
from dataclasses import dataclass

from prompts import Messages
from utils.generation.chat import LocalChat, load_tokenizer
from utils.models.loading import check_special_tokens


@dataclass(frozen=True)
class Passages:
    """A prompt for fusion in decoder: passages of the question with one item each, as token ids."""

    parts: tuple[array, ...]

    def __len__(self) -> int:
        """Return the number of tokens in all passages."""
        return sum(map(len, self.parts))


def passages_of(prompt: array | Passages) -> tuple[array, ...]:
    return getattr(prompt, "parts", (prompt,))


class PlainText(LocalChat):
    """Renders only the last message of a prompt, with the end-of-text token; training had no instructions."""

    def __init__(self, model_addr: str, cache_dir: str | None = None):
        self.tokenizer, config = load_tokenizer(model_addr, cache_dir)
        self.num_tokens = getattr(config, "vocab_size", None)
        self.model_limit = None  # T5's positions are relative
        check_special_tokens(self.tokenizer, config, "pad_token", "eos_token")

    def render(self, messages: Messages) -> array:
        return self.render_reply(messages[-1]["content"])

    @property
    def end_of_turn(self) -> int:
        return self.tokenizer.eos_token_id
