"""Lenient, pure parsing of what a language model wrote: an answer, a judge's verdict, level or preference, or a plan.

All but a plan were asked for as one JSON object in a ```json fence. The first attempt that finds the field decides:

1. Strict ("strict"): the whole text is one JSON object that has the field under its exact name, with white
   space and a fence around it or half a fence.
2. First object ("repaired"): a valid JSON object that has the field starts at the text's first "{"; what stands
   around it is dropped. From here on reasoning up to </think> is dropped, raw newlines may stand in strings and
   the name may be spelled otherwise ("Match Score").
3. By name ("repaired"): the name is looked for, first as a key inside an object, then without braces. The value
   is read from there by a tolerant scanner: other quotes, unescaped quotes inside, no end.
4. Not for answers ("repaired"): the text is a verdict, a level or a preference and nothing else.

Answers: the first one wins. A list or a dict becomes text, one line an item ("key: value" for a dict). A number,
true, null and prose without the field are no answer. A text that ends inside the value is kept and flagged as
truncated. White space at both ends goes, CRLF becomes LF, NUL goes, a lone surrogate becomes U+FFFD (so the
value can be written as UTF-8). Newlines inside stay.

Verdicts: the integer 0, 1 or 2, also as the number 2.0. "2" in quotes, 2/2 and "2 out of 2" are refused in any
dress. Outside an object `match_score: 2` counts (also with "=" or "is"), prose without the name does not. The name
with different values, in one object or in prose, is refused as contradictory. Of several objects the first one that
has the name decides, also when its value is refused. Without the name a verdict counts where nothing but the remains
of a fence, quotes or braces stands around it, as in `json 2`, `2}` and `"2"}`; but "2", a whole string, is refused.
A number at the end of a text that max_tokens cut may go on, so it is none of these.

Levels (direct scoring): the numbers 0, 0.25, 0.5, 0.75 and 1, also as 1.0 or .5. Preferences (pairwise comparison): the
integer 1 or 2, also as Response 1 and as the text "1", "Response 1", "first" or "the first response"; "A" is none of
the prompt's names for a response, so it is refused. Both are read as verdicts are, but outside an object the name must
be quoted or start a line and have a colon or "=" behind it, and nothing else may stand in the value's line.

A plan was asked for as titles, one a line. Reasoning up to </think> is dropped, and so are fences, what marks a line
as an item of a list ("- ", "1. ", bold face), and a first line that ends in a colon where it introduces the others: it
says so ("Here are the aspects:", "Plan:", "The user cares about:"), also when nothing follows, or it looks so: items
follow and it is none, or it alone is marked as a heading. Any other line that ends in a colon is a title. A JSON array
of texts is a plan too. A title that stands there before (whatever its case) is not repeated, and one that max_tokens
may have cut is left out unless it is the only one.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

ANSWER_FIELD = "personalized_answer"
VERDICT_FIELD = "match_score"
LEVEL_FIELD = "score"
PREFERENCE_FIELD = "better_response"
LEVELS = (0, 0.25, 0.5, 0.75, 1)

# What constrained decoding holds an output to.
ANSWER_SCHEMA = {
    "type": "object",
    "properties": {ANSWER_FIELD: {"type": "string", "minLength": 1}},
    "required": [ANSWER_FIELD],
    "additionalProperties": False,
}
VERDICT_SCHEMA = {
    "type": "object",
    "properties": {VERDICT_FIELD: {"type": "integer", "enum": [0, 1, 2]}},
    "required": [VERDICT_FIELD],
    "additionalProperties": False,
}
LEVEL_SCHEMA = {
    "type": "object",
    "properties": {LEVEL_FIELD: {"type": "number", "enum": list(LEVELS)}},
    "required": [LEVEL_FIELD],
    "additionalProperties": False,
}
PREFERENCE_SCHEMA = {
    "type": "object",
    "properties": {PREFERENCE_FIELD: {"type": "integer", "enum": [1, 2]}},
    "required": [PREFERENCE_FIELD],
    "additionalProperties": False,
}
# A plan is lines: at most 10, for a model that would never end, each of 3 to 120 characters, the first of them neither
# white space nor punctuation.
PLAN_LINE = r"[^\s!-/:-@\[-`{-~][^\n]{2,119}"
PLAN_PATTERN = rf"{PLAN_LINE}(\n{PLAN_LINE}){{0,9}}"


@dataclass(frozen=True)
class Parsed:
    """What was found in a text; see the module's docstring for the order of attempts."""

    value: str | int | float | list[str] | None  # None: nothing usable
    how: str  # "strict", "repaired" or "none"
    reason: str | None  # why nothing was found; None when something was
    truncated: bool = False  # the text ended inside the value, which was closed and kept


