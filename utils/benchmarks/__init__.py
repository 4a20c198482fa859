"""Benchmarks, each in a file or folder that defines one or more tasks; a record names its task."""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from utils.base.errors import UserError, quote

if TYPE_CHECKING:
    from utils.benchmarks.task import Task

FIRST = "LaMP-QA"  # the task of records and score files that do not name one


@cache
def tasks() -> "dict[str, Task]":
    """Return all tasks by name, `FIRST` first: the `TASK` or the `TASKS` of each file below this folder."""
    names = [info.name for info in pkgutil.walk_packages(__path__, f"{__name__}.") if not info.ispkg]
    modules = list(map(importlib.import_module, names))
    by_name = {
        task.name: task for module in modules for task in vars(module).get("TASKS", [vars(module).get("TASK")]) if task
    }
    return {FIRST: by_name.pop(FIRST), **by_name}


def metric_names() -> list[str]:
    return list(dict.fromkeys(name for task in tasks().values() for name in task.metrics))


def task_of(where: str, records: Iterable[Mapping[str, Any]]) -> "Task":
    """Return the task of all records; UserError, beginning with `where`, if it is unknown or there are several."""
    names: dict[str, None] = {}
    for name in (record.get("task", FIRST) for record in records):
        if not isinstance(name, str) or name not in tasks():
            raise UserError(f"{where}: unknown task {quote(name)}; the tasks are {', '.join(tasks())}")
        names[name] = None
    first, *others = names
    if others:
        raise UserError(f"{where}: has records of {quote(first)} and {quote(others[0])}; use one file per task")
    return tasks()[first]
