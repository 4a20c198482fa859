"""A table's columns of means: one for every group of questions, and one for the average of these."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from utils.benchmarks.task import Task
from utils.scoring.means import group_means, macro_average, mean, scores_by_group
from utils.scoring.pooled import Pooled
from utils.tables.pooled import pooled_interval
from utils.tables.significance import bootstrap_interval
from utils.tables.system_scores import System

MACRO = "Average (macro)"

Values = TypeVar("Values")


def columns_of(task: Task) -> list[str]:
    """Its groups, and their average where there are several."""
    return [*task.groups, MACRO] if len(task.groups) > 1 else list(task.groups)


def strata_by_column(by_group: dict[str, Values]) -> dict[str, list[Values]]:
    """What each column is the mean of: a group alone, or as the average every group as a stratum of its own."""
    strata = {group: [values] for group, values in by_group.items()}
    return {**strata, MACRO: list(by_group.values())} if len(by_group) > 1 else strata


def column_means(system: System) -> dict[str, float | None]:
    """None for a mean over nothing."""
    means = group_means(system.questions, system.task.groups, system.metric.pooled)
    return {**means, MACRO: macro_average(means)} if len(means) > 1 else means


@dataclass(frozen=True)
class Point:
    """A mean score, its 95% interval by a bootstrap over questions, and the number of questions that have a score.

    Mean and interval are None where they are undefined.
    """

    mean: float | None
    interval: tuple[float, float] | None
    questions: int = 0


def points_of(system: System) -> dict[str, Point]:
    """By column."""
    pooled = system.metric.pooled
    strata = strata_by_column(scores_by_group(system.questions, system.task.groups, pooled))
    return {column: _point(its_mean, strata[column], pooled) for column, its_mean in column_means(system).items()}


def unplaced_point(system: System) -> Point:
    """Of the questions of no known group."""
    unplaced = [entry for entry in system.entries if entry["group"] is None]
    pooled = system.metric.pooled
    scores = scores_by_group(unplaced, [None], pooled)[None]
    return _point((pooled.score if pooled else mean)(scores), [scores], pooled)


def _point(its_mean: float | None, strata: Sequence[Sequence[Any]], pooled: Pooled | None) -> Point:
    interval = pooled_interval(strata, pooled.of) if pooled else bootstrap_interval(strata)
    return Point(its_mean, interval, sum(map(len, strata)))
