"""LaMP's own way to keep a profile within the budget: each entry is trimmed to its share, and none is left out.

An entry is what a prompt states of an item: its text, which may be cut at its end, in words that may not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prompts import Prompt
from utils.generation.chat import Chat, Fitted, fit_profile, longest

Entry = tuple[str, Callable[[str], str]]  # the text, and from what is left of it the entry


@dataclass(frozen=True)
class Trimmed(Fitted):
    num_contexts_trimmed: int = 0  # posts in it that are not whole


def fit_trimmed(
    prompt: Prompt, entries: Sequence[Entry], chat: Chat, budget: int, join: Callable[[list[str]], str], **values: str
) -> Trimmed | None:
    """As `fit_profile`, with each entry trimmed first.

    Entries are left out, the lowest-ranked first, only where the rest of the prompt has more than the part of the
    budget that `trim` allows it: LaMP's code would cut the question there.
    """
    bare = [state("") for _, state in entries]
    around = chat.length(chat.render(prompt.messages(profile=join(bare), **values))) - sum(map(chat.count, bare))
    # A token each for the seams: between others a text may have one more than alone.
    items = trim(entries, around + len(entries), budget, chat.count)
    fitted = fit_profile(prompt, items, chat, budget, join, **values)
    if fitted is None:
        return None
    used = fitted.num_contexts_used
    shortened = sum(item != state(text) for item, (text, state) in zip(items[:used], entries, strict=False))
    return Trimmed(fitted.prompt, used, len(entries) - used, fitted.context_cut, shortened)


def trim(entries: Sequence[Entry], around: int, budget: int, count: Callable[[str], int]) -> list[str]:
    """The entries within what the budget leaves them, each with an equal share and what those before it did not need.

    Of the budget goes first what stands around the entries, but not more than 0.6 of it; where an entry is over its
    share without any text, not more than 0.5 of it, and so on. No entries where that does not help.

    Args:
        around: tokens of the prompt besides the entries.
        budget: most tokens the prompt may have.
        count: the tokens of a text.
    """
    for tenths in range(6, -1, -1):
        room = budget - min(around, budget * tenths // 10)
        stated = _share(entries, room // max(len(entries), 1), count)
        if stated is not None:
            return stated
    return []


def _share(entries: Sequence[Entry], share: int, count: Callable[[str], int]) -> list[str] | None:
    """The entries in shares of so many tokens; None where one has more in its words alone."""
    stated: list[str] = []
    saved = 0
    for entry in entries:
        cut = _cut(entry, share + saved, count)
        if cut is None:
            return None
        saved += share - count(cut)
        stated.append(cut)
    return stated


def _cut(entry: Entry, most: int, count: Callable[[str], int]) -> str | None:
    """An entry with as much of its text as fits into `most` tokens; None where it does not fit without any."""
    text, state = entry

    def within(length: int) -> str | None:
        cut = state(text[:length].rstrip() if length < len(text) else text)
        return cut if count(cut) <= most else None

    return longest(len(text), within)[1]
