"""The driver: requests in, usable outputs out; every completion is in the store the moment it is there.

A request is asked until the parser finds what it needs in the text. By default (`fallback`) every try draws with
another seed and the last one is held to its schema; `always` holds every try to it; `never` is the reference
code's way and raises the temperature by 0.1 a try, never above 1.
"""

import asyncio
import hashlib
import math
import sys
from argparse import Namespace
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

from utils.cli import UserError, exit_on_signal
from utils.cli.errors import printable
from utils.cli.progress import Progress
from utils.files.output import Key, Pieces
from utils.generation.chat import Chat, Fitted, Rendered
from utils.generation.completions import Completions, NotStoredError
from utils.generation.cost import Prices
from utils.generation.requests import FORMATS, FURTHER, Completion, Engine, RefusedError, Sampling, UnavailableError
from utils.generation.thinking import Thoughts
from utils.parsing import Parsed, nothing
from utils.parsing.thoughts import UNFINISHED, UNFINISHED_COUNT

Parser = Callable[[str, bool], Parsed]
TOKEN_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")
THOUGHT_COUNT = "reasoning_tokens"  # of the completion's; in the records that have thoughts alone
UNDER_WAY = 8_000_000  # tokens of prompts that are under way at a time: long ones would be gigabytes
CHARACTERS_PER_TOKEN = 4  # about, of English
OUTAGE = 3  # requests in a row, or as many as are under way at a time if more, unanswered: the server is gone


@dataclass(frozen=True)
class Request:
    """One output to be had."""

    key: Key
    prompt: Rendered | None  # None where it does not fit the model: then nothing is asked
    pieces: Pieces | None  # where its record goes, under `key`; None where it is returned alone
    record: dict[str, Any] = field(default_factory=dict)  # what its record holds besides the output
    parse: Parser | None = None  # what reads its output; None: the stage's
    options: dict[str, array] | None = None  # by output its token ids: the likeliest is chosen, no text is generated
    # From the options' log-probabilities to what its record holds, `value` among it; None: the likeliest a token.
    weigh: Callable[[dict[str, float]], dict[str, Any]] | None = None


def fitted_request(key: Key, fitted: Fitted | None, pieces: Pieces | None, **record: Any) -> Request:
    """The request for an output to a prompt that `Model.fit` made; `record` is kept with it."""
    figures = {} if fitted is None else dict(vars(fitted))
    return Request(key, figures.pop("prompt", None), pieces, record | figures)


@dataclass(frozen=True)
class Stage:
    """Requests that one model answers under one policy."""

    model: str  # which of the engine's
    requests: Iterable[Request]  # may be made when they are asked for, from what an earlier stage has finished
    policy: "Policy"
    parse: Parser
    unit: str  # what the outputs are called, in the plural
    total: int  # how many there are to be in the end
    completions: Completions  # what the model has been asked before
    done: int = 0  # how many of them are there without being requested
    # Called with the device, if one was used, when the last request is answered, before the next stage begins.
    finish: Callable[[str | None], None] | None = None
    failed: int = 0  # how many of those that are done are unusable
    has_answered: bool = False  # the model has answered one of them, now or in an earlier run


@dataclass(frozen=True)
class Policy:
    """How outputs are sampled and asked for again (the flags of `cli.add_sampling_arguments`)."""

    temperature: float | None  # None, also of the next two: by default, as the model or its server has it
    top_p: float | None
    max_tokens: int
    seed: int | None
    max_retries: int
    constrained_decoding: str
    schema: dict[str, Any] | str
    further: dict[str, Any] = field(default_factory=dict)  # flags of FURTHER that are given
    reasoning_parser: str | None = None
    opened: bool | None = None  # `Sampling.opened`, which the model's template decides

    @classmethod
    def from_arguments(cls, args: Namespace, schema: dict[str, Any] | str) -> "Policy":
        """UserError where a model that runs here is to draw without a seed."""
        if args.seed is None and not args.openai:
            raise UserError("--seed none: is only for an API; a model that runs here needs a seed")
        names = [field.name for field in fields(cls) if field.name not in ("schema", "further", "opened")]
        further = {name: value for name in FURTHER if (value := vars(args).get(name)) not in (None, {})}
        return cls(**{name: getattr(args, name) for name in names}, schema=schema, further=further)

    def with_thoughts(self, thoughts: Thoughts) -> "Policy":
        return replace(self, reasoning_parser=thoughts.parser, opened=thoughts.opened)

    def sampling(self, key: Key, attempt: int, draws: bool = False) -> Sampling:
        """The sampling of one try (from 0). Its seed depends on the key and the try alone, not on order or shard.

        `draws`: the server refuses temperature, so also at 0 the model is not greedy.
        """
        temperature = self.temperature
        if self.constrained_decoding == "never" and temperature is not None:
            temperature = max(temperature, min(1.0, round(temperature + 0.1 * attempt, 6)))
        seed = int.from_bytes(hashlib.sha256(repr((self.seed, key, attempt)).encode()).digest()[:4], "big") >> 1
        schema = self.schema if self._is_constrained(attempt, draws) else None
        own = {"reasoning_parser": self.reasoning_parser, "opened": self.opened}
        own["constrained_decoding"] = self.constrained_decoding
        return Sampling(temperature, self.top_p, self.max_tokens, seed, schema, attempt, self.further, **own)

    def is_last(self, attempt: int, draws: bool = False) -> bool:
        """A greedy constrained try would only repeat itself, so it is the last one too.

        Where a server refuses the schema, that try is held to less or to nothing; it is the last one all the same.
        """
        return attempt >= self.max_retries or (self._is_constrained(attempt, draws) and self.is_greedy(draws))

    def is_greedy(self, draws: bool) -> bool:
        return self.temperature == 0 and not draws

    def _is_constrained(self, attempt: int, draws: bool) -> bool:
        if self.constrained_decoding == "fallback":
            # Nor does a greedy free try get better by asking again: the second try is constrained at once.
            return attempt >= self.max_retries or (attempt > 0 and self.is_greedy(draws))
        return self.constrained_decoding == "always"


