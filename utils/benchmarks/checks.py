"""What of a record can be checked for every benchmark: its id, the forms of its fields."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from utils.cli.errors import UserError, kind


def check_id(value: Any, where: str) -> str:
    """Ids are strings; numbers are taken as their digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise UserError(f"{where}: field 'id' is {kind(value)}; every question needs its own id, a string")
    return value


Text = Annotated[str, msgspec.Meta(pattern=r"\S")]  # with more than white space


class Post(msgspec.Struct):
    """What an item of a profile has at least."""

    text: Text


def check_field(record: Mapping[str, Any], where: str, name: str, form: Any = Text) -> None:
    """Raise UserError unless a field has this form, a type as msgspec takes it; objects may have more fields."""
    try:
        check_form(record.get(name), form, where, name)
    except UserError:
        if name in record:
            raise
        raise UserError(f"{where}: no field {name!r}") from None


def check_form(value: Any, form: Any, where: str, name: str = "") -> None:
    """Raise UserError, which begins with `where`, unless a value has this form; `name` is the field that it is from."""
    try:
        msgspec.json.encode(msgspec.convert(value, form))
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        problem = problem.replace("matching regex '\\\\S'", "that is not empty")
        place = (name + place.removesuffix("`")).removeprefix(".")
    except UnicodeEncodeError:
        problem, place = "holds half a character (a lone surrogate); no file or model can", name
    else:
        return
    raise UserError(f"{where}: field {place!r}: {problem}" if place else f"{where}: {problem}")


def number_in(record: Mapping[str, Any], field: str) -> float | None:
    """Return a number, 0 and up; None where the field is not there, or holds none."""
    try:
        found = float(str(record.get(field)).strip().removesuffix("%"))
    except ValueError:
        return None
    return found if 0 <= found < math.inf else None


def selection_of(response: dict[str, Any]) -> dict[str, Any]:
    """What utils/select_responses.py leaves in a response that it selected: its sample's number, and its score."""
    its = {name: response[name] for name in ("sample", "score") if name in response}
    return its if len(its) == 2 else {}


def is_unicode(text: str) -> bool:
    """JSON can hold half of a surrogate pair as an escape; UTF-8 and tokenizers can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_json(record: dict[str, Any], where: str) -> None:
    """Fields we don't know are kept, so they must be such as can be written again."""
    try:
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: holds half a character (a lone surrogate); no file can") from None
    except ValueError:
        raise UserError(f"{where}: holds NaN or an infinite number; JSON has none") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
