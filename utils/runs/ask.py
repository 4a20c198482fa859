"""`ask` for one record: render a call within the budget, look it up in the store, request it, and parse its text."""

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
from utils.generation.calls import CHARACTERS_PER_TOKEN, Call, answer_call
from utils.generation.chat import Rendered
from utils.generation.completions import NotStoredError
from utils.generation.model import Model
from utils.generation.requests import Engine
from utils.generation.thinking import NO_PARSER
from utils.parsing import writable
from utils.runs.shared import ParserError, Settings, Shared

MOST_CALLS = 10_000  # per record: an endless loop would pay for thousands in seconds
TURNS = 20  # of the event loop for a method to continue once its calls have returned
PATIENCE = 60  # seconds before a method that is busy between calls counts as making different calls
UNDER_WAY = 8_000_000  # tokens of prompts under way at a time; more long prompts would take gigabytes


class MethodError(Exception):
    """A method cannot give an answer."""


class Room:
    """Limits the tokens of prompts under way; the last prompt to fit may exceed the limit."""

    def __init__(self) -> None:
        self._left = UNDER_WAY
        self._freed = asyncio.Event()

    async def wait(self) -> None:
        """Wait until there is room for a prompt, which the caller then makes and takes."""
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


class Ask:
    """The `ask` of one record's `answer`.

    If an engine or the store raises, the record ends and `ask` never returns, so that no `except` or `finally` of the
    method can make up a value. Nor does it return if it needs an engine that is not open; the record is then run again.

    Attributes:
        num_contexts: --num_contexts.
        settings: --set NAME=VALUE, by name.
        random: a generator that draws the same for this record on every run.
        asked: hashes of its calls; each repetition of a call has its own.
        calls: role and record of each finished call, in the order in which they were made.
        ended: why the record ends for now.
        needs: the role whose engine it waits for, because that engine is not open.
        asks_otherwise: whether it makes a new call without having repeated all earlier ones.
        gave_up: whether the method cancelled a call.
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
            room: limits the prompts under way in all records together.
            before: `asked` from the record's earlier runs; None if the method is trusted to make the same calls.
            landed: called when a call has its result from an engine or the store.
        """
        self.num_contexts, self.settings = shared.num_contexts, Settings(shared.settings, shared.settings_read)
        self.asked: set[str] = set()
        self.notes: dict[str, Any] = {}
        self._held: dict[str, None] = {}  # texts that went into its prompts
        self.ended: Exception | None = None
        self.needs: str | None = None
        self.asks_otherwise = self.gave_up = False
        self._shared, self._record, self.key, self._engines, self._room = shared, record, key, engines, room
        self._before, self._landed = before, landed
        self._num_left = len(before or ())  # calls in `before` that are still to be repeated
        self._num_new = 0  # calls not in `before`, which wait until it is repeated
        self._is_over = False  # the method has returned
        self.tasks: set[asyncio.Task] = set()  # the method's that have asked; asyncio refers to tasks weakly
        self._has_asked_all = asyncio.Event()
        self._same: Counter[str] = Counter()  # how often each call was made
        self._by_number: dict[int, tuple[str, Piece] | None] = {}  # None while under way
        self._under_way: set[asyncio.Task] = set()
        self._stirred = asyncio.Event()  # a call was made or has landed, or the record has ended
        self._loop = asyncio.get_running_loop()

    @cached_property
    def random(self) -> random.Random:
        return random.Random(repr((self._shared.seed, self.key)))

    @property
    def posts_shown(self) -> list[int]:
        """The places in the profile of the posts whose texts were in a prompt, in order."""
        profile = self._record.get("profile")
        if not isinstance(profile, list):  # a history that many questions share
            return []
        held, task = "\n".join(self._held), self._shared.task
        forms = [form for form in (task.item_template, task.item_text) if form]
        texts = [[text for form in forms if (text := form(item).strip())] for item in profile]
        return [place for place, its in enumerate(texts) if any(text in held for text in its)]

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
        """Ask the model and return the value that `parse` reads from its text; None if no try was usable.

        Args:
            prompt: the name of one of the benchmark's prompts (none, rag, ...), or a text. A text may have {question},
                {profile} and names of your own in braces, and lines [system] and [user] before its parts.
            items: texts for {profile}, the most important first: the last ones are left out if the prompt is too long.
            parse: returns the text's value, or None if it is unusable; the model is then asked again with another seed
                (default: the benchmark's own reader for its prompts; otherwise, the value is the text itself).
            model: the name of a model that --model gives (default: --model_addr).
            n: the number of samples; a list of that length is returned.
            max_tokens, temperature: override the flags.
            values: texts for the other names in braces.
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
        """Return the name in `options` of the likeliest text, without generating any.

        The criterion is the mean log-probability per token. None if the likeliest texts have the same tokens. The other
        arguments are as in `ask`. ValueError for an API model, because APIs return no such likelihoods, and for a model
        that thinks.
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
        """Make a call as `ask` does and return its whole record; `more` goes to `Shared.make`."""
        await self._unless_over()
        make = partial(self._shared.make, self._record, self.key, model, prompt, items, values, **more)
        record = await self.send(model, make)
        used = [] if isinstance(items, History) else list(items)[: record.get("num_contexts_used", 0)]
        self._held |= dict.fromkeys(map(str, (*used, *values.values())))
        return record

    def model(self, role: str) -> Model:
        return self._shared.roles[role].model

    async def send(self, role: str, make: Callable[[], tuple[Model, Call, Callable[[], str]]]) -> Piece:
        """Make a call once there is room for its prompt, and return its record."""
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
        """Add fields, as they are now, to the `notes` of the answer's record in the output file."""
        # Encoded now, so that an error names the method's line whose value is not JSON.
        self.notes |= json.loads(writable(json.dumps(fields, ensure_ascii=False, allow_nan=False)))

    def end(self, error: Exception) -> None:
        """End the record for now: no further call returns."""
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
        # Also if the method returned without awaiting such a call.
        self.asks_otherwise = self.ended is None and self._waits
        while self._under_way:  # these calls are paid for and go into the store
            await asyncio.wait(self._under_way)

    def close(self, method: asyncio.Task) -> None:
        """End the record's run: no call returns after this."""
        self.end(MethodError("the record's run is over"))
        for task in (method, *self._under_way):
            task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio complains

    async def _wait_for_its_turn(self, its: str, call: Call) -> Call:
        """Wait until a call may be paid for, and return it; a repeated call gets its own key.

        A new call waits until the earlier runs' calls are repeated, which takes no value of a new call. Otherwise, a
        method that makes different calls each time would be paid for on every run.
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
        # Always the first step: a loop with a bare `except` around a refused call would spin.
        if self.ended is not None or self._is_over:
            await self._never()

    async def _never(self) -> None:
        # A new future each time: a cancelled one is done, and a loop that awaits it would spin.
        await self._loop.create_future()

    def _land(self, role: str, is_sent: bool, call: asyncio.Task) -> None:
        self._under_way.discard(call)
        self._stirred.set()
        if call.cancelled():
            return
        if isinstance(error := call.exception(), NotStoredError):
            self.needs = self.needs or role
        elif error is None or isinstance(error, ParserError):
            if is_sent:  # otherwise, no server was needed
                self._landed()
        else:
            self.end(error)
