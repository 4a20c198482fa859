"""The same questions and scores in other groups than the benchmark's own: what --by of tables and figures shows."""

from dataclasses import replace

from utils.cli import UserError
from utils.cli.errors import kind, quote
from utils.tables.formats import plural
from utils.tables.system_scores import Board


def divide(board: Board, name: str) -> Board:
    """A board whose groups are the values, of those that any question has, of one of `Task.divisions`.

    Raises:
        UserError: the benchmark has no such division, or a score file does not tell it.
    """
    task = board.task
    if name not in task.divisions:
        told = f"it has {', '.join(task.divisions)}" if task.divisions else "leave it out"
        raise UserError(f"--by {quote(name)}: the questions of {task.name} are not told apart by this; {told}")
    found: set[str] = set()
    for system in board.systems:
        for path, entries in system.files.items():
            for entry in entries:
                if not isinstance(entry.get(name), str):
                    told = f"question {quote(entry['id'])}: field {name!r} is {kind(entry.get(name))}, not a text"
                    remedy = "files of before don't have it: evaluate_responses.py makes them anew with --overwrite"
                    raise UserError(f"{path}: {told}\n  {remedy}")
                found.add(entry[name])
    order = [value for value in task.divisions[name] if value in found]
    groups = (*order, *sorted(found - set(order)))
    divided = replace(task, groups=groups, group_words=(name, plural(name), ""), short={})
    systems = []
    for system in board.systems:
        files = {path: [{**entry, "group": entry[name]} for entry in its] for path, its in system.files.items()}
        systems.append(replace(system, task=divided, files=files))
    return replace(board, systems=systems)
