"""Datasets: read them, check them, say exactly what is wrong.

A dataset is a JSON array (or JSON Lines, in a file named *.jsonl) of records; each benchmark's file says what its
records hold. Fields we don't know are kept.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from utils.benchmarks import FIRST, task_of, tasks
from utils.benchmarks.checks import check_field, check_id, check_json
from utils.benchmarks.task import Record
from utils.cli import UserError
from utils.cli.errors import first_five, kind, quote
from utils.cli.progress import announce_file
from utils.files.json_files import read_json, read_json_lines
from utils.records.contexts import open_profile


def read_dataset(path: str | Path, needs: Iterable[str] = ()) -> list[Record]:
    """The records of a dataset in file order, ids as strings, each checked for id, question and what is needed of it.

    `needs` is what the script goes on to use, as `Task.check` takes it. A UserError names file, record and field.
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
        records[number] = with_profile(record, path, needs)
        if record["id"] in seen:
            raise UserError(
                f"{path}: records {seen[record['id']]} and {number} both have id {quote(record['id'])}; ids are unique"
            )
        seen[record["id"]] = number
    task_of(str(path), records)
    return records


def check_record(record: Any, where: str, needs: Iterable[str]) -> None:
    """Check one record as `read_dataset` does, and make its id a string; an error begins with `where`."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: {kind(record)} where a question object belongs")
    record["id"] = check_id(record.get("id"), where)
    where = f"{where} (id {quote(record['id'])})"
    task = tasks()[FIRST] if "task" not in record else task_of(where, [record])
    check_field(record, where, "question")
    task.check(record, where, needs)
    check_json(record, where)


def with_profile(record: Record, path: str | Path, needs: Iterable[str]) -> Record:
    """A checked record of this file; where its profile refers to a context and is needed, that stands there.

    UserError where it cannot be had. This is the one place that follows such a reference.
    """
    if not isinstance(record.get("profile"), dict) or "profile" not in task_of(str(path), [record]).fields_for(needs):
        return record
    return {**record, "profile": open_profile(record, Path(path))}


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


def select_questions(
    records: list[Record], limit: int | None = None, num_shards: int = 1, shard_index: int = 0
) -> list[Record]:
    """The first `limit` records, and of these the ones in the shard; file order is kept."""
    return [r for r in records[:limit] if shard_of(r["id"], num_shards) == shard_index]


def shard_of(question_id: str, num_shards: int) -> int:
    """The shard a question belongs to: by a hash of its id, so that it does not hang on the file's order."""
    return int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:8], "big") % num_shards
