"""Scores of labels, ratings and texts against a reference, as LaMP and LongLaMP compute them. No judge is asked.

The numbers equal those of the established libraries: scikit-learn's accuracy, macro F1, MAE and RMSE, rouge-score's
F-measures, NLTK's METEOR. By LaMP's rules, a response is a label if, stripped, it equals one of the labels. A rating is
what Python's `float` reads; an unreadable rating counts as the end of the scale that is farther from the reference.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from utils.base.errors import UserError

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

LOWEST, HIGHEST = 1.0, 5.0  # the scale of ratings
TOO_LARGE = 1e100
ALPHA, BETA, GAMMA = 0.9, 3.0, 0.5  # METEOR's parameters, as LongLaMP sets them


def read_label(response: str, labels: Sequence[str]) -> str:
    """Return the stripped response if it is one of the labels, otherwise an empty text."""
    response = response.strip()
    return response if response in labels else ""


def read_rating(response: str | None) -> float | None:
    """Return the response as a number, also beyond the scale; None if it is not a number, or too large to sum."""
    try:
        rating = float(response or "")
    except ValueError:
        return None
    return rating if abs(rating) < TOO_LARGE else None


def rating_error(reference: float, rating: float | None) -> float:
    """Return a rating's distance from the reference; an unreadable rating is as far off as the scale allows.

    LaMP accepts NaN and infinities as numbers, which makes the mean useless; here they count as unreadable.
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
