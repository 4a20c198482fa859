"""Verdicts of a metric on a response, missing verdicts, and the judge's uncertainty. Pure.

A missing answer differs from a missing verdict. A question that the model did not answer scores 0 without asking the
judge, and is counted as "unanswered". A missing verdict has the score None: its question is left out of the means, and
it is counted as "unscored". It counts as 0 only where a name says "unscored_as_zero".

A judge's uncertainty shows in the probabilities of its verdicts, or in several verdicts on the same thing.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from utils.benchmarks.means import mean
from utils.benchmarks.reliability import krippendorffs_alpha

Verdict = dict[str, Any]  # {"value": the verdict or None, ...}

# Fields about a verdict's origin; this module sets the fields from "probabilities" to "spread".
ORIGIN = ("reason", "raw", "parsed", "attempts", "probabilities", "entropy", "outside", "drawn", "spread",
          "num_contexts_used")  # fmt: skip
NO_ANSWER = "no response to judge"  # the reason that an unanswered question has no verdict; the judge is not asked


def no_answer(answered: Sequence[bool]) -> Verdict:
    """Return the verdict on a missing answer; `answered` has one item per system."""
    return {"value": None, "reason": NO_ANSWER, "answered": list(answered)}


def is_answered(verdict: Verdict) -> bool:
    return all(verdict.get("answered", [True]))


def score(verdict: Verdict) -> int | float | None:
    """Return the value of a verdict on one system's answer; 0 if the answer is missing."""
    return verdict["value"] if is_answered(verdict) else 0


def origin(verdict: Verdict) -> dict[str, Any]:
    """Return the fields about a verdict's origin."""
    return {name: verdict[name] for name in ORIGIN if name in verdict}


def expected_value(log_probs: Mapping[str, float]) -> Verdict:
    """Return the expected verdict, from the log-probability of each possible verdict.

    Returns:
        value: the expectation over `probabilities`.
        probabilities: by verdict, scaled to sum to 1.
        entropy: of `probabilities`, in bits: 0 if one of them is 1, log2 of their number if all are equal.
        outside: the probability of any other text, 0 to 1.
    """
    most = max(log_probs.values())
    weights = {verdict: math.exp(log_prob - most) for verdict, log_prob in log_probs.items()}
    probabilities = {verdict: weight / math.fsum(weights.values()) for verdict, weight in weights.items()}
    expected = math.fsum(int(verdict) * share for verdict, share in probabilities.items())
    return {
        "value": min(expected, float(max(map(int, log_probs)))),  # rounding must not lift it above the highest
        "probabilities": probabilities,
        "entropy": math.fsum(-share * math.log2(share) for share in probabilities.values() if share),
        "outside": max(0.0, 1 - math.fsum(map(math.exp, log_probs.values()))),
    }


def average(verdicts: Sequence[Verdict]) -> Verdict:
    """Merge a judge's verdicts on one response or part into one verdict; return a missing answer's verdict unchanged.

    Returns:
        value: the mean of the verdicts that are not missing; None if all are missing.
        drawn: all verdicts' values, None for a missing one.
        spread: the sample standard deviation of the verdicts that are not missing; None for fewer than two.
    """
    if not is_answered(verdicts[0]):
        return verdicts[0]
    drawn = [verdict["value"] for verdict in verdicts]
    values = [value for value in drawn if value is not None]
    reason = {} if values else {"reason": verdicts[0]["reason"]}
    spread = stdev(values) if len(values) > 1 else None
    return {"value": fmean(values) if values else None, **reason, "drawn": drawn, "spread": spread}


def summarize_probability(per_question: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean entropy and mean outside probability of expected verdicts, for the head of a score file."""
    weighed = [detail for detail in _details(per_question) if "probabilities" in detail]
    means = {f"mean_{name}": mean([detail[name] for detail in weighed]) for name in ("entropy", "outside")}
    return {"verdicts": "probability", **means}


def summarize_drawn(per_question: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
    """Return figures for the head of a score file with `count` verdicts on each response or part.

    Returns:
        num_verdicts: `count`.
        num_missing_verdicts: how many verdicts the judge failed to give.
        mean_spread: the mean `spread` over the responses or parts with at least two verdicts.
        krippendorff_alpha_interval: the judge's agreement with itself, as Krippendorff's alpha for interval data.
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
