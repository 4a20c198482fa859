"""Measure how far questions give their answers away: without the history, by length, letter or wording.

Figures about questions' texts and tries without the history count each question once. Letters differ between variants,
so they are counted over rows. If the rows were filtered, the figures cover only the rest.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from utils.benchmarks.personamem import TYPES
from utils.building.reading_page import Section, Shown
from utils.parsing.letters import LETTERS
from utils.personas.assembly import Row, is_guessed
from utils.tables.formats import Cell, Table, to_markdown

ALL = "all types"
COLUMNS = {  # figures to print, with the table's short names
    "questions": "asked", "blind accuracy": "blind", "guessed": "guessed", "mean rank by length": "rank",
    "longest": "longest", "identical": "same", "rows": "rows",
}  # fmt: skip
Figures = dict[str, dict[str, Any]]


def measure(rows: Sequence[Row]) -> Figures:
    """Return the figures by type and for all types, ready for JSON; shares and means of nothing are None."""
    by_type = {name: [row for row in rows if row.entry["type"] == name] for name in TYPES}
    return {**{name: figures_of(its) for name, its in by_type.items() if its}, ALL: figures_of(rows)}


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    entries = list({row.entry["id"]: row.entry for row in rows}.values())
    options = [[entry["answer"], *entry["wrong"]] for entry in entries]
    tries = [one for entry in entries for one in entry["blind"] or []]
    letters = Counter(row.columns["correct_answer"].strip("()") for row in rows)
    return {
        "questions": len(entries),
        "rows": len(rows),
        "tries": len(tries),
        "tries without a letter": tries.count(None),
        "guessed": sum(map(is_guessed, entries)),
        "identical": sum(len(set(texts)) < len(texts) for texts in options),
        "blind accuracy": share_of(tries.count(True), len(tries)),
        "mean rank by length": share_of(sum(map(rank_by_length, options)), len(entries)),
        "longest": share_of(sum(map(share_in_longest, options)), len(entries)),
        "letters": {letter: share_of(letters[letter], len(rows)) for letter in LETTERS},
    }


def rank_by_length(options: Sequence[str]) -> float:
    """Return the first option's rank by characters, 1 for the shortest; options of equal length share a mean rank."""
    lengths = list(map(len, options))
    return sum(length < lengths[0] for length in lengths) + (lengths.count(lengths[0]) + 1) / 2


def share_in_longest(options: Sequence[str]) -> float:
    """Return 1 if the first option is the longest, divided by the number of options that tie with it, else 0."""
    lengths = list(map(len, options))
    return (lengths[0] == max(lengths)) / lengths.count(lengths[0])


def share_of(count: float, whole: int) -> float | None:
    return count / whole if whole else None


def sections_of(rows: Sequence[Row]) -> list[Section]:
    """Return a section per type for utils/building/reading_page.py, which draws the questions to read."""
    question = "Does the history alone imply the right option, and only that one?"
    unique = {row.entry["id"]: row for row in rows}.values()
    shown = {name: [as_shown(row) for row in unique if row.entry["type"] == name] for name in TYPES}
    return [Section(name, question, {"questions": len(its)}, its) for name, its in shown.items() if its]


def as_shown(row: Row) -> Shown:
    """Return a question with its options, the right one first, and its place, for the page."""
    entry, place = row.entry, row.entry["place"]
    options = "\n".join([f"right: {entry['answer']}", *(f"wrong: {wrong}" for wrong in entry["wrong"])])
    where = f"asked before {place['period']} {place['event']}" if place else "asked at the end"
    rests_on = f"rests on {entry['reference']['period']} {entry['reference']['event']}"
    return Shown(entry["id"], row.columns["topic"], f"{entry['question']}\n\n{options}", f"{where}, {rests_on}")


def describe(figures: Figures) -> str:
    """Return the figures as a table to print, one type per line; a dash means that there is no figure."""
    rows = [
        [Cell(name), *(Cell("-" if found[key] is None else f"{found[key]:.4g}") for key in COLUMNS)]
        for name, found in figures.items()
    ]
    letters = ", ".join(f"({letter}) {share:.1%}" for letter, share in figures[ALL]["letters"].items() if share)
    return to_markdown([Table(["", *COLUMNS.values()], rows, [f"right letters: {letters or '-'}"])])
