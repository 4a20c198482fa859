"""A table's columns of means: one for every group of questions, and one for the average of these."""

from dataclasses import dataclass
from typing import TypeVar

from utils.benchmarks.task import Task
from utils.scoring.means import group_means, macro_average, mean, scores_by_group
from utils.tables.significance import Strata, bootstrap_interval
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
    means = group_means(system.questions, system.task.groups)
    return {**means, MACRO: macro_average(means)} if len(means) > 1 else means


@dataclass(frozen=True)
class Point:
    """A mean score, its 95% interval by a bootstrap over questions, None where undefined, and how many have a score."""

    mean: float | None
    interval: tuple[float, float] | None
    questions: int = 0


def points_of(system: System) -> dict[str, Point]:
    """By column."""
    strata = strata_by_column(scores_by_group(system.questions, system.task.groups))
    return {column: _point(its_mean, strata[column]) for column, its_mean in column_means(system).items()}


def unplaced_point(system: System) -> Point:
    """Of the questions of no known group."""
    unplaced = [entry for entry in system.entries if entry["group"] is None]
    scores = scores_by_group(unplaced, [None])[None]
    return _point(mean(scores), [scores])


def _point(its_mean: float | None, strata: Strata) -> Point:
    return Point(its_mean, bootstrap_interval(strata), sum(map(len, strata)))
