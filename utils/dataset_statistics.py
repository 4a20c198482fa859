"""Make a table of datasets' statistics, like the paper's Table 1.

  python utils/dataset_statistics.py --inputs_addr data/*_train.json data/*_validation.json data/*_test.json

Each file is a column. Files named <category>_<split>.json, as utils/download_datasets.py names them, are grouped by
category, with the paper's numbers in rows below; other files are shown by name. Cells are means ± population standard
deviations over a file's questions. Lengths are in words, separated by white space.

For multiple-choice questions with right options in the file, a table per file follows: how often the longest or the
shortest option is the right one, by type of question.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, pstdev

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import count_noun, first_five
from utils.benchmarks.scoring import mean
from utils.benchmarks.task import ALL
from utils.show.dataset_counts import EXTREMES, Column, read_columns
from utils.tables.formats import Cell, Table, interval_text, number, to_latex, to_markdown
from utils.tables.score_table import share_intervals_note
from utils.tables.significance import share_interval


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, nargs="+", metavar="FILE", help="datasets, one per column")
    add("--format", choices=["markdown", "latex"], default="markdown", help="format of the table (%(default)s)")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    columns = read_columns(args.inputs_addr)
    to_text = {"markdown": to_markdown, "latex": to_latex}[args.format]
    tables = [options_table(column) for column in columns if column.choices]
    print(to_text([make_table(columns, make_notes(columns)), *tables]), end="")
    return 0


def statistics(
    column: Column, has_users: bool
) -> Iterator[tuple[str, tuple[float, ...] | None, tuple[float, ...] | None]]:
    """Yield for each row a label, the file's figures (a number, or mean and deviation), and the paper's or None."""
    printed, task, users = column.paper.get("questions"), column.task, len(column.users)
    label = "Questions" if has_users else "Questions (users)"
    yield label, (column.num_questions,), None if printed is None else (printed,)
    if has_users:
        yield f"Users (by {task.user_field})", (users,) if users else None, None
    for name, (_, label) in task.files.sizes.items():
        sizes = column.sizes[name]
        yield label, (fmean(sizes), pstdev(sizes)) if sizes else None, column.paper.get(name)


def make_table(columns: list[Column], notes: list[str]) -> Table:
    """Return a table with one row per statistic, each followed by the paper's row if the paper has the statistic."""
    rows = []
    has_users = any(column.users for column in columns)
    for same in zip(*(statistics(column, has_users) for column in columns), strict=True):
        rows.append([same[0][0], *(numbers_text(figures) or "–" for _, figures, _ in same)])
        rows.append(["– in the paper", *(numbers_text(printed) for _, _, printed in same)])
    lines = [list(map(Cell, row)) for row in rows if any(row[1:])]
    heads, above = ["", *(column.name for column in columns)], ["", *(column.group for column in columns)]
    return Table(heads, lines, notes, above=above)


def options_table(column: Column) -> Table:
    """Return a table of how often a file's longest or shortest option is the right one, by group and in all."""
    rows, task = [], column.task
    by_group = {group: [choice for choice in column.choices if choice["group"] == group] for group in task.groups}
    for name, choices in {**by_group, ALL: column.choices}.items():
        texts = [name, str(len(choices))]
        for extreme in EXTREMES:
            unique = [choice for choice in choices if choice[extreme] is not None]
            are_right = [choice[extreme] for choice in unique]
            interval = share_interval(are_right, [choice["user"] for choice in unique])
            texts += [str(len(unique)), number(mean(are_right)), interval_text(interval, number)]
        rows.append([*map(Cell, texts)])
    users = {choice["user"] for choice in column.choices}
    note = (
        "Unique: questions in which only one option has this length in characters. Right: the share of these in which "
        f"that option is right. {share_intervals_note(task.user_field if len(users) < len(column.choices) else '')}"
    )
    missing = column.num_questions - len(column.choices)
    left_out = [f"{missing} of {count_noun(column.num_questions, 'question')} left out: no options, or no right one."]
    heads = [column.title, "Questions", *["Unique", "Right", "95% interval"] * len(EXTREMES)]
    above = ["", "", *(extreme for extreme in EXTREMES for _ in range(3))]
    return Table(heads, rows, [note, *(left_out if missing else [])], short=task.short, above=above)


def numbers_text(numbers: Iterable[float] | None) -> str:
    return " ± ".join(str(number) if isinstance(number, int) else f"{number:.1f}" for number in numbers or ())


def make_notes(columns: list[Column]) -> list[str]:
    """Return notes on the numbers and on differences from the paper."""
    notes = ["Mean ± population standard deviation over a file's questions; words are separated by white space."]
    if columns[0].task.files.paper_files():
        notes[0] += " The paper does not say which standard deviation it prints, nor the unit of its lengths."
    for column in columns:
        notes += [f"{column.title}: {note}" for note in (*_count_notes(column), *_group_notes(column))]
    return notes


def _count_notes(column: Column) -> Iterator[str]:
    expected = column.paper.get("questions")
    if expected not in (None, column.num_questions):
        yield f"{count_noun(column.num_questions, 'question')}; the paper's Table 1 says {expected}."
    for name, sizes in column.sizes.items():
        if missing := column.num_questions - len(sizes):
            yield f"{missing} of {count_noun(column.num_questions, 'question')} without {name!r}, left out of the mean."
        if column.task.files.sizes[name][0] is not float and (empty := sizes.count(0)):
            yield f"{empty} of {count_noun(column.num_questions, 'question')} with an empty {name!r}, counted as 0."
    for name, count in column.leaks.items():
        posts = count_noun(sum(column.sizes["profile"]), "profile post")
        verb = "contains" if count == 1 else "contain"
        yield f"{count} of {posts} {verb} {name} word for word, though only the judge may see it."
    if missing := column.num_questions - column.communities.total():
        yield f"{missing} of {count_noun(column.num_questions, 'question')} without {column.task.group_field!r}."


def _group_notes(column: Column) -> Iterator[str]:
    task, group_of = column.task, column.group_of
    communities = sorted(group_of)
    if unknown := [name for name in communities if group_of[name] is None]:
        yield f"not in {task.files.facts}, so each has a column of its own in tables: {first_five(unknown)}."
    if elsewhere := [name for name in communities if column.group and group_of[name] not in (None, column.group)]:
        yield f"{task.files.facts} has another {task.group_words[0]} for {first_five(elsewhere)}."


if __name__ == "__main__":
    cli.run_script(main)
