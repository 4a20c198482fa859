"""Pairwise comparison of two systems' responses by a judge, in both orders (paper, figure 11)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from utils.benchmarks.scoring import Verdict, origin

SYSTEMS = ("first", "second")  # in the order of their files on the command line


def entry(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return a question's entry in a pairwise score file.

    Args:
        verdicts: two preferences: one with the first system's response shown first, one with the second's.

    Returns:
        answered: whether each system answered.
        result: the first system's result, by `pair_result`, or by `result_by_default` if an answer is missing.
        details: for each order, the system shown first, the number of the preferred response, and its system. Empty if
            an answer is missing, because the judge is not asked.
    """
    answered = verdicts[0].get("answered", [True, True])
    if not all(answered):
        return {"answered": answered, "result": result_by_default(answered), "details": []}
    details = []
    for order, verdict in enumerate(verdicts):
        number = verdict["value"]
        preferred = None if number is None else SYSTEMS[(order + number - 1) % 2]
        shown = {"shown_first": SYSTEMS[order], "better_response": number, "preferred": preferred}
        details.append(shown | origin(verdict))
    result = pair_result(*(detail["preferred"] for detail in details))
    return {"answered": answered, "result": result, "details": details}


def result_by_default(answered: Sequence[bool]) -> str:
    """Return the first system's result without a judge: if only one system answered, it wins; otherwise a tie."""
    if answered[0] == answered[1]:
        return "tie"
    return "win" if answered[0] else "loss"


def pair_result(first: str | None, second: str | None) -> str | None:
    """Return the first system's result: a tie if the preference flips with the order, None if a verdict is missing."""
    if first is None or second is None:
        return None
    if first != second:
        return "tie"
    return "win" if first == "first" else "loss"


def summarize(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the head of a pairwise score file.

    Returns:
        wins, ties, losses: the number of questions with each result of the first system.
        position_swap_rate: the share of the questions with verdicts in both orders whose preference flips with the
            order, 0 to 1. A judge cannot choose a tie, so a flip counts as a tie. None without such questions.
        num_questions, num_scored_questions: all questions, and those with a result.
        num_unanswered: per system, the number of questions that it did not answer.
        num_unscored: the number of missing verdicts, at most two per question.
    """
    results = Counter(question["result"] for question in per_question)
    judged = [question["result"] for question in per_question if question["details"] and question["result"]]
    return {
        "strategy": "pairwise",
        "wins": results["win"],
        "ties": results["tie"],
        "losses": results["loss"],
        "position_swap_rate": judged.count("tie") / len(judged) if judged else None,
        "num_questions": len(per_question),
        "num_scored_questions": len(per_question) - results[None],
        "num_unanswered": [sum(not question["answered"][n] for question in per_question) for n in (0, 1)],
        "num_unscored": sum(d["preferred"] is None for question in per_question for d in question["details"]),
    }
