"""The facts behind a question: its chain of events, the mentioned ones, and earlier lines."""

import random
from types import SimpleNamespace

import pytest

from utils.building.personas.questions import _values, facts_of_events

# Date, whether it is liked, and which event it changes; all about one thing.
EVENTS = [("01", True, None), ("02", False, "01"), ("03", False, None), ("04", True, "03")]


def topic_of(told):
    events = [
        {
            "date": day,
            "event": f"event {day}",
            "thing": "tea",
            "is_liked": liked,
            "changes": old,
            "reason": old and "so",
        }
        for day, liked, old in EVENTS
    ]
    others = [{**events[0], "date": f"00{number}", "thing": f"other {number}"} for number in range(4)]
    later = [{**events[0], "date": "05", "thing": "later"}]

    def period(its):
        turns = lambda one: [{"user": f"told {one['date']}", "assistant": "so"}]  # noqa: E731
        sections = [{"event": one["date"], "turns": turns(one)} for one in its if one["date"] in (told or one["date"])]
        return {"events": its, "sections": sections}

    hobbies = [{"name": name, "is_stereotypical": False} for name in ("tea", "rye", "figs")]
    return {
        "hobbies": hobbies,
        "periods": {"init": period(others + events[:1]), "next_week": period(events[1:] + later)},
    }


def about(told=None):
    topic = topic_of(told)
    [its] = [one for one in facts_of_events(topic, ["next_week"]) if one.chain[0]["date"] == "04"]
    asking = SimpleNamespace(random=lambda what: random.Random(what))
    return its, _values(asking, its, topic)


def test_a_restatement_does_not_end_a_chain():
    its, values = about()
    assert [one["date"] for one in its.chain] == ["04", "03", "02", "01"]
    assert [one["date"] for one in its.course] == ["01", "02", "04"]  # what changes nothing is left out
    assert its.about["date"] == "03" and values["course"].count("\n") == 2
    assert values["things"] == "rye; figs"


@pytest.mark.parametrize(("told", "course"), [("0104", ["01"]), ("0204", ["02", "04"]), ("04", ["04"])])
def test_the_course_has_only_what_is_told(told, course):
    its, values = about([told[:2], told[2:], "000"])
    assert [one["date"] for one in its.course] == course
    assert values["other"].startswith("gives a short version") == (course == ["02", "04"])


def test_wrong_ideas_are_drawn_from_what_was_said_before():
    drawn = {line for _ in range(5) for line in about()[1]["others"].split("\n")}
    assert len(drawn) == 3 and drawn <= {f"told {day}" for day in ("000", "001", "002", "003", "01", "02", "03")}
