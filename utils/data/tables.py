"""Read CSV and TSV files as spreadsheets, pandas and people write them; every value is text.

Python's csv module reads them in its strict mode. pandas and pyarrow would accept a stray or an unclosed quote and put
the rows after it into one field, and pandas would drop the surplus cells of a row.
"""

import codecs
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from utils.base.errors import UserError, count_noun, quote
from utils.base.json_files import check_readable, refuse_workbook
from utils.base.progress import announce

SUFFIXES = (".csv", ".tsv")
DELIMITERS = ",;\t|"
MOST_IN_FIELD = 10**7  # characters in a table's field
# Excel reads the delimiter from such a line.
_SEPARATOR_LINE = re.compile(r'"?sep=([^\w\s"]|\t)"?\1*\s*', re.IGNORECASE)


def is_table(path: str | Path) -> bool:
    return Path(path).suffix.lower() in SUFFIXES


def table_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row's place, for messages, and its values by column name; docs/files.md has the rules.

    Rows without any value, and columns without a name and values, are skipped, and a note counts them. UserError if
    the file is not a valid table.
    """
    csv.field_size_limit(MOST_IN_FIELD)
    try:
        check_readable(path)  # opening a pipe would block
        encoding = _encoding_of(path)
        try:
            with open(path, encoding=encoding, newline="") as text:
                yield from _rows(path, text)
        except UnicodeDecodeError:
            raise UserError(f"{path}: neither UTF-8 nor Windows-1252 text; save the table as CSV UTF-8") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _encoding_of(path: Path) -> str:
    """Return a table's encoding, by its first bytes and by lines that are not UTF-8; print a note if it is a guess."""
    with open(path, "rb") as file:
        refuse_workbook(path, start := file.read(4))
        if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        if b"\0" in start:  # a NUL may be in a model's text, but not in a header
            raise UserError(f"{path}: UTF-16 text without a byte order mark; save the table as CSV UTF-8")
        file.seek(0)
        not_utf8, other_letters = 0, False  # first line that is not UTF-8; whether another has non-ASCII letters
        for number, line in enumerate(file, 1):
            try:
                other_letters |= not line.decode().isascii()
            except UnicodeDecodeError:
                not_utf8 = not_utf8 or number
    if not_utf8 and other_letters:
        raise UserError(f"{path}: line {not_utf8}: not UTF-8, though other lines are; save the table as CSV UTF-8")
    if not_utf8:
        problem = f"line {not_utf8} is not UTF-8, so the table is read as Windows-1252 (cp1252)"
        announce(f"note: {path}: {problem}; if letters come out wrong, save it as CSV UTF-8")
    return "cp1252" if not_utf8 else "utf-8-sig"


def _rows(path: Path, text: IO[str]) -> Iterator[tuple[str, dict[str, str]]]:
    separator = _SEPARATOR_LINE.fullmatch(text.readline())
    start = text.tell() if separator else 0
    delimiter = separator[1] if separator else _delimiter_of(path, text)
    text.seek(start)
    quoting = csv.QUOTE_MINIMAL if delimiter != "\t" or _quotes_enclose(text) else csv.QUOTE_NONE
    text.seek(start)
    reader = csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True)
    names: list[str] = []
    number, num_empty = 0, 0
    try:
        for number, cells in enumerate(reader, 1):  # the header is row 1, as in a spreadsheet
            if not any(map(str.strip, cells)):
                num_empty += bool(names)
            elif not names:
                names = [cell.strip() for cell in cells]
                if repeated := [name for name in names if name and names.count(name) > 1]:
                    problem = f"two columns have the same name, {quote(repeated[0])}; names must be unique"
                    raise UserError(f"{path}: {problem}")
            else:
                where = f"{path}: row {number}"
                if len(cells) < len(names) or any(map(str.strip, cells[len(names) :])):
                    problem = f"has {count_noun(len(cells), 'cell')}, but the header has {len(names)}"
                    raise UserError(f"{where}: {problem}; is the file incomplete, or a quote missing?")
                if nameless := [cell for name, cell in zip(names, cells, strict=False) if not name and cell.strip()]:
                    raise UserError(f"{where}: {quote(nameless[0])} is in a column without a name; name the column")
                yield where, {name: cell for name, cell in zip(names, cells, strict=False) if name}
    except csv.Error as error:
        raise UserError(f"{path}: row {number + 1}: not valid in CSV: {error}") from None
    skipped = [count_noun(num_empty, "row"), count_noun(names.count(""), "column")]
    if skipped := [count for count in skipped if not count.startswith("0 ")]:
        announce(f"note: {path}: skipped {' and '.join(skipped)} without any value")


def _delimiter_of(path: Path, text: IO[str]) -> str:
    """Return the delimiter that gives the header the most columns; prefer a tab in a *.tsv file, else a comma."""
    columns: dict[str, list[str]] = {}
    for delimiter in DELIMITERS:
        text.seek(0)
        columns[delimiter] = next(filter(None, csv.reader(text, delimiter=delimiter)), [])
    if path.suffix.lower() == ".tsv" and len(columns["\t"]) > 1:
        return "\t"
    return max(DELIMITERS, key=lambda delimiter: len(columns[delimiter]))


def _quotes_enclose(text: IO[str]) -> bool:
    """Return whether the double quotes of tab-separated text enclose fields; otherwise they are ordinary characters.

    They do if lines have different numbers of tabs, because quoted fields may contain tabs and line breaks, or if every
    line is valid with quoted fields. Tabs at the end of a line are ignored.
    """
    num_tabs, are_valid = None, True
    for line in (line.rstrip("\r\n\t") for line in text):
        if not line:
            continue
        num_tabs = line.count("\t") if num_tabs is None else num_tabs
        if line.count("\t") != num_tabs:
            return True
        try:
            cells = next(csv.reader([line], delimiter="\t", strict=True), [])
        except csv.Error:
            cells = []
        are_valid &= len(cells) == num_tabs + 1
    return are_valid
