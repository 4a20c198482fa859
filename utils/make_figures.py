"""Draw the paper's figures 2, 3, 4, 5 and 16 from your own files, each as a PNG and a PDF.

  python utils/make_figures.py --figure 2 --system 0 k0_scores.json --system 10 k10_scores.json --output_addr figure2
  python utils/make_figures.py --figure 3 --system PlanPers planpers_scores.json \\
      --system "PlanPers (gold plans)" gold_scores.json --output_addr figure3
  python utils/make_figures.py --figure 4 --agreement_addr evaluators.json --output_addr figure4
  python utils/make_figures.py --figure 5 --inputs_addr data/*.json --output_addr figure5

2 (test) and 16 (validation): the score by the number of posts from the profile, with 95% intervals. 3: systems side by
side, and the last one's score in percent of the first one's, such as gold plans against the planner's. 4: how often
evaluators of several sizes agree with humans, and the mean score they give. 5: the questions of every community.

All can be read in grey. Figures 2, 4 and 16 fit a column of 3.3 inches, and so does 3 with two systems.
"""

import argparse
import math
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli, dataset_statistics
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.files.json_files import read_json
from utils.make_table import Row, judge_notes, make_notes, make_row
from utils.parsing.plans import one_line
from utils.scoring.verdicts import CATEGORIES, COMMUNITIES
from utils.tables.comparisons import GROUPS, MACRO
from utils.tables.drawing import drawable, figure_style, new_figure, render_figure, shorten
from utils.tables.formats import counted
from utils.tables.significance import Strata, bootstrap_interval
from utils.tables.system_scores import (
    System,
    add_unscored_argument,
    check_judged_alike,
    check_same_questions,
    read_systems,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

SCRIPT = "utils/make_figures.py"
SOURCES = {"2": "system", "3": "system", "4": "agreement_addr", "5": "inputs_addr", "16": "system"}  # a figure's flag

DOTS_PER_INCH = 300  # of the PNG
COLUMN, PAGE = 3.3, 6.9  # inches: the widths a paper has
PANEL = 1.2  # inches: the narrowest axis of numbers of posts
TEXT, SMALL_TEXT = 8, 7  # points
CHARACTER = 0.061  # inches: a letter of SMALL_TEXT, rather more than the mean
DARK, LIGHT = "#173f70", "#dd8452"  # of two series; also in grey one is dark, the other pale
HATCHES = ("", "////", "....", "xxxx", "----", "oo")  # a system each
COLUMN_SYSTEMS = 2  # whose bars, with numbers on them, fit in a column
LEVEL_SYSTEMS = 4  # of more, the numbers stand on end
COLUMN_EVALUATORS, MOST_EVALUATORS = 4, 9  # that fit in a column, and in a page's width
LARGEST_K = 9_999
SMALLEST_SPAN = 0.1  # of the scores on an axis: with less, noise would look like an effect


@dataclass(frozen=True)
class Point:
    """A system's mean score in one group of questions, and its 95% interval; None of what is undefined."""

    mean: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Evaluator:
    """An evaluator's agreement with humans with its 95% interval, and the mean score it gives: 0 to 1, or None."""

    name: str
    strategy: str
    accuracy: float | None
    interval: tuple[float, float] | None
    mean_score: float | None


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--figure", required=True, choices=list(SOURCES), help="which of the paper's figures to draw")
    parser.add_argument(
        "--system",
        nargs="+",
        action="append",
        metavar=("NAME", "FILE"),
        help="figures 2, 3 and 16: a name, then one or more score files of evaluate_responses.py; give it once a "
        "system. In 2 and 16 the name is the number of posts; in 3 the systems stand as they are given",
    )
    parser.add_argument(
        "--agreement_addr", metavar="FILE", help="figure 4: the file that utils/compare_evaluators.py wrote"
    )
    parser.add_argument("--inputs_addr", nargs="+", metavar="FILE", help="figure 5: datasets")
    parser.add_argument(
        "--output_addr",
        required=True,
        metavar="FILE",
        help="where the figure goes, with .png and .pdf put behind it",
    )
    parser.add_argument(
        "--allow_partial",
        action="store_true",
        help="figures 2, 3 and 16: take systems that were not scored on the same questions",
    )
    add_unscored_argument(parser)
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_flags(args)
    kinds = output_files(args.output_addr)
    cli.check_outputs(list(map(str, kinds)), input_files(args))
    figure, notes = make_figure(args)
    prepare_derived(kinds, SCRIPT, args.overwrite)
    publish_derived(render_figure(figure, kinds, DOTS_PER_INCH), SCRIPT, args)
    print("".join(f"note: {note}\n" for note in notes), file=sys.stderr, end="")
    print(f"figure {args.figure}: {', '.join(map(str, kinds))}")
    return 0


def check_flags(args: argparse.Namespace) -> None:
    """Raise UserError unless exactly the flags of this figure are given."""
    needed = SOURCES[args.figure]
    for name in dict.fromkeys(SOURCES.values()):
        given = getattr(args, name) is not None
        if given and name != needed:
            raise UserError(f"--{name}: not for --figure {args.figure}, which is drawn from --{needed}")
        if name == needed and not given:
            raise UserError(f"--figure {args.figure}: is drawn from --{needed}; give it")
    for name in ("allow_partial", "unscored_as_zero"):
        if getattr(args, name) and needed != "system":
            raise UserError(f"--{name}: not for --figure {args.figure}, which reads no score files")


def output_files(address: str) -> dict[Path, str]:
    """The PNG and the PDF to write, with their kinds; UserError where `address` is a folder."""
    path = Path(address)
    if path.is_dir() or address.endswith("/"):
        raise UserError(f"--output_addr {address}: a folder; give the name of a file in it")
    name = path.stem if path.suffix.lower() in (".png", ".pdf") else path.name
    return {path.with_name(f"{name}.{kind}"): kind for kind in ("png", "pdf")}


def input_files(args: argparse.Namespace) -> list[str]:
    paths = [path for _, *paths in args.system or [] for path in paths]
    return [*paths, *(args.inputs_addr or []), *([args.agreement_addr] if args.agreement_addr else [])]


def make_figure(args: argparse.Namespace) -> tuple["Figure", list[str]]:
    """Read the input of the figure and draw it; the notes are what its readers must know."""
    if args.figure == "5":
        dataset_statistics.check_given_once(args.inputs_addr)
        counts = dataset_statistics.count_files(args.inputs_addr)
        columns = dataset_statistics.make_columns(args.inputs_addr, counts)
        return dataset_statistics.make_figure(dataset_statistics.questions_by_panel(columns)), []
    if args.figure == "4":
        return trade_off_figure(read_evaluators(args.agreement_addr)), []
    check_names(args)
    systems, notes = read_scored(args.system, args.allow_partial, args.unscored_as_zero)
    if args.figure == "3":
        return systems_figure([make_row(system) for system in systems]), notes
    points = {int(system.name): points_of(system) for system in systems}
    return posts_figure(dict(sorted(points.items()))), notes


# Reading


def check_names(args: argparse.Namespace) -> None:
    """Raise UserError unless there are as many systems as the figure takes, and their names are what it needs."""
    if args.figure != "3":
        check_numbers_of_posts([one_line(name) for name, *_ in args.system])
    elif not 2 <= len(args.system) <= len(HATCHES):
        raise UserError(
            f"--system: given {counted(len(args.system), 'time')}; figure 3 has 2 to {len(HATCHES)} systems"
        )


def check_numbers_of_posts(names: list[str]) -> None:
    """Raise UserError unless these are two or more different numbers of posts."""
    numbers: set[int] = set()
    for name in names:
        if not (name.isascii() and name.isdigit() and len(name) <= len(str(LARGEST_K))):
            raise UserError(f"--system {quote(name)}: not a number of posts; the name is k, from 0 to {LARGEST_K}")
        if int(name) in numbers:
            raise UserError(f"--system {name!r} is given twice; put all its files behind one --system")
        numbers.add(int(name))
    if len(numbers) < 2:
        raise UserError(f"--system {names[0]!r}: is the only number of posts; give two or more")


def read_scored(
    arguments: list[list[str]], allow_partial: bool, unscored_as_zero: bool
) -> tuple[list[System], list[str]]:
    """Read the score files of every `[name, file, ...]`, which must be alike as in a table; with notes on them.

    Raises:
        UserError: as `read_systems`, `check_judged_alike` and, unless `allow_partial`, `check_same_questions`; or no
            question of any system has a score.
    """
    systems = read_systems(arguments, unscored_as_zero)
    unknown_judge = check_judged_alike(systems)
    if not allow_partial:
        check_same_questions(systems)
    notes = [*make_notes(systems, unscored_as_zero), *judge_notes(unknown_judge)]
    scored = {COMMUNITIES[q["category"]] for system in systems for q in system.questions if q["score"] is not None}
    if not scored:
        raise UserError(f"{systems[0].paths[0]}: no question of any system has a score; there is nothing to draw")
    if missing := [category for category in CATEGORIES if category not in scored]:
        notes.append(f"No score in {', '.join(missing)}, and so no average.")
    return systems, notes


def points_of(system: System) -> dict[str, Point]:
    """Mean and interval of each of `GROUPS`: a bootstrap over questions, for the average within each category."""
    scores: dict[str, list[float]] = {category: [] for category in CATEGORIES}
    for question in system.questions:
        if question["score"] is not None:
            scores[COMMUNITIES[question["category"]]].append(question["score"])
    strata: dict[str, Strata] = {category: [scores[category]] for category in CATEGORIES}
    strata[MACRO] = list(scores.values())
    means = make_row(system).means
    return {group: Point(means[group], bootstrap_interval(strata[group])) for group in GROUPS}


def read_evaluators(path: str) -> list[Evaluator]:
    """The evaluators of the file that utils/compare_evaluators.py wrote, as they stand there.

    Raises:
        UserError: it is no such file, has too few or too many evaluators, or lacks all values of a series.
    """
    data = read_json(path)
    entries = data.get("evaluators") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"{path}: has no list 'evaluators'\n  give the file that utils/compare_evaluators.py wrote")
    evaluators = [read_evaluator(entry, f"{path}: evaluators, item {i}") for i, entry in enumerate(entries)]
    if not 2 <= len(evaluators) <= MOST_EVALUATORS:
        raise UserError(f"{path}: evaluators: {len(evaluators)} are given; figure 4 has 2 to {MOST_EVALUATORS}")
    if all(evaluator.accuracy is None for evaluator in evaluators):
        raise UserError(f"{path}: no evaluator has an accuracy\n  give utils/compare_evaluators.py a --human_addr")
    if all(evaluator.mean_score is None for evaluator in evaluators):
        raise UserError(f"{path}: no evaluator has a mean score\n  give it evaluators that score responses")
    return evaluators


