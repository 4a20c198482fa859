"""Means of question scores, by group and over groups."""

import math
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from utils.scoring.pooled import Pooled


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def scores_by_group(
    per_question: Iterable[dict[str, Any]], groups: Sequence[str | None], pooled: Pooled | None = None
) -> dict[str | None, list[Any]]:
    """The question scores of each group, of entries of score files, or the values that a pooled score hangs on.

    Every `group` is one of `groups`; one without details counts nowhere.
    """
    return by_group(per_question, groups, itemgetter("score") if pooled is None else pooled.value)


def by_group(
    per_question: Iterable[dict[str, Any]], groups: Sequence[str | None], value: Callable[[dict[str, Any]], Any]
) -> dict[str | None, list[Any]]:
    """A value of each question that `scores_by_group` counts."""
    found: dict[str | None, list[Any]] = {group: [] for group in groups}
    for question in per_question:
        if question["details"] and question["score"] is not None:
            found[question["group"]].append(value(question))
    return found


def group_means(
    per_question: Iterable[dict[str, Any]], groups: Sequence[str], pooled: Pooled | None = None
) -> dict[str, float | None]:
    """Mean question score of each group, as `scores_by_group` takes them, or its pooled score.

    None where no question of it has a score.
    """
    average = mean if pooled is None else pooled.score
    return {group: average(scores) for group, scores in scores_by_group(per_question, groups, pooled).items()}


def macro_average(means: dict[str, float | None]) -> float | None:
    """Unweighted mean of the groups' means (paper, tables 2 and 3), None where one is missing."""
    return None if None in means.values() else mean(list(means.values()))
