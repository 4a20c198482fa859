"""The runner: runs every record of a stage, first with stored completions only, then with one engine after another.

If a record needs a new completion from a model whose engine is not open, the record is set aside. Once the engine is
open, the record runs again from its beginning; by then, the results of all its earlier calls are in the store. A dry
run ends after the first pass, without opening an engine."""

import asyncio
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

from utils.base.cli import Arguments
from utils.base.errors import UserError, exit_on_signal
from utils.base.made import Piece
from utils.base.progress import Progress
from utils.benchmarks.thoughts import UNFINISHED, UNFINISHED_COUNT
from utils.generation.calls import (
    THOUGHT_COUNT,
    TOKEN_COUNTS,
    count_unfinished,
    describe_records,
    prices_of,
    total,
)
from utils.generation.completions import NotStoredError
from utils.generation.engines import open_engines
from utils.generation.model import Model
from utils.generation.requests import Engine, UnavailableError
from utils.generation.vllm_engine import is_batch_invariant
from utils.runs.ask import Ask, MethodError, NotNow, Steps, Surroundings
from utils.runs.loop import Loop
from utils.runs.stage import Place, Stage, StageFile, models_of
from utils.runs.tally import Tally

COUNTED = {  # figures of a role's calls; each is the sum of this function over the call records
    "unusable": lambda call: call["value"] is None,
    "unfinished": lambda call: call.get("reason") == UNFINISHED,
    "truncated": lambda call: bool(call.get("truncated")),
    "repaired": lambda call: call.get("parsed") == "repaired",
    "num_contexts_dropped": lambda call: call.get("num_contexts_dropped", 0),
}
AT_ONCE = 16  # records that run concurrently without an engine; a method may wait for other things than calls
GRACE = 1  # seconds to wait for the end of tasks that a method has left running
OUTAGE = 3  # unanswered records in a row after which a server counts as gone; if more run concurrently, their number
Engines = Mapping[str, Engine]  # engines by the roles that they serve


def publish(tally: Tally) -> None:
    """Write a stage's new files, manifests and traces, and print a line about each; a shard writes nothing."""
    stage, before = tally.stage, tally.stage.requested()
    for model in stage.models.values():
        model.completions.keep_refusals()
    requested = tally.requested + stage.requested() - before
    for file in tally.made:
        if not file.finished:
            _publish(tally, file, list(tally.calls_of(file)), requested)
        tally.publish_trace(file)


def _publish(tally: Tally, file: StageFile, calls: Sequence[tuple[str, Piece]], requested: int) -> None:
    """Write the file and its manifest. `calls`: role and record of each call from which its pieces were made."""
    models, content, device = tally.stage.models, file.content(), " and ".join(tally.devices) or None
    first = next(iter(models.values()), None)
    made = describe_records(record for _, record in calls)
    made.pop(UNFINISHED_COUNT, None)  # this counts calls, but the manifest has the count of pieces
    by_role = {role: sum_calls(record for name, record in calls if name == role) for role in models}
    figures = {
        # This and the device are figures, not settings, so that a run can resume on another kind of GPU.
        "batch_invariant": None if device is None or not first.is_local else is_batch_invariant(),
        "counts": file.counts(content),
        **(first.figures if first else {}),
        **made,
        **count_unfinished(file.pieces.values()),
        **cost_of(by_role, models),
    }
    if file.many_calls:
        reused = max(0, sum(record.get("attempts", 0) for _, record in calls) - requested)
        figures |= {"calls": by_role, "completions": {"requested": requested, "from_store": reused}}
        figures |= {"raised": len(tally.raised), "asked_otherwise": len(tally.asked_otherwise)}
    if file.finish(content, device, **figures):
        print(file.line(content, figures))


def sum_calls(calls: Iterable[Piece]) -> dict[str, int | None]:
    """Return figures of several calls: their number, attempts, tokens (None if a server reported none), and COUNTED."""
    calls = list(calls)
    figures = {"num_calls": len(calls), "attempts": sum(call.get("attempts", 0) for call in calls)}
    figures |= {name: total([call.get(name, 0) for call in calls]) for name in TOKEN_COUNTS}
    thought = {THOUGHT_COUNT: sum(call.get(THOUGHT_COUNT, 0) for call in calls)}
    counted = {name: sum(map(count, calls)) for name, count in COUNTED.items()}
    return figures | {name: count for name, count in (thought | counted).items() if count}


def cost_of(by_role: Mapping[str, Mapping[str, int | None]], models: Mapping[str, Model]) -> dict[str, float | None]:
    """Return {"cost_usd": US dollars, or None if unknown} for all roles with prices; empty if no role has prices."""
    costs = [prices.cost(by_role[role]) for role in models if (prices := prices_of(models[role].flags))]
    return {"cost_usd": None if None in costs else round(sum(costs), 6)} if costs else {}


