"""Measure how far questions give their answers away: without the history, by length, letter or wording.

Figures about a question's texts and its tries without the history count each question once. Letters and repetitions of
the history differ between variants, so they count rows. If the questions were filtered, these are figures of the rest.
"""

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from utils.benchmarks.personamem import TYPES
from utils.building.reading_page import Section, Shown
from utils.parsing.letters import LETTERS
from utils.personas.assembly import Assembled, Row
from utils.personas.choosing import Entry, is_guessed

RUN = 8  # words in a row that make a repetition
ALIKE = 0.9  # difflib's ratio of two options' words from which they are near-identical
_WORD = re.compile(r"\w+")
ALL = "all types"
COLUMNS = {  # figures to print, with the table's short names
    "questions": "asked", "blind accuracy": "blind", "guessed": "guessed", "mean rank by length": "rank",
    "longest": "longest", "identical": "same", "near-identical": "alike", "rows": "rows", "repeats": "repeats",
    "right repeats": "right",
}  # fmt: skip
Figures = dict[str, dict[str, Any]]


def words_of(text: str) -> list[str]:
    """Return a text's words in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def are_alike(one: str, other: str) -> bool:
    """Say whether the difflib ratio of two options' words is at least ALIKE; it is 1 if they have the same words."""
    matcher = difflib.SequenceMatcher(None, words_of(one), words_of(other), autojunk=False)
    bounds = (matcher.real_quick_ratio, matcher.quick_ratio)  # upper bounds, which take far less time
    return all(bound() >= ALIKE for bound in bounds) and matcher.ratio() >= ALIKE


def runs_of(words: Sequence[str], length: int) -> set[str]:
    """Return all runs of this many words."""
    return {" ".join(words[begin : begin + length]) for begin in range(len(words) - length + 1)}


def option_runs(option: str) -> set[str]:
    """Return the runs of which a message must have one to be repeated: of RUN words, or the whole of a shorter text."""
    words = words_of(option)
    return runs_of(words, min(RUN, len(words))) if words else set()


def find_repeats(
    contexts: Mapping[str, Sequence[str]], asked: Sequence[tuple[str, int, Sequence[str]]]
) -> Iterator[list[bool]]:
    """Yield for each question which of its options repeat a message.

    Args:
        contexts: the messages of each history; a message that several have is read once.
        asked: per question the history, the number of messages before the question, and the options.
    """
    runs = {option: option_runs(option) for *_, options in asked for option in options}
    wanted: set[str] = set().union(*runs.values())
    lengths = {run.count(" ") + 1 for run in wanted}
    found: dict[str, set[str]] = {}  # by message
    first: dict[str, dict[str, int]] = {name: {} for name in contexts}  # by history and run: the first message with it
    for name, messages in contexts.items():
        for place, message in enumerate(messages):
            if message not in found:
                words = words_of(message)
                found[message] = set().union(*(runs_of(words, length) & wanted for length in lengths))
            for run in found[message]:
                first[name].setdefault(run, place)
    for name, end, options in asked:
        yield [any(first[name].get(run, end) < end for run in runs[option]) for option in options]


class Validity:
    """Collects figures while parts go by, so that no history stays in memory."""

    def __init__(self) -> None:
        self._tallies: dict[str, Counter[str]] = {name: Counter() for name in TYPES}
        self._seen: set[str] = set()
        self._shown: dict[str, list[Shown]] = defaultdict(list)

    def watch(self, parts: Iterable[Assembled]) -> Iterator[Assembled]:
        """Yield the parts unchanged and add each one."""
        for part in parts:
            self.add(part)
            yield part

    def add(self, part: Assembled) -> None:
        for row, repeated in zip(part.rows, repeats_of(part), strict=True):
            tally = self._tallies[row.entry["type"]]
            letter = row.columns["correct_answer"].strip("()")
            tally.update({"rows": 1, f"letter {letter}": 1, "repeats": any(repeated), "right repeats": repeated[0]})
            if row.entry["id"] not in self._seen:
                self._seen.add(row.entry["id"])
                self._shown[row.entry["type"]].append(as_shown(row))
                tally.update(tally_of(row.entry))

    def figures(self) -> Figures:
        """Return the figures by type and of all types, ready for JSON; None where there is nothing to divide by."""
        tallies = {name: tally for name, tally in self._tallies.items() if tally}
        return {name: figures_of(tally) for name, tally in {**tallies, ALL: sum(tallies.values(), Counter())}.items()}

    def sections(self) -> list[Section]:
        """Return a section per type for utils/building/reading_page.py, which draws the questions to read."""
        question = "Does the right option follow from the history alone, and does no other option?"
        return [Section(name, question, {"questions": len(shown)}, shown)
                for name in TYPES if (shown := self._shown[name])]  # fmt: skip


