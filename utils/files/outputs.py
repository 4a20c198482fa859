"""An output of a script that asks or computes piece by piece: what is there, what is left, and putting it in place.

Every such script goes the same way: name the output and its pieces, `check` it in a dry run, else `open` it, see
whether it `is_finished`, have what is `left` done, and `publish`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from utils.files.journal import Journal, Key, check_journal, open_journal, overwrite_run

Piece = dict[str, Any]  # {"value": ... or None, ...}
Pieces = dict[Key, Piece]


def is_failed(piece: Piece | None) -> bool:
    """The model gave nothing that can be used; what stands in for a verdict on no answer has `answered`."""
    return piece is not None and piece["value"] is None and "answered" not in piece


@dataclass
class OutputFile:
    """A final file with its journal.

    Attributes:
        fingerprint: the settings that decide its pieces.
        keys: of the pieces that it is to have in the end.
        collect: from pieces to the content of the file; None for one too large to be held in memory.
        overwrite: the flag's value: None, "changed" or "all".
        retry_failed: the flag of this name.
        may_change: settings that earlier pieces may differ in; which of them still count, the caller says.
        journal: None before `open`, and where the output is finished and its journal was deleted.
    """

    path: str
    fingerprint: dict[str, Any]
    keys: list[Key]
    collect: Callable[[Pieces], Any] | None
    overwrite: str | None = None
    retry_failed: bool = False
    may_change: Collection[str] = ()
    journal: Journal | None = field(default=None, init=False)

    def check(self) -> None:
        """Raise UserError where `open` would; nothing is made: for a dry run."""
        check_journal(self.path, self.fingerprint, self.overwrite, self.keys, self.retry_failed, self.may_change)

    def open(self, run: str | None = None) -> None:
        """Take the output and read what is there; `run` is of `overwrite_run`.

        Raises:
            UserError: another process has it, it was made otherwise, or it is damaged.
        """
        overwrite = bool(self.overwrite)
        self.journal = open_journal(
            self.path, self.fingerprint, overwrite, self.keys, run, self.retry_failed, self.may_change
        )

    @property
    def pieces(self) -> Pieces:
        return self.journal.entries

    def left(self) -> list[Key]:
        """The pieces that are not finished, with --retry_failed those that failed too, in order."""
        if self.journal is None:
            return []
        failed = {key for key in self.keys if self.retry_failed and is_failed(self.pieces.get(key))}
        return [key for key in self.keys if key not in self.pieces or key in failed]

    def is_finished(self) -> bool:
        """Nothing is left and the file holds what its pieces make; it is said.

        A file may not hold it, where a run died between its last piece and publishing.
        """
        if self.journal is not None and (self.left() or not self._holds()):
            return False
        print(f"{self.path}: already finished, left alone")
        return True

    def _holds(self) -> bool:
        if self.collect is None:
            return self.journal.holds_exactly(self.keys)
        return self.journal.holds(self.keys, self.content)

    def content(self) -> Any:
        return self.collect(self.pieces)

    def num_missing(self, asked: Collection[Key]) -> int:
        """How many of the pieces that were asked for a server failed to give."""
        return len(set(asked) - self.journal.added)

    def publish(self, arguments: dict[str, Any], device: str | None, **figures: Any) -> None:
        """Put the file in place, with a manifest that tells how it was made and what it took."""
        figures = {"missing": len(self.journal.missing(self.keys)), **figures}
        self.journal.publish(self.content(), arguments, device, **figures)

    def publish_array(
        self, items: Iterable[Any], arguments: dict[str, Any], device: str | None, **figures: Any
    ) -> None:
        """As `publish` of a list, with an item in memory at a time."""
        self.journal.publish_array(items, arguments, device, **figures)


def open_outputs(*outputs: OutputFile) -> None:
    """Open what one command makes; UserError as `OutputFile.open`."""
    run = overwrite_run(outputs[0].overwrite, [output.path for output in outputs])
    for output in outputs:
        output.open(run)
