"""The page of utils/report.py: its first page and list of questions, as data, and the template around that."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from utils.benchmarks.task import Record, Task
from utils.scoring.aspects import VERDICTS
from utils.scoring.means import mean
from utils.tables.columns import columns_of, point_of, points_of, scored
from utils.tables.formats import plural
from utils.tables.pages import as_text, fill_template, rubric_parts, to_json
from utils.tables.report_texts import RULE, Datasets, Shown, Side, history_of, make_texts
from utils.tables.score_table import means_table
from utils.tables.system_scores import Board, cluster_names, divide

TEMPLATE = Path(__file__).with_name("report_template.html")
UNKNOWN = "unknown"  # the group of questions that none is known for


# The first page and the list of questions


def make_index(sides: list[Side], datasets: Datasets, boards: list[Board], notes: list[str]) -> Shown:
    """Return what the first page and the list need; the texts come apart, to be parsed when they are looked at."""
    task = datasets.task
    entries = [index_entry(sides, task, boards, record) for record in datasets.questions.values()]
    has_histories = any(history_of(question_id, datasets) for question_id in datasets.questions)
    names = [side.name for side in sides]
    labels = {system.name: system.label for board in boards for system in board.systems}
    table = means_table(boards) if boards else None
    rows = [[{"text": cell.text, "bold": cell.bold} for cell in row] for row in table.rows] if table else []
    return {
        "systems": [labels.get(name, name) for name in names],
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
    """Describe the scores by a metric."""
    return {
        "name": "The whole answer" if board.is_alone else board.metric_name,
        "worst": board.metric.worst,
        "error": board.metric.lower_is_better,
        "judged": board.metric.judge is not None,
    }


def score_panels(board: Board) -> list[Shown]:
    """Return mean scores with 95% intervals: a panel a group with questions, one for those of no group, the average."""
    task, systems = board.task, list(map(board.system, board.rows))
    unplaced = [[entry for entry in system.entries if entry["group"] is None] for system in systems]
    asked = {entry["group"] for system in systems for entry in system.questions}
    shown = [group for group in task.groups if group in asked] + [UNKNOWN] * any(unplaced)
    shown += columns_of(task)[-1:] * (len(task.groups) > 1)
    points = [
        points_of(system) | {UNKNOWN: point_of(system, [scored(its)])}
        for system, its in zip(systems, unplaced, strict=True)
    ]
    is_error = board.metric.lower_is_better
    return [
        {"group": board.name_of(group), "error": is_error, "points": [asdict(its[group]) for its in points]}
        for group in shown
    ]


def division_panels(board: Board) -> Iterator[Shown]:
    """Return the same for what else tells the questions apart, where all score files say it."""
    entries = [entry for system in board.systems for entry in system.entries]
    for name in board.task.divisions:
        if all(isinstance(entry.get(name), str) for entry in entries):
            panels = score_panels(divide(board, name))
            yield from ({**panel, "by": name} for panel in panels if panel["group"] != board.task.overall)


def heat_map(questions: list[Shown], task: Task) -> list[Shown]:
    """Return by group and subgroup in the page's index a cell a system: [mean or None, number of scores]."""
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


def index_entry(sides: list[Side], task: Task, boards: list[Board], record: Record) -> Shown:
    """Return a question with each system's score (None where it has none) by the first metric, and what failed."""
    place = task.place(record)
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
    """Return any of "no answer", the system's failure, and "unscored", the judge's: an aspect or all has no verdict."""
    [answer, *_] = side.responses.get(question_id, [{"output": None}])
    found = [] if (answer["output"] or "").strip() else ["no answer"]
    entries = side.entries(question_id, boards) if side.verdicts else []
    if any(entry is None or any(one["score"] is None for one in entry["details"]) for entry in entries):
        found.append("unscored")
    return found


# The page


def make_page(sides: list[Side], datasets: Datasets, boards: list[Board], notes: list[str]) -> str:
    """Fill the template with its data."""
    page = fill_template(TEMPLATE, words(datasets.task, boards))
    head, rest = page.split("{{index}}")
    middle, end = rest.split("{{texts}}")
    texts = enumerate(make_texts(sides, datasets, boards))
    blocks = (f'<script type="application/json" id="text-{i}">{to_json(text)}</script>' for i, text in texts)
    return f"{head}{to_json(make_index(sides, datasets, boards, notes))}{middle}" + "\n".join(blocks) + end


def words(task: Task, boards: list[Board]) -> dict[str, str]:
    """Return what the template's places for words hold."""
    group, _, subgroup = task.group_words
    bars = f"by a bootstrap over questions; none where a {group} has fewer than two"
    bars = f"cluster-robust by {clusters}" if (clusters := cluster_names(boards)) else bars
    unit = next(iter(task.metrics.values())).unit if rubric_parts(task) else "score"
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
    """Return what the numbers of the table are; it stands in a script, in quotes."""
    group, groups, _ = task.group_words
    kinds: dict[str, list[str]] = {}
    for name, metric in {board.metric_name: board.metric for board in boards}.items():
        extent = "from 0 up, and lower is better" if metric.lower_is_better else "from 0 to 1"
        over = (
            f"of all questions of a {group} together" if metric.pooled else f"the mean over the questions of a {group}"
        )
        kinds.setdefault(f"{extent}, {over}", []).append(name)
    parts = [f"{', '.join(names)} {kind}" for kind, names in kinds.items()]
    if task.overall:
        parts.append("the last column is over all questions")
    elif len(task.groups) > 1:
        parts.append(f"the average (macro) is the mean of the {len(task.groups)} {groups}")
    return f"Scores: {'; '.join(parts)}."
