"""Files of responses and of plans: assemble, read and check them, and match them with the dataset.

A response file is `{question id: [{"output": text or null, ...}, ...]}`, a file of plans
`{question id: [{"aspects": [title, ...] or null, ...}, ...]}`. Unknown fields are kept. Other people's answers are
also read: CSV files, if a benchmark's public code writes them, and LaMP's own format.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from utils.base.errors import UserError, count_noun, describe_missing, first_five, kind, quote
from utils.base.json_files import read_json
from utils.base.manifest import manifest_of, settings_of
from utils.benchmarks.checks import Text, check_form, check_id, comparable, selection_of
from utils.benchmarks.lampqa.plans import plan_text
from utils.benchmarks.readers import one_line
from utils.benchmarks.task import Task
from utils.benchmarks.thoughts import UNFINISHED_COUNT
from utils.data.originals import read_golds
from utils.data.tables import is_table, table_rows

Responses = dict[str, list[dict[str, Any]]]  # the content of a response file, or of a file of plans

CONTROLS_SCRIPT = "utils/make_controls.py"
UNUSABLE = "unusable_calls"  # field: by role of a method's models, the numbers of unusable calls and of all calls
WITHOUT_PROFILE = "answers for users without a profile"  # count of RAG's answers to users without posts


def collect_responses(
    records: list[dict[str, Any]], answers: dict[tuple[str, int], dict[str, Any]], field: str = "output"
) -> dict[str, list[dict[str, Any]]]:
    """Return the response file's content from answers by (question id, output number), in the dataset's order.

    A question keeps only the answers before its first missing one, so that an answer's index is its number. With
    `field` "aspects", the content is that of a file of plans; otherwise an answer also has its question's hash.
    """
    hashes = {record["id"]: {"question_hash": question_hash(record)} for record in records} if field == "output" else {}
    responses: dict[str, list[dict[str, Any]]] = {record["id"]: [] for record in records}
    for question_id, number in sorted(answers, key=lambda key: key[1]):
        if number == len(responses[question_id]):
            answer = dict(answers[question_id, number])
            responses[question_id].append({field: answer.pop("value"), **answer, **hashes.get(question_id, {})})
    return {question_id: outputs for question_id, outputs in responses.items() if outputs}


def question_hash(record: dict[str, Any]) -> str:
    """Return a hash of what was asked: the question and its options."""
    shown = [record.get("question"), record.get("options")]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def refuse_other_questions(path: str | Path, responses: dict[str, Any], records: Iterable[dict[str, Any]]) -> None:
    """Raise UserError if a response answers a question that is worded differently in these records."""
    differing = [
        record["id"]
        for record in records
        if (digest := (responses.get(record["id"]) or [{}])[0].get("question_hash")) and digest != question_hash(record)
    ]
    if differing:
        raise UserError(
            f"{path}: answers different questions from the dataset's with the same ids: {first_five(differing)}\n"
            "  the dataset has changed since: rank it again if it is ranked, then make the responses again"
        )


def count_responses(responses: dict[str, list[dict[str, Any]]], item_words: str = "posts") -> dict[str, int]:
    """Count answers by outcome, for the manifest and a script's last line."""
    outputs = [output for outputs in responses.values() for output in outputs]
    missing = sum(output["output"] is None for output in outputs)
    questions_cut = sum(output.get("question_cut", False) for output in outputs)
    trimmed = [output["num_contexts_trimmed"] for output in outputs if "num_contexts_trimmed" in output]
    unmatched = sum("no_shared_words" in search for output in outputs for search in output.get("searches", ()))
    return {
        "questions": len(responses),
        "answers": len(outputs) - missing,
        "without an answer": missing,
        "repaired": sum(output.get("parsed") == "repaired" for output in outputs),
        "truncated": sum(output.get("truncated", False) for output in outputs),
        f"{item_words} left out for length": sum(output.get("num_contexts_dropped", 0) for output in outputs),
        **({f"{item_words} trimmed": sum(trimmed)} if trimmed else {}),
        **({"questions cut": questions_cut} if questions_cut else {}),
        **({"queries without a shared word": unmatched} if unmatched else {}),
    }


class _Response(msgspec.Struct):
    output: str | None
    raw: str | None = None


class _Plan(msgspec.Struct):
    aspects: list[Text] | None
    raw: str | None = None


