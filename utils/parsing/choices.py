"""Read a judge's choice: a verdict, a level or a preference, in a field of a JSON object. Pure.

The field is found as json_text.py describes; if several objects have it, the last object decides, even if its value is
refused. Full-width characters count as their usual forms. Outside a complete object, nothing else may follow the value
in its line, and a number at the end of a text that max_tokens cut does not count, because it may be incomplete.

Verdicts: the integer 0, 1 or 2, also with a decimal point (2.0). "2" in quotes, 2/2 and "2 out of 2" are refused.
Levels (direct scoring): the numbers 0, 0.25, 0.5, 0.75 and 1, also written 1.0 or .5. Preferences (pairwise
comparison): the integer 1 or 2, also in quotes or written Response 1. "A" is refused, because the prompt does not call
a response so.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from utils.parsing import Parsed, json_text, nothing
from utils.parsing.json_text import Field, pattern

VERDICT_VALUES = (0, 1, 2)
LEVELS = (0, 0.25, 0.5, 0.75, 1)


@dataclass(frozen=True)
class Choice:
    """A field with one of a few values, and how it is read."""

    field: Field
    value: re.Pattern[str]  # matches a valid value as written
    read: Callable[[str], int | float]  # returns the value from the pattern's first group
    values: str  # the valid values in words, for messages

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
        entry, text = json_text.own_object(unicodedata.normalize("NFKC", text), self.field)
        if entry is not None:
            written, how = json.dumps(entry.value, ensure_ascii=False), entry.how
        elif starts := self.field.value_starts(text):
            written, how = text[starts[-1] :] + ("…" if cut else ""), "repaired"
        else:
            return json_text.missing(text, self.field)
        if (match := self.value.match(written)) is None:
            return nothing(f"{self.field.name} is {json_text.describe(written)}, not {self.values}")
        return Parsed(self.read(match[1]), how, None)


def _choice(name: str, value: str, read: Callable[[str], int | float], values: str) -> Choice:
    """Return a choice. After a value, the line or the object must end, or another key must follow."""
    ends = r"(?!\w)(?=[ \t*`.]*+(?:\Z|[\n\r}]|,\s*+(?:\Z|\}|[\"'])))"
    return Choice(json_text.field_named(name), pattern(f"{value}{ends}"), read, values)


_VERDICTS = _choice("match_score", r"([0-2])(?:\.0++)?", int, "an integer 0-2")
_LEVELS = _choice("score", r"(0?\.(?:0|25|50?|75)0{0,3}|[01](?:\.0{1,4})?)", float, "0, 0.25, 0.5, 0.75 or 1")
_PREFERENCES = _choice("better_response", r"[\"']?(?:response[ _]?)?([12])[\"']?", int, "1 or 2")
VERDICT_SCHEMA = _VERDICTS.field.schema({"type": "integer", "enum": list(VERDICT_VALUES)})
LEVEL_SCHEMA = _LEVELS.field.schema({"type": "number", "enum": list(LEVELS)})
PREFERENCE_SCHEMA = _PREFERENCES.field.schema({"type": "integer", "enum": [1, 2]})
VERDICT_BEGIN = _VERDICTS.begin
parse_verdict, parse_level, parse_preference = _VERDICTS.parse, _LEVELS.parse, _PREFERENCES.parse
