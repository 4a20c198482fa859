"""Put dataset files into the shape of the paper's Table 1, and draw what its Figure 5 shows: questions a community.

  python utils/dataset_statistics.py --inputs_addr data/*_train.json data/*_validation.json data/*_test.json
  python utils/dataset_statistics.py --inputs_addr test.json --format csv --plot_addr communities.png

A column a file. Files named <category>_<split>.json, as utils/download_datasets.py names them, are grouped by category
and have what the paper prints in a row below; others go by their name. Cells are mean ± standard deviation over the
questions of a file: the population's deviation; lengths are in words, which is what white space separates. The paper
says neither which of the two deviations it prints nor what its lengths are counted in.
"""

import argparse
import csv
import io
import multiprocessing
import os
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks.record_stream import open_regular, stream_places
from utils.benchmarks.records import read_dataset
from utils.cli import UserError
from utils.cli.errors import first_five, printable, quote
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.parsing.plans import one_line
from utils.scoring.verdicts import CATEGORIES, COMMUNITIES
from utils.tables.drawing import drawable, figure_style, new_figure, render_figure, shorten
from utils.tables.formats import counted, latex_box, latex_line, latex_text, markdown_line
from utils.tables.paper_results import read_paper_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCRIPT = "utils/dataset_statistics.py"
STATISTICS = {  # the paper's rows below the number of questions: field, and what is said of it
    "rubric_aspects": "Aspects per question",
    "profile": "Profile size (posts)",
    "question": "Question length (words)",
    "narrative": "Narrative length (words)",
}
TEXTS = ("question", "narrative", "category")  # fields that hold a text; the others hold a list
CSV_COLUMNS = ("file", "category", "split", "statistic", "value", "sd", "paper_value", "paper_sd")

NO_CATEGORY = "Communities without a category"
NO_COMMUNITY = "(no community)"
LABEL_WIDTH, PANEL_WIDTH, ROW_HEIGHT = 2.4, 2.3, 0.19  # inches
MOST_COMMUNITIES, MOST_PANELS = 200, 20  # that are drawn: more take minutes, and gigabytes of memory

Series = dict[str, Counter[str]]  # questions by community, for every panel of the figure


@dataclass
class Counts:
    """What a file holds: the sizes of every field where it is there, by question, and questions by community."""

    num_questions: int = 0
    sizes: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in STATISTICS})
    communities: Counter[str] = field(default_factory=Counter)


@dataclass
class Column:
    """A file; `paper` holds what the paper's Table 1 says of it, if anything: category, split and the rows."""

    path: str
    name: str  # split, else the file's name
    counts: Counts
    paper: dict[str, Any]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.paper.get("category"), self.name)))


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--inputs_addr", required=True, nargs="+", metavar="FILE", help="datasets, a column each")
    parser.add_argument(
        "--format",
        choices=["markdown", "latex", "csv"],
        default="markdown",
        help="csv holds full-precision numbers, a line each; its notes go to stderr (%(default)s)",
    )
    parser.add_argument(
        "--plot_addr",
        metavar="FILE",
        help="PNG to draw the communities to (default: none)",
    )
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_given_once(args.inputs_addr)
    if args.plot_addr is not None:
        cli.check_outputs([args.plot_addr], args.inputs_addr)
        prepare_derived([args.plot_addr], SCRIPT, args.overwrite)
    columns = make_columns(args.inputs_addr, count_files(args.inputs_addr))
    notes = make_notes(columns)
    if args.plot_addr is not None:
        series = questions_by_panel(columns)
        publish_derived(render_figure(make_figure(series), {Path(args.plot_addr): "png"}), SCRIPT, args)
        print(f"{args.plot_addr}: {counted(count_communities(series), 'community', 'communities')}", file=sys.stderr)
    if args.format == "csv":
        print(to_csv(columns), end="")
        print("".join(f"note: {note}\n" for note in notes), file=sys.stderr, end="")
    else:
        print({"markdown": to_markdown, "latex": to_latex}[args.format](columns, notes), end="")
    return 0


# Reading


def check_given_once(paths: list[str]) -> None:
    """Raise UserError where a path of --inputs_addr is given twice: its questions would count twice."""
    if twice := [path for path, count in Counter(paths).items() if count > 1]:
        raise UserError(f"--inputs_addr {twice[0]}: given twice; give a file once")


