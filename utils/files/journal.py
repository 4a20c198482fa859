"""The journal that a run resumes from: `<output>.journal.jsonl`.

Its first line is the run's fingerprint, then comes one line a finished piece of work. It stays when the output is
finished, so a later run with more questions asks only for what is missing. Each line ends with a checksum, over the
line and the header: neither a flipped bit nor another run's line is taken for a finished piece. Of two lines for one
piece the last one counts. Where what the pieces are made from may change, a line says what it is from there on, and
which of the pieces before it no longer count.
"""

import hashlib
import json
import secrets
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError
from utils.files.fingerprints import REPORTED, differences
from utils.files.journal_lines import Key, read_entries, read_header, with_sum
from utils.files.lock import Lock
from utils.files.manifest import (
    describe_run,
    is_finished,
    manifest_of,
    prepare_output,
    publish,
    publish_staged,
    read_manifest,
)
from utils.files.writing import check_could_write, check_regular, check_writable, staged_path, write_array, write_line


def open_journal(
    output: str | Path,
    fingerprint: dict[str, Any],
    overwrite: bool,
    keys: Collection[Key],
    run: str | None = None,
    retry_failed: bool = False,
    may_change: Collection[str] = (),
) -> "Journal | None":
    """Check that `output` may be written (see `prepare_output`) and open its journal.

    Args:
        keys: the finished pieces that this run is to end with.
        run: of `overwrite_run`: what another run has finished is made anew from nothing.
        retry_failed: failed pieces are to be replaced, which takes a journal.
        may_change: settings that pieces of earlier runs may differ in: which still count, the caller says (`drop`).

    Returns:
        None where the output is finished and its journal was deleted: there is nothing to add to it.

    Raises:
        UserError: as above; or the journal was deleted, and the output was not made for these very pieces or some are
            to be replaced.
    """
    check_writable(Path(output))
    lock = Lock(output)
    published = prepare_output(output, fingerprint, overwrite, may_change)
    anew = run is not None and _is_finished_by_another(output, fingerprint, run, may_change)
    published = published and not anew
    if published and not Path(f"{output}.journal.jsonl").exists():
        _refuse_other_pieces(output, keys, retry_failed)
        return None
    journal = Journal(output, fingerprint, overwrite, published, lock, run, anew, may_change)
    if published:
        journal.take_over_reported(read_manifest(output)["fingerprint"])
    return journal


def check_journal(
    output: str | Path,
    fingerprint: dict[str, Any],
    overwrite: str | None,
    keys: Collection[Key],
    retry_failed: bool = False,
    may_change: Collection[str] = (),
) -> None:
    """Raise UserError where `open_journal` would, for the flag's value `overwrite`; nothing is made: for a dry run."""
    output, path = Path(output), Path(f"{output}.journal.jsonl")
    check_could_write(output)
    if Path(f"{output}.lock").exists():
        Lock(output).release()
    published = is_finished(output, fingerprint, bool(overwrite), may_change) and overwrite != "all"
    check_regular(path)
    if path.exists():
        with open(path, "rb") as file:
            found, header_sum = read_header(file, path)
            if found is not None and not _is_other(
                found["fingerprint"], fingerprint, bool(overwrite), path, may_change
            ):
                read_entries(file, path, header_sum)
    elif published:
        _refuse_other_pieces(output, keys, retry_failed)


def _refuse_other_pieces(output: str | Path, keys: Collection[Key], retry_failed: bool) -> None:
    """Raise UserError where a finished output without a journal has not these very pieces, or is to get others."""
    if retry_failed:
        raise UserError(
            f"{output}: its journal was deleted, so nothing in it can be asked for again\n"
            "  --overwrite makes it anew, without --retry_failed it is left alone"
        )
    manifest = read_manifest(output)
    if manifest.get("keys_sha256") != _keys_hash(keys):
        raise UserError(
            f"{output}: holds {manifest.get('pieces', 0)} pieces, others than the {len(keys)} of this run, "
            "and its journal was deleted, so none can be added\n  delete it to begin anew, or give another output"
        )


