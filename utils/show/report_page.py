"""The HTML page of utils/report.py: the overview, the texts of each question, and the template around them."""

import json
import math
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from utils.base.errors import plural
from utils.benchmarks.checks import Item, Record
from utils.benchmarks.lampqa.aspects import VERDICTS
from utils.benchmarks.personamem.contexts import Profile
from utils.benchmarks.scoring import mean
from utils.benchmarks.task import ALL, Task
from utils.data.scores import Entry
from utils.show.pages import as_text, fill_template, rubric, rubric_parts, to_json, unseen_texts
from utils.tables.columns import columns_of, interval_words, point_of, points_of, scored
from utils.tables.score_table import label_of, means_table
from utils.tables.system_scores import Board, divide

TEMPLATE = Path(__file__).with_name("report_template.html")
UNKNOWN = "unknown"  # the group of questions whose group is unknown
AT_START, AT_END = 2, 3  # messages to show from a history's start and end
BEFORE, AFTER = 3, 5  # messages to show before the cited place, and from it on
MOST_ITEMS, OF_ITEM = 10, 2  # most items to show per system, and messages per item (a session has dozens)
MOST_CHARACTERS = 1_000  # most characters to show of a message

RULE = (
    f"Shown: the first {AT_START} and the last {AT_END} messages, {BEFORE + AFTER} around the part that the "
    f"question is about (if its distance is known), and the first {OF_ITEM} messages of each system's best "
    f"{MOST_ITEMS} items. Messages are cut to {MOST_CHARACTERS:,} characters."
)

Shown = dict[str, Any]  # data of the page, written as JSON


@dataclass
class Datasets:
    """Questions by id, and their profiles by the dataset file's hash, because files may rank profiles differently."""

    task: Task
    questions: dict[str, Record] = field(default_factory=dict)
    profiles: dict[str, dict[str, list[Any]]] = field(default_factory=dict)


@dataclass
class Side:
    """The data of one system; each dict is by question id, unless a comment says otherwise."""

    name: str
    scores: list[str] = field(default_factory=list)  # paths
    responses: dict[str, list[Shown]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)  # hash of the dataset file that the system read, if known
    verdicts: dict[str, dict[str, Entry]] = field(default_factory=dict)  # entries of score files, by metric and id
    plans: dict[str, list[Shown]] = field(default_factory=dict)
    turns: dict[str, str] = field(default_factory=dict)  # calls and searches in words, if there is a trace

    def entries(self, question_id: str, boards: list[Board]) -> list[Entry | None]:
        """Return the question's entry by the metric of each board."""
        return [self.verdicts.get(board.metric_name, {}).get(question_id) for board in boards]


def has_options(task: Task, record: Record) -> bool:
    """Return whether the record has options to choose the answer from; `Task.check` validates them."""
    return task.options is not None and record.keys() >= set(task.options.needs)


def is_whole(entry: Entry) -> bool:
    """Return whether the answer was judged as a whole, not aspect by aspect."""
    return any("aspect" not in detail for detail in entry["details"])


def profile_of(side: Side, question_id: str, datasets: Datasets) -> Sequence[Item] | None:
    """Return the profile that a system read for a question; None if unknown, or if its dataset was not given."""
    return datasets.profiles.get(side.inputs.get(question_id, ""), {}).get(question_id)


def items_used(side: Side, question_id: str, datasets: Datasets) -> list[Item] | None:
    """Return the items in the prompt, best first (empty for a whole history); None if unknown."""
    answer, profile = side.responses[question_id][0], profile_of(side, question_id, datasets)
    number, shown = answer.get("num_contexts_used") or 0, answer.get("posts_shown")
    if not (number or shown) or profile is None:
        return None if number or shown else []
    if isinstance(shown, list):  # the posts in the prompts of a user's method
        return [profile[place] for place in shown if isinstance(place, int) and 0 <= place < len(profile)]
    items = copy(profile)  # a copy, so that its cache of a long history is freed afterwards
    whole = isinstance(items, Profile) and number + (answer.get("num_contexts_dropped") or 0) >= len(items)
    return [] if whole else items[:number]


