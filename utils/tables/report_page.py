"""The page of utils/report.py: what it shows, as data, and the template around that."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from utils.benchmarks.task import Item, Record, Task
from utils.records.contexts import Profile
from utils.scoring.aspects import VERDICTS
from utils.scoring.means import mean
from utils.tables.columns import Point, columns_of, points_of, unplaced_point
from utils.tables.divisions import divide
from utils.tables.formats import plural
from utils.tables.report_history import RULE, show_history
from utils.tables.score_table import means_table
from utils.tables.system_scores import Board, Entry, System, cluster_names

TEMPLATE = Path(__file__).with_name("report_template.html")
HELPERS = Path(__file__).with_name("page_helpers.js")  # how every page makes text of what models and users wrote
UNKNOWN = "unknown"  # the group of questions that none is known for
NUMBERS = dict(enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 2))

Shown = dict[str, Any]  # what goes into the page as JSON


@dataclass
class Datasets:
    """Questions by id, and their profiles by the hash of the file they are from: each ranks them in its own way."""

    tasks: list[Task]  # several only of one benchmark
    task_of_file: dict[str, Task] = field(default_factory=dict)  # by its hash
    questions: dict[str, Record] = field(default_factory=dict)
    profiles: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def key(self, task: Task, question_id: str) -> str:
        """What a question is called here: two tasks may have the same ids."""
        return question_id if len(self.tasks) == 1 else f"{task.name}/{question_id}"

    def task_of(self, record: Record) -> Task:
        name = record.get("task", self.tasks[0].name)
        return next(task for task in self.tasks if task.name == name)


@dataclass
class Side:
    """What the report shows of one system, by question id."""

    name: str
    responses: dict[str, list[Shown]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)  # hash of the dataset file it was answered from, where known
    # Entries of the score files, by the title of their board and by question; None for a system that has none.
    verdicts: dict[str, dict[str, Entry]] | None = None
    plans: dict[str, list[Shown]] = field(default_factory=dict)

    def entries(self, question_id: str, boards: list[Board]) -> list[Entry | None]:
        """Of a question one for each board of its task."""
        return [(self.verdicts or {}).get(board.title, {}).get(question_id) for board in boards]


def rubric_parts(task: Task) -> Callable[[Record], list[Any]] | None:
    return next((metric.parts for metric in task.metrics.values() if metric.parts), None)


def rubric(task: Task, record: Record) -> list[list[str]]:
    """What verdicts are on, title first; nothing where they are on whole answers."""
    parts = rubric_parts(task)
    return parts(record) if parts else []


def has_options(task: Task, record: Record) -> bool:
    """Does the record hold the texts that an answer is one of? Whether they are such, `Task.check` says."""
    return task.options is not None and record.keys() >= set(task.options.needs)


def is_whole(entry: Entry) -> bool:
    """Was the answer judged as a whole, not aspect by aspect?"""
    return any("aspect" not in detail for detail in entry["details"])


def profile_of(side: Side, question_id: str, datasets: Datasets) -> Sequence[Item] | None:
    """The profile that a question was answered from; None where that is not known, or not at hand."""
    return datasets.profiles.get(side.inputs.get(question_id, ""), {}).get(question_id)


def items_used(side: Side, question_id: str, datasets: Datasets) -> list[Item] | None:
    """The items that stood in the prompt, best first; None where it is not known which they were.

    There are none where all of a history was given, or what of it there was room for.
    """
    answer, profile = side.responses[question_id][0], profile_of(side, question_id, datasets)
    number = answer.get("num_contexts_used") or 0
    if not number or profile is None:
        return None if number else []
    its = copy(profile)  # what it finds out of a long history goes with the copy
    whole = isinstance(its, Profile) and number + (answer.get("num_contexts_dropped") or 0) >= len(its)
    return [] if whole else its[:number]


def history_of(question_id: str, datasets: Datasets) -> Profile | None:
    """The history that a question shares with others; all datasets refer to the same one."""
    found = (profiles.get(question_id) for profiles in datasets.profiles.values())
    return next((profile for profile in found if isinstance(profile, Profile)), None)


# The first page and the list of questions


def make_index(
    sides: list[Side], datasets: Datasets, boards: list[Board], controls: list[System], notes: list[str]
) -> Shown:
    """What the first page and the list of questions need; the texts come apart, to be parsed when they are looked at.

    The table and the panels hold the systems with scores, by their place in `sides`: "judged".
    """
    entries = [index_entry(sides, datasets, boards, record) for record in datasets.questions.values()]
    has_histories = any(history_of(question_id, datasets) for question_id in datasets.questions)
    names = [side.name for side in sides]
    labels = {system.name: system.label for board in boards for system in board.systems}
    table = means_table(boards) if boards else None
    rows = [[{"text": cell.text, "bold": cell.bold} for cell in row] for row in table.rows] if table else []
    return {
        "systems": [labels.get(name) or name for name in names],
        "judged": [names.index(name) for name in boards[0].rows] if boards else [],
        "verdicts": VERDICTS,
        "measures": {task.name: measures(boards_of(task, boards)) for task in datasets.tasks},
        "table": {"columns": table.heads(), "rows": rows} if table else None,
        "panels": [panel for board in boards for panel in (*score_panels(board, controls), *division_panels(board))],
        "subgroups": heat_map(entries, datasets.tasks),
        "notes": notes,
        "questions": entries,
        **({"turns": RULE} if has_histories else {}),
    }


def boards_of(task: Task, boards: list[Board]) -> list[Board]:
    return [board for board in boards if board.task == task]


def measures(boards: list[Board]) -> list[Shown]:
    """What the scores of a task are, the one of the list and the filters first."""
    return [
        {
            "name": "The whole answer" if board.is_alone else board.metric_name,
            "worst": board.metric.worst,
            "error": board.metric.lower_is_better,
            "judged": board.metric.judge is not None,
        }
        for board in boards
    ]


def score_panels(board: Board, controls: Sequence[System] = ()) -> list[Shown]:
    """Mean scores with 95% intervals, a `Point` a row: a panel a group with questions, and the average.

    The means are the table's, which has no column for questions of no known group; what it would have, stands here too.
    Of the controls that are scored by the board's metric each panel has the mean, as a line.
    """
    task, systems = board.task, list(map(board.system, board.rows))
    asked = {entry["group"] for system in systems for entry in system.entries}
    shown = [group for group in task.groups if group in asked] + [UNKNOWN] * (None in asked)
    shown += columns_of(task)[-1:] * (len(task.groups) > 1)

    def points(system: System) -> dict[str, Point]:
        return points_of(system) | ({UNKNOWN: unplaced_point(system)} if None in asked else {})

    lines = [one for one in controls if (one.task, one.metric_name) == (board.task, board.metric_name)]
    by_system, by_control = list(map(points, systems)), {one.name: points(one) for one in lines}
    panels = []
    for group in shown:
        its = [asdict(of[group]) for of in by_system]
        panel = {"group": board.name_of(group), "error": board.metric.lower_is_better, "points": its}
        levels = [[name, of[group].mean] for name, of in by_control.items() if of[group].mean is not None]
        panels.append(panel | ({"controls": levels} if lines else {}))
    return panels


def division_panels(board: Board) -> Iterator[Shown]:
    """The same for what else tells the questions apart, where all score files say it."""
    entries = [entry for system in board.systems for entry in system.entries]
    for name in board.task.divisions:
        if all(isinstance(entry.get(name), str) for entry in entries):
            panels = score_panels(divide(board, name))
            yield from ({**panel, "by": name} for panel in panels if panel["group"] != board.task.overall)


def heat_map(questions: list[Shown], tasks: list[Task]) -> list[Shown]:
    """Of each subgroup in the page's index, by group and name, a cell a system: [mean or None, number of scores]."""
    found: dict[tuple[str, str], list[Shown]] = {}
    for question in questions:
        if question["subgroup"] is not None:
            found.setdefault((question["group"], question["subgroup"]), []).append(question)
    order = [*(group for task in tasks for group in task.groups), UNKNOWN]
    rows = []
    for (group, subgroup), its in sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        by_system = zip(*(question["scores"] for question in its), strict=True)
        known = [[score for score in scores if score is not None] for scores in by_system]
        cells = [[mean(scores), len(scores)] for scores in known]
        rows.append({"subgroup": subgroup, "group": group, "questions": len(its), "cells": cells})
    return rows


