"""Models with random weights for GPU tests: as large as real ones, made in seconds, nothing downloaded.

  python tests/gpu/gpu_models.py generator 7B FOLDER cuda

Each is made in a separate process, because drawing weights needs GPU memory.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hollow_models import SHAPES

ROOT = Path(__file__).resolve().parents[2]
CHAT, ENCODER = ROOT / "demo/models/chat", ROOT / "demo/models/encoder"
TINY = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 49664}  # fmt: skip
TINY_ENCODER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
GENERATORS = {"7B": SHAPES["7B"], "tiny": TINY}
ENCODERS = {"contriever": {}, "tiny": TINY_ENCODER}  # BertConfig's own sizes are Contriever's
T5 = {"flan-t5-base": {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}, "tiny": {}}
SHARD = 2 * 10**9  # bytes of weights in a file
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "*.jinja")


def save_generator(folder: Path, shape: str, device: str) -> None:
    """Save a Qwen 2.5 in bf16 with random weights and the demo's tokenizer, which has fewer tokens than the model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    copy_tokenizer(CHAT, folder)
    end = AutoTokenizer.from_pretrained(folder).eos_token_id
    config = Qwen2Config(
        **GENERATORS[shape], tie_word_embeddings=False, max_position_embeddings=32768, dtype="bfloat16",
        bos_token_id=None, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    torch.manual_seed(0)
    write_shards(folder, {name: parameter.shape for name, parameter in model.named_parameters()}, device)


def write_shards(folder: Path, shapes: dict[str, Any], device: str) -> None:
    """Write files of about `SHARD` bytes with their index; only one is in memory at a time."""
    from safetensors.torch import save_file

    shards, size = [[]], 0
    for name, shape in shapes.items():
        if size >= SHARD:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += 2 * shape.numel()
    place_of = {}
    for number, names in enumerate(shards, 1):
        place = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: draw(name, shapes[name], device) for name in names}, folder / place, {"format": "pt"})
        place_of |= dict.fromkeys(names, place)
    index = {"metadata": {}, "weight_map": place_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def draw(name: str, shape: Any, device: str) -> Any:
    """Return a random matrix; a norm's factors are 1, a bias is 0."""
    import torch

    values = torch.empty(shape, dtype=torch.bfloat16, device=device)
    return (values.normal_(0, 0.02) if len(shape) > 1 else values.fill_(not name.endswith("bias"))).cpu()


def save_encoder(folder: Path, shape: str, _: str) -> None:
    """Save a random BERT with the demo encoder's vocabulary, which is BERT's."""
    import torch
    from transformers import BertConfig, BertModel

    copy_tokenizer(ENCODER, folder)
    torch.manual_seed(0)
    BertModel(BertConfig(**ENCODERS[shape]), add_pooling_layer=False).save_pretrained(folder)


def save_t5(folder: Path, shape: str, _: str) -> None:
    from tiny_t5 import save_tiny_t5

    save_tiny_t5(folder, **T5[shape])


def save_adapter(folder: Path, shape: str, _: str) -> None:
    """Save a random LoRA adapter on the demo's chat model, strong enough to differ from the base."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(CHAT, dtype=torch.bfloat16)
    config = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(folder)


def copy_tokenizer(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in (path for pattern in TOKENIZER_FILES for path in source.glob(pattern)):
        shutil.copy(path, folder)


if __name__ == "__main__":
    kind, shape, folder, device = sys.argv[1:]
    save = {
        "generator": save_generator, "encoder": save_encoder, "t5": save_t5,
        "adapter": save_adapter,
    }[kind]  # fmt: skip
    save(Path(folder), shape, device)
