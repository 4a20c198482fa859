"""Checks that are all made, whatever fails, each told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from utils.cli import UserError


class Report:
    """Prints a line a check; `failed` says that one has failed."""

    def __init__(self) -> None:
        self.failed = False
        self._told: set[str] = set()

    def ok(self, text: str) -> None:
        print(f"ok   {text}", flush=True)

    def note(self, text: str) -> None:
        print(f"note {text}", flush=True)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Within this a UserError is a line, and what comes behind is done all the same."""
        try:
            yield
        except UserError as error:
            self.failed = True
            text = "; ".join(line.strip() for line in str(error).splitlines())
            if text not in self._told:  # two checks may stumble over one file
                self._told.add(text)
                print(f"FAIL {text}", flush=True)
