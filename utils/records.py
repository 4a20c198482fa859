"""Datasets and response files: read them, check them, say exactly what is wrong.

A dataset is a JSON array (or JSON Lines, in a file named *.jsonl) of
`{id, question, narrative, category, rubric_aspects: [{aspect, evidence, reason}], profile: [{id, text, category}]}`.
A response file is `{question id: [{"output": text or null, ...}, ...]}`, a file of plans
`{question id: [{"aspects": [title, ...] or null, ...}, ...]}`; a score file is as utils/scoring.py makes it. Fields we
don't know are kept.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from utils.cli import UserError, describe_missing
from utils.model_output import LEVELS
from utils.progress import announce_file
from utils.run_files import manifest_of
from utils.scoring import question_score

FIELDS = ("profile", "narrative", "rubric_aspects")  # those that are checked only where a step reads them
STEP_NEEDS: dict[str, tuple[str, ...]] = {  # what each step reads of them; a judge's are its strategy's
    "rank": ("profile",),
    "train": ("profile", "rubric_aspects"),
    "none": (),
    "rag": ("profile",),
    "planpers": ("profile",),
    "planpers_gold": ("profile", "rubric_aspects"),
    "merge": (),
}


def read_dataset(path: str | Path, needs: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Read a dataset and check id and question of every record, and the fields in `needs`.

    Args:
        path: a JSON array, or JSON Lines where the name ends in .jsonl.
        needs: any of `FIELDS`: what the script goes on to use.

    Returns:
        The records in file order, ids as strings.

    Raises:
        UserError: naming the file, the record and the field.
    """
    path = Path(path)
    announce_file("reading", path)
    records = _read_lines(path) if path.suffix == ".jsonl" else read_json(path)
    if not isinstance(records, list):
        raise UserError(f"{path}: holds {_kind(records)}; a dataset is a JSON array of questions")
    if not records:
        raise UserError(f"{path}: holds no questions")
    seen: dict[str, int] = {}
    for number, record in enumerate(records):
        check_record(record, f"{path}: record {number}", needs)
        if record["id"] in seen:
            raise UserError(
                f"{path}: records {seen[record['id']]} and {number} both have id {quote(record['id'])}; ids are unique"
            )
        seen[record["id"]] = number
    return records


def refuse_shared_ids(datasets: Mapping[str, Collection[str]]) -> None:
    """Raise UserError where an id stands in two datasets that go into one table, given by path with their ids.

    A table would refuse the scores of both, when all else is done.
    """
    for (first, ids), (second, others) in combinations(datasets.items(), 2):
        if shared := [question_id for question_id in ids if question_id in others]:
            those = "an id stands" if len(shared) == 1 else f"{len(shared)} ids stand"
            raise UserError(
                f"{first} and {second}: {those} in both: {first_five(shared)}\n"
                "  one table cannot hold both: give every question an id of its own, in all categories"
            )


def read_json(path: str | Path) -> Any:
    """The JSON value in a file; UserError where there is none (says where it breaks off)."""
    text = _read_filled(path)
    try:
        return json.loads(text, object_pairs_hook=refuse_repeated_names)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        if error.msg == "Extra data":
            raise UserError(f"{path}: more than one JSON value ({where}); name JSON Lines *.jsonl") from None
        if not text[error.pos :].strip() or error.msg.startswith("Unterminated"):
            raise UserError(f"{path}: the JSON breaks off at {where}: the file is cut short") from None
        raise UserError(f"{path}: not JSON: {error.msg} at {where}") from None
    except _RepeatedNameError as error:
        raise UserError(f"{path}: {quote(error.args[0])} stands twice in one object; names are unique") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {beyond_python(error)}") from None


def beyond_python(error: Exception) -> str:
    """Why Python does not take what is JSON or TOML otherwise."""
    return "nested too deeply" if isinstance(error, RecursionError) else "holds a number of thousands of digits"


class _RepeatedNameError(ValueError):
    """json would silently keep the last of two values."""


def refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json's object_pairs_hook: the object, ValueError where a name stands twice in it."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedNameError(next(name for name in names if names.count(name) > 1))
    return result


def _read_lines(path: Path) -> list[Any]:
    records = []
    # Not splitlines(): a text may hold other line breaks (U+2028, U+0085) as they are.
    for number, line in enumerate(_read_filled(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line, object_pairs_hook=refuse_repeated_names))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: line {number} is not JSON: {error.msg} at column {error.colno}") from None
        except _RepeatedNameError as error:
            raise UserError(f"{path}: line {number}: {quote(error.args[0])} stands twice; names are unique") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: line {number}: {beyond_python(error)}") from None
    return records


