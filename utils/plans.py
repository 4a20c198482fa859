"""Plans of PlanPers, lists of aspect titles, and how two of them match. Pure.

In the planner's target and in the generator's prompt a plan is its titles, one a line (paper, section 4).

Two titles match by one of these rules, each for its own purpose: `same_title` (strict), `share_words` (what training
reports as aspect recall) or the likeness of their embeddings (utils/evaluate_plans.py).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

WORDS_THRESHOLD = 0.6
NO_LOSS = -100  # the label of a token that the planner is not to learn, as torch and TRL take it

# Words that say nothing of what an aspect is about. "User" stands in many titles and in none alone.
_LISTED = """
    a an and are as at be by can do for from how in into is it its of on or s that the their them they this to user
    users was what when where which who why with without your
"""
_FUNCTION_WORDS = frozenset(_LISTED.split())


def gold_aspects(record: dict[str, Any]) -> list[str]:
    """The titles of a question's rubric aspects, each in one line; neither evidence nor reason."""
    return [one_line(aspect["aspect"]) for aspect in record["rubric_aspects"]]


def plan_text(aspects: Sequence[str]) -> str:
    """A plan as a model reads and writes it: a title a line."""
    return "\n".join(aspects)


def one_line(text: str) -> str:
    return " ".join(text.split())


def same_title(a: str, b: str) -> bool:
    """The same words in the same order, whatever their case and what stands between them."""
    return (_words(a) or a) == (_words(b) or b)


def word_overlap(a: str, b: str) -> float:
    """Dice coefficient of two titles' distinct words, function words left out: 2 |A & B| / (|A| + |B|), 0 to 1."""
    words_a, words_b = _content_words(a), _content_words(b)
    return 2 * len(words_a & words_b) / (len(words_a) + len(words_b))


def share_words(a: str, b: str, threshold: float = WORDS_THRESHOLD) -> bool:
    """Their `word_overlap` is at least `threshold`."""
    return word_overlap(a, b) >= threshold


def coverage(wanted: Sequence[str], given: Sequence[str], matches: Callable[[str, str], bool]) -> float:
    """Share of the `wanted` titles that match any of the `given`: 0 to 1.

    With the gold titles wanted it is a plan's recall, with the planned ones wanted its precision. One title may match
    several. Nothing wanted is 0: an empty plan has no precision to speak of.
    """
    if not wanted:
        return 0.0
    return sum(any(matches(title, other) for other in given) for title in wanted) / len(wanted)


def _words(title: str) -> list[str]:
    return re.findall(r"\w+", title.casefold())


def _content_words(title: str) -> set[str]:
    """Its distinct words without function words; all of them where it has no others; itself where it has no words."""
    words = set(_words(title))
    return words - _FUNCTION_WORDS or words or {title}