def read_evaluator(entry: Any, where: str) -> Evaluator:
    """An entry of the list; UserError where a field is not what utils/compare_evaluators.py writes."""
    if not isinstance(entry, dict):
        raise UserError(f"{where}: {quote(entry)} where an evaluator's figures belong")
    for field in ("name", "strategy"):
        if not isinstance(entry.get(field), str) or not entry[field].strip():
            raise UserError(f"{where}: field {field!r} is {quote(entry.get(field))}; it must be a text")
    where = f"{where} ({quote(entry['name'])})"
    accuracy, interval, mean_score = (entry.get(name) for name in ("accuracy", "accuracy_interval", "mean_score"))
    for field, value in (("accuracy", accuracy), ("mean_score", mean_score)):
        if value is not None and not _is_share(value):
            raise UserError(f"{where}: field {field!r} is {quote(value)}; it must be a number from 0 to 1, or null")
    if interval is not None and not (
        isinstance(interval, list) and len(interval) == 2 and all(map(_is_share, interval))
    ):
        raise UserError(f"{where}: field 'accuracy_interval' is {quote(interval)}; it must be two shares, or null")
    return Evaluator(one_line(entry["name"]), entry["strategy"], accuracy, interval and tuple(interval), mean_score)


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


# Figures 2 and 16


