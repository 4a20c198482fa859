"""Means of question scores, by group and over groups."""

import math
from collections.abc import Iterable, Sequence
from typing import Any


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def scores_by_group(
    per_question: Iterable[dict[str, Any]], groups: Sequence[str | None]
) -> dict[str | None, list[float]]:
    """The question scores of each group, of entries of score files; one without details counts nowhere."""
    scores: dict[str | None, list[float]] = {group: [] for group in groups}
    for question in per_question:
        if question["details"] and question["score"] is not None:
            scores[question["group"]].append(question["score"])
    return scores


def group_means(per_question: Iterable[dict[str, Any]], groups: Sequence[str]) -> dict[str, float | None]:
    """Mean question score of each group, as `scores_by_group` takes them; None where no question of it has a score."""
    return {group: mean(scores) for group, scores in scores_by_group(per_question, groups).items()}


def macro_average(means: dict[str, float | None]) -> float | None:
    """Unweighted mean of the groups' means (paper, tables 2 and 3), None where one is missing."""
    return None if None in means.values() else mean(list(means.values()))
