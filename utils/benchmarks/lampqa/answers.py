"""Read a model's answer: the text in a field of a JSON object, which is found as readers.py describes. Pure.

A list or a dict becomes a text with one line per item ("key: value" for a dict). Numbers, true, null, and prose without
the field are not answers. An answer that breaks off is kept and flagged as truncated. The answer is stripped and made
valid UTF-8 (see `writable`); newlines inside it are kept.
"""

import json
import re
from typing import Any

from utils.benchmarks import readers
from utils.benchmarks.readers import Parsed, nothing, writable

ANSWER_FIELD = "personalized_answer"
_FIELD = readers.field_named(ANSWER_FIELD)
_HALF = "[\ud800-\udbff\ufffd]"  # half a character, which may remain where a text was cut
_HALF_AT_CUT = re.compile(rf"(?<!{_HALF}){_HALF}++\Z")  # tried once per run of halves, so in linear time
ANSWER_SCHEMA = _FIELD.schema({"type": "string", "minLength": 1})


def write_answer(answer: str) -> str:
    """Return the JSON text that `parse_answer` reads as this answer."""
    return json.dumps({ANSWER_FIELD: answer}, ensure_ascii=False)


def parse_answer(text: str, cut: bool = False) -> Parsed:
    """Read the field "personalized_answer"; the value is a text that is not empty, or None.

    cut: the generation ended at max_tokens, so the answer may be incomplete.
    """
    if cut and readers.may_be_draft(text):
        return nothing(readers.DRAFT)
    entry, text = readers.own_object(readers.keep_commands(text), _FIELD)
    truncated = False
    if entry is not None:
        if not isinstance(entry.value, str | list | dict):
            return nothing(f"{ANSWER_FIELD} is {json.dumps(entry.value)}, not a text")
        value = "\n".join(_lines(entry.value))
        how = entry.how if isinstance(entry.value, str) else "repaired"
    else:
        starts = _FIELD.value_starts(text)
        if not starts:
            return readers.missing(text, _FIELD)
        read = (readers.read_string(text, start, cut) for start in reversed(starts))
        if (string := next(filter(None, read), None)) is None:
            return nothing(f"{ANSWER_FIELD} is {readers.describe(text[starts[-1] :])}, not a text")
        (value, truncated), how = string, "repaired"
    if truncated:
        value = _HALF_AT_CUT.sub("", value)
    value = writable(value).strip()
    if readers.is_form(value):
        return nothing(f"{ANSWER_FIELD} is a placeholder")
    return Parsed(value, how, None, truncated) if value else nothing(f"{ANSWER_FIELD} is empty")


def _lines(value: Any) -> list[str]:
    """Return a JSON value as lines: one per item of a list, "key: value" for a dict, nested items below their key."""
    if isinstance(value, dict):
        return [
            line
            for key, item in value.items()
            for line in ([f"{key}:", *_lines(item)] if isinstance(item, list | dict) else [f"{key}: {item}"])
        ]
    return [line for item in value for line in _lines(item)] if isinstance(value, list) else [str(value)]
