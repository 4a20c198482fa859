"""Comparisons of two systems: paired questions, and one result per column of the table."""

import math

import pytest

from utils.benchmarks.lampqa import CATEGORIES, TASK
from utils.tables.columns import MACRO, PERMUTATION, T_TEST, compare
from utils.tables.system_scores import Board, System

ARTS, LIFESTYLE, SOCIETY = CATEGORIES


def question(question_id, community, score):
    details = [{"aspect": "a", "score": None}]
    entry = {"id": question_id, **TASK.group_of({"category": community})}
    return {**entry, "answered": True, "score": score, "details": details}


def results_of(first, second):
    """Return the results of one system against another, by column."""
    return {one.column: one for one in comparisons_of(first, second)}


def comparisons_of(first, second):
    named = {"first": first, "second": second}
    files = {name: {f"{name}.json": {"per_question_scores": its}} for name, its in named.items()}
    systems = [System(name, TASK, "aspect", its) for name, its in files.items()]
    board = Board(TASK, "aspect", systems, list(named))
    return compare([board], ["second"], intervals=True, correct=False)


def test_only_questions_scored_for_both_are_paired_and_the_others_counted():
    scores = {  # 0.0 is a score; "-" is not there
        "d": ("law", 0.25, 0.0), "b": ("music", 0.5, 0.75), "a": ("anime", 1.0, 0.0),
        "no score here": ("pets", None, 0.5), "no score there": ("pets", 0.5, None), "not there": ("pets", 0.5, "-"),
        "not there, 0": ("pets", 0.0, "-"), "no score": ("pets", None, None), "nor there": ("pets", None, "-"),
    }  # fmt: skip
    first = [question(i, community, one) for i, (community, one, _) in scores.items()]
    second = [question(i, community, its) for i, (community, _, its) in sorted(scores.items()) if its != "-"]
    results = comparisons_of(first, second)
    assert [result.num_questions for result in results] == [2, 0, 1, 3]
    assert [result.difference for result in results] == [0.375, None, 0.25, None]
    assert {result.pairing for result in results} == {(3, 3, 1, 2)}
    assert {result.pairing for result in comparisons_of(second, first)} == {(3, 1, 3, 2)}


def test_two_systems_by_hand():
    scores = {"a": ("music", 1.0, 0.5), "b": ("anime", 0.5, 0.5), "c": ("pets", 0.5, 1.0), "d": ("cooking", 0.75, 0.5),
              "e": ("law", 0.25, 0.0), "f": ("history", None, 1.0)}  # fmt: skip
    first, second = ([question(i, its[0], its[n]) for i, its in scores.items()] for n in (1, 2))
    results = results_of(first, second)
    assert list(results) == [ARTS, LIFESTYLE, SOCIETY, MACRO]
    arts, lifestyle, society, macro = results.values()
    assert [result.num_questions for result in results.values()] == [2, 2, 1, 5]
    assert arts.difference == 0.25  # 0.5, 0
    assert lifestyle.difference == -0.125  # -0.5, 0.25
    assert society.difference == 0.25
    assert macro.difference == 0.125  # (0.25 - 0.125 + 0.25) / 3
    assert (arts.interval, lifestyle.interval) == ((0.0, 0.5), (-0.5, 0.25))
    # t = 1: mean 0.25, variance 0.125, 0.25 / sqrt(0.125 / 2); with one degree of freedom p = 1 - 2 atan(1) / pi.
    assert arts.p_values[T_TEST] == pytest.approx(0.5)
    assert arts.effect_size == pytest.approx(0.25 / math.sqrt(0.125))
    assert (arts.p_values[PERMUTATION], society.p_values[PERMUTATION]) == (1.0, 1.0)
    assert (society.p_values[T_TEST], society.interval, society.effect_size) == (None,) * 3
    assert (macro.p_values[T_TEST], macro.interval, macro.effect_size) == (None,) * 3  # one question of society
    # Macro, in twelfths: 0.5 / 2 = 3, -0.5 / 2 = -3, 0.25 / 2 = 1.5, 0.25 = 3, sum 4.5. Of ±3 ±3 ±3 ±1.5 the sums
    # of three signs are ±9 (twice), ±3 (six times): ±9 ±1.5 all reach 4.5, of ±3 ±1.5 one half does.
    assert macro.p_values[PERMUTATION] == 10 / 16
    one = results_of([question("a", "music", 1.0)], [question("a", "music", 0.5)])
    assert one[ARTS].difference == 0.5 and one[MACRO].difference is None
