"""A user's own method: an async function of one question, and what it may ask.

    async def answer(record, ask):
        summary = await ask("Summarize what this user cares about.\\n\\n{profile}", items=record.best(20))
        return await ask("rag", items=[summary] if summary else record.best(10))

`answer` is called for every question. It may be called again for the same question, and must then ask the same: what
it asked before is in the store.
"""

import ast
import asyncio
import copy
import hashlib
import importlib.util
import inspect
import json
import random
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prompts import History, Prompt, load_prompt, own_prompt
from utils.benchmarks.task import Parser, Record, Task
from utils.cli import UserError
from utils.files.output import Key, Piece
from utils.generation.completions import NotStoredError
from utils.generation.driver import (
    THOUGHT_COUNT,
    TOKEN_COUNTS,
    Request,
    Stage,
    answer_request,
    fitted_request,
    total,
)
from utils.generation.engines import Model
from utils.generation.requests import Engine
from utils.parsing import Parsed, nothing, writable
from utils.parsing.thoughts import UNFINISHED

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "utils/methods"
VISIBLE = ("id", "task", "question", "profile")  # fields of a record that a method sees

MOST_CALLS = 10_000  # of a record: a loop without an end pays for thousands in seconds
TURNS = 20  # of the event loop, in which a method goes on that has what it awaits
PATIENCE = 60  # seconds until a method that does something else between its calls is held to ask otherwise than before
COUNTED = {  # of a role's calls, by what their records say
    "unusable": lambda call: call["value"] is None,
    "unfinished": lambda call: call.get("reason") == UNFINISHED,
    "truncated": lambda call: bool(call.get("truncated")),
    "repaired": lambda call: call.get("parsed") == "repaired",
    "num_contexts_dropped": lambda call: call.get("num_contexts_dropped", 0),
}


class HiddenFieldError(Exception):
    """A method reads what only the scorer may see."""


class MethodError(Exception):
    """What a method does cannot give an answer."""


class ParserError(Exception):
    """A method's own parser raised; what it raised is the cause."""


class Question(Mapping):
    """A record as a method sees it: `record["question"]`, `record["profile"]` (best first, if ranked)."""

    def __init__(self, record: Record, task: Task):
        self._record, self._task = record, task
        self._copies: dict[str, Any] = {}

    def best(self, number: int) -> list[str] | History:
        """The texts of the best `number` items, in the order in which the benchmark's prompts have them."""
        return self._task.best_items(self._record, number)

    def __getitem__(self, name: str) -> Any:
        if name not in VISIBLE:
            raise HiddenFieldError(f"record[{name!r}]: only the scorer may see it; a method sees {', '.join(VISIBLE)}")
        if name not in self._copies:  # a method that changes it would ask otherwise when it is run again
            self._copies[name] = copy.deepcopy(self._record[name])
        return self._copies[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in VISIBLE if name in self._record)

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True)
class Settings:
    """What all records of a run share."""

    task: Task
    models: dict[str, Model]  # by role; "generator" is the one that answers
    seed: int | None
    num_contexts: int
    prompts_dir: str | None
    settings: dict[str, str]  # --set
    own_prompts: dict[str, Prompt]  # those that have been used, by their text; filled as they are