# Every repetition below is possessive or bounded, so no text makes a search slower than linear.
_QUOTE = "[\"'“”‘’]"
_GAP = r"(?:\s++|(?://|\#)[^\n]{0,200}+|/\*[^*]{0,200}+\*/){0,4}+"  # white space and comments
_NAMES = {
    ANSWER_FIELD: r"(?<!\w)personali[sz]ed[\s_\\-]{0,3}answer(?!\w)",
    VERDICT_FIELD: r"(?<!\w)match[\s_\\-]{0,3}score(?!\w)",
    LEVEL_FIELD: r"(?<!\w)score(?!\w)",
    PREFERENCE_FIELD: r"(?<!\w)better[\s_\\-]{0,3}response(?!\w)",
}


def _pattern(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.IGNORECASE | re.MULTILINE | re.DOTALL)


# The name as a key in an object, up to its value. After a comma it must be quoted, or it may be prose.
_KEY = {
    field: _pattern(rf"(?:\{{{_GAP}{_QUOTE}?|,{_GAP}{_QUOTE}){name}{_QUOTE}?\s*+[:=：][\s*`]*+")
    for field, name in _NAMES.items()
}
# The name without braces. It must be quoted or start a line; a verdict's, which no prose has, may stand anywhere.
_UNBRACED = {
    field: _pattern(rf"(?:{_QUOTE}|^[^\w\n]*+(?:json[^\w\n]*+)?){name}(?:{_QUOTE}|[*`])*+\s*+[:=：][\s*`]*+")
    for field, name in _NAMES.items()
}
_UNBRACED[VERDICT_FIELD] = _pattern(rf"{_NAMES[VERDICT_FIELD]}(?:{_QUOTE}|[*`\\])*+\s*+(?:[:=：]|is\b)[\s*`]*+")
# A verdict, not the beginning of another number, a range, a fraction or a condition.
_VERDICT = re.compile(
    r"[0-2](?:\.0++)?(?!\w)(?![ \t*`]*+(?:[-–/,.|~+]\s*+[0-9]|%|(?:out|or|to|of|if|when|unless|only)\b))"
    r"(?![^\n{}\"]{0,20}\bout of\b)"
)
# A level or a preference, and what may follow it: the end of the line or object, or the next key.
_LEVEL = r"(?:0?\.(?:0|25|50?|75)0{0,3}|[01](?:\.0{1,4})?)"
_NUMBERED = r"(?:response[ _]?)?[12]"
_PREFERENCE = (
    rf"(?:{_NUMBERED}|{_QUOTE}(?:{_NUMBERED}|(?:the )?(?:first|second)(?: response)?){_QUOTE})"  # words: only in quotes
)
_ENDS_VALUE = rf"(?!\w)(?=[ \t*`]*+(?:\Z|[\n\r}}]|,\s*+(?:\Z|\}}|{_QUOTE})))"


# What may follow a number that max_tokens cut: it may have gone on as 1.5, as 1/2, or as 1 out of 2.
_CUT_NUMBER = re.compile(r"[ \t*`]*+(?:[-–/,.|~+][ \t]*+)?\Z")
_FENCES = r"(?:```|/?json\b|\s|\ufeff)*+"


def _only(value: str) -> re.Pattern[str]:
    return _pattern(rf"{_FENCES}(?P<value>{value}){_FENCES}\Z")


_LONE_VERDICT = r"[0-2](?:\.0++)?"
_REMAINS = rf"(?:`|/?json\b|[{{}}]|{_QUOTE}|\s|\ufeff)*+"
_STRING = rf"{_FENCES}{_QUOTE}{_LONE_VERDICT}{_QUOTE}{_FENCES}\Z"
_ONLY_VERDICT = _pattern(rf"(?!{_STRING}){_REMAINS}(?P<value>{_LONE_VERDICT}){_REMAINS}\Z")

