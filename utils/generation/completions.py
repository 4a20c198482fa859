"""Return completions of requests from the store; send a request only if the store lacks its completion."""

import asyncio
import hashlib
import json
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from typing import Any, NamedTuple, TypeVar

from utils.generation.requests import (
    Completion,
    Engine,
    RefusedError,
    Rendered,
    Rewarded,
    Sampling,
    Scored,
    ended_at_stop,
)
from utils.generation.store import ModelStore

T = TypeVar("T")

DEFAULTS = {field.name: field.default for field in fields(Completion)}  # fields with these values are not stored
KEY_DIGITS = 32  # hex digits of a request's hash that identify it
WAIT_SECONDS = 60  # until a network file system surely shows what another node has just written


class Lack(NamedTuple):
    """A completion that the store lacks."""

    key: str  # its key in the store
    prompt: Rendered
    sampling: Sampling
    fields: dict[str, Any]  # further fields of its line in the store


class NotStoredError(Exception):
    """The store lacks a completion, score or reward, and no engine is open; only a completion sets `lack`."""

    def __init__(self, lack: Lack | None = None):
        super().__init__(lack)
        self.lack = lack


class Hashed(NamedTuple):
    """A prompt with the hash of model and prompt, from which the keys of all tries of a call are made."""

    prompt: Rendered
    digest: Any


