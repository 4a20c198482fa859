"""Read and check datasets, with exact error messages.

A dataset is a JSON array (or JSON Lines, in a file named *.jsonl) of records. Each benchmark's module defines its
records' fields; unknown fields are kept. Files are read one record at a time, so even a file of a gigabyte only
takes the memory of its largest record."""

import codecs
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import IO, Any

from utils.base.errors import UserError, first_five, kind, quote
from utils.base.json_files import (
    LongLineError,
    read_json,
    read_json_lines,
    read_lines,
    read_text,
    refuse_repeated_names,
)
from utils.base.progress import LARGE, announce_file
from utils.benchmarks import FIRST, task_of, tasks
from utils.benchmarks.checks import Record, check_field, check_id, check_json, comparable
from utils.benchmarks.personamem.contexts import open_profile
from utils.benchmarks.task import Task
from utils.data.tables import is_table

CHUNK = 1 << 20  # bytes read at a time
_MARK = re.compile(r"[ \t\r\n]*([\[,\]])[ \t\r\n]*")
# The fields of a record that a script reads, or a function that returns these fields for a benchmark.
Needs = Sequence[str] | Callable[[Task], Iterable[str]]


def stream_records(path: Path) -> Iterator[tuple[Any, int, int]]:
    """Yield each record of a JSON array, or of JSON Lines in a *.jsonl file, with its offset and length in bytes.

    If the file is invalid, the records before the error come first, then a UserError.
    """
    end = 0
    try:
        if not path.is_file():  # opening a pipe would block
            raise FileNotFoundError(path)
        if is_table(path):
            command = f"python utils/import_dataset.py --questions {path} --posts FILE --output_addr {path.stem}.json"
            raise UserError(f"{path}: a CSV or TSV file, but a dataset is JSON; convert it: {command}")
        with open(path, "rb") as file:
            for record, start, length in stream_places(file, path.suffix):
                end = start + length
                yield record, start, length
    except LongLineError:
        raise
    except (OSError, ValueError, RecursionError):
        if path.is_file() and path.stat().st_size >= LARGE:  # reading it whole takes ten times its size in memory
            raise UserError(f"{path}: not a JSON array, or incomplete: cannot be read from byte {end} on") from None
        content = read_json_lines(path) if path.suffix == ".jsonl" else read_json(path)  # raises the exact error
        if content != []:
            raise UserError(f"{path}: found {kind(content)}; a dataset must be a JSON array of questions") from None


def stream_places(file: IO[bytes], suffix: str) -> Iterator[tuple[Any, int, int]]:
    """Yield records as `stream_records` does; ValueError or RecursionError if the file is invalid."""
    offset = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
    file.seek(offset)
    return _stream_lines(file, offset) if suffix == ".jsonl" else _stream_array(file, offset)


def stream_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a parquet file's rows, a few in memory at a time; ValueError or OSError if the file is damaged.

    The `datasets` library would hold whole row groups in memory: 1.8 GB instead of 140 MB.
    """
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, pre_buffer=False, buffer_size=CHUNK) as file:
        for batch in file.iter_batches(batch_size=16):
            yield from batch.to_pylist()


def _stream_lines(file: IO[bytes], offset: int) -> Iterator[tuple[Any, int, int]]:
    for line in read_lines(file):
        if line.strip():
            yield json.loads(line.decode(), object_pairs_hook=refuse_repeated_names), offset, len(line)
        offset += len(line)


def _stream_array(file: IO[bytes], offset: int) -> Iterator[tuple[Any, int, int]]:
    """Yield a JSON array's items one by one; ValueError if the file holds anything else."""
    reader = codecs.getreader("utf-8")(file)
    decode = json.JSONDecoder(object_pairs_hook=refuse_repeated_names).raw_decode
    text, place, before = "", 0, "["  # `offset` is the position in the file of `text[place]`
    while True:
        mark = _MARK.match(text, place)
        if mark and mark[1] == "]" and before == ",":
            break
        if mark and mark[1] == before:
            try:
                item, end = decode(text, mark.end())
            except json.JSONDecodeError:
                pass  # the item continues beyond the part read so far
            else:
                offset += mark.end() - place  # all ASCII
                length = len(text[mark.end() : end].encode())
                yield item, offset, length
                offset, place, before = offset + length, end, ","
                continue
        more = reader.read(max(CHUNK, len(text) - place))
        if not more:
            raise ValueError("no array, or cut short")
        text, place = text[place:] + more, 0
    if (text[mark.end() :] + reader.read()).strip():
        raise ValueError("something after the array")


def fields_of(needs: Needs, task: Task) -> set[str]:
    """Return the names of the needed fields; ValueError if the task lacks one, because the caller misspelt it."""
    names = set(needs(task) if callable(needs) else needs)
    if unknown := names - {*task.fields, *task.annotations, "question", task.group_field}:
        raise ValueError(f"{task.name} has no field {min(unknown)!r}")
    return names


def read_dataset(path: str | Path, needs: Needs = ()) -> list[Record]:
    """Return a dataset's records in file order, with string ids, checked for id, question and needed fields.

    A UserError for an invalid record names the file, the record and the field.
    """
    return list(DatasetFile(path).scan(needs))


def read_task(path: str | Path) -> Task:
    """Return the benchmark of a dataset's first record; UserError if it is not a question. No other record is read."""
    for record, *_ in stream_records(Path(path)):
        check_record(record, f"{path}: record 0", ())
        return task_of(str(path), [record])
    raise UserError(f"{path}: has no questions")


