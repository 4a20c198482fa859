"""A history's turns within the token budget."""

from collections.abc import Callable, Sequence
from typing import Any

from prompts import History, Prompt
from utils.generation.chat import Chat, Fitted, Rendered, fit_profile


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
