"""Intervals of scores, and paired tests of their differences.

The paper marks significant differences with a dagger, "using t-test (p < 0.05)" (tables 2 and 3). It does not say
whether the test was paired, one-sided or corrected. Here, tests are paired, because both systems answer the same
questions, and two-sided.

Functions take `strata`, a list of values per stratum: scores, or score differences, first system minus second. A group
of questions is one stratum; the macro average has a stratum per group and is the unweighted mean of their means. Every
statistic is None if a stratum is too small. `clusters` has one name per value: questions of the same cluster, such as a
user, depend on each other, and only clusters are independent. A cluster may be in several strata. With 20 clusters or
fewer, the intervals of a percentile bootstrap are too narrow (tests/tables/test_clusters.py). If the score is not a
mean, such as macro F1, `of` computes it (see `Pooled.of`), and `strata` hold its inputs.

SciPy's permutation_test and bootstrap compute the same statistics, but draw every question separately. Here, only the
number of each distinct value is drawn, which takes far less time and memory. Swapping the systems exactly negates
differences and intervals, and leaves p-values unchanged.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

ALPHA = 0.05  # the paper's level: p < ALPHA is significant
RESAMPLES = 9_999  # 1 less than a multiple of 40, so that both limits of a 95% interval are resampled means
PERMUTATIONS = 10_000
DECIMALS = 12  # makes 0.3 - 0.2 equal 0.4 - 0.3 in floats; real differences are far larger
BATCH_NUMBERS = 2_000_000  # drawn at a time: 16 MB per array

Strata = Sequence[Sequence[Any]]
Clusters = Sequence[Sequence[str]]  # one name per value of the strata
Of = Callable[[Sequence[Any], "np.ndarray"], "np.ndarray"]  # see `Pooled.of`
Interval = tuple[float, float]


def rounded(value: float) -> float:
    """Round to DECIMALS, and -0.0 to 0.0."""
    return round(float(value), DECIMALS) + 0.0  # -0.0 + 0.0 is 0.0


def differences(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Return first minus second of each pair, rounded so that equal differences are equal floats."""
    return [rounded(first - second) for first, second in pairs]


def mean_of(values: Sequence[float], counts: "np.ndarray") -> "np.ndarray":
    """Compute the mean in each draw; has the signature of `Pooled.of`."""
    import numpy as np

    return counts @ np.array(values, dtype=float) / counts.sum(axis=1)


def difference_of(of: Of) -> Of:
    """Return the function that computes the first system's score minus the second's from pairs of values."""
    return lambda pairs, counts: of([pair[0] for pair in pairs], counts) - of([pair[1] for pair in pairs], counts)


def estimate(strata: Strata, of: Of | None = None) -> float | None:
    """Compute the unweighted mean of the strata's means or scores; None if a stratum is empty."""
    import numpy as np

    if not all(strata):
        return None
    if of is None:
        return rounded(fmean(map(fmean, strata)))
    counters = map(Counter, strata)
    return rounded(np.mean([of(list(counts), np.array([list(counts.values())]))[0] for counts in counters]))


# Intervals


def interval(
    strata: Strata, clusters: Clusters | None = None, of: Of | None = None,
    lowest: float = -math.inf, highest: float = math.inf,
) -> Interval | None:  # fmt: skip
    """Compute the 95% interval of `estimate`: by a bootstrap over questions, or with clusters a clipped t interval."""
    if clusters is None:
        return bootstrap_interval(strata, of or mean_of)
    if of is not None and min(map(len, strata)) < 2:
        return None
    robust = robust_mean(strata if of is None else [influences(stratum, of) for stratum in strata], clusters)
    if robust is None:
        return None
    half = robust.half(robust.degrees)
    return rounded(max(lowest, robust.mean - half)), rounded(min(highest, robust.mean + half))


def bootstrap_interval(strata: Strata, of: Of = mean_of, seed: int = 0) -> Interval | None:
    """Compute the 95% percentile interval (Efron & Tibshirani 1993, chapter 13), drawing questions within strata.

    BCa intervals are undefined if all resamples agree. In 2,000 simulated comparisons on 30 questions, percentile and
    BCa intervals covered the true difference in 95% and 94% of cases. On 10 questions, both are too narrow (92%, 91%).
    """
    import numpy as np

    if min(map(len, strata)) < 2:
        return None
    rng = np.random.default_rng(seed)
    drawn = []
    for stratum in strata:
        counts = Counter(stratum)  # in order of appearance, which swapping the systems does not change
        shares = np.array(list(counts.values())) / len(stratum)
        batches = (rng.multinomial(len(stratum), shares, rows) for rows in batch_sizes(RESAMPLES, len(counts)))
        drawn.append(np.concatenate([of(list(counts), batch) for batch in batches]))
    scores = np.sort(np.mean(drawn, axis=0))
    k = (RESAMPLES + 1) // 40
    return rounded(scores[k - 1]), rounded(scores[-k])


def batch_sizes(rows: int, width: int) -> Iterator[int]:
    """Split `rows` into batches of at most BATCH_NUMBERS numbers, or of one row; return their sizes."""
    size = max(1, BATCH_NUMBERS // width)
    return (min(size, rows - start) for start in range(0, rows, size))


def influences(stratum: Sequence[Hashable], of: Of) -> list[float]:
    """Compute jackknife pseudo-values of two or more questions; their mean approximates the score and its variance."""
    import numpy as np

    counts, number = Counter(stratum), len(stratum)
    whole = np.array(list(counts.values()))
    [score], without = of(list(counts), whole[None]), of(list(counts), whole - np.eye(len(whole), dtype=int))
    moved = (number - 1) * (whole @ without / number - without)
    return [float(score + moved[place]) for place in map({value: i for i, value in enumerate(counts)}.get, stratum)]


class AtEqualLength(NamedTuple):
    """The difference of two systems whose answers are equally long, its 95% interval, and the effect of length."""

    difference: float
    interval: Interval | None
    per_doubling: float  # the change of the difference if the first system's answers are twice as long


def at_equal_length(strata: Strata, ratios: Strata, clusters: Clusters | None = None) -> AtEqualLength | None:
    """Regress score differences d on the log ratio x of the answers' words: d = a_c + b x + e in stratum c.

    The difference at equal length is the mean of a_c over the strata (analysis of covariance with a common slope; each
    stratum has the same weight). Its interval is `robust_mean`'s of the linearized values
    a_c + e (1 - X (x - x_c) / S), where x_c is a stratum's mean, X the mean of x_c, and S the weighted sum of squares
    of x - x_c, widened for the slope by sqrt(n / (n - 1)), with n the questions beyond one per stratum, and with one
    degree of freedom less.

    Args:
        strata: d by stratum.
        ratios: x by stratum, log(words of the first answer / words of the second).
        clusters: by stratum; without them, questions are independent.

    Returns:
        None if a stratum is empty, or if the ratios do not vary within strata, so that the slope is unknown.
    """
    if not all(strata):
        return None
    centres, levels = list(map(fmean, ratios)), list(map(fmean, strata))
    moved = [[x - centre for x in xs] for xs, centre in zip(ratios, centres, strict=True)]
    squares = math.fsum(fmean(x * x for x in xs) for xs in moved)
    if squares < 1e-12:
        return None
    slope = math.fsum(fmean(map(math.prod, zip(xs, ds, strict=True))) for xs, ds in zip(moved, strata, strict=True))
    slope /= squares
    shift = fmean(centres) * len(strata) / squares  # X / S, with S as a mean over strata
    linearized = []
    for xs, ds, centre, level in zip(moved, strata, centres, levels, strict=True):
        errors = [d - level - slope * x for x, d in zip(xs, ds, strict=True)]
        linearized.append([level - slope * centre + e * (1 - shift * x) for x, e in zip(xs, errors, strict=True)])
    difference, spare = fmean(map(fmean, linearized)), sum(map(len, strata)) - len(strata)
    names = clusters or [[f"{c} {i}" for i in range(len(ds))] for c, ds in enumerate(strata)]
    limits = None
    if spare > 1 and (robust := robust_mean(linearized, names)) is not None:
        half = robust.half(max(1.0, robust.degrees - 1)) * math.sqrt(spare / (spare - 1))
        limits = rounded(difference - half), rounded(difference + half)
    return AtEqualLength(rounded(difference), limits, rounded(slope * math.log(2)))


def share_interval(values: Sequence[float], clusters: Sequence[str] | None = None) -> Interval | None:
    """Compute the 95% interval of a share, a mean of zeros and ones: Wilson's (1927) if questions are independent.

    Values of one half, such as ties, vary less than zeros and ones of the same mean, so the interval is slightly wide.
    With clusters it is a t interval of the logit (Korn & Graubard 1998, Survey Methodology 24), with the smaller of the
    two degrees of freedom in `Robust`, because near 0 and 1 a few clusters make up most of the variance.
    """
    from scipy.special import expit, logit, ndtri

    if not values:
        return None
    if clusters is None or len(set(clusters)) == len(clusters):
        mean, z = fmean(values), float(ndtri(0.975))
        scale = 1 + z**2 / len(values)
        middle = (mean + z**2 / (2 * len(values))) / scale
        half = z * math.sqrt(mean * (1 - mean) / len(values) + (z / (2 * len(values))) ** 2) / scale
        return (middle - half if mean else 0.0), (middle + half if mean < 1 else 1.0)
    robust = robust_mean([values], [clusters])
    if robust is None:
        return None
    half = robust.half(min(robust.degrees, robust.observed)) / (robust.mean * (1 - robust.mean))
    return float(expit(logit(robust.mean) - half)), float(expit(logit(robust.mean) + half))


class Robust(NamedTuple):
    """An unweighted mean of strata's means, its standard error (above 0), and the error's degrees of freedom.

    `observed` are degrees of freedom estimated from the clusters' contributions to the variance, 2 V² / var(V) - 1
    (Eltinge & Jang 1996, Survey Methodology 22); at least 1.
    """

    mean: float
    error: float
    degrees: float
    observed: float

    def half(self, degrees: float) -> float:
        """Compute half the width of a 95% interval."""
        from scipy.special import stdtrit

        return float(stdtrit(degrees, 0.975)) * self.error


def robust_mean(strata: Strata, clusters: Clusters) -> Robust | None:
    """Compute CR2 with Satterthwaite's degrees of freedom (Bell & McCaffrey 2002, Survey Methodology 28).

    The regression is of the values on C strata, with G clusters and independence as the working model. A cluster's
    (I - H)^(-1/2) divides its deviations in a stratum by sqrt(1 - share); share: its part of the stratum's questions.
    In one stratum, G clusters of equal size have G - 1 degrees of freedom; the more sizes differ, the fewer. None if a
    stratum has fewer than two clusters, or if the clusters do not vary.
    """
    import numpy as np

    if any(len(set(names)) < 2 for names in clusters):
        return None
    number_of = {name: number for number, name in enumerate(dict.fromkeys(chain.from_iterable(clusters)))}
    rows = [[number_of[name] for name in names] for names in clusters]
    deviations = [np.subtract(values, fmean(values)) for values in strata]
    sums = [np.bincount(*row, minlength=len(number_of)) for row in zip(rows, deviations, strict=True)]
    sizes = np.array(list(map(len, strata)))
    share = np.transpose([np.bincount(row, minlength=len(number_of)) for row in rows]) / sizes  # (G, C)
    parts = np.transpose(sums).round(DECIMALS) / sizes / np.sqrt(1 - share)
    squares = parts.sum(axis=1) ** 2
    spread = float(squares.sum()) / len(strata) ** 2
    if spread == 0:
        return None
    # From the covariance matrix of the clusters' parts, if questions were independent with variance 1.
    own, shared = (share / sizes).sum(axis=1), share / np.sqrt(sizes * (1 - share))
    total = np.sum(own**2) + np.sum((shared.T @ shared) ** 2) - np.sum(np.sum(shared**2, axis=1) ** 2)
    differing = squares.sum() ** 2 / max(float(np.var(squares) * len(squares)), 1e-9 * squares.sum() ** 2)
    degrees = float(own.sum() ** 2 / total)
    return Robust(estimate(strata), math.sqrt(spread), degrees, float(max(1.0, 2 * differing - 1)))


# Tests


def t_test(strata: Strata, clusters: Clusters | None = None) -> float | None:
    """Compute the two-sided p-value of the paired t-test that the mean difference is 0.

    One stratum: scipy.stats.ttest_rel (Student 1908). C strata: t = sum(m_c) / sqrt(sum(v_c)), with v_c = s_c² / n_c,
    and Welch's (1947) degrees of freedom. 1 if all differences are 0. None if a stratum has fewer than two questions or
    clusters, or if the differences are equal within each stratum and not all 0: p would be 0, though two questions that
    happen to differ by the same amount prove nothing.
    """
    from scipy.special import stdtr

    if min(len(set(names)) for names in clusters or [range(len(stratum)) for stratum in strata]) < 2:
        return None
    if not any(map(any, strata)):
        return 1.0
    if clusters is not None:
        robust = robust_mean(strata, clusters)
        return None if robust is None else float(2 * stdtr(robust.degrees, -abs(robust.mean / robust.error)))
    variances = [variance(stratum) / len(stratum) for stratum in strata]  # exact: 0 if all are equal
    total = math.fsum(variances)
    if total == 0:
        return None
    t = math.fsum(map(fmean, strata)) / math.sqrt(total)
    degrees = total**2 / math.fsum(v**2 / (len(stratum) - 1) for v, stratum in zip(variances, strata, strict=True))
    return float(2 * stdtr(degrees, -abs(t)))


def permutation_test(
    strata: Strata, clusters: Clusters | None = None, permutations: int = PERMUTATIONS, seed: int = 0
) -> float | None:
    """Compute the two-sided p-value of the sign-flip test (Fisher 1935; in retrieval: Smucker et al. 2007).

    If the systems were equal, each difference (or all differences of a cluster together) could have either sign. p is
    the share of sign flips whose mean difference is at least as far from 0 as the observed one. All flips are tried if
    there are at most `permutations`; otherwise p is (hits + 1) / (permutations + 1) of that many random flips, so it is
    never 0 (Phipson & Smyth 2010).
    """
    import numpy as np

    if not all(strata):
        return None
    weighted = np.array(_flipped(strata, clusters))
    sizes = np.abs(weighted)
    threshold = abs(weighted.sum()) - 1e-9 * sizes.sum()  # sums of the same floats may differ in the last bits
    if 2 ** len(sizes) <= permutations:  # see `all_flips`
        negative = np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes)) & 1
        return float(np.mean(abs((1 - 2 * negative) @ sizes) >= threshold))
    rng, hits = np.random.default_rng(seed), 0
    values, counts = np.unique(sizes, return_counts=True)
    for rows in batch_sizes(permutations, len(values)):
        negative = rng.binomial(counts, 0.5, size=(rows, len(values)))
        hits += int(np.count_nonzero(abs((counts - 2 * negative) @ values) >= threshold))
    return (hits + 1) / (permutations + 1)


def _flipped(strata: Strata, clusters: Clusters | None) -> list[float]:
    """Return the numbers whose signs are flipped: each question's or cluster's part of the mean, without zeros."""
    parts = [value / len(stratum) for stratum in strata for value in stratum]
    if clusters is not None:
        by_cluster: dict[str, list[float]] = {}
        for part, cluster in zip(parts, chain.from_iterable(clusters), strict=True):
            by_cluster.setdefault(cluster, []).append(part)
        parts = [rounded(math.fsum(members)) for members in by_cluster.values()]
    return [part for part in parts if part != 0]  # flipping a 0 changes nothing


def all_flips(strata: Strata, clusters: Clusters | None = None, permutations: int = PERMUTATIONS) -> int | None:
    """Return the number of sign flips if `permutation_test` tries all, so that p is at least 2 / flips; else None."""
    number = len(_flipped(strata, clusters))
    return 2**number if 2**number <= permutations else None


def swap_test(strata: Strata, of: Of, clusters: Clusters | None = None, seed: int = 0) -> float | None:
    """Compute the two-sided p-value of approximate randomization (Noreen 1989, Yeh 2000) for pooled scores.

    If the systems were equal, the two values of a question (or of all of a cluster's questions in a stratum) could be
    swapped. p is (hits + 1) / (draws + 1); a hit is a random swap whose scores differ at least as much as observed.
    """
    import numpy as np

    if not all(strata):
        return None
    rng, drawn = np.random.default_rng(seed), []
    for stratum, names in zip(strata, clusters or [None] * len(strata), strict=True):
        counts = Counter(stratum)
        values = [*(first for first, _ in counts), *(second for _, second in counts)]
        whole, batches = np.array(list(counts.values())), []
        for swapped in _swaps(stratum, counts, rng, names):  # the number of swaps of each distinct pair
            kept = whole - swapped
            batches.append(of(values, np.hstack([kept, swapped])) - of(values, np.hstack([swapped, kept])))
        drawn.append(np.concatenate(batches))
    observed = abs(estimate(strata, difference_of(of)))
    # Floats of the same counts may differ in the last bits.
    hits = int(np.count_nonzero(abs(np.mean(drawn, axis=0)) >= observed - 1e-9))
    return (hits + 1) / (PERMUTATIONS + 1)


