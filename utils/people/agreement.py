"""How often evaluators and humans prefer the same one of two systems."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any

from utils.base.errors import UserError, quote
from utils.base.json_files import read_json
from utils.benchmarks import scoring
from utils.benchmarks.metric import Metric
from utils.benchmarks.task import Task
from utils.tables.formats import interval_text, number, p_text
from utils.tables.significance import share_interval, sign_test

PREFERENCES = {"first": 1, "tie": 0, "second": -1}  # a human's choice as a number, larger for the first system

Pairs = Sequence[tuple[float, float]]  # per question, two preferences: of two evaluators, or of an evaluator and humans


@dataclass
class Evaluator:
    """One judge's preferences between two systems, by one strategy."""

    name: str
    strategy: str  # in words
    task: Task
    metric: Metric
    files: list[list[str]] = field(default_factory=list)  # [first system's, second system's] files, or [pairwise file]
    # By question id, each system's entry in its score file ({} if missing), or the single entry of a pairwise file.
    entries: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    # By question id, the first system's score minus the second's, or 1, 0 or -1 from a pairwise comparison. None if a
    # score or the comparison's result is missing, or if there are more than two systems.
    preferences: dict[str, float | None] = field(default_factory=dict)
    not_asked: set[str] = field(default_factory=set)  # question ids decided without a judge: an answer is missing
    scores: list[float] = field(default_factory=list)  # of all systems; empty for pairwise comparisons

    @property
    def decided(self) -> dict[str, float]:
        return {key: preference for key, preference in self.preferences.items() if preference is not None}

    @property
    def saw(self) -> list[str]:
        """The fields reserved for the scorer that the judge reads."""
        return [name for name in self.metric.needs if name in self.task.hidden_fields]


@dataclass(frozen=True)
class Human:
    """Human raters' choices between two systems."""

    path: str
    choices: dict[str, list[str]]  # by question id, one or more keys of `PREFERENCES`
    # Per system, the SHA-256 of the response files that raters saw; empty if unknown.
    responses: list[list[str]]
    raters: list[str]  # names; empty if unknown


def read_human(path: str) -> Human:
    """Read raters' choices: a file of choices by question id, or an output file of utils/human_evaluation.py."""
    choices, responses, raters = read_json(path), [], []
    if isinstance(choices, dict) and isinstance(choices.get("choices"), dict):
        choices, responses, raters = choices["choices"], choices.get("responses"), choices.get("raters", [])
        if not (isinstance(responses, list) and len(responses) == 2 and all(map(_are_texts, responses))):
            raise UserError(
                f"{path}: field 'responses': found {quote(responses)}, expected a list of SHA-256 per system"
            )
        if not _are_texts(raters):
            raise UserError(f"{path}: field 'raters': found {quote(raters)}, expected a list of names")
    if not isinstance(choices, dict) or not choices:
        raise UserError(f'{path}: must be a non-empty object {{question id: "first", "second" or "tie"}}')
    choices = {key: [chosen] if isinstance(chosen, str) else chosen for key, chosen in choices.items()}
    for question_id, chosen in choices.items():
        if not _are_texts(chosen) or not chosen or not set(chosen) <= PREFERENCES.keys():
            where = f"{path}: id {quote(question_id)}: found {quote(chosen)}"
            raise UserError(f'{where}, expected "first", "second" or "tie", or a list of these')
    return Human(path, choices, responses, raters)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


# Figures


def all_figures(evaluators: Sequence[Evaluator], human: Human | None) -> dict[str, Any]:
    """Return the figures of the humans, of each evaluator compared with them, and of each pair of evaluators."""
    choices = human.choices if human else {}
    preferred = {key: PREFERENCES[majority(chosen) or "tie"] for key, chosen in choices.items()}
    return {
        "human": human_figures(choices, human.raters) if human else None,
        "evaluators": [evaluator_figures(evaluator, preferred) for evaluator in evaluators],
        "pairs": [pair_figures(*pair, preferred) for pair in combinations(evaluators, 2)],
    }


def majority(choices: Sequence[str]) -> str | None:
    """Return the choice of more than half of the raters; None if there is no such choice."""
    [(choice, count)] = Counter(choices).most_common(1)
    return choice if 2 * count > len(choices) else None


def describe_sign_test(figures: dict[str, Any], first: str, second: str) -> str:
    """Return the sign test of `human_figures` as a sentence."""
    if (test := figures["sign_test"]) is None:
        return "Sign test: none, because no question has a preference."
    return (
        f"Sign test (exact, two-sided, without ties): {first} {figures['first']}, {second} {figures['second']}, "
        f"p = {p_text(test['p'])}; share of {first} {number(test['share'])}, 95% interval "
        f"{interval_text(test['interval'], number)}."
    )