def report_shard(args: Namespace, outputs: Sequence[str]) -> None:
    """If this run is a shard, print where its completions are stored and how to write the outputs."""
    if args.num_shards > 1:
        which = f"shard {args.shard_index} of {args.num_shards}"
        print(
            f"{args.completions}: {which} is stored; run the command without --num_shards to write {', '.join(outputs)}"
        )


@dataclass
class Servers:
    """Which servers have answered in a run, by role, over all stages."""

    answered: set[str] = field(default_factory=set)  # roles whose server has answered, in this run or an earlier one
    gone: dict[str, str] = field(default_factory=dict)  # role whose server no longer answers -> the last error


def make_pieces(stages: Sequence[Stage], args: Arguments) -> list[Tally]:
    """Run all records of these stages, publish the files, and return the tallies; raises what `run_stages` raises.

    With --dry_run, records run only as far as stored completions allow, and nothing is published. With --requests_to,
    only the engines of local models are opened, and the requests to APIs are noted.
    """
    tallies, servers = [Tally(stage) for stage in stages], Servers()
    with ExitStack() as closes:
        for stage in stages:
            closes.enter_context(closing(stage))
        loop = closes.enter_context(closing(Loop()))
        left = loop.run(_advance(tallies, {}, servers, args))
        while left and not args.dry_run:
            for tally in left:
                _refuse_requests(tally)
            if (role := left[0].awaits(is_local=args.requests_to is not None)) is None:
                break
            others = [] if args.requests_to else [name for name in left[0].stage.models if name != role]
            with exit_on_signal():
                engines = open_engines(models_of(stages), [role, *others])
            left = loop.run(_advance(left, engines, servers, args))
    return tallies


def _refuse_requests(tally: Tally) -> None:
    """Raise UserError if a stage must not request completions: with --cached_only, or if its files are finished."""
    if not tally.left:  # the stage has not begun
        return
    stage, completions = tally.stage, tally.stage.models[tally.awaits()].completions
    lacking = f"{completions.store.folder}: lacks completions for {len(tally.left)} of {tally.total} {stage.unit}"
    if stage.is_finished:
        raise UserError(
            f"{lacking} of {tally.made[0].path}, which is finished\n"
            "  pass the folder that has them (--completions), or add --overwrite to request them again"
        )
    if completions.cached_only:
        raise UserError(f"{lacking}\n  run the missing shards, or run the same command without --cached_only")


async def _advance(tallies: list[Tally], engines: Engines, servers: Servers, args: Arguments) -> list[Tally]:
    """Run stages as far as these engines allow, close the engines, and return the tallies of unfinished stages."""
    left: list[Tally] = []
    try:
        for tally in tallies:
            before = tally.stage.after
            if before not in [other.stage for other in left] or (args.dry_run and before.files[0].stand_in):
                await Pass(tally, engines, servers, args).go()
                if args.dry_run:
                    tally.stand_in()
                elif not tally.left:
                    publish(tally)
            if tally.left is None or tally.left:
                left.append(tally)
        return left
    finally:
        for engine in set(engines.values()):
            await engine.close()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # a method left these tasks running
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=GRACE)


