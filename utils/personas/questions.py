"""Questions about what conversations reveal about a user, following section 3.2 of the paper and its public code.

An event may change what the user thinks of a thing. It and all earlier events about the thing are its chain, newest
first. A question is about the second event of the chain that the conversations mention, and is asked before they
mention the first. If they mention only one, it is about that one, and is asked at the end.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, permutations
from typing import Any, NamedTuple

from utils.benchmarks.personamem import TYPES, options_text
from utils.parsing.letters import LETTERS
from utils.personas import replies
from utils.personas.asking import Asking
from utils.personas.inputs import PERIODS

TRIES = 3  # attempts to answer a question without any history
NUM_IDEAS = 3  # earlier lines of the user, one per wrong idea
FACTS, IDEAS, LATEST, EVOLUTION, REASONS, RECOMMENDATION, SCENARIO = TYPES
Entry = dict[str, Any]


class Told(NamedTuple):
    """The facts behind the questions about one event."""

    chain: list[Entry]  # the event and, if it is a change, all older ones about the same thing, newest first
    told: list[Entry]  # the part of the chain that the conversations mention, newest first
    lines: Mapping[str, tuple[str, list[dict[str, str]]]]  # by an event's date, the period and turns of its section
    course: list[Entry]  # the oldest event told and the changes of liking since, oldest first
    has_turned: bool  # whether the newest two events told differ in liking the thing

    @property
    def about(self) -> Entry:
        return self.told[min(1, len(self.told) - 1)]

    def user_line(self, event: Entry) -> str:
        return self.lines[event["date"]][1][0]["user"]

    def place(self, event: Entry) -> dict[str, str]:
        return {"period": self.lines[event["date"]][0], "event": event["date"]}


def events_told(topic: Mapping[str, Any], periods: Sequence[str]) -> list[Told]:
    """Return the events of these periods that have a section, in order."""
    events = {event["date"]: event for its in topic["periods"].values() for event in its["events"]}
    lines = {section["event"]: (period, section["turns"]) for period, its in topic["periods"].items()
             for section in its["sections"] if section["event"]}  # fmt: skip
    found = []
    for date in (date for date, (period, _) in lines.items() if period in periods):
        chain = [events[date]]
        if events[date]["changes"] is not None:
            older = [one for one in events.values() if one["thing"] == chain[0]["thing"] and one["date"] < date]
            chain += sorted(older, key=lambda one: one["date"], reverse=True)
        told = [event for event in chain if event["date"] in lines]
        turns = [one for before, one in pairwise(told[::-1]) if one["is_liked"] != before["is_liked"]]
        has_turned = len(told) > 1 and told[0]["is_liked"] != told[1]["is_liked"]
        found.append(Told(chain, told, lines, [told[-1], *turns], has_turned))
    return found


async def make_questions(asking: Asking, topic: Mapping[str, Any], periods: Sequence[str]) -> list[Entry]:
    """Return all questions about a topic's conversations in these periods."""
    made = await asyncio.gather(*(_on_event(asking, topic, its) for its in events_told(topic, periods)))
    return [entry for entries in made for entry in entries]


async def _on_event(asking: Asking, topic: Mapping[str, Any], its: Told) -> list[Entry]:
    """Return the questions about one event, in the order of the paper's types."""
    event, thing = its.chain[0], its.chain[0]["thing"]
    period, is_update = its.lines[event["date"]][0], event["changes"] is not None
    changed_in = [
        name for name in PERIODS for one in topic["periods"].get(name, {}).get("events", [])
        if one["thing"] == thing and one["changes"] and one["date"] > event["date"]
    ]  # fmt: skip
    before = its.place(its.told[0]) if len(its.told) > 1 else None
    common = {
        "period": period,
        "event": event["date"],
        "num_updates": 1 + sum(one["changes"] is not None for one in its.chain),
        "later_update": bool(changed_in),
        "is_stereotypical": {one["name"]: one["is_stereotypical"] for one in topic["hobbies"]}[thing],
    }
    values = _values(asking, its, topic)

    async def make(
        type_: str, name: str, is_line: bool = False, at_end: bool = False, hint: str | None = None
    ) -> Entry | None:
        place = None if at_end else before
        if place is None and period in changed_in:
            asking.dropped[f"{name}: the same conversation changes the preference again"] += 1
            return None
        asked = await _ask(asking, name, values, its.user_line(its.told[0]) if is_line else None, hint)
        if asked is None:
            return None
        suffix = "/line" if is_line and type_ == REASONS else ""
        entry = {"id": f"{asking.id}/{event['date']}/{type_}{suffix}", "type": type_, **common, **asked, "place": place}
        entry |= {"reference": its.place(its.told[0] if at_end else its.about), "is_line": is_line}
        return {**entry, "blind": await _answer_blind(asking, entry)}

    wanted = [make(FACTS, "facts", hint=thing), make(LATEST, "latest"), make(RECOMMENDATION, "recommendation")]
    if is_update and values["others"].count("\n") == NUM_IDEAS - 1:
        wanted.append(make(IDEAS, "ideas"))
    if is_update and len(its.course) > 1:
        wanted.append(make(EVOLUTION, "evolution", is_line=True))
    if is_update and its.has_turned:
        wanted += [make(SCENARIO, "scenario", at_end=True), make(REASONS, "reasons", at_end=True)]
        if its.told[1]["reason"]:
            wanted.append(make(REASONS, "reasons_line", is_line=True))
    found = [entry for entry in await asyncio.gather(*wanted) if entry]
    return sorted(found, key=lambda entry: list(TYPES).index(entry["type"]))


async def _ask(asking: Asking, name: str, values: dict[str, str], line: str | None, hint: str | None) -> Entry | None:
    """Return a question with right and wrong answers, None if unusable; `line` is the question if it is given."""
    if line is None:
        check = partial(replies.check_question, hint=hint)
        asked = await asking.json(name, replies.QuestionReply, check, **values)
    else:
        answer = await asking.json(name, replies.Text, replies.check_text, **values)
        asked = answer and {"question": line, "answer": answer}
    if not asked:
        return None
    check = partial(replies.check_wrong, answer=asked["answer"])
    wrong_name = f"{name.removesuffix('_line')}_wrong"
    wrong = await asking.json(wrong_name, replies.Wrong, check, **values, **asked)
    return wrong and {**asked, "wrong": wrong}


async def _answer_blind(asking: Asking, entry: Entry) -> list[bool | None]:
    """Return, for each attempt without a history, whether the right option was chosen; None without a letter.

    The order of the options differs between attempts.
    """
    texts = [entry["answer"], *entry["wrong"]]
    orders = asking.random(entry["id"]).sample(list(permutations(range(len(texts)))), TRIES)
    shown = [options_text([texts[place] for place in order]) for order in orders]
    letters = await asyncio.gather(*(asking.choose_blind(entry["question"], options) for options in shown))
    tries = zip(letters, orders, strict=True)
    return [None if letter is None else order[LETTERS.index(letter)] == 0 for letter, order in tries]


def _values(asking: Asking, its: Told, topic: Mapping[str, Any]) -> dict[str, str]:
    """Return the values for the prompts about an event."""
    event, about = its.chain[0], its.about
    # Only lines said before the question: a later one would be a new idea there, and thus a right answer.
    earlier = [" ".join(turns[0]["user"].split()) for date, (_, turns) in its.lines.items() if date < event["date"]]
    others = asking.random(f"others:{event['date']}").sample(earlier, min(NUM_IDEAS, len(earlier)))
    if its.has_turned:
        other = f"gives a short version of this reply: {its.lines[its.told[0]['date']][1][0]['assistant']}"
    else:
        other = "has the right preference, but in connection with another event than the user's"
    course = [{"thing": one["thing"], "is_liked": one["is_liked"], "reason": one["reason"]} for one in its.course]
    return {
        "thing": about["thing"],
        "things": "; ".join(one["name"] for one in topic["hobbies"] if one["name"] != about["thing"]),
        "liked": "likes" if about["is_liked"] else "dislikes",
        "event": about["event"],
        "now": f"{'likes' if event['is_liked'] else 'dislikes'} {event['thing']}",
        "reason": event["reason"] or "",
        "reason_before": (its.told[1]["reason"] or "") if len(its.told) > 1 else "",
        "line": its.user_line(about),
        "newest_line": its.user_line(its.told[0]),
        "course": "\n".join(json.dumps(one, ensure_ascii=False) for one in course),
        "others": "\n".join(others),
        "other": other,
    }