def _is_other(
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


def overwrite_run(overwrite: str | None, outputs: Sequence[str]) -> str | None:
    """The name of the run that makes these outputs anew: of the one that was interrupted, else a new one.

    None unless `overwrite`, the flag's value, is "all".

    It stands in every journal that the run begins and every manifest that it writes. While an output lacks it, or lacks
    what a server failed to give, the same command is that run again and begins nothing from nothing.
    """
    if overwrite != "all":
        return None
    for output in outputs:
        check_writable(Path(output))
    command = hashlib.sha256(json.dumps(list(map(str, outputs))).encode()).hexdigest()[:16]
    for name in (name for output in outputs for name in _runs_of(output)):
        if name.startswith(command) and not all(_is_made_by(output, name) for output in outputs):
            return name
    return f"{command}-{secrets.token_hex(8)}"


def _runs_of(output: str | Path) -> list[str]:
    """Names of the runs with --overwrite that began its journal, and that wrote it."""
    path, told = Path(f"{output}.journal.jsonl"), [read_manifest(output)]
    if path.is_file():
        with open(path, "rb") as file:
            told.append(read_header(file, path)[0])
    return [one["overwrite"] for one in told if one is not None and "overwrite" in one]


def _is_made_by(output: str | Path, run: str) -> bool:
    manifest = manifest_of(output) if Path(output).exists() else None
    return manifest is not None and manifest.get("overwrite") == run and not manifest.get("missing")


def _is_finished_by_another(
    output: str | Path, fingerprint: dict[str, Any], run: str, may_change: Collection[str]
) -> bool:
    """Something is there that `run` is to make anew, even if its journal is of these settings.

    Not so what has other settings, where that journal is of an unfinished run that was to replace it.
    """
    if not Path(output).exists():
        return False
    manifest = manifest_of(output)
    if manifest is None:
        return True
    is_going_on = manifest.get("overwrite") == run or manifest.get("missing")
    return not is_going_on and not differences(manifest["fingerprint"], fingerprint, may_change)


def _keys_hash(keys: Iterable[Key]) -> str:
    """The same for the same pieces in any order."""
    return hashlib.sha256(json.dumps(sorted(json.dumps(key) for key in keys)).encode()).hexdigest()


class Journal:
    """The finished pieces of one output, each written the moment it is there.

    A new journal, or one that replaces another, is begun with its first piece: a run that is refused changes nothing.

    Attributes:
        entries: finished pieces by key, those of earlier runs included.
        added: keys of those that this run added, or put in place of failed ones.
        resumed: how many of them an earlier run had finished.
        published: the final file is there and was made with this fingerprint.
        fingerprint: the settings it was opened with.
        begun_with: the settings in its first line, nothing where it is new.
    """

    def __init__(
        self,
        output: str | Path,
        fingerprint: dict[str, Any],
        overwrite: bool = False,
        published: bool = False,
        lock: "Lock | None" = None,
        run: str | None = None,
        anew: bool = False,
        may_change: Collection[str] = (),
    ):
        """Open the journal of `output`, or begin one; with `anew` it goes on only with what `run` began.

        Raises:
            UserError: another run is writing it, a line other than a torn last one is damaged, or it belongs to
                other settings and `overwrite` is not given.
        """
        self.output, self.path = Path(output), Path(f"{output}.journal.jsonl")
        self.fingerprint = fingerprint
        self._opened = time.monotonic()
        self.entries: dict[Key, Any] = {}
        self.added: set[Key] = set()
        self.published = published
        self._lock = lock or Lock(output)
        self._run = run
        self._may_change = may_change
        self._dropped: list[Key] = []
        self._is_of_others = False  # the file says that its pieces are of something else than this run's
        self._end = 0  # where the last whole line ends
        check_regular(self.path)
        import msgspec  # here, so that --help needs no package

        self._encode = msgspec.json.encode  # five times as fast as json.dumps
        # Without a buffer: what could not be written is not written later, after the run has said so.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (held open for the whole run)
        with open(self.path, "rb") as file:
            self.begun_with = self._read(file, overwrite, anew)
        self.resumed = len(self.entries)

    def _read(self, file: IO[bytes], overwrite: bool, anew: bool) -> dict[str, Any]:
        """Take over what an earlier run has finished, and cut off a torn last line: the next one starts clean."""
        found, self._header_sum = read_header(file, self.path)
        if found is not None and _is_other(
            found["fingerprint"], self.fingerprint, overwrite, self.path, self._may_change
        ):
            found = None
        if found is not None and anew and found.get("overwrite") != self._run:
            found = None
        self._is_begun = found is not None
        if found is not None:
            self.take_over_reported(found["fingerprint"])
            self._run = self._run or found.get("overwrite")
            self.entries, changes, self._end = read_entries(file, self.path, self._header_sum)
            self._is_of_others = bool(differences({**found["fingerprint"], **changes}, self.fingerprint))
            self._file.truncate(self._end)
        return found["fingerprint"] if found is not None else {}

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
        """Is it still the model that this was begun with? To be asked before the first piece is added.

        Args:
            reported: which model the server has by its own word, None where it doesn't say.

        Raises:
            UserError: another one, and `overwrite` is not given.
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

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Those of `keys` that are not finished, in order."""
        return [key for key in keys if key not in self.entries]

    def holds(self, keys: Iterable[Key], make: Callable[[], Any]) -> bool:
        """Nothing is left to do: no key is missing, and the final file holds what `make` makes of the entries.

        It may not, where a run died between its last piece and publishing.
        """
        if not self.published or self.missing(keys):
            return False
        return json.loads(self.output.read_text(encoding="utf-8")) == make()

    def holds_exactly(self, keys: Collection[Key]) -> bool:
        """As `holds`, for a file too large to be read again: it was published with these pieces and no others."""
        if not self.published or self.missing(keys):
            return False
        return read_manifest(self.output).get("keys_sha256") == _keys_hash(keys)

    def publish(self, data: Any, arguments: dict[str, Any], device: str | None, **figures: Any) -> None:
        """Put the final file in place, with a manifest that tells how it was made and what it took."""
        publish(self.output, data, self._describe(arguments, device, figures))

    def publish_array(
        self, items: Iterable[Any], arguments: dict[str, Any], device: str | None, **figures: Any
    ) -> None:
        """As `publish` of a list, with an item in memory at a time."""
        write_array(staged_path(self.output), items, indent=2)
        publish_staged(self.output, self._describe(arguments, device, figures))

    def _describe(self, arguments: dict[str, Any], device: str | None, figures: dict[str, Any]) -> dict[str, Any]:
        """The manifest of the final file."""
        figures |= {
            **self._run_name(),
            "pieces": len(self.entries),
            "keys_sha256": _keys_hash(self.entries),
            "resumed": self.resumed,
            "wall_seconds": round(time.monotonic() - self._opened, 3),
        }
        self._begin()  # a run without any piece has a journal too
        return describe_run(arguments, self.fingerprint, device, **figures)

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
