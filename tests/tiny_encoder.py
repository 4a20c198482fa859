"""A random BERT of two layers, small enough to build in a test."""

import json
from pathlib import Path

WORDS = "how to play chess in the old town cat sat on mat why is bread music guitar history of rome"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
VOCABULARY = [*SPECIAL, *".,?!'0123456789猫音楽", *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS.split()]


def save_tiny_encoder(folder: Path, seed: int = 0, max_positions: int = 512) -> Path:
    """Write config, weights (safetensors) and a WordPiece tokenizer; returns the folder."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=max_positions,
        initializer_range=0.3,  # wide, so that different texts lie far apart
    )
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": max_positions}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
