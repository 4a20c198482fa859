"""Read a model's answer: the text of a field of a JSON object, read as json_text.py describes. Pure.

The last object that has the field wins. A list or a dict becomes text, one line per item ("key: value" for a dict).
Numbers, true, null, and prose without the field are not answers. A value that the text's end cuts is kept and flagged
as truncated. White space at both ends and NULs are dropped, CRLF becomes LF, and a lone surrogate becomes U+FFFD, so
that the value can be written as UTF-8. Newlines inside stay.
"""

import json
import re

from utils.parsing import Parsed, json_text, nothing, writable

ANSWER_FIELD = "personalized_answer"
_FIELD = json_text.field_named(ANSWER_FIELD)
_OPENS = tuple("\"'“”‘’[{")  # characters that open a text or a list
_HALF = "[\ud800-\udbff\ufffd]"  # half a character
_HALF_AT_CUT = re.compile(rf"(?<!{_HALF}){_HALF}++\Z")  # tried once per run of halves, so in linear time
ANSWER_SCHEMA = _FIELD.schema({"type": "string", "minLength": 1})


def write_answer(answer: str) -> str:
    """Return the JSON object that `parse_answer` reads as this answer."""
    return json.dumps({ANSWER_FIELD: answer}, ensure_ascii=False)


def parse_answer(text: str, cut: bool = False) -> Parsed:
    """Read the string field "personalized_answer"; the value is never empty.

    cut: the generation ended at max_tokens, so the end of the text need not be the end of the answer.
    """
    if cut and json_text.may_be_draft(text):
        return nothing(json_text.DRAFT)
    whole = json_text.keep_commands(text)
    text = json_text.own_turn(whole)
    found, rest = json_text.objects_with(text, _FIELD)
    # A last object that is not valid JSON counts too, unless the text was cut inside it.
    if found and (cut or not any(rest[end : end + 1] in _OPENS for end in json_text.key_ends(rest, _FIELD))):
        last = next((one for one in reversed(found) if one.value and not isinstance(one.value, bool | int)), found[-1])
        if isinstance(last.value, str):
            return _answer(last.value, last.how if text == whole else "repaired")
        rest = text[last.start : last.end]
    starts = json_text.value_starts(rest, _FIELD)
    if not starts:
        return json_text.missing(text, _FIELD)
    start = next((start for start in reversed(starts) if rest[start : start + 1] in _OPENS), starts[-1])
    read = json_text.read_text(rest, start, cut)
    if read is None:
        return nothing(f"{ANSWER_FIELD} is {json_text.describe(rest, start)}, not a text")
    return _answer(read[0], "repaired", truncated=read[1])


def _answer(value: str, how: str, truncated: bool = False) -> Parsed:
    if truncated:
        value = _HALF_AT_CUT.sub("", value)
    value = writable(value).strip()
    if json_text.is_form(value):
        return nothing(f"{ANSWER_FIELD} is a placeholder")
    return Parsed(value, how, None, truncated) if value else nothing(f"{ANSWER_FIELD} is empty")
