"""Read leniently the JSON object with one field that a model was asked for in a ```json fence. Pure.

The first attempt that finds the field decides:

1. Strict ("strict"): the whole text is one JSON object that has the field under its exact name, possibly with white
   space and a fence, or half a fence, around it.
2. Last object ("repaired"): of the valid JSON objects in the text, the last one that has the field; the text around
   it is dropped. From here on, strings may contain raw newlines, and the name may be spelled otherwise ("Match Score").
3. By name ("repaired"): the name is searched for, first as a key inside an object, then without braces. A tolerant
   scanner reads the value from there: with other quotes, with unescaped quotes inside, or without an end.

Echoes of the schema or of a form ("<your answer>") do not count. An answer ends before a user's turn that the model
makes up. A text that max_tokens cut, with prose before and after its objects, is not read: it may be an unmarked
thought with a draft. In strings, `\\frac` and the like are LaTeX, not escapes.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from utils.parsing import Parsed, nothing, writable

# Every repetition in the parsers' expressions is possessive or bounded, so that every search takes linear time.
QUOTE = "[\"'“”‘’]"
_GAP = r"(?:\s++|(?://|\#)[^\n]{0,200}+|/\*[^*]{0,200}+\*/){0,4}+"  # white space and comments


def pattern(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.IGNORECASE | re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Field:
    """A requested field, and the patterns that find it."""

    name: str
    spelled: re.Pattern[str]  # the name in models' spellings
    key: re.Pattern[str]  # the name as a key in an object, up to its value
    unbraced: re.Pattern[str]  # the name without braces, up to its value

    def schema(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the schema for constrained decoding: an object with only this field; `value` is the value's schema."""
        properties = {self.name: value}
        return {"type": "object", "properties": properties, "required": [self.name], "additionalProperties": False}

    def values_in(self, content: dict[str, Any]) -> list[Any]:
        """Return an object's values under the name, in any spelling."""
        return [value for key, value in content.items() if self.spelled.fullmatch(key)]


def field_named(name: str, anywhere: bool = False) -> Field:
    """Return a field by its name, whose words are joined by "_".

    anywhere: a name without braces may be anywhere, because no prose has it; otherwise, it must be quoted or start a
    line.
    """
    words = r"[\s_\\-]{0,3}".join(name.replace("ize", "i[sz]e").split("_"))
    spelled = rf"(?<!\w){words}(?!\w)"
    # After a comma a key must be quoted, or it may be prose.
    key = rf"(?:\{{{_GAP}{QUOTE}?|,{_GAP}{QUOTE}){spelled}{QUOTE}?\s*+[:=：][\s*`]*+"
    if anywhere:
        unbraced = rf"{spelled}(?:{QUOTE}|[*`\\])*+\s*+(?:[:=：]|is\b)[\s*`]*+"
    else:
        unbraced = rf"(?:{QUOTE}|^[^\w\n]*+(?:json[^\w\n]*+)?){spelled}(?:{QUOTE}|[*`])*+\s*+[:=：][\s*`]*+"
    return Field(name, pattern(spelled), pattern(key), pattern(unbraced))


_OPENING_QUOTE = re.compile(rf"\"\"\"|'''|{QUOTE}")
_CLOSING_QUOTE = {"“": '[”“"]', "”": '[”“"]', "‘": "[’‘']", "’": "[’‘']"}  # any other closes itself
# Patterns of the text after a quote that ends a string. If an inner quote was left unescaped and the text was cut, the
# end of the text proves nothing. The first quote needs less: unescaped inner quotes come in pairs, and a word follows
# the opening quote of a pair.
_NEXT_KEY = rf"{QUOTE}[\w -]{{1,40}}{QUOTE}\s*+:"
_ENDS_OBJECT = rf"{_GAP}[,;.]?+{_GAP}(?:\}}|{_NEXT_KEY})"
_ENDS_TEXT = rf"{_GAP}[,;]?+{_GAP}[\])]*+\s*+(?:```\s*+)?\Z"
_AFTER_QUOTE_CUT = pattern(_ENDS_OBJECT)
_AFTER_QUOTE = pattern(rf"{_ENDS_OBJECT}|{_ENDS_TEXT}")
_CUT_KEY = rf"{_GAP},{_GAP}{QUOTE}[\w -]{{0,40}}{QUOTE}?\s*+\Z"
_AFTER_FIRST_QUOTE = pattern(
    rf"{_ENDS_OBJECT}|{_ENDS_TEXT}|{_CUT_KEY}|{_GAP}(?:```|/?json\b)|[ \t]*+\r?\n\s*+(?!{QUOTE})"
)
_AFTER_ITEM_QUOTE = pattern(rf"{_GAP}(?:[,:\]}}]|```|\Z)")
_ENDS_BRACES = pattern(r"\s*+[,;]?+\s*+\}\s*?(?:\n|```|\{|\}|\Z)")
_ITEM_TOKEN = re.compile(rf"[\[\]{{}},:]|(?://|\#)[^\n]*|\"\"\"|'''|{QUOTE}|\s+|[^\[\]{{}},:\"“\s][^\[\]{{}},:\"\n]*")
_ESCAPE = re.compile(r"\\(?:(?:u[0-9a-fA-F]{0,3})?\Z|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = dict(zip("ntrbf\n\"'\\/", "\n\t\r\b\f\n\"'\\/", strict=True))


