"""Datasets: read them, check them, say exactly what is wrong.

A dataset is a JSON array (or JSON Lines, in a file named *.jsonl) of
`{id, question, narrative, category, rubric_aspects: [{aspect, evidence, reason}], profile: [{id, text, category}]}`.
Fields we don't know are kept.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from utils.cli import UserError
from utils.cli.errors import first_five, kind, quote
from utils.cli.progress import announce_file
from utils.files.json_files import read_json, read_json_lines

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
    records = read_json_lines(path) if path.suffix == ".jsonl" else read_json(path)
    if not isinstance(records, list):
        raise UserError(f"{path}: holds {kind(records)}; a dataset is a JSON array of questions")
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


def check_record(record: Any, where: str, needs: Iterable[str]) -> None:
    """Check one record of a dataset as `read_dataset` does, and make its id a string.

    Args:
        where: what an error begins with.
    """
    if not isinstance(record, dict):
        raise UserError(f"{where}: {kind(record)} where a question object belongs")
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
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise UserError(f"{where}: field 'id' is {kind(value)}; every question needs its own id, a string")
    return value


def _check_text(record: dict[str, Any], field: str, where: str) -> None:
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: field {field!r} is {kind(value)}; it must be a text")
    if not is_unicode(value):
        raise UserError(f"{where}: field {field!r} holds half a character (a lone surrogate); no model can read it")


def is_unicode(text: str) -> bool:
    """JSON can hold half of a surrogate pair as an escape; UTF-8 and tokenizers can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_profile(record: dict[str, Any], where: str) -> None:
    if not isinstance(record.get("profile"), list):
        raise UserError(f"{where}: field 'profile' is {kind(record.get('profile'))}; it must be a list of posts")
    for number, item in enumerate(record["profile"]):
        if not isinstance(item, dict):
            raise UserError(f"{where}: field 'profile', item {number} is {kind(item)}, not a post")
        name = f" (id {quote(item['id'])})" if "id" in item else ""
        _check_text(item, "text", f"{where}: field 'profile', item {number}{name}")


def _check_aspects(record: dict[str, Any], where: str) -> None:
    aspects = record.get("rubric_aspects")
    if not isinstance(aspects, list):
        raise UserError(f"{where}: field 'rubric_aspects' is {kind(aspects)}; it must be a list of aspects")
    for number, aspect in enumerate(aspects):
        spot = f"{where}: field 'rubric_aspects', item {number}"
        if not isinstance(aspect, dict):
            raise UserError(f"{spot} is {kind(aspect)}, not an aspect")
        _check_text(aspect, "aspect", spot)
        for field in ("evidence", "reason"):
            if aspect.setdefault(field, "") != "":
                _check_text(aspect, field, spot)


def select_questions(
    records: list[dict[str, Any]], limit: int | None = None, num_shards: int = 1, shard_index: int = 0
) -> list[dict[str, Any]]:
    """The first `limit` records, and of these the ones in the shard; file order is kept."""
    return [r for r in records[:limit] if shard_of(r["id"], num_shards) == shard_index]


def shard_of(question_id: str, num_shards: int) -> int:
    """The shard a question belongs to: by a hash of its id, so that it does not hang on the file's order."""
    return int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:8], "big") % num_shards
