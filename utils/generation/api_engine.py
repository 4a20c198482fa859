"""The engine for OpenAI-compatible chat APIs, with its retries. This module imports openai.

Temporary failures are handled in two layers. The client library repeats a request within seconds after 408, 409, 429,
5xx, a lost connection, or a timeout, and waits as long as the server asks. `APIEngine.complete` repeats it if the
library gives up or the reply is not a completion; its pauses grow to minutes after 429, or while the API answers
nothing. Permanent failures (key, model name) end the run. refusals.py handles refused parameters. Any other refusal
concerns one prompt only, unless several prompts in a row are refused."""

import asyncio
import json
import math
import re
import sys
import time
from argparse import Namespace
from base64 import b64encode
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit
from urllib.request import getproxies

import openai
from httpx2 import Response

from utils.base.cli import LIMITS
from utils.base.errors import UserError, printable, setting_up_client
from utils.base.manifest import KEY_IN_QUERY
from utils.benchmarks.thoughts import Split, split_thoughts
from utils.generation.refusals import (
    FEWER_PARAMETERS,
    LimitedClient,
    LongReplyError,
    MalformedError,
    Refusals,
    Request,
    response_format,
    says_too_long,
)
from utils.generation.requests import Completion, RefusedError, Rendered, Rewarded, Sampling, UnavailableError, is_cut
from utils.generation.thinking import THINKING_NAMES

