"""What a causal language model learns from and writes in an evaluation. It loads torch and transformers."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from utils.training import NO_LOSS


def target_loss(model: Any, labels: torch.Tensor, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy (nats), summed over the target tokens of a batch, and how many of them are the likeliest.

    The model computes logits only at each sequence's own targets: of 8192 tokens and a vocabulary of 152 thousand
    they would take 5 GB. Its `logits_to_keep` names positions for all sequences of a batch together.

    Args:
        model: as it is, or wrapped to be trained on several devices.
        labels: (B, T), `NO_LOSS` where there is no target.
        inputs: input_ids, and attention_mask where there is padding (both (B, T)).
    """
    labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=NO_LOSS)  # each position predicts the next token
    has_target = labels != NO_LOSS  # (B, T), N of them
    head = getattr(model, "module", model).get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, hidden: hidden[0][has_target][None])  # (1, N, width)
    try:
        logits = model(**inputs, use_cache=False).logits[0].float()  # (N, vocabulary)
    finally:
        hook.remove()
    targets = labels[has_target]
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum"), (logits.argmax(-1) == targets).sum()


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
