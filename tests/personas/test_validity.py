"""The validity figures, by hand."""

import json

import pytest

from utils.personas.assembly import Assembled, Row
from utils.personas.validity import ALL, Validity, describe

IDEAS, EVOLUTION = "suggest_new_ideas", "track_full_preference_evolution"
EIGHT = "one two three four five six seven eight"


def row_of(name, options, letter="a", blind=None, end=2, kind=IDEAS):
    entry = {
        "id": name,
        "type": kind,
        "question": f"<{name}>",
        "answer": options[0],
        "wrong": options[1:],
        "place": None,
    }
    entry |= {"reference": {"period": "init", "event": "d1"}, "is_line": False, "blind": blind}
    columns = {"correct_answer": f"({letter})", "shared_context_id": "c", "end_index_in_shared_context": str(end)}
    return Row({**columns, "topic": "therapy"}, entry)


def validity_of(*rows):
    messages = ["User: hm", f"Assistant: {EIGHT.upper()}, nine.", "User: go north"]
    validity = Validity()
    [*watched] = validity.watch([Assembled({"c": [{"role": "user", "content": one} for one in messages]}, [*rows], {})])
    assert watched[0].rows == [*rows]
    return validity


def test_the_figures_by_hand():
    figures = validity_of(
        row_of("1", ["xx", "x", "xx", "xxx"], "a", [True, True, None]),  # rank 2.5
        row_of("1", ["xx", "x", "xx", "xxx"], "b", [True, True, None]),
        row_of("2", ["xxx", "xxx", "y", "Y!"], "b", [True, False, False]),  # rank 3.5, one of two longest
        row_of("3", [EIGHT, "go, north", "a", "b"], "d", end=2),  # rank 4
        row_of("3", ["two three four five six seven eight ten", "go north", "a", "b"], "d", end=3),
        row_of("4", ["z", "zz", "zzz", "zzzz"], "c", [True, True, True], kind=EVOLUTION),  # rank 1
    ).figures()
    ideas = figures[IDEAS]
    assert (ideas["questions"], ideas["rows"], ideas["tries"], ideas["tries without a letter"]) == (3, 5, 6, 1)
    assert (ideas["blind accuracy"], ideas["guessed"]) == (0.5, 1)
    assert ideas["mean rank by length"] == pytest.approx((2.5 + 3.5 + 4) / 3)
    assert ideas["longest"] == pytest.approx((0 + 0.5 + 1) / 3)
    assert ideas["letters"] == {"a": 0.2, "b": 0.4, "c": 0, "d": 0.4}
    assert (ideas["identical"], ideas["near-identical"]) == (2, 1)
    assert (ideas["repeats"], ideas["right repeats"]) == (2, 1)  # both rows of 3: the right option, and "go north"
    assert (figures[EVOLUTION]["guessed"], figures[EVOLUTION]["blind accuracy"]) == (0, 1)
    assert figures[ALL]["blind accuracy"] == pytest.approx(6 / 9) and [*figures] == [IDEAS, EVOLUTION, ALL]
    assert json.loads(json.dumps(figures)) == figures
    lines = describe(validity_of(row_of("1", ["z", "zz", "zzz", "zzzz"])).figures()).splitlines()
    assert lines[1].split() == [IDEAS, "1", "-", "0", "1", "0", "0", "0", "1", "0", "0"]
    assert lines[-1] == "right letters: (a) 100.0%"
    assert describe(Validity().figures()).splitlines()[-1] == "right letters: -"
