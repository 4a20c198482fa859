"""The validity figures, by hand arithmetic."""

import json

import pytest

from utils.building.personas.assembly import Row
from utils.building.personas.validity import ALL, describe, measure

IDEAS, EVOLUTION = "suggest_new_ideas", "track_full_preference_evolution"
EIGHT = "one two three four five six seven eight"


def row_of(name, options, letter="a", blind=None, kind=IDEAS):
    entry = {
        "id": name,
        "type": kind,
        "question": f"<{name}>",
        "answer": options[0],
        "wrong": options[1:],
        "place": None,
    }
    entry |= {"reference": {"period": "init", "event": "d1"}, "is_line": False, "blind": blind}
    columns = {"correct_answer": f"({letter})"}
    return Row({**columns, "topic": "therapy"}, entry)


def test_the_figures_by_hand():
    figures = measure([
        row_of("1", ["xx", "x", "xx", "xxx"], "a", [True, True, None]),  # rank 2.5
        row_of("1", ["xx", "x", "xx", "xxx"], "b", [True, True, None]),
        row_of("2", ["xxx", "xxx", "y", "Y!"], "b", [True, False, False]),  # rank 3.5, one of two longest
        row_of("3", [EIGHT, "go, north", "a", "b"], "d"),  # rank 4
        row_of("3", ["two three four five six seven eight ten", "go north", "a", "b"], "d"),
        row_of("4", ["z", "zz", "zzz", "zzzz"], "c", [True, True, True], kind=EVOLUTION),  # rank 1
    ])  # fmt: skip
    ideas = figures[IDEAS]
    assert (ideas["questions"], ideas["rows"], ideas["tries"], ideas["tries without a letter"]) == (3, 5, 6, 1)
    assert (ideas["blind accuracy"], ideas["guessed"]) == (0.5, 1)
    assert ideas["mean rank by length"] == pytest.approx((2.5 + 3.5 + 4) / 3)
    assert ideas["longest"] == pytest.approx((0 + 0.5 + 1) / 3)
    assert ideas["letters"] == {"a": 0.2, "b": 0.4, "c": 0, "d": 0.4}
    assert ideas["identical"] == 2
    assert (figures[EVOLUTION]["guessed"], figures[EVOLUTION]["blind accuracy"]) == (0, 1)
    assert figures[ALL]["blind accuracy"] == pytest.approx(6 / 9) and [*figures] == [IDEAS, EVOLUTION, ALL]
    assert json.loads(json.dumps(figures)) == figures
    lines = describe(measure([row_of("1", ["z", "zz", "zzz", "zzzz"])])).splitlines()
    assert lines[2] == f"| {IDEAS} | 1 | - | 0 | 1 | 0 | 0 | 1 |"
    assert lines[-1] == "- right letters: (a) 100.0%"
    assert describe(measure([])).splitlines()[-1] == "- right letters: -"
