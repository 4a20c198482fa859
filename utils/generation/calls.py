"""Calls, which request an output until its text is usable, and the counts and costs of a run's calls."""

import math
import sys
from argparse import Namespace
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from prompts import Messages
from utils.base.errors import count_noun, count_plural, printable
from utils.base.made import Key
from utils.benchmarks.readers import Parsed, nothing
from utils.benchmarks.thoughts import UNFINISHED, UNFINISHED_COUNT
from utils.generation.completions import NotStoredError
from utils.generation.fitting import Fitted
from utils.generation.model import Model, Policy
from utils.generation.requests import (
    CHARACTERS_PER_TOKEN,
    Completion,
    Engine,
    RefusedError,
    Rendered,
    Sampling,
    is_cut,
)

Parser = Callable[[str, bool], Parsed]
TOKEN_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")
PROMPT_SENT = "prompt_tokens_sent"  # a record's field: estimated tokens of its prompt, if the server has cut it
THOUGHT_COUNT = "reasoning_tokens"  # a record's field: how many of completion_tokens are thoughts, if it has thoughts


class Try(NamedTuple):
    """One try of a call."""

    sampling: Sampling
    completion: Completion
    parsed: Parsed


class Prices(NamedTuple):
    """US dollars per million tokens."""

    input: float
    cached: float  # for input from the API's cache
    output: float  # thoughts included, as APIs bill them

    def cost(self, tokens: Mapping[str, int | None]) -> float | None:
        """Return the cost of a manifest's `tokens` in US dollars, to six decimals; None if the API reported no counts.

        Input that is not reported as cached costs the full price.
        """
        prompt, written, cached = (tokens[f"{name}_tokens"] for name in ("prompt", "completion", "cached"))
        if prompt is None or written is None:
            return None
        cached = min(cached or 0, prompt)
        dollars = (prompt - cached) * self.input + cached * self.cached + written * self.output
        return round(dollars / 1e6, 6)


def prices_of(args: Namespace) -> Prices | None:
    """Return the prices in the flags of `cli.add_price_arguments`; None if none are given."""
    cached = args.price_in if args.price_cached is None else args.price_cached
    return None if args.price_in is None else Prices(args.price_in, cached, args.price_out)


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return counts with their names, as "3 answers, 54% of ..."."""
    return ", ".join(count_plural(count, name) for name, count in counts.items()).replace(" %", "%")


def describe_cost(cost: float | None) -> str:
    return "cost unknown: the API does not report all token counts" if cost is None else f"{cost:.4f} USD"


class MistakeError(Exception):
    """A method's own parser raised an exception, or a call is invalid; the exception is the cause.

    `record` is the record of the call that failed, and `last` is its last try.
    """

    record: dict[str, Any] | None = None
    last: Any = None


@dataclass(frozen=True)
class Call:
    """A request for one output."""

    key: Key  # the seeds of all tries are derived from it
    prompt: Rendered | None  # None if it does not fit into the model's window; then nothing is requested
    parse: Parser  # reads the output's text
    policy: Policy  # how the output is sampled, and requested again if it is unusable
    record: dict[str, Any] = field(default_factory=dict)  # further fields of the call's record
    messages: Messages = field(default_factory=list)  # the prompt before rendering, for --trace
    options: dict[str, array] | None = None  # token ids by option; the likeliest is the value, no text is generated
    # Maps the options' log-probabilities to fields of the record, including `value`. None: the value is the option
    # with the highest log-probability per token.
    expected_value: Callable[[dict[str, float]], dict[str, Any]] | None = None
    is_rewarded: bool = False  # the prompt is a whole dialogue, whose reward is the value; no text is generated
    shared: int | None = None  # a number that is equal for the same call of several records; None if not shared


def fitted_call(key: Key, fitted: Fitted | None, parse: Parser, policy: Policy, **record: Any) -> Call:
    """Return the call for the result of `Window.fit`; `record` has further fields of the call's record."""
    figures = {} if fitted is None else dict(vars(fitted))
    prompt, messages = figures.pop("prompt", None), figures.pop("messages", [])
    return Call(key, prompt, parse, policy, record | figures, messages)


