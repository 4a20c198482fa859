"""Score files: assemble them from verdicts, read and check them.

A score file is `{"task", "strategy", "score", "num_questions", ..., "per_question_scores": [entry, ...]}`. `task` is
left out for the first task, `strategy` for a task's first metric. An entry is `{"id", "group", "subgroup",
"question_sha256", "answered", "score", "details"}`, and has `cluster`, the question's user, if the dataset names users.
`words` is the number of words of the answer, null without one. With --samples all, an entry has `samples`, the score of
each response (null if the judge gave no verdict), `sample_words`, and `unanswered_samples`, the number of missing
answers, which is left out if it is 0; the other fields are about the first response. A question is listed once all its
responses have their verdicts.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from utils.base.errors import UserError, quote
from utils.base.json_files import read_json
from utils.base.made import Key
from utils.base.manifest import file_hash, manifest_of, settings_of
from utils.benchmarks import FIRST, task_of, tasks
from utils.benchmarks.checks import Record, check_field, check_form, check_id, comparable, selection_of
from utils.benchmarks.lampqa.pairwise import SYSTEMS, pair_result, result_by_default
from utils.benchmarks.metric import Metric
from utils.benchmarks.scoring import Verdict
from utils.benchmarks.task import Task
from utils.data.responses import Responses

CARRIED = ("num_truncated", "num_selected", "num_without_plan", "num_raw_json")
RAW_JSON = re.compile(r"\s*(?:```(?:json)?\s*)?\{\s*\"")  # the beginning of an answer that is wrapped in a JSON object

Scores = dict[str, Any]
Entry = dict[str, Any]  # of `per_question_scores`
COMBINED = "utils/combine_scores.py"  # the script that writes rewards
SampleScores = dict[str, list[float | None]]  # by question id, in the order of the samples; None: no score


def score_file(
    task: Task,
    name: str,
    records: list[Record],
    asked_ids: Collection[str],
    verdicts: Mapping[Key, Verdict],
    samples: Mapping[str, list[Mapping[Key, Verdict]]] | None = None,
    head: Mapping[str, Any] = MappingProxyType({}),
) -> Scores:
    """Return a score file's content: the questions that have all their verdicts, in the dataset's order.

    Args:
        name: the metric's name.
        records: the whole dataset.
        asked_ids: ids of this run's questions; a question that needs no verdicts is listed only if it is one of them.
        verdicts: by `Metric.keys`; the verdict on a missing answer is `no_answer`.
        samples: with --samples all, by question id, the verdicts on each response; `verdicts` are on the first.
        head: further fields, from `carried` and `Metric.over_outputs`.
    """
    metric = task.metrics[name]

    def judged(record: Record, verdicts: Mapping[Key, Verdict]) -> dict[str, Any] | None:
        keys = metric.keys(record)
        if not (verdicts.keys() >= set(keys) if keys else record["id"] in asked_ids):
            return None
        return metric.entry(record, metric.merge_draws([verdicts[key] for key in keys]))

    per_question = []
    for record in records:
        entries = [judged(record, of_response) for of_response in (samples or {}).get(record["id"], [verdicts])]
        if None in entries:
            continue
        per_question.append({**identity(task, metric, record), **entries[0]})
        if samples is not None:
            per_question[-1]["samples"] = [entry["score"] for entry in entries]
            if unanswered := sum(not entry["answered"] for entry in entries):
                per_question[-1]["unanswered_samples"] = unanswered
    scores = {} if task.name == FIRST else {"task": task.name}
    scores |= metric.summarize(per_question) | metric.describe_uncertainty(per_question) | head
    if len(per_question) < len(records):
        scores["partial"] = {"questions_in_dataset": len(records), "questions_judged": len(per_question)}
    return {**scores, "per_question_scores": per_question}


def carried(questions: Iterable[Record], responses: Mapping[str, list[dict[str, Any]]]) -> dict[str, int]:
    """Return counts of questions' responses for a score file's head, without the zeros.

    Returns:
        num_truncated: answers that were cut at --max_tokens and are scored as they are.
        num_selected: responses that were selected by their scores (utils/select_responses.py).
        num_without_plan: answers by PlanPers without a usable plan.
        num_raw_json: answers that are still wrapped in JSON; they are longer, and so may score higher.
    """
    firsts = [responses[question["id"]][0] for question in questions]
    truncated = sum(bool(first.get("truncated") and (first["output"] or "").strip()) for first in firsts)
    selected = sum(bool(selection_of(first)) for first in firsts)
    without_plan = sum("no_plan" in first for first in firsts)
    raw_json = sum(RAW_JSON.match(first["output"] or "") is not None for first in firsts)
    counts = (truncated, selected, without_plan, raw_json)
    return {name: count for name, count in zip(CARRIED, counts, strict=True) if count}


def add_words(entries: list[Entry], responses: Mapping[str, list[dict[str, Any]]], all_samples: bool) -> None:
    """Add to each question's entry `words`, the number of words of its first response, None for a missing answer.

    With `all_samples`, also `sample_words`, those of each response. Words are separated by white space.
    """
    for entry in entries:
        outputs = [response["output"] for response in responses[entry["id"]]]
        counts = [len(output.split()) or None if isinstance(output, str) else None for output in outputs]
        entry |= {"words": counts[0], **({"sample_words": counts} if all_samples else {})}


def identity(task: Task, metric: Metric, record: Record) -> dict[str, Any]:
    """Return an entry's id, groups, cluster and hash of what the judge sees; equal hashes make entries comparable."""
    judged = [*metric.judge_inputs(record), *([] if metric.parts is None else [metric.parts(record)])]
    digest = hashlib.sha256(json.dumps(judged).encode()).hexdigest()
    cluster = {} if (user := record.get(task.user_field)) is None else {"cluster": comparable(user)}
    return {"id": record["id"], **task.group_of(record), **cluster, "question_sha256": digest}


