"""The course of every model command: list the outputs, skip finished ones, and make the others.

Models with the same base model share an engine, and so do models of one API with one key.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

from utils.files.output import Key, Output
from utils.generation.calls import Call
from utils.generation.engines import confirm_model, open_api, report_shard, share_base
from utils.generation.requests import Engine
from utils.generation.thinking import NO_PARSER
from utils.generation.vllm_engine import VLLMEngine
from utils.runs.shared import Role, Shared, Step


@dataclass(frozen=True)
class Command:
    """A script's work, checked for all mistakes that can be found before a tokenizer loads.

    Attributes:
        outputs: the output files; those of a group are made together.
        describe: prints the requests and the machine's shortcomings (--dry_run).
        work: makes the given groups and returns the exit code.
    """

    outputs: Sequence[list[Output]]
    describe: Callable[[], None]
    work: Callable[[list[list[Output]]], int]


def execute(command: Command, args: Namespace) -> int:
    """Make the unfinished outputs and return the exit code."""
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
    """Lock these files for this process."""
    outputs = list(outputs)
    try:
        for output in outputs:
            output.open()
        yield
    finally:
        for output in outputs:
            output.close()


class _MadeError(Exception):
    """Carries the call that one of our methods makes."""


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
    """Yield the one call that a method of ours makes per record (--dry_run)."""
    for key, record in step.records().items():
        try:
            step.method(record, _Describing(shared, record, key)).send(None)
        except _MadeError as made:
            yield made.args[0]


def open_engines(roles: Mapping[str, Role], asked: Sequence[str]) -> dict[str, Engine]:
    """Return engines by role: the API models' in `asked`, and one for its first role and all models on that base."""
    by_api: dict[tuple[str | None, str | None], Engine] = {}
    engines: dict[str, Engine] = {}
    for name, its in roles.items():
        if its.args.openai and name in asked:
            place = its.args.base_url, its.args.api_key_addr
            confirm_model(its.args, its.model)
            if place not in by_api:
                by_api[place] = open_api(its.args)
            engines[name] = by_api[place]
    if asked[0] not in engines:
        engines |= _load(roles, asked[0])
    return engines


def _load(roles: Mapping[str, Role], role: str) -> dict[str, Engine]:
    """Open one engine for a role's model and all models that can share it."""
    its = roles[role]
    if (own := its.model.open_engine(its.args)) is not None:
        return {role: own}
    here = {name: one for name, one in roles.items() if not one.args.openai}
    served = {
        name: one.model
        for name, one in here.items()
        if name == role or share_base([its.model.addr, one.model.addr], its.args.cache_dir)
    }
    parsers = [model.policy.reasoning_parser for model in served.values()]
    parser = next((one for one in parsers if one not in (None, NO_PARSER)), its.model.policy.reasoning_parser)
    addrs = list(dict.fromkeys(model.addr for model in served.values()))
    # A copy of the flags, because the engine writes its choices into them.
    args = its.args if its.args.reasoning_parser == parser else its.args.replaced(reasoning_parser=parser)
    engine = VLLMEngine(args, addrs, max(model.length for model in served.values()))
    return dict.fromkeys(served, engine)
