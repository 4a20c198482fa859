"""How much faster is ranking than a plain loop, and how close to the machine's limit?

  python tests/speed/ranking.py --model_name demo/models/encoder
  python tests/speed/ranking.py --contriever_shape --posts 200

The plain loop takes one question at a time and embeds its posts in batches of 16, in file order, padded to the longest
of the batch, with autograd on. All use the same loaded model in turn, and each run starts with another one.
sentence-transformers' encode is measured too if it is installed. Useful work counts operations on the texts' tokens,
not on padding; the machine's limit is the rate of a large matrix product of the same type, over two seconds before and
after each run.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from measure import log_normal, matrix_rate, parse_flags, peak_memory, print_spread, write_figures

from retrieval.encoder import Encoder, load_encoder
from retrieval.ordering import order_by_embeddings
from retrieval.rank_dataset import Record
from utils.base.cli import positive_int
from utils.base.errors import run_script
from utils.benchmarks.lampqa.task import TASK
from utils.models.model_folder import ModelFolder

NUM_QUESTIONS = 20
TOP = 10
DTYPES = ("float32", "bfloat16")
MEAN_WORDS, LOG_SPREAD = 150, 0.8  # of a post
WORDS = """
    the a of to in and that it for with was on as by at from this have not but what which when how why my your their
    some other first old local quiet nineteenth-century unusual cheap original religious legal possible really probably
    however because although whether without between during according novel chord garden passport temple recipe camera
    lease chess ritual sonnet bicycle visa festival repair translate compare remember perform interpret cancel recommend
    inherit photograph borrow guidebook landlord orchestra neighbour translation manuscript deposit instructor
    grandmother anthropologist
"""

Orders = list[list[int]]


FLAGS = {
    "model_name": {"default": "demo/models/encoder", "metavar": "FOLDER", "help": "encoder (%(default)s)"},
    "contriever_shape": {"action": "store_true",
                         "help": "random weights of Contriever's size, with --model_name's words"},
    "posts": (1000, "distinct posts"),
    "batch_size": {"type": positive_int, "help": "as in rank_dataset.py"},
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(__doc__, argv, **FLAGS)
    ModelFolder(args.model_name).checked()
    encoders = {dtype: load(args, dtype) for dtype in DTYPES}
    device = encoders["float32"].model.device.type
    records = make_dataset(args.posts)
    work = operations(records, encoders["float32"])
    print(f"{args.posts} posts, {work / 1e12:.2f} Tflop of useful work, {device}", flush=True)
    ways = make_ways(records, encoders, args.batch_size)
    for way in ways.values():  # compiles kernels
        way()
    rows = [one_run(ways, run, device) for run in range(args.runs)]
    figures = compare(rows, work)
    figures |= {"posts": args.posts, "useful_flop": work, "peak_memory": peak_memory(), "runs": rows}
    print(f"peak memory {peak_memory() / 1e9:.2f} GB")
    write_figures(args.json_addr, figures)
    return 0


def load(args: argparse.Namespace, dtype: str) -> Encoder:
    encoder = load_encoder(args.model_name, dtype=dtype)
    if not args.contriever_shape:
        return encoder
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = encoder.model.config
    shape = BertConfig(vocab_size=config.vocab_size, attn_implementation=config._attn_implementation)
    model = BertModel(shape, add_pooling_layer=False).eval()
    return replace(encoder, model=model.to(encoder.model.device, getattr(torch, dtype)), replicas=())


def make_ways(
    records: list[Record], encoders: dict[str, Encoder], batch_size: int | None
) -> dict[str, Callable[[], Orders]]:
    exact, rough = encoders["float32"], encoders["bfloat16"]
    ways = {
        "plain loop": lambda: plain_loop(records, exact),
        "fp32": lambda: our_ranking(records, exact, batch_size),
        "bf16": lambda: our_ranking(records, rough, batch_size),
    }
    try:
        import sentence_transformers  # noqa: F401 (only whether it is there)
    except ImportError:
        print("sentence-transformers is not installed: not measured")
    else:
        ways["sentence-transformers"] = library_ranking(records, exact)
    return ways


def one_run(ways: dict[str, Callable[[], Orders]], run: int, device: str) -> dict[str, Any]:
    """Return seconds and orders of every method, in changing order, and the machine's limits."""
    row: dict[str, Any] = {"seconds": {}, "same": {}, "overlap": {}}
    names = list(ways)
    orders = {}
    before = {dtype: matrix_rate(dtype, device) for dtype in DTYPES}
    for name in names[run % len(names) :] + names[: run % len(names)]:
        started = time.perf_counter()
        orders[name] = ways[name]()
        row["seconds"][name] = time.perf_counter() - started
    for name in names:
        row["same"][name] = sum(a == b for a, b in zip(orders["plain loop"], orders[name], strict=True))
        row["overlap"][name] = top_overlap(orders["plain loop"], orders[name])
    row["limit"] = {dtype: (before[dtype] + matrix_rate(dtype, device)) / 2 for dtype in DTYPES}
    print(f"run {run + 1}: " + ", ".join(f"{name} {s:.2f} s" for name, s in row["seconds"].items()), flush=True)
    return row


