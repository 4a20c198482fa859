"""Scores by group of questions, a mark a system, with the interval of each: of a benchmark's groups or a division."""

from typing import TYPE_CHECKING

from utils.tables.columns import columns_of, interval_words, points_of
from utils.tables.drawing import figure_style, new_figure, tidy
from utils.tables.paper_figures import PAGE, SMALL_TEXT, TEXT, TICKS, add_legend, score_label, score_limits, wrapped
from utils.tables.system_scores import System

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P")  # a system each
LONGEST = 48  # characters of a group's name in a line
LINE, BETWEEN = 0.13, 0.16  # inches: of a system in a group, and between two groups
AROUND = 1.1  # inches: legend, axis and what stands below it


@figure_style()
def groups_figure(systems: list[System]) -> "Figure":
    """A row a column of the table in which any system has a score, with the number of its questions.

    The groups stand from top to bottom as the benchmark, or its division, has them in order.
    """
    from matplotlib import colormaps

    points = [points_of(system) for system in systems]
    columns = [name for name in columns_of(systems[0].task) if any(its[name].mean is not None for its in points)]
    height = len(columns) * (LINE * len(systems) + BETWEEN)
    figure = new_figure(PAGE, AROUND + height)
    panel = figure.subplots()
    marks = []
    for number, its in enumerate(points):
        # Each is paler than the one before, also in grey; what tells them apart is the mark.
        color = colormaps["cividis"](0.75 * number / max(1, len(points) - 1))
        offset = (number - (len(points) - 1) / 2) * LINE / (LINE * len(points) + BETWEEN)
        known = [(place + offset, its[name]) for place, name in enumerate(columns) if its[name].mean is not None]
        for place, point in known:
            if point.interval is not None:
                panel.plot(point.interval, [place, place], color=color, linewidth=1.1, solid_capstyle="butt")
        style = {"color": color, "marker": MARKERS[number], "markersize": 4.5, "linestyle": "none", "clip_on": False}
        marks += panel.plot([point.mean for _, point in known], [place for place, _ in known], **style)
    panel.set_yticks(range(len(columns)), [_label(name, [its[name].questions for its in points]) for name in columns])
    panel.set_ylabel(systems[0].task.group_words[0], fontsize=TEXT)
    panel.set_ylim(len(columns) - 0.5, -0.5)
    are_errors = systems[0].metric.lower_is_better
    low, high = score_limits([its[name] for its in points for name in columns], float("inf") if are_errors else 1.0)
    panel.set_xlim(low, high)
    tidy(panel, "x", **TICKS)
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel(f"{systems[0].metric_name}: {score_label(are_errors)}", fontsize=TEXT)
    lines = [f"lines: 95% {interval_words(systems[0])}"]
    lines += ["the axis of scores does not start at 0"] if low > 0 else []
    figure.supxlabel("; ".join(lines), fontsize=SMALL_TEXT)
    add_legend(figure, marks, [wrapped(system.label or system.name, 38, lines=2) for system in systems])
    return figure


def _label(name: str, numbers: list[int]) -> str:
    """A column's name, and of how many questions it is; systems may have been scored on different numbers of them."""
    least, most = min(numbers), max(numbers)
    count = str(most) if least == most else f"{least} to {most}"
    return f"{wrapped(name, LONGEST, lines=2)}\n{count} question{'' if most == 1 else 's'}"
