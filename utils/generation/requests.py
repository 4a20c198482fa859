"""What an engine is asked for and what it gives back; vllm_engine.py and api_engine.py are the engines."""

from dataclasses import dataclass
from typing import Any, Protocol

from utils.generation.chat import Rendered

FORMATS = ("json_schema", "json_object", "none")  # what a server may hold an output to, the best first


@dataclass(frozen=True)
class Sampling:
    """How one output is sampled.

    Attributes:
        schema: what the output is held to: a JSON schema, a regular expression (vLLM only), or None.
    """

    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    schema: dict[str, Any] | str | None = None


@dataclass(frozen=True)
class Completion:
    """One output.

    Attributes:
        cached_tokens: of the prompt's those that were not computed again, None where a server doesn't tell.
        log_prob: the sum over its tokens, None where the engine doesn't tell.
        response_format: where a server refused the schema, the one of `FORMATS` that it took instead; else None.
        system_fingerprint: what a server calls the state it answered in, None where it doesn't say.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    log_prob: float | None = None
    response_format: str | None = None
    system_fingerprint: str | None = None


class RefusedError(Exception):
    """The engine will never answer this one request; others go on."""


class UnavailableError(Exception):
    """A server did not answer this one request, however often it was asked; it may later. Others go on."""


class Engine(Protocol):
    concurrency: int
    device: str

    async def complete(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion: ...

    async def close(self) -> None: ...
