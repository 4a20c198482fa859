"""The systems that are compared: their score files, read and checked for what must be alike, and their means."""

import argparse
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from utils.benchmarks import tasks
from utils.benchmarks.task import Metric, Task
from utils.cli import UserError
from utils.cli.errors import first_five, quote
from utils.files.manifest import settings_of
from utils.parsing.plans import one_line
from utils.records.scores import CARRIED, Scores, read_scores, strategy_in_words

SELECTED = "selected by score"  # behind the name of what is no fair system

Entry = dict[str, Any]  # of a score file: a question with its score


@dataclass
class System:
    """A row's name and everything its score files of one task and metric hold."""

    name: str
    task: Task
    files: dict[str, list[Entry]]  # by path the entries of each
    partial_files: list[str] = field(default_factory=list)  # those that hold a part of a dataset
    strategy: str | None = None  # the name of their metric; None: the task's first
    strategy_in_words: str | None = None  # with how verdicts were had
    num_truncated: int = 0  # answers that were cut at --max_tokens, and are scored as they are
    num_selected: int = 0  # responses that were selected by their scores, so this is no fair system

    @property
    def label(self) -> str | None:
        """What stands in place of the name of what is no fair system; None for others."""
        return f"{self.name} ({SELECTED})" if self.num_selected else None

    @property
    def metric_name(self) -> str:
        return self.strategy or next(iter(self.task.metrics))

    @property
    def metric(self) -> Metric:
        return self.task.metrics[self.metric_name]

    @property
    def paths(self) -> list[str]:
        return list(self.files)

    @property
    def entries(self) -> list[Entry]:
        return [entry for entries in self.files.values() for entry in entries]

    @property
    def questions(self) -> list[Entry]:
        """The entries of a known group; the others are in no column."""
        return [entry for entry in self.entries if entry["group"] is not None]

    @property
    def cluster(self) -> str | None:
        """The field that names users, by whom intervals and tests go, where one has several questions; None if not."""
        users = list(map(cluster_of, self.questions))
        return self.task.user_field if len(set(users)) < len(users) else None

    def asked_ids(self) -> set[str]:
        return {question["id"] for question in self.questions if question["details"]}

    def num_unanswered(self) -> int:
        """Questions that the system did not answer, which have the worst score."""
        return sum(not question["answered"] for question in self.questions if question["details"])

    def unscored(self) -> list[int]:
        """How many verdicts are missing, for every question where any is."""
        missing = [sum(d["score"] is None for d in question["details"]) for question in self.questions]
        return [count for count in missing if count]


def cluster_of(entry: Entry) -> str:
    """A question of nobody known is a cluster of its own."""
    return entry.get("cluster", entry["id"])


def cluster_names(boards: Iterable["Board"]) -> str:
    """By which fields intervals and tests go; empty where all questions are independent."""
    return " or ".join(dict.fromkeys(one.cluster for board in boards for one in board.systems if one.cluster))


def add_unscored_argument(parser: argparse.ArgumentParser) -> None:
    """One rule for what the judge left out, to be chosen wherever scores are averaged."""
    what = "count an aspect without a verdict as 0 (default: leave its question out of the means)"
    parser.add_argument("--unscored_as_zero", action="store_true", help=what)


@dataclass(frozen=True)
class Board:
    """The columns of one task and metric in a table: the systems with scores of it."""

    systems: list[System]  # in the order of the table's rows
    rows: list[str]  # the names of all rows, also of systems without such scores
    is_alone: bool = True  # else columns are named after their task and metric, instead of its groups

    @property
    def task(self) -> Task:
        return self.systems[0].task

    @property
    def metric(self) -> Metric:
        return self.systems[0].metric

    @property
    def metric_name(self) -> str:
        return self.systems[0].metric_name

    @property
    def title(self) -> str:
        return self.task.scored_by(self.metric_name)

    def name_of(self, column: str) -> str:
        """What a column of `columns_of` is called: no other one of the table is called so."""
        return column if self.is_alone else self.title

    def system(self, name: str) -> System:
        """A row, which may have no scores here."""
        nothing = System(name, self.task, {}, strategy=self.metric_name)
        return next((system for system in self.systems if system.name == name), nothing)

    def note(self, text: str) -> str:
        """A line on these systems."""
        return text if self.is_alone else f"{self.task.name}: {text}"


def read_boards(arguments: list[list[str]], unscored_as_zero: bool = False) -> list[Board]:
    """Read the score files of every `[name, file, ...]`; `unscored_as_zero` is as of `read_scores`.

    Raises:
        UserError: a name, a file or a question stands twice, or a system has none of them that is of use; tasks that
            are not of one benchmark.
    """
    names: set[str] = set()
    system_of: dict[str, str] = {}
    for name, *paths in arguments:
        if not paths:
            raise UserError(f"--system {name!r}: no score file; give a name, then one or more files")
        if one_line(name) in names:
            raise UserError(f"--system {name!r} is given twice; put all its files behind one --system")
        names.add(one_line(name))
        for path in paths:
            if (other := system_of.setdefault(os.path.realpath(path), name)) != name:
                raise UserError(
                    f"{path}: stands behind --system {other!r} and --system {name!r}\n"
                    "  give each system its own score files"
                )
    files = [path for _, *paths in arguments for path in paths]
    scores = {path: read_scores(path, unscored_as_zero=unscored_as_zero) for path in files}
    refuse_other_benchmarks(scores)
    refuse_other_verdicts(scores)
    kinds = {kind_of(score_file) for score_file in scores.values()}
    order = [(task, name) for task in tasks().values() for name in task.metrics if (task.name, name) in kinds]
    if order[0][0].benchmark is None:
        order = order[:1]  # its files are told apart by nothing else
    boards = []
    for task, name in order:
        systems = [
            _make_system(one_line(system), its, task, scores)
            for system, *paths in arguments
            if (its := [path for path in paths if len(order) == 1 or kind_of(scores[path]) == (task.name, name)])
        ]
        boards.append(Board(systems, [one_line(system) for system, *_ in arguments], len(order) == 1))
    return boards


