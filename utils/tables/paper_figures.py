"""The paper's figures 2, 3, 4 and 16, drawn from numbers; all can be read in grey."""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from utils.tables.columns import Point
from utils.tables.drawing import drawable, figure_style, new_figure, shorten, tidy
from utils.tables.score_table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLUMN, PAGE = 3.3, 6.9  # inches: the widths a paper has
PANEL = 1.2  # inches: the narrowest axis of numbers of posts
TEXT, SMALL_TEXT = 8, 7  # points
TICKS = {"labelsize": SMALL_TEXT, "pad": 2}
CHARACTER = 0.061  # inches: a letter of SMALL_TEXT, rather more than the mean
DARK, LIGHT = "#173f70", "#dd8452"  # of two series; also in grey one is dark, the other pale
HATCHES = ("", "////", "....", "xxxx", "----", "oo")  # a system each
COLUMN_SYSTEMS = 2  # whose bars, with numbers on them, fit in a column
LEVEL_SYSTEMS = 4  # of more, the numbers stand on end
COLUMN_EVALUATORS, MOST_EVALUATORS = 4, 9  # that fit in a column, and in a page's width
SMALLEST_SPAN = 0.1  # of the scores on an axis: with less, noise would look like an effect

Points = list[tuple[float, float | None]]  # places on the axis with their values


@dataclass(frozen=True)
class Evaluator:
    """An evaluator's agreement with humans with its 95% interval, and the mean score it gives: 0 to 1, or None."""

    name: str
    strategy: str
    accuracy: float | None
    interval: tuple[float, float] | None
    mean_score: float | None


# Figures 2 and 16


