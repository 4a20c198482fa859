"""How often evaluators and humans prefer the same of two systems: the choices of raters, and the statistics."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.json_files import read_json
from utils.tables import reliability
from utils.tables.formats import interval_text, number, p_text
from utils.tables.significance import share_interval

PREFERENCES = {"first": 1, "tie": 0, "second": -1}  # a human's choice as a number, larger for the first system

Pairs = Sequence[tuple[float, float]]  # two sides' preferences on the same questions


@dataclass
class Evaluator:
    """What one judge with one strategy says of two systems."""

    name: str
    strategy: str
    files: list[list[str]] = field(default_factory=list)  # the first system's and the second's, or a pairwise one
    # By question id the first system's score minus the second's, -1 to 1; of a pairwise comparison 1, 0 or -1. None
    # where a system lacks a score, or the comparison a result.
    preferences: dict[str, float | None] = field(default_factory=dict)
    not_asked: set[str] = field(default_factory=set)  # whose pairwise result needs no judge, for an answer is missing
    scores: list[float] = field(default_factory=list)  # of both systems, 0 to 1; none of a pairwise comparison

    @property
    def decided(self) -> dict[str, float]:
        return {question_id: its for question_id, its in self.preferences.items() if its is not None}


@dataclass(frozen=True)
class Human:
    """What raters chose."""

    path: str
    choices: dict[str, list[str]]  # by question id, one or more a question, each one of `PREFERENCES`
    # Of the first system and of the second the SHA-256 of the response files that they saw; none where it is not told.
    responses: list[list[str]]
    raters: list[str]  # who chose, in the order of the choices; none where it is not told


def read_human(path: str) -> Human:
    """A file of choices by question id; or that under `choices`, beside what else `raters.compared` puts there."""
    choices, responses, raters = read_json(path), [], []
    if isinstance(choices, dict) and isinstance(choices.get("choices"), dict):
        choices, responses, raters = choices["choices"], choices.get("responses"), choices.get("raters", [])
        if not (isinstance(responses, list) and len(responses) == 2 and all(map(_are_texts, responses))):
            raise UserError(f"{path}: field 'responses': {quote(responses)} where a list of SHA-256 a system belongs")
        if not _are_texts(raters):
            raise UserError(f"{path}: field 'raters': {quote(raters)} where a list of names belongs")
    if not isinstance(choices, dict) or not choices:
        raise UserError(f'{path}: not an object {{question id: "first", "second" or "tie"}}, or an empty one')
    choices = {question_id: [its] if isinstance(its, str) else its for question_id, its in choices.items()}
    for question_id, its in choices.items():
        where, wanted = f"{path}: id {quote(question_id)}", '"first", "second" or "tie" belongs'
        if not isinstance(its, list) or not its:
            raise UserError(f"{where}: {quote(its)} where {wanted}, or a list of these")
        if wrong := [choice for choice in its if choice not in list(PREFERENCES)]:
            raise UserError(f"{where}: {quote(wrong[0])} where {wanted}")
    return Human(path, choices, responses, raters)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


# Figures


def all_figures(evaluators: Sequence[Evaluator], human: Human | None) -> dict[str, Any]:
    """The humans' own figures, if there are any, each evaluator's against them, and each two evaluators'."""
    choices = human.choices if human else {}
    preferred = {question_id: PREFERENCES[majority(its) or "tie"] for question_id, its in choices.items()}
    return {
        "human": human_figures(choices, human.raters) if human else None,
        "evaluators": [evaluator_figures(evaluator, preferred) for evaluator in evaluators],
        "pairs": [pair_figures(one, other, preferred) for one, other in combinations(evaluators, 2)],
    }


def majority(choices: Sequence[str]) -> str | None:
    """What more than half of the raters choose, if anything."""
    [(choice, count)] = Counter(choices).most_common(1)
    return choice if 2 * count > len(choices) else None


class SignTest(NamedTuple):
    """Is one of two systems preferred more often? Of the questions without a tie, which need not be many."""

    share: float  # the first system's
    interval: tuple[float, float]  # of the share, 95% (Clopper & Pearson 1934): without 0.5 where p < 0.05
    p: float  # exact binomial, two-sided


def sign_test(first: int, second: int) -> SignTest | None:
    """From the number of questions for each system; None without any."""
    from scipy.stats import binomtest

    if not first + second:
        return None
    test = binomtest(first, first + second)
    interval = test.proportion_ci()
    return SignTest(float(test.statistic), (float(interval.low), float(interval.high)), float(test.pvalue))


def describe_sign_test(figures: dict[str, Any], first: str, second: str) -> str:
    """Of `human_figures`, for readers."""
    if (its := figures["sign_test"]) is None:
        return "Sign test: none, for no question has a preference."
    return (
        f"Sign test (exact, two-sided, without ties): {first} {figures['first']}, {second} {figures['second']}, "
        f"p = {p_text(its['p'])}; share of {first} {number(its['share'])}, 95% interval "
        f"{interval_text(its['interval'], number)}."
    )


