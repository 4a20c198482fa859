"""Read the letter of the option that a model chose, (a) to (d), without knowing the right one. Pure.

The letter right after the last marker `<final_answer>` counts. In a text without the marker, it is the letter right
after the last "final answer", or the letter that is the whole text. Otherwise, the text must name exactly one letter:
in parentheses, in `\\boxed{}`, as "option b", "answer: b" or "choice is b", or as "b)", "b." or "b:" at the beginning
of a line or sentence. A text that names no letter or several, such as "(a) or (b)" and "A: no. B: yes.", is unusable;
so is a text that max_tokens cut before its marker, because an option may be named only to be rejected.

A lower-case "a" does not count if it may be an article before the next word, except after the marker.

`read_officially` is the public code's rule, which asks whether the right letter was written.
"""

import re

from utils.benchmarks.readers import Parsed, nothing, pattern, plain

LETTERS = ("a", "b", "c", "d")
MARKER = "<final_answer>"

_MARKS = "*_`\"'“”‘’"
_LETTER = r"([a-d])(?!\w|['’-]\w)"
_ARTICLE = r"(?-i:a)[^\S\n]++(?!(?:and|as|because|for|is|or|since|vs)\b)\w"
_BARE = rf"(?!{_ARTICLE}){_LETTER}"
_OPENS = rf"[\s:={_MARKS}(\[{{]*+"
_FINAL = pattern(rf"(?<!/)\bfinal[\s_]++answer\b(?:\s++is\b)?+(?![^\S\n]*+{_ARTICLE})")
_AFTER_FINAL = pattern(rf"{_OPENS}(?:(?:option|answer|response|\\text)\b{_OPENS})?{_LETTER}")
# "A: no. B: yes." White space before a label is skipped in its own line, so that the search takes linear time.
_LABEL = rf"(?:^|(?<=[.,;!?]\s))(?:[^\S\n]|[{_MARKS}#>(-])*+(?:option\s++)?([a-d])[{_MARKS}]*+[).:](?!\w)"
# What comes before and after the word in a LaTeX box: its command, other commands, white space and marks.
_COLOR = r"\\(?:text)?color\s*+\{[a-z]{1,20}\}"
BOX_MARKS = rf"(?:[\s{_MARKS}$(\[{{:]|{_COLOR}|\\[a-z]++|\\\W){{0,40}}+"
BOX_OPENS = rf"\bboxed\s*+\{{{BOX_MARKS}"
BOX_ENDS = rf"(?=(?:[\s{_MARKS}$)\].,;!]|\\\W){{0,40}}+\}})"
_NAMED = pattern(
    rf"\(\s*+([a-d])\s*+\)|{BOX_OPENS}([a-d]){BOX_ENDS}|{_LABEL}"
    rf"|\b(?:options?|answer|choice|response|letter)\b(?:\s++is\b)?+{_OPENS}{_BARE}"
)
_JOINED = pattern(  # a second letter right after the first: "(a) or (b)", "a, b", "(a)(b)"
    rf"[^\S\n]*+[{_MARKS})\]}}]*+[^\S\n]*+(?:(?:(?:[,/&|]|\b(?:or|and|vs)\b\.?)[^\S\n]*+)++[{_MARKS}(\[]*+{_BARE}"
    rf"|[(\[]([a-d])[)\]])"
)
_ALONE = pattern(rf"[\s{_MARKS}(\[.]*+([a-d])[\s{_MARKS})\].:]*+")
_OFFICIAL_MARKED = re.compile(r"\(([a-d])\)")
_OFFICIAL_BARE = re.compile(r"\b([a-d])\b")


def parse_letter(text: str, cut: bool = False) -> Parsed:
    """Read the letter of the chosen option; the value is "a" to "d".

    cut: the generation ended at max_tokens. A letter then counts only after the marker or if it is the whole text, and
    not at the end of the text, where it may be the beginning of a word.
    """
    body = plain(text)
    parts = body.split(MARKER) if MARKER in body else _FINAL.split(body)
    ending = parts[-1]
    marked, alone = _AFTER_FINAL.match(ending) if len(parts) > 1 else None, _ALONE.fullmatch(body)
    if cut and body.rstrip("'’")[-1:].isalpha() and (alone or (marked and not ending[marked.end() :].strip("'’"))):
        return nothing("the text breaks off in a letter")
    if cut and not (alone or marked):
        return nothing(f"the text breaks off before a letter after {MARKER}")
    matches = [marked or alone] if marked or alone else [*_NAMED.finditer(body)]
    if marked and re.match(r"\)?:", ending[marked.end() :]):  # a list of options with a verdict on each
        matches += _NAMED.finditer(ending, marked.end())
    matches += [joined for match in matches if (joined := _JOINED.match(match.string, match.end()))]
    letters = sorted({match[match.lastindex].lower() for match in matches})
    if len(letters) != 1:
        return nothing(f"more than one letter: {' and '.join(letters)}" if letters else "no letter of an option")
    return Parsed(letters[0], "strict" if marked or alone else "repaired", None)


def read_officially(text: str, right: str) -> bool:
    """Return whether the public code counts this text as correct.

    It does if the right letter is the only one after the last marker or in the whole text. Letters are those in
    parentheses, or if there are none, all words "a" to "d". The public code also removes a closing tag at the end of
    the text, which makes no difference here.
    """
    return any(_official_letters(part) == {right} for part in (text.rpartition(MARKER)[2], text))


def _official_letters(text: str) -> set[str]:
    text = text.lower()
    return set(_OFFICIAL_MARKED.findall(text) or _OFFICIAL_BARE.findall(text))