def read_responses(path: str | Path, task: Task | None = None) -> dict[str, list[dict[str, Any]]]:
    """Read a response file; UserError unless every question has at least one object with an `output`.

    A file in LaMP's own format, as utils/export_predictions.py writes it, has one response per question.

    Args:
        task: the task that is answered. None: tables are refused, and the task of LaMP's files is not checked.
    """
    if is_table(path):
        return _read_table(path, task)
    content = read_json(path)
    if is_lamps_own(content):
        golds = zip(read_golds(task, path).items(), content["golds"], strict=True)
        content = {question_id: [{"output": output, **selection_of(gold)}] for (question_id, output), gold in golds}
    return _check_samples(content, path, _Response, 'responses look like {"question id": [{"output": "text"}]}')


def is_lamps_own(content: Any) -> bool:
    """Return whether a file's content is in LaMP's own format, where `task` is a text. Ours have only lists."""
    return isinstance(content, dict) and isinstance(content.get("task"), str)


def _read_table(path: str | Path, task: Task | None) -> dict[str, list[dict[str, Any]]]:
    """Return each row's response by question id; UserError, naming the row, if one is invalid or an id is repeated."""
    if task is None or task.files.read_answer is None:
        of_task = f" for {task.name}" if task else ""
        raise UserError(f"{path}: a CSV file; responses{of_task} must be JSON")
    responses: dict[str, list[dict[str, Any]]] = {}
    places: dict[str, str] = {}
    for where, row in table_rows(Path(path)):
        question_id, response = task.files.read_answer(row, where)
        if question_id in responses:
            before = places[question_id].rpartition(": ")[2]
            raise UserError(f"{where}: id {quote(question_id)} is also in {before}; use one answer per question")
        responses[question_id], places[question_id] = [response], where
    if not responses:
        raise UserError(f"{path}: has no answers")
    return responses


