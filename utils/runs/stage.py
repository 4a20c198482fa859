"""A stage: records that go through a method into files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.search import Search
from utils.base.errors import UserError
from utils.base.flags import Arguments
from utils.base.manifest import manifest_of
from utils.base.output import Key
from utils.benchmarks.task import Task
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

    def requested(self, role: str | None = None) -> int:
        """Return how many completions this process has requested from a role's model, or without a role, from all."""
        models = self.models.values() if role is None else [self.models[role]]
        return sum(completions.requested for completions in {model.completions for model in models})

    def refuse_deleted_store(self, files: Iterable[StageFile], args: Arguments) -> None:
        """Raise UserError if a file would be made again but completions are gone: they would be paid for again.

        A file whose keys are not known yet may prove to be finished, so it is not refused.
        """
        if args.overwrite or args.cached_only:
            return
        for file in files:
            is_known = not (file.finished or file.is_shard or file.keys is None)
            made = manifest_of(file.path) if is_known else None
            if made is None or made.get("tokens", {}).get("prompt_tokens") == 0:
                continue
            calls = made.get("calls")
            for role, model in self.models.items():
                asked = (
                    calls is None or calls.get(role, {}).get("prompt_tokens", 0) != 0
                )  # None: the server reports none
                if asked and (store := model.completions.store).is_empty:
                    problem = f"is gone; it had the completions of {file.path}, which has to be made again"
                    remedy = (
                        "give the folder that has them (--completions), or --overwrite to request all of them again"
                    )
                    raise UserError(f"{store.folder}: {problem}\n  {remedy}")

    def close(self) -> None:
        """Close the stores and the search, which are opened when they are needed."""
        for model in self.models.values():
            model.completions.store.close()
        if self.search is not None:
            self.search.close()

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
