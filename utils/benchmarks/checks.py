"""What of a record can be checked for every benchmark: its id, its texts, its profile."""

import json
import math
from collections.abc import Mapping
from typing import Any

from utils.cli.errors import UserError, kind, quote


def check_id(value: Any, where: str) -> str:
    """Ids are strings; numbers are taken as their digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise UserError(f"{where}: field 'id' is {kind(value)}; every question needs its own id, a string")
    return value


def check_text(record: dict[str, Any], where: str, field: str) -> None:
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: field {field!r} is {kind(value)}; it must be a text")
    if not is_unicode(value):
        raise UserError(f"{where}: field {field!r} holds half a character (a lone surrogate); no model can read it")


def number_in(record: Mapping[str, Any], field: str) -> float | None:
    """A number, 0 and up; None where the field is not there, or holds none."""
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


def check_profile(record: dict[str, Any], where: str, field: str = "text") -> None:
    """`field` is the text of an item that is always there."""
    if not isinstance(record.get("profile"), list):
        raise UserError(f"{where}: field 'profile' is {kind(record.get('profile'))}; it must be a list of posts")
    for number, item in enumerate(record["profile"]):
        if not isinstance(item, dict):
            raise UserError(f"{where}: field 'profile', item {number} is {kind(item)}, not a post")
        name = f" (id {quote(item['id'])})" if "id" in item else ""
        check_text(item, f"{where}: field 'profile', item {number}{name}", field)


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