def index_entry(sides: list[Side], datasets: Datasets, boards: list[Board], record: Record) -> Shown:
    """A question with each system's score (None where it has none) by the first metric, and what failed."""
    task = datasets.task_of(record)
    place, its_boards = task.place(record), boards_of(task, boards)
    entries = [(side.entries(record["id"], its_boards) or [None])[0] for side in sides]
    return {
        "id": record["id"],
        "task": task.name,
        "question": record["question"],
        "subgroup": (as_text(place["subgroup"]) or UNKNOWN) if "subgroup" in place else None,
        "group": place["group"] or UNKNOWN,
        "scores": [entry and entry["score"] for entry in entries],
        "failures": [failures(side, record["id"], its_boards) for side in sides],
    }


def failures(side: Side, question_id: str, boards: list[Board]) -> list[str]:
    """Any of "no answer" and "unscored": an aspect without a verdict, or the whole question in a system with scores.

    The first is the system's failure and may have a score, 0; the second is the judge's.
    """
    [answer, *_] = side.responses.get(question_id, [{"output": None}])
    found = [] if (answer["output"] or "").strip() else ["no answer"]
    if side.verdicts is not None:
        entries = side.entries(question_id, boards) or [None]
        if any(entry is None or any(one["score"] is None for one in entry["details"]) for entry in entries):
            found.append("unscored")
    return found


