"""The paired statistics: by hand, compared with SciPy, and with almost no data."""

import itertools
import math
import random
from statistics import fmean

import numpy as np
import pytest
import scipy.stats

from utils.tables.significance import (
    PERMUTATIONS,
    bootstrap_interval,
    differences,
    effect_size,
    estimate,
    holm,
    permutation_test,
    t_test,
)


def random_strata(seed, *sizes):
    dice = random.Random(seed)
    return [[round(dice.gauss(0.05, 0.3), 12) for _ in range(size)] for size in sizes]


@pytest.mark.parametrize(
    ("strata", "expected"),
    [
        ([[0.1, 0.2, 0.3]], 2 / 8),  # as far as 0.6: all positive, all negative
        ([[0.1, 0.1, 0.2, -0.1, 0.0]], 8 / 16),  # 0.3: at most one of the three 0.1 negative, or mirrored
        ([[0.1, 0.2, -0.3]], 1.0),  # the sum is 0, which in floats it is not: 0.1 + 0.2 > 0.3
        ([[0.1] * 3 + [-0.1]], 10 / 16),  # 0.2: at most one of four negative, or mirrored
        ([[0.2], [-0.3, 0.1]], 6 / 8),  # 0.2 - 0.15 + 0.05 = 0.1: of ±0.2 ±0.15 ±0.05 only ±(0.2 - 0.15 - 0.05) less
        ([[0.2, -0.3, 0.1]], 1.0),  # the same three in one stratum: the sum is 0
    ],
)
def test_permutation_test_by_enumeration(strata, expected):
    assert permutation_test(strata) == expected


def test_holm():
    # In ascending order 4 × 0.005, 3 × 0.01, 2 × 0.03, 1 × 0.04; the last may not be below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.4]) == [0.8, 0.8]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02, 0.02]) == [0.04, 0.04]
    assert holm([]) == []
    assert holm([0.01, None, 0.03]) == [0.02, None, 0.03]  # 2 × 0.01, 1 × 0.03; None keeps its place


@pytest.mark.parametrize(
    ("stratum", "p", "interval", "permutation_p", "d_z"),
    [
        ([], None, None, None, None),
        ([0.1], None, None, 1.0, None),  # both flips are as far from 0
        ([0.0, 0.0], 1.0, (0.0, 0.0), 1.0, 0.0),
        ([0.1, 0.1], None, (0.1, 0.1), 0.5, None),  # two flips of four
        ([-0.1] * 10, None, (-0.1, -0.1), 2 / 1024, None),
    ],
)
def test_undefined_values_are_none(stratum, p, interval, permutation_p, d_z):
    assert t_test([stratum]) == p
    assert bootstrap_interval([stratum]) == interval
    assert permutation_test([stratum]) == permutation_p
    assert effect_size(stratum) == d_z


@pytest.mark.parametrize("sizes", [(13,), (14,), (4, 9), (3, 4, 7)])
def test_permutation_test_follows_its_definition_with_and_without_chance(sizes):
    strata = random_strata(sum(sizes), *sizes)
    weighted = [d / len(stratum) for stratum in strata for d in stratum]
    flipped = [
        abs(math.fsum(sign * w for sign, w in zip(signs, weighted, strict=True)))
        for signs in itertools.product([1, -1], repeat=len(weighted))
    ]
    exact = sum(f >= abs(math.fsum(weighted)) - 1e-12 for f in flipped) / len(flipped)
    assert 0.001 < exact < 0.999
    assert permutation_test(strata, permutations=2 ** len(weighted)) == exact

    drawn = permutation_test(strata, permutations=2 ** len(weighted) - 1)
    assert drawn != exact and drawn * 2 ** len(weighted) == int(drawn * 2 ** len(weighted)) > 0
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 2 ** len(weighted)))


@pytest.mark.parametrize("strata", [[[0.5, -0.2, 0.1, 0.0, 0.35]], [[0.5, -0.2, 0.1], [0.0, 0.35]]])
def test_the_interval_equals_that_of_all_resamples(strata):
    means = sorted(
        fmean(map(fmean, resample))
        for resample in itertools.product(*(itertools.product(stratum, repeat=len(stratum)) for stratum in strata))
    )
    low, high = bootstrap_interval(strata)
    assert np.quantile(means, 0.02) - 1e-12 <= low <= np.quantile(means, 0.03) + 1e-12
    assert np.quantile(means, 0.97) - 1e-12 <= high <= np.quantile(means, 0.98) + 1e-12


def test_means_by_hand():
    assert 0.3 - 0.2 != 0.4 - 0.3  # equal differences of scores are equal numbers all the same
    assert differences([(0.3, 0.2), (0.4, 0.3), (0.2, 0.3), (1 / 3, 1 / 3)]) == [0.1, 0.1, -0.1, 0.0]
    assert estimate([[0.1, 0.2, 0.6], [-0.1]]) == 0.1  # (0.3 - 0.1) / 2, not 0.8 / 4
    assert estimate([[0.1], []]) is None
    assert effect_size([-0.1, -0.2, -0.3]) == pytest.approx(-2.0)  # 0.2 / 0.1


def test_a_too_small_stratum_gives_none_and_one_without_variance_does_not():
    for short in ([], [0.1]):
        strata = [[0.1, 0.2, 0.4], short]
        assert (t_test(strata), bootstrap_interval(strata)) == (None, None)
    assert t_test([[0.1, 0.1], [-0.1, -0.1]]) is None
    assert t_test([[0.0, 0.0], [0.0, 0.0, 0.0]]) == 1.0
    assert permutation_test([[0.1, 0.2, 0.3] + [0.0] * 2000]) == 2 / 8  # ties leave it exact
    assert permutation_test([[0.1] * 2830]) == 1 / (PERMUTATIONS + 1)  # with chance it is never 0


def test_t_tests_match_scipy():
    for size in (2, 3, 500):
        pairs = np.random.default_rng(size).uniform(size=(size, 2)).round(3)
        expected = scipy.stats.ttest_rel(pairs[:, 0], pairs[:, 1])
        assert t_test([differences(pairs.tolist())]) == pytest.approx(expected.pvalue, rel=1e-9)
    # Welch's test compares two means; with one of the samples negated it tests their sum.
    for one, other in (random_strata(1, 12, 40), ([0.1, 0.2, 0.3], [0.1] * 7)):
        expected = scipy.stats.ttest_ind(one, [-d for d in other], equal_var=False)
        assert t_test([one, other]) == pytest.approx(expected.pvalue)


# Simulated systems: the bounds are four standard errors wide


def test_p_values_of_the_macro_average_are_uniform_where_its_strata_differ():
    dice = np.random.default_rng(12)
    t_test_p, permutation_p = [], []
    for seed in range(500):
        strata = [(dice.normal(size=size) * spread).round(12).tolist() for size, spread in ((8, 0.4), (20, 0.1))]
        t_test_p.append(t_test(strata))
        permutation_p.append(permutation_test(strata, permutations=399, seed=seed))
    for level, p_values in itertools.product((0.05, 0.2, 0.5, 0.8), (t_test_p, permutation_p)):
        error = math.sqrt(level * (1 - level) / len(p_values))
        assert np.mean(np.array(p_values) <= level) == pytest.approx(level, abs=4 * error)
