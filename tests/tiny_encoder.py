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


def save_tiny_xlm_roberta(folder: Path, max_positions: int = 8194) -> Path:
    """Write a random XLM-R with two layers and BGE-M3's positions; its tokens are the words in `WORDS`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    vocabulary = {
        word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *sorted(set(WORDS.split()))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **names).save_pretrained(folder)
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=max_positions,
        type_vocab_size=1,
        initializer_range=0.3,
    )
    XLMRobertaModel(config).save_pretrained(folder)
    return folder


def save_pooling(folder: Path, *types: str, **config: object) -> Path:
    """Write sentence-transformers' files beside a model: layers by type name, and pooling."""
    package = "sentence_transformers.models"
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": i, "name": str(i), "path": paths.get(kind, f"{i}_{kind}"), "type": f"{package}.{kind}"}
        for i, kind in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder
