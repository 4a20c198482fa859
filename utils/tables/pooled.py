"""Intervals and tests of scores that are no means of their questions', such as macro F1 (utils/scoring/means.py).

A group of questions is a stratum, here of the values that the score hangs on; what is drawn at random is how often each
value is there. What has several strata is the unweighted mean of theirs, as in significance.py.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from utils.tables.clusters import Clusters, mean_interval
from utils.tables.significance import PERMUTATIONS, RESAMPLES, batch_sizes, percentile_limits, rounded

if TYPE_CHECKING:
    import numpy as np

Of = Callable[[Sequence[Any], "np.ndarray"], "np.ndarray"]  # as `Pooled.of`
Strata = Sequence[Sequence[Hashable]]


def difference_of(of: Of) -> Of:
    """The score of one system minus that of another, of questions whose values are pairs of both."""
    return lambda pairs, counts: of([one for one, _ in pairs], counts) - of([other for _, other in pairs], counts)


def pooled_mean(strata: Strata, of: Of) -> float | None:
    """Unweighted mean of the strata's scores, None where a stratum is empty."""
    import numpy as np

    if not all(strata):
        return None
    counters = map(Counter, strata)
    return rounded(np.mean([of(list(counts), np.array([list(counts.values())]))[0] for counts in counters]))


def pooled_interval(
    strata: Strata, of: Of, clusters: Clusters | None = None, seed: int = 0
) -> tuple[float, float] | None:
    """95% percentile interval by a bootstrap over questions, as `bootstrap_interval`, or by cluster a t interval."""
    import numpy as np

    if min(map(len, strata)) < 2:
        return None
    if clusters is not None:
        return mean_interval([influences(stratum, of) for stratum in strata], clusters)
    rng = np.random.default_rng(seed)
    return percentile_limits(np.mean([_resampled(stratum, of, rng) for stratum in strata], axis=0))


def _resampled(stratum: Sequence[Hashable], of: Of, rng: "np.random.Generator") -> "np.ndarray":
    import numpy as np

    counts = Counter(stratum)
    shares = np.array(list(counts.values())) / len(stratum)
    draws = (rng.multinomial(len(stratum), shares, rows) for rows in batch_sizes(RESAMPLES, len(counts)))
    return np.concatenate([of(list(counts), batch) for batch in draws])


def influences(stratum: Sequence[Hashable], of: Of) -> list[float]:
    """Of each of two or more questions a number; their mean is the score, and varies as it does.

    By how far the score moves where the question is left out (the jackknife; Efron & Tibshirani 1993, chapter 11).
    """
    import numpy as np

    counts, number = Counter(stratum), len(stratum)
    whole = np.array(list(counts.values()))
    [score], without = of(list(counts), whole[None]), of(list(counts), whole - np.eye(len(whole), dtype=int))
    moved = (number - 1) * (whole @ without / number - without)
    return [float(score + moved[place]) for place in map({value: i for i, value in enumerate(counts)}.get, stratum)]


def swap_test(strata: Strata, of: Of, clusters: Clusters | None = None, seed: int = 0) -> float | None:
    """Two-sided p-value of the paired permutation test (approximate randomization; Noreen 1989, Yeh 2000).

    Were the systems alike, each question's two answers could as well be the other's. p is (hits + 1) / (draws + 1), of
    random swaps those whose scores are at least as far apart as the observed ones; None where a stratum is empty.

    Args:
        strata: pairs of values, of the first system and of the second.
        clusters: of each pair; all answers of one, within a stratum, are swapped together. None: each by itself.
    """
    import numpy as np

    if not all(strata):
        return None
    rng = np.random.default_rng(seed)
    by_stratum = zip(strata, clusters or [None] * len(strata), strict=True)
    drawn = np.mean([_swapped(stratum, of, rng, its) for stratum, its in by_stratum], axis=0)
    observed = abs(pooled_mean(strata, difference_of(of)))
    hits = int(np.count_nonzero(abs(drawn) >= observed - 1e-9))  # floats of the same counts may differ in the last bits
    return (hits + 1) / (PERMUTATIONS + 1)


def _swapped(
    stratum: Sequence[tuple[Hashable, Hashable]], of: Of, rng: "np.random.Generator", clusters: Sequence[str] | None
) -> "np.ndarray":
    """Differences of the two scores where of each distinct pair a random number is swapped, or all of a cluster's."""
    import numpy as np

    counts = Counter(stratum)
    values = [*(one for one, _ in counts), *(other for _, other in counts)]
    whole = np.array(list(counts.values()))
    held = None
    if clusters is not None:
        by_cluster = Counter(zip(clusters, stratum, strict=True))
        held = np.array([[by_cluster[one, pair] for pair in counts] for one in dict.fromkeys(clusters)], dtype=float)
    drawn = []
    for rows in batch_sizes(PERMUTATIONS, 2 * len(counts) if held is None else sum(held.shape)):
        if held is None:
            swapped = rng.binomial(whole, 0.5, size=(rows, len(whole)))
        else:
            swapped = rng.integers(0, 2, size=(rows, len(held))) @ held
        kept = whole - swapped
        drawn.append(of(values, np.hstack([kept, swapped])) - of(values, np.hstack([swapped, kept])))
    return np.concatenate(drawn)
