"""Read a model's bare text: a label from a list, a rating, or a whole text. Pure.

White space at both ends is dropped. A label or a rating is "strict" if the text has nothing else. Otherwise it is
"repaired", and the text must name exactly one label or rating; case does not matter, and words may be joined by spaces
or hyphens. A label inside a longer one, such as comedy in dark comedy, is not counted. A whole text is used unchanged.

In a text that max_tokens cut, a label or rating counts only if the text begins with it and continues after it, because
a label in prose may be named only to be rejected.
"""

import re
from collections.abc import Mapping

from utils.benchmarks.readers import Parsed, nothing, pattern, plain, writable

RATINGS = "12345"
# A rating that is not part of a word or another number, such as 4.5, -4 or 14.
_RATING = pattern(r"(?<![\w.,/-])([1-5])(?:\.0+)?(?:\s*(?:/|out of)\s*5(?:\.0+)?)?(?!\w|[.,/-]\d)")
_OTHER_NUMBER = pattern(r"\d")
_BREAKS_OFF = "the text breaks off, and does not begin with {}"
_SCALE = pattern(r"\b1\s*(?:-|–|to)\s*5\b")


class LabelParser:
    """Reads a label; `labels` maps each label to a regular expression for its spellings."""

    def __init__(self, labels: Mapping[str, str]):
        self.labels = tuple(labels)
        longest_first = sorted(labels, key=len, reverse=True)
        self._names = pattern("|".join(f"({labels[label]})" for label in longest_first))
        self._longest_first = longest_first

    def __call__(self, text: str, cut: bool = False) -> Parsed:
        body = plain(text)
        if body in self.labels and not (cut and body[-1].isalnum()):
            return Parsed(body, "strict", None)
        matches = list(self._names.finditer(body))
        if cut and not _is_first(matches, body):
            return nothing(_BREAKS_OFF.format("a label"))
        return _only([self._longest_first[match.lastindex - 1] for match in matches], "label")


def words_of(label: str) -> str:
    """Return a regular expression for a label's words, with spaces and hyphens interchangeable."""
    words = r"[\s-]+".join(re.split("[ -]", label))
    return rf"(?<!\w){words}(?!\w)"


def parse_rating(text: str, cut: bool = False) -> Parsed:
    """Read a rating; the value is a text, "1" to "5".

    cut: the generation ended at max_tokens.
    """
    body = plain(text)
    if len(body) == 1 and body in RATINGS and not cut:
        return Parsed(body, "strict", None)
    without_scale = _SCALE.sub("", body)
    ratings = list(_RATING.finditer(without_scale))
    if _OTHER_NUMBER.search(_RATING.sub("", without_scale)) is not None:
        return nothing("a number that is not a rating from 1 to 5")
    if cut and not _is_first(ratings, without_scale):
        return nothing(_BREAKS_OFF.format("a rating"))
    return _only([match[1] for match in ratings], "rating")


def _is_first(matches: list[re.Match[str]], text: str) -> bool:
    """Return whether no word comes before the first match, and the text continues after it."""
    return bool(matches) and re.search(r"\w", text[: matches[0].start()]) is None and matches[0].end() < len(text)


def _only(named: list[str], what: str) -> Parsed:
    named = list(dict.fromkeys(named))
    if len(named) > 1:
        return nothing(f"more than one {what}: {' and '.join(named[:3])}")
    return Parsed(named[0], "repaired", None) if named else nothing(f"no {what} in the text")


def parse_text(text: str, cut: bool = False) -> Parsed:
    """Read a whole text; the value is never empty.

    cut: the generation ended at max_tokens; the text is kept and flagged as truncated.
    """
    value = writable(text).strip()
    if cut:
        value = value.rstrip("\ufffd").rstrip()  # half a character at the cut
    return (
        Parsed(value, "strict" if value == text.strip() else "repaired", None, cut)
        if value
        else nothing("an empty text")
    )
