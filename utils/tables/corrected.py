"""Means of a judge corrected by people's verdicts on a part of the questions, and how far the judge is from people."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from utils.benchmarks.task import Task
from utils.cli import UserError
from utils.cli.errors import first_five, quote
from utils.parsing.plans import one_line
from utils.records.human_verdicts import HumanVerdicts, read_human_verdicts
from utils.scoring import aspects
from utils.tables import prediction_powered as powered
from utils.tables.prediction_powered import FEWEST, FEWEST_ERRORS, Part
from utils.tables.significance import mean_over_strata, rounded
from utils.tables.system_scores import Board, Entry, System, column_means, few, response_hash, strata_by_column

Interval = tuple[float, float]


@dataclass
class Stratum:
    """The question scores of a group."""

    pairs: list[tuple[float, float]] = field(default_factory=list)  # people's and the judge's
    others: list[float] = field(default_factory=list)  # the judge's, of what people did not see
    unanswered: int = 0  # questions that have the score 0 without a verdict

    @property
    def total(self) -> int:
        """Questions that people could score."""
        return len(self.pairs) + len(self.others)


@dataclass(frozen=True)
class Known:
    """What is known of a question: scores, or differences of two systems' scores."""

    group: str
    answered: bool  # by either system, if these are differences
    people: float | None  # None if people did not see it; 0 without an answer, for which nobody is asked
    judge: float


@dataclass
class Correction:
    """A column of a system; None is undefined."""

    judge: float | None  # its mean, as the table of means has it
    seen: int  # questions with people's scores and the judge's
    total: int  # questions with an answer and the judge's score
    mean: float | None = None
    interval: Interval | None = None  # 95%
    weight: float | None = None  # lambda; an average has none, for its groups have their own
    bias: float | None = None  # the judge's mean score minus people's, on the questions that have both
    bias_interval: Interval | None = None
    further: int | None = None  # questions for people to score until the interval is half as wide


@dataclass(frozen=True)
class Judged:
    """A system with people's verdicts."""

    system: System
    columns: dict[str, Correction]
    known: dict[str, Known]  # by the question's id
    confusion: Counter[tuple[int, int]]  # how many aspects, by people's verdict and the judge's
    left_out: int  # questions that people saw, but the judge gave no score, or that are in no column
    on_trust: list[str]  # people's files of which it is not known that they saw the scored answers


def correct(boards: list[Board], arguments: list[list[str]]) -> list[Judged]:
    """The systems of every `[name, file of people's verdicts, ...]`, in the order of the table.

    Raises:
        UserError: a name that no system has, a file or a question twice, verdicts on other answers than the system's,
            or scores that are not by aspect.
    """
    if arguments and boards[0].metric.score_of is not aspects.score_of:
        raise UserError(f"--human_addr: takes verdicts on aspects, but the scores are {boards[0].title}")
    files: dict[str, list[str]] = {}
    for name, *paths in arguments:
        if one_line(name) not in boards[0].rows:
            there = ", ".join(map(quote, boards[0].rows))
            raise UserError(f"--human_addr {name!r}: no --system has this name; there are {there}")
        if not paths:
            raise UserError(f"--human_addr {name!r}: no file; give a system's name, then people's verdicts on it")
        files.setdefault(one_line(name), []).extend(paths)
    seen: set[str] = set()
    for path in (path for paths in files.values() for path in paths):
        if os.path.realpath(path) in seen:
            raise UserError(f"{path}: is given twice; people's verdicts are on one system's answers, and count once")
        seen.add(os.path.realpath(path))
    return [_judged(system, files[system.name]) for system in boards[0].systems if system.name in files]


