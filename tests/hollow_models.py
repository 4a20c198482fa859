"""Models of any size: a real config, and weights that are files with a real header and a hole for the numbers."""

import json

SHAPES = {
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152064},
    "32B": {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
            "num_key_value_heads": 8, "vocab_size": 152064},
}  # fmt: skip


def save_hollow(folder, config):
    """Config and weights in bfloat16 of a model as transformers names and shapes them."""
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
