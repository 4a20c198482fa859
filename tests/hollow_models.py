"""Models of any size: a real config, and sparse weight files with a real header but no numbers."""

import json

SHAPES = {
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152064},
    "32B": {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
            "num_key_value_heads": 8, "vocab_size": 152064},
}  # fmt: skip


def save_hollow(folder, config):
    """Write a model's config and bfloat16 weights with transformers' names and shapes."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    header, end = {}, 0
    for name, parameter in model.named_parameters():
        size = 2 * parameter.numel()
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def save_hollow_qwen(folder, name):
    from transformers import Qwen2Config

    return save_hollow(folder, Qwen2Config(**SHAPES[name], tie_word_embeddings=False))
