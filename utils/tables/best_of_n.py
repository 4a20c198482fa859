"""Best-of-N curves: the judge's score of the best of N samples, as chosen by another scorer, for growing N.

With M samples of a question, the expectation over all subsets of N samples is exact: the sample ranked i-th by the
scorer, i from 0, is the best of N with probability C(M - 1 - i, N - 1) / C(M, N).
"""

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

from utils.base.errors import UserError
from utils.benchmarks import tasks
from utils.data.scores import SampleScores, Scores
from utils.tables.groups import with_own_groups

RESAMPLES = 9_999


class Curve(NamedTuple):
    """Means over questions for each N, with 95% intervals; `num_fewer` questions have fewer samples than the most."""

    numbers: list[int]
    means: list[float]
    intervals: list[tuple[float, float]]
    num_fewer: int


def expected_best(judged: Sequence[float], chosen_by: Sequence[float | None], number: int) -> float:
    """Return the expected score of the best of `number` random samples of a question (all, if there are fewer).

    Args:
        judged: the judge's score of each sample.
        chosen_by: each sample's score by the scorer that chooses; None, for a missing answer, is the lowest. Among
            equal scores, the first sample is the best.
    """
    keys = [(score is None, -(score or 0)) for score in chosen_by]
    order, most = sorted(range(len(judged)), key=keys.__getitem__), min(number, len(judged))
    ways = [comb(len(judged) - 1 - place, most - 1) for place in range(len(judged))]
    return sum(way * judged[sample] for way, sample in zip(ways, order, strict=True)) / comb(len(judged), most)


def shares_of_headroom(curve: Curve, best: Curve) -> list[float | None]:
    """Return (selected - mean) / (best - mean) for each N, or None if best = mean; `best` is the judge's own choice."""
    gains, most = ([of_n - own.means[0] for of_n in own.means] for own in (curve, best))
    return [gain / limit if round(limit, 9) else None for gain, limit in zip(gains, most, strict=True)]


def make_curve(judged: Scores, samples: SampleScores, chosen_by: SampleScores) -> Curve:
    """Return the curve for N = 1, 2, 4, ... up to the number of samples.

    The best sample has the highest score in `chosen_by`. The mean is over the groups' means, as in a table's macro
    average. Intervals resample the questions of each group. Samples without a verdict of the judge are left out;
    UserError if no sample is left.

    Args:
        judged: the judge's score file, for the groups of its questions.
        samples: the judge's scores.
        chosen_by: the scores to choose by; None, for a missing answer, is the lowest.
    """
    import numpy as np

    task, placed = with_own_groups(tasks()[judged["task"]], {"": judged})
    groups = {entry["id"]: entry["group"] for entry in placed[""]["per_question_scores"]}
    by_question = {
        key: [pair for pair in zip(samples[key], chosen_by[key], strict=True) if pair[0] is not None]
        for key, group in groups.items()
        if group in task.groups and key in chosen_by
    }
    by_question = {key: pairs for key, pairs in by_question.items() if pairs}
    if not by_question:
        raise UserError("--figure best_of_n: no sample has both a verdict and a score to choose by")
    most = max(map(len, samples.values()))
    numbers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    values = np.array([[expected_best(*zip(*pairs, strict=True), number) for number in numbers]
                       for pairs in by_question.values()])  # fmt: skip
    in_group = [[groups[key] == group for key in by_question] for group in task.groups]
    of_group = [values[rows] for rows in in_group if any(rows)]
    means = np.mean([rows.mean(axis=0) for rows in of_group], axis=0)
    drawn, generator = np.zeros((RESAMPLES, len(numbers))), np.random.default_rng(0)
    for rows in of_group:
        times = generator.multinomial(len(rows), [1 / len(rows)] * len(rows), RESAMPLES)
        drawn += times @ rows / len(rows) / len(of_group)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    fewer = sum(len(pairs) < most for pairs in by_question.values())
    return Curve(numbers, means.tolist(), list(zip(low.tolist(), high.tolist(), strict=True)), fewer)