class Completions:
    """One model's completions.

    Attributes:
        requested: how many results (completions, refusals, scores, rewards) this run has requested and stored.
    """

    def __init__(self, store: ModelStore, is_greedy_seeded: bool, cached_only: bool):
        """
        Args:
            is_greedy_seeded: whether a greedy request's key includes its seed, because a server may sample even then.
            cached_only: request nothing; look for missing completions once more after `WAIT_SECONDS`.
        """
        self.store = store
        self.requested = 0
        self.cached_only = cached_only
        self._looked_again: asyncio.Event | None = None
        self._is_greedy_seeded = is_greedy_seeded
        self._under_way: dict[str, asyncio.Event] = {}
        self._refused: dict[str, dict[str, Any]] = {}  # for `keep_refusals`
        self._has_answered = False

    @property
    def replies(self) -> int:
        """How many results the servers have returned, including refusals that are not stored yet."""
        return self.requested + len(self._refused)

    def hashed(self, prompt: Rendered) -> Hashed:
        """Return a prompt with its hash, so that each try of a call only has to hash its sampling."""
        parts = getattr(prompt, "parts", (prompt,))  # fusion-in-decoder prompts have parts
        return Hashed(prompt, _hash("complete", self.store.described, *parts))

    async def complete(
        self,
        engine: Engine | None,
        model: str,
        hashed: Hashed,
        sampling: Sampling,
        may_wait: bool = True,
        **fields: Any,
    ) -> Completion:
        """Return the stored completion of this request; if there is none, request it and store it with `fields`.

        Without `may_wait`, --cached_only does not wait for other nodes to store it.

        Raises:
            RefusedError: the model's server refuses this content, or refused it earlier.
            NotStoredError: the completion is not stored, and `engine` is None.
        """
        key = self._key(hashed, sampling)
        async with self._turn(key):
            if (stored := await self._find(key, may_wait)) is not None:
                if "refused" in stored:
                    raise RefusedError(stored["refused"])
                values = {name: stored[name] for name in DEFAULTS if name in stored}
                values["refused_parameters"] = tuple(values.get("refused_parameters", ()))
                return ended_at_stop(Completion(**values), sampling.stop)
            if engine is None:
                raise NotStoredError(Lack(key, hashed.prompt, sampling, fields))
            completion = await self._unless_refused(key, fields, engine.complete(model, hashed.prompt, sampling))
            self.keep(key, fields, completion)
            return ended_at_stop(completion, sampling.stop)

    def keep(self, key: str, fields: dict[str, Any], result: Completion | RefusedError) -> None:
        """Store a completion or a refusal, with `fields`."""
        if isinstance(result, RefusedError):
            return self._keep(key, fields | {"refused": str(result)})
        written = {name: value for name, value in asdict(result).items() if value != DEFAULTS[name]}
        self._keep(key, fields | written)
        self._has_answered = True

    async def _unless_refused(self, key: str, fields: dict[str, Any], request: Awaitable[T]) -> T:
        """Return a request's result; if the server refuses it, keep the refusal with `fields`, and raise it."""
        try:
            result = await request
        except RefusedError as refusal:
            if refusal.is_certain:
                self.keep(key, fields, refusal)
            else:
                self._refused[key] = fields | {"refused": str(refusal)}
            raise
        self._has_answered = True
        self.keep_refusals()
        return result

    def keep_refusals(self) -> None:
        """Store uncertain refusals, but only after an answer has shown that the server does not refuse everything."""
        while self._has_answered and self._refused:
            self._keep(*self._refused.popitem())

    async def score(
        self, engine: Engine | None, model: str, prompt: array, continuations: Sequence[array], **fields: Any
    ) -> Scored:
        """Return how likely several continuations are, stored or from the engine; NotStoredError as in `complete`."""
        key = _hash("score", self.store.described, prompt, *continuations).hexdigest()[:KEY_DIGITS]
        async with self._turn(key):
            if (stored := await self._find(key)) is not None:
                means = [float("nan") if mean is None else mean for mean in stored["mean_log_probs"]]
                return Scored(means, stored["prompt_tokens"], stored["cached_tokens"])
            if engine is None:
                raise NotStoredError
            scored = await engine.score(model, prompt, continuations)
            self._keep(key, fields | asdict(scored))
            return scored

    async def reward(self, engine: Engine | None, model: str, prompt: Rendered, **fields: Any) -> Rewarded:
        """Return the reward of a whole dialogue, from the store or the engine; exceptions as in `complete`."""
        key = _hash("reward", self.store.described, prompt).hexdigest()[:KEY_DIGITS]
        async with self._turn(key):
            if (stored := await self._find(key)) is not None:
                if "refused" in stored:
                    raise RefusedError(stored["refused"])
                reward = float("nan") if stored["reward"] is None else stored["reward"]
                return Rewarded(reward, stored["prompt_tokens"], stored["cached_tokens"])
            if engine is None:
                raise NotStoredError
            rewarded = await self._unless_refused(key, fields, engine.reward(model, prompt))
            self._keep(key, fields | asdict(rewarded))
            return rewarded

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        """Make a request wait while another one with the same key is in progress."""
        while (event := self._under_way.get(key)) is not None:
            await event.wait()
        self._under_way[key] = asyncio.Event()
        try:
            yield
        finally:
            self._under_way.pop(key).set()

    async def _find(self, key: str, may_wait: bool = True) -> dict[str, Any] | None:
        """Return the stored fields, or None; with --cached_only, read the store once more before returning None."""
        stored = self._refused.get(key) or self.store.get(key)
        if stored is None and self.cached_only and may_wait:
            await self._look_again()
            stored = self.store.get(key)
        if stored is not None:
            await asyncio.sleep(0)  # lets signals and engines act even if the store has everything
        return stored

    async def _look_again(self) -> None:
        """Wait, and have the store read again; all calls that lack a completion share one wait."""
        if self._looked_again is not None:
            await self._looked_again.wait()
            return
        self._looked_again = asyncio.Event()
        print(f"{self.store.folder}: some completions are missing; reading it again in a minute", file=sys.stderr)
        try:
            await asyncio.sleep(WAIT_SECONDS)
        finally:
            self.store.refresh()
            self._looked_again.set()

    def _keep(self, key: str, fields: dict[str, Any]) -> None:
        self.store.add(key, fields)
        self.requested += 1

    def _key(self, hashed: Hashed, sampling: Sampling) -> str:
        """Return the key of a request. It depends on the seed, except for greedy requests to a local model."""
        left_out = {"attempt", "seed"} if sampling.temperature == 0 and not self._is_greedy_seeded else {"attempt"}
        left_out |= set() if sampling.stop else {"stop"}
        sampled = {name: value for name, value in vars(sampling).items() if name not in left_out}
        return _hash(sampled, after=hashed.digest).hexdigest()[:KEY_DIGITS]


def _hash(*parts: Any, after: Any = None) -> Any:
    """Return the SHA-256 object of a request's parts (token ids or JSON values), appended to `after` if given."""
    digest = hashlib.sha256() if after is None else after.copy()
    for part in parts:
        text = part.tobytes() if isinstance(part, array) else json.dumps(part, sort_keys=True).encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest
