"""The demo's chat model, changed to stop early.

It ends its turn after a sentence, and closes a JSON object early, so that a run with the default of 2048 tokens takes
seconds.
"""

from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent / "demo/models/chat"
# Token, other token, factor: the first gets the weights of the other times the factor, so that it is likelier.
ENDS = (("<|im_end|>", ".", 1.8), ('"}', ".", 1.5), ('"', ".", 1.3))
# Only for lists: free text would lose its commas, and might never end.
END_OF_LIST = ("]}", ",", 1.3)


def save_early_chat(folder: Path, ends_lists: bool = False) -> Path:
    """Save the model and return its folder. With `ends_lists`, a list of JSON objects ends early too."""
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
