"""Measure how far questions give their answers away: without the history, by length, letter or wording.

Each question counts once, except for the letters of right answers: these differ between variants, so they are counted
over rows. If the rows were filtered, the figures cover only the remaining ones.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from utils.benchmarks.personamem.letters import LETTERS
from utils.benchmarks.personamem.task import TYPES
from utils.building.personas.assembly import Row, is_guessed
from utils.building.reading_page import Section, Shown
from utils.tables.formats import Cell, Table, to_markdown

ALL = "all types"
COLUMNS = {  # figures to print, with the table's short names
    "questions": "asked", "blind accuracy": "blind", "guessed": "guessed", "mean rank by length": "rank",
    "longest": "longest", "identical": "same", "rows": "rows",
}  # fmt: skip
Figures = dict[str, dict[str, Any]]


def measure(rows: Sequence[Row]) -> Figures:
    """Return the figures for each type and for all types, ready for JSON; shares and means over nothing are None."""
    by_type = {name: [row for row in rows if row.entry["type"] == name] for name in TYPES}
    return {**{name: figures_of(of_type) for name, of_type in by_type.items() if of_type}, ALL: figures_of(rows)}


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    entries = list({row.entry["id"]: row.entry for row in rows}.values())
    options = [[entry["answer"], *entry["wrong"]] for entry in entries]
    tries = [attempt for entry in entries for attempt in entry["blind"] or []]
    letters = Counter(row.columns["correct_answer"].strip("()") for row in rows)
    rank = longest = 0.0
    for right, *others in (list(map(len, texts)) for texts in options):  # options of equal length share their mean rank
        rank += 1 + sum(length < right for length in others) + others.count(right) / 2
        longest += (right == max(right, *others)) / (1 + others.count(right))
    return {
        "questions": len(entries),
        "rows": len(rows),
        "tries": len(tries),
        "tries without a letter": tries.count(None),
        "guessed": sum(map(is_guessed, entries)),
        "identical": sum(len(set(texts)) < len(texts) for texts in options),
        "blind accuracy": tries.count(True) / len(tries) if tries else None,
        "mean rank by length": rank / len(entries) if entries else None,
        "longest": longest / len(entries) if entries else None,
        "letters": {letter: letters[letter] / len(rows) if rows else None for letter in LETTERS},
    }


def sections_of(rows: Sequence[Row]) -> list[Section]:
    """Return a section per type for utils/building/reading_page.py, which draws a sample of the questions."""
    by_type: dict[str, list[Shown]] = {name: [] for name in TYPES}
    for row in {row.entry["id"]: row for row in rows}.values():
        entry, place, reference = row.entry, row.entry["place"], row.entry["reference"]
        options = "\n".join([f"right: {entry['answer']}", *(f"wrong: {wrong}" for wrong in entry["wrong"])])
        where = f"asked before {place['period']} {place['event']}" if place else "asked at the end"
        rests_on = f"rests on {reference['period']} {reference['event']}"
        body = f"{entry['question']}\n\n{options}"
        by_type[entry["type"]].append(Shown(entry["id"], row.columns["topic"], body, f"{where}, {rests_on}"))
    reader_question = "Does the history alone imply the right option, and only that one?"
    return [Section(name, reader_question, {"questions": len(kept)}, kept) for name, kept in by_type.items() if kept]


def describe(figures: Figures) -> str:
    """Return the figures as a table to print, one type per line; a dash is a missing figure."""
    rows = [
        [Cell(name), *(Cell("-" if part[key] is None else f"{part[key]:.4g}") for key in COLUMNS)]
        for name, part in figures.items()
    ]
    letters = ", ".join(f"({letter}) {share:.1%}" for letter, share in figures[ALL]["letters"].items() if share)
    return to_markdown([Table(["", *COLUMNS.values()], rows, [f"right letters: {letters or '-'}"])])
