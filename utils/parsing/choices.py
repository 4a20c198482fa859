"""Read a judge's choice: a verdict, a level or a preference, in a field of a JSON object. Pure.

The field is read as json_text.py describes. The last object that has the name decides, even if its value is refused.
Different values under the name, in one object, in several or in prose, are refused as contradictory unless the text
between them corrects the first. Full-width characters count as their usual forms. Without the name there is a
last attempt ("repaired"): a text that is only a verdict, a level or a preference.

Verdicts: the integer 0, 1 or 2, also as the number 2.0. "2" in quotes, 2/2 and "2 out of 2" are refused in any
form. Outside an object, `match_score: 2` counts (also with "=" or "is"), but prose without the name does not. Without
the name, a verdict counts if it has only the remains of a fence, quotes or braces around it, as in `json 2`, `2}` and
`"2"}`; but "2", a whole string, is refused. A number at the end of a text that max_tokens cut does not count, because
it may continue.

Levels (direct scoring): the numbers 0, 0.25, 0.5, 0.75 and 1, also as 1.0 or .5. Preferences (pairwise comparison): the
integer 1 or 2, also as Response 1 and as the text "1", "Response 1", "first" or "the first response". "A" is refused,
because the prompt does not use it for a response. Both are read like verdicts, but outside an object the name must be
quoted or start a line, with a colon or "=" after it, and the value's line may have nothing else.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from utils.parsing import Parsed, json_text, nothing
from utils.parsing.json_text import QUOTE, Field, pattern

VERDICT_VALUES = (0, 1, 2)
LEVELS = (0, 0.25, 0.5, 0.75, 1)

# A verdict that does not begin another number, a range, a fraction or a condition.
_VERDICT = re.compile(
    r"[0-2](?:\.0++)?(?!\w)(?![ \t*`]*+(?:[-–/,.|~+]\s*+[0-9]|%|(?:out|or|to|of|if|when|unless|only)\b))"
    r"(?![^\n{}\"]{0,20}\bout of\b)"
)
# A level or a preference, and what may follow it: the end of the line or object, or the next key.
_LEVEL = r"(?:0?\.(?:0|25|50?|75)0{0,3}|[01](?:\.0{1,4})?)"
_NUMBERED = r"(?:response[ _]?)?[12]"
_IN_WORDS = r"(?:the )?(?:first|second)(?: response)?"  # only in quotes
_PREFERENCE = rf"(?:{_NUMBERED}|{QUOTE}(?:{_NUMBERED}|{_IN_WORDS}){QUOTE})"
_ENDS_VALUE = rf"(?!\w)(?=[ \t*`]*+(?:\Z|[\n\r}}]|,\s*+(?:\Z|\}}|{QUOTE})))"
# The text that may follow a number cut by max_tokens: it may have continued as 1.5, 1/2, or 1 out of 2.
_CUT_NUMBER = re.compile(r"[ \t*`]*+(?:[-–/,.|~+][ \t]*+)?\Z")
_FENCES = r"(?:```|/?json\b|\s|\ufeff)*+"
_REMAINS = rf"(?:`|/?json\b|[{{}}]|{QUOTE}|\s|\ufeff)*+"
_LONE_VERDICT = r"[0-2](?:\.0++)?"
_STRING = rf"{_FENCES}{QUOTE}{_LONE_VERDICT}{QUOTE}{_FENCES}\Z"


@dataclass(frozen=True)
class Choice:
    """A field with one of a few values, and how it is read."""

    field: Field
    value: re.Pattern[str]  # a value as written
    only: re.Pattern[str]  # a text that is only a value
    read: Callable[[str], int | float]
    values: str  # in words

    @property
    def begin(self) -> str:
        """The text before the value in an object that follows the schema."""
        return f"{{{json.dumps(self.field.name)}: "

    def parse(self, text: str, cut: bool = False) -> Parsed:
        """Read the field's value.

        cut: the generation ended at max_tokens, so a number at the end of the text may be the start of 1.5 or 10.
        """
        if cut and json_text.may_be_draft(text):
            return nothing(json_text.DRAFT)
        text = unicodedata.normalize("NFKC", text)
        found, rest = json_text.objects_with(text, self.field)
        if found:
            values = [(self._value_at(_written(one.value), 0), one.start, one.end) for one in found]
            # In prose after the last object too, unless the text was cut there.
            later = [] if cut else json_text.value_starts(rest, self.field)
            end = found[-1].end
            values += [(self._value_at(rest, start), end + start, end + start) for start in later]
            return self._chosen(values, found[-1].how, text[:end] + rest)
        if (only := self.only.match(text)) is not None:
            if cut and _breaks_off(text, only.end("value")):
                return nothing("the text breaks off in a number")
            return Parsed(self.read(only["value"]), "repaired", None)
        starts = json_text.value_starts(rest, self.field)
        if not starts:
            return json_text.missing(text, self.field)
        if cut and "{" not in text and json_text.is_prose(text[: self.field.spelled.search(text).start()]):
            return nothing(json_text.DRAFT)
        return self._chosen([(self._value_at(rest, start, cut), start, start) for start in starts], "repaired", text)

    def _value_at(self, text: str, start: int, cut: bool = False) -> int | float | str:
        """Return the value that starts at `start`, or a description of the text there."""
        found = self.value.match(text, start)
        if found is None:
            return json_text.describe(text, start)
        return "cut off" if cut and _breaks_off(text, found.end()) else self.read(found[0])

    def _chosen(self, found: list[tuple[int | float | str, int, int]], how: str, text: str) -> Parsed:
        """Return the last value in `found`, which has values or descriptions of other text, with start and end."""
        if json_text.is_contradictory(found, text):
            named = " and ".join(str(one) for one in list(dict.fromkeys(value for value, _, _ in found))[:3])
            return nothing(f"{self.field.name} is contradictory: {named}")
        if isinstance(last := found[-1][0], str):
            return nothing(f"{self.field.name} is {last}, not {self.values}")
        return Parsed(last, how, None)


def _written(value: object) -> str:
    """Return a value as JSON, or what begins a list or an object."""
    return {dict: "{", list: "["}.get(type(value)) or json.dumps(value, ensure_ascii=False)


def _breaks_off(text: str, end: int) -> bool:
    """Return whether the value that ends at `end` is a number at the end of the text."""
    return text[end - 1].isdigit() and _CUT_NUMBER.match(text, end) is not None


_VERDICTS = Choice(
    json_text.field_named("match_score", anywhere=True),
    _VERDICT,
    pattern(rf"(?!{_STRING}){_REMAINS}(?P<value>{_LONE_VERDICT}){_REMAINS}\Z"),
    lambda written: int(float(written)),
    "an integer 0-2",
)
_LEVELS = Choice(
    json_text.field_named("score"),
    pattern(_LEVEL + _ENDS_VALUE),
    pattern(rf"{_FENCES}(?P<value>{_LEVEL}){_FENCES}\Z"),
    float,
    "0, 0.25, 0.5, 0.75 or 1",
)
_PREFERENCES = Choice(
    json_text.field_named("better_response"),
    pattern(_PREFERENCE + _ENDS_VALUE),
    pattern(rf"{_FENCES}(?P<value>{_PREFERENCE}){_FENCES}\Z"),
    lambda written: 1 if "1" in written or "first" in written.lower() else 2,  # the number of the response
    "1 or 2",
)
VERDICT_SCHEMA = _VERDICTS.field.schema({"type": "integer", "enum": list(VERDICT_VALUES)})
LEVEL_SCHEMA = _LEVELS.field.schema({"type": "number", "enum": list(LEVELS)})
PREFERENCE_SCHEMA = _PREFERENCES.field.schema({"type": "integer", "enum": [1, 2]})
VERDICT_BEGIN = _VERDICTS.begin
parse_verdict, parse_level, parse_preference = _VERDICTS.parse, _LEVELS.parse, _PREFERENCES.parse
