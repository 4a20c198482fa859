"""Tables that compare judges and reward models with humans, with each other, and with known preferences."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

from utils.base.errors import UserError, count_noun
from utils.benchmarks.scoring import cohens_kappa, krippendorffs_alpha
from utils.benchmarks.task import Task
from utils.people import agreement
from utils.people.agreement import Evaluator, outcome, share, swap_rate
from utils.tables.formats import NOT_COMPARED, Cell, Table, interval_text, number, p_text, signed
from utils.tables.score_table import share_intervals_note
from utils.tables.significance import DECIMALS, bootstrap_interval, share_interval
from utils.tables.system_scores import cluster_of

if TYPE_CHECKING:
    import numpy as np

LEAST_RANKED = 3  # systems; a rank correlation of two systems is always 1 or -1
PAPER_KAPPA = 0.726  # between the paper's two raters (section 5.2)
BEST_PUBLISHED = 0.7594  # share of Personalized RewardBench's pairs that a reward model gets right (arXiv 2604.07343)


def preference_figures(evaluator: Evaluator) -> dict[str, Any]:
    """Return how often a judge prefers the first system, whose responses are the chosen ones; None if undefined.

    Returns:
        num_left_out: the number of pairs that lack a score or a result.
        num_pairs, num_ties, num_clusters: the numbers of the other pairs, of ties among them, and of their clusters.
        share, interval: the share of these pairs whose chosen response is preferred (ties count half), and its 95%
            interval.
        groups: the figures from `num_pairs` to `interval` for each group with pairs.
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
    """Compare judges' rankings of systems by mean score, over the questions that every judge scored for every system.

    Returns:
        systems: the systems' names.
        num_questions, num_left_out, num_clusters: the numbers of these questions, of all others, and of clusters.
        pairs: for each pair of judges, their names (`judges`), their `means` of the systems, `rank_correlations` if
            there are three or more systems, and their `verdict_figures` in `verdicts`.

    UserError if there is no such question.
    """
    import numpy as np

    question_ids = sorted(set().union(*(evaluator.entries for evaluator in evaluators)))
    by_question = [
        [evaluator.entries.get(question_id, [{}]) for evaluator in evaluators] for question_id in question_ids
    ]
    scored = [judged for judged in by_question if all(entry.get("score") is not None for entry in chain(*judged))]
    if not scored:
        raise UserError(
            "--systems: no question has a score by every judge for every system, so ranks cannot be compared"
        )
    clusters = [cluster_of(judged[0][0]) for judged in scored]
    scores = np.array([[[entry["score"] for entry in entries] for entries in judged] for judged in scored], dtype=float)
    upward = scores * [[-1 if evaluator.metric.lower_is_better else 1] for evaluator in evaluators]
    pairs = [
        {
            "judges": [evaluators[first].name, evaluators[second].name],
            "means": scores[:, [first, second]].mean(axis=0).tolist(),
            **(rank_correlations(upward[:, [first, second]], clusters) if len(systems) >= LEAST_RANKED else {}),
            "verdicts": verdict_figures(evaluators[first], evaluators[second]),
        }
        for first, second in combinations(range(len(evaluators)), 2)
    ]
    counts = {"num_questions": len(scored), "num_left_out": len(by_question) - len(scored)}
    return {"systems": list(systems), **counts, "num_clusters": len(set(clusters)), "pairs": pairs}


def verdict_figures(first: Evaluator, second: Evaluator) -> dict[str, Any] | None:
    """Return how often two judges give the same verdict on the same part (such as an aspect) of the same response.

    Only parts with a verdict of both judges count. None if there are none, for example if the strategies differ.

    Returns:
        num_questions, num_verdicts, same: the numbers of questions and of verdict pairs, and the share of equal pairs.
        kappa, alpha: Cohen's kappa, weighted by squared distance, and Krippendorff's alpha for interval data.
        kappa_interval, alpha_interval: their 95% intervals.
    """
    by_question = []
    for question_id in first.entries.keys() & second.entries.keys() if first.strategy == second.strategy else ():
        parts = [
            zip(one["details"], other["details"], strict=True)
            for one, other in zip(first.entries[question_id], second.entries[question_id], strict=True)
            if one.get("answered") and other.get("answered") and len(one["details"]) == len(other["details"])
        ]
        both = [
            (one["score"], other["score"]) for one, other in chain(*parts) if None not in (one["score"], other["score"])
        ]
        by_question += [both] if both else []
    verdicts = list(chain(*by_question))
    if not verdicts:
        return None
    figures = {"num_questions": len(by_question), "num_verdicts": len(verdicts)}
    figures["same"] = sum(one == other for one, other in verdicts) / len(verdicts)
    kappa, alpha = cohens_kappa(by_question, steps=True), krippendorffs_alpha(by_question, steps=True)
    return figures | {"kappa": kappa.value, "kappa_interval": kappa.interval, "alpha": alpha.value,
                      "alpha_interval": alpha.interval}  # fmt: skip


