"""Rank every question's profile by relevance to the question, once; later scripts read the ranked file.

  python retrieval/rank_dataset.py --input_dataset_addr test.json --output_dataset_addr test_ranked.json \\
      --model_name "facebook/contriever-msmarco"

Controls rank another user's posts: the paper's "random profile", or the most similar one:

  python retrieval/rank_dataset.py --input_dataset_addr test.json --output_dataset_addr test_random_ranked.json \\
      --other_profile random --seed 0
  python retrieval/rank_dataset.py --input_dataset_addr test.json --output_dataset_addr test_similar_ranked.json \\
      --other_profile similar --seed 0

--ranker recency puts the latest items first, by their dates if the benchmark has any. Items with the same date are in
reverse file order; items without a readable date come last and are counted. --ranker hybrid takes items from the dense
and the recency order in turn, as in LaMP, beginning with dense.

Run the same command again to resume: finished orders are kept in `orders/` beside the output.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python finds only retrieval/

import argparse
import hashlib
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval import FULL_LENGTH, WITH_ENCODER, WITHOUT_TEXTS, WORDS_VERSION
from retrieval.encoder_flags import (
    ENCODER_FLAGS,
    add_encoder_arguments,
    find_pooling,
    open_encoder,
    settings_of_encoder,
)
from retrieval.ordering import Ordered, embed, mix_with_recent, order_block, order_by_embeddings, order_by_ranker
from retrieval.profiles import Source, describe_dates, texts_of, with_dates, with_prefixes
from utils.base.cli import (
    Arguments,
    FlagParser,
    add_dry_run_argument,
    add_log_argument,
    add_overwrite_argument,
    check_outputs,
    make_parser,
    positive_int,
    set_up_logging,
)
from utils.base.errors import UserError, count_noun, count_plural, run_script
from utils.base.made import MadeFile
from utils.base.manifest import file_hash, noted_settings, read_manifest
from utils.base.progress import Progress, announce_file
from utils.benchmarks.checks import Record
from utils.benchmarks.personamem.contexts import UNITS, reordered
from utils.benchmarks.task import Task
from utils.data.datasets import read_task
from utils.generation.store import ModelStore
from utils.models.devices import set_up_allocator
from utils.models.loading import check_tokens
from utils.models.machine import describe_weights
from utils.models.model_folder import ModelFolder

if TYPE_CHECKING:
    from retrieval.embeddings import Embeddings
    from retrieval.encoder import Encoder
    from retrieval.pooling import Pooling

SCRIPT = "retrieval/rank_dataset.py"
SIMILAR = ("dense", "bm25")  # rankers that can choose profiles


def build_parser() -> FlagParser:
    # fmt: off
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--input_dataset_addr", required=True, metavar="FILE", help="dataset to rank")
    add("--output_dataset_addr", required=True, metavar="FILE", help="output file, the ranked dataset")
    add("--ranker", choices=["dense", "bm25", "bm25-okapi", "recency", "random", "hybrid"], default="dense",
        type=lambda name: "dense" if name == "contriever" else name,
        help="dense (alias contriever): dot product of the encoder's embeddings; bm25: shared words; "
        "bm25-okapi: the variant in LaMP and LongLaMP; "
        "recency: latest first, or the file's order reversed if there are no dates; random: seeded; "
        "hybrid: dense and recency in turn (%(default)s)")
    add("--use_date", action=argparse.BooleanOptionalAction,
        help="add each item's date to the text that the ranker reads (default: on for LaMP's time-based split, by "
        "the dataset's manifest)")
    add("--other_profile", choices=["random", "similar"],
        help="use another user's profile for every question. random: the paper's control; similar: the "
        "profile of the same category whose posts are most similar to the question; needs --ranker dense or bm25 "
        "(default: the asker's own)")
    add("--unit", choices=UNITS,
        help="rank the messages or the sessions of a history (message)")
    add("--seed", type=int, default=0, help="random seed (%(default)s)")
    add("--limit", type=positive_int, metavar="N", help="only the first N questions (default: all)")
    add_overwrite_argument(parser, parser)
    add_dry_run_argument(parser, parser, "report what would be ranked and what this machine lacks; load no "
        "weights, write nothing")
    add_log_argument(parser, parser)

    group = parser.add_argument_group("encoder (dense and hybrid only)")
    add_encoder_arguments(group)
    add = group.add_argument
    add("--cache_dir", help="where hub models are kept (default: Hugging Face's own cache)")
    add("--batch_size", type=positive_int, metavar="N",
        help="512-token texts per batch; a batch holds more texts if they are shorter (default: 64 on a GPU; on a CPU, "
        "2 per core, which is also the maximum there)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: all visible GPUs if any (%(default)s)")
    add("--dtype", choices=["float32", "bfloat16"], default="float32",
        help="type of the weights; bfloat16 is faster and ranks slightly differently (%(default)s)")
    add("--keep_embeddings", action="store_true",
        help="keep all embeddings in embeddings/ beside the output, for baselines.py --search dense (off)")
    parser.without_effect(
        f"{ENCODER_FLAGS} --cache_dir --batch_size --device --dtype --keep_embeddings",
        lambda args: args.ranker not in WITH_ENCODER,
        "with a --ranker that needs no encoder",
        "use --ranker dense or hybrid",
    )
    parser.not_a_setting("--input_dataset_addr --output_dataset_addr --model_name", "the inputs' hashes are settings")
    parser.not_a_setting("--limit", "it only selects questions, and the manifest has the hash of their ids")
    parser.not_a_setting("--cache_dir --batch_size --device", "they only decide where the encoder runs, and how fast")
    parser.not_a_setting("--keep_embeddings", "it only adds a folder")
    # fmt: on
    return parser


class RankedFile(MadeFile):
    """A dataset with its profiles in order; a piece is the order of a question's profile."""

    unit = "questions"
    knows_keys = True

    def __init__(self, args: Arguments, settings: dict[str, Any]):
        super().__init__(args.output_dataset_addr, settings, args, dataset=args.input_dataset_addr)

    def ranked(self, source: Source) -> Iterator[Record]:
        for number, key in enumerate(self.keys):
            record = source.read(number)
            yield {**record, "profile": reordered(record["profile"], self.pieces[key]["value"], Path(self.path))}