def as_shown(row: Row) -> Shown:
    """Show a question with its options, the right one first, and its place."""
    entry, place = row.entry, row.entry["place"]
    options = "\n".join([f"right: {entry['answer']}", *(f"wrong: {wrong}" for wrong in entry["wrong"])])
    where = f"asked before {place['period']} {place['event']}" if place else "asked at the end"
    rests_on = f"rests on {entry['reference']['period']} {entry['reference']['event']}"
    return Shown(entry["id"], row.columns["topic"], f"{entry['question']}\n\n{options}", f"{where}, {rests_on}")


def repeats_of(part: Assembled) -> Iterator[list[bool]]:
    """Yield for each row which options repeat a message before the question, the right option first."""
    contexts = {name: [message["content"] for message in messages] for name, messages in part.contexts.items()}
    asked = [(row.columns["shared_context_id"], int(row.columns["end_index_in_shared_context"]), options_of(row.entry))
             for row in part.rows]  # fmt: skip
    return find_repeats(contexts, asked)


def options_of(entry: Entry) -> list[str]:
    return [entry["answer"], *entry["wrong"]]


def tally_of(entry: Entry) -> Counter[str]:
    """Count what a question's texts and tries say."""
    options, tries = options_of(entry), entry["blind"] or []
    rank, longest = rank_by_length(options)
    return Counter({
        "questions": 1,
        "tries": len(tries),
        "tries right": tries.count(True),
        "tries without a letter": tries.count(None),
        "guessed": is_guessed(entry),
        "ranks": rank,
        "longest": longest,
        "identical": len(set(options)) < len(options),
        "near-identical": any(are_alike(*pair) for pair in combinations(options, 2) if pair[0] != pair[1]),
    })  # fmt: skip


def rank_by_length(options: Sequence[str]) -> tuple[float, float]:
    """Return the first option's rank by characters (1: shortest) and its share in being the longest.

    Options of one length share the mean of their ranks, and the longest ones share 1.
    """
    lengths = list(map(len, options))
    same, shorter = lengths.count(lengths[0]), sum(length < lengths[0] for length in lengths)
    return shorter + (same + 1) / 2, (lengths[0] == max(lengths)) / same


def figures_of(tally: Mapping[str, float]) -> dict[str, Any]:
    """Return a type's figures: shares, None where there is nothing to divide by, and numbers."""
    names = ("questions", "rows", "tries", "tries without a letter", "guessed")
    return {
        **{name: int(tally[name]) for name in (*names, "identical", "near-identical", "repeats", "right repeats")},
        "blind accuracy": share_of(tally, "tries right", "tries"),
        "mean rank by length": share_of(tally, "ranks", "questions"),
        "longest": share_of(tally, "longest", "questions"),
        "letters": {letter: share_of(tally, f"letter {letter}", "rows") for letter in LETTERS},
    }


def share_of(tally: Mapping[str, float], count: str, whole: str) -> float | None:
    return tally[count] / tally[whole] if tally[whole] else None


def describe(figures: Figures) -> str:
    """Return the figures as a table to print, one type per line; a dash means that there is no figure."""
    rows = [["", *COLUMNS.values()]]
    for name, found in figures.items():
        rows.append([name, *("-" if found[key] is None else f"{found[key]:.4g}" for key in COLUMNS)])
    lines = [f"{name:42}" + "".join(f"{value:>9}" for value in values) for name, *values in rows]
    letters = ", ".join(f"({letter}) {share:.1%}" for letter, share in figures[ALL]["letters"].items() if share)
    return "\n".join([*lines, f"right letters: {letters or '-'}"])
