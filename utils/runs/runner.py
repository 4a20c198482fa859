"""The runner: runs every record through a method, first from the store alone, then with one engine after another.

A record that needs a new completion from a model without an open engine is set aside. It runs again from its beginning
once that engine is open; by then, all its earlier calls are in the store.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

from utils.cli import UserError, exit_on_signal
from utils.cli.errors import quote
from utils.cli.progress import Progress
from utils.files.output import Key, Piece
from utils.generation.completions import Completions
from utils.generation.requests import Engine, UnavailableError
from utils.runs.ask import Ask, MethodError, Room
from utils.runs.command import open_engines
from utils.runs.methods import Method, Question, piece_of
from utils.runs.shared import Shared, Step

AT_ONCE = 16  # concurrent records without an engine, because a method may wait for other things
GRACE = 1  # seconds to end the tasks that a method has left running
OUTAGE = 3  # consecutive unanswered records (at least the number in flight) after which the server counts as gone
Engines = Mapping[str, Engine]  # by the roles that they serve


class NotedError(Exception):
    """The records' requests are noted; the run can continue once they are answered (utils/batch.py)."""


def run_steps(steps: Sequence[Step], shared: Shared, closes_stores: bool = True) -> tuple[str | None, list["Run"]]:
    """Run the records of each step through its method, one step after the other, and close the models' stores.

    A record that a server failed to answer has no piece. If a server stops answering, all steps that use it end early.
    The pieces of a user's method depend only on the store and its file: if an engine was needed, all its records are
    run once more without one.

    Returns:
        The device of the last engine (None if the store had everything), and the steps' runs.

    Raises:
        UserError: a record makes different calls than before, a server has never answered, or the store lacks a
            completion with --cached_only. Other exceptions of an engine or the store end the run and are raised.
        NotedError: the open engine notes requests instead of making them.
        KeyboardInterrupt: SIGINT or SIGTERM. Received completions are in the store.
    """
    servers = Servers()
    runs = [Run(step, shared, servers) for step in steps]
    device = None
    try:
        left = asyncio.run(_advance(runs, {}))
        while left:
            role = left[0].awaits()
            left[0].refuse_cached_only(role)
            with exit_on_signal():
                engines = open_engines(shared.roles, [role, *left[0].other_roles(role)])
            device = engines[role].device
            left = asyncio.run(_advance(left, engines))
            if left and left[0].awaits() in engines:
                raise NotedError
        for role in shared.roles.values():
            role.model.completions.keep_refusals()
        if device is not None:
            for run in runs:
                if run.is_own:
                    asyncio.run(run.repeat())
    except SystemExit:
        if not any(run.is_own for run in runs):
            raise
        raise UserError("the method called sys.exit; return None if there is no answer") from None
    finally:
        for role in shared.roles.values() if closes_stores else ():
            role.model.completions.store.close()
    return device, runs


async def _advance(runs: list["Run"], engines: Engines) -> list["Run"]:
    """Run steps as far as these engines allow, close the engines, and return the steps that are left."""
    left: list[Run] = []
    try:
        for run in runs:
            if run.step.after not in [one.step for one in left]:
                await run.go(engines)
                if not run.num_left:
                    run.step.finish(run.device)
                    continue
            left.append(run)
        return left
    finally:
        for engine in set(engines.values()):
            await engine.close()
        await end_tasks()


@dataclass
class Servers:
    """State of the servers in all steps of a run, by role (None for steps without a role)."""

    answered: set[str | None] = field(default_factory=set)  # have answered, in this run or an earlier one
    gone: dict[str, str] = field(default_factory=dict)  # no longer answer, with the problem


