"""What is told of a score file in a line."""

from utils.benchmarks.task import Task
from utils.records.scores import Scores, metric_of
from utils.tables.agreement import sign_test
from utils.tables.columns import MACRO, column_means, points_of
from utils.tables.formats import counted, p_text
from utils.tables.system_scores import SELECTED, System


def describe_scores(
    task: Task, score_addr: str, scores: Scores, tokens: dict[str, int | None], chose_checkpoint: bool = False
) -> str:
    """What is told of a score file when it is written: the mean, or who wins, and what is not in that."""
    text = f"{score_addr}: {describe_wins(scores) if 'wins' in scores else describe_mean(task, scores)}"
    if "partial" in scores:
        text += f"; a part: {scores['partial']['questions_judged']} of {scores['partial']['questions_in_dataset']}"
    if chose_checkpoint:
        text += "; optimistic: these questions chose the generator's checkpoint"
    if tokens["prompt_tokens"] and tokens["cached_tokens"] is not None:
        text += f"; {tokens['cached_tokens'] / tokens['prompt_tokens']:.0%} of prompt tokens from the cache"
    return text


def describe_mean(task: Task, scores: Scores) -> str:
    mean = "none" if scores["score"] is None else f"{scores['score']:.4f}"
    text = f"score {mean} over {counted(scores['num_scored_questions'], 'question')}{describe_average(task, scores)}"
    if "num_orders" in scores:
        text += f"; {scores['score_over_orders']:.4f} as the mean over {scores['num_orders']} orders of the options"
    metric = metric_of(task, scores)[1]
    if scores["num_unanswered"]:
        text += f"; {scores['num_unanswered']} of them without an answer, counted {metric.worst}"
    if "num_truncated" in scores:
        text += f"; {scores['num_truncated']} cut at --max_tokens, scored like whole ones"
    if "num_selected" in scores:
        text += f"; {scores['num_selected']} {SELECTED}: no fair system"
    if unreadable := sum(map(metric.is_unreadable, scores["per_question_scores"])):
        text += f"; {counted(unreadable, 'answer')} unreadable, counted {metric.worst}"
    if scores["num_unscored"]:
        unit = metric.unit
        text += f"; {counted(scores['num_unscored'], unit)} unscored (as zeros: {scores['score_unscored_as_zero']:.4f})"
    if scores.get("mean_entropy") is not None:
        text += f"; mean entropy {scores['mean_entropy']:.2f} bits, {scores['mean_outside']:.1%} outside the verdicts"
    if "num_verdicts" in scores:
        text += describe_agreement(scores)
    if scores.get("questions_without_aspects"):
        text += f"; without aspects, left out: {', '.join(scores['questions_without_aspects'])}"
    return text


def describe_agreement(scores: Scores) -> str:
    """How far the judge agrees with itself."""
    alpha, missing = scores["krippendorff_alpha_interval"], scores["num_missing_verdicts"]
    text = f"; means of {scores['num_verdicts']} verdicts, self-agreement {'none' if alpha is None else f'{alpha:.3f}'}"
    return text + (f", {counted(missing, 'verdict')} missing" if missing else "")


def describe_average(task: Task, scores: Scores) -> str:
    """Tell the average that a table has, or the interval of its mean over all questions; nothing without."""
    system = System("", task, metric_of(task, scores)[0], {"": scores})
    if task.overall is not None:
        interval = points_of(system)[task.overall].interval
        return "" if interval is None else f" (95% interval {interval[0]:.4f} to {interval[1]:.4f})"
    if (average := column_means(system).get(MACRO)) is None:
        return ""
    one, several, _ = task.group_words
    unplaced = len(system.entries) - len(system.questions)
    without = f", without {counted(unplaced, 'question')} of no known {one}" if unplaced else ""
    return f" (macro: {average:.4f} over {len(task.groups)} {several}{without})"


def describe_wins(scores: Scores) -> str:
    rate = "none" if scores["position_swap_rate"] is None else f"{scores['position_swap_rate']:.0%}"
    text = f"the first system wins {scores['wins']}, ties {scores['ties']}, loses {scores['losses']} "
    text += f"of {counted(scores['num_scored_questions'], 'question')}; position-swap rate {rate}"
    if any(scores["num_unanswered"]):
        first, second = scores["num_unanswered"]
        text += f"; {first} without the first's answer, {second} without the second's: nobody was asked"
    if scores["num_unscored"]:
        unscored = scores["num_questions"] - scores["num_scored_questions"]
        missing = scores["num_unscored"]
        text += f"; {counted(unscored, 'question')} unscored, for {counted(missing, 'verdict')} "
        text += "is missing" if missing == 1 else "are missing"
    if (test := sign_test(scores["wins"], scores["losses"])) is not None:
        text += f"; sign test p = {p_text(test['p'])}"
    return text
