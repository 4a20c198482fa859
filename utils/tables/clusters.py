"""Intervals and tests of scores whose questions depend on each other within clusters, as those of one user do.

Only clusters are independent, so each counts as one observation: by its sum of deviations from the mean over all
questions. The variance is CR2 and the degrees of freedom are Satterthwaite's, both by Bell & McCaffrey (2002, Survey
Methodology 28). If every cluster has one question, they are the usual s² / n and n - 1. A percentile bootstrap over
as few as 20 clusters gives intervals that are too narrow; tests/tables/test_clusters.py measures these.

Functions take strata of scores or score differences, as in significance.py, and of each the cluster; a cluster may be
in several strata. Intervals and the t-test are None if a stratum has fewer than two clusters, or if the values do not
vary between clusters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from utils.tables import significance
from utils.tables.significance import Strata, mean_over_strata, rounded

Clusters = Sequence[Sequence[str]]  # of every value of the strata


@dataclass(frozen=True)
class Estimate:
    """An unweighted mean of strata's means, its standard error (above 0), and the degrees of freedom of that.

    Those of `observed` are by how much the clusters' parts of the variance differ, 2 V² / var(V) (Eltinge & Jang 1996,
    Survey Methodology 22), less 1 for the mean; at least 1.
    """

    mean: float
    error: float
    degrees: float
    observed: float


def estimate(strata: Strata, clusters: Clusters) -> Estimate | None:
    """Of G clusters and C strata: CR2 in the regression of the values on the strata, as if questions were independent.

    There (I - H)^(-1/2) of a cluster divides its deviations in a stratum by sqrt(1 - share), where share is the
    cluster's of the stratum's questions. With one stratum and clusters of one size there are G - 1 degrees of freedom,
    and fewer the more the sizes differ.
    """
    import numpy as np

    if any(len(set(its)) < 2 for its in clusters):
        return None
    number_of = {name: number for number, name in enumerate(dict.fromkeys(chain.from_iterable(clusters)))}
    rows = [[number_of[name] for name in its] for its in clusters]
    deviations = [np.subtract(values, fmean(values)) for values in strata]
    sums = [np.bincount(*its, minlength=len(number_of)) for its in zip(rows, deviations, strict=True)]
    sizes = np.array(list(map(len, strata)))
    share = np.transpose([np.bincount(its, minlength=len(number_of)) for its in rows]) / sizes  # (G, C)
    parts = np.transpose(sums).round(significance.DECIMALS) / sizes / np.sqrt(1 - share)
    squares = parts.sum(axis=1) ** 2
    variance = float(squares.sum()) / len(strata) ** 2
    if variance == 0:
        return None
    # The estimate is a sum over clusters; this is of the matrix of their covariances, were the questions' variances 1.
    own, shared = (share / sizes).sum(axis=1), share / np.sqrt(sizes * (1 - share))
    total = np.sum(own**2) + np.sum((shared.T @ shared) ** 2) - np.sum(np.sum(shared**2, axis=1) ** 2)
    differing = squares.sum() ** 2 / max(float(np.var(squares) * len(squares)), 1e-9 * squares.sum() ** 2)
    degrees = float(own.sum() ** 2 / total)
    return Estimate(mean_over_strata(strata), math.sqrt(variance), degrees, float(max(1.0, 2 * differing - 1)))


def quantile(degrees: float) -> float:
    """How many standard errors a 95% interval has on each side."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def share_interval(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float] | None:
    """95% interval of a share; the values are 0 and 1.

    A t interval of the logit (Korn & Graubard 1998, Survey Methodology 24), with the fewer of both degrees of freedom:
    near 0 and 1 a few clusters make up most of the variance. If every cluster has one question, it is Wilson's.
    """
    from scipy.special import expit, logit

    if len(set(clusters)) == len(clusters):
        return significance.share_interval(round(math.fsum(values)), len(values))
    its = estimate([values], [clusters])
    if its is None:
        return None
    half = quantile(min(its.degrees, its.observed)) * its.error / (its.mean * (1 - its.mean))
    return float(expit(logit(its.mean) - half)), float(expit(logit(its.mean) + half))


def mean_interval(
    strata: Strata, clusters: Clusters, lowest: float = -math.inf, highest: float = math.inf
) -> tuple[float, float] | None:
    """95% t interval of the mean, cut where no mean can be."""
    its = estimate(strata, clusters)
    if its is None:
        return None
    half = quantile(its.degrees) * its.error
    return rounded(max(lowest, its.mean - half)), rounded(min(highest, its.mean + half))


def t_test(strata: Strata, clusters: Clusters) -> float | None:
    """Two-sided p-value of the null hypothesis that the mean difference is 0; 1 if all differences are 0."""
    from scipy.special import stdtr

    if all(len(set(its)) > 1 for its in clusters) and not any(map(any, strata)):
        return 1.0
    its = estimate(strata, clusters)
    return None if its is None else float(2 * stdtr(its.degrees, -abs(its.mean / its.error)))


def permutation_test(strata: Strata, clusters: Clusters, permutations: int = significance.PERMUTATIONS) -> float | None:
    """Two-sided p-value of the sign-flip test, as in significance.py; all differences of a cluster flip together."""
    if not all(strata):
        return None
    found: dict[str, list[float]] = {}
    for values, its in zip(strata, clusters, strict=True):
        for value, cluster in zip(values, its, strict=True):
            found.setdefault(cluster, []).append(value / len(values))
    return significance.permutation_test([[rounded(math.fsum(its)) for its in found.values()]], permutations)
