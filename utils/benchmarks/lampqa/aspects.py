"""The LaMP-QA metric (paper, Algorithm 1): scores of questions from verdicts on aspects."""

from collections.abc import Sequence
from typing import Any

from utils.benchmarks.direct import entry_of_parts, summarize_parts
from utils.benchmarks.scoring import Verdict

VERDICTS = {0: "0 not covered", 1: "1 in part", 2: "2 very well", None: "- unscored"}  # in words
MAX_VERDICT = 2


def question_score(
    aspect_scores: Sequence[float | None], unscored_as_zero: bool = False, between: bool = False
) -> float | None:
    """Compute a response's score from 0 to 1: sum(s) / (2 * n) over the question's n aspects (paper, Algorithm 1).

    Args:
        unscored_as_zero: count a missing verdict, None, as 0.
        between: accept any number from 0 to 2, such as an expectation or a mean.

    Returns:
        The score; None if an aspect has no verdict and `unscored_as_zero` is False.

    Raises:
        ValueError: there are no aspects, or a score is not None, 0, 1 or 2 (with `between`: None or from 0 to 2).
    """
    if not aspect_scores:
        raise ValueError("a question without aspects has no score")
    for verdict in aspect_scores:
        # The type is compared because True == 1 and 1.0 == 1.
        types = (int, float) if between else (int,)
        if verdict is not None and (type(verdict) not in types or not 0 <= verdict <= MAX_VERDICT):
            wanted = "a number from 0 to 2" if between else "the integer 0, 1 or 2"
            raise ValueError(f"{verdict!r} is not a verdict: {wanted}, or None")
    if None in aspect_scores and not unscored_as_zero:
        return None
    return sum(verdict or 0 for verdict in aspect_scores) / (MAX_VERDICT * len(aspect_scores))


def entry(titles: Sequence[str], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return a question's entry in the score file, with a detail per aspect."""
    return entry_of_parts("aspect", titles, verdicts, score_of)


def score_of(details: list[dict[str, Any]], unscored_as_zero: bool = False) -> float | None:
    """Return the `question_score` of an entry's details, None if these are empty; ValueError if they are invalid."""
    if not all(
        isinstance(detail, dict) and "score" in detail and isinstance(detail.get("aspect"), str) for detail in details
    ):
        raise ValueError("field 'details' is not a list of scored aspects")
    between = any("probabilities" in detail or "drawn" in detail for detail in details)
    return question_score([detail["score"] for detail in details], unscored_as_zero, between) if details else None


def most_divided(entries: Sequence[dict[str, Any]], number: int = 10) -> list[tuple[str, float]]:
    """Return the questions on which a panel's judges differ most, each with the range of their scores, largest first.

    `entries` are from utils/panel_scores.py, so `drawn` in their details has each judge's verdict.
    """
    ranges = {}
    for one in entries:
        by_judge = zip(*(detail["drawn"] for detail in one["details"] if "drawn" in detail), strict=True)
        scores = [question_score(verdicts, between=True) for verdicts in by_judge]
        scores = [value for value in scores if value is not None]
        if len(scores) > 1 and max(scores) > min(scores):
            ranges[one["id"]] = max(scores) - min(scores)
    return sorted(ranges.items(), key=lambda pair: (-pair[1], pair[0]))[:number]


def in_words(verdict: float | None) -> str:
    """Return a verdict in words, or as a number if it is not one of `VERDICTS`."""
    return VERDICTS.get(verdict) or f"{verdict:.2f}"


def summarize(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a score file's head, with the ids of the questions without aspects."""
    return summarize_parts("aspect", per_question, score_of)
