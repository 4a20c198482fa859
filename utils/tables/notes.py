"""Notes below a table, and the summary line of a score file."""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

from prompts import FOLDER, load_prompt
from utils.base.errors import count_noun, count_plural, plural, printable, quote
from utils.base.manifest import manifest_of
from utils.benchmarks.lampqa.task import PUBLIC_CODE, VERBATIM
from utils.benchmarks.readers import one_line
from utils.benchmarks.task import ALL, Task
from utils.benchmarks.thoughts import UNFINISHED_COUNT
from utils.data.responses import UNUSABLE, WITHOUT_PROFILE
from utils.data.scores import Scores, judges_of, metric_of, strategy_in_words
from utils.tables.columns import MACRO, column_means, columns_of, points_of
from utils.tables.formats import few, number, p_text
from utils.tables.groups import NO_GROUP, with_own_groups
from utils.tables.significance import sign_test
from utils.tables.system_scores import (
    CONTROL,
    SAMPLE,
    SELECTED,
    Board,
    System,
    average_samples,
    unanswered_samples,
    unscored_parts,
    when_seen,
)

NOT_KNOWN = "not known"
PUBLISHED = ("the paper's", "the public code's")

Wordings = dict[str, dict[str, dict[str, None]]]  # by prompt (or kind of output), wording, and system


def print_notes(notes: Iterable[str]) -> None:
    """Print notes to stderr, for output formats without notes."""
    print("".join(f"note: {printable(note)}\n" for note in notes), file=sys.stderr, end="")


def notes_on(boards: list[Board], unscored_as_zero: bool = False) -> list[str]:
    """Return notes on everything that readers must know about the systems besides the numbers."""
    notes = dict.fromkeys(board.note(note) for board in boards for note in _notes_on_board(board, unscored_as_zero))
    for name in boards[0].rows:
        if unscored := [board.title for board in boards if name not in [system.name for system in board.systems]]:
            notes[f"{name}: no scores of {'; '.join(unscored)}."] = None
    judged = [board for board in boards if board.metric.judge]  # computed metrics have no judge to describe
    return [*notes, *judge_notes(path for board in judged for system in board.systems for path in system.files)]


def judge_notes(paths: Iterable[str]) -> list[str]:
    """Return a note on the score files without a valid manifest, whose judge is unknown; no note without such files."""
    unknown = [path for path in paths if manifest_of(path) is None]
    note = f"Judge and prompt unknown: {few(unknown)} (no manifest, or changed since)."
    return [note] if unknown else []


def _notes_on_board(board: Board, unscored_as_zero: bool) -> Iterator[str]:
    systems, task = board.systems, board.task
    for system in systems:
        yield from (f"{system.name}: {note}." for note in _notes_on_system(system, unscored_as_zero))
    if (strategy := strategy_in_words(next(iter(systems[0].files.values())))) != board.metric_name:
        yield f"Verdicts differ in kind from the paper's: {strategy}."
    if board.metric.lower_is_better:
        yield "Scores are errors: lower is better."
    words = [f"{system.name} {system.mean_words:.0f}" for system in systems if system.mean_words is not None]
    if words and board.metric.judge:
        yield f"Mean words per answer: {', '.join(words)}. Judges may prefer long answers (--length)."
    overall = next(name for name in (task.overall, MACRO, task.groups[0]) if name in columns_of(task))
    means = {system: column_means(system)[overall] for system in systems}
    scored = [system for system in systems if means[system] is not None]
    controls, ordinary = ([system for system in scored if system.excluded == kind] for kind in (CONTROL, ""))
    if controls and ordinary:
        best = min if board.metric.lower_is_better else max
        control, system = (best(some, key=means.get) for some in (controls, ordinary))
        yield (
            f"In the column {overall}, the best control, {control.name}, has {number(means[control])}; "
            f"the best system, {system.name}, {number(means[system])}."
        )
    if without_group := {e["id"] for system in systems for e in system.entries if e["group"] == NO_GROUP}:
        yield f"{count_noun(len(without_group), 'question')} without a {task.group_words[0]}, only in the column {ALL}."
    if unplaced := {e["id"]: e for system in systems for e in system.entries if e["group"] is None}.values():
        group, _, subgroup = task.group_words
        names = ", ".join(sorted({quote(entry.get("subgroup")) for entry in unplaced}))
        yield (
            f"Warning: {count_noun(len(unplaced), 'question')} in no column, because the {group} is unknown for "
            f"{subgroup} {one_line(names)}; {task.files.facts} lists the {plural(subgroup)}."
        )
    all_ids = set().union(*(system.scored_ids for system in systems))
    unscored = {system.name: len(all_ids) - len(system.scored_ids) for system in systems}
    parts = ", ".join(f"{name} lacks {count} of {len(all_ids)}" for name, count in unscored.items() if count)
    if (among := systems[0].among) is None and parts:
        yield f"Warning: no question was scored for all systems, so their numbers are not comparable: {parts}."
    elif among is not None and all_ids - among:
        parts = parts or f"{len(all_ids) - len(among)} of {len(all_ids)} lack a score by some metric"
        yield f"Means are over the {count_noun(len(among), 'question')} scored for all systems: {parts}."