T = TypeVar("T")
ROOT_SECONDS = 5  # timeout for the list of models, which is optional
WORDS = {"prompt": ("prompt", "input"), "completion": ("completion", "output")}  # in the names of token counts
MOST_TOKENS = 10**12  # the highest plausible count; numbers beyond 64 bits cannot be stored
# Error codes and message texts that concern one prompt's content.
REFUSED = ("content_filter", "content_policy_violation", "data_inspection_failed", "invalid_prompt")
OF_CONTENT = re.compile(r"(?i)moderation|flagged|inappropriate|content.{0,20}(?:policy|risk|filter)")
# Error codes and message texts that concern every request.
FOR_ALL = ("insufficient_quota", "invalid_api_key", "model_not_found")
OF_ALL = re.compile(
    r"(?i)\b(?:credits?|balance|billing|quota|payment|subscription|arrear\w*|suspended|deactivated)\b|api.key"
    r"|(?:invalid|unknown) model|model (?:name )?(?:not|does not) exist"
)
PASSING = (408, 409, 429)  # statuses of temporary failures, besides 5xx
MALFORMED = (400, 422)  # statuses of a malformed request
NO_SUCH_PATH = (404, 405)
REFUSES_THE_USER = (401, 402, 403)  # statuses about a key, an account or its quota
ENDS_RUN = (401, 402, *NO_SUCH_PATH)  # statuses that apply to every request
LIBRARY_RETRIES = 3  # after 0.5, 1 and 2 seconds
CONNECT_SECONDS = 30  # to connect; --request_timeout limits the answer
NOTE_SECONDS = 30  # between two notes on stderr
LONGEST_PAUSE = 300.0  # seconds; while nothing is answered, the pauses between our tries are 5, 25, 125, 300, ...
# Finish reasons, in lower case, that say why a reply is empty: the content, a tool, or the limit of tokens.
CAUSE = re.compile(
    r"content|filter|safety|block|recitation|prohibited|spii|policy|sensitive|risk|tool|function|length|max"
)
# Servers (named by `owned_by` in their list of models) that can continue an assistant's turn. If a request lacks a
# sampling parameter, they take it from the model's generation_config.json. NEUTRAL prevents that, as for local models.
VLLM_LIKE, CONTINUE = ("vllm", "sglang"), {"continue_final_message": True, "add_generation_prompt": False}
NEUTRAL = {"top_k": -1, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
# The run ends if SEVERAL different prompts are refused before a model's first answer, or MANY after an answer.
SEVERAL, MANY = 3, 20


class AbsentError(UserError):
    """The API has no such model, file or batch, or no such interface."""


def address_of(base_url: str | None) -> dict[str, Any]:
    """Return the client library's arguments for --base_url; its query (such as Azure's api-version) is always sent."""
    if base_url is None:
        return {}
    parts = urlsplit(base_url)
    return {"base_url": parts._replace(query="").geturl(), "default_query": dict(parse_qsl(parts.query))}


def ask_for_root(model: str, base_url: str | None, api_key: str) -> str | None:
    """Return the path or name from which a server loaded a model, as in vLLM's list of models.

    None if the list has only the model's name, or if there is no list: many proxies have none. An unavailable server
    also gives None, because it may be back for the real requests.
    """

    async def ask() -> object:
        http = LimitedClient(1, ROOT_SECONDS, lambda note: None)
        more = {"max_retries": 2, "timeout": ROOT_SECONDS, "http_client": http}
        client = openai.AsyncOpenAI(api_key=api_key, **address_of(base_url), **more)
        async with client, asyncio.timeout(3 * ROOT_SECONDS):
            return await client.get("/models", cast_to=object)

    try:
        answer = asyncio.run(ask())
    except (openai.OpenAIError, TimeoutError, ValueError, RecursionError):  # ValueError, RecursionError: not valid JSON
        return None
    for entry in field_of(answer, "data", list) or []:
        if field_of(entry, "id", str) == model:
            root = field_of(entry, "root", str) or model
            return root if root != model and root.isprintable() else None
    return None


def parse(content: bytes) -> Any:
    """Return the JSON value in a reply's body; None if it is not JSON, or has numbers or nesting beyond Python's."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def field_of(value: Any, name: str, kind: type[T]) -> T | None:
    """Return a field of a JSON object; None unless it exists and has the type `kind`."""
    field = value.get(name) if isinstance(value, dict) else None
    return field if isinstance(field, kind) else None


def without_inputs(error: Any, levels: int = 20) -> Any:
    """Return an error's body without the fields named `input`, in which pydantic's errors repeat the request.

    Values nested deeper than `levels` are left out.
    """
    if isinstance(error, list | dict) and not levels:
        return "..."
    if isinstance(error, list):
        return [without_inputs(value, levels - 1) for value in error]
    if isinstance(error, dict):
        return {name: without_inputs(value, levels - 1) for name, value in error.items() if name != "input"}
    return error


def text_and_thoughts(content: Any) -> tuple[str | None, str]:
    """Return the text and the thoughts in a message's content, which is a text or a list of parts.

    The text is empty if the content has none, and None if the content is neither a text, a part nor a list.
    """
    if isinstance(content, str | None):
        return content or "", ""
    if not isinstance(content, list | dict):
        return None, ""
    texts, thoughts = [], []
    for part in [content] if isinstance(content, dict) else content:
        kind = field_of(part, "type", str)
        if kind == "thinking":
            thought = part.get("thinking")
            thoughts.append(thought if isinstance(thought, str) else text_and_thoughts(thought)[0])
        elif kind in (None, "text", "output_text"):
            texts.append(part if isinstance(part, str) else field_of(part, "text", str))
    return "".join(filter(None, texts)), "\n".join(filter(None, thoughts))


def count_of(usage: dict[str, Any] | None, name: str) -> int | None:
    """Return the number of tokens in a field of `usage`; None unless it is a whole number from 0 to `MOST_TOKENS`."""
    count = field_of(usage, name, int)
    return count if type(count) is int and 0 <= count <= MOST_TOKENS else None


class Usage(NamedTuple):
    """A reply's token counts; each is None if the reply lacks it or is ambiguous."""

    prompt: int | None  # with the cached tokens
    cached: int | None
    completion: int | None  # with the thoughts
    reasoning: int | None


def read_usage(usage: dict[str, Any] | None) -> Usage:
    """Return the counts in a reply's `usage` in OpenAI's way: cached tokens belong to the prompt, thoughts to the text.

    Other names for cached tokens are DeepSeek's prompt_cache_hit_tokens and Moonshot's cached_tokens, which are part of
    the prompt, and Anthropic's cache_read_input_tokens, which are not part of its input_tokens. Proxies of Anthropic's
    API report the latter beside prompt_tokens, which may or may not include them: the total decides. No flag has
    Anthropic's price for writing to the cache, so if there are such tokens, the prompt's count is unknown.
    """

    def first(*names: str) -> int | None:
        return next((number for name in names if (number := count_of(usage, name)) is not None), None)

    def detail(part: str, name: str) -> int | None:
        parts = (field_of(usage, f"{word}_tokens_details", dict) for word in WORDS[part])
        return next((number for part in parts if (number := count_of(part, name)) is not None), None)

    prompt, written = (first(*(f"{word}_tokens" for word in WORDS[part])) for part in ("prompt", "completion"))
    total = count_of(usage, "total_tokens")
    reported = [detail("prompt", "cached_tokens"), first("prompt_cache_hit_tokens"), first("cached_tokens")]
    cached = next(filter(None, reported), next((number for number in reported if number is not None), None))
    read, stored = count_of(usage, "cache_read_input_tokens") or 0, first("cache_creation_input_tokens") or 0
    stored = stored or detail("prompt", "cache_write_tokens") or 0
    reasoning = detail("completion", "reasoning_tokens")
    reasoning = count_of(usage, "reasoning_tokens") if reasoning is None else reasoning
    if prompt is not None and not cached and read + stored:
        is_outside = count_of(usage, "prompt_tokens") is None or read + stored > prompt
        if None not in (total, written):
            is_outside |= total == prompt + written + read + stored
        cached, prompt = read, prompt + read + stored if is_outside else None
    elif prompt is not None and cached and cached > prompt:
        prompt += cached
    elif prompt is not None and cached and total == prompt + (written or 0) + cached:
        prompt = None if reasoning == cached else prompt + cached  # the total may have thoughts instead
    if None not in (prompt, written, total):  # some APIs (xAI, Gemini) count thoughts only in the total
        written = max(written, total - prompt)
    elif total is None and None not in (written, reasoning) and reasoning > written:
        written += reasoning  # more thoughts than text: the count does not include them
    return Usage(None if stored else prompt or None, cached, written, reasoning)  # no prompt has 0 tokens


def find_secrets(api_key: str, base_url: str) -> list[str]:
    """Return the texts that must not be printed: the key, and credentials in the URLs of server and proxies."""
    query = urlsplit(base_url).query
    values = [value.partition("=")[2] for value in query.split("&") if KEY_IN_QUERY.search(f"?{value}")]
    secrets = [api_key, *values, *map(unquote, values)]
    for address in (base_url, *getproxies().values()):
        login = unquote(urlsplit(address).netloc.rpartition("@")[0])
        if login:
            secrets += [b64encode(login.encode()).decode(), login, login.partition(":")[2] or login]
    return secrets


def problem_of(
    server: str, status: int, code: str | None, message: str, param: str | None, whole: str, has_path: bool
) -> Exception:
    """Return the exception for an error status.

    Args:
        server: the server's name, for the exception's message.
        message: the error's message, in one line.
        param: the parameter that the error names.
        whole: the whole error body.
        has_path: whether --base_url has a path.
    """
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(code or "")).lower()  # some servers write DataInspectionFailed
    if status < 500 and code in REFUSED:
        return RefusedError(f"{code}: {message}")
    is_for_all = code in FOR_ALL or (status not in (429, 408) and OF_ALL.search(message) is not None)
    if status < 500 and not is_for_all and OF_CONTENT.search(message):
        return RefusedError(message)
    # Some services answer 429 to a prompt that has more tokens than the limit per minute: waiting would not help.
    is_too_long = code == "context_length_exceeded" or status == 413 or says_too_long(status, message)
    is_too_long &= status not in (408, 429, *REFUSES_THE_USER) or (status == 429 and "too large" in message.lower())
    if is_too_long and not is_for_all:
        hint = "\n  set --max_model_len to the real limit, or lower --max_tokens"
        problem = f"the {server} refuses a prompt because it is too long: {message}{hint}"
        return MalformedError(problem)
    if (status in PASSING or status >= 500) and not is_for_all:
        return UnavailableError(f"the {server} answers {status}: {message}", is_limited=status == 429)
    if status not in ENDS_RUN and not is_for_all:
        details = whole if status in MALFORMED else ""
        return MalformedError(f"the {server} refuses the request: {message}", param, details)
    hint = "" if has_path or status not in NO_SUCH_PATH else "\n  --base_url has no path; it usually ends in /v1"
    return (AbsentError if status == 404 else UserError)(f"the {server} answers {status}: {message}{hint}")


