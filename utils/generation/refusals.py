"""Parameters that an API refuses, and an HTTP client that respects the API's limits.

If a refusal names a parameter, this request and all later ones are sent without it, or with its other name.
"""

import asyncio
import math
import re
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Set
from dataclasses import replace
from typing import Any

import openai
from httpx2 import ReadError, ReadTimeout

from utils.base.cli import LIMITS
from utils.base.errors import UserError, setting_up_client
from utils.base.web_files import read_retry_after
from utils.generation.requests import Completion

# Parameters that a run can leave out or rename. If a refusal names several ("temperature and top_p cannot both be
# specified"), the first in this order is left out.
ADAPTABLE = ("response_format", "seed", "top_p", "min_p", "top_k", "presence_penalty", "frequency_penalty",
             "repetition_penalty", *LIMITS, "temperature", "reasoning_effort")  # fmt: skip
FEWER_PARAMETERS = "--temperature default, --top_p default, --seed none, --constrained_decoding never"

OTHER_LIMIT = dict(zip(LIMITS, LIMITS[::-1], strict=True))

_ALLOWED = re.compile(
    r"\b(?:expected one of|(?:supported|allowed|valid|permitted) (?:fields|parameters|values)"
    r"|(?:fields|parameters|values) (?:supported|allowed|permitted))\b",
    re.I,
)

_SCHEMA = re.compile(r"json[ _]?schema|structured[ _]?outputs?|\bguided|\bgrammar", re.I)

# Messages about a prompt that is too long, as worded by the servers of OpenAI, vLLM, SGLang, llama.cpp, Ollama, TGI,
# Anthropic, Bedrock, Gemini, Cohere, Mistral, xAI, Moonshot, DashScope and LM Studio. With a status of 5xx, only the
# plainest messages count, because "context deadline exceeded" is a timeout.
_WINDOW = r"context (?:size|length|window)"
_PLAINLY_TOO_LONG = (
    rf"(?:prompt|input) is too long|(?:exceed\w*|longer than)\b.{{0,40}}\b{_WINDOW}"
    rf"|\b{_WINDOW}\b.{{0,20}}\b(?:exceeded|overflow\w*)"
)
_TOO_LONG = (
    rf"{_PLAINLY_TOO_LONG}|too large|too many (?:input |prompt )?tokens|context (?:length|window|size|limit)"
    r"|(?:prompt|input|request|context|messages?|length) (?:is )?too long|maximum (?:prompt|input|sequence) length"
    r"|exceed\w*\b.{0,30}\b(?:max\w*|allowed|configured|token|input|prompt|model|limit)\b"
    r".{0,40}\b(?:tokens?|length|limit)\b"
    r"|token count\b.{0,30}\b(?:exceeds|but\b.{0,30}\bsupports)|longer than the (?:model'?s )?max\w*"
    r"|exceeds max_\w*len|`inputs`.{0,40}must (?:be|have)|range of input length"
    r"|reduce the length of the (?:messages|prompt|input)"
)

Request = dict[str, Any]  # a request's body with all parameters; the limit of tokens is named max_tokens
MOST_BYTES = 2**24  # of a reply; the longest replies are lists of models
FILE = re.compile(r"/files(/[^/]+/content)?$")  # paths of uploads and of batches' results
FILE_BYTES, FILE_SECONDS = 2**31, 3600


def says_too_long(status: int, message: str) -> bool:
    """Return whether an error with this status says that a prompt is too long."""
    return re.search(_PLAINLY_TOO_LONG if status >= 500 else _TOO_LONG, message, re.IGNORECASE) is not None


class MalformedError(UserError):
    """The API refuses a request because of a parameter, its prompt, or something else in it.

    `param` is the parameter that the error names. `details` is the error's whole body, or empty if changing a parameter
    cannot help.
    """

    def __init__(self, message: str, param: str | None = None, details: str = ""):
        super().__init__(message)
        self.param, self.details = param or "", details


