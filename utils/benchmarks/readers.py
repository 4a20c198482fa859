"""Functions that the parsers of model texts share, and how they find the value of a field. Pure.

A parser gets the text after the thoughts; thoughts.py separates the two. If a model was asked for a JSON object with a
field, in a ```json fence, these are tried in order:

1. "strict": the whole text is one JSON object with the field, with or without a fence, or with one end of a fence.
2. "repaired": the last complete JSON object in the text with the field; the text around it is dropped. Here and in 3,
   strings may contain raw newlines, and the field's name may be spelled differently ("Match Score").
3. "repaired", without such an object: the value after the last place where the field's name is a key inside braces, or
   else a key without braces. A string may have single quotes, unescaped quotes inside, or no end.

A text that only shows the form, such as a schema or "<your answer>", is not a value. If the model makes up another
turn after an object, the text is read up to that turn. A text that max_tokens cut, with prose before and after its
objects, is not read, because it may be an unmarked thought with a draft. In strings, `\\frac` and similar commands are
LaTeX, not escapes."""

import json
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Parsed:
    """The result of a parser. The docstring of each parser's module says what it reads, and in which order."""

    value: Any  # a text, a number, a boolean or a list; None if nothing in the text is usable
    how: str  # "strict": the text has the requested form; "repaired": it has another form; "none": there is no value
    reason: str | None  # why there is no value; None if there is one
    truncated: bool = False  # whether the text ended inside the value, which is then incomplete


def nothing(reason: str) -> Parsed:
    return Parsed(None, "none", reason)


def plain(text: str) -> str:
    """Return a text for comparisons: stripped, with full-width characters in their usual forms."""
    return unicodedata.normalize("NFKC", writable(text)).strip()


def one_line(text: str) -> str:
    return " ".join(text.split())


def writable(value: str) -> str:
    """Return a text that UTF-8 can encode: surrogate pairs joined, lone ones as U+FFFD; no NULs, and CRLF as LF."""
    value = value.replace("\r\n", "\n").replace("\0", "")
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


MOST_TRIES = 100  # most braces to try at which no valid object begins, so that the search takes linear time
DRAFT = "the text breaks off in prose, so it may be a draft"


# Every repetition in the parsers' expressions is possessive or bounded, so that every search takes linear time.
def pattern(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.IGNORECASE | re.MULTILINE | re.DOTALL)


QUOTE = "[\"'“”‘’]"
# The quote that ends a string must be followed by the object's end or another key, or if the text was not cut, by the
# text's end; otherwise, it may be an unescaped quote inside the string. Unescaped quotes come in pairs, and a word
# follows the first of a pair. So if a line break or the text's end follows the first quote, it ends the string.
_ENDS_CUT = pattern(rf"\s*+[,;.]?+\s*+(?:\}}|{QUOTE}[\w -]{{1,40}}{QUOTE}\s*+:)")
_ENDS = pattern(rf"{_ENDS_CUT.pattern}|[\s,;\])]*+(?:```\s*+)?\Z")
_ENDS_FIRST = pattern(
    rf"{_ENDS.pattern}|\s*+(?:```|/?json\b)|[ \t]*+\r?\n\s*+(?!{QUOTE})|\s*+,\s*+{QUOTE}[\w -]{{0,40}}{QUOTE}?\s*+\Z"
)
_BRACE_AFTER = re.compile(r"\s*+\}")
_ESCAPE = re.compile(r"\\(?:(?:u[0-9a-fA-F]{0,3})?\Z|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = dict(zip("ntrbf\n\"'\\/", "\n\t\r\b\f\n\"'\\/", strict=True))
_FORM = pattern(
    r"<[^<>]{1,200}>|[\[{(][^\[\]{}()]{0,100}\b(?:answer|here|insert|your)\b[^\[\]{}()]{0,100}[\]})]"
    r"|(?:(?:write|insert|put|give) )?(?:your|the|an?) (?:personalized )?answer(?: here)?|\.{3}|…|string|text|todo"
)
# The beginning of another turn that a model makes up, in the forms of several chat templates.
_NEXT_TURN = pattern(
    r"^[^\w\n]*+(?:(?:user|human|assistant)[^\w\n]*+$|(?:user|human|question|assistant):)|\[INST\]"
    r"|^\#{2,}+ ?(?:instruction|user|human|input|question)"
    r"|<\|(?:im_start|start_header_id)\|>\s*(?:user|assistant)|<start_of_turn>\s*(?:user|model)|<[|｜](?:user|assistant)[|｜]>"
)
# An escaped backslash, or the beginning of a LaTeX command.
_COMMAND = re.compile(
    r"\\(?:(\\)|[bfr](?=[A-Za-z])"
    r"|n(?=(?:abla|eq|otin|otag|onumber|exists|ewline|ewcommand|ot(?=[=\\])|u_|u\^|u\b\s*[=$)])(?![a-z.]))"
    r"|t(?=(?:heta|au|imes|frac|binom|ilde|herefore|riangle\w*|anh?(?=[\\({^])|ag(?={)|o(?=\s*\\|\s*[0-9])"
    r"|ext\w{0,6}(?={))(?![a-z])))"
)


