"""The scores printed in the papers' tables, to show beside the systems' scores."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from utils.base.errors import UserError, quote
from utils.base.json_files import read_json
from utils.benchmarks.task import Task
from utils.tables.columns import MACRO, columns_of
from utils.tables.formats import few, number

Place = tuple[str, str]  # method and column


@dataclass(frozen=True)
class Paper:
    """A model's scores in one of the paper's tables, limited to the columns that our table has."""

    model: str
    title: str
    methods: list[str]
    scores: dict[Place, float]
    daggers: set[Place]
    misprints: dict[Place, str]
    decimals: int  # of a printed score
    other_model: str  # in words, how the model differs from the systems' models; empty if it is the same
    other_rule: str  # in words, how the paper's scoring rule differs from ours; empty if it is the same

    def printed(self, method: str, column: str) -> str:
        dagger = "†" if (method, column) in self.daggers else ""
        return f"{number(self.scores.get((method, column)), self.decimals)}{dagger}"

    def rows_beside(self, names: Collection[str], wanted: Collection[str]) -> list[str]:
        """Return the methods that get their own rows: those in `wanted` that no system has as its name.

        If the paper's model is another one, all methods count as wanted.
        """
        return [method for method in self.methods if method not in names and (self.other_model or method in wanted)]


def read_paper(
    task: Task, metric: str, model: str, table: str, names: Collection[str], shown: Mapping[str, str] | None = None
) -> Paper:
    """Read a model's scores from a paper's table, to show them beside the systems of the same names.

    Args:
        metric: the metric's name; tables of another metric are ignored.
        shown: our columns' names by the paper's names, for a benchmark of several tasks (see `Task.scored_by`).
    """
    missing = UserError(f"--paper: the paper has no numbers for {task.name}; remove the flag")
    if task.files.paper_results is None:
        raise missing
    data = read_json(task.files.paper_results)
    # Only tables of a single task or metric name it.
    wanted = {"task": task.name, "strategy": metric}
    tables = {
        name: entry
        for name, entry in data["tables"].items()
        if all(entry.get(key, value) == value for key, value in wanted.items())
    }
    if table not in tables:
        of = "" if len(tables) == len(data["tables"]) else f" of {task.name}'s {metric}"
        raise UserError(
            f"--paper_table {quote(table)}: the paper has no such table{of}; the tables are {', '.join(tables)}"
        )
    models = tables[table]["models"]
    if model not in models:
        raise UserError(f"--paper {model!r}: the paper has no such model; its models are {', '.join(models)}")
    methods = models[model]
    if not methods.keys() & set(names):
        raise UserError(
            f"--paper: no --system has the name of a method in the paper; its methods are {', '.join(methods)}"
        )
    columns = [(shown or {}).get(column, column) for column in data["columns"]]
    ours = {*columns_of(task)} if shown is None else {*shown.values()}
    # If the user's data have another category, the paper's average is not comparable.
    placed = ours - {MACRO} if {*task.groups} - {*columns} else ours
    scores, daggers = {}, set()
    for method, printed in methods.items():
        numbers = zip(columns, printed["scores"], strict=True)
        scores |= {(method, column): score for column, score in numbers if score is not None and column in placed}
        marks = zip(columns, printed.get("daggers", ()), strict=False)
        daggers |= {(method, column) for column, dagger in marks if dagger and column in placed}
    if not scores and shown is None:
        raise UserError(f"--paper: the paper has no numbers for the columns {few(columns_of(task))}; remove the flag")
    if not scores:
        raise missing
    notes = (entry for entry in data["misprints"] if table in entry["tables"] and entry["model"] == model)
    misprints = {(entry["method"], entry["column"]): entry["note"] for entry in notes if entry["column"] in placed}
    title, other_model = f"{tables[table]['title']}, {model}", data["other_models"].get(model, "")
    other_rule = tables[table].get("other_rule", "")
    return Paper(model, title, list(methods), scores, daggers, misprints, data["decimals"], other_model, other_rule)