def _notes_on_system(system: System, unscored_as_zero: bool) -> Iterator[str]:
    metric = system.metric
    if metric.unit == SAMPLE:
        number = sum(len(entry["details"]) for entry in system.questions)
        unanswered = sum(map(unanswered_samples, system.questions))
        missing = f"; {unanswered} of them without an answer, which count {metric.worst}" if unanswered else ""
        yield f"the means over {count_noun(number, SAMPLE)} of {count_noun(len(system.questions), 'question')}{missing}"
    counts_as = {
        "question": (system.num_unanswered, " without an answer"),
        "unreadable answer": (sum(map(metric.is_unreadable, system.questions)), ""),
    }
    for noun, (count, without) in counts_as.items():
        if count:
            yield f"{count_noun(count, noun)}{without}, which count{'s' if count == 1 else ''} {metric.worst}"
    if raw_json := system.num_raw_json:
        yield f"{count_noun(raw_json, 'answer')} left as JSON, which has more words than the text inside"
    if truncated := system.num_truncated:
        yield f"{count_noun(truncated, 'answer')} cut off at --max_tokens, scored like complete ones"
    if system.num_without_plan:
        yield f"{count_noun(system.num_without_plan, 'answer')} without a usable plan, made from the posts alone"
    if system.excluded:
        only = ", and is compared only as a baseline" if system.excluded == CONTROL else ""
        yield f"{system.excluded}; it has neither bold nor daggers{only}"
    if missing := system.unscored:
        units, questions = count_noun(sum(missing), metric.unit), count_noun(len(missing), "question")
        treatment = "they count 0" if unscored_as_zero else "these questions are left out of its means"
        treatment = "they are left out of their questions' means" if metric.unit == SAMPLE else treatment
        yield f"{units} without a verdict, in {questions}; {treatment}"
    manifests = [manifest_of(path) or {} for path in system.files]
    origins = [origin or {} for manifest in manifests for origin in manifest.get("answers") or []]
    counts = {"answer": origins, "verdict": manifests}
    counts = {noun: sum(run.get(UNFINISHED_COUNT, 0) for run in runs) for noun, runs in counts.items()}
    if unfinished := " and ".join(count_noun(count, noun) for noun, count in counts.items() if count):
        yield f"{unfinished} missing, because thoughts were unfinished"
    if without_profile := sum(origin.get(WITHOUT_PROFILE, 0) for origin in origins):
        yield f"{count_plural(without_profile, WITHOUT_PROFILE)}, made from the question alone"
    by_role = {role: pair for origin in origins for role, pair in origin.get(UNUSABLE, {}).items()}
    for role, (unusable, calls) in by_role.items():
        yield f"{unusable} of {count_noun(calls, 'call')} to its {role} unusable"
    judges = set().union(*(judges_of(manifest.get("settings", {})) for manifest in manifests))
    if judges & {judge for origin in origins for judge in origin.get("rewarded_by", ())}:
        yield "trained or chosen by scores of the same judge that scores it here, so it may be overrated"
    if any("chose_checkpoint" in origin for origin in origins):
        yield "optimistic, because its generator was trained or chosen on these questions"
    yield from dict.fromkeys(describe_selection(origin["selected_by"]) for origin in origins if "selected_by" in origin)
    trained = [origin["saw"]["fields"] for origin in origins if when_seen(origin) == "training"]
    for fields in dict.fromkeys(map(", ".join, trained)):
        yield f"saw {fields} in training"
    if partial := [path for path, scores in system.files.items() if scores.get("partial")]:
        yield f"partly scored in {few(partial)}"
    if empty := [question["id"] for question in system.questions if not question["details"]]:
        yield f"{count_noun(len(empty), 'question')} without {plural(metric.unit)}, not scored: {few(empty)}"


def describe_selection(by: dict[str, Any]) -> str:
    """Describe how utils/select_responses.py selected responses; `by` is `selected_by` of their manifest."""
    if "learnt" in by:
        return f"each response is the best of {by['samples']} by a ranker that learned from scores ({by['learnt']})"
    which = f"the {by['which']} of {by['samples']} by the scores of {by['judge'] or by['strategy']}"
    unscored = f"; {count_noun(by['unscored'], 'sample')} had no score" if "unscored" in by else ""
    return f"each response is {which}, which saw {', '.join(by['saw']) or 'no rubric'}{unscored}"


