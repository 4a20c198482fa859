"""The systems of a table, read from their score files."""

import argparse
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from statistics import fmean
from types import MappingProxyType
from typing import Any

from utils.base.errors import UserError, count_noun, first_five, kind, plural, quote
from utils.base.manifest import manifest_of, settings_of
from utils.benchmarks import tasks
from utils.benchmarks.metric import Metric
from utils.benchmarks.readers import one_line
from utils.benchmarks.task import Task
from utils.data.scores import CARRIED, Entry, Scores, read_scores, strategy_in_words
from utils.tables.comparable import check_same_content, check_same_judge, refuse_other_benchmarks
from utils.tables.formats import few
from utils.tables.groups import joined_by, named_group, regrouped, with_own_groups

SELECTED = "selected by score"
CONTROL = "control"  # in `System.excluded`
SAMPLE = "sample"  # the unit of a metric whose score is a mean over samples
MANY_WITHOUT_PLAN = 0.1  # if a larger share of answers has no plan, the row's label says so


class System:
    """A row of a table: its name, and its score files of one task and metric by path, or no files."""

    def __init__(
        self, name: str, task: Task, metric_name: str, files: dict[str, Scores], among: Set[str] | None = None
    ):
        """`among`: the ids of the questions to include; None for all questions that the system was scored on."""
        self.among = among
        self.name, self.task, self.metric_name, self.files = name, task, metric_name, files
        self.metric = task.metrics[metric_name]
        self.entries: list[Entry] = [entry for scores in files.values() for entry in scores["per_question_scores"]]
        # Entries without a known group are in no column. Entries without details have no score and are not counted.
        placed = [entry for entry in self.entries if entry["group"] is not None]
        self.scored_ids = {entry["id"] for entry in placed if entry["details"]}
        self.questions = [entry for entry in placed if among is None or entry["id"] in among]
        judged = [entry for entry in self.questions if entry["details"]]
        self.asked_ids = {entry["id"] for entry in judged}
        self.num_unanswered = sum(not entry["answered"] for entry in judged)  # these have the worst score, or no reward
        answered = (entry for entry in judged if entry["answered"])
        missing = (unscored_parts(self.metric, entry) for entry in answered)
        self.unscored = [count for count in missing if count]  # missing verdicts of each question that lacks any
        users = list(map(cluster_of, self.questions))
        # Intervals and tests are clustered by user if a user has several questions.
        self.cluster = task.user_field if len(set(users)) < len(users) else None
        carried = (sum(scores.get(name, 0) for scores in files.values()) for name in CARRIED)
        self.num_truncated, self.num_selected, self.num_without_plan, self.num_raw_json = carried

    @property
    def mean_words(self) -> float | None:
        """Mean words per answer, over the questions with a score and an answer; None if no file has words."""
        counts = [entry["words"] for entry in self.questions if entry["score"] is not None and entry.get("words")]
        return fmean(counts) if counts else None

    @cached_property
    def excluded(self) -> str:
        """The reason that the system gets neither bold nor daggers, for its label; empty for an ordinary system."""
        return "; ".join(dict.fromkeys(filter(None, (_excluded(path, scores) for path, scores in self.files.items()))))

    @property
    def label(self) -> str:
        """The row's name as shown."""
        label = f"{self.name} ({self.excluded})" if self.excluded else self.name
        if self.num_without_plan > MANY_WITHOUT_PLAN * len(self.entries):
            label += f" ({self.num_without_plan / len(self.entries):.0%} without a plan)"
        return label


