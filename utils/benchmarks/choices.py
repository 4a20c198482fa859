"""Read a judge's choice: a verdict, a level or a preference, in a field of a JSON object. Pure.

The field is found as readers.py describes; if several objects have it, the last object decides, even if its value is
refused. Full-width characters are read as their usual forms. Outside a complete object, nothing else may follow the
value on its line, and a number at the end of a text that max_tokens cut does not count, because it may be incomplete.
A text without the field counts if it is only a value and the remains of a fence, an object or quotes: `json 2`, `2}`.

Verdicts: the integer 0, 1 or 2, also with a decimal point (2.0). "2" in quotes, 2/2 and "2 out of 2" are refused. The
name match_score does not occur in ordinary prose, so it also counts inside a sentence ("so the match_score is 2
because"), but only if all such places, and any other 0, 1 or 2 after the first, give the same value.
Levels (direct scoring): the numbers 0, 0.25, 0.5, 0.75 and 1, also written 1.0 or .5.
Preferences (pairwise comparison): the integer 1 or 2, also in quotes or written Response 1. "A" is refused, because the
prompt does not use this name.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace

from utils.benchmarks import readers
from utils.benchmarks.readers import QUOTE, Field, Parsed, nothing, pattern

VERDICT_VALUES = (0, 1, 2)
LEVELS = (0, 0.25, 0.5, 0.75, 1)

_FENCE = r"(?:```|</?json>|[/\\]?(?:json|endjson|endif)(?![a-z])|\s|\ufeff)"  # a fence, or what models write instead
_REMAINS = rf"(?:{_FENCE}|[`{{}}]|{QUOTE})*+"
# A verdict in prose. No number, condition or scale may follow it, nor the end of a cut text, which may hide one.
_IN_PROSE = pattern(
    rf"(?<!\w)match[\s_\\-]{{0,3}}+score(?!\w)(?:{QUOTE}|[*`\\])*+\s*+(?:[:=：]|is\b)[\s*`]*+"
    r"(?:([0-2])(?:\.0++)?(?!\w)(?![^\n}]{0,20}\Z)(?![^\n{}\"]{0,20}\bout of\b)"
    r"(?![ \t*`]*+(?:[-–/,.:|~+]\s*+[0-9]|%|(?:out|or|to|of|if|when|unless|only)\b)))?"
)
_NUMBER = re.compile(r"(?<![\w.])([0-2])(?:\.0++)?(?!\w|\.\d)")


@dataclass(frozen=True)
class Choice:
    """A field with one of a few values, and how it is read."""

    field: Field
    value: re.Pattern[str]  # matches a valid value that ends with its line or object, or before another key
    alone: re.Pattern[str]  # matches a text that is only a valid value
    read: Callable[[str], int | float]  # returns the value from the pattern's first group
    values: str  # the valid values in words, for messages
    in_prose: re.Pattern[str] | None = None  # matches the name anywhere, and a valid value in its group

    @property
    def begin(self) -> str:
        """The text before the value in an object that follows the schema."""
        return f"{{{json.dumps(self.field.name)}: "

    def parse(self, text: str, cut: bool = False) -> Parsed:
        """Read the field's value.

        cut: the generation ended at max_tokens, so a number at the end of the text may be the start of 1.5 or 10.
        """
        if cut and readers.may_be_draft(text):
            return nothing(readers.DRAFT)
        text = unicodedata.normalize("NFKC", text) + ("" if cut else "\n")
        own = readers.own_turn(text, self._first_end(text))
        parsed = self._read(own, cut)
        if own == text:
            return parsed
        if own.count("{") > own.count("}") and self._read(text, cut).value != parsed.value:
            return nothing(f"{self.field.name} is contradictory: another turn interrupts an object")
        return replace(parsed, how=parsed.how and "repaired")

    def _first_end(self, text: str) -> int:
        """Return the index at which the first value or the first object with the field ends, or the text's length."""
        matches = (self.value.match(text, start) for start in self.field.value_starts(text))
        ends = [next((match.end() for match in matches if match), len(text))]
        for end, content in readers.valid_objects(text):
            if not readers.is_empty(self.field.value_in(content)):
                ends.append(end)
                break
        return min(ends)

    def _read(self, text: str, cut: bool) -> Parsed:
        """Read the field's value in the model's own turn."""
        how = "repaired"
        if (entry := readers.last_object(text, self.field)) is not None:
            written, how = json.dumps(entry.value, ensure_ascii=False), entry.how
            match = self.value.match(written + "\n")
        elif (match := self.alone.match(text)) is None:
            starts = self.field.value_starts(text)
            named = [*self.in_prose.finditer(text)] if self.in_prose else []
            if not starts and not named:
                return readers.missing(text, self.field)
            if cut and "{" not in text and named and readers.is_prose(text[: named[0].start()]):
                return nothing(readers.DRAFT)
            written = text[starts[-1] if starts else named[-1].end() :]
            match = self.value.match(text, starts[-1]) if starts else None
            if match is None and named and all(name[1] for name in named):
                match = named[0]
                values = dict.fromkeys([match[1], *_NUMBER.findall(text, match.end())])
                if len(values) > 1:
                    return nothing(f"{self.field.name} is contradictory: {' and '.join(values)}")
        if match is None:
            return nothing(f"{self.field.name} is {readers.describe(written)}, not {self.values}")
        return Parsed(self.read(match[1]), how, None)


def choice(
    name: str,
    value: str,
    read: Callable[[str], int | float],
    values: str,
    quoted: bool = False,
    in_prose: re.Pattern[str] | None = None,
) -> Choice:
    """Return a `Choice`. After a value, the line or the object must end, or another key must follow.

    quoted: whether a text that is only a value in quotes is accepted.
    """
    ends = r"(?!\w)(?=[ \t*`.]*+(?:[\n\r}]|[\"'][ \t]*+\}|,[ \t]*+[\n\r}\"']))"
    string = "" if quoted else rf"(?!{_FENCE}*+{QUOTE}[\d.]++{QUOTE}{_FENCE}*+\Z)"
    alone = rf"{string}{_REMAINS}{value}(?![ \t`]*+\Z){_REMAINS}\Z"
    return Choice(readers.field_named(name), pattern(f"{value}{ends}"), pattern(alone), read, values, in_prose)


_VERDICTS = choice("match_score", r"([0-2])(?:\.0++)?", int, "an integer 0-2", in_prose=_IN_PROSE)
_LEVELS = choice("score", r"(0?\.(?:0|25|50?|75)0{0,3}|[01](?:\.0{1,4})?)", float, "0, 0.25, 0.5, 0.75 or 1")
_PREFERENCES = choice("better_response", r"[\"']?(?:response[ _]?)?([12])[\"']?", int, "1 or 2", quoted=True)
VERDICT_SCHEMA = _VERDICTS.field.schema({"type": "integer", "enum": list(VERDICT_VALUES)})
LEVEL_SCHEMA = _LEVELS.field.schema({"type": "number", "enum": list(LEVELS)})
PREFERENCE_SCHEMA = _PREFERENCES.field.schema({"type": "integer", "enum": [1, 2]})
VERDICT_BEGIN = _VERDICTS.begin
parse_verdict, parse_level, parse_preference = _VERDICTS.parse, _LEVELS.parse, _PREFERENCES.parse