def _judged(system: System, paths: list[str]) -> Judged:
    entries = {entry["id"]: entry for entry in system.entries}
    human: dict[str, dict[int, int]] = {}
    on_trust = []
    for file in map(read_human_verdicts, paths):
        if check_same_answers(system, file):
            on_trust.append(file.path)
        if twice := human.keys() & file.of.keys():
            raise UserError(
                f"{file.path}: question {quote(min(twice))} stands in another file behind --human_addr "
                f"{system.name!r} too; a question counts once"
            )
        human |= file.of
    known = known_scores(system, human)
    strata = strata_of(system.task, known)
    means = column_means(system)
    columns = {column: correction(means[column], its) for column, its in strata_by_column(system.task, strata).items()}
    answered = [question_id for question_id in human if entries[question_id]["answered"]]
    # Of what the judge says between two verdicts the nearer one counts; of the middle the even one, 0 or 2, by round():
    # always the lower or the higher one would look like a bias.
    confusion = Counter(
        (human[question_id][number], round(detail["score"]))
        for question_id in answered
        for number, detail in enumerate(entries[question_id]["details"])
        if detail["score"] is not None
    )
    left_out = len(answered) - sum(len(stratum.pairs) for stratum in strata.values())
    return Judged(system, columns, known, confusion, left_out, on_trust)


def differences(judged: Sequence[Judged]) -> dict[tuple[str, str], dict[str, Correction]]:
    """Of every two systems, by their names, the first one's score minus the second's, question by question.

    People's verdicts count where they saw both answers, or saw one and the other is missing. Both draws have to be
    random; where many answers are missing, they also have to be the same draw.
    """
    return {(one.system.name, other.system.name): _difference(one, other) for one, other in combinations(judged, 2)}


def _difference(one: Judged, other: Judged) -> dict[str, Correction]:
    task, known = one.system.task, known_differences(one.known, other.known)
    by_group = {group: [its.judge for its in known.values() if its.group == group] for group in task.groups}
    judge, strata = strata_by_column(task, by_group), strata_by_column(task, strata_of(task, known))
    return {column: correction(mean_over_strata(judge[column]), its, lowest=-1) for column, its in strata.items()}


def check_same_answers(system: System, file: HumanVerdicts) -> bool:
    """Raise UserError unless people saw answers of this system, each with all of its question's aspects.

    Returns:
        Is that taken on trust, for the file or the manifests beside the scores don't tell of which responses they are?
    """
    hashes = {path: response_hash(path) for path in system.paths}
    alike = [path for path, digest in hashes.items() if None in (digest, file.responses) or digest == file.responses]
    if not alike:
        raise UserError(
            f"{file.path}: people saw other answers than were scored in {few(system.paths)}: their responses' SHA-256 "
            f"is {quote(file.responses)}\n  give people's verdicts on the answers of --system {system.name!r}"
        )
    entries = {entry["id"]: entry for path in alike for entry in system.files[path]}
    if strange := [question_id for question_id in file.of if question_id not in entries]:
        raise UserError(
            f"{file.path}: {len(strange)} of its {len(file.of)} questions are not scored in {few(alike)}: "
            f"{first_five(strange)}\n  give people's verdicts on the answers of --system {system.name!r}"
        )
    for question_id, verdicts in file.of.items():
        _check_aspects(entries[question_id], verdicts, f"{file.path}: question {quote(question_id)}", few(alike))
    return file.responses is None or any(hashes[path] is None for path in alike)


def _check_aspects(entry: Entry, verdicts: dict[int, int], where: str, scored: str) -> None:
    wanted = set(range(len(entry["details"])))
    if missing := sorted(wanted - verdicts.keys()):
        raise UserError(f"{where}: no verdict on its aspect {missing[0]}; they are numbered from 0 to {max(wanted)}")
    if beyond := sorted(verdicts.keys() - wanted):
        raise UserError(f"{where}: a verdict on aspect {beyond[0]}, but it has {len(wanted)} in {scored}, from 0")
    if not entry["answered"] and any(verdicts.values()):
        raise UserError(f"{where}: a verdict above 0, but the system has no answer to it in {scored}")