@figure_style()
def posts_figure(
    points: dict[int, dict[str, Point]], are_errors: bool = False, bars: str = "95% bootstrap intervals over questions"
) -> "Figure":
    """The score by the number of posts, a panel for each column of a table that has any; all have the same axes.

    Args:
        points: by number of posts, ascending, and column; at least one has a mean.
        bars: what the bars on points are.
    """
    groups = [group for group in points[min(points)] if any(its[group].mean is not None for its in points.values())]
    columns = min(2, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(COLUMN, 0.6 + 1.25 * rows)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for panel, group in zip(panels, groups, strict=False):
        its = {k: by_group[group] for k, by_group in points.items() if by_group[group].mean is not None}
        style = {"color": DARK, "marker": "o", "markersize": 3.5, "linewidth": 1.2}
        panel.plot(list(its), [point.mean for point in its.values()], clip_on=False, **style)
        draw_intervals(panel, {k: point.interval for k, point in its.items() if point.interval is not None})
        tidy(panel, **TICKS, labelbottom=True)  # also above a place without a panel
        panel.set_title(wrapped(group, 22), fontsize=SMALL_TEXT)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    most = math.inf if are_errors else 1.0
    low, high = score_limits([point for by_group in points.values() for point in by_group.values()], most)
    panels[0].set_ylim(low, high)
    panels[0].set_xticks(posts_ticks(list(points)))
    figure.supylabel(score_label(are_errors), fontsize=TEXT)
    lines = ["k: number of posts from the profile", f"bars: {bars}"]
    lines += ["the axis of scores does not start at 0"] if low > 0 else []
    figure.supxlabel("\n".join(lines), fontsize=SMALL_TEXT)
    return figure


def score_limits(points: list[Point], most: float = 1.0) -> tuple[float, float]:
    """Ends of an axis that holds all means and intervals, within 0 to `most` and not much less than `SMALLEST_SPAN`."""
    values = [point.mean for point in points if point.mean is not None]
    values += [end for point in points for end in point.interval or ()]
    middle = (min(values) + max(values)) / 2
    reach = max(0.55 * (max(values) - min(values)), SMALLEST_SPAN / 2)  # a margin of 5% on both sides
    return max(0.0, middle - reach), min(most, middle + reach)


def score_label(are_errors: bool) -> str:
    return "error (lower is better)" if are_errors else "score (0 to 1)"


def posts_ticks(numbers: list[int]) -> list[int]:
    """The numbers of posts, without those whose label would touch the one before."""
    label = CHARACTER * (len(str(numbers[-1])) + 1) / PANEL  # as a share of the axis
    shown = numbers[:1]
    for k in numbers[1:]:
        if k - shown[-1] >= label * (numbers[-1] - numbers[0]):
            shown.append(k)
    return shown


# Figure 3


@figure_style()
def systems_figure(rows: list[Row], are_errors: bool = False) -> "Figure":
    """Bars of every system in each column of a table that has any, from 0; below, the last one in percent of the first.

    The paper reports gains of 155% to 208% by gold plans. These can only be such ratios: a score of .5240 (Table 2)
    that rises by 155% would be above 1.
    """
    groups = [group for group in rows[0].means if any(row.means[group] is not None for row in rows)]
    width = COLUMN if len(rows) <= COLUMN_SYSTEMS else PAGE
    figure = new_figure(width, 2.8)
    panel = figure.subplots()
    bars = [draw_system(panel, row, groups, number, len(rows)) for number, row in enumerate(rows)]
    percents = [percent_text(rows[0].means[group], rows[-1].means[group]) for group in groups]
    labels = [f"{percent}\n{wrapped(group, 14)}" for percent, group in zip(percents, groups, strict=True)]
    panel.set_xticks(range(len(groups)), labels)
    panel.set_xlim(-0.5, len(groups) - 0.5)
    tidy(panel, **TICKS)
    panel.tick_params(axis="x", length=0)
    highest = max(row.means[group] or 0 for row in rows for group in groups)
    panel.set_ylim(0, (1.15 if len(rows) <= LEVEL_SYSTEMS else 1.25) * highest or 1)  # room for the numbers
    panel.set_ylabel(score_label(are_errors), fontsize=TEXT, labelpad=2)
    relative = f"%: {shorten(rows[-1].name)}, relative to {shorten(rows[0].name)}"
    figure.supxlabel(wrapped(relative, int(0.9 * width / CHARACTER)), fontsize=SMALL_TEXT)
    add_legend(figure, bars, [wrapped(row.label or row.name, 38, lines=2) for row in rows])
    return figure


def draw_system(panel: "Axes", row: Row, groups: list[str], number: int, num_systems: int) -> "BarContainer":
    """The bars of one of the systems, with the scores printed on them; where there is none stands a dash."""
    from matplotlib import colormaps

    width = 0.84 / num_systems
    places = [place + (number - (num_systems - 1) / 2) * width for place in range(len(groups))]
    means = [row.means[group] for group in groups]
    # Each is darker than the one before, also in grey and to the colour-blind.
    color = colormaps["cividis"](0.95 - 0.8 * number / (num_systems - 1))
    hatch = {"hatch": HATCHES[number], "hatchcolor": "black" if sum(color[:3]) > 1 else "white"}
    bars = panel.bar(places, [mean or 0 for mean in means], width, color=color, edgecolor="black", lw=0.6, **hatch)
    texts = ["–" if mean is None else decimals(mean, 3) for mean in means]
    rotation = 90 if num_systems > LEVEL_SYSTEMS else 0
    panel.bar_label(bars, texts, padding=1.5, rotation=rotation, fontsize=SMALL_TEXT)
    return bars


def percent_text(first: float | None, last: float | None) -> str:
    return "–" if not first or last is None else f"{last / first:.0%}"


# Figure 4


@figure_style()
def trade_off_figure(evaluators: list[Evaluator]) -> "Figure":
    """Agreement with humans, with its 95% interval where that is known, and mean score, in the order they are given."""
    width = COLUMN if len(evaluators) <= COLUMN_EVALUATORS else PAGE
    figure = new_figure(width, 2.6)
    panel = figure.subplots()
    # A little left and right of the evaluator's place, so that no point hides another.
    agreement = [(i - 0.04, one.accuracy) for i, one in enumerate(evaluators)]
    score = [(i + 0.04, one.mean_score) for i, one in enumerate(evaluators)]
    intervals = {i - 0.04: one.interval for i, one in enumerate(evaluators) if one.interval is not None}
    strategies = [one.strategy for one in evaluators]
    style = {"color": LIGHT, "linestyle": "--", "marker": "s", "markerfacecolor": "white", "markeredgewidth": 1.2}
    lines = [draw_series(panel, agreement, strategies, color=DARK, marker="o")]
    lines += [draw_series(panel, score, strategies, **style)]
    draw_intervals(panel, intervals)
    print_values(panel, agreement, "{:.0%}".format, "right")
    print_values(panel, score, partial(decimals, digits=2), "left")
    for i, one in enumerate(evaluators):
        if one.accuracy is None and one.mean_score is None:
            panel.text(i, 0.5, "no data", rotation=90, ha="center", va="center", fontsize=SMALL_TEXT, color=DARK)
    letters = int((width - 0.5) / len(evaluators) / CHARACTER)
    panel.set_xticks(range(len(evaluators)), [wrapped(one.name, letters) for one in evaluators])
    panel.set_xlim(-0.5, len(evaluators) - 0.5)
    panel.set_ylim(0, 1)
    panel.set_xlabel("evaluator", fontsize=TEXT)
    panel.set_ylabel("agreement, score (0 to 1)", fontsize=TEXT)
    tidy(panel, **TICKS)
    add_legend(figure, lines, [f"agreement with humans{' (bars: 95% intervals)' if intervals else ''}", "mean score"])
    return figure


def draw_series(panel: "Axes", points: Points, strategies: list[str], **style: Any) -> "Line2D":
    """Draw a line through the points; it breaks where one has no value, and where another strategy begins."""
    line: list[tuple[float, float]] = []
    for i, (place, value) in enumerate(points):
        if i > 0 and strategies[i] != strategies[i - 1]:
            line.append((place, math.nan))
        line.append((place, math.nan if value is None else value))
    return panel.plot(*zip(*line, strict=True), markersize=5, linewidth=1.2, clip_on=False, **style)[0]


def print_values(panel: "Axes", points: Points, form: Callable[[float], str], end: str) -> None:
    """A text by each point, a little above it, whose left or right `end` is at the point."""
    style = {"textcoords": "offset points", "ha": end, "va": "bottom", "fontsize": SMALL_TEXT}
    for point in points:
        if point[1] is not None:
            panel.annotate(form(point[1]), point, (4 if end == "left" else -4, 1), **style)


# All figures


def draw_intervals(panel: "Axes", intervals: dict[float, tuple[float, float]]) -> None:
    middles = [(low + high) / 2 for low, high in intervals.values()]
    halves = [(high - low) / 2 for low, high in intervals.values()]
    panel.errorbar(list(intervals), middles, halves, fmt="none", ecolor=DARK, elinewidth=0.9, capsize=2, clip_on=False)


def add_legend(figure: "Figure", handles: Sequence[Any], labels: list[str]) -> None:
    """Above the panel, in as many columns as the labels leave room for; `handles` is what they stand for."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, int(figure.get_figwidth() / (CHARACTER * (longest + 6))))  # 6: the mark, and the space around it
    style = {"frameon": False, "fontsize": SMALL_TEXT, "handlelength": 2.6}  # long enough for a dashed line
    figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(labels)), **style)


def decimals(value: float, digits: int) -> str:
    """A score as the paper prints it, without the 0 before the point."""
    return f"{value:.{digits}f}".removeprefix("0")


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """A name as it is drawn: in lines of at most `width` characters, and at most so many lines."""
    return textwrap.fill(drawable(text), width, max_lines=lines, placeholder="…")
