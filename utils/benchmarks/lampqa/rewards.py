"""Rewards: a reward model's number for each response, on the model's own scale. Pure.

A missing answer has no reward, because the scale has no lowest number. It is counted as unanswered and left out of the
mean.
"""

import math
from typing import Any

from utils.benchmarks.direct import summarize_scores
from utils.benchmarks.scoring import Verdict, is_answered, origin


def entry(verdict: Verdict) -> dict[str, Any]:
    """Return a question's entry in the score file."""
    reward = verdict["value"]
    return {"answered": is_answered(verdict), "score": reward, "details": [{"score": reward, **origin(verdict)}]}


def score_of(details: list[dict[str, Any]], _: bool = False) -> float | None:
    """Return the reward in an entry's details, None if missing; ValueError if the details are not exactly one."""
    if len(details) != 1 or not isinstance(details[0], dict):
        raise ValueError("field 'details' is not one reward")
    reward = details[0].get("score")
    if reward is not None and (type(reward) not in (int, float) or not abs(reward) < math.inf):
        raise ValueError(f"{reward!r} is not a reward: a finite number, or null")
    return reward


def summarize(per_question: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the head of a score file; an unanswered question does not count as a missing verdict."""
    head = {"strategy": "reward", **summarize_scores(per_question)}
    del head["score_unscored_as_zero"]
    return head | {"num_unscored": head["num_unscored"] - head["num_unanswered"]}
