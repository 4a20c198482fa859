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
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, pstdev

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks import tasks
from utils.cli.errors import first_five, printable
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.tables.dataset_counts import (
    Column,
    Counts,
    communities_figure,
    count_communities,
    read_columns,
    rows_of,
)
from utils.tables.drawing import render_figure
from utils.tables.formats import counted, latex_box, latex_line, latex_text, markdown_line, plural

SCRIPT = "utils/dataset_statistics.py"
CSV_COLUMNS = ("file", "category", "split", "statistic", "value", "sd", "paper_value", "paper_sd")


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
    if args.plot_addr is not None:
        cli.check_outputs([args.plot_addr], args.inputs_addr)
        prepare_derived([args.plot_addr], SCRIPT, args.overwrite)
    columns = read_columns(args.inputs_addr)
    notes = make_notes(columns)
    if args.plot_addr is not None:
        publish_derived(render_figure(communities_figure(columns), {Path(args.plot_addr): "png"}), SCRIPT, args)
        subgroup = tasks()[columns[0].counts.task].group_words[2]
        print(f"{args.plot_addr}: {counted(count_communities(columns), subgroup)}", file=sys.stderr)
    if args.format == "csv":
        print(to_csv(columns), end="")
        print("".join(f"note: {note}\n" for note in notes), file=sys.stderr, end="")
    else:
        print({"markdown": to_markdown, "latex": to_latex}[args.format](columns, notes), end="")
    return 0


# The table's content


def make_rows(columns: list[Column]) -> list[list[str]]:
    """A label, then a cell a column; where the paper has something to compare, its row follows."""
    rows = [["Questions (users)", *(str(column.counts.num_questions) for column in columns)]]
    rows.append(["– in the paper", *(str(column.paper.get("questions", "")) for column in columns)])
    for name, label in rows_of(columns[0].counts.task).items():
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
    task, group_of = tasks()[column.counts.task], column.counts.group_of
    group_word, _, subgroup_word = task.group_words
    communities = sorted(group_of)
    if unknown := [name for name in communities if group_of[name] is None]:
        yield (
            f"no {group_word} is known for {first_five(unknown)}, which will be in no column of a table; "
            f"{task.facts} has the {plural(subgroup_word)} of each {group_word}."
        )
    group = column.paper.get("category")
    found = dict.fromkeys(group_of[name] for name in communities if group_of[name] is not None)
    if group is None and len(found) > 1:
        yield f"questions of more than one {group_word}: {', '.join(found)}; the hub's files hold one each."
    if elsewhere := [name for name in communities if group not in (None, group_of[name] or group)]:
        yield f"{task.facts} has another {group_word} for {first_five(elsewhere)}."


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
        for name, label in rows_of(column.counts.task).items():
            found = mean_and_deviation(column.counts.sizes[name]) or ("", "")
            writer.writerow([*head, label, *found, *column.paper.get(name, ("", ""))])
    return text.getvalue()


if __name__ == "__main__":
    cli.run_script(main)