class APIEngine:
    """Any OpenAI-compatible chat API."""

    def __init__(self, args: Namespace, api_key: str):
        self._noted = -math.inf
        self._answered = 0  # completions so far
        self._first = asyncio.Lock()  # held by a model's first request
        self._answering: set[str] = set()  # models that have answered
        self._open: set[str] = set()  # models whose requests no longer wait for the first answer
        self._looking = asyncio.Lock()  # held while the list of models is read
        self._is_vllm_like: dict[str, bool] = {}  # by model, whether its server is one of VLLM_LIKE
        self._problems: dict[str, UserError] = {}  # by model: an error that would fail all its requests
        self._refused: defaultdict[str, set[str]] = defaultdict(set)  # by model: prompts refused since its last answer
        self._max_retries = args.max_retries
        self._client = openai.AsyncOpenAI(
            api_key=api_key,
            **address_of(args.base_url),
            max_retries=LIBRARY_RETRIES,
            timeout=openai.Timeout(args.request_timeout, connect=min(CONNECT_SECONDS, args.request_timeout)),
            http_client=LimitedClient(args.max_concurrency, args.request_timeout, self._note),
        )
        with setting_up_client():  # OPENAI_ORG_ID and others are sent as headers
            "".join(map(str, self._client.default_headers.values())).encode("ascii")
        self._secrets = find_secrets(api_key, args.base_url or "")
        self.concurrency = args.max_concurrency
        self.device = f"API at {self._client.base_url.host}"
        # OpenAI's newer models accept only the new name of this limit; other servers often accept only the old one.
        self.refusals = Refusals(LIMITS[0] if args.base_url else LIMITS[1])
        self._sends_seed = args.seed is not None

    async def complete(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion:
        """Request a completion; after a failure, retry up to --max_retries times.

        Raises:
            RefusedError: the API refuses this prompt's content.
            UnavailableError: every try failed.
            UserError: a retry cannot help (key, model, parameters).
        """
        request, send = await self._request(model, prompt, sampling), partial(self._send, sampling)
        async with self._alone_at_first(model):
            with self._noting_answer(model, prompt):
                return await self._insist(lambda: self.refusals.ask(request, send))

    async def reward(self, model: str, prompt: Rendered) -> Rewarded:
        """Return the reward of a dialogue: the only logit of a classifier, from /classify of vLLM's server.

        Raises:
            RefusedError: the server refuses this dialogue, for example because it is too long.
            UnavailableError: every try failed.
            UserError: the server has no /classify, or the model does not have exactly one label.
        """
        address = f"{str(self._client.base_url).rstrip('/').removesuffix('/v1')}/classify"
        body = {"model": model, "messages": prompt, "use_activation": False}
        async with self._alone_at_first(model):

            async def send() -> Rewarded:
                response = await self._explained(self._client.post(address, body=body, cast_to=Response))
                return self._read_reward(response.content, model)

            try:
                with self._noting_answer(model, prompt):
                    return await self._insist(send)
            except AbsentError:
                raise UserError(f"{model}: the {self.device} has no /classify; serve the model with vLLM") from None

    async def _look_at_server(self, model: str) -> bool:
        """Return whether the server of a model is one of VLLM_LIKE, according to its list of models.

        UnavailableError if the list cannot be read now.
        """
        async with self._looking:
            if model not in self._is_vllm_like:
                client, owners = self._client.with_options(timeout=ROOT_SECONDS), set()
                with suppress(UserError, RefusedError):  # no such list
                    reply = parse((await self._explained(client.get("/models", cast_to=Response))).content)
                    entries = field_of(reply, "data", list) or []  # SGLang answers under any name
                    same = [entry for entry in entries if field_of(entry, "id", str) == model] or entries
                    owners = {field_of(entry, "owned_by", str) for entry in same}
                self._is_vllm_like[model] = not owners.isdisjoint(VLLM_LIKE)
            return self._is_vllm_like[model]

    async def _for_server(self, model: str, is_continued: bool) -> dict[str, Any]:
        """Return parameters for servers that are VLLM_LIKE, with CONTINUE if the prompt ends with the assistant's turn.

        UserError if the server cannot continue that turn.
        """
        if is_continued:
            if not await self._insist(lambda: self._look_at_server(model)):
                problem = f"needs {' or '.join(VLLM_LIKE)} as the server, and the list of models names neither"
                remedy = "end the prompt with a [user] part, or use a local model"
                raise UserError(f"{model}: a prompt that ends with the assistant's turn {problem}\n  {remedy}")
            return NEUTRAL | CONTINUE
        try:
            return NEUTRAL if await self._look_at_server(model) else {}
        except UnavailableError as error:
            self._is_vllm_like[model] = False
            doubt = "if the server is vLLM or SGLang, it may fill in top_k and others from generation_config.json"
            print(f"note: {model}: the list of models cannot be read ({error}); {doubt}", file=sys.stderr, flush=True)
            return {}

    @contextmanager
    def _noting_answer(self, model: str, prompt: Rendered) -> Iterator[None]:
        """Note that a model has answered if the block succeeds; a `MalformedError` becomes what `_refusal` returns."""
        try:
            yield
        except MalformedError as error:
            raise self._refusal(model, prompt, error) from None
        except RefusedError:
            self._has_answered(model)
            raise
        self._has_answered(model)

    def _has_answered(self, model: str) -> None:
        self._answering.add(model)
        self._refused.pop(model, None)

    @asynccontextmanager
    async def _alone_at_first(self, model: str) -> AsyncIterator[None]:
        """Hold back requests until a model's first request is answered, so that a mistake costs only one request."""
        if model not in self._open:
            async with self._first:
                if model in self._problems:
                    raise self._problems[model]
                if model not in self._open:
                    try:
                        yield
                    except UserError as error:
                        self._problems[model] = error
                        raise
                    except (UnavailableError, RefusedError) as error:
                        if isinstance(error, UnavailableError) or error.is_certain:  # others need not wait
                            self._open.add(model)
                        raise
                    self._open.add(model)
                    return
        yield

    def _refusal(self, model: str, prompt: Rendered, error: MalformedError) -> Exception:
        """Return the exception for a refused prompt; after too many in a row, a UserError, which ends the run."""
        refused, most = self._refused[model], MANY if model in self._answering else SEVERAL
        refused.add(json.dumps(prompt))
        if len(refused) == most:
            problem = f"{most} different prompts were refused in a row, and none was answered"
            return UserError(f"{error}\n  {problem}; to send fewer parameters: {FEWER_PARAMETERS}")
        refusal = RefusedError(str(error).replace("\n  ", "; "), is_certain=False)
        self._note(f"{refusal}; this prompt gets no answer")
        return refusal

    async def close(self) -> None:
        await self._client.close()

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `ask`; retry up to --max_retries times if it raises UnavailableError.

        A 429 does not count as a try while the API answers other requests. New requests may take every free place, so
        a request that pauses between its tries may be refused until there are no others.
        """
        tries = silent = 0  # silent: consecutive tries during which the API answered no request at all
        while True:
            answered = self._answered
            try:
                answer = await ask()
            except UnavailableError as error:
                problem, is_limited = str(error), error.is_limited
            else:
                self._answered += 1
                return answer
            answers_others = self._answered > answered
            silent = 0 if answers_others else silent + 1
            tries += not (is_limited and answers_others)
            if tries > self._max_retries:
                break
            # Before the very first answer, a wrong address is more likely than an outage.
            steps = max(tries, 1) if is_limited else silent
            pause = min(5.0 ** min(steps, 4), LONGEST_PAUSE) if self._answered else 1.0
            self._note(f"{problem}; retrying in {pause:.0f} s")
            await asyncio.sleep(pause)
        self._note(f"{problem}; giving up after {tries} tries")
        raise UnavailableError(problem)

    async def _request(self, model: str, prompt: Rendered, sampling: Sampling) -> Request:
        """Return a request's body with all parameters; `Refusals.body` leaves out those that the API refuses.

        APIs accept JSON schemas but no regular expressions, so outputs with a regular expression are unconstrained.
        """
        seed = sampling.seed if self._sends_seed else None
        optional = {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": seed}
        body = {name: value for name, value in optional.items() if value is not None}
        further = dict(sampling.further)
        extra_body = further.pop("extra_body", {})
        required = {"model": model, "messages": prompt}
        body |= await self._for_server(model, prompt[-1]["role"] == "assistant")
        body |= {"stop": list(sampling.stop)} if sampling.stop else {}
        form = response_format(sampling.schema)
        constraint = {"response_format": form} if form else {}
        return {**required, **body, "max_tokens": sampling.max_tokens, **further, **extra_body, **constraint}

    async def _send(self, sampling: Sampling, body: dict[str, Any]) -> Completion:
        """Send a request's body and return the completion."""
        # The library's method for chats checks the type of every message, which takes as long as the request.
        response = self._client.post("/chat/completions", cast_to=Response, body=body)
        return self._read((await self._explained(response)).content, sampling, body)

    async def _explained(self, response: Awaitable[T]) -> T:
        """Return the client library's result; raise its errors as UserError, RefusedError or UnavailableError."""
        try:
            return await response
        except openai.APIStatusError as error:
            # Other servers have other formats, so the whole error about a malformed request is shown.
            whole = str(without_inputs(error.body)) if error.body else error.message
            shown = whole if error.status_code in MALFORMED else error.message
            text = field_of(error.body, "message", object) or shown
            raise self._problem(error.status_code, error.code, text, error.param, whole) from None
        except openai.APIConnectionError as error:  # also time-outs
            if isinstance(error.__cause__, LongReplyError):
                raise UnavailableError(f"the {self.device} {error.__cause__}; check --base_url") from None
            raise UnavailableError(f"the {self.device} cannot be reached: {error.message}") from None

    def _read(self, content: bytes, sampling: Sampling, request: dict[str, Any]) -> Completion:
        """Return the completion in a response's body; UnavailableError if there is none.

        `request` is the body of the request.
        """
        answer = parse(content)
        choices = field_of(answer, "choices", list)
        # For a blocked prompt or answer, the list of choices is empty, or its choice has no message.
        choice = (choices and choices[0]) or {} if choices is not None else None
        message = choice.get("message") or {} if isinstance(choice, dict) else None
        text, thoughts = text_and_thoughts(message.get("content")) if isinstance(message, dict) else (None, "")
        if text is None:
            raise self._problem_in(content, "completion")
        is_broken = field_of(choice, "error", dict)  # OpenRouter: the provider failed in the middle
        finish_reason = "error" if is_broken else self._one_line(choice.get("finish_reason") or "unknown")
        if finish_reason.lower().startswith("content_filter"):
            raise RefusedError(finish_reason)
        if not text.strip() and (refusal := field_of(message, "refusal", str)):
            raise RefusedError(f"refusal: {self._one_line(refusal)}")
        usage, state = read_usage(field_of(answer, "usage", dict)), field_of(answer, "system_fingerprint", str)
        name = field_of(answer, "model", str)
        # Many servers send thoughts in a separate field, which has one of two names.
        thoughts = field_of(message, "reasoning", str) or field_of(message, "reasoning_content", str) or thoughts
        # Even an empty answer has a token, which ends the turn. Without any token, the server has failed.
        if (
            not (text.strip() or thoughts or usage.reasoning)
            and choices
            and usage.completion == 0
            and not CAUSE.search(finish_reason.lower())
        ):
            raise UnavailableError(f"the {self.device} returned a reply without text and tokens")
        # A server that constrains the whole output leaves no room for a thought, so the text begins with the answer.
        cut, is_constrained = is_cut(finish_reason), "response_format" in request
        if thoughts:
            split = Split(text, thoughts.strip(), unfinished=not text.strip())
        else:
            split = split_thoughts(text, cut, None if sampling.opened and is_constrained else sampling.opened)
        is_marked = split.reasoning or usage.reasoning is not None or text.lstrip().startswith(("{", "```"))
        if cut and not is_marked and not is_constrained and THINKING_NAMES.match(request["model"]):
            # If the template opens <think> and the text is cut inside the thought, the text has no tag at all.
            split = Split("", text.strip(), unfinished=True)
        return Completion(
            text=split.answer.encode(errors="replace").decode(),  # a lone surrogate cannot be written to a file
            reasoning=split.reasoning.encode(errors="replace").decode(),
            reasoning_tokens=usage.reasoning,
            unfinished=split.unfinished or bool(usage.reasoning and not split.answer.strip()),
            finish_reason=finish_reason,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            completion_tokens=usage.completion or (None if text.strip() or thoughts else usage.completion),
            system_fingerprint=self._one_line(state) if state else None,
            answered_by=self._one_line(name) if name not in (None, "", request["model"]) else None,
        )

    def _read_reward(self, content: bytes, model: str) -> Rewarded:
        """Return the reward in the body of a response of /classify; UnavailableError if it has no list of logits.

        UserError if that list is not one number.
        """
        answer = parse(content)
        data = field_of(answer, "data", list)
        logits = field_of(data[0], "probs", list) if data and len(data) == 1 else None
        if logits is None:
            raise self._problem_in(content, "reward")
        if len(logits) != 1 or type(logits[0]) not in (int, float, type(None)):
            problem = "did not return one number: is it a reward model, with one label?"
            raise UserError(f"{model}: the {self.device} {problem}")
        try:
            reward = math.nan if logits[0] is None else float(logits[0])
        except OverflowError:  # an integer that is too large for a float
            reward = math.inf
        usage = read_usage(field_of(answer, "usage", dict))
        return Rewarded(reward, usage.prompt, usage.cached)

    def _problem_in(self, content: bytes, wanted: str) -> Exception:
        """Return the exception for a response with status 200 whose body has no `wanted`: a web page, or an error."""
        error = field_of(parse(content), "error", dict)
        if status := field_of(error, "code", int):
            return self._problem(status, None, field_of(error, "message", object))
        shown = self._one_line(error or content.decode(errors="replace"))
        return UnavailableError(f"the {self.device} returned no {wanted}; check --base_url: {shown}")

    def _problem(
        self, status: int, code: str | None, text: object, param: str | None = None, whole: str = ""
    ) -> Exception:
        has_path = self._client.base_url.path.strip("/") != ""
        return problem_of(self.device, status, code, self._one_line(text), param, whole, has_path)

    def _one_line(self, message: object) -> str:
        """Return a server's message as one printable line, without the secrets that some servers repeat."""
        text = str(message)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return printable(" ".join(text.split()))[:300]

    def _note(self, text: str) -> None:
        if time.monotonic() - self._noted >= NOTE_SECONDS:  # many requests report the same problem
            self._noted = time.monotonic()
            print(f"note: {text}", file=sys.stderr, flush=True)
