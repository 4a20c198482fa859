"""Intervals and tests of scores whose questions depend on each other within clusters, as those of one persona do.

Only clusters are independent, so each counts as one observation: by its sum of deviations from the mean over all
questions. The variance is CR2 and the degrees of freedom are Satterthwaite's, both by Bell & McCaffrey (2002, Survey
Methodology 28). If every cluster has one question, they are the usual s² / n and n - 1. A percentile bootstrap over
as few as 20 clusters gives intervals that are too narrow; tests/tables/test_clusters.py measures these.

Every function takes `values`, the scores or score differences of questions, and `clusters`, the cluster of each.
Intervals and the t-test are None if there are fewer than two clusters, or if the values do not vary between clusters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from utils.tables import significance
from utils.tables.significance import rounded


@dataclass(frozen=True)
class Estimate:
    """A mean over questions, its standard error (above 0), and the degrees of freedom of that, at least 1."""

    mean: float
    error: float
    degrees: float

    @property
    def quantile(self) -> float:
        """How many standard errors a 95% interval has on each side."""
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees, 0.975))


def estimate(values: Sequence[float], clusters: Sequence[str]) -> Estimate | None:
    by_cluster = members(values, clusters)
    if len(by_cluster) < 2:
        return None
    mean, number = fmean(values), len(values)
    weights = [len(its) / number for its in by_cluster]
    sums = [rounded(math.fsum(its) - mean * len(its)) for its in by_cluster]
    variance = math.fsum(s**2 / (1 - w) for s, w in zip(sums, weights, strict=True)) / number**2
    if variance == 0:
        return None
    # Bell & McCaffrey's formula for a mean, as if questions were independent: G - 1 for G clusters of one size, and
    # fewer the more the sizes differ.
    shared = [w**2 / (1 - w) for w in weights]
    squares = math.fsum(w**2 for w in weights) + math.fsum(shared) ** 2 - math.fsum(s**2 for s in shared)
    return Estimate(mean, math.sqrt(variance), 1 / squares)


def members(values: Sequence[float], clusters: Sequence[str]) -> list[list[float]]:
    """The values of each cluster."""
    found: dict[str, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        found.setdefault(cluster, []).append(value)
    return list(found.values())


def share_interval(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float] | None:
    """95% interval of a share; the values are 0 and 1.

    Wilson's interval with the effective number of questions, m (1 - m) / variance, and the t quantile (reviewed by
    Franco et al. 2019, Journal of Survey Statistics and Methodology 7). If every cluster has one question, it is
    Wilson's own.
    """
    if len(set(clusters)) == len(clusters):
        return significance.share_interval(round(math.fsum(values)), len(values))
    its = estimate(values, clusters)
    if its is None:
        return None
    ratio = its.quantile**2 * its.error**2 / (its.mean * (1 - its.mean))  # quantile² / effective number
    middle = (its.mean + ratio / 2) / (1 + ratio)
    half = math.sqrt(its.quantile**2 * its.error**2 + ratio**2 / 4) / (1 + ratio)
    return max(0.0, middle - half), min(1.0, middle + half)


def difference_interval(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float] | None:
    """95% interval of the mean of differences of shares, each from -1 to 1."""
    its = estimate(values, clusters)
    if its is None:
        return None
    half = its.quantile * its.error
    return rounded(max(-1.0, its.mean - half)), rounded(min(1.0, its.mean + half))


def t_test(values: Sequence[float], clusters: Sequence[str]) -> float | None:
    """Two-sided p-value of the null hypothesis that the mean difference is 0; 1 if all differences are 0."""
    from scipy.special import stdtr

    if len(set(clusters)) > 1 and not any(values):
        return 1.0
    its = estimate(values, clusters)
    return None if its is None else float(2 * stdtr(its.degrees, -abs(its.mean / its.error)))


def permutation_test(
    values: Sequence[float], clusters: Sequence[str], permutations: int = significance.PERMUTATIONS
) -> float | None:
    """Two-sided p-value of the sign-flip test, as in significance.py; all differences of a cluster flip together."""
    sums = [rounded(math.fsum(its)) for its in members(values, clusters)]
    return significance.permutation_test([sums], permutations)
