"""The letter of an option as a model wrote it, (a) to (d). Pure, and without knowing which one is right.

Reasoning up to </think> is dropped. It is the letter that stands right behind the last `<final_answer>`; without one
there the only letter that is named: in parentheses, or as "option b", "answer: b", "b)" at the beginning of a line, or
as the whole text. The word "a" in a sentence is no letter. A text that names two different ones, as "(a) or (b)", or
none, holds nothing.

`read_officially` is the public code's rule, which asks whether the right letter was written.
"""

import re

from utils.parsing import Parsed, after_reasoning, nothing, writable
from utils.parsing.json_text import pattern

LETTERS = ("a", "b", "c", "d")
MARKER = "<final_answer>"
_CLOSING = "</final_answer>"

_LETTER = r"([b-d]|a(?![ \t]+\w))(?![\w'’])"
_AFTER_MARKER = pattern(rf"[\s:=*_`\"'(\[{{]*(?:(?:option|answer|response)\s*[(\[\"']*)?{_LETTER}")
_ANOTHER = pattern(rf"[\s*_`\"')\]}}]*(?:(?:[,/&]|\b(?:or|and)\b)\s*)+[*_`\"'(\[{{]*{_LETTER}")
_IN_PARENTHESES = pattern(r"\(\s*([a-d])\s*\)")
_NAMED = pattern(
    r"\b(?:options?|answer|choice|response|letter)\b(?:\s+is\b)?\s*[:=*_`\"']*\s*([b-d]|a(?!\s+\w))(?![\w'’])"
    r"|^[\s*_#>-]*([a-d])[).:](?!\w)"
)
_ALONE = pattern(r"[\s*_`\"'(\[.]*([a-d])[\s*_`\"')\].:]*")
_OFFICIAL_MARKED = re.compile(r"\(([a-d])\)")
_OFFICIAL_BARE = re.compile(r"\b([a-d])\b")


def parse_letter(text: str, cut: bool = False) -> Parsed:
    """Read the letter; the value is "a" to "d".

    cut: the generation ended at max_tokens, so a letter at the end of the text may be the first of a word.
    """
    body = writable(after_reasoning(text)).strip()
    behind = body.rpartition(MARKER)[2] if MARKER in body else ""
    marked = _AFTER_MARKER.match(behind)
    if cut and body[-1:].isalpha() and (_ALONE.fullmatch(body) or (marked and marked.end() == len(behind))):
        return nothing("the text breaks off in a letter")
    if marked and (another := _ANOTHER.match(behind, marked.end())) and another[1].lower() != marked[1].lower():
        return nothing(f"more than one letter: {marked[1].lower()} and {another[1].lower()}")
    if marked:
        return Parsed(marked[1].lower(), "strict", None)
    if alone := _ALONE.fullmatch(body):
        return Parsed(alone[1].lower(), "strict", None)
    for told in (behind.partition(_CLOSING)[0], body):
        found = [match[1] for match in _IN_PARENTHESES.finditer(told)]
        found = found or [match[1] or match[2] for match in _NAMED.finditer(told)]
        if letters := sorted({letter.lower() for letter in found}):
            break
    else:
        return nothing("no letter of an option in the text")
    if len(letters) > 1:
        return nothing(f"more than one letter: {' and '.join(letters)}")
    return Parsed(letters[0], "repaired", None)


def read_officially(text: str, right: str) -> bool:
    """Does the public code count this text right?

    It does where the letters behind the last marker are the right one and no other, else where those of the whole text
    are. Letters are those in parentheses; where there are none, every word "a" to "d".
    """
    behind = text.rpartition(MARKER)[2].replace(_CLOSING, "") if MARKER in text else ""
    return any(_official_letters(told) == {right} for told in (behind, text))


def _official_letters(text: str) -> set[str]:
    text = text.lower()
    return set(_OFFICIAL_MARKED.findall(text) or _OFFICIAL_BARE.findall(text))
