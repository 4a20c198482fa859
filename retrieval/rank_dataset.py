"""Rank every question's profile by relevance to the question, once: later scripts read the ranked file.

  python retrieval/rank_dataset.py --input_dataset_addr test.json --output_dataset_addr test_ranked.json \\
      --model_name "facebook/contriever-msmarco" --batch_size 16

The control with another user's posts (the paper's "random profile") is a ranked file too:

  python retrieval/rank_dataset.py --input_dataset_addr test.json --output_dataset_addr test_random_ranked.json \\
      --random_profile --seed 0
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python sees retrieval/ only

import argparse
import random
import time
from typing import TYPE_CHECKING, Any

from utils.cli import UserError, add_log_argument, make_parser, positive_int, run_script, set_up_logging
from utils.models import check_model, model_fingerprint
from utils.progress import Progress
from utils.records import read_dataset, select_questions
from utils.run_files import describe_run, file_hash, prepare_output, publish

if TYPE_CHECKING:
    from retrieval.encoder import Encoder

Record = dict[str, Any]


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--input_dataset_addr", required=True, metavar="FILE", help="dataset to rank")
    parser.add_argument("--output_dataset_addr", required=True, metavar="FILE", help="where it goes, ranked")
    parser.add_argument(
        "--ranker",
        choices=["contriever", "bm25", "recency", "random"],
        default="contriever",
        help="contriever: dot product of embeddings; bm25: shared words; recency: last in the file first; "
        "random: seeded (%(default)s)",
    )
    parser.add_argument(
        "--random_profile",
        action="store_true",
        help="give every question another user's profile, then rank it: the paper's control (off)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of what is random (%(default)s)")
    parser.add_argument("--limit", type=positive_int, metavar="N", help="only the first N questions (default: all)")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that was made with other settings")
    add_log_argument(parser)
    add_encoder_arguments(parser)
    return parser


def add_encoder_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("encoder (contriever only)")
    group.add_argument(
        "--model_name",
        default="facebook/contriever-msmarco",
        metavar="MODEL",
        help="BERT-like encoder, by hub name or folder (%(default)s)",
    )
    group.add_argument("--cache_dir", help="where hub models are kept (default: Hugging Face's own cache)")
    group.add_argument(
        "--batch_size",
        type=positive_int,
        metavar="N",
        help="full-length texts of 512 tokens a batch may hold, of shorter ones more (64 on a GPU; 2 a core on a "
        "CPU, where more is slower and a larger number counts as that)",
    )
    group.add_argument(
        "--max_length",
        type=positive_int,
        default=512,
        metavar="N",
        help="tokens at which a text is cut (%(default)s)",
    )
    group.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: a GPU if any (%(default)s)"
    )
    group.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="weights' type; bfloat16 is faster and ranks slightly differently (%(default)s)",
    )


def main(argv: list[str] | None = None) -> int:
    """Rank one dataset; returns 0. Raises UserError, before a model is loaded where that is possible."""
    started = time.monotonic()
    args = build_parser().parse_args(argv)
    set_up_logging(args.log_level)
    output = Path(args.output_dataset_addr)
    if output.resolve() == Path(args.input_dataset_addr).resolve():
        raise UserError(f"{output}: is the input too; give the ranked file its own name")
    records = read_dataset(args.input_dataset_addr, needs=["profile"])
    if args.random_profile:
        records = swap_profiles(records, args.seed, args.input_dataset_addr)
    records = select_questions(records, args.limit)
    if args.ranker == "contriever":
        check_model(args.model_name, args.cache_dir)
    fingerprint = describe_settings(args)
    if prepare_output(output, fingerprint, args.overwrite):
        print(f"{output}: already ranked with these settings; left as it is")
        return 0
    orders, device, counts = order_profiles(records, args)
    ranked = [apply_order(record, order) for record, order in zip(records, orders, strict=True)]
    counts = {**count_records(records), **counts}
    seconds = time.monotonic() - started
    publish(
        output,
        ranked,
        describe_run(vars(args), fingerprint, device, counts=counts, wall_seconds=round(seconds, 3)),
    )
    print(f"ranked {counts['questions']} questions with {counts['posts']} posts in {seconds:.1f} s: {output}")
    return 0


def describe_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The run's fingerprint: what decides the order of the posts, and nothing else."""
    fingerprint = {
        "input_sha256": file_hash(args.input_dataset_addr),
        "limit": args.limit,
        "random_profile": args.random_profile,
        "ranker": args.ranker,
    }
    if args.random_profile or args.ranker == "random":
        fingerprint["seed"] = args.seed
    if args.ranker == "contriever":
        fingerprint["model"] = model_fingerprint(args.model_name, args.cache_dir)
        fingerprint["max_length"] = args.max_length
        fingerprint["dtype"] = args.dtype
    return fingerprint


