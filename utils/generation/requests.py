"""Requests to engines, and their results. Engines: vllm_engine.py, api_engine.py, encoder_decoder.py."""

import asyncio
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from prompts import Messages

Rendered = array | Messages  # token ids (4 bytes each, because a whole test set is held at once), or messages

CHARACTERS_PER_TOKEN = 4  # about 4 in English, fewer in most other languages
# Finish reasons, in lower case, of texts that are complete; "unknown" if the server gives none. Any other reason
# (length, error, safety, ...) means that the text was cut.
FINISHED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "end", "complete", "completed", "done", "unknown",
            "endoftext", "endturn", "finish", "finished", "normal", "finish_reason_stop")  # fmt: skip


class Room:
    """Limits the tokens of the prompts in progress; a prompt that is alone may exceed the limit."""

    def __init__(self, size: int):
        self._size, self._taken = size, 0
        self._freed = asyncio.Event()

    async def wait(self, tokens: int = 1) -> None:
        """Wait until there is room for this many tokens; the caller must enter `taken` before its next await."""
        while self._taken and self._taken + tokens > self._size:
            self._freed.clear()
            await self._freed.wait()

    @contextmanager
    def taken(self, tokens: int) -> Iterator[None]:
        self._taken += tokens
        try:
            yield
        finally:
            self._taken -= tokens
            self._freed.set()


def count_tokens(prompt: Rendered | None) -> int:
    """Return the number of a prompt's tokens; for messages, an estimate."""
    if isinstance(prompt, list):
        return sum(len(message["content"]) for message in prompt) // CHARACTERS_PER_TOKEN
    return len(prompt or ())


@dataclass(frozen=True)
class Sampling:
    """How one output is sampled."""

    temperature: float | None  # None: the default of the model or its server
    top_p: float | None  # None: as for temperature
    max_tokens: int
    seed: int
    schema: dict[str, Any] | str | None = None  # constrains the output: JSON schema or (vLLM only) regular expression
    attempt: int = 0  # the number of this try, from 0
    further: dict[str, Any] = field(default_factory=dict)  # flags of FURTHER that are given
    reasoning_parser: str | None = None  # reads a local model's thoughts
    opened: bool | None = None  # whether the prompt ends inside a thought; None if unknown
    stop_token: int | None = None  # a token that ends a local model's turn, besides the tokens that its config names
    stop: tuple[str, ...] = ()  # texts at which the output ends; the output does not include them


@dataclass(frozen=True)
class Completion:
    """One output."""

    text: str  # the text after the thoughts
    finish_reason: str
    prompt_tokens: int | None  # this and the next two counts are None if a server does not report them
    cached_tokens: int | None  # prompt tokens that were not computed again
    completion_tokens: int | None
    refused_parameters: tuple[str, ...] = ()  # left out of the request or renamed
    system_fingerprint: str | None = None  # as the server reports it
    answered_by: str | None = None  # the model that the reply names, if it is not the one that was asked
    reasoning: str = ""  # the thoughts
    reasoning_tokens: int | None = None  # completion tokens of the thoughts; None if unknown
    unfinished: bool = False  # whether the output ends inside a thought
    stop_ignored: bool = False  # whether the server wrote on after a stop text, and `ended_at_stop` has cut the text


@dataclass(frozen=True)
class Scored:
    """How likely several continuations of one prompt are."""

    mean_log_probs: list[float]  # of each continuation: the mean log-probability of its tokens
    prompt_tokens: int  # in all requests together; each request has the prompt
    cached_tokens: int  # prompt tokens that were not computed again


@dataclass(frozen=True)
class Rewarded:
    """A reward model's result for a dialogue: a number on the model's own scale, or NaN if the model is damaged."""

    reward: float
    prompt_tokens: int | None
    cached_tokens: int | None = None


def ended_at_stop(completion: Completion, stop: Sequence[str]) -> Completion:
    """Return a completion that ends before the first of the texts `stop`, also if the server has ignored them."""
    places = [place for text in stop if (place := completion.text.find(text)) >= 0]
    if not places:
        return completion
    return replace(completion, text=completion.text[: min(places)], finish_reason="stop", stop_ignored=True)


def is_cut(finish_reason: str) -> bool:
    """Return whether a text with this finish reason was cut, and so may be incomplete."""
    return finish_reason.lower() not in FINISHED


def was_cut(reply: Mapping[str, Any]) -> bool:
    """Return whether a reply's text was cut, by its finish reason; `reply` is an answer's record or a trace's line.

    The value that was read from a cut text may still be complete, or be missing. If there is no finish reason, as in
    other people's files, `truncated` decides.
    """
    reason = reply.get("finish_reason")
    return is_cut(reason) if isinstance(reason, str) else bool(reply.get("truncated"))


class RefusedError(Exception):
    """The engine will never answer this request; other requests continue.

    `is_certain` is False if the server may refuse every request for this reason; an answer to another request then
    rules that out.
    """

    def __init__(self, reason: str, is_certain: bool = True):
        super().__init__(reason)
        self.is_certain = is_certain


class UnavailableError(Exception):
    """A server did not answer any try of this request, but may later; other requests continue.

    `is_limited` is True if the server asks for fewer requests.
    """

    def __init__(self, reason: str, is_limited: bool = False):
        super().__init__(reason)
        self.is_limited = is_limited


class Engine(Protocol):
    concurrency: int
    device: str

    async def complete(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion: ...

    # Only for local models: APIs do not return the likelihood of a given text.
    async def score(self, model: str, prompt: array, continuations: Sequence[array]) -> Scored: ...

    async def reward(self, model: str, prompt: Rendered) -> Rewarded: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Passages:
    """A prompt for fusion in decoder: passages as token ids, each of the question and one item."""

    parts: tuple[array, ...]

    def __len__(self) -> int:
        """Return the number of tokens in all passages."""
        return sum(map(len, self.parts))


def passages_of(prompt: array | Passages) -> tuple[array, ...]:
    return getattr(prompt, "parts", (prompt,))
