"""Counts of dataset files: questions, field sizes, communities, leaks, and how often extreme options are right."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.base.errors import UserError, printable, quote
from utils.benchmarks.checks import comparable, number_in
from utils.benchmarks.personamem.contexts import Profile
from utils.benchmarks.readers import one_line
from utils.benchmarks.task import Task
from utils.data.datasets import DatasetFile, with_profile
from utils.data.leaks import find_leaks

EXTREMES = {"Longest option": max, "Shortest option": min}


@dataclass
class Column:
    """A file's counts, and the paper's figures for it (`Files.paper_files`), if there are any."""

    task: Task
    name: str = ""  # the split's name, or the file's name if the paper does not have this file
    paper: Mapping[str, Any] = field(default_factory=dict)
    num_questions: int = 0
    sizes: dict[str, list[float]] = field(default_factory=dict)  # by field, for the questions that have it
    communities: Counter[str] = field(default_factory=Counter)  # questions by subgroup, or by group without subgroups
    group_of: dict[str, str | None] = field(default_factory=dict)  # by community, None if unknown
    leaks: Counter[str] = field(default_factory=Counter)  # profile posts with a hidden text, by the kind of text
    users: set[str] = field(default_factory=set)  # values of `Task.user_field`
    # For each question with options and the fields that its score needs: group, user, and for each of `EXTREMES`,
    # whether this option is right (None if several options have this length).
    choices: list[dict[str, Any]] = field(default_factory=list)

    @property
    def group(self) -> str:
        return self.paper.get("group", "")

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.group, self.name)))


def read_columns(paths: list[str]) -> list[Column]:
    """Return each file's counts: first the files in the paper, in its order, then the others in the given order."""
    if twice := [path for path, count in Counter(paths).items() if count > 1]:
        raise UserError(f"--inputs_addr {twice[0]}: appears twice; pass each file once")
    columns = {path: count_file(path) for path in paths}
    task = columns[paths[0]].task
    if others := [path for path, column in columns.items() if column.task != task]:
        raise UserError(f"{others[0]}: has a different task from {paths[0]} ({task.name}); use files of one task")
    paper = task.files.paper_files()
    keys = {path: stem if (stem := Path(path).stem) in paper else Path(path).name for path in paths}
    for path, column in columns.items():
        column.paper = paper.get(keys[path], {})
        is_alone = list(keys.values()).count(keys[path]) == 1
        column.name = printable(one_line(column.paper.get("split", keys[path]) if is_alone else path))
    order = [*paper.values(), {}]
    return sorted(columns.values(), key=lambda column: order.index(column.paper))


def count_file(path: str) -> Column:
    """Count a dataset, one record in memory at a time; UserError if a field has the wrong type."""
    file = DatasetFile(path)
    column = None
    for number, record in enumerate(file.scan()):
        where, task = f"{path}: record {number} (id {quote(record['id'])})", file.task
        column = column or Column(task)
        if task.history is not None:  # the profile is a reference to a history
            task.check(record, where, ["profile"])
            record = with_profile(record, path, ["profile"])
        for name, (kind, _) in {**task.files.sizes, task.group_field: (str, "")}.items():
            value = number_in(record, name) if kind is float else record.get(name)
            if value is not None and not isinstance(value, (kind, Profile)):
                wanted = "text" if kind is str else "list"
                raise UserError(f"{where}: field {name!r} is {quote(value)}; it must be a {wanted} or missing")
            if name in task.files.sizes:
                size = value if kind is float or value is None else len(value.split() if kind is str else value)
                column.sizes.setdefault(name, []).extend([] if size is None else [size])
        if (user := record.get(task.user_field)) is not None:
            column.users.add(comparable(user))
        column.leaks.update(find_leaks(task, record))
        place = task.group_of(record)
        if (community := place.get("subgroup", place["group"])) is not None:
            column.communities[community] += 1
            column.group_of[community] = place["group"]
        metric = task.first_metric
        if task.options and metric.compute and record.keys() >= {*task.options.needs, *metric.needs}:
            task.check(record, where, [*task.options.needs, *metric.needs])
            choice = {"group": place["group"], "user": record["id"] if user is None else comparable(user)}
            for name, extreme in EXTREMES.items():
                answer, *tied = task.options.of_length(record, extreme)
                scored = metric.entry(record, [{"value": metric.compute(record, answer)}])
                choice[name] = None if tied else scored["score"] == 1
            column.choices.append(choice)
        column.num_questions += 1
    return column
