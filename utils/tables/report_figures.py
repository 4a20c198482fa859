"""What the figures of utils/report.py show, as numbers; the page draws them."""

import math
from typing import Any

from utils.make_table import make_row
from utils.scoring.verdicts import CATEGORIES, COMMUNITIES
from utils.tables.comparisons import MACRO
from utils.tables.significance import bootstrap_interval
from utils.tables.system_scores import System

Record = dict[str, Any]

UNKNOWN = "unknown"  # the category of a community that none is known for


def category_of(community: Any) -> str:
    return (COMMUNITIES.get(community) if isinstance(community, str) else None) or UNKNOWN


def score_panels(systems: list[System]) -> list[Record]:
    """Mean scores with 95% intervals: a panel a category with questions, and the macro average.

    Returns:
        By panel its group and by system, in the order given, a point: mean (the table's), interval (of a percentile
        bootstrap over questions; the macro average has a stratum a category), questions (those with a score). Mean
        and interval are None where they are undefined.
    """
    means = [make_row(system).means for system in systems]
    scores = [_scores_by_category(system) for system in systems]
    asked = {category_of(question["category"]) for system in systems for question in system.all_questions()}
    panels = []
    for group in [*CATEGORIES, UNKNOWN]:
        if group in asked:
            pairs = zip(means, scores, strict=True)
            # The table has no column for unknown communities; what it has, stands here too.
            points = [_point(mean.get(group, _mean(score[group])), [score[group]]) for mean, score in pairs]
            panels.append({"group": group, "points": points})
    pairs = zip(means, scores, strict=True)
    points = [_point(mean[MACRO], [score[category] for category in CATEGORIES]) for mean, score in pairs]
    return [*panels, {"group": MACRO, "points": points}]


def _scores_by_category(system: System) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = {group: [] for group in [*CATEGORIES, UNKNOWN]}
    for question in system.all_questions():
        if question["score"] is not None:
            scores[category_of(question["category"])].append(question["score"])
    return scores


def _point(mean: float | None, strata: list[list[float]]) -> Record:
    interval = None if mean is None else bootstrap_interval(strata)
    return {"mean": mean, "interval": interval, "questions": sum(map(len, strata))}


def heat_map(questions: list[Record]) -> list[Record]:
    """Mean scores of communities, by category and name.

    Args:
        questions: the page's index entries: community, category and by system a score or None.

    Returns:
        By community its name, its category, its number of questions, and by system [mean or None, number of questions
        with a score].
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for question in questions:
        groups.setdefault((question["category"], question["community"]), []).append(question)
    order = [*CATEGORIES, UNKNOWN]
    rows = []
    for category, community in sorted(groups, key=lambda group: (order.index(group[0]), group[1])):
        found = groups[category, community]
        by_system = zip(*(question["scores"] for question in found), strict=True)
        known = [[score for score in scores if score is not None] for scores in by_system]
        cells = [[_mean(scores), len(scores)] for scores in known]
        rows.append({"community": community, "category": category, "questions": len(found), "cells": cells})
    return rows


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