def history_of(question_id: str, datasets: Datasets) -> Profile | None:
    """Return the history that a question shares with others (the same in all datasets); None without one."""
    candidates = (profiles.get(question_id) for profiles in datasets.profiles.values())
    return next((profile for profile in candidates if isinstance(profile, Profile)), None)


# The texts of a question


def make_texts(sides: list[Side], datasets: Datasets, boards: list[Board]) -> Iterator[Shown]:
    """Yield all texts of each question, in the order of the questions in `make_index`."""
    task = datasets.task
    for question_id, record in datasets.questions.items():
        posts: dict[str, int] = {}  # each text's position in the list, since systems share most texts
        answers = [describe_answer(side, question_id, datasets, boards, posts) for side in sides]
        unseen = unseen_texts(task, record)
        texts = {"unseen": unseen, "aspects": rubric(task, record), "posts": list(posts), "answers": answers}
        if has_options(task, record):
            texts["options"] = list(task.options.texts(record).items())
        if (profile := history_of(question_id, datasets)) is not None:
            answering = [number for number, side in enumerate(sides) if question_id in side.responses]
            used = {number: items_used(sides[number], question_id, datasets) or [] for number in answering}
            texts["turns"] = show_history(profile, task.evidence_position(record), used)
        yield texts


def describe_answer(
    side: Side, question_id: str, datasets: Datasets, boards: list[Board], posts: dict[str, int]
) -> Shown | None:
    """Return a system's answer with plan and verdicts, and add its posts to `posts`; None without an answer."""
    if question_id not in side.responses:
        return None
    answer, *others = side.responses[question_id]
    shared = history_of(question_id, datasets) is not None
    used = [] if shared else items_used(side, question_id, datasets)  # used items are marked in the shared history
    task = datasets.task
    plan = side.plans.get(question_id, [{}])[0]
    titles = plan["aspects"] if plan else (as_text(answer.get("plan")) or "").splitlines()
    entries = side.entries(question_id, boards)
    scored_entries = [entry for entry in entries if entry is not None]
    whole = any(map(is_whole, scored_entries))
    # One detail per metric (None if it has no score) if whole answers are judged; otherwise, one per aspect.
    of_aspects = scored_entries[0]["details"] if scored_entries else []
    details = [entry and entry["details"][0] | {"score": entry["score"]} for entry in entries] if whole else of_aspects
    return {
        "output": answer["output"],
        # Shown only if it adds something: with options, the answer is just a part of the raw text.
        "raw": as_text(answer.get("raw")) if task.options or not answer["output"] else None,
        "answered": scored_entries[0]["answered"] if scored_entries else True,
        "level": whole,
        "notes": answer_notes(answer, len(others), task.item_words),
        "noted": json.dumps(answer["notes"], ensure_ascii=False, indent=2) if answer.get("notes") else None,
        **({"turns": side.turns[question_id]} if question_id in side.turns else {}),
        "plan": titles or [],
        "plan_raw": as_text(plan.get("raw")),
        "posts": None if used is None else [posts.setdefault(task.item_text(post), len(posts)) for post in used],
        "verdicts": [row and [row["score"], as_text(row.get("raw")), as_text(row.get("reason"))] for row in details],
    }


def answer_notes(answer: Shown, num_others: int, item_words: str) -> list[str]:
    texts = {field: as_text(answer.get(field)) for field in ("reason", "no_plan", "num_contexts_dropped")}
    notes = {
        f"reason: {texts['reason']}": answer.get("reason"),
        f"answered without a plan: {texts['no_plan']}": answer.get("no_plan"),
        "cut off at --max_tokens": answer.get("truncated"),
        "read from damaged JSON": answer.get("parsed") == "repaired",
        f"{texts['num_contexts_dropped']} {item_words} left out for length": answer.get("num_contexts_dropped"),
        f"the first of {num_others + 1} answers": num_others,
    }
    return [note for note, is_so in notes.items() if is_so]


# A history that many questions share