def human_figures(choices: dict[str, list[str]], raters: Sequence[str] = ()) -> dict[str, Any]:
    """Return the numbers of questions by the humans' choice, their sign test, and the kappa of exactly two raters."""
    outcomes = Counter(map(majority, choices.values()))
    num_raters = max(map(len, choices.values()))
    rated_by_all = [list(map(PREFERENCES.get, chosen)) for chosen in choices.values() if len(chosen) == num_raters]
    return {
        "num_questions": len(choices),
        "raters": list(raters),
        "num_raters": num_raters,
        "num_rated_by_all": len(rated_by_all),
        "first": outcomes["first"],
        "second": outcomes["second"],
        "tie": outcomes["tie"] + outcomes[None],
        "no_majority": outcomes[None],
        "sign_test": sign_test(outcomes["first"], outcomes["second"]),
        "kappa": cohens_kappa(rated_by_all) if num_raters == 2 >= len(raters) else None,
    }


def evaluator_figures(evaluator: Evaluator, human: dict[str, int]) -> dict[str, Any]:
    """Compare an evaluator with the humans' choices (1, 0 or -1) by question id; undefined figures are None.

    Left out are rated questions (`not_in_files`, `unscored`) and scored questions that are `not_rated`.
    `accuracy_ties_half` and `accuracy_ties_wrong` are over the questions where the humans have no tie, and count an
    evaluator's ties as half right or as wrong. `position_swap_rate` is as in `swap_rate`.
    """
    preferences = evaluator.decided
    pairs = pair_up(preferences, human)
    decided = [(mine, theirs) for mine, theirs in pairs if theirs != 0]
    right, ties = num_agreeing(decided), sum(mine == 0 for mine, _ in decided)
    return {
        "name": evaluator.name,
        "strategy": evaluator.strategy,
        "num_questions": len(pairs),
        "not_in_files": len(human.keys() - evaluator.preferences.keys()),
        "unscored": len((human.keys() & evaluator.preferences.keys()) - preferences.keys()),
        "not_rated": len(preferences.keys() - human.keys()),
        "accuracy": share(num_agreeing(pairs), pairs),
        "accuracy_interval": share_interval([outcome(mine) == outcome(theirs) for mine, theirs in pairs]),
        "num_human_decided": len(decided),
        "accuracy_ties_half": share(right + ties / 2, decided),
        "accuracy_ties_wrong": share(right, decided),
        "kappa": cohens_kappa(pairs),
        "spearman": spearman(pairs),
        "mean_score": fmean(evaluator.scores) if evaluator.scores else None,
        "position_swap_rate": swap_rate(evaluator),
    }


def swap_rate(evaluator: Evaluator) -> float | None:
    """Return the share of questions where a pairwise judge's preference flips with the order; None for other judges."""
    judged = [preference for key, preference in evaluator.decided.items() if key not in evaluator.not_asked]
    return share(judged.count(0), judged) if evaluator.strategy == "pairwise" else None


def pair_figures(first: Evaluator, second: Evaluator, human: dict[str, int]) -> dict[str, Any]:
    """Compare two evaluators on the same questions, and count the questions where only one agrees with the humans."""
    pairs = pair_up(first.decided, second.decided)
    figures = {
        "evaluators": [first.name, second.name],
        "num_questions": len(pairs),
        "num_one_only": len(first.decided.keys() ^ second.decided.keys()),
        "agreement": share(num_agreeing(pairs), pairs),
        "kappa": cohens_kappa(pairs),
        "spearman": spearman(pairs),
    }
    if not human:
        return figures
    both = first.decided.keys() & second.decided.keys() & human.keys()
    rights = [[outcome(evaluator.decided[key]) == human[key] for evaluator in (first, second)] for key in both]
    first_right, second_right = rights.count([True, False]), rights.count([False, True])
    test = sign_test(first_right, second_right)
    return {**figures, "first_right": first_right, "second_right": second_right, "sign_test_p": test and test["p"]}


def pair_up(first: dict[str, float], second: dict[str, float]) -> list[tuple[float, float]]:
    """Return pairs of preferences on the questions that are in both, sorted by id."""
    return [(first[question_id], second[question_id]) for question_id in sorted(first.keys() & second.keys())]


def outcome(preference: float) -> int:
    """Return 1 if the first system is preferred, -1 if the second is, 0 for a tie."""
    return (preference > 0) - (preference < 0)


def num_agreeing(pairs: Pairs) -> int:
    return sum(outcome(mine) == outcome(theirs) for mine, theirs in pairs)


def share(hits: float, things: Sequence[Any]) -> float | None:
    return hits / len(things) if things else None


def cohens_kappa(pairs: Pairs) -> float | None:
    """Return unweighted kappa of the three outcomes; None if there are no pairs or all outcomes are the same."""
    return scoring.cohens_kappa([[(outcome(mine), outcome(theirs)) for mine, theirs in pairs]]).value


def spearman(pairs: Pairs) -> float | None:
    """Return the preferences' rank correlation, -1 to 1; None if a side has fewer than two distinct values."""
    from scipy.stats import spearmanr

    is_defined = all(len(set(side)) > 1 for side in zip(*pairs, strict=True))
    return float(spearmanr(pairs).statistic) if pairs and is_defined else None
