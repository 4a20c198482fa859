"""The settings that decide an output, and how two of them differ."""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

REPORTED = "reported_model"  # which model a server has by its own word, where that is known
# What a run finds out, and a later one does not know yet when it compares.
FOUND_OUT = (REPORTED, "num_beams", "fusion", "chose_checkpoint")


def differing_names(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The settings in which two outputs differ; what one of them has not found out is no difference."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [name for name in names if name not in FOUND_OUT or None not in (old.get(name), new.get(name))]


def differences(old: dict[str, Any], new: dict[str, Any], but: Collection[str] = ()) -> str:
    """The settings in which two outputs differ, as `name: old, now new`; of long values what differs in them.

    Those named in `but` may differ.
    """
    old, new = ({name: value for name, value in one.items() if name not in but} for one in (old, new))
    found = [f"{name}: {_change(one, other)}" for name, one, other in _differing(old, new)]
    return "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _differing(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of each setting that differs, None where there is none; also within a setting."""
    for name in differing_names(old, new):
        one, other = old.get(name), new.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from ((f"{name}: {inner}", *values) for inner, *values in _differing(one, other))
        else:
            yield name, one, other


def _change(old: Any, new: Any) -> str:
    texts = [json.dumps(value, ensure_ascii=False) for value in (old, new)]
    if all(re.fullmatch('"[0-9a-f]{64}"', text) for text in texts):
        return "other content (SHA-256 {}, now {})".format(*(text.strip('"') for text in tell_apart(*texts)))
    return ", now ".join(tell_apart(*texts))


def tell_apart(one: str, other: str, length: int = 60) -> tuple[str, str]:
    """Two different texts as they are shown: of long ones the part that differs, and of hashes the beginning."""
    short = tuple(re.sub(r"(?<![0-9a-f])([0-9a-f]{12})[0-9a-f]{28,}", r"\1…", text) for text in (one, other))
    one, other = short if short[0] != short[1] else (one, other)
    before = _num_alike(one, other)
    after = _num_alike(one[before:][::-1], other[before:][::-1])
    return _part(one, before, after, length), _part(other, before, after, length)


def _num_alike(one: str, other: str) -> int:
    """How many of their first characters are the same."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _part(text: str, before: int, after: int, length: int) -> str:
    """At most `length` characters of a text, of which the first `before` and the last `after` matter least."""
    if len(text) <= length:
        return text
    start = max(before - length // 3, 0)
    end = min(len(text) - after + length // 3, start + length, len(text))
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
