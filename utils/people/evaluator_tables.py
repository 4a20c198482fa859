"""Tables of judges and reward models against humans, against each other, and on pairs with a known preference."""

from typing import Any

from utils.base.errors import counted
from utils.benchmarks.task import Task
from utils.people import agreement
from utils.people.agreement import Evaluator
from utils.tables.formats import NOT_COMPARED, Cell, Table, interval_text, number, p_text, signed
from utils.tables.score_table import share_intervals_note


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
        "Saw: fields that the judge reads and a reward model must not; the judge is an upper bound for reward models.",
        f"Published: {BEST_PUBLISHED:.2%} by the best reward model (arXiv 2604.07343, abstract), to compare with the "
        "pairs of Personalized RewardBench only; it counts ties as losses, here they count half.",
        *[NOT_COMPARED] * (len(rows) > 1),
    ]
    return Table(columns, lines, notes, num_names=3)


def rankings_table(figures: dict[str, Any], evaluators: list[Evaluator]) -> Table:
    means = {
        name: means_of_judge
        for pair in figures["pairs"]
        for name, means_of_judge in zip(pair["judges"], pair["means"], strict=True)
    }
    rows = zip(*(map(number, means[evaluator.name]) for evaluator in evaluators), strict=True)
    lines = [list(map(Cell, [system, *row])) for system, row in zip(figures["systems"], rows, strict=True)]
    units, notes = "questions", []
    if figures["num_clusters"] < figures["num_questions"]:
        units = f"{figures['num_clusters']} values of {evaluators[0].task.user_field} with all their questions"
    for pair in figures["pairs"]:
        names = {"spearman": "Spearman's correlation", "kendall": "Kendall's tau-b"}
        texts = [f"{word} {signed(pair[key])} {interval_text(pair[f'{key}_interval'])}" for key, word in names.items()]
        texts = ["no correlation, because a judge's means are all equal"] if pair["spearman"] is None else texts
        notes.append(f"{pair['judges'][0]} and {pair['judges'][1]}: {', '.join(texts)}.")
    notes += [
        "These compare the order of the systems by mean score; 1 if both judges rank them alike. Interval: 95%, by a "
        f"percentile bootstrap over {units}, for these systems.",
        f"Means over {counted(figures['num_questions'], 'question')}; left out, because a judge gave a system no "
        f"score: {figures['num_left_out']}.",
        *[
            f"{judge.name} saw fields that only a scorer may see: {', '.join(judge.saw)}."
            for judge in evaluators
            if judge.saw
        ],
    ]
    return Table(["System", *(f"{judge.name} ({judge.strategy})" for judge in evaluators)], lines, notes)


def describe_humans(human: dict[str, Any]) -> str:
    named, most = len(human["raters"]), human["num_raters"]
    raters = counted(max(named, most), "rater")
    if named > most:
        raters += f", at most {most} per question"
    elif human["num_rated_by_all"] < human["num_questions"]:
        questions = counted(human["num_questions"], "question")
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


PAPER_KAPPA = 0.726  # between the paper's two raters (section 5.2)
BEST_PUBLISHED = 0.7594  # share of Personalized RewardBench's pairs that a reward model gets right (arXiv 2604.07343)
