"""Fusion in decoder: a prompt of several passages, each encoded by itself, and one decoder that attends to all of them.

A passage is the question with one item of the profile. What the encoder does grows with their number, not with its
square, and a weight is shared by all of them: any encoder-decoder of transformers does it, and is saved as it is.

Imported by what has loaded a model, for it loads torch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput


def pad_passages(prompts: Sequence[Sequence[Sequence[int]]], pad: int, device: Any) -> dict[str, torch.Tensor]:
    """Prompts of passages as one batch: `input_ids` and `attention_mask`, both (prompts, passages, tokens).

    A prompt with fewer passages than another has empty ones, whose mask is 0 throughout.
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
    """What a model is called with in place of a batch of `pad_passages`, or asked to `generate` from.

    Returns:
        `encoder_outputs`, with all passages of a prompt behind each other (B, P * T, width), and their `attention_mask`
        (B, P * T). Empty passages are not encoded.
    """
    batch, passages, length = input_ids.shape
    rows, masks = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
    used = masks.any(1)
    found = model.get_encoder()(input_ids=rows[used], attention_mask=masks[used]).last_hidden_state
    states = found
    if not used.all():
        states = found.new_zeros(len(rows), *found.shape[1:]).masked_scatter(used[:, None, None], found)
    states = states.view(batch, passages * length, -1)
    return {"encoder_outputs": BaseModelOutput(states), "attention_mask": masks.view(batch, -1)}