def metric_of(task: Task, scores: Scores) -> tuple[str, Metric | None]:
    """Return the name of a score file's metric, and the metric: None if the task has none of that name."""
    name = scores.get("strategy", next(iter(task.metrics)))
    return name, task.metrics.get(name) if isinstance(name, str) else None


def metric_behind(scores: Scores) -> Metric:
    """Return the metric of a score file that `read_scores` returned."""
    return tasks()[scores["task"]].metrics[scores["strategy"]]


def seen_by(scores: Scores) -> list[str]:
    """Return the fields that the metric of `scores` (from `read_scores`) needs and only the scorer may see."""
    return [name for name in metric_behind(scores).needs if name in tasks()[scores["task"]].hidden_fields]


def strategy_in_words(scores: Scores) -> str:
    """Return the strategy of `scores` (from `read_scores`), and how its verdicts were made if that is unusual."""
    name, metric = metric_of(tasks()[scores["task"]], scores)
    if "verdicts" in scores:
        return f"{name}, {scores['verdicts']}"
    number = scores.get("num_verdicts", 1)
    return name if number == metric.num_samples else f"{name}, {number} verdicts"


class _Entry(msgspec.Struct):
    """The fields that are read from every entry."""

    question_sha256: str
    group: str | None
    cluster: str | None = None
    words: Annotated[int, msgspec.Meta(ge=1)] | None = None
    sample_words: list[Annotated[int, msgspec.Meta(ge=1)] | None] = []


class _Detail(msgspec.Struct):
    """Any object; `Metric.score_of` checks its fields."""


class _Scored(_Entry, kw_only=True):
    answered: bool
    details: list[_Detail]


class _Order(msgspec.Struct):
    preferred: Literal[SYSTEMS] | None


class _Compared(_Entry, kw_only=True):
    answered: Annotated[list[bool], msgspec.Meta(min_length=2, max_length=2)]
    details: list[_Order]


