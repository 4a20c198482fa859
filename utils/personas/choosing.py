"""Choose the questions that are asked of a persona's history; seeded, no model.

Of T's last block all are asked. Of each earlier block one per type is asked, at the end of the history, and only if
the same thing does not change later.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from utils.personas.blocks import FEW_BLOCKS, Block, MessageId, Topics, section_id

UNFILTERED = "track_full_preference_evolution"
MOST_GUESSED = 1  # right ones of three tries without the history
KEPT_SHARE = 0.5  # of questions about earlier blocks of a long history

Entry = Mapping[str, Any]  # a question in questions.json


class Asked(NamedTuple):
    """A question, the message that it is asked before (None: at the end) and the one that it refers to."""

    topic: str
    entry: Entry
    place: MessageId | None
    reference: MessageId
    is_of_last: bool  # of T's last block


def is_guessed(entry: Entry) -> bool:
    """Say whether the filter drops a question: more than one of its tries without the history was right."""
    exempt = entry["type"] == UNFILTERED or entry["is_line"]
    return not exempt and (entry["blind"] or []).count(True) > MOST_GUESSED


def find_questions(persona: str, questions: Mapping[str, list[Entry]], topics: Topics, far: str) -> list[Asked]:
    """List the questions of all topics, in an order that does not depend on the files'."""
    last = far, topics[far][-1].period
    return [
        Asked(
            topic,
            entry,
            entry["place"] and section_id(persona, topic, entry["place"]),
            section_id(persona, topic, entry["reference"]),
            (topic, entry["period"]) == last,
        )
        for topic, entries in questions.items()
        for entry in sorted(entries, key=lambda entry: entry["id"])
    ]


def drop_reason(one: Asked, topics: Topics, places: Mapping[MessageId, int], filter_questions: bool) -> str:
    """Say why a question cannot be asked, or nothing; `places` are those of the messages in any variant.

    A topic's periods are in the same order in all variants, so one decides for all.
    """
    if one.entry["period"] not in {block.period for block in topics.get(one.topic, ())}:
        return "block not in the history"
    if filter_questions and is_guessed(one.entry):
        return "guessed without the history"
    if not one.is_of_last and one.place is not None:
        return "earlier block, asked in the text"
    if not one.is_of_last and one.entry["later_update"]:
        return "earlier block, updated later"
    if one.reference not in places:
        return "reference not in the history"
    if one.place is not None and one.place not in places:
        return "place not in the history"
    if one.place is not None and places[one.place] <= places[one.reference]:
        return "not asked after its reference"
    return ""


def choose_questions(
    found: list[Asked], topics: Topics, order: list[Block], places: Mapping[MessageId, int], filter_: bool, key: str
) -> tuple[list[Asked], Counter[str]]:
    """Choose the questions to ask, and count the others by reason.

    Args:
        order: the first variant's blocks. In a long history, questions about earlier blocks are kept with probability
            KEPT_SHARE, except about those of the topic that it begins with.
        places: of the first variant's messages.
    """
    groups, kept, counts = defaultdict(list), [], Counter[str]()
    for one in found:
        if reason := drop_reason(one, topics, places, filter_):
            counts[f"questions dropped: {reason}"] += 1
        else:
            groups[one.topic, one.entry["period"], one.entry["id" if one.is_of_last else "type"]].append(one)
    for group, members in groups.items():
        one = random.Random(f"{key}:one:{group}").choice(members)
        counts["questions dropped: not drawn of their type and block"] += len(members) - 1
        is_sure = one.is_of_last or len(order) <= FEW_BLOCKS or one.topic == order[0].topic
        if is_sure or random.Random(f"{key}:keep:{one.entry['id']}").random() < KEPT_SHARE:
            kept.append(one)
        else:
            counts["questions dropped: not drawn, long history"] += 1
    return kept, counts
