"""The runner: every record goes through a method, first as far as the store goes, then with one engine after another.

A record that needs a completion which the store lacks, of a model whose engine is not open, is dropped. It is run again
from its beginning once that engine is open: all that it asked before is in the store by then.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType

from utils.benchmarks.task import Record
from utils.cli import UserError, exit_on_signal
from utils.cli.errors import first_five, printable, quote
from utils.cli.progress import Progress
from utils.files.output import Key, Piece
from utils.generation.driver import OUTAGE, THOUGHT_COUNT, TOKEN_COUNTS
from utils.generation.requests import Engine, UnavailableError
from utils.parsing import writable
from utils.runs.methods import Ask, Method, MethodError, Question, Settings, sum_calls

LONGEST = 500  # characters of an error that are shown
AT_ONCE = 16  # records without an engine: a method may wait for something else
GRACE = 1  # seconds for what a method has left running to end


@dataclass
class Outcome:
    """What became of the records of a run.

    Attributes:
        pieces: a record of the output by its key, of those that ended with a value or without.
        calls: of the same, role and record of each call, without their texts.
        missing: of those that a server failed to answer, why.
        raised: of those on which the method raised, where and what.
        device: the engine's; None if the store had everything.
    """

    pieces: dict[Key, Piece] = field(default_factory=dict)
    calls: dict[Key, list[tuple[str, Piece]]] = field(default_factory=dict)
    missing: dict[Key, str] = field(default_factory=dict)
    raised: dict[Key, str] = field(default_factory=dict)
    device: str | None = None


def run_method(
    method: Method,
    shared: Settings,
    records: dict[Key, Record],
    open_engines: Callable[[str], dict[str, Engine]],
) -> Outcome:
    """Run every record through a method. The result depends on the store and the method's file alone: if an engine was
    needed, all records are run once more without.

    `open_engines` takes a role and returns engines by the roles that they serve, this one's first. It is called only if
    the store lacks something: for the role that most records wait for, of as many the first one.

    UserError if a record asks otherwise than before, or if the server has never answered. Whatever else an engine or
    the store raises ends the run and is raised.
    """
    run = Run(method, shared)
    try:
        left = asyncio.run(run.all(records))
        if left and shared.models["generator"].completions.cached_only:
            raise UserError(
                f"the store lacks completions for {len(left)} of {len(records)} answers\n"
                "  --cached_only requests none: run the shards that are missing, or the same command without it"
            )
        device = None
        while left:
            waiting = Counter(run.needs[key] for key in left)
            role = max(shared.models, key=lambda role: waiting[role])
            with exit_on_signal():
                engines = open_engines(role)
            device = engines[role].device
            left = asyncio.run(run.all(left, engines, len(records) - len(left)))
        if device is not None:
            missing = run.outcome.missing
            run.outcome = Outcome(missing=missing, device=device)
            rest = {key: record for key, record in records.items() if key not in missing}
            if left := asyncio.run(run.all(rest, is_shown=False)):
                raise run.asks_otherwise(next(iter(left)))
    except SystemExit:
        raise UserError("the method called sys.exit; return None if there is no answer") from None
    finally:
        for model in shared.models.values():
            model.completions.store.close()
    return run.outcome


@dataclass
class Run:
    """A method's run over records, in several passes."""

    method: Method
    shared: Settings
    outcome: Outcome = field(default_factory=Outcome)
    asked: dict[Key, Set[str]] = field(default_factory=dict)  # what each record has asked so far
    needs: dict[Key, str] = field(default_factory=dict)  # the role that a record waits for
    live: set[Ask] = field(default_factory=set)
    tasks: set[asyncio.Task] = field(default_factory=set)  # asyncio alone would forget those that do not end
    num_calls: int = 0
    num_unusable: int = 0
    in_a_row: int = 0  # records that the server failed to answer, since the last one that ended
    error: Exception | None = None  # what ends the run

    async def all(
        self,
        records: dict[Key, Record],
        engines: Mapping[str, Engine] = MappingProxyType({}),
        done: int = 0,
        is_shown: bool = True,
    ) -> dict[Key, Record]:
        """Run records as far as they go, then close the engines; returns those that wait for others, in their order."""
        concurrency = max((engine.concurrency for engine in engines.values()), default=AT_ONCE)
        left, waiting, missing = {}, iter(records.items()), self.outcome.missing
        self.in_a_row = self.num_unusable = self.num_calls = 0

        async def work() -> None:
            for key, record in waiting:
                if self.error is not None or self.in_a_row >= max(OUTAGE, concurrency):
                    return
                if await self.one(key, record, engines, progress):
                    self.in_a_row = 0
                    if progress is not None:
                        progress.update(failed=self.num_unusable)
                elif key not in missing and key not in self.outcome.raised:
                    left[key] = record

        try:
            progress = Progress(done + len(records), "answers", done, concurrency) if is_shown else None
            with closing(progress) if progress else nullcontext():
                await asyncio.gather(*(work() for _ in range(concurrency)))
        finally:
            for engine in set(engines.values()):
                await engine.close()
            await _end_tasks()
        if self.error is not None:
            raise self.error
        if engines and missing and not self.outcome.pieces and not left:
            raise UserError(f"{next(iter(missing.values()))}\n  nothing was answered; run the same command again")
        if self.in_a_row >= max(OUTAGE, concurrency):
            problem = list(missing.values())[-1]
            print(f"note: {problem}; nothing is answered any more, so no more is asked of this model", file=sys.stderr)
            ended = self.outcome.pieces.keys() | self.outcome.raised.keys() | missing.keys() | left.keys()
            missing.update((key, problem) for key in records.keys() - ended)
        return {key: record for key, record in records.items() if key in left}

    async def one(
        self, key: Key, record: Record, engines: Mapping[str, Engine], progress: Progress | None = None
    ) -> bool:
        """Run one record; True if it ended, with a value or without."""

        def count() -> None:
            self.num_calls += 1
            if progress is not None:
                progress.update(0, calls=self.num_calls)

        ask = Ask(self.shared, record, key, engines, self.asked.get(key, frozenset()), count)
        task = asyncio.create_task(self.method.answer(Question(record, self.shared.task), ask))
        self.live.add(ask)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        try:
            await ask.watch(task)
            ended = ask.ended
        finally:
            self.live.discard(ask)
            ask.close(task)
            self.tasks |= {one for one in ask.tasks if not one.done()}
        self.asked[key] = self.asked.get(key, frozenset()) | ask.asked
        if ask.asks_otherwise:
            self._end(self.asks_otherwise(key))
        elif isinstance(ended, UnavailableError):
            self.outcome.missing[key] = str(ended)
            self.in_a_row += 1
        elif isinstance(ended, MethodError):
            self.outcome.raised[key] = str(ended)
        elif ended is not None:
            self._end(ended)
        elif ask.needs is not None:
            self.needs[key] = ask.needs
        else:
            return self._finish(key, task, ask)
        return False

    def asks_otherwise(self, key: Key) -> UserError:
        return UserError(
            f"id {quote(key[0])}: the method makes other calls than in its previous run\n"
            "  it must make the same ones: use ask.random, no clock, and not the order in which calls finish"
        )

    def _end(self, error: Exception) -> None:
        """End the run: every record's calls that are under way land, and none follows."""
        self.error = self.error or error
        for ask in self.live:
            ask.end(error)

    def _finish(self, key: Key, task: asyncio.Task, ask: Ask) -> bool:
        """Note what a method returned or raised; False for the latter."""
        error = MethodError("it cancelled itself") if task.cancelled() else task.exception()
        if error is None and ask.gave_up:
            error = MethodError("it cancelled a call (a timeout?), so its answer depends on timing")
        value = None if error is not None else task.result()
        if not isinstance(value, str | None):
            error = TypeError(f"answer returned {type(value).__name__}, not a text or None")
        while isinstance(error, BaseExceptionGroup):  # of a TaskGroup
            error = error.exceptions[0]
        if error is not None:
            where = "" if isinstance(error, MethodError) else f"{self.method.place_of(error)}: {type(error).__name__}: "
            self.outcome.raised[key] = f"{where}{error}"
            return False
        piece = self.outcome.pieces[key] = _piece(value, ask)
        self.num_unusable += piece["value"] is None
        texts = ("value", "raw", "reasoning")
        self.outcome.calls[key] = [
            (role, {name: "" if name in texts and one[name] else one[name] for name in one}) for role, one in ask.calls
        ]
        return True


