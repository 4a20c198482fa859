"""The checkpoints of a training run: the folders checkpoint-<step>, each of which a manifest.json calls whole.

A checkpoint that a manifest calls interim is there only to be gone on from, after a signal or an evaluation that
saves none: it is never the best, and goes when a later one is whole. An unevaluated one was saved right before its
evaluation: a run that goes on from it begins with that.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from utils.files.lock import Lock
from utils.files.manifest import read_folder_manifest
from utils.files.writing import replace_link, staged_path


@dataclass(frozen=True)
class Run:
    """The folder of a run, as `open_run` found it.

    Attributes:
        checkpoint: the last whole one, to go on from; None to begin.
        lock: held by the first of several processes; None in the others.
        replaced: checkpoints of an earlier run, to be deleted when this one begins.
    """

    folder: Path
    checkpoint: Path | None
    lock: Lock | None
    replaced: list[Path]


def find_checkpoints(folder: Path) -> list[Path]:
    """The folders checkpoint-<step>, in the order of their steps; each is whole if it has a manifest.json."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdigit() and path.is_dir()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[2])


def is_interim(checkpoint: Path) -> bool:
    return bool((read_folder_manifest(checkpoint) or {}).get("interim"))


def is_unevaluated(checkpoint: Path) -> bool:
    """Was its run stopped before, or in, the evaluation that belongs to it?"""
    return bool((read_folder_manifest(checkpoint) or {}).get("unevaluated"))


def remove_checkpoint(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink(missing_ok=True)  # first, so that none looks whole and is not
    shutil.rmtree(checkpoint)


def remove_superseded(folder: Path, step: int) -> None:
    """Delete the interim checkpoints before `step`, whose own is whole, and what a kill left of one."""
    for checkpoint in find_checkpoints(folder):
        if step_of(checkpoint) < step and (is_interim(checkpoint) or read_folder_manifest(checkpoint) is None):
            remove_checkpoint(checkpoint)


def finish_saving(folder: Path, best_step: int | None) -> None:
    """What is left to do where a run was killed right after a checkpoint was whole."""
    for name in ("trainer_state.json", "README.md"):
        staged_path(folder / name).unlink(missing_ok=True)
    best = folder / "best"
    if best_step is not None and not (best.is_symlink() and str(best.readlink()) == f"checkpoint-{best_step}"):
        replace_link(best, f"checkpoint-{best_step}")
