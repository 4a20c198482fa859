"""Completions by what was sent for them: looked up in the store first, requested only if it lacks them."""

import asyncio
import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields, replace
from typing import Any

from utils.generation.chat import Rendered
from utils.generation.requests import Completion, Engine, RefusedError, Sampling, Scored
from utils.generation.store import ModelStore

# Of a `Completion`, those that are left out of its line if they have their default.
OPTIONAL = {field.name: field.default for field in fields(Completion) if field.default is not MISSING}


WAIT_SECONDS = 90  # for completions that another node has just written: network file systems show them late
LOOK_SECONDS = 5  # between two looks


class NotStoredError(Exception):
    """The store lacks this completion, and no engine is open to give it."""


class Completions:
    """One model's completions.

    Attributes:
        reused: how many came from the store.
        asked: how many were requested and kept.
    """

    def __init__(self, store: ModelStore, is_greedy_seeded: bool, cached_only: bool):
        """
        Args:
            is_greedy_seeded: a greedy request with another seed is another request, as a server may sample anyway.
            cached_only: nothing is requested; a completion that is missing is waited for, `WAIT_SECONDS` in all.
        """
        self.store = store
        self.reused = self.asked = 0
        self.cached_only = cached_only
        self._left_to_wait = WAIT_SECONDS if cached_only else 0
        self._is_greedy_seeded = is_greedy_seeded
        self._under_way: dict[str, asyncio.Event] = {}

    async def complete(
        self,
        engine: Engine | None,
        model: str,
        prompt: Rendered,
        sampling: Sampling,
        is_usable: Callable[[Completion], bool],
        **told: Any,
    ) -> Completion:
        """The completion that was sent before, else a new one from `engine`, which is kept with what is `told`.

        A free text counts in place of one that is to be held to its schema only if it is usable: what follows an
        unusable one may be nothing. Where greedy tries have no seeds, only their schemas tell one from the next.

        Raises:
            RefusedError: the model's server refuses this content; that is kept too.
            NotStoredError: it is not there, and `engine` is None.
        """
        keys = self._keys(prompt, sampling)
        async with _Turn(self._under_way, keys[0]):
            while True:
                for key in keys:
                    if (found := self.store.get(key)) is None:
                        continue
                    if "refused" in found:
                        await self._reuse()
                        raise RefusedError(found["refused"])
                    completion = replace(_read(found), in_other_dress=key != keys[0])
                    must_be_usable = completion.in_other_dress and (sampling.schema or self._is_seedless(sampling))
                    if not must_be_usable or is_usable(completion):
                        await self._reuse()
                        return completion
                if not await self._look_again():
                    break
            if engine is None:
                raise NotStoredError
            try:
                completion = await engine.complete(model, prompt, sampling)
            except RefusedError as refusal:
                self._keep(keys[0], {"refused": str(refusal)}, told)
                raise
            self._keep(keys[0], _write(completion), told)
            return completion

    async def score(
        self, engine: Engine | None, model: str, prompt: array, continuations: Sequence[array], **told: Any
    ) -> Scored:
        """Likewise how likely several continuations are."""
        key = _hash("score", prompt, *continuations)
        async with _Turn(self._under_way, key):
            while (found := self.store.get(key)) is None and await self._look_again():
                pass
            if found is not None:
                await self._reuse()
                means = [float("nan") if mean is None else mean for mean in found["mean_log_probs"]]
                return Scored(means, found["prompt_tokens"], found["cached_tokens"])
            if engine is None:
                raise NotStoredError
            scored = await engine.score(model, prompt, continuations)
            self._keep(key, asdict(scored), told)
            return scored

    async def _look_again(self) -> bool:
        """With --cached_only, wait a little for what is missing; False once `WAIT_SECONDS` are over."""
        if self._left_to_wait <= 0:
            return False
        self._left_to_wait -= LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        self.store.refresh()
        return True

    async def _reuse(self) -> None:
        self.reused += 1
        await asyncio.sleep(0)  # a signal is heard, and an engine, also where the store has everything

    def _is_seedless(self, sampling: Sampling) -> bool:
        return sampling.temperature == 0 and not self._is_greedy_seeded

    def _keep(self, key: str, its: dict[str, Any], told: dict[str, Any]) -> None:
        self.store.add(key, {**told, **its})
        self.asked += 1

    def _keys(self, prompt: Rendered, sampling: Sampling) -> list[str]:
        """The request's key, then those of the same try in other dress: free, or held to the schema of the last one.

        With more --max_retries the try that was the last one is free; it was paid for and counts.
        """
        its = asdict(sampling)
        del its["attempt"], its["last_schema"]
        if self._is_seedless(sampling):
            del its["seed"]
        dresses = [sampling.schema, *(one for one in (None, sampling.last_schema) if one != sampling.schema)]
        return [_hash("complete", prompt, {**its, "schema": schema}) for schema in dresses]


class _Turn:
    """Of two requests with one key that are under way at a time the second waits for the first."""

    def __init__(self, under_way: dict[str, asyncio.Event], key: str):
        self._under_way, self._key = under_way, key

    async def __aenter__(self) -> None:
        while (event := self._under_way.get(self._key)) is not None:
            await event.wait()
        self._under_way[self._key] = asyncio.Event()

    async def __aexit__(self, *_: object) -> None:
        self._under_way.pop(self._key).set()


def _hash(*parts: Any) -> str:
    """32 hex digits of what is sent: text, token ids, or JSON."""
    digest = hashlib.sha256()
    for part in parts:
        text = part.tobytes() if isinstance(part, array) else json.dumps(part, sort_keys=True).encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()[:32]


def _write(completion: Completion) -> dict[str, Any]:
    its = asdict(completion)
    return {name: value for name, value in its.items() if name not in OPTIONAL or value != OPTIONAL[name]}


def _read(found: dict[str, Any]) -> Completion:
    its = {field.name: found[field.name] for field in fields(Completion) if field.name in found}
    return Completion(**{**its, "refused_parameters": tuple(its.get("refused_parameters", ()))})
