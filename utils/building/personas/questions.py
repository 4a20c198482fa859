"""Questions about what conversations reveal about a user, following section 3.2 of the paper and its public code.

An event may change what the user thinks of a thing. The event and all earlier events about the same thing are its
chain, newest first. A question is about the second event of the chain that the conversations mention, and is asked
just before they mention the first. If they mention only one event, the question is about it, and is asked at the end.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, permutations
from typing import Any, NamedTuple

from utils.benchmarks.personamem.letters import LETTERS
from utils.benchmarks.personamem.task import TYPES, options_text
from utils.building.personas import replies
from utils.building.personas.asking import Asking
from utils.building.personas.inputs import PERIODS

TRIES = 3  # attempts to answer a question without any history
NUM_IDEAS = 3  # earlier lines of the user, one for each wrong idea
FACTS, IDEAS, LATEST, EVOLUTION, REASONS, RECOMMENDATION, SCENARIO = TYPES
Entry = dict[str, Any]


class EventFacts(NamedTuple):
    """The facts behind the questions about one event."""

    chain: list[Entry]  # the event and, if it changes another, all older events about the same thing, newest first
    mentioned: list[Entry]  # the part of the chain that the conversations mention, newest first
    lines: Mapping[str, tuple[str, list[dict[str, str]]]]  # by an event's date: the period and turns of its section
    course: list[Entry]  # the oldest mentioned event, then those at which liking turned, oldest first
    has_turned: bool  # whether liking differs between the newest two mentioned events

    @property
    def about(self) -> Entry:
        return self.mentioned[min(1, len(self.mentioned) - 1)]

    def user_line(self, event: Entry) -> str:
        return self.lines[event["date"]][1][0]["user"]

    def place(self, event: Entry) -> dict[str, str]:
        return {"period": self.lines[event["date"]][0], "event": event["date"]}


def facts_of_events(topic: Mapping[str, Any], periods: Sequence[str]) -> list[EventFacts]:
    """Return the facts about each event of these periods that has a section, in order."""
    events = {event["date"]: event for period in topic["periods"].values() for event in period["events"]}
    lines = {section["event"]: (name, section["turns"]) for name, period in topic["periods"].items()
             for section in period["sections"] if section["event"]}  # fmt: skip
    facts = []
    for date in (date for date, (name, _) in lines.items() if name in periods):
        chain = [events[date]]
        if events[date]["changes"] is not None:
            older = [event for event in events.values() if event["thing"] == chain[0]["thing"] and event["date"] < date]
            chain += sorted(older, key=lambda event: event["date"], reverse=True)
        mentioned = [event for event in chain if event["date"] in lines]
        turns = [after for before, after in pairwise(mentioned[::-1]) if after["is_liked"] != before["is_liked"]]
        has_turned = len(mentioned) > 1 and mentioned[0]["is_liked"] != mentioned[1]["is_liked"]
        facts.append(EventFacts(chain, mentioned, lines, [mentioned[-1], *turns], has_turned))
    return facts


async def make_questions(asking: Asking, record: Mapping[str, Any]) -> list[Entry]:
    """Return all questions about a topic's conversations in the periods of --time."""
    topic, drawn = record["made_from"], record["drawn"]
    asking.values |= {"card": topic["card"], "who": f"{drawn['gender']} and {drawn['ethnicity']}"}
    events = facts_of_events(topic, record["periods"])
    made = await asyncio.gather(*(_on_event(asking, topic, facts) for facts in events))
    return [entry for entries in made for entry in entries]


