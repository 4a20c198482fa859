"""Draw the figures of utils/make_figures.py, except the training figure."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from utils.base.errors import plural
from utils.benchmarks.metric import Metric
from utils.show.dataset_counts import Column
from utils.show.figure_style import (
    COLUMN,
    DARK,
    HATCHES,
    LABEL,
    LIGHT,
    MARKERS,
    NOT_FROM_0,
    PAGE,
    SMALL_TEXT,
    add_caption,
    add_legend,
    draw_intervals,
    figure_style,
    new_figure,
    score_label,
    score_limits,
    shades,
    wrapped,
)
from utils.tables.best_of_n import Curve
from utils.tables.columns import Point, column_means, columns_of, interval_words, points_of
from utils.tables.system_scores import System

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


# Figure 3: most bars in a figure of one column, most bars with horizontal numbers, and most bars in a row.
COLUMN_BARS, LEVEL_BARS, ROW_BARS = 8, 18, 44
ROW_GROUPS = 6  # figure 3: most groups in a row
COLUMN_EVALUATORS, MOST_EVALUATORS = 4, 9  # figure 4: most evaluators in the width of a column and of a page
SYSTEM_HEIGHT, GROUP_SPACE = 0.13, 0.16  # inches: one system's height in a group, and the space between groups
COMMUNITY_HEIGHT, COMMUNITY_WIDTH = 0.135, 1.9  # inches: height of a row of figure 5, and width of the names
# Figure 3: inches of a long word, and most letters of two neighboring names in a figure of one column.
LONG_WORD, COLUMN_LETTERS = 0.85, 24
Points = list[tuple[float, float | None]]  # positions on the axis, with their values


@dataclass(frozen=True)
class Evaluator:
    """An evaluator's agreement with humans, its 95% interval, and its mean score, all 0 to 1; None if unknown."""

    name: str
    strategy: str
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None
    mean_score: float | None


# Figures 2 and 16