class Ask:
    """What `answer` gets as `ask`, for one record.

    Whatever an engine or the store raises ends the record, and then `ask` never returns: no `except` or `finally` of
    the method can make up a value. It never returns either where it needs an engine that is not open; the record is run
    again when that is open.

    Attributes:
        num_contexts: --num_contexts.
        settings: --set NAME=VALUE, by name.
        random: a generator that draws the same for this record on every run.
        asked: hashes of its calls, the same call a second time by another one.
        calls: role and record of each call that gave one, in the order in which they were made.
        ended: why the record ends for now.
        needs: the role whose engine is not open.
        asks_otherwise: it asks something new, and not all that it asked before.
        gave_up: the method cancelled a call.
    """

    def __init__(
        self,
        shared: Settings,
        record: Record,
        key: Key,
        engines: dict[str, Engine],
        before: Set[str] = frozenset(),
        landed: Callable[[], None] = lambda: None,
    ):
        """
        Args:
            before: `asked` of the record when it was run before.
            landed: called when an engine or the store has given what a call asks for.
        """
        self.num_contexts, self.settings = shared.num_contexts, dict(shared.settings)
        self.random = random.Random(repr((shared.seed, key)))
        self.asked: set[str] = set()
        self.notes: dict[str, Any] = {}
        self.ended: Exception | None = None
        self.needs: str | None = None
        self.asks_otherwise = self.gave_up = False
        self._shared, self._record, self._key, self._engines = shared, record, key, engines
        self._before, self._landed = before, landed
        self._num_left = len(before)  # of them those that are still to be asked again
        self._num_new = 0  # calls that have waited until all of `before` is asked
        self._is_over = False  # the method has returned
        self.tasks: set[asyncio.Task] = set()  # the method's that have asked; asyncio alone would forget them
        self._has_asked_all = asyncio.Event()
        self._same: Counter[str] = Counter()  # how often each call was made
        self._by_number: dict[int, tuple[str, Piece]] = {}
        self._under_way: set[asyncio.Task] = set()
        self._stirred = asyncio.Event()  # a call was made or has landed, or the record has ended
        self._loop = asyncio.get_running_loop()

    @property
    def calls(self) -> list[tuple[str, Piece]]:
        return [call for _, call in sorted(self._by_number.items())]

    async def __call__(
        self,
        prompt: str,
        *,
        items: Sequence[str] | History = (),
        parse: Parser | Callable[[str], Any] | None = None,
        model: str = "generator",
        n: int | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        **values: str,
    ) -> Any:
        """Ask the model; returns the value that `parse` reads from its text, None if no try was usable.

        Args:
            prompt: the name of one of the benchmark's prompts (none, rag, ...), or a text. A text may have {question},
                {profile} and names of your own in braces, and lines [system] and [user] before its parts.
            items: texts for {profile}, the most important first: the last ones are left out if the prompt is too long.
            parse: from the text to a value, or None if it is unusable; it is then asked again with another seed
                (default: for the benchmark's prompts the benchmark's own reader, for a text the text itself).
            model: the name of a model that --model gives (default: --model_addr).
            n: how many samples; returns a list of that length.
            max_tokens, temperature: in place of the flags.
            values: for the other names in braces.
        """
        if self.ended is not None or self._is_over:
            await self._never()  # before all that needs a running loop: a loop over a bare `except` would spin
        if n is not None:
            if type(n) is not int or n < 1:
                raise ValueError(f"ask: n is {n!r}; give a number from 1 up")
            again = {"parse": parse, "model": model, "max_tokens": max_tokens, "temperature": temperature, **values}
            return list(await asyncio.gather(*(self(prompt, items=items, **again) for _ in range(n))))
        own = {"max_tokens": max_tokens, "temperature": temperature}
        own = {name: value for name, value in own.items() if value is not None}
        stage, request, its = self._make(model, prompt, items, parse, own, values)
        self.tasks.add(asyncio.current_task())
        await self._wait_for_its_turn(its)
        number = len(self.asked)
        call = asyncio.create_task(answer_request(self._engines.get(model), request, stage))
        self._under_way.add(call)
        call.add_done_callback(partial(self._land, model))
        try:
            record = await asyncio.shield(call)  # what a method cancels is paid for all the same, and kept
        except asyncio.CancelledError:
            self.gave_up = True
            raise
        except ParserError as error:
            raise error.__cause__ from None
        except Exception:  # `_land` has seen it
            await self._never()
        if self.ended is not None:
            await self._never()
        self._by_number[number] = model, record
        return record["value"]

    def note(self, **fields: Any) -> None:
        """Put fields into `notes` of the answer's record in the output file, as they are now."""
        # An error here names the line that gives no JSON.
        self.notes |= json.loads(writable(json.dumps(fields, ensure_ascii=False, allow_nan=False)))

    def end(self, error: Exception) -> None:
        """End the record for now: no call returns any more."""
        self.ended = self.ended or error
        self._stirred.set()

    async def watch(self, method: asyncio.Task) -> None:
        """Wait until the method has returned, or can get no further for now, and what is under way has landed."""
        method.add_done_callback(lambda _: self._stirred.set())
        while not method.done() and self.ended is None:
            self._stirred.clear()
            if self._under_way or not (self.needs or self._waits):
                await self._stirred.wait()
            elif not await self._goes_on():
                break
        self._is_over = method.done()
        # Also where the method did not wait for such a call until its end.
        self.asks_otherwise = self.ended is None and self._waits
        while self._under_way:  # it is paid for, and goes into the store
            await asyncio.wait(self._under_way)

    def close(self, method: asyncio.Task) -> None:
        """End what is left of a run: after this no call returns."""
        self.end(MethodError("the record's run is over"))
        for task in (method, *self._under_way):
            task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio complains

    async def _wait_for_its_turn(self, its: str) -> None:
        """A new call waits until all earlier calls are made again, which needs no new call's value.

        A method that asks otherwise than before would else be paid for on every run.
        """
        if len(self.asked) == MOST_CALLS:
            self.end(MethodError(f"more than {MOST_CALLS:,} calls: is there a loop without an end?"))
        self.asked.add(its)
        self._stirred.set()
        if self.ended is not None:
            await self._never()
        self._num_left -= its in self._before
        if self._num_left == 0:
            self._has_asked_all.set()
        elif its not in self._before:
            self._num_new += 1
            await self._has_asked_all.wait()

    async def _goes_on(self) -> bool:
        """Return whether the method makes another call or returns within the limit."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if self._stirred.is_set():
                return True
        if self._waits:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), PATIENCE)
        return self._stirred.is_set()

    @property
    def _waits(self) -> bool:
        return self._num_new > 0 and not self._has_asked_all.is_set()

    async def _never(self) -> None:
        # A future of its own each time: one that was cancelled is done, and a loop over it would spin.
        await self._loop.create_future()

    def _land(self, role: str, call: asyncio.Task) -> None:
        self._under_way.discard(call)
        self._stirred.set()
        if call.cancelled():
            return
        if isinstance(error := call.exception(), NotStoredError):
            self.needs = self.needs or role
        elif error is None or isinstance(error, ParserError):
            self._landed()
        else:
            self.end(error)

    def _make(
        self, role: str, name: str, items: Any, parse: Any, own: dict[str, Any], values: dict[str, str]
    ) -> tuple[Stage, Request, str]:
        """A call's stage and request, and its hash."""
        task, models = self._shared.task, self._shared.models
        if role not in models:
            raise ValueError(f"ask: no model {role!r}; there is {', '.join(models)} (--model NAME=ADDRESS adds one)")
        if isinstance(items, str):
            raise ValueError("ask: items is one text; give a list of texts")
        for flag, value, kinds in (
            ("max_tokens", own.get("max_tokens", 1), int),
            ("temperature", own.get("temperature", 0), float | int),
        ):
            if not isinstance(value, kinds) or value < (flag == "max_tokens"):
                raise ValueError(f"ask: {flag} is {value!r}; give a number")
        if inspect.iscoroutinefunction(parse):
            raise ValueError("ask: parse is async; give a plain function of the text")
        model = models[role]
        is_named = name in task.prompts
        if not is_named and not re.search(r"[\s{]", name):
            raise ValueError(f"ask: no prompt {name!r}; there is {', '.join(task.prompts)}, or give a text")
        prompt = self._prompt(name, is_named)
        if taken := sorted(prompt.placeholders & TAKEN):
            raise ValueError(f"ask: {{{taken[0]}}} is a parameter of ask; give the placeholder another name")
        if len(items) and "profile" not in prompt.placeholders:
            raise ValueError("ask: items are for {profile}, which the prompt does not have")
        known = {**task.values(self._record), **values}
        if missing := prompt.placeholders - known.keys() - {"profile"}:
            raise ValueError(f"ask: no value for {', '.join(f'{{{one}}}' for one in sorted(missing))} of the prompt")
        if unused := values.keys() - prompt.placeholders:
            raise ValueError(f"ask: the prompt has no {', '.join(f'{{{one}}}' for one in sorted(unused))}")
        known = {one: str(value) for one, value in known.items() if one in prompt.placeholders}
        schema = task.output.schema if is_named and parse is None else None
        policy = replace(model.policy, schema=schema, **own)
        if schema is None:  # nothing to hold its text to; nor does its temperature rise with the tries
            policy = replace(policy, constrained_decoding="fallback")
        if is_named and parse is None:
            parse = task.output.parse
        fitted = replace(model, policy=policy).fit(prompt, items, task.join, **known)
        its = repr((role, prompt.digest, known, list(items) if not isinstance(items, History) else items, own))
        number = self._same[its]
        self._same[its] += 1
        key = self._key if not number else (*self._key, number)
        request = replace(fitted_request(key, fitted, None), parse=reader(parse))
        stage = Stage(model.addr, (), policy, request.parse, "answers", 0, model.completions)
        return stage, request, hashlib.sha256(f"{number} {its}".encode(errors="surrogatepass")).hexdigest()

    def _prompt(self, name: str, is_named: bool) -> Prompt:
        prompts = self._shared.own_prompts
        if name not in prompts:
            if is_named:
                prompts[name] = load_prompt(self._shared.task.prompts[name], self._shared.prompts_dir)
            else:
                prompts[name] = own_prompt(name)
        return prompts[name]