def compare(rows: list[dict[str, Any]], work: float) -> dict[str, Any]:
    def faster(name: str, than: str) -> list[float]:
        return [row["seconds"][than] / row["seconds"][name] for row in rows]

    def of_limit(name: str, dtype: str) -> list[float]:
        return [work / row["seconds"][name] / row["limit"][dtype] for row in rows]

    figures = {
        "fp32_to_plain": print_spread("fp32, times the plain loop", faster("fp32", "plain loop")),
        "fp32_of_limit": print_spread("fp32, share of the matrix product's rate", of_limit("fp32", "float32"), 0.85),
        "bf16_to_plain": print_spread("bf16, times the plain loop", faster("bf16", "plain loop"), 7),
        "bf16_of_limit": print_spread("bf16, share of the matrix product's rate", of_limit("bf16", "bfloat16"), 0.7),
        "bf16_overlap": print_spread(f"bf16, overlap of the best {TOP}", [r["overlap"]["bf16"] for r in rows], 0.99),
    }
    if "sentence-transformers" in rows[0]["seconds"]:
        ratios = faster("fp32", "sentence-transformers")
        figures["fp32_to_library"] = print_spread("fp32, times sentence-transformers", ratios, 1.2)
    same = {name: min(row["same"][name] for row in rows) for name in rows[0]["same"]}
    told = ", ".join(f"{name} {n} of {NUM_QUESTIONS}" for name, n in same.items())
    print(f"profiles in the plain loop's order: {told}")
    return figures


def top_overlap(exact: Orders, other: Orders) -> float:
    """Return the mean share of the plain loop's best posts that are among the other's best."""
    shares = [len({*a[:TOP]} & {*b[:TOP]}) / len(a[:TOP]) for a, b in zip(exact, other, strict=True) if a]
    return sum(shares) / len(shares)


def operations(records: list[Record], encoder: Encoder) -> float:
    """Return the floating-point operations of the encoder for every distinct text, without padding.

    A text with n tokens needs in each layer: 2n per weight of the four attention matrices and the two of the
    feed-forward part, and 4n² per unit of width in scores and weighted sum.
    """
    config = encoder.model.config
    width, inner = config.hidden_size, config.intermediate_size
    texts = {text for r in records for text in (r["question"], *(post["text"] for post in r["profile"]))}
    ids = encoder.tokenizer(list(texts), truncation=True, max_length=encoder.pooling.max_length)["input_ids"]
    per_layer = sum(2 * n * (4 * width**2 + 2 * width * inner) + 4 * n**2 * width for n in map(len, ids))
    return config.num_hidden_layers * per_layer


def make_dataset(num_posts: int, seed: int = 0) -> list[Record]:
    """Return questions with `num_posts` distinct posts, divided unevenly between them."""
    rng = random.Random(seed)
    records = [{"id": f"q{n}", "question": _sentence(rng, 11), "profile": []} for n in range(NUM_QUESTIONS)]
    weights = [rng.lognormvariate(0, 0.7) for _ in records]
    for number in range(num_posts):
        words = max(5, log_normal(rng, MEAN_WORDS, LOG_SPREAD))
        post = {"id": f"p{number}", "text": f"{number} {_sentence(rng, words)}"}
        rng.choices(records, weights)[0]["profile"].append(post)
    return records


def _sentence(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS.split(), k=num_words))


def our_ranking(records: list[Record], encoder: Encoder, batch_size: int | None) -> Orders:
    """Return the order of every profile by retrieval/rank_dataset.py."""
    num_texts = sum(len(record["profile"]) + 1 for record in records)
    orders = order_by_embeddings(TASK, records, num_texts, encoder, batch_size, None, {})
    return [ordered["order"] for _, ordered in orders]


def plain_loop(records: list[Record], encoder: Encoder) -> Orders:
    """Return the order of every profile by a plain loop."""
    import torch

    orders = []
    for record in records:
        posts = [item["text"] for item in record["profile"]]
        query = _embed(encoder, [record["question"]])[0]
        batches = [_embed(encoder, posts[start : start + 16]) for start in range(0, len(posts), 16)]
        scores = torch.cat(batches) @ query if batches else torch.empty(0)
        orders.append(np.argsort(-scores.detach().cpu().numpy(), kind="stable").tolist())
    return orders


def _embed(encoder: Encoder, texts: list[str]) -> Any:
    settings = {"padding": True, "truncation": True, "max_length": encoder.pooling.max_length, "return_tensors": "pt"}
    inputs = encoder.tokenizer(texts, **settings).to(encoder.model.device)
    hidden = encoder.model(**inputs).last_hidden_state.float()
    mask = inputs["attention_mask"][..., None]
    return (hidden * mask).sum(1) / mask.sum(1)


def library_ranking(records: list[Record], encoder: Encoder) -> Callable[[], Orders]:
    """Return the order by sentence-transformers' encode, which sorts by length and pads batches of 32."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    texts = list(dict.fromkeys(t for r in records for t in (r["question"], *(post["text"] for post in r["profile"]))))
    row_of = {text: row for row, text in enumerate(texts)}
    with tempfile.TemporaryDirectory() as folder:
        encoder.model.save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)
        part = Transformer(folder, max_seq_length=encoder.pooling.max_length)
        library = SentenceTransformer(modules=[part, Pooling(encoder.model.config.hidden_size)])

    def rank() -> Orders:
        found = library.encode(texts, batch_size=32, show_progress_bar=False)
        orders = []
        for record in records:
            rows = [row_of[post["text"]] for post in record["profile"]]
            orders.append(np.argsort(-(found[rows] @ found[row_of[record["question"]]]), kind="stable").tolist())
        return orders

    return rank


if __name__ == "__main__":
    run_script(main)