def show_history(profile: Profile, share: float | None, items_by_side: Mapping[int, Sequence[Item]]) -> dict[str, Any]:
    """Return the messages to show, each with its place and the systems whose prompt had it.

    Shown are the beginning and the end, the messages around the place that the question is about, and the first
    messages of each system's best items. Whole histories would take gigabytes.

    Args:
        share: the share of the history's text that comes before the cited place; None if unknown.
        items_by_side: the items by the system's number, best first; empty if the prompt had the whole history.
    """
    messages = profile.messages
    ends = list(accumulate(len(message["content"]) for message in messages))
    cited = None if share is None else min(bisect(ends, share * ends[-1]), len(ends) - 1)
    shown = {*range(AT_START), *range(len(messages) - AT_END, len(messages))}
    shown |= set() if cited is None else set(range(cited - BEFORE, cited + AFTER))
    systems: dict[int, list[int]] = {}
    for system, items in items_by_side.items():
        for place in (place for item in items[:MOST_ITEMS] for place in item["places"][:OF_ITEM]):
            systems.setdefault(place, []).append(system)
    rows = []
    for place in sorted(place for place in shown | systems.keys() if 0 <= place < len(messages)):
        role, text = messages[place]["role"], messages[place]["content"]
        left = max(0, len(text) - MOST_CHARACTERS)
        rows.append([place, role, text[:MOST_CHARACTERS], left, systems.get(place, [])])
    return {"total": len(messages), "cited": cited, "shown": rows}


# The first page and the list of questions


def make_index(sides: list[Side], datasets: Datasets, boards: list[Board], notes: list[str]) -> Shown:
    """Return the data of the first page and of the list of questions, without the questions' texts."""
    task = boards[0].task if boards else datasets.task
    entries = [index_entry(sides, task, boards, record) for record in datasets.questions.values()]
    has_histories = any(history_of(question_id, datasets) for question_id in datasets.questions)
    names = [side.name for side in sides]
    table = means_table(boards) if boards else None
    rows = [[{"text": cell.text, "bold": cell.bold} for cell in row] for row in table.rows] if table else []
    return {
        "systems": [label_of(boards, name) for name in names],
        "judged": [names.index(name) for name in boards[0].rows] if boards else [],
        "verdicts": VERDICTS,
        "measures": {task.name: list(map(measure, boards))},
        "table": {"columns": table.heads(), "rows": rows} if table else None,
        "panels": [panel for board in boards for panel in (*score_panels(board), *division_panels(board))],
        "subgroups": heat_map(entries, task),
        "notes": notes,
        "questions": entries,
        **({"turns": RULE} if has_histories else {}),
    }


def measure(board: Board) -> Shown:
    """Return what the page needs to know about a metric."""
    return {
        "name": "The whole answer" if board.is_alone else board.metric_name,
        "worst": board.metric.worst,
        "error": board.metric.lower_is_better,
        "shaded": board.metric.limits == (0, 1),
        "judged": board.metric.judge is not None,
    }


def score_panels(board: Board) -> list[Shown]:
    """Return panels of means with 95% intervals: for each group with questions, unknown groups, and the average."""
    task, systems = board.task, list(map(board.system, board.rows))
    unplaced = [[entry for entry in system.entries if entry["group"] is None] for system in systems]
    groups = {entry["group"] for system in systems for entry in system.questions}
    shown = [group for group in task.groups if group in groups] + [UNKNOWN] * any(unplaced)
    shown += columns_of(task)[len(task.groups) :]
    points = [
        points_of(system) | {UNKNOWN: point_of(system, [scored(entries)])}
        for system, entries in zip(systems, unplaced, strict=True)
    ]
    limits = [limit if math.isfinite(limit) else None for limit in board.metric.limits]
    return [
        {"group": board.name_of(group), "limits": limits, "points": [asdict(by_group[group]) for by_group in points]}
        for group in shown
    ]


def division_panels(board: Board) -> Iterator[Shown]:
    """Yield `score_panels` for each division of the task whose field all score files have."""
    entries = [entry for system in board.systems for entry in system.entries]
    for name in board.task.divisions:
        if all(isinstance(entry.get(name), str) for entry in entries):
            panels = score_panels(divide(board, name))
            yield from ({**panel, "by": name} for panel in panels if panel["group"] != ALL)