_OPENING_QUOTE = re.compile(rf"\"\"\"|'''|{_QUOTE}")
_CLOSING_QUOTE = {"“": '[”“"]', "”": '[”“"]', "‘": "[’‘']", "’": "[’‘']"}  # any other closes itself
# What follows a quote that ends a string. The end of the text is no proof once a quote inside was left
# unescaped and the text was cut. The first quote needs less: an unescaped quote inside comes in pairs, and
# the opening one of a pair is followed by a word.
_NEXT_KEY = rf"{_QUOTE}[\w -]{{1,40}}{_QUOTE}\s*+:"
_ENDS_OBJECT = rf"{_GAP}[,;.]?+{_GAP}(?:\}}|{_NEXT_KEY})"
_ENDS_TEXT = rf"{_GAP}[,;]?+{_GAP}[\])]*+\s*+(?:```\s*+)?\Z"
_AFTER_QUOTE_CUT = _pattern(_ENDS_OBJECT)
_AFTER_QUOTE = _pattern(rf"{_ENDS_OBJECT}|{_ENDS_TEXT}")
_CUT_KEY = rf"{_GAP},{_GAP}{_QUOTE}[\w -]{{0,40}}{_QUOTE}?\s*+\Z"
_AFTER_FIRST_QUOTE = _pattern(
    rf"{_ENDS_OBJECT}|{_ENDS_TEXT}|{_CUT_KEY}|{_GAP}(?:```|/?json\b)|[ \t]*+\r?\n\s*+(?!{_QUOTE})"
)
_AFTER_ITEM_QUOTE = _pattern(rf"{_GAP}(?:[,:\]}}]|```|\Z)")
_ENDS_BRACES = _pattern(r"\s*+[,;]?+\s*+\}\s*?(?:\n|```|\{|\}|\Z)")
_ITEM_TOKEN = re.compile(rf"[\[\]{{}},:]|(?://|\#)[^\n]*|\"\"\"|'''|{_QUOTE}|\s+|[^\[\]{{}},:\"“\s][^\[\]{{}},:\"\n]*")
_ESCAPE = re.compile(r"\\(?:(?:u[0-9a-fA-F]{0,3})?\Z|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = dict(zip("ntrbf\n\"'\\/", "\n\t\r\b\f\n\"'\\/", strict=True))


def parse_answer(text: str, cut: bool = False) -> Parsed:
    """Read the string field "personalized_answer"; the value is never empty.

    cut: the generation ended at max_tokens, so the end of the text is no sign that the answer ended.
    """
    value, how = _from_object(text, ANSWER_FIELD)
    if isinstance(value, str):
        return _answer(value, how)
    text = _after_reasoning(text)
    ends = _value_starts(text, ANSWER_FIELD)
    if not ends:
        return _missing(text, ANSWER_FIELD)
    start = next((end for end in ends if text[end : end + 1] in tuple("\"'“”‘’[{")), ends[0])
    while (inner := _KEY[ANSWER_FIELD].match(text, start)) is not None:
        start = inner.end()  # {"personalized_answer": {"personalized_answer": …
    if text[start : start + 1] in ("[", "{"):
        value, truncated = _read_items(text, start)
    elif (opening := _OPENING_QUOTE.match(text, start)) is not None:
        value, truncated = _read_string(text, opening, cut)
    else:
        return _none(f"{ANSWER_FIELD} is {_describe(text, start)}, not a text")
    return _answer(value, "repaired", truncated)


def parse_verdict(text: str, cut: bool = False) -> Parsed:
    """Read the field "match_score": the integer 0, 1 or 2 and nothing else.

    cut: the generation ended at max_tokens, so a number at the end of the text may be the start of 1.5 or 10.
    """
    return _parse_choice(text, cut, _VERDICTS)


def parse_level(text: str, cut: bool = False) -> Parsed:
    """Read the field "score": a float, one of 0, 0.25, 0.5, 0.75 and 1. cut: as for a verdict."""
    return _parse_choice(text, cut, _LEVELS)


def parse_preference(text: str, cut: bool = False) -> Parsed:
    """Read the field "better_response": the number of the response that is preferred, 1 or 2. cut: as for a verdict."""
    return _parse_choice(text, cut, _PREFERENCES)


@dataclass(frozen=True)
class _Choice:
    """A field whose value is one of a few."""

    field: str
    pattern: re.Pattern[str]  # a value as it is written
    only: re.Pattern[str]  # a text that is a value and nothing else
    read: Callable[[str], int | float]
    values: str  # in words


def _read_preference(written: str) -> int:
    return 1 if "1" in written or "first" in written.lower() else 2


