"""A mean of people's scores where they scored a part of the questions, and a judge all of them.

A judge's own mean is biased where it errs more one way than the other. Prediction-powered inference (Angelopoulos,
Bates, Fannjiang, Jordan & Zrnic 2023) corrects it by what people say of some of the questions, drawn at random, and is
surer than people's scores alone. Here it is PPI++ (Angelopoulos, Duchi & Zrnic 2023, arXiv 2311.01453): the judge
counts by a weight lambda from 0, people alone, to 1, the judge's mean less its mean error. With people's scores Y of n
questions and the judge's f of these and of N others that is, for a mean,

  theta = mean(Y of n) + lambda (mean(f of N) - mean(f of n)),   lambda* = Cov(Y, f) / ((1 + n/N) Var(f))

with the variance Var(Y - lambda f) / n + lambda^2 Var(f) / N (the paper's section on power tuning; its authors' code
keeps the estimate of lambda* within 0 to 1, and so does this). The paper is about many labels. For few, where lambda is
an estimate that counts, intervals are by t, lambda takes a degree of freedom, and Var(f) in it is that of the n
questions, whose covariance with Y stands above it.

A judge that errs rarely and one way looks perfect on the few questions that people see. So it counts only where it
differs from people on `FEWEST_ERRORS` questions or more, and where people's scores are not a straight line of its
scores. Otherwise lambda is 0, which gives people's mean and its t-interval.
tests/tables/test_prediction_powered.py simulates how often the intervals contain the truth, for such judges too.

Scores are numpy arrays with questions along their last axis; any axes before it are studies of their own, and of these
are then the results. A stratum is a group of questions, drawn from by itself; what has several is the unweighted mean
of theirs, as in significance.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

FEWEST = 3  # questions with people's scores per stratum; an interval from two spans nearly the whole range
FEWEST_ERRORS = 5  # questions on which judge and people differ, for the judge to count; a guess, held by simulations


@dataclass(frozen=True)
class Part:
    """The estimated mean of a stratum."""

    mean: Any
    variances: Sequence[tuple[Any, Any]]  # terms that add up to its variance, each with its degrees of freedom


@dataclass(frozen=True)
class Corrected(Part):
    """Likewise, of people's scores on all of its questions."""

    weight: Any  # lambda
    # With n of the stratum's questions scored by people, its variance is about shrinking / n + fixed.
    shrinking: Any
    fixed: Any


def corrected(human: "np.ndarray", judged: "np.ndarray", others: "np.ndarray", unanswered: int = 0) -> Corrected:
    """The mean of a stratum by PPI++.

    Args:
        human: people's scores of `FEWEST` questions or more; 0 to 1, or -1 to 1 for differences of two systems.
        judged: the judge's of the same.
        others: the judge's scores of the questions that people did not see; may be none.
        unanswered: questions besides these that have no answer and so, for people as for a judge, the score 0.
    """
    import numpy as np

    seen, unseen = human.shape[-1], others.shape[-1]
    total = seen + unseen
    every = np.concatenate([judged, others], axis=-1)
    slope = np.clip(_slope(human, judged), 0, total / unseen if unseen else 0)
    errs_visibly = num_differing(human, judged) >= FEWEST_ERRORS
    counts = errs_visibly & ((human - slope[..., None] * judged).var(axis=-1) > 1e-12) & (unseen > 0)
    slope = np.where(counts, slope, 0)
    weight = slope * unseen / total
    mean = human.mean(axis=-1) - weight * judged.mean(axis=-1)
    residuals = human - weight[..., None] * judged
    freedom = seen - 1 - counts  # an estimated weight takes one
    variances = [(residuals.var(axis=-1) / freedom, freedom)]
    if unseen:
        mean = mean + weight * others.mean(axis=-1)
        variances.append((weight**2 * every.var(axis=-1, ddof=1) / unseen, total - 1))
    # With the best weight for n, which is slope * (1 - n / total), the variance is this.
    shrinking = (human - slope[..., None] * judged).var(axis=-1, ddof=1)
    fixed = (human.var(axis=-1, ddof=1) - shrinking) / total
    if unanswered:
        whole = total + unanswered
        share = total / whole
        variances = [(share**2 * variance, freedom) for variance, freedom in variances]
        between = mean**2 * share * (1 - share) / whole  # another draw may have fewer of them
        variances.append((between, whole - 1))
        mean, shrinking, fixed = share * mean, share**2 * shrinking, share**2 * fixed + between
    return Corrected(mean, variances, weight, shrinking, fixed)


def num_differing(human: "np.ndarray", judged: "np.ndarray") -> "np.ndarray":
    """Questions on which the two differ by more than rounding."""
    return (abs(human - judged) > 1e-9).sum(axis=-1)


def _slope(human: "np.ndarray", judged: "np.ndarray") -> "np.ndarray":
    """Cov(Y, f) / Var(f); 0 where the judge gives one and the same score."""
    import numpy as np

    centred = judged - judged.mean(axis=-1, keepdims=True)
    spread = (centred**2).sum(axis=-1)
    return np.divide((centred * human).sum(axis=-1), spread, out=np.zeros_like(spread), where=spread > 1e-12)


def plain_mean(values: "np.ndarray") -> Part:
    """The mean of a stratum of two questions or more."""
    number = values.shape[-1]
    return Part(values.mean(axis=-1), [(values.var(axis=-1, ddof=1) / number, number - 1)])


def mean_of(parts: Sequence[Part]) -> Any:
    return sum(part.mean for part in parts) / len(parts)


def half_width(parts: Sequence[Part]) -> Any:
    """Of the 95% interval around `mean_of`; 0 where nothing varies.

    By Student's t, with the degrees of freedom of a sum of estimated variances (Welch 1947), as the t-test here.
    """
    import numpy as np
    from scipy.special import stdtrit

    terms = [
        (np.asarray(variance) / len(parts) ** 2, freedom) for part in parts for variance, freedom in part.variances
    ]
    total = sum(variance for variance, _ in terms)
    squares = sum(variance**2 / freedom for variance, freedom in terms)
    degrees = np.divide(total**2, squares, out=np.ones_like(total), where=squares > 0)
    return stdtrit(degrees, 0.975) * np.sqrt(total)


def further_to_halve(parts: Sequence[Corrected], counts: Sequence[tuple[int, int]]) -> int | None:
    """How many more questions people have to score until the interval is half as wide; of one study.

    They are spread over the strata as those are that people have scored. That t is nearer to normal with more of them
    is left out, so where people scored few it is rather fewer.

    Args:
        counts: of each stratum the questions with people's scores, and all that have an answer.

    Returns:
        None where all questions together are not enough, so that other ones would have to be answered and judged.
    """
    shrinking = sum(float(part.shrinking) / seen for part, (seen, _) in zip(parts, counts, strict=True))
    fixed = sum(float(part.fixed) for part in parts)
    if shrinking <= 3 * fixed:  # shrinking / times + fixed is to be a quarter of shrinking + fixed
        return None
    times = 4 * shrinking / (shrinking - 3 * fixed)
    wanted = [math.ceil(times * seen - 1e-9) for seen, _ in counts]
    if any(number > total for number, (_, total) in zip(wanted, counts, strict=True)):
        return None
    return sum(number - seen for number, (seen, _) in zip(wanted, counts, strict=True))