def human_figures(choices: dict[str, list[str]], raters: Sequence[str] = ()) -> dict[str, Any]:
    """Counts of questions, the sign test of these, and the agreement of two raters.

    num_raters is the most that a question has. kappa is of the first and the second choice where that is two, None
    where it is not, or where `raters`, all of them if they are known, are more: they differ by question.
    """
    outcomes = Counter(majority(its) for its in choices.values())
    num_raters = max(map(len, choices.values()))
    rated_by_all = [its for its in choices.values() if len(its) == num_raters]
    kappa = None
    if num_raters == 2 >= len(raters):
        kappa = cohens_kappa([(PREFERENCES[one], PREFERENCES[other]) for one, other in rated_by_all])
    test = sign_test(outcomes["first"], outcomes["second"])
    return {
        "num_questions": len(choices),
        "raters": list(raters),
        "num_raters": num_raters,
        "num_rated_by_all": len(rated_by_all),
        "first": outcomes["first"],
        "second": outcomes["second"],
        "tie": outcomes["tie"] + outcomes[None],
        "no_majority": outcomes[None],
        "sign_test": test and test._asdict(),
        "kappa": kappa,
    }


def evaluator_figures(evaluator: Evaluator, human: dict[str, int]) -> dict[str, Any]:
    """An evaluator against the humans, whose choices (1, 0 or -1) may be none; what has no value is None.

    Compared is what both judged: of the humans' questions not_in_files and unscored are left out, of the evaluator's
    scored ones not_rated. Where the humans decided there are accuracies of their own, with the evaluator's ties as half
    right and as wrong. The position-swap rate is the share of ties among all questions that a pairwise judge decided.
    """
    preferences = evaluator.decided
    pairs = pair_up(preferences, human)
    decided = [(mine, theirs) for mine, theirs in pairs if theirs != 0]
    judged = [its for question_id, its in preferences.items() if question_id not in evaluator.not_asked]
    swap_rate = judged.count(0) / len(judged) if evaluator.strategy == "pairwise" and judged else None
    return {
        "name": evaluator.name,
        "strategy": evaluator.strategy,
        "num_questions": len(pairs),
        "not_in_files": len(human.keys() - evaluator.preferences.keys()),
        "unscored": len((human.keys() & evaluator.preferences.keys()) - preferences.keys()),
        "not_rated": len(preferences.keys() - human.keys()),
        "accuracy": agreement(pairs),
        "accuracy_interval": wilson_interval(pairs),
        "num_human_decided": len(decided),
        "accuracy_ties_half": agreement(decided, tie_credit=0.5),
        "accuracy_ties_wrong": agreement(decided),
        "kappa": cohens_kappa(pairs),
        "spearman": spearman(pairs),
        "mean_score": fmean(evaluator.scores) if evaluator.scores else None,
        "position_swap_rate": swap_rate,
    }


def pair_figures(one: Evaluator, other: Evaluator, human: dict[str, int]) -> dict[str, Any]:
    """Two evaluators against each other, over the questions that both have a preference on.

    With choices of humans also on how many of these only one of the two names their outcome, and the sign test.
    """
    pairs = pair_up(one.decided, other.decided)
    figures = {
        "evaluators": [one.name, other.name],
        "num_questions": len(pairs),
        "num_one_only": len(one.decided.keys() ^ other.decided.keys()),
        "agreement": agreement(pairs),
        "kappa": cohens_kappa(pairs),
        "spearman": spearman(pairs),
    }
    if not human:
        return figures
    both = one.decided.keys() & other.decided.keys() & human.keys()
    rights = [[outcome(its.decided[i]) == human[i] for i in both] for its in (one, other)]
    first, second = (sum(a > b for a, b in zip(*order, strict=True)) for order in (rights, rights[::-1]))
    test = sign_test(first, second)
    return {**figures, "first_right": first, "second_right": second, "sign_test_p": test and test.p}


def pair_up(one: dict[str, float], other: dict[str, float]) -> list[tuple[float, float]]:
    """The preferences on the questions that both have, in the order of their ids."""
    return [(one[question_id], other[question_id]) for question_id in sorted(one.keys() & other.keys())]


def outcome(preference: float) -> int:
    """1 where the first system is preferred, -1 where the second is, 0 for a tie."""
    return (preference > 0) - (preference < 0)


def agreement(pairs: Pairs, tie_credit: float = 0.0) -> float | None:
    """Share of the questions with the same outcome on both sides, 0 to 1; None without questions.

    Where the first side alone says tie, a question counts `tie_credit`.
    """
    ties = sum(mine == 0 != theirs for mine, theirs in pairs)
    return (num_agreeing(pairs) + tie_credit * ties) / len(pairs) if pairs else None


def num_agreeing(pairs: Pairs) -> int:
    return sum(outcome(one) == outcome(other) for one, other in pairs)


def wilson_interval(pairs: Pairs) -> tuple[float, float] | None:
    """95% interval of the agreement, None without questions."""
    return share_interval(num_agreeing(pairs), len(pairs))


def cohens_kappa(pairs: Pairs) -> float | None:
    """Agreement on the three outcomes beyond chance, unweighted (Cohen 1960).

    None without questions, and where both sides say one and the same of every question.
    """
    return reliability.cohens_kappa([[(outcome(one), outcome(other)) for one, other in pairs]]).value


def spearman(pairs: Pairs) -> float | None:
    """Rank correlation of the two sides' preferences, -1 to 1; None where one side is the same everywhere."""
    from scipy.stats import spearmanr

    one, other = {mine for mine, _ in pairs}, {theirs for _, theirs in pairs}
    return float(spearmanr(pairs).statistic) if len(one) > 1 and len(other) > 1 else None
