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
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from utils.benchmarks.task import Record, Task
from utils.cli import UserError, add_log_argument, check_outputs, make_parser, positive_int, run_script, set_up_logging
from utils.cli.arguments import add_overwrite_argument
from utils.cli.flags import FlagParser
from utils.cli.progress import Progress, announce, announce_file
from utils.files.manifest import file_hash
from utils.files.outputs import OutputFile, open_outputs
from utils.models.hub import check_model, model_fingerprint
from utils.records.datasets import STEP_NEEDS
from utils.records.stream import DatasetFile

if TYPE_CHECKING:
    import numpy as np

    from retrieval.embedding_cache import EmbeddingCache
    from retrieval.encoder import Encoder

BLOCK = 16_384  # texts embedded before their questions' orders are in the journal


def build_parser() -> FlagParser:
    parser = make_parser(__doc__)
    parser.add_argument("--input_dataset_addr", required=True, metavar="FILE", help="dataset to rank")
    parser.add_argument("--output_dataset_addr", required=True, metavar="FILE", help="where it goes, ranked")
    parser.add_argument(
        "--ranker",
        type=lambda name: "dense" if name == "contriever" else name,
        choices=["dense", "bm25", "recency", "random"],
        default="dense",
        help="dense, or contriever: dot product of the encoder's embeddings; bm25: shared words; "
        "recency: last in the file first; random: seeded (%(default)s)",
    )
    parser.add_argument(
        "--random_profile",
        action="store_true",
        help="give every question another user's profile, then rank it: the paper's control (off)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of what is random (%(default)s)")
    parser.add_argument("--limit", type=positive_int, metavar="N", help="only the first N questions (default: all)")
    add_overwrite_argument(parser)
    add_log_argument(parser)
    add_encoder_arguments(parser)
    return parser


def add_encoder_arguments(parser: FlagParser) -> None:
    group = parser.add_argument_group("encoder (dense only)")
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
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: all visible GPUs if any (%(default)s)"
    )
    group.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="weights' type; bfloat16 is faster and ranks slightly differently (%(default)s)",
    )
    parser.without_effect(
        "--model_name --cache_dir --batch_size --max_length --embedding_cache --device --dtype",
        lambda args: args.ranker != "dense",
        "with a --ranker that needs no encoder",
        "take another --ranker",
    )


def main(argv: list[str] | None = None) -> int:
    """Rank one dataset; returns 0. Raises UserError, before a model is loaded where that is possible."""
    args = build_parser().parse_args(argv)
    set_up_logging(args.log_level)
    output = Path(args.output_dataset_addr)
    check_outputs([args.output_dataset_addr], [args.input_dataset_addr])
    source = open_source(args)
    if args.ranker == "dense":
        check_model(args.model_name, args.cache_dir)
    fingerprint = describe_settings(args)
    cache = open_cache(args)  # may be refused: before there is a journal
    keys = [(question_id,) for question_id in source.ids()]
    ranked = OutputFile(args.output_dataset_addr, fingerprint, keys, None, args.overwrite)
    open_outputs(ranked)
    if ranked.is_finished():
        return 0
    left = [number for number, key in enumerate(keys) if key not in ranked.pieces]
    records = (source.read(number) for number in left)
    task = source.dataset.task
    device, counts = "cpu", Counter(source.counts())
    if left and args.ranker == "dense":
        open_encoder = functools.cache(lambda: load_named_encoder(args))
        if cache is None or cache.is_empty:
            open_encoder()
        num_texts = sum(source.sizes[number] + 1 for number in left)
        orders = order_by_embeddings(task, records, num_texts, open_encoder, args.batch_size, counts, cache)
    else:
        orders = order_by_ranker(task, records, len(left), args)
    with closing(orders):  # its progress ends before an error is told
        for record, order in orders:
            ranked.journal.add((record["id"],), order)
    if counts["texts_embedded"]:
        device = open_encoder().device
    announce_file("writing", output, Path(args.input_dataset_addr).stat().st_size)  # it holds the same posts
    records = (apply_order(record, ranked.pieces[record["id"],]) for record in source.records())
    ranked.journal.publish(records, vars(args), device, counts=dict(counts))
    print(f"{output}: ranked {counts['questions']} questions with {counts['posts']} posts")
    return 0


@dataclass(frozen=True)
class Source:
    """The questions to rank; they stay on disk, for a file may be larger than the memory.

    Attributes:
        sizes: posts of each question's profile.
        owners: number of the question whose profile each one gets, None where each keeps its own.
    """

    dataset: DatasetFile
    sizes: list[int]
    owners: list[int] | None

    def ids(self) -> list[str]:
        return self.dataset.ids[: len(self.sizes)]

    def read(self, number: int) -> Record:
        record = self.dataset[number]
        if self.owners is None:
            return record
        owner = self.dataset[self.owners[number]]
        return {**record, "profile": owner["profile"], "profile_owner": owner["id"]}

    def records(self) -> Iterator[Record]:
        return (self.read(number) for number in range(len(self.sizes)))

    def counts(self) -> dict[str, int]:
        return {"questions": len(self.sizes), "posts": sum(self.sizes), "empty_profiles": self.sizes.count(0)}


