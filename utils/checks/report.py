"""Checks that are all made, whatever fails, each told in one line."""

from collections.abc import Callable
from typing import Any, TypeVar

from utils.cli import UserError

T = TypeVar("T")


class Report:
    """Prints a line a check.

    Attributes:
        failed: a check has failed.
    """

    def __init__(self) -> None:
        self.failed = False
        self._told: set[str] = set()

    def ok(self, text: str) -> None:
        self._print("ok", text)

    def note(self, text: str) -> None:
        self._print("note", text)

    def attempt(self, check: Callable[..., T], *args: Any) -> T | None:
        """What the check returns; where it raises UserError, None, and its message is the line."""
        try:
            return check(*args)
        except UserError as error:
            self.failed = True
            text = "; ".join(line.strip() for line in str(error).splitlines())
            if text not in self._told:  # two checks may stumble over one file
                self._told.add(text)
                self._print("FAIL", text)
            return None

    def _print(self, kind: str, text: str) -> None:
        print(f"{kind:<4} {text}", flush=True)
