"""Titles of aspects and how two match; each number is derived in a comment."""

import pytest

from utils.benchmarks.lampqa.plans import WORDS_THRESHOLD, aspect_recall, gold_text, plan_text, word_overlap
from utils.benchmarks.lampqa.task import gold_plan
from utils.benchmarks.readers import one_line


def test_a_gold_plan_has_only_the_titles_one_per_line():
    record = {
        "rubric_aspects": [
            {"aspect": " Cost of\n  the trip ", "evidence": "I have 400 pounds", "reason": "a small budget"},
            {"aspect": "Safety", "evidence": "", "reason": ""},
        ]
    }
    assert gold_text(gold_plan(record)) == "Cost of the trip\nSafety"
    assert gold_plan({"rubric_aspects": []}) == []


def test_a_plan_has_one_title_per_line():
    assert plan_text(["Cost", "Time of day", "音楽"]) == "Cost\nTime of day\n音楽"
    assert plan_text(["Cost"]) == "Cost"
    assert plan_text([]) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Cost\t of \r\n\n travel ", "Cost of travel"),
        ("a\u2028b\u00a0c\u3000d", "a b c d"),
        (" \n", ""),
    ],
)
def test_one_line(text, expected):
    assert one_line(text) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("cost safety", "cost speed", 0.5),  # 2 * 1 / (2 + 2)
        ("cost", "cost safety", 2 / 3),  # 2 * 1 / (1 + 2)
        ("Cost of the trip", "COST: a trip!", 1.0),  # {cost, trip} both
        ("The user's cost", "cost", 1.0),  # the, user and s say nothing
        ("travel cost", "cost of travel", 1.0),  # in any order
        ("how to", "how to", 1.0),  # function words count where there are no others
        ("how to", "how to cook", 0.0),  # {how, to} and {cook}
        ("!!!", "!!!", 1.0),
        ("!!!", "???", 0.0),
        ("!!!", "cost", 0.0),
        ("Straße", "strasse", 1.0),
        ("音楽", "音楽 歴史", 2 / 3),
    ],
)
def test_word_overlap(a, b, expected):
    assert word_overlap(a, b) == pytest.approx(expected)
    assert word_overlap(b, a) == pytest.approx(expected)


def test_from_which_word_overlap_two_titles_match():
    assert WORDS_THRESHOLD == 0.6
    assert aspect_recall(["cost safety speed weight noise"], ["cost safety speed size colour"]) == 1  # 2 * 3 / (5 + 5)
    assert aspect_recall(["cost safety"], ["cost speed"]) == 0  # 0.5


@pytest.mark.parametrize(
    ("wanted", "given", "expected"),
    [
        (["a", "b", "c", "d"], ["c"], 0.25),  # 1 of 4
        (["a", "b"], ["A", "B!"], 1.0),
        (["a", "b"], ["c"], 0.0),
        (["a", "A.", "b"], ["a"], 2 / 3),  # one title may match several
        (["a"], ["a", "a"], 1.0),  # several may match one, which counts once
        ([], ["a"], 0.0),
    ],
)
def test_aspect_recall(wanted, given, expected):
    assert aspect_recall(wanted, given) == pytest.approx(expected)
