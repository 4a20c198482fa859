"""Attention as the project has torch compute it, and by cuDNN, which it turns off (utils/models/devices.py).

  PYTHONPATH=. python tests/gpu/own_attention.py gradients cuda|cpu
  PYTHONPATH=. python tests/gpu/own_attention.py lengths cuda|cpu CHAT_MODEL ENCODER LONGEST COUNT

gradients: of scores far below 0 under a mask, which cuDNN of torch 2.13 makes NaN on Hopper. lengths: the time of texts
of lengths that were never seen, divided by that of the same texts again: there shows what is planned for each shape.
"""

import random
import sys
import time
from collections.abc import Callable

import torch

from retrieval.encoder import embed_texts, load_encoder
from utils.generation.chat import LocalChat
from utils.models.devices import check_devices, has_bf16
from utils.training import NO_LOSS
from utils.training.base_model import load_base
from utils.training.causal import target_loss, write_greedily

SCORE = -120.0  # of every pair: e to it is 0 in fp32, and e to its negative is infinite
LENGTHS = (64, 192, 704)  # 64 more than a multiple of 128
NEW_TOKENS = 8  # of a reply: no two prompts come to the same length
SETTINGS = {"ours": False, "cuDNN's": True}


def gradients(device: str) -> None:
    for name, on in SETTINGS.items():
        torch.backends.cuda.enable_cudnn_sdp(on)
        found = [steep_gradients(length, device) for length in LENGTHS]
        told = ", ".join(
            f"{length} {'finite' if finite else 'NOT FINITE'}" for length, finite in zip(LENGTHS, found, strict=True)
        )
        print(f"FIGURE attention, {name}: gradients at lengths {told}")
        assert all(found) or on, "attention's gradients are not finite"


def steep_gradients(length: int, device: str) -> bool:
    """Whether the gradients are finite."""
    torch.manual_seed(0)
    width = 64
    queries, keys, values = (torch.randn(1, 2, length, width, device=device) / 8 for _ in range(3))
    queries[..., 0], keys[..., 0] = 1.0, SCORE * width**0.5
    parts = [part.to(torch.bfloat16).requires_grad_() for part in (queries, keys, values)]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()
    torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask).sum().backward()
    return all(bool(part.grad.isfinite().all()) for part in parts)


def lengths(device: str, chat_model: str, encoder_model: str, longest: str, count: str) -> None:
    """A line `RATIO name number` for each kind of work by our setting; cuDNN's are only told."""
    chat = LocalChat(chat_model)
    encoder = load_encoder(encoder_model, dtype="bfloat16" if device == "cuda" else "float32")  # cuDNN takes no fp32
    dtype = torch.bfloat16 if has_bf16() else torch.float32
    model = load_base(chat_model, {}, dtype, "sdpa").to(device)
    model.enable_input_require_grads()

    def prompt(length: int) -> list[int]:
        return random.Random(length).choices(range(chat.tokenizer.vocab_size), k=length)

    def learn(length: int) -> None:
        """Two sequences, the second one padded; the gradients go back through all layers."""
        ids = torch.tensor([prompt(length)] * 2, device=device)
        mask, labels = torch.ones_like(ids), torch.full_like(ids, NO_LOSS)
        mask[1, -5:], labels[:, -13:-5] = 0, ids[:, -13:-5]
        target_loss(model, labels, input_ids=ids, attention_mask=mask)[0].backward()
        model.zero_grad()

    def write(length: int) -> None:
        write_greedily(model, chat, prompt(length), NEW_TOKENS)

    def embed(length: int) -> None:
        embed_texts(encoder, ["a " * (length // 2), "a " * (length // 4)])

    all_lengths = [int(longest) - (NEW_TOKENS + 1) * place for place in range(2 * int(count))]
    for name, work in {"learning": learn, "writing": write, "ranking": embed}.items():
        for number, (setting, on) in enumerate(SETTINGS.items()):
            torch.backends.cuda.enable_cudnn_sdp(on)
            seconds(work, [int(longest) + 40] * 5, device)  # kernels load, and memory is taken
            own = all_lengths[number::2]  # of this setting alone
            unseen, again = (seconds(work, own, device) for _ in range(2))
            print(f"FIGURE {name}, {setting} attention: unseen lengths take {unseen / again:.2f} times as long")
            if not on:
                print(f"RATIO {name} {unseen / again}")


def seconds(work: Callable[[int], None], lengths: list[int], device: str) -> float:
    started = time.perf_counter()
    for length in lengths:
        work(length)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    name, device, *arguments = sys.argv[1:]
    check_devices()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    {"gradients": gradients, "lengths": lengths}[name](device, *arguments)
