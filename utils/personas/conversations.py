"""The first steps: personas with a history, their conversations about topics, and small talk.

They follow section 3.1 of the paper (arXiv 2504.14225) and its public code. Unlike there, every prompt contains the
persona, and all topics of a persona share its general history.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any

from prompts import Messages
from utils.personas import replies
from utils.personas.asking import Asking
from utils.personas.inputs import PERIODS, Topic

LATER = {"next_week": "one or two weeks", "next_month": "one or two months", "next_year": "year"}  # for prompts
NUM_HOBBIES = 20  # per topic, half of them liked at first
GENERAL_EVENTS, TOPIC_EVENTS, LATER_EVENTS = 10, 20, 10  # in the first period of either history, and in later ones
MOST_DAYS_LATER = 6  # from a period's last event to its conversation


async def make_persona(asking: Asking, drawn: dict[str, Any]) -> dict[str, Any] | None:
    """Return a persona's card and its general history; None if either is unusable."""
    turns: Messages = []
    card = await asking.json("persona", replies.Persona, replies.check_persona, turns)
    if card is None:
        return None
    general = await make_history(asking, "general", drawn["start"], GENERAL_EVENTS, {}, turns)
    return {**drawn, "card": card, "general": general} if general else None


async def make_history(
    asking: Asking, kind: str, start: str, number: int, hobbies: dict[str, bool], turns: Messages
) -> dict[str, list[dict[str, Any]]]:
    """Return the events of a `general` or `topic` history, by period; it ends before the first unusable period."""
    form = replies.History if hobbies else replies.GeneralHistory
    history: dict[str, list[dict[str, Any]]] = {}
    before: list[dict[str, Any]] = []
    for period in PERIODS:
        after = before[-1]["date"] if before else (date.fromisoformat(start) - timedelta(1)).isoformat()
        wanted = LATER_EVENTS if before else number

        def check(reply: Any, wanted: int = wanted, after: str = after, before: list = tuple(before)) -> tuple:
            return replies.check_history(reply.events, wanted, after, before, hobbies)

        name = f"{kind}_later" if before else f"{kind}_history"
        values = {"start": start, "last": after, "number": str(wanted), "span": LATER.get(period, "")}
        events = await asking.json(name, form, check, turns, **values)
        if not events or 2 * len(events) < wanted:
            asking.dropped[f"{name}: too few events left, so the periods from {period} on"] += 1
            break
        history[period] = events
        before += events
    return history


async def make_conversations(
    asking: Asking, topic: Topic, persona: dict[str, Any], start: str
) -> dict[str, Any] | None:
    """Return a topic's hobbies, and events and conversation by period; None if the first period has none."""
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
    old = {event["date"]: event["event"] for events in history.values() for event in events}
    periods: dict[str, dict[str, Any]] = {}
    for period, events in history.items():
        general = persona["general"].get(period, [])
        last = max(event["date"] for event in (*events, *general))
        today = (date.fromisoformat(last) + timedelta(draw.randint(0, MOST_DAYS_LATER))).isoformat()
        sections = await converse(asking, talk, with_old(events, old), period, today)
        if not sections:
            break
        periods[period] = {"today": today, "events": events, "sections": sections}
    if not periods:
        return None
    return {"card": persona["card"], "speakers": list(topic.speakers), "hobbies": hobbies, "periods": periods}


def with_old(events: Sequence[dict[str, Any]], old: dict[str, str]) -> list[dict[str, Any]]:
    """Return the events, each with the text of the older event that it changes, None if it changes none."""
    return [{**event, "old_event": old.get(event["changes"])} for event in events]


async def converse(
    asking: Asking, talk: Messages, events: list[dict[str, Any]], period: str, today: str
) -> list[dict[str, Any]]:
    """Return a period's conversation in sections: one before the first event, then one per event.

    Events that the conversation leaves out are requested once more, on their own, and then dropped.
    """
    told = [{name: event[name] for name in ("date", "event", "thing", "is_liked", "reason")} for event in events]
    check = partial(replies.check_conversation, events=events)
    opening = "Begin with an introduction by the user." if period == PERIODS[0] else "The user returns."
    values = {"events": _lines(told), "opening": opening, "today": today}
    sections = await asking.json("conversation", replies.Conversation, check, talk, **values) or []
    if missing := replies.missing_events(sections, events):
        check = partial(replies.check_conversation, events=missing)
        values["events"] = _lines([one for one in told if one["date"] in {event["date"] for event in missing}])
        added = await asking.json("missing_events", replies.Conversation, check, talk, **values) or []
        sections = sorted(sections + [one for one in added if one["event"]], key=lambda one: one["event"] or "")
        asking.dropped["conversation: no turn for an event"] += len(replies.missing_events(sections, events))
    if not any(section["event"] for section in sections):
        return []
    by_date = {event["date"]: event for event in events}
    return list(await asyncio.gather(*(expand(asking, one, by_date.get(one["event"]), today) for one in sections)))


async def expand(asking: Asking, section: dict[str, Any], event: dict[str, Any] | None, today: str) -> dict[str, Any]:
    """Return a section rewritten at greater length; unchanged if no reply is usable."""
    about = "what the user says at first" if event is None else event["event"]
    values = {"section": _lines(section["turns"]), "about": about, "today": today}
    turns = await asking.json("section", replies.Section, replies.check_section, small=True, **values)
    return {**section, "turns": turns or section["turns"]}


async def make_small_talk(asking: Asking, question: str) -> list[dict[str, str]] | None:
    """Return two turns about a question: a thorough answer, a follow-up question, and an answer to it."""
    say = partial(asking.json, form=replies.Text, check=replies.check_text, turns=[])
    if (answer := await say("small_talk", question=question)) is None:
        return None
    if (follow_up := await say("follow_up")) is None:
        return None
    if (last := await say("small_talk", question=follow_up)) is None:
        return None
    return [{"user": question, "assistant": answer}, {"user": follow_up, "assistant": last}]


def _lines(objects: Sequence[dict[str, Any]]) -> str:
    """Return one JSON object per line, for prompts."""
    return "\n".join(json.dumps(one, ensure_ascii=False) for one in objects)
