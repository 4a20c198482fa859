"""The forms of a model's JSON replies, and checks of their content. No side effects.

A check returns the usable part and a list of faults. Faults do not quote the text, so equal ones are counted together.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from typing import Any, TypeVar

import msgspec

from utils.benchmarks.readers import keep_commands, own_turn, valid_objects, writable

T = TypeVar("T")
USER_SENTENCES, ASSISTANT_SENTENCES = 5, 10  # minimum per section
LATEST = "2200"  # no history is so long, so dates from this year on are mistakes
NUM_WRONG = 3  # options beside the right one
_SENTENCE_END = re.compile(r"[.!?…。！？।؟]+")
_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}/\d{1,2}/\d{2,4}\b|\b(?:January|February|March|April|May|June|July|August|September"
    r"|October|November|December) \d{1,2}(?:st|nd|rd|th)?\b,? (?:19|20)\d{2}"
)
Faults = list[str]


def _form(name: str, /, *bases: type, **fields: Any) -> type[msgspec.Struct]:
    """Return a struct for a reply; its JSON schema allows no other fields, as servers require."""
    return msgspec.defstruct(name, list(fields.items()), bases=bases or None, forbid_unknown_fields=True)


_EVENT = {"date": str, "event": str, "is_long_term": bool, "changes": str | None, "reason": str | None}
Persona = _form("Persona", name=str, card=str)
GeneralEvent = _form("GeneralEvent", **_EVENT)
Event = _form("Event", GeneralEvent, thing=str, is_liked=bool)
GeneralHistory = _form("GeneralHistory", events=list[GeneralEvent])
History = _form("History", events=list[Event])
Hobby = _form("Hobby", name=str, is_stereotypical=bool)
Hobbies = _form("Hobbies", hobbies=list[Hobby])
Turn = _form("Turn", user=str, assistant=str)
EventTurn = _form("EventTurn", Turn, event=str | None)
Conversation = _form("Conversation", turns=list[EventTurn])
Section = _form("Section", turns=list[Turn])
Text = _form("Text", text=str)
QuestionReply = _form("QuestionReply", question=str, answer=str)
Wrong = _form("Wrong", wrong=list[str])


@cache
def schema_of(form: type) -> dict[str, Any]:
    """Return the JSON schema of this form; its root is an object, as servers require."""
    [schema], defs = msgspec.json.schema_components([form], ref_template="#/$defs/{name}")
    root = defs.pop(schema["$ref"].rpartition("/")[2])
    return {**root, "$defs": defs} if defs else root


def read(text: str, form: type[T]) -> T | str:
    """Return the last JSON object of this form in a text; if there is none, a text that names the fault.

    Prose and fences around the object are ignored.
    """
    text = own_turn(keep_commands(writable(text)))
    reply, fault = None, "no valid JSON" if "{" in text and "}" in text else "no JSON object"
    for _, content in valid_objects(text):
        try:
            reply = msgspec.convert(content, form)
        except msgspec.ValidationError as error:
            fault = f"not the JSON asked for: {re.sub(r'[0-9]+', '…', str(error))}"
    return fault if reply is None else reply


def whole(value: T, faults: Mapping[str, object]) -> tuple[T | None, Faults]:
    """Return the value, or None if a fault is true, and the faults that are true."""
    found = _true(faults)
    return (None if found else value), found


def _true(faults: Mapping[str, object]) -> Faults:
    return [fault for fault, is_so in faults.items() if is_so]


def count_sentences(text: str) -> int:
    """Count the sentences that have a word and an end mark, in linear time for any text."""
    return sum(re.search(r"\w", part) is not None for part in _SENTENCE_END.split(text)[:-1])


# Personas and histories


def check_persona(reply: Any) -> tuple[str | None, Faults]:
    """Return the card, if it has the persona's name and at least three sentences."""
    card, name = reply.card.strip(), reply.name.strip()
    lacks_name, is_short = not name or name not in card, count_sentences(card) < 3
    faults = {"the card does not have the name": lacks_name, "the card is shorter than three sentences": is_short}
    return whole(card, faults)


def check_hobbies(reply: Any, number: int) -> tuple[list[dict[str, Any]], Faults]:
    """Return the first `number` distinct hobbies."""
    names = [hobby.name.strip() for hobby in reply.hobbies]
    by_name = {name.lower(): {"name": name, "is_stereotypical": hobby.is_stereotypical}
               for name, hobby in zip(names, reply.hobbies, strict=True) if name}  # fmt: skip
    faults = {
        "a hobby has no name, or appears twice": len(by_name) < len(names),
        f"fewer than {number} hobbies": len(by_name) < number,
    }
    return [*by_name.values()][:number], _true(faults)


def check_history(
    reply: Any, number: int, after: str, before: Sequence[dict[str, Any]], hobbies: dict[str, bool]
) -> tuple[list[dict[str, Any]], Faults]:
    """Return the usable events in the order of their dates.

    Args:
        number: minimum number of events.
        after: a date; all events must be later.
        before: all events of earlier periods.
        hobbies: by name, whether the user likes each thing at first; empty for a general history.
    """
    by_date, kept, faults = {event["date"]: event for event in before}, [], []
    newest = {event.get("thing"): event for event in before}
    for event in sorted(reply.events, key=lambda event: event.date):
        if fault := _fault_of(event, after, by_date, newest, hobbies):
            faults.append(fault)
        else:
            kept.append(msgspec.structs.asdict(event))
            by_date[event.date] = newest[kept[-1].get("thing")] = kept[-1]
    if len(reply.events) < number:
        faults.append("fewer events than asked for")
    if before and 2 * sum(event["changes"] is not None for event in kept) <= len(kept):
        faults.append("no more than half of the events change an earlier one")
    return kept, faults


