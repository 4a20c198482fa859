"""`ask` for one record: render a call within the budget, look it up in the store, request it, and parse its text."""

import asyncio
import json
import random
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from prompts import History, Messages, Prompt
from retrieval.search import MOST, Search, Searched
from utils.benchmarks.checks import Record
from utils.benchmarks.metric import Judge, Parser
from utils.benchmarks.metric import Output as Form
from utils.benchmarks.task import Task
from utils.cli.flags import Arguments
from utils.files.output import Key, Piece
from utils.generation.calls import CHARACTERS_PER_TOKEN, Call, answer_call
from utils.generation.completions import NotStoredError
from utils.generation.model import Model
from utils.generation.requests import Engine, Rendered
from utils.generation.thinking import NO_PARSER
from utils.parsing import writable
from utils.records.contexts import first_items
from utils.runs.rendering import ParserError, Prompts, make_call

MOST_CALLS = 10_000  # and searches, per record: an endless loop would pay for thousands in seconds
TURNS = 20  # of the event loop in which a method whose call has returned makes its next one
SHARED: Key = ("shared",)  # of calls that do not depend on the record
UNDER_WAY = 8_000_000  # tokens of prompts under way at a time; more long prompts would take gigabytes


class MethodError(Exception):
    """A method cannot give an answer; the message says where and why."""


class Items(list[str]):
    """Texts of a profile's items, with the items' ids."""

    def __init__(self, texts: Sequence[str], ids: Sequence[str]):
        super().__init__(texts)
        self.ids = ids


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
    prompts: Prompts
    args: Arguments
    room: Room
    landed: Callable[[str], None]  # called with the role when a call has its result from an engine or the store
    search: Search | None = None  # None: there is no `ask.search`
    is_traced: bool = False  # keep the messages of each call


