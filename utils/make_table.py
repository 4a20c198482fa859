"""Put score files into the shape of the paper's Table 2: a row a system, a column a category.

  python utils/make_table.py --system RAG rag_arts.json rag_lifestyle.json rag_society.json \\
      --system "No personalization" none.json
  python utils/make_table.py --system RAG rag.json --format latex --output_addr table.tex

The score files of a system are pooled and its questions sorted into the three categories by their community.
Category columns are means of question scores, the last one is the unweighted mean of the three categories.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python sees utils/ only

import argparse
import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from utils.cli import UserError, check_outputs, make_parser, run_script
from utils.plans import one_line
from utils.records import quote, read_scores
from utils.run_files import prepare_output, write_atomically
from utils.scoring import CATEGORIES, COMMUNITIES, category_means, macro_average

COLUMNS = ("System", *CATEGORIES, "Average (macro)", "Questions", "Unscored aspects")

Cell = str | float | int | None


@dataclass
class System:
    """A row's name and everything its score files hold."""

    name: str
    questions: list[dict[str, Any]] = field(default_factory=list)
    partial_files: list[str] = field(default_factory=list)

    def asked_ids(self) -> set[str]:
        return {question["id"] for question in self.questions if question["details"]}

    def unscored(self) -> list[int]:
        """How many verdicts are missing, for every question where any is."""
        missing = [sum(d["score"] is None for d in question["details"]) for question in self.questions]
        return [count for count in missing if count]


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if args.output_addr is not None:
        check_outputs([args.output_addr], [path for _, *paths in args.system for path in paths])
    systems = read_systems(args.system)
    rows = [make_row(system, args.unscored_as_zero) for system in systems]
    notes = make_notes(systems, args.unscored_as_zero)
    if args.format == "csv":
        table = to_csv(rows)
        print("".join(f"note: {note}\n" for note in notes), file=sys.stderr, end="")
    else:
        table = {"markdown": to_markdown, "latex": to_latex}[args.format](rows, notes)
    if args.output_addr is None:
        print(table, end="")
    else:
        prepare_output(args.output_addr, {}, args.overwrite)
        write_atomically(args.output_addr, table)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--system",
        nargs="+",
        action="append",
        required=True,
        metavar=("NAME", "FILE"),
        help="a row: its name, then one or more score files of evaluate_responses.py; give it once a row",
    )
    parser.add_argument(
        "--format",
        choices=["markdown", "latex", "csv"],
        default="markdown",
        help="csv holds full-precision numbers, its notes go to stderr (%(default)s)",
    )
    parser.add_argument("--output_addr", metavar="FILE", help="where the table goes (default: stdout)")
    parser.add_argument("--overwrite", action="store_true", help="replace --output_addr if it exists")
    parser.add_argument(
        "--unscored_as_zero",
        action="store_true",
        help="count an aspect without a verdict as 0 (default: leave its question out of the means)",
    )
    return parser


# Reading


def read_systems(arguments: list[list[str]]) -> list[System]:
    """Read the score files of every `[name, file, ...]`.

    Raises:
        UserError: a name given twice or without files, a file that is not a score file, a question that
            stands twice in a system, a community that no category is known for.
    """
    systems: dict[str, System] = {}
    for name, *paths in arguments:
        if not paths:
            raise UserError(f"--system {name!r}: no score file; give a name, then one or more files")
        if name in systems:
            raise UserError(f"--system {name!r} is given twice; put all its files behind one --system")
        systems[name] = _read_system(name, paths)
    return list(systems.values())


def _read_system(name: str, paths: list[str]) -> System:
    system = System(name)
    file_of: dict[str, str] = {}
    for path in paths:
        scores = read_scores(path)
        for question in scores["per_question_scores"]:
            _check_community(question, f"{path}: question {quote(question['id'])}")
            if question["id"] in file_of:
                raise UserError(
                    f"--system {name!r}: question {quote(question['id'])} stands in {file_of[question['id']]} "
                    f"and in {path}; a question counts once"
                )
            file_of[question["id"]] = path
        system.questions += scores["per_question_scores"]
        if scores.get("partial"):
            system.partial_files.append(path)
    return system


