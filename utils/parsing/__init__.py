"""Parsers of language models' texts: answers, verdicts, plans. Pure.

Parsers get the text after the thoughts, which thoughts.py separates.
"""

import unicodedata
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parsed:
    """The result of a parser. Each parser's module lists the readings it tries, in order."""

    value: Any  # a text, a number, a boolean or a list of them; None if nothing is usable
    how: str  # "strict", "repaired" or "none"
    reason: str | None  # why nothing was found; None if something was
    truncated: bool = False  # whether the text ended inside the value, which was closed and kept


def nothing(reason: str) -> Parsed:
    return Parsed(None, "none", reason)


def plain(text: str) -> str:
    """Return a text without white space at its ends, and with full-width characters in their usual forms."""
    return unicodedata.normalize("NFKC", writable(text)).strip()


def writable(value: str) -> str:
    """Return a text that UTF-8 can hold: surrogate pairs are joined, lone halves replaced, NULs and CRs dropped."""
    value = value.replace("\r\n", "\n").replace("\0", "")
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
