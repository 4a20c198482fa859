"""Completions by their request: look a request up in the store, and send it only if the store lacks it."""

import asyncio
import hashlib
import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

from utils.generation.chat import Rendered
from utils.generation.requests import Completion, Engine, RefusedError, Sampling, Scored
from utils.generation.store import ModelStore

# Fields of a `Completion` that its line leaves out if they have their default.
OPTIONAL = {field.name: field.default for field in fields(Completion) if field.default is not MISSING}


WAIT_SECONDS = 60  # network file systems are late to show completions that another node has just written


class NotStoredError(Exception):
    """The store lacks a completion, and no engine is open or the engine has noted the request for a batch."""


class Completions:
    """One model's completions.

    Attributes:
        asked: how many were requested and stored.
    """

    def __init__(self, store: ModelStore, is_greedy_seeded: bool, cached_only: bool):
        """
        Args:
            is_greedy_seeded: whether the seed tells greedy requests apart, because a server may sample anyway.
            cached_only: request nothing; look for missing completions once more after `WAIT_SECONDS`.
        """
        self.store = store
        self.asked = 0
        self.cached_only = cached_only
        self._looked_again: asyncio.Event | None = None
        self._is_greedy_seeded = is_greedy_seeded
        self._under_way: dict[str, asyncio.Event] = {}
        self._refused: dict[str, dict[str, Any]] = {}  # for `keep_refusals`
        self._has_answered = False

    async def complete(
        self,
        engine: Engine | None,
        model: str,
        prompt: Rendered,
        sampling: Sampling,
        may_wait: bool = True,
        **told: Any,
    ) -> Completion:
        """Return the stored completion of this request, or request and store a new one with the fields in `told`.

        Without `may_wait`, --cached_only does not wait for it.

        Raises:
            RefusedError: the model's server refuses this content, or refused it earlier.
            NotStoredError: the completion is not stored, and `engine` is None.
        """
        key = self._key(prompt, sampling)
        async with _Turn(self._under_way, key):
            if (found := await self._find(key, may_wait)) is not None:
                if "refused" in found:
                    raise RefusedError(found["refused"])
                return _read(found)
            if engine is None:
                raise NotStoredError
            try:
                completion = await engine.complete(model, prompt, sampling)
            except RefusedError as refusal:
                fields = {**told, "refused": str(refusal)}
                if refusal.is_certain:
                    self._keep(key, fields)
                else:
                    self._refused[key] = fields
                raise
            self._keep(key, told | _write(completion))
            self._has_answered = True
            self.keep_refusals()
            return completion

    def keep_refusals(self) -> None:
        """Store the refusals that may have been of all prompts, if the server has answered another prompt."""
        while self._has_answered and self._refused:
            self._keep(*self._refused.popitem())

    async def score(
        self, engine: Engine | None, model: str, prompt: array, continuations: Sequence[array], **told: Any
    ) -> Scored:
        """Return, in the same way, how likely several continuations are."""
        key = _hash("score", self.store.described, prompt, *continuations)
        async with _Turn(self._under_way, key):
            if (found := await self._find(key)) is not None:
                means = [float("nan") if mean is None else mean for mean in found["mean_log_probs"]]
                return Scored(means, found["prompt_tokens"], found["cached_tokens"])
            if engine is None:
                raise NotStoredError
            scored = await engine.score(model, prompt, continuations)
            self._keep(key, told | asdict(scored))
            return scored

    async def _find(self, key: str, may_wait: bool = True) -> dict[str, Any] | None:
        """Return the stored fields, or None; with --cached_only, read the store once more first."""
        found = self._refused.get(key) or self.store.get(key)
        if found is None and self.cached_only and may_wait:
            await self._look_again()
            found = self.store.get(key)
        if found is not None:
            await asyncio.sleep(0)  # lets signals and engines act even if the store has everything
        return found

    async def _look_again(self) -> None:
        """Wait, once for all calls that lack a completion, then have the store read again."""
        if self._looked_again is not None:
            await self._looked_again.wait()
            return
        self._looked_again = asyncio.Event()
        print(f"{self.store.folder}: some completions are missing; checking again in a minute", file=sys.stderr)
        try:
            await asyncio.sleep(WAIT_SECONDS)
        finally:
            self.store.refresh()
            self._looked_again.set()

    def _keep(self, key: str, fields: dict[str, Any]) -> None:
        self.store.add(key, fields)
        self.asked += 1

    def _key(self, prompt: Rendered, sampling: Sampling) -> str:
        its = dict(vars(sampling))
        del its["attempt"]
        if sampling.temperature == 0 and not self._is_greedy_seeded:
            del its["seed"]
        parts = getattr(prompt, "parts", (prompt,))  # fusion-in-decoder prompts have parts
        return _hash("complete", self.store.described, *parts, its)


class _Turn:
    """Makes the second of two concurrent requests with one key wait for the first."""

    def __init__(self, under_way: dict[str, asyncio.Event], key: str):
        self._under_way, self._key = under_way, key

    async def __aenter__(self) -> None:
        while (event := self._under_way.get(self._key)) is not None:
            await event.wait()
        self._under_way[self._key] = asyncio.Event()

    async def __aexit__(self, *_: object) -> None:
        self._under_way.pop(self._key).set()


def _hash(*parts: Any) -> str:
    """Return 32 hex digits that identify a request's parts: token ids or JSON values."""
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