def _excluded(path: str, scores: Scores) -> str | None:
    """Return why a score file is not that of an ordinary system: a control, or information at test time; else None.

    Responses are an upper or lower bound only if the system saw fields of the scorer, or if they were selected by the
    same metric and judge that scored them here. utils/make_controls.py makes controls.
    """
    manifest = manifest_of(path) or {"settings": {}}
    origins = [origin or {} for origin in manifest.get("answers") or []]
    if any("control" in origin for origin in origins):
        return CONTROL
    if seen_fields := [name for origin in origins if when_seen(origin) == "test" for name in origin["saw"]["fields"]]:
        return f"upper bound, sees {', '.join(dict.fromkeys(seen_fields))}"
    if (by := next((origin["selected_by"] for origin in origins if "selected_by" in origin), None)) is None:
        return SELECTED if scores.get("num_selected") else None
    which = f"{by['which']} by {by['strategy']}"
    if by["strategy"] != strategy_in_words(scores):
        return which
    if by.get("identity") != manifest["settings"].get("judge"):
        return f"{which}, another judge"
    return f"{'upper' if by['which'] == 'best' else 'lower'} bound, {which}"


def when_seen(origin: dict[str, Any]) -> str | None:
    """Return when a system saw fields of the scorer: "training", "test", or None for never."""
    return origin.get("saw", {}).get("when")


@dataclass(eq=False)
class Board:
    """The columns of one task and metric in a table, and the systems with such scores."""

    task: Task
    metric_name: str
    systems: list[System]  # in the order of the table's rows
    rows: list[str]  # the names of all rows of the table, including systems without scores here
    is_alone: bool = True  # True: columns are named after the task's groups; False: after task and metric

    def __post_init__(self):
        self.metric, self.title = self.task.metrics[self.metric_name], self.task.scored_by(self.metric_name)

    def name_of(self, column: str) -> str:
        """Return the column's name, which is unique in the table."""
        return column if self.is_alone else self.title

    def system(self, name: str) -> System:
        """Return the system of this name; it has no files if it has no scores here."""
        same_name = [system for system in self.systems if system.name == name]
        return same_name[0] if same_name else System(name, self.task, self.metric_name, {})

    def note(self, text: str) -> str:
        return text if self.is_alone else f"{self.task.name}: {text}"


def cluster_of(entry: Entry) -> str:
    """Return a question's cluster, its user; a question without a known user is its own cluster."""
    return entry.get("cluster", entry["id"])


def cluster_names(boards: Iterable[Board]) -> str:
    """Return the fields by which intervals and tests are clustered, in words; empty if questions are independent."""
    return " or ".join(dict.fromkeys(system.cluster for board in boards for system in board.systems if system.cluster))


def add_unscored_argument(parser: argparse._ActionsContainer) -> None:
    """Add the flag --unscored_as_zero."""
    what = "count aspects without a verdict as 0 (default: leave their questions out of the means)"
    parser.add_argument("--unscored_as_zero", action="store_true", help=what)


def add_board_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the flags of `boards_of`, besides --system."""
    # fmt: off
    add = parser.add_argument
    add("--by", metavar="NAME",
        help="columns by topic or distance of PersonaMem's questions, for PersonaMem-v2 also by who or updated "
        "(default: by group)")
    add("--groups", nargs="+", type=named_group, metavar="NAME=A,B,...",
        help="columns that join LaMP-QA's communities, or categories of your own (default: one per category)")
    add("--allow_partial", action="store_true",
        help="allow systems that were not scored on the same questions, and use the common questions (off: refuse)")
    add_unscored_argument(parser)
    add("--samples", choices=["all"],
        help="a question's score is the mean over its samples, judged with --samples all (off: the first sample's)")
    # fmt: on


def boards_of(args: argparse.Namespace) -> list[Board]:
    """Read the systems of --system; UserError unless they are comparable."""
    if args.samples and args.unscored_as_zero:
        raise UserError("--unscored_as_zero: has no effect with --samples all; remove one of them")
    joined = joined_by(args.groups)
    return read_boards(
        args.system, args.unscored_as_zero, args.allow_partial, args.by, joined, over_samples=bool(args.samples)
    )


def files_by_name(arguments: list[list[str]]) -> dict[str, list[str]]:
    """Return each --system's files, from lists `[name, file, ...]`; UserError if files are missing or names repeat."""
    rows: dict[str, list[str]] = {}
    for name, *paths in arguments:
        if not paths:
            raise UserError(f"--system {name!r}: needs a name, then one or more files")
        if one_line(name) in rows:
            raise UserError(f"--system {name!r} appears twice; list all its files after one --system")
        rows[one_line(name)] = paths
    return rows


