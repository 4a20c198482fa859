"""The files of steps that need no model. They are made from earlier files, and made again if those have changed."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from utils.base.errors import count_plural
from utils.base.made import ALL_BUT_SCRIPT, Made, State, derived
from utils.base.manifest import describe_run, manifest_path, read_manifest

Counts = Mapping[str, int]


class Steps:
    """Makes the files of a run of `script` atomically, each with a manifest that holds its counts."""

    def __init__(self, script: str, args: argparse.Namespace):
        self.script, self._args = script, args
        self._run: dict[str, Any] | None = None
        self.written: list[Path] = []  # files written by this run

    def make(self, path: Path, settings: dict[str, Any], write: Callable[[Path], Counts]) -> Counts:
        """Make a step's file with `write`, unless it exists with the same settings, and return its counts.

        UserError if another program wrote the file, unless --overwrite is set.
        """
        made = Made(path, {"script": self.script, **settings}, bool(self._args.overwrite), ALL_BUT_SCRIPT)
        if made.check() is State.CURRENT:
            return read_manifest(path)["counts"]
        # Once per run, because looking up versions takes longer than writing a small file.
        self._run = self._run or describe_run(vars(self._args), {}, None)
        with made.writing(self._run) as (staged, manifest):
            counts = write(staged)
            manifest["counts"] = dict(counts)
        self.written.append(path)
        print(f"{path}: {format_counts(counts)}")
        return counts

    def remove(self, path: Path) -> None:
        """Delete a file of an earlier run for which this run has no content, and print a note."""
        if derived(path, self.script).state in (State.CURRENT, State.STALE):
            print(f"note: {path}: deleted, because this run has no questions for it", file=sys.stderr)
            path.unlink()
            manifest_path(path).unlink()


def format_counts(counts: Counts) -> str:
    return ", ".join(count_plural(count, name) for name, count in counts.items())
