"""`ask` for one record: render a prompt that fits the model's window, get the text from store or engine, and parse it.

`Steps` keeps track of the calls and searches of one record's run."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from prompts import History, Messages
from retrieval.search import MOST, Searched
from utils.base.cli import Arguments
from utils.base.made import Key, Piece
from utils.benchmarks.checks import Record
from utils.benchmarks.metric import Parser
from utils.benchmarks.personamem.contexts import first_items
from utils.benchmarks.readers import writable
from utils.generation.calls import Call, MistakeError, answer_call
from utils.generation.completions import Lack, NotStoredError
from utils.generation.model import Model
from utils.generation.requests import Engine, Room, UnavailableError, count_tokens
from utils.generation.thinking import NO_PARSER
from utils.runs.loop import BRANCH, Branch, without_branch
from utils.runs.rendering import Asked, Prompts, call_for_reward, make_call
from utils.runs.stage import Stage

MOST_CALLS = 10_000  # calls and searches per record; limits what a method with an endless loop costs
SHARED: Key = ("shared",)  # the key of calls that several records share
UNDER_WAY = 8_000_000  # prompt tokens in flight at a time; more would take gigabytes of memory


class MethodError(Exception):
    """A method failed; the message says where and why."""


class NotNow(BaseException):
    """A call cannot be answered now. No `except Exception` of a method catches it."""


class Found(NamedTuple):
    """A search that has its result."""

    places: list[int]  # of the items in the profile, best first
    line: dict[str, Any]  # query and ids, as they are written to the output


class Step(NamedTuple):
    """A call that has its result."""

    role: str
    record: Piece
    messages: Messages  # empty unless the stage is traced
    stop: tuple[str, ...]
    shared: int | None = None  # as in `Call`
    mistake: Exception | None = None  # of the method's parser


@dataclass(frozen=True)
class Surroundings:
    """The state that all records of a stage share in a pass."""

    stage: Stage
    engines: dict[str, Engine]  # the open engines by role, except those whose server no longer answers
    args: Arguments
    landed: Callable[[str], None]  # called with the role when a call has its result
    is_traced: bool  # keep the messages of each call

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts(self.stage.task, self.args.prompts_dir)

    @cached_property
    def room(self) -> Room:
        return Room(UNDER_WAY)


class Steps:
    """The calls and searches of one record's run.

    The first call that cannot be answered now (its engine is not open, or a server, an engine or the store has failed)
    raises `NotNow`, and no later call of the record returns. So no `except` or `finally` of the method can make up a
    value. The run ends once all calls in flight have ended; the runner then looks at `ended` to decide what to do with
    the record.

    Attributes:
        ended: why a call could not be answered: the most severe error, and of equal ones the first. None if all calls
            were answered.
        role: the role of that call.
        missing_calls: role, call and `Lack` of each result that the store lacks while its engine is not open. A search
            that lacks embeddings has ("search", None, None).
        call_hashes: hashes of the record's calls; each repetition of a call has its own hash.
        shown: items and values in the record's prompts; a dict, to keep their order.
        notes: the fields added by `ask.note`.
    """

    def __init__(self, key: Key, around: Surroundings):
        self.key, self.around = key, around
        self.ended: Exception | None = None
        self.role = ""
        self.missing_calls: list[tuple[str, Call | None, Lack | None]] = []
        self.call_hashes: set[int] = set()
        self.shown: dict[str, None] = {}
        self.notes: dict[str, Any] = {}
        self._has_raised = self._abandoned_call = self._is_over = False
        self._root: Branch | None = None  # the root branch of the method, set by its first call
        self._same: Counter[tuple[tuple[str | int, ...], int]] = Counter()  # how often each call was made, by task
        # Calls and searches by place (see `Branch`); None while in flight.
        self._steps: dict[tuple[int, ...], Step | Found | None] = {}
        self._own_branch = Branch()
        self._under_way: set[asyncio.Task] = set()
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()  # done once the method has returned, or a call cannot be answered now

    @property
    def _branch(self) -> Branch:
        """The branch of the running task; only the tasks of a user's method have branches of their own."""
        return BRANCH.get() or self._own_branch

    @property
    def calls(self) -> list[tuple[str, Piece]]:
        """Role and record of each finished call, in the order in which they were made."""
        return [(step.role, step.record) for _, step in self.finished if isinstance(step, Step)]

    @property
    def searches(self) -> list[dict[str, Any]]:
        """Query and ids of each finished search, in the order in which they were made."""
        return [step.line for _, step in self.finished if isinstance(step, Found)]

    @property
    def finished(self) -> list[tuple[int, Step | Found]]:
        """Number and result of each finished call and search, in the order of their places."""
        return list(enumerate(step for _, step in sorted(self._steps.items()) if step is not None))

    def model(self, role: str | None) -> Model:
        """Return the model of this role, or without one, the default; ValueError if there is none."""
        models = self.around.stage.models
        if role is None:
            return next(iter(models.values()))
        if role not in models:
            raise ValueError(
                f"ask: unknown model {role!r}; the models are {', '.join(models)} (add one with --model NAME=ADDRESS)"
            )
        return models[role]

    def number(self, same: int, is_shared: bool) -> Callable[[Call], Call]:
        """Number a repeated call, and return a function that adds the number to its key, so that it gets another seed.

        Must be called before the call waits for anything. Each task of a method numbers its own calls, and their keys
        include the task's path, so that the order of replies does not decide which task gets which text.
        """
        path = () if is_shared else self._branch.path
        number = self._same[path, same]
        self._same[path, same] += 1

        def numbered(call: Call) -> Call:
            self.call_hashes.add(hash((path, same, number)))
            if is_shared:
                call = replace(call, shared=hash((same, number, repr(call.prompt))))
            if path:
                return replace(call, key=(*call.key, path, number))
            return replace(call, key=(*call.key, number)) if number else call

        return numbered

    async def send(self, role: str, make: Callable[[], Call]) -> Piece:
        """Make a call once there is room for its prompt, and return its record."""
        context = copy_context()
        return (await self.run(role, lambda: self._answer(role, lambda: context.run(make)))).record

    async def _answer(self, role: str, make: Callable[[], Call]) -> Step:
        around = self.around
        await around.room.wait()  # before the prompt is rendered, when its size is unknown
        if self.ended is not None and not isinstance(self.ended, NotStoredError):
            raise self.ended  # do not pay for more calls after a failure
        try:
            call = make()
        except Exception as error:  # a method's own error
            raise MistakeError from error
        mistake = None
        try:
            with around.room.taken(count_tokens(call.prompt)):
                record = await answer_call(around.engines.get(role), self.model(role), call, role)
        except NotStoredError as error:
            self.missing_calls.append((role, call, error.lack))
            raise
        except MistakeError as error:  # the method's parser failed; the text was paid for
            record, mistake = error.record, error.__cause__
        if call.prompt is not None:  # otherwise, no server was needed
            around.landed(role)
        messages = call.messages if around.is_traced else []
        return Step(role, record, messages, call.policy.stop, call.shared, mistake)

    async def run(self, role: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a call or a search to its end, even if the method cancels it, and return its result.

        Raises NotNow if it cannot be answered now. If the record's run is over by then, this never returns.
        """
        await self.unless_over()
        if len(self._steps) == MOST_CALLS:
            self.end(MethodError(f"more than {MOST_CALLS:,} calls and searches; check the method for an endless loop"))
            await self._not_now()
        place = self._branch.next_place()
        self._steps[place] = None
        task = without_branch(work())
        self._under_way.add(task)
        task.add_done_callback(partial(self._land, role))
        try:
            result = await asyncio.shield(task)  # a call that a method cancels is paid for anyway, so it is stored
        except asyncio.CancelledError:
            self._abandoned_call = True
            raise
        except MistakeError as error:
            raise error.__cause__ from None
        except Exception:  # `_land` has noted it
            await self._not_now()
        if self.ended is not None:
            await self._not_now()
        self._steps[place] = result
        if isinstance(result, Step) and result.mistake is not None:
            raise result.mistake
        return result

    def _land(self, role: str, task: asyncio.Task) -> None:
        """Note that a call or a search has ended."""
        self._under_way.discard(task)
        if not task.cancelled() and not isinstance(error := task.exception(), MistakeError | None):
            self.end(error, role)

    def end(self, error: Exception, role: str = "") -> None:
        """Note why a call cannot be answered now; keep the most severe reason, and of equal ones the first."""
        if self.ended is None or _gravity(error) > _gravity(self.ended):
            self.ended, self.role = error, role
        self._loop.call_soon(self._set_end)  # only after NotNow is raised in the method

    def _set_end(self, _: asyncio.Task | None = None) -> None:
        if not self._end.done():
            self._end.set_result(None)

    async def unless_over(self) -> None:
        """Return unless the record's run is over. Each method of `Ask` awaits this first, so that no loop can spin."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "ask: called in another event loop, such as a thread's; await it in the method's event loop"
            )
        self._root = self._root or self._branch.root
        if self._root is not self._branch.root:
            raise RuntimeError("ask: belongs to another question; use the `ask` that the method was called with")
        if self.ended is not None or self._is_over:
            await self._not_now()

    async def _not_now(self) -> None:
        """Raise NotNow in the first call that needs it; in all later calls, never return."""
        if self.ended is not None and not self._has_raised:
            self._has_raised = True
            raise NotNow("a call cannot be answered now")
        # A new future each time: a cancelled future is done, and a loop in the method that awaits it would spin.
        await self._loop.create_future()

    async def wait_until_blocked(self, method: asyncio.Task) -> bool:
        """Wait until the method has returned or a call cannot be answered now, and then for all calls in flight.

        Return whether the method abandoned a call: it cancelled a call, or returned while a call was in flight.
        """
        method.add_done_callback(self._set_end)
        await self._end
        self._is_over = method.done()
        abandoned_call = self._abandoned_call or (self._is_over and bool(self._under_way))
        while self._under_way:  # these calls are paid for and go into the store
            await asyncio.wait(self._under_way)
        return abandoned_call

    def close(self, method: asyncio.Task) -> None:
        """End the record's run: cancel the method with its tasks and calls; no call returns after this."""
        self._is_over = self._has_raised = True
        root = getattr(method, "root", None)
        for task in (method, *self._under_way, *(root.tasks if root else ())):
            task.cancel()
            # Reads the error; otherwise, asyncio would print a warning.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())