MOST_TRIES = 100  # places where no valid object begins; a limit, so that nested braces take linear time
_PLACEHOLDER = pattern(
    r"<[^<>]{1,200}>|[\[{(][^\[\]{}()]{0,100}\b(?:answer|here|insert|response|your)\b[^\[\]{}()]{0,100}[\]})]"
    r"|(?:(?:write|insert|put|give) )?(?:your|the|an?) (?:personalized )?answer(?: (?:goes )?here| to the question)?"
    r"|\.{3}|…|_{2,}|string|text|todo"
)
# The beginning of a user's turn that a model makes up, in the forms of several chat templates.
_USERS_TURN = pattern(
    r"^\W*(?:user|human)\W*$|^\W*(?:user|human|question):|\[INST\]|^\#{2,} ?(?:instruction|user|human|input|question)"
    r"|<\|(?:im_start|start_header_id)\|>\s*user|<start_of_turn>\s*user|<[|｜]user[|｜]>"
)
_CORRECTION = pattern(
    r"\b(?:wait|sorry|apolog\w+|my mistake|made a mistake|i was wrong|on reflection|on second thoughts?|actually,"
    r"|correct(?:ion|ed|ing)|revis(?:ed|ing|ion)|reconsider\w*|reassess\w*|re-?evaluat\w*"
    r"|final (?:answer|verdict|score|match_score|rating))\b"
)
# An escaped backslash, or the beginning of a LaTeX command.
_COMMAND = re.compile(
    r"\\(?:(\\)|[bfr](?=[A-Za-z])"
    r"|n(?=(?:abla|eq|otin|otag|onumber|exists|ewline|ewcommand|ot(?=[=\\])|u_|u\^|u\b\s*[=$)])(?![a-z.]))"
    r"|t(?=(?:heta|au|imes|frac|binom|ilde|herefore|riangle\w*|anh?(?=[\\({^])|ag(?={)|o(?=\s*\\|\s*[0-9])"
    r"|ext\w{0,6}(?={))(?![a-z])))"
)

DRAFT = "the text breaks off in prose, so it may be a draft"


def missing(text: str, field: Field) -> Parsed:
    return nothing(f"no {field.name} in the text" if text.strip("`\ufeff \t\r\n") else "the text is empty")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def may_be_draft(text: str) -> bool:
    """Return whether a text has prose before and after its objects."""
    before, _, rest = text.partition("{")
    return "}" in rest and is_prose(before) and is_prose(rest.rpartition("}")[2])


def is_prose(text: str) -> bool:
    """Return whether a text has a word besides a fence's "json"."""
    return re.search(r"\w", re.sub("json", "", text, flags=re.IGNORECASE)) is not None


@dataclass(frozen=True)
class Found:
    """A valid JSON object in a text that has a field."""

    value: Any  # the field's
    content: dict[str, Any]
    how: str  # "strict" or "repaired"
    start: int  # of the object in the text
    end: int


def objects_with(text: str, field: Field) -> tuple[list[Found], str]:
    """Return the text's valid objects that have the field (attempts 1 and 2), in order, and the text to search by name.

    That is the text after the last of these objects; without any, it is the whole text without echoes of the schema.
    """
    body = re.sub(r"\A```(?:json)?", "", text.removeprefix("\ufeff").strip(), flags=re.IGNORECASE)
    body = body.removesuffix("```").strip()
    with suppress(ValueError, RecursionError):
        content = json.loads(body, object_pairs_hook=_unique_keys)
        if isinstance(content, dict) and field.name in content and not is_form(content[field.name]):
            return [Found(content[field.name], content, "strict", 0, len(text))], ""
    found, parts, begin = [], [], 0  # parts of the text to search by name, between objects
    for start, end, content in valid_objects(text):
        values = field.values_in(content)
        is_value = bool(values) and not is_form(values[0])
        if is_value:
            found.append(Found(values[0], content, "repaired", start, end))
            parts, begin = [], end
        elif values or "properties" in content:
            parts.append(text[begin:start])
            begin = end
    return found, " ".join([*parts, text[begin:]])


