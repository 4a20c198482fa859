"""Derived files: tables, comparisons, reports and figures, which can be made again from other outputs.

A script replaces files that it wrote itself without asking, completely or not at all. It refuses to replace files that
other programs wrote, or that were changed. The manifest beside a file has the script's name and the file's hash.
"""

import argparse
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from utils.base import manifest
from utils.base.flags import FlagParser
from utils.base.locks import locked
from utils.base.made import ALL_BUT_SCRIPT, Made
from utils.base.writing import open_whole


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
