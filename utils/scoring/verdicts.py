"""The LaMP-QA metric (paper, Algorithm 1): from verdicts on aspects to scores of questions and categories.

A missing answer and a missing verdict are two things. What the model failed to answer scores 0 on every aspect, without
asking the judge, and is counted ("unanswered"). An aspect the judge gave no usable verdict on has the score None: it
takes its question out of the means and is counted ("unscored"); it counts 0 only where a name says "unscored_as_zero".

The strategies that the paper compares it with stand at the end: one level a response, and two responses compared in
both orders.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Verdicts = dict[tuple[str, int], Record]  # by key, each {"value": the verdict or None, ...}

MAX_VERDICT = 2  # the judge says 0 (not covered), 1 (partly) or 2 (very well)
NO_ANSWER = "no response to judge"  # the reason in place of a verdict where there is no answer: the judge is not asked

# The communities of each of the hub's three files, as a public notebook prints them over train, validation and test
# (Asym-LaMP-QA, wrangling.ipynb; its row counts are those of the paper's Table 1): 47, the paper says "over 45". Four
# are not where one would look for them: writers, interpersonal, money and vegetarianism.
_SLUGS = {
    "Arts & Entertainment": "anime boardgames gaming literature movies music musicfans rpg scifi sound",
    "Lifestyle & Personal Development": (
        "bicycles cooking diy fitness freelancing gardening health lifehacks martialarts outdoors parenting pets "
        "sports sustainability travel woodworking workplace writers"
    ),
    "Society & Culture": (
        "academia buddhism christianity english expatriates genealogy hermeneutics hinduism history interpersonal "
        "islam judaism law linguistics money philosophy politics skeptics vegetarianism"
    ),
}
CATEGORIES = tuple(_SLUGS)  # in the order of the paper's tables
COMMUNITIES = {slug: category for category, slugs in _SLUGS.items() for slug in slugs.split()}


def is_known(community: Any) -> bool:
    """Is a category known for this community?"""
    return isinstance(community, str) and community in COMMUNITIES


def question_score(aspect_scores: Sequence[int | None]) -> float | None:
    """Score of one response: sum(s) / (2 * n) over its question's n aspects, 0 to 1 (paper, Algorithm 1).

    Returns:
        None as soon as one aspect has no verdict.

    Raises:
        ValueError: no aspects, or a score that is neither None nor one of the integers 0, 1, 2.
    """
    _check_verdicts(aspect_scores)
    verdicts = [score for score in aspect_scores if score is not None]
    if len(verdicts) < len(aspect_scores):
        return None
    return sum(verdicts) / (MAX_VERDICT * len(aspect_scores))


def question_score_unscored_as_zero(aspect_scores: Sequence[int | None]) -> float:
    """As `question_score`, but an aspect without a verdict counts 0."""
    _check_verdicts(aspect_scores)
    return sum(score or 0 for score in aspect_scores) / (MAX_VERDICT * len(aspect_scores))


def _check_verdicts(aspect_scores: Sequence[int | None]) -> None:
    if not aspect_scores:
        raise ValueError("a question without aspects has no score")
    for score in aspect_scores:
        # The type is compared because True == 1 and 1.0 == 1.
        if score is not None and (type(score) is not int or not 0 <= score <= MAX_VERDICT):
            raise ValueError(f"{score!r} is not a verdict: the integer 0, 1 or 2, or None")


def aspect_keys(record: dict[str, Any]) -> list[tuple[str, int]]:
    """One verdict for each aspect of a question: (question id, number of the aspect)."""
    return [(record["id"], i) for i in range(len(record["rubric_aspects"]))]


def score_file(
    records: list[Record], verdicts: Verdicts, asked: Collection[str], strategy: str = "aspect"
) -> dict[str, Any]:
    """The content of a score file: the questions whose verdicts all have an entry, in the dataset's order.

    Args:
        records: the whole dataset.
        verdicts: by the strategy's keys, each `{"value": ..., ...}`: 0, 1 or 2 for an aspect, a level from 0 to 1 for
            a response, 1 or 2 for two responses, or None; where an answer is missing `no_answer`.
        asked: ids of the questions that this run was for; of those without aspects only these are listed.
        strategy: one of `SCORINGS`.
    """
    scoring = SCORINGS[strategy]
    judged = [
        record
        for record in records
        if (verdicts.keys() >= set(keys) if (keys := scoring.keys(record)) else record["id"] in asked)
    ]
    per_question = [scoring.entry(record, verdicts) for record in judged]
    scores = scoring.summarize(per_question)
    if len(judged) < len(records):
        scores["partial"] = {"questions_in_dataset": len(records), "questions_judged": len(judged)}
    scores["per_question_scores"] = per_question
    return scores


def no_answer(answered: Sequence[bool]) -> Record:
    """What stands in place of a verdict where an answer is missing; `answered` has an item a system: one, or two."""
    return {"value": None, "reason": NO_ANSWER, "answered": list(answered)}


def is_outdated(verdict: Record) -> bool:
    """From a journal of before, when a missing answer was a missing verdict: it doesn't say whose answer is missing."""
    return verdict.get("reason") == NO_ANSWER and "answered" not in verdict