def count_files(paths: list[str]) -> list[Counts]:
    """`count_file` of every path, as many at a time as there are cores: the nine files have gigabytes of posts."""
    workers = min(len(paths), len(os.sched_getaffinity(0)))
    if workers == 1:
        return [count_file(path) for path in paths]
    with ProcessPoolExecutor(workers, initializer=_die_of_signals) as pool:
        try:
            return list(pool.map(count_file, paths))
        except BaseException:  # after a signal, or a file that is refused, nobody waits for the other files
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _die_of_signals() -> None:
    """At once and without a word: the first process says what there is to say."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def count_file(path: str) -> Counts:
    """Count a dataset, a record in memory at a time.

    Raises:
        UserError: it is no dataset, holds no questions, or a field is neither missing nor what it must be.
    """
    try:
        return count_records(stream_records(Path(path)), path)
    except (OSError, ValueError, RecursionError):
        return count_records(read_dataset(path), path)  # says what is wrong, and where


def count_records(records: Iterable[dict[str, Any]], path: str) -> Counts:
    """Count records that have an id; UserError where another field is of a kind that has no size."""
    counts = Counts()
    for number, record in enumerate(records):
        for name in (*STATISTICS, "category"):
            value = record.get(name)
            if value is not None and not isinstance(value, str if name in TEXTS else list):
                where = f"{path}: record {number} (id {quote(record['id'])})"
                raise UserError(f"{where}: field {name!r} is {quote(value)}; it must be a {_kind(name)} or missing")
            if value is not None and name in STATISTICS:
                counts.sizes[name].append(len(value.split() if name in TEXTS else value))
        if record.get("category") is not None:
            counts.communities[record["category"]] += 1
        counts.num_questions += 1
    return counts


def _kind(name: str) -> str:
    return "text" if name in TEXTS else "list"


def stream_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a dataset; read_dataset would hold a file of a gigabyte several times over.

    Raises:
        OSError, ValueError, RecursionError: the file is none that read_dataset takes.
    """
    seen = set()
    with open_regular(path) as file:
        for record, *_ in stream_places(file, path.suffix):
            if not _is_question(record) or str(record["id"]) in seen:
                raise ValueError(f"record {len(seen)}")
            seen.add(str(record["id"]))
            yield record
    if not seen:
        raise ValueError("no records")


def _is_question(record: Any) -> bool:
    if not isinstance(record, dict) or type(record.get("id")) not in (str, int) or record["id"] == "":
        return False
    return isinstance(record.get("question"), str) and bool(record["question"].strip())


# The table's content


def make_columns(paths: list[str], counts: list[Counts]) -> list[Column]:
    """The paper's files in the paper's order, then the others as they were given."""
    paper = read_paper_files()
    stems = [Path(path).stem if Path(path).stem in paper else "" for path in paths]
    keys = [stem or Path(path).name for stem, path in zip(stems, paths, strict=True)]
    columns = []
    for path, stem, key, its_counts in zip(paths, stems, keys, counts, strict=True):
        printed = paper.get(stem, {})
        name = printed.get("split", key) if keys.count(key) == 1 else path
        columns.append(Column(path, printable(one_line(name)), its_counts, printed))
    order = [*paper.values(), {}]
    return sorted(columns, key=lambda column: order.index(column.paper))


def make_rows(columns: list[Column]) -> list[list[str]]:
    """A label, then a cell a column; where the paper has something to compare, its row follows."""
    rows = [["Questions (users)", *(str(column.counts.num_questions) for column in columns)]]
    rows.append(["– in the paper", *(str(column.paper.get("questions", "")) for column in columns)])
    for name, label in STATISTICS.items():
        rows.append([label, *(_cell(mean_and_deviation(column.counts.sizes[name])) for column in columns)])
        rows.append(["– in the paper", *(_cell(column.paper[name]) if column.paper else "" for column in columns)])
    return [row for row in rows if any(row[1:])]


def mean_and_deviation(sizes: list[int]) -> tuple[float, float] | None:
    """Mean and population standard deviation; None of nothing."""
    return (fmean(sizes), pstdev(sizes)) if sizes else None


def _cell(numbers: Iterable[float] | None) -> str:
    return "–" if numbers is None else " ± ".join(f"{number:.1f}" for number in numbers)


def make_notes(columns: list[Column]) -> list[str]:
    """What a reader must know before comparing the numbers, a line each."""
    notes = [
        "Mean ± population standard deviation over a file's questions; a word is what white space separates. "
        "The paper says neither which deviation it prints nor what its lengths are counted in."
    ]
    for column in columns:
        found, expected = column.counts.num_questions, column.paper.get("questions")
        if expected not in (None, found):
            notes.append(f"{column.title}: {counted(found, 'question')}; the paper's Table 1 says {expected}.")
        notes += [f"{column.title}: {note}" for note in (*_field_notes(column.counts), *_community_notes(column))]
    return notes


def _field_notes(counts: Counts) -> Iterator[str]:
    for name, sizes in counts.sizes.items():
        if missing := counts.num_questions - len(sizes):
            yield f"no {name!r} in {missing} of {counts.num_questions} questions, left out of its mean."
        if empty := sizes.count(0):
            yield f"an empty {name!r} in {empty} of {counts.num_questions} questions, counted as 0."
    if missing := counts.num_questions - counts.communities.total():
        yield f"no 'category' in {missing} of {counts.num_questions} questions."


def _community_notes(column: Column) -> Iterator[str]:
    communities = sorted(column.counts.communities)
    if unknown := [name for name in communities if name not in COMMUNITIES]:
        yield (
            f"no category is known for {first_five(unknown)}, which will be in no column of a table; "
            "utils/scoring/verdicts.py has the communities of each category."
        )
    category = column.paper.get("category")
    found = dict.fromkeys(COMMUNITIES[name] for name in communities if name in COMMUNITIES)
    if category is None and len(found) > 1:
        yield f"questions of more than one category: {', '.join(found)}; the hub's files hold one each."
    if elsewhere := [name for name in communities if category not in (None, COMMUNITIES.get(name, category))]:
        yield f"utils/scoring/verdicts.py has another category for {first_five(elsewhere)}."


