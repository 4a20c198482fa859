"""Read benchmarks' published files, downloaded or in a user's folder, as records.

LaMP: an array of questions `{id, input, profile}`, and a file of right answers `{"task": "LaMP_4", "golds": [{id,
output}]}`, which is withheld for test sets. LongLaMP's emails: as in LaMP, but the answers are a bare list. LongLaMP's
other tasks: rows `{input, output, profile}`; a row's id is made from the caller's prefix and the row's number.
PersonaMem: a table of questions, and a file of histories.
"""

import codecs
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from utils.base.errors import UserError, count_noun, first_five, kind, quote
from utils.base.json_files import read_json
from utils.benchmarks.checks import Record, check_form, check_id
from utils.benchmarks.task import Task
from utils.data.datasets import check_record, stream_parquet, stream_records
from utils.data.tables import is_table, table_rows


def read_originals(
    task: Task,
    questions_addr: str | Path | Sequence[Path],
    outputs_addr: str | Path | None = None,
    name: str = "",
    ids_repeat: bool = False,
) -> Iterator[Record]:
    """Yield the checked records of files of questions, one in memory at a time.

    Args:
        questions_addr: one file, or several to read one after the other.
        outputs_addr: the file of right answers, if the questions' files lack them.
        name: the prefix of ids for rows without ids, such as config and split.
        ids_repeat: accept repeated ids, and append a number to each repetition, starting with 2.

    Raises:
        UserError: a record is invalid; names the file, the record and the field.
    """
    golds = None if outputs_addr is None else read_golds(task, outputs_addr)
    files = [questions_addr] if isinstance(questions_addr, str | Path) else questions_addr
    rows = chain.from_iterable(rows_of(Path(file)) for file in files)
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{where}: found {kind(row)}, expected a question object")
        row = row if "id" in row or not name else {"id": f"{name}-{number}", **row}
        if golds is not None:
            if (row_id := check_id(row.get("id"), where)) not in golds:
                problem = f"{outputs_addr} has no answer for it; use the outputs of the same split"
                raise UserError(f"{where} (id {quote(row.get('id'))}): {problem}")
            row = {**row, "output": golds[row_id]}
        record = task.files.convert(row, where) if task.files.convert else row
        first, occurrence = record["id"], 2
        while ids_repeat and record["id"] in seen:
            record["id"], occurrence = f"{first}-{occurrence}", occurrence + 1
        required = [] if isinstance(record.get("profile"), dict) else ["profile"]  # contexts are read later
        check_record(record, where, [*required, *(["target"] if "target" in record else [])])
        if record["id"] in seen:
            before = seen[record["id"]].rpartition(": ")[2]
            raise UserError(f"{where}: id {quote(record['id'])} is also the id of {before}; ids must be unique")
        seen[record["id"]] = where
        yield record
    if not seen:
        raise UserError(f"{files[0]}: has no questions")
    if golds is not None and (foreign := [gold for gold in golds if gold not in seen]):
        answers = count_noun(len(foreign), "answer")
        raise UserError(
            f"{outputs_addr}: {answers} without a question in {files[0]}: {first_five(foreign)}\n"
            "  use the outputs of the same split"
        )


class _Gold(msgspec.Struct):
    id: str | int | float
    output: str


class _Golds(msgspec.Struct):
    golds: list[_Gold]


def read_golds(task: Task | None, path: str | Path) -> dict[str, str]:
    """Return the right answers or a system's answers by question id, from a file in LaMP's format.

    The file may also be the bare list that LongLaMP's builder of emails writes. UserError if the file is invalid or has
    another task's answers; if `task` is None, the task is not checked, and a bare list is invalid.
    """
    content = read_json(path)
    if isinstance(content, list) and task is not None:
        content = {"task": task.name, "golds": content}
    check_form(content, _Golds, str(path))
    if task is not None and str(content.get("task")).replace("_", "-") != task.name:
        raise UserError(f"{path}: has answers of task {quote(content.get('task'))}, not {task.name}")
    golds: dict[str, str] = {}
    for number, gold in enumerate(content["golds"]):
        gold_id = check_id(gold["id"], f"{path}: golds[{number}]")
        if gold_id in golds:
            raise UserError(f"{path}: two answers with id {quote(gold_id)}; ids must be unique")
        golds[gold_id] = gold["output"]
    return golds


def rows_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place of each row or record in a file, for messages, and the row or record itself.

    The file is a table, JSON Lines, a JSON array, or an object with the list `golds`: LaMP's builder of emails writes
    its test questions in this form. UserError if the file is invalid.
    """
    if is_table(path):
        yield from table_rows(path)
        return
    if path.suffix == ".parquet":
        rows = _parquet_rows(path)
    elif not is_wrapped(path):
        rows = (row for row, *_ in stream_records(path))
    elif isinstance(rows := read_json(path).get("golds"), list):
        pass
    else:
        raise UserError(f"{path}: found an object, expected an array of questions")
    yield from ((f"{path}: record {number}", row) for number, row in enumerate(rows))


def is_wrapped(path: Path) -> bool:
    """Return whether a JSON file begins with an object."""
    if path.suffix == ".jsonl" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4096).lstrip(codecs.BOM_UTF8 + b" \t\r\n").startswith(b"{")


def _parquet_rows(path: Path) -> Iterator[Any]:
    try:
        yield from stream_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable parquet file: {str(error).splitlines()[0]}") from None