def rank_correlations(scores: "np.ndarray", clusters: Sequence[str]) -> dict[str, Any]:
    """Return Spearman's and Kendall's (tau-b) correlation of two judges' means; None if a judge's means are all equal.

    The 95% intervals are from a percentile bootstrap over whole clusters. A draw in which a judge's means are all equal
    counts as a correlation of 0.

    Args:
        scores: two judges' scores of S systems on Q questions, (Q, 2, S).
        clusters: one name per question.
    """
    import numpy as np

    def correlations(values: Sequence[Any], counts: "np.ndarray", by_pair: bool) -> "np.ndarray":  # for D draws, (D,)
        sums = counts @ np.array(values)
        means = (sums[:, 1:] / sums[:, :1]).round(DECIMALS).reshape(-1, *scores.shape[1:])
        signs = np.sign(means[..., None] - means[..., None, :])  # of each pair of systems, (D, 2, S, S)
        orders = signs.reshape(len(sums), 2, -1) if by_pair else signs.sum(axis=3)  # sums: twice the centered ranks
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


def human_table(human: dict[str, Any], rows: list[dict[str, Any]]) -> Table:
    columns = ["Evaluator", "Strategy", "Questions", "Left out", "Accuracy", "95% interval", "Decided by humans"]
    columns += ["Decided, ties half right", "Decided, ties wrong", "Kappa", "Spearman", "Mean score", "Swap rate"]
    lines = []
    for row in rows:
        texts = [row["name"], row["strategy"], str(row["num_questions"]), str(row["not_in_files"] + row["unscored"])]
        texts += [number(row["accuracy"]), interval_text(row["accuracy_interval"], number)]
        texts += [str(row["num_human_decided"]), number(row["accuracy_ties_half"]), number(row["accuracy_ties_wrong"])]
        texts += [signed(row["kappa"]), signed(row["spearman"])]
        texts += [number(row["mean_score"]), number(row["position_swap_rate"])]
        lines.append(list(map(Cell, texts)))
    notes = [
        "Accuracy: share of the questions where evaluator and humans agree on the outcome: first, second or tie. An "
        "evaluator's tie is equal scores or, in pairwise, a preference that flips with the order. Interval: Wilson.",
        "Decided by humans: questions whose outcome is not a tie for humans. The next two columns have the accuracy on "
        "these, with an evaluator's ties counted as half right or as wrong.",
        "Accuracy is compared with the paper's (section 5.2: aspect 0.73, direct 0.58), since its raters could choose "
        "a tie (appendix B). The paper does not say how it counts ties.",
        "Kappa: Cohen's, over the three outcomes. Spearman: between score difference (pairwise: 1, 0, -1) and human "
        "choice. Mean score: over all scores in the files, per question, not macro.",
        *[f"{NOT_COMPARED} The next table shows which of two evaluators is right more often."] * (len(rows) > 1),
        describe_humans(human),
        agreement.describe_sign_test(human, "first", "second"),
        *filter(None, map(describe_left_out, rows)),
    ]
    return Table(columns, lines, notes, num_names=2)


def pairs_table(rows: list[dict[str, Any]]) -> Table:
    columns = ["Evaluator", "Evaluator", "Questions", "Scored by one only", "Agreement", "Kappa", "Spearman"]
    notes = ["Agreement: share of the questions where both have the same outcome: first, second or tie."]
    if has_humans := "first_right" in rows[0]:
        columns += ["First alone right", "Second alone right", "Sign test p"]
        notes.append("Right: the same outcome as the humans. The sign test is exact, two-sided and uncorrected.")
    lines = []
    for row in rows:
        texts = [*row["evaluators"], str(row["num_questions"]), str(row["num_one_only"])]
        texts += [number(row["agreement"]), signed(row["kappa"]), signed(row["spearman"])]
        if has_humans:
            texts += [str(row["first_right"]), str(row["second_right"]), p_text(row["sign_test_p"])]
        lines.append(list(map(Cell, texts)))
    return Table(columns, lines, notes, num_names=2)


def preferred_table(task: Task, rows: list[dict[str, Any]]) -> Table:
    groups = [group for group in task.groups if any(group in row["groups"] for row in rows)]
    columns = ["Judge", "Strategy", "Saw", "Pairs", "Left out", "Ties", "Right", "95% interval", *groups, "Swap rate"]
    lines = []
    for row in rows:
        texts = [row["name"], row["strategy"], f"{', '.join(row['saw'])} (upper bound)" if row["saw"] else "–"]
        texts += [str(row["num_pairs"]), str(row["num_left_out"]), str(row["num_ties"])]
        texts += [number(row["share"]), interval_text(row["interval"], number)]
        for part in map(row["groups"].get, groups):
            texts.append(f"{number(part['share'])} {interval_text(part['interval'], number)}" if part else "–")
        lines.append(list(map(Cell, [*texts, number(row["position_swap_rate"])])))
    is_clustered = any(row["num_clusters"] < row["num_pairs"] for row in rows)
    notes = [
        "Right: share of the pairs in which the chosen response has the higher score or, in pairwise, is preferred in "
        "both orders; ties count half: equal scores, or a preference that flips with the order (swap rate).",
        share_intervals_note(task.user_field if is_clustered else ""),
        "Left out: pairs without both scores, or without a preference in both orders.",
        "Saw: fields that the judge reads, but a reward model must not; such a judge is only an upper bound.",
        f"Published: {BEST_PUBLISHED:.2%} by the best reward model (arXiv 2604.07343, abstract), to compare with the "
        "pairs of Personalized RewardBench only; that share counts ties as losses; here, they count half.",
        *[NOT_COMPARED] * (len(rows) > 1),
    ]
    return Table(columns, lines, notes, num_names=3)