# The texts of a question


def make_texts(sides: list[Side], datasets: Datasets, boards: list[Board]) -> Iterator[Shown]:
    """All texts of each question, in the order of the index."""
    for question_id, record in datasets.questions.items():
        task = datasets.task_of(record)
        posts: dict[str, int] = {}  # the place of each text: systems share most of them
        its_boards = boards_of(task, boards)
        answers = [describe_answer(side, question_id, datasets, its_boards, posts) for side in sides]
        unseen = unseen_texts(task, record)
        texts = {"unseen": unseen, "aspects": rubric(task, record), "posts": list(posts), "answers": answers}
        if has_options(task, record):
            texts["options"] = list(task.options.texts(record).items())
        if (profile := history_of(question_id, datasets)) is not None:
            used = {
                number: items_used(side, question_id, datasets) or []
                for number, side in enumerate(sides)
                if question_id in side.responses
            }
            texts["turns"] = show_history(profile, task.cited(record), used)
        yield texts


def unseen_texts(task: Task, record: Record) -> dict[str, str | None]:
    """By field what only the scorer sees of a question, besides its aspects and its cluster."""
    needed = dict.fromkeys(name for metric in task.metrics.values() for name in metric.needs)
    shown_elsewhere = (*task.gold_plan_needs, task.user_field)
    return {name: as_text(record.get(name)) for name in needed if name not in shown_elsewhere}


def describe_answer(
    side: Side, question_id: str, datasets: Datasets, boards: list[Board], posts: dict[str, int]
) -> Shown | None:
    """The judged answer of a system with its plan and verdicts; adds to `posts` those it used. None without one."""
    if question_id not in side.responses:
        return None
    answer, *others = side.responses[question_id]
    shared = history_of(question_id, datasets) is not None
    used = [] if shared else items_used(side, question_id, datasets)  # marked in the history, where it is shared
    task = datasets.task_of(datasets.questions[question_id])
    plan = side.plans.get(question_id, [{}])[0]
    titles = plan["aspects"] if plan else (as_text(answer.get("plan")) or "").splitlines()
    entries = side.entries(question_id, boards)
    known = [entry for entry in entries if entry is not None]
    whole = any(map(is_whole, known))
    # On the whole answer there is one by each metric, None without scores by it.
    details = [entry and entry["details"][0] for entry in entries] if whole else known[0]["details"] if known else []
    return {
        "output": answer["output"],
        # Else it says the same once more, unless the answer is but a part of it.
        "raw": as_text(answer.get("raw")) if task.options or not answer["output"] else None,
        "answered": known[0]["answered"] if known else True,
        "level": whole,
        "notes": answer_notes(answer, len(others), task.item_words),
        "plan": titles or [],
        "plan_raw": as_text(plan.get("raw")),
        "posts": None if used is None else [posts.setdefault(task.item_text(post), len(posts)) for post in used],
        "verdicts": [one and [one["score"], as_text(one.get("raw")), as_text(one.get("reason"))] for one in details],
    }