_VERDICTS = _Choice(VERDICT_FIELD, _VERDICT, _ONLY_VERDICT, lambda written: int(float(written)), "an integer 0-2")
_LEVELS = _Choice(LEVEL_FIELD, _pattern(_LEVEL + _ENDS_VALUE), _only(_LEVEL), float, "0, 0.25, 0.5, 0.75 or 1")
_PREFERENCES = _Choice(
    PREFERENCE_FIELD, _pattern(_PREFERENCE + _ENDS_VALUE), _only(_PREFERENCE), _read_preference, "1 or 2"
)


def _parse_choice(text: str, cut: bool, choice: _Choice) -> Parsed:
    value, how = _from_object(text, choice.field)
    if how != "none":
        written = {dict: "{", list: "["}.get(type(value)) or json.dumps(value, ensure_ascii=False)
        return _chosen([_value_at(written, 0, choice)], how, choice)
    text = _after_reasoning(text)
    if (only := choice.only.match(text)) is not None:
        if cut and _breaks_off(text, only.end("value")):
            return _none("the text breaks off in a number")
        return Parsed(choice.read(only["value"]), "repaired", None)
    starts = _value_starts(text, choice.field)
    if not starts:
        return _missing(text, choice.field)
    return _chosen([_value_at(text, start, choice, cut) for start in starts], "repaired", choice)


def _breaks_off(text: str, end: int) -> bool:
    """The value that ends there is a number at the end of the text."""
    return text[end - 1].isdigit() and _CUT_NUMBER.match(text, end) is not None


def _none(reason: str) -> Parsed:
    return Parsed(None, "none", reason)


def _missing(text: str, field: str) -> Parsed:
    return _none(f"no {field} in the text" if text.strip("`\ufeff \t\r\n") else "the text is empty")


def _answer(value: str, how: str, truncated: bool = False) -> Parsed:
    if truncated:
        value = re.sub("[\ud800-\udbff\ufffd]+\\Z", "", value)  # half a character at the cut
    value = _writable(value).strip()
    return Parsed(value, how, None, truncated) if value else _none(f"{ANSWER_FIELD} is empty")


def _chosen(found: list[int | float | str], how: str, choice: _Choice) -> Parsed:
    """The one value in found, which holds values and descriptions of what is none."""
    if len(set(found)) > 1:
        named = " and ".join(str(one) for one in list(dict.fromkeys(found))[:3])
        return _none(f"{choice.field} is contradictory: {named}")
    if isinstance(found[0], str):
        return _none(f"{choice.field} is {found[0]}, not {choice.values}")
    return Parsed(found[0], how, None)


def _writable(value: str) -> str:
    """The value without what can't be written as UTF-8 or breaks other tools; halves of a pair are joined."""
    value = value.replace("\r\n", "\n").replace("\0", "")
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def _from_object(text: str, field: str) -> tuple[object, str]:
    """(value, "strict" or "repaired") from a valid JSON object, attempts 1 and 2; else (None, "none")."""
    body = text.removeprefix("\ufeff").strip()
    if (fence := re.match("```(?:json)?", body, re.IGNORECASE)) is not None:
        body = body[fence.end() :]
    body = body.removesuffix("```").strip()
    try:
        found = json.loads(body, object_pairs_hook=_unique_keys)
        if isinstance(found, dict) and field in found:
            return found[field], "strict"
    except (ValueError, RecursionError):
        pass
    decoder = json.JSONDecoder(object_pairs_hook=_unique_keys, strict=False)
    body = _after_reasoning(text)
    try:
        found, _ = decoder.raw_decode(body, body.index("{"))
    except (ValueError, RecursionError):
        return None, "none"
    for key, value in found.items():
        if re.fullmatch(_NAMES[field], key, re.IGNORECASE):
            return value, "repaired"
    return None, "none"


def _after_reasoning(text: str) -> str:
    if text.lstrip().startswith("<think>") and "</think>" not in text:
        return ""
    return text.rpartition("</think>")[2]


def _value_starts(text: str, field: str) -> list[int]:
    """Where the field's values start: behind keys in objects or, without any, behind unbraced names.

    But for answers only the first object that has the key counts: what follows is a second verdict.
    """
    keys = list(_KEY[field].finditer(text))
    if not keys:
        return [name.end() for name in _UNBRACED[field].finditer(text)]
    if field != ANSWER_FIELD:
        closed = text.find("}", keys[0].end())
        keys = [key for key in keys if key is keys[0] or closed < 0 or key.end() <= closed]
    return [key.end() for key in keys]


