"""Metrics that compare a response with the record's `target`, without a judge."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from utils.base.errors import UserError, quote
from utils.benchmarks import overlap as references
from utils.benchmarks.checks import Record
from utils.benchmarks.direct import summarize_scores
from utils.benchmarks.means import ROOT_MEAN_SQUARE, Pooled, macro_f1
from utils.benchmarks.metric import OFFICIAL, Metric
from utils.benchmarks.verdicts import Verdict, is_answered, origin

Entry = dict[str, Any]
POOLED = ("score", "score_unscored_as_zero")  # fields of a score file's head: equal, as no verdict is ever missing


def check_rating(record: Record, where: str) -> None:
    rating = references.read_rating(record["target"])
    if rating is None or not references.LOWEST <= rating <= references.HIGHEST:
        raise UserError(f"{where}: field 'target' is {quote(record['target'])}, not a rating from 1 to 5")


def text_metrics() -> dict[str, Metric]:
    """Return the metrics of texts: ROUGE-1 and ROUGE-L."""
    kinds = {"rouge-1": "rouge1", "rouge-L": "rougeL"}
    return {name: _text_metric(name, partial(references.rouge, kind=kind)) for name, kind in kinds.items()}


def long_text_metrics() -> dict[str, Metric]:
    """Return the metrics of longer texts: ROUGE-1, ROUGE-L and METEOR."""
    return {**text_metrics(), "meteor": _text_metric("meteor", references.meteor)}


def label_metrics(labels: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics of labels: accuracy and the macro F1 over all labels, both also from the whole raw text."""
    make = partial(
        _metric,
        compute=lambda record, response: references.read_label(response, labels),
        details=lambda record, label: {"reference": record["target"], "label": label or ""},
        score=lambda details: int(details["reference"] == details["label"]),
        unreadable=("label", ""),
    )
    return _with_official(make, {"accuracy": None, "f1": macro_f1(labels)})


def rating_metrics() -> dict[str, Metric]:
    """Return the metrics of ratings: MAE and RMSE, both also from the whole raw text.

    A question's score is its error.
    """

    def compute(record: Record, response: str) -> float | str:
        rating = references.read_rating(response)
        return "unreadable" if rating is None else rating  # None would mean a missing verdict

    def details(record: Record, rating_read: float | str | None) -> dict[str, Any]:
        rating = rating_read if isinstance(rating_read, float) else None
        return {"reference": references.read_rating(record["target"]), "rating": rating}

    make = partial(
        _metric,
        compute=compute,
        details=details,
        score=lambda details: references.rating_error(details["reference"], details["rating"]),
        unreadable=("rating", None),
        lower_is_better=True,
        worst="as the rating that is farthest off",
    )
    return _with_official(make, {"MAE": None, "RMSE": ROOT_MEAN_SQUARE})


def _with_official(make: Callable[..., Metric], kinds: dict[str, Pooled | None]) -> dict[str, Metric]:
    """Return the metrics that `kinds` names with their pooling, and the same metrics read by the public code's rule."""
    metrics = {name: make(name, pooled=pooled) for name, pooled in kinds.items()}
    official = {name + OFFICIAL: make(name + OFFICIAL, pooled=pooled, reads="raw") for name, pooled in kinds.items()}
    return metrics | official


def _text_metric(name: str, compare: Callable[[str, str], float]) -> Metric:
    def score(details: dict[str, Any]) -> float:
        if type(details["score"]) not in (int, float) or not 0 <= details["score"] <= 1:
            raise ValueError
        return details["score"]

    return _metric(
        name,
        compute=lambda record, response: compare(record["target"], response),
        details=lambda record, similarity: {"score": 0.0 if similarity is None else similarity},
        score=score,
    )


def _metric(
    name: str,
    compute: Callable[[Record, str], Any],
    details: Callable[[Record, Any], dict[str, Any]],
    score: Callable[[dict[str, Any]], float],
    pooled: Pooled | None = None,
    unreadable: tuple[str, Any] | None = None,
    **others: Any,
) -> Metric:
    """Return a metric with one number per response.

    Args:
        details: returns the values that the score depends on, from a record and the result of `compute` (None without
            an answer).
        score: returns the number from these details; KeyError, TypeError or ValueError if they are invalid.
        unreadable: a field of the details, and the value that it has if an answer could not be read.
    """

    def entry(record: Record, verdicts: list[Verdict]) -> Entry:
        [verdict] = verdicts
        answered = is_answered(verdict)
        values = details(record, verdict["value"] if answered else None)
        number = score(values)
        return {"answered": answered, "score": number, "details": [{"score": number, **values, **origin(verdict)}]}

    def score_of(its_details: list[Any], unscored_as_zero: bool = False) -> float:
        try:
            [values] = its_details
            return score(values)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"field 'details' lacks the values that {name} is computed from") from None

    def summarize(entries: list[Entry]) -> dict[str, Any]:
        head = {"strategy": name, **summarize_scores(entries)}
        return head if pooled is None else head | dict.fromkeys(POOLED, pooled.score(list(map(pooled.value, entries))))

    def is_unreadable(entry: Entry) -> bool:
        return unreadable is not None and entry["answered"] and unreadable in entry["details"][0].items()

    fixed = {"compute": compute, "pooled": pooled, "is_unreadable": is_unreadable}
    return Metric(("target",), judge_inputs, entry, summarize, score_of, **fixed, **others)


def judge_inputs(record: Record) -> list[Any]:
    return [record["question"], record["target"]]