async def answer_call(engine: Engine | None, model: Model, call: Call, role: str) -> dict[str, Any]:
    """Request an output until its text is usable; return a record with the parsed value, or with None and the reason.

    `role` is the role's name, for the completion's line in the store.

    Raises:
        MistakeError: the parser raised an exception.
        UnavailableError: a server failed to answer. This is not the model's failure, so there is no record.
        NotStoredError: the store lacks a completion, and no engine is open.
    """
    if call.prompt is None:
        return {"value": None, "reason": "the prompt does not fit into the model's context", **call.record}
    if call.options is not None:
        return await _choose(engine, model, call, role)
    if call.is_rewarded:
        return await _reward(engine, model, call, role)
    policy, hashed = call.policy, model.completions.hashed(call.prompt)

    async def make(sampling: Sampling, engine: Engine | None = None, may_wait: bool = False) -> Try:
        fields = {"id": call.key[0], "role": role, "try": sampling.attempt + 1}
        completion = await model.completions.complete(engine, model.addr, hashed, sampling, may_wait, **fields)
        if completion.unfinished:
            reason = completion.finish_reason
            ended = f"the reply ended inside its thought (finish_reason {reason}), at a stop text or by itself"
            is_too_short = is_cut(reason)  # otherwise, more tokens cannot help
            return Try(sampling, completion, nothing(UNFINISHED if is_too_short else ended))
        try:
            return Try(sampling, completion, call.parse(completion.text, is_cut(completion.finish_reason)))
        except MistakeError as error:
            error.last = Try(sampling, completion, nothing("the method's parser raised an error"))
            raise

    async def make_all(engine: Engine | None = None, may_wait: bool = False) -> tuple[list[Try], str | None]:
        """Return the tries up to the first usable one, and a reason if the server refused to answer another try."""
        tried: list[Try] = []
        for attempt in range(policy.max_retries + 1):
            try:
                tried.append(await make(policy.sampling(call.key, attempt), engine, may_wait))
            except RefusedError as refusal:
                return tried, str(refusal)
            except MistakeError as error:
                error.record = _record(call, [*tried, error.last])
                raise
            last = tried[-1]
            # Greedy decoding would only repeat the same unfinished thought.
            ends = policy.is_last(attempt) or (last.completion.unfinished and policy.temperature == 0)
            if ends or last.parsed.value is not None:
                break
        return tried, None

    tried, refusal = [], None
    with suppress(NotStoredError):
        tried, refusal = await make_all()  # from the store alone
    if refusal is not None or not tried or tried[-1].parsed.value is None:
        tried, refusal = await _tries_of_another_run(make, policy, call.key), None
        if not tried:
            tried, refusal = await make_all(engine, may_wait=True)
    if refusal is not None:
        return {"value": None, "reason": refusal, **call.record, "attempts": len(tried) + 1, **_spent(tried)}
    return _record(call, tried)


async def _tries_of_another_run(make: Callable[[Sampling], Awaitable[Try]], policy: Policy, key: Key) -> list[Try]:
    """Return the stored tries of a run with another --max_retries, up to a usable one; empty if there are none.

    By default, only the last try is constrained, so the other run may have sampled the same try differently.
    """
    tried: list[Try] = []
    for attempt in count():
        continues = False
        for max_retries in (attempt + 1, attempt):
            other = replace(policy, max_retries=max_retries)
            with suppress(NotStoredError, RefusedError):
                made = await make(other.sampling(key, attempt))
                if made.parsed.value is not None:
                    return [*tried, made]
                if max_retries > attempt:
                    tried.append(made)
                    continues = not other.is_last(attempt)
        if not continues:
            return []


def _record(call: Call, tried: list[Try]) -> dict[str, Any]:
    """Return a call's record, with the value of the last try and the token counts of all tries."""
    sampling, completion, parsed = tried[-1]
    refused = list(completion.refused_parameters)
    thought = sum(attempt.completion.reasoning_tokens or 0 for attempt in tried)
    reported = {"answered_by": completion.answered_by, "system_fingerprint": completion.system_fingerprint}
    cut = [_cut_by_server(call.prompt, attempt.completion.prompt_tokens) for attempt in tried]
    return {
        "value": parsed.value,
        **({"reason": parsed.reason} if parsed.value is None else {}),
        **call.record,
        **({"reasoning": completion.reasoning} if completion.reasoning else {}),
        "raw": completion.text,
        "parsed": parsed.how,
        "truncated": parsed.truncated,
        "finish_reason": completion.finish_reason,
        "attempts": len(tried),
        "constrained": sampling.schema is not None and "response_format" not in refused,
        **({"stop_ignored": True} if completion.stop_ignored else {}),
        "temperature": None if "temperature" in refused else sampling.temperature,
        **({"refused_parameters": refused} if refused else {}),
        **{name: number for counts in cut for name, number in counts.items()},
        **_spent(tried),
        **({THOUGHT_COUNT: thought} if thought else {}),
        **{name: text for name, text in reported.items() if text},
    }


def _spent(tried: list[Try]) -> dict[str, int | None]:
    """Return the token counts of all tries together."""
    return {name: total([getattr(attempt.completion, name) for attempt in tried]) for name in TOKEN_COUNTS}


def _cut_by_server(prompt: Rendered, reported: int | None) -> dict[str, int]:
    """Return {PROMPT_SENT: the prompt's estimated tokens} if the server reports less than half of them; else empty."""
    if reported is None or not isinstance(prompt, list):
        return {}
    if 2 * reported * CHARACTERS_PER_TOKEN >= sum(len(message["content"]) for message in prompt):
        return {}  # a quick check, enough for most prompts: white space is included here
    sent = sum(len(" ".join(message["content"].split())) for message in prompt) // CHARACTERS_PER_TOKEN
    return {PROMPT_SENT: sent} if 2 * reported < sent else {}


