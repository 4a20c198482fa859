"""The groups of a table's questions: the task's groups, the user's own categories, and joined subgroups."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from utils.base.errors import UserError, plural, quote
from utils.benchmarks.readers import one_line
from utils.benchmarks.task import ALL, Task
from utils.data.scores import Entry, Scores

NO_GROUP = "(no group)"  # the group of questions whose group is unknown


def with_own_groups(
    task: Task, files: Mapping[str, Scores], joined: Mapping[str, str] = MappingProxyType({})
) -> tuple[Task, dict[str, Scores]]:
    """Return the task and the score files, by path, with a new group for each subgroup that the task does not know.

    The groups are then those of the task that have questions, followed by the new groups in the order of the files.
    Questions without a group appear only in the column of all questions. UserError if `joined` (see `read_boards`)
    names a subgroup that no question has.
    """
    subword = task.group_words[2]
    entries = [entry for scores in files.values() for entry in scores["per_question_scores"]]
    subgroups = dict.fromkeys(map(_subgroup, entries))
    is_one_group = not any(subgroups) and not any(entry["group"] for entry in entries)
    if joined and task.overall:
        raise UserError(f"--groups: not supported for {task.name}; use --by")
    if unknown := [name for name in joined if name not in subgroups]:
        names = ", ".join(quote(name) for name in subgroups if name is not None) or "not known"
        raise UserError(
            f"--groups: no question has the {subword} {quote(unknown[0])}; the {plural(subword)} are {names}"
        )

    def group_of(entry: Entry) -> str:
        name = _subgroup(entry)
        return joined.get(name) or entry["group"] or name or (ALL if is_one_group else NO_GROUP)

    filled = dict.fromkeys(map(group_of, entries))
    if task.overall or (not joined and filled.keys() <= set(task.groups)):
        return task, dict(files)
    filled.pop(NO_GROUP, None)
    ordered = [group for group in task.groups if group in filled]
    groups = (*ordered, *(group for group in filled if group not in ordered))
    placed = {path: regrouped(content, group_of) for path, content in files.items()}

    def place_of(record: dict[str, Any]) -> dict[str, str | None]:
        place = task.group_of(record)
        group = group_of(place)
        return {**place, "group": group if group in groups else None}

    return replace(task, groups=groups, has_own_groups=True, group_of=place_of), placed


def regrouped(scores: Scores, group_of: Callable[[Entry], str]) -> Scores:
    entries = [{**entry, "group": group_of(entry)} for entry in scores["per_question_scores"]]
    return {**scores, "per_question_scores": entries}


def _subgroup(entry: Entry) -> str | None:
    name = entry.get("subgroup")
    return one_line(name) if isinstance(name, str) and name.strip() else None


def named_group(text: str) -> tuple[str, list[str]]:
    name, sign, names = text.partition("=")
    if not (sign and name.strip() and all(map(str.strip, names.split(",")))):
        raise argparse.ArgumentTypeError(f"{quote(text)} is not NAME=A,B,...")
    return one_line(name), list(map(str.strip, names.split(",")))


def joined_by(groups: list[tuple[str, list[str]]] | None) -> dict[str, str]:
    """Return the group of each name in --groups; UserError if a name is in two groups."""
    group_of: dict[str, str] = {}
    for group, names in groups or ():
        for name in names:
            if group_of.setdefault(name, group) != group:
                raise UserError(f"--groups: {quote(name)} is in {group_of[name]} and in {group}; use it once")
    return group_of
