"""What all figures share: one look on every account, and names drawn as they are; all can be read in grey."""

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from utils.tables.columns import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT = "DejaVu Sans"  # comes with matplotlib
STYLE = {
    "font.family": FONT,
    "text.parse_math": False,  # "$" as it is
    "pdf.fonttype": 42,  # text stays text: it can be searched and copied, and journals ask for it
    "hatch.linewidth": 0.6,
}
COLUMN, PAGE = 3.3, 6.9  # inches: the widths a paper has
TEXT, SMALL_TEXT = 8, 7  # points
TICKS = {"labelsize": SMALL_TEXT, "pad": 2}
CHARACTER = 0.061  # inches: a letter of SMALL_TEXT, rather more than the mean
DARK, LIGHT = "#173f70", "#dd8452"  # of two series; also in grey one is dark, the other pale
SMALLEST_SPAN = 0.1  # of the scores on an axis: with less, noise would look like an effect
NOT_FROM_0 = "the axis of scores does not start at 0"


@contextmanager
def figure_style() -> Iterator[None]:
    """Let matplotlib draw alike whatever the account's matplotlibrc says; also a decorator."""
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()
        rcParams.update(STYLE)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Make an empty figure, width and height in inches, that never looks for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@figure_style()
def render_figure(figure: "Figure", kind: str) -> bytes:
    """Return the content of a "png" or "pdf"; the same figure gives the same bytes."""
    content = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else None  # a date would make every file another
    figure.savefig(content, format=kind, dpi=300, metadata=metadata)
    return content.getvalue()


def tidy(panel: "Axes", axis: str = "y", **ticks: Any) -> None:
    """Draw faint lines behind what is drawn, and no frame; `ticks` is the look of all ticks."""
    panel.tick_params(**ticks)
    panel.grid(axis=axis, color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def drawable(text: str) -> str:
    """Spell out what the figure's font lacks, such as \\u8a9e."""
    from matplotlib.font_manager import findfont, get_font

    glyphs = get_font(findfont(FONT)).get_charmap()
    shown = (c if c.isprintable() and ord(c) in glyphs else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """Return a name as it is drawn: in lines of at most `width` characters, and at most so many lines."""
    return textwrap.fill(drawable(text), width, max_lines=lines, placeholder="…")


def score_limits(points: Sequence[Point], are_errors: bool) -> tuple[float, float]:
    """Return the ends of an axis that holds all means and intervals, not much nearer than `SMALLEST_SPAN`."""
    values = [point.mean for point in points if point.mean is not None]
    values += [end for point in points for end in point.interval or ()]
    middle = (min(values) + max(values)) / 2
    reach = max(0.55 * (max(values) - min(values)), SMALLEST_SPAN / 2)  # a margin of 5% on both sides
    high = middle + reach
    return max(0.0, middle - reach), high if are_errors else min(1.0, high)


def score_label(are_errors: bool) -> str:
    return "error (lower is better)" if are_errors else "score (0 to 1)"


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
