"""Beam search with an encoder-decoder, in batches of prompts of similar length. This module imports torch.

Fusion in decoder: a prompt has several passages, each encoded separately, and one decoder attends to all of them. A
passage is the question with one item of the profile. The encoder's work grows linearly with the number of passages.
The model itself is unchanged, so any encoder-decoder of transformers can be used, and is saved as usual.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.modeling_outputs import BaseModelOutput

from utils.generation.requests import Passages, passages_of

CUDA_TOKENS, CUDA_PROMPTS = 131_072, 256  # smaller batches do not keep a GPU busy
CUDA_SHARE = 1 / 2  # share of the free memory to use; a step's computation and fragmentation need the rest
SCORES = 3  # arrays of the encoder's attention scores in memory: position bias, the softmax's input, and its output


def pad_passages(prompts: Sequence[Sequence[Sequence[int]]], pad: int, device: Any) -> dict[str, torch.Tensor]:
    """Return prompts of passages as one batch: `input_ids` and `attention_mask`, both (prompts, passages, tokens).

    Passages are padded to the longest one, and prompts with empty passages; the mask is 0 for all padding.
    """
    most = max(map(len, prompts))
    longest = max(len(passage) for passages in prompts for passage in passages)
    input_ids = torch.full((len(prompts), most, longest), pad)
    attention_mask = torch.zeros_like(input_ids)
    for number, passages in enumerate(prompts):
        for place, passage in enumerate(passages):
            input_ids[number, place, : len(passage)] = torch.tensor(list(passage))
            attention_mask[number, place, : len(passage)] = 1
    return {"input_ids": input_ids.to(device), "attention_mask": attention_mask.to(device)}


def fuse(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, Any]:
    """Encode a batch of `pad_passages`, as arguments for the model's forward pass or `generate`.

    Returns:
        `encoder_outputs`, with all passages of a prompt concatenated (prompts, passages * tokens, width), and their
        `attention_mask` (prompts, passages * tokens). Empty passages are not encoded; their states are 0.
    """
    batch, passages, length = input_ids.shape
    rows, masks = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
    used = masks.any(1)
    encoded = model.get_encoder()(input_ids=rows[used], attention_mask=masks[used]).last_hidden_state
    states = encoded
    if not used.all():
        states = encoded.new_zeros(len(rows), *encoded.shape[1:]).masked_scatter(used[:, None, None], encoded)
    states = states.view(batch, passages * length, -1)
    return {"encoder_outputs": BaseModelOutput(states), "attention_mask": masks.view(batch, -1)}


@dataclass(frozen=True)
class Room:
    """The limits of a batch; a batch of one prompt may exceed them."""

    prompts: int = 64
    tokens: int = 16_384  # tokens read, including padding
    memory: float = math.inf  # bytes that caches or scores may take; they are not needed at the same time
    cache_bytes: int = 0  # bytes of the decoder's caches per token read or written, over all beams
    score_bytes: int = 0  # bytes of the encoder's scores per pair of tokens of one passage
    written: int = 0  # most tokens of an answer

    def holds(self, prompts: Sequence[Sequence[Sequence[int]]]) -> bool:
        """Return whether these prompts of passages fit together."""
        longest = max(len(part) for parts in prompts for part in parts)
        tokens = len(prompts) * max(map(len, prompts)) * longest
        cache = (tokens + len(prompts) * self.written) * self.cache_bytes
        fits = max(cache, tokens * longest * self.score_bytes) <= self.memory
        return fits and len(prompts) <= self.prompts and tokens <= self.tokens


def room_of(model: Any, num_beams: int, written: int) -> Room:
    """Return a batch's limits; on a GPU, they depend on its free memory: a batch may take half of that.

    The decoder's caches have, per token and beam, a key and a value in each layer, and an encoder state. On a CPU, the
    limits are fixed, because such small batches have small caches.
    """
    if model.device.type != "cuda":
        return Room()
    config, size = model.config, model.dtype.itemsize
    heads = config.num_attention_heads
    width = heads * (getattr(config, "d_kv", None) or config.hidden_size // heads)
    names = ("num_decoder_layers", "decoder_layers", "num_hidden_layers")
    layers = next(getattr(config, name) for name in names if getattr(config, name, None))
    free, _ = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)  # reserved but unused
    cache_bytes = num_beams * (2 * layers * width + config.hidden_size) * size
    return Room(CUDA_PROMPTS, CUDA_TOKENS, free * CUDA_SHARE, cache_bytes, SCORES * heads * size, written)


def padded_length(prompt: Any) -> int:
    """Return the number of tokens, including padding, that a prompt takes alone in a batch."""
    parts = passages_of(prompt)
    return len(parts) * max(map(len, parts))


def batches(prompts: Sequence[Any], room: Room) -> Iterator[list[int]]:
    """Yield batches as lists of indexes into `prompts`, longest prompts first, each as large as `room` allows."""
    order = sorted(range(len(prompts)), key=lambda number: -padded_length(prompts[number]))
    while order:
        parts = [passages_of(prompts[number]) for number in order[: room.prompts]]
        size = 1
        while size < len(parts) and room.holds(parts[: size + 1]):
            size += 1
        yield order[:size]
        order = order[size:]


@torch.no_grad()
def write(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int] | Passages],
    num_beams: int,
    max_tokens: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[tuple[list[int], bool]]:
    """Return, for each prompt, the token ids of the best text that beam search finds, and whether the text was cut.

    The ids have no padding. A text does not depend on the rest of the batch, except if two texts are equally likely:
    rounding may then decide between them.

    Args:
        stop: called at each token; generation ends once it returns True.
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

    generated = model.generate(
        **fuse(model, **batch), generation_config=config, stopping_criteria=StoppingCriteriaList([is_stopped])
    )
    texts = [ids[1:] for ids in generated.tolist()]  # without the decoder's start token
    end = tokenizer.eos_token_id
    return [(ids[: ids.index(end)], False) if end in ids else (ids, True) for ids in texts]