# The wording of the prompts behind score files, and constrained decoding, according to the manifests. Some prompts have
# this project's own wording (prompts/README.md), which matters for comparisons with published scores.


def wording_note(systems: list[System]) -> str:
    """Return a note on wordings and constrained decoding for a table with the paper's numbers."""
    judge, answers, constrained = _wordings(systems)
    if any(system.metric.judge for system in systems):
        text = f"Wording of the judge's prompt: {_listed(judge)}; of the answers': {_listed(answers)}."
    else:
        text = f"Wording of the answers' prompts: {_listed(answers)}."
        del constrained["judge"]
    shown = {words for table in (judge, answers) for by_words in table.values() for words in by_words}
    if not shown <= {*PUBLISHED}:
        text += " Scores may not be comparable with the paper's."
    usual = {name.rpartition("/")[2] for name in systems[0].task.prompts.values() if systems[0].task.ways}
    if names := [name for prompt in usual & answers.keys() for named in answers[prompt].values() for name in named]:
        text += f" Without --asking official, which asks as the paper's code does: {', '.join(names)}."
    return f"{text} Constrained decoding: {_listed(constrained)}; the paper's code has none."


def wording_columns(systems: list[System]) -> dict[str, str]:
    """Return one row's wordings and constrained decoding as CSV columns, because a CSV file has no notes."""
    names = ("Judge prompt", "Answer prompts", "Constrained decoding")
    return dict(zip(names, map(_listed, _wordings(systems)), strict=True))


def _wordings(systems: list[System]) -> tuple[Wordings, Wordings, Wordings]:
    """Collect the wordings of the judge's and the answers' prompts, and --constrained_decoding of both."""
    tables: tuple[Wordings, Wordings, Wordings] = {}, {}, {}
    for system in systems:
        for manifest in (manifest_of(path) or {"settings": {}} for path in system.files):
            settings, [origin] = manifest["settings"], manifest.get("answers") or [None]
            answers = origin or {"prompt": {}, "constrained_decoding": NOT_KNOWN}
            writes = not (settings.get("verdicts") or system.metric.is_unbounded)
            judged = settings.get("constrained_decoding", NOT_KNOWN) if writes else "no text"
            facts = [
                {name: wording(name, digest) for name, digest in prompts.items()} or {"prompt": NOT_KNOWN}
                for prompts in (settings.get("prompt", {}), answers["prompt"])
            ]
            facts.append({"judge": judged, "answers": answers["constrained_decoding"]})
            for table, words_by_name in zip(tables, facts, strict=True):
                for name, words in words_by_name.items():
                    table.setdefault(name, {}).setdefault(words, {})[system.name] = None
    return tables


@cache
def wording(name: str, digest: str) -> str:
    """Return the origin of a prompt's wording, by its name and hash: one of `PUBLISHED`, "our own" or "another"."""
    if digest == PUBLIC_CODE.get(name):
        return "the public code's"
    if digest not in {hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob(f"*/{name}.txt")}:
        return "another"
    return "the paper's" if name in VERBATIM and digest == load_prompt(f"lampqa/{name}").digest else "our own"


def _listed(table: Wordings) -> str:
    """Return a list such as `rag the paper's, planpers our own (PlanPers), another (Ours)`."""
    parts = []
    for name, systems_by_words in table.items():
        by_system = ", ".join(f"{words} ({', '.join(names)})" for words, names in systems_by_words.items())
        parts.append(f"{name} {by_system if len(systems_by_words) > 1 else next(iter(systems_by_words))}")
    return ", ".join(parts)


# The summary line of a score file


def describe_scores(
    task: Task, score_addr: str, scores: Scores, tokens: dict[str, int | None], origins: Iterable[dict[str, Any] | None]
) -> str:
    """Return a score file's summary line: the mean score or the wins, with all caveats."""
    text = f"{score_addr}: {describe_wins(scores) if 'wins' in scores else describe_mean(task, scores)}"
    if "partial" in scores:
        text += f"; partial: {scores['partial']['questions_judged']} of {scores['partial']['questions_in_dataset']}"
    usable = [origin for origin in origins if origin]  # see `origin_of`
    if shown := [", ".join(origin["saw"]["fields"]) for origin in usable if when_seen(origin) == "test"]:
        text += f"; an upper bound, because the system sees {shown[0]}"
    if any("chose_checkpoint" in origin for origin in usable):
        text += "; optimistic: the generator was trained or chosen on these questions"
    if tokens["prompt_tokens"] and tokens["cached_tokens"] is not None:
        text += f"; {tokens['cached_tokens'] / tokens['prompt_tokens']:.0%} of prompt tokens were cached"
    return text