def known_scores(system: System, human: dict[str, dict[int, int]]) -> dict[str, Known]:
    """By id the questions that the judge scored and that the table of means has."""
    found = {}
    for entry in system.questions:
        if not entry["details"] or entry["score"] is None:
            continue
        people = None if entry["answered"] else 0.0
        if entry["answered"] and (verdicts := human.get(entry["id"])):
            people = aspects.question_score([verdicts[number] for number in range(len(verdicts))])
        found[entry["id"]] = Known(entry["group"], entry["answered"], people, entry["score"])
    return found


def known_differences(first: dict[str, Known], second: dict[str, Known]) -> dict[str, Known]:
    """First minus second, of the questions that the judge scored for both."""
    found = {}
    for question_id in first.keys() & second.keys():
        one, other = first[question_id], second[question_id]
        people = None if None in (one.people, other.people) else one.people - other.people
        answered = one.answered or other.answered
        found[question_id] = Known(one.group, answered, people, rounded(one.judge - other.judge))
    return dict(sorted(found.items()))


def strata_of(task: Task, known: dict[str, Known]) -> dict[str, Stratum]:
    """The scores by group."""
    strata = {group: Stratum() for group in task.groups}
    for its in known.values():
        if not its.answered:
            strata[its.group].unanswered += 1
        elif its.people is not None:
            strata[its.group].pairs.append((its.people, its.judge))
        else:
            strata[its.group].others.append(its.judge)
    return strata


def correction(judge: float | None, strata: Sequence[Stratum], lowest: float = 0) -> Correction:
    """Of a column, which is the mean of the strata's means; scores are from `lowest` to 1."""
    import numpy as np

    its = Correction(judge, sum(len(stratum.pairs) for stratum in strata), sum(stratum.total for stratum in strata))
    if min(len(stratum.pairs) for stratum in strata) < FEWEST:
        return its
    human, judged = zip(*(np.array(stratum.pairs).T for stratum in strata), strict=True)
    others = [np.array(stratum.others, dtype=float) for stratum in strata]
    parts = [
        powered.corrected(*scores, stratum.unanswered)
        for *scores, stratum in zip(human, judged, others, strata, strict=True)
    ]
    differences = [powered.plain_mean(one - other) for one, other in zip(judged, human, strict=True)]
    its.mean, its.interval = _with_interval(parts, lowest, 1)
    its.bias, its.bias_interval = _with_interval(differences, lowest - 1, 1 - lowest)
    if min(map(powered.num_differing, human, judged)) < FEWEST_ERRORS:
        its.bias_interval = None
    its.weight = rounded(parts[0].weight) if len(parts) == 1 else None
    its.further = powered.further_to_halve(parts, [(len(stratum.pairs), stratum.total) for stratum in strata])
    return its


def _with_interval(parts: Sequence[Part], lowest: float, highest: float) -> tuple[float, Interval | None]:
    """Both are kept within the range of what is estimated.

    No interval where nothing varies in a stratum: a few equal scores cannot say that none differs.
    """
    mean, half = float(powered.mean_of(parts)), float(powered.half_width(parts))
    low, high, mean = (rounded(min(max(end, lowest), highest)) for end in (mean - half, mean + half, mean))
    varies = all(part.variances[0][0] > 1e-18 for part in parts)  # the first is of what people scored
    return mean, (low, high) if varies and low < high else None


def figures(its: Correction) -> dict[str, Any]:
    """For CSV, by what follows the column's name."""
    low, high = its.interval or (None, None)
    bias_low, bias_high = its.bias_interval or (None, None)
    return {
        "corrected": its.mean,
        "corrected, 95% interval, low": low,
        "corrected, 95% interval, high": high,
        "weight of the judge": its.weight,
        "questions judged by people": its.seen,
        "further questions to halve the interval": its.further,
        "bias": its.bias,
        "bias, 95% interval, low": bias_low,
        "bias, 95% interval, high": bias_high,
    }
