"""Prompts within a token budget: the lowest-ranked posts go first, then the end of the only one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prompts import History, Messages, Prompt
from utils.generation.chat import Chat, Rendered

T = TypeVar("T")


@dataclass(frozen=True)
class Fitted:
    """A rendered prompt within the budget, and what had to go."""

    prompt: Rendered
    num_contexts_used: int  # posts in it
    num_contexts_dropped: int  # posts that were left out for length
    context_cut: bool = False  # the only post in it was cut at its end


def fit_posts(build: Callable[[list[str]], Messages], posts: list[str], chat: Chat, budget: int) -> Fitted | None:
    """Fit a prompt into a budget: whole posts go, the lowest-ranked first, and nothing else.

    A first post that is too long alone is cut at its end. None where the prompt is over the budget even without posts.

    Args:
        build: the messages for a list of posts.
        posts: the profile's texts, best first.
        budget: most tokens the prompt may have.
    """

    def render_within(kept: list[str]) -> Rendered | None:
        rendered = chat.render(build(kept))
        return rendered if chat.length(rendered) <= budget else None

    used, prompt = longest(len(posts), lambda n: render_within(posts[:n]))
    if prompt is None or used > 0 or not posts:
        return prompt and Fitted(prompt, used, len(posts) - used)
    length, cut_prompt = longest(len(posts[0]), lambda n: render_within([posts[0][:n].rstrip()] if n else []))
    if not posts[0][:length].strip():
        return Fitted(prompt, 0, len(posts))
    return Fitted(cut_prompt, 1, len(posts) - 1, context_cut=True)


def fit_profile(
    prompt: Prompt, items: Sequence[str], chat: Chat, budget: int, join: Callable[[list[str]], str], **values: str
) -> Fitted | None:
    """`fit_posts` for a prompt and a user's best items: the one way in which a prompt gets a profile.

    It has the placeholders of `values`; where it has none for a profile there are no items. `join` makes one text of
    several of them.
    """

    def build(kept: list[str]) -> Messages:
        profile = {"profile": join(kept)} if "profile" in prompt.placeholders else {}
        return prompt.messages(**profile, **values)

    return fit_posts(build, list(items), chat, budget)


def longest(most: int, render: Callable[[int], T | None]) -> tuple[int, T | None]:
    """The largest n of 0..most whose text fits, and what `render` makes of it, None if it does not; else (0, None)."""
    if (prompt := render(most)) is not None:
        return most, prompt
    low, high, best = 0, most, render(0)
    while best is not None and high - low > 1:  # low fits, high doesn't
        middle = (low + high) // 2
        if (prompt := render(middle)) is None:
            high = middle
        else:
            low, best = middle, prompt
    return low, best


def fit_items(
    prompt: Prompt,
    items: Sequence[str] | History,
    chat: Chat,
    budget: int,
    join: Callable[[list[str]], str],
    **values: str,
) -> Fitted | None:
    """`fit_profile`, or the same for a history."""
    if isinstance(items, History):
        return fit_history(prompt, items, chat, budget, **values)
    return fit_profile(prompt, items, chat, budget, join, **values)


def fit_history(prompt: Prompt, history: History, chat: Chat, budget: int, **values: str) -> Fitted | None:
    """A prompt with as many items of a history, whole, as a budget has room for.

    None where it is over the budget without any. What its messages have alone tells nearly how many go in, so a prompt
    is rendered a few times, at no more than twice the budget's length or so, however long the history is.
    """

    def within(number: int) -> Rendered | None:
        rendered = chat.render(prompt.messages(turns=history.first(number), **values))
        return rendered if chat.length(rendered) <= budget else None

    most = len(history.items)
    number, rendered = largest(most, guess_number(history, chat, budget), within)
    return rendered and Fitted(rendered, number, most - number)


def guess_number(history: History, chat: Chat, budget: int) -> int:
    """How many items have fewer tokens than the budget, all that stands around them left aside."""
    left = budget - sum(chat.count_again(history.messages[place]["content"]) for place in history.fixed)
    for number, item in enumerate(history.items):
        left -= sum(chat.count_again(history.messages[place]["content"]) for place in item)
        if left < 0:
            return number
    return len(history.items)


def largest(most: int, guess: int, fit: Callable[[int], Any]) -> tuple[int, Any]:
    """The largest number of 0..most for which `fit` gives something, and that; (0, None) where none does.

    It looks near the guess first, then ever farther off, and in the end halves what is left between.
    """
    best = fit(guess)
    low, high, step = (guess, most + 1, 1) if best is not None else (-1, guess, 1)
    while high - low > 1:
        if best is not None and high > most:
            middle = min(low + step, most)  # nothing is known to be too much
        elif best is None:
            middle = max(high - step, 0)  # nothing is known to fit
        else:
            middle = (low + high) // 2
        step *= 2
        found = fit(middle)
        if found is not None:
            low, best = middle, found
        else:
            high = middle
    return max(low, 0), best