def main(argv: list[str] | None = None) -> int:
    """Rank one dataset and return 0. UserError if an input is wrong, if possible before a model is loaded."""
    args = build_parser().parse_args(argv)
    set_up_logging(args.log_level)
    set_up_allocator()
    check_outputs([args.output_dataset_addr], [args.input_dataset_addr])
    if args.other_profile == "similar" and args.ranker not in SIMILAR:
        raise UserError(f"--other_profile similar: needs --ranker {' or '.join(SIMILAR)}, which compares texts")
    output, task = Path(args.output_dataset_addr), read_task(args.input_dataset_addr)
    pooling = find_pooling(args) if args.ranker in WITH_ENCODER else None
    ranked = RankedFile(args, settings := settings_of_ranking(args, task, pooling))
    ranked.is_finished()
    cache = open_cache(args, pooling, output.parent) if args.keep_embeddings and not args.dry_run else None
    has_cache = cache is None or (
        cache.folder.exists() and "texts_kept" in (read_manifest(output) or {}).get("counts", ())
    )
    if ranked.finished and has_cache and not args.dry_run:
        ranked.report_finished()
        return 0
    source = Source(args)
    ranked.expect((question_id,) for question_id in source.dataset.ids[: args.limit])
    ranked.is_finished()
    task_as_read = with_dates(task) if settings["use_date"] else task  # has the texts that the ranker reads
    task_as_read = with_prefixes(task_as_read, *pooling.prefixes) if pooling else task_as_read
    if args.dry_run:
        check_embedder(args, source, task_as_read, pooling)
        count_items(args, source, settings["use_date"])
        print_dry_run(args, source, len(ranked.keys), pooling)
        return 0
    # Named after the ranker, because an encoder may have several names.
    store = ModelStore(output.parent / "orders", args.ranker, settings)
    with closing(ranked), closing(store), closing(cache) if cache else nullcontext():
        ranked.open()
        store.check_writable()
        counts = {"questions": len(ranked.keys), **count_items(args, source, settings["use_date"])}
        device = order_all(args, task_as_read, source, ranked, store, pooling, cache, counts)
        if args.other_profile == "similar":  # the profiles are known only now
            counts |= {"posts": sum(source.sizes), "empty_profiles": source.sizes.count(0)}
            counts |= {"undated_posts": sum(source.undated)} if "undated_posts" in counts else {}
            if empty := source.sizes.count(0):
                why = "every other profile of their category shares its user or a post, or has only later posts"
                print(
                    f"note: {output}: {count_noun(empty, 'question')} without a profile, because {why}", file=sys.stderr
                )
        counts |= note_unmatched(args, source, ranked)
        announce_file("writing", output, Path(args.input_dataset_addr).stat().st_size)  # the output has the same posts
        ranked.finish(ranked.ranked(source), device, counts=counts)
    posts = count_plural(counts["posts"], task.item_words)
    print(f"{output}: ranked {count_noun(counts['questions'], 'question')} with {posts}")
    return 0