def read_scores(path: str | Path, pairs: bool = False, unscored_as_zero: bool = False) -> Scores:
    """Read a score file; UserError unless every question has the score, or the result, that its verdicts give.

    The returned file always has `task`, `strategy` and every entry's group.

    Args:
        pairs: also accept a comparison of two systems, whose questions have a result instead of a score.
        unscored_as_zero: count missing verdicts as 0, so that their questions have a score too.
    """
    scores = read_json(path)
    if not isinstance(scores, dict) or not isinstance(scores.get("per_question_scores"), list):
        raise UserError(
            f"{path}: not a score file: it has no list 'per_question_scores'\n"
            "  use files that evaluate_responses.py wrote to its --score_addr"
        )
    task = task_of(str(path), [scores])
    name, metric = metric_of(task, scores)
    if metric is None or not (metric.score_of or pairs):
        singles = [other for other, candidate in task.metrics.items() if candidate.score_of is not None]
        raise UserError(
            f"{path}: its strategy is {quote(name)}, which does not score a single system\n"
            f"  use files of strategy {' or '.join(singles)}"
        )
    if unscored_as_zero and metric.is_unbounded:
        raise UserError(f"--unscored_as_zero: {path} has rewards, and 0 is not the lowest reward; remove the flag")
    if "num_unanswered" not in scores or not scores["per_question_scores"]:
        raise UserError(
            f"{path}: has no questions or no 'num_unanswered'; remove the file, or judge the responses again"
        )
    for number, entry in enumerate(scores["per_question_scores"]):
        where = f"{path}: per_question_scores, item {number}"
        if not isinstance(entry, dict) or "id" not in entry:
            raise UserError(f"{where}: not a scored question, because it has no field 'id'")
        entry["id"] = check_id(entry["id"], where)
        _check_entry(task, metric, entry, f"{path}: question {quote(entry['id'])}")
        if unscored_as_zero and metric.score_of and entry["score"] is None:
            entry["score"] = metric.score_of(entry["details"], True)
    return {**scores, "task": task.name, "strategy": name}


def judges_of(settings: Mapping[str, Any]) -> set[str]:
    """Return the identities of the judges of a score file, or of rewards made from it, from its settings."""
    return {*settings.get("judges", ()), settings.get("judge")} - {None}


def refuse_scores_of_others(score_addr: str, response_addrs: Iterable[str]) -> None:
    """Raise UserError if the manifest of a score file names none of these response files as they are now.

    Scores without a manifest are not checked.
    """
    judged = settings_of(score_addr).get("responses")
    response_addrs = list(response_addrs)
    if judged is not None and judged not in map(file_hash, response_addrs):
        files = " or ".join(response_addrs)
        raise UserError(
            f"{score_addr}: not the scores of {files}, according to the manifest beside it\n"
            "  use the scores of these responses, or judge them again if they have changed"
        )


def _check_entry(task: Task, metric: Metric, entry: Record, where: str) -> None:
    """Raise UserError unless an entry is as `read_scores` needs it; derive its group from its fields if it has none.

    If the metric needs users, the entry must name its user, or intervals and tests would treat it as independent.
    """
    if "group" not in entry:
        entry |= task.group_of(entry)
    check_form(entry, _Scored if metric.score_of else _Compared, where)
    if entry["group"] is not None and entry["group"] not in task.groups:
        raise UserError(f"{where}: field 'group' is {quote(entry['group'])}, not a group of {task.name}")
    if entry["group"] is not None and "subgroup" in entry:
        check_field(entry, where, "subgroup", str)
    if task.user_field in metric.needs and "cluster" not in entry:
        again = "run evaluate_responses.py again, with --overwrite"
        raise UserError(f"{where}: has no field 'cluster' with the question's {task.user_field}\n  {again}")
    if metric.score_of:
        _check_score(metric, entry, where)
        _check_samples(metric, entry, where)
        return
    answered, orders = entry["answered"], [detail["preferred"] for detail in entry["details"]]
    if all(answered) and len(orders) != 2:
        raise UserError(f"{where}: field 'details' must have both orders of a pairwise comparison")
    expected = pair_result(*orders) if all(answered) else result_by_default(answered)
    if entry.get("result", "missing") != expected:
        raise UserError(f"{where}: its result is {quote(entry.get('result'))}, but its verdicts give {quote(expected)}")


