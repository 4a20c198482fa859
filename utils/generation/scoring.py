"""Likelihoods of continuations by vLLM, whose prefix cache has the prompt that they share computed once.

vLLM 0.32 reads that cache for a request with `prompt_logprobs` only if `skip_reading_prefix_cache` is False; then it
gives log-probabilities of the tokens behind what was cached, and for those before it none or meaningless numbers. So a
first request has the prompt alone computed, and gives the log-probabilities of the continuations' first tokens; one
request a continuation gives those of its further tokens, for which only these are computed. Nor are the logits of a
whole prompt ever held, which would be 20 GB for 32,000 tokens and a vocabulary of 150,000.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from utils.generation.requests import Scored

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams

Ask = Callable[[Sequence[int], "SamplingParams"], Awaitable["RequestOutput"]]  # token ids, and what is wanted of them


async def score_continuations(ask: Ask, prompt: array, continuations: Sequence[array]) -> Scored:
    """The mean log-probability of each continuation's tokens, of which it has one at least, behind `prompt`."""
    firsts = sorted({tokens[0] for tokens in continuations})
    begun = await ask(prompt, _params(logprob_token_ids=firsts))
    first_log_probs = begun.outputs[0].logprobs[0]
    longer = [tokens for tokens in continuations if len(tokens) > 1]
    answers = await asyncio.gather(*(_score_rest(ask, prompt, tokens) for tokens in longer))
    rests = iter(answers)
    totals = [
        first_log_probs[tokens[0]].logprob + (next(rests)[0] if len(tokens) > 1 else 0) for tokens in continuations
    ]
    results = [begun, *(result for _, its_results in answers for result in its_results)]
    return Scored(
        [total / len(tokens) for total, tokens in zip(totals, continuations, strict=True)],
        prompt_tokens=sum(len(result.prompt_token_ids) for result in results),
        cached_tokens=sum(result.num_cached_tokens or 0 for result in results),
    )


async def _score_rest(ask: Ask, prompt: array, tokens: array) -> tuple[float, list["RequestOutput"]]:
    """The sum over a continuation's tokens but its first one, and what was asked for it."""
    wanted = {"prompt_logprobs": 0, "flat_logprobs": True}  # of each position the one of its own token
    results = [await ask(prompt + tokens, _params(**wanted, skip_reading_prefix_cache=False))]
    if (results[0].num_cached_tokens or 0) > len(prompt):
        # Another continuation begins with the same tokens, and was computed before.
        results.append(await ask(prompt + tokens, _params(**wanted, skip_reading_prefix_cache=True)))
    return sum(results[-1].prompt_logprobs.logprobs[1 - len(tokens) :]), results


def _params(**wanted: Any) -> "SamplingParams":
    """For a prompt; vLLM generates one token at least, which nobody reads."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    # Without text: what stands for tokens that were cached may be no token's number.
    kind = RequestOutputKind.FINAL_ONLY
    return SamplingParams(temperature=0, max_tokens=1, detokenize=False, output_kind=kind, **wanted)
