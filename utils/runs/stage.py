"""A stage: records that go through a method into outputs."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.search import Search
from utils.benchmarks.task import Task
from utils.files.output import Key, Output, Piece, Pieces
from utils.generation.model import Model
from utils.runs.ask import Ask


@dataclass(eq=False)
class Stage:
    """Records that go through a method into outputs.

    Attributes:
        task: the task whose prompts, values and parser `ask` uses.
        records: returns the records by key; called when the stages before this one have ended. If there are several
            outputs, a key begins with the number of the record's output.
        method: an async function of a record and its `Ask` that returns a piece.
        outputs: files that are made of the pieces.
        models: the models by role, the name that `ask` takes; the first is the default.
        count: returns counts, from an output's content and pieces, for the manifest and the line that is printed
            (default: the number of pieces with a value).
        describe: returns another line to print, from the output, its content and the manifest's figures.
        after: the stage whose pieces this one needs; a record is left out if that stage has no piece for its key.
        stand_in: with --dry_run, the piece that is used in place of each piece that does not exist yet.
        assumes: with --dry_run, the text that is printed if pieces of the stage before are stand-ins.
        many_calls: whether a record may make several calls.
        search: finds items for `ask.search`.
    """

    task: Task
    records: Callable[[], Mapping[Key, Any]]
    method: Callable[[Any, Ask], Coroutine[Any, Any, Piece]]
    outputs: Sequence[Output]
    models: Mapping[str, Model]
    count: Callable[[Any, Pieces], dict[str, int]] | None = None
    describe: Callable[[Output, Any, dict[str, Any]], str] | None = None
    after: "Stage | None" = None
    stand_in: Piece | None = None
    assumes: str = ""
    many_calls: bool = False
    search: Search | None = None

    @property
    def is_finished(self) -> bool:
        """Whether all outputs are finished: if the stage runs again, then for their traces or a later stage."""
        return all(output.finished for output in self.outputs)

    @property
    def made(self) -> list[Output]:
        """The outputs whose pieces the stage makes when it runs: those that are not finished, or if all are, all."""
        return [output for output in self.outputs if not output.finished or self.is_finished]

    @property
    def unit(self) -> str:
        """The plural noun for the stage's pieces."""
        return self.outputs[0].unit

    def place(self, key: Key) -> tuple[Output, Key]:
        """Return the output to which a record belongs, and the record's key in that output."""
        return (self.outputs[0], key) if len(self.outputs) == 1 else (self.outputs[key[0]], key[1:])


def models_of(stages: Sequence[Stage]) -> dict[str, Model]:
    """Return the stages' models by role; ValueError if two models have the same role, which identifies the engine."""
    models: dict[str, Model] = {}
    for role, model in (pair for stage in stages for pair in stage.models.items()):
        if models.setdefault(role, model).identity != model.identity:
            raise ValueError(f"{role!r} has two models, {models[role].addr} and {model.addr}; give each its own role")
    return models