@figure_style()
def posts_figure(points: dict[int, dict[str, Point]], metric: Metric, bars: Sequence[str]) -> "Figure":
    """Draw scores by the number of posts, with a panel for each table column that has any score.

    `points` is in ascending order; `bars` are lines of the caption that describe the intervals.
    """
    groups = [group for group in points[min(points)] if any(of_k[group].mean is not None for of_k in points.values())]
    columns = min(2, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(COLUMN, 0.6 + 1.25 * rows)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for panel, group in zip(panels, groups, strict=False):
        shown = {k: by_group[group] for k, by_group in points.items() if by_group[group].mean is not None}
        style = {"color": DARK, "marker": "o", "markersize": 3.5, "linewidth": 1.2}
        panel.plot(list(shown), [point.mean for point in shown.values()], clip_on=False, **style)
        draw_intervals(panel, {k: point.interval for k, point in shown.items() if point.interval is not None})
        panel.grid(axis="y")
        panel.tick_params(labelbottom=True)  # also if the panel below is left out
        panel.set_title(wrapped(group, 0.85 * COLUMN / columns))
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    low, high = score_limits([point for by_group in points.values() for point in by_group.values()], metric)
    panels[0].set_ylim(low, high)
    panels[0].set_xticks(spaced(list(points), columns))
    figure.supylabel(score_label(metric))
    add_caption(figure, "k: number of posts from the profile", *bars, *[NOT_FROM_0] * (low > 0))
    return figure


def spaced(numbers: list[int], columns: int) -> list[int]:
    """Return those of the ascending numbers that fit as ticks on the axis of a panel, of `columns` side by side."""
    room = 0.07 * columns * (numbers[-1] - numbers[0])
    kept = numbers[:1]
    for number in numbers:
        if number - kept[-1] > room:
            kept.append(number)
    return kept


# Figure 3


@figure_style()
def systems_figure(systems: list[System]) -> "Figure":
    """Draw a bar per system for each table column with any score, and print the last system in percent of the first.

    The gains of 155% to 208% by gold plans in the paper must be such ratios: if a score of .5240 (Table 2) rose by
    155%, it would be above 1.
    """
    means = list(map(column_means, systems))
    groups = [group for group in means[0] if any(row[group] is not None for row in means)]
    num_rows = math.ceil(len(groups) / min(ROW_GROUPS, ROW_BARS // len(systems)))
    size = math.ceil(len(groups) / num_rows)
    num_bars = len(systems) * size
    width = COLUMN if num_bars <= COLUMN_BARS and fit_in_column(groups) else PAGE
    is_level = num_bars <= LEVEL_BARS or width == COLUMN
    figure = new_figure(width, 0.8 + 1.7 * num_rows)
    panels = figure.subplots(num_rows, sharey=True, squeeze=False)[:, 0]
    highest = max(row[group] or 0 for row in means for group in groups)
    panels[0].set_ylim(0, (1.15 if is_level else 1.25) * highest or 1)  # room for the numbers
    room = LONG_WORD if width == COLUMN else 0.8 * width / size
    for number, panel in enumerate(panels):
        shown = groups[number * size : (number + 1) * size]
        rows = [[row[group] for group in shown] for row in means]
        bars = [draw_system(panel, row, i, len(rows), 0 if is_level else 90) for i, row in enumerate(rows)]
        ends = zip(rows[0], rows[-1], strict=True)
        percents = ["–" if not first or last is None else f"{last / first:.0%}" for first, last in ends]
        labels = [f"{percent}\n{wrapped(group, room)}" for percent, group in zip(percents, shown, strict=True)]
        panel.set_xticks(range(len(shown)), labels)
        panel.set_xlim(-0.5, size - 0.5)
        panel.grid(axis="y")
        panel.tick_params(axis="x", length=0)
        panel.set_ylabel(score_label(systems[0].metric))
    last, first = (wrapped(system.name, LABEL, lines=1) for system in (systems[-1], systems[0]))
    add_caption(figure, f"%: {last}, relative to {first}")
    add_legend(figure, bars, [system.label for system in systems])
    return figure


def fit_in_column(groups: list[str]) -> bool:
    """Return whether the names of neighboring groups fit below the bars of a figure of one column."""
    lengths = [max(map(len, wrapped(group, LONG_WORD).split("\n"))) for group in groups]
    return all(one + other <= COLUMN_LETTERS for one, other in pairwise(lengths))


def draw_system(
    panel: "Axes", means: list[float | None], number: int, num_systems: int, rotation: int
) -> "BarContainer":
    """Draw one system's bars, with the score, or a dash, printed above each."""
    width = 0.84 / num_systems
    places = [place + (number - (num_systems - 1) / 2) * width for place in range(len(means))]
    color = shades(num_systems)[number]
    hatch = {"hatch": HATCHES[number], "hatchcolor": "black" if sum(color[:3]) > 1 else "white"}
    bars = panel.bar(places, [mean or 0 for mean in means], width, color=color, edgecolor="black", lw=0.6, **hatch)
    texts = ["–" if mean is None else decimals(mean, 3) for mean in means]
    panel.bar_label(bars, texts, padding=1.5, rotation=rotation, fontsize=SMALL_TEXT)
    return bars


def decimals(value: float, digits: int = 2) -> str:
    """Return a score as the paper prints it, without the 0 before the decimal point."""
    return f"{value:.{digits}f}".removeprefix("0")


# Figure 4


@figure_style()
def trade_off_figure(evaluators: list[Evaluator]) -> "Figure":
    """Draw evaluators' agreement with humans, with 95% intervals if known, and mean scores, in the given order."""
    width = COLUMN if len(evaluators) <= COLUMN_EVALUATORS else PAGE
    figure = new_figure(width, 2.3)
    panel = figure.subplots()
    # The two points of an evaluator are shifted a little to the left and right, so that neither hides the other.
    agreement = [(i - 0.04, evaluator.accuracy) for i, evaluator in enumerate(evaluators)]
    score = [(i + 0.04, evaluator.mean_score) for i, evaluator in enumerate(evaluators)]
    limits = [(i - 0.04, evaluator.accuracy_interval) for i, evaluator in enumerate(evaluators)]
    intervals = {place: interval for place, interval in limits if interval is not None}
    style = {"color": LIGHT, "linestyle": "--", "marker": "s", "markerfacecolor": "white", "markeredgewidth": 1.2}
    lines = [draw_series(panel, agreement, evaluators, color=DARK, marker="o")]
    lines += [draw_series(panel, score, evaluators, **style)]
    draw_intervals(panel, intervals)
    print_values(panel, agreement, "{:.0%}".format, "right")
    print_values(panel, score, decimals, "left")
    letters = 0.8 * width / len(evaluators)
    panel.set_xticks(range(len(evaluators)), [wrapped(evaluator.name, letters) for evaluator in evaluators])
    panel.set_xlim(-0.65, len(evaluators) - 0.5)  # room for the first number
    panel.set_ylim(0, 1)
    panel.set_xlabel("evaluator")
    panel.set_ylabel("agreement, score (0 to 1)")
    panel.grid(axis="y")
    add_caption(figure, *["bars: 95% intervals"] * bool(intervals))
    add_legend(figure, lines, ["agreement with humans", "mean score"])
    return figure


def draw_series(panel: "Axes", points: Points, evaluators: list[Evaluator], **style: Any) -> "Line2D":
    """Draw a line through the points, with breaks at missing values and between strategies."""
    line: list[tuple[float, float]] = []
    for i, (place, value) in enumerate(points):
        if i > 0 and evaluators[i].strategy != evaluators[i - 1].strategy:
            line.append((place, math.nan))
        line.append((place, math.nan if value is None else value))
    return panel.plot(*zip(*line, strict=True), markersize=5, linewidth=1.2, clip_on=False, **style)[0]


def print_values(panel: "Axes", points: Points, form: Callable[[float], str], end: str) -> None:
    """Print each point's value a little above it, with the text's left or right `end` at the point."""
    style = {"textcoords": "offset points", "ha": end, "va": "bottom", "fontsize": SMALL_TEXT}
    for point in points:
        if point[1] is not None:
            panel.annotate(form(point[1]), point, (4 if end == "left" else -4, 1), **style)


# Scores by group


@figure_style()
def groups_figure(systems: list[System]) -> "Figure":
    """Draw a row for each table column with any score, with a mark and an interval per system."""
    points = [points_of(system) for system in systems]
    columns = [name for name in columns_of(systems[0].task) if any(row[name].mean is not None for row in points)]
    row_height = SYSTEM_HEIGHT * len(systems) + GROUP_SPACE
    figure = new_figure(PAGE, 0.8 + len(columns) * row_height)
    panel = figure.subplots()
    marks = []
    for number, (row, color) in enumerate(zip(points, shades(len(points)), strict=True)):
        offset = (number - (len(points) - 1) / 2) * SYSTEM_HEIGHT / row_height
        scored = [(place + offset, row[name]) for place, name in enumerate(columns) if row[name].mean is not None]
        for place, point in scored:
            if point.interval is not None:
                panel.plot(point.interval, [place, place], color=color, linewidth=1.1, solid_capstyle="butt")
        style = {"color": color, "marker": MARKERS[number], "markersize": 4.5, "linestyle": "none", "clip_on": False}
        marks += panel.plot([point.mean for _, point in scored], [place for place, _ in scored], **style)
    labels = [group_label(name, [row[name].questions for row in points]) for name in columns]
    panel.set_yticks(range(len(columns)), labels)
    panel.set_ylabel(systems[0].task.group_words[0], labelpad=6)
    panel.set_ylim(len(columns) - 0.5, -0.5)
    low, high = score_limits([row[name] for row in points for name in columns], systems[0].metric)
    panel.set_xlim(low, high)
    panel.grid(axis="x")
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel(f"{systems[0].metric_name}: {score_label(systems[0].metric)}")
    add_caption(figure, f"lines: 95% {interval_words(systems[0])}", *[NOT_FROM_0] * (low > 0))
    add_legend(figure, marks, [system.label for system in systems])
    return figure


def group_label(name: str, numbers: list[int]) -> str:
    """Return a group's name with its number of questions, which may be a range if systems differ."""
    least, most = min(numbers), max(numbers)
    count = str(most) if least == most else f"{least} to {most}"
    return f"{wrapped(name, PAGE / 2, lines=2)}\n{count} question{'' if most == 1 else 's'}"


@figure_style()
def communities_figure(columns: Sequence[Column]) -> "Figure":
    """Draw a bar for each community's number of questions, with one panel per split."""
    counts_by_panel = questions_by_panel(columns)
    groups = communities_by_group(columns, sum(counts_by_panel.values(), Counter()))
    rows: list[str] = []
    headings = []
    for group, names in groups.items():
        if names != [group]:
            headings.append(len(rows))
            rows.append(group)
        rows += names
    width = COLUMN if len(counts_by_panel) == 1 else PAGE
    figure = new_figure(width, 0.7 + COMMUNITY_HEIGHT * len(rows))
    panels = figure.subplots(1, len(counts_by_panel), sharey=True, squeeze=False)[0]
    room = (width - COMMUNITY_WIDTH) / len(panels)
    for panel, (name, counts) in zip(panels, counts_by_panel.items(), strict=True):
        draw_communities(panel, {number: counts[row] for number, row in enumerate(rows) if number not in headings})
        panel.set_title(wrapped(f"{name}: {counts.total():,} questions", room))
    panels[0].set_yticks(range(len(rows)), [wrapped(row, LABEL, lines=1) for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    for number in headings:
        panels[0].get_yticklabels()[number].set_fontweight("bold")
    add_caption(figure, "questions" if len(panels) == 1 else "questions (each panel has its own scale)")
    return figure


def questions_by_panel(columns: Sequence[Column]) -> dict[str, Counter[str]]:
    """Count questions by community for each panel: one per split, with all its files, and one per other file."""
    panels: dict[str, Counter[str]] = {}
    for column in columns:
        panel = panels.setdefault(column.name, Counter())
        panel.update(column.communities)
        if unnamed := column.num_questions - column.communities.total():
            panel[f"(no {column.task.group_words[2]})"] += unnamed
    return panels


def communities_by_group(columns: Sequence[Column], total: Counter[str]) -> dict[str, list[str]]:
    """Return the communities in `total` by group, the largest first; communities without a group are last."""
    task = columns[0].task
    group, _, subgroup = task.group_words
    without = f"{plural(subgroup).capitalize()} without a {group}"
    group_of = {name: parent for column in columns for name, parent in column.group_of.items()}
    groups: dict[str, list[str]] = {name: [] for name in (*task.groups, without)}
    for name in sorted(total, key=lambda name: (-total[name], name)):
        groups[group_of.get(name) or without].append(name)
    return {name: communities for name, communities in groups.items() if communities}


def draw_communities(panel: "Axes", bars: dict[int, int]) -> None:
    """Draw a bar for each row of `bars`, and print its number beside it."""
    largest = max(bars.values())
    panel.barh(list(bars), list(bars.values()), height=0.72, color="0.45")
    for row, count in bars.items():
        panel.text(count + 0.02 * largest, row, f"{count:,}", va="center", fontsize=SMALL_TEXT)
    panel.set_xlim(0, 1.35 * largest)  # room for the numbers
    panel.locator_params(axis="x", nbins=3, integer=True)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x")


@figure_style()
def best_of_n_figure(curves: dict[str, Curve], label: str) -> "Figure":
    """Draw a curve over N for each scorer that chooses samples; `label` names the judge's score."""
    figure = new_figure(COLUMN, 2.3)
    panel = figure.subplots()
    lines = []
    for place, (curve, color) in enumerate(zip(curves.values(), shades(len(curves)), strict=True)):
        style = {"color": color, "marker": MARKERS[place], "markersize": 3.5, "linestyle": ("-", "--")[place % 2]}
        lines += panel.plot(curve.numbers, curve.means, linewidth=1.2, **style)
        lows, highs = zip(*curve.intervals, strict=True)
        panel.fill_between(curve.numbers, lows, highs, color=color, alpha=0.15, linewidth=0)
    panel.set_xscale("log", base=2)
    numbers = max((curve.numbers for curve in curves.values()), key=len)
    panel.set_xticks(numbers, list(map(str, numbers)))
    panel.set_xlabel("N, the samples chosen from")
    panel.set_ylabel(label)
    panel.grid(axis="y")
    add_caption(figure, "bands: 95% intervals")
    add_legend(figure, lines, list(curves))
    return figure