def valid_objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield start, end and content of each valid JSON object that is in no other one."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique_keys, strict=False)
    start, tries = text.find("{"), MOST_TRIES
    while start >= 0 and tries:
        try:
            content, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end, tries = start + 1, tries - 1
        else:
            yield start, end, content
        start = text.find("{", end)


def is_form(value: object) -> bool:
    """Return whether a field's value only says what to put there: a JSON schema, or a placeholder."""
    if isinstance(value, dict):
        return value.get("type") in ("string", "integer", "number", "boolean", "array", "object")
    return isinstance(value, str) and _PLACEHOLDER.fullmatch(value.strip()) is not None


def is_contradictory(found: list[tuple[object, int, int]], text: str) -> bool:
    """Return whether a value differs from the last one, and nothing between them in the same turn corrects it.

    `found` has values of a text, each with its start and end.
    """
    last, start, _ = found[-1]
    between = [text[end:start] for value, _, end in found if value != last][-1:]
    return any(_CORRECTION.search(told) is None or _USERS_TURN.search(told) is not None for told in between)


def own_turn(text: str) -> str:
    """Return a text up to a user's turn that the model makes up after a valid object."""
    end = next((end for _, end, _ in valid_objects(text)), len(text))
    return text[:end] + _USERS_TURN.split(text[end:], maxsplit=1)[0]


def keep_commands(text: str) -> str:
    r"""Return a text whose JSON strings keep LaTeX's commands, such as `\frac` and `\theta`, as written.

    As escapes, they would begin with a form feed, a backspace, a carriage return, a tab or a line break. The first
    three have no use before a letter; the others count only in commands that no line of prose begins like.
    """
    return _COMMAND.sub(lambda match: match[0] if match[1] else "\\" + match[0], text)


def value_starts(text: str, field: Field) -> list[int]:
    """Return where the field's values start: after keys in objects, or without any after names without braces."""
    return key_ends(text, field) or [name.end() for name in field.unbraced.finditer(text)]


def key_ends(text: str, field: Field) -> list[int]:
    """Return where the field's values start after keys in objects."""
    return [key.end() for key in field.key.finditer(text)]


def describe(text: str, start: int) -> str:
    """Return a short description, for a reason, of the value that starts at `start`."""
    if text[start : start + 1] in ("[", "{"):
        return "a list" if text[start] == "[" else "an object"
    if (opening := _OPENING_QUOTE.match(text, start)) is not None:
        closing = _CLOSING_QUOTE.get(opening[0], opening[0])
        shown = re.split(closing, text[opening.end() : opening.end() + 20])[0]
        return f"the string {shown!r}"
    shown = re.match(r"[^\n}\]\"]{0,20}", text[start : start + 20])[0].strip(" ,")
    return writable(shown) or "empty"


def read_text(text: str, start: int, cut: bool) -> tuple[str, bool] | None:
    """Return (value, truncated) for the string, list or object that starts at `start`; None if none does."""
    if text[start : start + 1] in ("[", "{"):
        return _read_items(text, start)
    if (opening := _OPENING_QUOTE.match(text, start)) is None:
        return None
    later = _AFTER_QUOTE_CUT if cut else _AFTER_QUOTE
    first = later if opening[0] in "'‘’" else _AFTER_FIRST_QUOTE  # a quote or an apostrophe
    span = _closing_quote(text, opening, first, later, weak_end=not cut)
    if span is not None:
        return unescape(text[opening.end() : span[0]]), False
    raw, truncated = text[opening.end() :].rstrip(), True
    if not cut:
        if raw.endswith("```") and raw.count("```") % 2:
            raw = raw[:-3].rstrip()
        if raw.endswith("}") and raw.count("}") > raw.count("{"):
            raw, truncated = raw[:-1].rstrip().removesuffix('\\"'), False
    return unescape(raw), truncated


def _closing_quote(
    text: str, opening: re.Match[str], first: re.Pattern[str], later: re.Pattern[str], weak_end: bool = False
) -> tuple[int, int] | None:
    """Return the span of the quote that closes the string: the first one followed by a match of `first` or `later`.

    Inside braces that the string itself opened, as in quoted code, only the first quote can close it. If no quote
    does, `weak_end` accepts the first one before a closing brace and a line break or the like.
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
    """Return (text, truncated) for a list or dict: a line per item, "key: value" for a dict, nested items below."""
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
                mark = unescape(text[token.end() : value_end])
            parts.append(" " + mark if parts and parts[-1] == ":" else mark)
    return "".join(parts), True


def unescape(raw: str) -> str:
    """Resolve JSON's escapes. An unknown escape is kept; one cut by the end of the text is dropped."""

    def resolve(escape: re.Match[str]) -> str:
        if escape[1]:
            return chr(int(escape[1], 16))
        return _ESCAPED.get(escape[2], escape[0]) if escape[2] else ""

    return _ESCAPE.sub(resolve, raw)
