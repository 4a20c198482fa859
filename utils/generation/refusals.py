"""What an API refuses: parameters and response formats, and too many requests at a time.

If a request is refused for a parameter, it is repeated without the parameter, or with the parameter's other name. If
the refusal names no cause, the request is first repeated unchanged. Later requests are sent in the form that worked;
but a response format is given up only after two different prompts were refused for it.
"""

import asyncio
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable, Set
from dataclasses import replace
from typing import Any

import openai
from httpx2 import ReadError, ReadTimeout

from utils.cli import UserError
from utils.files.web_files import read_retry_after
from utils.generation.requests import FORMATS, LIMITS, Completion

# Parameters that a run can leave out or rename. If a refusal names several ("temperature and top_p cannot both be
# specified"), the first in this order is left out.
ADAPTABLE = ("seed", "top_p", "min_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty",
             *LIMITS, "temperature", "reasoning_effort")  # fmt: skip

OTHER_LIMIT = dict(zip(LIMITS, LIMITS[::-1], strict=True))

_ALLOWED = re.compile(
    r"\b(?:expected one of|(?:supported|allowed|valid|permitted) (?:fields|parameters|values))\b", re.I
)

# A prompt that is too long, as the servers of OpenAI, vLLM, SGLang, llama.cpp, Ollama, TGI, Anthropic, Bedrock, Gemini,
# Cohere, Mistral, xAI, Moonshot, DashScope and LM Studio word it. A failure (5xx) must say so plainly, because "context
# deadline exceeded" is a timeout.
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

Request = dict[str, Any]  # a request's body without response_format; the limit of tokens is named max_tokens
LONGEST_PAUSE = 300.0  # seconds; while nothing is answered, the pauses between our tries are 5, 25, 125, 300, ...
PATIENCE = 1800.0  # seconds with only refusals, after which requests no longer pause, so that their tries end
MOST_BYTES = 2**24  # of a reply; the longest replies are lists of models
FILE = re.compile(r"/files(/[^/]+/content)?$")  # paths of uploads and of batches' results
FILE_BYTES, FILE_SECONDS = 2**31, 3600
RISE_AFTER = 10  # answers per allowed request before the limit rises


def says_too_long(status: int, message: str) -> bool:
    """Return whether an error with this status says that a prompt is too long."""
    return re.search(_PLAINLY_TOO_LONG if status >= 500 else _TOO_LONG, message, re.IGNORECASE) is not None


class MalformedError(UserError):
    """The API refuses a request because of a parameter, its response_format, its prompt, or something else in it.

    `param` is the parameter that the error names. `details` is the error's whole body, or empty if changing a parameter
    cannot help. `is_for_all` is True if the API refuses a parameter that the run cannot leave out.
    """

    is_for_all = False

    def __init__(self, message: str, status: int = 400, code: str = "", param: str | None = None, details: str = ""):
        super().__init__(message)
        self.status, self.code, self.param, self.details = status, code, param or "", details


