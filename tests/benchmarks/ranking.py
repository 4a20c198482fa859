"""How much faster is ranking than the plain loop? Prints the ratio; nothing is asserted.

  python tests/benchmarks/ranking.py --model_name FOLDER

The plain loop takes one question at a time and embeds its posts in batches of 16, in file order, padded to the
longest of the batch, with autograd on. Both use the same loaded model and take turns. On a machine with other work
look at CPU seconds, of all cores together: wall seconds then say more about the other work.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np

from retrieval.encoder import Encoder, load_encoder
from retrieval.rank_dataset import Record, order_by_embeddings
from utils.cli import make_parser, positive_int, run_script
from utils.models import check_model

NUM_QUESTIONS = 20
MEAN_WORDS, LOG_SPREAD = 150, 0.8  # a post's length is log-normal: many short, few very long
WORDS = """
    the a of to in and that it for with was on as by at from this have not but what which when how why my your their
    some other first old local quiet nineteenth-century unusual cheap original religious legal possible really probably
    however because although whether without between during according novel chord garden passport temple recipe camera
    lease chess ritual sonnet bicycle visa festival repair translate compare remember perform interpret cancel recommend
    inherit photograph borrow guidebook landlord orchestra neighbour translation manuscript deposit instructor
    grandmother anthropologist
"""


def make_dataset(num_posts: int, seed: int = 0) -> list[Record]:
    """Questions with `num_posts` distinct posts, shared out unevenly between them."""
    rng = random.Random(seed)
    mu = np.log(MEAN_WORDS) - LOG_SPREAD**2 / 2  # the mean of a log-normal is exp(mu + spread^2 / 2)
    records = [{"id": f"q{n}", "question": _sentence(rng, 11), "profile": []} for n in range(NUM_QUESTIONS)]
    weights = [rng.lognormvariate(0, 0.7) for _ in records]
    for number in range(num_posts):
        words = max(5, round(rng.lognormvariate(mu, LOG_SPREAD)))
        post = {"id": f"p{number}", "text": f"{number} {_sentence(rng, words)}"}
        rng.choices(records, weights)[0]["profile"].append(post)
    return records


def _sentence(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS.split(), k=num_words))


def our_ranking(records: list[Record], encoder: Encoder, batch_size: int | None) -> list[list[int]]:
    """The order of every profile, as retrieval/rank_dataset.py finds it."""
    return [order for _, order in order_by_embeddings(records, 0, encoder, batch_size, Counter())]


def plain_loop(records: list[Record], encoder: Encoder) -> list[list[int]]:
    """The order of every profile, the slow way."""
    return [_rank_one(record, encoder) for record in records]


def _rank_one(record: Record, encoder: Encoder) -> list[int]:
    import torch

    posts = [item["text"] for item in record["profile"]]
    query = _embed(encoder, [record["question"]])[0]
    batches = [_embed(encoder, posts[start : start + 16]) for start in range(0, len(posts), 16)]
    scores = torch.cat(batches) @ query if batches else torch.empty(0)
    return np.argsort(-scores.detach().cpu().numpy(), kind="stable").tolist()


def _embed(encoder: Encoder, texts: list[str]):
    inputs = encoder.tokenizer(
        texts, padding=True, truncation=True, max_length=encoder.max_length, return_tensors="pt"
    ).to(encoder.model.device)
    hidden = encoder.model(**inputs).last_hidden_state.float()
    mask = inputs["attention_mask"][..., None]
    return (hidden * mask).sum(1) / mask.sum(1)


def timed(work: Callable[[], list[list[int]]]) -> tuple[np.ndarray, list[list[int]]]:
    """Seconds that the work took (wall, CPU), and its result."""
    started = np.array([time.monotonic(), time.process_time()])
    result = work()
    return np.array([time.monotonic(), time.process_time()]) - started, result


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_model(args.model_name)
    encoder = load_encoder(args.model_name)
    records = make_dataset(args.posts)
    ratios = []
    for run in range(1, args.runs + 1):
        plain, plain_orders = timed(lambda: plain_loop(records, encoder))
        ours, our_orders = timed(lambda: our_ranking(records, encoder, args.batch_size))
        ratios.append(plain / ours)
        same = sum(a == b for a, b in zip(plain_orders, our_orders, strict=True))
        for clock, seconds, our_seconds in zip(("wall", "CPU"), plain, ours, strict=True):
            print(f"run {run}, {clock}: plain loop {seconds:.1f} s, ranking {our_seconds:.1f} s", end="")
            print(f", ratio {seconds / our_seconds:.2f}")
        print(f"run {run}: {same} of {len(records)} profiles in the same order", flush=True)
    for clock, column in zip(("wall", "CPU"), np.array(ratios).T, strict=True):
        print(f"{clock} ratio: min {column.min():.2f}, median {np.median(column):.2f}, max {column.max():.2f}")
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--model_name", required=True, metavar="FOLDER", help="BERT-like encoder")
    parser.add_argument("--posts", type=positive_int, default=1000, help="distinct posts (%(default)s)")
    parser.add_argument("--runs", type=positive_int, default=3, help="paired runs (%(default)s)")
    parser.add_argument("--batch_size", type=positive_int, help="as in rank_dataset.py")
    return parser


if __name__ == "__main__":
    run_script(main)
