"""The page of utils/report.py: what it shows, as data, and the template around that."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from utils.benchmarks.task import Record, Task
from utils.scoring.aspects import VERDICTS
from utils.scoring.means import mean
from utils.tables.formats import plural
from utils.tables.score_table import means_table
from utils.tables.system_scores import MACRO, Entry, System, points_of, unplaced_point

TEMPLATE = Path(__file__).with_name("report_template.html")
UNKNOWN = "unknown"  # the group of questions that none is known for
NUMBERS = dict(enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 2))

Shown = dict[str, Any]  # what goes into the page as JSON


@dataclass
class Datasets:
    """Questions by id, and their profiles by the hash of the file they are from: each ranks them in its own way."""

    task: Task
    questions: dict[str, Record] = field(default_factory=dict)
    profiles: dict[str, dict[str, list[Any]]] = field(default_factory=dict)


@dataclass
class Side:
    """What the report shows of one system, by question id."""

    name: str
    responses: dict[str, list[Shown]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)  # hash of the dataset file it was answered from, where known
    verdicts: dict[str, Entry] | None = None  # entries of the score files, None for a system that has none
    plans: dict[str, list[Shown]] = field(default_factory=dict)


def rubric(task: Task, record: Record) -> list[list[str]]:
    """What verdicts are on, title first; nothing where they are on whole answers."""
    parts = next((metric.parts for metric in task.metrics.values() if metric.parts), None)
    return parts(record) if parts else []


def is_whole(entry: Entry) -> bool:
    """Was the answer judged as a whole, not aspect by aspect?"""
    return any("aspect" not in detail for detail in entry["details"])


def posts_used(side: Side, question_id: str, datasets: Datasets) -> list[str] | None:
    """The posts that stood in the prompt, best first; None where it is not known which they were."""
    number = side.responses[question_id][0].get("num_contexts_used") or 0
    profile = datasets.profiles.get(side.inputs.get(question_id, ""), {}).get(question_id)
    if number and profile is None:
        return None
    return [datasets.task.item_text(post) for post in (profile or [])[:number]]


# The first page and the list of questions


def make_index(sides: list[Side], datasets: Datasets, systems: list[System], notes: list[str]) -> Shown:
    """What the first page and the list of questions need; the texts come apart, to be parsed when they are looked at.

    The table and the panels hold the systems with scores, by their place in `sides`: "judged".
    """
    entries = [index_entry(sides, datasets.task, record) for record in datasets.questions.values()]
    names = [side.name for side in sides]
    table = means_table(systems) if systems else None
    rows = [[{"text": cell.text, "bold": cell.bold} for cell in row] for row in table.rows] if table else []
    return {
        "systems": names,
        "judged": [names.index(system.name) for system in systems],
        "verdicts": VERDICTS,
        "table": {"columns": table.columns, "rows": rows} if table else None,
        "panels": score_panels(systems) if systems else [],
        "subgroups": heat_map(entries, datasets.task),
        "notes": notes,
        "questions": entries,
    }


def score_panels(systems: list[System]) -> list[Shown]:
    """Mean scores with 95% intervals, a `Point` a system: a panel a group with questions, and the average.

    The means are the table's, which has no column for questions of no known group; what it would have, stands here too.
    """
    task = systems[0].task
    asked = {entry["group"] for system in systems for entry in system.entries}
    by_system = [points_of(system) for system in systems]
    panels = {group: [points[group] for points in by_system] for group in task.groups if group in asked}
    if None in asked:
        panels[UNKNOWN] = list(map(unplaced_point, systems))
    if len(task.groups) > 1:
        panels[MACRO] = [points[MACRO] for points in by_system]
    return [{"group": group, "points": list(map(asdict, points))} for group, points in panels.items()]


def heat_map(questions: list[Shown], task: Task) -> list[Shown]:
    """Of each subgroup in the page's index, by group and name, a cell a system: [mean or None, number of scores]."""
    found: dict[tuple[str, str], list[Shown]] = {}
    for question in questions:
        if question["subgroup"] is not None:
            found.setdefault((question["group"], question["subgroup"]), []).append(question)
    order = [*task.groups, UNKNOWN]
    rows = []
    for (group, subgroup), its in sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        by_system = zip(*(question["scores"] for question in its), strict=True)
        known = [[score for score in scores if score is not None] for scores in by_system]
        cells = [[mean(scores), len(scores)] for scores in known]
        rows.append({"subgroup": subgroup, "group": group, "questions": len(its), "cells": cells})
    return rows


def index_entry(sides: list[Side], task: Task, record: Record) -> Shown:
    """A question with each system's score (None where it has none) and what failed."""
    place = task.place(record)
    return {
        "id": record["id"],
        "question": record["question"],
        "subgroup": (as_text(place["subgroup"]) or UNKNOWN) if "subgroup" in place else None,
        "group": place["group"] or UNKNOWN,
        "scores": [(side.verdicts or {}).get(record["id"], {}).get("score") for side in sides],
        "failures": [failures(side, record["id"]) for side in sides],
    }


