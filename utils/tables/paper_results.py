"""The numbers that a benchmark's paper prints of systems, from the file that its `Task` names."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from utils.benchmarks.task import Task
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.json_files import read_json
from utils.tables.columns import MACRO
from utils.tables.formats import number

Place = tuple[str, str]  # method and column


@dataclass(frozen=True)
class Paper:
    """What one of the paper's tables prints for one model."""

    model: str
    title: str
    methods: list[str]
    scores: dict[Place, float]
    daggers: set[Place]
    misprints: dict[Place, str]
    decimals: int  # of a printed score
    other_model: str  # of a model that no system here is: what sets it apart, in words; else empty

    def printed(self, method: str, column: str) -> str:
        dagger = "†" if (method, column) in self.daggers else ""
        return f"{number(self.scores.get((method, column)), self.decimals)}{dagger}"

    def rows_beside(self, names: Collection[str]) -> list[str]:
        """List what it has of another model, and no row is named after: it gets rows of its own."""
        return [method for method in self.methods if method not in names] if self.other_model else []


def read_paper(
    task: Task, model: str, table: str, names: Collection[str], shown: Mapping[str, str] | None = None
) -> Paper:
    """Read what a table of the paper prints for a model, to stand beside the systems of these names.

    `shown` has, for a benchmark of several tasks, what is shown as `Task.scored_by` has it, with its column's name.
    """
    missing = UserError(f"--paper: the paper has no numbers on {task.name}, which these scores are of; leave it out")
    if task.paper_results is None:
        raise missing
    data = read_json(task.paper_results)
    # A benchmark whose tasks stand alone says which one a table is of.
    tables = {name: one for name, one in data["tables"].items() if one.get("task", task.name) == task.name}
    if table not in tables:
        of = "" if len(tables) == len(data["tables"]) else f" of {task.name}"
        raise UserError(f"--paper_table {quote(table)}: the paper has no such table{of}; name one: {', '.join(tables)}")
    models = tables[table]["models"]
    if model not in models:
        raise UserError(f"--paper {model!r}: the paper has no such model; its models are {', '.join(models)}")
    methods = models[model]
    if not methods.keys() & set(names):
        raise UserError(f"--paper: no --system is named as a method of the paper; these are {', '.join(methods)}")
    columns = [(shown or {}).get(column, column) for column in data["columns"]]
    # The paper's average leaves out a category of one's own, so it does not compare.
    own = {MACRO} if {*task.groups} - {*columns} else set()
    scores, daggers = {}, set()
    for method, printed in methods.items():
        its = zip(columns, printed["scores"], strict=True)
        scores |= {(method, column): score for column, score in its if score is not None and column not in own}
        marks = zip(columns, printed.get("daggers", ()), strict=False)
        daggers |= {(method, column) for column, dagger in marks if dagger}
    if shown is not None and not {column for _, column in scores} & set(shown.values()):
        raise missing
    its_misprints = (one for one in data["misprints"] if table in one["tables"] and one["model"] == model)
    misprints = {(one["method"], one["column"]): one["note"] for one in its_misprints}
    title, other_model = f"{tables[table]['title']}, {model}", data["other_models"].get(model, "")
    return Paper(model, title, list(methods), scores, daggers, misprints, data["decimals"], other_model)