@figure_style()
def posts_figure(points: dict[int, dict[str, Point]]) -> "Figure":
    """The score by the number of posts, a panel for each of `GROUPS` that has any; all have the same axes.

    Args:
        points: by number of posts, ascending, and group; at least one has a mean.
    """
    groups = [group for group in GROUPS if any(by_group[group].mean is not None for by_group in points.values())]
    columns = min(2, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(COLUMN, 0.6 + 1.25 * rows)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for panel, group in zip(panels, groups, strict=False):
        draw_points(panel, {k: by_group[group] for k, by_group in points.items() if by_group[group].mean is not None})
        panel.set_title(wrapped(group, 22), fontsize=SMALL_TEXT)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    low, high = score_limits([point for by_group in points.values() for point in by_group.values()])
    panels[0].set_ylim(low, high)
    panels[0].set_xticks(posts_ticks(list(points)))
    figure.supylabel("score (0 to 1)", fontsize=TEXT)
    lines = ["k: number of posts from the profile", "bars: 95% bootstrap intervals over questions"]
    lines += ["the axis of scores does not start at 0"] if low > 0 else []
    figure.supxlabel("\n".join(lines), fontsize=SMALL_TEXT)
    return figure


def draw_points(panel: "Axes", points: dict[int, Point]) -> None:
    """A line through the means, with an upright bar from end to end of each interval."""
    style = {"color": DARK, "marker": "o", "markersize": 3.5, "linewidth": 1.2}
    panel.plot(list(points), [point.mean for point in points.values()], clip_on=False, **style)
    draw_intervals(panel, {k: point.interval for k, point in points.items() if point.interval is not None})
    tidy(panel)
    panel.tick_params(labelbottom=True)  # also above a place without a panel


def score_limits(points: list[Point]) -> tuple[float, float]:
    """Ends of an axis that holds all means and intervals, within 0 to 1 and not much less than `SMALLEST_SPAN`."""
    values = [point.mean for point in points if point.mean is not None]
    values += [end for point in points for end in point.interval or ()]
    middle = (min(values) + max(values)) / 2
    reach = max(0.55 * (max(values) - min(values)), SMALLEST_SPAN / 2)  # a margin of 5% on both sides
    return max(0.0, middle - reach), min(1.0, middle + reach)


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
def systems_figure(rows: list[Row]) -> "Figure":
    """Bars of every system in each of `GROUPS` that has any, from 0; below, the last one in percent of the first.

    The paper reports gains of 155% to 208% by gold plans. These can only be such ratios: a score of .5240 (Table 2)
    that rises by 155% would be above 1.
    """
    groups = [group for group in GROUPS if any(row.means[group] is not None for row in rows)]
    width = COLUMN if len(rows) <= COLUMN_SYSTEMS else PAGE
    figure = new_figure(width, 2.8)
    panel = figure.subplots()
    bars = [draw_system(panel, row, groups, number, len(rows)) for number, row in enumerate(rows)]
    percents = [percent_text(rows[0].means[group], rows[-1].means[group]) for group in groups]
    labels = [f"{percent}\n{wrapped(group, 14)}" for percent, group in zip(percents, groups, strict=True)]
    panel.set_xticks(range(len(groups)), labels)
    panel.set_xlim(-0.5, len(groups) - 0.5)
    panel.tick_params(axis="x", length=0)
    highest = max(row.means[group] or 0 for row in rows for group in groups)
    panel.set_ylim(0, (1.15 if len(rows) <= LEVEL_SYSTEMS else 1.25) * highest or 1)  # room for the numbers
    panel.set_ylabel("score (0 to 1)", fontsize=TEXT, labelpad=2)
    relative = f"%: {shorten(rows[-1].name)}, relative to {shorten(rows[0].name)}"
    figure.supxlabel(wrapped(relative, int(0.9 * width / CHARACTER)), fontsize=SMALL_TEXT)
    tidy(panel)
    add_legend(figure, bars, [wrapped(row.name, 38, lines=2) for row in rows])
    return figure


def draw_system(panel: "Axes", row: Row, groups: list[str], number: int, num_systems: int) -> "BarContainer":
    """Draw the bars of one of the systems, with the scores printed on them; where there is none stands a dash."""
    width = 0.84 / num_systems
    places = [place + (number - (num_systems - 1) / 2) * width for place in range(len(groups))]
    means = [row.means[group] for group in groups]
    color = shade(number, num_systems)
    hatch = {"hatch": HATCHES[number], "hatchcolor": "black" if sum(color[:3]) > 1 else "white"}
    bars = panel.bar(places, [mean or 0 for mean in means], width, color=color, edgecolor="black", lw=0.6, **hatch)
    for place, mean in zip(places, means, strict=True):
        panel.annotate(
            "–" if mean is None else decimals(mean, 3),
            (place, mean or 0),
            (0, 1.5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            rotation=90 if num_systems > LEVEL_SYSTEMS else 0,
            fontsize=SMALL_TEXT,
        )
    return bars


def percent_text(first: float | None, last: float | None) -> str:
    """The last score in percent of the first, a dash where that has no value."""
    return "–" if not first or last is None else f"{last / first:.0%}"


def shade(number: int, count: int) -> tuple[float, ...]:
    """The colour of one of `count` systems, each darker than the one before, also in grey and to the colour-blind."""
    from matplotlib import colormaps

    return colormaps["cividis"](0.95 - 0.8 * number / (count - 1))


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
    print_values(panel, {place: (value, f"{value:.0%}") for place, value in agreement if value is not None}, "right")
    print_values(panel, {place: (value, decimals(value, 2)) for place, value in score if value is not None}, "left")
    for i, one in enumerate(evaluators):
        if one.accuracy is None and one.mean_score is None:
            panel.text(i, 0.5, "no data", rotation=90, ha="center", va="center", fontsize=SMALL_TEXT, color=DARK)
    letters = int((width - 0.5) / len(evaluators) / CHARACTER)
    panel.set_xticks(range(len(evaluators)), [wrapped(one.name, letters) for one in evaluators])
    panel.set_xlim(-0.5, len(evaluators) - 0.5)
    panel.set_ylim(0, 1)
    panel.set_xlabel("evaluator", fontsize=TEXT)
    panel.set_ylabel("agreement, score (0 to 1)", fontsize=TEXT)
    tidy(panel)
    add_legend(figure, lines, [f"agreement with humans{' (bars: 95% intervals)' if intervals else ''}", "mean score"])
    return figure


def draw_series(
    panel: "Axes", points: list[tuple[float, float | None]], strategies: list[str], **style: Any
) -> "Line2D":
    """Draw a line through the points; it breaks where one has no value, and where another strategy begins."""
    line: list[tuple[float, float]] = []
    for i, (place, value) in enumerate(points):
        if i > 0 and strategies[i] != strategies[i - 1]:
            line.append((place, math.nan))
        line.append((place, math.nan if value is None else value))
    return panel.plot(*zip(*line, strict=True), markersize=5, linewidth=1.2, clip_on=False, **style)[0]


def print_values(panel: "Axes", values: dict[float, tuple[float, str]], end: str) -> None:
    """A text by each point, a little above it, whose left or right `end` is at the point."""
    offset = (4 if end == "left" else -4, 1)
    for place, (value, text) in values.items():
        panel.annotate(
            text, (place, value), offset, textcoords="offset points", ha=end, va="bottom", fontsize=SMALL_TEXT
        )


# All figures


def draw_intervals(panel: "Axes", intervals: dict[float, tuple[float, float]]) -> None:
    """An upright bar from end to end of each interval."""
    middles = [(low + high) / 2 for low, high in intervals.values()]
    halves = [(high - low) / 2 for low, high in intervals.values()]
    panel.errorbar(list(intervals), middles, halves, fmt="none", ecolor=DARK, elinewidth=0.9, capsize=2, clip_on=False)


def add_legend(figure: "Figure", handles: Sequence[Any], labels: list[str]) -> None:
    """Above the panel, in as many columns as the labels leave room for; `handles` is what they stand for."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, int(figure.get_figwidth() / (CHARACTER * (longest + 6))))  # 6: the mark, and the space around it
    style = {"frameon": False, "fontsize": SMALL_TEXT, "handlelength": 2.6}  # long enough for a dashed line
    figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(labels)), **style)


def tidy(panel: "Axes") -> None:
    """Small numbers, faint lines behind what is drawn, no frame."""
    panel.grid(axis="y", color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=SMALL_TEXT, pad=2)


def decimals(value: float, digits: int) -> str:
    """A score as the paper prints it, without the 0 before the point."""
    return f"{value:.{digits}f}".removeprefix("0")


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """A name as it is drawn: in lines of at most `width` characters, and at most so many lines."""
    return textwrap.fill(drawable(text), width, max_lines=lines, placeholder="…")


if __name__ == "__main__":
    cli.run_script(main)