class Pass:
    """One pass over the remaining records of a stage, with the engines that are open."""

    def __init__(self, tally: Tally, engines: Engines, servers: Servers, args: Arguments):
        self._tally, self._servers, self._args = tally, servers, args
        self._stage = stage = tally.stage
        self._engines = {role: engines[role] for role in stage.models if role in engines and role not in servers.gone}
        self._concurrency = max((engine.concurrency for engine in self._engines.values()), default=AT_ONCE)
        self._live: dict[Steps, asyncio.Task] = {}  # also keeps the tasks alive: asyncio has only weak references
        # By role: the error of the last record that the server failed to answer, the number of failed records since the
        # server's last reply, and the number of replies up to then.
        self._failures: dict[str, tuple[str, int, int]] = {}
        self._error: Exception | None = None  # what ends the run
        self._num_calls = 0
        self._progress: Progress | None = None

    async def go(self) -> None:
        """Run the remaining records as far as the engines allow."""
        tally, stage, args = self._tally, self._stage, self._args
        if tally.left is None:
            tally.begin(args)
        tally.needs.clear()
        tally.noted.clear()
        around = Surroundings(stage, self._engines, args, self._count_call, tally.is_traced)
        waiting, engines = iter(tally.left.items()), dict(self._engines)
        before, by_role = stage.requested(), {role: stage.requested(role) for role in engines}

        async def work() -> None:
            while self._goes_on() and (following := next(waiting, None)):
                try:
                    await self._run(*following, around)
                except Exception as error:  # `_fail` tells the kinds apart
                    self._fail(error)

        if not args.dry_run:
            done = tally.total - len(tally.left)
            self._progress = Progress(tally.total, stage.unit, done, self._concurrency, quiet=not engines)
        with closing(self._progress) if self._progress else nullcontext():
            await asyncio.gather(*(work() for _ in range(self._concurrency)))
        if self._error is not None:
            raise self._error
        tally.devices |= {engines[role].device: None for role in engines if stage.requested(role) > by_role[role]}
        tally.requested += stage.requested() - before
        self._refuse_unanswered()
        gone = self._servers.gone
        tally.missing |= {place: gone[role] for place, role in tally.needs.items() if role in gone}
        tally.drop_ended()

    def _goes_on(self) -> bool:
        """Return whether to begin another record, and note each server that has stopped answering.

        Records that need such a server end without a piece; the others continue. If the server has never answered at
        all, the pass ends.
        """
        servers = self._servers
        for role, (problem, number, _) in self._failures.items():
            if number >= max(OUTAGE, self._concurrency) and role not in servers.gone:
                if role not in servers.answered:
                    return False
                servers.gone[role] = problem
                self._engines.pop(role, None)
                effect = "the server no longer answers; sending no more requests to this model"
                print(f"note: {problem}; {effect}", file=sys.stderr)
        return self._error is None and not self._waits()

    def _waits(self) -> bool:
        """Return whether to stop this pass and open the engine of the only model, which a record already needs."""
        models = list(self._stage.models.items())
        if self._args.dry_run or self._args.requests_to or self._engines or len(models) != 1 or not self._tally.needs:
            return False
        [(role, model)] = models
        return role not in self._servers.gone and not model.completions.cached_only

    def _refuse_unanswered(self) -> None:
        """Raise UserError if a server has never answered."""
        if never := [role for role in self._failures if role not in self._servers.answered]:
            # A wrong address is more likely than an outage.
            tries = max(model.policy.max_retries for model in self._stage.models.values()) + 1
            again = f"tried {tries} times; finished work is kept, run the same command again to resume"
            raise UserError(f"{self._failures[never[0]][0]}\n  {again}")

    def _count_call(self, role: str) -> None:
        """Count a call that has its result. A stored result also counts as an answer of the role's server."""
        self._num_calls += 1
        self._servers.answered.add(role)
        if self._stage.many_calls:
            self._show(0, calls=self._num_calls)

    def _show(self, number: int, **counts: int | str) -> None:
        if self._progress is not None:
            self._progress.update(number, **counts)

    def _fail(self, error: Exception) -> None:
        """End the run with this error; calls in flight still finish, but no new calls are made."""
        self._error = self._error or error
        for other in self._live:
            other.end(error)

    async def _run(self, place: Place, record: Any, around: Surroundings) -> None:
        """Run a record, and note in the tally how it ended."""
        tally = self._tally
        steps, method, abandoned_call = await self._try(place, record, around)
        if abandoned_call and steps.ended is None:  # its calls are stored now, so a timeout no longer decides
            steps, method, abandoned_call = await self._try(place, record, around)
        ended, role = steps.ended, steps.role
        if isinstance(ended, NotStoredError):
            tally.needs[place] = role
            if self._args.dry_run:
                tally.add_lacking(steps)
            if self._args.requests_to:
                tally.note_requests(steps)
        elif isinstance(ended, UnavailableError):
            tally.missing[place] = str(ended)
            replies = self._stage.models[role].completions.replies
            _, number, then = self._failures.get(role, ("", 0, replies))
            self._failures[role] = (str(ended), number + 1 if replies == then else 1, replies)
            self._show(0, missing=len(tally.missing))
        elif isinstance(ended, MethodError):
            tally.raised[place] = str(ended)
        elif ended is not None:
            self._fail(ended)
        elif not method.cancelled() and isinstance(error := method.exception(), MethodError):
            tally.raised[place] = str(error)
        elif abandoned_call:
            tally.raised[place] = "the method did not wait for a call (a timeout?), so its answer depends on timing"
        elif method.cancelled() or isinstance(method.exception(), NotNow):  # the method awaited another question's task
            problem = "the method was cancelled: by itself, or with another question's task that it awaited"
            tally.raised[place] = problem
        else:
            tally.add(place, method.result(), steps)
            scores = " / ".join(filter(None, (file.so_far() for file in self._stage.files)))
            self._show(1, failed=tally.num_unusable, **({"mean score": scores} if scores else {}))

    async def _try(self, place: Place, record: Any, around: Surroundings) -> tuple[Steps, asyncio.Task, bool]:
        """Run a record once; return its steps, its method's task, and whether the method abandoned a call."""
        (_, key), tally, after = place, self._tally, self._stage.after
        before = [next((file.pieces[key] for file in after.files if key in file.pieces), None)] if after else []
        steps = Steps(key, around)
        method = self._live[steps] = asyncio.create_task(self._stage.method(record, Ask(record, steps), *before))
        try:
            abandoned_call = await steps.wait_until_blocked(method)
        finally:
            del self._live[steps]
            steps.close(method)
        if steps.ended is None and not steps.call_hashes >= tally.call_hashes.get(place, set()):
            tally.asked_otherwise.add(place)
        tally.call_hashes[place] = steps.call_hashes
        return steps, method, abandoned_call
