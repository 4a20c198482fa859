"""The judge of content: whether a response contains each claim (recall of the gold information). Pure.

A question's score is the share of its claims that the response contains, 0 to 1. A verdict that cannot be read is
counted as missing; the public code counts it as false.
"""

from collections.abc import Sequence
from typing import Any

from utils.benchmarks.choices import choice
from utils.benchmarks.direct import entry_of_parts, summarize_parts
from utils.benchmarks.scoring import Verdict, mean

_CONTAINED = choice("contained", r"(true|false)", lambda text: int(text.lower() == "true"), "true or false")
SCHEMA = _CONTAINED.field.schema({"type": "boolean"})
parse_claim = _CONTAINED.parse


def entry(texts: Sequence[str], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return a question's entry in the score file, with a detail per claim."""
    return entry_of_parts("claim", texts, verdicts, score_of)


def score_of(details: list[dict[str, Any]], unscored_as_zero: bool = False) -> float | None:
    """Return the share of claims with the verdict 1, None without claims; ValueError if the details are invalid."""
    if not all(isinstance(detail, dict) and "claim" in detail for detail in details):
        raise ValueError("field 'details' is not a list of scored claims")
    values = [detail.get("score") for detail in details]
    for value in values:
        if value is not None and (type(value) is not int or value not in (0, 1)):
            raise ValueError(f"{value!r} is not a verdict on a claim: 0, 1 or null")
    if None in values and not unscored_as_zero:
        return None
    return mean([value or 0 for value in values])


def summarize(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a score file's head, with the ids of the questions without claims."""
    return {"strategy": "recall", **summarize_parts("claim", per_question, score_of)}
