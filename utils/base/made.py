"""A command's output files: whether they are up to date, their locks, and how they are written.

A `MadeFile` is assembled from pieces, such as one answer per question. A derived file is a table, comparison, report or
figure, which can be made again from other outputs. A script replaces its own derived files without --overwrite, but not
files that another program wrote or that were changed. It recognizes its files by the manifest beside them, which has
the script's name and the file's hash. Files are replaced completely or not at all."""

import argparse
import hashlib
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from utils.base import manifest
from utils.base.cli import FlagParser
from utils.base.errors import UserError, count_noun
from utils.base.manifest import (
    NOT_OURS,
    describe_run,
    differences,
    manifest_of,
    manifest_path,
    publish,
    publishing,
    read_manifest,
)
from utils.base.writing import Lock, check_could_write, check_free, check_regular, locked, open_whole, write_json

ALL_BUT_SCRIPT = frozenset[str]({"*"})  # a value of `may_change`, compared by identity
Key = tuple[str | int, ...]
Piece = dict[str, Any]  # {"value": ... or None, ...}
Pieces = dict[Key, Piece]
INPUTS = ("inputs", "responses", "given_plans", "code")  # settings with hashes of input files, which may change
# Flags that, together with the dataset, determine an output's pieces.
QUESTIONS = ("limit", "ids_addr", "num_generated_outputs", "allow_partial")


class State(Enum):
    """What is at a file's path."""

    ABSENT = "nothing"
    CURRENT = "the file as the command makes it now"
    STALE = "a file that the command may replace: only settings that may change differ, or its last run died"
    FOREIGN = "another file, which only --overwrite replaces"


