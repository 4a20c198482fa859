"""A file that a command makes: whether it is there and as the command makes it, its lock, and its publication.

Derived files are tables, comparisons, reports and figures, which can be made again from other outputs. A script
replaces those that it wrote itself without asking, completely or not at all. It refuses to replace files that other
programs wrote, or that were changed. The manifest beside a file has the script's name and the file's hash."""

import argparse
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from utils.base import manifest
from utils.base.cli import FlagParser
from utils.base.errors import UserError
from utils.base.manifest import NOT_OURS, differences, manifest_of, manifest_path, publish, publishing
from utils.base.writing import check_regular, locked, open_whole

ALL_BUT_SCRIPT = frozenset[str]({"*"})  # a value of `may_change`, compared by identity


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
        may_change: names of settings with which a file of this command may be replaced without --overwrite, because
            they only say what an input has; with ALL_BUT_SCRIPT, all settings except `script`.
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
            raise UserError(f"{self.path}: {problem}\n  give another output, or --overwrite to replace it")
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
        """Lock the file, and yield a temporary path for it and its manifest, which may be added to, as `publishing`.

        `run`: from `describe_run`; the file's own settings take the place of its settings.
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
        for made in files:  # again, because another process may have written it before it let go of the lock
            made.check()
        yield


def publish_together(contents: Mapping[Made, Any], run: dict[str, Any]) -> None:
    """Write JSON files that belong together, with manifests, or none of them if one is foreign.

    An iterator's items are written as a list. `run` is from `describe_run`; each file's own settings take the place of
    its settings.
    """
    with locked_and_checked(*contents):
        for made, content in contents.items():
            publish(made.path, content, {**run, "settings": made.settings})


def say_finished(path: str | Path) -> None:
    """Print that a command has nothing to do for this file or folder."""
    print(f"{path}: already finished, left alone")


def add_overwrite_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag that lets a derived file replace anything; its help explains the rule."""
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
    """Return a file that `script` may replace whatever its other settings are."""
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
