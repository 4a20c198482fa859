"""Put score files into the shape of the paper's Table 2: a row a system, a column a category.

  python utils/make_table.py --system RAG rag_arts.json rag_lifestyle.json rag_society.json \\
      --system "No personalization" none.json
  python utils/make_table.py --system RAG rag.json --system PlanPers planpers.json --baseline RAG --holm --intervals
  python utils/make_table.py --system RAG rag.json --format latex --output_addr table.tex

The score files of a system are pooled and its questions sorted into the three categories by their community.
Category columns are means of question scores, the last one is the unweighted mean of the three categories. A question
without an answer counts 0; one without a verdict is left out, unless --unscored_as_zero. The best of a column is bold,
with all that show the same four decimals.

With --baseline, a dagger marks what is better than every baseline named: by a two-sided paired t-test, p < 0.05, in
the same column, over the questions that both have a score of.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python sees utils/ only

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from utils.cli import UserError, check_outputs, make_parser, run_script
from utils.cli.errors import quote
from utils.cli.flags import FlagParser
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.parsing.plans import one_line
from utils.scoring.verdicts import CATEGORIES, COMMUNITIES, category_means, macro_average, summarize
from utils.tables.comparisons import GROUPS, MACRO, PERMUTATION, T_TEST, Contrast, Result, compare, has_dagger, shown_p
from utils.tables.formats import Cell, Table, counted, number, p_text, signed, to_csv, to_latex, to_markdown
from utils.tables.paper_results import Paper, read_paper
from utils.tables.significance import ALPHA, PERMUTATIONS, RESAMPLES
from utils.tables.system_scores import (
    System,
    add_unscored_argument,
    check_judged_alike,
    check_same_questions,
    read_systems,
)
from utils.tables.wordings import wording_columns, wording_note

SCRIPT = "utils/make_table.py"
COLUMNS = ("System", *GROUPS, "Questions", "Unanswered", "Unscored aspects")
SHORT = dict(zip(GROUPS, ("Arts", "Lifestyle", "Society", "Average"), strict=True))  # on a page
SHORT |= {"Questions": "Qns.", "Unanswered": "Unans.", "Unscored aspects": "Unsc."}


@dataclass(frozen=True)
class Row:
    """A system's means by `GROUPS`, None for a mean over nothing."""

    name: str
    means: dict[str, float | None]
    num_questions: int
    num_unanswered: int
    num_unscored: int


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_arguments(args)
    names = [one_line(name) for name, *_ in args.system]
    paper = None if args.paper is None else read_paper(args.paper, args.paper_table, names)
    systems = read_systems(args.system, args.unscored_as_zero)
    unknown_judge = check_judged_alike(systems)
    if not args.allow_partial:
        check_same_questions(systems)
    rows = [make_row(system) for system in systems]
    contrasts = compare(systems, args.baseline, args.intervals, args.holm)
    notes = [*make_notes(systems, args.unscored_as_zero), *judge_notes(unknown_judge)]
    marked = args.format != "csv"  # whose cells are numbers alone
    notes += [*dagger_notes(contrasts, args.baseline, args.holm, marked), *paper_notes(paper, rows, marked)]
    notes += [] if paper is None else [wording_note(systems)]
    if args.intervals:
        tables = [means_table(rows, contrasts, paper, notes), intervals_table(contrasts, args.holm)]
    else:
        tables = [means_table(rows, contrasts, paper, [*notes, *left_out_notes(contrasts)])]
    if args.format == "csv":
        wordings = {} if paper is None else {system.name: wording_columns(system) for system in systems}
        text = to_csv(csv_rows(rows, contrasts, paper, wordings))
        print("".join(f"note: {note}\n" for table in tables for note in table.notes), file=sys.stderr, end="")
    else:
        text = {"markdown": to_markdown, "latex": to_latex}[args.format](tables)
    if args.output_addr is None:
        print(text, end="")
    else:
        prepare_derived([args.output_addr], SCRIPT, args.overwrite)
        publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    return 0


def build_parser() -> FlagParser:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--system",
        nargs="+",
        action="append",
        required=True,
        metavar=("NAME", "FILE"),
        help="a row: its name, then one or more score files of evaluate_responses.py; give it once a row",
    )
    add_comparison_arguments(parser)
    parser.without_effect("--paper_table", lambda args: args.paper is None, "without --paper", "give --paper")
    parser.add_argument(
        "--format",
        choices=["markdown", "latex", "csv"],
        default="markdown",
        help="csv holds full-precision numbers, its notes go to stderr (%(default)s)",
    )
    parser.add_argument("--output_addr", metavar="FILE", help="where the table goes (default: stdout)")
    add_overwrite_argument(parser)
    parser.without_effect(
        "--overwrite", lambda args: args.output_addr is None, "without --output_addr", "give --output_addr"
    )
    add_unscored_argument(parser)
    parser.add_argument(
        "--allow_partial", action="store_true", help="take systems that were not scored on the same questions"
    )
    return parser


