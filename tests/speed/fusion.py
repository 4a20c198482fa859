"""What a training step of fusion in decoder takes, of FlanT5-base's shape with random weights, by the passages' number.

  python tests/speed/fusion.py --passages 4 8 16 --dtype float32

Each number in a process of its own: one question of so many passages of 512 tokens, a target of 128, forward, backward
with gradient checkpointing, and AdamW. CPU seconds do not hang on what else the machine does.
"""

import argparse
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

STEPS = 2  # the first one's allocations are its own; the last is measured


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, nargs="+", default=[4, 8, 16], help="numbers of passages (%(default)s)")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="to compute in (%(default)s)"
    )
    parser.add_argument("--alone", action="store_true", help="measure the first number in this process")
    return parser


def main() -> int:
    args = build_parser().parse_args()
    if args.alone:
        measure(args.passages[0], args.dtype)
        return 0
    seconds = {}
    for number in args.passages:
        command = [sys.executable, __file__, "--alone", "--dtype", args.dtype, "--passages", str(number)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(printed, end="", flush=True)
        seconds[number] = float(printed.split()[2])
    least, most = min(seconds), max(seconds)
    print(f"{most} passages take {seconds[most] / seconds[least] * least / most:.2f} of linear from {least}")
    return 0


def measure(passages: int, dtype: str) -> None:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from utils.generation.fusion import fuse, pad_passages

    config = T5Config(
        vocab_size=32128, d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    drawn = torch.Generator().manual_seed(0)
    rows = [torch.randint(2, 32000, (512,), generator=drawn).tolist() for _ in range(passages)]
    labels = torch.randint(2, 32000, (1, 128), generator=drawn)
    autocast = nullcontext() if dtype == "float32" else torch.autocast("cpu", torch.bfloat16)
    for _ in range(STEPS):
        wall, began = time.monotonic(), time.process_time()
        with autocast:
            loss = model(**fuse(model, **pad_passages([rows], 0, "cpu")), labels=labels, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        took, wall = time.process_time() - began, time.monotonic() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{passages} passages: {took:.1f} CPU seconds a step, {wall:.1f} s; peak {peak:.2f} GiB; {dtype}")


if __name__ == "__main__":
    sys.exit(main())
