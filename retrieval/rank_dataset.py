"""Rank every question's profile by relevance to the question, once: later scripts read the ranked file.

  python retrieval/rank_dataset.py --input_dataset_addr test.json --output_dataset_addr test_ranked.json \\
      --model_name "facebook/contriever-msmarco" --batch_size 16

The control with another user's posts (the paper's "random profile") is a ranked file too:

  python retrieval/rank_dataset.py --input_dataset_addr test.json --output_dataset_addr test_random_ranked.json \\
      --random_profile --seed 0

The same command again goes on from where a run stopped. With --embedding_cache a second ranking of the same posts
embeds nothing again.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python sees retrieval/ only

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from utils.cli import UserError, add_log_argument, check_outputs, make_parser, positive_int, run_script, set_up_logging
from utils.journal import Journal, open_journal
from utils.models import check_model, model_fingerprint
from utils.progress import Progress
from utils.records import read_dataset, select_questions
from utils.run_files import file_hash

if TYPE_CHECKING:
    import numpy as np

    from retrieval.embedding_cache import EmbeddingCache
    from retrieval.encoder import Encoder

Record = dict[str, Any]

BLOCK = 16_384  # texts embedded before their questions' orders are in the journal


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
        "--embedding_cache", metavar="DIR", help="where embeddings are kept for other rankings (default: nowhere)"
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
    args = build_parser().parse_args(argv)
    set_up_logging(args.log_level)
    output = Path(args.output_dataset_addr)
    check_outputs([args.output_dataset_addr], [args.input_dataset_addr])
    records = read_dataset(args.input_dataset_addr, needs=["profile"])
    if args.random_profile:
        records = swap_profiles(records, args.seed, args.input_dataset_addr)
    records = select_questions(records, args.limit)
    if args.ranker == "contriever":
        check_model(args.model_name, args.cache_dir)
    fingerprint = describe_settings(args)
    cache = open_cache(args)  # may be refused: before there is a journal
    keys = [(record["id"],) for record in records]
    journal = open_journal(output, fingerprint, args.overwrite, keys)
    if journal is None or journal.holds(keys, lambda: apply_orders(records, journal)):
        print(f"{output}: already ranked with these settings; left as it is")
        return 0
    missing = set(journal.missing(keys))
    left = [record for record in records if (record["id"],) in missing]
    device, counts = "cpu", Counter(count_records(records))
    if left and args.ranker == "contriever":
        from retrieval.encoder import load_encoder

        encoder = load_encoder(args.model_name, args.cache_dir, args.device, args.dtype, args.max_length)
        device = str(encoder.model.device)
        orders = order_by_embeddings(left, encoder, args.batch_size, counts, cache)
    else:
        orders = order_by_ranker(left, args)
    with closing(orders):  # its progress ends before an error is told
        for record, order in orders:
            journal.add((record["id"],), order)
    journal.publish(apply_orders(records, journal), vars(args), device, counts=dict(counts))
    print(f"{output}: ranked {counts['questions']} questions with {counts['posts']} posts")
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


def order_by_ranker(records: list[Record], args: argparse.Namespace) -> Iterator[tuple[Record, list[int]]]:
    """Each record with the order of its profile (best first), by a ranker that needs no model."""
    from retrieval.rankers import rank_at_random, rank_by_bm25, rank_by_recency

    with closing(Progress(len(records), "questions")) as progress:
        for record in records:
            posts = [item["text"] for item in record["profile"]]
            if args.ranker == "bm25":
                yield record, rank_by_bm25(record["question"], posts)
            elif args.ranker == "recency":
                yield record, rank_by_recency(len(posts))
            else:
                yield record, rank_at_random(len(posts), args.seed, record["id"])
            progress.update()


def open_cache(args: argparse.Namespace) -> "EmbeddingCache | None":
    if args.embedding_cache is None or args.ranker != "contriever":
        return None
    from retrieval.embedding_cache import EmbeddingCache

    model = model_fingerprint(args.model_name, args.cache_dir)
    return EmbeddingCache(args.embedding_cache, f"{model}, mean pooling, {args.max_length} tokens, {args.dtype}")


def order_by_embeddings(
    records: list[Record],
    encoder: "Encoder",
    batch_size: int | None,
    counts: Counter[str],
    cache: "EmbeddingCache | None" = None,
) -> Iterator[tuple[Record, list[int]]]:
    """Each record with the order of its profile; every distinct text of a block of questions is embedded once.

    Args:
        counts: "texts_embedded" and "texts_cut" (of those) are added to.
    """
    from retrieval.rankers import rank_by_embedding

    blocks = list(split_into_blocks(records))
    with closing(Progress(sum(len(row_of) for _, row_of in blocks), "texts")) as progress:
        for block, row_of in blocks:
            embeddings = embed_block(list(row_of), encoder, batch_size, counts, cache, progress)
            for record in block:
                post_rows = [row_of[item["text"]] for item in record["profile"]]
                yield record, rank_by_embedding(embeddings, row_of[record["question"]], post_rows)


def split_into_blocks(records: list[Record]) -> Iterator[tuple[list[Record], dict[str, int]]]:
    """Questions in file order with the rows of their distinct texts; a new block begins after `BLOCK` texts.

    A killed run loses at most the block it was at.
    """
    block: list[Record] = []
    row_of: dict[str, int] = {}
    for record in records:
        block.append(record)
        for text in (record["question"], *(item["text"] for item in record["profile"])):
            row_of.setdefault(text, len(row_of))
        if len(row_of) >= BLOCK:
            yield block, row_of
            block, row_of = [], {}
    if block:
        yield block, row_of


def embed_block(
    texts: list[str],
    encoder: "Encoder",
    batch_size: int | None,
    counts: Counter[str],
    cache: "EmbeddingCache | None",
    progress: Progress,
) -> "np.ndarray":
    """The embeddings (len(texts), D) of distinct texts, from the cache where it has them."""
    import numpy as np

    from retrieval.encoder import embed_texts

    known = cache.get(texts) if cache else {}
    progress.update(len(known))
    new = [text for text in texts if text not in known]
    computed, num_cut = embed_texts(encoder, new, batch_size, progress)
    counts.update(texts_embedded=len(new), texts_cut=num_cut)
    if cache:
        cache.add(new, computed)
    if not known:
        return computed
    known.update(zip(new, computed, strict=True))
    return np.stack([known[text] for text in texts])


def apply_orders(records: list[Record], journal: Journal) -> list[Record]:
    """The content of the ranked file."""
    return [apply_order(record, journal.entries[record["id"],]) for record in records]


def apply_order(record: Record, order: list[int]) -> Record:
    """The record with whole profile items in this order: ids, texts and other fields stay together."""
    return {**record, "profile": [record["profile"][index] for index in order]}


def count_records(records: list[Record]) -> dict[str, int]:
    sizes = [len(record["profile"]) for record in records]
    return {"questions": len(sizes), "posts": sum(sizes), "empty_profiles": sizes.count(0)}


if __name__ == "__main__":
    run_script(main)
