"""The journal that a run resumes from, `<output>.journal.jsonl`; it stays, for a later run with more questions.

Its first line is the run's fingerprint, then comes one line a finished piece, of two for one piece the last counts.
Each ends with a checksum, over the line and the header: neither a flipped bit nor another run's line is taken for a
piece. Where what the pieces are made from may change, a line says what it is from there on, and which of the pieces
before it no longer count.
"""

import hashlib
import json
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError
from utils.files.fingerprints import REPORTED, differences
from utils.files.journal_lines import Key, read_entries, read_header, with_sum
from utils.files.lock import Lock
from utils.files.manifest import describe_run, publish, publish_staged
from utils.files.writing import open_appending, staged_path, write_array, write_line


def journal_path(output: str | Path) -> Path:
    return Path(f"{output}.journal.jsonl")


def keys_hash(keys: Iterable[Key]) -> str:
    """The same for the same pieces in any order."""
    return hashlib.sha256(json.dumps(sorted(json.dumps(key) for key in keys)).encode()).hexdigest()


def is_other(
    found: dict[str, Any], fingerprint: dict[str, Any], overwrite: bool, path: Path, may_change: Collection[str]
) -> bool:
    """Is a journal one of other settings? UserError where it is, unless it may be overwritten."""
    differing = differences(found, fingerprint, may_change)
    if differing and not overwrite:
        raise UserError(
            f"{path}: an unfinished run with other settings: {differing}\n"
            "  repeat that run's command, give another output, or --overwrite to begin anew"
        )
    return bool(differing)


class Journal:
    """The finished pieces of one output, each written the moment it is there.

    A new journal, or one that replaces another, is begun with its first piece: a run that is refused changes nothing.

    Attributes:
        resumed: how many pieces an earlier run had finished.
        published: the final file is there and was made with this fingerprint.
    """

    def __init__(
        self,
        output: str | Path,
        fingerprint: dict[str, Any],
        overwrite: bool = False,
        published: bool = False,
        lock: Lock | None = None,
        run: str | None = None,
        anew: bool = False,
        may_change: Collection[str] = (),
    ):
        """Open the journal of `output`, or begin one; with `anew` it goes on only with what `run` began.

        UserError where another run is writing it, a line other than a torn last one is damaged, or it belongs to other
        settings and `overwrite` is not given.
        """
        self.output, self.path = Path(output), journal_path(output)
        self.fingerprint = fingerprint
        self._opened = time.monotonic()
        self.entries: dict[Key, Any] = {}  # finished pieces, those of earlier runs included
        self.added: set[Key] = set()  # those of this run, also in place of failed ones
        self.published = published
        self._lock = lock or Lock(output)
        self._run = run
        self._may_change = may_change
        self._dropped: list[Key] = []
        self._is_of_others = False  # the file says that its pieces are of something else than this run's
        self._end = 0  # where the last whole line ends
        import msgspec  # here, so that --help needs no package

        self._encode = msgspec.json.encode  # five times as fast as json.dumps
        self._file = open_appending(self.path)
        with open(self.path, "rb") as file:
            self._read(file, overwrite, anew)
        self.resumed = len(self.entries)

    def _read(self, file: IO[bytes], overwrite: bool, anew: bool) -> None:
        """Take over what an earlier run has finished, and cut off a torn last line: the next one starts clean."""
        found, self._header_sum = read_header(file, self.path)
        begun_with = found["fingerprint"] if found else {}
        self._is_begun = (
            found is not None
            and not is_other(begun_with, self.fingerprint, overwrite, self.path, self._may_change)
            and not (anew and found.get("overwrite") != self._run)
        )
        if not self._is_begun:
            return
        self.take_over_reported(begun_with)
        self._run = self._run or found.get("overwrite")
        self.entries, changes, self._end = read_entries(file, self.path, self._header_sum)
        self._is_of_others = bool(differences({**begun_with, **changes}, self.fingerprint))
        self._file.truncate(self._end)

    def add(self, key: Key, value: Any) -> None:
        """Keep one finished piece; it survives the process from here on."""
        self._begin()
        text = self._encode({"key": key, "value": value})
        self._write(with_sum(text, self._header_sum))
        self.entries[key] = value
        self.added.add(key)

    def drop(self, keys: Iterable[Key]) -> None:
        """These pieces no longer count. The file is told with the next piece: a run that is refused changes nothing."""
        self._dropped += keys
        for key in self._dropped:
            self.entries.pop(key, None)
        self.resumed = len(self.entries)

    def forget(self) -> None:
        """Begin anew with the next piece, as for other settings with --overwrite."""
        self.entries.clear()
        self.resumed, self._is_begun = 0, False

    def take_over_reported(self, fingerprint: dict[str, Any]) -> None:
        """Of what an earlier run was begun with, keep which model its server had: this run's may not say."""
        if REPORTED in fingerprint:
            self.fingerprint = {REPORTED: fingerprint[REPORTED], **self.fingerprint}

    def confirm_model(self, reported: str | None, overwrite: bool) -> None:
        """Before the first piece is added: UserError where this was begun with another model, without `overwrite`.

        `reported` is which model the server has by its own word, None where it doesn't say.
        """
        if reported is None:
            return
        if (known := self.fingerprint.get(REPORTED, reported)) != reported:
            if not overwrite:
                raise UserError(
                    f"{self.output}: begun with other settings: {REPORTED}: {json.dumps(known)}, now "
                    f"{json.dumps(reported)}, by the word of the server\n"
                    "  if they are one model, name it by --model_id; else give another output, or --overwrite"
                )
            self.forget()
        self.fingerprint = {**self.fingerprint, REPORTED: reported}

    def publish(self, data: Any, arguments: dict[str, Any], device: str | None, **figures: Any) -> None:
        """Put the final file in place, with a manifest that tells how it was made and what it took.

        An iterator makes a list, with an item in memory at a time.
        """
        if isinstance(data, Iterator):
            write_array(staged_path(self.output), data, indent=2)
        figures |= {
            **self._run_name(),
            "pieces": len(self.entries),
            "keys_sha256": keys_hash(self.entries),
            "resumed": self.resumed,
            "wall_seconds": round(time.monotonic() - self._opened, 3),
        }
        self._begin()  # a run without any piece has a journal too
        manifest = describe_run(arguments, self.fingerprint, device, **figures)
        if isinstance(data, Iterator):
            publish_staged(self.output, manifest)
        else:
            publish(self.output, data, manifest)

    def close(self) -> None:
        self._file.close()
        self._lock.release()

    def _begin(self) -> None:
        """Replace what the journal held by this run's header, unless it goes on with what it held.

        Then it is told what the pieces are made from now, where that has changed, and which of them don't count.
        """
        if not self._is_begun:
            self._file.truncate(0)
            self._end = 0
            told = {"fingerprint": self.fingerprint, **self._run_name()}
            header = json.dumps(told, ensure_ascii=False).encode() + b"\n"
            self._write(header)
            self._is_begun, self._header_sum = True, zlib.crc32(header)
        elif self._dropped or self._is_of_others:
            made_from = {name: self.fingerprint[name] for name in self._may_change}
            text = self._encode({"made_from": made_from, "dropped": self._dropped})
            self._write(with_sum(text, self._header_sum))
        self._dropped, self._is_of_others = [], False

    def _run_name(self) -> dict[str, str]:
        return {} if self._run is None else {"overwrite": self._run}

    def _write(self, line: bytes) -> None:
        """Append a line; of one that the disk takes only in part nothing stays, for others may follow."""
        try:
            write_line(self._file, line, self.path)
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(line)