TAKEN = set(inspect.signature(Ask.__call__).parameters) - {"values"}  # names that no placeholder can have


def sum_calls(calls: Iterable[Piece]) -> dict[str, int | None]:
    """The figures of several calls: how many, tries, tokens (None where a server did not tell), what became of them."""
    calls = list(calls)
    figures = {"num_calls": len(calls), "attempts": sum(call.get("attempts", 0) for call in calls)}
    figures |= {name: total([call.get(name, 0) for call in calls]) for name in TOKEN_COUNTS}
    thought = {THOUGHT_COUNT: sum(call.get(THOUGHT_COUNT, 0) for call in calls)}
    counted = {name: sum(map(count, calls)) for name, count in COUNTED.items()}
    return figures | {name: count for name, count in (thought | counted).items() if count}


def reader(parse: Parser | Callable[[str], Any] | None) -> Parser:
    """A parser as the driver takes it, from a method's own function of the text, or of nothing."""

    def read(text: str, cut: bool) -> Parsed:
        try:
            value = (writable(text).strip() or None) if parse is None else parse(text)
        except Exception as error:
            raise ParserError from error
        return (
            nothing("the method's parser found nothing usable") if value is None else Parsed(value, "strict", None, cut)
        )

    return parse if (getattr(parse, "__module__", None) or "").startswith("utils.") else read