async def _on_event(asking: Asking, topic: Mapping[str, Any], facts: EventFacts) -> list[Entry]:
    """Return the questions about one event, in the order of the paper's types."""
    event, newest = facts.chain[0], facts.mentioned[0]
    thing, period, is_update = event["thing"], facts.place(event)["period"], event["changes"] is not None
    changed_in = [
        name for name in PERIODS for later in topic["periods"].get(name, {}).get("events", [])
        if later["thing"] == thing and later["changes"] and later["date"] > event["date"]
    ]  # fmt: skip
    common = {
        "period": period,
        "event": event["date"],
        "num_updates": 1 + sum(older["changes"] is not None for older in facts.chain),
        "later_update": bool(changed_in),
        "is_stereotypical": {hobby["name"]: hobby["is_stereotypical"] for hobby in topic["hobbies"]}[thing],
    }
    values = _values(asking, facts, topic)

    async def make(
        type_: str, name: str, is_line: bool = False, at_end: bool = False, hint: str | None = None
    ) -> Entry | None:
        """Return a question of this type, if `is_line` the user's line about the newest event; None if unusable."""
        place = None if at_end or len(facts.mentioned) == 1 else facts.place(newest)
        if place is None and period in changed_in:
            asking.dropped[f"{name}: the same conversation changes the preference again"] += 1
            return None
        if is_line:
            answer = await asking.json(name, replies.Text, replies.check_text, **values)
            reply = answer and {"question": facts.user_line(newest), "answer": answer}
        else:
            reply = await asking.json(name, replies.QuestionReply, partial(replies.check_question, hint=hint), **values)
        if not reply:
            return None
        check = partial(replies.check_wrong, answer=reply["answer"])
        wrong_name = f"{name.removesuffix('_line')}_wrong"
        if not (wrong := await asking.json(wrong_name, replies.Wrong, check, **values, **reply)):
            return None
        suffix = "/line" if name.endswith("_line") else ""
        entry = {"id": f"{asking.id}/{event['date']}/{type_}{suffix}", "type": type_, **common, **reply}
        entry |= {"wrong": wrong, "place": place, "reference": facts.place(newest if at_end else facts.about)}
        return {**entry, "is_line": is_line, "blind": await _answer_blind(asking, entry)}

    wanted = [make(FACTS, "facts", hint=thing), make(LATEST, "latest"), make(RECOMMENDATION, "recommendation")]
    if is_update and values["others"].count("\n") == NUM_IDEAS - 1:
        wanted.append(make(IDEAS, "ideas"))
    if is_update and len(facts.course) > 1:
        wanted.append(make(EVOLUTION, "evolution", is_line=True))
    if is_update and facts.has_turned:
        wanted += [make(SCENARIO, "scenario", at_end=True), make(REASONS, "reasons", at_end=True)]
        if facts.mentioned[1]["reason"]:
            wanted.append(make(REASONS, "reasons_line", is_line=True))
    entries = [entry for entry in await asyncio.gather(*wanted) if entry]
    return sorted(entries, key=lambda entry: list(TYPES).index(entry["type"]))


async def _answer_blind(asking: Asking, entry: Entry) -> list[bool | None]:
    """Return for each attempt without a history whether the right option was chosen; None if no letter was read.

    The options have a different order in each attempt.
    """
    texts = [entry["answer"], *entry["wrong"]]
    orders = asking.random(entry["id"]).sample(list(permutations(range(len(texts)))), TRIES)
    option_texts = [options_text([texts[place] for place in order]) for order in orders]
    letters = await asyncio.gather(*(asking.choose_blind(entry["question"], options) for options in option_texts))
    tries = zip(letters, orders, strict=True)
    return [None if letter is None else order[LETTERS.index(letter)] == 0 for letter, order in tries]


def _values(asking: Asking, facts: EventFacts, topic: Mapping[str, Any]) -> dict[str, str]:
    """Return the values for the prompts about an event."""
    event, about, newest = facts.chain[0], facts.about, facts.mentioned[0]
    # Only lines before the question: a later line would be a new idea, and thus a right answer.
    earlier = [" ".join(turns[0]["user"].split()) for date, (_, turns) in facts.lines.items() if date < event["date"]]
    others = asking.random(f"others:{event['date']}").sample(earlier, min(NUM_IDEAS, len(earlier)))
    other = "has the right preference, but in connection with another event than the user's"
    if facts.has_turned:
        other = f"gives a short version of this reply: {facts.lines[newest['date']][1][0]['assistant']}"
    course = [{field: event[field] for field in ("thing", "is_liked", "reason")} for event in facts.course]
    return {
        "thing": about["thing"],
        "things": "; ".join(hobby["name"] for hobby in topic["hobbies"] if hobby["name"] != about["thing"]),
        "liked": "likes" if about["is_liked"] else "dislikes",
        "event": about["event"],
        "now": f"{'likes' if event['is_liked'] else 'dislikes'} {event['thing']}",
        "reason": event["reason"] or "",
        "reason_before": (facts.mentioned[1]["reason"] or "") if len(facts.mentioned) > 1 else "",
        "line": facts.user_line(about),
        "newest_line": facts.user_line(newest),
        "course": "\n".join(json.dumps(turn, ensure_ascii=False) for turn in course),
        "others": "\n".join(others),
        "other": other,
    }
