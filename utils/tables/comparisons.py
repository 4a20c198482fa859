"""Which systems of a table are better than its baselines: every comparison it shows, and its daggers."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from utils.benchmarks.task import Task
from utils.cli import UserError
from utils.cli.errors import quote
from utils.scoring.means import Pooled
from utils.tables import clusters, significance
from utils.tables.clusters import Clusters
from utils.tables.columns import strata_by_column
from utils.tables.pooled import difference_of, pooled_interval, pooled_mean, swap_test
from utils.tables.significance import ALPHA, Strata, bootstrap_interval, permutation_test
from utils.tables.system_scores import Board, System, cluster_names, cluster_of

T_TEST, PERMUTATION = "t-test p", "permutation p"


@dataclass(frozen=True)
class Pairing:
    """The scores of two systems on the same questions, and how many questions are left out; the counts are disjoint."""

    # (first, second) by group, in the order of the questions' ids; where scores are pooled, the values these hang on
    scores: dict[str, list[tuple[Any, Any]]]
    clusters: dict[str, list[str]]  # of these questions
    paired: int
    only_first: int  # scored for the first system, but absent or without a score for the second
    only_second: int
    neither: int  # in a file, but scored for none


@dataclass
class Result:
    """A system against a baseline in one column, over the questions that both have a score of; None is undefined."""

    num_questions: int
    difference: float | None  # the system's mean minus the baseline's
    p_values: dict[str, float | None]  # by T_TEST and, with intervals, PERMUTATION, and by `holm_name` of these
    interval: tuple[float, float] | None = None  # of the difference, 95%; None without intervals too
    effect_size: float | None = None  # Cohen's d_z; None without intervals, and of an average, too
    test: str = T_TEST  # the one that daggers go by


@dataclass(frozen=True)
class Contrast:
    """A system against a baseline, with a result for each column of means."""

    system: str
    baseline: str
    pairing: Pairing
    results: dict[str, Result]  # by the column's name
    board: Board

    def note(self, text: str) -> str:
        return self.board.note(f"{self.system} and {self.baseline}: {text}")


def compare(boards: Iterable[Board], baselines: list[str], intervals: bool, correct: bool) -> list[Contrast]:
    """Every other system against every baseline that has scores of the same task and metric.

    Args:
        intervals: also what is drawn at random: interval and permutation test.
        correct: also Holm's p-values, over all comparisons of the table.
    """
    contrasts = []
    for board in boards:
        by_name = {system.name: system for system in board.systems}
        for name in (name for name in by_name if name not in baselines):
            contrasts += [
                contrast(board, by_name[name], by_name[one], intervals) for one in baselines if one in by_name
            ]
    if correct:
        correct_all([result for one in contrasts for result in one.results.values()])
    return contrasts


def contrast(board: Board, system: System, baseline: System, intervals: bool) -> Contrast:
    pooled = board.metric.pooled
    pairing = pair_questions(system.questions, baseline.questions, board.task, pooled)
    strata = strata_by_column(board.task, pairing.scores)
    users = strata_by_column(board.task, pairing.clusters) if cluster_names([board]) else dict.fromkeys(strata)
    most = math.inf if board.metric.lower_is_better else 1.0
    results = {}
    for column, its in strata.items():
        if pooled is not None:
            result = compare_pooled(its, pooled, intervals, users[column])
        else:
            result = compare_strata(list(map(significance.differences, its)), intervals, users[column], most)
        results[board.name_of(column)] = result
    return Contrast(system.name, baseline.name, pairing, results, board)


def correct_all(results: list[Result]) -> None:
    """Add Holm's p-values, test by test; a result without this test counts with the one that its dagger goes by."""
    for test in (T_TEST, PERMUTATION):
        p_values = [result.p_values.get(test) for result in results]
        own = [result.p_values[result.test] for result in results]
        adjusted = significance.holm([q if p is None else p for p, q in zip(p_values, own, strict=True)])
        for result, p, corrected in zip(results, p_values, adjusted, strict=True):
            if test in result.p_values:
                result.p_values[holm_name(test)] = None if p is None else corrected