async def _choose(engine: Engine | None, model: Model, call: Call, role: str) -> dict[str, Any]:
    """Return a record with the result of `expected_value`, or with the likeliest option.

    The value is None if the model gives an option no likelihood. NotStoredError as in `answer_call`.
    """
    continuations = list(call.options.values())
    scored = await model.completions.score(engine, model.addr, call.prompt, continuations, id=call.key[0], role=role)
    scores = dict(zip(call.options, scored.mean_log_probs, strict=True))
    if not all(map(math.isfinite, scores.values())):  # a model's logits may be damaged; JSON has no such numbers
        scores = {option: score if math.isfinite(score) else None for option, score in scores.items()}
        chosen = {"value": None, "reason": "the model returned no likelihood for an option"}
    elif call.expected_value is not None:
        chosen = call.expected_value({option: scores[option] * len(tokens) for option, tokens in call.options.items()})
    else:
        # The scores of options with the same tokens differ at most by rounding: the first of these wins.
        best = max(scores, key=scores.get)
        chosen = {"value": next(option for option, tokens in call.options.items() if tokens == call.options[best])}
    spent = {"prompt_tokens": scored.prompt_tokens, "cached_tokens": scored.cached_tokens, "completion_tokens": 0}
    return {**chosen, **call.record, "mean_log_probs": scores, "attempts": 1, **spent}


async def _reward(engine: Engine | None, model: Model, call: Call, role: str) -> dict[str, Any]:
    """Return a record with the reward of the call's dialogue; None if it is refused or not a finite number."""
    try:
        rewarded = await model.completions.reward(engine, model.addr, call.prompt, id=call.key[0], role=role)
    except RefusedError as refusal:
        return {"value": None, "reason": str(refusal), **call.record, "attempts": 1, **_spent([])}
    value = {"value": rewarded.reward}
    if not math.isfinite(rewarded.reward):
        value = {"value": None, "reason": "the model returned no finite number"}
    spent = {"prompt_tokens": rewarded.prompt_tokens, "cached_tokens": rewarded.cached_tokens, "completion_tokens": 0}
    return {**value, **call.record, "attempts": 1, **spent}


def total(counts: list[int | None]) -> int | None:
    """Return the sum of counts; None if a server did not report one of them."""
    return None if None in counts else sum(counts)


def count_unfinished(records: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the manifest's count of records whose thoughts are unfinished; empty if there are none."""
    count = sum(record.get("reason") == UNFINISHED for record in records)
    return {UNFINISHED_COUNT: count} if count else {}


def describe_records(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return a manifest's figures on finished records, and print notes about prompts cut and replies by other models.

    Token counts include all attempts.
    """
    records = list(records)
    refusals = [record.get("refused_parameters", ()) for record in records if "raw" in record]
    names = sorted({name for refused in refusals for name in refused})
    thought = sum(record.get(THOUGHT_COUNT, 0) for record in records)
    # Not settings: a server's fingerprint may change from week to week, and earlier answers stay valid.
    states = {record["system_fingerprint"] for record in records if "system_fingerprint" in record}
    cut = [record[PROMPT_SENT] for record in records if PROMPT_SENT in record]
    if cut:
        prompts = f"{len(cut)} of {count_noun(len(records), 'prompt')} (about {sum(cut):,} tokens sent)"
        remedy = "raise the server's context length, or lower --max_model_len"
        print(f"note: the server read less than half of the text of {prompts}; {remedy}", file=sys.stderr)
    num_ignored = sum(record.get("stop_ignored", False) for record in records)
    if num_ignored:
        texts = f"{num_ignored} of {count_noun(len(refusals), 'reply')}"
        problem = f"the server ignored the stop texts in {texts}"
        print(f"note: {problem}; each reply was cut at its first stop text", file=sys.stderr)
    answered_by = Counter(record["answered_by"] for record in records if "answered_by" in record)
    if answered_by:
        by_model = ", ".join(f"{number} from {printable(name)}" for name, number in answered_by.most_common())
        problem = f"replies name a different model from the requested one: {by_model}"
        print(f"note: {problem} (of {count_noun(len(refusals), 'reply')})", file=sys.stderr)
        answered_by["the model asked"] = len(refusals) - answered_by.total()
    return {
        **({"prompts_cut_by_server": len(cut)} if cut else {}),
        **({"stops_ignored_by_server": num_ignored} if num_ignored else {}),
        **({"answered_by": dict(sorted((+answered_by).items()))} if answered_by else {}),
        "tokens": {
            **{name: total([record.get(name, 0) for record in records]) for name in TOKEN_COUNTS},
            **({THOUGHT_COUNT: thought} if thought else {}),
        },
        **count_unfinished(records),
        # Per parameter: how many outputs were requested without it (or with its other name), and how many in all.
        "refused_parameters": {name: [sum(name in refused for refused in refusals), len(refusals)] for name in names},
        "system_fingerprints": sorted(states),
    }
