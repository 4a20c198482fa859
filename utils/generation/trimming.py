"""LaMP's own way to keep a prompt within the budget (--trim_items): each entry is trimmed, then the question is cut.

An entry is what a prompt states of an item: its text, which may be cut at its end, in words that may not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prompts import Prompt
from utils.generation.chat import Chat, Rendered
from utils.generation.fitting import Fitted, longest

Entry = tuple[str, Callable[[str], str]]  # the text, and from what is left of it the entry


@dataclass(frozen=True)
class Trimmed(Fitted):
    num_contexts_trimmed: int = 0  # posts in it that are not whole
    question_cut: bool = False  # the question is not whole: cut at its end


def fit_trimmed(
    prompt: Prompt, entries: Sequence[Entry], chat: Chat, budget: int, join: Callable[[list[str]], str], **values: str
) -> Trimmed | None:
    """Fit a prompt into a budget as LaMP's code does: trim every entry, then cut the question to the tokens left.

    LaMP cuts the end of the whole input, which is the question. Where the entries leave the question no room, or have
    none themselves, the prompt has no entries. None where the prompt is over the budget even without a question.

    Args:
        values: of the prompt's placeholders, with `question`.
    """
    question = values["question"]

    def length(stated: list[str]) -> int:
        return chat.length(chat.render(prompt.messages(profile=join(stated), **values)))

    def render(stated: list[str], end: int) -> Rendered | None:
        kept = values | {"question": question[:end].rstrip() if end < len(question) else question}
        rendered = chat.render(prompt.messages(profile=join(stated), **kept))
        return rendered if chat.length(rendered) <= budget else None

    bare, alone = [state("") for _, state in entries], length([])
    # A token each for the seams: between others a text may have one more than alone.
    seams = length(bare) - sum(map(chat.count, bare)) - alone + len(entries) if entries else 0
    items = trim(entries, alone, seams, budget, chat.count)
    for stated in (items, []):
        end, rendered = longest(len(question), lambda end, stated=stated: render(stated, end))
        if rendered is not None and (end or not question):
            used = len(stated)
            shortened = sum(item != state(text) for item, (text, state) in zip(stated, entries, strict=False))
            return Trimmed(rendered, used, len(entries) - used, False, shortened, end < len(question))
    return None


def trim(entries: Sequence[Entry], alone: int, seams: int, budget: int, count: Callable[[str], int]) -> list[str]:
    """The entries within what the budget leaves them, each with an equal share and what those before it did not need.

    The prompt without entries comes first, but gets at most 0.6 of the budget; where an entry is over its share without
    any text, at most 0.5, and so on down to 0. No entries where that does not help.

    Args:
        alone: tokens of the prompt without entries.
        seams: tokens of what stands between and around the entries where there are some.
        budget: most tokens the prompt may have.
        count: the tokens of a text.
    """
    for tenths in range(6, -1, -1):
        room = budget - min(alone, budget * tenths // 10) - seams
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
