"""Scores from verdicts: missing verdicts, means over questions, agreement, and the judge's uncertainty. Pure.

A missing answer is not a missing verdict. A question that the model did not answer has the score 0, without asking the
judge, and is counted as "unanswered". A missing verdict has the score None and is counted as "unscored"; its question
is left out of the means. It counts as 0 only where a name says "unscored_as_zero".

A pooled score (macro F1, root mean square) depends only on how often each value occurs among the questions. For
intervals and tests, tables count the values in each random draw and compute the scores of all draws at once.

Cohen's kappa of two raters and Krippendorff's alpha of any number of raters are 1 - observed disagreement / expected
disagreement by chance, computed from the counts of each pair of values. The disagreement of different values is 1, or
on an ordered scale, their squared distance (Cohen 1968). The bootstrap resamples whole questions, because the ratings
of one question depend on each other. A judge's uncertainty is measured by the probabilities of its verdicts, or by
several verdicts on the same thing."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 9_999
Met = Sequence[tuple[float, float, float]]  # pairs of values given to the same item, each with a weight
Verdict = dict[str, Any]  # {"value": the verdict or None, ...}
# Fields about a verdict's origin; this module sets the fields from "probabilities" to "spread".
ORIGIN = ("reason", "raw", "parsed", "attempts", "probabilities", "entropy", "outside", "drawn", "spread",
          "num_contexts_used")  # fmt: skip
NO_ANSWER = "no response to judge"  # the reason for a missing verdict if the answer is missing


@dataclass(frozen=True)
class Pooled:
    """A score that is computed from all questions together.

    Attributes:
        value: returns the value that the score depends on, from an entry of a score file.
        of: returns the scores of D draws, (D,), from V distinct values and their counts per draw, integers (D, V).
    """

    value: Callable[[dict[str, Any]], Hashable]
    of: Callable[[Sequence[Any], "np.ndarray"], "np.ndarray"]

    def score(self, values: Sequence[Hashable]) -> float | None:
        """Return the score of questions with these values; None without questions."""
        import numpy as np

        counts = Counter(values)
        return float(self.of(list(counts), np.array([list(counts.values())]))[0]) if counts else None


def macro_f1(labels: Sequence[str]) -> Pooled:
    """Return the macro F1 over these labels. A label that is neither a reference nor a response has F1 0.

    A response that is not a label counts as a miss of its reference.
    """

    def of(pairs: Sequence[tuple[str, str]], counts: "np.ndarray") -> "np.ndarray":
        import numpy as np

        # Floats that hold whole numbers, because numpy multiplies matrices of floats fast.
        reference, response = (
            np.array([[float(pair[i] == label) for label in labels] for pair in pairs]) for i in (0, 1)
        )
        hits, named = counts @ (reference * response), counts @ (reference + response)
        return (2 * hits / np.maximum(named, 1)).mean(axis=1)

    return Pooled(lambda entry: (entry["details"][0]["reference"], entry["details"][0]["label"]), of)


def _root_mean_square(errors: Sequence[float], counts: "np.ndarray") -> "np.ndarray":
    import numpy as np

    return np.sqrt(counts @ np.square(errors) / counts.sum(axis=1))


ROOT_MEAN_SQUARE = Pooled(lambda entry: entry["score"], _root_mean_square)


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


class Estimate(NamedTuple):
    """A coefficient and its 95% interval, each None if undefined; the interval is also None if all resamples agree."""

    value: float | None
    interval: tuple[float, float] | None


def cohens_kappa(questions: Sequence[Sequence[tuple[int, int]]], steps: bool = False) -> Estimate:
    """Estimate two raters' kappa (Cohen 1960) from each question's pairs of values; `steps`: values are ordered."""
    return _estimate([[(value, other, 1.0) for value, other in pairs] for pairs in questions], steps, less=0)


def krippendorffs_alpha(questions: Sequence[Sequence[Sequence[float]]], steps: bool = False) -> Estimate:
    """Estimate alpha (Krippendorff 2011) from each question's rated items; an item is a list of two or more values."""
    met = [
        [(value, other, 1 / (len(values) - 1)) for values in things for value, other in permutations(values, 2)]
        for things in questions
    ]
    return _estimate(met, steps, less=1)


def _estimate(questions: Sequence[Met], steps: bool, less: int) -> Estimate:
    """Estimate a coefficient from pairs.

    A chance pair is any two of all values (`less` 1: alpha), or one value of each rater (`less` 0: kappa).
    """
    import numpy as np

    questions = [met for met in questions if met]
    order = sorted({value for met in questions for pair in met for value in pair[:2]})
    if len(order) < 2:  # all values are the same, or there are none
        return Estimate(None, None)
    tables = np.zeros((len(questions), len(order), len(order)))  # per question, the weight of each pair
    for table, met in zip(tables, questions, strict=True):
        for value, other, weight in met:
            table[order.index(value), order.index(other)] += weight
    apart = np.subtract.outer(order, order)
    distances = apart**2 if steps else apart != 0
    number = len(questions)
    value = float(_beyond_chance(tables.sum(axis=0, keepdims=True), distances, less)[0])
    if number < 2:
        return Estimate(value, None)
    times = np.random.default_rng(0).multinomial(number, [1 / number] * number, RESAMPLES)  # (draws, questions)
    drawn = _beyond_chance((times @ tables.reshape(number, -1)).reshape(-1, *apart.shape), distances, less)
    low, high = np.nanquantile(drawn, [0.025, 0.975]).round(12).tolist()  # NaN: all values of a resample are the same
    return Estimate(value, (low, high) if low < high else None)


def _beyond_chance(tables: "np.ndarray", distances: "np.ndarray", less: int) -> "np.ndarray":
    """Compute each table's coefficient; NaN if no disagreement is expected. For integers, only the division rounds."""
    import numpy as np

    seen = (tables.sum(axis=(1, 2)) - less) * (tables * distances).sum(axis=(1, 2))
    by_chance = np.einsum("ti,ij,tj->t", tables.sum(axis=2), distances, tables.sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(by_chance > 0, (by_chance - seen) / by_chance, np.nan)


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
        entropy: the entropy of `probabilities` in bits, from 0 (certain) to log2 of their number (all equal).
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
        num_missing_verdicts: the number of verdicts that the judge failed to give.
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