def order_all(
    args: Arguments,
    task: Task,
    source: Source,
    ranked: RankedFile,
    store: ModelStore,
    pooling: "Pooling | None",
    cache: "Embeddings | None",
    counts: dict[str, int],
) -> str:
    """Fill `ranked` with every profile's order, from the store or by ranking, and return the device.

    With a `cache` (--keep_embeddings), all profiles are embedded, even those with an order in the store. The numbers of
    embedded and cached texts are added to `counts`.
    """
    number_of = {question_id: number for number, question_id in enumerate(source.dataset.ids)}
    for number, key in enumerate(ranked.keys):
        stored = store.get(id_hash(*key))
        if stored is not None and args.other_profile == "similar":
            source.assign(number, number_of.get(stored["owner"]))
        if stored is not None:
            ranked.add(key, {"value": stored["order"], "shares_words": stored.get("shares_words", True)})
    to_rank = [number for number, key in enumerate(ranked.keys) if cache or key not in ranked.pieces]
    records = map(source.read, to_rank)
    encoder = open_encoder(args, pooling, args.device, args.dtype) if to_rank and pooling else None
    device = encoder.device if encoder else "cpu"
    if to_rank and args.other_profile == "similar":
        unordered = {number for number in to_rank if ranked.keys[number] not in ranked.pieces}
        orders = order_similar(args, task, source, encoder, cache, to_rank, unordered, counts)
    elif encoder:
        num_texts = sum(source.sizes[number] + 1 for number in to_rank)
        orders = order_by_embeddings(task, records, num_texts, encoder, args.batch_size, cache, counts)
        orders = mix_with_recent(task, orders) if args.ranker == "hybrid" else orders
    else:
        orders = order_by_ranker(task, records, len(to_rank), args)
    with closing(orders):  # ends the progress line before an error is printed
        for record, ordered in orders:
            if (record["id"],) not in ranked.pieces:
                if store.get(id_hash(record["id"])) is None:
                    owner = {"owner": record["profile_owner"]} if args.other_profile == "similar" else {}
                    store.add(id_hash(record["id"]), {"id": record["id"], **owner, **ordered})
                shares_words = ordered.get("shares_words", True)
                ranked.add((record["id"],), {"value": ordered["order"], "shares_words": shares_words})
    return device


def order_similar(
    args: Arguments,
    task: Task,
    source: Source,
    encoder: "Encoder | None",
    cache: "Embeddings | None",
    to_rank: list[int],
    unordered: set[int],
    counts: dict[str, int],
) -> Iterator[tuple[Record, Ordered]]:
    """Assign the most similar profiles to the `unordered` questions, then yield the orders of all in `to_rank`."""
    from retrieval.similar import by_bm25, by_embeddings, find_similar

    records = [source.dataset[number] for number in range(len(source.dataset.ids))]
    texts = list(dict.fromkeys(text for record in records for text in texts_of(task, record))) if encoder else []
    row_of = {text: row for row, text in enumerate(texts)}
    if encoder:
        from retrieval.encoder import WINDOW

        with closing(Progress(len(texts), "texts", at_once=WINDOW)) as progress:
            embeddings = embed(encoder, texts, args.batch_size, cache, counts, progress)
    scores_of = by_embeddings(row_of, embeddings) if encoder else by_bm25
    for number, owner in find_similar(source, task, args, records, scores_of):
        if number in unordered:
            source.assign(number, owner)
    with_profiles = map(source.read, to_rank)
    if encoder:
        yield from order_block(task, with_profiles, row_of, embeddings, encoder)
    else:
        yield from order_by_ranker(task, with_profiles, len(to_rank), args)


def note_unmatched(args: argparse.Namespace, source: Source, ranked: RankedFile) -> dict[str, int]:
    """Return the count of questions that share no word with any of their items, and print a note; empty if 0."""
    sizes = zip(ranked.keys, source.sizes, strict=True)
    unmatched = sum(size > 0 and not ranked.pieces[key]["shares_words"] for key, size in sizes)
    if not unmatched:
        return {}
    order = "the file's order" if args.ranker == "bm25" else "the file's order, reversed"
    questions = f"{unmatched} of {count_noun(len(ranked.keys), 'question')}"
    problem = f"{questions} share no word with any of their {source.dataset.task.item_words}, which stay in {order}"
    print(f"note: {args.input_dataset_addr}: {problem}", file=sys.stderr)
    return {"questions_without_shared_words": unmatched}


