"""Read JSON, JSON Lines and TOML; errors name the file, and the line or byte in it."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from utils.base.errors import UserError, quote

CSV_HEADER = re.compile(r'"?[A-Za-z][\w ]*"?(?:[,;\t]"?[A-Za-z][\w ]*"?)+\r?\n')
LONGEST_LINE = 2**28  # bytes per line of JSON Lines; a benchmark's longest history has 5 million


def read_json(path: str | Path) -> Any:
    """Return the JSON value in a file; UserError, with line and column, if the file is not JSON."""
    text = _read_filled(path)
    try:
        return json.loads(text, object_pairs_hook=refuse_repeated_names)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        if error.msg == "Extra data":
            raise UserError(
                f"{path}: more than one JSON value ({where}); if it is JSON Lines, rename it to *.jsonl"
            ) from None
        if not text[error.pos :].strip() or error.msg.startswith("Unterminated"):
            raise UserError(f"{path}: the JSON ends early at {where}: the file is incomplete") from None
        if CSV_HEADER.match(text):
            raise UserError(f"{path}: looks like CSV; use a JSON file") from None
        raise UserError(f"{path}: not JSON: {error.msg} at {where}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {_problem(error)}") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables and values of a TOML file; UserError if the file is not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}: {_problem(error)}") from None


def _problem(error: Exception) -> str:
    """Return why a file is rejected although its syntax is valid."""
    if isinstance(error, _RepeatedNameError):
        return f"duplicate key {quote(error.args[0])}"
    return "nested too deeply" if isinstance(error, RecursionError) else "has a number with thousands of digits"


class _RepeatedNameError(ValueError):
    """An object has a duplicate key; json would silently keep its last value."""


def refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object (json's object_pairs_hook); ValueError if it has a duplicate key."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedNameError(next(name for name in names if names.count(name) > 1))
    return result


def read_json_lines(path: Path) -> list[Any]:
    records = []
    # Not splitlines(): a text may contain other line breaks (U+2028, U+0085).
    for number, line in enumerate(_read_filled(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line, object_pairs_hook=refuse_repeated_names))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: line {number} is not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: line {number}: {_problem(error)}") from None
    return records


class LongLineError(UserError):
    """A line is too long for JSON Lines: reading it would fill the memory."""


def read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; LongLineError if one is longer than `LONGEST_LINE`."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            raise LongLineError(f"{file.name}: line {number} is longer than {LONGEST_LINE >> 20} MiB: not JSON Lines")
        yield line


def _read_filled(path: str | Path) -> str:
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    return text


def read_text(path: str | Path) -> str:
    """Return the text of a file; UserError if it is not UTF-8 (a byte order mark is fine) or cannot be read."""
    content = read_bytes(path)
    refuse_workbook(path, content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    return text.replace("\r\n", "\n")


def refuse_workbook(path: str | Path, content: bytes) -> None:
    """Raise UserError if a file's first bytes are those of a spreadsheet: a ZIP archive, or an old Excel file."""
    if content.startswith((b"PK\3\4", b"\xd0\xcf\x11\xe0")):
        raise UserError(f"{path}: an Excel workbook or another archive; in Excel, save the sheet as CSV UTF-8")


def check_readable(path: Path) -> None:
    """Raise UserError if a path is a folder, a pipe, or a device."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; pass the file")
    if path.exists() and not path.is_file():
        # A pipe can be read only once, and every input is hashed too.
        raise UserError(f"{path}: is a pipe or a device; use a regular file")


def read_bytes(path: str | Path) -> bytes:
    """Return the bytes of a file; UserError if it does not exist, is not a regular file, or cannot be read."""
    path = Path(path)
    try:
        check_readable(path)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it") from None
    except MemoryError:
        raise UserError(f"{path}: larger than the free memory") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
