"""The record of a dataset, and the checks that all benchmarks share: of ids, and of the types of fields."""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import msgspec

from utils.base.errors import UserError, kind, quote


class Item(TypedDict, total=False):
    """A text from the user's history; a benchmark may add fields."""

    id: str
    text: str


class Record(TypedDict, total=False):
    """One question of a dataset; a benchmark adds its own fields, and unknown fields are kept.

    `task` is the benchmark's name; a record without it is LaMP-QA's.
    """

    id: str
    task: str
    question: str
    profile: list[Item]


_WHOLE = re.compile(r"(-?\d+)\.0*")  # 101.0, as pandas writes whole numbers of a column with a gap
_ROUNDED = re.compile(
    r"-?(?:\d+(?:[.,]\d+)?[eE]\+|\d+[.,]\d+[eE])\d+"
)  # 1.23457E+17, as a spreadsheet writes a long number
DEEPEST = 500  # most levels of nesting; Python's json can read about 990, or fewer deep in the call stack
MOST_EXACT = 2**53  # a float holds every whole number up to this one


def comparable(value: Any) -> str:
    """Return an id or a user's name as a text for comparisons, whatever its type in a file.

    White space at both ends and the decimals of whole numbers are dropped: 101, 101.0, "101.0" and " 101" are "101".
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def check_id(value: Any, where: str, name: str = "id") -> str:
    """Return an id in the form of `comparable`; UserError if it is empty, of another type, or a rounded number."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    text = comparable(value) if isinstance(value, str) or (is_whole and not isinstance(value, bool)) else ""
    if not text or not is_unicode(text):
        needs = (
            "every question needs a unique string as id" if name == "id" else "it must be a string or a whole number"
        )
        raise UserError(f"{where}: field {name!r} is {kind(value)}; {needs}")
    if _ROUNDED.fullmatch(text) or (isinstance(value, float) and abs(value) > MOST_EXACT):
        problem = f"field {name!r} is {quote(text)}, a long number that was rounded"
        raise UserError(f"{where}: {problem}\n  export it again, with this column as text")
    return text


Text = Annotated[str, msgspec.Meta(pattern=r"\S")]  # a text with more than white space


class Identified(msgspec.Struct, kw_only=True):
    """An item of a profile. Its id is optional, and may not be unique."""

    id: str | int | None = None


class Post(Identified, kw_only=True):
    """The fields that every item of a profile has."""

    text: Text


def check_field(record: Mapping[str, Any], where: str, name: str, form: Any = Text) -> None:
    """Raise UserError unless a record's field has the msgspec type `form`; objects may have further fields."""
    try:
        check_form(record.get(name), form, where, name)
    except UserError:
        if name in record:
            raise
        raise UserError(f"{where}: no field {name!r}") from None


def check_form(value: Any, form: Any, where: str, name: str = "") -> None:
    """Raise UserError, beginning with `where`, unless a value has this form; `name` is the value's field."""
    try:
        msgspec.json.encode(msgspec.convert(value, form))
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        problem = problem.replace("matching regex '\\\\S'", "that is not empty")
        place = (name + place.removesuffix("`")).removeprefix(".")
    except UnicodeEncodeError:
        problem, place = "has half a character (a lone surrogate), which UTF-8 cannot encode", name
    else:
        return
    raise UserError(f"{where}: field {place!r}: {problem}" if place else f"{where}: {problem}")


def number_in(record: Mapping[str, Any], field: str) -> float | None:
    """Return the number in a field; None if it is missing, negative, infinite or not a number."""
    try:
        number = float(str(record.get(field)).strip().removesuffix("%"))
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def selection_of(response: dict[str, Any]) -> dict[str, Any]:
    """Return the sample number and score that utils/select_responses.py adds to a response; empty without them."""
    selection = {name: response[name] for name in ("sample", "score") if name in response}
    return selection if len(selection) == 2 else {}


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode a text; it cannot encode a lone surrogate, which JSON's escapes allow."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_json(record: dict[str, Any], where: str) -> None:
    """Raise UserError unless a record, whose unknown fields are kept, can be written as JSON again."""
    level: list[Any] = [record]
    depth = 0
    while level:
        if depth == DEEPEST:
            raise UserError(f"{where}: nested too deeply (more than {DEEPEST} levels)")
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        depth += 1
    try:
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: has half a character (a lone surrogate), which UTF-8 cannot encode") from None
    except ValueError:
        raise UserError(f"{where}: has NaN or an infinite number, which JSON does not allow") from None
