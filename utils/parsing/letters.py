"""Read the letter of the option that a model chose, (a) to (d), without knowing the right one. Pure.

The letter right after the last `<final_answer>` counts. Without it, the letter after "final answer" or in `\\boxed{}`
counts; otherwise, the only letter that is named: in parentheses, or as "option b", "answer: b", "b is correct", "go
with b", "b)" at the beginning of a line, or as the whole text. A text that names two different letters, as "(a) or
(b)", "(a)(b)" or "A: no. B: yes.", or none, is unusable. So is a text that max_tokens cut before its marker, because
it may name an option that it rejects.

The article "a" is not a letter: a lower-case "a" with a word after it on the same line, unless no article can precede
that word ("a because"). Right after the marker, "option", "letter" or "answer:", it is always the letter.

`read_officially` is the public code's rule, which asks whether the right letter was written.
"""

import re
from collections.abc import Iterable

from utils.parsing import Parsed, nothing, plain
from utils.parsing.json_text import pattern

LETTERS = ("a", "b", "c", "d")
MARKER = "<final_answer>"
_CLOSING = "</final_answer>"

_MARKS = "*_`\"'“”‘’"
_LETTER = r"([a-d])(?!\w|['’-]\w)"
_AFTER_NO_ARTICLE = (
    r"(?:and|are|as|at|because|but|by|for|from|has|he|if|in|is|it|its|of|on|or|over|she|since|so|that|the|they|this|to|"
    r"vs|was|which|with|would)(?![\w-])"
)
_NO_ARTICLE = rf"(?!(?-i:a)[^\S\n]++(?!{_AFTER_NO_ARTICLE})\w){_LETTER}"
_IS = r"(?:\s++is\b)?+"
_UP_TO_LETTER = rf"[\s:={_MARKS}]*+"
_OPENS = rf"[\s:={_MARKS}(\[{{]*+"
_AFTER_MARKER = pattern(rf"{_OPENS}(?:(?:option|answer|response)\s*+[{_MARKS}(\[]*+)?{_LETTER}")
_BRACKETED = r"[(\[]([a-d])[)\]]"  # after a line break, another letter only if no word follows
_ANOTHER = pattern(
    rf"(?:[^\S\n]|[{_MARKS})\]}}])*+{_BRACKETED}|[\s{_MARKS})\]}}]*+(?:{_BRACKETED}(?![^\S\n]*+\w)"
    rf"|(?:(?:[,/&|]|\b(?:or|and|vs|versus)\b\.?)\s*+)++[{_MARKS}(\[{{]*+{_NO_ARTICLE})"
)
_IN_PARENTHESES = pattern(r"\(\s*+([a-d])\s*+\)")
_LABEL = pattern(  # one of several: "A: no. B: yes."
    r"(?:(?<=[.,;!?]\s)|(?<=\n))[*_(]*+(?:(?:option|response)\s++)?([a-d])[*_]*+[):](?!\w)"
)
_FINAL = pattern(
    rf"(?:\bfinal[\s_]++answer{_IS}|\\boxed\b){_OPENS}(?:(?:option|response|\\text)\b\s*+[{_MARKS}(\[{{]*+)?{_NO_ARTICLE}"
)
_NAMED = pattern(
    rf"\b(?:option|letter|answer(?! a ))\b{_UP_TO_LETTER}{_LETTER}"  # "answer a question" has a verb
    rf"|\b(?:options?|answer|choice|response|letter)\b{_IS}{_UP_TO_LETTER}{_NO_ARTICLE}"
    rf"|(?<!not )(?<!n['’]t )\b(?:go(?:ing)?\s++with|choose|pick|select)\b{_UP_TO_LETTER}{_NO_ARTICLE}"
    rf"|(?<!\w)(?<!\w['’-]){_NO_ARTICLE}[{_MARKS}]*+\s++is\s++(?:the\s++)?(?:correct|right|best)\b"
    rf"|^(?:[^\S\n]|[*_#>-])*+([a-d])[).:](?!\w)|{_LABEL.pattern}"
)
_ALONE = pattern(rf"[\s{_MARKS}(\[.]*+([a-d])[\s{_MARKS})\].:]*+")
_OFFICIAL_MARKED = re.compile(r"\(([a-d])\)")
_OFFICIAL_BARE = re.compile(r"\b([a-d])\b")


def parse_letter(text: str, cut: bool = False) -> Parsed:
    """Read the letter; the value is "a" to "d".

    cut: the generation ended at max_tokens, so a letter at the end of the text may begin a word, and only a letter
    after the marker, or one that is the whole text, counts.
    """
    body = plain(text)
    behind = body.rpartition(MARKER)[2] if MARKER in body else ""
    marked = _AFTER_MARKER.match(behind)
    alone = _ALONE.fullmatch(body)
    last = body.rstrip("'’")  # also for "d'accord"
    if cut and last[-1:].isalpha() and (alone or (marked and behind[marked.end() :].strip("'’") == "")):
        return nothing("the text breaks off in a letter")
    if marked:
        label = ("):", ":") if "(" in marked[0] else (")", ":")
        others = _LABEL.finditer(behind) if behind.startswith(label, marked.end()) else ()
        letters, how = _letters_of([marked, *others], behind), "strict"
    elif alone:
        letters, how = [alone[1].lower()], "strict"
    elif cut:
        return nothing(f"the text breaks off before a letter after {MARKER}")
    else:
        tolds = (behind.partition(_CLOSING)[0], body)
        letters, how = next(filter(None, map(_named, tolds)), []), "repaired"
    if not letters:
        return nothing("no letter of an option in the text")
    if len(letters) > 1:
        return nothing(f"more than one letter: {' and '.join(letters)}")
    return Parsed(letters[0], how, None)


def _named(text: str) -> list[str]:
    """Return the letters named as the answer in a text without a letter after the marker."""
    final = _letters_of(_FINAL.finditer(text), text)
    return final or _letters_of([*_IN_PARENTHESES.finditer(text), *_NAMED.finditer(text)], text)


def _letters_of(matches: Iterable[re.Match[str]], text: str) -> list[str]:
    """Return the letters of matches, and letters joined to them by a comma, "or", "and", "vs", or nothing."""
    matches = list(matches)
    others = [another for match in matches if (another := _ANOTHER.match(text, match.end()))]
    return sorted({match[match.lastindex].lower() for match in (*matches, *others)})


def read_officially(text: str, right: str) -> bool:
    """Return whether the public code counts this text as correct.

    It does if the right letter is the only one after the last marker, or the only one in the whole text. Letters are
    those in parentheses or, if there are none, all words "a" to "d". That code also cuts a closing tag at the end of
    the text, which makes no difference, because the tag has no such word.
    """
    return any(_official_letters(told) == {right} for told in (text.rpartition(MARKER)[2], text))


def _official_letters(text: str) -> set[str]:
    text = text.lower()
    return set(_OFFICIAL_MARKED.findall(text) or _OFFICIAL_BARE.findall(text))
