"""Compare texts word by word: options that are nearly the same, and options that repeat a history."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

RUN = 8  # words in a row that make a repetition
ALIKE = 0.9  # difflib's ratio of two options' words from which they are near-identical
_WORD = re.compile(r"\w+")


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
