"""A user's own method: an async function of one question, and what it may ask.

    async def answer(record, ask):
        summary = await ask("Summarize what this user cares about.\\n\\n{profile}", items=record.best(20))
        return await ask("rag", items=[summary] if summary else record.best(10))

`answer` is called for every question. It may be called again for the same question, and must then ask the same: what
it asked before is in the store.
"""

import asyncio
import hashlib
import importlib.util
import json
import random
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prompts import History, Prompt, load_prompt, own_prompt
from utils.benchmarks.task import Parser, Record, Task
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.journal_lines import Key
from utils.files.manifest import file_hash
from utils.files.outputs import Piece
from utils.generation.completions import NotStoredError
from utils.generation.driver import THOUGHT_COUNT, TOKEN_COUNTS, Request, Stage, answer_request
from utils.generation.engines import Model
from utils.generation.requests import Engine, UnavailableError
from utils.parsing import Parsed, nothing, writable

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "utils/methods"
VISIBLE = ("id", "task", "question", "profile")  # fields of a record that a method sees


class HiddenFieldError(Exception):
    """A method reads what only the scorer may see."""


class NotNowError(asyncio.CancelledError):
    """Ends a record's run for now. Not an Exception, so that a method that catches those makes up no value."""


class Question(Mapping):
    """A record as a method sees it: `record["question"]`, `record["profile"]` (best first, if ranked)."""

    def __init__(self, record: Record, task: Task):
        self._record, self._task = record, task

    def best(self, number: int) -> list[str] | History:
        """The texts of the best `number` items, in the order in which the benchmark's prompts have them."""
        return self._task.best_items(self._record, number)

    def __getitem__(self, name: str) -> Any:
        if name not in VISIBLE:
            raise HiddenFieldError(f"record[{name!r}]: only the scorer may see it; a method sees {', '.join(VISIBLE)}")
        return self._record[name]

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

    Attributes:
        num_contexts: --num_contexts.
        needs: the role whose engine is not open, where that ends the record for now.
        settings: --set NAME=VALUE, by name.
        random: a generator that draws the same for this record on every run.
    """

    def __init__(self, shared: Settings, record: Record, key: Key, engines: dict[str, Engine], before: list[str]):
        self.num_contexts, self.settings = shared.num_contexts, shared.settings
        self.random = random.Random(repr((shared.seed, key)))
        self._shared, self._record, self._key, self._engines = shared, record, key, engines
        self._before = before  # what it asked when it was run before
        self.asked: list[str] = []
        self._same: Counter[str] = Counter()  # how often each of them
        self.notes: dict[str, Any] = {}
        self.spent: dict[str, int | None] = dict.fromkeys((*TOKEN_COUNTS, "attempts", "num_calls"), 0)
        self._calls: dict[int, Piece] = {}  # their records, by the number of the call
        self.ended: Exception | None = None  # why the record ends for now
        self.needs: str | None = None
        self._under_way = 0
        self._idle = asyncio.Event()

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
            n: how many times; returns a list of so many values.
            max_tokens, temperature: in place of the flags.
            values: for the other names in braces.
        """
        if n is not None:
            again = {"parse": parse, "model": model, "max_tokens": max_tokens, "temperature": temperature, **values}
            return list(await asyncio.gather(*(self(prompt, items=items, **again) for _ in range(n))))
        own = {"max_tokens": max_tokens, "temperature": temperature}
        own = {name: value for name, value in own.items() if value is not None}
        stage, request = self._make(model, prompt, items, parse, own, values)
        number = len(self.asked)
        self._under_way += 1
        try:
            record = await answer_request(self._engines.get(model), request, stage)
        except (NotStoredError, UnavailableError, UserError) as error:  # the last: a wrong key, or a damaged store
            if self.ended is None:
                self.ended, self.needs = error, model
            raise NotNowError from None
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        for name in (*TOKEN_COUNTS, "attempts"):
            counts = self.spent[name], record.get(name, 0)
            self.spent[name] = None if None in counts else sum(counts)
        if record.get(THOUGHT_COUNT):
            self.spent[THOUGHT_COUNT] = self.spent.get(THOUGHT_COUNT, 0) + record[THOUGHT_COUNT]
        self.spent["num_calls"] += 1
        self._calls[number] = record
        return record["value"]

    def last(self, name: str) -> Any:
        """A field of the call that was made last, of those that have it; None if none has."""
        return next((one[name] for _, one in sorted(self._calls.items(), reverse=True) if name in one), None)

    def note(self, **fields: Any) -> None:
        """Put fields into the answer's record in the output file."""
        json.dumps(fields, allow_nan=False)  # an error here names the line that gives no JSON
        if taken := sorted(fields.keys() & {"output", "value", "reason", "raw", *self.spent}):
            raise ValueError(f"ask.note: {taken[0]} is a field of every answer; give another name")
        self.notes |= fields

    async def settle(self) -> None:
        """Wait for what is under way: it is paid for, and goes into the store."""
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()

    def _make(
        self, role: str, name: str, items: Any, parse: Any, own: dict[str, Any], values: dict[str, str]
    ) -> tuple[Stage, Request]:
        task, models = self._shared.task, self._shared.models
        if role not in models:
            raise ValueError(f"ask: no model {role!r}; there is {', '.join(models)} (--model NAME=ADDRESS adds one)")
        model = models[role]
        is_named = name in task.prompts
        prompt = self._prompt(name, is_named)
        known = {**task.values(self._record), **values}
        if missing := prompt.placeholders - known.keys() - {"profile"}:
            raise ValueError(f"ask: no value for {', '.join(f'{{{one}}}' for one in sorted(missing))} of the prompt")
        if unused := values.keys() - prompt.placeholders:
            raise ValueError(f"ask: the prompt has no {', '.join(f'{{{one}}}' for one in sorted(unused))}")
        known = {one: str(value) for one, value in known.items() if one in prompt.placeholders}
        schema = task.output.schema if is_named and parse is None else None
        policy = replace(model.policy, schema=schema, **own)
        if schema is None:  # nothing to hold its text to
            policy = replace(policy, constrained_decoding="never")
        if is_named and parse is None:
            parse = task.output.parse
        fitted = replace(model, policy=policy).fit(prompt, items, task.join, **known)
        its = repr((role, prompt.digest, known, list(items) if not isinstance(items, History) else items, own))
        its = hashlib.sha256(its.encode()).hexdigest()
        self._check_same(its)
        key = self._key if not self._same[its] else (*self._key, self._same[its])
        self._same[its] += 1
        request = Request(key, fitted and fitted.prompt, None, parse=reader(parse))
        return Stage(model.addr, (), policy, request.parse, "answers", 0, completions=model.completions), request

    def _prompt(self, name: str, is_named: bool) -> Prompt:
        prompts = self._shared.own_prompts
        if name not in prompts:
            if is_named:
                prompts[name] = load_prompt(self._shared.task.prompts[name], self._shared.prompts_dir)
            else:
                prompts[name] = own_prompt(name)
        return prompts[name]

    def _check_same(self, its: str) -> None:
        """UserError if the record asks otherwise than when it was run before: it would be paid for on every run."""
        place = len(self.asked)
        self.asked.append(its)
        if place < len(self._before) and self._before[place] != its:
            self.ended = UserError(
                f"id {quote(self._key[0])}: call {place + 1} of the method differs from the one it made before\n"
                "  a method must ask the same whenever it is run: use ask.random, no clock, no random of its own"
            )
            raise NotNowError


