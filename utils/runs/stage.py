"""A stage: records that go through a method into files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.search import Search
from utils.benchmarks.task import Task
from utils.files.output import Key
from utils.generation.model import Model
from utils.runs.files import StageFile

Place = tuple[StageFile, Key]  # of a piece


@dataclass(eq=False)
class Stage:
    """Records that go through a method into files.

    Attributes:
        task: the task whose prompts, values and parser `ask` uses.
        records: yields file, key and record of each piece; called when the stages before this one have ended.
        method: an async function of a record and its `Ask` that returns a piece. In a stage `after` another, it also
            gets that stage's piece of the same key, or None.
        files: what is made of the pieces.
        models: the models by role, the name that `ask` takes; the first is the default.
        after: the stage whose pieces this one needs; a record is left out if that stage lacks the piece of its key.
        search: finds items for `ask.search`.
    """

    task: Task
    records: Callable[[], Iterable[tuple[StageFile, Key, Any]]]
    method: Callable
    files: Sequence[StageFile]
    models: Mapping[str, Model]
    after: "Stage | None" = None
    search: Search | None = None

    @property
    def is_finished(self) -> bool:
        """Whether all files are finished: if the stage runs again, then for their traces or a later stage."""
        return all(file.finished for file in self.files)

    @property
    def made(self) -> list[StageFile]:
        """The files whose pieces the stage makes when it runs: those that are not finished, or if all are, all."""
        return [file for file in self.files if not file.finished or self.is_finished]

    @property
    def unit(self) -> str:
        """The plural noun for the stage's pieces."""
        return self.files[0].unit

    @property
    def many_calls(self) -> bool:
        """Whether the method may make several calls for a record."""
        return any(file.many_calls for file in self.files)

    def expect(self) -> dict[Place, Any]:
        """Return the records by place, and tell files that do not know their keys yet which pieces they will have."""
        records = {(file, key): record for file, key, record in self.records()}
        for file in self.files:
            if file.keys is None:
                file.expect(key for its_file, key in records if its_file is file)
        return records


def models_of(stages: Sequence[Stage]) -> dict[str, Model]:
    """Return the stages' models by role; ValueError if two models have the same role, which identifies the engine."""
    models: dict[str, Model] = {}
    for role, model in (pair for stage in stages for pair in stage.models.items()):
        if models.setdefault(role, model).identity != model.identity:
            raise ValueError(f"{role!r} has two models, {models[role].addr} and {model.addr}; give each its own role")
    return models