def failures(side: Side, question_id: str) -> list[str]:
    """Any of "no answer" and "unscored": an aspect without a verdict, or the whole question in a system with scores.

    The first is the system's failure and may have a score, 0; the second is the judge's.
    """
    [answer, *_] = side.responses.get(question_id, [{"output": None}])
    found = [] if (answer["output"] or "").strip() else ["no answer"]
    if side.verdicts is not None:
        entry = side.verdicts.get(question_id)
        if entry is None or any(detail["score"] is None for detail in entry["details"]):
            found.append("unscored")
    return found


# The texts of a question


def make_texts(sides: list[Side], datasets: Datasets) -> Iterator[Shown]:
    """All texts of each question, in the order of the index."""
    task = datasets.task
    needed = dict.fromkeys(name for metric in task.metrics.values() for name in metric.needs)
    for question_id, record in datasets.questions.items():
        posts: dict[str, int] = {}  # the place of each text: systems share most of them
        answers = [describe_answer(side, question_id, datasets, posts) for side in sides]
        unseen = {name: as_text(record.get(name)) for name in needed if name not in task.gold_plan_needs}
        yield {"unseen": unseen, "aspects": rubric(task, record), "posts": list(posts), "answers": answers}


def describe_answer(side: Side, question_id: str, datasets: Datasets, posts: dict[str, int]) -> Shown | None:
    """The judged answer of a system with its plan and verdicts; adds to `posts` those it used. None without one."""
    if question_id not in side.responses:
        return None
    answer, *others = side.responses[question_id]
    used = posts_used(side, question_id, datasets)
    plan = side.plans.get(question_id, [{}])[0]
    titles = plan["aspects"] if plan else (as_text(answer.get("plan")) or "").splitlines()
    entry = (side.verdicts or {}).get(question_id, {"details": []})
    return {
        "output": answer["output"],
        "raw": None if answer["output"] else as_text(answer.get("raw")),  # else it says the same once more
        "answered": entry.get("answered", True),
        "level": is_whole(entry),
        "notes": answer_notes(answer, len(others)),
        "plan": titles or [],
        "plan_raw": as_text(plan.get("raw")),
        "posts": None if used is None else [posts.setdefault(text, len(posts)) for text in used],
        "verdicts": [[one["score"], as_text(one.get("raw")), as_text(one.get("reason"))] for one in entry["details"]],
    }


def answer_notes(answer: Shown, num_others: int) -> list[str]:
    said = {field: as_text(answer.get(field)) for field in ("reason", "no_plan", "num_contexts_dropped")}
    notes = {
        f"reason: {said['reason']}": answer.get("reason"),
        f"answered without a plan: {said['no_plan']}": answer.get("no_plan"),
        "cut at --max_tokens": answer.get("truncated"),
        "read from damaged JSON": answer.get("parsed") == "repaired",
        f"{said['num_contexts_dropped']} posts left out for length": answer.get("num_contexts_dropped"),
        f"the first of {num_others + 1} answers": num_others,
    }
    return [note for note, is_so in notes.items() if is_so]


def as_text(value: Any) -> str | None:
    """A field that may hold anything, for others' files do."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


# The page


def make_page(sides: list[Side], datasets: Datasets, systems: list[System], notes: list[str]) -> str:
    """The template with its data, and the policy that lets its own style and script run and nothing else."""
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, text in words(datasets.task).items():
        page = page.replace(f"{{{{{name}}}}}", text)
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1] for tag in ("style", "script"))
    policy = f"default-src 'none'; style-src '{source_hash(style)}'; script-src '{source_hash(script)}'; "
    page = page.replace("{{policy}}", policy + "base-uri 'none'; form-action 'none'")
    head, rest = page.split("{{index}}")
    middle, end = rest.split("{{texts}}")
    texts = enumerate(make_texts(sides, datasets))
    blocks = (f'<script type="application/json" id="text-{i}">{to_json(text)}</script>' for i, text in texts)
    return f"{head}{to_json(make_index(sides, datasets, systems, notes))}{middle}" + "\n".join(blocks) + end


def words(task: Task) -> dict[str, str]:
    """What the template's places for words hold."""
    group, groups, subgroup = task.group_words
    number = len(task.groups)
    average = f", the average (macro) the mean of the {NUMBERS.get(number, number)} {groups}" if number > 1 else ""
    lower = {"group": group, "subgroup": subgroup, "subgroups": plural(subgroup)}
    upper = {name.capitalize(): text.capitalize() for name, text in lower.items()}
    return {"task": task.name, "average": average, **lower, **upper}


def source_hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def to_json(value: Any) -> str:
    """JSON that no HTML parser sees a tag, an end of a script or a comment in: pure ASCII without < > &.

    Escaped, half a surrogate pair or a null byte is ASCII too.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
