"""`ask` for one record: a call is rendered within the budget, looked up in the store, requested, and parsed."""

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from prompts import History
from utils.benchmarks.task import Parser, Record
from utils.files.output import Key, Piece
from utils.generation.calls import Call, answer_call
from utils.generation.chat import Rendered
from utils.generation.completions import NotStoredError
from utils.generation.model import Model
from utils.generation.requests import Engine
from utils.generation.thinking import NO_PARSER
from utils.parsing import writable
from utils.runs.shared import ParserError, Shared

MOST_CALLS = 10_000  # of a record: a loop without an end pays for thousands in seconds
TURNS = 20  # of the event loop, in which a method whose calls have returned continues
PATIENCE = 60  # seconds before a method that is busy between calls counts as making different calls
UNDER_WAY = 8_000_000  # tokens of prompts that are under way at a time: long ones would be gigabytes
CHARACTERS_PER_TOKEN = 4  # about, of English


class MethodError(Exception):
    """A method cannot give an answer."""


class Room:
    """Limits the tokens of prompts that are under way; a longer prompt may be under way alone."""

    def __init__(self) -> None:
        self._left = UNDER_WAY
        self._freed = asyncio.Event()

    async def wait(self) -> None:
        """Return once there is room for a prompt. It is to be made and taken before anything else is awaited."""
        while self._left <= 0:
            self._freed.clear()
            await self._freed.wait()

    def take(self, prompt: Rendered | None, call: asyncio.Task) -> None:
        """Keep the prompt's room until its call ends."""
        if isinstance(prompt, list):
            tokens = sum(len(message["content"]) for message in prompt) // CHARACTERS_PER_TOKEN
        else:
            tokens = len(prompt or ())
        self._left -= tokens

        def free(_: asyncio.Task) -> None:
            self._left += tokens
            self._freed.set()

        call.add_done_callback(free)