class Ask:
    """The `ask` of one record's method.

    A call that cannot be answered now, because its engine is not open, or because a server, an engine or the store has
    failed, never returns, so that no `except` or `finally` of the method can make up a value. Calls that run beside it
    continue. When nothing is under way any more, the runner ends the method and runs the record again later.

    Attributes:
        num_contexts: --num_contexts.
        settings: --set NAME=VALUE, by name.
        random: a generator that draws the same for this record on every run.
        calls: role and record of each finished call, in the order in which they were made.
        searches: query and ids of each finished search, likewise.
        call_hashes: hashes of its calls; each repetition of a call has its own.
        ended: why the record ends for now.
        needs: the role whose engine it waits for, because that engine is not open.
        lacking: role and call of each completion that the store lacks while its engine is not open; with --dry_run,
            also "search" and None for each search that would need the encoder.
        failed: the role whose engine or store failed first.
        gave_up: whether the method cancelled a call, or returned while one was under way.
    """

    def __init__(self, record: Record, key: Key, around: Surroundings):
        self.key, self._record, self._around = key, record, around
        self.num_contexts = vars(around.args).get("num_contexts", 0)
        self.settings = dict(vars(around.args).get("set") or [])
        self.notes: dict[str, Any] = {}
        self.call_hashes: set[int] = set()
        self.ended: Exception | None = None
        self.needs: str | None = None
        self.failed: str | None = None
        self.lacking: list[tuple[str, Call | None]] = []
        self.gave_up = False
        self._is_over = False  # the method has returned
        self._held: dict[str, None] = {}  # texts that went into its prompts
        self._same: Counter[int] = Counter()  # how often each call was made
        self._steps: dict[int, Step | dict[str, Any] | None] = {}  # calls and searches; None while under way
        self._under_way: set[asyncio.Task] = set()
        self._stirred = asyncio.Event()  # a call was made or has landed, or the record has ended
        self._loop = asyncio.get_running_loop()

    @cached_property
    def random(self) -> random.Random:
        return random.Random(repr((self._around.args.seed, self.key)))

    @property
    def posts_shown(self) -> list[int]:
        """The places in the profile of the posts whose texts were in a prompt, in order."""
        profile = self._record.get("profile")
        if not isinstance(profile, list):  # a history that many questions share
            return []
        held, task = "\n".join(self._held), self._around.task
        forms = [form for form in (task.item_template, task.item_text) if form]
        texts = [[text for form in forms if (text := form(item).strip())] for item in profile]
        return [place for place, forms in enumerate(texts) if any(text in held for text in forms)]

    @property
    def calls(self) -> list[tuple[str, Piece]]:
        return [(step.role, step.record) for _, step in self.steps if isinstance(step, Step)]

    @property
    def searches(self) -> list[dict[str, Any]]:
        return [step for _, step in self.steps if isinstance(step, dict)]

    @property
    def steps(self) -> list[tuple[int, Step | dict[str, Any]]]:
        """The numbers of finished calls and searches, and what they gave, in the order in which they were made."""
        return [(number, step) for number, step in sorted(self._steps.items()) if step is not None]

    @cached_property
    def _searched(self) -> Searched:
        return self._around.search.open(self._record)

    async def __call__(
        self,
        prompt: str,
        *,
        items: Sequence[str] | History = (),
        parse: Parser | Callable[[str], Any] | None = None,
        model: str | None = None,
        n: int | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] | None = None,
        **values: str,
    ) -> Any:
        """Ask the model and return the value that `parse` reads from its text; None if no try was usable.

        Args:
            prompt: the name of one of the benchmark's prompts (none, rag, ...), or a text. A text may have {question},
                {profile} and names of your own in braces, and lines [system], [user] and [assistant] before its parts.
                A last [assistant] part is the beginning of the text, which the model continues.
            items: texts for {profile}, the most important first: the last ones are left out if the prompt is too long.
            parse: returns the text's value, or None if it is unusable; the model is then asked again with another seed
                (default: the benchmark's own reader for its prompts; otherwise, the value is the text itself).
            model: the name of a model that --model gives (default: --model_addr).
            n: the number of samples; a list of that length is returned.
            max_tokens, temperature: override the flags.
            stop: texts that end the model's text, which does not have them.
            values: texts for the other names in braces.
        """
        await self._unless_over()
        if n is not None:
            if type(n) is not int or n < 1:
                raise ValueError(f"ask: n is {n!r}; give a number from 1 up")
            again = {"parse": parse, "model": model, "max_tokens": max_tokens, "temperature": temperature, "stop": stop}
            again |= values
            return list(await asyncio.gather(*(self(prompt, items=items, **again) for _ in range(n))))
        limits = {"max_tokens": max_tokens, "temperature": temperature, "stop": stop}
        own = {name: value for name, value in limits.items() if value is not None}
        return (await self.record(prompt, items=items, values=values, model=model, parse=parse, own=own))["value"]

    async def choose(
        self,
        prompt: str,
        options: Mapping[str, str],
        *,
        items: Sequence[str] | History = (),
        model: str | None = None,
        **values: str,
    ) -> str | None:
        """Return the name in `options` of the likeliest text, without generating any.

        The criterion is the mean log-probability per token. None if the likeliest texts have the same tokens. The other
        arguments are as in `ask`. ValueError for an API model, because APIs return no such likelihoods, and for a model
        that thinks.
        """
        await self._unless_over()
        chooser = self.model(model or next(iter(self._around.models)))
        if not hasattr(chooser.chat, "render_option"):
            raise ValueError(
                f"ask.choose: APIs do not return the likelihood of a given text, and {chooser.addr} is served by an API"
            )
        if chooser.policy.opened or chooser.policy.reasoning_parser not in (None, NO_PARSER):
            raise ValueError(f"ask.choose: {chooser.addr} thinks before it answers")
        if not options:
            raise ValueError("ask.choose: no options; give texts by name")
        return (await self.record(prompt, items=items, values=values, model=model, options=options))["value"]

    async def search(self, query: str, k: int = 5, exclude: Collection[str] = ()) -> Items | History:
        """Return the texts of the profile's `k` best items for a query, in the form of `record.best(k)`.

        Their ids are in `.ids`, best first. Items with equal scores keep the profile's order. How texts are compared is
        decided by --search; the order for the record's own question is that of rank_dataset.py.

        Args:
            exclude: ids of items to leave out. Of a longer profile, only the query's best 100 items can be returned.
        """
        await self._unless_over()
        if self._around.search is None:
            raise ValueError("ask.search: only methods of baselines.py --method can search")
        if not isinstance(query, str):
            raise ValueError(f"ask.search: the query is {query!r}; give a text")
        if type(k) is not int or not 1 <= k <= MOST:
            raise ValueError(f"ask.search: k is {k!r}; give a number from 1 to {MOST}")
        if isinstance(exclude, str):
            raise ValueError("ask.search: exclude is a single text; give a list of ids")
        query, excluded, number = writable(query), {*exclude}, await self._begin_step()
        task = asyncio.create_task(self._around.search.order(self._searched, query))
        task.add_done_callback(partial(self._land, "search", None))
        order, profile = await self._result(task), self._record["profile"]
        ids = {place: profile[place].get("id", place) for place in order}
        best = [place for place in order if ids[place] not in excluded][:k]
        best_ids = [ids[place] for place in best]
        self._steps[number] = {"query": query, "ids": best_ids}
        items = self._around.task.best_items({**self._record, "profile": first_items(profile, best)}, len(best))
        return replace(items, ids=best_ids) if isinstance(items, History) else Items(items, best_ids)

    async def record(
        self,
        prompt: str,
        *,
        items: Sequence[Any] | History = (),
        values: Mapping[str, str] = MappingProxyType({}),
        model: str | None = None,
        is_shared: bool = False,
        **more: Any,
    ) -> Piece:
        """Make a call as `ask` does and return its whole record; `more` goes to `make_call`.

        `is_shared`: records that make the same call get the same text, which is requested and counted once.
        """
        around, role, key = self._around, model or next(iter(self._around.models)), SHARED if is_shared else self.key
        chosen, texts = self.model(role), {name: str(value) for name, value in values.items()}
        shown = items if isinstance(items, History) else list(items)
        if chosen.gives_rewards:
            raise ValueError(f"ask: {role} is a reward model, which writes no text; use ask.reward")
        same = hash(repr((key, role, prompt, texts, shown, more.get("own"), more.get("options"))))

        def make() -> Call:
            call = make_call(around.task, around.prompts, self._record, key, chosen, prompt, items, values, **more)
            return self._numbered(call, same)

        record = await self.send(role, make)
        used = [] if isinstance(items, History) else shown[: record.get("num_contexts_used", 0)]
        self._held |= dict.fromkeys(map(str, (*used, *values.values())))
        return record

    async def messages(self, messages: Messages, form: Form, begin: array | None = None, **fields: Any) -> Piece:
        """Make a call of whole messages, which are not cut, to the first model, and return its record.

        Args:
            begin: tokens of the output's beginning, which are part of the prompt.
            fields: further fields of the `Call`.
        """
        role, model = next(iter(self._around.models.items()))

        def make() -> Call:
            prompt, policy = model.chat.render(messages), replace(model.policy, schema=form.schema)
            prompt = prompt + begin if begin else prompt
            if (length := model.chat.length(prompt)) > model.window.length - model.window.max_tokens:
                return Call(self.key, None, form.parse, policy, {"reason": f"a prompt of {length} tokens is too long"})
            return Call(self.key, prompt, form.parse, policy, **fields)

        return await self.send(role, make)

    async def reward(self, response: str, model: str) -> float | None:
        """Return the number that a reward model gives a response after the best --num_contexts posts and the question.

        None if it is not a finite number, or the dialogue is too long. ValueError if a local model is not a classifier,
        or the benchmark has no reward.
        """
        around, record, chosen = self._around, self._record, self.model(model)
        metric = around.task.metrics.get("reward")
        if metric is None or not (chosen.gives_rewards or chosen.flags.openai):
            problem = f"{model} is not a reward model" if metric else f"{around.task.name} has no prompt for rewards"
            raise ValueError(f"ask.reward: {problem}")
        shown = {**record, "profile": record["profile"][: self.num_contexts]}
        prompt = around.prompts[metric.judge.prompt]
        return (await self.rewarded(metric.judge, prompt, shown, response, model))["value"]

    async def rewarded(self, judge: Judge, prompt: Prompt, record: Record, response: str, role: str) -> Piece:
        """Have a reward model judge a dialogue that the response ends; return the call's record.

        The last posts of the record's profile are left out until it fits; `num_contexts_used` says how many are left.
        The value is None if it does not fit without any.
        """
        model = self.model(role)

        def make() -> Call:
            for number in range(len(record["profile"]), -1, -1):
                messages = judge.messages(prompt, {**record, "profile": record["profile"][:number]}, [response], 0)
                rendered = model.chat.render_dialogue(messages)
                if model.chat.length(rendered) < model.window.length:
                    break
            else:
                rendered = None
            fields = {"num_contexts_used": number}
            return Call(self.key, rendered, writable, model.policy, fields, messages, is_rewarded=True)

        return await self.send(role, make)

    def model(self, role: str) -> Model:
        """Return the model of this role; ValueError if there is none."""
        models = self._around.models
        if role not in models:
            raise ValueError(
                f"ask: unknown model {role!r}; the models are {', '.join(models)} (add one with --model NAME=ADDRESS)"
            )
        return models[role]

    def _numbered(self, call: Call, same: int) -> Call:
        """Return the call with a key of its own if the method has made the same one before."""
        number = self._same[same]
        self._same[same] += 1
        self.call_hashes.add(hash((same, number)))
        if call.key == SHARED:
            call = replace(call, shared=hash((same, number, repr(call.prompt))))
        return replace(call, key=(*call.key, number)) if number else call

    async def send(self, role: str, make: Callable[[], Call]) -> Piece:
        """Make a call once there is room for its prompt, and return its record."""
        await self._unless_over()
        await self._around.room.wait()
        await self._unless_over()
        call, number = make(), await self._begin_step()
        task = asyncio.create_task(answer_call(self._around.engines.get(role), self.model(role), call, role))
        self._around.room.take(call.prompt, task)
        task.add_done_callback(partial(self._land, role, call))
        record = await self._result(task)
        messages = call.messages if self._around.is_traced else []
        self._steps[number] = Step(role, record, messages, call.policy.stop, call.shared)
        return record

    async def _begin_step(self) -> int:
        """Return the number of a new call or search."""
        if (number := len(self._steps)) == MOST_CALLS:
            self.end(MethodError(f"more than {MOST_CALLS:,} calls and searches: does it have an endless loop?"))
            await self._never()
        self._steps[number] = None
        return number

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
        except Exception:  # `_land` has seen it
            await self._never()
        if self.ended is not None:
            await self._never()
        return result

    def note(self, **fields: Any) -> None:
        """Add fields, as they are now, to the `notes` of the answer's record in the output file."""
        # Encoded now, so that an error names the method's line whose value is not JSON.
        self.notes |= json.loads(writable(json.dumps(fields, ensure_ascii=False, allow_nan=False)))

    def end(self, error: Exception) -> None:
        """End the record for now: no further call returns."""
        self.ended = self.ended or error
        self._stirred.set()

    async def wait_for(self, method: asyncio.Task) -> None:
        """Wait until the method has returned or cannot continue for now; all calls under way have landed then."""
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
        """End the record's run: no call returns after this."""
        self.end(MethodError("this record's run has ended"))
        for task in (method, *self._under_way):
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
        # Always the first step: a loop with a bare `except` around a refused call would spin.
        if self.ended is not None or self._is_over:
            await self._never()

    async def _never(self) -> None:
        # A new future each time: a cancelled one is done, and a loop that awaits it would spin.
        await self._loop.create_future()

    def _land(self, role: str, call: Call | None, task: asyncio.Task) -> None:
        """Note the end of a call, or of a search, which has no `Call`."""
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
