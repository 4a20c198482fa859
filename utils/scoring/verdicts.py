"""Verdicts of a metric on a response, missing ones, and the judge's uncertainty. Pure.

A missing answer and a missing verdict are two things. What the model failed to answer scores 0, without asking the
judge, and is counted ("unanswered"). What the judge gave no usable verdict on has the score None: it takes its question
out of the means and is counted ("unscored"); it counts 0 only where a name says "unscored_as_zero".

How sure a judge is shows in the likelihood of each verdict, or in several that it gave.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from utils.scoring.means import mean
from utils.scoring.reliability import krippendorffs_alpha

Verdict = dict[str, Any]  # {"value": the verdict or None, ...}, as a piece of a score file

# Fields about the origin of a verdict; the last ones are made here.
ORIGIN = ("reason", "raw", "parsed", "attempts", "probabilities", "entropy", "outside", "drawn", "spread")
NO_ANSWER = "no response to judge"  # the reason in place of a verdict where there is no answer: the judge is not asked


def no_answer(answered: Sequence[bool]) -> Verdict:
    """Return the verdict on a missing answer; `answered` has one item per system."""
    return {"value": None, "reason": NO_ANSWER, "answered": list(answered)}


def is_answered(verdict: Verdict) -> bool:
    return all(verdict.get("answered", [True]))


def score(verdict: Verdict) -> int | float | None:
    """Return the verdict on one system's answer; 0 where that is missing."""
    return verdict["value"] if is_answered(verdict) else 0


def origin(verdict: Verdict) -> dict[str, Any]:
    """Return the fields about a verdict's origin."""
    return {name: verdict[name] for name in ORIGIN if name in verdict}


def expected_value(log_probs: Mapping[str, float]) -> Verdict:
    """Return a verdict from the log-probability of each that a judge may give.

    Returns:
        value: the expectation of the verdicts, their probabilities scaled to sum to 1.
        probabilities: these, by verdict.
        entropy: theirs, in bits: 0 for a judge that is sure, log2 of their number for one that has no idea.
        outside: the probability of anything that begins as no verdict does, 0 to 1.
    """
    most = max(log_probs.values())
    weights = {verdict: math.exp(log_prob - most) for verdict, log_prob in log_probs.items()}
    probabilities = {verdict: weight / math.fsum(weights.values()) for verdict, weight in weights.items()}
    expected = math.fsum(int(verdict) * share for verdict, share in probabilities.items())
    return {
        "value": min(expected, float(max(map(int, log_probs)))),  # rounding is not to lift it above the highest
        "probabilities": probabilities,
        "entropy": math.fsum(-share * math.log2(share) for share in probabilities.values() if share),
        "outside": max(0.0, 1 - math.fsum(map(math.exp, log_probs.values()))),
    }


def average(verdicts: Sequence[Verdict]) -> Verdict:
    """Merge several verdicts of a judge on the same thing into one.

    Returns:
        value: their mean, without those that the judge failed to give; None where it gave none.
        drawn: each of them.
        spread: their standard deviation, of a sample; None of less than two.
    """
    if not is_answered(verdicts[0]):
        return verdicts[0]
    drawn = [verdict["value"] for verdict in verdicts]
    known = [value for value in drawn if value is not None]
    reason = {} if known else {"reason": verdicts[0]["reason"]}
    spread = stdev(known) if len(known) > 1 else None
    return {"value": fmean(known) if known else None, **reason, "drawn": drawn, "spread": spread}


def summarize_probability(per_question: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return means over expected verdicts, for the head of a score file."""
    weighed = [detail for detail in _details(per_question) if "probabilities" in detail]
    means = {f"mean_{name}": mean([detail[name] for detail in weighed]) for name in ("entropy", "outside")}
    return {"verdicts": "probability", **means}


def summarize_drawn(per_question: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
    """Return figures for the head of a score file with `count` verdicts on each thing.

    Returns:
        num_missing_verdicts: of all, those that the judge failed to give.
        mean_spread: over the things with two verdicts and more.
        krippendorff_alpha_interval: how far the judge agrees with itself, Krippendorff's alpha for interval data.
    """
    drawn = [detail for detail in _details(per_question) if "drawn" in detail]
    units = [[value for value in detail["drawn"] if value is not None] for detail in drawn]
    return {
        "num_verdicts": count,
        "num_missing_verdicts": sum(detail["drawn"].count(None) for detail in drawn),
        "mean_spread": mean([detail["spread"] for detail in drawn if detail["spread"] is not None]),
        "krippendorff_alpha_interval": krippendorffs_alpha([units], steps=True).value,
    }


def _details(per_question: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [detail for question in per_question for detail in question["details"]]