def _read_filled(path: str | Path) -> str:
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    return text


def read_text(path: str | Path) -> str:
    """The text of a file; UserError where it is not UTF-8 (a byte order mark is fine) or cannot be read."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    return text.replace("\r\n", "\n")


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file; UserError where it is not there, is no regular file, or may not be read."""
    path = Path(path)
    try:
        if path.is_dir():
            raise UserError(f"{path}: a folder; give the file")
        if path.exists() and not path.is_file():
            # A pipe can be read only once, and every input is hashed too.
            raise UserError(f"{path}: a pipe or a device; give a regular file")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def check_record(record: Any, where: str, needs: Iterable[str]) -> None:
    """Check one record of a dataset as `read_dataset` does, and make its id a string.

    Args:
        where: what an error begins with.
    """
    if not isinstance(record, dict):
        raise UserError(f"{where}: {_kind(record)} where a question object belongs")
    record["id"] = _check_id(record.get("id"), where)
    where = f"{where} (id {quote(record['id'])})"
    _check_text(record, "question", where)
    if "narrative" in needs:
        _check_text(record, "narrative", where)
    if "profile" in needs:
        _check_profile(record, where)
    if "rubric_aspects" in needs:
        _check_aspects(record, where)
    _check_json(record, where)


def _check_json(record: dict[str, Any], where: str) -> None:
    """Fields we don't know are kept, so they must be such as can be written again."""
    try:
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: holds half a character (a lone surrogate); no file can") from None
    except ValueError:
        raise UserError(f"{where}: holds NaN or an infinite number; JSON has none") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None


def _check_id(value: Any, where: str) -> str:
    """Ids are strings; numbers are taken as their digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value or not _is_unicode(value):
        raise UserError(f"{where}: field 'id' is {_kind(value)}; every question needs its own id, a string")
    return value


def _check_text(record: dict[str, Any], field: str, where: str) -> None:
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: field {field!r} is {_kind(value)}; it must be a text")
    if not _is_unicode(value):
        raise UserError(f"{where}: field {field!r} holds half a character (a lone surrogate); no model can read it")


def _is_unicode(text: str) -> bool:
    """JSON can hold half of a surrogate pair as an escape; UTF-8 and tokenizers can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_profile(record: dict[str, Any], where: str) -> None:
    if not isinstance(record.get("profile"), list):
        raise UserError(f"{where}: field 'profile' is {_kind(record.get('profile'))}; it must be a list of posts")
    for number, item in enumerate(record["profile"]):
        if not isinstance(item, dict):
            raise UserError(f"{where}: field 'profile', item {number} is {_kind(item)}, not a post")
        name = f" (id {quote(item['id'])})" if "id" in item else ""
        _check_text(item, "text", f"{where}: field 'profile', item {number}{name}")


def _check_aspects(record: dict[str, Any], where: str) -> None:
    aspects = record.get("rubric_aspects")
    if not isinstance(aspects, list):
        raise UserError(f"{where}: field 'rubric_aspects' is {_kind(aspects)}; it must be a list of aspects")
    for number, aspect in enumerate(aspects):
        spot = f"{where}: field 'rubric_aspects', item {number}"
        if not isinstance(aspect, dict):
            raise UserError(f"{spot} is {_kind(aspect)}, not an aspect")
        _check_text(aspect, "aspect", spot)
        for field in ("evidence", "reason"):
            if aspect.setdefault(field, "") != "":
                _check_text(aspect, field, spot)


def _kind(value: Any) -> str:
    """What a wrong value is, in words."""
    if value is None:
        return "missing or null"
    if isinstance(value, str):
        return "an empty text" if not value.strip() else f"the text {value[:40]!r}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    return f"{json.dumps(value)}"


def select_questions(
    records: list[dict[str, Any]], limit: int | None = None, num_shards: int = 1, shard_index: int = 0
) -> list[dict[str, Any]]:
    """The first `limit` records, and of these the ones in the shard; file order is kept."""
    return [r for r in records[:limit] if shard_of(r["id"], num_shards) == shard_index]


def shard_of(question_id: str, num_shards: int) -> int:
    """The shard a question belongs to: by a hash of its id, so that it does not hang on the file's order."""
    return int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:8], "big") % num_shards


