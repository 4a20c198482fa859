"""Put score files into the shape of a paper's table: a row a system, a column a category, or a task by a metric.

  python utils/make_table.py --system RAG rag_arts.json rag_lifestyle.json rag_society.json \\
      --system "No personalization" none.json
  python utils/make_table.py --system RAG rag.json --system PlanPers planpers.json --baseline RAG --holm --intervals
  python utils/make_table.py --system RAG rag.json --format latex --output_addr table.tex
  python utils/make_table.py --system BM25 LaMP-2_accuracy.json LaMP-2_f1.json LaMP-3_MAE.json --system Recency ...

The score files of a system are pooled and its questions sorted into the groups of their benchmark, such as LaMP-QA's
three categories. Group columns are means of question scores, the last one is the unweighted mean of the groups. Of
LaMP and of LongLaMP several tasks may stand in one table, each by its metrics: a column a task and metric, as the files
tell them; where a system has no file of one there is a dash. PersonaMem's last column is the accuracy over all
questions; --by topic or --by distance gives other columns than its types.

A question without an answer has the worst score; one without a verdict of the judge is left out, unless
--unscored_as_zero. The best of a column is bold, with all that show the same four decimals; of errors (MAE, RMSE) the
lowest is best.

With --baseline, a dagger marks what is better than every baseline named: by a two-sided paired t-test, p < 0.05, in
the same column, over the questions that both have a score of; where a score is no mean of its questions' (macro F1,
RMSE), by a permutation test.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python sees utils/ only

import argparse

from utils import cli
from utils.benchmarks.task import OFFICIAL
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.derived_files import add_output_arguments, prepare_derived, publish_derived
from utils.parsing.plans import one_line
from utils.tables import score_table
from utils.tables.comparisons import compare
from utils.tables.formats import to_csv, to_latex, to_markdown
from utils.tables.notes import print_notes, read_compared
from utils.tables.paper_results import read_paper
from utils.tables.system_scores import add_unscored_argument

SCRIPT = "utils/make_table.py"


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    names = [one_line(name) for name, *_ in args.system]
    check_arguments(args, names)
    seeds = rows_by_method(args, names)
    boards, notes = read_compared(args.system, args.unscored_as_zero, args.allow_partial, args.by)
    shares = [board for board in boards if board.metric.is_share]
    if args.intervals and not args.baseline and not shares:
        refuse_without_baseline("--intervals")
    paper = None
    if args.paper is not None:
        # A task's name is its only group's, too. The paper's numbers are by its own rule, so they stand with that.
        shown = {board.title.removesuffix(OFFICIAL): board.name_of(board.task.name) for board in boards}
        shown = shown if boards[0].task.benchmark else None
        paper = read_paper(boards[0].task, args.paper, args.paper_table, names, shown)
    contrasts = compare(boards, args.baseline, args.intervals, args.holm)
    marked = args.format != "csv"  # whose cells are numbers alone
    notes += [*score_table.dagger_notes(contrasts, marked), *score_table.paper_notes(paper, boards, marked)]
    notes += [] if args.intervals else score_table.left_out_notes(contrasts)
    pages = score_table.pages_of(boards) if args.format == "latex" else [boards]
    tables = [score_table.means_table(its, contrasts, paper) for its in pages]
    tables[-1].notes.extend(notes)
    tables += [score_table.seeds_table(boards, seeds)] if seeds else []
    tables += [score_table.shares_table(shares)] if args.intervals and shares else []
    tables += [score_table.intervals_table(boards, contrasts)] if args.intervals and args.baseline else []
    if args.format == "csv":
        text = to_csv(score_table.csv_rows(boards, contrasts, paper))
        print_notes(note for table in tables for note in table.notes)
    else:
        text = {"markdown": to_markdown, "latex": to_latex}[args.format](tables)
    if args.output_addr is None:
        print(text, end="")
    else:
        prepare_derived([args.output_addr], SCRIPT, args.overwrite)
        publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    return 0


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--system", nargs="+", action="append", required=True, metavar=("NAME", "FILE"),
        help="a row: its name, then one or more score files of evaluate_responses.py, of several tasks and metrics "
        "too; give it once a row")
    add("--baseline", nargs="+", metavar="NAME",
        help="rows that the others are compared with; a dagger where one is better than each (default: no daggers)")
    add("--holm", action="store_true", help="correct the p-values over all comparisons in the table")
    add("--intervals", action="store_true",
        help="a second table: interval, permutation test and effect size of each comparison; in csv more columns. Of "
        "PersonaMem, whose scores are shares, also a table of each with its interval, without --baseline too")
    add("--seeds", nargs="+", action="append", metavar=("NAME", "ROW"),
        help="a method and the rows that are its seeds: a further table has their mean and standard deviation; give it "
        "once per method (off; not in csv)")
    add("--paper", metavar="MODEL",
        help="beside each cell what the benchmark's paper prints for this model, and the difference to it; "
        "rows are matched by their names, and what the paper has of another model than ours stands below")
    add("--paper_table", default="2", metavar="TABLE",
        help="of the paper: for LaMP-QA 2, the test set, or 3, validation; for LaMP user or time, for LongLaMP user or "
        "temporal, for PersonaMem 32k, 128k or 1M (%(default)s)")
    parser.without_effect("--paper_table", lambda args: args.paper is None, "without --paper", "give --paper")
    add("--by", metavar="NAME",
        help="columns of another kind: topic or distance of PersonaMem's questions, for PersonaMem-v2 also who or "
        "updated (default: the groups)")
    add("--format", choices=["markdown", "latex", "csv"], default="markdown",
        help="csv holds full-precision numbers, its notes go to stderr (%(default)s)")
    add_output_arguments(parser, "where the table goes (default: stdout)")
    add_unscored_argument(parser)
    add("--allow_partial", action="store_true", help="take systems that were not scored on the same questions")
    return parser
    # fmt: on


def check_arguments(args: argparse.Namespace, names: list[str]) -> None:
    """Raise UserError where flags contradict each other; puts the names of --baseline into one line each."""
    if args.output_addr is not None:
        cli.check_outputs([args.output_addr], [path for _, *paths in args.system for path in paths])
    args.baseline = list(dict.fromkeys(map(one_line, args.baseline or [])))
    for name in args.baseline:
        if name not in names:
            raise UserError(f"--baseline {name!r}: no --system has this name; there are {', '.join(map(quote, names))}")
    if args.baseline and set(names) == set(args.baseline):
        raise UserError("--baseline: names every system; nothing is left to compare with them")
    if args.holm and not args.baseline:
        refuse_without_baseline("--holm")


def rows_by_method(args: argparse.Namespace, names: list[str]) -> dict[str, list[str]]:
    """The rows behind each --seeds by its name; UserError where one is no row or stands twice, or is no spread."""
    methods: dict[str, list[str]] = {}
    for method, *rows in [list(map(one_line, words)) for words in args.seeds or []]:
        if method in methods:
            raise UserError(f"--seeds {method!r} is given twice; put all its rows behind one --seeds")
        methods[method] = rows
        if missing := [row for row in rows if row not in names]:
            raise UserError(f"--seeds {method!r}: no --system is called {missing[0]!r}")
        if twice := [row for row in rows if rows.count(row) > 1]:
            raise UserError(f"--seeds {method!r}: {twice[0]!r} is given twice; a seed counts once")
        if len(rows) < 2:
            raise UserError(f"--seeds {method!r}: a spread needs two or more different rows")
    return methods


def refuse_without_baseline(flag: str) -> None:
    raise UserError(f"{flag}: nothing to compare; name the rows to compare with by --baseline")


if __name__ == "__main__":
    cli.run_script(main)
