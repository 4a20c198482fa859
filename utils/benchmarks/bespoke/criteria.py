"""The judge of personalization: one verdict gives a response four scores from 1 to 5. Pure.

A question's score is (mean of the four - 1) / 4: 0 if all are 1, and 1 if all are 5. A reply that lacks any of the four
scores is unusable, so the judge is asked again. (The public code keeps it, with null for the missing score.)
"""

import json
from typing import Any

from utils.benchmarks import readers
from utils.benchmarks.direct import summarize_scores
from utils.benchmarks.readers import Parsed, nothing
from utils.benchmarks.scoring import Verdict, is_answered, mean, origin

CRITERIA = ("need_alignment", "content_depth", "tone", "explanation_style")
LEVELS = (1, 2, 3, 4, 5)
_FIELDS = [readers.field_named(name) for name in CRITERIA]
_PROPERTIES = {"reasoning": {"type": "string"}}
_PROPERTIES |= {name: {"type": "integer", "enum": list(LEVELS)} for name in CRITERIA}
SCHEMA = {"type": "object", "properties": _PROPERTIES, "required": [*_PROPERTIES], "additionalProperties": False}


def parse_scores(text: str, cut: bool = False) -> Parsed:
    """Read the four scores; the value maps each criterion to its score, or is None if a score is missing or invalid.

    The last complete JSON object that has any of the scores must have all four. Text outside it is ignored, because the
    judge may repeat the scores of the examples. A text that was cut must end with this object.
    """
    found, own = readers.own_object(text, *_FIELDS)
    if found is None or (cut and not own.rstrip("` \n").endswith("}")):
        return readers.missing(text, _FIELDS[0])
    scores = {}
    for field in _FIELDS:
        value = field.value_in(found.content)
        if type(value) not in (int, float) or value not in LEVELS:
            return nothing(f"{field.name} is {readers.describe(json.dumps(value))}, not an integer 1-5")
        scores[field.name] = int(value)
    return Parsed(scores, found.how, None)


def shots_text(shots: list[dict[str, Any]]) -> str:
    """Return a person's scored responses for the judge's prompt."""
    parts = []
    for number, shot in enumerate(shots, 1):
        lines = [f"Response {number}:", shot["response"], ""]
        for name in CRITERIA:
            score, feedback = shot["scores"].get(name), shot.get("feedback", {}).get(name)
            lines.append(f"{name}: {score or 'no score'}{f' ({feedback})' if feedback else ''}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def entry(verdict: Verdict) -> dict[str, Any]:
    """Return a question's entry in the score file; without an answer, each criterion has the lowest score."""
    scores = dict.fromkeys(CRITERIA, None if is_answered(verdict) else LEVELS[0]) | (verdict["value"] or {})
    details = [{"criterion": name, "score": score, **origin(verdict)} for name, score in scores.items()]
    return {"answered": is_answered(verdict), "score": score_of(details), "details": details}


def score_of(details: list[dict[str, Any]], unscored_as_zero: bool = False) -> float | None:
    """Return (mean of the four scores - 1) / 4 of an entry's details; ValueError if they are not four valid scores."""
    if [detail.get("criterion") for detail in details if isinstance(detail, dict)] != [*CRITERIA]:
        raise ValueError(f"field 'details' must have one score for each of {', '.join(CRITERIA)}, in this order")
    scores = [detail.get("score") for detail in details]
    for score in scores:
        if score is not None and (type(score) is not int or score not in LEVELS):
            raise ValueError(f"{score!r} is not a score: an integer from 1 to 5, or null")
    if None in scores:
        return 0 if unscored_as_zero else None
    return (sum(scores) / len(scores) - LEVELS[0]) / (LEVELS[-1] - LEVELS[0])


def summarize(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the head of a score file, with each criterion's mean, 1 to 5, over the questions that have its score."""
    means = {}
    for number, name in enumerate(CRITERIA):
        scores = [question["details"][number]["score"] for question in per_question]
        means[name] = mean([score for score in scores if score is not None])
    head = summarize_scores(per_question)
    # A missing verdict counts once, not once per criterion.
    head["num_unscored"] = len(per_question) - head["num_scored_questions"]
    return {"strategy": "personal", **head, "means": means}