def _gravity(error: Exception) -> int:
    """Return an error's severity: 0 if it only sets the record aside, 1 if the record fails, 2 if the run ends."""
    return 0 if isinstance(error, NotStoredError) else 1 if isinstance(error, UnavailableError | MethodError) else 2


class Items(list[str]):
    """Texts of a profile's items, with the items' ids."""

    def __init__(self, texts: Sequence[str], ids: Sequence[str | int]):
        super().__init__(texts)
        self.ids = ids


class Ask:
    """The `ask` of one record's method.

    Attributes:
        num_contexts: --num_contexts.
        settings: --set NAME=VALUE, by name.
        sample: the number of this answer to the question, from 0 (--num_generated_outputs).
        steps: the record's calls and searches.
    """

    def __init__(self, record: Record, steps: Steps):
        self.steps, self._record, self._stage = steps, record, steps.around.stage
        args = steps.around.args
        self.num_contexts, self.settings = args.num_contexts, dict(args.set or [])

    @property
    def sample(self) -> int:
        return self.steps.key[1]

    @cached_property
    def random(self) -> random.Random:
        """A random number generator with the same seed for this record on every run."""
        return random.Random(repr((self.steps.around.args.seed, self.steps.key)))

    @cached_property
    def _searched(self) -> Searched:
        return self._stage.search.open(self._record)

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
        """Ask the model and return the value that `parse` reads from its text; None if no text was usable.

        Args:
            prompt: the name of one of the benchmark's prompts (none, rag, ...), or a text. A text may have {question},
                {profile} and names of your own in braces, and a line [system], [user] or [assistant] before each part.
                If the last part is [assistant], the model continues it.
            items: texts for {profile}, the most important first; the last ones are left out if the prompt is too long.
            parse: a function that returns the value of a text, or None if it is unusable; the model is then asked
                again with another seed. By default, the benchmark's parser for a prompt that is named, and the model's
                whole text for a prompt of your own.
            model: the NAME of a model of --model (default: the model of --model_addr).
            n: the number of samples; if given, a list of n values is returned.
            max_tokens, temperature: override the flags.
            stop: texts at which the model's text ends; the returned text does not include them.
            values: texts for the other names in braces.
        """
        await self.steps.unless_over()
        if n is not None:
            if type(n) is not int or n < 1:
                raise ValueError(f"ask: n is {n!r}; it must be a whole number, 1 or more")
            items = _kept(items)
            again = {"parse": parse, "model": model, "max_tokens": max_tokens, "temperature": temperature, "stop": stop}
            again |= values
            return list(await asyncio.gather(*(self(prompt, items=items, **again) for _ in range(n))))
        limits = {"max_tokens": max_tokens, "temperature": temperature, "stop": stop}
        overrides = {name: value for name, value in limits.items() if value is not None}
        return (await self.record(prompt, items=items, values=values, model=model, parse=parse, overrides=overrides))[
            "value"
        ]

    async def choose(
        self,
        prompt: str,
        options: Mapping[str, str],
        *,
        items: Sequence[str] | History = (),
        model: str | None = None,
        **values: str,
    ) -> str | None:
        """Return the name of the likeliest text in `options` (name -> text); no text is generated.

        The likeliest text has the highest mean log-probability per token; of texts with the same tokens, the first is
        returned. None if the prompt is too long or a text has no likelihood. The other arguments are as in `ask`.
        ValueError for a model that thinks, and for an API model, because APIs do not return such likelihoods.
        """
        await self.steps.unless_over()
        chooser = self.steps.model(model)
        if not chooser.is_local:
            raise ValueError(
                f"ask.choose: APIs do not return the likelihood of a given text, and {chooser.addr} is served by an API"
            )
        if chooser.policy.opened or chooser.policy.reasoning_parser not in (None, NO_PARSER):
            raise ValueError(f"ask.choose: {chooser.addr} thinks before it answers")
        if not options:
            raise ValueError("ask.choose: no options; pass texts by name")
        return (await self.record(prompt, items=items, values=values, model=model, options=options))["value"]

    async def search(
        self, query: str, k: int = 5, exclude: Collection[str | int] | Items | History = ()
    ) -> Items | History:
        """Return the texts of the profile's `k` best items for a query, in the form of `record.best(k)`.

        `.ids` has the items' ids, best first; for an item without a unique id, its place in the profile, from 0. Items
        with equal scores keep the profile's order. --search decides how texts are compared. A search for the record's
        own question gives the order of rank_dataset.py. Only the query's 100 best items can be found.

        Args:
            exclude: items to leave out: ids, or the result of a search.
        """
        await self.steps.unless_over()
        if self._stage.search is None:
            raise ValueError("ask.search: only methods of baselines.py --method can search")
        if not isinstance(query, str):
            raise ValueError(f"ask.search: the query is {query!r}; it must be a text")
        if type(k) is not int or not 1 <= k <= MOST:
            raise ValueError(f"ask.search: k is {k!r}; it must be a whole number from 1 to {MOST}")
        if isinstance(exclude, str):
            raise ValueError("ask.search: exclude is a single text; pass a list of ids")
        if isinstance(exclude, History) and exclude.items and not exclude.ids:
            raise ValueError("ask.search: exclude: not the result of a search; pass ids of items")
        try:
            excluded = self._searched.places(exclude.ids if isinstance(exclude, Items | History) else exclude)
        except ValueError as error:
            raise ValueError(f"ask.search: exclude: {error}") from None
        query = writable(query)

        async def find() -> Found:
            try:
                order, shares_words = await self._stage.search.order(self._searched, query)
            except NotStoredError:
                self.steps.missing_calls.append(("search", None, None))
                raise
            best = [place for place in order if place not in excluded][:k]
            line = {"query": query, "ids": [self._searched.ids[place] for place in best]}
            return Found(best, line if shares_words else line | {"no_shared_words": True})

        places, line = await self.steps.run("search", find)
        shown = {**self._record, "profile": first_items(self._record["profile"], places)}
        items = self._stage.task.best_items(shown, len(places))
        return replace(items, ids=line["ids"]) if isinstance(items, History) else Items(items, line["ids"])

    async def record(self, prompt: str, *, model: str | None = None, is_shared: bool = False, **asked: Any) -> Piece:
        """Make a call as `ask` does, and return its whole record instead of the value.

        Args:
            is_shared: if several records make the same call, request and count it once, and give all the same text.
            asked: the other fields of `Asked`.
        """
        steps, key = self.steps, SHARED if is_shared else self.steps.key
        wanted = Asked(prompt, **asked | {"items": _kept(asked.get("items", ()))})
        role, chosen, prompts = model or next(iter(self._stage.models)), steps.model(model), steps.around.prompts
        shown = wanted.items if isinstance(wanted.items, History) else list(wanted.items)
        texts = {name: str(value) for name, value in wanted.values.items()}
        if chosen.gives_rewards:
            raise ValueError(f"ask: {role} is a reward model and cannot generate text; use ask.reward")
        same = hash(repr((key, role, prompt, texts, shown, asked.get("overrides"), asked.get("options"))))
        numbered = steps.number(same, is_shared)
        record = await steps.send(role, lambda: numbered(make_call(wanted, self._record, key, chosen, prompts)))
        used = [] if isinstance(shown, History) else shown[: record.get("num_contexts_used", 0)]
        steps.shown |= dict.fromkeys(map(str, (*used, *wanted.values.values())))
        return record

    async def reward(self, response: str, model: str) -> float | None:
        """Return a reward model's number for a response to the question, given the best --num_contexts posts.

        None if the reward is not a finite number, or the dialogue is too long. ValueError if a local model is not a
        classifier, or the benchmark has no prompt for rewards.
        """
        steps, record, task = self.steps, self._record, self._stage.task
        chosen, metric = steps.model(model), task.metrics.get("reward")
        if metric is None or not (chosen.gives_rewards or not chosen.is_local):
            problem = f"{model} is not a reward model" if metric else f"{task.name} has no prompt for rewards"
            raise ValueError(f"ask.reward: {problem}")
        shown = {**record, "profile": record["profile"][: self.num_contexts]}
        prompt = steps.around.prompts[metric.judge.prompt]
        call = partial(call_for_reward, chosen, steps.key, metric.judge, prompt, shown, response)
        return (await steps.send(model, call))["value"]

    def note(self, **fields: Any) -> None:
        """Add a copy of these fields to the `notes` of the answer's record in the output file."""
        # Encoded here, so that the error for a value that is not JSON names the method's line.
        self.steps.notes |= json.loads(writable(json.dumps(fields, ensure_ascii=False, allow_nan=False)))


def _kept(items: Iterable[str] | History) -> Sequence[str] | History:
    """Return the items in a form that can be read more than once, unlike a generator."""
    return items if isinstance(items, Sequence | History) else list(items)
