"""Read the last word of a reasoned text by PersonaMem-v2's public rules: an option's letter, or Yes or No. Pure.

A letter: the first of these forms that the text has decides, at its first place, in any case: \\boxed{X}, "Final
Answer: X", "Answer: X", "final answer is X", "the answer is X", and "X." at the end of a line. So "answer: a good one"
names A, and "Final Answer: [X]" no letter.

Yes or No: the first \\boxed{Yes} or \\boxed{No}, else the word that the text begins with, else the only one of the two
in its first sentence. The public code looks for these letters also inside of words; here they are words, and of a text
that was cut off, whose verdict was still to come, only the box counts.
"""

import re

from utils.parsing import Parsed, nothing, plain
from utils.parsing.letters import LETTERS

_LETTER_FORMS = [
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"\\boxed\{([A-Z])\}",
        r"final answer:\s*+([A-Z])",
        r"answer:\s*+([A-Z])",
        r"final answer is\s*+([A-Z])",
        r"the answer is\s*+([A-Z])",
        r"\b([A-Z])\.[^\S\n]*+$",
    )
]
_BOXED = re.compile(r"\\boxed\s*+\{(yes|no)\}", re.IGNORECASE)
_BEGINNING = re.compile(r"[\s*_\"'“‘]*+(yes|no)\b", re.IGNORECASE)
_WORD = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


def parse_final_letter(text: str, cut: bool = False) -> Parsed:
    """Read the letter of an option, A to D; the value is "a" to "d"."""
    body = plain(text)
    letter = next((match[1].lower() for form in _LETTER_FORMS if (match := form.search(body))), None)
    if letter not in LETTERS:
        return nothing("no letter in one of the public code's forms" if letter is None else f"no option {letter}")
    return Parsed(letter, "strict", None)


def parse_yes_no(text: str, cut: bool = False) -> Parsed:
    """Read Yes or No; the value is 1 or 0."""
    body = plain(text)
    if boxed := _BOXED.search(body):
        return Parsed(int(boxed[1].lower() == "yes"), "strict", None)
    if cut:
        return nothing("the text ends before the verdict")
    beginning = _BEGINNING.match(body)
    words = {beginning[1].lower()} if beginning else {word.lower() for word in _WORD.findall(body.partition(".")[0])}
    if len(words) != 1:
        return nothing("neither Yes nor No is the text's verdict")
    return Parsed(int(words == {"yes"}), "repaired", None)
