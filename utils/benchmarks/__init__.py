"""Benchmarks, a file each; a record says which one it is of."""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from utils.cli.errors import UserError, quote

if TYPE_CHECKING:
    from utils.benchmarks.task import Task

FIRST = "LaMP-QA"  # of a record or a score file that doesn't say


@cache
def tasks() -> "dict[str, Task]":
    """All benchmarks by name: each is the TASK, or one of the TASKS, of a file in this folder, the first one first."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    found = {task.name: task for one in modules for task in vars(one).get("TASKS", [vars(one).get("TASK")]) if task}
    return {FIRST: found.pop(FIRST), **found}


def metric_names() -> list[str]:
    return list(dict.fromkeys(name for task in tasks().values() for name in task.metrics))


def task_of(where: str, records: Iterable[Mapping[str, Any]]) -> "Task":
    """The benchmark that all of these records are of; UserError, beginning with `where`, of an unknown or several."""
    names: dict[str, None] = {}
    for name in (record.get("task", FIRST) for record in records):
        if not isinstance(name, str) or name not in tasks():
            raise UserError(f"{where}: there is no task {quote(name)}; the tasks are {', '.join(tasks())}")
        names[name] = None
    first, *others = names
    if others:
        raise UserError(f"{where}: records of {quote(first)} and of {quote(others[0])}; one file is of one task")
    return tasks()[first]
