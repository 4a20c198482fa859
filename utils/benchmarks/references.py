"""Metrics that compare a response with the record's `target`, as in LaMP and LongLaMP. They need no judge.

The scores equal those of the established libraries: scikit-learn's accuracy, macro F1, MAE and RMSE, rouge-score's
F-measures, and NLTK's METEOR. By LaMP's rules, a response is a label if it equals one of the labels after stripping. A
rating is a number that Python's `float` reads; an unreadable rating counts as the end of the scale that is farther from
the reference."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from utils.base.errors import UserError, quote
from utils.benchmarks.checks import Record
from utils.benchmarks.direct import summarize_scores
from utils.benchmarks.metric import OFFICIAL, Metric
from utils.benchmarks.scoring import ROOT_MEAN_SQUARE, Pooled, Verdict, is_answered, macro_f1, origin

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

LOWEST, HIGHEST = 1.0, 5.0  # the scale of ratings
TOO_LARGE = 1e100
ALPHA, BETA, GAMMA = 0.9, 3.0, 0.5  # METEOR's parameters, as LongLaMP sets them
Entry = dict[str, Any]
POOLED = ("score", "score_unscored_as_zero")  # fields of a score file's head, equal here: no verdict is missing


def read_label(response: str, labels: Sequence[str]) -> str:
    """Return the stripped response if it is one of the labels, otherwise an empty text."""
    response = response.strip()
    return response if response in labels else ""


def read_rating(response: str | None) -> float | None:
    """Return the response as a number, even outside the scale; None if it is not a number, or too large to sum."""
    try:
        rating = float(response or "")
    except ValueError:
        return None
    return rating if abs(rating) < TOO_LARGE else None


def rating_error(reference: float, rating: float | None) -> float:
    """Return a rating's distance from the reference; for an unreadable rating, the largest one on the scale.

    LaMP accepts NaN and infinity as numbers, which makes the mean useless; here, they count as unreadable.
    """
    if rating is None:
        return max(reference - LOWEST, HIGHEST - reference)
    return abs(rating - reference)


def rouge(reference: str, response: str, kind: str) -> float:
    """Compute ROUGE's F-measure, 0 to 1, with one reference and without a stemmer.

    Args:
        kind: "rouge1" or "rougeL".
    """
    return float(_rouge_scorer(kind).score(reference.strip(), response.strip())[kind].fmeasure)


@cache
def _rouge_scorer(kind: str) -> "RougeScorer":
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind])


def meteor(reference: str, response: str) -> float:
    """Compute NLTK's METEOR, 0 to 1, on the tokens of NLTK's `word_tokenize`.

    Raises:
        UserError: NLTK's data are missing; without WordNet's synonyms, the score would differ.
    """
    from nltk.tokenize import word_tokenize
    from nltk.translate.meteor_score import single_meteor_score

    try:
        words = [word_tokenize(text) for text in (reference, response)]
        return float(single_meteor_score(*words, alpha=ALPHA, beta=BETA, gamma=GAMMA))
    except LookupError:
        raise UserError(
            "METEOR: NLTK data are missing: the sentence splitter punkt_tab or WordNet 3.0\n"
            "  python -m nltk.downloader punkt_tab wordnet (on a node without internet: see docs/evaluation.md)"
        ) from None


def check_rating(record: Record, where: str) -> None:
    rating = read_rating(record["target"])
    if rating is None or not LOWEST <= rating <= HIGHEST:
        raise UserError(f"{where}: field 'target' is {quote(record['target'])}, not a rating from 1 to 5")


def text_metrics() -> dict[str, Metric]:
    """Return the metrics of texts: ROUGE-1 and ROUGE-L."""
    kinds = {"rouge-1": "rouge1", "rouge-L": "rougeL"}
    return {name: _text_metric(name, partial(rouge, kind=kind)) for name, kind in kinds.items()}


def long_text_metrics() -> dict[str, Metric]:
    """Return the metrics of longer texts: ROUGE-1, ROUGE-L and METEOR."""
    return {**text_metrics(), "meteor": _text_metric("meteor", meteor)}


def label_metrics(labels: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics of labels: accuracy and the macro F1 over all labels, and both for the whole raw text."""
    make = partial(
        _metric,
        compute=lambda record, response: read_label(response, labels),
        details=lambda record, label: {"reference": record["target"], "label": label or ""},
        score=lambda details: int(details["reference"] == details["label"]),
        unreadable=("label", ""),
    )
    return _with_official(make, {"accuracy": None, "f1": macro_f1(labels)})


def rating_metrics() -> dict[str, Metric]:
    """Return the metrics of ratings: MAE and RMSE, and both for the whole raw text. A question's score is its error."""

    def compute(record: Record, response: str) -> float | str:
        rating = read_rating(response)
        return "unreadable" if rating is None else rating  # None would mean a missing verdict

    def details(record: Record, rating_read: float | str | None) -> dict[str, Any]:
        rating = rating_read if isinstance(rating_read, float) else None
        return {"reference": read_rating(record["target"]), "rating": rating}

    make = partial(
        _metric,
        compute=compute,
        details=details,
        score=lambda details: rating_error(details["reference"], details["rating"]),
        unreadable=("rating", None),
        lower_is_better=True,
        worst="as the rating that is farthest off",
    )
    return _with_official(make, {"MAE": None, "RMSE": ROOT_MEAN_SQUARE})


def _with_official(make: Callable[..., Metric], kinds: dict[str, Pooled | None]) -> dict[str, Metric]:
    """Return a metric for each name and pooling in `kinds`, and the same metrics for raw texts (public code's rule)."""
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
