"""Draw a training over its steps, from its training_log.jsonl to a PNG: losses, and what its evaluations found.

  python utils/plot_training.py --output_dir planner
  python utils/plot_training.py --output_dir planner --plot_addr figures/planner.png

Of a planner that is the aspect recall, of a fine-tuned generator the task's metric. It can be drawn while the run goes
on.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.cli import UserError
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.files.json_files import read_bytes
from utils.files.manifest import read_folder_manifest
from utils.tables.drawing import figure_style, new_figure, render_figure, tidy
from utils.tables.formats import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCRIPT = "utils/plot_training.py"
DRAWN = ("loss", "eval_loss", "eval_aspect_recall")
SCORE = "eval_score"  # of a generator, in place of the other two evaluations
WINDOW = 20  # logged steps a running mean is over; it is drawn from twice as many on
WIDTH, PANEL_HEIGHT = 8, (4.0, 2.4)  # inches: of the figure, of its panels
LARGEST = 1e30  # finite number that is drawn: far beyond any loss, and within what an axis can show


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--output_dir", required=True, metavar="DIR", help="folder of the training run")
    where = "where the PNG goes (default: training.png in --output_dir)"
    parser.add_argument("--plot_addr", metavar="FILE", help=where)
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    folder = Path(args.output_dir)
    if not folder.is_dir():
        raise UserError(f"--output_dir {folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    log_addr, plot_addr = folder / "training_log.jsonl", args.plot_addr or str(folder / "training.png")
    cli.check_outputs([plot_addr], [str(log_addr)])
    log = read_log(log_addr)
    if not (log["loss"] or log["eval_loss"]):
        raise UserError(f"{log_addr}: holds no loss yet; draw it when the run has logged its first step")
    prepare_derived([plot_addr], SCRIPT, args.overwrite)
    metric = (read_folder_manifest(folder) or {"fingerprint": {}})["fingerprint"].get("metric", "metric")
    publish_derived(render_figure(make_figure(log, metric), {Path(plot_addr): "png"}), SCRIPT, args)
    losses = counted(len(log["loss"]), "loss", "losses")
    evaluated = counted(len(log[SCORE]), "score") if SCORE in log else len(log["eval_loss"])
    print(f"{plot_addr}: {losses} in training, {evaluated} in validation")
    return 0


def read_log(path: Path) -> dict[str, dict[int, float]]:
    """The values of each of `DRAWN` by step, steps ascending; where a step is logged twice, the last one.

    A last line that a run is still writing is left out.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file; give the folder of a training run")
    lines = read_bytes(path).split(b"\n")
    found: dict[str, dict[int, float]] = {name: {} for name in (*DRAWN, SCORE)}
    for number, line in enumerate(lines, 1):
        entry = _parse(line) if line.strip() else {}
        if entry is None and number < len(lines):  # what stands behind the last line break is being written
            raise UserError(f"{path}: line {number} is damaged; delete that line")
        for name in found.keys() & (entry or {}).keys():
            found[name][entry["step"]] = entry[name]
    return {name: dict(sorted(values.items())) for name, values in found.items() if values or name != SCORE}


def _parse(line: bytes) -> dict[str, Any] | None:
    """A line's object, None where it is not one or a value that is drawn is not a number a drawing can hold."""
    try:
        entry = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or type(entry.get("step")) is not int:
        return None
    numbers = [entry[name] for name in ("step", *DRAWN, SCORE) if name in entry]
    is_drawable = all(type(number) in (int, float) and not LARGEST < abs(number) < math.inf for number in numbers)
    return entry if is_drawable else None


def running_mean(values: dict[int, float]) -> dict[int, float]:
    """The mean of the last `WINDOW` values at each step that has as many; nothing below twice as many values."""
    if len(values) < 2 * WINDOW:
        return {}
    steps, numbers = list(values), list(values.values())
    return {steps[end - 1]: fmean(numbers[end - WINDOW : end]) for end in range(WINDOW, len(steps) + 1)}


@figure_style()
def make_figure(log: dict[str, dict[int, float]], metric: str = "metric") -> "Figure":
    """The losses, of which there is one, and below them aspect recall or score, if any; grey is enough to read it.

    `metric` is what the score is.
    """
    recall, score = log["eval_aspect_recall"], log.get(SCORE, {})
    heights = PANEL_HEIGHT if recall or score else PANEL_HEIGHT[:1]
    figure = new_figure(WIDTH, sum(heights))
    panels = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    draw_losses(panels[0], log["loss"], log["eval_loss"])
    if recall:
        _draw(panels[1], recall, linewidth=1, color="black", linestyle=":", marker="s", markersize=5, clip_on=False)
        panels[1].set_ylabel("aspect recall (0 to 1)")
        panels[1].set_ylim(0, 1)  # markers at 0 and 1 are whole, for nothing is clipped
    elif score:
        _draw(panels[1], score, linewidth=1, color="black", linestyle=":", marker="s", markersize=5)
        panels[1].set_ylabel(f"{metric} in validation")
    for panel in panels:
        tidy(panel, "both")
    panels[-1].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    panels[-1].set_xlabel("training step")
    return figure


def draw_losses(panel: "Axes", training: dict[int, float], validation: dict[int, float]) -> None:
    """With a ring around the lowest validation loss, the first of equal ones, named in the legend with its step."""
    mean = running_mean(training)
    if training:
        style = {"color": "0.65"} if mean else {"color": "0.3", "marker": "."}  # a single point has no line
        _draw(panel, training, linewidth=0.8, label="training", **style)
    if mean:
        label = f"training, mean of the last {WINDOW} logged steps"
        _draw(panel, mean, color="tab:blue", linewidth=1.6, label=label)
    dots = {"color": "black", "marker": "o"}
    if validation:
        _draw(panel, validation, **dots, linestyle="--", linewidth=1, markersize=5, label="validation")
    if finite := {step: loss for step, loss in validation.items() if math.isfinite(loss)}:
        step = min(finite, key=finite.__getitem__)
        label = f"lowest validation: {finite[step]:.3f} at step {step}"
        _draw(panel, {step: finite[step]}, **dots, linestyle="", markersize=11, fillstyle="none", label=label)
    panel.set_ylabel("cross-entropy a target token (nats)")
    panel.legend(frameon=False)


def _draw(panel: "Axes", values: dict[int, float], **style: Any) -> None:
    panel.plot(list(values), list(values.values()), **style)


if __name__ == "__main__":
    cli.run_script(main)