def generate(open_engine: Callable[[int], Engine], *stages: Stage | Callable[[], Stage | None]) -> str | None:
    """Have every request of every stage answered; returns the engine's device, None if the store has all of them.

    One stage follows the other. Within one, requests enter the engine in their order and leave as they finish; no
    batch waits for its slowest. What a server failed to answer has no record, and is missing. Where it answers nothing
    any more the stage ends early, and the rest is missing too.

    Args:
        open_engine: gives the engine; called with how many outputs it is to write, as far as that is known, and only
            if the store of a stage lacks one.
        stages: of one whose requests hang on what an earlier one gives a function, called when its turn has come;
            where it gives None nothing is left to ask.

    Raises:
        UserError: the engine cannot go on, or has never answered; what was finished is in the store.
        KeyboardInterrupt: SIGINT or SIGTERM; likewise.
    """

    async def run_stages(engine: Engine | None, left: list[Stage | Callable[[], Stage | None]]) -> None:
        """Run what is left; without an engine as far as the store goes."""
        try:
            while left:
                stage = left[0] if isinstance(left[0], Stage) else left[0]()
                if stage is not None:
                    stores.add(stage.completions.store)
                    concurrency = engine.concurrency if engine else 1
                    shown = Progress(stage.total, stage.unit, stage.done, concurrency, quiet=engine is None)
                    with closing(shown) as progress:
                        rest = await run_stage(engine, stage, progress)
                    if rest is not None:
                        left[0] = rest
                        return
                    if stage.finish is not None:
                        stage.finish(engine and engine.device)
                del left[0]
        finally:
            if engine is not None:
                await engine.close()

    left, stores = list(stages), set()
    try:
        asyncio.run(run_stages(None, left))
        if not left:
            return None
        with exit_on_signal():
            engine = open_engine(sum(stage.total - stage.done for stage in left if isinstance(stage, Stage)))
        asyncio.run(run_stages(engine, left))
    finally:
        for store in stores:  # then their lines are on disk
            store.close()
    return engine.device


async def run_stage(engine: Engine | None, stage: Stage, progress: Progress) -> Stage | None:
    """Have every request of a stage answered by an open engine; the rest is as in `generate`.

    Without an engine its store answers, up to the first request that it cannot: returns the stage from there on.
    """
    failed, done, missing = stage.failed, stage.done, 0
    in_a_row = 0  # of the missing ones, those since the server's last answer
    has_answered = stage.has_answered
    problem, rest = None, None
    requests = iter(stage.requests)  # shared by all workers
    room = Room(UNDER_WAY)

    async def work() -> None:
        nonlocal failed, done, missing, in_a_row, has_answered, problem, rest
        while (request := await room.next(requests)) is not None:
            try:
                with room.holding(request.prompt):
                    record = await (answer_request if request.options is None else _choose)(engine, request, stage)
            except NotStoredError:
                if stage.completions.cached_only:
                    missing += 1
                    progress.update(0, missing=missing)
                    continue
                told = {"done": done, "failed": failed, "has_answered": has_answered}
                rest = replace(stage, requests=chain([request], requests), **told)
                return
            except UnavailableError as error:
                problem = str(error)
                missing, in_a_row = missing + 1, in_a_row + 1
                progress.update(0, missing=missing)
                if in_a_row >= max(OUTAGE, engine.concurrency):
                    raise
                continue
            if request.prompt is not None:
                in_a_row, has_answered = 0, True
            request.pieces[request.key] = record
            failed, done = failed + (record["value"] is None), done + 1
            progress.update(failed=failed)

    workers = [asyncio.create_task(work()) for _ in range(engine.concurrency if engine else 1)]
    is_gone = False
    try:
        await asyncio.gather(*workers)  # raises the first error; a signal cancels it
    except UnavailableError:
        is_gone = True
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if engine is None and missing:
        raise UserError(
            f"{stage.completions.store.folder}: lacks completions for {missing} of {stage.total} {stage.unit}\n"
            "  --cached_only requests none: run the shards that are missing, or the same command without it"
        )
    if problem is not None and not has_answered:  # a wrong address is more likely than an outage
        again = f"asked {stage.policy.max_retries + 1} times; what is finished is kept, run the same command again"
        raise UserError(f"{problem}\n  {again}")
    if is_gone:
        print(f"note: {problem}; nothing is answered any more, so the run ends early", file=sys.stderr)
    return rest