class Refusals:
    """What one server has refused so far, and how requests avoid it.

    Attributes:
        refused: what requests avoid now: names from ADAPTABLE (at most one of LIMITS), and the first names of FORMATS.
        doubtful: the messages for which the current format was refused; None if there are none. Other messages will
            show whether the format is refused for all.
    """

    def __init__(self, limit: str):
        """`limit` is the name from LIMITS to try first."""
        self._preferred = limit
        self.refused: frozenset[str] = frozenset()
        self.doubtful: Any = None

    def body(self, refused: Set[str], request: Request, schema: Any) -> dict[str, Any]:
        """Return the body to send for a request: without `refused`, and with the schema if it is a JSON schema."""
        limit = OTHER_LIMIT[self._preferred] if self._preferred in refused else self._preferred
        named = {limit if name == "max_tokens" else name: value for name, value in request.items()}
        kept = {name: value for name, value in named.items() if name not in refused}
        held = response_format(_format(refused, schema), schema)
        return {**kept, **({"response_format": held} if held else {})}

    def with_refused(self, refused: Set[str], request: Request, schema: Any, completion: Completion) -> Completion:
        """Return the completion with the refused parameters, and with the format that was used if one was refused."""
        preferred = {self._preferred if name == "max_tokens" else name for name in request}
        taken = _format(refused, schema) if isinstance(schema, dict) and FORMATS[0] in refused else None
        return replace(completion, response_format=taken, refused_parameters=tuple(sorted(refused & preferred)))

    async def ask(
        self, request: Request, schema: Any, send: Callable[[dict[str, Any]], Awaitable[Completion]]
    ) -> Completion:
        """Send a request, without what the server refuses, until it is accepted; return the completion.

        MalformedError if nothing that the refusal names can be changed, and no other response_format is accepted.
        """
        refused, is_repeated = self.refused, False
        met: dict[str, MalformedError] = {}  # what was refused, and how
        while True:
            body = self.body(refused, request, schema)
            try:
                completion = await send(body)
            except MalformedError as refusal:
                is_vague = not (_names(refusal) & body.keys() or "response_format" in _words(refusal))
                if refusal.details and is_vague and not is_repeated:
                    is_repeated = True  # the problem may be temporary
                else:
                    cause = _cause(refusal, body, met)
                    met[cause] = refusal
                    refused = refused - {OTHER_LIMIT.get(cause)} | {cause}
                continue
            self._learn(met, request.get("messages"), isinstance(schema, dict))
            return self.with_refused(refused, request, schema, completion)

    def _learn(self, met: dict[str, MalformedError], prompt: Any, has_schema: bool) -> None:
        """Avoid in all later requests what an accepted request had to avoid (`met`), and print what changes."""
        formats = [name for name in FORMATS if name in met and name not in self.refused]
        if has_schema:
            is_second = formats and self.doubtful not in (None, prompt)
            self.doubtful = prompt if formats and not is_second else None
            formats = formats if is_second else []
        for name, refusal in met.items():
            if name in self.refused or (name in FORMATS and name not in formats):
                continue  # another request met this refusal first, or the format may be refused for this prompt alone
            causes = formats if name in formats else [name]
            change = f"with {OTHER_LIMIT[name]}" if name in LIMITS else f"without {' and '.join(causes)}"
            print(f"note: {refusal}; the run continues {change}", file=sys.stderr, flush=True)
            self.refused = self.refused - {OTHER_LIMIT.get(name)} | {*causes}


def _format(refused: Set[str], schema: Any) -> str:
    """Return the strictest of FORMATS that is not refused."""
    return next(name for name in FORMATS if name not in refused) if isinstance(schema, dict) else FORMATS[-1]


def _cause(refusal: MalformedError, body: dict[str, Any], met: dict[str, MalformedError]) -> str:
    """Return the parameter or format that a refused request should leave out or rename.

    If there is none, raise the refusal, or the first refusal of a format in `met`, which has the causes so far.
    """
    if not refusal.details:
        raise refusal
    name = _named(refusal, body)
    if name is None and "response_format" in body:
        return body["response_format"]["type"]
    if name is not None and OTHER_LIMIT.get(name) not in met:
        return name
    refusal.is_for_all = name is not None or bool(_names(refusal) & (body.keys() - {"messages"}))
    raise refusal if refusal.is_for_all else next((met[name] for name in FORMATS if name in met), refusal)


def _named(refusal: MalformedError, body: dict[str, Any]) -> str | None:
    """Return the parameter in ADAPTABLE that a refusal names and the request's body has; None if there is none."""
    words = set(re.findall(r"\w+", refusal.param)) & body.keys() or _words(refusal)
    if "response_format" in words & body.keys():
        return None
    return next((name for name in ADAPTABLE if name in words and name in body), None)


def _names(refusal: MalformedError) -> set[str]:
    """Return the words in a refusal that are surely names: quoted, or given as its parameter."""
    return {*re.findall(r"\w+", refusal.param), *re.findall(r"[\"'`](\w+)[\"'`]", refusal.details)}


def _words(refusal: MalformedError) -> set[str]:
    """Return the words of a refusal, except those that follow "supported parameters" and the like."""
    return set(re.findall(r"\w+", _ALLOWED.split(refusal.details)[0]))


