"""Which systems of a table are better than its baselines: every comparison it shows, and its daggers."""

from dataclasses import dataclass

from utils.scoring.verdicts import CATEGORIES
from utils.tables.significance import (
    ALPHA,
    Comparison,
    Pairing,
    compare_systems,
    differences,
    holm,
    mean_over_strata,
    pair_questions,
    t_test,
)
from utils.tables.system_scores import System

MACRO = "Average (macro)"
GROUPS = (*CATEGORIES, MACRO)  # a table's columns of means
T_TEST, PERMUTATION = "t-test p", "permutation p"


@dataclass(frozen=True)
class Result:
    """A system against a baseline in one column; the difference is the system's mean minus the baseline's."""

    num_questions: int  # that both have a score of
    difference: float | None
    p_values: dict[str, float | None]  # by T_TEST and PERMUTATION, and by `holm_name` of these
    statistics: Comparison | None  # with intervals


@dataclass(frozen=True)
class Contrast:
    """A system against a baseline, with a result for each of `GROUPS`."""

    system: str
    baseline: str
    pairing: Pairing
    results: dict[str, Result]


def compare(systems: list[System], baselines: list[str], intervals: bool, correct: bool) -> list[Contrast]:
    """Every other system against every baseline.

    Args:
        intervals: also what is drawn at random: interval and permutation test.
        correct: also Holm's p-values, over all comparisons of the table, test by test.

    Raises:
        UserError: a question belongs to one community in one system and to another in the other.
    """
    by_name = {system.name: system for system in systems}
    contrasts = []
    for name in (name for name in by_name if name not in baselines):
        for baseline in baselines:
            pairing = pair_questions(by_name[name].questions, by_name[baseline].questions)
            results = _all_results(pairing) if intervals else _t_test_results(pairing)
            contrasts.append(Contrast(name, baseline, pairing, results))
    if correct:
        _add_holm([result for contrast in contrasts for result in contrast.results.values()])
    return contrasts


def _t_test_results(pairing: Pairing) -> dict[str, Result]:
    strata = {category: [differences(pairing.scores[category])] for category in CATEGORIES}
    strata[MACRO] = [stratum for (stratum,) in strata.values()]
    return {
        group: Result(sum(map(len, s)), mean_over_strata(s), {T_TEST: t_test(s)[1]}, None)
        for group, s in strata.items()
    }


def _all_results(pairing: Pairing) -> dict[str, Result]:
    found = {MACRO if c.group == "macro" else c.group: c for c in compare_systems(pairing)}
    results = {}
    for group in GROUPS:
        p_values = {T_TEST: found[group].t_test_p, PERMUTATION: found[group].permutation_p}
        results[group] = Result(found[group].num_questions, found[group].difference, p_values, found[group])
    return results


def _add_holm(results: list[Result]) -> None:
    for test in list(results[0].p_values):
        adjusted = holm([result.p_values[test] for result in results])
        for result, p in zip(results, adjusted, strict=True):
            result.p_values[holm_name(test)] = p


def holm_name(test: str) -> str:
    """The name of a test's corrected p-values."""
    return f"{test} (Holm)"


def shown_p(result: Result, test: str) -> float | None:
    """The corrected p-value where there is one."""
    return result.p_values.get(holm_name(test), result.p_values[test])


def has_dagger(contrasts: list[Contrast], system: str, group: str) -> bool:
    """Is the system significantly better than every baseline in this column?"""
    results = [contrast.results[group] for contrast in contrasts if contrast.system == system]
    return bool(results) and all(map(_is_better, results))


def _is_better(result: Result) -> bool:
    p = shown_p(result, T_TEST)
    return p is not None and p < ALPHA and result.difference > 0
