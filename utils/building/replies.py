"""Read a model's judgments of posts while a dataset is built; fields are found as json_text.py describes. Pure.

Needs: the boolean "needs_personalization", also as the text "true" or "false".

Aspects: an object with the boolean "enough_details" and, if that is true, the list "aspects". Each item has the texts
"aspect", "evidence" and "reason". Only valid JSON is read. The list is usable only if it has at least one item, no text
except a reason is empty, and no aspect is a placeholder. If "enough_details" is false, there are no aspects, whatever
the list has. If it is missing, it counts as true.
"""

from typing import Any

from utils.benchmarks import json_text
from utils.benchmarks.readers import Parsed, nothing, writable

_NEEDS = json_text.field_named("needs_personalization")
_ENOUGH, _ASPECTS = json_text.field_named("enough_details"), json_text.field_named("aspects")
ASPECT_TEXTS = ("aspect", "evidence", "reason")
_BOOLEAN = json_text.pattern(r"[\"']?(true|false)\b")

NEEDS_SCHEMA = _NEEDS.schema({"type": "boolean"})
_ITEM = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ASPECT_TEXTS},
    "required": list(ASPECT_TEXTS),
    "additionalProperties": False,
}
ASPECTS_SCHEMA = {
    "type": "object",
    "properties": {_ENOUGH.name: {"type": "boolean"}, _ASPECTS.name: {"type": "array", "items": _ITEM}},
    "required": [_ENOUGH.name, _ASPECTS.name],
    "additionalProperties": False,
}


def parse_needs(text: str, cut: bool = False) -> Parsed:
    """Read whether a good answer depends on the asker; the value is a boolean. One that max_tokens cut is not read."""
    entry, text = json_text.own_object(text, _NEEDS)
    if entry is not None:
        value = _boolean(entry.value)
        how = entry.how if value is entry.value else "repaired"
        return _no_boolean(_NEEDS) if value is None else Parsed(value, how, None)
    if not (starts := _NEEDS.value_starts(text)):
        return json_text.missing(text, _NEEDS)
    if (match := _BOOLEAN.match(text, starts[-1])) is None:
        return nothing(f"{_NEEDS.name} is {json_text.describe(text[starts[-1] :])}, not true or false")
    return Parsed(match[1].lower() == "true", "repaired", None)


def parse_aspects(text: str, cut: bool = False) -> Parsed:
    """Read a post's aspects, a list of {"aspect", "evidence", "reason"}; it is empty if the post lacks details."""
    entry, text = json_text.own_object(json_text.keep_commands(text), _ENOUGH, _ASPECTS)
    if entry is None:
        return nothing("no valid JSON object with aspects" if text.strip() else "the text is empty")
    listed, enough = _ASPECTS.value_in(entry.content), _ENOUGH.value_in(entry.content)
    if _boolean(enough) is False:
        return Parsed([], entry.how, None)
    if enough is not None and _boolean(enough) is None:
        return _no_boolean(_ENOUGH)
    if not isinstance(listed, list) or not listed:
        return nothing("aspects is not a list, or is empty, though there are enough details")
    aspects = [_aspect(item) for item in listed]
    if None in aspects:
        return nothing(f"aspect {aspects.index(None)} lacks 'aspect', 'evidence' or 'reason'")
    return Parsed(aspects, "repaired" if enough is None else entry.how, None)


def _aspect(item: Any) -> dict[str, str] | None:
    """Return an item's texts; None if one is missing, aspect or evidence is empty, or the aspect is a placeholder."""
    if not isinstance(item, dict) or not all(isinstance(item.get(name), str) for name in ASPECT_TEXTS):
        return None
    texts = {name: writable(item[name]).strip() for name in ASPECT_TEXTS}
    texts["aspect"] = " ".join(texts["aspect"].split())
    return texts if texts["aspect"] and texts["evidence"] and not json_text.is_form(texts["aspect"]) else None


def _boolean(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _no_boolean(field: Any) -> Parsed:
    return nothing(f"{field.name} is neither true nor false")
