"""The journal that a run resumes from: `<output>.journal.jsonl`.

Its first line is the run's fingerprint, then comes one line a finished piece of work. It stays when the output is
finished, so a later run with more questions asks only for what is missing. Each line ends with a checksum, over the
line and the header: neither a flipped bit nor another run's line is taken for a finished piece.
"""

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from utils.cli import UserError
from utils.lock import Lock
from utils.run_files import (
    REPORTED,
    check_could_write,
    check_regular,
    check_writable,
    describe_run,
    differences,
    in_todays_shape,
    is_finished,
    prepare_output,
    publish,
    publish_staged,
    read_manifest,
    staged_path,
    write_array,
    write_line,
)

Key = tuple[str | int, ...]

SUM_FIELD = b',"crc32":'  # ends a journal's line, before the number


def open_journal(
    output: str | Path, fingerprint: dict[str, Any], overwrite: bool, keys: Collection[Key]
) -> "Journal | None":
    """Check that `output` may be written (see `prepare_output`) and open its journal.

    Args:
        keys: the finished pieces that this run is to end with.

    Returns:
        None where the output is finished and its journal was deleted: there is nothing to add to it.

    Raises:
        UserError: as above; or the journal was deleted and the output was not made for these very pieces.
    """
    check_writable(Path(output))
    lock = Lock(output)
    published = prepare_output(output, fingerprint, overwrite)
    if published and not Path(f"{output}.journal.jsonl").exists():
        _refuse_other_pieces(output, keys)
        return None
    journal = Journal(output, fingerprint, overwrite, published, lock)
    if published:
        journal.take_over_reported(read_manifest(output)["fingerprint"])
    return journal


def check_journal(output: str | Path, fingerprint: dict[str, Any], overwrite: bool, keys: Collection[Key]) -> None:
    """Raise UserError where `open_journal`, with the same arguments, would; nothing is made: for a dry run."""
    output, path = Path(output), Path(f"{output}.journal.jsonl")
    check_could_write(output)
    if Path(f"{output}.lock").exists():
        Lock(output).release()
    published = is_finished(output, fingerprint, overwrite)
    check_regular(path)
    if path.exists():
        with open(path, "rb") as file:
            found, header_sum = _read_header(file, path)
            if found is not None and not _is_other(found, fingerprint, overwrite, path):
                _read_entries(file, path, header_sum)
    elif published:
        _refuse_other_pieces(output, keys)


def _refuse_other_pieces(output: str | Path, keys: Collection[Key]) -> None:
    """Raise UserError where a finished output, to which nothing can be added, does not hold these very pieces."""
    manifest = read_manifest(output)
    if manifest.get("keys_sha256") != _keys_hash(keys):
        raise UserError(
            f"{output}: holds {manifest.get('pieces', 0)} pieces, others than the {len(keys)} of this run, "
            "and its journal was deleted, so none can be added\n  delete it to begin anew, or give another output"
        )


def _keys_hash(keys: Iterable[Key]) -> str:
    """The same for the same pieces in any order."""
    return hashlib.sha256(json.dumps(sorted(json.dumps(key) for key in keys)).encode()).hexdigest()


