"""Agreement of raters beyond chance: Cohen's kappa of two, Krippendorff's alpha of any number. Pure.

Both are 1 - observed disagreement / disagreement expected by chance, from the counts of each pair of values. Different
values disagree by 1, on a scale by their squared distance (Cohen 1968). The bootstrap resamples whole questions,
because the ratings of one question depend on each other.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 9_999
Met = Sequence[tuple[float, float, float]]  # pairs of values, each with a weight


class Estimate(NamedTuple):
    """A coefficient and its 95% interval; each is None if undefined, the interval also if all resamples agree."""

    value: float | None
    interval: tuple[float, float] | None


def cohens_kappa(questions: Sequence[Sequence[tuple[int, int]]], steps: bool = False) -> Estimate:
    """Estimate two raters' kappa (Cohen 1960) from each question's pairs of values; `steps`: they are on a scale."""
    return _estimate([[(value, other, 1.0) for value, other in pairs] for pairs in questions], steps, less=0)


def krippendorffs_alpha(questions: Sequence[Sequence[Sequence[float]]], steps: bool = False) -> Estimate:
    """Estimate alpha (Krippendorff 2011) from each question's rated items; an item is a list of two or more values."""
    met = [
        [(value, other, 1 / (len(values) - 1)) for values in things for value, other in permutations(values, 2)]
        for things in questions
    ]
    return _estimate(met, steps, less=1)


def _estimate(questions: Sequence[Met], steps: bool, less: int) -> Estimate:
    """Estimate from pairs; a pair by chance is two of all values (`less` 1), or one value of each rater (`less` 0)."""
    import numpy as np

    questions = [met for met in questions if met]
    order = sorted({value for met in questions for pair in met for value in pair[:2]})
    if len(order) < 2:  # all values are the same, or there are none
        return Estimate(None, None)
    tables = np.zeros((len(questions), len(order), len(order)))  # per question, the weight of each pair
    for table, met in zip(tables, questions, strict=True):
        for value, other, weight in met:
            table[order.index(value), order.index(other)] += weight
    apart = np.subtract.outer(order, order)
    distances = apart**2 if steps else apart != 0
    number = len(questions)
    value = float(_beyond_chance(tables.sum(axis=0, keepdims=True), distances, less)[0])
    if number < 2:
        return Estimate(value, None)
    times = np.random.default_rng(0).multinomial(number, [1 / number] * number, RESAMPLES)  # (draws, questions)
    drawn = _beyond_chance((times @ tables.reshape(number, -1)).reshape(-1, *apart.shape), distances, less)
    low, high = np.nanquantile(drawn, [0.025, 0.975]).round(12).tolist()  # NaN: all values of a resample are the same
    return Estimate(value, (low, high) if low < high else None)


def _beyond_chance(tables: "np.ndarray", distances: "np.ndarray", less: int) -> "np.ndarray":
    """Compute each table's coefficient; NaN if no disagreement is expected. For integers, only the division rounds."""
    import numpy as np

    seen = (tables.sum(axis=(1, 2)) - less) * (tables * distances).sum(axis=(1, 2))
    by_chance = np.einsum("ti,ij,tj->t", tables.sum(axis=2), distances, tables.sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(by_chance > 0, (by_chance - seen) / by_chance, np.nan)