def collect_responses(
    records: list[dict[str, Any]], answers: dict[tuple[str, int], dict[str, Any]], field: str = "output"
) -> dict[str, list[dict[str, Any]]]:
    """The response file: answers by (question id, number of the output), put in the dataset's order.

    A question has its answers up to the first one that is missing: the i-th stays the i-th. With `field` "aspects" the
    file of plans.
    """
    responses: dict[str, list[dict[str, Any]]] = {record["id"]: [] for record in records}
    for question_id, number in sorted(answers, key=lambda key: key[1]):
        if number == len(responses[question_id]):
            answer = dict(answers[question_id, number])
            responses[question_id].append({field: answer.pop("value"), **answer})
    return {question_id: outputs for question_id, outputs in responses.items() if outputs}


def count_responses(responses: dict[str, list[dict[str, Any]]]) -> dict[str, int]:
    """What became of the answers, for the manifest and the last line a script prints."""
    outputs = [output for outputs in responses.values() for output in outputs]
    return {
        "questions": len(responses),
        "answers": sum(output["output"] is not None for output in outputs),
        "without an answer": sum(output["output"] is None for output in outputs),
        "repaired": sum(output.get("parsed") == "repaired" for output in outputs),
        "truncated": sum(output.get("truncated", False) for output in outputs),
        "posts left out for length": sum(output.get("num_contexts_dropped", 0) for output in outputs),
    }


