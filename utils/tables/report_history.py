"""What a report shows of a history that many questions share: a few messages of thousands, and how many it leaves out.

These are its beginning and its end, what stands around the place that the question is about, and of what systems were
given the best items. The whole would be gigabytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from utils.benchmarks.task import Item
from utils.records.contexts import Profile

AT_BEGIN, AT_END = 2, 3  # messages
BEFORE, AFTER = 3, 5  # messages of the cited place, itself among the latter
MOST_ITEMS, OF_ITEM = 10, 2  # items of a system, and messages of each: a session has dozens
MOST_CHARACTERS = 1_000  # of a message

RULE = (
    f"Shown are the first {AT_BEGIN} messages and the last {AT_END}, {BEFORE + AFTER} around the place that the "
    f"question is about, as far as its distance tells that, and of the best {MOST_ITEMS} items that a system had the "
    f"first {OF_ITEM} messages; of a message {MOST_CHARACTERS:,} characters."
)


def show_history(profile: Profile, share: float | None, given: Mapping[int, Sequence[Item]]) -> dict[str, Any]:
    """The messages to be shown, each with its place, and the systems that had it among their items.

    Args:
        share: of the history's text what stands before the cited place; None where that is not known.
        given: by system its items, best first, where it did not have the whole history.
    """
    messages = profile.messages
    cited = None if share is None else place_of(share, [len(message["content"]) for message in messages])
    shown = {*range(AT_BEGIN), *range(len(messages) - AT_END, len(messages))}
    shown |= set() if cited is None else set(range(cited - BEFORE, cited + AFTER))
    systems: dict[int, list[int]] = {}
    for system, items in given.items():
        for place in (place for item in items[:MOST_ITEMS] for place in item["places"][:OF_ITEM]):
            systems.setdefault(place, []).append(system)
    places = sorted(place for place in shown | systems.keys() if 0 <= place < len(messages))
    rows = []
    for place in places:
        role, text = messages[place]["role"], messages[place]["content"]
        left = max(0, len(text) - MOST_CHARACTERS)
        rows.append([place, role, text[:MOST_CHARACTERS], left, systems.get(place, [])])
    return {"total": len(messages), "cited": cited, "shown": rows}


def place_of(share: float, lengths: Sequence[int]) -> int:
    """The message behind this share of the text."""
    passed, wanted = 0, share * sum(lengths)
    for place, length in enumerate(lengths):
        passed += length
        if passed > wanted:
            return place
    return len(lengths) - 1
