"""The numbers that the paper prints in its Tables 2 and 3 (paper_results.json)."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from utils.cli import UserError
from utils.files.json_files import read_json

PAPER_RESULTS = Path(__file__).with_name("paper_results.json")

Place = tuple[str, str]  # method and column


@dataclass(frozen=True)
class Paper:
    """What one of the paper's tables prints for one model."""

    title: str
    columns: list[str]
    methods: list[str]
    scores: dict[Place, float]
    daggers: set[Place]
    misprints: dict[Place, str]


def read_paper(model: str, table: str, names: Collection[str]) -> Paper:
    """What the paper's Table 2 or 3 prints for a model; `names` are the systems that are to stand beside it.

    Raises:
        UserError: the paper has no such model, or none of the systems is named as one of its methods.
    """
    data = read_json(PAPER_RESULTS)
    models = data["tables"][table]["models"]
    if model not in models:
        raise UserError(f"--paper {model!r}: the paper has no such model; its models are {', '.join(models)}")
    methods = models[model]
    if not methods.keys() & set(names):
        raise UserError(
            f"--paper: no --system is named as a method of the paper\n  its methods are {', '.join(methods)}"
        )
    scores: dict[Place, float] = {}
    daggers: set[Place] = set()
    for method, printed in methods.items():
        for column, score, dagger in zip(data["columns"], printed["scores"], printed["daggers"], strict=True):
            scores[method, column] = score
            daggers |= {(method, column)} if dagger else set()
    misprints = {
        (misprint["method"], misprint["column"]): misprint["note"]
        for misprint in data["misprints"]
        if table in misprint["tables"] and misprint["model"] == model
    }
    title = f"Table {table} ({data['tables'][table]['split']} set), {model}"
    return Paper(title, data["columns"], list(methods), scores, daggers, misprints)
