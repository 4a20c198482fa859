"""Models in transformers: loading, the choice of attention, LoRA's modules, the loss on targets, and replies.

This module imports torch, transformers and peft.
"""

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from peft import LoraConfig
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
)
from transformers.utils import is_flash_attn_2_available, is_flash_attn_greater_or_equal

from utils.base.errors import UserError, is_first_process
from utils.models.loading import MODEL_FILES, loading

NO_LOSS = -100  # the label of tokens without a loss, by the convention of torch and TRL


def quiet_libraries() -> None:
    """Turn off libraries' progress bars, and show their messages at --log_level; at `warning`, show only errors."""
    level = logging.getLogger().level
    if level >= logging.WARNING:
        level = logging.ERROR
        for name in ("accelerate", "torch"):
            logging.getLogger(name).setLevel(level)
    transformers.logging.set_verbosity(level)
    transformers.logging.disable_progress_bar()


def device_name(count: int) -> str:
    if torch.cuda.is_available():
        return f"{count} x {torch.cuda.get_device_name()}"
    return f"CPU, {len(os.sched_getaffinity(0))} cores" + (f", {count} processes" if count > 1 else "")


def choose_attention(bf16: bool, model_addr: str, source: dict[str, Any]) -> str:
    """Return transformers' fastest attention that is correct for this model; print a note if it is eager."""
    with loading(model_addr, "config.json"):
        config = AutoConfig.from_pretrained(model_addr, **source)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:  # not a causal language model, which load_base reports
        return "sdpa"
    # Unlike vLLM, transformers silently drops a cap on attention scores if a kernel has no such argument.
    is_capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    # If the list lacks flash_attention_2, transformers would download another FlashAttention's code from the hub.
    kernels = getattr(model_class, "_compatible_flash_implementations", None) or ["flash_attention_2"]
    takes_flash = model_class._supports_flash_attn and "flash_attention_2" in kernels
    takes_flash &= not is_capped or is_flash_attn_greater_or_equal("2.6.0")
    if takes_flash and bf16 and is_flash_attn_2_available():
        return "flash_attention_2"
    if model_class._supports_sdpa and not is_capped:
        return "sdpa"
    if is_first_process():
        why = "would leave out its attn_logit_softcapping" if is_capped else "is not supported"
        print(f"note: {model_addr}: sdpa {why}; using eager attention", file=sys.stderr, flush=True)
    return "eager"


def load_base(model_addr: str, source: dict[str, Any], dtype: torch.dtype, attention: str) -> Any:
    """Return a loaded causal language model; UserError for other models, and for pickled or incomplete weights."""
    return _load(AutoModelForCausalLM, model_addr, dtype=dtype, attn_implementation=attention, **source)


def _load(kind: Any, model_addr: str, **settings: Any) -> Any:
    with loading(model_addr, *MODEL_FILES):
        model, report = kind.from_pretrained(model_addr, use_safetensors=True, output_loading_info=True, **settings)
    if missing := sorted(report["missing_keys"]):  # these weights would stay random
        raise UserError(f"{model_addr}: its weights lack {missing[0]}; use a complete model")
    return model


def make_lora_config(args: Namespace, model: Any) -> LoraConfig:
    """Return LoRA's config according to the flags.

    UserError if the model lacks a module that --lora_target_modules names, or if PEFT has no default modules for it.
    """
    modules, model_type = args.lora_target_modules, model.config.model_type
    if modules is None and model_type not in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        raise UserError(f"PEFT has no default modules for {model_type}: name them, --lora_target_modules q_proj v_proj")
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if modules and modules != ["all-linear"] and (unknown := sorted(set(modules) - names)):
        raise UserError(f"--lora_target_modules: {args.model_addr} has no module {', '.join(unknown)}")
    return LoraConfig(
        r=args.lora_rank,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules="all-linear" if modules == ["all-linear"] else modules,
        bias="none",
        task_type="CAUSAL_LM",
    )


def load_encoder_decoder(model_addr: str, source: dict[str, Any], dtype: Any) -> Any:
    """Return a loaded encoder-decoder, such as FlanT5; UserError as in `load_base`, or if it has no start token."""
    model = _load(AutoModelForSeq2SeqLM, model_addr, dtype=dtype, **source)
    start = model.generation_config.decoder_start_token_id
    if type(start) is not int or not 0 <= start < model.config.vocab_size:
        raise UserError(f"{model_addr}: its generation_config.json has no decoder_start_token_id")
    return model


def target_loss(model: Any, labels: torch.Tensor, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy (nats) summed over a batch's target tokens, and how many of them the model ranks first.

    The arguments are those of `target_logits`.
    """
    logits, targets = target_logits(model, labels, **inputs)
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum"), (logits.argmax(-1) == targets).sum()


def target_log_probs(
    model: Any, labels: torch.Tensor, temperatures: torch.Tensor | float = 1.0, **inputs: torch.Tensor
) -> torch.Tensor:
    """Return the log-probabilities (nats) of a batch's N target tokens, shape (N,), one sequence after the other.

    Args:
        temperatures: sampling temperatures (above 0), which divide the logits: one for all tokens, or one each (N,).
        model, labels, inputs: as in `target_logits`.
    """
    logits, targets = target_logits(model, labels, **inputs)
    # In place, because a copy of the logits could take a gigabyte.
    logits = logits.div_(torch.as_tensor(temperatures, device=logits.device).unsqueeze(-1))
    return -torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def target_logits(model: Any, labels: torch.Tensor, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float32 logits (N, vocabulary) that predict a batch's N target tokens, and these tokens (N,).

    Logits are computed only for the targets: with a vocabulary of 152,000 tokens, the logits of 8192 positions would
    take 5 GB. The model's `logits_to_keep` is not used, because it keeps the same positions in all sequences.

    Args:
        model: a model, or one that is wrapped for training on several devices.
        labels: token ids (B sequences, T tokens), with `NO_LOSS` at positions that are not targets.
        inputs: input_ids and, if there is padding, attention_mask, both (B, T).
    """
    labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=NO_LOSS)  # each position predicts the next token
    has_target = labels != NO_LOSS  # (B, T), N of them
    head = getattr(model, "module", model).get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, hidden: hidden[0][has_target][None])  # (1, N, width)
    try:
        logits = model(**inputs, use_cache=False).logits[0].float()  # (N, vocabulary)
    finally:
        hook.remove()
    return logits, labels[has_target]


@torch.no_grad()
def write_reply(model: Any, chat: Any, prompt: Sequence[int], max_tokens: int) -> tuple[torch.Tensor, bool]:
    """Return the token ids of a greedy reply to a prompt (token ids), and whether it was cut at `max_tokens`.

    `chat` is the model's LocalChat.
    """
    ids = torch.tensor([list(prompt)], device=model.device)
    config = GenerationConfig(
        do_sample=False,
        repetition_penalty=1.0,  # a model's own value is not used, as with vLLM
        max_new_tokens=max_tokens,
        eos_token_id=chat.end_of_turn,
        pad_token_id=chat.tokenizer.pad_token_id,
        use_cache=True,
    )
    output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
    reply = output[0, ids.shape[1] :]
    return reply, bool(reply[-1] != chat.end_of_turn)
