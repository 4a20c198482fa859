"""The letter of an option as a model wrote it, (a) to (d). Pure, and without knowing which one is right.

The letter right behind the last `<final_answer>` counts; without one there, the
only letter that is named: in parentheses, or as "option b", "answer: b", "b)" at the beginning of a line, or as the
whole text. A text that names two different letters, as "(a) or (b)", or none, holds nothing. Nor does a text that
max_tokens cut before its marker: what it names may be an option that it rejects.

The article "a" is not a letter: a lower-case "a" with a word behind it on the same line, unless an article cannot stand
before that word ("a because"). Right behind the marker, "option", "letter" or "answer:" it is always the letter.

`read_officially` is the public code's rule, which asks whether the right letter was written.
"""

import re

from utils.parsing import Parsed, nothing, writable
from utils.parsing.json_text import pattern

LETTERS = ("a", "b", "c", "d")
MARKER = "<final_answer>"
_CLOSING = "</final_answer>"

_LETTER = r"([a-d])(?![\w'’])"
_AFTER_NO_ARTICLE = (
    r"(?:and|are|as|at|because|but|by|for|from|has|he|if|in|is|it|its|of|on|or|over|she|since|so|that|the|they|this|to|"
    r"was|which|with|would)(?![\w-])"
)
_NO_ARTICLE = rf"(?!(?-i:a)[^\S\n]++(?!{_AFTER_NO_ARTICLE})\w){_LETTER}"
_IS = r"(?:\s++is\b)?+"
_UP_TO_LETTER = r"[\s:=*_`\"']*+"
_AFTER_MARKER = pattern(rf"[\s:=*_`\"'(\[{{]*+(?:(?:option|answer|response)\s*+[(\[\"']*+)?{_LETTER}")
_ANOTHER = pattern(rf"[\s*_`\"')\]}}]*+(?:(?:[,/&]|\b(?:or|and)\b)\s*+)++[*_`\"'(\[{{]*+{_NO_ARTICLE}")
_IN_PARENTHESES = pattern(r"\(\s*+([a-d])\s*+\)")
_NAMED = pattern(
    rf"\b(?:option|letter|answer(?! a ))\b{_UP_TO_LETTER}{_LETTER}"  # "answer a question" has a verb
    rf"|\b(?:options?|answer|choice|response|letter)\b{_IS}{_UP_TO_LETTER}{_NO_ARTICLE}"
    r"|^(?:[^\S\n]|[*_#>-])*+([a-d])[).:](?!\w)"
)
_ALONE = pattern(r"[\s*_`\"'(\[.]*+([a-d])[\s*_`\"')\].:]*+")
_OFFICIAL_MARKED = re.compile(r"\(([a-d])\)")
_OFFICIAL_BARE = re.compile(r"\b([a-d])\b")


def parse_letter(text: str, cut: bool = False) -> Parsed:
    """Read the letter; the value is "a" to "d".

    cut: the generation ended at max_tokens, so a letter at the end of the text may be the first of a word, and only a
    letter behind the marker counts.
    """
    body = writable(text).strip()
    behind = body.rpartition(MARKER)[2] if MARKER in body else ""
    marked = _AFTER_MARKER.match(behind)
    alone = _ALONE.fullmatch(body)
    if cut and body[-1:].isalpha() and (alone or (marked and marked.end() == len(behind))):
        return nothing("the text breaks off in a letter")
    if marked and (another := _ANOTHER.match(behind, marked.end())) and another[1].lower() != marked[1].lower():
        return nothing(f"more than one letter: {marked[1].lower()} and {another[1].lower()}")
    if marked or alone:
        return Parsed((marked or alone)[1].lower(), "strict", None)
    if cut:
        return nothing(f"the text breaks off before a letter behind {MARKER}")
    for told in (behind.partition(_CLOSING)[0], body):
        if letters := sorted(set(_IN_PARENTHESES.findall(told.lower())) or _named(told)):
            break
    else:
        return nothing("no letter of an option in the text")
    if len(letters) > 1:
        return nothing(f"more than one letter: {' and '.join(letters)}")
    return Parsed(letters[0], "repaired", None)


def _named(text: str) -> set[str]:
    """The letters that are named as the answer, and those joined to one of them by a comma, "or" or "and"."""
    named = list(_NAMED.finditer(text))
    others = [another for match in named if (another := _ANOTHER.match(text, match.end()))]
    return {match[match.lastindex].lower() for match in (*named, *others)}


def read_officially(text: str, right: str) -> bool:
    """Does the public code count this text right?

    It does where the letters behind the last marker are the right one and no other, else where those of the whole text
    are. Letters are those in parentheses; where there are none, every word "a" to "d". That code also cuts a closing
    tag at the end of the text, which makes no difference: the tag holds no such word.
    """
    return any(_official_letters(told) == {right} for told in (text.rpartition(MARKER)[2], text))


def _official_letters(text: str) -> set[str]:
    text = text.lower()
    return set(_OFFICIAL_MARKED.findall(text) or _OFFICIAL_BARE.findall(text))