@dataclass(frozen=True)
class Method:
    """A method's function."""

    path: Path
    answer: Callable[[Question, Ask], Any]

    def place_of(self, error: BaseException) -> str:
        """`file, line n` of the last line of the method's own that an error went through."""
        folder = str(self.path.parent.resolve())
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(folder)] or frames
        return f"{own[-1].filename}, line {own[-1].lineno}" if own else str(self.path)


def load_method(path: str) -> Method:
    """Import a method's file, or one of utils/methods by its name.

    UserError if it cannot be imported, or has no `async def answer(record, ask)`.
    """
    file = Path(path) if Path(path).is_file() else SHIPPED / f"{path}.py"
    if not file.is_file():
        names = ", ".join(sorted(one.stem for one in SHIPPED.glob("*.py")))
        raise UserError(f"--method {path}: no such file, and none of the methods that ship: {names}")
    folder = file.resolve().parent
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"method_{file.stem}", file.resolve())
    if spec is None:
        raise UserError(f"--method {path}: not a Python file; its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        _refuse_our_names(ast.parse(file.read_bytes(), str(file)), folder)
        spec.loader.exec_module(module)
    except UserError as error:
        raise UserError(f"--method {path}: {error}") from None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{error.filename}, line {error.lineno}" if isinstance(error, SyntaxError) else f"line {last.lineno}"
        raise UserError(f"--method {path}: {where}: {type(error).__name__}: {error}") from None
    answer = getattr(module, "answer", None)
    if not inspect.iscoroutinefunction(answer):
        raise UserError(f"--method {path}: has no `async def answer(record, ask)`")
    try:
        inspect.signature(answer).bind(None, None)
    except TypeError:
        raise UserError(f"--method {path}: `answer` must take two arguments, record and ask") from None
    return Method(file, answer)


def _refuse_our_names(tree: ast.Module, folder: Path) -> None:
    """UserError where it imports a file of its own folder by a name that is ours: it would get ours."""
    if folder in (ROOT, SHIPPED):
        return
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [getattr(line, "module", None) or alias.name for line in lines for alias in line.names]
    for name in (name.partition(".")[0] for name in names):
        here, ours = ((place / f"{name}.py", place / name) for place in (folder, ROOT))
        if any(path.exists() for path in here) and any(path.exists() for path in ours):
            raise UserError(f"imports {name}, which is also a module of this project; rename yours")
