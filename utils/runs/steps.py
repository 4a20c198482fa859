"""The calls and searches of one record's run: which are under way, finished, or waiting for an engine."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from prompts import Messages
from retrieval.search import Search
from utils.benchmarks.task import Task
from utils.cli.flags import Arguments
from utils.files.output import Key, Piece
from utils.generation.calls import CHARACTERS_PER_TOKEN, Call, answer_call
from utils.generation.completions import NotStoredError
from utils.generation.model import Model
from utils.generation.requests import Engine, Rendered
from utils.runs.loop import BRANCH, Branch, without_branch
from utils.runs.rendering import ParserError, Prompts

MOST_CALLS = 10_000  # calls and searches per record; an endless loop would pay for thousands of calls in seconds
TURNS = 20  # turns of the event loop to wait for a method's next call after a call has returned
SHARED: Key = ("shared",)  # the key of calls that do not depend on the record
UNDER_WAY = 8_000_000  # tokens of prompts under way at a time; more would take gigabytes of memory


class MethodError(Exception):
    """A method cannot give an answer; the message says where and why."""


class Room:
    """Limits the tokens of prompts under way; the last prompt to fit may exceed the limit."""

    def __init__(self) -> None:
        self._left = UNDER_WAY
        self._freed = asyncio.Event()

    async def wait(self) -> None:
        """Wait until there is room for a prompt; the caller then makes the prompt and calls `take`."""
        while self._left <= 0:
            self._freed.clear()
            await self._freed.wait()

    def take(self, prompt: Rendered | None, call: asyncio.Task) -> None:
        """Reserve room for the prompt until its call ends."""
        if isinstance(prompt, list):
            tokens = sum(len(message["content"]) for message in prompt) // CHARACTERS_PER_TOKEN
        else:
            tokens = len(prompt or ())
        self._left -= tokens

        def free(_: asyncio.Task) -> None:
            self._left += tokens
            self._freed.set()

        call.add_done_callback(free)


class Step(NamedTuple):
    """A call that has its result."""

    role: str
    record: Piece
    messages: Messages  # empty unless the stage is traced
    stop: tuple[str, ...]
    shared: int | None = None  # as in `Call`


@dataclass(frozen=True)
class Surroundings:
    """What all records of a stage share while they run."""

    task: Task
    models: Mapping[str, Model]  # by role; the first is the default
    engines: Mapping[str, Engine]  # the open ones, by role
    gone: Mapping[str, str]  # role whose server no longer answers -> the problem
    prompts: Prompts
    args: Arguments
    room: Room
    landed: Callable[[str], None]  # called with the role when a call gets its result from an engine or the store
    search: Search | None = None  # None: there is no `ask.search`
    is_traced: bool = False  # keep the messages of each call


class Steps:
    """The calls and searches of one record's run.

    A call never returns if it cannot be answered now (its engine is not open; or a server, an engine or the store has
    failed), so that no `except` or `finally` of the method can make up a value. Other calls under way continue. When
    none is left, the runner ends the method, and may run the record again later.

    Attributes:
        calls: role and record of each finished call, in the order in which they were made.
        searches: query and ids of each finished search, in the order in which they were made.
        call_hashes: hashes of the record's calls; each repetition of a call has a hash of its own.
        ended: the exception with which the record's run ends for now; None while it runs.
        needs: the role whose engine the record waits for, because the engine is not open; None if it waits for none.
        lacking: role and call of each completion that the store lacks while its engine is not open; with --dry_run,
            also "search" and None for each search that would need the encoder.
        failed: the role whose engine or store failed first.
        gave_up: whether the method cancelled a call, or returned while one was under way.
    """

    def __init__(self, key: Key, around: Surroundings):
        self.key, self._around = key, around
        self.call_hashes: set[int] = set()
        self.ended: Exception | None = None
        self.needs: str | None = None
        self.failed: str | None = None
        self.lacking: list[tuple[str, Call | None]] = []
        self.gave_up = False
        self._is_over = False  # the method has returned
        self._same: Counter[tuple[tuple[str | int, ...], int]] = Counter()  # how often each call was made, by task
        # Calls and searches by place, see `Branch`; None while under way.
        self._steps: dict[tuple[int, ...], Step | dict[str, Any] | None] = {}
        self._branch = Branch()  # of calls of all tasks, unless the method's tasks have branches of their own
        self._under_way: set[asyncio.Task] = set()
        self._stirred = asyncio.Event()  # a call was made or has landed, or the record has ended
        self._loop = asyncio.get_running_loop()

    @property
    def calls(self) -> list[tuple[str, Piece]]:
        return [(step.role, step.record) for _, step in self.steps if isinstance(step, Step)]

    @property
    def searches(self) -> list[dict[str, Any]]:
        return [step for _, step in self.steps if isinstance(step, dict)]

    @property
    def steps(self) -> list[tuple[int, Step | dict[str, Any]]]:
        """Number and result of each finished call and search, in the order of their places."""
        return list(enumerate(step for _, step in sorted(self._steps.items()) if step is not None))

    def model(self, role: str) -> Model:
        """Return the model of this role; ValueError if there is none."""
        models = self._around.models
        if role not in models:
            raise ValueError(
                f"ask: unknown model {role!r}; the models are {', '.join(models)} (add one with --model NAME=ADDRESS)"
            )
        return models[role]

    def _number(self, same: int, is_shared: bool) -> Callable[[Call], Call]:
        """Number a call among equal ones, before it waits for anything; return what changes its key, for another seed.

        Calls of a task that the method has made are numbered by themselves, and their keys have the task's path, so
        that network time does not decide which of several tasks gets which text.
        """
        path = () if is_shared else (BRANCH.get() or self._branch).path
        number = self._same[path, same]
        self._same[path, same] += 1

        def numbered(call: Call) -> Call:
            self.call_hashes.add(hash((path, same, number)))
            if is_shared:
                call = replace(call, shared=hash((same, number, repr(call.prompt))))
            if path:
                return replace(call, key=(*call.key, path, number))
            return replace(call, key=(*call.key, number)) if number else call

        return numbered

    async def send(self, role: str, make: Callable[[], Call]) -> Piece:
        """Make a call once there is room for its prompt, and return its record."""
        await self._unless_over()
        place = await self._begin_step()
        await self._around.room.wait()
        await self._unless_over()
        call = make()
        engine = None if role in self._around.gone else self._around.engines.get(role)
        task = without_branch(answer_call(engine, self.model(role), call, role))
        self._around.room.take(call.prompt, task)
        task.add_done_callback(partial(self._land, role, call))
        record = await self._result(task)
        messages = call.messages if self._around.is_traced else []
        self._steps[place] = Step(role, record, messages, call.policy.stop, call.shared)
        return record

    async def _begin_step(self) -> tuple[int, ...]:
        """Return the place of a new call or search; never return if the record has too many."""
        if len(self._steps) == MOST_CALLS:
            self.end(MethodError(f"more than {MOST_CALLS:,} calls and searches: does it have an endless loop?"))
            await self._never()
        place = (BRANCH.get() or self._branch).next_place()
        self._steps[place] = None
        return place

    async def _result(self, task: asyncio.Task) -> Any:
        """Wait for a call or a search, and return its result."""
        self._under_way.add(task)
        self._stirred.set()
        try:
            result = await asyncio.shield(task)  # a call that a method cancels is paid for anyway, and kept
        except asyncio.CancelledError:
            self.gave_up = True
            raise
        except ParserError as error:
            raise error.__cause__ from None
        except Exception:  # `_land` has noted it
            await self._never()
        if self.ended is not None:
            await self._never()
        return result

    def end(self, error: Exception) -> None:
        """End the record's run for now, because of this error: no further call returns."""
        self.ended = self.ended or error
        self._stirred.set()

    async def wait_for(self, method: asyncio.Task) -> None:
        """Wait until the method has returned or cannot continue for now, and then until no call is under way."""
        method.add_done_callback(lambda _: self._stirred.set())
        while not method.done() and self.ended is None:
            self._stirred.clear()
            if self._under_way or self.needs is None:
                await self._stirred.wait()
            elif not await self._goes_on():
                break
        self._is_over = method.done()
        self.gave_up |= self._is_over and bool(self._under_way)
        while self._under_way:  # these calls are paid for and go into the store
            await asyncio.wait(self._under_way)

    def close(self, method: asyncio.Task) -> None:
        """End the record's run: cancel the method, its tasks and its calls; no call returns after this."""
        self.end(MethodError("this record's run has ended"))
        root = getattr(method, "root", None)
        for task in (method, *self._under_way, *(root.tasks if root else ())):
            task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio complains

    async def _goes_on(self) -> bool:
        """Return whether a part of the method that does not wait for an engine makes another call."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if self._stirred.is_set():
                return True
        return False

    async def _unless_over(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("ask: called in another event loop; await it in the method's own, not in a thread")
        # Always the first step: a loop with a bare `except` around a refused call would spin.
        if self.ended is not None or self._is_over:
            await self._never()

    async def _never(self) -> None:
        # A new future each time: a cancelled future is done, and a loop in the method that awaits it would spin.
        await self._loop.create_future()

    def _land(self, role: str, call: Call | None, task: asyncio.Task) -> None:
        """Note how a call or a search ended; for a search, `call` is None."""
        self._under_way.discard(task)
        self._stirred.set()
        if task.cancelled():
            return
        if isinstance(error := task.exception(), NotStoredError):
            self.needs = self.needs or role
            self.lacking.append((role, call))
        elif error is None or isinstance(error, ParserError):
            if call is not None and call.prompt is not None:  # otherwise, no server was needed
                self._around.landed(role)
        else:
            self.failed = self.failed or role
            self.end(error)