def describe_mean(task: Task, scores: Scores) -> str:
    mean = "none" if scores["score"] is None else f"{scores['score']:z.4f}"
    text = f"score {mean} over {count_noun(scores['num_scored_questions'], 'question')}{describe_average(task, scores)}"
    if "num_orders" in scores:
        text += f"; {scores['score_over_orders']:z.4f} as the mean over {scores['num_orders']} orders of the options"
    if "num_identical_to_right" in scores:
        text += (
            f"; {count_noun(scores['num_identical_to_right'], 'question')} with two options that have the right text"
        )
    metric = metric_of(task, scores)[1]
    if scores["num_unanswered"]:
        among = "more" if metric.is_unbounded else "of them"
        text += f"; {scores['num_unanswered']} {among} without an answer, counted {metric.worst}"
    if "num_truncated" in scores:
        text += f"; {scores['num_truncated']} cut off at --max_tokens, scored like complete ones"
    if "num_raw_json" in scores:
        text += f"; {scores['num_raw_json']} left as JSON"
    if "num_without_plan" in scores:
        text += f"; {scores['num_without_plan']} without a usable plan"
    if "num_selected" in scores:
        text += f"; {scores['num_selected']} {SELECTED}, so not comparable"
    if unreadable := sum(map(metric.is_unreadable, scores["per_question_scores"])):
        text += f"; {count_noun(unreadable, 'answer')} unreadable, counted {metric.worst}"
    if scores["num_unscored"]:
        text += f"; {count_noun(scores['num_unscored'], metric.unit)} unscored"
        text += "" if metric.is_unbounded else f" (as zeros: {scores['score_unscored_as_zero']:z.4f})"
    if scores.get("mean_entropy") is not None:
        text += f"; mean entropy {scores['mean_entropy']:.2f} bits, {scores['mean_outside']:.1%} outside the verdicts"
    if "num_verdicts" in scores:
        alpha, missing = scores["krippendorff_alpha_interval"], scores["num_missing_verdicts"]
        merged, agreement = "majority" if metric.is_share else "means", "none" if alpha is None else f"{alpha:.3f}"
        text += f"; {merged} of {scores['num_verdicts']} verdicts, self-agreement {agreement}"
        text += f", {count_noun(missing, 'verdict')} missing" if missing else ""
    if scores.get("questions_without_aspects"):
        text += f"; without aspects, left out: {', '.join(scores['questions_without_aspects'])}"
    if any("samples" in entry for entry in scores["per_question_scores"]) and not metric.pooled:
        entries = average_samples(scores)["per_question_scores"]
        known = [entry["score"] for entry in entries if entry["score"] is not None]
        by_sample = replace(metric, unit=SAMPLE)
        left_out = [
            (sum(unscored_parts(by_sample, entry) for entry in entries), "without a score"),
            (sum(map(unanswered_samples, entries)), "without an answer"),
        ]
        counts = ", ".join(f"{count} {what}" for count, what in left_out if count)
        number = count_noun(sum(len(entry["details"]) for entry in entries), SAMPLE)
        text += f"; mean of the questions' means over {number} {f'{fmean(known):z.4f}' if known else 'none'}"
        text += f" ({counts})" if counts else ""
    return text


def describe_average(task: Task, scores: Scores) -> str:
    """Return the macro average, or the interval of the mean over all questions, in words; empty if undefined."""
    task, files = with_own_groups(task, {"": scores})
    if {MACRO, ALL} & {*task.groups} and len(task.groups) > 1:
        return ""  # a category has the name of a column; tables say how to rename it
    system = System("", task, metric_of(task, scores)[0], files)
    if task.overall is not None:
        interval = points_of(system)[task.overall].interval
        return "" if interval is None else f" (95% interval {interval[0]:z.4f} to {interval[1]:z.4f})"
    if (average := column_means(system).get(MACRO)) is None:
        return ""
    return f" (macro: {average:z.4f} over {len(task.groups)} {task.group_words[1]})"


def describe_wins(scores: Scores) -> str:
    rate = "none" if scores["position_swap_rate"] is None else f"{scores['position_swap_rate']:.0%}"
    text = f"the first system wins {scores['wins']}, ties {scores['ties']}, loses {scores['losses']} "
    text += f"of {count_noun(scores['num_scored_questions'], 'question')}; position-swap rate {rate}"
    if any(scores["num_unanswered"]):
        first, second = scores["num_unanswered"]
        text += f"; not judged: {first} without the first system's answer, {second} without the second's"
    if scores["num_unscored"]:
        unscored = scores["num_questions"] - scores["num_scored_questions"]
        missing = scores["num_unscored"]
        text += f"; {count_noun(unscored, 'question')} unscored, because {count_noun(missing, 'verdict')} "
        text += "is missing" if missing == 1 else "are missing"
    if (test := sign_test(scores["wins"], scores["losses"])) is not None:
        text += f"; sign test p = {p_text(test['p'])}"
    return text
