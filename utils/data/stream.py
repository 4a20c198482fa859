"""Read files one record at a time: a file of a gigabyte takes no more memory than its largest record."""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from utils.base.errors import UserError, kind
from utils.base.json_files import LongLineError, read_json, read_json_lines, read_lines, refuse_repeated_names
from utils.base.progress import LARGE
from utils.data.tables import is_table

CHUNK = 1 << 20  # bytes read at a time


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


_MARK = re.compile(r"[ \t\r\n]*([\[,\]])[ \t\r\n]*")


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