def read_boards(
    arguments: list[list[str]],
    unscored_as_zero: bool = False,
    allow_partial: bool = False,
    by: str | None = None,
    joined: Mapping[str, str] = MappingProxyType({}),
    over_samples: bool = False,
) -> list[Board]:
    """Return a board per task and metric of the systems `[name, file, ...]`; UserError unless they are comparable.

    Args:
        joined: the group of each subgroup that --groups names.
        over_samples: whether a question's score is the mean over its samples.
    """
    rows = files_by_name(arguments)
    files = [path for paths in rows.values() for path in paths]
    scores = {path: read_scores(path, unscored_as_zero=unscored_as_zero) for path in files}
    refuse_other_benchmarks(scores)
    kinds = list(map(_kind_of, scores.values()))
    order = [(task, name) for task in tasks().values() for name in task.metrics if (task.name, name) in kinds]
    if order[0][0].benchmark is None:
        order = order[:1]  # a task that cannot share a table has a table of one metric
    is_alone, boards = len(order) == 1, []
    for task, name in order:
        of_task = {path: content for path, content in scores.items() if is_alone or content["task"] == task.name}
        if over_samples:
            task = _with_samples(task, name)
            of_task = {path: average_samples(content) for path, content in of_task.items()}
        task, placed = with_own_groups(task, of_task, joined)
        scores, systems = scores | placed, []
        for row, paths in rows.items():
            scores_of_row = {
                path: scores[path] for path in paths if is_alone or _kind_of(scores[path]) == (task.name, name)
            }
            systems += [_make_system(row, task, name, scores_of_row)] if scores_of_row else []
        boards.append(Board(task, name, systems, list(rows), is_alone))
        check_same_judge({path: content for system in systems for path, content in system.files.items()})
    for name in dict.fromkeys(board.task.name for board in boards):
        systems = [system for board in boards if board.task.name == name for system in board.systems]
        check_same_content((question, system.files) for system in systems for question in system.questions)
        if not allow_partial:
            _check_same_questions(systems)
        _check_same_responses(systems)
    boards = boards if by is None else [divide(board, by) for board in boards]
    return _among_common(boards) if allow_partial else boards


def _with_samples(task: Task, name: str) -> Task:
    """Return the task with a metric whose parts are samples; UserError if its score is not a mean over questions."""
    metric = task.metrics[name]
    if metric.pooled:
        raise UserError(f"--samples: {name} is not a mean over questions; remove the flag, or use another metric")
    metric = replace(metric, unit=SAMPLE, is_share=False, is_unreadable=lambda entry: False)
    return replace(task, metrics={**task.metrics, name: metric})


def average_samples(content: Scores) -> Scores:
    """Return a score file in which each question's score is the mean over its samples that have a score.

    `details` has one item per sample, and `words` is the mean over the answers. A question counts as answered if any of
    its samples is answered.
    """

    def averaged(entry: Entry) -> Entry:
        samples = entry.get("samples", [entry["score"]])
        known = [score for score in samples if score is not None]
        answered = len(samples) > unanswered_samples(entry)
        details = [{"score": score} for score in samples] if entry["details"] else []
        counts = [count for count in entry.get("sample_words") or [entry.get("words")] if count is not None]
        means = {"score": fmean(known) if known else None, "words": fmean(counts) if counts else None}
        return {**entry, **means, "details": details, "answered": answered}

    return {**content, "per_question_scores": list(map(averaged, content["per_question_scores"]))}


def unanswered_samples(entry: Entry) -> int:
    """Return how many of a question's samples have no answer."""
    return entry.get("unanswered_samples", int("samples" not in entry and not entry["answered"]))


