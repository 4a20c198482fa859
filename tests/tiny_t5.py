"""A random T5 built like FlanT5, small enough to build and train in a test; `python tests/tiny_t5.py FOLDER`."""

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"


def save_tiny_t5(folder: Path, seed: int = 0, **settings: Any) -> Path:
    """Write config, weights (float32 safetensors) and a tokenizer of the words in LaMP's samples; return the folder.

    Without dropout unless `settings` has it, because trainings are compared.
    """
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_tiny_t5(len(tokenizer), seed, **settings).save_pretrained(folder)
    return folder


def make_tiny_t5(vocab_size: int = 128, seed: int = 0, **settings: Any) -> Any:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    config = {
        "vocab_size": vocab_size,
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "dropout_rate": 0.0,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    model = T5ForConditionalGeneration(T5Config(**config | settings)).eval()
    # As in FlanT5, the output layer is not the embedding; transformers ties the two unless they differ.
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight) * 0.1)
    return model


def make_tokenizer() -> Any:
    """Return a tokenizer with all words of the samples, with leading spaces like T5's, and their characters.

    Counted here, because the tokenizer trainer gives another vocabulary each time.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = Counter()
    for path in sorted((DATA / "mini_lamp").glob("LaMP_*/*.json")):
        for text in texts_of(json.loads(path.read_text(encoding="utf-8"))):
            pieces.update(f"▁{word}" for word in text.split())
    characters = sorted({character for piece in pieces for character in piece})
    rarely = -math.log(pieces.total())
    scores = {**dict.fromkeys([PAD, END, UNKNOWN], 0.0), **dict.fromkeys(characters, 2 * rarely)}
    scores |= {piece: math.log(number) + rarely for piece, number in pieces.items()}
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=2))
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)


def texts_of(value: Any) -> list[str]:
    """Yield every text in JSON data."""
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for one in values for text in texts_of(one)]


if __name__ == "__main__":
    save_tiny_t5(Path(sys.argv[1]))
