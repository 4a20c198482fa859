"""Scores of whole responses: one number from 0 to 1 each, such as the level of direct scoring (figure 10).

Also has the functions for entries and heads of score files that other metrics share.
"""

from collections.abc import Callable, Sequence
from typing import Any

from utils.benchmarks.choices import LEVELS
from utils.benchmarks.scoring import Verdict, is_answered, mean, origin, score


def entry(verdict: Verdict) -> dict[str, Any]:
    """Return a question's entry in the score file; its score is the verdict, or 0 without an answer."""
    details = [{"score": score(verdict), **origin(verdict)}]
    return {"answered": is_answered(verdict), "score": score(verdict), "details": details}


def score_of(details: list[dict[str, Any]], unscored_as_zero: bool = False) -> float | None:
    """Return the score in an entry's details, None if missing; ValueError if the details are not exactly one score."""
    if len(details) != 1 or not isinstance(details[0], dict):
        raise ValueError("field 'details' is not one score of a whole response")
    number = details[0].get("score")
    if number is not None and not (type(number) in (int, float) and 0 <= number <= 1):
        raise ValueError(f"{number!r} is not a score: a number from 0 to 1, or null")
    return 0 if number is None and unscored_as_zero else number


def level_of(details: list[dict[str, Any]], unscored_as_zero: bool = False) -> float | None:
    """Return the level in an entry's details, like `score_of`; ValueError if it is not one of `LEVELS`."""
    level = score_of(details, unscored_as_zero)
    if level is not None and level not in LEVELS:
        raise ValueError(f"{level!r} is not a level: one of {', '.join(map(str, LEVELS))}, or null")
    return level


def summarize(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the head of a score file of direct scoring."""
    return {"strategy": "direct", **summarize_scores(per_question)}


def summarize_scores(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the head of a score file.

    Args:
        per_question: `{"id", "answered", "score", "details": [{"score", ...}]}` per question.

    Returns:
        score: the mean over the questions with a score; None without any.
        num_unanswered: the number of questions without an answer, which score 0.
        num_unscored: the number of missing verdicts.
        score_unscored_as_zero: the mean over all questions, where a missing score counts as 0.
    """
    scores = [question["score"] for question in per_question if question["score"] is not None]
    return {
        "score": mean(scores),
        "num_questions": len(per_question),
        "num_scored_questions": len(scores),
        "num_unanswered": sum(not question["answered"] for question in per_question),
        "num_unscored": sum(detail["score"] is None for question in per_question for detail in question["details"]),
        "score_unscored_as_zero": mean([question["score"] or 0 for question in per_question]),
    }


ScoreOf = Callable[[list[dict[str, Any]], bool], float | None]  # as in `Metric`


def entry_of_parts(noun: str, titles: Sequence[str], verdicts: Sequence[Verdict], score_of: ScoreOf) -> dict[str, Any]:
    """Return the entry of a question with a verdict on each part, which is a `noun` with a title.

    Its score is 0 without an answer, and None if a verdict is missing.
    """
    details = [
        {noun: title, "score": score(verdict), **origin(verdict)}
        for title, verdict in zip(titles, verdicts, strict=True)
    ]
    return {"answered": all(map(is_answered, verdicts)), "score": score_of(details, False), "details": details}


def summarize_parts(noun: str, per_question: list[dict[str, Any]], score_of: ScoreOf) -> dict[str, Any]:
    """Return a score file's head: `summarize_scores` of the questions with parts, and the ids of the others."""
    judged = [question for question in per_question if question["details"]]
    as_zero = mean([score_of(question["details"], True) for question in judged])
    without = [question["id"] for question in per_question if not question["details"]]
    return {**summarize_scores(judged), "score_unscored_as_zero": as_zero, f"questions_without_{noun}s": without}
