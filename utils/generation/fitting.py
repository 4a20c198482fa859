"""Fit prompts into a model's window: leave out the lowest-ranked posts, then cut the end of the last one left."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from prompts import History, Messages, Prompt
from utils.generation.chat import Chat
from utils.generation.requests import Rendered

T = TypeVar("T")
Entry = tuple[str, Callable[[str], str]]  # a text that may be cut, and the function that makes an entry of what is kept
Join = Callable[[list[str]], str]  # returns the profile's text in the prompt, from the texts of the items


@dataclass(frozen=True)
class Fitted:
    """A rendered prompt within the budget, and what was left out."""

    prompt: Rendered
    num_contexts_used: int  # posts in the prompt
    num_contexts_dropped: int  # posts that were left out for length
    context_cut: bool = False  # whether the prompt's only post was cut at its end
    messages: Messages = field(default_factory=list, compare=False)  # the prompt before rendering


@dataclass(frozen=True)
class Trimmed(Fitted):
    num_contexts_trimmed: int = 0  # posts in the prompt that were cut
    question_cut: bool = False  # whether the question was cut at its end


@dataclass(frozen=True)
class Window:
    """A model's context, which prompt and output share."""

    chat: Chat
    length: int  # tokens of prompt and output together
    max_tokens: int  # of the output

    @property
    def budget(self) -> int:
        """The most tokens that a prompt may have."""
        return self.length - self.max_tokens

    def fit(self, prompt: Prompt, items: Sequence[str] | History, join: Join, **values: str) -> Fitted | None:
        """Return a prompt within the budget; if necessary, leave out the last items.

        If the first item alone is too long, its end is cut. None if the prompt exceeds the budget even without items.

        Args:
            items: a history, or texts, best first, for {profile}; empty if the prompt has no {profile}.
            values: texts for the prompt's other placeholders.
        """
        if isinstance(items, History):
            return self._fit_history(prompt, items, **values)
        items = list(items)

        def render(kept: list[str]) -> tuple[Rendered, Messages] | None:
            profile = {"profile": join(kept)} if "profile" in prompt.placeholders else {}
            return self._render(prompt.messages(**profile, **values))

        used, whole = largest(len(items), lambda n: render(items[:n]))
        if whole is None:
            return None
        if used > 0 or not items:
            return Fitted(whole[0], used, len(items) - used, messages=whole[1])
        length, cut = largest(len(items[0]), lambda n: render([items[0][:n].rstrip()] if n else []))
        if not items[0][:length].strip():
            return Fitted(whole[0], 0, len(items), messages=whole[1])
        return Fitted(cut[0], 1, len(items) - 1, context_cut=True, messages=cut[1])

    def _render(self, messages: Messages) -> tuple[Rendered, Messages] | None:
        """Return the rendered messages and the messages themselves; None if they exceed the budget."""
        rendered = self.chat.render(messages)
        return (rendered, messages) if self.chat.length(rendered) <= self.budget else None

    def _fit_history(self, prompt: Prompt, history: History, **values: str) -> Fitted | None:
        """Return a prompt within the budget; if necessary, leave out the last items of the history.

        None if the prompt exceeds the budget even without items. The number of items is first guessed from the lengths
        of single messages, so the prompt is rendered only a few times, even for long histories.
        """

        def length(places: Iterable[int]) -> int:
            return sum(self.chat.count_again(history.messages[place]["content"]) for place in places)

        most, left, guess = len(history.items), self.budget - length(history.fixed), 0
        while guess < most and (left := left - length(history.items[guess])) >= 0:
            guess += 1
        number, whole = largest(most, lambda n: self._render(prompt.messages(turns=history.first(n), **values)), guess)
        return whole and Fitted(whole[0], number, most - number, messages=whole[1])

    def fit_trimmed(self, prompt: Prompt, entries: Sequence[Entry], join: Join, **values: str) -> Trimmed | None:
        """Return a prompt within the budget, made as LaMP's code does: trim every entry, then cut the question.

        LaMP cuts the end of the whole input, which is the question. All entries are left out if they leave no room for
        the question, or do not fit at all. None if the prompt exceeds the budget even without a question.

        Args:
            values: texts for the prompt's placeholders, including `question`.
        """
        question, chat = values["question"], self.chat

        def length(texts: list[str]) -> int:
            return chat.length(chat.render(prompt.messages(profile=join(texts), **values)))

        def render(texts: list[str], end: int) -> tuple[Rendered, Messages] | None:
            kept = values | {"question": question[:end].rstrip() if end < len(question) else question}
            return self._render(prompt.messages(profile=join(texts), **kept))

        bare, alone = [make_entry("") for _, make_entry in entries], length([])
        # One more token per entry, because a text may take one more token between others than on its own.
        seams = length(bare) - sum(map(chat.count, bare)) - alone + len(entries) if entries else 0
        for texts in (trim(entries, alone, seams, self.budget, chat.count), []):
            end, whole = largest(len(question), lambda end, texts=texts: render(texts, end))
            if whole is not None and (end or not question):
                used = len(texts)
                shortened = sum(
                    item != make_entry(text) for item, (text, make_entry) in zip(texts, entries, strict=False)
                )
                return Trimmed(whole[0], used, len(entries) - used, False, whole[1], shortened, end < len(question))
        return None


def largest(most: int, fit: Callable[[int], T | None], guess: int | None = None) -> tuple[int, T | None]:
    """Return the largest n in 0..most for which `fit(n)` is not None, and `fit(n)`; (0, None) if there is none.

    If `fit(n)` is None, it must be None for all larger n. `guess` is tried first, then numbers at growing distances
    from it, and finally bisection follows. Without a guess, `most` is tried, then 0.
    """
    middle, step = (most, most) if guess is None else (guess, 1)
    low, high, best = -1, most + 1, None  # low fits, high does not
    while high - low > 1:
        if (value := fit(middle)) is None:
            high = middle
        else:
            low, best = middle, value
        if low < 0:
            middle = max(high - step, 0)
        elif high > most:
            middle = min(low + step, most)
        else:
            middle = (low + high) // 2
        step *= 2
    return max(low, 0), best


def trim(entries: Sequence[Entry], alone: int, seams: int, budget: int, count: Callable[[str], int]) -> list[str]:
    """Return the entries, trimmed to an equal share of the budget each, plus what earlier entries did not need.

    The prompt without entries counts for at most 0.6 of the budget. If an entry exceeds its share even without text,
    0.5 is tried, then 0.4, and so on down to 0. If that does not help, the list is empty.

    Args:
        alone: tokens of the prompt without entries.
        seams: tokens between and around the entries.
        budget: most tokens that the prompt may have.
        count: returns a text's number of tokens.
    """
    for tenths in range(6, -1, -1):
        room = budget - min(alone, budget * tenths // 10) - seams
        share, saved, texts = room // max(len(entries), 1), 0, []
        for entry in entries:
            if (text := _cut(entry, share + saved, count)) is None:
                break
            saved += share - count(text)
            texts.append(text)
        else:
            return texts
    return []


def _cut(entry: Entry, most: int, count: Callable[[str], int]) -> str | None:
    """Return an entry, its text cut to fit into `most` tokens; None if it is too long even without text."""
    text, make_entry = entry

    def within(length: int) -> str | None:
        cut = make_entry(text[:length].rstrip() if length < len(text) else text)
        return cut if count(cut) <= most else None

    return largest(len(text), within)[1]
