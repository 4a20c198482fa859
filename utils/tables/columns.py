"""A table's columns of means: one for every group of questions, and one for their average or for all questions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from utils.benchmarks.task import Task
from utils.scoring.means import by_group, group_means, macro_average, mean, scores_by_group
from utils.tables.clusters import mean_interval, share_interval
from utils.tables.pooled import pooled_interval
from utils.tables.significance import bootstrap_interval
from utils.tables.system_scores import System, cluster_of

MACRO = "Average (macro)"


def columns_of(task: Task) -> list[str]:
    """Its groups, and their average where there are several."""
    return [*task.groups, task.overall or MACRO] if len(task.groups) > 1 else list(task.groups)


def strata_by_column(task: Task, by_group: dict[str, Any]) -> dict[str, list[Any]]:
    """What each column is the mean of: a group alone, or as the average every group as a stratum of its own.

    Where the benchmark counts all questions alike, they are one stratum.
    """
    strata = {group: [values] for group, values in by_group.items()}
    if len(by_group) == 1:
        return strata
    if task.overall is not None:
        return {**strata, task.overall: [list(chain.from_iterable(by_group.values()))]}
    return {**strata, MACRO: list(by_group.values())}


def column_means(system: System) -> dict[str, float | None]:
    """None for a mean over nothing."""
    task, pooled = system.task, system.metric.pooled
    means = group_means(system.questions, task.groups, pooled)
    if len(means) == 1:
        return means
    if task.overall is not None:
        [values] = strata_by_column(task, scores_by_group(system.questions, task.groups, pooled))[task.overall]
        return {**means, task.overall: (pooled.score if pooled else mean)(values)}
    return {**means, MACRO: macro_average(means)}


@dataclass(frozen=True)
class Point:
    """A mean score, its 95% interval as `interval_words` says, None where undefined, and how many have a score."""

    mean: float | None
    interval: tuple[float, float] | None
    questions: int = 0


def points_of(system: System) -> dict[str, Point]:
    """By column."""
    task, metric = system.task, system.metric
    strata = strata_by_column(task, scores_by_group(system.questions, task.groups, metric.pooled))
    clusters = strata_by_column(task, by_group(system.questions, task.groups, cluster_of))
    means = column_means(system)
    return {column: _point(its_mean, strata[column], clusters[column], system) for column, its_mean in means.items()}


def unplaced_point(system: System) -> Point:
    """Of the questions of no known group."""
    unplaced = [entry for entry in system.entries if entry["group"] is None]
    pooled = system.metric.pooled
    scores = scores_by_group(unplaced, [None], pooled)[None]
    clusters = by_group(unplaced, [None], cluster_of)[None]
    return _point((pooled.score if pooled else mean)(scores), [scores], [clusters], system)


def _point(
    its_mean: float | None, strata: Sequence[Sequence[Any]], clusters: Sequence[Sequence[str]], system: System
) -> Point:
    """The one place that says which interval a mean has; a mean of several groups' shares is no share."""
    metric = system.metric
    if metric.is_share and len(strata) == 1:
        interval = share_interval(strata[0], clusters[0])
    elif metric.pooled:
        interval = pooled_interval(strata, metric.pooled.of, clusters if system.cluster else None)
    elif system.cluster:
        interval = mean_interval(strata, clusters, 0.0, math.inf if metric.lower_is_better else 1.0)
    else:
        interval = bootstrap_interval(strata)
    return Point(its_mean, interval, sum(map(len, strata)))


def interval_words(system: System) -> str:
    """What the intervals of means are."""
    return f"cluster-robust intervals by {system.cluster}" if system.cluster else "bootstrap intervals over questions"
