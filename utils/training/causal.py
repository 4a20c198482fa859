"""What a causal language model learns from and writes in an evaluation. It loads torch and transformers."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from utils.training import NO_LOSS


def target_loss(model: Any, labels: torch.Tensor, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy (nats), summed over the target tokens of a batch, and how many of them are the likeliest.

    Only where a sequence of the batch has a target does the model compute logits: of 8192 tokens and a vocabulary of
    152 thousand they would take 5 GB.

    Args:
        labels: (B, T), `NO_LOSS` where there is no target.
        inputs: input_ids, and attention_mask where there is padding (both (B, T)).
    """
    labels = labels[:, 1:]  # each position predicts the next token
    positions = (labels != NO_LOSS).any(0).nonzero().flatten()  # (P,)
    logits = model(**inputs, logits_to_keep=positions, use_cache=False).logits.float()  # (B, P, vocabulary)
    targets = labels[:, positions]
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=NO_LOSS, reduction="sum"
    )
    return loss, (logits.argmax(-1) == targets).sum()


@torch.no_grad()
def write_greedily(model: Any, chat: Any, prompt: Sequence[int], max_tokens: int) -> tuple[torch.Tensor, bool]:
    """The greedy reply to a prompt, as token ids, and whether it was cut; `chat` is the model's LocalChat."""
    ids = torch.tensor([list(prompt)], device=model.device)
    config = GenerationConfig(
        do_sample=False,
        repetition_penalty=1.0,  # some models' own settings have another; vLLM is asked without
        max_new_tokens=max_tokens,
        eos_token_id=chat.end_of_turn,
        pad_token_id=chat.tokenizer.pad_token_id,
        use_cache=True,
    )
    output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
    reply = output[0, ids.shape[1] :]
    return reply, bool(reply[-1] != chat.end_of_turn)
