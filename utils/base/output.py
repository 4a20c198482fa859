"""A file that is made of pieces: parsed completions, computed values, or rankings of posts.

A command lists its files with the keys of their pieces, skips the finished ones, opens the others, adds their pieces,
and publishes them. Completions are in the store, so after a run that died, the next run resumes from there.
"""

import hashlib
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from utils.base.errors import UserError, counted
from utils.base.made import Made, State, say_finished
from utils.base.manifest import describe_run, manifest_of, publishing, read_manifest
from utils.base.writing import Lock, check_could_write, check_free, write_json

Key = tuple[str | int, ...]
Piece = dict[str, Any]  # {"value": ... or None, ...}
Pieces = dict[Key, Piece]

INPUTS = ("inputs", "responses", "given_plans", "code")  # settings that are hashes of input files, which may change
QUESTIONS = ("limit", "num_generated_outputs")  # flags that decide, with a dataset, which pieces an output has


def is_failed(piece: Piece) -> bool:
    """Return whether a model gave nothing usable; False for a verdict made without a model (it has `answered`)."""
    return piece["value"] is None and "answered" not in piece


def refuse_other_source(before: Sequence[str], now: Sequence[str]) -> None:
    """Raise UserError if an output was made from other files than now; the message lacks the output's path."""
    if [*map(os.path.realpath, before)] != [*map(os.path.realpath, now)]:
        problem = f"was made from {', '.join(before)}, not from {', '.join(now)}"
        raise UserError(f"{problem}\n  give another output, or --overwrite to replace it")


def keys_hash(keys: Iterable[Key]) -> str:
    """Return a hash of keys that does not depend on their order."""
    return hashlib.sha256(json.dumps(sorted(json.dumps(key) for key in keys)).encode()).hexdigest()