async def _end_tasks() -> None:
    """Cancel what methods have left running. What goes on all the same is let go: asyncio.run would wait for it."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE)
    for task in tasks:
        if not task.done():
            task._log_destroy_pending = False
            asyncio._unregister_task(task)


def _piece(value: str | None, ask: Ask) -> Piece:
    """A record of the output: the value, what is told of the call that gave it, the notes, and figures by role."""
    calls = ask.calls
    value = value if value is not None and value.strip() else None
    own = next(
        (one for _, one in reversed(calls) if isinstance(one["value"], str | None) and one["value"] == value), {}
    )
    own = {name: one for name, one in own.items() if name not in ("value", THOUGHT_COUNT, *TOKEN_COUNTS)}
    if value is None:
        own = {"reason": "the method gave no answer", **own}
    figures = {
        role: sum_calls(one for its, one in calls if its == role) for role in dict.fromkeys(its for its, _ in calls)
    }
    return {"value": value and writable(value), **own, "notes": ask.notes, "calls": figures}


def report_raised(raised: dict[Key, str]) -> int:
    """The exit code, and on stderr what a method raised: its commonest errors with a record's id each."""
    if not raised:
        return 0
    print(f"the method raised on {len(raised)} records; the same command retries them:", file=sys.stderr)
    alike: dict[str, list[str]] = {}
    for (question_id, *_), told in raised.items():
        alike.setdefault(told, []).append(str(question_id))
    for told, ids in sorted(alike.items(), key=lambda item: len(item[1]), reverse=True)[:5]:
        print(f"  {printable(told[:LONGEST])} (id {first_five(ids)})", file=sys.stderr)
    return 1
