"""Score files: put together from verdicts, read, and checked.

A score file is `{"task", "strategy", "score", "num_questions", ..., "per_question_scores": [entry, ...]}`: `task` where
it is not the first one's, `strategy` where it is not the first of its metrics. An entry is `{"id", "group", "subgroup",
"question_sha256", "answered", "score", "details"}`.
"""

import hashlib
import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from utils.benchmarks import FIRST, task_of
from utils.benchmarks.task import Metric, Record, Task
from utils.cli import UserError
from utils.cli.errors import kind, quote
from utils.files.json_files import read_json
from utils.scoring.verdicts import Verdict

Scores = dict[str, Any]


def score_file(
    task: Task, name: str, records: list[Record], asked: Collection[str], verdicts: dict[tuple[str, int], Verdict]
) -> Scores:
    """The content of a score file: the questions whose verdicts all have an entry, in the dataset's order.

    Args:
        name: of the metric.
        records: the whole dataset.
        asked: ids of the questions that this run was for; of those without any verdict only these are listed.
        verdicts: by the metric's keys; where an answer is missing `no_answer`.
    """
    metric = task.metrics[name]
    per_question = [
        {**identity(task, metric, record), **metric.entry(record, [verdicts[key] for key in keys])}
        for record in records
        if (verdicts.keys() >= set(keys) if (keys := metric.keys(record)) else record["id"] in asked)
    ]
    scores = {} if task.name == FIRST else {"task": task.name}
    scores |= metric.summarize(per_question)
    if len(per_question) < len(records):
        scores["partial"] = {"questions_in_dataset": len(records), "questions_judged": len(per_question)}
    return {**scores, "per_question_scores": per_question}


def identity(task: Task, metric: Metric, record: Record) -> dict[str, Any]:
    """Which question an entry is on; the hash is of what the judge is shown of it, for only that compares."""
    judged = [*metric.shown(record), *([] if metric.parts is None else [metric.parts(record)])]
    digest = hashlib.sha256(json.dumps(judged).encode()).hexdigest()
    return {"id": record["id"], **task.place(record), "question_sha256": digest}


def metric_of(task: Task, scores: Scores) -> tuple[str, Metric | None]:
    """A score file's metric: its name, and None where there is no such metric."""
    name = scores.get("strategy", next(iter(task.metrics)))
    return name, task.metrics.get(name) if isinstance(name, str) else None


def read_scores(path: str | Path) -> Scores:
    """Read a score file of one system; UserError unless every question has the score that its verdicts give.

    A comparison of two is refused: it has no scores; and so is a file of before missing answers counted 0. Entries of
    before they told their group are given it.
    """
    scores = read_json(path)
    if not isinstance(scores, dict) or not isinstance(scores.get("per_question_scores"), list):
        raise UserError(
            f"{path}: not a score file: it has no list 'per_question_scores'\n"
            "  give files that evaluate_responses.py wrote to its --score_addr"
        )
    task = task_of(str(path), [scores])
    name, metric = metric_of(task, scores)
    if metric is None or metric.score_of is None:
        singles = [other for other, one in task.metrics.items() if one.score_of is not None]
        raise UserError(
            f"{path}: its strategy is {quote(name)}, which scores no single system\n"
            f"  give files of the strategies {' or '.join(singles)}"
        )
    check_counts_unanswered(path, scores)
    for number, question in enumerate(scores["per_question_scores"]):
        if not isinstance(question, dict) or not isinstance(question.get("id"), str):
            raise UserError(f"{path}: per_question_scores, item {number}: not a scored question: it has no field 'id'")
        where = f"{path}: question {quote(question['id'])}"
        _check_score(metric, question, where)
        check_digest(question, where)
        _check_answered(question, where)
        if "group" not in question:
            question |= task.place(question)
        if question["group"] is not None and question["group"] not in task.groups:
            raise UserError(f"{where}: field 'group' is {quote(question['group'])}, not one of {task.name}'s")
    return scores


def _check_score(metric: Metric, question: dict[str, Any], where: str) -> None:
    details = question.get("details")
    try:
        expected = metric.score_of(details if isinstance(details, list) else [None], False)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if not _same_score(question.get("score"), expected):
        its = f"{metric.unit}s give" if metric.parts else "level is"
        raise UserError(f"{where}: its score is {quote(question.get('score'))}, but its {its} {expected}")


def check_counts_unanswered(path: str | Path, scores: dict[str, Any]) -> None:
    """Raise UserError for a score file of before: there a missing answer took its question out of the means."""
    if "num_unanswered" not in scores:
        raise UserError(
            f"{path}: doesn't say which answers are missing, which count 0 now and did not before\n"
            "  the evaluate_responses.py command that made it makes it anew and asks the judge nothing again\n"
            "  (where its journal was deleted, delete it too, and it is judged again)"
        )


def check_digest(question: dict[str, Any], where: str) -> None:
    """Raise UserError unless it says by a hash what the judge was shown of the question."""
    if not isinstance(question.get("question_sha256"), str):
        found = kind(question.get("question_sha256"))
        raise UserError(f"{where}: field 'question_sha256' is {found}; judge the responses again")


def _check_answered(question: dict[str, Any], where: str) -> None:
    answered = question.get("answered")
    if type(answered) is not bool:
        raise UserError(f"{where}: field 'answered' is {kind(answered)}; it must be true or false")
    if not answered and question["score"]:
        raise UserError(f"{where}: its score is {quote(question['score'])} without an answer, which is 0")


def _same_score(score: Any, expected: float | None) -> bool:
    if score is None or expected is None:
        return score is expected
    return type(score) in (int, float) and 0 <= score <= 1 and math.isclose(score, expected, abs_tol=1e-9)
