"""Agreement of a judge with people on scores from 1 to 5 by criterion (BESPOKE): correlations, equal scores, and bias.

The figures are Spearman's and Pearson's coefficients, the shares of equal scores and of scores at most 1 apart, and the
mean of judge minus person, over all rated responses. Intervals are from a percentile bootstrap over persons, because
scores by the same person are correlated.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from utils.tables.formats import Cell, Table, interval_text, number, signed

if TYPE_CHECKING:
    import numpy as np

DRAWS = 9_999
NAMES = ("spearman", "pearson", "exact", "within_one", "judge_minus_people")
OVERALL = "all criteria (mean)"


def graded_agreement(
    judge: Sequence[Sequence[float]], people: Sequence[Sequence[float]], persons: Sequence[str], criteria: Sequence[str]
) -> dict[str, Any]:
    """Return the agreement for each criterion and for the means over criteria, and judge minus people by person.

    Args:
        judge, people: scores by response and criterion, (N, C), from 1 to 5.
        persons: the person who scored each response, (N,).
    """
    import numpy as np

    judge, people = np.array(judge, float), np.array(people, float)
    everyone, owner = np.unique(persons, return_inverse=True)
    times = np.random.default_rng(0).multinomial(len(everyone), [1 / len(everyone)] * len(everyone), DRAWS)
    pairs = {name: (judge[:, place], people[:, place]) for place, name in enumerate(criteria)}
    pairs[OVERALL] = judge.mean(axis=1), people.mean(axis=1)
    figures = {}
    for name, (judge_scores, people_scores) in pairs.items():
        values = agreement_of(judge_scores, people_scores, np.ones((1, len(owner)), int))
        drawn = agreement_of(judge_scores, people_scores, times[:, owner]) if len(everyone) > 1 else {}
        figures[name] = {"num_responses": len(owner)}
        for kind, [value] in values.items():
            low, high = np.nanquantile(drawn[kind], [0.025, 0.975]) if np.isfinite(value) and drawn else (0, 0)
            figures[name][kind] = float(value) if np.isfinite(value) else None
            figures[name][f"{kind}_interval"] = (float(low), float(high)) if low < high else None
    gaps = defaultdict(list)
    for person, gap in zip(persons, (judge - people).mean(axis=1), strict=True):
        gaps[person].append(float(gap))
    return {"criteria": figures, "persons": {person: sum(of) / len(of) for person, of in sorted(gaps.items())}}


def agreement_of(judge: "np.ndarray", people: "np.ndarray", times: "np.ndarray") -> dict[str, "np.ndarray"]:
    """Return each figure of `NAMES` for D draws, (D,).

    A correlation is NaN in a draw in which the judge's or the people's scores are all equal.

    Args:
        judge, people: N scores each, (N,).
        times: how often each draw has each score, integers (D, N).
    """
    import numpy as np

    share = times / times.sum(axis=1, keepdims=True)
    gap = judge - people
    ranks = ranks_of(judge, times), ranks_of(people, times)
    values = [correlation(*ranks, share), correlation(judge, people, share)]
    values += [share @ (np.abs(gap) < 1e-9), share @ (np.abs(gap) < 1 + 1e-9), share @ gap]
    return dict(zip(NAMES, values, strict=True))


def ranks_of(scores: "np.ndarray", times: "np.ndarray") -> "np.ndarray":
    """Return the rank of N scores in each draw, (D, N); equal scores share the mean of their ranks."""
    import numpy as np

    levels, place = np.unique(scores, return_inverse=True)
    counts = times @ (place[:, None] == np.arange(len(levels)))  # (D, levels)
    return (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, place]


def correlation(first: "np.ndarray", second: "np.ndarray", share: "np.ndarray") -> "np.ndarray":
    """Return Pearson's coefficient of N values in each draw; `share` is each value's weight in a draw, (D, N)."""
    import numpy as np

    first, second = (values - (share * values).sum(axis=1, keepdims=True) for values in (first, second))
    spread = (share * first**2).sum(axis=1) * (share * second**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 1e-18, (share * first * second).sum(axis=1) / np.sqrt(spread), np.nan)


def graded_table(systems: Mapping[str, dict[str, Any]]) -> Table:
    """Return a table of `graded_agreement` by system."""
    shown = {"spearman": signed, "pearson": signed, "exact": number, "within_one": number, "judge_minus_people": signed}
    rows, notes = [], ["Intervals are by a bootstrap over persons. Judge minus people is in points from 1 to 5."]
    for system, agreement in systems.items():
        for criterion, figures in agreement["criteria"].items():
            texts = [system, criterion, str(figures["num_responses"])]
            for name, write in shown.items():
                texts += [write(figures[name]), interval_text(figures[f"{name}_interval"], write)]
            rows.append(list(map(Cell, texts)))
        gaps = agreement["persons"]
        low, high = min(gaps, key=gaps.get), max(gaps, key=gaps.get)
        ends = f"from {signed(gaps[low])} ({low}) to {signed(gaps[high])} ({high})"
        notes.append(f"{system}, by person: judge minus people {ends}; --output_addr has all.")
    heads = ["Spearman", "Pearson", "Equal", "At most 1 apart", "Judge minus people"]
    heads = [head for name in heads for head in (name, "95% interval")]
    return Table(["System", "Criterion", "Responses", *heads], rows, notes, num_names=2)