def response_format(kind: str, schema: Any) -> dict[str, Any] | None:
    """Return the `response_format` parameter for one of FORMATS; None for "none".

    OpenAI's strict mode does not document `minLength`, so it is left out; the parser checks it.
    """
    if kind == "none":
        return None
    if kind == "json_object":
        return {"type": kind}
    fields = {
        name: {key: value for key, value in field.items() if key != "minLength"}
        for name, field in schema.get("properties", {}).items()
    }
    return {"type": kind, kind: {"name": "output", "schema": {**schema, "properties": fields}, "strict": True}}


class Throttle:
    """Limits concurrent requests to the user's number, or to fewer after refusals by the API (429).

    Refusals come in waves, when more requests are sent at once than the API allows. Each refusal lowers the limit by
    one; a wave at most halves it. After `RISE_AFTER` answers per allowed request, the limit rises by a quarter. If a
    refusal names a time to wait, no request is sent during it. If it names none, the client library delays only the
    refused request. If a second wave comes before any answer, all requests wait for 1 s, and twice as long with every
    further wave, so that minutes of refusals do not use up the tries.
    """

    def __init__(self, most: int):
        self.limit = self._most = most  # requests that may be under way now
        self._under_way = 0
        self._answered = 0  # answers since the lowered limit last rose
        self._refused_since: float | None = None  # the first refusal after the last answer
        self._freed = asyncio.Event()
        self._quiet_until = self._wave_began = -math.inf
        self._floor = 1  # the limit does not fall below this in the current wave
        self._waves = 0  # number of waves since the last answer

    async def enter(self) -> float:
        """Wait until a request may be sent, and return the time (of time.monotonic) at which it may."""
        while True:
            now = time.monotonic()
            if now < self._quiet_until:
                await asyncio.sleep(self._quiet_until - now)
            elif self._under_way < self.limit:
                self._under_way += 1
                return now
            else:
                self._freed.clear()
                await self._freed.wait()

    def leave(self) -> None:
        self._under_way -= 1
        self._freed.set()

    def accepted(self) -> None:
        """Record that a request was answered."""
        self._waves, self._refused_since = 0, None
        self._answered += self.limit < self._most
        if self._answered >= RISE_AFTER * self.limit:
            self.limit = min(self._most, self.limit + max(1, self.limit // 4))
            self._answered = 0

    def refused(self, entered: float, named: float) -> float:
        """Record the refusal of a request, and return the seconds during which no request may be sent now.

        `entered` is what `enter` returned for the request; `named` is the pause in the refusal, in seconds, or 0.
        """
        now = time.monotonic()
        if entered >= self._wave_began:
            self._wave_began, self._floor = now, max(1, self.limit // 2)
            self._waves += 1
        self.limit = max(self._floor, self.limit - 1)
        self._refused_since = now if self._refused_since is None else self._refused_since
        pause = named or (min(2.0 ** min(self._waves - 2, 9), LONGEST_PAUSE) if self._waves > 1 else 0.0)
        pause = pause if now - self._refused_since < PATIENCE else 0.0
        self._quiet_until = max(self._quiet_until, now + pause)
        return pause


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


class ThrottledClient(openai.DefaultAsyncHttpxClient):
    """The client library's HTTP client, which waits for a `Throttle` before each request and retry."""

    def __init__(self, most: int, seconds: float, note: Callable[[str], None]):
        """`seconds` limits the time from a request's first byte to the last byte of its reply."""
        super().__init__(event_hooks={"response": [_read]})
        self._throttle = Throttle(most)
        self._seconds, self._note = seconds, note

    async def send(self, request: Any, **options: Any) -> Any:
        entered = await self._throttle.enter()
        try:
            async with asyncio.timeout(FILE_SECONDS if FILE.search(request.url.path) else self._seconds):
                response = await super().send(request, **options)
            if response.is_success:
                self._throttle.accepted()
            elif response.status_code == 429:
                pause = self._throttle.refused(entered, read_retry_after(response.headers))
                quiet = f", after a pause of {pause:.1f} s" if pause else ""
                self._note(f"the API asks for fewer requests: now at most {self._throttle.limit} at a time{quiet}")
            if response.status_code >= 500 and says_too_long(response.status_code, response.text):
                response.headers["x-should-retry"] = "false"  # read by the client library
            return response
        except TimeoutError:
            raise ReadTimeout("no complete answer in time", request=request) from None
        finally:
            self._throttle.leave()
