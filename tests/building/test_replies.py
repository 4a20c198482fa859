"""Every fault of a model's reply is noticed, with its own reason; a right reply is kept completely."""

import json

import msgspec
import pytest

from utils.building.personas import replies
from utils.building.personas.replies import read

FIRST = {"date": "2001-05-01", "event": "A fall", "is_long_term": True, "changes": None, "reason": None, "thing": "tea"}
FIRST |= {"is_liked": True}
OTHER = {**FIRST, "date": "2001-06-01", "thing": "rye", "is_liked": False}
BEFORE = [FIRST, OTHER]
HOBBIES = {"tea": True, "rye": False, "figs": True}
CHANGE = {**FIRST, "date": "2001-07-01", "is_liked": False, "changes": "2001-05-01", "reason": "a burnt tongue"}
BACK = {**CHANGE, "date": "2001-08-01", "is_liked": True, "changes": "2001-07-01", "reason": "a good cup"}
NEW = {**FIRST, "date": "2001-09-01", "thing": "figs"}
LATER = [CHANGE, BACK, NEW]
TURNS = [
    {"event": None, "user": "Hello.", "assistant": "Hello."},
    {"event": "2001-07-01", "user": "I burnt my tongue.", "assistant": "Ouch."},
    {"event": None, "user": "Yes.", "assistant": "And then?"},
    {"event": "2001-08-01", "user": "A good cup, at last.", "assistant": "Good."},
]
EVENTS = [{**CHANGE, "old_event": "A fall"}, {**BACK, "old_event": "It was hot"}]
CARD = {"name": "Ida Moss", "card": "Ida Moss mends nets. She is 30. She hums."}
LONG = [
    {"user": "One. Two. Three.", "assistant": "One! Two! Three! Four! Five!"},
    {"user": "Four? Five.", "assistant": "Six. Seven. Eight. Nine. Ten."},
]
ASKED = {"question": "What was it that I drank?", "answer": "It was tea."}
WRONG = {"wrong": ["Rum.", "Milk.", "Ale."]}


def named(*names):
    return {"hobbies": [{"name": name, "is_stereotypical": False} for name in names]}


CHECKS = {
    "persona": (replies.Persona, CARD, replies.check_persona),
    "hobbies": (replies.Hobbies, named(*HOBBIES), lambda reply: replies.check_hobbies(reply, 3)),
    "history": (replies.History, {"events": LATER},
                lambda reply: replies.check_history(reply, 3, "2001-06-01", BEFORE, HOBBIES)),
    "conversation": (replies.Conversation, {"turns": TURNS}, lambda reply: replies.check_conversation(reply, EVENTS)),
    "section": (replies.Section, {"turns": LONG}, replies.check_section),
    "text": (replies.Text, {"text": "Well."}, replies.check_text),
    "question": (replies.QuestionReply, ASKED, lambda reply: replies.check_question(reply, "tea")),
    "wrong": (replies.Wrong, WRONG, lambda reply: replies.check_wrong(reply, "It was tea.")),
}  # fmt: skip


def with_event(number, **fields):
    return {"events": [{**event, **fields} if place == number else event for place, event in enumerate(LATER)]}


def with_turn(number, **fields):
    return {"turns": [{**turn, **fields} if place == number else turn for place, turn in enumerate(TURNS)]}