# The table's forms


def to_markdown(columns: list[Column], notes: list[str]) -> str:
    lines = [markdown_line(["", *(column.title for column in columns)]), "|:---" + "|---:" * len(columns) + "|"]
    lines += map(markdown_line, make_rows(columns))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def to_latex(columns: list[Column], notes: list[str]) -> str:
    """A `latex_box` for a document that loads booktabs."""
    lines = [_latex_categories(columns)] if any(column.paper for column in columns) else []
    lines += [latex_line(map(latex_text, ["", *(column.name for column in columns)])), r"\midrule"]
    lines += [latex_line(map(latex_text, row)) for row in make_rows(columns)]
    return "% \\usepackage{booktabs}\n" + latex_box("l" + "r" * len(columns), lines, notes)


def _latex_categories(columns: list[Column]) -> str:
    """The row above the splits: a category over its columns, which stand side by side."""
    widths = Counter(column.paper.get("category", "") for column in columns)
    cells = [rf"\multicolumn{{{width}}}{{c}}{{{latex_text(name)}}}" for name, width in widths.items()]
    return " & ".join(["", *cells]).lstrip() + r" \\"


def to_csv(columns: list[Column]) -> str:
    """A line a file and statistic, in full precision; what is not there is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for column in columns:
        head = [printable(column.path), column.paper.get("category", ""), column.paper.get("split", "")]
        questions = [column.counts.num_questions, "", column.paper.get("questions", ""), ""]
        writer.writerow([*head, "Questions (users)", *questions])
        for name, label in STATISTICS.items():
            found = mean_and_deviation(column.counts.sizes[name]) or ("", "")
            writer.writerow([*head, label, *found, *column.paper.get(name, ("", ""))])
    return text.getvalue()


# The figure


def questions_by_panel(columns: list[Column]) -> Series:
    """Questions by community: a panel a split, over its categories, and one for every other file."""
    series: Series = {}
    for column in columns:
        counts = column.counts
        panel = series.setdefault(column.name, Counter())
        panel.update(counts.communities)
        if unnamed := counts.num_questions - counts.communities.total():
            panel[NO_COMMUNITY] += unnamed
    return series


def communities_by_category(series: Series) -> dict[str, list[str]]:
    """The communities that occur, most questions first; those without a category come last."""
    total = sum(series.values(), Counter())
    groups: dict[str, list[str]] = {category: [] for category in (*CATEGORIES, NO_CATEGORY)}
    for name in sorted(total, key=lambda name: (-total[name], name)):
        groups[COMMUNITIES.get(name, NO_CATEGORY)].append(name)
    return {category: names for category, names in groups.items() if names}


def count_communities(series: Series) -> int:
    """How many communities occur in any panel."""
    return len(set().union(*series.values()))


@figure_style()
def make_figure(series: Series) -> "Figure":
    """A panel of bars each, with the communities from the top down; black on white is enough to read it.

    Raises:
        UserError: more communities or files than a figure holds.
    """
    num_communities = count_communities(series)
    if num_communities > MOST_COMMUNITIES or len(series) > MOST_PANELS:
        raise UserError(
            f"--inputs_addr: {num_communities} communities and {len(series)} panels do not fit in a figure\n"
            f"  it holds {MOST_COMMUNITIES} and {MOST_PANELS}; give fewer files at a time"
        )
    rows: list[str] = []
    headings = []
    for category, names in communities_by_category(series).items():
        headings.append(len(rows))
        rows += [category, *names]
    figure = new_figure(LABEL_WIDTH + PANEL_WIDTH * len(series), 1 + ROW_HEIGHT * len(rows))
    panels = figure.subplots(1, len(series), sharey=True, squeeze=False)[0]
    for panel, (name, counts) in zip(panels, series.items(), strict=True):
        bars = {number: counts[row] for number, row in enumerate(rows) if number not in headings}
        draw_bars(panel, bars)
        panel.set_title(f"{textwrap.fill(drawable(name), 26)}\n{counts.total():,} questions", fontsize=9)
    panels[0].set_yticks(range(len(rows)), [shorten(drawable(row)) for row in rows], fontsize=8)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    for number in headings:
        panels[0].get_yticklabels()[number].set_fontweight("bold")
    figure.supxlabel("questions (every panel has its own scale)", fontsize=9)
    return figure


def draw_bars(panel: "Axes", bars: dict[int, int]) -> None:
    """A bar in each of these rows, with its length beside it."""
    largest = max(bars.values())
    panel.barh(list(bars), list(bars.values()), height=0.72, color="0.45")
    for row, count in bars.items():
        panel.text(count + 0.02 * largest, row, f"{count:,}", va="center", fontsize=7)
    panel.set_xlim(0, 1.22 * largest)  # room for the numbers
    panel.locator_params(axis="x", nbins=4, integer=True)
    panel.tick_params(axis="x", labelsize=8)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    cli.run_script(main)