class Journal:
    """The finished pieces of one output, each written the moment it is there.

    A new journal, or one that replaces another, is begun with its first piece: a run that is refused changes nothing.

    Attributes:
        entries: finished pieces by key, those of earlier runs included.
        resumed: how many of them an earlier run had finished.
        published: the final file is there and was made with this fingerprint.
        fingerprint: the settings it was opened with.
    """

    def __init__(
        self,
        output: str | Path,
        fingerprint: dict[str, Any],
        overwrite: bool = False,
        published: bool = False,
        lock: "Lock | None" = None,
    ):
        """Open the journal of `output`, or begin one.

        Raises:
            UserError: another run is writing it, a line other than a torn last one is damaged, or it belongs to
                other settings and `overwrite` is not given.
        """
        self.output, self.path = Path(output), Path(f"{output}.journal.jsonl")
        self.fingerprint = fingerprint
        self._opened = time.monotonic()
        self.entries: dict[Key, Any] = {}
        self.published = published
        self._lock = lock or Lock(output)
        self._end = 0  # where the last whole line ends
        check_regular(self.path)
        import msgspec  # here, so that --help needs no package

        self._encode = msgspec.json.encode  # five times as fast as json.dumps
        # Without a buffer: what could not be written is not written later, after the run has said so.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (held open for the whole run)
        with open(self.path, "rb") as file:
            self._read(file, overwrite)
        self.resumed = len(self.entries)

    def _read(self, file: IO[bytes], overwrite: bool) -> None:
        """Take over what an earlier run has finished, and cut off a torn last line: the next one starts clean."""
        found, self._header_sum = _read_header(file, self.path)
        if found is not None and _is_other(found, self.fingerprint, overwrite, self.path):
            found = None
        self._is_begun = found is not None
        if found is not None:
            self.take_over_reported(found)
            self.entries, self._end = _read_entries(file, self.path, self._header_sum)
            self._file.truncate(self._end)

    def add(self, key: Key, value: Any) -> None:
        """Keep one finished piece; it survives the process from here on."""
        self._begin()
        text = self._encode({"key": key, "value": value})
        self._write(_with_sum(text, self._header_sum))
        self.entries[key] = value

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
        """Replace what the journal held by this run's header, unless it goes on with what it held."""
        if not self._is_begun:
            self._file.truncate(0)
            self._end = 0
            header = json.dumps({"fingerprint": self.fingerprint}, ensure_ascii=False).encode() + b"\n"
            self._write(header)
            self._is_begun, self._header_sum = True, zlib.crc32(header)

    def _write(self, line: bytes) -> None:
        """Append a line; of one that the disk takes only in part nothing stays, for others may follow."""
        try:
            write_line(self._file, line, self.path)
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(line)


def read_journal(path: str | Path) -> tuple[dict[str, Any], dict[Key, Any]]:
    """The fingerprint and the finished pieces of a journal, which may be in use; a torn last line does not count.

    Raises:
        UserError: it cannot be read, was not begun, or is damaged.
    """
    check_regular(Path(path))
    try:
        with open(path, "rb") as file:
            fingerprint, header_sum = _read_header(file, Path(path))
            if fingerprint is None:
                raise UserError(f"{path}: holds nothing yet")
            return fingerprint, _read_entries(file, Path(path), header_sum)[0]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _is_other(found: dict[str, Any], fingerprint: dict[str, Any], overwrite: bool, path: Path) -> bool:
    """Is a journal one of other settings? UserError where it is, unless it may be overwritten."""
    differing = differences(found, fingerprint)
    if differing and not overwrite:
        raise UserError(
            f"{path}: an unfinished run with other settings: {differing}\n"
            "  repeat that run's command, give another output, or --overwrite to begin anew"
        )
    return bool(differing)


def _read_header(file: IO[bytes], path: Path) -> tuple[dict[str, Any] | None, int]:
    """The fingerprint in the first line, None for a journal that was not begun, and that line's checksum."""
    line = file.readline()
    if not line.endswith(b"\n"):
        return None, 0
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        if isinstance(fingerprint := json.loads(line)["fingerprint"], dict):
            return in_todays_shape(fingerprint), zlib.crc32(line)
    raise UserError(
        f"{path}: line 1 is damaged\n  every other line's checksum includes it: delete the file to begin anew"
    )


def _read_entries(file: IO[bytes], path: Path, header_sum: int) -> tuple[dict[Key, Any], int]:
    """Every whole line after the header by its key, and where the last of them ends."""
    entries: dict[Key, Any] = {}
    end = file.tell()
    for number, line in enumerate(file, 2):
        if not line.endswith(b"\n"):
            break
        if (entry := _parse_entry(line, header_sum)) is None:
            raise UserError(
                f"{path}: line {number} is damaged\n"
                "  delete that line to have its piece done again, or the file to begin anew"
            )
        entries[tuple(entry["key"])] = entry["value"]
        end += len(line)
    return entries, end


def _with_sum(text: bytes, header_sum: int) -> bytes:
    """The line of a journal for a JSON object: it ends with the checksum of header and object, as one field more."""
    return text[:-1] + SUM_FIELD + str(zlib.crc32(text, header_sum)).encode() + b"}\n"


def _parse_entry(line: bytes, header_sum: int) -> dict[str, Any] | None:
    """The finished piece in a line, None where it is not as it was written, or is another journal's."""
    text = line.rpartition(SUM_FIELD)[0] + b"}"
    return json.loads(text) if _with_sum(text, header_sum) == line else None
