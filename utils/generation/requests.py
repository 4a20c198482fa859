"""Requests to engines and their results; the engines are vllm_engine.py and api_engine.py."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from prompts import Messages

Rendered = array | Messages  # token ids (4 bytes each, because a whole test set is held at once), or messages

# Flags besides temperature, top_p and seed, by their names in a request: those of sampling, and all of them.
SAMPLED = ("top_k", "min_p", "presence_penalty")
FURTHER = (*SAMPLED, "reasoning_effort", "chat_template_kwargs", "extra_body")
LIMITS = ("max_tokens", "max_completion_tokens")  # the old name of one limit, and OpenAI's new name
FORMATS = ("json_schema", "json_object", "none")  # response formats, the strictest first
# Reasons to stop of a finished text, in lower case; unknown if a server gives none. Any other (length, error, safety,
# ...) means that it was cut.
FINISHED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "end", "complete", "completed", "done", "unknown",
            "endoftext", "endturn", "finish", "finished", "normal", "finish_reason_stop")  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """How one output is sampled."""

    temperature: float | None  # None: the default of the model or its server
    top_p: float | None  # likewise
    max_tokens: int
    seed: int
    schema: dict[str, Any] | str | None = None  # constrains it: a JSON schema, or a regular expression (vLLM only)
    attempt: int = 0  # the number of this try, from 0
    further: dict[str, Any] = field(default_factory=dict)  # flags of FURTHER that are given
    reasoning_parser: str | None = None  # reads a local model's thoughts
    opened: bool | None = None  # whether the prompt ends inside a thought; None if unknown
    stop_token: int | None = None  # a local model's: ends its turn, besides the tokens that its config names
    stop: tuple[str, ...] = ()  # texts that end it, and are not part of it


@dataclass(frozen=True)
class Completion:
    """One output."""

    text: str  # after the thoughts
    finish_reason: str
    prompt_tokens: int | None  # this and the next two counts are None if a server does not report them
    cached_tokens: int | None  # prompt tokens that were not computed again
    completion_tokens: int | None
    response_format: str | None = None  # the format of FORMATS that a server took instead of the schema it refused
    refused_parameters: tuple[str, ...] = ()  # left out of the request or renamed
    system_fingerprint: str | None = None  # as the server reports it
    answered_by: str | None = None  # the model that the reply names, if it is not the one that was asked
    reasoning: str = ""  # the thoughts
    reasoning_tokens: int | None = None  # completion tokens of the thoughts; None if unknown
    unfinished: bool = False  # whether it ends inside a thought


@dataclass(frozen=True)
class Scored:
    """How likely several continuations of one prompt are."""

    mean_log_probs: list[float]  # per continuation, over its tokens
    prompt_tokens: int  # over all requests, each with the prompt
    cached_tokens: int  # those of them that were not computed again


@dataclass(frozen=True)
class Rewarded:
    """What a reward model gives for a dialogue: a number on its own scale, NaN if the model is damaged."""

    reward: float
    prompt_tokens: int | None
    cached_tokens: int | None = None


def is_cut(finish_reason: str) -> bool:
    """Return whether a text ended for another reason than being finished."""
    return finish_reason.lower() not in FINISHED


class RefusedError(Exception):
    """The engine will never answer this request; other requests continue.

    `is_certain` is False if the server may refuse every request for this reason, until it answers another one.
    """

    def __init__(self, reason: str, is_certain: bool = True):
        super().__init__(reason)
        self.is_certain = is_certain


class UnavailableError(Exception):
    """A server did not answer any try of this request, but may later; other requests continue."""


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
    """A prompt for fusion in decoder: passages of the question with one item each, as token ids."""

    parts: tuple[array, ...]

    def __len__(self) -> int:
        """Return the number of tokens in all passages."""
        return sum(map(len, self.parts))


def passages_of(prompt: array | Passages) -> tuple[array, ...]:
    return getattr(prompt, "parts", (prompt,))