@dataclass(frozen=True)
class Field:
    """A requested field. Its patterns match the name as a key, up to the beginning of the value."""

    name: str
    key: re.Pattern[str]  # inside an object; after a comma, the name must be quoted, because it may be prose
    unbraced: re.Pattern[str]  # outside of braces; the name must be quoted or at the beginning of a line

    def schema(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the schema for constrained decoding: an object with only this field; `value` is the value's schema."""
        properties = {self.name: value}
        return {"type": "object", "properties": properties, "required": [self.name], "additionalProperties": False}

    def value_in(self, content: dict[str, Any]) -> Any:
        """Return an object's value for this field, whose name may be spelled differently; None if it is missing."""
        if self.name in content:
            return content[self.name]
        joined = self.name.replace("_", "")
        spelled = ((re.sub(r"[\s\\_-]+", "", key.lower()), value) for key, value in content.items())
        return next((value for key, value in spelled if key == joined), None)

    def value_starts(self, text: str) -> list[int]:
        """Return the indexes at which values start: after keys in objects, or if there are none, after other keys."""
        keys = [*self.key.finditer(text)] or self.unbraced.finditer(text)
        return [key.end() for key in keys]


def field_named(name: str) -> Field:
    """Return the field of this name; the name's words are joined by "_"."""
    words = r"[\s_\\-]{0,3}+".join(name.split("_"))
    value = rf"(?:{QUOTE}|[*`\\])*+\s*+[:=：][\s*`]*+"
    key = rf"(?:\{{\s*+{QUOTE}?|,\s*+{QUOTE})\s*+{words}\s*+{value}"
    return Field(name, pattern(key), pattern(rf"(?:{QUOTE}|^[^\w\n]*+(?:json[^\w\n]*+)?){words}{value}"))


@dataclass(frozen=True)
class Found:
    """A field's value in a complete JSON object."""

    value: Any
    content: dict[str, Any]  # the object
    how: str  # "strict" or "repaired"


def last_object(text: str, *fields: Field) -> Found | None:
    """Return the value of the first of these fields in the last complete object that has any of them."""
    body = re.sub(r"\A```(?:json)?", "", text.removeprefix("\ufeff").strip(), flags=re.IGNORECASE)
    with suppress(ValueError, RecursionError):
        content = json.loads(body.removesuffix("```").strip())
        for field in fields:
            if isinstance(content, dict) and not is_empty(content.get(field.name)):
                return Found(content[field.name], content, "strict")
    for _, content in reversed([*valid_objects(text)]):
        for field in fields:
            if not is_empty(value := field.value_in(content)):
                return Found(value, content, "repaired")
    return None


def own_object(text: str, *fields: Field) -> tuple[Found | None, str]:
    """Return `last_object` of the text of `own_turn`, and that text; "repaired" if it is not the whole text."""
    own = own_turn(text)
    entry = last_object(own, *fields)
    return (replace(entry, how="repaired") if entry and own != text else entry), own


def valid_objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the end (an index in the text) and the content of each valid JSON object that is not inside another."""
    decoder = json.JSONDecoder(strict=False)
    start, tries = text.find("{"), MOST_TRIES
    while start >= 0 and tries:
        try:
            content, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end, tries = start + 1, tries - 1
        else:
            yield end, content
        start = text.find("{", end)


def is_empty(value: object) -> bool:
    """Return whether a field's value is missing, a JSON schema, or a placeholder."""
    if isinstance(value, dict):
        return value.get("type") in ("string", "integer", "number", "boolean", "array", "object")
    return value is None or is_form(value)


def is_form(value: object) -> bool:
    """Return whether a text is a placeholder, such as "<your answer>"."""
    return isinstance(value, str) and _FORM.fullmatch(value.strip()) is not None


def may_be_draft(text: str) -> bool:
    """Return whether a text has prose both before and after its objects; the "json" of a fence is not prose."""
    before, _, rest = text.partition("{")
    _, end, after = rest.rpartition("}")
    return bool(end) and is_prose(before) and is_prose(after)


def is_prose(text: str) -> bool:
    """Return whether a text has a word other than the "json" of a fence."""
    return re.search(r"(?!json\b)\b\w", text, re.IGNORECASE) is not None


def missing(text: str, field: Field) -> Parsed:
    return nothing(f"no {field.name} in the text" if text.strip("`\ufeff \t\r\n") else "the text is empty")


def own_turn(text: str, end: int | None = None) -> str:
    """Return the text up to another turn that the model makes up after a valid object.

    end: where the search for another turn begins; None for the end of the first valid object.
    """
    if end is None:
        end = next((end for end, _ in valid_objects(text)), len(text))
    return text[:end] + _NEXT_TURN.split(text[end:], maxsplit=1)[0]


def keep_commands(text: str) -> str:
    r"""Return the text with LaTeX's commands, such as `\frac` and `\theta`, escaped: JSON then reads them as written.

    JSON would read their beginnings as a form feed, a backspace, a carriage return, a tab or a line break. The first
    three make no sense before a letter. A tab or a line break does, so `\t` and `\n` count as LaTeX only in commands
    that do not look like the beginning of a line of prose.
    """
    return _COMMAND.sub(lambda match: match[0] if match[1] else "\\" + match[0], text)


def describe(text: str) -> str:
    """Return a short description of the value at the beginning of a text, for `Parsed.reason`."""
    if text[:1] in ("[", "{"):
        return "a list" if text[0] == "[" else "an object"
    shown = re.match(r"\"[^\"\n]{0,20}\"?|[^\n}\]\"]{0,20}", text)[0].strip(" ,")
    return writable(shown) or "empty"


def read_string(text: str, start: int, cut: bool) -> tuple[str, bool] | None:
    """Return (value, truncated) for the string in double or single quotes at `start`; None if no string begins there.

    The string ends at the first quote that is followed by the object's end or another key. Inside braces that the
    string opened, as in quoted code, only the very first quote can end it. If no quote does, and the text was not cut,
    the string ends at the last quote before a closing brace, or else before the closing brace and fence of the object.
    """
    mark, start = text[start : start + 1], start + 1
    if mark not in ('"', "'") or text.startswith(mark * 2, start):  # a list, an object, or Python's triple quotes
        return None
    depth, number, last = 0, 0, None
    for token in re.compile(rf"\\.|[{{}}]|{mark}", re.DOTALL).finditer(text, start):
        if token[0] in "{}":
            depth = max(0, depth + (1 if token[0] == "{" else -1))
        elif token[0] == mark:
            ends = _ENDS_CUT if cut else _ENDS
            if number == 0 and mark == '"':  # a single quote may be an apostrophe
                ends = _ENDS_FIRST
            if (number == 0 or depth == 0) and ends.match(text, token.end()) is not None:
                return unescape(text[start : token.start()]), False
            number, last = number + 1, token.start() if _BRACE_AFTER.match(text, token.end()) else last
    if last is not None and not cut:
        return unescape(text[start:last]), False
    raw = text[start:].rstrip()
    if cut:
        return unescape(raw), True
    whole = raw.removesuffix("```").rstrip() if raw.count("```") % 2 else raw
    if whole.endswith("}") and whole.count("}") > whole.count("{"):
        return unescape(whole[:-1].rstrip().removesuffix('\\"')), False
    return unescape(whole), True


def unescape(raw: str) -> str:
    """Return a text with JSON's escapes resolved. Unknown escapes are kept; an incomplete one at the end is dropped."""

    def resolve(escape: re.Match[str]) -> str:
        if escape[1]:
            return chr(int(escape[1], 16))
        return _ESCAPED.get(escape[2], escape[0]) if escape[2] else ""

    return _ESCAPE.sub(resolve, raw)
