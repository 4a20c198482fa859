"""What an encoder-decoder reads: plain text, without a chat template, in one passage or in one an item.

A model that was fine-tuned by utils/train_generator.py reads at answering what it read then: both ask `fit_text`.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prompts import Messages, Prompt
from utils.generation.chat import Fitted, LocalChat, fit_profile, load_tokenizer
from utils.generation.trimming import Trimmed, fit_trimmed
from utils.models.loading import check_special_tokens


@dataclass(frozen=True)
class Passages:
    """A prompt for fusion in decoder: the question with one item each, as token ids."""

    parts: tuple[array, ...]

    def __len__(self) -> int:
        """Tokens of all of them."""
        return sum(map(len, self.parts))


def passages_of(prompt: array | Passages) -> tuple[array, ...]:
    return prompt.parts if isinstance(prompt, Passages) else (prompt,)


class PlainText(LocalChat):
    """Of a prompt the user's part alone, with the token that ends a text: a fine-tuned model needs no instruction."""

    def __init__(self, model_addr: str, cache_dir: str | None = None):
        self.tokenizer, config = load_tokenizer(model_addr, cache_dir)
        self.model_limit = None  # T5's positions are relative
        self._restarts_at_lines = False
        check_special_tokens(self.tokenizer, config, "pad_token", "eos_token")

    def render(self, messages: Messages) -> array:
        return self.render_reply(messages[-1]["content"])

    @property
    def end_of_turn(self) -> int:
        return self.tokenizer.eos_token_id


def fit_text(
    prompt: Prompt,
    items: Sequence[Any],
    chat: PlainText,
    budget: int,
    join: Callable[[list[str]], str],
    *,
    trimmed: bool,
    fused: bool,
    **values: str,
) -> Trimmed:
    """The prompt within the budget, of `fused` ones each passage.

    A question that is over the budget without any item is cut at its end, as by LaMP's tokenizer: an email may be
    longer than all the model reads. With `trimmed` each passage's question makes room for its items (`fit_trimmed`).

    Args:
        items: texts, or with `trimmed` entries as `fit_trimmed` takes them.
    """
    fit = partial(fit_trimmed if trimmed else fit_profile, prompt, chat=chat, join=join, **values)
    found = [fit([item], budget=budget) for item in items] if fused and items else [fit(items, budget=budget)]
    if found[0] is None:
        [*whole, end] = fit([], budget=2**31).prompt
        cut = array("i", [*whole[: budget - 1], end])
        return Trimmed(Passages((cut,)) if fused else cut, 0, len(items), question_cut=True)
    if not fused:
        return Trimmed(**vars(found[0]))
    used = [one for one in found if one.num_contexts_used]
    parts = tuple(one.prompt for one in used or found[:1])
    cut, question_cut = (any(getattr(one, name, False) for one in found) for name in ("context_cut", "question_cut"))
    return Trimmed(Passages(parts), len(used), len(items) - len(used), cut, sum(map(num_trimmed, used)), question_cut)


def num_trimmed(fitted: Fitted) -> int:
    return fitted.num_contexts_trimmed if isinstance(fitted, Trimmed) else 0
