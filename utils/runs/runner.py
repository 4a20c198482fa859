"""The runner: runs every record of a stage, first from the store alone, then with one engine after another.

If a record needs a new completion from a model whose engine is not open, the record is set aside. Once the engine is
open, the record runs again from its beginning; by then, the results of all its earlier calls are in the store.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from utils.cli import Arguments, UserError, exit_on_signal
from utils.cli.progress import Progress
from utils.files.manifest import manifest_of
from utils.files.output import Piece, is_failed
from utils.generation.engines import OpenAPI, open_engines
from utils.generation.requests import Engine, UnavailableError
from utils.runs.ask import Ask
from utils.runs.dry_run import Lacking
from utils.runs.files import StageFile
from utils.runs.loop import Loop
from utils.runs.publishing import publish
from utils.runs.rendering import Prompts
from utils.runs.stage import Place, Stage, models_of
from utils.runs.steps import MethodError, Room, Step, Surroundings
from utils.runs.trace import Trace

AT_ONCE = 16  # records that run concurrently without an engine, because a method may wait for other things
GRACE = 1  # seconds to wait for the end of tasks that a method has left running
OUTAGE = 3  # a server counts as gone after this many unanswered records in a row, or as many as run concurrently
Engines = Mapping[str, Engine]  # engines by the roles that they serve


class NotedError(Exception):
    """All requests that records need now are noted; the run can continue once they are answered (utils/batch.py)."""


def make_pieces(stages: Sequence[Stage], args: Arguments, open_api: OpenAPI) -> list["Run"]:
    """Run all records of these stages, publish the files, and return the runs; exceptions are as in `run_stages`."""
    models, servers = models_of(stages), Servers()
    runs = [Run(stage, args, servers) for stage in stages]
    with ExitStack() as closes:
        for stage in stages:
            closes.enter_context(open_for(stage))
        loop = closes.enter_context(closing(Loop()))
        left = loop.run(_advance(runs, {}))
        while left:
            role = left[0].awaits()
            for run in left:
                run.refuse_requests()
            others = [name for name in left[0].stage.models if name != role]
            with exit_on_signal():
                engines = open_engines(models, [role, *others], open_api)
            left = loop.run(_advance(left, engines))
            if left and left[0].awaits() in engines:
                raise NotedError
    return runs


def refuse_deleted_store(stage: Stage, files: Sequence[StageFile], args: Arguments) -> None:
    """Raise UserError if an output would be made again but completions are gone: they would be paid for again.

    An output whose keys are not known yet may prove to be finished, so it is not refused.
    """
    if args.overwrite or args.cached_only:
        return
    for file in files:
        is_known = not (file.finished or file.is_shard or file.keys is None)
        made = manifest_of(file.path) if is_known else None
        if made is None or made.get("tokens", {}).get("prompt_tokens") == 0:
            continue
        calls = made.get("calls")
        for role, model in stage.models.items():
            asked = calls is None or calls.get(role, {}).get("prompt_tokens", 0) != 0  # None: the server reports none
            if asked and (store := model.completions.store).is_empty:
                problem = f"is gone; it had the completions of {file.path}, which has to be made again"
                remedy = "give the folder that has them (--completions), or --overwrite to request all of them again"
                raise UserError(f"{store.folder}: {problem}\n  {remedy}")


@contextmanager
def open_for(stage: Stage) -> Iterator[None]:
    """Close the stores and the search of a stage at the end; they are opened when they are needed."""
    try:
        yield
    finally:
        for model in stage.models.values():
            model.completions.store.close()
        if stage.search is not None:
            stage.search.close()


async def _advance(runs: list["Run"], engines: Engines) -> list["Run"]:
    """Run stages as far as these engines allow, close the engines, and return the runs that are not finished."""
    left: list[Run] = []
    try:
        for run in runs:
            if run.stage.after not in [other.stage for other in left]:
                await run.go(engines)
                if not run.left:
                    run.finish()
                    continue
            left.append(run)
        return left
    finally:
        for engine in set(engines.values()):
            await engine.close()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # a method has left them running
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=GRACE)


@dataclass
class Servers:
    """State of the servers in all stages of a run, by role."""

    answered: set[str] = field(default_factory=set)  # roles whose server has answered, in this run or an earlier one
    gone: dict[str, str] = field(default_factory=dict)  # role whose server no longer answers -> the problem


class Run:
    """The run of a stage, in several passes.

    Attributes:
        made: the stage's `made`, once the run has begun. A finished file is never written again.
        left: records that have not ended, by place.
        total: the number of all records, including those that have a piece already.
        calls: role and call record (without texts) of each record's calls, by place; a shared call is listed once.
        lacking: the requests that the store cannot answer, by role (--dry_run).
        missing: the problem, by place, of each record that a server failed to answer.
        raised: line and error, by place, of each record on which a user's method raised an exception.
        lacking_searches: the number of searches that would need the encoder (--dry_run).
        asks_otherwise: places of records that did not repeat all their calls when they ran again.
        device: the devices of the engines that were used; None if the store had everything.
    """

    def __init__(self, stage: Stage, args: Arguments, servers: Servers):
        self.stage, self._args, self._servers = stage, args, servers
        self.made: list[StageFile] = []
        self.left: dict[Place, Any] | None = None  # None before the stage begins
        self.calls: dict[Place, list[tuple[str, Piece]]] = {}
        self.missing: dict[Place, str] = {}
        self.raised: dict[Place, str] = {}
        self.asks_otherwise: set[Place] = set()
        self._devices: dict[str, None] = {}
        self._requested = 0  # completions that this stage has requested
        self._prompts = Prompts(stage.task, vars(args).get("prompts_dir"))
        self.total = 0
        self._call_hashes: dict[Place, set[int]] = {}  # calls of each record that has run but not ended
        self._needs: dict[Place, str] = {}  # place of a waiting record -> the role whose engine it needs
        self._counted: set[int] = set()  # shared calls that are in `calls` or `lacking`
        self.lacking = {role: Lacking(model) for role, model in stage.models.items()}
        self.lacking_searches = self._num_calls = self._num_unusable = 0
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._live: set[Ask] = set()
        self._tasks: set[asyncio.Task] = set()  # asyncio refers to tasks weakly
        self._in_a_row = Counter[str]()  # by role: records that the server failed to answer since its last answer
        self._replies = {role: model.completions.replies for role, model in self.stage.models.items()}  # known so far
        self._problems: dict[str, str] = {}  # by role: the last problem with its server
        self._error: Exception | None = None  # the error that ends the run

    def begin(self) -> None:
        """Set `made`, the files to make, and `left`, the records to run, which have no piece yet."""
        before = self.stage.after
        absent = {key for file in before.files for key in file.missing()} if before else ()
        unknown = [file for file in self.stage.files if file.keys is None]
        records = {place: record for place, record in self.stage.expect().items() if place[1] not in absent}
        for file in unknown:
            if file.is_finished():
                file.load()
        refuse_deleted_store(self.stage, unknown, self._args)
        self.made = self.stage.made
        self.left = {
            (file, key): record
            for (file, key), record in records.items()
            if key not in file.pieces and file in self.made
        }
        self.total = len(records)
        is_traced = vars(self._args).get("trace") and not self._args.dry_run
        self._traces = {file: Trace(file) for file in self.made if is_traced and not file.is_shard}

    @property
    def device(self) -> str | None:
        return " and ".join(self._devices) or None

    def awaits(self) -> str:
        """Return the role whose engine most records wait for; in a tie, the first such role."""
        waiting = Counter(self._needs.values())
        return max(self.stage.models, key=lambda role: waiting[role])

    def refuse_requests(self) -> None:
        """Raise UserError if this run may request nothing: with --cached_only, or because its outputs are finished."""
        if not self.left:  # it has not begun
            return
        completions = self.stage.models[self.awaits()].completions
        if self.stage.is_finished:
            path, lacking = self.made[0].path, f"{len(self.left)} of {self.total} {self.stage.unit}"
            raise UserError(
                f"{completions.store.folder}: lacks completions for {lacking} of {path}, which is finished\n"
                "  give the folder that has them (--completions), or --overwrite to request them again"
            )
        if completions.cached_only:
            raise UserError(
                f"{completions.store.folder}: lacks completions for {len(self.left)} of {self.total} "
                f"{self.stage.unit}\n"
                "  run the missing shards, or run the same command without --cached_only"
            )

    async def go(self, engines: Engines, is_dry: bool = False) -> None:
        """Run the records that are left as far as these engines allow; a dry run begins every one of them."""
        if self.left is None:
            self.begin()
        self._begin_pass()
        self._needs.clear()
        self._is_dry = is_dry
        requested = {role: model.completions.requested for role, model in self.stage.models.items()}
        num_stored = self._num_stored()
        stage_engines = [engine for role, engine in engines.items() if role in self.stage.models]
        concurrency = max((engine.concurrency for engine in stage_engines), default=AT_ONCE)
        waiting, most = iter(list(self.left.items())), max(OUTAGE, concurrency)
        left: dict[Place, Any] = {}  # records that need another engine, or were not begun
        args, stage = self._args, self.stage
        around = Surroundings(
            stage.task, stage.models, engines, self._servers.gone, self._prompts, args, Room(), self._count_call,
            stage.search, bool(self._traces),
        )  # fmt: skip
        # Without an engine for its only model, no further record can be completed: the run waits for one, unless none
        # will come.
        role, only_model = next(iter(stage.models.items())) if len(stage.models) == 1 else ("", None)
        none_comes = is_dry or role in self._servers.gone or (only_model and only_model.completions.cached_only)
        may_stop = only_model and not stage_engines and not none_comes

        async def work() -> None:
            while not (self._error is not None or self._is_over(most) or (may_stop and self._needs)):
                place, record = next(waiting, (None, None))
                if place is None:
                    return
                if await self._one(place, record, around):
                    self._show(failed=self._num_unusable)
                elif place in self.missing:
                    self._show(0, missing=len(self.missing))
                elif place not in self.raised:
                    left[place] = record

        self._progress = None
        if not is_dry:
            done = self.total - len(self.left)
            self._progress = Progress(self.total, stage.unit, done, concurrency, quiet=not stage_engines)
        with closing(self._progress) if self._progress else nullcontext():
            await asyncio.gather(*(work() for _ in range(concurrency)))
        if self._error is not None:
            raise self._error
        left.update(waiting)
        for role, model in self.stage.models.items():
            if role in engines and model.completions.requested > requested[role]:
                self._devices[engines[role].device] = None
        self._requested += self._num_stored() - num_stored
        self._refuse_unanswered()
        gone = self._servers.gone
        self.missing |= {place: gone[role] for place, role in self._needs.items() if role in gone}
        self._needs = {place: role for place, role in self._needs.items() if role not in gone}
        self.left = {
            place: record for place, record in self.left.items() if place in left and place not in self.missing
        }

    def _is_over(self, most: int) -> bool:
        """Return whether to begin no further record in this pass, and note each server that no longer answers.

        Records that need such a server are missing; those that do not need it continue. A server that has never
        answered ends the pass.
        """
        for role, number in self._in_a_row.items():
            if number >= most and role not in self._servers.gone:
                if role not in self._servers.answered:
                    return True
                self._servers.gone[role] = self._problems[role]
                effect = "the server no longer answers; sending no more requests to this model"
                print(f"note: {self._problems[role]}; {effect}", file=sys.stderr)
        return False

    def _refuse_unanswered(self) -> None:
        """Raise UserError if a server has never answered."""
        if never := [role for role in self._problems if role not in self._servers.answered]:
            # A wrong address is more likely than an outage.
            tries = max(model.policy.max_retries for model in self.stage.models.values()) + 1
            again = f"tried {tries} times; finished work is kept, run the same command again to resume"
            raise UserError(f"{self._problems[never[0]]}\n  {again}")

    def _count_call(self, role: str) -> None:
        """Count a call that has its result, from the store or from the role's server, which has answered then."""
        self._num_calls += 1
        self._servers.answered.add(role)
        replies = self.stage.models[role].completions.replies
        if replies != self._replies[role]:
            self._replies[role], self._in_a_row[role] = replies, 0
        if self.stage.many_calls:
            self._show(0, calls=self._num_calls)

    def _show(self, number: int = 1, **counts: int) -> None:
        if self._progress is not None:
            self._progress.update(number, **counts)

    async def _one(self, place: Place, record: Any, around: Surroundings, may_repeat: bool = True) -> bool:
        """Run one record and return whether it ended, with or without a value."""
        (file, key), after = place, self.stage.after
        ask = Ask(record, key, around)
        before = [next((other.pieces[key] for other in after.files if key in other.pieces), None)] if after else []
        method = asyncio.create_task(self.stage.method(record, ask, *before))
        self._live.add(ask)
        self._tasks.add(method)
        method.add_done_callback(self._tasks.discard)
        try:
            await ask.wait_for(method)
            ended, gave_up = ask.ended, ask.gave_up
        finally:
            self._live.discard(ask)
            ask.close(method)
        if not ask.call_hashes >= self._call_hashes.get(place, set()) and ended is None and ask.needs is None:
            self.asks_otherwise.add(place)
        self._call_hashes[place] = ask.call_hashes
        if isinstance(ended, UnavailableError):
            self.missing[place] = self._problems[ask.failed] = str(ended)
            self._in_a_row[ask.failed] += 1
        elif isinstance(ended, MethodError):
            self.raised[place] = str(ended)
        elif ended is not None:
            self._error = self._error or ended
            for other in self._live:  # calls in flight still finish, but no new calls are made
                other.end(ended)
        elif ask.needs is not None:
            self._needs[place] = ask.needs
            for role, call in ask.lacking if self._is_dry else ():
                if call is None:
                    self.lacking_searches += 1
                elif self._counts(call.shared):
                    self.lacking[role].add(call)
        elif gave_up and may_repeat:  # its calls are in the store now, so timing no longer matters
            return await self._one(place, record, around, may_repeat=False)
        elif gave_up:
            self.raised[place] = "the method did not wait for a call (a timeout?), so its answer depends on timing"
        elif method.cancelled():
            self.raised[place] = "the method was cancelled: by itself, or with another question's task that it awaited"
        elif isinstance(error := method.exception(), MethodError):
            self.raised[place] = str(error)
        else:
            piece = method.result()
            file.add(key, piece)
            self._num_unusable += is_failed(piece)
            steps = [step for _, step in ask.steps if isinstance(step, Step) and self._counts(step.shared)]
            self.calls[place] = [
                (step.role, step.record if step.record is piece else without_texts(step.record)) for step in steps
            ]
            self._call_hashes.pop(place)
            if file in self._traces:
                self._traces[file].add(key, ask)
            return True
        return False

    def _counts(self, shared: int | None) -> bool:
        """Return whether to count a call: it is not shared, or it has not been counted for another record."""
        is_counted = shared in self._counted
        self._counted |= {shared} - {None}
        return not is_counted

    def _num_stored(self) -> int:
        """Return how many completions of this stage's models this process has requested, for whichever stage."""
        return sum(completions.requested for completions in {model.completions for model in self.stage.models.values()})

    def finish(self) -> None:
        """Publish the stage's files once all records have ended."""
        num_stored = self._num_stored()
        for model in self.stage.models.values():
            model.completions.keep_refusals()
        self._requested += self._num_stored() - num_stored
        tally = {"raised": len(self.raised), "asked_otherwise": len(self.asks_otherwise)}
        for file in self.made:
            if not file.finished:
                calls = [
                    call for (its_file, _), its_calls in self.calls.items() if its_file is file for call in its_calls
                ]
                publish(self.stage, file, calls, self.device, self._requested, tally)
            if file in self._traces and not file.is_kept:
                self._traces[file].publish()


def without_texts(record: Piece) -> Piece:
    """Return a call's record with "" in place of its long texts, because the answer's record has them."""
    return {name: "" if name in ("value", "raw", "reasoning") and value else value for name, value in record.items()}
