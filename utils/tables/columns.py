"""The columns of a table: means, intervals and comparisons by group of questions, and over all groups or questions."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any

from utils.base.errors import UserError, quote
from utils.benchmarks.metric import Metric
from utils.benchmarks.scoring import mean
from utils.benchmarks.task import ALL, Task
from utils.data.scores import Entry
from utils.tables import significance
from utils.tables.significance import ALPHA, Strata, difference_of, differences, interval, share_interval
from utils.tables.system_scores import CONTROL, Board, System, cluster_names, cluster_of

MACRO = "Average (macro)"
T_TEST, PERMUTATION = "t-test p", "permutation p"


@dataclass(frozen=True)
class Point:
    """A mean score, its 95% interval (see `interval_words`), each None if undefined, and the number of questions."""

    mean: float | None
    interval: tuple[float, float] | None
    questions: int = 0


def columns_of(task: Task) -> list[str]:
    """Return the columns' names: the groups, and if there are several, the macro average, all questions, or both."""
    return list(strata_of(task, []))


def strata_of(
    task: Task, questions: Iterable[Any], group_of: Callable[[Any], str] = itemgetter("group")
) -> dict[str, list[list[Any]]]:
    """Return each column's questions in strata: the macro average has a stratum per group, other columns have one.

    Questions of a group that the task does not have are only in the column of all questions.
    """
    by_group: dict[str, list[Any]] = {group: [] for group in task.groups}
    elsewhere: list[Any] = []
    for question in questions:
        by_group.get(group_of(question), elsewhere).append(question)
    strata = {group: [group_questions] for group, group_questions in by_group.items()}
    groups = list(by_group.values())
    whole = [list(chain.from_iterable([*groups, elsewhere]))]
    if len(by_group) > 1:
        strata = join_columns(strata, {task.overall: whole} if task.overall else {MACRO: groups})
    if task.has_own_groups and task.groups != (ALL,):
        strata = join_columns(strata, {ALL: whole})
    return strata


