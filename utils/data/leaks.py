"""Find texts that only the scorer may see, but that a question's profile shows to every method."""

import re
from collections.abc import Iterator

import regex

from utils.benchmarks.checks import Record
from utils.benchmarks.readers import one_line
from utils.benchmarks.task import Task

LEAST_WORDS = 4
# Chinese, Japanese, Thai, Lao, Khmer, Burmese, ... have no spaces between words.
_UNSPACED = regex.compile(r"[\p{Han}\p{scx=Hira}\p{scx=Kana}\p{Line_Break=SA}]")


def find_leaks(task: Task, record: Record) -> Iterator[str]:
    """Yield, for each profile item, the names of the hidden texts that it contains word for word, each name once.

    Hidden texts that are not `is_telling` are skipped, because many posts contain such short texts by chance.
    """
    hidden = [(name, text) for name, text in task.hidden(record) if isinstance(text, str) and is_telling(text)]
    profile = record.get("profile")
    items = [item.get("text") for item in profile if isinstance(item, dict)] if isinstance(profile, list) else []
    for text in filter(lambda item: isinstance(item, str), items if hidden else ()):
        yield from dict.fromkeys(name for name, hidden_text in hidden if contains(text, hidden_text))


def is_telling(text: str) -> bool:
    """Return whether a text is so long that another text hardly contains it by chance.

    It has at least `LEAST_WORDS` words, where two characters of a script without spaces count as one.
    """
    num_unspaced = len(_UNSPACED.findall(text))
    return num_unspaced / 2 + len(re.findall(r"\w+", _UNSPACED.sub(" ", text))) >= LEAST_WORDS


def contains(text: str, part: str) -> bool:
    """Return whether a text contains `part` word for word; line breaks and the number of spaces are ignored."""
    text, part = one_line(text), one_line(part)
    if part not in text:
        return False
    before = "" if _UNSPACED.fullmatch(part[:1]) else r"(?<!\w)"
    after = "" if _UNSPACED.fullmatch(part[-1:]) else r"(?!\w)"
    return re.search(f"{before}{re.escape(part)}{after}", text) is not None