def _swaps(
    stratum: Sequence[Any], counts: Counter[Any], rng: "np.random.Generator", clusters: Sequence[str] | None
) -> Iterator["np.ndarray"]:
    """Draw batches of the number of swaps of each distinct pair; a cluster's pairs are swapped together."""
    import numpy as np

    if clusters is None:
        whole = np.array(list(counts.values()))
        return (rng.binomial(whole, 0.5, (rows, len(whole))) for rows in batch_sizes(PERMUTATIONS, 2 * len(whole)))
    by_cluster = Counter(zip(clusters, stratum, strict=True))
    held = np.array([[by_cluster[name, pair] for pair in counts] for name in dict.fromkeys(clusters)], dtype=float)
    return (rng.integers(0, 2, (rows, len(held))) @ held for rows in batch_sizes(PERMUTATIONS, sum(held.shape)))


def effect_size(stratum: Sequence[float]) -> float | None:
    """Compute Cohen's d_z (Lakens 2013); None for fewer than two differences, or if all are equal and not 0."""
    if len(stratum) < 2:
        return None
    spread = math.sqrt(variance(stratum)) if any(stratum) else math.inf
    return fmean(stratum) / spread if spread else None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust the p-values of a family of tests (Holm 1979); None stays None and does not count as a test."""
    adjusted = list(p_values)
    tests = [i for i, p in enumerate(p_values) if p is not None]
    largest = 0.0
    for rank, i in enumerate(sorted(tests, key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(tests) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def sign_test(first: int, second: int) -> dict[str, Any] | None:
    """Test whether one of two systems is preferred more often, over questions without a tie; None if all are ties.

    Returns:
        share: the share of these questions where the first system is preferred.
        interval: the share's 95% interval (Clopper & Pearson 1934), which excludes 0.5 if p < 0.05.
        p: of the exact binomial test, two-sided.
    """
    from scipy.stats import binomtest

    if not first + second:
        return None
    test = binomtest(first, first + second)
    limits = test.proportion_ci()
    return {
        "share": float(test.statistic),
        "interval": (float(limits.low), float(limits.high)),
        "p": float(test.pvalue),
    }
