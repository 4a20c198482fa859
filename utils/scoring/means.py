"""Scores of many questions: means by group and over groups, macro F1, and root mean squares. Pure.

A pooled score depends on how often each value occurs among the questions, so it is a function of these counts; a table
counts again what it draws at random, for an interval or a test, and has the score of all draws at once.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Pooled:
    """A score of questions together.

    Attributes:
        value: the value of a score file's entry that it depends on.
        of: from V distinct values and how often each one is there, integers (D, V), the score of each of D draws (D,).
    """

    value: Callable[[dict[str, Any]], Hashable]
    of: Callable[[Sequence[Any], "np.ndarray"], "np.ndarray"]

    def score(self, values: Sequence[Hashable]) -> float | None:
        """Return the score of questions with these values; None of no questions."""
        import numpy as np

        counts = Counter(values)
        return float(self.of(list(counts), np.array([list(counts.values())]))[0]) if counts else None


def macro_f1(labels: Sequence[str]) -> Pooled:
    """Return the mean over all `labels` of each one's F1; 0 for a label that is neither a reference nor a response.

    A response that is not a label counts as a miss of the reference.
    """

    def of(pairs: Sequence[tuple[str, str]], counts: "np.ndarray") -> "np.ndarray":
        import numpy as np

        # Floats, for these products are numpy's fast ones; they hold whole numbers.
        reference, response = (np.array([[float(pair[i] == one) for one in labels] for pair in pairs]) for i in (0, 1))
        hits, named = counts @ (reference * response), counts @ (reference + response)
        return (2 * hits / np.maximum(named, 1)).mean(axis=1)

    return Pooled(lambda entry: (entry["details"][0]["reference"], entry["details"][0]["label"]), of)


def _root_mean_square(errors: Sequence[float], counts: "np.ndarray") -> "np.ndarray":
    import numpy as np

    return np.sqrt(counts @ np.square(errors) / counts.sum(axis=1))


ROOT_MEAN_SQUARE = Pooled(lambda entry: entry["score"], _root_mean_square)


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def scores_by_group(
    per_question: Iterable[dict[str, Any]], groups: Sequence[str | None], pooled: Pooled | None = None
) -> dict[str | None, list[Any]]:
    """Return the question scores of each group from score files' entries, or the values for a pooled score.

    Every `group` is one of `groups`; one without details counts nowhere.
    """
    return by_group(per_question, groups, itemgetter("score") if pooled is None else pooled.value)


def by_group(
    per_question: Iterable[dict[str, Any]], groups: Sequence[str | None], value: Callable[[dict[str, Any]], Any]
) -> dict[str | None, list[Any]]:
    """Return a value of each question that `scores_by_group` counts."""
    found: dict[str | None, list[Any]] = {group: [] for group in groups}
    for question in per_question:
        if question["details"] and question["score"] is not None:
            found[question["group"]].append(value(question))
    return found


def group_means(
    per_question: Iterable[dict[str, Any]], groups: Sequence[str], pooled: Pooled | None = None
) -> dict[str, float | None]:
    """Mean question score of each group, as `scores_by_group` takes them, or its pooled score.

    None where no question of it has a score.
    """
    average = mean if pooled is None else pooled.score
    return {group: average(scores) for group, scores in scores_by_group(per_question, groups, pooled).items()}


def macro_average(means: dict[str, float | None]) -> float | None:
    """Unweighted mean of the groups' means (paper, tables 2 and 3), None where one is missing."""
    return None if None in means.values() else mean(list(means.values()))