def read_responses(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Read a response file; UserError unless every question has at least one object with an `output`."""
    responses = _read_samples(path, "response", "output", "...")
    for where, response in _each(responses, path, "response"):
        output = response["output"]
        if output is not None and not (isinstance(output, str) and _is_unicode(output)):
            raise UserError(f"{where}: 'output' is {_kind(output)}, not a text")
    return responses


def read_plans(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Read a file of plans; UserError unless every question has at least one, with a list of titles or null."""
    plans = _read_samples(path, "plan", "aspects", "[...]")
    for where, plan in _each(plans, path, "plan"):
        aspects = plan["aspects"]
        if aspects is not None and not isinstance(aspects, list):
            raise UserError(f"{where}: 'aspects' is {_kind(aspects)}, not a list of titles")
        for title in aspects or []:
            if not isinstance(title, str) or not title.strip() or not _is_unicode(title):
                raise UserError(f"{where}: 'aspects' holds {_kind(title)} for a title")
    return plans


def _read_samples(path: str | Path, noun: str, field: str, value: str) -> dict[str, list[dict[str, Any]]]:
    """A file `{question id: [{field: value}, ...]}` with at least one object a question."""
    samples = read_json(path)
    if not isinstance(samples, dict):
        raise UserError(f"{path}: holds {_kind(samples)}; {noun}s are an object {{question id: [{{{field}}}]}}")
    for question_id, its_samples in samples.items():
        if not isinstance(its_samples, list) or not its_samples:
            found = _kind(its_samples)
            raise UserError(f'{path}: id {quote(question_id)}: {found} where [{{"{field}": {value}}}] belongs')
    for where, sample in _each(samples, path, noun):
        if not isinstance(sample, dict) or field not in sample:
            raise UserError(f"{where} has no field {field!r}")
    return samples


def _each(samples: dict[str, list[Any]], path: str | Path, noun: str) -> Iterator[tuple[str, Any]]:
    """Every sample, with the words that name its place."""
    for question_id, its_samples in samples.items():
        for number, sample in enumerate(its_samples):
            yield f"{path}: id {quote(question_id)}: {noun} {number}", sample


def read_scores(path: str | Path) -> dict[str, Any]:
    """Read a score file; UserError unless every question has its aspects, and the score that their verdicts give.

    Direct scoring's have one level in place of the aspects. A pairwise comparison is refused: it has no scores; and so
    is a file of before missing answers counted 0.
    """
    scores = read_json(path)
    if not isinstance(scores, dict) or not isinstance(scores.get("per_question_scores"), list):
        raise UserError(
            f"{path}: not a score file: it has no list 'per_question_scores'\n"
            "  give files that evaluate_responses.py wrote to its --score_addr"
        )
    strategy = scores.get("strategy", "aspect")
    if strategy not in ("aspect", "direct"):
        raise UserError(
            f"{path}: its strategy is {quote(strategy)}, which scores no single system\n"
            "  give files of the strategies aspect or direct"
        )
    check_counts_unanswered(path, scores)
    for number, question in enumerate(scores["per_question_scores"]):
        if not isinstance(question, dict) or not isinstance(question.get("id"), str):
            raise UserError(f"{path}: per_question_scores, item {number}: not a scored question: it has no field 'id'")
        where = f"{path}: question {quote(question['id'])}"
        check = _check_level if strategy == "direct" else _check_scores
        check(question, where)
        check_digest(question, where)
        _check_answered(question, where)
    return scores


def check_counts_unanswered(path: str | Path, scores: dict[str, Any]) -> None:
    """Raise UserError for a score file of before: there a missing answer took its question out of the means."""
    if "num_unanswered" not in scores:
        raise UserError(
            f"{path}: doesn't say which answers are missing, which count 0 now and did not before\n"
            "  the evaluate_responses.py command that made it makes it anew and asks the judge nothing again\n"
            "  (where its journal was deleted, delete it too, and it is judged again)"
        )


def check_digest(question: dict[str, Any], where: str) -> None:
    """Raise UserError unless it says by a hash what the judge was shown of the question."""
    if not isinstance(question.get("question_sha256"), str):
        found = _kind(question.get("question_sha256"))
        raise UserError(f"{where}: field 'question_sha256' is {found}; judge the responses again")


def _check_answered(question: dict[str, Any], where: str) -> None:
    answered = question.get("answered")
    if type(answered) is not bool:
        raise UserError(f"{where}: field 'answered' is {_kind(answered)}; it must be true or false")
    if not answered and question["score"]:
        raise UserError(f"{where}: its score is {quote(question['score'])} without an answer, which is 0")


def _check_scores(question: dict[str, Any], where: str) -> None:
    details = question.get("details")
    if not isinstance(details, list) or not all(map(_is_scored_aspect, details)):
        raise UserError(f"{where}: field 'details' is not a list of scored aspects")
    try:
        expected = question_score([aspect["score"] for aspect in details]) if details else None
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if not _same_score(question.get("score"), expected):
        raise UserError(f"{where}: its score is {quote(question.get('score'))}, but its aspects give {expected}")


def _check_level(question: dict[str, Any], where: str) -> None:
    details = question.get("details")
    if not isinstance(details, list) or len(details) != 1 or not isinstance(details[0], dict):
        raise UserError(f"{where}: field 'details' is not one level of direct scoring")
    level = details[0].get("score")
    if level is not None and (type(level) not in (int, float) or level not in LEVELS):
        raise UserError(f"{where}: {quote(level)} is not a level: one of {', '.join(map(str, LEVELS))}, or null")
    if not _same_score(question.get("score"), level):
        raise UserError(f"{where}: its score is {quote(question.get('score'))}, but its level is {quote(level)}")


def _is_scored_aspect(value: Any) -> bool:
    return isinstance(value, dict) and "score" in value and isinstance(value.get("aspect"), str)


def _same_score(score: Any, expected: float | None) -> bool:
    if score is None or expected is None:
        return score is expected
    return type(score) in (int, float) and 0 <= score <= 1 and math.isclose(score, expected, abs_tol=1e-9)


def match_responses(
    questions: list[dict[str, Any]],
    responses: dict[str, Any],
    path: str | Path,
    dataset_ids: Iterable[str],
    allow_partial: bool = False,
) -> list[dict[str, Any]]:
    """Those of `questions` that have a response.

    Raises:
        UserError: a question has no response, or a response belongs to no question of the dataset; names the
            first five on each side and the remedy. With `allow_partial`, questions without a response are left
            out; foreign ids are still refused.
    """
    known = set(dataset_ids)
    missing = [question["id"] for question in questions if question["id"] not in responses]
    foreign = [question_id for question_id in responses if question_id not in known]
    if not foreign and (not missing or (allow_partial and known & responses.keys())):
        return [question for question in questions if question["id"] in responses]
    lines = [f"{path}: its ids are not the dataset's; give the dataset these responses were made from"]
    if missing and not foreign and len(missing) < len(questions):
        lines = [f"{path}: only a part of the questions has a response; --allow_partial scores that part"]
    if missing:
        lines.append(f"  {len(missing)} questions without a response: {first_five(missing)}")
    if foreign:
        lines.append(f"  {len(foreign)} responses to no question of the dataset: {first_five(foreign)}")
    raise UserError("\n".join(lines))


def refuse_gaps(path: str | Path) -> None:
    """Raise UserError where the manifest beside a response file says that a server failed to give some of it."""
    manifest = manifest_of(path)
    if manifest is not None and (count := manifest.get("missing")):
        again = "it" if count == 1 else "them"
        raise UserError(
            f"{path}: {describe_missing(count, 'answer')}\n"
            f"  the command that made the file asks for {again} again, or --allow_partial scores the rest"
        )


def first_five(ids: Iterable[str]) -> str:
    """The first five different ids, quoted, for an error message."""
    different = list(dict.fromkeys(ids))
    return ", ".join(quote(i) for i in different[:5]) + (", ..." if len(different) > 5 else "")


def quote(value: Any) -> str:
    """A value as it is shown in an error message: in one line, and not all of a long one."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
