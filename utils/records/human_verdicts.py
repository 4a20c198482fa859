"""People's verdicts on the aspects of a system's answers: read and checked.

A file is `{question id: {aspect number: 0, 1 or 2}}`, the aspects numbered from 0 as the record has them, or that under
`verdicts` beside `responses`, the SHA-256 of the response file whose answers people saw.
"""

import re
from dataclasses import dataclass
from typing import Any

from utils.cli import UserError
from utils.cli.errors import kind, quote
from utils.files.json_files import read_json
from utils.scoring.aspects import MAX_VERDICT


@dataclass(frozen=True)
class HumanVerdicts:
    """What one file holds."""

    path: str
    responses: str | None  # the hash of the response file; None where the file does not tell it
    of: dict[str, dict[int, int]]  # by question id and aspect number


def read_human_verdicts(path: str) -> HumanVerdicts:
    """UserError where the file is neither of the two forms, or a verdict is none of 0, 1 and 2."""
    content = read_json(path)
    responses = None
    if isinstance(content, dict) and "verdicts" in content:
        responses, content = content.get("responses"), content["verdicts"]
        if not isinstance(responses, str):
            raise UserError(f"{path}: field 'responses' is {kind(responses)}; it must be the response file's SHA-256")
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: not an object {{question id: {{aspect number: verdict}}}}, or an empty one")
    verdicts = {key: _verdicts(its, f"{path}: id {quote(key)}") for key, its in content.items()}
    return HumanVerdicts(path, responses, verdicts)


def _verdicts(its: Any, where: str) -> dict[int, int]:
    if not isinstance(its, dict) or not its:
        raise UserError(f'{where}: {quote(its)} where its verdicts belong, such as {{"0": 2, "1": 0}}')
    for number, verdict in its.items():
        if not re.fullmatch("0|[1-9][0-9]{0,3}", number):
            raise UserError(f"{where}: {quote(number)} is not the number of an aspect; they are numbered from 0")
        if type(verdict) is not int or not 0 <= verdict <= MAX_VERDICT:  # True == 1 and 1.0 == 1
            raise UserError(f"{where}: aspect {number}: {quote(verdict)} is not a verdict: the integer 0, 1 or 2")
    return {int(number): verdict for number, verdict in its.items()}