def heat_map(questions: list[Shown], task: Task) -> list[Shown]:
    """Return a row per group and subgroup, with a cell per system: [mean or None, number of scores]."""
    by_subgroup: dict[tuple[str, str], list[Shown]] = {}
    for question in questions:
        if question["subgroup"] is not None:
            by_subgroup.setdefault((question["group"], question["subgroup"]), []).append(question)
    order = [*task.groups, UNKNOWN]
    rows = []
    for group, subgroup in sorted(by_subgroup, key=lambda names: (order.index(names[0]), names[1])):
        members = by_subgroup[group, subgroup]
        by_system = zip(*(question["scores"] for question in members), strict=True)
        usable = [[score for score in scores if score is not None] for scores in by_system]
        cells = [[mean(scores), len(scores)] for scores in usable]
        rows.append({"subgroup": subgroup, "group": group, "questions": len(members), "cells": cells})
    return rows


def index_entry(sides: list[Side], task: Task, boards: list[Board], record: Record) -> Shown:
    """Return a question with each system's score by the first metric (None if missing), and its failures."""
    place = task.group_of(record)
    entries = [(side.entries(record["id"], boards) or [None])[0] for side in sides]
    return {
        "id": record["id"],
        "task": task.name,
        "question": record["question"],
        "subgroup": (as_text(place["subgroup"]) or UNKNOWN) if "subgroup" in place else None,
        "group": place["group"] or UNKNOWN,
        "scores": [entry and entry["score"] for entry in entries],
        "failures": [failures(side, record["id"], boards) for side in sides],
    }


def failures(side: Side, question_id: str, boards: list[Board]) -> list[str]:
    """Return a list of "no answer", if the system failed, and "unscored", if a verdict is missing."""
    [answer, *_] = side.responses.get(question_id, [{"output": None}])
    failed = [] if (answer["output"] or "").strip() else ["no answer"]
    entries = side.entries(question_id, boards) if side.verdicts else []
    if any(entry is None or any(detail["score"] is None for detail in entry["details"]) for entry in entries):
        failed.append("unscored")
    return failed


# The page


def make_page(sides: list[Side], datasets: Datasets, boards: list[Board], notes: list[str]) -> str:
    """Fill the template with its data."""
    page = fill_template(TEMPLATE, words(boards[0].task if boards else datasets.task, boards))
    head, rest = page.split("{{index}}")
    middle, end = rest.split("{{texts}}")
    texts = enumerate(make_texts(sides, datasets, boards))
    blocks = (f'<script type="application/json" id="text-{i}">{to_json(text)}</script>' for i, text in texts)
    return f"{head}{to_json(make_index(sides, datasets, boards, notes))}{middle}" + "\n".join(blocks) + end


def words(task: Task, boards: list[Board]) -> dict[str, str]:
    """Return the words for the template's placeholders."""
    group, _, subgroup = task.group_words
    bars = " and ".join(dict.fromkeys(interval_words(board.systems[0]) for board in boards))
    bars += "" if bars.startswith("Wilson") else f"; none if one {group} has fewer than two questions"
    unit = task.first_metric.unit if rubric_parts(task) else "score"
    lower = {"group": group, "subgroup": subgroup, "subgroups": plural(subgroup)}
    return {
        "task": task.name,
        "range": range_words(task, boards),
        "bars": bars,
        "scorer": "judge" if any(metric.judge for metric in task.metrics.values()) else "scorer",
        "parts": plural(unit),
        "Part": unit.capitalize(),
        **lower,
        **{name.capitalize(): text.capitalize() for name, text in lower.items()},
    }


def range_words(task: Task, boards: list[Board]) -> str:
    """Describe the table's numbers; the text must be valid inside a quoted string of a script."""
    group, groups, _ = task.group_words
    kinds: dict[str, list[str]] = {}
    for name, metric in {board.metric_name: board.metric for board in boards}.items():
        extent = "at least 0, lower is better" if metric.lower_is_better else "from 0 to 1"
        extent = "on the reward model's own scale" if metric.is_unbounded else extent
        over = "over all questions of one {}" if metric.pooled else "the mean over the questions of one {}"
        kinds.setdefault(f"{extent}, {over.format(group)}", []).append(name)
    parts = [f"{', '.join(names)} {kind}" for kind, names in kinds.items()]
    if task.overall or task.has_own_groups:
        parts.append("the last column is over all questions")
    if len(task.groups) > 1 and not task.overall:
        parts.append(f"the average (macro) is the mean of the {len(task.groups)} {groups}")
    return f"Scores: {'; '.join(parts)}."
