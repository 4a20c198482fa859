"""An output of a script that asks or computes piece by piece.

Every such script names the output and its pieces, has them `check`ed in a dry run, else opens them, sees whether it
`is_finished`, has what is `left` done, and publishes.
"""

import hashlib
import json
import re
import secrets
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.fingerprints import differences
from utils.files.journal import Journal, Key, is_other, journal_path, keys_hash
from utils.files.journal_lines import read_entries, read_header
from utils.files.lock import Lock, check_free
from utils.files.manifest import is_finished, manifest_of, prepare_output, read_manifest
from utils.files.writing import check_could_write, check_regular, check_writable
from utils.parsing.thoughts import THINK_LONGER, UNFINISHED

NUM_REASONS = 3  # that are told where most pieces are unusable
Piece = dict[str, Any]  # {"value": ... or None, ...}
Pieces = dict[Key, Piece]


def is_failed(piece: Piece | None) -> bool:
    """The model gave nothing that can be used; what stands in for a verdict on no answer has `answered`."""
    return piece is not None and piece["value"] is None and "answered" not in piece


@dataclass
class OutputFile:
    """A final file with its journal."""

    path: str
    fingerprint: dict[str, Any]  # the settings that decide its pieces
    keys: list[Key]  # of the pieces that it is to have in the end
    collect: Callable[[Pieces], Any] | None  # from pieces to the file's content; None for one too large for the memory
    overwrite: str | None = None  # the flag's value: None, "changed" or "all"
    retry_failed: bool = False  # the flag of this name
    may_change: Collection[str] = ()  # settings of earlier pieces that may differ; which count then, the caller says
    # None before `open`, and where the output is finished and its journal was deleted.
    journal: Journal | None = field(default=None, init=False)

    def check(self) -> None:
        """Raise UserError where `open` would; nothing is made: for a dry run."""
        path, journal, overwrite = Path(self.path), journal_path(self.path), bool(self.overwrite)
        check_could_write(path)
        check_free(path)
        published = is_finished(path, self.fingerprint, overwrite, self.may_change) and self.overwrite != "all"
        if _is_begun(journal):
            with open(journal, "rb") as file:
                found, header_sum = read_header(file, journal)
                if not is_other(found["fingerprint"], self.fingerprint, overwrite, journal, self.may_change):
                    read_entries(file, journal, header_sum)
        elif published:
            self._refuse_other_pieces()

    def open(self, run: str | None = None) -> None:
        """Take the output and read what is there; with `run` (of `overwrite_run`) what another has finished is no more.

        Raises:
            UserError: another process has it; as `prepare_output`; its journal is damaged, or was deleted and the
                output was not made for these very pieces or some are to be replaced.
        """
        path, overwrite = Path(self.path), bool(self.overwrite)
        check_writable(path)
        lock = Lock(path)
        published = prepare_output(path, self.fingerprint, overwrite, self.may_change)
        anew = run is not None and self._is_finished_by_another(run)
        published = published and not anew
        if published and not _is_begun(journal_path(path)):
            self._refuse_other_pieces()
            return
        self.journal = Journal(path, self.fingerprint, overwrite, published, lock, run, anew, self.may_change)
        if published:
            self.journal.take_over_reported(read_manifest(path)["fingerprint"])

    def _refuse_other_pieces(self) -> None:
        """Raise UserError where a finished output without a journal has not these very pieces, or is to get others."""
        if self.retry_failed:
            raise UserError(
                f"{self.path}: its journal was deleted or emptied, so nothing in it can be asked for again\n"
                "  --overwrite makes it anew, without --retry_failed it is left alone"
            )
        manifest = read_manifest(self.path)
        if manifest.get("keys_sha256") != keys_hash(self.keys):
            raise UserError(
                f"{self.path}: holds {manifest.get('pieces', 0)} pieces, others than the {len(self.keys)} of this run, "
                "and its journal was deleted or emptied, so none can be added\n"
                "  delete it to start over, or give another output"
            )

    def _is_finished_by_another(self, run: str) -> bool:
        """Something is there that `run` is to make anew, even if its journal is of these settings.

        Not so what has other settings, where that journal is of an unfinished run that was to replace it.
        """
        if not Path(self.path).exists():
            return False
        if (manifest := manifest_of(self.path)) is None:
            return True
        is_going_on = manifest.get("overwrite") == run or manifest.get("missing")
        return not is_going_on and not differences(manifest["fingerprint"], self.fingerprint, self.may_change)

    @property
    def pieces(self) -> Pieces:
        return self.journal.entries

    def missing(self) -> list[Key]:
        """The pieces that are not there, in order."""
        return [key for key in self.keys if key not in self.pieces]

    def left(self) -> list[Key]:
        """The pieces that are to be done: those that are missing, with --retry_failed also those that failed."""
        if self.journal is None:
            return []
        missing = set(self.missing())
        return [key for key in self.keys if key in missing or (self.retry_failed and is_failed(self.pieces[key]))]

    def is_finished(self) -> bool:
        """Nothing is left and the file holds what its pieces make; it is said."""
        if self.journal is not None and (self.left() or not self.holds_pieces()):
            return False
        print(f"{self.path}: already finished, left alone")
        return True

    def holds_pieces(self) -> bool:
        """No piece is missing, and the file holds what they make: not where a run died before publishing."""
        if not self.journal.published or self.missing():
            return False
        if self.collect is None:  # too large to be read again: it was published with these pieces and no others
            return read_manifest(self.path).get("keys_sha256") == keys_hash(self.keys)
        return json.loads(Path(self.path).read_text(encoding="utf-8")) == self.content()

    def content(self) -> Any:
        return self.collect(self.pieces)

    def report_failed(self, unit: str, is_again: bool = False) -> int:
        """The exit code for what the model gave: 1 if at least half of the pieces it was asked for are unusable.

        Then stderr has the commonest reasons, each with a sample and what to try. A run that found itself finished,
        `is_again`, says how many are unusable also where they are fewer, and ends with 0: else what follows it could
        never run.
        """
        if self.journal is None:
            if unusable := (read_manifest(self.path) or {}).get("unusable"):
                again = f"its journal was deleted; only --overwrite asks again, for all {unit}"
                print(f"{self.path}: {unusable} of {len(self.keys)} {unit} are unusable; {again}", file=sys.stderr)
            return 0
        pieces, failed = self.pieces, self._failed()
        asked = sum(key in pieces and "answered" not in pieces[key] for key in self.keys)
        # A prompt that is too long stays so, and an option as likely; another text may be usable.
        may_differ = any("attempts" in pieces[key] and "mean_log_probs" not in pieces[key] for key in failed)
        again = "--retry_failed asks for them again" if may_differ else ""
        return report_unusable(self.path, pieces, failed, asked, unit, self.fingerprint, is_again, again)

    def _failed(self) -> list[Key]:
        return [key for key in self.keys if is_failed(self.pieces.get(key))]

    def num_missing(self, asked: Collection[Key]) -> int:
        """How many of the pieces that were asked for a server failed to give."""
        return len(set(asked) - self.journal.added)

    def publish(self, arguments: dict[str, Any], device: str | None, **figures: Any) -> None:
        """Put the file in place, with a manifest that tells how it was made and what it took."""
        counts = {"missing": len(self.missing()), "unusable": len(self._failed())}
        self.journal.publish(self.content(), arguments, device, **counts, **figures)