class Room:
    """So many tokens of prompts may be under way at a time; or one prompt, where it has more."""

    def __init__(self, most: int):
        self._left = most
        self._freed = asyncio.Event()

    async def next(self, requests: Iterator[Request]) -> Request | None:
        """The next request, once there is room: a prompt is made only then. None where there is no other."""
        while self._left <= 0:
            self._freed.clear()
            await self._freed.wait()
        return next(requests, None)

    @contextmanager
    def holding(self, prompt: Rendered | None) -> Iterator[None]:
        """Entered before any other request is made."""
        if isinstance(prompt, list):
            tokens = sum(len(message["content"]) for message in prompt) // CHARACTERS_PER_TOKEN
        else:
            tokens = len(prompt or ())
        self._left -= tokens
        try:
            yield
        finally:
            self._left += tokens
            self._freed.set()


async def answer_request(engine: Engine | None, request: Request, stage: Stage) -> dict[str, Any]:
    """Ask until the text can be used: a record with the parsed value, or with None and the reason.

    Raises:
        UnavailableError: a server failed to answer; that says nothing of the model, so there is no record.
        NotStoredError: there is no engine, and the stage's store lacks a completion.
    """
    if request.prompt is None:
        return _too_long(request)
    policy, spent, thought, draws = stage.policy, dict.fromkeys(TOKEN_COUNTS, 0), 0, False

    def read(completion: Completion) -> Parsed:
        if completion.unfinished:
            return nothing(UNFINISHED)
        return (request.parse or stage.parse)(completion.text, completion.finish_reason == "length")

    for attempt in range(policy.max_retries + 1):
        sampling, attempts = policy.sampling(request.key, attempt, draws), attempt + 1
        told = {"id": request.key[0], "unit": stage.unit, "try": attempts}
        try:
            completion = await stage.completions.complete(engine, stage.model, request.prompt, sampling, **told)
        except RefusedError as refusal:
            return {"value": None, "reason": str(refusal), **request.record, "attempts": attempts, **spent}
        spent = {name: total([spent[name], getattr(completion, name)]) for name in spent}
        thought += completion.reasoning_tokens or 0
        parsed = read(completion)
        draws = "temperature" in completion.refused_parameters
        # A greedy model would only think the same again.
        is_last = policy.is_last(attempt, draws) or (completion.unfinished and policy.is_greedy(draws))
        if parsed.value is not None or is_last:
            break
    # What the server took where it refused the schema that the last try was to be held to.
    taken, refused = completion.response_format, list(completion.refused_parameters)
    return {
        "value": parsed.value,
        **({"reason": parsed.reason} if parsed.value is None else {}),
        **request.record,
        **({"reasoning": completion.reasoning} if completion.reasoning else {}),
        "raw": completion.text,
        "parsed": parsed.how,
        "truncated": parsed.truncated,
        "finish_reason": completion.finish_reason,
        "attempts": attempts,
        "constrained": sampling.schema is not None and taken is None,
        **({"response_format": taken} if taken else {}),
        "temperature": None if "temperature" in refused else sampling.temperature,
        **({"refused_parameters": refused} if refused else {}),
        **spent,  # of all attempts together
        **({THOUGHT_COUNT: thought} if thought else {}),
        **({"system_fingerprint": completion.system_fingerprint} if completion.system_fingerprint else {}),
    }


