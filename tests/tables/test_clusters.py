"""Intervals and tests by cluster: by hand, and against matrices and SciPy."""

import math

import numpy as np
import pytest
import scipy.stats

from utils.tables import significance
from utils.tables.clusters import estimate, mean_interval, permutation_test, share_interval, t_test


def by_matrices(values, clusters, strata=None):
    """Mean of the strata's means, CR2 standard error and degrees of freedom as Bell & McCaffrey define them for any
    regression, here on a column of 0 and 1 for each stratum; `strata` has that of each value, None for one of all."""
    values, clusters = np.asarray(values, float), np.asarray(clusters)
    strata = np.zeros(len(values)) if strata is None else np.asarray(strata)
    design = (strata[:, None] == np.unique(strata)).astype(float)
    bread = np.linalg.inv(design.T @ design)
    weights = design @ bread @ np.full(design.shape[1], 1 / design.shape[1])
    residual_maker = np.eye(len(values)) - design @ bread @ design.T
    columns, variance = [], 0.0
    for cluster in dict.fromkeys(clusters.tolist()):
        rows = np.flatnonzero(clusters == cluster)
        eigenvalues, vectors = np.linalg.eigh(residual_maker[np.ix_(rows, rows)])
        adjust = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
        column = residual_maker[:, rows] @ adjust @ weights[rows]
        variance += (column @ values) ** 2
        columns.append(column)
    gram = np.array(columns) @ np.array(columns).T
    return weights @ values, math.sqrt(variance), np.trace(gram) ** 2 / (gram**2).sum()


def limits_of_the_logit(values, clusters):
    """With degrees of freedom by definition, or the fewer of 2 V² / var(V) - 1, where V is a sum over clusters."""
    mean, error, degrees = by_matrices(values, clusters)
    values, clusters = np.asarray(values), np.asarray(clusters)
    members = [values[clusters == one] for one in np.unique(clusters)]
    parts = [sum(its - mean) ** 2 / (1 - len(its) / len(values)) for its in members]
    observed = 2 * sum(parts) ** 2 / max(len(parts) * np.var(parts), 1e-9 * sum(parts) ** 2) - 1
    t = scipy.stats.t.ppf(0.975, min(degrees, max(1, observed)))
    odds, factor = mean / (1 - mean), math.exp(t * error / (mean * (1 - mean)))
    return 1 / (1 + factor / odds), 1 / (1 + 1 / factor / odds)


def unequal(seed, sizes=(1, 2, 2, 5, 9, 14)):
    dice = np.random.default_rng(seed)
    clusters = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    order = dice.permutation(len(clusters))
    return dice.integers(0, 2, len(clusters)).tolist(), [clusters[place] for place in order]


@pytest.mark.parametrize("seed", range(3))
def test_unequal_clusters_have_the_general_formula(seed):
    values, clusters = unequal(seed)
    its = estimate([values], [clusters])
    assert (its.mean, its.error, its.degrees) == pytest.approx(by_matrices(values, clusters))
    assert share_interval(values, clusters) == pytest.approx(limits_of_the_logit(values, clusters))
    differences = [value - (number % 3 == 0) for number, value in enumerate(values)]
    mean, error, degrees = by_matrices(differences, clusters)
    assert t_test([differences], [clusters]) == pytest.approx(2 * scipy.stats.t.sf(abs(mean) / error, degrees))
    half = scipy.stats.t.ppf(0.975, degrees) * error
    assert mean_interval([differences], [clusters]) == pytest.approx((mean - half, mean + half))


@pytest.mark.parametrize("seed", range(3))
def test_strata_that_share_clusters_have_the_general_formula(seed):
    """As a macro average over categories has, in which one user asks questions of several."""
    dice = np.random.default_rng(seed)
    strata, clusters = np.repeat([0, 1, 2], [9, 14, 30]), dice.integers(0, 8, 53).astype(str)
    values = dice.beta(2, 6, 53) + dice.normal(size=8)[clusters.astype(int)] / 5
    parts, whose = ([its[strata == one].tolist() for one in range(3)] for its in (values, clusters))
    its, (mean, error, degrees) = estimate(parts, whose), by_matrices(values, clusters, strata)
    assert (its.mean, its.error, its.degrees) == pytest.approx((mean, error, degrees))
    assert t_test(parts, whose) == pytest.approx(2 * scipy.stats.t.sf(abs(mean) / error, degrees))
    flips = [values[clusters == one] / np.bincount(strata)[strata[clusters == one]] for one in dict.fromkeys(clusters)]
    expected = significance.permutation_test([[significance.rounded(math.fsum(one)) for one in flips]])
    assert permutation_test(parts, whose) == expected
    assert estimate([[1, 0], [1, 0]], [["a", "b"], ["a", "a"]]) is None  # the second stratum is one user's


def test_one_question_a_cluster_is_the_usual_statistic():
    values, clusters = [1, 0, 0, 1, 1, 0, 1, -1], list("abcdefgh")
    expected = scipy.stats.ttest_1samp(values, 0)
    assert t_test([values], [clusters]) == pytest.approx(expected.pvalue)
    assert mean_interval([values], [clusters]) == pytest.approx(tuple(expected.confidence_interval()))
    assert permutation_test([values], [clusters]) == significance.permutation_test([values])
    assert share_interval([1] * 8 + [0] * 2, list("abcdefghij")) == significance.share_interval(8, 10)


@pytest.mark.parametrize(
    ("values", "clusters", "p"),
    [([], [], None), ([1, 0, 1], list("aaa"), None), ([0, 0, 0], list("aaa"), None), ([1, 1, 1], list("aab"), None),
     ([1, 0, 0, 1], list("aabb"), None), ([0, 0, 0], list("aab"), 1.0)],
)  # fmt: skip
def test_what_is_undefined_is_none(values, clusters, p):
    assert t_test([values], [clusters]) == p
    assert mean_interval([values], [clusters]) is None
    assert share_interval(values, clusters) is (None if values else significance.share_interval(0, 0))


def test_limits_stay_in_range_and_swapping_systems_negates_them():
    low, high = share_interval([1] * 9 + [0], list("aaaaabbbbb"))
    assert 0 < low < 0.9 < high <= 1
    values, clusters = [1, 1, 1, 0, 0], list("aaabb")
    assert mean_interval([values], [clusters], -1.0, 1.0) == (-1.0, 1.0)
    values, clusters = unequal(7)
    low, high = mean_interval([values], [clusters])
    negated = [-value for value in values]
    assert mean_interval([negated], [clusters]) == (-high, -low)
    assert t_test([negated], [clusters]) == t_test([values], [clusters])


def test_small_examples_by_hand():
    # Mean 1/2, deviations 1 and -1 in sum, each cluster half of the questions: (1 / 0.5 + 1 / 0.5) / 4² = 0.25.
    its = estimate([[1, 1, 0, 0]], [["a", "a", "b", "b"]])
    assert (its.mean, its.error, its.degrees) == pytest.approx((0.5, 0.5, 1))
    assert permutation_test([[1, 1, 1]], [["a", "a", "b"]]) == 2 / 4  # of ±2 ±1 two are as far from 0 as 3
    assert permutation_test([[1, -1, 1]], [["a", "a", "b"]]) == 1.0