def rankings_table(figures: dict[str, Any], evaluators: list[Evaluator]) -> Table:
    means = {
        name: judge_means
        for pair in figures["pairs"]
        for name, judge_means in zip(pair["judges"], pair["means"], strict=True)
    }
    rows = zip(*(map(number, means[evaluator.name]) for evaluator in evaluators), strict=True)
    lines = [list(map(Cell, [system, *row])) for system, row in zip(figures["systems"], rows, strict=True)]
    units, notes = "questions", []
    if figures["num_clusters"] < figures["num_questions"]:
        units = f"{figures['num_clusters']} values of {evaluators[0].task.user_field} with all their questions"
    for pair in figures["pairs"] if len(figures["systems"]) >= LEAST_RANKED else ():
        names = {"spearman": "Spearman's correlation", "kendall": "Kendall's tau-b"}
        texts = [f"{word} {signed(pair[key])} {interval_text(pair[f'{key}_interval'])}" for key, word in names.items()]
        texts = ["no correlation, because a judge's means are all equal"] if pair["spearman"] is None else texts
        notes.append(f"{pair['judges'][0]} and {pair['judges'][1]}: {', '.join(texts)}.")
    if notes:
        notes.append(
            "Correlations compare the systems' order by mean score: 1 if both judges rank them the same. 95% intervals "
            f"are by a percentile bootstrap over {units}, for these systems."
        )
    notes += [
        f"Means over {count_noun(figures['num_questions'], 'question')}; left out, because a judge gave a system no "
        f"score: {figures['num_left_out']}.",
        *[
            f"{judge.name} saw fields that only a scorer may see: {', '.join(judge.saw)}."
            for judge in evaluators
            if judge.saw
        ],
    ]
    return Table(["System", *(f"{judge.name} ({judge.strategy})" for judge in evaluators)], lines, notes)


def verdicts_table(figures: dict[str, Any]) -> Table | None:
    """Return a table of the agreement of each pair of judges on single verdicts; None if no pair shares any."""
    rows = []
    for pair in figures["pairs"]:
        if (verdicts := pair["verdicts"]) is not None:
            texts = [*pair["judges"], str(verdicts["num_questions"]), str(verdicts["num_verdicts"])]
            texts += [number(verdicts["same"]), signed(verdicts["kappa"]), interval_text(verdicts["kappa_interval"])]
            texts += [signed(verdicts["alpha"]), interval_text(verdicts["alpha_interval"])]
            rows.append(list(map(Cell, texts)))
    note = (
        "Verdicts that both judges gave on the same part of the same response. Same: share of equal ones. Kappa: "
        "Cohen's, weighted by squared distance. Alpha: Krippendorff's, on an interval scale. Intervals: bootstrap over "
        "questions."
    )
    columns = ["Judge", "Judge", "Questions", "Verdicts", "Same", "Kappa", "95% interval", "Alpha", "95% interval"]
    return Table(columns, rows, [note], num_names=2) if rows else None


def describe_humans(human: dict[str, Any]) -> str:
    named, most = len(human["raters"]), human["num_raters"]
    raters = count_noun(max(named, most), "rater")
    if named > most:
        raters += f", at most {most} per question"
    elif human["num_rated_by_all"] < human["num_questions"]:
        questions = count_noun(human["num_questions"], "question")
        raters += f" for {human['num_rated_by_all']} of {questions}, fewer for the others"
    text = f"Humans, {raters}: first {human['first']}, second {human['second']}, tie {human['tie']}"
    if most > 1:
        text += f"; {human['no_majority']} of the ties because there is no majority"
        if named > most:
            text += ". Raters differ by question: utils/human_evaluation.py --collect prints the agreement of each pair"
        elif most == 2:
            whom = "two raters" if named else "first and second choices"
            text += f". Cohen's kappa of the {whom}: {signed(human['kappa'])} (the paper's two raters: {PAPER_KAPPA})"
    return f"{text}."


def describe_left_out(row: dict[str, Any]) -> str | None:
    missing = "result" if row["strategy"] == "pairwise" else "score of both systems"
    counts = {
        "rated but not in the files": row["not_in_files"],
        f"rated but without a {missing}": row["unscored"],
        "scored but not rated": row["not_rated"],
    }
    parts = [f"{count} {reason}" for reason, count in counts.items() if count]
    return f"{row['name']}: questions left out: {', '.join(parts)}." if parts else None
