"""Errors that the user can fix, and their messages: what is wrong, where, and what to do."""

import errno
import json
from collections.abc import Iterable
from typing import Any


def kind(value: Any) -> str:
    """Describe an invalid value for an error message."""
    if value is None:
        return "missing or null"
    if isinstance(value, str):
        return "an empty text" if not value.strip() else f"the text {value[:40]!r}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    return f"{json.dumps(value)}"


def first_five(ids: Iterable[str]) -> str:
    """Return the first five different ids, quoted, for an error message."""
    different = list(dict.fromkeys(ids))
    return ", ".join(quote(i) for i in different[:5]) + (", ..." if len(different) > 5 else "")


def quote(value: Any) -> str:
    """Return a value's repr for an error message, in one line, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def printable(text: str) -> str:
    """Return the text with control characters escaped, because a model's text must not control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


_RESUME = "finished work is kept, run the same command again to resume"
_MAKE_WRITABLE = "make it writable, or give another path; finished work is kept"
AWAY = (errno.EIO, errno.ESTALE)  # a disk, or its server, is gone, perhaps for a while (exit code 1)
REMEDIES = {  # what to do if a file cannot be written
    errno.ENOSPC: f"free some space on its disk; {_RESUME}",
    errno.EDQUOT: f"free some of your disk quota; {_RESUME}",
    errno.EFBIG: f"raise the limit on a file's size (ulimit -f); {_RESUME}",
    errno.EROFS: _MAKE_WRITABLE,
    errno.EACCES: _MAKE_WRITABLE,
    errno.EPERM: _MAKE_WRITABLE,
    **dict.fromkeys(
        (errno.ENOTSUP, errno.ENOSYS, errno.EBUSY),
        "check its disk, or give a path on another one; finished work is kept",
    ),
    **dict.fromkeys(AWAY, f"check its disk; {_RESUME}"),
}


class UserError(Exception):
    """An error that the user can fix: a message of one to three lines, with what is wrong, where, and what to do."""


class EngineDiedError(UserError):
    """A model's engine died, possibly through no fault of the user (exit code 1): the same command resumes the run."""


def describe_os_error(error: OSError) -> str:
    """Return the problem with a file, and a remedy in a second line if one is known."""
    remedy = REMEDIES.get(error.errno)
    return f"{error.strerror}\n  {remedy}" if remedy else str(error.strerror)


def describe_missing(count: int, unit: str, cause: str = "the server failed") -> str:
    return f"{count} {unit}{' is' if count == 1 else 's are'} missing because {cause}"
