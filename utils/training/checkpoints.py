"""A training run's folder and its checkpoints: folders checkpoint-<step>, complete once they have manifest.json.

A regular checkpoint is saved every --save_steps and at the end, after its evaluation. An interim checkpoint exists only
to resume from: it is saved on a signal, or after some time without a checkpoint, and deleted once a later checkpoint
is complete.
"""

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.base.errors import UserError, count_noun, is_first_process
from utils.base.manifest import differences, read_folder_manifest
from utils.base.writing import STAGED, Lock, check_could_write, check_free, replace_link

STATES = ("optimizer.pt", "scheduler.pt", "rng_state*.pth")  # files of a checkpoint that only a resumed run reads


@dataclass(frozen=True)
class Selection:
    """How the best checkpoint is chosen, when training stops early, and which checkpoints are kept."""

    figure: str  # the evaluation's figure that decides, by its name in the log
    name: str  # its name in manifests
    words: str  # its name in messages
    higher_is_better: bool = False
    patience: int | None = None  # stop after this many evaluations without a better one; None: never stop
    keeps_all: bool = True  # False: keep only the last and the best checkpoint

    def is_over(self, args: Any, step: int, best_step: int | None) -> bool:
        """Return whether training ends at this step: the last step is reached, or patience has run out."""
        worse = (step - (best_step or 0)) // args.save_steps  # evaluations since the best, or since the start
        return step >= args.max_steps or (self.patience is not None and worse >= self.patience)

    def describe_end(self, figures: dict[str, Any]) -> str:
        """Return a sentence on how training ended, from the result of `Resumable.learn`."""
        if figures["best_step"] is None:
            return (
                f"{count_noun(figures['steps'], 'step')}; nothing was evaluated; the last checkpoint is linked as last"
            )
        best = f"{self.words} {figures[self.name]:z.4f}"
        return f"{count_noun(figures['steps'], 'step')}; best is checkpoint-{figures['best_step']}, {best}"


@dataclass(frozen=True)
class Run:
    """A run's folder, as `open_run` found it."""

    folder: Path
    checkpoint: Path | None  # the last complete checkpoint, to resume from; None: start from step 0
    lock: Lock | None  # held by the first of several processes; None in the others
    replaced: list[Path]  # checkpoints of an earlier run, which this run deletes when it begins


def check_run(args: argparse.Namespace, settings: dict[str, Any]) -> Run:
    """Do the checks of `open_run` for a dry run, without locking or writing anything."""
    folder = Path(args.output_dir)
    check_could_write(folder / "manifest.json")
    if is_first_process():
        check_free(folder / "training_log.jsonl")
    return _find_run(args, settings, None)


def open_run(args: argparse.Namespace, settings: dict[str, Any]) -> Run:
    """Open the folder for this run, and return where to resume and which checkpoints to replace.

    Raises:
        UserError: the folder cannot be written, another process is writing to it, or it holds checkpoints of another
            program or, without --overwrite, of a run with other settings.
    """
    folder = Path(args.output_dir)
    check_could_write(folder / "manifest.json")
    lock = Lock(folder / "training_log.jsonl") if is_first_process() else None
    run = _find_run(args, settings, lock)
    if lock is not None and run.checkpoint is not None:
        # The run may have been killed right after its newest checkpoint was complete.
        for staged in folder.rglob(f"*.{STAGED}"):
            staged.unlink(missing_ok=True)
        link_checkpoints(folder, run.checkpoint, args)
    return run


def _find_run(args: argparse.Namespace, settings: dict[str, Any], lock: Lock | None) -> Run:
    """Return the run: it resumes from the last complete checkpoint, or replaces all. UserError as in `open_run`."""
    folder = Path(args.output_dir)
    not_links = [path for path in (folder / "best", folder / "last") if path.exists() and not path.is_symlink()]
    if not_links:
        raise UserError(
            f"{not_links[0]}: a link to a checkpoint will be made here; move it away, or choose another --output_dir"
        )
    checkpoints, manifest = find_checkpoints(folder), read_folder_manifest(folder)
    if checkpoints and manifest is None:
        raise UserError(f"{folder}: holds checkpoints of another program; choose another --output_dir")
    differing = differences(manifest["settings"], settings) if checkpoints else ""
    if differing and not args.overwrite:
        raise UserError(
            f"{folder}: holds a run with other settings: {differing}\n"
            "  choose another --output_dir, or add --overwrite to delete its checkpoints and start over"
        )
    if differing or not args.resume:
        return Run(folder, None, lock, replaced=checkpoints)
    complete = [path for path in checkpoints if read_folder_manifest(path) is not None]
    return Run(folder, complete[-1] if complete else None, lock, replaced=[])


def link_checkpoints(folder: Path, newest: Path, args: Any) -> None:
    """Point the links `best` and `last` to checkpoints, as the manifest of the newest complete checkpoint says."""
    best_step = read_folder_manifest(newest).get("best_step")
    links = {} if best_step is None else {"best": f"checkpoint-{best_step}"}
    links |= {} if is_interim(args, step_of(newest)) else {"last": newest.name}
    for name, target in links.items():
        link = folder / name
        if not (link.is_symlink() and str(link.readlink()) == target):
            replace_link(link, target)


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the folders checkpoint-<step>, sorted by step; they may be incomplete."""
    checkpoints = [
        path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdigit() and path.is_dir()
    ]
    return sorted(checkpoints, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[2])


def is_interim(args: Any, step: int) -> bool:
    return step % args.save_steps > 0 and step < args.max_steps


def remove_checkpoint(checkpoint: Path) -> None:
    # The manifest goes first, so that a half-deleted folder does not look complete.
    (checkpoint / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def drop_states(folder: Path) -> None:
    """Delete the files that only a resumed run reads, because AdamW's states are twice as large as the weights."""
    for path in folder.glob("checkpoint-*/*"):
        if any(map(path.match, STATES)):
            path.unlink()
