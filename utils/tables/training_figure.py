"""The figure of a training run: its losses by step, and below them what its evaluations found."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from utils.cli import UserError
from utils.files.json_files import read_bytes
from utils.tables.drawing import figure_style, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By the field of training_log.jsonl: the panel from above, the label of its axis, and how it is drawn.
CURVES = {
    "loss": (0, "cross-entropy a target token (nats)", {"label": "training", "color": "0.6", "linewidth": 0.8}),
    "eval_loss": (0, "cross-entropy a target token (nats)", {"label": "validation", "color": "black", "marker": "o"}),
    "eval_aspect_recall": (1, "aspect recall (0 to 1)", {"color": "black", "marker": "s"}),
    "eval_score": (1, "metric in validation", {"color": "black", "marker": "s"}),
}
LARGEST = 1e30  # far beyond any loss, and within what an axis can show


def read_log(path: Path) -> dict[str, dict[int, float]]:
    """The values of each field of `CURVES` by step; where a step is logged twice, the last one.

    UserError where a line is no object with a step, but for the last one, which a run may be writing.
    """
    found: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    lines = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line.decode())
            its = {name: entry[name] for name in found.keys() & entry.keys()}
            if type(entry["step"]) is not int or not {type(one) for one in its.values()} <= {int, float}:
                raise ValueError
            float(entry["step"])  # an error where no axis can show it
            for name, value in its.items():
                if abs(float(value)) < LARGEST:  # also not NaN
                    found[name][entry["step"]] = value
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError, OverflowError):
            if number == len(lines):
                break
            raise UserError(f"{path}: line {number} is damaged; delete that line") from None
    return {name: dict(sorted(values.items())) for name, values in found.items() if values}


@figure_style()
def training_figure(folder: str) -> "Figure":
    """UserError where the folder is of no training run, or its log has no loss yet."""
    log = read_log(Path(folder) / "training_log.jsonl")
    if not log.keys() & {"loss", "eval_loss"}:
        raise UserError(f"{folder}/training_log.jsonl: holds no loss yet; draw it once a step is logged")
    count = 1 + max(CURVES[name][0] for name in log)
    figure = new_figure(8, 4 + 2.4 * (count - 1))
    panels = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    for name, values in log.items():
        number, axis, style = CURVES[name]
        panels[number].plot(list(values), list(values.values()), **style)
        panels[number].set_ylabel(axis)
        tidy(panels[number], "both")
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("training step")
    return figure