def join_columns(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of all parts; UserError if two have the same name, such as a category of the user's own."""
    columns: dict[str, Any] = {}
    for part in parts:
        if taken := [name for name in part if name in columns]:
            problem = f"the category {quote(taken[0])} has the same name as a column of the table"
            raise UserError(f'{problem}; rename it: --groups "NEW NAME={taken[0]}"')
        columns |= part
    return columns


def scored_strata(system: System) -> dict[str, list[list[Entry]]]:
    return strata_of(system.task, scored(system.questions))


def scored(questions: Iterable[Entry]) -> list[Entry]:
    return [question for question in questions if question["score"] is not None]


def column_means(system: System) -> dict[str, float | None]:
    return {column: mean_score(system.metric, strata) for column, strata in scored_strata(system).items()}


def mean_score(metric: Metric, strata: Strata) -> float | None:
    """Compute the unweighted mean of the strata's scores; None if a stratum is empty."""
    average = metric.pooled.score if metric.pooled else mean
    scores = list(map(average, values_of(metric, strata)))
    return None if None in scores else mean(scores)


def values_of(metric: Metric, strata: Strata) -> Strata:
    """Return, by stratum, the values that the score is computed from."""
    value = metric.pooled.value if metric.pooled else itemgetter("score")
    return [list(map(value, stratum)) for stratum in strata]


def points_of(system: System) -> dict[str, Point]:
    return {column: point_of(system, strata) for column, strata in scored_strata(system).items()}


def point_of(system: System, strata: Strata) -> Point:
    """Compute a column's score and interval, by `share_interval` if the score is a single share."""
    metric, values = system.metric, values_of(system.metric, strata)
    clusters = [list(map(cluster_of, stratum)) for stratum in strata]
    if metric.is_share and len(strata) == 1:
        limits = share_interval(values[0], clusters[0])
    else:
        of = metric.pooled.of if metric.pooled else None
        limits = interval(values, clusters if system.cluster else None, of, *metric.limits)
    return Point(mean_score(metric, strata), limits, sum(map(len, strata)))


def interval_words(system: System) -> str:
    """Describe the intervals of `points_of`."""
    if system.cluster:
        return f"cluster-robust intervals by {system.cluster}"
    if not system.metric.is_share:
        return "bootstrap intervals over questions"
    average = MACRO in columns_of(system.task)
    return "Wilson intervals" + ("; bootstrap for the average" if average else "")


# Comparisons of systems with baselines, and daggers


@dataclass(frozen=True)
class Length:
    """A comparison at equal length, over the questions that both systems have a score and an answer for."""

    num_questions: int
    words: tuple[float, float]  # mean words per answer of the system and the baseline
    difference: float  # the system's mean minus the baseline's
    at_equal_length: significance.AtEqualLength | None


@dataclass
class Comparison:
    """A system and a baseline in one column, over the questions scored for both; undefined figures are None."""

    system: str
    baseline: str
    board: Board
    column: str
    # The numbers of questions scored for both, only for the system, only for the baseline, and for neither.
    pairing: tuple[int, int, int, int]
    num_questions: int
    difference: float | None  # the system's mean minus the baseline's
    p_values: dict[str, float | None]  # by test (T_TEST, PERMUTATION); corrected p-values by the test's `holm_name`
    test: str = T_TEST  # the test that decides daggers
    interval: tuple[float, float] | None = None  # the difference's 95% interval; also None if not requested
    effect_size: float | None = None  # Cohen's d_z; also None if not requested, or for an average
    flips: int | None = None  # the number of sign flips in PERMUTATION if all were tried
    length: "Length | None" = None  # also None if not requested

    def shown_p(self, test: str) -> float | None:
        """Return the test's corrected p-value, or the uncorrected one if there is no correction."""
        return self.p_values.get(holm_name(test), self.p_values[test])

    @property
    def is_corrected(self) -> bool:
        return holm_name(T_TEST) in self.p_values

    @property
    def is_excluded(self) -> bool:
        """Whether the system can have no dagger (see `System.excluded`)."""
        return bool(self.board.system(self.system).excluded)

    @property
    def is_better(self) -> bool:
        p, sign = self.shown_p(self.test), -1 if self.board.metric.lower_is_better else 1
        return p is not None and p < ALPHA and sign * self.difference > 0


def compare(
    boards: Iterable[Board], baselines: list[str], intervals: bool, correct: bool, lengths: bool = False
) -> list[Comparison]:
    """Compare each system with each baseline in every column of the boards where both have scores.

    With `lengths`, also compare at equal length. Controls are compared only as baselines, so they do not count in
    Holm's correction.
    """
    comparisons = []
    for board in boards:
        by_name = {system.name: system for system in board.systems}
        others = [system for system in board.systems if system.name not in baselines and system.excluded != CONTROL]
        for system in others:
            for name in (name for name in baselines if name in by_name):
                comparisons += compare_systems(board, system, by_name[name], intervals, lengths)
    if correct:
        correct_all(comparisons)
    return comparisons


def compare_methods(
    boards: Iterable[Board], methods: Mapping[str, list[str]], baselines: list[str], intervals: bool, correct: bool
) -> list[Comparison]:
    """Compare methods over their seeds: a question's score is its mean over the method's rows, None if a row has none.

    A method with a row in `baselines` is a baseline; baselines that belong to no method are single rows. Boards whose
    score is not a mean over questions are skipped.
    """
    whole = [name for name, rows in methods.items() if {*rows} & {*baselines}]
    single = [row for row in baselines if row not in chain(*methods.values())]

    def over_seeds(board: Board, name: str) -> System:
        rows = [board.system(row) for row in methods[name]]
        scores = [{question["id"]: question["score"] for question in row.questions} for row in rows]
        entries = []
        for question in rows[0].questions:
            drawn = [of.get(question["id"]) for of in scores]
            entries.append({**question, "score": None if None in drawn else mean(drawn)})
        system = System(name, board.task, board.metric_name, {"": {"per_question_scores": entries}})
        system.excluded = rows[0].excluded
        return system

    pooled = [
        replace(board, systems=[*(over_seeds(board, name) for name in methods), *map(board.system, single)])
        for board in boards
        if board.metric.pooled is None
    ]
    return compare(pooled, [*whole, *single], intervals, correct)


def compare_systems(
    board: Board, system: System, baseline: System, intervals: bool, lengths: bool = False
) -> Iterator[Comparison]:
    """Yield a comparison per column, over the questions that both systems have a score on, paired by id."""
    first, second = ({question["id"]: question for question in row.questions} for row in (system, baseline))
    counts: Counter[tuple[bool, bool]] = Counter()  # by (scored for the system, scored for the baseline)
    pairs = []
    for question_id in sorted(first.keys() | second.keys()):
        pair = [by_id.get(question_id, {"score": None}) for by_id in (first, second)]
        is_scored = (pair[0]["score"] is not None, pair[1]["score"] is not None)
        counts[is_scored] += 1
        pairs += [pair] if all(is_scored) else []
    pairing = counts[True, True], counts[True, False], counts[False, True], counts[False, False]
    by_user = bool(cluster_names([board]))
    for column, strata in strata_of(board.task, pairs, lambda pair: pair[0]["group"]).items():
        figures = compare_pairs(board.metric, strata, by_user, intervals)
        figures |= {"length": compare_lengths(strata, by_user)} if lengths else {}
        yield Comparison(system.name, baseline.name, board, board.name_of(column), pairing, **figures)


def compare_pairs(metric: Metric, strata: Sequence[Sequence[Any]], by_user: bool, intervals: bool) -> dict[str, Any]:
    """Compute a `Comparison`'s figures from pairs of entries; only means have a t-test and an effect size."""
    clusters = [[cluster_of(first) for first, _ in stratum] for stratum in strata] if by_user else None
    if metric.pooled is None:
        of, test = None, T_TEST
        values = [differences([(first["score"], second["score"]) for first, second in stratum]) for stratum in strata]
        p_values = {T_TEST: significance.t_test(values, clusters)}
        p_values |= {PERMUTATION: significance.permutation_test(values, clusters)} if intervals else {}
        figures = {"flips": significance.all_flips(values, clusters)} if intervals else {}
    else:
        of, test, figures = difference_of(metric.pooled.of), PERMUTATION, {}
        values = [[tuple(map(metric.pooled.value, pair)) for pair in stratum] for stratum in strata]
        p_values = {T_TEST: None, PERMUTATION: significance.swap_test(values, metric.pooled.of, clusters)}
    figures |= {"num_questions": sum(map(len, strata)), "difference": significance.estimate(values, of)}
    figures |= {"p_values": p_values, "test": test}
    if intervals:
        most = metric.limits[1] - metric.limits[0]
        figures["interval"] = significance.interval(values, clusters, of, -most, most)
        figures["effect_size"] = significance.effect_size(values[0]) if len(values) == 1 and of is None else None
    return figures


def compare_lengths(strata: Sequence[Sequence[Any]], by_user: bool) -> Length | None:
    """Compare pairs of entries at equal length; None if a stratum has no pair with the words of both answers."""
    strata = [[pair for pair in stratum if all(entry.get("words") for entry in pair)] for stratum in strata]
    if not all(strata):
        return None
    clusters = [[cluster_of(first) for first, _ in stratum] for stratum in strata] if by_user else None
    values = [differences([(first["score"], second["score"]) for first, second in stratum]) for stratum in strata]
    ratios = [[math.log(first["words"] / second["words"]) for first, second in stratum] for stratum in strata]
    words = tuple(mean([mean([pair[side]["words"] for pair in stratum]) for stratum in strata]) for side in (0, 1))
    adjusted = significance.at_equal_length(values, ratios, clusters)
    return Length(sum(map(len, strata)), words, significance.estimate(values), adjusted)


def correct_all(comparisons: list[Comparison]) -> None:
    """Add Holm-corrected p-values for each test.

    The family has all comparisons that can have a dagger; the others get no corrected p-value. A comparison that lacks
    the test is in the family with the p-value that decides its dagger.
    """
    family = [comparison for comparison in comparisons if not comparison.is_excluded]
    for test in (T_TEST, PERMUTATION):
        p_values = [comparison.p_values.get(test) for comparison in family]
        of_dagger = [comparison.p_values[comparison.test] for comparison in family]
        adjusted = significance.holm([q if p is None else p for p, q in zip(p_values, of_dagger, strict=True)])
        for comparison in comparisons:
            comparison.p_values |= {holm_name(test): None} if test in comparison.p_values else {}
        for comparison, p, corrected in zip(family, p_values, adjusted, strict=True):
            if test in comparison.p_values:
                comparison.p_values[holm_name(test)] = None if p is None else corrected


def holm_name(test: str) -> str:
    return f"{test} (Holm)"


def has_dagger(comparisons: Sequence[Comparison], system: str, column: str) -> bool:
    """Return whether an ordinary system (see `System.excluded`) is better than all baselines in a column."""
    of_cell = [comparison for comparison in comparisons if (comparison.system, comparison.column) == (system, column)]
    if not of_cell or len(of_cell) < len({comparison.baseline for comparison in comparisons}):
        return False
    return not of_cell[0].is_excluded and all(comparison.is_better for comparison in of_cell)
