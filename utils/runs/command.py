"""What all model commands share: list the outputs, skip the finished ones, make the others."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

from utils.files.output import Key, Output
from utils.generation.calls import Call
from utils.generation.engines import report_shard
from utils.runs.ask import Shared
from utils.runs.runner import Step


@dataclass(frozen=True)
class Command:
    """What a script is about to do, after all mistakes that can be known before a tokenizer loads.

    Attributes:
        outputs: the files that it makes; those that are made together stand together.
        describe: prints what would be asked, and what the machine lacks (--dry_run).
        work: makes these outputs and returns the exit code.
    """

    outputs: Sequence[list[Output]]
    describe: Callable[[], None]
    work: Callable[[list[list[Output]]], int]


def execute(command: Command, args: Namespace) -> int:
    """Make the outputs that are not finished; returns the exit code."""
    for output in chain.from_iterable(command.outputs):
        output.is_finished()
    if args.dry_run:
        command.describe()
        return 0
    left = [its for its in command.outputs if not all(output.finished for output in its)]
    for output in chain.from_iterable(reversed(its) for its in command.outputs if its not in left):
        output.report_finished()
    if not left:
        return 0
    code = command.work(left)
    report_shard(args, [output.path for its in left for output in its])
    return code


@contextmanager
def writing(outputs: Iterable[Output]) -> Iterator[None]:
    """Within this, these files are this process's alone."""
    outputs = list(outputs)
    try:
        for output in outputs:
            output.open()
        yield
    finally:
        for output in outputs:
            output.close()


class _MadeError(Exception):
    """Holds the call that a method of ours makes."""


class _Describing:
    """An `Ask` that reports its call instead of making it."""

    def __init__(self, shared: Shared, record: Any, key: Key):
        self._shared, self._record, self.key = shared, record, key

    async def record(
        self,
        prompt: str,
        *,
        items: Any = (),
        values: Mapping = MappingProxyType({}),
        model: str = "generator",
        **more: Any,
    ) -> None:
        raise _MadeError(self._shared.make(self._record, self.key, model, prompt, items, values, **more)[1])


def calls_of(step: Step, shared: Shared) -> Iterator[Call]:
    """The call of each record of a method of ours (--dry_run)."""
    for key, record in step.records().items():
        try:
            step.method(record, _Describing(shared, record, key)).send(None)
        except _MadeError as made:
            yield made.args[0]
