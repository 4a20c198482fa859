"""Intervals and tests of scores that are not means over questions: macro F1 and RMSE."""

import itertools
import math
import random

import pytest

from utils.benchmarks.scoring import ROOT_MEAN_SQUARE, macro_f1
from utils.tables.significance import (
    bootstrap_interval,
    difference_of,
    estimate,
    influences,
    mean_of,
    permutation_test,
    swap_test,
)

LABELS = ("comedy", "action", "violence")


def scores(seed, size=60):
    rng = random.Random(seed)
    return [rng.choice([0, 0.25, 0.5, 1]) for _ in range(size)]


def labels(seed, size=80, right=0.5):
    rng = random.Random(seed)
    return [(one, one if rng.random() < right else rng.choice([*LABELS, ""])) for one in rng.choices(LABELS, k=size)]


def pairs_of(first, second):
    return list(zip(first, second, strict=True))


@pytest.mark.parametrize(("first", "second"), [(0.9, 0.3), (0.7, 0.4), (0.5, 0.5)])
def test_the_swap_test_agrees_with_all_swaps(first, second):
    """Ten questions have 1,024 ways to swap the systems' answers; all are enumerated by hand."""
    one, other = (
        [(gold, label) for gold, label in labels(seed, 10, right)] for seed, right in ((5, first), (6, second))
    )
    other = [(gold, label) for (gold, _), (_, label) in pairs_of(one, other)]  # on the same questions
    score = macro_f1(LABELS).score
    observed = abs(score(one) - score(other))
    hits = 0
    for swaps in itertools.product([False, True], repeat=len(one)):
        kept = [(b, a) if swap else (a, b) for swap, a, b in zip(swaps, one, other, strict=True)]
        hits += abs(score([a for a, _ in kept]) - score([b for _, b in kept])) >= observed - 1e-12
    assert swap_test([pairs_of(one, other)], macro_f1(LABELS).of) == pytest.approx(hits / 1024, abs=0.02)


def test_swapping_the_systems_negates_and_keeps_p():
    f1, pairs = macro_f1(LABELS), pairs_of(labels(8, right=0.8), labels(9, right=0.4))
    other = [(b, a) for a, b in pairs]
    low, high = bootstrap_interval([pairs], difference_of(f1.of))
    assert bootstrap_interval([other], difference_of(f1.of)) == (-high, -low)
    assert estimate([other], difference_of(f1.of)) == -estimate([pairs], difference_of(f1.of))
    assert swap_test([other], f1.of) == swap_test([pairs], f1.of) < 0.05
    assert swap_test([pairs_of(labels(8), labels(8))], f1.of) == 1


def test_by_cluster_it_agrees_with_the_clusters_module():
    """A question changes a mean by its own score, and a root mean square by its square over twice the score."""
    values, users = scores(1), [str(number % 7) for number in range(60)]
    assert influences(values, mean_of) == pytest.approx(values)
    pairs, of_mean = pairs_of(values, scores(2)), difference_of(mean_of)
    differences = [one - other for one, other in pairs]
    assert influences(pairs, of_mean) == pytest.approx(differences)
    expected = permutation_test([differences], [users])
    assert swap_test([pairs], mean_of, [users]) == pytest.approx(expected, abs=0.02)
    errors = [1.0] * 500 + [3.0] * 500
    score = ROOT_MEAN_SQUARE.score(errors)
    expected = [score + (error**2 - score**2) / 2 / score for error in (1, 3)]
    assert sorted(set(influences(errors, ROOT_MEAN_SQUARE.of))) == pytest.approx(expected, rel=1e-2)


def test_it_agrees_with_significance_for_means_and_its_root_for_rmse():
    strata = [scores(1), scores(2, 45)]
    assert estimate(strata, mean_of) == pytest.approx(estimate(strata))
    pairs = pairs_of(scores(3), scores(4))
    differences = [[one - other for one, other in pairs]]
    assert estimate([pairs], difference_of(mean_of)) == pytest.approx(estimate(differences))
    assert swap_test([pairs], mean_of) == pytest.approx(permutation_test(differences), abs=0.02)
    errors = random.Random(7).choices([0, 0, 1, 2, 4], k=50)
    low, high = bootstrap_interval([[error**2 for error in errors]])
    assert bootstrap_interval([errors], ROOT_MEAN_SQUARE.of) == pytest.approx((math.sqrt(low), math.sqrt(high)))
    f1 = macro_f1(LABELS)  # of too few questions there is none
    assert estimate([labels(1), []], f1.of) is None
    assert bootstrap_interval([labels(1), labels(1, 1)], f1.of) is None
    assert swap_test([[]], f1.of) is None
