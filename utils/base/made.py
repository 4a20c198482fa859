"""A file that a command makes: whether it is there and as the command makes it, its lock, and its publication."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from utils.base.errors import UserError
from utils.base.locks import locked
from utils.base.manifest import NOT_OURS, differences, manifest_of, manifest_path, publish, publishing
from utils.base.writing import check_regular

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
