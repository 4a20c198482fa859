"""`ask` for one record: render a call that fits the model's window, take its text from the store or a server, parse."""

import asyncio
import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from prompts import History
from retrieval.search import MOST, Searched
from utils.base.output import Piece
from utils.benchmarks.checks import Record
from utils.benchmarks.metric import Parser
from utils.benchmarks.personamem.contexts import first_items
from utils.benchmarks.readers import writable
from utils.generation.completions import NotStoredError
from utils.generation.thinking import NO_PARSER
from utils.runs.rendering import Asked, call_for_reward, make_call
from utils.runs.steps import SHARED, Found, Steps


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
        """Ask the model and return the value that `parse` reads from its text; None if no try was usable.

        Args:
            prompt: the name of one of the benchmark's prompts (none, rag, ...), or a text. A text may have {question},
                {profile} and names of your own in braces, and a line [system], [user] or [assistant] before each part.
                If the last part is [assistant], the model continues it.
            items: texts for {profile}, the most important first: the last ones are left out if the prompt is too long.
            parse: returns the value of a text, or None if the text is unusable; the model is then asked again with
                another seed (default: the benchmark's parser for its own prompts; for a text, the model's whole text).
            model: the name of a model that --model gives (default: --model_addr).
            n: the number of samples; with it, a list of n values is returned.
            max_tokens, temperature: override the flags.
            stop: texts at which the model's text ends; the returned text does not include them.
            values: texts for the other names in braces.
        """
        await self.steps.unless_over()
        if n is not None:
            if type(n) is not int or n < 1:
                raise ValueError(f"ask: n is {n!r}; give a number from 1 up")
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

        The likeliest text has the highest mean log-probability per token; of texts with the same tokens, the first one
        counts. None if the prompt is too long, or the model gives a text no likelihood. The other arguments are as in
        `ask`. ValueError for a model that thinks, and for an API model: APIs do not return such likelihoods.
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
            raise ValueError("ask.choose: no options; give texts by name")
        return (await self.record(prompt, items=items, values=values, model=model, options=options))["value"]

    async def search(
        self, query: str, k: int = 5, exclude: Collection[str | int] | Items | History = ()
    ) -> Items | History:
        """Return the texts of the profile's `k` best items for a query, in the form of `record.best(k)`.

        `.ids` has the items' ids, best first; an item without an id of its own has its place in the profile, from 0.
        Items with equal scores keep the profile's order. --search decides how texts are compared. A search for the
        record's own question gives the order of rank_dataset.py.

        Args:
            exclude: items to leave out: ids, or the result of a search. Of a longer profile, only the query's best 100
                items are considered.
        """
        await self.steps.unless_over()
        if self._stage.search is None:
            raise ValueError("ask.search: only methods of baselines.py --method can search")
        if not isinstance(query, str):
            raise ValueError(f"ask.search: the query is {query!r}; give a text")
        if type(k) is not int or not 1 <= k <= MOST:
            raise ValueError(f"ask.search: k is {k!r}; give a number from 1 to {MOST}")
        if isinstance(exclude, str):
            raise ValueError("ask.search: exclude is a single text; give a list of ids")
        if isinstance(exclude, History) and exclude.items and not exclude.ids:
            raise ValueError("ask.search: exclude: not the result of a search; give ids of items")
        try:
            excluded = self._searched.places(exclude.ids if isinstance(exclude, Items | History) else exclude)
        except ValueError as error:
            raise ValueError(f"ask.search: exclude: {error}") from None
        query = writable(query)

        async def find() -> Found:
            try:
                order, shares_words = await self._stage.search.order(self._searched, query)
            except NotStoredError:
                self.steps.lacking.append(("search", None, None))
                raise
            best = [place for place in order if place not in excluded][:k]
            line = {"query": query, "ids": [self._searched.ids[place] for place in best]}
            return Found(best, line if shares_words else line | {"no_shared_words": True})

        places, line = await self.steps.run("search", find)
        shown = {**self._record, "profile": first_items(self._record["profile"], places)}
        items = self._stage.task.best_items(shown, len(places))
        return replace(items, ids=line["ids"]) if isinstance(items, History) else Items(items, line["ids"])

    async def record(self, prompt: str, *, model: str | None = None, is_shared: bool = False, **asked: Any) -> Piece:
        """Make a call as `ask` does and return the call's whole record; `asked` are the other fields of `Asked`.

        `is_shared`: if several records make this call, it is requested and counted once, and all get the same text.
        """
        steps, key = self.steps, SHARED if is_shared else self.steps.key
        wanted = Asked(prompt, **asked | {"items": _kept(asked.get("items", ()))})
        role, chosen, prompts = model or next(iter(self._stage.models)), steps.model(model), steps.around.prompts
        shown = wanted.items if isinstance(wanted.items, History) else list(wanted.items)
        texts = {name: str(value) for name, value in wanted.values.items()}
        if chosen.gives_rewards:
            raise ValueError(f"ask: {role} is a reward model, which writes no text; use ask.reward")
        same = hash(repr((key, role, prompt, texts, shown, asked.get("overrides"), asked.get("options"))))
        numbered = steps.number(same, is_shared)
        record = await steps.send(role, lambda: numbered(make_call(wanted, self._record, key, chosen, prompts)))
        used = [] if isinstance(shown, History) else shown[: record.get("num_contexts_used", 0)]
        steps.shown |= dict.fromkeys(map(str, (*used, *wanted.values.values())))
        return record

    async def reward(self, response: str, model: str) -> float | None:
        """Return the reward of a response, which the model reads after the best --num_contexts posts and the question.

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
        # Encoded now, so that an error names the method's line whose value is not JSON.
        self.steps.notes |= json.loads(writable(json.dumps(fields, ensure_ascii=False, allow_nan=False)))


def _kept(items: Iterable[str] | History) -> Sequence[str] | History:
    """Return items that can be read more than once, as a generator cannot."""
    return items if isinstance(items, Sequence | History) else list(items)
