"""Beam search with an encoder-decoder, in batches of prompts of similar length. It imports torch.

Fusion in decoder: a prompt has several passages, each encoded separately, and one decoder attends to all of them. A
passage is the question with one item of the profile. The encoder's work grows linearly with the number of passages.
The weights are unchanged, so that any encoder-decoder of transformers can do this and is saved as usual.
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
SCORES = 3  # copies of the encoder's attention scores: the positions' bias, the softmax and its input


def pad_passages(prompts: Sequence[Sequence[Sequence[int]]], pad: int, device: Any) -> dict[str, torch.Tensor]:
    """Return prompts of passages as one batch: `input_ids` and `attention_mask`, both (prompts, passages, tokens).

    Prompts with fewer passages are filled up with empty ones, masked by 0.
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
        `encoder_outputs`, with all passages of a prompt concatenated (B, P * T, width), and their `attention_mask`
        (B, P * T). Empty passages are not encoded.
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
    memory: float = math.inf  # bytes, for the larger of caches and scores, which are not needed at the same time
    cache_bytes: int = 0  # in the decoder's caches, per token read or written, over all beams
    score_bytes: int = 0  # in the encoder, per token and token of its passage
    written: int = 0  # most tokens of an answer

    def holds(self, prompts: Sequence[Sequence[Sequence[int]]]) -> bool:
        """Return whether these prompts of passages fit together."""
        longest = max(len(part) for parts in prompts for part in parts)
        tokens = len(prompts) * max(map(len, prompts)) * longest
        cache = (tokens + len(prompts) * self.written) * self.cache_bytes
        fits = max(cache, tokens * longest * self.score_bytes) <= self.memory
        return fits and len(prompts) <= self.prompts and tokens <= self.tokens


def room_of(model: Any, num_beams: int, written: int) -> Room:
    """Return a batch's limits: fixed ones on a CPU, whose caches are small, else by half of the GPU's free memory.

    The memory per token follows from the model's shape: for each beam, a key and a value in each decoder layer, and an
    encoder state.
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
    """Yield batches of prompts' numbers, longest prompts first, each as large as `room` allows."""
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
    """Return each prompt's likeliest text by beam search, as token ids without padding, and whether it was cut.

    A text does not depend on the rest of the batch, except by rounding if two texts are equally likely.

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
