"""Texts that an encoder-decoder writes by beam search, a batch of like length at a time. It loads torch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteriaList

from utils.generation.fusion import fuse, pad_passages
from utils.generation.plain_text import Passages, passages_of

BATCH_TOKENS = 16_384  # that a batch may have, with its padding; of one prompt more
BATCH_PROMPTS = 64


def padded_length(prompt: Any) -> int:
    """Tokens that a prompt takes alone in a batch."""
    parts = passages_of(prompt)
    return len(parts) * max(map(len, parts))


def batches(prompts: Sequence[Any]) -> Iterator[list[int]]:
    """The numbers of the prompts, the longest first, in batches that have room for as many of the first one's shape."""
    order = sorted(range(len(prompts)), key=lambda number: -padded_length(prompts[number]))
    while order:
        parts = [passages_of(prompts[number]) for number in order[:BATCH_PROMPTS]]
        size = 1
        while size < len(parts) and _tokens(parts[: size + 1]) <= BATCH_TOKENS:
            size += 1
        yield order[:size]
        order = order[size:]


def _tokens(prompts: Sequence[Sequence[Sequence[int]]]) -> int:
    return len(prompts) * max(map(len, prompts)) * max(len(part) for parts in prompts for part in parts)


@torch.no_grad()
def write(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int] | Passages],
    num_beams: int,
    max_tokens: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[tuple[list[int], bool]]:
    """The likeliest text of each prompt by beam search, as token ids without padding, and whether it was cut.

    What they are called together changes none of them, but for what rounding does to two that are as likely.

    Args:
        stop: asked at each token; once it says so, what is written is cut.
    """
    batch = pad_passages([passages_of(prompt) for prompt in prompts], tokenizer.pad_token_id, model.device)
    config = GenerationConfig(
        num_beams=num_beams,
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=model.generation_config.decoder_start_token_id,
        use_cache=True,
    )

    def is_stopped(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(ids),), stop(), device=ids.device)

    found = model.generate(
        **fuse(model, **batch), generation_config=config, stopping_criteria=StoppingCriteriaList([is_stopped])
    )
    texts = [ids[1:] for ids in found.tolist()]  # behind the token that begins all
    ended = [tokenizer.eos_token_id in ids for ids in texts]
    kept = [
        ids[: ids.index(tokenizer.eos_token_id)] if has_end else ids for ids, has_end in zip(texts, ended, strict=True)
    ]
    return [(ids, not has_end) for ids, has_end in zip(kept, ended, strict=True)]