class Made:
    """A file that a command makes, and the settings that it depends on.

    Attributes:
        path: where the file is.
        settings: all values that the content depends on.
        overwrite: whether a foreign file may be replaced.
        may_change: names of settings that may differ if this command replaces its own file without --overwrite,
            because they only describe an input's content; with ALL_BUT_SCRIPT, all settings except `script`.
    """

    def __init__(self, path: str | Path, settings: dict[str, Any], overwrite: bool, may_change: Collection[str] = ()):
        self.path, self.settings, self.overwrite, self.may_change = str(path), settings, overwrite, may_change

    @property
    def state(self) -> State:
        return self._look()[0]

    def check(self) -> State:
        """Return the state; UserError for a foreign file without `overwrite`."""
        state, problem = self._look()
        if state is State.FOREIGN and not self.overwrite:
            raise UserError(f"{self.path}: {problem}\n  choose another output, or add --overwrite to replace it")
        return state

    def _look(self) -> tuple[State, str]:
        """Return the state and, for a foreign file, what is wrong with it."""
        path = Path(self.path)
        if not path.exists():
            return State.ABSENT, ""
        check_regular(path)
        made = manifest_of(path, or_older=True)
        if self.may_change is ALL_BUT_SCRIPT:
            is_ours = made is not None and made["settings"].get("script") == self.settings["script"]
            problem = "" if is_ours else NOT_OURS
        elif made is None:
            beside = manifest_path(path)
            problem = NOT_OURS if beside.exists() else f"{NOT_OURS}: {beside.name} is missing"
        else:
            differing = differences(made["settings"], self.settings, self.may_change)
            problem = f"was made with other settings: {differing}" if differing else ""
        if problem:
            return State.FOREIGN, problem
        is_alike = not differences(made["settings"], self.settings) and manifest_of(path) is not None
        return (State.CURRENT if is_alike else State.STALE), ""

    @contextmanager
    def writing(self, run: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Lock the file; yield a temporary path and the manifest, to which the caller may add, as in `publishing`.

        `run` is a result of `describe_run`; the file's own settings replace the settings in it.
        """
        manifest = {**run, "settings": self.settings}
        with locked_and_checked(self), publishing(self.path, manifest) as staged:
            yield staged, manifest


@contextmanager
def locked_and_checked(*files: Made) -> Iterator[None]:
    """Lock these files for writing; UserError if one is foreign or cannot be written."""
    for made in files:
        made.check()
    with locked(*(made.path for made in files)):
        for made in files:  # again: another process may have written it while this one waited for the lock
            made.check()
        yield


def publish_together(contents: Mapping[Made, Any], run: dict[str, Any]) -> None:
    """Write JSON files that belong together, with their manifests; write none of them if one is foreign.

    An iterator's items are written as a list. `run` is a result of `describe_run`; each file's own settings replace the
    settings in it.
    """
    with locked_and_checked(*contents):
        for made, content in contents.items():
            publish(made.path, content, {**run, "settings": made.settings})


def say_finished(path: str | Path) -> None:
    """Print that a command has nothing to do for this file or folder."""
    print(f"{path}: already finished; skipped")


def add_overwrite_argument(parser: argparse.ArgumentParser) -> None:
    """Add --overwrite for derived files."""
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a file that another program wrote, or that was changed; a file that this script wrote, "
        "according to the manifest beside it, is always replaced (off)",
    )


def add_output_arguments(parser: FlagParser, what: str) -> None:
    """Add --output_addr, which is optional because the content is also printed, and --overwrite; `what` is the help."""
    parser.add_argument("--output_addr", metavar="FILE", help=what)
    add_overwrite_argument(parser)


def prepare_derived(paths: Iterable[str | Path], script: str, overwrite: bool) -> None:
    """Check that `script`, a path such as "utils/make_table.py", may write these files.

    UserError if a file cannot be written, or, without `overwrite`, if it exists and is not as `script` wrote it.
    """
    for path in map(Path, paths):
        with locked(path):
            derived(path, script, overwrite).check()


def derived(path: str | Path, script: str, overwrite: bool = False) -> Made:
    """Return a derived file, which `script` may replace even if other settings differ."""
    return Made(path, {"script": script}, overwrite, ALL_BUT_SCRIPT)


def publish_derived(contents: dict[Path, bytes], script: str, args: argparse.Namespace) -> None:
    """Write derived files, given by their paths, one after the other, each with a manifest.

    The manifest has the hash of every input file that a flag names.
    """
    inputs = {word: manifest.file_hash(word) for word in _words(list(vars(args).values())) if os.path.isfile(word)}
    inputs = {path: digest for path, digest in inputs.items() if Path(path) not in contents}
    run = manifest.describe_run(vars(args), {"script": script, "inputs": inputs}, None)
    with locked(*contents):
        for path, content in contents.items():
            with manifest.publishing(path, run) as staged, open_whole(staged, "wb") as file:
                file.write(content)


def _words(values: list[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, list):
            yield from _words(value)
        elif isinstance(value, str):
            yield value


def is_failed(piece: Piece) -> bool:
    """Return whether a model's output was unusable; False for a verdict made without a model, which has `answered`."""
    return piece["value"] is None and "answered" not in piece


def refuse_other_source(before: Sequence[str], now: Sequence[str]) -> None:
    """Raise UserError if an output was made from different files; the caller adds the output's path to the message."""
    if [*map(os.path.realpath, before)] != [*map(os.path.realpath, now)]:
        problem = f"was made from {', '.join(before)}, not from {', '.join(now)}"
        raise UserError(f"{problem}\n  choose another output, or add --overwrite to replace it")


def keys_hash(keys: Iterable[Key]) -> str:
    """Return a hash of keys that does not depend on their order."""
    return hashlib.sha256(json.dumps(sorted(json.dumps(key) for key in keys)).encode()).hexdigest()


class MadeFile(Made):
    """An output file that is assembled from pieces. Subclasses define `unit` and `content`.

    A shard (--num_shards) has pieces but writes no file; its completions are only added to the store.

    Attributes:
        unit: the plural noun for the pieces.
        knows_keys: whether the keys depend only on input files, not on the results of an earlier stage.
        keys: the keys of all pieces of the finished file; None until they are known.
        pieces: the pieces made so far, by key.
        figures: further fields of the manifest.
        finished: the last result of `is_finished`.
        is_kept: whether `finish` has kept an existing file because it has more usable pieces.
    """

    unit: str
    knows_keys = False

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
        """Read the pieces that a later step needs from the finished file; by default, none: they are made again."""
        return {}

    def check_replaced(self, made: dict[str, Any]) -> None:
        """Raise UserError if only --overwrite may replace the file (manifest: `made`); the caller adds the path."""

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

        If an earlier stage has yet to make the input (`is_input_made` is False), the file is checked, but counts as
        unfinished.

        The file also counts as unfinished with --overwrite, if an input has changed, if pieces are missing because a
        server failed, or if pieces are unusable and --max_retries is higher now. It is then made again; only
        completions that the store lacks are requested.

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
        # The inputs have not been read yet. If their hashes are the same, the same flags choose the same questions.
        before, now = made.get("arguments", {}), vars(self.args)
        is_same = all(before.get(name) == now.get(name) for name in QUESTIONS)
        return self.knows_keys and is_same and not now.get("ids_addr")  # the file of ids may have changed

    def _check_replaced(self, made: dict[str, Any]) -> None:
        """Raise UserError if this command may not replace the existing file, whose manifest is `made`."""
        before, now, number = made.get("dataset"), self.dataset, made.get("pieces", 0)
        try:
            if before and now and made["settings"].get("inputs") != self.settings["inputs"]:
                refuse_other_source([before], [now])
            self.check_replaced(made)
            # If `inputs` is not a setting, the keys come from files of earlier steps, which may have fewer by now.
            is_known = "inputs" in self.settings and self.keys is not None
            if is_known and not made.get("missing") and number > len(self.keys):
                raise UserError(
                    f"has {number} {self.unit}, but this command makes only {len(self.keys)}\n"
                    "  choose another output, or add --overwrite to replace it; completions are kept"
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
        """Return the pieces made so far, in the order of the keys."""
        return {key: self.pieces[key] for key in self.keys if key in self.pieces}

    def add(self, key: Key, piece: Piece) -> None:
        self.pieces[key] = piece

    def load(self) -> None:
        """Add the pieces that `pieces_in_file` reads from the finished file."""
        self.pieces |= self.pieces_in_file()
        if self.keys is None and self.pieces:
            self.expect(self.pieces)

    def finish(self, content: Any, device: str | None, **figures: Any) -> bool:
        """Write the content and its manifest, and return True; for a shard, which has no file, return False.

        Without --overwrite, an existing file with more usable pieces is kept, with a note and the result False, if a
        method's code has changed, or if pieces are missing and all settings are the same.
        """
        if self.is_shard:
            return False
        before = None if self.overwrite else manifest_of(self.path)
        made, now = (before or {"settings": {}})["settings"], self.settings
        if before and (made.get("code") != now.get("code") or (self.missing() and made == now)):
            number, usable = self.usable_before_and_now(before)
            self.is_kept = number > usable
        if self.is_kept:
            problem = f"kept with its {count_noun(number, self.noun)}, because this run made only {usable}"
            print(f"{self.path}: {problem}\n  add --overwrite to replace the file", file=sys.stderr)
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
            problem = f"{unusable} of {count_noun(made['pieces'], self.noun)} unusable"
            print(f"{self.path}: {problem}{self.again()}", file=sys.stderr)

    def failed(self) -> list[Key]:
        """Return the keys of unusable pieces, in order."""
        return [key for key in self.keys if key in self.pieces and is_failed(self.pieces[key])]

    def again(self) -> str:
        """Return the end of a message: how to retry unusable pieces; empty if a retry would change nothing."""
        is_greedy = self.settings.get("temperature") == 0 and self.args.max_retries > 0
        return "" if is_greedy or "num_beams" in self.settings else "; a higher --max_retries retries them"
