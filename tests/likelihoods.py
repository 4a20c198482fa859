"""Likelihoods of texts by transformers in fp32, to compare with vLLM's."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prompts import Messages


def mean_log_probs(
    folder: Path, asked: Iterable[tuple[Messages, Mapping[str, str]]]
) -> Iterator[tuple[dict[str, float], int]]:
    """Return the mean log-probability per token of each text after a conversation, and its length in tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for messages, options in asked:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        begin, means = tokenizer.encode(text, add_special_tokens=False), {}
        with torch.inference_mode():
            found = model(torch.tensor([begin]), logits_to_keep=1, use_cache=True)
            for name, option in options.items():
                ids = tokenizer.encode(option, add_special_tokens=False)
                behind = model(torch.tensor([ids]), past_key_values=found.past_key_values).logits[0, :-1]
                found.past_key_values.crop(-len(ids))
                logits = torch.cat([found.logits[0], behind])
                means[name] = logits.log_softmax(-1)[range(len(ids)), ids].mean().item()
        yield means, len(begin)
