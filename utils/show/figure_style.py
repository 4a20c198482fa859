"""How figures look: the same on every account, and readable in grey."""

import io
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from utils.benchmarks.metric import Metric
from utils.tables.columns import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

os.environ["MPLBACKEND"] = "agg"  # instead of a notebook's backend, which may not be installed
FONT = "DejaVu Sans"  # comes with matplotlib
STYLE = {
    "font.family": FONT,
    "text.parse_math": False,  # show "$" as it is
    "pdf.fonttype": 42,  # embed fonts, so that text can be searched and copied, as journals ask for
    "hatch.linewidth": 0.6,
}
COLUMN, PAGE = 3.3, 6.9  # inches: a paper's column and text widths
TEXT, SMALL_TEXT = 8, 7  # points
TICKS = {"labelsize": SMALL_TEXT, "pad": 2}
CHARACTER = 0.061  # inches: the width of a letter of SMALL_TEXT, somewhat above the mean
DARK, LIGHT = "#173f70", "#dd8452"  # colors of two series; in grey, one is dark and the other pale
SMALLEST_SPAN = 0.1  # of an axis of scores; on a shorter axis, noise would look like an effect
NOT_FROM_0 = "the axis of scores does not start at 0"
MARKERS = ("o", "s", "^", "D", "v", "P")  # scores by group: one per system


@contextmanager
def figure_style() -> Iterator[None]:
    """Make matplotlib ignore the account's matplotlibrc; a context manager that also works as a decorator."""
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()
        rcParams.update(STYLE)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, width and height in inches, that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@figure_style()
def render_figure(figure: "Figure", kind: str) -> bytes:
    """Return the bytes of a "png" or "pdf" file; the same figure gives the same bytes."""
    content = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else None  # a date would make every file differ
    figure.savefig(content, format=kind, dpi=300, metadata=metadata)
    return content.getvalue()


def tidy(panel: "Axes", axis: str = "y", **ticks: Any) -> None:
    """Draw faint grid lines and no frame at the top and right; `ticks` styles all ticks."""
    panel.tick_params(**ticks)
    panel.grid(axis=axis, color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def drawable(text: str) -> str:
    """Spell out characters that the figure's font lacks, such as \\u8a9e."""
    from matplotlib.font_manager import findfont, get_font

    glyphs = get_font(findfont(FONT)).get_charmap()
    shown = (c if c.isprintable() and ord(c) in glyphs else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """Wrap a name into at most `lines` lines of at most `width` characters."""
    return textwrap.fill(drawable(text), width, max_lines=lines, placeholder="…")


def score_limits(points: Sequence[Point], metric: Metric) -> tuple[float, float]:
    """Return the limits of an axis that holds all means and intervals and spans about `SMALLEST_SPAN` or more."""
    values = [point.mean for point in points if point.mean is not None]
    values += [end for point in points for end in point.interval or ()]
    middle = (min(values) + max(values)) / 2
    reach = max(0.55 * (max(values) - min(values)), SMALLEST_SPAN / 2)  # a margin of 5% on both sides
    lowest, highest = metric.limits
    return max(lowest, middle - reach), min(highest, middle + reach)


def score_label(metric: Metric) -> str:
    if metric.is_unbounded:
        return "score (the reward model's scale)"
    return "error (lower is better)" if metric.lower_is_better else "score (0 to 1)"


def draw_intervals(panel: "Axes", intervals: dict[float, tuple[float, float]]) -> None:
    middles = [(low + high) / 2 for low, high in intervals.values()]
    halves = [(high - low) / 2 for low, high in intervals.values()]
    panel.errorbar(list(intervals), middles, halves, fmt="none", ecolor=DARK, elinewidth=0.9, capsize=2, clip_on=False)


def add_legend(figure: "Figure", handles: Sequence[Any], labels: list[str]) -> None:
    """Draw a legend above the panel, in as many columns as the labels leave room for."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, int(figure.get_figwidth() / (CHARACTER * (longest + 6))))  # 6: the mark, and the space around it
    style = {"frameon": False, "fontsize": SMALL_TEXT, "handlelength": 2.6}  # long enough for a dashed line
    figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(labels)), **style)
