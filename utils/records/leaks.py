"""Find texts that only the scorer may see, but that a question's profile shows to every method."""

import re
from collections.abc import Iterator

import regex

from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task

LEAST_WORDS = 4
# Chinese, Japanese, Thai, Lao, Khmer, Burmese, ... have no spaces between words.
_UNSPACED = regex.compile(r"[\p{Han}\p{scx=Hira}\p{scx=Kana}\p{Line_Break=SA}]")


def find_leaks(task: Task, record: Record) -> Iterator[str]:
    """Yield, for each profile item, the names of the hidden texts that it contains word for word, each name once.

    Shorter hidden texts than `is_telling` wants are in many posts by chance and are not searched.
    """
    hidden = [(name, needle(text)) for name, text in task.hidden(record) if isinstance(text, str) and is_telling(text)]
    profile = record.get("profile")
    items = [item.get("text") for item in profile if isinstance(item, dict)] if isinstance(profile, list) else []
    texts = [padded(text) for text in items if isinstance(text, str)] if hidden else []
    whole = "\n".join(texts)  # searched first as one text, because most profiles contain no hidden text
    hidden = [(name, hidden_text) for name, hidden_text in hidden if hidden_text in whole]
    for text in texts if hidden else ():
        yield from dict.fromkeys(name for name, hidden_text in hidden if hidden_text in text)


def is_telling(text: str) -> bool:
    """Return whether a text is so long that another text with it must be about the same thing.

    It has at least `LEAST_WORDS` words, where two characters of a script without spaces count as one.
    """
    num_unspaced = len(_UNSPACED.findall(text))
    return num_unspaced / 2 + len(re.findall(r"\w+", _UNSPACED.sub(" ", text))) >= LEAST_WORDS


def padded(text: str) -> str:
    """Return the text with one space before and after each word, so that `needle` finds only whole words."""
    return f" {' '.join(text.split())} "


def needle(text: str) -> str:
    """Return what to search in a padded text, to find a text word for word."""
    words = text.strip()
    before, after = ("" if _UNSPACED.fullmatch(end) else " " for end in (words[:1], words[-1:]))
    return f"{before}{' '.join(words.split())}{after}"