class MadeFile(Made):
    """A final file and the pieces that it is made of. A kind of file is a class with a `unit` and a `content`.

    A shard (--num_shards) has pieces but no file: its completions go into the store, and nothing else is written.

    Attributes:
        unit: the plural noun for the pieces.
        keys: keys of all pieces that the finished file has; None until they are known.
        pieces: the pieces that are there, by key.
        figures: further fields of the manifest.
        finished: the last result of `is_finished`.
        is_kept: whether `finish` has left an existing file with more usable pieces.
    """

    unit: str

    def __init__(
        self,
        path: str,
        settings: dict[str, Any],
        args: Namespace,
        keys: Iterable[Key] | None = None,
        pieces: Pieces | None = None,
        dataset: str | None = None,
        **figures: Any,
    ):
        """
        Args:
            args: the command's flags, with --overwrite.
            dataset: a path; a file made from another dataset is only replaced with --overwrite.
        """
        super().__init__(path, settings, args.overwrite, INPUTS)
        self.args, self.dataset, self.figures = args, dataset, figures
        self.keys, self.pieces = None if keys is None else [*keys], {} if pieces is None else pieces
        self.finished = self.is_kept = False
        self._began = time.monotonic()
        self._lock: Lock | None = None  # held since `open`

    def content(self) -> Any:
        """Return the file's content from the pieces in the order of the keys; an iterator's items become a list."""
        raise NotImplementedError

    def pieces_in_file(self) -> Pieces:
        """Return the pieces that a later step needs, read from the finished file; none if they are made again."""
        return {}

    def check_replaced(self, made: dict[str, Any]) -> None:
        """Raise UserError, without the path, if the file whose manifest is `made` needs --overwrite to be replaced."""

    @property
    def noun(self) -> str:
        """`unit` in the singular."""
        return self.unit.removesuffix("s")

    @property
    def is_shard(self) -> bool:
        return self.args.num_shards > 1

    def expect(self, keys: Iterable[Key]) -> None:
        """Set the keys of all pieces, once they are known."""
        self.keys = [*keys]

    def is_finished(self, is_input_made: bool = True) -> bool:
        """Return whether this command has finished the file. Changes nothing on disk, so a dry run may call it.

        Without `is_input_made`, the file is made again, but it is checked all the same.

        The file counts as unfinished with --overwrite, if an input has changed, if pieces are missing because a server
        failed, or if pieces are unusable and --max_retries is higher now. It is then made again; only completions that
        the store lacks are requested.

        Raises:
            UserError: the file cannot be written, or another process is writing it. Without --overwrite, also if the
                file was made with other settings or from another dataset, has more pieces than this command makes, or
                was not written by this script.
        """
        if not self.is_shard:
            check_could_write(Path(self.path))
            if self._lock is None:
                check_free(Path(self.path))
            self.finished = self._is_whole() and is_input_made
        return self.finished

    def _is_whole(self) -> bool:
        """Check an existing file, and return whether it is finished, as `is_finished` describes."""
        state, made = self.check(), read_manifest(self.path)
        if self.overwrite or made is None or state is State.ABSENT:
            return False
        is_whole = self._has_all_keys(made) and not made.get("missing")
        tries = made.get("arguments", {}).get("max_retries", 0)
        has_tried = not made.get("unusable") or tries >= self.args.max_retries
        is_finished = state is State.CURRENT and is_whole and has_tried
        if not is_finished:
            self._check_replaced(made)
        return is_finished

    def _has_all_keys(self, made: dict[str, Any]) -> bool:
        """Return whether the existing file, whose manifest is `made`, was made for the keys of this command."""
        if self.keys is not None:
            return made.get("keys_sha256") == keys_hash(self.keys)
        # The dataset has not been read yet. If its hash is the same, the same flags choose the same questions.
        before, now = made.get("arguments", {}), vars(self.args)
        return self.dataset is not None and all(before.get(name) == now.get(name) for name in QUESTIONS)

    def _check_replaced(self, made: dict[str, Any]) -> None:
        """Raise UserError if this command may not replace the existing file, whose manifest is `made`."""
        before, now, number = made.get("dataset"), self.dataset, made.get("pieces", 0)
        try:
            if before and now and made["settings"].get("inputs") != self.settings["inputs"]:
                refuse_other_source([before], [now])
            self.check_replaced(made)
            # If `inputs` is not a setting, the keys follow from files of earlier steps, and there may be fewer now.
            is_known = "inputs" in self.settings and self.keys is not None
            if is_known and not made.get("missing") and number > len(self.keys):
                raise UserError(
                    f"has {number} {self.unit}, but this command makes only {len(self.keys)}\n"
                    "  give another output, or --overwrite to replace it; completions are kept"
                )
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from None

    def open(self) -> None:
        """Lock the file; UserError if another process is writing it, or has made it with other settings meanwhile."""
        if not self.is_shard:
            self._lock = Lock(self.path)
            self._is_whole()  # another process may have finished it since `is_finished`

    def close(self) -> None:
        """Unlock the file."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def missing(self) -> list[Key]:
        """Return the keys of the missing pieces, in order."""
        return [key for key in self.keys if key not in self.pieces]

    def in_order(self) -> Pieces:
        """Return the pieces that are there, in the order of the keys."""
        return {key: self.pieces[key] for key in self.keys if key in self.pieces}

    def add(self, key: Key, piece: Piece) -> None:
        self.pieces[key] = piece

    def load(self) -> None:
        """Add the pieces that are in the finished file, if its kind can read them."""
        self.pieces |= self.pieces_in_file()

    def finish(self, content: Any, device: str | None, **figures: Any) -> bool:
        """Write the content and its manifest, and return True; for a shard, which has no file, return False.

        Also return False, with a note, if the existing file has more usable pieces, and either a method's code has
        changed, or all settings are the same and pieces are missing: the file is kept unless --overwrite is given.
        """
        if self.is_shard:
            return False
        before = None if self.overwrite else manifest_of(self.path)
        made, now = (before or {"settings": {}})["settings"], self.settings
        if before and (made.get("code") != now.get("code") or (self.missing() and made == now)):
            number, usable = self.usable_before_and_now(before)
            self.is_kept = number > usable
        if self.is_kept:
            problem = f"kept, with its {counted(number, self.noun)}: this run gave {usable} of these"
            print(f"{self.path}: {problem}\n  --overwrite replaces the file", file=sys.stderr)
            return False
        manifest: dict[str, Any] = {}
        with publishing(self.path, manifest) as staged:
            write_json(staged, content)
            figures |= {
                **self.figures,
                "pieces": len(self.pieces),
                "keys_sha256": keys_hash(self.keys),
                "missing": len(self.missing()),
                "unusable": len(self.failed()),
                **({"dataset": self.dataset} if self.dataset else {}),
                "wall_seconds": round(time.monotonic() - self._began, 3),
            }
            manifest |= describe_run(vars(self.args), self.settings, device, **figures)
        return True

    def usable_before_and_now(self, made: dict[str, Any]) -> tuple[int, int]:
        """Return the number of usable pieces in the existing file, whose manifest is `made`, and of those made now."""
        return made.get("pieces", 0) - made.get("unusable", 0), len(self.pieces) - len(self.failed())

    def report_finished(self) -> None:
        """Print that the file is finished and how many pieces are unusable."""
        say_finished(self.path)
        made = read_manifest(self.path)
        if unusable := made.get("unusable"):
            problem = f"{unusable} of {counted(made['pieces'], self.noun)} unusable"
            print(f"{self.path}: {problem}{self.again()}", file=sys.stderr)

    def failed(self) -> list[Key]:
        """Return the keys of unusable pieces, in order."""
        return [key for key in self.keys if key in self.pieces and is_failed(self.pieces[key])]

    def again(self) -> str:
        """Return a message's end that says how to retry unusable pieces; empty if a retry would give the same."""
        is_greedy = self.settings.get("temperature") == 0 and self.args.max_retries > 0
        return "" if is_greedy or "num_beams" in self.settings else "; a higher --max_retries retries them"