def unscored_parts(metric: Metric, entry: Entry) -> int:
    """Return how many of a question's parts (aspects, samples, ...) have no verdict."""
    missing = sum(part["score"] is None for part in entry["details"])
    if metric.unit == SAMPLE and metric.is_unbounded:  # a missing answer has no reward
        missing -= unanswered_samples(entry)
    return missing


def _among_common(boards: list[Board]) -> list[Board]:
    """Return the boards, limited to the questions that all systems of a task were scored on, if there are any."""
    common: dict[str, set[str]] = {}
    for board in boards:
        ids, name = [system.scored_ids for system in board.systems], board.task.name
        common[name] = set.intersection(*ids, *([common[name]] if name in common else []))

    def limited(system: System) -> System:
        return System(system.name, system.task, system.metric_name, system.files, common[system.task.name] or None)

    return [replace(board, systems=list(map(limited, board.systems))) for board in boards]


def _kind_of(scores: Scores) -> tuple[str, str]:
    """Return the names of a score file's task and metric."""
    return scores["task"], scores["strategy"]


def _make_system(name: str, task: Task, metric_name: str, files: dict[str, Scores]) -> System:
    system = System(name, task, metric_name, files)
    file_of: dict[str, str] = {}
    for path, scores in files.items():
        for entry in scores["per_question_scores"]:
            if entry["id"] in file_of:
                raise UserError(
                    f"--system {name!r}: question {quote(entry['id'])} is in {file_of[entry['id']]} "
                    f"and in {path}; a question may be in only one file"
                )
            file_of[entry["id"]] = path
    return system


def divide(board: Board, name: str) -> Board:
    """Return the board with its questions grouped by the field `name`, one of `Task.divisions`."""
    task = board.task
    if name not in task.divisions:
        remedy = f"use {', '.join(task.divisions)}" if task.divisions else "remove the flag"
        raise UserError(f"--by {quote(name)}: not supported for {task.name}; {remedy}")
    files = [file for system in board.systems for file in system.files.items()]
    for path, scores in files:
        for entry in scores["per_question_scores"]:
            if not isinstance(entry.get(name), str):
                problem = f"question {quote(entry['id'])}: field {name!r} is {kind(entry.get(name))}, not a text"
                remedy = "score files of older versions lack it: run evaluate_responses.py again with --overwrite"
                raise UserError(f"{path}: {problem}\n  {remedy}")
    values = {entry[name] for _, scores in files for entry in scores["per_question_scores"]}
    order = [value for value in task.divisions[name] if value in values]
    groups = (*order, *sorted(values - set(order)))
    divided = replace(task, groups=groups, group_words=(name, plural(name), ""), short={})

    systems = [
        System(
            system.name,
            divided,
            board.metric_name,
            {path: regrouped(content, itemgetter(name)) for path, content in system.files.items()},
            system.among,
        )
        for system in board.systems
    ]
    return replace(board, task=divided, systems=systems)


# Checks that systems are comparable


def _check_same_questions(systems: list[System]) -> None:
    """Raise UserError unless all systems were scored on the same questions."""
    all_ids = set().union(*(system.asked_ids for system in systems))
    for system in systems:
        if lacking := sorted(all_ids - system.asked_ids):
            raise UserError(
                f"--system {system.name!r} ({few(system.files)}) lacks {len(lacking)} of "
                f"{count_noun(len(all_ids), 'question')} of all systems: {first_five(lacking)}\n"
                "  use score files of the same questions, or add --allow_partial to compare the common ones"
            )


def _check_same_responses(systems: Iterable[System]) -> None:
    """Raise UserError if a system's metrics scored different responses, according to the manifests."""
    seen: dict[str, System] = {}
    for system in systems:
        if (first := seen.setdefault(system.name, system)) is system:
            continue
        hashes, others = ({settings_of(path).get("responses") for path in row.files} for row in (system, first))
        if None not in hashes | others and hashes != others:
            raise UserError(
                f"--system {system.name!r}: {few(system.files)} has scores of different responses "
                f"from {few(first.files)}\n"
                "  a row must be one system: score the same responses with each metric"
            )