class Refusals:
    """What a server has refused, by model, and how later requests avoid it."""

    def __init__(self, limit: str):
        """`limit` is the name from LIMITS to try first."""
        self._preferred = limit
        self._refused: defaultdict[str, frozenset[str]] = defaultdict(frozenset)  # at most one of LIMITS

    def of(self, model: str) -> frozenset[str]:
        """Return the parameters that a model's server has refused."""
        return self._refused[model]

    def body(self, request: Request, refused: Set[str] | None = None) -> dict[str, Any]:
        """Return the body to send for a request: without what its model has refused, or without `refused`."""
        refused = self.of(request["model"]) if refused is None else refused
        limit = OTHER_LIMIT[self._preferred] if self._preferred in refused else self._preferred
        named = {limit if name == "max_tokens" else name: value for name, value in request.items()}
        return {name: value for name, value in named.items() if name not in refused}

    def noted(self, request: Request, body: dict[str, Any], completion: Completion) -> Completion:
        """Return the completion with the parameters that the request's `body` leaves out or renames."""
        asked = {self._preferred if name == "max_tokens" else name for name in request}
        return replace(completion, refused_parameters=tuple(sorted(asked - body.keys())))

    async def ask(self, request: Request, send: Callable[[dict[str, Any]], Awaitable[Completion]]) -> Completion:
        """Send a request, without what the server refuses, until it is accepted; return the completion.

        If a refusal names nothing that can be left out or renamed, the request is repeated once, because the problem
        may be temporary; then MalformedError is raised. A parameter counts as refused only once the request is accepted
        without it, because a message may name a parameter that is not the cause.
        """
        model, met, is_repeated = request["model"], {}, False
        refused = self._refused[model]
        while True:
            body = self.body(request, refused)
            try:
                completion = await send(body)
                break
            except MalformedError as refusal:
                name = named(refusal, body)
                if name is None and refusal.details and not is_repeated:
                    is_repeated = True
                elif name is None or OTHER_LIMIT.get(name) in met:
                    raise
                else:
                    met[name] = refusal
                    refused = refused - {OTHER_LIMIT.get(name)} | {name}
        for name, refusal in met.items():
            if name in self._refused[model]:
                continue  # another request was refused first
            change = f"with {OTHER_LIMIT[name]}" if name in LIMITS else f"without {name}"
            print(f"note: {refusal}; the run continues {change}", file=sys.stderr, flush=True)
            self._refused[model] = self._refused[model] - {OTHER_LIMIT.get(name)} | {name}
        return self.noted(request, body, completion)


def named(refusal: MalformedError, body: dict[str, Any]) -> str | None:
    """Return the parameter in ADAPTABLE that a refusal names and the request's body has; None if there is none.

    Words after "supported parameters" and similar phrases are ignored, because they name what is allowed.
    """
    words = set(re.findall(r"\w+", refusal.param)) & body.keys()
    if not words:
        words = set(re.findall(r"\w+", _ALLOWED.split(refusal.details)[0]))
        words |= {"response_format"} if _SCHEMA.search(refusal.details) else set()
    return next((name for name in ADAPTABLE if name in words and name in body), None)


def response_format(schema: Any) -> dict[str, Any] | None:
    """Return the parameter `response_format` for a JSON schema; None for anything else.

    OpenAI's strict mode does not document `minLength`, so it is left out; the parser checks it.
    """
    if not isinstance(schema, dict):
        return None
    fields = {
        name: {key: value for key, value in field.items() if key != "minLength"}
        for name, field in schema.get("properties", {}).items()
    }
    named_schema = {"name": "output", "schema": {**schema, "properties": fields}, "strict": True}
    return {"type": "json_schema", "json_schema": named_schema}


class LongReplyError(ReadError):
    """A server's reply is longer than the limit."""


async def _read(response: Any) -> None:
    """Read a reply's body into the response; LongReplyError if it is longer than its limit."""
    most = FILE_BYTES if FILE.search(response.url.path) else MOST_BYTES
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > most:
            raise LongReplyError(f"sends a reply of more than {most >> 20} MiB")
    response._content = b"".join(parts)  # as `response.aread` does


class LimitedClient(openai.DefaultAsyncHttpxClient):
    """The client library's HTTP client, with limits: requests at a time, seconds and bytes of a reply.

    After a 429 that names a time to wait, no request is sent until it has passed.
    """

    def __init__(self, most: int, seconds: float, note: Callable[[str], None]):
        """`seconds` limits the time from a request's first byte to the last byte of its reply."""
        with setting_up_client():
            super().__init__(event_hooks={"response": [_read]})
        self._slots, self._seconds, self._note = asyncio.Semaphore(most), seconds, note
        self._quiet_until = -math.inf

    async def send(self, request: Any, **options: Any) -> Any:
        async with self._slots:
            while (pause := self._quiet_until - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(FILE_SECONDS if FILE.search(request.url.path) else self._seconds):
                    response = await super().send(request, **options)
            except TimeoutError:
                raise ReadTimeout("no complete answer in time", request=request) from None
        if response.status_code == 429:
            seconds = read_retry_after(response.headers)
            self._quiet_until = max(self._quiet_until, time.monotonic() + seconds)
            pause = f", after {seconds:.1f} s" if seconds else ""
            self._note(f"the API asks for fewer requests (429){pause}; a lower --max_concurrency may avoid that")
        if response.status_code >= 500 and says_too_long(response.status_code, response.text):
            response.headers["x-should-retry"] = "false"  # read by the client library
        return response