def _value_at(text: str, start: int, choice: _Choice, cut: bool = False) -> int | float | str:
    """The value that starts there, or a description of what does."""
    found = choice.pattern.match(text, start)
    if found is None:
        return _describe(text, start)
    return "cut off" if cut and _breaks_off(text, found.end()) else choice.read(found[0])


def _describe(text: str, start: int) -> str:
    """A short name for the value that starts there, for a reason."""
    if text[start : start + 1] in ("[", "{"):
        return "a list" if text[start] == "[" else "an object"
    if (opening := _OPENING_QUOTE.match(text, start)) is not None:
        closing = _CLOSING_QUOTE.get(opening[0], opening[0])
        shown = re.split(closing, text[opening.end() : opening.end() + 20])[0]
        return f"the string {shown!r}"
    shown = re.match(r"[^\n}\]\"]{0,20}", text[start : start + 20])[0].strip(" ,")
    return _writable(shown) or "empty"


def _read_string(text: str, opening: re.Match[str], cut: bool) -> tuple[str, bool]:
    """(value, truncated) of an answer's string."""
    later = _AFTER_QUOTE_CUT if cut else _AFTER_QUOTE
    first = later if opening[0] in "'‘’" else _AFTER_FIRST_QUOTE  # it's a quote or an apostrophe
    span = _closing_quote(text, opening, first, later, weak_end=not cut)
    if span is not None:
        return _unescape(text[opening.end() : span[0]]), False
    raw, truncated = text[opening.end() :].rstrip(), True
    if not cut:
        if raw.endswith("```") and raw.count("```") % 2:
            raw = raw[:-3].rstrip()
        if raw.endswith("}") and raw.count("}") > raw.count("{"):
            raw, truncated = raw[:-1].rstrip().removesuffix('\\"'), False
    return _unescape(raw), truncated


def _closing_quote(
    text: str, opening: re.Match[str], first: re.Pattern[str], later: re.Pattern[str], weak_end: bool = False
) -> tuple[int, int] | None:
    """The span of the quote that closes the string: the first one that `first` or `later` matches behind.

    Inside braces that the string itself opened, as in code that it quotes, only the first quote closes. Where
    that leaves none, weak_end takes the first one that a closing brace and a new line or the like follow.
    """
    depth, weak, seen = 0, None, False
    token = re.compile(rf"\\.|[{{}}]|{_CLOSING_QUOTE.get(opening[0], opening[0])}", re.DOTALL)
    for found in token.finditer(text, opening.end()):
        if found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth = max(0, depth - 1)
        elif found[0][0] != "\\":
            after = later if seen else first
            if after.match(text, found.end()) is not None and not (seen and depth):
                return found.span()
            if weak_end and weak is None and _ENDS_BRACES.match(text, found.end()) is not None:
                weak = found.span()
            seen = True
    return weak


def _read_items(text: str, start: int) -> tuple[str, bool]:
    """(text, truncated) of a list or dict: a line an item, "key: value" for a dict, what is nested below."""
    parts: list[str] = []
    depth, pos = 0, start
    while (token := _ITEM_TOKEN.match(text, pos)) is not None:
        mark, pos = token[0], token.end()
        if mark in "[]{},":
            depth += (mark in "[{") - (mark in "]}")
            if depth == 0:
                return "".join(parts), False
            if parts and not parts[-1].endswith("\n"):
                parts.append("\n")
        elif mark == ":":
            parts.append(":")
        elif not mark.isspace() and not mark.startswith(("//", "#", "```")):
            if _OPENING_QUOTE.fullmatch(mark):
                span = _closing_quote(text, token, _AFTER_ITEM_QUOTE, _AFTER_ITEM_QUOTE)
                value_end, pos = span or (len(text), len(text))
                mark = _unescape(text[token.end() : value_end])
            parts.append(" " + mark if parts and parts[-1] == ":" else mark)
    return "".join(parts), True


def _unescape(raw: str) -> str:
    """JSON's escapes resolved. An unknown one stays as written, one that the end of the text cut is dropped."""

    def resolve(escape: re.Match[str]) -> str:
        if escape[1]:
            return chr(int(escape[1], 16))
        return _ESCAPED.get(escape[2], escape[0]) if escape[2] else ""

    return _ESCAPE.sub(resolve, raw)