def read_plans(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Read a file of plans; UserError unless every question has at least one plan, a list of titles or null."""
    return _check_samples(read_json(path), path, _Plan, 'plans look like {"question id": [{"aspects": ["title"]}]}')


def refuse_plans_of_others(plans_addr: str, plans: dict[str, Any], responses: dict[str, Any], where: str) -> None:
    """Raise UserError if a response was prompted with a different plan from the one in the file of plans.

    Responses without a field `plan` are not checked. `where` names the response files in the message.
    """
    for question_id, answers in responses.items():
        for answer, plan in zip(answers, plans.get(question_id, ()), strict=False):
            if "plan" in answer and not _has_plan(answer["plan"], plan):
                raise UserError(
                    f"{plans_addr}: id {quote(question_id)}: not the plan with which {where} was made\n"
                    "  use the plans of these responses, <output>.plans.json"
                )


def _has_plan(prompted: Any, plan: dict[str, Any]) -> bool:
    """Return whether a prompt's plan (None if it had none) is this plan of a file, by its titles or its text."""
    if not plan["aspects"] or prompted is None:
        return not plan["aspects"] and prompted is None
    titles = [one_line(title) for title in plan["aspects"]]
    listed = [line[2:] for line in str(prompted).splitlines() if line.startswith("- ")]  # after a lead-in
    return prompted in (plan_text(titles), plan.get("raw")) or listed == titles


def _check_samples(samples: Any, path: str | Path, form: type, expected: str) -> dict[str, list[dict[str, Any]]]:
    """Return `samples`; UserError, ending with `expected`, unless each question has a list of objects of this form."""
    if not isinstance(samples, dict):
        raise UserError(f"{path}: found {kind(samples)}; {expected}")
    for question_id, outputs in samples.items():
        where = f"{path}: id {quote(question_id)}"
        if not isinstance(outputs, list) or not outputs:
            raise UserError(f"{where}: found {kind(outputs)}; {expected}")
        check_form(outputs, list[form], where)
    by_id = {check_id(question_id, str(path)): outputs for question_id, outputs in samples.items()}
    if len(by_id) < len(samples):
        same = Counter(map(comparable, samples)).most_common(1)[0][0]
        raise UserError(f"{path}: two questions with id {quote(same)}; ids must be unique")
    return by_id


def match_responses(
    questions: list[dict[str, Any]],
    responses: dict[str, Any],
    path: str | Path,
    dataset_ids: Iterable[str],
    allow_partial: bool = False,
) -> list[dict[str, Any]]:
    """Return the questions that have a response.

    UserError if a question has no response, a response's id is not in the dataset, or a response is to another
    question with the same id; the error names the first five and the remedy. With `allow_partial`, questions may lack a
    response, but not all of them.
    """
    refuse_other_questions(path, responses, questions)
    ids = set(dataset_ids)
    missing = [question["id"] for question in questions if question["id"] not in responses]
    foreign = [question_id for question_id in responses if question_id not in ids]
    if not foreign and (not missing or (allow_partial and ids & responses.keys())):
        return [question for question in questions if question["id"] in responses]
    if foreign and allow_partial and ids & responses.keys():
        subject, them = ("id {} is", "it") if len(foreign) == 1 else ("ids {} are", "them")
        problem = f"{subject.format(first_five(foreign))} not in the dataset"
        raise UserError(f"{path}: {problem}; remove {them}, or use the dataset of these responses")
    lines = [f"{path}: its ids do not match the dataset; use the dataset that these responses were made from"]
    if missing and not foreign and len(missing) < len(questions):
        lines = [f"{path}: some questions have no response; add --allow_partial to score the others"]
    if missing:
        lines.append(f"  {count_noun(len(missing), 'question')} without a response: {first_five(missing)}")
    if foreign:
        lines.append(
            f"  {count_noun(len(foreign), 'response')} without a question in the dataset: {first_five(foreign)}"
        )
    raise UserError("\n".join(lines))


def answers_to(responses: list[dict[str, list[dict[str, Any]]]], question_id: str, sample: int = 0) -> list[str | None]:
    """Return each response file's response to a question as a text; `sample` is the response's number."""
    return [answers[question_id][sample]["output"] for answers in responses]


def are_answered(outputs: Iterable[str | None]) -> list[bool]:
    return [bool(output and output.strip()) for output in outputs]


def refuse_gaps(path: str | Path) -> None:
    """Raise UserError if the manifest beside a response file says that answers are missing.

    Answers are missing if a server failed, or if a user's own method raised an error.
    """
    manifest = manifest_of(path)
    if manifest is not None and (count := manifest.get("missing")):
        again, raised = "it" if count == 1 else "them", manifest.get("raised")
        cause = f"the method failed on {count_noun(raised, 'question')}" if raised else "the server failed"
        first = "fix the method, then run" if raised else "run"
        raise UserError(
            f"{path}: {describe_missing(count, 'answer', cause)}\n"
            f"  {first} the command that made the file again to retry {again}, or add --allow_partial to score the rest"
        )


def default_metric(task: Task, paths: Iterable[str]) -> str:
    """Return the default metric of response files: the task's first, or the first official one for encoder-decoders.

    UserError if only some files are by encoder-decoders and the two metrics differ.
    """
    ours, official = (task.metric_names(is_official)[0] for is_official in (False, True))
    if ours == official:
        return ours
    # Only encoder-decoders use beam search, as LaMP does. A missing file is reported by its reader.
    is_by_beams = [Path(path).is_file() and "num_beams" in settings_of(path) for path in paths]
    metrics = {official if is_official else ours for is_official in is_by_beams}
    if len(metrics) > 1:
        raise UserError(
            f"--response_addr: some files are by an encoder-decoder, which is scored by {official}, and some are not\n"
            f"  score each kind separately, or set one --strategy for all: {ours} or {official}"
        )
    return metrics.pop()


def as_read(responses: dict[str, list[dict[str, Any]]], field: str) -> dict[str, list[dict[str, Any]]]:
    """Return the responses as a metric that reads `field` sees them: `output` is the text of `field`, if it has one."""
    if field == "output":
        return responses

    def read(response: dict[str, Any]) -> dict[str, Any]:
        return {**response, "output": response[field]} if isinstance(response.get(field), str) else response

    return {key: list(map(read, outputs)) for key, outputs in responses.items()}


def origin_of(path: str) -> dict[str, Any] | None:
    """Return how a file's responses were generated, according to the manifest beside it; None without a manifest."""
    manifest = manifest_of(path)
    if manifest is None:
        return None
    settings = manifest["settings"]
    prompts = settings.get("prompt", {})
    origin = {"chose_checkpoint": True} if settings.get("chose_checkpoint") else {}
    origin |= {name: settings[name] for name in ("selected_by", "saw", "rewarded_by") if name in settings}
    origin |= {"control": True} if settings.get("script") == CONTROLS_SCRIPT else {}
    origin |= {name: manifest[name] for name in (UNFINISHED_COUNT,) if name in manifest}
    without_profile = manifest.get("counts", {}).get(WITHOUT_PROFILE)
    origin |= {WITHOUT_PROFILE: without_profile} if without_profile else {}
    by_role = manifest.get("calls") or {}  # of a method's models
    unusable = {
        role: [counts["unusable"], counts["num_calls"]] for role, counts in by_role.items() if counts.get("unusable")
    }
    origin |= {UNUSABLE: unusable} if unusable else {}
    # Beam search follows no schema.
    decoding = "never" if "num_beams" in settings else settings.get("constrained_decoding", "not known")
    decoding = f"no text, by {settings['choose']}" if settings.get("choose") else decoding
    return {"prompt": prompts, "constrained_decoding": decoding, **origin}