def _check_community(question: dict[str, Any], where: str) -> None:
    """Raise UserError unless a category is known for it."""
    community = question.get("category")
    if not isinstance(community, str) or community not in COMMUNITIES:
        raise UserError(
            f"{where}: no category is known for the community {quote(community)}\n"
            "  add it to the category it belongs to at the top of utils/scoring.py"
        )


# The table's content


def make_row(system: System, unscored_as_zero: bool) -> list[Cell]:
    """A cell for each of `COLUMNS`; None for a mean over nothing."""
    means = category_means(system.questions, unscored_as_zero)
    unscored_aspects = sum(system.unscored())
    return [system.name, *means.values(), macro_average(means), len(system.asked_ids()), unscored_aspects]


def make_notes(systems: list[System], unscored_as_zero: bool) -> list[str]:
    """What a reader must know before comparing the numbers, a line each."""
    notes = []
    treatment = "they count 0" if unscored_as_zero else "these questions are left out of its means"
    for system in systems:
        if missing := system.unscored():
            aspects, questions = _count(sum(missing), "aspect"), _count(len(missing), "question")
            notes.append(f"{system.name}: {aspects} without a verdict, in {questions}; {treatment}.")
        if system.partial_files:
            notes.append(f"{system.name}: scored only in part in {_first_five(system.partial_files)}.")
        if empty := [question["id"] for question in system.questions if not question["details"]]:
            questions = _count(len(empty), "question")
            notes.append(f"{system.name}: {questions} without aspects, not scored: {_first_five(empty)}.")
    return notes + _note_on_different_questions(systems)


def _note_on_different_questions(systems: list[System]) -> list[str]:
    all_ids = set().union(*(system.asked_ids() for system in systems))
    lacking = {system.name: len(all_ids) - len(system.asked_ids()) for system in systems}
    if not any(lacking.values()):
        return []
    parts = ", ".join(f"{name} lacks {count} of {len(all_ids)}" for name, count in lacking.items() if count)
    return [f"Warning: not all systems were scored on the same questions; their numbers do not compare: {parts}."]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _first_five(names: list[str]) -> str:
    return ", ".join(map(one_line, names[:5])) + (", ..." if len(names) > 5 else "")


# The table's forms


def to_markdown(rows: list[list[Cell]], notes: list[str]) -> str:
    lines = [_markdown_line(COLUMNS), "|:---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    lines += [_markdown_line(_text(cell) for cell in row) for row in rows]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def to_latex(rows: list[list[Cell]], notes: list[str]) -> str:
    """A tabular for a document that loads booktabs; the notes are its last rows."""
    lines = [r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{l{'r' * (len(COLUMNS) - 1)}}}", r"\toprule"]
    lines += [_latex_line(COLUMNS), r"\midrule"]
    lines += [_latex_line(_text(cell) for cell in row) for row in rows]
    lines += [r"\bottomrule"]
    for note in notes:
        cell = rf"{{p{{\linewidth}}}}{{\footnotesize {_latex_text(note)}}}"
        lines.append(rf"\multicolumn{{{len(COLUMNS)}}}{cell} \\")
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def _latex_line(cells: Iterable[str]) -> str:
    # The braces keep a name that begins with [ or * from being read as an argument of the break before it.
    return " & ".join(f"{{{_latex_text(cell)}}}" for cell in cells) + r" \\"


_LATEX_TEXT = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other signs in LaTeX's default font
)


def _latex_text(text: str) -> str:
    return text.translate(_LATEX_TEXT)


def to_csv(rows: list[list[Cell]]) -> str:
    """Full-precision numbers, an empty field for a mean over nothing; CSV has no place for notes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    return text.getvalue()


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    run_script(main)