def _check_score(metric: Metric, entry: Record, where: str) -> None:
    """Raise UserError unless an entry's score is the one that its details give."""
    try:
        expected = metric.score_of(entry["details"], False)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if not all("score" in detail for detail in entry["details"]):
        raise UserError(f"{where}: field 'details' has an item without 'score'")
    score = entry.get("score")
    if score is None or expected is None:
        is_right = score is expected
    else:
        is_right = _is_score(metric, score) and math.isclose(score, expected, abs_tol=1e-9)
    if not is_right:
        raise UserError(f"{where}: its score is {quote(score)}, but its {metric.unit}s give {expected}")
    if not entry["answered"] and score and not metric.lower_is_better:
        raise UserError(f"{where}: its score is {quote(score)} without an answer; it must be 0")


def _check_samples(metric: Metric, entry: Record, where: str) -> None:
    """Raise UserError unless an entry's `samples`, if it has any, are scores that begin with the entry's own."""
    samples = entry.get("samples", [entry["score"]])
    if not isinstance(samples, list) or not all(score is None or _is_score(metric, score) for score in samples):
        raise UserError(f"{where}: field 'samples' is not a list of scores, or null for a missing one")
    if samples[:1] != [entry["score"]]:
        raise UserError(f"{where}: field 'samples' does not begin with the score {quote(entry['score'])}")


def _is_score(metric: Metric, score: Any) -> bool:
    least, most = metric.limits
    return type(score) in (int, float) and least <= score <= most and abs(score) <= sys.float_info.max


def read_sample_scores(path: str, responses: Responses, response_addr: str) -> tuple[Scores, SampleScores]:
    """Return a score file's content and the scores of all samples of these responses.

    UserError unless the file was made from these responses, and has a score or null for each sample of its questions.
    """
    _check_source(path, response_addr)
    return _read(path, responses)


def read_rewards(path: str, responses: Responses, response_addr: str) -> SampleScores:
    """Return the rewards of all samples, higher is better, from a score file or a file of rewards.

    Scores of metrics where lower is better, such as LaMP-3's errors, are negated. UserError as in `read_sample_scores`.
    """
    if _check_source(path, response_addr)["settings"].get("script") == COMBINED:
        return read_json(path)["rewards"]
    scores, samples = _read(path, responses)
    if not metric_behind(scores).lower_is_better:
        return samples
    return {key: [None if score is None else -score for score in row] for key, row in samples.items()}


def _check_source(path: str, response_addr: str) -> dict[str, Any]:
    """Return the manifest of scores or rewards; UserError unless they are of this response file, and complete."""
    manifest = manifest_of(path)
    if manifest is None or "responses" not in manifest["settings"]:
        raise UserError(f"{path}: has no manifest beside it that names the responses; judge them again")
    if manifest.get("missing"):
        raise UserError(f"{path}: verdicts are missing because the server failed; run the judge's command again")
    refuse_scores_of_others(path, [response_addr])
    return manifest


def _read(path: str, responses: Responses) -> tuple[Scores, SampleScores]:
    scores = read_scores(path)
    samples = {entry["id"]: entry.get("samples", [entry["score"]]) for entry in scores["per_question_scores"]}
    for question_id, of_question in samples.items():
        if len(of_question) != (number := len(responses.get(question_id, ()))):
            raise UserError(
                f"{path}: id {quote(question_id)}: has {len(of_question)} of {number} samples' scores\n"
                "  judge the responses with --samples all"
            )
    return scores, samples
