"""Fit prompts into a token budget: drop the lowest-ranked posts first, then the end of the last remaining one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prompts import History, Messages, Prompt
from utils.generation.chat import Chat
from utils.generation.requests import Rendered

T = TypeVar("T")
Entry = tuple[str, Callable[[str], str]]  # a text, and a function from its kept part to the entry


@dataclass(frozen=True)
class Fitted:
    """A rendered prompt within the budget, and what was left out."""

    prompt: Rendered
    num_contexts_used: int  # posts in it
    num_contexts_dropped: int  # posts that were left out for length
    context_cut: bool = False  # the only post in it was cut at its end


def fit_posts(build: Callable[[list[str]], Messages], posts: list[str], chat: Chat, budget: int) -> Fitted | None:
    """Fit a prompt into a budget by leaving out whole posts, the lowest-ranked first.

    If the first post alone is too long, its end is cut. None if the prompt exceeds the budget even without posts.

    Args:
        build: returns the messages for a list of posts.
        posts: the profile's texts, best first.
        budget: most tokens that the prompt may have.
    """

    def render(kept: list[str]) -> Rendered | None:
        return _render_within(build(kept), chat, budget)

    used, prompt = largest(len(posts), lambda n: render(posts[:n]))
    if prompt is None or used > 0 or not posts:
        return prompt and Fitted(prompt, used, len(posts) - used)
    length, cut_prompt = largest(len(posts[0]), lambda n: render([posts[0][:n].rstrip()] if n else []))
    if not posts[0][:length].strip():
        return Fitted(prompt, 0, len(posts))
    return Fitted(cut_prompt, 1, len(posts) - 1, context_cut=True)


def _render_within(messages: Messages, chat: Chat, budget: int) -> Rendered | None:
    rendered = chat.render(messages)
    return rendered if chat.length(rendered) <= budget else None


def fit_items(
    prompt: Prompt,
    items: Sequence[str] | History,
    chat: Chat,
    budget: int,
    join: Callable[[list[str]], str],
    **values: str,
) -> Fitted | None:
    """Fit a prompt with a user's best items into a budget by `fit_posts`, or with a history by `fit_history`.

    `join` makes one text of several items. A prompt without {profile} takes no items.
    """
    if isinstance(items, History):
        return fit_history(prompt, items, chat, budget, **values)

    def build(kept: list[str]) -> Messages:
        profile = {"profile": join(kept)} if "profile" in prompt.placeholders else {}
        return prompt.messages(**profile, **values)

    return fit_posts(build, list(items), chat, budget)


def fit_history(prompt: Prompt, history: History, chat: Chat, budget: int, **values: str) -> Fitted | None:
    """Return a prompt with as many whole items of a history as fit into a budget.

    None if the prompt exceeds the budget even without items. The messages' own lengths give a good guess of the number,
    so the prompt is rendered only a few times, even for long histories.
    """

    def render(number: int) -> Rendered | None:
        return _render_within(prompt.messages(turns=history.first(number), **values), chat, budget)

    def length(places: Iterable[int]) -> int:
        return sum(chat.count_again(history.messages[place]["content"]) for place in places)

    most, left, guess = len(history.items), budget - length(history.fixed), 0
    while guess < most and (left := left - length(history.items[guess])) >= 0:
        guess += 1
    number, rendered = largest(most, render, guess)
    return rendered and Fitted(rendered, number, most - number)


def largest(most: int, fit: Callable[[int], T | None], guess: int | None = None) -> tuple[int, T | None]:
    """Return the largest n in 0..most for which `fit(n)` is not None, and that value; (0, None) if there is none.

    Tries the guess, then doubles the distance from it, and finally bisects. Without a guess, tries `most`, then 0.
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


@dataclass(frozen=True)
class Trimmed(Fitted):
    num_contexts_trimmed: int = 0  # posts in it that were cut
    question_cut: bool = False  # the question was cut at its end


def fit_trimmed(
    prompt: Prompt, entries: Sequence[Entry], chat: Chat, budget: int, join: Callable[[list[str]], str], **values: str
) -> Trimmed | None:
    """Fit a prompt into a budget as LaMP's code does: trim every entry, then cut the question.

    LaMP cuts the end of the whole input, which is the question. If the entries leave no room for the question, or do
    not fit themselves, they are left out. None if the prompt exceeds the budget even without a question.

    Args:
        values: texts for the prompt's placeholders, including `question`.
    """
    question = values["question"]

    def length(texts: list[str]) -> int:
        return chat.length(chat.render(prompt.messages(profile=join(texts), **values)))

    def render(texts: list[str], end: int) -> Rendered | None:
        kept = values | {"question": question[:end].rstrip() if end < len(question) else question}
        return _render_within(prompt.messages(profile=join(texts), **kept), chat, budget)

    bare, alone = [state("") for _, state in entries], length([])
    # One token more per seam: a text may have one more token between others than alone.
    seams = length(bare) - sum(map(chat.count, bare)) - alone + len(entries) if entries else 0
    items = trim(entries, alone, seams, budget, chat.count)
    for texts in (items, []):
        end, rendered = largest(len(question), lambda end, texts=texts: render(texts, end))
        if rendered is not None and (end or not question):
            used = len(texts)
            shortened = sum(item != state(text) for item, (text, state) in zip(texts, entries, strict=False))
            return Trimmed(rendered, used, len(entries) - used, False, shortened, end < len(question))
    return None


def trim(entries: Sequence[Entry], alone: int, seams: int, budget: int, count: Callable[[str], int]) -> list[str]:
    """Trim entries to the budget: each has an equal share, plus what earlier ones did not need.

    The prompt without entries counts for at most 0.6 of the budget. If an entry exceeds its share even without text,
    this falls to 0.5, and so on down to 0. If that does not help, no entries are left.

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
    """Return an entry with as much of its text as fits into `most` tokens; None if it is too long without text."""
    text, state = entry

    def within(length: int) -> str | None:
        cut = state(text[:length].rstrip() if length < len(text) else text)
        return cut if count(cut) <= most else None

    return largest(len(text), within)[1]
