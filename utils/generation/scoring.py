"""Likelihoods of continuations by vLLM, whose prefix cache computes the shared prompt only once.

vLLM 0.32 uses that cache for a request with `prompt_logprobs` only if `skip_reading_prefix_cache` is False. It then
returns log-probabilities only for tokens after the cached ones; for cached tokens, it returns none or meaningless
numbers. The continuations therefore form a tree: the prompt is its root, and a node is a common beginning of several
continuations, or a whole one. Each node is one request. Its `prompt_logprobs` give the likelihoods of the node's own
tokens, which no earlier request has, so they are not in the cache. Its `logprob_token_ids` give the likelihood of each
token that may follow the node. A later request might not return these, because a cache block may end after them.

The logits of a whole prompt are never in memory: for 32,000 tokens and a vocabulary of 150,000, they would take 20 GB.

vLLM 0.32's second model runner, used on GPUs, may return `prompt_logprobs` of other tokens, because it reads them from
a buffer that later requests change (vLLM's pull request 44106). vLLM also returns the token ids; if one is wrong, the
node's tokens are requested one by one.
"""

import asyncio
import functools
import sys
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

from utils.base.errors import UserError
from utils.generation.requests import Scored

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams

FIRST_RUNNER = "VLLM_USE_V2_MODEL_RUNNER=0"  # vLLM's environment variable for the model runner used on CPUs

Tokens = tuple[int, ...]
Ask = Callable[[Tokens, "SamplingParams"], Awaitable["RequestOutput"]]  # sends token ids to the engine


async def score_continuations(
    ask: Ask, prompt: array, continuations: Sequence[array], by_token: bool = False
) -> Scored:
    """Return each continuation's mean log-probability per token after `prompt`.

    Args:
        continuations: token ids, at least one each.
        by_token: make each token a node. That takes far more requests, but no `prompt_logprobs`, with which vLLM 0.32
            crashes if it serves a LoRA adapter on a CPU.

    UserError if the engine does not return the log-probability of a requested token.
    """
    start = tuple(prompt)
    results: list[RequestOutput] = []

    async def score(scored: Tokens, node: Tokens, group: list[Tokens]) -> dict[Tokens, float]:
        """Return, by continuation in `group`, the summed log-probability of its tokens after its beginning `scored`."""
        size = len(node)
        branches = {first: list(part) for first, part in groupby(group, key=lambda tokens: tokens[size : size + 1])}
        complete = branches.pop((), [])
        own_sum, totals, next_logprobs = 0.0, {}, {}
        if branches or size > len(scored):
            result = await _ask_node(ask, start, scored, node, [first for [first] in branches], results)
            next_logprobs = {first: _next_logprob(result, first) for [first] in branches}
            if size > len(scored):
                own_sum = await _sum_own(ask, start, scored, node, result, results)
        ends = {first: node + first if by_token else _shared(part) for first, part in branches.items()}
        sums = await asyncio.gather(*(score(node + first, ends[first], part) for first, part in branches.items()))
        for [first], rests in zip(branches, sums, strict=True):
            totals |= {tokens: own_sum + next_logprobs[first] + rest for tokens, rest in rests.items()}
        return totals | dict.fromkeys(complete, own_sum)

    sums = await score((), (), sorted(set(map(tuple, continuations))))
    return Scored(
        [sums[tuple(tokens)] / len(tokens) for tokens in continuations],
        prompt_tokens=sum(len(result.prompt_token_ids) for result in results),
        cached_tokens=sum(result.num_cached_tokens or 0 for result in results),
    )


def split_shared(texts: Mapping[str, array]) -> tuple[array, dict[str, array]]:
    """Split texts (token ids) into their common beginning and the rest of each text, by name.

    The shared beginning can be appended to a prompt; the rests are then the options. If a token combines a space and a
    digit, it belongs to the option.
    """
    size = len(_shared(sorted(map(tuple, texts.values()))))
    [begin, *_] = (tokens[:size] for tokens in texts.values())
    return begin, {name: tokens[size:] for name, tokens in texts.items()}


def _shared(group: list[Tokens]) -> Tokens:
    """Return the common beginning of all tuples in a sorted list: of its first and its last one."""
    pairs = zip(group[0], group[-1], strict=False)
    return tuple(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


async def _ask_node(
    ask: Ask, prompt: Tokens, scored: Tokens, node: Tokens, nexts: list[int], results: list["RequestOutput"]
) -> "RequestOutput":
    """Return the result of a node's request: likelihoods of `nexts` after it, and of its own tokens after `scored`."""
    wanted: dict[str, Any] = {"logprob_token_ids": nexts or None}
    if len(node) > len(scored):
        wanted |= {"prompt_logprobs": 0, "flat_logprobs": True}  # at each position, only for the token there
    results.append(await ask(prompt + node, _params(**wanted, skip_reading_prefix_cache=False)))
    if len(node) > len(scored) and (results[-1].num_cached_tokens or 0) >= len(prompt) + len(scored):
        # The node's own tokens are in the cache, because another question has the same prompt and option.
        results.append(await ask(prompt + node, _params(**wanted, skip_reading_prefix_cache=True)))
    return results[-1]


async def _sum_own(
    ask: Ask, prompt: Tokens, scored: Tokens, node: Tokens, result: "RequestOutput", results: list["RequestOutput"]
) -> float:
    """Return the summed log-probability of a node's own tokens, from `result`, or token by token if that is wrong."""
    own, returned = node[len(scored) :], result.prompt_logprobs
    if tuple(returned.token_ids[-len(own) :]) == own:
        return sum(returned.logprobs[-len(own) :])
    _say_slower()
    before = [node[:size] for size in range(len(scored), len(node))]
    singly = await asyncio.gather(
        *(_ask_node(ask, prompt, tokens, tokens, [token], results) for tokens, token in zip(before, own, strict=True))
    )
    return sum(_next_logprob(single, token) for single, token in zip(singly, own, strict=True))


def _next_logprob(result: "RequestOutput", token: int) -> float:
    """Return the log-probability of a token after the request's tokens; UserError if the result lacks it."""
    [logprobs, *_] = result.outputs[0].logprobs or [{}]
    if token not in logprobs:
        raise UserError(f"vLLM did not return the requested log-probability of token {token}; set {FIRST_RUNNER}")
    return logprobs[token].logprob


@functools.cache
def _say_slower() -> None:
    print(
        "note: vLLM returned log-probabilities of the wrong tokens; the right ones are requested one by one, "
        f"which is slower (set {FIRST_RUNNER} to avoid it)",
        file=sys.stderr,
    )


def _params(**wanted: Any) -> "SamplingParams":
    """Return vLLM's parameters for a request; vLLM generates at least one token, which is ignored."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    # No detokenizing: cached positions may hold numbers that are not token ids.
    kind = RequestOutputKind.FINAL_ONLY
    return SamplingParams(temperature=0, max_tokens=1, detokenize=False, output_kind=kind, **wanted)
