"""Checks that are all made, whatever fails, each told in one line."""

from collections.abc import Callable
from typing import Any

from utils.cli import UserError
from utils.cli.errors import printable


class Report:
    """Prints a line a check; `failed` says that one has failed."""

    def __init__(self) -> None:
        self.failed = False
        self._told: set[str] = set()

    def ok(self, text: str) -> None:
        print(f"ok   {printable(text)}", flush=True)

    def note(self, text: str) -> None:
        print(f"note {in_one_line(text)}", flush=True)

    def attempt(self, check: Callable[..., Any], *args: Any) -> Any:
        """What a check returns; None over a UserError, which is told, and what comes behind is done all the same."""
        try:
            return check(*args)
        except UserError as error:
            self.failed = True
            text = in_one_line(str(error))
            if text not in self._told:  # two checks may stumble over one file
                self._told.add(text)
                print(f"FAIL {text}", flush=True)


def in_one_line(text: str) -> str:
    """Also with control characters spelled out, for the terminal."""
    return printable("; ".join(line.strip() for line in text.splitlines()))