WAYS = [  # what is asked for, what is written, and the reason
    ("text", "Well.", "no JSON object"),
    ("text", '{"text": "Well", }', "no valid JSON"),
    ("text", {"text": 5}, "not the JSON asked for: Expected `str`, got `int` - at `$.text`"),
    ("text", {"texts": "Well."}, "not the JSON asked for: Object contains unknown field `texts`"),
    ("text", {"text": "  "}, "the text is empty"),
    ("persona", {**CARD, "name": "Ida Mosk"}, "the card does not have the name"),
    ("persona", {**CARD, "card": "Ida Moss mends nets."}, "the card is shorter than three sentences"),
    ("hobbies", named("tea", "rye"), "fewer than 3 hobbies"),
    ("hobbies", named("tea", "rye", "figs", "Tea "), "a hobby has no name, or appears twice"),
    ("history", {"events": LATER[:2]}, "fewer events than asked for"),
    ("history", with_event(2, date="2001-02-30"), "an event's date is not a valid YYYY-MM-DD"),
    ("history", with_event(2, date="2001-06-01"), "an event is not after the period before"),
    ("history", with_event(2, date="2001-08-01"), "two events have the same date"),
    ("history", with_event(2, event=" "), "an event has no text"),
    ("history", with_event(2, thing="jam"), "an event's thing is not one of the hobbies"),
    ("history", with_event(1, changes="2001-08-01"), "an event changes an unknown or later event"),
    ("history", with_event(1, reason=None), "an event changes another without a reason"),
    ("history", with_event(2, reason="so"), "an event has a reason but changes nothing"),
    ("history", with_event(2, is_liked=False), "a preference changes, but the event names no older event"),
    ("history", with_event(1, changes="2001-06-01"), "an event changes an event about another thing"),
    ("history", with_event(1, changes="2001-05-01"), "an event does not change the newest event about its thing"),
    ("history", with_event(1, is_liked=False), "an event names an older event, but the preference stays the same"),
    ("history", {"events": [CHANGE, NEW, {**NEW, "date": "2001-10-01"}]},
     "no more than half of the events change an earlier one"),
    ("conversation", with_turn(2, user=""), "a turn lacks one of its speakers' texts"),
    ("conversation", with_turn(2, event="2001-09-01"), "a turn's event is not in the history"),
    ("conversation", with_turn(2, event="2001-07-01"), "two turns have the same event"),
    ("conversation", {"turns": [TURNS[3], TURNS[1]]}, "the events are not in the order of their dates"),
    ("conversation", with_turn(1, user="It was a fall again."), "a turn names the old event"),
    ("conversation", with_turn(2, assistant="On 7/1/2001?"), "a turn mentions a date"),
    ("section", {"turns": LONG[:1]}, "the user says fewer than 5 sentences"),
    ("section", {"turns": [LONG[0], {**LONG[1], "assistant": "Six."}]}, "the assistant says fewer than 10 sentences"),
    ("section", {"turns": [*LONG, {"user": "On 2001-07-01.", "assistant": "So."}]}, "a turn mentions a date"),
    ("question", {**ASKED, "question": ""}, "the question is empty"),
    ("question", {**ASKED, "question": "Did I have Tea?"}, "the question names what it asks for"),
    ("wrong", {"wrong": ["Rum.", "Milk."]}, "not 3 wrong answers"),
    ("wrong", {"wrong": ["Rum.", "Milk.", ""]}, "a wrong answer is empty"),
    ("wrong", {"wrong": ["Rum.", "Milk.", "It was  TEA."]}, "a wrong answer is the right one"),
    ("wrong", {"wrong": ["Rum.", "Milk.", "milk."]}, "two wrong answers are the same"),
]  # fmt: skip


@pytest.mark.parametrize("kind", CHECKS)
def test_right_replies_are_taken(kind):
    form, right, check = CHECKS[kind]
    draft = {name: type(value)() for name, value in right.items()}
    reply = read(f"Draft: {json.dumps(draft)} Sure!\n```json\n{json.dumps(right)}\n```", form)
    value, faults = check(reply)
    assert value
    assert not faults


@pytest.mark.parametrize(("kind", "wrong", "reason"), WAYS, ids=[f"{kind}-{reason}" for kind, _, reason in WAYS])
def test_wrong_replies_have_their_reason(kind, wrong, reason):
    form, _, check = CHECKS[kind]
    reply = read(wrong if isinstance(wrong, str) else json.dumps(wrong), form)
    faults = check(reply)[1] if isinstance(reply, form) else [reply]
    assert faults[0] == reason


def test_faulty_events_and_their_dependents_are_dropped():
    """Wrong events are dropped, and so are those that change them."""
    reply = msgspec.convert(with_event(0, reason=None), replies.History)
    kept, faults = replies.check_history(reply, 3, "2001-06-01", BEFORE, HOBBIES)
    assert [event["date"] for event in kept] == ["2001-09-01"]
    assert faults[1] == "an event changes an unknown or later event"


@pytest.mark.parametrize("form", [form for form, *_ in CHECKS.values()])
def test_schemas_are_accepted_by_servers(form):
    """An object at the root, all fields required and no others: what OpenAI's strict mode asks for."""
    schema = replies.schema_of(form)
    for part in [schema, *schema.get("$defs", {}).values()]:
        assert part["type"] == "object"
        assert part["additionalProperties"] is False
        assert sorted(part["required"]) == sorted(part["properties"])


def test_sections():
    """Turns without an event belong to the one before; an event without a turn is missing."""
    reply = msgspec.convert({"turns": TURNS[:3]}, replies.Conversation)
    sections, _ = replies.check_conversation(reply, EVENTS)
    assert [(section["event"], len(section["turns"])) for section in sections] == [(None, 1), ("2001-07-01", 2)]
    assert [event["date"] for event in replies.missing_events(sections, EVENTS)] == ["2001-08-01"]
    # What follows a dropped turn goes too: it is about that turn's event, and would be in the section before.
    lost = {**TURNS[1], "event": "2001-08-01", "user": "On July 1, 2001, I burnt my tongue."}
    reply = msgspec.convert({"turns": [lost, TURNS[2], TURNS[1], lost, TURNS[2]]}, replies.Conversation)
    sections, _ = replies.check_conversation(reply, EVENTS)
    assert [(section["event"], len(section["turns"])) for section in sections] == [("2001-07-01", 1)]