def reader(parse: Parser | Callable[[str], Any] | None) -> Parser:
    """A parser as the driver takes it, from a method's own function of the text, or of nothing."""

    def read(text: str, cut: bool) -> Parsed:
        value = writable(text).strip() if parse is None else parse(text)
        if isinstance(value, str) and not value.strip():
            value = None
        return nothing("the method's parser found nothing usable") if value is None else Parsed(value, "strict", None)

    return parse if getattr(parse, "__module__", "").startswith("utils.") else read


@dataclass(frozen=True)
class Method:
    """A method's function, and every file of its own."""

    path: Path
    answer: Callable[[Question, Ask], Any]
    files: dict[str, str]  # SHA-256 by path, relative to its folder

    def place_of(self, error: BaseException) -> str:
        """`file, line n` of the last line of the method's own that an error went through."""
        folder = str(self.path.parent.resolve())
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(folder)] or frames
        return f"{own[-1].filename}, line {own[-1].lineno}"


def load_method(path: str) -> Method:
    """Import a method's file, or one of utils/methods by its name.

    UserError if it cannot be imported, or has no `async def answer(record, ask)`.
    """
    file = Path(path) if Path(path).is_file() else SHIPPED / f"{path}.py"
    if not file.is_file():
        names = ", ".join(sorted(one.stem for one in SHIPPED.glob("*.py")))
        raise UserError(f"--method {path}: no such file, and none of the methods that ship: {names}")
    before = set(sys.modules)
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(f"method_{file.stem}", file.resolve())
    if spec is None:
        raise UserError(f"--method {path}: not a Python file; its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{error.filename}, line {error.lineno}" if isinstance(error, SyntaxError) else f"line {last.lineno}"
        raise UserError(f"--method {path}: {where}: {type(error).__name__}: {error}") from None
    answer = getattr(module, "answer", None)
    if not asyncio.iscoroutinefunction(answer):
        raise UserError(f"--method {path}: has no `async def answer(record, ask)`")
    imported = [getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - before]
    files = {file.resolve(), *(Path(one).resolve() for one in imported if one)}
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    own = [one for one in files if one == file.resolve() or not any(map(one.is_relative_to, [*installed, ROOT]))]
    return Method(file, answer, {_relative(one, file.resolve().parent): file_hash(one) for one in sorted(own)})


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
