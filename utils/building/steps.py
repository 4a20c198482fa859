"""A step's file that no model is asked for: made from the file of the step before, and again where that is another."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from utils.files.derived_files import is_own, prepare_derived
from utils.files.manifest import describe_run, manifest_of, publish_staged
from utils.files.writing import staged_path

Counts = Mapping[str, int]


class Steps:
    """Makes the files of a run of `script`, each whole or not at all, with a manifest that has its counts."""

    def __init__(self, script: str, args: argparse.Namespace):
        self.script, self._args = script, args
        self._run: dict[str, Any] | None = None
        self.written: list[Path] = []  # by this run, not by an earlier one

    def make(self, path: Path, settings: dict[str, Any], write: Callable[[Path], Counts]) -> Counts:
        """The step's counts; `write` makes its file, beside its name, unless it was made with these very settings.

        UserError where something else wrote the file and it is not to be replaced.
        """
        prepare_derived([path], self.script, bool(self._args.overwrite))
        its = {"script": self.script, **settings}
        manifest = manifest_of(path) if path.exists() else None
        if manifest is not None and manifest["settings"] == its:
            return manifest["counts"]
        counts = write(staged_path(path))
        # Looking up versions takes longer than a small file.
        self._run = self._run or describe_run(vars(self._args), {}, None)
        publish_staged(path, {**self._run, "settings": its, "counts": dict(counts)})
        self.written.append(path)
        print(f"{path}: {format_counts(counts)}")
        return counts

    def remove(self, path: Path) -> None:
        """Take away what an earlier run wrote, where this one has nothing for it."""
        if path.exists() and is_own(path, self.script):
            print(f"note: {path}: there is nothing for it any more, so it is deleted", file=sys.stderr)
            path.unlink()
            path.with_name(f"{path.name}.manifest.json").unlink()


def format_counts(counts: Counts) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
