"""The engine behind an OpenAI-compatible chat API, and how it bears with a server in trouble. It imports openai.

What passes is waited for, in three layers. `Throttle` holds requests back when the API says that they are too many.
The client library makes a request again that met 408, 409, 429, 5xx, a lost connection or a time-out, within seconds.
`APIEngine.complete` does so when the library has given up, or when something else than a completion came, with pauses
that grow to minutes where nothing at all is answered. What cannot pass (key, model name, parameters, length) ends the
run at once. A server that refuses to hold outputs to a schema is asked for less.
"""

import asyncio
import json
import math
import sys
import time
from argparse import Namespace
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

import openai

from utils.cli import UserError
from utils.cli.errors import printable
from utils.generation.chat import Rendered
from utils.generation.requests import FORMATS, Completion, RefusedError, Sampling, UnavailableError

T = TypeVar("T")

LIBRARY_RETRIES = 3  # after 0.5, 1 and 2 seconds
CONNECT_SECONDS = 30  # to be connected; the answer has --request_timeout
LONGEST_PAUSE = 300.0  # seconds; where nothing is answered, our tries come after 5, 25, 125, 300, ...
ROOT_SECONDS = 5  # for the list of models, which a run can do without
NOTE_SECONDS = 30  # between two notes on stderr
LONGEST_WAIT = 600.0  # seconds, for the time that a refusal names; the library waits two minutes at most
MOST_TOKENS = 10**12  # of a count that is believed: files take no numbers beyond 64 bits
RISE_AFTER = 10  # answers, for each request that may be under way, before more are tried

REFUSED = ("content_filter", "content_policy_violation")  # error codes that speak of one prompt's content
PASSING = (408, 409, 429)  # and 5xx: statuses that may be others later
MALFORMED = (400, 422)  # statuses of a request that the API does not take as it is
NO_SUCH_PATH = (404, 405)


class MalformedError(UserError):
    """The API does not take a request as it is, for its response_format or for anything else in it."""


class AbsentError(UserError):
    """The API has no such model, file or batch, or no such interface."""


