"""Read the replies of OpenAI-compatible APIs: completions, errors, and the list of models."""

import asyncio
import json
import re
from base64 import b64encode
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit
from urllib.request import getproxies

import openai

from utils.base.errors import UserError
from utils.base.manifest import KEY_IN_QUERY
from utils.generation.refusals import LimitedClient, MalformedError, says_too_long
from utils.generation.requests import RefusedError, UnavailableError

T = TypeVar("T")
ROOT_SECONDS = 5  # for the list of models, which is optional
WORDS = {"prompt": ("prompt", "input"), "completion": ("completion", "output")}  # in names of counts of tokens
MOST_TOKENS = 10**12  # the highest plausible count; numbers beyond 64 bits cannot be stored
# Error codes, and words of messages, about one prompt's content.
REFUSED = ("content_filter", "content_policy_violation", "data_inspection_failed", "invalid_prompt")
OF_CONTENT = re.compile(r"(?i)moderation|flagged|inappropriate|content.{0,20}(?:policy|risk|filter)")
# Error codes, and words of messages, about every request.
FOR_ALL = ("insufficient_quota", "invalid_api_key", "model_not_found")
OF_ALL = re.compile(
    r"(?i)\b(?:credits?|balance|billing|quota|payment|subscription|arrear\w*|suspended|deactivated)\b|api.key"
    r"|(?:invalid|unknown) model|model (?:name )?(?:not|does not) exist"
)
PASSING = (408, 409, 429)  # statuses of temporary failures, besides 5xx
MALFORMED = (400, 422)  # statuses of a malformed request
NO_SUCH_PATH = (404, 405)
REFUSES_THE_USER = (401, 402, 403)  # a key, an account, or its allowance of tokens
ENDS_RUN = (401, 402, *NO_SUCH_PATH)  # statuses about every request


class AbsentError(UserError):
    """The API has no such model, file or batch, or no such interface."""


def address_of(base_url: str | None) -> dict[str, Any]:
    """Return the client library's arguments for --base_url; its query (such as Azure's api-version) is always sent."""
    if base_url is None:
        return {}
    parts = urlsplit(base_url)
    return {"base_url": parts._replace(query="").geturl(), "default_query": dict(parse_qsl(parts.query))}


def ask_for_root(model: str, base_url: str | None, api_key: str) -> str | None:
    """Return the path or name from which a server loaded a model; vLLM's list of models has it.

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
    except (openai.OpenAIError, TimeoutError, ValueError, RecursionError):  # the last two: it is not valid JSON
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

    What is nested more than `levels` deep is left out.
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
    """A reply's token counts, each None where the reply does not say it or can be read in two ways."""

    prompt: int | None  # with the cached tokens
    cached: int | None
    completion: int | None  # with the thoughts
    reasoning: int | None


def read_usage(usage: dict[str, Any] | None) -> Usage:
    """Return the counts in a reply's `usage` as OpenAI counts: the prompt with its cached part, the text with thoughts.

    Other names for cached tokens are DeepSeek's prompt_cache_hit_tokens and Moonshot's cached_tokens, which are part of
    the prompt, and Anthropic's cache_read_input_tokens, which are not part of its input_tokens. Layers over Anthropic's
    API report these beside prompt_tokens that may or may not include them: the total decides. Anthropic's price for
    writing to the cache is not among our flags, so with such tokens the prompt counts as unknown.
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
        written += reasoning  # they cannot be a part of it
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
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(code or "")).lower()  # some write DataInspectionFailed
    if status < 500 and code in REFUSED:
        return RefusedError(f"{code}: {message}")
    is_for_all = code in FOR_ALL or (status not in (429, 408) and OF_ALL.search(message) is not None)
    if status < 500 and not is_for_all and OF_CONTENT.search(message):
        return RefusedError(message)
    # Some services answer 429 to a prompt that has more tokens than the limit per minute: waiting would not help.
    is_too_long = code == "context_length_exceeded" or status == 413 or says_too_long(status, message)
    is_too_long &= status not in (408, 429, *REFUSES_THE_USER) or (status == 429 and "too large" in message.lower())
    if is_too_long and not is_for_all:
        hint = "\n  give the real limit as --max_model_len, or a smaller --max_tokens"
        problem = f"the {server} refuses a prompt because it is too long: {message}{hint}"
        return MalformedError(problem)
    if (status in PASSING or status >= 500) and not is_for_all:
        return UnavailableError(f"the {server} answers {status}: {message}", is_limited=status == 429)
    if status not in ENDS_RUN and not is_for_all:
        details = whole if status in MALFORMED else ""
        return MalformedError(f"the {server} refuses the request: {message}", param, details)
    hint = "" if has_path or status not in NO_SUCH_PATH else "\n  --base_url has no path; it usually ends in /v1"
    return (AbsentError if status == 404 else UserError)(f"the {server} answers {status}: {message}{hint}")
