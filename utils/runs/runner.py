"""The runner: every record goes through a method, first as far as the store goes, then with one engine after another.

A record that needs a completion which the store lacks, of a model whose engine is not open, is dropped. It is run again
from its beginning once that engine is open: all that it asked before is in the store by then.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field

from utils.benchmarks.task import Record
from utils.cli import UserError, exit_on_signal
from utils.cli.errors import first_five, printable
from utils.cli.progress import Progress
from utils.files.journal_lines import Key
from utils.files.outputs import Piece
from utils.generation.completions import NotStoredError
from utils.generation.driver import OUTAGE
from utils.generation.requests import Engine, UnavailableError
from utils.runs.methods import Ask, Method, Question, Settings

LONGEST = 500  # characters of an error that are shown


@dataclass
class Outcome:
    """What became of the records of a run.

    Attributes:
        pieces: a record of the output by its key, of those that ended with a value or without.
        missing: of those that a server failed to answer, why.
        raised: of those on which the method raised, where and what.
        device: the engine's; None if the store had everything.
    """

    pieces: dict[Key, Piece] = field(default_factory=dict)
    missing: dict[Key, str] = field(default_factory=dict)
    raised: dict[Key, str] = field(default_factory=dict)
    device: str | None = None


def run_method(
    method: Method,
    shared: Settings,
    records: dict[Key, Record],
    open_engine: Callable[[str], tuple[Engine, Collection[str]]],
) -> Outcome:
    """Run every record through a method.

    `open_engine` takes a role and returns an engine and the roles that it serves. It is called only if the store lacks
    something: for the role that most records wait for, of as many the first one.

    UserError if a record asks otherwise than before, or if the server has never answered.
    """
    outcome, asked = Outcome(), {}
    run = _Run(method, shared, outcome, asked)
    try:
        left = asyncio.run(run.all(records, {}))
        if left and shared.models["generator"].completions.cached_only:
            raise UserError(
                f"the store lacks completions for {len(left)} of {len(records)} answers\n"
                "  --cached_only requests none: run the shards that are missing, or the same command without it"
            )
        while left:
            waiting = Counter(run.needs[key] for key in left)
            role = max(shared.models, key=lambda role: waiting[role])
            with exit_on_signal():
                engine, served = open_engine(role)
            outcome.device = engine.device
            left = asyncio.run(run.all(left, dict.fromkeys(served, engine)))
    finally:
        for model in shared.models.values():
            model.completions.store.close()
    return outcome


@dataclass
class _Run:
    method: Method
    shared: Settings
    outcome: Outcome
    asked: dict[Key, list[str]]  # what each record has asked so far
    needs: dict[Key, str] = field(default_factory=dict)  # the role that a record waits for

    async def all(self, records: dict[Key, Record], engines: dict[str, Engine]) -> dict[Key, Record]:
        """Run records as far as they go, then close the engine; returns those that wait for another, in their order."""
        engine = next(iter(engines.values()), None)
        done = len(self.outcome.pieces)
        concurrency = engine.concurrency if engine else 1
        left, waiting = {}, iter(records.items())
        self.in_a_row, self.error = 0, None

        async def work(progress: Progress) -> None:
            for key, record in waiting:
                if self.error is not None or self.in_a_row >= max(OUTAGE, concurrency):
                    return
                if await self.one(key, record, engines):
                    self.in_a_row = 0
                    unusable = sum(piece["value"] is None for piece in self.outcome.pieces.values())
                    progress.update(failed=unusable)
                elif key not in self.outcome.missing and key not in self.outcome.raised:
                    left[key] = record

        try:
            with closing(Progress(done + len(records), "answers", done, concurrency)) as progress:
                await asyncio.gather(*(work(progress) for _ in range(concurrency)))
        finally:
            if engine is not None:
                await engine.close()
        if self.error is not None:
            raise self.error
        missing = self.outcome.missing
        if missing and not self.outcome.pieces and not left:
            raise UserError(f"{next(iter(missing.values()))}\n  nothing was answered; run the same command again")
        if self.in_a_row >= max(OUTAGE, concurrency):
            problem = list(missing.values())[-1]
            print(f"note: {problem}; nothing is answered any more, so the run ends early", file=sys.stderr)
            missing.update((key, problem) for key in records.keys() - self.outcome.pieces.keys() - missing.keys())
        return {key: record for key, record in records.items() if key in left}

    async def one(self, key: Key, record: Record, engines: dict[str, Engine]) -> bool:
        """Run one record; True if it ended, with a value or without."""
        ask = Ask(self.shared, record, key, engines, self.asked.get(key, []))
        value, raised = None, None
        try:
            value = await self.method.answer(Question(record, self.shared.task), ask)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"answer returned {type(value).__name__}, not a text or None")
        except asyncio.CancelledError:
            if ask.ended is None:  # the run itself is ended
                raise
        except Exception as error:
            raised = error
        finally:
            await ask.settle()
        self.needs[key] = ask.needs
        self.asked[key] = max(ask.asked, self.asked.get(key, []), key=len)
        if isinstance(ask.ended, UserError):
            self.error = ask.ended
        elif isinstance(ask.ended, UnavailableError):
            self.outcome.missing[key] = str(ask.ended)
            self.in_a_row += 1
        elif raised is not None and not isinstance(ask.ended, NotStoredError):
            told = f"{self.method.place_of(raised)}: {type(raised).__name__}: {raised}"
            self.outcome.raised[key] = told
        elif ask.ended is None:
            self.outcome.pieces[key] = _piece(value, ask)
            return True
        return False


def _piece(value: str | None, ask: Ask) -> Piece:
    failed = {} if value else {"reason": ask.last("reason") or "the method gave no answer"}
    raw = ask.last("raw")
    return {"value": value or None, **failed, **ask.notes, **({} if raw is None else {"raw": raw}), **ask.spent}


def report_raised(raised: dict[Key, str]) -> int:
    """The exit code, and on stderr what a method raised: its commonest errors with a record's id each."""
    if not raised:
        return 0
    print(f"the method raised on {len(raised)} records, which the same command runs again:", file=sys.stderr)
    alike: dict[str, list[str]] = {}
    for (question_id, *_), told in raised.items():
        alike.setdefault(told, []).append(str(question_id))
    for told, ids in sorted(alike.items(), key=lambda item: len(item[1]), reverse=True)[:5]:
        print(f"  {printable(told[:LONGEST])} (id {first_five(ids)})", file=sys.stderr)
    return 1