async def _choose(engine: Engine | None, request: Request, stage: Stage) -> dict[str, Any]:
    """A record with the likeliest of the options, as `_likeliest` says; or with what `weigh` makes.

    NotStoredError as in `answer_request`.
    """
    if request.prompt is None:
        return _too_long(request)
    continuations = list(request.options.values())
    told = {"id": request.key[0], "unit": stage.unit}
    scored = await stage.completions.score(engine, stage.model, request.prompt, continuations, **told)
    scores = dict(zip(request.options, scored.mean_log_probs, strict=True))
    if not all(map(math.isfinite, scores.values())):  # as a model's damaged logits have it; JSON has no such numbers
        scores = {option: score if math.isfinite(score) else None for option, score in scores.items()}
        chosen = {"value": None, "reason": "the model gives an option no likelihood"}
    elif request.weigh is not None:
        chosen = request.weigh({option: scores[option] * len(tokens) for option, tokens in request.options.items()})
    else:
        chosen = _likeliest(scores, request.options)
    spent = {"prompt_tokens": scored.prompt_tokens, "cached_tokens": scored.cached_tokens, "completion_tokens": 0}
    return {**chosen, **request.record, "mean_log_probs": scores, "attempts": 1, **spent}


def _likeliest(scores: dict[str, float], options: dict[str, array]) -> dict[str, Any]:
    """The likeliest option, of several as likely the first one; but none if another one has the very same tokens.

    Nothing tells such options apart: their scores differ by rounding at most.
    """
    best = max(scores, key=scores.get)
    twins = [option for option in options if options[option] == options[best]]
    if len(twins) > 1:
        return {"value": None, "reason": f"the likeliest options, {' and '.join(twins)}, are the same text"}
    return {"value": best}


def _too_long(request: Request) -> dict[str, Any]:
    return {"value": None, "reason": "the prompt is longer than the model takes", **request.record}


def total(counts: list[int | None]) -> int | None:
    """None where a server did not tell one of them."""
    return None if None in counts else sum(counts)


def describe_records(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What finished records say of the run that made them, for its manifest: of the tokens those of all attempts."""
    records = list(records)
    taken = [FORMATS.index(record["response_format"]) for record in records if "response_format" in record]
    asked = [record.get("refused_parameters", ()) for record in records if "raw" in record]
    names = sorted({name for refused in asked for name in refused})
    # Not a setting: a server's may change from week to week, and what it has answered stays good.
    thought = sum(record.get(THOUGHT_COUNT, 0) for record in records)
    unfinished = sum(record.get("reason") == UNFINISHED for record in records)
    states = {record["system_fingerprint"] for record in records if "system_fingerprint" in record}
    return {
        "tokens": {
            **{name: total([record.get(name, 0) for record in records]) for name in TOKEN_COUNTS},
            **({THOUGHT_COUNT: thought} if thought else {}),
        },
        **({UNFINISHED_COUNT: unfinished} if unfinished else {}),
        "refused_by_server": list(FORMATS[: max(taken, default=0)]),
        # By name how many outputs were asked for without, or by another name, and how many outputs there are.
        "refused_parameters": {name: [sum(name in refused for refused in asked), len(asked)] for name in names},
        "system_fingerprints": sorted(states),
    }


def describe_requests(
    requests: Iterable[Request], chat: Chat, policy: Policy, prices: Prices | None, item_words: str = "posts"
) -> str:
    """What a run would ask (--dry_run): prompts, tokens, what would be cut, the calls, and what they may cost."""
    lengths, over, dropped, cut, options = [], [], 0, 0, 0
    for request in requests:
        if request.prompt is None:
            over.append(str(request.key[0]))
            continue
        lengths.append(chat.length(request.prompt))
        options += len(request.options or ())
        dropped += request.record.get("num_contexts_dropped", 0)
        cut += request.record.get("num_contexts_trimmed", 0) or request.record.get("context_cut", False)
    too_long = f"{len(over)} prompts too long and not asked" + (printable(f": {', '.join(over[:5])}") if over else "")
    calls = (
        f"{len(lengths)} calls, at most {len(lengths) * (policy.max_retries + 1)} with retries; "
        f"at most {policy.max_tokens} tokens an output"
    )
    if prices:
        prompts, outputs = sum(lengths) * prices.input / 1e6, len(lengths) * policy.max_tokens * prices.output / 1e6
        most = prompts + outputs
        calls += f"\n{prompts:.4f} USD for the prompts, at most {most:.4f} with the outputs"
        calls += f", {most * (policy.max_retries + 1):.4f} with retries"
    return (
        f"{len(lengths)} prompts, {sum(lengths)} tokens ({chat.counter}); longest {max(lengths, default=0)}\n"
        f"{dropped} {item_words} left out for length, {cut} cut at the end; {too_long}\n"
        + (f"{options} options, of which no text is generated" if options else calls)
    )