def count_items(args: argparse.Namespace, source: "Source", use_date: bool) -> dict[str, int]:
    """Return the counts of items for the manifest, and print notes on the use of dates."""
    counts = {"posts": sum(source.sizes), "empty_profiles": source.sizes.count(0)}
    if source.by_date or use_date:
        counts["undated_posts"] = sum(source.undated)
    if source.by_date:
        print(describe_dates(args.input_dataset_addr, counts), file=sys.stderr)
    if use_date:
        undated = f"{counts['undated_posts']} of {count_noun(counts['posts'], 'post')} without a readable date"
        print(f"note: {args.input_dataset_addr}: dates are part of the ranked texts; {undated}", file=sys.stderr)
    return counts


def check_embedder(args: argparse.Namespace, source: "Source", task: Task, pooling: "Pooling | None") -> None:
    """Raise UserError if the encoder's tokenizer cannot be used, or makes tokens that the model does not have."""
    if pooling:
        from retrieval.encoder import open_tokenizer

        tokenizer, size = open_tokenizer(args.model_name, args.cache_dir, pooling)
        for number in range(len(source.sizes) if size and len(tokenizer) > size else 0):
            for text in texts_of(task, source.read(number)):
                ids = tokenizer(text, truncation=True, max_length=pooling.max_length).input_ids
                check_tokens(ids, tokenizer, size)


def print_dry_run(args: argparse.Namespace, source: "Source", num_questions: int, pooling: "Pooling | None") -> None:
    """Print what would be ranked, and what this machine has and lacks for it."""
    num_items = sum(source.sizes)
    items = count_plural(num_items, source.dataset.task.item_words)
    print(f"{count_noun(num_questions, 'question')} with {items}, ranked by {args.ranker}")
    if pooling:
        num_texts = source.num_texts if args.other_profile == "similar" else num_items + num_questions
        print(f"up to {count_noun(num_texts, 'text')} to embed, cut at {pooling.max_length} tokens")
        print(
            *describe_weights(ModelFolder(args.model_name, args.cache_dir), 4 if args.dtype == "float32" else 2),
            sep="\n",
        )


def open_cache(args: argparse.Namespace, pooling: "Pooling", folder: Path) -> "Embeddings":
    """Return the embeddings beside the output (--keep_embeddings); UserError if they could not be written."""
    from retrieval.embeddings import Embeddings

    settings = settings_of_encoder(args, pooling) | {"dtype": args.dtype}
    cache = Embeddings(folder / "embeddings", args.model_name, settings)
    cache.check_writable()
    return cache


def settings_of_ranking(args: Arguments, task: Task, pooling: "Pooling | None") -> dict[str, Any]:
    """Return the settings that the posts' order depends on."""
    settings = args.settings() | {"script": SCRIPT, "inputs": file_hash(args.input_dataset_addr)}
    settings |= {"use_date": uses_dates(args, task)} | ({"words": WORDS_VERSION} if args.ranker == "bm25" else {})
    settings |= settings_of_encoder(args, pooling) if pooling else {"max_length": FULL_LENGTH}
    if not (args.other_profile or args.ranker == "random"):
        del settings["seed"]  # nothing is drawn
    return settings


def uses_dates(args: argparse.Namespace, task: Task) -> bool:
    """Return whether the ranker reads items with their dates: as --use_date says, else for LaMP's time-based split.

    The default follows LaMP's paper. UserError if the flag asks for dates, but the benchmark's items have none.
    """
    if args.use_date and task.date_field is None:
        raise UserError(f"{args.input_dataset_addr}: --use_date: {task.name} has no dates to add; remove the flag")
    if args.use_date is not None:
        return args.use_date
    is_timed = noted_settings(args.input_dataset_addr).get("setting") == "time"
    return is_timed and task.date_field is not None and args.ranker not in WITHOUT_TEXTS


def id_hash(question_id: str) -> str:
    """Return the key of a question's order in the store, whose folder depends on all other settings."""
    return hashlib.sha256(question_id.encode()).hexdigest()[:32]


if __name__ == "__main__":
    run_script(main)