def add_comparison_arguments(parser: argparse.ArgumentParser) -> None:
    """What the systems are compared with: each other, and the paper."""
    parser.add_argument(
        "--baseline",
        nargs="+",
        metavar="NAME",
        help="rows that the others are compared with; a dagger where one is better than each (default: no daggers)",
    )
    parser.add_argument("--holm", action="store_true", help="correct the p-values over all comparisons in the table")
    parser.add_argument(
        "--intervals",
        action="store_true",
        help="a second table: interval, permutation test and effect size of each comparison; in csv more columns",
    )
    parser.add_argument(
        "--paper",
        metavar="MODEL",
        help="beside each cell what the paper prints for this model, and the difference to it; "
        "rows are matched by their names",
    )
    parser.add_argument(
        "--paper_table",
        choices=["2", "3"],
        default="2",
        help="of the paper: 2 is the test set, 3 validation (%(default)s)",
    )


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UserError where flags contradict each other; puts the names of --baseline into one line each."""
    if args.output_addr is not None:
        check_outputs([args.output_addr], [path for _, *paths in args.system for path in paths])
    names = [one_line(name) for name, *_ in args.system]
    args.baseline = list(dict.fromkeys(map(one_line, args.baseline or [])))
    for name in args.baseline:
        if name not in names:
            raise UserError(f"--baseline {name!r}: no --system has this name; there are {', '.join(map(quote, names))}")
    if args.baseline and set(names) == set(args.baseline):
        raise UserError("--baseline: names every system; nothing is left to compare with them")
    if (args.holm or args.intervals) and not args.baseline:
        flag = "--holm" if args.holm else "--intervals"
        raise UserError(f"{flag}: nothing to compare; name the rows to compare with by --baseline")


# Means


def make_row(system: System) -> Row:
    means = category_means(system.questions)
    counts = (len(system.asked_ids()), system.num_unanswered(), sum(system.unscored()))
    return Row(system.name, means | {MACRO: macro_average(means)}, *counts)


def best_of(rows: list[Row], group: str) -> set[str]:
    """Names of the rows with the best mean as it is shown, where there are two or more to choose from."""
    shown = {row.name: number(row.means[group]) for row in rows if row.means[group] is not None}
    return {name for name, text in shown.items() if text == max(shown.values())} if len(shown) > 1 else set()


# Notes: what a reader must know before comparing the numbers, a line each


def make_notes(systems: list[System], unscored_as_zero: bool) -> list[str]:
    """What of the systems is not in the numbers."""
    notes = []
    treatment = "they count 0" if unscored_as_zero else "these questions are left out of its means"
    for system in systems:
        if unanswered := system.num_unanswered():
            verb = "counts" if unanswered == 1 else "count"
            notes.append(f"{system.name}: {counted(unanswered, 'question')} without an answer, which {verb} 0.")
        if missing := system.unscored():
            aspects, questions = counted(sum(missing), "aspect"), counted(len(missing), "question")
            notes.append(f"{system.name}: {aspects} without a verdict, in {questions}; {treatment}.")
        if system.partial_files:
            notes.append(f"{system.name}: scored only in part in {_first_five(system.partial_files)}.")
        if empty := [question["id"] for question in system.questions if not question["details"]]:
            questions = counted(len(empty), "question")
            notes.append(f"{system.name}: {questions} without aspects, not scored: {_first_five(empty)}.")
    return notes + _notes_on_categories(systems) + _note_on_different_questions(systems) + _note_on_order(systems)


def _notes_on_categories(systems: list[System]) -> list[str]:
    """Of whom a file is not of one category, as the hub's are, and which communities have none."""
    mixed: dict[str, dict[str, None]] = {}  # names by what a file holds: those of all systems have the same questions
    for system in systems:
        for communities in system.communities.values():
            of = {category: [c for c in communities if COMMUNITIES[c] == category] for category in CATEGORIES}
            held = [f"{category} ({', '.join(sorted(names))})" for category, names in of.items() if names]
            if len(held) > 1:
                mixed.setdefault("; ".join(held), {})[system.name] = None
    notes = [
        f"Questions of more than one category in one score file, {_first_five(list(names))}: {held}."
        for held, names in mixed.items()
    ]
    unplaced = {question["id"]: question for system in systems for question in system.unplaced}.values()
    if unplaced:
        names = ", ".join(sorted({quote(question.get("category")) for question in unplaced}))
        notes.append(
            f"Warning: {counted(len(unplaced), 'question')} in no column, for no category is known for the community "
            f"{one_line(names)}; utils/scoring/verdicts.py has the communities."
        )
    return notes


