"""The demo's model as one that ends early: its turn is over where a sentence of it would be, and so is a JSON object.

So a run with default flags, which leave an output 2048 tokens, takes seconds.
"""

from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent / "demo/models/chat"
# What outdoes which token, by what factor; with the last one free texts lose their commas, and may not end.
ENDS = (("<|im_end|>", ".", 1.8), ('"}', ".", 1.5), ('"', ".", 1.3))
END_OF_LIST = ("]}", ",", 1.3)


def save_early_chat(folder: Path, ends_lists: bool = False) -> Path:
    """Write it, with `ends_lists` so that it ends a list of JSON objects at the first; returns the folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(DEMO), AutoTokenizer.from_pretrained(DEMO)
    weights = model.get_input_embeddings().weight  # the output's too
    with torch.no_grad():
        for *tokens, factor in (*ENDS, END_OF_LIST) if ends_lists else ENDS:
            [end], [other] = (tokenizer.encode(token, add_special_tokens=False) for token in tokens)
            weights[end] = factor * weights[other]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