def open_source(args: argparse.Namespace) -> Source:
    """Check the dataset, record by record; with --random_profile nobody keeps their own profile.

    Raises:
        UserError: the dataset is none; there is only one question to swap profiles, or they were swapped before.
    """
    path = args.input_dataset_addr
    dataset = DatasetFile(path)
    sizes, swapped = [], None
    for record in dataset.scan(needs=STEP_NEEDS["rank"]):
        sizes.append(len(record["profile"]))
        if swapped is None and "profile_owner" in record:
            swapped = record["id"]
    owners = None
    if args.random_profile:
        if len(dataset) < 2:
            raise UserError(f"{path}: holds one question; --random_profile needs another user's profile")
        if swapped is not None:
            raise UserError(
                f"{path}: id {swapped!r}: field 'profile_owner': its profile is another user's already\n"
                "  --random_profile starts from the original dataset"
            )
        owners = random_cycle(len(dataset), args.seed)
        sizes = [sizes[owner] for owner in owners]
    return Source(dataset, sizes[: args.limit], owners)


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
    if args.ranker == "dense":
        fingerprint["model"] = model_fingerprint(args.model_name, args.cache_dir)
        fingerprint["max_length"] = args.max_length
        fingerprint["dtype"] = args.dtype
    return fingerprint


def random_cycle(size: int, seed: int) -> list[int]:
    """A random permutation of range(size) that is one single cycle (Sattolo 1986): none stays in its place."""
    generator = random.Random(seed)
    cycle = list(range(size))
    for last in range(size - 1, 0, -1):
        other = generator.randrange(last)  # never `last` itself, unlike in a plain shuffle
        cycle[last], cycle[other] = cycle[other], cycle[last]
    return cycle


def texts_of(task: Task, record: Record) -> list[str]:
    """What is compared: the question, then the items of its profile in the order of the file."""
    return [task.query(record), *map(task.item_text, record["profile"])]


def order_by_ranker(
    task: Task, records: Iterable[Record], num_records: int, args: argparse.Namespace
) -> Iterator[tuple[Record, list[int]]]:
    """Each record with the order of its profile (best first), by a ranker that needs no model."""
    from retrieval.rankers import rank_at_random, rank_by_bm25, rank_by_recency

    with closing(Progress(num_records, "questions")) as progress:
        for record in records:
            query, *posts = texts_of(task, record)
            if args.ranker == "bm25":
                yield record, rank_by_bm25(query, posts)
            elif args.ranker == "recency":
                yield record, rank_by_recency(len(posts))
            else:
                yield record, rank_at_random(len(posts), args.seed, record["id"])
            progress.update()


def open_cache(args: argparse.Namespace) -> "EmbeddingCache | None":
    if args.embedding_cache is None or args.ranker != "dense":
        return None
    from retrieval.embedding_cache import EmbeddingCache

    model = model_fingerprint(args.model_name, args.cache_dir)
    return EmbeddingCache(args.embedding_cache, f"{model}, mean pooling, {args.max_length} tokens, {args.dtype}")


def load_named_encoder(args: argparse.Namespace) -> "Encoder":
    from retrieval.encoder import load_encoder

    announce(f"loading {args.model_name} (this may take a minute)")
    return load_encoder(args.model_name, args.cache_dir, args.device, args.dtype, args.max_length)


def order_by_embeddings(
    task: Task,
    records: Iterable[Record],
    num_texts: int,
    open_encoder: Callable[[], "Encoder"],
    batch_size: int | None,
    counts: Counter[str],
    cache: "EmbeddingCache | None" = None,
) -> Iterator[tuple[Record, list[int]]]:
    """Each record with the order of its profile; every distinct text of a block of questions is embedded once.

    Args:
        num_texts: questions and posts of all records together, repeated ones included.
        open_encoder: gives the encoder; called when the cache lacks a text, for torch and the device, which is checked
            then, take longer than a small file.
        counts: "texts_embedded" and "texts_cut" (of those) are added to.
    """
    from retrieval.encoder import WINDOW
    from retrieval.rankers import rank_by_embedding

    # Batches of long texts come first, so an ETA waits for as many texts as are put in order of length.
    with closing(Progress(num_texts, "texts", at_once=WINDOW)) as progress:
        for block, row_of in split_into_blocks(task, records):
            embeddings = embed_block(list(row_of), open_encoder, batch_size, counts, cache, progress)
            progress.update(sum(len(record["profile"]) + 1 for record in block) - len(row_of))  # the repeated ones
            for record in block:
                query_row, *post_rows = [row_of[text] for text in texts_of(task, record)]
                yield record, rank_by_embedding(embeddings, query_row, post_rows)


def split_into_blocks(task: Task, records: Iterable[Record]) -> Iterator[tuple[list[Record], dict[str, int]]]:
    """Questions in file order with the rows of their distinct texts; a new block begins after `BLOCK` texts.

    A killed run loses at most the block it was at.
    """
    block: list[Record] = []
    row_of: dict[str, int] = {}
    for record in records:
        block.append(record)
        for text in texts_of(task, record):
            row_of.setdefault(text, len(row_of))
        if len(row_of) >= BLOCK:
            yield block, row_of
            block, row_of = [], {}
    if block:
        yield block, row_of


def embed_block(
    texts: list[str],
    open_encoder: Callable[[], "Encoder"],
    batch_size: int | None,
    counts: Counter[str],
    cache: "EmbeddingCache | None",
    progress: Progress,
) -> "np.ndarray":
    """The embeddings (len(texts), D) of distinct texts, from the cache where it has them."""
    import numpy as np

    known = cache.get(texts) if cache else {}
    progress.update(len(known))
    new = [text for text in texts if text not in known]
    counts.update(texts_embedded=len(new), texts_cut=0)
    if new:
        from retrieval.encoder import embed_texts

        computed, num_cut = embed_texts(open_encoder(), new, batch_size, progress)
        counts.update(texts_cut=num_cut)
        if cache:
            cache.add(new, computed)
        if not known:
            return computed
        known.update(zip(new, computed, strict=True))
    return np.stack([known[text] for text in texts])


def apply_order(record: Record, order: list[int]) -> Record:
    """The record with whole profile items in this order: ids, texts and other fields stay together."""
    return {**record, "profile": [record["profile"][index] for index in order]}


if __name__ == "__main__":
    run_script(main)
