"""The first steps: personas with a history, their conversations about topics, and small talk.

They follow section 3.1 of the paper (arXiv 2504.14225) and its public code, with two differences: every prompt has the
persona, and all topics of a persona share one general history.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any

from prompts import Messages
from utils.building.personas import replies
from utils.building.personas.asking import Asking
from utils.building.personas.inputs import PERIODS, draw_start

LATER = {"next_week": "one or two weeks", "next_month": "one or two months", "next_year": "year"}  # for prompts
NUM_HOBBIES = 20  # per topic, half of them liked at first
GENERAL_EVENTS, TOPIC_EVENTS, LATER_EVENTS = 10, 20, 10  # in the first period of each kind of history; in later periods
SHOWN = ("date", "event", "thing", "is_liked", "reason")  # an event's fields in the conversation's prompt
MOST_DAYS_LATER = 6  # between a period's last event and its conversation


async def make_persona(asking: Asking, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return a drawn persona with its card and its general history; None if either is unusable."""
    drawn: dict[str, Any] = record["drawn"]
    turns: Messages = []
    asking.values |= {name: str(drawn[name]) for name in ("persona", "gender", "ethnicity", "birth_year")}
    card = await asking.json("persona", replies.Persona, replies.check_persona, turns)
    if card is None:
        return None
    general = await make_history(asking, "general", drawn["start"], GENERAL_EVENTS, {}, turns)
    return {**drawn, "card": card, "general": general} if general else None


async def make_history(
    asking: Asking, kind: str, start: str, number: int, hobbies: dict[str, bool], turns: Messages
) -> dict[str, list[dict[str, Any]]]:
    """Return the events of a `general` or `topic` history by period, up to the first unusable period."""
    form = replies.History if hobbies else replies.GeneralHistory
    history: dict[str, list[dict[str, Any]]] = {}
    before: list[dict[str, Any]] = []
    for period in PERIODS:
        name, wanted = (f"{kind}_later", LATER_EVENTS) if before else (f"{kind}_history", number)
        after = before[-1]["date"] if before else (date.fromisoformat(start) - timedelta(1)).isoformat()
        check = partial(replies.check_history, number=wanted, after=after, before=[*before], hobbies=hobbies)
        values = {"start": start, "last": after, "number": str(wanted), "span": LATER.get(period, "")}
        events = await asking.json(name, form, check, turns, **values)
        if not events or 2 * len(events) < wanted:
            asking.dropped[f"{name}: too few events left, so the periods from {period} on"] += 1
            break
        history[period] = events
        before += events
    return history


async def make_conversations(asking: Asking, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return a topic's hobbies, and each period's events and conversation; None if the first period is unusable."""
    persona, topic = record["made_from"], record["topic"]
    start = draw_start(persona["start"], persona["id"], record["name"], asking.seed)
    general = [f"{event['date']}: {event['event']}" for events in persona["general"].values() for event in events]
    asking.values |= {"card": persona["card"], "topic": topic.about, "example": topic.example}
    asking.values |= {"general": "\n".join(general), "speakers": " and ".join(topic.speakers)}
    turns: Messages = []
    check = partial(replies.check_hobbies, number=NUM_HOBBIES)
    hobbies = await asking.json("hobbies", replies.Hobbies, check, turns, number=str(NUM_HOBBIES))
    if hobbies is None or len(hobbies) < NUM_HOBBIES // 2:
        return None
    draw = asking.random("draws")
    liked = set(draw.sample(range(len(hobbies)), len(hobbies) // 2))
    hobbies = [{**hobby, "is_liked": place in liked} for place, hobby in enumerate(hobbies)]
    likes = {hobby["name"]: hobby["is_liked"] for hobby in hobbies}
    asking.values["liked"] = "; ".join(name for name in likes if likes[name])
    asking.values["disliked"] = "; ".join(name for name in likes if not likes[name])
    history = await make_history(asking, "topic", start, TOPIC_EVENTS, likes, turns)
    talk: Messages = []
    if history:
        await asking.json("warm_up", replies.Text, replies.check_text, talk)
    texts = {event["date"]: event["event"] for events in history.values() for event in events}
    periods: dict[str, dict[str, Any]] = {}
    for period, events in history.items():
        last = max(event["date"] for event in (*events, *persona["general"].get(period, [])))
        today = (date.fromisoformat(last) + timedelta(draw.randint(0, MOST_DAYS_LATER))).isoformat()
        with_old = [{**event, "old_event": texts.get(event["changes"])} for event in events]
        sections = await converse(asking, talk, with_old, period, today)
        if not sections:
            break
        periods[period] = {"today": today, "events": events, "sections": sections}
    if not periods:
        return None
    return {"card": persona["card"], "speakers": list(topic.speakers), "hobbies": hobbies, "periods": periods}


async def converse(
    asking: Asking, talk: Messages, events: list[dict[str, Any]], period: str, today: str
) -> list[dict[str, Any]]:
    """Return a period's conversation in sections: one before the first event, then one per event.

    Events that the conversation lacks are requested once more, alone, and dropped if they are still missing.

    Args:
        events: the period's events, each with the text of the `old_event` that it changes, or None.
    """

    async def request(name: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lines = _lines([{field: event[field] for field in SHOWN} for event in events])
        check = partial(replies.check_conversation, events=events)
        return await asking.json(name, replies.Conversation, check, talk, events=lines, **values) or []

    opening = "Begin with an introduction by the user." if period == PERIODS[0] else "The user returns."
    values = {"opening": opening, "today": today}
    sections = await request("conversation", events)
    if missing := replies.missing_events(sections, events):
        added = await request("missing_events", missing)
        both = [*sections, *(section for section in added if section["event"])]
        sections = sorted(both, key=lambda section: section["event"] or "")
        asking.dropped["conversation: no turn for an event"] += len(replies.missing_events(sections, events))
    if not any(section["event"] for section in sections):
        return []
    texts = {event["date"]: event["event"] for event in events}
    return list(
        await asyncio.gather(*(expand(asking, section, texts.get(section["event"]), today) for section in sections))
    )


async def expand(asking: Asking, section: dict[str, Any], event: str | None, today: str) -> dict[str, Any]:
    """Return a section rewritten at greater length, by the text of its event; unchanged if no reply is usable."""
    values = {"section": _lines(section["turns"]), "about": event or "what the user says at first", "today": today}
    turns = await asking.json("section", replies.Section, replies.check_section, small=True, **values)
    return {**section, "turns": turns or section["turns"]}


async def make_small_talk(asking: Asking, record: dict[str, str]) -> list[dict[str, str]] | None:
    """Return two turns about a question: a thorough answer, a follow-up question, and an answer to it."""
    question, say = record["question"], partial(asking.json, form=replies.Text, check=replies.check_text, turns=[])
    if (answer := await say("small_talk", question=question)) is None:
        return None
    if (follow_up := await say("follow_up")) is None:
        return None
    if (last := await say("small_talk", question=follow_up)) is None:
        return None
    return [{"user": question, "assistant": answer}, {"user": follow_up, "assistant": last}]


def _lines(objects: Sequence[dict[str, Any]]) -> str:
    """Return one JSON object per line, for prompts."""
    return "\n".join(json.dumps(value, ensure_ascii=False) for value in objects)