def swap_profiles(records: list[Record], seed: int, path: str) -> list[Record]:
    """Give every question the profile of another one, named in its `profile_owner`; no one keeps their own.

    Raises:
        UserError: there is only one question, or profiles were swapped before.
    """
    if len(records) < 2:
        raise UserError(f"{path}: holds one question; --random_profile needs another user's profile")
    for record in records:
        if "profile_owner" in record:
            raise UserError(
                f"{path}: id {record['id']!r}: field 'profile_owner': its profile is another user's already\n"
                "  --random_profile starts from the original dataset"
            )
    owners = [records[index] for index in random_cycle(len(records), seed)]
    return [
        {**record, "profile": owner["profile"], "profile_owner": owner["id"]}
        for record, owner in zip(records, owners, strict=True)
    ]


def random_cycle(size: int, seed: int) -> list[int]:
    """A random permutation of range(size) that is one single cycle (Sattolo 1986): none stays in its place."""
    generator = random.Random(seed)
    cycle = list(range(size))
    for last in range(size - 1, 0, -1):
        other = generator.randrange(last)  # never `last` itself, unlike in a plain shuffle
        cycle[last], cycle[other] = cycle[other], cycle[last]
    return cycle


def order_profiles(records: list[Record], args: argparse.Namespace) -> tuple[list[list[int]], str, dict[str, int]]:
    """The order of every profile (best first), the device it was found on, and what only this ranker counts."""
    if args.ranker == "contriever":
        from retrieval.encoder import load_encoder

        encoder = load_encoder(args.model_name, args.cache_dir, args.device, args.dtype, args.max_length)
        orders, counts = order_by_embeddings(records, encoder, args.batch_size)
        return orders, str(encoder.model.device), counts
    from retrieval.rankers import rank_at_random, rank_by_bm25, rank_by_recency

    orders = []
    progress = Progress(len(records), "questions")
    for record in records:
        posts = [item["text"] for item in record["profile"]]
        if args.ranker == "bm25":
            orders.append(rank_by_bm25(record["question"], posts))
        elif args.ranker == "recency":
            orders.append(rank_by_recency(len(posts)))
        else:
            orders.append(rank_at_random(len(posts), args.seed, record["id"]))
        progress.update()
    progress.close()
    return orders, "cpu", {}


def order_by_embeddings(
    records: list[Record], encoder: "Encoder", batch_size: int | None
) -> tuple[list[list[int]], dict[str, int]]:
    """Embed every distinct text of the dataset once, then order each profile from the rows."""
    from retrieval.encoder import embed_texts
    from retrieval.rankers import rank_by_embedding

    row_of: dict[str, int] = {}
    for record in records:
        for text in (record["question"], *(item["text"] for item in record["profile"])):
            row_of.setdefault(text, len(row_of))
    progress = Progress(len(row_of), "texts")
    try:
        embeddings, num_cut = embed_texts(encoder, list(row_of), batch_size, progress)
    finally:
        progress.close()
    orders = []
    for record in records:
        post_rows = [row_of[item["text"]] for item in record["profile"]]
        orders.append(rank_by_embedding(embeddings, row_of[record["question"]], post_rows))
    return orders, {"distinct_texts": len(row_of), "texts_cut": num_cut}


def apply_order(record: Record, order: list[int]) -> Record:
    """The record with whole profile items in this order: ids, texts and other fields stay together."""
    return {**record, "profile": [record["profile"][index] for index in order]}


def count_records(records: list[Record]) -> dict[str, int]:
    sizes = [len(record["profile"]) for record in records]
    return {"questions": len(sizes), "posts": sum(sizes), "empty_profiles": sizes.count(0)}


if __name__ == "__main__":
    run_script(main)