def _note_on_different_questions(systems: list[System]) -> list[str]:
    all_ids = set().union(*(system.asked_ids() for system in systems))
    lacking = {system.name: len(all_ids) - len(system.asked_ids()) for system in systems}
    if not any(lacking.values()):
        return []
    parts = ", ".join(f"{name} lacks {count} of {len(all_ids)}" for name, count in lacking.items() if count)
    return [f"Warning: not all systems were scored on the same questions; their numbers do not compare: {parts}."]


def _note_on_order(systems: list[System]) -> list[str]:
    """The means over questions, which evaluate_responses.py prints, where two systems change places by them."""
    macro = {system.name: macro_average(category_means(system.questions)) for system in systems}
    over_questions = {name: summarize(system.questions)["score"] for name, system in zip(macro, systems, strict=True)}
    known = [(macro[name], over_questions[name]) for name in macro if macro[name] is not None]
    if not any((one[0] - other[0]) * (one[1] - other[1]) < 0 for one, other in combinations(known, 2)):
        return []
    means = ", ".join(f"{name} {number(mean)}" for name, mean in over_questions.items())
    return [f"Over all questions, which is not the macro average, systems stand in another order: {means}."]


def paper_notes(paper: Paper | None, rows: list[Row], marked: bool) -> Iterator[str]:
    if paper is None:
        return
    daggers = marked and paper.daggers & {(row.name, group) for row in rows for group in GROUPS}
    own = ", with its own daggers" if daggers else ""
    yield f"With each mean: the paper's {paper.title}{own}, and the difference to it."
    if others := [row.name for row in rows if row.name not in paper.methods]:
        yield f"Not in that table: {', '.join(others)}; its methods are {', '.join(paper.methods)}."
    for (method, group), note in paper.misprints.items():
        if method in {row.name for row in rows}:
            yield f"{method}, {group}: {note}"


def judge_notes(unknown: list[str]) -> Iterator[str]:
    if unknown:
        files = _first_five(unknown)
        yield f"Not known by which judge and prompt: {files} (no manifest beside it, or changed since)."


def dagger_notes(contrasts: list[Contrast], baselines: list[str], correct: bool, marked: bool) -> Iterator[str]:
    """What a dagger means where there is one, how was tested where cells are not `marked`, and what could not be."""
    if not contrasts:
        return
    results = [result for contrast in contrasts for result in contrast.results.values()]
    whom = baselines[0] if len(baselines) == 1 else f"each of {', '.join(baselines)}"
    tested = counted(sum(result.p_values[T_TEST] is not None for result in results), "comparison")
    correction = f"Holm's correction over {tested}" if correct else f"not corrected for the {tested}"
    daggers = any(has_dagger(contrasts, one.system, group) for one in contrasts for group in GROUPS)
    sign = "†: better" if daggers else "No system is better"
    if marked:
        yield f"{sign} than {whom} (two-sided paired t-test, p < {ALPHA}, {correction})."
    else:
        yield f"{T_TEST}: two-sided and paired, {correction}."
    if untested := [result for result in results if result.p_values[T_TEST] is None]:
        yield (
            f"{counted(len(untested), 'comparison')} without a t-test: fewer than two paired questions in a category, "
            "or all differences equal."
        )


def left_out_notes(contrasts: list[Contrast]) -> Iterator[str]:
    """The comparisons that could not use every question."""
    for contrast in contrasts:
        if contrast.pairing.only_first or contrast.pairing.only_second or contrast.pairing.neither:
            yield _describe_pairing(contrast)


def _describe_pairing(contrast: Contrast) -> str:
    pairing = contrast.pairing
    return (
        f"{contrast.system} and {contrast.baseline}: {counted(pairing.paired, 'paired question')}; left out: "
        f"{pairing.only_first} scored only for {contrast.system}, {pairing.only_second} only for {contrast.baseline}, "
        f"{pairing.neither} for neither."
    )


def _first_five(names: list[str]) -> str:
    return ", ".join(map(one_line, names[:5])) + (", ..." if len(names) > 5 else "")


# The tables


