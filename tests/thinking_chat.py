"""The demo's model changed to think: its template opens a thought, which ends after a sentence.

The command `python tests/thinking_chat.py FOLDER '[[tokens, schema, parser, opened], ...]'` lets this model answer one
question with these settings, and prints the completions.
"""

import asyncio
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo/models/chat"
MARKS = ("<think>", "</think>")


def save_thinking_chat(folder: Path) -> Path:
    """Write the model and return its folder; the token `</think>` replaces the full stop by being likelier."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DEMO)
    tokenizer = save_thinking_tokenizer(folder)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    weights = model.get_input_embeddings().weight  # the output's too
    [stop] = tokenizer.encode(".", add_special_tokens=False)
    with torch.no_grad():
        weights[tokenizer.convert_tokens_to_ids("</think>")] = 1.3 * weights[stop]
    model.save_pretrained(folder)
    return folder


def save_tiny_thinker(folder: Path, opening: str = "<think>\n", **settings: int) -> Path:
    """Write a random model with this template, for tests that load no weights."""
    from tiny_chat import save_tiny_chat
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(save_tiny_chat(folder, **settings))
    tokenizer.add_tokens(list(MARKS))
    end = "<|im_start|>assistant\n{% endif %}"
    assert tokenizer.chat_template.endswith(end)
    tokenizer.chat_template = tokenizer.chat_template.removesuffix(end) + end.replace("{%", f"{opening}{{%")
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(tokenizer)}))
    return folder


def save_thinking_tokenizer(folder: Path, opening: str = "<think>\n"):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    tokenizer.add_tokens(list(MARKS))
    assistant = "{{ '<|im_start|>assistant\n' }}"
    assert assistant in tokenizer.chat_template
    begun = "{{ '<|im_start|>assistant\n" + opening.replace("\n", "\\n") + "' }}"
    tokenizer.chat_template = tokenizer.chat_template.replace(assistant, begun)
    tokenizer.save_pretrained(folder)
    return tokenizer


def main(folder: str, asked: str) -> None:
    import baselines
    from utils.generation.chat import LocalChat
    from utils.generation.requests import Sampling
    from utils.generation.thinking import find_thoughts
    from utils.generation.vllm_engine import VLLMEngine
    from utils.models.model_folder import ModelFolder

    args = baselines.build_parser().parse_args(
        ["--model_addr", folder, "--inputs_addr", "a", "--output_addr", "b", "--dtype", "float32"]
    )
    model = ModelFolder(folder)
    chat = LocalChat(model)
    args = args.replaced(reasoning_parser=find_thoughts(args, chat, folder, {}).parser)
    engine = VLLMEngine(args, [model], 512)
    prompt = chat.render([{"role": "user", "content": "What is the capital of France?"}])

    async def complete_all() -> list:
        try:
            return [
                await engine.complete(
                    folder, prompt, Sampling(0.0, 1.0, tokens, 0, schema, reasoning_parser=parser, opened=opened)
                )
                for tokens, schema, parser, opened in json.loads(asked)
            ]
        finally:
            await engine.close()

    print(json.dumps(list(map(vars, asyncio.run(complete_all())))))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(*sys.argv[1:])