class Ask:
    """The `ask` of one record's `answer`.

    If an engine or the store raises, the record ends and `ask` never returns, so that no `except` or `finally` of the
    method can make up a value. Nor does it return if it needs an engine that is not open; the record is then run again.

    Attributes:
        num_contexts: --num_contexts.
        settings: --set NAME=VALUE, by name.
        random: a generator that draws the same for this record on every run.
        asked: hashes of its calls; a repeated call has another hash.
        calls: role and record of each finished call, in the order in which they were made.
        ended: why the record ends for now.
        needs: the role that it waits for; its engine is not open.
        asks_otherwise: it makes a new call without having repeated all earlier ones.
        gave_up: the method cancelled a call.
    """

    def __init__(
        self,
        shared: Shared,
        record: Record,
        key: Key,
        engines: Mapping[str, Engine],
        room: Room,
        before: Set[str] | None = None,
        landed: Callable[[], None] = lambda: None,
    ):
        """
        Args:
            room: limits what is under way in all records together.
            before: `asked` of the record when it was run before; None: the method is trusted to ask the same.
            landed: called when a call has its result from an engine or the store.
        """
        self.num_contexts, self.settings = shared.num_contexts, dict(shared.settings)
        self.asked: set[str] = set()
        self.notes: dict[str, Any] = {}
        self.ended: Exception | None = None
        self.needs: str | None = None
        self.asks_otherwise = self.gave_up = False
        self._shared, self._record, self.key, self._engines, self._room = shared, record, key, engines, room
        self._before, self._landed = before, landed
        self._num_left = len(before or ())  # of them those that are still to be asked again
        self._num_new = 0  # calls that have waited until all of `before` is asked
        self._is_over = False  # the method has returned
        self.tasks: set[asyncio.Task] = set()  # the method's that have asked; asyncio alone would forget them
        self._has_asked_all = asyncio.Event()
        self._same: Counter[str] = Counter()  # how often each call was made
        self._by_number: dict[int, tuple[str, Piece] | None] = {}  # None while it is under way
        self._under_way: set[asyncio.Task] = set()
        self._stirred = asyncio.Event()  # a call was made or has landed, or the record has ended
        self._loop = asyncio.get_running_loop()

    @cached_property
    def random(self) -> random.Random:
        return random.Random(repr((self._shared.seed, self.key)))

    @property
    def calls(self) -> list[tuple[str, Piece]]:
        return [call for _, call in sorted(self._by_number.items()) if call is not None]

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
        await self._unless_over()
        if n is not None:
            if type(n) is not int or n < 1:
                raise ValueError(f"ask: n is {n!r}; give a number from 1 up")
            again = {"parse": parse, "model": model, "max_tokens": max_tokens, "temperature": temperature, **values}
            return list(await asyncio.gather(*(self(prompt, items=items, **again) for _ in range(n))))
        own = {"max_tokens": max_tokens, "temperature": temperature}
        own = {name: value for name, value in own.items() if value is not None}
        return (await self.record(prompt, items=items, values=values, model=model, parse=parse, own=own))["value"]

    async def choose(
        self,
        prompt: str,
        options: Mapping[str, str],
        *,
        items: Sequence[str] | History = (),
        model: str = "generator",
        **values: str,
    ) -> str | None:
        """Return the likeliest of several texts, by its name in `options`; no text is generated.

        The criterion is the mean log-probability per token. None if the likeliest ones have the same tokens. The rest
        is as in `ask`. ValueError for an API model, because APIs return no such likelihoods, and for a model that
        thinks.
        """
        await self._unless_over()
        if model in self._shared.roles:
            its = self._shared.roles[model].model
            if not hasattr(its.chat, "render_option"):
                raise ValueError(f"ask.choose: no API tells how likely a text is, and {its.addr} is behind one")
            if its.policy.opened or its.policy.reasoning_parser not in (None, NO_PARSER):
                raise ValueError(f"ask.choose: {its.addr} thinks before it answers")
        if not options:
            raise ValueError("ask.choose: no options; give texts by name")
        return (await self.record(prompt, items=items, values=values, model=model, options=options))["value"]

    async def record(
        self,
        prompt: str,
        *,
        items: Sequence[Any] | History = (),
        values: Mapping[str, str] = MappingProxyType({}),
        model: str = "generator",
        **more: Any,
    ) -> Piece:
        """Make a call as `ask` does, and return its whole record; `more` is as for `Shared.make`."""
        await self._unless_over()
        make = partial(self._shared.make, self._record, self.key, model, prompt, items, values, **more)
        return await self.send(model, make)

    def model(self, role: str) -> Model:
        return self._shared.roles[role].model

    async def send(self, role: str, make: Callable[[], tuple[Model, Call, Callable[[], str]]]) -> Piece:
        """Return the record of a call, which is made once there is room for its prompt."""
        await self._room.wait()
        await self._unless_over()
        model, call, its = make()
        if self._before is not None:
            self.tasks.add(asyncio.current_task())
            call = await self._wait_for_its_turn(its(), call)
        number = len(self._by_number)
        self._by_number[number] = None
        task = asyncio.create_task(answer_call(self._engines.get(role), model, call, role))
        self._room.take(call.prompt, task)
        self._under_way.add(task)
        task.add_done_callback(partial(self._land, role, call.prompt is not None))
        try:
            record = await asyncio.shield(task)  # a call that a method cancels is paid for anyway, and kept
        except asyncio.CancelledError:
            self.gave_up = True
            raise
        except ParserError as error:
            raise error.__cause__ from None
        except Exception:  # `_land` has seen it
            await self._never()
        if self.ended is not None:
            await self._never()
        self._by_number[number] = role, record
        return record

    def note(self, **fields: Any) -> None:
        """Put fields into `notes` of the answer's record in the output file, as they are now."""
        # An error here names the line that gives no JSON.
        self.notes |= json.loads(writable(json.dumps(fields, ensure_ascii=False, allow_nan=False)))

    def end(self, error: Exception) -> None:
        """End the record for now: no call returns any more."""
        self.ended = self.ended or error
        self._stirred.set()

    async def watch(self, method: asyncio.Task) -> None:
        """Wait until the method has returned or cannot continue for now, and all calls under way have landed."""
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
        """End the record's run: no call returns after this."""
        self.end(MethodError("the record's run is over"))
        for task in (method, *self._under_way):
            task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio complains

    async def _wait_for_its_turn(self, its: str, call: Call) -> Call:
        """Wait until a call may be paid for; return it, with a key of its own if the record repeats it.

        A new call waits until all earlier calls are repeated, which needs no new call's value. Otherwise a method that
        makes different calls than before would be paid for on every run.
        """
        if len(self.asked) == MOST_CALLS:
            self.end(MethodError(f"more than {MOST_CALLS:,} calls: does it have an endless loop?"))
        number = self._same[its]
        self._same[its] += 1
        its = hashlib.sha256(f"{number} {its}".encode(errors="surrogatepass")).hexdigest()
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
        return replace(call, key=(*self.key, number)) if number else call

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

    async def _unless_over(self) -> None:
        # First of all: a loop over a bare `except` around a call that is refused would spin.
        if self.ended is not None or self._is_over:
            await self._never()

    async def _never(self) -> None:
        # A future of its own each time: one that was cancelled is done, and a loop over it would spin.
        await self._loop.create_future()

    def _land(self, role: str, is_sent: bool, call: asyncio.Task) -> None:
        self._under_way.discard(call)
        self._stirred.set()
        if call.cancelled():
            return
        if isinstance(error := call.exception(), NotStoredError):
            self.needs = self.needs or role
        elif error is None or isinstance(error, ParserError):
            if is_sent:  # else no server was needed
                self._landed()
        else:
            self.end(error)
