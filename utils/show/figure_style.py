"""The style of figures: for two-column papers, the same on every account, and readable in grayscale."""

import io
import math
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

os.environ["MPLBACKEND"] = "agg"  # a notebook may set a backend that is not installed
FONT = "DejaVu Sans"  # comes with matplotlib
COLUMN, PAGE = 7.7 / 2.54, 16 / 2.54  # inches: widths of a column and of the text in an ACL paper
TEXT, SMALL_TEXT = 8, 7  # points
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT, "Verdana"],  # Verdana is as wide, for SVG viewers without the first font
    "font.size": TEXT,
    "axes.titlesize": SMALL_TEXT,
    "xtick.labelsize": SMALL_TEXT,
    "ytick.labelsize": SMALL_TEXT,
    "legend.fontsize": SMALL_TEXT,
    "figure.labelsize": TEXT,
    "text.parse_math": False,  # show "$" as it is
    "pdf.fonttype": 42,  # embed TrueType fonts, which publishers require; text can be searched and copied
    "ps.fonttype": 42,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "figure",  # the same ids in every SVG
    "hatch.linewidth": 0.6,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "axes.labelpad": 2,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.6,  # long enough for a dashed line
}
KINDS = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}  # with metadata: no date, for equal bytes
CHARACTER, LINE = 0.061, 0.11  # inches: width of a letter of SMALL_TEXT (above average), and height of a line
DARK, LIGHT = "#173f70", "#dd8452"  # colors of two series, which differ in grayscale too
LABEL = 2.35  # inches: greatest width of a label
PALEST = 0.8  # end of the part of the color map in use; the rest is hard to see on white
SMALLEST_SPAN = 0.1  # shortest axis of scores; on a shorter one, noise would look like an effect
NOT_FROM_0 = "the axis of scores does not start at 0"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")  # one per system, as are HATCHES
HATCHES = ("", "////", "....", "xxxx", "----", "oo", "\\\\\\\\", "++")


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply `STYLE` and ignore the account's matplotlibrc; a context manager that also works as a decorator."""
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()
        rcParams.update(STYLE)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@figure_style()
def render_figure(figure: "Figure", kind: str) -> bytes:
    """Return the bytes of a file of a kind in `KINDS`; the same figure gives the same bytes."""
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=300, metadata=KINDS[kind])
    return content.getvalue()


def shades(number: int) -> list[tuple[float, ...]]:
    """Return a color for each system, from dark to pale, also in grayscale and for color-blind readers."""
    from matplotlib import colormaps

    return [colormaps["cividis"](PALEST * place / max(1, number - 1)) for place in range(number)]


def drawable(text: str) -> str:
    """Replace characters that the figure's font lacks by escapes, such as \\u8a9e."""
    from matplotlib.font_manager import findfont, get_font

    glyphs = get_font(findfont(FONT)).get_charmap()
    shown = (c if c.isprintable() and ord(c) in glyphs else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


def wrapped(text: str, inches: float, lines: int = 3) -> str:
    """Wrap a text of size SMALL_TEXT into at most `lines` lines of about this width."""
    return textwrap.fill(drawable(text), max(4, int(inches / CHARACTER)), max_lines=lines, placeholder="…")


def score_limits(points: Sequence[Point], metric: Metric) -> tuple[float, float]:
    """Return the limits of an axis that holds all means and intervals; it spans at least about `SMALLEST_SPAN`."""
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


def add_legend(figure: "Figure", handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Draw a legend above the panels, in as many columns as there is room for; the figure grows by its height."""
    texts = [wrapped(label, LABEL, lines=2) for label in labels]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    columns = max(1, int(figure.get_figwidth() / (CHARACTER * (longest + 6))))  # 6: the mark, and the space around it
    rows = math.ceil(len(texts) / columns)
    stacks = [texts[start : start + rows] for start in range(0, len(texts), rows)]
    lines = max(sum(text.count("\n") + 1 for text in stack) for stack in stacks)
    figure.legend(handles, texts, loc="outside upper center", ncols=len(stacks))
    figure.set_figheight(figure.get_figheight() + 0.1 + LINE * lines + 0.05 * rows)


def add_caption(figure: "Figure", *lines: str) -> None:
    """Write lines below the panels."""
    width = 0.95 * figure.get_figwidth()
    figure.supxlabel("\n".join(wrapped(line, width) for line in lines), fontsize=SMALL_TEXT)