_ITEM_MARK = r"(?:[-*+•–]|\(?\d{1,2}[.):])(?:\s++|\Z)"
_LIST_MARK = re.compile(rf"{_ITEM_MARK}|[#>]++\s*+")
_ITEM = re.compile(rf"(?:[#>]++\s*+)?+{_ITEM_MARK}")
_HEADING = re.compile(r"#|\*\*[^*]++\*\*\s*+:?\s*+\Z")
_FENCE = re.compile(r"```(?:json|text|txt|plaintext|markdown|md)?(?=\s|\Z)")
_ARRAY = re.compile(r"\[\s*+(?=\")")
_ARRAY_TEXT = re.compile(r"\"((?:[^\"\\]|\\.)*+)\"\s*+(?:(,)\s*+)?", re.DOTALL)
# What a first line says that introduces a plan: that something follows, what a plan is called, or half a sentence.
_INTRODUCES = _pattern(
    r"\bhere(?:['’]s| is| are)\b|\bthe following\b|\b(?:follows|below)\W*+\Z"
    r"|\A(?:(?:the|these|key|main|most|important|relevant|user['’]s|\d+) )*+"
    r"(?:aspects?\b(?! of\b)|(?:plan|titles?|list|output|answer)(?: of (?:the )?aspects)?\W*+\Z)"
    r"|\A(?=.*?\b(?:aspects?|user|asker|person|they|answer|response)\b)"
    r".*\b(?:are|is|includes?|covers?|about|considers?|wants?|needs?|addresse?s?|mentions?)\W*+\Z"
)


def parse_plan(text: str, cut: bool = False) -> Parsed:
    """Read the aspect titles of a plan, best first; the list is never empty.

    cut: the generation ended at max_tokens, so the last title may be a part of one.
    """
    body = _after_reasoning(text).removeprefix("\ufeff").strip()
    if (array := _ARRAY.search(body)) is not None:
        lines = _array_texts(body, array.end())
        as_asked = array.start() == 0 and body.endswith("]")
        last_is_whole = True  # a text that was cut has no closing quote and is not among them
    else:
        lines = body.splitlines()
        as_asked = not _begins_with_introduction(lines)
        lines = lines if as_asked else lines[1:]
        last_is_whole = not cut or text.endswith("\n")
    titles: dict[str, str] = {}
    for number, line in enumerate(lines):
        title = _plan_title(line)
        if title and (last_is_whole or not titles or number < len(lines) - 1):
            titles.setdefault(title.casefold(), title)
    if not titles:
        return _none("no aspect in the text")
    how = "strict" if as_asked and lines == list(titles.values()) else "repaired"
    return Parsed(list(titles.values()), how, None, cut)


def _begins_with_introduction(lines: list[str]) -> bool:
    """The first line ends in a colon and introduces the others; see the module's docstring."""
    if not lines or not _ends_in_colon(lines[0]):
        return False
    if _INTRODUCES.search(_plan_title(lines[0])) is not None:
        return True
    form = _line_form(lines[0])
    others = [(_line_form(line), line) for line in lines[1:] if _plan_title(line)]
    if not others or (form, True) in [(other, _ends_in_colon(line)) for other, line in others]:
        return False  # the only title, or one of several that are written alike
    following = others[0][0]
    return (following == "item" and form != "item") or (following == "plain" and form == "heading")


def _ends_in_colon(line: str) -> bool:
    return line.rstrip("*_ ").endswith(":")


def _line_form(line: str) -> str:
    """A line is an "item" of a list, a "heading" (# or all in bold face), or "plain"."""
    line = line.strip()
    if _ITEM.match(line.replace("**", "")) is not None:
        return "item"
    return "plain" if _HEADING.match(line) is None else "heading"


def _array_texts(text: str, pos: int) -> list[str]:
    """The whole texts of a JSON array whose first one starts at `pos`."""
    found = []
    while (match := _ARRAY_TEXT.match(text, pos)) is not None:
        found.append(_unescape(match[1]))
        if match[2] is None:
            break
        pos = match.end()
    return found


def _plan_title(line: str) -> str:
    """A line without its list mark, fence and bold face; nothing where it holds no word."""
    line = " ".join(_writable(line).replace("**", "").split())
    line = _FENCE.sub("", line).replace("```", "").strip()
    start = 0
    while (mark := _LIST_MARK.match(line, start)) is not None:
        start = mark.end()
    title = line[start:].strip()
    return title if re.search(r"[^\W_]", title) else ""