class Run:
    """A running step, in several passes.

    Attributes:
        is_own: whether its method is a user's.
        calls: role and record (without texts) of each call of a user's method, by record.
        missing: the reason for each record that a server failed to answer.
        raised: place and error for each record on which a user's method raised.
        device: the device of an engine that was used; None if the store had everything.
    """

    def __init__(self, step: Step, shared: Shared, servers: Servers):
        self.step, self.shared, self._servers = step, shared, servers
        self.device: str | None = None
        self.is_own = isinstance(step.method, Method)
        self.calls: dict[Key, list[tuple[str, Piece]]] = {}
        self.missing: dict[Key, str] = {}
        self.raised: dict[Key, str] = {}
        self._left: dict[Key, Any] | None = None  # records that have not ended; None before the step begins
        self._total = 0
        self._asked: dict[Key, Set[str]] = {}  # requests of each record of a user's method so far
        self._needs: dict[Key, str] = {}  # the role that a record waits for
        self._num_calls = self._num_unusable = 0
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._live: set[Ask] = set()
        self._tasks: set[asyncio.Task] = set()  # asyncio refers to tasks weakly
        self._in_a_row = 0  # records that the server failed to answer since its last answer
        self._is_out = False  # enough in a row: no further record is begun, even if a late answer arrives
        self._error: Exception | None = None  # the error that ends the run
        self._is_stopped = False  # the engine of our own method is not open, so no record can proceed

    @property
    def num_left(self) -> int:
        return len(self._left or ())

    def awaits(self) -> str:
        """Return the role that most records wait for; the first one in a tie."""
        if self.step.role:
            return self.step.role
        waiting = Counter(self._needs[key] for key in self._left)
        return max(self.shared.roles, key=lambda role: waiting[role])

    def other_roles(self, role: str) -> list[str]:
        """Return the other roles that its records may ask."""
        return [] if self.step.role else [name for name in self.shared.roles if name != role]

    def refuse_cached_only(self, role: str) -> None:
        if self._completions(role).cached_only:
            raise UserError(
                f"{self._completions(role).store.folder}: lacks completions for {self.num_left} of {self._total} "
                f"{self.step.unit}\n"
                "  run the missing shards, or run the same command without --cached_only"
            )

    async def go(self, engines: Engines, is_shown: bool = True) -> None:
        """Run the records that are left as far as these engines allow."""
        if self._left is None:
            self._left = dict(self.step.records())
            self._total = len(self._left) + self.step.done
        self._begin_pass()
        problem = self._servers.gone.get(self.step.role)
        if problem is not None:
            engines = {}
        requested = self._num_requested()
        its = [engine for role, engine in engines.items() if self.step.role in (None, role)]
        concurrency = max((engine.concurrency for engine in its), default=AT_ONCE)
        most = max(OUTAGE, concurrency)
        waiting, room = iter(list(self._left.items())), Room()
        left, untried = {}, {}  # records that need another engine, and records not begun

        async def work() -> None:
            for key, record in waiting:
                self._is_out |= self._in_a_row >= most
                if self._error is not None or self._is_out or self._is_stopped:
                    untried[key] = record
                    return
                if await self._one(key, record, engines, room, progress):
                    if progress is not None:
                        progress.update(failed=self._num_unusable)
                elif key in self.missing:
                    if progress is not None:
                        progress.update(0, missing=len(self.missing))
                elif key not in self.raised:
                    left[key] = record

        done = self._total - len(self._left)
        shown, progress = is_shown and self.step.is_shown, None
        if shown:
            progress = Progress(self._total, self.step.unit, done, concurrency, quiet=not its)
        with closing(progress) if progress else nullcontext():
            await asyncio.gather(*(work() for _ in range(concurrency)))
        if self._error is not None:
            raise self._error
        untried.update(waiting)
        if self._num_requested() > requested:
            self.device = its[0].device
        if problem is not None:
            self.missing |= dict.fromkeys(left | untried, problem)
            left, untried = {}, {}
        elif self.missing and self.step.role not in self._servers.answered:
            # A wrong address is more likely than an outage.
            again = f"asked {self._tries()} times; finished work is kept, run the same command again to resume"
            raise UserError(f"{next(iter(self.missing.values()))}\n  {again}")
        elif self._is_out:
            problem = list(self.missing.values())[-1]
            told = "the server no longer answers; sending no more requests to this model"
            print(f"note: {problem}; {told}", file=sys.stderr)
            self.missing |= dict.fromkeys(untried, problem)
            untried = {}
            if self.step.role:
                self._servers.gone[self.step.role] = problem
        self._left = {key: record for key, record in self._left.items() if key in left or key in untried}

    async def repeat(self) -> None:
        """Run all records of a user's method once more, from the store alone."""
        records = dict(self.step.records())
        self.step.pieces.clear(), self.calls.clear(), self.raised.clear()
        self._left = {key: record for key, record in records.items() if key not in self.missing}
        missing, self.missing = self.missing, {}
        await self.go({}, is_shown=False)
        await end_tasks()
        self.missing |= missing
        if self._left:
            raise self._asks_otherwise(next(iter(self._left)))

    async def _one(self, key: Key, record: Any, engines: Engines, room: Room, progress: Progress | None) -> bool:
        """Run one record and return whether it ended, with or without a value."""

        def count() -> None:
            self._num_calls += 1
            self._servers.answered.add(self.step.role)
            self._in_a_row = 0
            if progress is not None and self.step.role is None:
                progress.update(0, calls=self._num_calls)

        before = self._asked.get(key, frozenset()) if self.is_own else None
        ask = Ask(self.shared, record, key, engines, room, before, count)
        method = self.step.method.answer if self.is_own else self.step.method
        task = asyncio.create_task(
            method(Question(record, self.shared.task, self.shared.shown) if self.is_own else record, ask)
        )
        self._live.add(ask)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await ask.watch(task)
            ended = ask.ended
        finally:
            self._live.discard(ask)
            ask.close(task)
            self._tasks |= {one for one in ask.tasks if not one.done()}
        if self.is_own:
            self._asked[key] = self._asked.get(key, frozenset()) | ask.asked
        if ask.asks_otherwise:
            self._end(self._asks_otherwise(key))
        elif isinstance(ended, UnavailableError):
            self.missing[key] = str(ended)
            self._in_a_row += 1
        elif isinstance(ended, MethodError):
            self.raised[key] = str(ended)
        elif ended is not None:
            self._end(ended)
        elif ask.needs is not None:
            self._needs[key] = ask.needs
            is_open = ask.needs in engines or self._completions(ask.needs).cached_only
            self._is_stopped = not (self.step.role is None or is_open or ask.needs in self._servers.gone)
        elif self.is_own:
            return self._finish(key, task, ask)
        else:
            self.step.pieces[key] = task.result()
            self._num_unusable += task.result()["value"] is None
            return True
        return False

    def _num_requested(self) -> int:
        """Return the number of completions requested so far from this step's models, also by earlier steps."""
        roles = [self.step.role] if self.step.role else self.shared.roles
        return sum(self._completions(role).asked for role in roles)

    def _completions(self, role: str) -> Completions:
        return self.shared.roles[role].model.completions

    def _tries(self) -> int:
        return max(role.model.policy.max_retries for role in self.shared.roles.values()) + 1

    def _asks_otherwise(self, key: Key) -> UserError:
        return UserError(
            f"id {quote(key[0])}: the method makes different calls than in its previous run\n"
            "  use ask.random for all randomness, and do not depend on time or on the order in which calls finish"
        )

    def _end(self, error: Exception) -> None:
        """End the run: calls in flight still finish, and no new calls follow."""
        self._error = self._error or error
        for ask in self._live:
            ask.end(error)

    def _finish(self, key: Key, task: asyncio.Task, ask: Ask) -> bool:
        """Record what a user's method returned or raised; return False if it raised."""
        error = MethodError("it cancelled itself") if task.cancelled() else task.exception()
        if error is None and ask.gave_up:
            error = MethodError("it cancelled a call (a timeout?), so its answer depends on timing")
        value = None if error is not None else task.result()
        if not isinstance(value, str | None):
            error = TypeError(f"answer returned {type(value).__name__}, not a text or None")
        while isinstance(error, BaseExceptionGroup):  # from a TaskGroup
            error = error.exceptions[0]
        if error is not None:
            known = isinstance(error, MethodError)
            where = "" if known else f"{self.step.method.place_of(error)}: {type(error).__name__}: "
            self.raised[key] = f"{where}{error}"
            return False
        piece = self.step.pieces[key] = piece_of(value, ask)
        self._num_unusable += piece["value"] is None
        texts = ("value", "raw", "reasoning")
        self.calls[key] = [
            (role, {name: "" if name in texts and one[name] else one[name] for name in one}) for role, one in ask.calls
        ]
        return True


async def end_tasks() -> None:
    """Cancel tasks that methods left running; abandon those that ignore it, or asyncio.run would wait for them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE)
    for task in tasks:
        if not task.done():
            task._log_destroy_pending = False
            asyncio._unregister_task(task)
