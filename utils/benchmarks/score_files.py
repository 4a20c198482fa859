"""Score files, as utils/scoring makes them, read and checked."""

import math
from pathlib import Path
from typing import Any

from utils.cli import UserError
from utils.cli.errors import kind, quote
from utils.files.json_files import read_json
from utils.parsing.model_output import LEVELS
from utils.scoring.verdicts import question_score


def read_scores(path: str | Path) -> dict[str, Any]:
    """Read a score file; UserError unless every question has its aspects, and the score that their verdicts give.

    Direct scoring's have one level in place of the aspects. A pairwise comparison is refused: it has no scores; and so
    is a file of before missing answers counted 0.
    """
    scores = read_json(path)
    if not isinstance(scores, dict) or not isinstance(scores.get("per_question_scores"), list):
        raise UserError(
            f"{path}: not a score file: it has no list 'per_question_scores'\n"
            "  give files that evaluate_responses.py wrote to its --score_addr"
        )
    strategy = scores.get("strategy", "aspect")
    if strategy not in ("aspect", "direct"):
        raise UserError(
            f"{path}: its strategy is {quote(strategy)}, which scores no single system\n"
            "  give files of the strategies aspect or direct"
        )
    check_counts_unanswered(path, scores)
    for number, question in enumerate(scores["per_question_scores"]):
        if not isinstance(question, dict) or not isinstance(question.get("id"), str):
            raise UserError(f"{path}: per_question_scores, item {number}: not a scored question: it has no field 'id'")
        where = f"{path}: question {quote(question['id'])}"
        check = _check_level if strategy == "direct" else _check_scores
        check(question, where)
        check_digest(question, where)
        _check_answered(question, where)
    return scores


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


def _check_scores(question: dict[str, Any], where: str) -> None:
    details = question.get("details")
    if not isinstance(details, list) or not all(map(_is_scored_aspect, details)):
        raise UserError(f"{where}: field 'details' is not a list of scored aspects")
    try:
        expected = question_score([aspect["score"] for aspect in details]) if details else None
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if not _same_score(question.get("score"), expected):
        raise UserError(f"{where}: its score is {quote(question.get('score'))}, but its aspects give {expected}")


def _check_level(question: dict[str, Any], where: str) -> None:
    details = question.get("details")
    if not isinstance(details, list) or len(details) != 1 or not isinstance(details[0], dict):
        raise UserError(f"{where}: field 'details' is not one level of direct scoring")
    level = details[0].get("score")
    if level is not None and (type(level) not in (int, float) or level not in LEVELS):
        raise UserError(f"{where}: {quote(level)} is not a level: one of {', '.join(map(str, LEVELS))}, or null")
    if not _same_score(question.get("score"), level):
        raise UserError(f"{where}: its score is {quote(question.get('score'))}, but its level is {quote(level)}")


def _is_scored_aspect(value: Any) -> bool:
    return isinstance(value, dict) and "score" in value and isinstance(value.get("aspect"), str)


def _same_score(score: Any, expected: float | None) -> bool:
    if score is None or expected is None:
        return score is expected
    return type(score) in (int, float) and 0 <= score <= 1 and math.isclose(score, expected, abs_tol=1e-9)