def pair_questions(
    first: list[dict[str, Any]], second: list[dict[str, Any]], task: Task, pooled: Pooled | None = None
) -> Pairing:
    """Pair the questions of two systems by id; only those that both have a score of are compared.

    Raises:
        UserError: a question is of one group, part of it or cluster in one system and of another in the other.
    """
    first_by_id, second_by_id = ({question["id"]: question for question in system} for system in (first, second))
    scores: dict[str, list[tuple[Any, Any]]] = {group: [] for group in task.groups}
    its_clusters: dict[str, list[str]] = {group: [] for group in task.groups}
    counts: Counter[tuple[bool, bool]] = Counter()  # is there a score of the first, of the second?
    for question_id in sorted(first_by_id.keys() | second_by_id.keys()):
        both = [by_id[question_id] for by_id in (first_by_id, second_by_id) if question_id in by_id]
        _check_same_place(both, task)
        one, other = (by_id.get(question_id, {}).get("score") for by_id in (first_by_id, second_by_id))
        counts[one is not None, other is not None] += 1
        if one is not None and other is not None:
            scores[both[0]["group"]].append((one, other) if pooled is None else tuple(map(pooled.value, both)))
            its_clusters[both[0]["group"]].append(cluster_of(both[0]))
    return Pairing(
        scores, its_clusters, counts[True, True], counts[True, False], counts[False, True], counts[False, False]
    )


def _check_same_place(both: list[dict[str, Any]], task: Task) -> None:
    group, _, subgroup = task.group_words
    for name, field in ((subgroup, "subgroup"), (group, "group"), (task.user_field, "cluster")):
        one, other = both[0].get(field), both[-1].get(field)
        if one != other:
            raise UserError(
                f"question {quote(both[0]['id'])}: its {name} is {quote(one)} in one system's score files "
                f"and {quote(other)} in the other's\n  compare systems that were scored on the same dataset"
            )


def compare_strata(
    strata: Strata, intervals: bool, its_clusters: Clusters | None = None, most: float = math.inf
) -> Result:
    """Of differences, up to `most`; within clusters, where there are any, questions depend on each other."""
    t_test = significance.t_test(strata)[1] if its_clusters is None else clusters.t_test(strata, its_clusters)
    result = Result(sum(map(len, strata)), significance.mean_over_strata(strata), {T_TEST: t_test})
    if intervals:
        if its_clusters is None:
            result.p_values[PERMUTATION] = permutation_test(strata)
            result.interval = bootstrap_interval(strata)
        else:
            result.p_values[PERMUTATION] = clusters.permutation_test(strata, its_clusters)
            result.interval = clusters.mean_interval(strata, its_clusters, -most, most)
        result.effect_size = significance.effect_size(strata[0]) if len(strata) == 1 else None
    return result


def compare_pooled(
    strata: Sequence[Sequence[tuple[Any, Any]]], pooled: Pooled, intervals: bool, its_clusters: Clusters | None = None
) -> Result:
    """Of scores that are no means: no t-test and no effect size, which are of means; always the swap test."""
    difference = difference_of(pooled.of)
    p_values = {T_TEST: None, PERMUTATION: swap_test(strata, pooled.of, its_clusters)}
    interval = pooled_interval(strata, difference, its_clusters) if intervals else None
    return Result(sum(map(len, strata)), pooled_mean(strata, difference), p_values, interval, test=PERMUTATION)


def holm_name(test: str) -> str:
    return f"{test} (Holm)"


def shown_p(result: Result, test: str) -> float | None:
    """The corrected p-value where there is one."""
    return result.p_values.get(holm_name(test), result.p_values[test])


def is_corrected(contrasts: Sequence[Contrast]) -> bool:
    return any(holm_name(T_TEST) in result.p_values for one in contrasts for result in one.results.values())


def has_dagger(contrasts: Sequence[Contrast], system: str, column: str) -> bool:
    """Is the system, a fair one, significantly better than every baseline of the table in this column?"""
    its = [one for one in contrasts if one.system == system and column in one.results]
    if not its or len(its) < len({one.baseline for one in contrasts}) or its[0].board.system(system).num_selected:
        return False
    sign = -1 if its[0].board.metric.lower_is_better else 1
    results = [one.results[column] for one in its]
    p_values = [shown_p(result, result.test) for result in results]
    is_significant = all(p is not None and p < ALPHA for p in p_values)
    return is_significant and all(sign * result.difference > 0 for result in results)