def kind_of(scores: Scores) -> tuple[str, str]:
    """The names of its task and metric."""
    return scores["task"], scores["strategy"]


def refuse_other_benchmarks(scores: dict[str, Scores], alike: str = "benchmark") -> None:
    """Raise UserError over score files, by path, of two tasks, unless these are of one benchmark.

    With `alike` "task", they may not be either.
    """
    first, *others = scores
    benchmark = tasks()[scores[first]["task"]].benchmark if alike == "benchmark" else None
    for path in others:
        is_same = benchmark is not None and tasks()[scores[path]["task"]].benchmark == benchmark
        if scores[path]["task"] != scores[first]["task"] and not is_same:
            raise UserError(
                f"{path}: scores of {scores[path]['task']}, but {first} has scores of {scores[first]['task']}\n"
                f"  one table is of one {alike}: make one for each"
            )


def refuse_other_verdicts(scores: dict[str, Scores]) -> None:
    """Raise UserError over score files, by path, whose verdicts were had in two ways: what is said without manifests.

    A verdict that is counted once, an expectation and a mean of several are not drawn from one scale.
    """
    known: dict[tuple[str, str], str] = {}
    for path, one in scores.items():
        first = known.setdefault(kind_of(one), path)
        its, first_ones = strategy_in_words(one), strategy_in_words(scores[first])
        if its != first_ones:
            raise UserError(
                f"{path}: verdicts of {its}, but {first} has those of {first_ones}\n"
                "  they do not compare: judge both alike, or keep them apart"
            )


def _make_system(name: str, paths: list[str], task: Task, scores: dict[str, Scores]) -> System:
    system = System(name, task, {path: scores[path]["per_question_scores"] for path in paths})
    system.partial_files = [path for path in paths if scores[path].get("partial")]
    system.num_truncated, system.num_selected = (sum(scores[path].get(one, 0) for path in paths) for one in CARRIED)
    system.strategy = scores[paths[0]]["strategy"]
    system.strategy_in_words = strategy_in_words(scores[paths[0]])
    file_of: dict[str, str] = {}
    for path in paths:
        for entry in scores[path]["per_question_scores"]:
            if entry["id"] in file_of:
                raise UserError(
                    f"--system {name!r}: question {quote(entry['id'])} stands in {file_of[entry['id']]} "
                    f"and in {path}; a question counts once"
                )
            file_of[entry["id"]] = path
    if not system.questions:
        group, _, subgroup = task.group_words
        first = system.entries[0]
        raise UserError(
            f"{few(paths)}: question {quote(first['id'])}: no {group} is known for the {subgroup} "
            f"{quote(first.get('subgroup'))}, nor for any other question's\n"
            f"  add it to the {group} it belongs to in {task.facts}"
        )
    return system


# What must be alike


def check_same_content(questions: Iterable[tuple[Entry, list[str]]]) -> None:  # each with the files it may be from
    """Raise UserError where one id stands for two things that judges were shown, as in two datasets."""
    known: dict[str, tuple[str, list[str]]] = {}
    differing, others = [], None
    for question, paths in questions:
        digest, first_paths = known.setdefault(question["id"], (question["question_sha256"], paths))
        if question["question_sha256"] != digest:
            differing.append(question["id"])
            others = others or (paths, first_paths)
    if others is not None:
        raise UserError(
            f"{few(others[0])}: not what was judged in {few(others[1])} under the same ids: {first_five(differing)}\n"
            "  another question, or another text shown with it, as of another commit of the dataset: judge both on one"
        )


def few(paths: list[str]) -> str:
    return ", ".join(paths[:5]) + (", ..." if len(paths) > 5 else "")


def check_same_questions(systems: list[System]) -> None:
    """Raise UserError unless all systems were scored on the same questions; names the first that lacks one."""
    all_ids = set().union(*(system.asked_ids() for system in systems))
    for system in systems:
        if lacking := sorted(all_ids - system.asked_ids()):
            raise UserError(
                f"--system {system.name!r} ({few(system.paths)}) "
                f"lacks {len(lacking)} of the {len(all_ids)} questions of all systems: {first_five(lacking)}\n"
                "  give score files of the same questions, or --allow_partial to compare what is there"
            )


def check_same_responses(systems: Iterable[System]) -> None:
    """Raise UserError where a system's scores by two metrics are of different responses to one task.

    It is known by what was answered, and by the manifests beside the files.
    """
    seen: dict[str, System] = {}
    for system in systems:
        if (first := seen.setdefault(system.name, system)) is system:
            continue
        hashes, others = _response_hashes(system), _response_hashes(first)
        answered, known = ({one["id"]: one["answered"] for one in its.entries} for its in (system, first))
        same_field = system.metric.reads == first.metric.reads  # what is no answer may be a text that was written
        is_other = same_field and any(known.get(key, its) != its for key, its in answered.items())
        if is_other or (None not in hashes | others and hashes != others):
            raise UserError(
                f"--system {system.name!r}: {few(system.paths)} has scores of other responses than {few(first.paths)}\n"
                "  a row is of one system: score the same responses by each metric"
            )


def _response_hashes(system: System) -> set[str | None]:
    """Of the responses behind each score file, None where it is not known."""
    return {settings_of(path).get("responses") for path in system.paths}


# A table's columns of means: one for every group of questions, and one for the average of these, or for all questions
