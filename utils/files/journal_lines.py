"""What stands in a journal's file, line by line; `utils/files/journal.py` says what it is for."""

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError
from utils.files.writing import check_regular

Key = tuple[str | int, ...]

SUM_FIELD = b',"crc32":'  # ends a journal's line, before the number


def read_journal(path: str | Path) -> tuple[dict[str, Any], dict[Key, Any]]:
    """The fingerprint and the finished pieces of a journal, which may be in use; a torn last line does not count.

    Where the pieces have been made from something else since it was begun, the fingerprint says so. UserError where it
    cannot be read, was not begun, or is damaged.
    """
    check_regular(Path(path))
    try:
        with open(path, "rb") as file:
            header, header_sum = read_header(file, Path(path))
            if header is None:
                raise UserError(f"{path}: holds nothing yet")
            entries, changes, _ = read_entries(file, Path(path), header_sum)
            return {**header["fingerprint"], **changes}, entries
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def read_header(file: IO[bytes], path: Path) -> tuple[dict[str, Any] | None, int]:
    """The first line, which has the fingerprint, None for a journal that was not begun; and that line's checksum."""
    line = file.readline()
    if not line.endswith(b"\n"):
        return None, 0
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        if isinstance((header := json.loads(line))["fingerprint"], dict):
            return header, zlib.crc32(line)
    raise UserError(
        f"{path}: line 1 is damaged\n  every other line's checksum includes it: delete the file to begin anew"
    )


def read_entries(file: IO[bytes], path: Path, header_sum: int) -> tuple[dict[Key, Any], dict[str, Any], int]:
    """The pieces that count by their keys, what they are made from where that has changed, and where they end."""
    entries: dict[Key, Any] = {}
    changes: dict[str, Any] = {}
    end = file.tell()
    for entry, size in read_lines(file, path, header_sum):
        end += size
        if "key" in entry:
            entries[tuple(entry["key"])] = entry["value"]
            continue
        changes |= entry["made_from"]
        for key in entry["dropped"]:
            entries.pop(tuple(key), None)
    return entries, changes, end


def read_lines(file: IO[bytes], path: Path, header_sum: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Every whole line after the header, and its length in bytes."""
    for number, line in enumerate(file, 2):
        if not line.endswith(b"\n"):
            break
        if (entry := _parse_entry(line, header_sum)) is None:
            raise UserError(
                f"{path}: line {number} is damaged\n"
                "  delete that line to have its piece done again, or the file to begin anew"
            )
        yield entry, len(line)


def with_sum(text: bytes, header_sum: int) -> bytes:
    """The line of a journal for a JSON object: it ends with the checksum of header and object, as one field more."""
    return text[:-1] + SUM_FIELD + str(zlib.crc32(text, header_sum)).encode() + b"}\n"


def _parse_entry(line: bytes, header_sum: int) -> dict[str, Any] | None:
    """What a line says, None where it is not as it was written, or is another journal's."""
    text = line.rpartition(SUM_FIELD)[0] + b"}"
    return json.loads(text) if with_sum(text, header_sum) == line else None