class DatasetFile:
    """The questions of a dataset on disk, each read by its number when needed."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.ids: list[str] = []  # question ids in file order; set by `scan`
        self.task: Task | None = None  # set by `scan`
        self._needs: Needs = ()  # set by `scan`
        self._places: list[tuple[int, int]] = []  # each record's offset and length in bytes
        self._version: list[int] = []  # of the file; set by `scan`

    def scan(self, needs: Needs = ()) -> Iterator[Record]:
        """Yield every record, checked as in `read_dataset`; afterwards, each record can be read again by its number."""
        self.ids, self._places, self._needs = [], [], needs
        numbers: dict[str, int] = {}
        announce_file("reading", self.path)
        self._version = _version(self.path) if self.path.is_file() else []
        for number, (record, *place) in enumerate(stream_records(self.path)):
            check_record(record, f"{self.path}: record {number}", self._needs)
            if record["id"] in numbers:
                both = f"records {numbers[record['id']]} and {number} both have id {quote(record['id'])}"
                raise UserError(f"{self.path}: {both}; ids must be unique")
            numbers[record["id"]] = number
            first = {"task": self.task.name if self.task else record.get("task", FIRST)}
            self.task = task_of(str(self.path), [first, record])
            self.ids.append(record["id"])
            self._places.append(tuple(place))
            yield with_profile(record, self.path, self._needs)
        if not self.ids:
            raise UserError(f"{self.path}: has no questions")

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Record:
        """Return the record with this number and a string id; UserError if the file has changed since `scan`."""
        offset, length = self._places[number]
        try:
            with open(self.path, "rb") as file:
                file.seek(offset)
                record = json.loads(file.read(length).decode())
                record["id"] = comparable(record["id"]) if _version(file.fileno()) == self._version else None
        except (OSError, ValueError, TypeError, KeyError):
            record = {"id": None}
        if record["id"] != self.ids[number]:
            raise UserError(f"{self.path}: changed while it was read; run the same command again")
        return with_profile(record, self.path, self._needs)


def _version(file: Path | int) -> list[int]:
    """Return values that change when a file is replaced or written again."""
    status = os.stat(file)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def read_questions(path: str | Path, needs: Needs, num_items: int | None = None) -> list[Record]:
    """Read a dataset without the unused parts of profiles, which may take gigabytes.

    Args:
        num_items: how many of a profile's first items to keep. None: all if `needs` has the profile, otherwise none.
    """
    file, records = DatasetFile(path), []
    for record in file.scan(needs):
        if isinstance(record.get("profile"), list):
            is_whole = num_items is None and "profile" in fields_of(needs, file.task)
            record["profile"] = record["profile"][: None if is_whole else num_items or 0]
        records.append(record)
    return records


def check_record(record: Any, where: str, needs: Needs) -> None:
    """Check one record as `read_dataset` does, and make its id a string; errors begin with `where`."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: found {kind(record)}, expected a question object")
    record["id"] = check_id(record.get("id"), where)
    where = f"{where} (id {quote(record['id'])})"
    task = tasks()[FIRST] if "task" not in record else task_of(where, [record])
    check_field(record, where, "question")
    task.check(record, where, fields_of(needs, task))
    check_json(record, where)


def with_profile(record: Record, path: str | Path, needs: Needs) -> Record:
    """Return a checked record of this file; if its profile is needed and refers to a context, open the profile.

    UserError if the context is missing or invalid. No other function follows references to contexts.
    """
    if isinstance(record.get("profile"), dict) and "profile" in fields_of(needs, task_of(str(path), [record])):
        return {**record, "profile": open_profile(record, Path(path))}
    return record


def refuse_shared_ids(datasets: Mapping[str, Collection[str]]) -> None:
    """Raise UserError if an id is in two datasets of one table; `datasets` holds each dataset's ids by its path.

    The table would refuse the scores of such datasets, but only after all answers are generated and judged.
    """
    for (first, ids), (second, others) in combinations(datasets.items(), 2):
        if shared := [question_id for question_id in ids if question_id in others]:
            subject = "an id is" if len(shared) == 1 else f"{len(shared)} ids are"
            raise UserError(
                f"{first} and {second}: {subject} in both: {first_five(shared)}\n"
                "  one table cannot include both: make ids unique across all categories"
            )


def select_questions(
    records: list[Record],
    limit: int | None = None,
    num_shards: int = 1,
    shard_index: int = 0,
    ids_addr: str | None = None,
) -> list[Record]:
    """Return one shard of the first `limit` records, in file order; a hash of a record's id decides its shard.

    With `ids_addr`, select only from records whose ids are in this text file, one per line; UserError if there are
    none.
    """
    if ids_addr is not None:
        ids = {comparable(line) for line in read_text(ids_addr).splitlines() if line.strip()}
        kept = [record for record in records if record["id"] in ids]
        if not kept:
            raise UserError(f"--ids_addr {ids_addr}: has none of the dataset's ids, such as {quote(records[0]['id'])}")
        records = kept
    return [record for record in records[:limit] if shard_of(record["id"], num_shards) == shard_index]


def shard_of(question_id: str, num_shards: int) -> int:
    """Return a question's shard, by a hash of its id, so that the file's order does not matter."""
    return int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:8], "big") % num_shards
