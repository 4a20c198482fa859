"""The LaMP-QA metric (paper, Algorithm 1): from verdicts on aspects to the scores of questions."""

from collections.abc import Sequence
from typing import Any

from utils.scoring.means import mean
from utils.scoring.verdicts import Verdict, is_answered, origin, score

VERDICTS = {0: "0 not covered", 1: "1 in part", 2: "2 very well", None: "- unscored"}  # for readers
MAX_VERDICT = 2  # the judge says 0 (not covered), 1 (partly) or 2 (very well)


def question_score(aspect_scores: Sequence[int | None], unscored_as_zero: bool = False) -> float | None:
    """Score of one response: sum(s) / (2 * n) over its question's n aspects, 0 to 1 (paper, Algorithm 1).

    Returns:
        None as soon as one aspect has no verdict, unless that counts 0.

    Raises:
        ValueError: no aspects, or a score that is neither None nor one of the integers 0, 1, 2.
    """
    if not aspect_scores:
        raise ValueError("a question without aspects has no score")
    for verdict in aspect_scores:
        # The type is compared because True == 1 and 1.0 == 1.
        if verdict is not None and (type(verdict) is not int or not 0 <= verdict <= MAX_VERDICT):
            raise ValueError(f"{verdict!r} is not a verdict: the integer 0, 1 or 2, or None")
    if None in aspect_scores and not unscored_as_zero:
        return None
    return sum(verdict or 0 for verdict in aspect_scores) / (MAX_VERDICT * len(aspect_scores))


def entry(titles: Sequence[str], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """One question of the score file. `score` is 0 without an answer, else None unless every aspect has a verdict."""
    details = [
        {"aspect": title, "score": score(verdict), **origin(verdict)}
        for title, verdict in zip(titles, verdicts, strict=True)
    ]
    whole = question_score([detail["score"] for detail in details]) if details else None
    return {"answered": all(map(is_answered, verdicts)), "score": whole, "details": details}


def score_of(details: list[dict[str, Any]], unscored_as_zero: bool = False) -> float | None:
    """The `question_score` that an entry's details give, None for a question without aspects.

    Raises:
        ValueError: they are no scored aspects.
    """
    if not all(isinstance(one, dict) and "score" in one and isinstance(one.get("aspect"), str) for one in details):
        raise ValueError("field 'details' is not a list of scored aspects")
    return question_score([one["score"] for one in details], unscored_as_zero) if details else None


def summarize(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """The head of a score file.

    Args:
        per_question: `{"id", "answered", "score", "details": [{"aspect", "score", ...}]}` a question; "score" is its
            `question_score`. A question without details is named in the result and counts nowhere else.

    Returns:
        score: mean over the questions that have a score, None where there is none.
        num_questions, num_scored_questions: questions with aspects, and those of them that have a score.
        num_unanswered: questions without an answer, which score 0.
        num_unscored: aspects without a verdict.
        score_unscored_as_zero: mean over all num_questions, missing verdicts counting 0.
        questions_without_aspects: their ids.
    """
    asked = [question for question in per_question if question["details"]]
    scores = [question["score"] for question in asked if question["score"] is not None]
    return {
        "score": mean(scores),
        "num_questions": len(asked),
        "num_scored_questions": len(scores),
        "num_unanswered": sum(not question["answered"] for question in asked),
        "num_unscored": sum(detail["score"] is None for question in asked for detail in question["details"]),
        "score_unscored_as_zero": mean([score_of(question["details"], True) for question in asked]),
        "questions_without_aspects": [q["id"] for q in per_question if not q["details"]],
    }