def answer_notes(answer: Shown, num_others: int, item_words: str) -> list[str]:
    said = {field: as_text(answer.get(field)) for field in ("reason", "no_plan", "num_contexts_dropped")}
    notes = {
        f"reason: {said['reason']}": answer.get("reason"),
        f"answered without a plan: {said['no_plan']}": answer.get("no_plan"),
        "cut at --max_tokens": answer.get("truncated"),
        "read from damaged JSON": answer.get("parsed") == "repaired",
        f"{said['num_contexts_dropped']} {item_words} left out for length": answer.get("num_contexts_dropped"),
        f"the first of {num_others + 1} answers": num_others,
    }
    return [note for note, is_so in notes.items() if is_so]


def as_text(value: Any) -> str | None:
    """A field that may hold anything, for others' files do."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


# The page


def make_page(
    sides: list[Side], datasets: Datasets, boards: list[Board], controls: list[System], notes: list[str]
) -> str:
    """The template with its data."""
    page = fill_template(TEMPLATE, words(datasets.tasks, boards))
    head, rest = page.split("{{index}}")
    middle, end = rest.split("{{texts}}")
    texts = enumerate(make_texts(sides, datasets, boards))
    blocks = (f'<script type="application/json" id="text-{i}">{to_json(text)}</script>' for i, text in texts)
    return f"{head}{to_json(make_index(sides, datasets, boards, controls, notes))}{middle}" + "\n".join(blocks) + end


def fill_template(template: Path, words: dict[str, str]) -> str:
    """A page but for its data, with the policy that lets its own style and script run and nothing else."""
    page = template.read_text(encoding="utf-8")
    for name, text in {"helpers": HELPERS.read_text(encoding="utf-8").removesuffix("\n"), **words}.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1] for tag in ("style", "script"))
    policy = f"default-src 'none'; style-src '{source_hash(style)}'; script-src '{source_hash(script)}'; "
    return page.replace("{{policy}}", policy + "base-uri 'none'; form-action 'none'")


def words(tasks: list[Task], boards: list[Board]) -> dict[str, str]:
    """What the template's places for words hold."""
    task = tasks[0]
    group, groups, subgroup = task.group_words
    number = len(task.groups)
    average = f", the average (macro) the mean of the {NUMBERS.get(number, number)} {groups}" if number > 1 else ""
    average = ", the last column\\u2019s the mean over all of these" if task.overall else average
    bars = f"by a bootstrap over questions; none where a {group} has fewer than two"
    bars = f"cluster-robust by {clusters}" if (clusters := cluster_names(boards)) else bars
    scorer = "judge" if any(metric.judge for metric in task.metrics.values()) else "scorer"
    title = task.name if len(tasks) == 1 else task.benchmark
    lower = {"group": group, "subgroup": subgroup, "subgroups": plural(subgroup)}
    upper = {name.capitalize(): text.capitalize() for name, text in lower.items()}
    unit = next(iter(task.metrics.values())).unit if rubric_parts(task) else "score"
    places = {"parts": plural(unit), "Part": unit.capitalize(), "scorer": scorer, "bars": bars}
    return {"task": title, "range": range_words(group, average, boards), **places, **lower, **upper}


def range_words(group: str, average: str, boards: list[Board]) -> str:
    """What the numbers of the table are; it stands in a script, in quotes."""
    errors = dict.fromkeys(board.metric_name for board in boards if board.metric.lower_is_better)
    means = dict.fromkeys(board.metric_name for board in boards if board.metric.pooled is None)
    pooled = dict.fromkeys(board.metric_name for board in boards if board.metric.pooled is not None)
    if not errors and not pooled:
        return f"From 0 to 1: a {group}\\u2019s score is the mean over its questions{average}."
    shown = {"from 0 to 1": [name for name in {**means, **pooled} if name not in errors]}
    shown["from 0 up, and lower is better"] = list(errors)
    ranges = [f"{', '.join(names)} {where}" for where, names in shown.items() if names]
    over = [f"{', '.join(means)} means over a {group}\\u2019s questions"] if means else []
    over += [f"{', '.join(pooled)} of all its questions together"] if pooled else []
    return f"Scores: {'; '.join([*ranges, *over])}."


def source_hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def to_json(value: Any) -> str:
    """JSON that no HTML parser sees a tag, an end of a script or a comment in: pure ASCII without < > &.

    Escaped, half a surrogate pair or a null byte is ASCII too.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
