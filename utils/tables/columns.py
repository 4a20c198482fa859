"""A table's columns of means: one for every group of questions, and one for their average or for all questions."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

from utils.benchmarks.task import Metric, Task
from utils.scoring.means import macro_average, mean
from utils.tables.significance import Strata, clustered_share_interval, interval
from utils.tables.system_scores import Entry, System, cluster_of

MACRO = "Average (macro)"


@dataclass(frozen=True)
class Point:
    """A mean score, its 95% interval as `interval_words` says, None where undefined, and how many have a score."""

    mean: float | None
    interval: tuple[float, float] | None
    questions: int = 0


def columns_of(task: Task) -> list[str]:
    """Name its groups, and their average where there are several."""
    return list(strata_of(task, []))


def strata_of(
    task: Task, questions: Iterable[Any], group_of: Callable[[Any], str] = itemgetter("group")
) -> dict[str, list[list[Any]]]:
    """Sort questions into what each column is the mean of: a group alone, or as the average each group as a stratum.

    Where the benchmark counts all questions alike, they are one stratum.
    """
    by_group: dict[str, list[Any]] = {group: [] for group in task.groups}
    for question in questions:
        by_group[group_of(question)].append(question)
    strata = {group: [its] for group, its in by_group.items()}
    if len(by_group) > 1:
        groups = list(by_group.values())
        strata[task.overall or MACRO] = [list(chain.from_iterable(groups))] if task.overall else groups
    return strata


def scored(questions: Iterable[Entry]) -> list[Entry]:
    return [question for question in questions if question["score"] is not None]


def mean_score(metric: Metric, strata: Strata) -> float | None:
    """Compute the score of questions in strata; None where a stratum is empty."""
    average = metric.pooled.score if metric.pooled else mean
    return macro_average({number: average(its) for number, its in enumerate(_values(metric, strata))})


def _values(metric: Metric, strata: Strata) -> Strata:
    """Return what the score is computed from."""
    value = metric.pooled.value if metric.pooled else itemgetter("score")
    return [list(map(value, stratum)) for stratum in strata]


def column_means(system: System) -> dict[str, float | None]:
    strata_by_column = strata_of(system.task, scored(system.questions))
    return {column: mean_score(system.metric, strata) for column, strata in strata_by_column.items()}


def points_of(system: System) -> dict[str, Point]:
    strata_by_column = strata_of(system.task, scored(system.questions))
    return {column: point_of(system, strata) for column, strata in strata_by_column.items()}


def point_of(system: System, strata: Strata) -> Point:
    """Compute a score and its interval; a mean of several groups' shares is no share."""
    metric, values = system.metric, _values(system.metric, strata)
    clusters = [list(map(cluster_of, stratum)) for stratum in strata]
    if metric.is_share and len(strata) == 1:
        its = clustered_share_interval(values[0], clusters[0])
    else:
        of = metric.pooled.of if metric.pooled else None
        its = interval(values, clusters if system.cluster else None, of, 0.0, math.inf if metric.lower_is_better else 1)
    return Point(mean_score(metric, strata), its, sum(map(len, strata)))


def interval_words(system: System) -> str:
    return f"cluster-robust intervals by {system.cluster}" if system.cluster else "bootstrap intervals over questions"
