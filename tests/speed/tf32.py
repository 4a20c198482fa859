"""Would an encoder rank the same on a GPU's TF32? Simulated on a CPU; no GPU is needed, and none is used.

  python tests/speed/tf32.py --model_name demo/models/encoder

TF32 rounds the inputs of every matrix product to 10 bits of mantissa and sums in fp32. Each question of the sample data
ranks its own profile, and then all posts of its file.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from retrieval.encoder import embed_texts, load_encoder
from retrieval.rankers import rank_by_embedding
from utils.cli import make_parser, run_script

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "mini_lampqa"
PRODUCTS = (torch.ops.aten.linear, torch.ops.aten.matmul)  # of their first two arguments, in inference mode


class TF32(TorchDispatchMode):
    """Every matrix product takes rounded inputs; `num_products` counts them."""

    num_products = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket in PRODUCTS:
            args = (rounded(args[0]), rounded(args[1]), *args[2:])
            self.num_products += 1
        elif function.overloadpacket is torch.ops.aten.einsum:  # the mean over the tokens
            args = (args[0], [rounded(factor) for factor in args[1]], *args[2:])
            self.num_products += 1
        return function(*args, **(kwargs or {}))


def rounded(values: torch.Tensor) -> torch.Tensor:
    """To the nearest float32 with 10 bits of mantissa, ties to even."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def main(argv: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--model_name", required=True, metavar="MODEL", help="BERT-like encoder")
    args: argparse.Namespace = parser.parse_args(argv)
    encoder = load_encoder(args.model_name, device="cpu")
    encoder.model.set_attn_implementation("eager")  # whose products are seen one by one
    tf32 = TF32()
    change = 0.0
    figures: dict[str, list[tuple[bool, float]]] = {"their own profile": [], "all posts of their file": []}
    for path in sorted(SAMPLE.glob("*.json")):
        records = json.loads(path.read_text(encoding="utf-8"))
        posts = {post["text"] for record in records for post in record["profile"]}
        texts = [*dict.fromkeys([*(record["question"] for record in records), *sorted(posts)])]
        row_of = {text: row for row, text in enumerate(texts)}
        exact, _ = embed_texts(encoder, texts)
        with tf32:
            rough, _ = embed_texts(encoder, texts)
        for record in records:
            question = row_of[record["question"]]
            own = [row_of[post["text"]] for post in record["profile"]]
            every = [row_of[text] for text in sorted(posts)]
            change = max(change, np.abs(exact[every] @ exact[question] - rough[every] @ rough[question]).max())
            for rows, kept in zip((own, every), figures.values(), strict=True):
                if rows:
                    orders = [rank_by_embedding(embeddings, question, rows) for embeddings in (exact, rough)]
                    best = [set(order[:10]) for order in orders]
                    kept.append((orders[0] == orders[1], len(best[0] & best[1]) / len(best[0])))
    print(f"{tf32.num_products} matrix products; scores change by up to {change:.4f}")
    for name, kept in figures.items():
        same, shares = zip(*kept, strict=True)
        print(f"{name}: the same order for {sum(same)} of {len(kept)} questions, {np.mean(shares):.3f} of the ten best")
    return 0


if __name__ == "__main__":
    run_script(main)
