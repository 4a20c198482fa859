"""Judges on trial: do they prefer the better of two responses, and do they rank systems alike?"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

from utils.base.errors import UserError
from utils.people.agreement import Evaluator, outcome, share, swap_rate
from utils.tables.significance import DECIMALS, bootstrap_interval, share_interval
from utils.tables.system_scores import cluster_of

if TYPE_CHECKING:
    import numpy as np


def preference_figures(evaluator: Evaluator) -> dict[str, Any]:
    """Return how often a judge prefers the first system, which gives the chosen responses; undefined figures are None.

    Returns:
        num_left_out: pairs without both scores or a result.
        num_pairs, num_ties, num_clusters: the numbers of other pairs, of ties among them, and of their clusters.
        share, interval: the share of these pairs whose chosen response is preferred, ties as half; its 95% interval.
        groups: these five figures of each of the task's groups that has any pair.
    """

    def figures_of(question_ids: Sequence[str]) -> dict[str, Any]:
        rights = [(1 + outcome(evaluator.decided[question_id])) / 2 for question_id in question_ids]
        clusters = [cluster_of(evaluator.entries[question_id][0]) for question_id in question_ids]
        figures = {"num_pairs": len(rights), "num_ties": rights.count(0.5), "num_clusters": len(set(clusters))}
        return figures | {"share": share(math.fsum(rights), rights), "interval": share_interval(rights, clusters)}

    by_group: dict[str, list[str]] = {}
    for question_id in evaluator.decided:
        by_group.setdefault(evaluator.entries[question_id][0]["group"], []).append(question_id)
    return {
        **{"name": evaluator.name, "strategy": evaluator.strategy, "saw": evaluator.saw},
        "num_left_out": len(evaluator.preferences) - len(evaluator.decided),
        **figures_of(list(evaluator.decided)),
        "position_swap_rate": swap_rate(evaluator),
        "groups": {group: figures_of(by_group[group]) for group in evaluator.task.groups if group in by_group},
    }


def ranking_figures(evaluators: Sequence[Evaluator], systems: Sequence[str]) -> dict[str, Any]:
    """Compare how judges rank systems, by the means over the questions that every judge scored for every system.

    Returns:
        systems: the systems' names.
        num_questions, num_left_out, num_clusters: the numbers of these questions, of all others, and of clusters.
        pairs: for each two judges, their names (`judges`), their `means` of the systems, and `rank_correlations`.

    UserError if there is no such question.
    """
    import numpy as np

    question_ids = sorted(set().union(*(evaluator.entries for evaluator in evaluators)))
    by_question = [
        [evaluator.entries.get(question_id, [{}]) for evaluator in evaluators] for question_id in question_ids
    ]
    scored = [judged for judged in by_question if all(entry.get("score") is not None for entry in chain(*judged))]
    if not scored:
        raise UserError("--systems: no question has a score by every judge for every system; nothing to compare")
    clusters = [cluster_of(judged[0][0]) for judged in scored]
    scores = np.array([[[entry["score"] for entry in entries] for entries in judged] for judged in scored], dtype=float)
    upward = scores * [[-1 if evaluator.metric.lower_is_better else 1] for evaluator in evaluators]
    pairs = [
        {
            "judges": [evaluators[first].name, evaluators[second].name],
            "means": scores[:, [first, second]].mean(axis=0).tolist(),
            **rank_correlations(upward[:, [first, second]], clusters),
        }
        for first, second in combinations(range(len(evaluators)), 2)
    ]
    counts = {"num_questions": len(scored), "num_left_out": len(by_question) - len(scored)}
    return {"systems": list(systems), **counts, "num_clusters": len(set(clusters)), "pairs": pairs}


def rank_correlations(scores: "np.ndarray", clusters: Sequence[str]) -> dict[str, Any]:
    """Return Spearman's and Kendall's (tau-b) correlation of two judges' means, None if a judge's means are all equal.

    The 95% intervals are percentile bootstraps over clusters with all their questions. A draw in which a judge's means
    are all equal counts as a correlation of 0.

    Args:
        scores: of Q questions by two judges for S systems, (Q, 2, S).
        clusters: one name per question.
    """
    import numpy as np

    def correlations(values: Sequence[Any], counts: "np.ndarray", by_pair: bool) -> "np.ndarray":  # of D draws, (D,)
        sums = counts @ np.array(values)
        means = (sums[:, 1:] / sums[:, :1]).round(DECIMALS).reshape(-1, *scores.shape[1:])
        signs = np.sign(means[..., None] - means[..., None, :])  # of each two systems, (D, 2, S, S)
        orders = signs.reshape(len(sums), 2, -1) if by_pair else signs.sum(axis=3)  # sums: twice the centred ranks
        sizes = np.sqrt((orders**2).sum(axis=2).prod(axis=1))
        return np.divide(orders.prod(axis=1).sum(axis=1), sizes, out=np.zeros(len(sizes)), where=sizes > 0)

    _, members = np.unique(clusters, return_inverse=True)
    sums = np.zeros((max(members) + 1, 1 + scores[0].size))  # by cluster: its questions, and the sums of their scores
    np.add.at(sums, members, np.hstack([np.ones((len(scores), 1)), scores.reshape(len(scores), -1)]))
    values = list(map(tuple, sums.tolist()))
    is_defined = np.ptp(scores.mean(axis=0).round(DECIMALS), axis=1).all()
    figures: dict[str, Any] = {}
    for name, by_pair in {"spearman": False, "kendall": True}.items():
        of = partial(correlations, by_pair=by_pair)
        figures[name] = float(of(values, np.ones((1, len(values))))[0]) if is_defined else None
        figures[f"{name}_interval"] = bootstrap_interval([values], of) if is_defined else None
    return figures
