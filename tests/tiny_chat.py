"""A random Qwen 2 and a random Gemma 2 with chat templates, small enough to build and train in a test."""

import json
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).parent / "data" / "mini_lampqa"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def save_tiny_chat(folder: Path, seed: int = 0, hidden_size: int = 128, max_positions: int = 4096) -> Path:
    """Write config, weights (float32 safetensors) and a tokenizer learnt from the sample data; returns the folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=hidden_size // 64,  # vLLM's CPU attention knows heads of 64
        num_key_value_heads=hidden_size // 64,
        max_position_embeddings=max_positions,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def save_tiny_gemma(folder: Path, **settings: Any) -> Path:
    """Write a random Gemma 2 with two layers, the first with a sliding window, and low caps that have a large effect.

    Like the real model's, its chat template refuses a system message.
    """
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    tokenizer = make_tokenizer()
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer.chat_template = refusal + TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "query_pre_attn_scalar": 16,
        "sliding_window": 16,
        "attn_logit_softcapping": 1.0,
        "final_logit_softcapping": 2.0,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
    }
    Gemma2ForCausalLM(Gemma2Config(**config | settings)).save_pretrained(folder)
    return folder


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=[PAD, START, END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([(SAMPLE / "train.json").read_text(encoding="utf-8")], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.chat_template = TEMPLATE
    return fast


def sample_records(name: str, number: int, num_posts: int = 2, **fields: Any) -> list[dict[str, Any]]:
    """Return the first records of a sample file, with few and short posts to make training steps fast."""
    records = json.loads((SAMPLE / f"{name}.json").read_text(encoding="utf-8"))[:number]
    for record in records:
        record["profile"] = [{**post, "text": post["text"][:80]} for post in record["profile"][:num_posts]]
        record.update(fields)
    return records
