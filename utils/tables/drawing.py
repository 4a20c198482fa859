"""What all figures share: one look on every account, and names drawn as they are."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 150
FONT = "DejaVu Sans"  # comes with matplotlib
STYLE = {
    "font.family": FONT,
    "text.parse_math": False,  # "$" as it is
    "pdf.fonttype": 42,  # text stays text: it can be searched and copied, and journals ask for it
    "hatch.linewidth": 0.6,
}
LONGEST_LABEL = 40  # characters


@contextmanager
def figure_style() -> Iterator[None]:
    """Within this, or in functions it decorates, matplotlib draws alike whatever the account's matplotlibrc says."""
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()
        rcParams.update(STYLE)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, width and height in inches, that never looks for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@figure_style()
def render_figure(figure: "Figure", kinds: dict[Path, str], dots_per_inch: int = DOTS_PER_INCH) -> dict[Path, bytes]:
    """The content of every file of `kinds`, each "png" or "pdf". The same figure gives the same bytes."""
    contents = {}
    for path, kind in kinds.items():
        content = io.BytesIO()
        metadata = {"CreationDate": None} if kind == "pdf" else None  # a date would make every file another
        figure.savefig(content, format=kind, dpi=dots_per_inch, metadata=metadata)
        contents[path] = content.getvalue()
    return contents


def tidy(panel: "Axes", axis: str = "y", **ticks: Any) -> None:
    """Faint lines behind what is drawn, no frame; `ticks` is the look of all ticks."""
    panel.tick_params(**ticks)
    panel.grid(axis=axis, color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def drawable(text: str) -> str:
    """The text with what the figure's font lacks spelled out, such as \\u8a9e."""
    from matplotlib.font_manager import findfont, get_font

    glyphs = get_font(findfont(FONT)).get_charmap()
    shown = (c if c.isprintable() and ord(c) in glyphs else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


def shorten(text: str) -> str:
    """At most `LONGEST_LABEL` characters of a text, cut between words unless one word is longer than all."""
    if len(text) <= LONGEST_LABEL:
        return text
    end = text.rfind(" ", 0, LONGEST_LABEL)
    return f"{text[: end if end > 0 else LONGEST_LABEL - 1]}…"
