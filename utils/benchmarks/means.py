"""Scores of many questions: their mean, macro F1, and root mean squares. Pure.

A pooled score is a function of how often each value occurs among the questions. For an interval or a test, a table
counts the values of each random draw and computes the scores of all draws at once.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Pooled:
    """A score that is computed from all questions together.

    Attributes:
        value: returns the value of a score file's entry that the score depends on.
        of: computes the scores of D draws, (D,), from V distinct values and their counts per draw, integers (D, V).
    """

    value: Callable[[dict[str, Any]], Hashable]
    of: Callable[[Sequence[Any], "np.ndarray"], "np.ndarray"]

    def score(self, values: Sequence[Hashable]) -> float | None:
        """Return the score of questions with these values; None without questions."""
        import numpy as np

        counts = Counter(values)
        return float(self.of(list(counts), np.array([list(counts.values())]))[0]) if counts else None


def macro_f1(labels: Sequence[str]) -> Pooled:
    """Return the mean of all labels' F1; a label that is neither a reference nor a response has F1 0.

    A response that is not a label counts as a miss of the reference.
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