def means_table(rows: list[Row], contrasts: list[Contrast], paper: Paper | None, notes: list[str]) -> Table:
    best = {group: best_of(rows, group) for group in GROUPS}
    lines = []
    for row in rows:
        cells = [
            Cell(
                number(mean),
                "†" if has_dagger(contrasts, row.name, group) else "",
                row.name in best[group],
                _paper_texts(row, group, paper),
            )
            for group, mean in row.means.items()
        ]
        counts = (row.num_questions, row.num_unanswered, row.num_unscored)
        lines.append([Cell(row.name), *cells, *(Cell(str(count)) for count in counts)])
    return Table(COLUMNS, lines, notes, short=SHORT, beside=("in the paper", "difference to it"))


def _paper_texts(row: Row, group: str, paper: Paper | None) -> tuple[str, ...]:
    """The paper's score as it is printed, and the difference to it; nothing for a row that it does not have."""
    if paper is None or (row.name, group) not in paper.scores:
        return ()
    dagger = "†" if (row.name, group) in paper.daggers else ""
    return f"{number(paper.scores[row.name, group])}{dagger}", signed(_to_paper(row, group, paper))


def _to_paper(row: Row, group: str, paper: Paper) -> float | None:
    """The difference to the paper's score, None where one of the two is not there."""
    mean, score = row.means[group], paper.scores.get((row.name, group))
    return None if mean is None or score is None else mean - score


def intervals_table(contrasts: list[Contrast], correct: bool) -> Table:
    """A line for every comparison."""
    suffix = " (Holm)" if correct else ""
    columns = ["System", "Baseline", "Column", "Difference", "95% interval", f"t-test p{suffix}"]
    columns += [f"Permutation p{suffix}", "Effect size", "Paired questions"]
    rows = []
    for contrast in contrasts:
        for group, result in contrast.results.items():
            cells = [contrast.system, contrast.baseline, group, signed(result.difference), _interval_text(result)]
            cells += [p_text(shown_p(result, T_TEST)), p_text(shown_p(result, PERMUTATION))]
            cells += [signed(result.statistics.effect_size, 2), str(result.num_questions)]
            rows.append([Cell(text) for text in cells])
    notes = [
        "Difference: system minus baseline, over the questions that both have a score of. "
        f"Interval: bootstrap, {RESAMPLES:,} resamples. Permutation test: {PERMUTATIONS:,} sign flips, two-sided. "
        "Effect size: Cohen's d_z of the paired differences; the average has none."
    ]
    short = SHORT | {"Difference": "Diff.", f"Permutation p{suffix}": "Perm. p", "Paired questions": "Pairs"}
    short |= {f"t-test p{suffix}": "t-test p"} if correct else {}
    return Table(columns, rows, [*notes, *map(_describe_pairing, contrasts)], num_names=3, short=short)


def _interval_text(result: Result) -> str:
    if result.statistics.interval is None:
        return "–"
    low, high = result.statistics.interval
    return f"[{signed(low)}, {signed(high)}]"


def csv_rows(
    rows: list[Row], contrasts: list[Contrast], paper: Paper | None, wordings: dict[str, dict[str, str]]
) -> list[list[Any]]:
    """Header and rows: all that the tables show of a system, in one row; behind it what `wordings` has of it."""
    records = [_csv_record(row, contrasts, paper) | wordings.get(row.name, {}) for row in rows]
    columns = list(dict.fromkeys(column for record in records for column in record))
    return [columns, *([record.get(column) for column in columns] for record in records)]


def _csv_record(row: Row, contrasts: list[Contrast], paper: Paper | None) -> dict[str, Any]:
    record = {"System": row.name, **row.means, "Questions": row.num_questions}
    record |= {"Unanswered": row.num_unanswered, "Unscored aspects": row.num_unscored}
    if paper is not None:
        for group in GROUPS:
            record[f"{group}: paper"] = paper.scores.get((row.name, group))
            record[f"{group}: difference to paper"] = _to_paper(row, group, paper)
    for contrast in contrasts:
        if contrast.system == row.name:
            record |= _csv_contrast(contrast)
    return record


def _csv_contrast(contrast: Contrast) -> dict[str, Any]:
    record = {}
    for group, result in contrast.results.items():
        figures = {"paired questions": result.num_questions, "difference": result.difference, **result.p_values}
        if result.statistics is not None:
            low, high = result.statistics.interval or (None, None)
            effect_size = result.statistics.effect_size
            figures |= {"95% interval, low": low, "95% interval, high": high, "effect size": effect_size}
        record |= {f"{group}: {name} against {contrast.baseline}": figure for name, figure in figures.items()}
    left_out = {"here only": contrast.pairing.only_first, "there only": contrast.pairing.only_second}
    left_out["nowhere"] = contrast.pairing.neither
    return record | {f"Left out against {contrast.baseline}: scored {where}": n for where, n in left_out.items()}


if __name__ == "__main__":
    run_script(main)
