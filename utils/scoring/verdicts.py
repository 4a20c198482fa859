"""Verdicts: what a metric finds on a response, or that it found nothing.

A missing answer and a missing verdict are two things. What the model failed to answer scores 0, without asking the
judge, and is counted ("unanswered"). What the judge gave no usable verdict on has the score None: it takes its question
out of the means and is counted ("unscored"); it counts 0 only where a name says "unscored_as_zero".
"""

from collections.abc import Sequence
from typing import Any

Verdict = dict[str, Any]  # {"value": the verdict or None, ...}, as a piece of a score file

# The fields that say how a verdict came to be; the last ones of what utils/scoring/sureness.py makes.
ORIGIN = ("reason", "raw", "parsed", "attempts", "probabilities", "entropy", "outside", "drawn", "spread")
NO_ANSWER = "no response to judge"  # the reason in place of a verdict where there is no answer: the judge is not asked


def no_answer(answered: Sequence[bool]) -> Verdict:
    """What stands in place of a verdict where an answer is missing; `answered` has an item a system: one, or two."""
    return {"value": None, "reason": NO_ANSWER, "answered": list(answered)}


def is_answered(verdict: Verdict) -> bool:
    return all(verdict.get("answered", [True]))


def score(verdict: Verdict) -> int | float | None:
    """The verdict on one system's answer; 0 where that is missing."""
    return verdict["value"] if is_answered(verdict) else 0


def origin(verdict: Verdict) -> dict[str, Any]:
    """How a verdict came to be."""
    return {name: verdict[name] for name in ORIGIN if name in verdict}
