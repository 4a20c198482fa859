"""Make a table of scores like a paper's: a row per system, a column per category, or per task and metric.

  python utils/make_table.py --system RAG rag_arts.json rag_lifestyle.json rag_society.json \\
      --system "No personalization" none.json
  python utils/make_table.py --system RAG rag.json --system PlanPers planpers.json --baseline RAG --holm --intervals
  python utils/make_table.py --system RAG rag.json --format latex --output_addr table.tex
  python utils/make_table.py --system BM25 LaMP-2_accuracy.json LaMP-2_f1.json LaMP-3_MAE.json --system Recency ...

A system's score files are pooled, and its questions are sorted into the groups of their benchmark, such as LaMP-QA's
three categories. Group columns are means of question scores; the last column is the unweighted mean of the groups.
Several tasks of LaMP or of LongLaMP may share a table, with a column per task and metric; a dash means that a system
has no file for a column. PersonaMem's last column is the accuracy over all questions; --by topic or --by distance
replaces its question types by other columns.

A question without an answer has the worst score. A question without a verdict is excluded, unless --unscored_as_zero is
set. The best score of a column is bold (all scores that are equal to four decimals), unless all rows have the same
score; for errors (MAE, RMSE), the lowest is best.

With --baseline, a dagger marks systems that are better than every named baseline by a two-sided paired t-test
(p < 0.05) in the same column, over the questions that both have a score for. If a score is not a mean (macro F1, RMSE),
a permutation test replaces the t-test.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python finds only utils/

import argparse
import re

from utils.base import cli
from utils.base.errors import UserError, quote
from utils.base.made import add_output_arguments, prepare_derived, publish_derived
from utils.benchmarks.metric import OFFICIAL
from utils.benchmarks.readers import one_line
from utils.tables import score_table
from utils.tables.columns import Comparison, compare, compare_methods
from utils.tables.formats import Table, to_csv, to_latex, to_markdown
from utils.tables.notes import notes_on, print_notes
from utils.tables.paper_numbers import Paper, read_paper
from utils.tables.system_scores import Board, add_board_arguments, boards_of

SCRIPT = "utils/make_table.py"


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    names = [one_line(name) for name, *_ in args.system]
    args = args.replaced(baseline=list(dict.fromkeys(map(one_line, args.baseline or []))))
    check_arguments(args, names)
    seeds = {one_line(method): list(map(one_line, rows)) for method, *rows in args.seeds or []}
    boards = boards_of(args)
    published = read_published(args, boards)
    shares = [board for board in boards if board.metric.is_share]
    if args.intervals and not args.baseline and not shares:
        raise UserError("--intervals: needs --baseline")
    paper = None
    if args.paper is not None:  # including metrics by the public code's rule; a task's only group has the task's name
        shown = {board.title.removesuffix(OFFICIAL): board.name_of(board.task.name) for board in boards}
        first = boards[0]
        shown = shown if first.task.benchmark else None
        of_paper = [name for name, scores in published.items() if not scores]
        paper = read_paper(first.task, first.metric_name, args.paper, args.paper_table, [*first.rows, *of_paper], shown)
        if unknown := [name for name in of_paper if name not in paper.methods]:
            methods = ", ".join(paper.methods)
            raise UserError(
                f"--published {unknown[0]!r}: the paper has no such row; add its scores, or use one of: {methods}"
            )
    if args.length and (pooled := next((board for board in boards if board.metric.pooled), None)):
        raise UserError(f"--length: {pooled.title} is not a mean over questions; remove the flag")
    if args.length and (without := [path for board in boards for system in board.systems if system.mean_words is None
                                    for path in system.files]):  # fmt: skip
        remedy = "run evaluate_responses.py again with --overwrite (verdicts are kept)"
        raise UserError(f"--length: {without[0]} has no words of answers, like files of older versions\n  {remedy}")
    comparisons = compare(boards, args.baseline, args.intervals, args.holm, args.length)
    tables = make_tables(args, boards, comparisons, paper, published)
    over_seeds = []
    if seeds and args.baseline:
        over_seeds = compare_methods(boards, seeds, args.baseline, args.intervals, args.holm)
    tables += [score_table.seeds_table(boards, seeds, over_seeds, args.format != "csv")] if seeds else []
    if args.intervals and over_seeds:
        tables.append(score_table.intervals_table(boards, over_seeds, "Method over seeds"))
    tables += [score_table.shares_table(shares)] if args.intervals and shares else []
    tables += [score_table.intervals_table(boards, comparisons)] if args.intervals and comparisons else []
    tables += [score_table.lengths_table(boards, comparisons)] if args.length and comparisons else []
    if args.format == "csv":
        rows = score_table.csv_rows(boards, comparisons, paper, seeds, over_seeds, args.length, published)
        text = to_csv(rows)
        print_notes(note for table in tables for note in table.notes)
    else:
        text = {"markdown": to_markdown, "latex": to_latex}[args.format](tables)
    if args.output_addr is None:
        print(text, end="")
    else:
        prepare_derived([args.output_addr], SCRIPT, args.overwrite)
        publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    return 0


def make_tables(
    args: argparse.Namespace,
    boards: list[Board],
    comparisons: list[Comparison],
    paper: Paper | None,
    published: dict[str, list[str]],
) -> list[Table]:
    """Return the tables of means (several if the page is narrow), with the notes below the last one."""
    marked = args.format != "csv"  # CSV cells hold only numbers
    notes = [*notes_on(boards, args.unscored_as_zero), *score_table.dagger_notes(comparisons, marked)]
    notes += score_table.paper_notes(paper, boards, marked) if paper else []
    notes += [] if args.intervals else score_table.left_out_notes(comparisons)
    typed = [name for name, scores in published.items() if scores]
    notes += [f"Typed by hand, not computed here: {', '.join(typed)}."] if typed else []
    pages = score_table.pages_of(boards) if args.format == "latex" else [boards]
    if typed and len(pages) > 1:
        raise UserError("--published: this table has several parts in LaTeX; use --format markdown, or no typed rows")
    tables = [score_table.means_table(page, comparisons, paper, args.length, published) for page in pages]
    tables[-1].notes.extend(notes)
    return tables


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--system", nargs="+", action="append", required=True, metavar=("NAME", "FILE"),
        help="a row: its name, then one or more score files of evaluate_responses.py, for one or more tasks and "
        "metrics; once per row")
    add("--baseline", nargs="+", metavar="NAME",
        help="rows to compare the others with; a dagger marks those better than every baseline (default: no daggers)")
    add("--holm", action="store_true", help="correct the p-values over all comparisons in the table")
    parser.without_effect("--holm", lambda args: not args.baseline, "without --baseline", "add --baseline")
    add("--intervals", action="store_true",
        help="a second table (in csv, more columns): interval, permutation test and effect size per comparison; for "
        "PersonaMem also a table of accuracies with intervals, which needs no --baseline (off)")
    add("--published", nargs="+", action="append", metavar=("NAME", "SCORE"),
        help="a row with somebody's published scores, one per column (- for none), marked as typed; without scores, "
        "the row of this name in --paper's table; once per row (default: none)")
    add("--length", action="store_true",
        help="a column of mean words per answer, and with --baseline a table of differences at equal length (off)")
    add("--seeds", nargs="+", action="append", metavar=("NAME", "ROW"),
        help="a method and the rows of its seeds: adds a table with their mean and standard deviation, with --baseline "
        "also tests of each question's mean over the seeds; in csv more rows, with a number in the column Seeds; once "
        "per method (off)")
    add("--paper", metavar="MODEL",
        help="add the paper's numbers for this model, and differences, to rows with the paper's names; for a model "
        "that is not the systems', such as LaMP's FlanT5-base, also the paper's other rows (default: none)")
    add("--paper_table", default="2", metavar="TABLE",
        help="the paper's table: for LaMP-QA 2 (test), 3 (validation) or beyond (later methods, test); for LaMP user "
        "or time; for LongLaMP user or temporal; for PersonaMem 32k, 128k or 1M; for PersonaMem-v2 32k, 128k, 32k open "
        "or 128k open (%(default)s)")
    parser.without_effect("--paper_table", lambda args: args.paper is None, "without --paper", "add --paper")
    add_board_arguments(parser)
    parser.without_effect("--groups", lambda args: args.paper, "with --paper, whose columns are the paper's")
    add("--format", choices=["markdown", "latex", "csv"], default="markdown",
        help="csv has numbers in full precision, and prints notes to stderr (%(default)s)")
    add_output_arguments(parser, "file for the table (default: stdout)")
    return parser
    # fmt: on


def read_published(args: argparse.Namespace, boards: list[Board]) -> dict[str, list[str]]:
    """Return the scores of each --published row as typed, empty for a row from --paper; UserError if a row is wrong."""
    columns = list(score_table.columns_in(boards))
    published: dict[str, list[str]] = {}
    for name, *words in args.published or []:
        where = f"--published {name!r}"
        if one_line(name) in published or one_line(name) in boards[0].rows:
            raise UserError(f"{where}: another row has this name; rename one of them")
        if not words and args.paper is None:
            raise UserError(f"{where}: needs one score per column: {', '.join(columns)}; or --paper")
        if words and len(words) != len(columns):
            raise UserError(f"{where}: {len(words)} scores for {len(columns)} columns: {', '.join(columns)}")
        if wrong := [word for word in words if word != "-" and not re.fullmatch(r"-?\d*\.?\d+", word)]:
            raise UserError(f"{where}: {wrong[0]!r} is not a number")
        published[one_line(name)] = ["–" if word == "-" else word for word in words]
    return published


def check_arguments(args: argparse.Namespace, names: list[str]) -> None:
    """Raise UserError if flags name unknown rows or too few rows."""
    if args.output_addr is not None:
        cli.check_outputs([args.output_addr], [path for _, *paths in args.system for path in paths])
    for name in args.baseline:
        if name not in names:
            raise UserError(
                f"--baseline {name!r}: no --system has this name; the names are {', '.join(map(quote, names))}"
            )
    if args.baseline and set(names) == set(args.baseline):
        raise UserError("--baseline: names every system, so no other row is left to compare")
    for method, *rows in args.seeds or []:
        if missing := [row for row in map(one_line, rows) if row not in names]:
            raise UserError(f"--seeds {method!r}: no --system has the name {missing[0]!r}")
        if len(set(map(one_line, rows))) < max(2, len(rows)):
            raise UserError(f"--seeds {method!r}: needs two or more different rows")


if __name__ == "__main__":
    cli.run_script(main)
