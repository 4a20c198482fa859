"""Requests to engines and their results; the engines are vllm_engine.py and api_engine.py."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from utils.generation.chat import Rendered

# Flags beside temperature, top_p and seed, as they are called in a request: of sampling, and all of them.
SAMPLED = ("top_k", "min_p", "presence_penalty")
FURTHER = (*SAMPLED, "reasoning_effort", "chat_template_kwargs", "extra_body")
LIMITS = ("max_tokens", "max_completion_tokens")  # one limit by its old name and by OpenAI's new one
FORMATS = ("json_schema", "json_object", "none")  # response formats, the strictest first


@dataclass(frozen=True)
class Sampling:
    """How one output is sampled."""

    temperature: float | None  # None: as the model or its server has it by default
    top_p: float | None  # likewise
    max_tokens: int
    seed: int
    schema: dict[str, Any] | str | None = None  # to hold it to: JSON, or a regular expression (vLLM only)
    attempt: int = 0  # which of this run's tries it is
    further: dict[str, Any] = field(default_factory=dict)  # flags of FURTHER that are given
    reasoning_parser: str | None = None  # that reads the thoughts of a model that runs here
    opened: bool | None = None  # the prompt ends inside a thought; None: not known
    constrained_decoding: str = "fallback"  # the flag; it decides nothing of this try, but tells outputs apart


@dataclass(frozen=True)
class Completion:
    """One output."""

    text: str  # after the thoughts
    finish_reason: str
    prompt_tokens: int | None  # all three counts: None where a server doesn't tell
    cached_tokens: int | None  # of the prompt's those not computed again
    completion_tokens: int | None
    response_format: str | None = None  # the one of FORMATS that a server took in place of the schema it refused
    refused_parameters: tuple[str, ...] = ()  # that it was asked for without, or by another name
    system_fingerprint: str | None = None  # as the server reports it
    reasoning: str = ""  # the thoughts
    reasoning_tokens: int | None = None  # of the output's, those of its thoughts; None where that is not told
    unfinished: bool = False  # it ends inside a thought


@dataclass(frozen=True)
class Scored:
    """How likely several continuations of one prompt are."""

    mean_log_probs: list[float]  # of each over its tokens
    prompt_tokens: int  # of all that was sent for them, the prompt with each of them
    cached_tokens: int  # of these those not computed again


class RefusedError(Exception):
    """The engine will never answer this request; others continue."""


class UnavailableError(Exception):
    """A server did not answer this request on any try, but may later; others continue."""


class Engine(Protocol):
    concurrency: int
    device: str

    async def complete(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion: ...

    # Only where the model runs here: no API tells how likely a text is that it has not written.
    async def score(self, model: str, prompt: array, continuations: Sequence[array]) -> Scored: ...

    async def close(self) -> None: ...
