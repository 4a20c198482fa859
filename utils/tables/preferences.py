"""Preferences between two systems, the first and the second: people's choices, which their file holds."""

from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.json_files import read_json

PREFERENCES = {"first": 1, "tie": 0, "second": -1}  # a human's choice as a number, larger for the first system


def read_human(path: str) -> dict[str, list[str]]:
    """The choices of the raters by question id, one or more a question, each one of `PREFERENCES`.

    Raises:
        UserError: a question has neither a choice nor a list of them, or there are no questions.
    """
    choices = read_json(path)
    if not isinstance(choices, dict) or not choices:
        raise UserError(f'{path}: not an object {{question id: "first", "second" or "tie"}}, or an empty one')
    choices = {question_id: [its] if isinstance(its, str) else its for question_id, its in choices.items()}
    for question_id, its in choices.items():
        where = f"{path}: id {quote(question_id)}"
        if not isinstance(its, list) or not its:
            raise UserError(f'{where}: {quote(its)} where "first", "second" or "tie" belongs, or a list of these')
        for choice in its:
            if not isinstance(choice, str) or choice not in PREFERENCES:
                raise UserError(f'{where}: {quote(choice)} where "first", "second" or "tie" belongs')
    return choices
