"""Reading and checking of datasets, with exact error messages.

A dataset is a JSON array (or JSON Lines, in a file named *.jsonl) of records; each benchmark's file says what its
records hold. Fields we don't know are kept.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from utils.benchmarks import FIRST, task_of, tasks
from utils.benchmarks.checks import check_field, check_id, check_json
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import first_five, kind, quote
from utils.cli.progress import announce_file
from utils.records.contexts import open_profile
from utils.records.stream import stream_records


def read_dataset(path: str | Path, needs: Iterable[str] = ()) -> list[Record]:
    """Return the records of a dataset in file order, ids as strings, each checked for id, question and needed fields.

    `needs` is what the script uses later, as `Task.check` takes it. A UserError names file, record and field.
    """
    return list(DatasetFile(path).scan(needs))


class DatasetFile:
    """The questions of a dataset on disk, each read when it is asked for by its number."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.ids: list[str] = []  # of the questions, in file order; filled by `scan`
        self.task: Task | None = None  # their benchmark; likewise
        self._needs: tuple[str, ...] = ()  # of `scan`
        self._places: list[tuple[int, int]] = []  # offset and length in bytes of each record

    def scan(self, needs: Iterable[str] = ()) -> Iterator[Record]:
        """Yield every record, checked as by `read_dataset`; afterwards each can be read again by its number."""
        self.ids, self._places, self._needs = [], [], tuple(needs)
        numbers: dict[str, int] = {}
        announce_file("reading", self.path)
        for number, (record, *place) in enumerate(stream_records(self.path)):
            check_record(record, f"{self.path}: record {number}", self._needs)
            if record["id"] in numbers:
                both = f"records {numbers[record['id']]} and {number} both have id {quote(record['id'])}"
                raise UserError(f"{self.path}: {both}; ids are unique")
            numbers[record["id"]] = number
            first = {"task": self.task.name if self.task else record.get("task", FIRST)}
            self.task = task_of(str(self.path), [first, record])
            self.ids.append(record["id"])
            self._places.append(tuple(place))
            yield with_profile(record, self.path, self._needs)
        if not self.ids:
            raise UserError(f"{self.path}: holds no questions")

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Record:
        """Return the record of this number, its id a string; UserError where the file was changed since."""
        offset, length = self._places[number]
        try:
            with open(self.path, "rb") as file:
                file.seek(offset)
                record = json.loads(file.read(length).decode())
            record["id"] = str(record["id"])
        except (OSError, ValueError, TypeError, KeyError):
            record = {"id": None}
        if record["id"] != self.ids[number]:
            raise UserError(f"{self.path}: was changed while it was read; run the same command again")
        return with_profile(record, self.path, self._needs)


def read_questions(path: str | Path, needs: Iterable[str], num_items: int | None = None) -> list[Record]:
    """`read_dataset` without unused parts of profiles, which may take gigabytes.

    Args:
        num_items: items, from the first, that are used of a profile; None: all where `needs` names it, else none.
    """
    file, needs, records = DatasetFile(path), tuple(needs), []
    for record in file.scan(needs):
        if isinstance(record.get("profile"), list):
            is_whole = num_items is None and "profile" in file.task.fields_for(needs)
            record["profile"] = record["profile"][: None if is_whole else num_items or 0]
        records.append(record)
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
    """Return a checked record of this file, with its context if its profile refers to one and is needed.

    UserError where it cannot be had. This is the one place that follows such a reference.
    """
    if not isinstance(record.get("profile"), dict) or "profile" not in task_of(str(path), [record]).fields_for(needs):
        return record
    return {**record, "profile": open_profile(record, Path(path))}


def refuse_shared_ids(datasets: Mapping[str, Collection[str]]) -> None:
    """Raise UserError if an id is in two datasets of one table, given by path with their ids.

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
    """Return the first `limit` records, and of these the ones in the shard; file order is kept."""
    return [r for r in records[:limit] if shard_of(r["id"], num_shards) == shard_index]


def shard_of(question_id: str, num_shards: int) -> int:
    """Return a question's shard, by a hash of its id, so that it does not depend on the file's order."""
    return int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:8], "big") % num_shards