def question_entry(record: Record, verdicts: Verdicts) -> dict[str, Any]:
    """One question of the score file. `score` is 0 without an answer, else None unless every aspect has a verdict."""
    details = []
    for key, aspect in zip(aspect_keys(record), record["rubric_aspects"], strict=True):
        details.append({"aspect": aspect["aspect"], "score": _score(verdicts[key]), **_origin(verdicts[key])})
    score = question_score([detail["score"] for detail in details]) if details else None
    answered = all(_is_answered(verdicts[key]) for key in aspect_keys(record))
    aspects = [
        [aspect.get(name, "") for name in ("aspect", "evidence", "reason")] for aspect in record["rubric_aspects"]
    ]
    judged = [record["question"], record.get("narrative"), aspects]
    return {**_identity(record, judged), "answered": answered, "score": score, "details": details}


def _is_answered(verdict: Record) -> bool:
    return all(verdict.get("answered", [True]))


def _score(verdict: Record) -> int | float | None:
    """The verdict on one system's answer; 0 where that is missing."""
    return verdict["value"] if _is_answered(verdict) else 0


def _identity(record: Record, judged: list[Any]) -> dict[str, Any]:
    """Which question an entry is on; the hash is of what the judge is shown of it, for only that compares."""
    digest = hashlib.sha256(json.dumps(judged).encode()).hexdigest()
    return {"id": record["id"], "category": record.get("category"), "question_sha256": digest}


def _origin(verdict: Record) -> dict[str, Any]:
    """How a verdict came to be."""
    return {name: verdict[name] for name in ("reason", "raw", "parsed", "attempts") if name in verdict}