class APIEngine:
    """Any OpenAI-compatible chat API."""

    def __init__(self, args: Namespace, api_key: str):
        self._noted = -math.inf
        self._answered = 0  # completions so far
        self._format = 0  # the one of FORMATS that outputs are held to
        self._finding_format = asyncio.Lock()
        self._max_retries = args.max_retries
        self._client = openai.AsyncOpenAI(
            api_key=api_key,
            base_url=args.base_url,
            max_retries=LIBRARY_RETRIES,
            timeout=openai.Timeout(args.request_timeout, connect=min(CONNECT_SECONDS, args.request_timeout)),
            http_client=ThrottledClient(args.max_concurrency, self._note),
        )
        self._secrets = find_secrets(api_key, str(self._client.base_url))
        # OpenAI's newer models take only the new name of this limit, other servers often only the old one.
        self._limit_name = "max_tokens" if args.base_url else "max_completion_tokens"
        self.concurrency = args.max_concurrency
        self.device = f"API at {self._client.base_url.host}"

    async def complete(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion:
        """One completion; a request that fails is made again, --max_retries times.

        RefusedError where the API refuses this prompt's content, UnavailableError where it failed on every try,
        UserError for what no further try can mend (key, model, parameters).
        """
        # An API can be told a JSON schema, but no regular expression: such an output is asked for freely.
        complete_once = self._complete_held if isinstance(sampling.schema, dict) else self._complete_once
        return await self._insist(lambda: complete_once(model, prompt, sampling))

    async def close(self) -> None:
        await self._client.close()

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` gives; where it raises UnavailableError it is called again, --max_retries times."""
        silent = 0  # tries in a row during which no request at all was answered
        for tries in range(1, self._max_retries + 2):
            answered = self._answered
            try:
                answer = await ask()
            except UnavailableError as error:
                problem = str(error)
            else:
                self._answered += 1
                return answer
            silent = 0 if self._answered > answered else silent + 1
            if tries <= self._max_retries:
                # Before the first answer of all, a wrong address is more likely than an outage.
                pause = min(5.0 ** min(silent, 4), LONGEST_PAUSE) if self._answered else 1.0
                self._note(f"{problem}; asking again in {pause:.0f} s")
                await asyncio.sleep(pause)
        self._note(f"{problem}; asked {tries} times, and no more in this run")
        raise UnavailableError(problem)

    async def _complete_held(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion:
        """A completion held to the schema as far as the API lets it be.

        A request that the API does not take is asked again with the next of FORMATS, and what it takes then is what the
        rest of the run asks for. Of many requests that meet this at a time one finds out, the others wait for it.
        """
        while True:
            tried = self._format
            try:
                return await self._complete_once(model, prompt, sampling, FORMATS[tried])
            except MalformedError as error:
                refusal = error
            async with self._finding_format:
                if self._format == tried:
                    return await self._find_format(model, prompt, sampling, refusal)

    async def _find_format(
        self, model: str, prompt: Rendered, sampling: Sampling, refusal: MalformedError
    ) -> Completion:
        """A completion with the first of FORMATS, behind the present one, that the API takes.

        MalformedError where it takes none, so its refusals were of something else, and nothing is remembered.
        """
        last = refusal
        for number in range(self._format + 1, len(FORMATS)):
            try:
                completion = await self._complete_once(model, prompt, sampling, FORMATS[number])
            except MalformedError as error:
                last = error
                continue
            refused = " and ".join(FORMATS[self._format : number])
            print(f"note: {refusal}; the run goes on without {refused}", file=sys.stderr, flush=True)
            self._format = number
            return completion
        raise last

    async def _complete_once(
        self, model: str, prompt: Rendered, sampling: Sampling, response_format: str = "none"
    ) -> Completion:
        """As `complete`, asked once; `response_format` is one of FORMATS."""
        body = self._body(model, prompt, sampling, response_format)
        asked = self._client.chat.completions.with_raw_response.create(**body)
        content = (await self._explained(asked)).content
        return self._read(content, response_format if sampling.schema and response_format != FORMATS[0] else None)

    def _body(self, model: str, prompt: Rendered, sampling: Sampling, response_format: str) -> dict[str, Any]:
        """What a completion is asked for by."""
        held = _response_format(response_format, sampling.schema)
        return {
            "model": model,
            "messages": prompt,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            **({"response_format": held} if held else {}),
            self._limit_name: sampling.max_tokens,
        }

    async def _explained(self, asked: Awaitable[T]) -> T:
        """What the client library gives; its errors become ours."""
        try:
            return await asked
        except openai.APIStatusError as error:
            raise self._explain(error) from None
        except openai.APIConnectionError as error:  # also time-outs
            raise UnavailableError(f"the {self.device} cannot be reached: {error.message}") from None

    def _read(self, content: bytes, taken: str | None) -> Completion:
        """The completion in an answer's body, of whatever shape that is; `taken` is its `response_format`."""
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):  # also for a number of thousands of digits, and for endless nesting
            answer = None
        # A server that is not such an API answers 200 with a web page or an error.
        choice = next(iter(field_of(answer, "choices", list) or []), None)
        message = field_of(choice, "message", dict)
        text = None if message is None else _text(message.get("content"))
        if text is None:
            found = self._one_line(field_of(answer, "error", object) or content.decode(errors="replace"))
            raise UnavailableError(f"the {self.device} sends no completion; check --base_url: {found}")
        finish_reason = self._one_line(field_of(choice, "finish_reason", str) or "unknown")
        if finish_reason == "content_filter":
            raise RefusedError("content_filter")
        usage, state = field_of(answer, "usage", dict), field_of(answer, "system_fingerprint", str)
        return Completion(
            text=text.encode(errors="replace").decode(),  # no file takes a lone surrogate
            finish_reason=finish_reason,
            prompt_tokens=_count(usage, "prompt_tokens"),
            cached_tokens=_count(field_of(usage, "prompt_tokens_details", dict), "cached_tokens"),
            completion_tokens=_count(usage, "completion_tokens"),
            response_format=taken,
            system_fingerprint=self._one_line(state) if state else None,
        )

    def _explain(self, error: openai.APIStatusError) -> Exception:
        body = error.body if isinstance(error.body, dict) else {}
        return self._problem(error.status_code, error.code, body.get("message") or error.message)

    def _problem(self, status: int, code: str | None, found: object) -> Exception:
        """An error status as RefusedError, UnavailableError, MalformedError, AbsentError or another UserError."""
        message = self._one_line(found)
        if status == 400 and code in REFUSED:
            return RefusedError(f"{code}: {message}")
        if code == "context_length_exceeded":
            hint = "\n  give its real length as --max_model_len, or a smaller --max_tokens"
            return UserError(f"the {self.device} refuses a prompt as too long: {message}{hint}")
        if status in MALFORMED:
            return MalformedError(f"the {self.device} refuses the request: {message}")
        if (status in PASSING or status >= 500) and code != "insufficient_quota":
            return UnavailableError(f"the {self.device} answers {status}: {message}")
        has_path = self._client.base_url.path.strip("/") != ""
        hint = (
            "" if has_path or status not in NO_SUCH_PATH else "\n  --base_url usually ends in /v1; this one has no path"
        )
        return (AbsentError if status == 404 else UserError)(f"the {self.device} answers {status}: {message}{hint}")

    def _one_line(self, found: object) -> str:
        """What a server sent, fit to be shown: it may be a web page, and some repeat the secrets they were given."""
        text = str(found)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return printable(" ".join(text.split()))[:300]

    def _note(self, text: str) -> None:
        if time.monotonic() - self._noted >= NOTE_SECONDS:  # many requests have the same to tell
            self._noted = time.monotonic()
            print(f"note: {text}", file=sys.stderr, flush=True)


class Throttle:
    """How many requests may be under way at a time: what the user allows, less what the API's refusals (429) teach.

    Refusals come in waves: of many requests sent at once, those over the API's limit. Each lowers the limit by one, a
    wave at most to half. Answers, `RISE_AFTER` times as many as the limit, raise it by a quarter again. No request is
    sent before the time that a refusal names. Where it names none, the client library holds back that request alone;
    from the second wave without an answer between, all wait: 1 s, doubled with every wave, so that minutes in which
    everything is refused do not use up the tries.
    """

    def __init__(self, most: int):
        self.limit = self._most = most  # of requests that may be under way now
        self._under_way = 0
        self._answered = 0  # with a lowered limit, since it last rose
        self._freed = asyncio.Event()
        self._quiet_until = self._wave_began = -math.inf
        self._floor = 1  # of the limit in this wave
        self._pause = self._next_pause = 0.0  # of this wave and the next one, where the API names none

    async def enter(self) -> float:
        """Wait for a place; returns the time at which it was given."""
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
        """A request was answered."""
        self._next_pause = 0.0
        if self.limit == self._most:
            return
        self._answered += 1
        if self._answered >= RISE_AFTER * self.limit:
            self.limit = min(self._most, self.limit + max(1, self.limit // 4))
            self._answered = 0

    def refused(self, entered: float, named: float) -> float:
        """A request that entered at `entered` was refused for `named` seconds (0: for a time that is not told).

        Returns the seconds for which none may enter now.
        """
        now = time.monotonic()
        if entered >= self._wave_began:
            self._wave_began, self._floor = now, max(1, self.limit // 2)
            self._pause, self._next_pause = self._next_pause, min(max(1.0, 2 * self._next_pause), LONGEST_PAUSE)
        self.limit = max(self._floor, self.limit - 1)
        pause = named or self._pause
        self._quiet_until = max(self._quiet_until, now + pause)
        return pause


class ThrottledClient(openai.DefaultAsyncHttpxClient):
    """The client library's own HTTP client, which waits for its turn at a `Throttle` before each request.

    The library's retries go through it too.
    """

    def __init__(self, most: int, note: Callable[[str], None]):
        super().__init__()
        self._throttle = Throttle(most)
        self._note = note

    async def send(self, request: Any, **options: Any) -> Any:
        entered = await self._throttle.enter()
        try:
            response = await super().send(request, **options)
            if response.is_success:
                self._throttle.accepted()
            elif response.status_code == 429:
                pause = self._throttle.refused(entered, read_retry_after(response.headers))
                quiet = f", none for {pause:.1f} s" if pause else ""
                self._note(f"the API asks for less: at most {self._throttle.limit} requests at a time{quiet}")
            return response
        finally:
            self._throttle.leave()


def ask_for_root(model: str, base_url: str | None, api_key: str) -> str | None:
    """What a server has loaded a model from, by its list of models, as vLLM's own tells it.

    None where the list has no more than the name, or is not to be had: many proxies have none, and a server that is
    away may be back for the requests proper.
    """
    with openai.OpenAI(api_key=api_key, base_url=base_url, max_retries=0, timeout=ROOT_SECONDS) as client:
        try:
            answer = client.get("/models", cast_to=object)
        except (openai.OpenAIError, ValueError, RecursionError):  # the last two where it is not JSON that can be read
            return None
    for entry in field_of(answer, "data", list) or []:
        if field_of(entry, "id", str) == model:
            root = field_of(entry, "root", str) or model
            return root if root != model and root.isprintable() else None
    return None


def field_of(value: Any, name: str, kind: type[T]) -> T | None:
    """A field of a JSON object; None unless it is there and of that type."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, kind) else None


def _text(content: Any) -> str | None:
    """A message's content as text, also where it comes as a list of parts; None where it is something else."""
    if content is None:
        return ""
    if isinstance(content, list) and content:
        parts = [field_of(part, "text", str) for part in content if field_of(part, "type", str) == "text"]
        return "".join(parts) if parts and None not in parts else None
    return content if isinstance(content, str) else None


def _count(usage: dict[str, Any] | None, name: str) -> int | None:
    """A number of tokens; None unless it is a whole number from 0."""
    count = field_of(usage, name, int)
    return count if type(count) is int and 0 <= count <= MOST_TOKENS else None


def read_retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that a refusal asks to wait, `LONGEST_WAIT` at most; 0 where it names none.

    `Retry-After` holds seconds or a date (RFC 9110, section 10.2.3); `retry-after-ms` is OpenAI's finer one.
    """
    for name, read in (
        ("retry-after-ms", lambda text: float(text) / 1000),
        ("retry-after", float),
        ("retry-after", lambda text: parsedate_to_datetime(text).timestamp() - time.time()),
    ):
        with suppress(KeyError, ValueError, OverflowError):
            return min(max(0.0, read(headers[name])), LONGEST_WAIT)  # 0 of NaN too
    return 0.0


def find_secrets(api_key: str, base_url: str) -> list[str]:
    """What servers on the way are told in confidence: the key, and user and password in their addresses."""
    secrets = [api_key]
    for address in (base_url, *getproxies().values()):
        login = unquote(urlsplit(address).netloc.rpartition("@")[0])
        if login:
            secrets += [b64encode(login.encode()).decode(), login, login.partition(":")[2] or login]
    return secrets


def _response_format(kind: str, schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """The parameter for one of FORMATS, None where there is none.

    Without what OpenAI's strict mode does not document: that a text is not empty. The parser sees to it.
    """
    if kind == "none":
        return None
    if kind == "json_object":
        return {"type": kind}
    fields = {
        name: {key: value for key, value in field.items() if key != "minLength"}
        for name, field in schema["properties"].items()
    }
    return {"type": kind, kind: {"name": "output", "schema": {**schema, "properties": fields}, "strict": True}}