def _is_begun(journal: Path) -> bool:
    """It has its first line. An empty one holds no piece, and is as good as deleted."""
    check_regular(journal)
    if not journal.exists():
        return False
    with open(journal, "rb") as file:
        return read_header(file, journal)[0] is not None


def report_unusable(
    path: str,
    pieces: Pieces,
    failed: list[Key],
    asked: int,
    unit: str,
    settings: dict[str, Any],
    is_again: bool,
    again: str = "a higher --max_retries asks for them again",
) -> int:
    """As `OutputFile.report_failed`; `again` says how to ask for what `failed` once more."""
    are_most = 2 * len(failed) >= asked > 0
    if failed and (are_most or is_again):
        print(f"{path}: {len(failed)} of {asked} {unit} are unusable" + (again and f"; {again}"), file=sys.stderr)
    if are_most:
        print(*_common_reasons(pieces, failed, settings), sep="\n", file=sys.stderr)
        print("  with other settings, give another output or --overwrite", file=sys.stderr)
    return int(are_most and not is_again)


def _common_reasons(pieces: Pieces, failed: list[Key], settings: dict[str, Any]) -> list[str]:
    """Two lines for each of the three commonest reasons: how many, of the first what the model wrote; what to try."""
    alike: dict[tuple[str, str], list[Key]] = {}
    for key in failed:
        reason = re.sub(r"\d+", "0", str(pieces[key].get("reason")))
        alike.setdefault((reason, _what_to_try(pieces[key], settings)), []).append(key)
    lines = []
    # Of as many the one that came first.
    for (_, remedy), keys in sorted(alike.items(), key=lambda item: len(item[1]), reverse=True)[:NUM_REASONS]:
        first = pieces[keys[0]]
        text = first.get("raw") or first.get("reasoning", first.get("raw"))
        wrote = f": {quote(text)}" if text is not None else ""
        lines.append(f"  {len(keys)}: {quote(first.get('reason'))[1:-1]}; such as {quote(keys[0][0])}{wrote}")
        lines.append(f"     try {remedy}")
    return lines


def _what_to_try(piece: Piece, settings: dict[str, Any]) -> str:
    """What may mend a failed piece, by how far the model came with it."""
    if "attempts" not in piece:  # the prompt was too long to be asked
        return "a higher --max_model_len, or fewer posts or shorter texts in the prompt"
    if "mean_log_probs" in piece:
        return "another model, or generated text: leave out --choose likelihood or --verdicts probability"
    if "raw" not in piece:
        return "another model or server: this one refuses what these prompts are about"
    if piece.get("reason") == UNFINISHED:
        return THINK_LONGER
    if piece.get("finish_reason") == "length" and "planner" in settings:
        return "a higher --max_tokens_plan, with a --max_model_len that has room for it"
    if piece.get("finish_reason") == "length":
        return "a higher --max_tokens, with a --max_model_len that has room for it"
    if settings.get("constrained_decoding") == "never" and "num_beams" not in settings:
        return "--constrained_decoding fallback, or another model"
    return "another model, or a prompt of your own by --prompts_dir"


def open_outputs(*outputs: OutputFile) -> None:
    """Open what one command makes; UserError as `OutputFile.open`."""
    run = overwrite_run(outputs[0].overwrite, [output.path for output in outputs])
    for output in outputs:
        output.open(run)


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


def _runs_of(output: str) -> list[str]:
    """Names of the runs with --overwrite that began its journal, and that wrote it."""
    path, told = journal_path(output), [read_manifest(output)]
    if path.is_file():
        with open(path, "rb") as file:
            told.append(read_header(file, path)[0])
    return [one["overwrite"] for one in told if one is not None and "overwrite" in one]


def _is_made_by(output: str, run: str) -> bool:
    manifest = manifest_of(output) if Path(output).exists() else None
    return manifest is not None and manifest.get("overwrite") == run and not manifest.get("missing")