def _fault_of(event: Any, after: str, by_date: dict, newest: dict, hobbies: dict[str, bool]) -> str | None:
    """Return the first fault of an event, from the earlier events by date and the newest event about each thing.

    A preference must change if, and only if, the event names an older one.
    """
    is_change, old, reason = event.changes is not None, by_date.get(event.changes), (event.reason or "").strip()
    faults = {
        "an event's date is not a valid YYYY-MM-DD": not _is_date(event.date),
        "an event is not after the period before": event.date <= after,
        "two events have the same date": event.date in by_date,
        "an event has no text": not event.event.strip(),
        "an event changes an unknown or later event": is_change and old is None,
        "an event changes another without a reason": is_change and not reason,
        "an event has a reason but changes nothing": reason and not is_change,
    }
    if hobbies:
        last = newest.get(event.thing)
        is_other = event.is_liked != (hobbies.get(event.thing) if last is None else last["is_liked"])
        faults |= {
            "an event's thing is not one of the hobbies": event.thing not in hobbies,
            "a preference changes, but the event names no older event": is_other and not is_change,
            "an event changes an event about another thing": old and old["thing"] != event.thing,
            "an event does not change the newest event about its thing": is_change and old is not last,
            "an event names an older event, but the preference stays the same": is_change and not is_other,
        }
    return next(iter(_true(faults)), None)


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text < LATEST
    except ValueError:
        return False


# Conversations


def check_conversation(reply: Any, events: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], Faults]:
    """Return the usable sections: the turns before the first event, then one per event (see `missing_events`)."""
    old_events, all_faults, sections = {event["date"]: event.get("old_event") for event in events}, [], []
    is_lost = False  # after a dropped event: its further turns would end up in another event's section
    for turn in reply.turns:
        user, assistant, old = turn.user.strip(), turn.assistant.strip(), old_events.get(turn.event)
        names_event = turn.event is not None
        faults = _true({
            "a turn lacks one of its speakers' texts": not user or not assistant,
            "a turn's event is not in the history": names_event and turn.event not in old_events,
            "two turns have the same event": names_event and turn.event in [section["event"] for section in sections],
            "the events are not in the order of their dates":
                turn.event and sections and (sections[-1]["event"] or "") > turn.event,
            "a turn names the old event": turn.event and old and old.lower() in user.lower(),
            "a turn mentions a date": _DATE.search(f"{turn.user} {turn.assistant}"),
        })  # fmt: skip
        all_faults += faults[:1]
        if not faults and (names_event or not (sections or is_lost)):
            sections.append({"event": turn.event, "turns": [{"user": user, "assistant": assistant}]})
        elif not faults and not is_lost:
            sections[-1]["turns"].append({"user": user, "assistant": assistant})
        if names_event:
            is_lost = bool(faults)
    return sections, all_faults


def missing_events(sections: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events without a section."""
    dates = {section["event"] for section in sections}
    return [event for event in events if event["date"] not in dates]


def check_section(reply: Any) -> tuple[list[dict[str, str]] | None, Faults]:
    """Return the turns, if they are long enough and mention no dates."""
    turns = [{"user": turn.user.strip(), "assistant": turn.assistant.strip()} for turn in reply.turns]
    if not turns or not all(turn["user"] and turn["assistant"] for turn in turns):
        return None, ["a turn lacks one of its speakers' texts"]
    users, assistants = (" ".join(turn[name] for turn in turns) for name in ("user", "assistant"))
    return whole(turns, {
        "a turn mentions a date": _DATE.search(f"{users} {assistants}"),
        f"the user says fewer than {USER_SENTENCES} sentences": count_sentences(users) < USER_SENTENCES,
        f"the assistant says fewer than {ASSISTANT_SENTENCES} sentences":
            count_sentences(assistants) < ASSISTANT_SENTENCES,
    })  # fmt: skip


def check_text(reply: Any) -> tuple[str | None, Faults]:
    return whole(reply.text.strip(), {"the text is empty": not reply.text.strip()})


# Questions


def check_question(reply: Any, hint: str | None) -> tuple[dict[str, str] | None, Faults]:
    """Return a question and its right answer; the question must not contain `hint`."""
    question, answer = reply.question.strip(), reply.answer.strip()
    return whole({"question": question, "answer": answer}, {
        "the question is empty": not question,
        "the answer is empty": not answer,
        "the question names what it asks for": hint is not None and hint.lower() in question.lower(),
    })  # fmt: skip


def check_wrong(reply: Any, answer: str) -> tuple[list[str] | None, Faults]:
    """Return three wrong answers, unless any is empty or equal to another or to the right one."""
    wrong = [text.strip() for text in reply.wrong]
    right, *alike = [" ".join(text.lower().split()) for text in (answer, *wrong)]
    return whole(wrong, {
        f"not {NUM_WRONG} wrong answers": len(wrong) != NUM_WRONG,
        "a wrong answer is empty": "" in wrong,
        "a wrong answer is the right one": right in alike,
        "two wrong answers are the same": len({*alike}) < len(alike),
    })  # fmt: skip
