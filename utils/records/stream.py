"""Datasets read a record at a time: a file of a gigabyte takes no more memory than its largest record.

`read_dataset` in utils/records/datasets.py is the other reader: it holds the whole file, and says what is wrong.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from utils.benchmarks import FIRST, task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.progress import announce_file
from utils.files.json_files import LongLineError, read_lines, refuse_repeated_names
from utils.records.datasets import check_record, read_dataset, with_profile

CHUNK = 1 << 20  # bytes read at a time


class DatasetFile:
    """The questions of a dataset on disk, each read when it is asked for by its number."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.ids: list[str] = []  # of the questions, in file order; filled by `scan`
        self.task: Task | None = None  # their benchmark; likewise
        self._needs: tuple[str, ...] = ()  # of `scan`
        self._places: list[tuple[int, int]] = []  # offset and length in bytes of each record

    def scan(self, needs: Iterable[str] = ()) -> Iterator[Record]:
        """Every record, checked as `read_dataset` checks it; afterwards each can be read again by its number."""
        self.ids, self._places, self._needs = [], [], tuple(needs)
        seen = set()
        announce_file("reading", self.path)
        try:
            with open_regular(self.path) as file:
                for record, *place in stream_places(file, self.path.suffix):
                    check_record(record, str(self.path), needs)
                    if record["id"] in seen:
                        raise ValueError("an id twice")
                    seen.add(record["id"])
                    self.task = self.task or task_of(str(self.path), [record])
                    if record.get("task", FIRST) != self.task.name:
                        raise ValueError("two tasks")
                    self.ids.append(record["id"])
                    self._places.append(tuple(place))
                    yield with_profile(record, self.path, self._needs)
            if not self.ids:
                raise ValueError("no records")
        except LongLineError:
            raise
        except (OSError, ValueError, RecursionError, UserError):
            read_dataset(self.path, needs)  # says what is wrong, and where
            raise

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Record:
        """The record of this number, its id a string; UserError where the file was changed since."""
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
    """As `read_dataset`, but what a step does not use of profiles is left out: with long ones it is gigabytes.

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


def open_regular(path: Path) -> IO[bytes]:
    """The file, to be read; OSError where there is none, or a pipe, which would be waited for."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return open(path, "rb")


def stream_places(file: IO[bytes], suffix: str) -> Iterator[tuple[Any, int, int]]:
    """Each record of a dataset, with the offset and the length, in bytes, of where it stands.

    A file of the suffix ".jsonl" is JSON Lines, all else a JSON array; ValueError or RecursionError where it is not.
    """
    offset = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
    file.seek(offset)
    return _stream_lines(file, offset) if suffix == ".jsonl" else _stream_array(file, offset)


def stream_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file, some in memory at a time; ValueError or OSError where it is damaged.

    Not by `datasets`, which holds whole groups of rows: 1.8 GB where that is 140 MB.
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


_MARK = re.compile(r"[ \t\r\n]*([\[,\]])[ \t\r\n]*")


def _stream_array(file: IO[bytes], offset: int) -> Iterator[tuple[Any, int, int]]:
    """The items of a JSON array one by one; ValueError where the file is anything else."""
    reader = codecs.getreader("utf-8")(file)
    decode = json.JSONDecoder(object_pairs_hook=refuse_repeated_names).raw_decode
    text, place, before = "", 0, "["  # `offset` is the place's, in the file
    while True:
        mark = _MARK.match(text, place)
        if mark and mark[1] == "]" and before == ",":
            break
        if mark and mark[1] == before:
            try:
                item, end = decode(text, mark.end())
            except json.JSONDecodeError:
                pass  # goes on behind what is read so far
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
        raise ValueError("something behind the array")
