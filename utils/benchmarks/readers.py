"""Parsers of language models' texts: answers, verdicts, plans. Pure.

A parser gets the text that follows the thoughts; thoughts.py separates the two.
"""

import unicodedata
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parsed:
    """The result of a parser. The docstring of each parser's module says what it reads, and in which order."""

    value: Any  # a text, a number, a boolean or a list; None if nothing in the text is usable
    how: str  # "strict": the text has the requested form; "repaired": it has not; "none": there is no value
    reason: str | None  # why there is no value; None if there is one
    truncated: bool = False  # whether the text ended inside the value; the value is then what there is of it


def nothing(reason: str) -> Parsed:
    return Parsed(None, "none", reason)


def plain(text: str) -> str:
    """Return a text for comparisons: without white space at its ends, full-width characters in their usual forms."""
    return unicodedata.normalize("NFKC", writable(text)).strip()


def writable(value: str) -> str:
    """Return the text as UTF-8 can hold it: surrogate pairs joined, lone ones as U+FFFD, no NULs, CRLF as LF."""
    value = value.replace("\r\n", "\n").replace("\0", "")
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