def summarize(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """The head of a score file.

    Args:
        per_question: `{"id", "category", "answered", "score", "details": [{"aspect", "score", ...}]}` a question;
            "score" is its `question_score`. A question without details is named in the result and counts nowhere
            else.

    Returns:
        score: mean over the questions that have a score, None where there is none.
        num_questions, num_scored_questions: questions with aspects, and those of them that have a score.
        num_unanswered: questions without an answer, which score 0.
        num_unscored: aspects without a verdict.
        score_unscored_as_zero: mean over all num_questions, missing verdicts counting 0.
        questions_without_aspects: their ids.
    """
    asked = [question for question in per_question if question["details"]]
    scores = _scores(asked, unscored_as_zero=False)
    return {
        "score": _mean(scores),
        "num_questions": len(asked),
        "num_scored_questions": len(scores),
        "num_unanswered": sum(not question["answered"] for question in asked),
        "num_unscored": sum(detail["score"] is None for question in asked for detail in question["details"]),
        "score_unscored_as_zero": _mean(_scores(asked, unscored_as_zero=True)),
        "questions_without_aspects": [q["id"] for q in per_question if not q["details"]],
    }


def category_means(per_question: list[dict[str, Any]]) -> dict[str, float | None]:
    """Mean question score of each of `CATEGORIES`, None where no question of it has a score.

    Args:
        per_question: as in `summarize`; every "category" is a slug in `COMMUNITIES`.
    """
    asked: dict[str, list[dict[str, Any]]] = {category: [] for category in CATEGORIES}
    for question in per_question:
        if question["details"]:
            asked[COMMUNITIES[question["category"]]].append(question)
    return {category: _mean(_scores(asked[category], unscored_as_zero=False)) for category in CATEGORIES}


def macro_average(means: dict[str, float | None]) -> float | None:
    """Unweighted mean of the categories' means (paper, tables 2 and 3), None where one is missing."""
    if None in means.values():
        return None
    return _mean(list(means.values()))


def _scores(asked: list[dict[str, Any]], unscored_as_zero: bool) -> list[float]:
    """The question scores that enter a mean."""
    scored = [question["score"] for question in asked if question["score"] is not None]
    if unscored_as_zero:
        missing = [question for question in asked if question["score"] is None]
        return scored + [question_score_unscored_as_zero([d["score"] for d in q["details"]]) for q in missing]
    return scored


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


# Direct scoring


def response_keys(record: Record) -> list[tuple[str, int]]:
    """One level for a question's response."""
    return [(record["id"], 0)]


def direct_entry(record: Record, verdicts: Verdicts) -> dict[str, Any]:
    """One question of a score file of direct scoring: the level, 0 to 1, is the score; 0 without an answer."""
    [key] = response_keys(record)
    level, answered = _score(verdicts[key]), _is_answered(verdicts[key])
    details = [{"score": level, **_origin(verdicts[key])}]
    judged = [record["question"], record.get("narrative")]
    return {**_identity(record, judged), "answered": answered, "score": level, "details": details}


def summarize_direct(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """The head of a score file of direct scoring, with the fields of `summarize`.

    Returns:
        num_unscored: responses without a level, so num_questions - num_scored_questions.
    """
    scores = [question["score"] for question in per_question if question["score"] is not None]
    return {
        "strategy": "direct",
        "score": _mean(scores),
        "num_questions": len(per_question),
        "num_scored_questions": len(scores),
        "num_unanswered": sum(not question["answered"] for question in per_question),
        "num_unscored": len(per_question) - len(scores),
        "score_unscored_as_zero": _mean([question["score"] or 0 for question in per_question]),
    }


# Pairwise comparison

SYSTEMS = ("first", "second")  # as their files were given


def order_keys(record: Record) -> list[tuple[str, int]]:
    """Two preferences a question: 0 with the first system's response ahead, 1 with the second's."""
    return [(record["id"], 0), (record["id"], 1)]


def pairwise_entry(record: Record, verdicts: Verdicts) -> dict[str, Any]:
    """One question of a pairwise score file.

    Returns:
        answered: of each system, did it answer?
        result: of the first system, "win" or "loss" where one system is preferred in both orders, "tie" where the
            preference flips with the order; None unless both orders have a verdict. Where an answer is missing nobody
            is asked: `result_by_default`.
        details: an order each: the system shown first, the number of the response that the judge preferred, and the
            system that this response is of. None where nobody was asked.
    """
    keys = order_keys(record)
    answered = verdicts[keys[0]].get("answered", [True, True])
    entry = {**_identity(record, [record["question"], record.get("narrative")]), "answered": answered}
    if not all(answered):
        return {**entry, "result": result_by_default(answered), "details": []}
    details = []
    for key in keys:
        order, number = key[1], verdicts[key]["value"]
        preferred = None if number is None else SYSTEMS[(order + number - 1) % 2]
        detail = {"shown_first": SYSTEMS[order], "better_response": number, "preferred": preferred}
        details.append({**detail, **_origin(verdicts[key])})
    result = pair_result(*(detail["preferred"] for detail in details))
    return {**entry, "result": result, "details": details}


def result_by_default(answered: Sequence[bool]) -> str:
    """The first system's result where a system did not answer: who did wins, two missing answers tie."""
    if answered[0] == answered[1]:
        return "tie"
    return "win" if answered[0] else "loss"


def pair_result(one: str | None, other: str | None) -> str | None:
    """The first system's result from the systems preferred in the two orders, None where one has no verdict."""
    if one is None or other is None:
        return None
    if one != other:
        return "tie"
    return "win" if one == "first" else "loss"


def summarize_pairwise(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """The head of a pairwise score file.

    Returns:
        wins, ties, losses: questions, from the first system's side.
        position_swap_rate: of the questions with a verdict in both orders the share whose preference flips with the
            order, 0 to 1; as the judge cannot call a tie, these are its ties. None where there is no such question.
        num_questions, num_scored_questions: questions, and those of them with a result.
        num_unanswered: of each system, questions that it did not answer.
        num_unscored: missing verdicts, at most two a question.
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


@dataclass(frozen=True)
class Scoring:
    """From a strategy's verdicts to its score file."""

    keys: Callable[[Record], list[tuple[str, int]]]
    entry: Callable[[Record, Verdicts], dict[str, Any]]
    summarize: Callable[[list[dict[str, Any]]], dict[str, Any]]


SCORINGS = {
    "aspect": Scoring(aspect_keys, question_entry, summarize),
    "direct": Scoring(response_keys, direct_entry, summarize_direct),
    "pairwise": Scoring(order_keys, pairwise_entry, summarize_pairwise),
}
