"""Order profiles by embeddings, or with a ranker that needs no model."""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from retrieval.profiles import dates_of, texts_of
from utils.base.errors import UserError, quote
from utils.base.progress import Progress
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task

if TYPE_CHECKING:
    import numpy as np

    from retrieval.embeddings import Embeddings
    from retrieval.encoder import Encoder

BLOCK = 16_384  # texts to embed before the orders of their questions are stored

# `order` has the numbers of a profile's items, best first. If words are compared, `shares_words` says whether any item
# has a word of the question.
Ordered = dict[str, Any]


def order_by_ranker(
    task: Task, records: Iterable[Record], num_records: int, args: argparse.Namespace
) -> Iterator[tuple[Record, Ordered]]:
    """Yield each record with its profile's order by a ranker that needs no model."""
    from retrieval import rankers

    with closing(Progress(num_records, "questions")) as progress:
        for record in records:
            query, *posts = texts_of(task, record)
            if args.ranker == "bm25":
                index = rankers.BM25Index(posts)
                yield record, {"order": index.rank(query), "shares_words": bool(index.shared_words(query))}
            elif args.ranker == "bm25-okapi":
                shares_words = not {*query.split()}.isdisjoint(word for post in posts for word in post.split())
                yield record, {"order": rankers.rank_by_bm25_okapi(query, posts), "shares_words": shares_words}
            elif args.ranker == "recency":
                yield record, {"order": rankers.rank_by_recency(dates_of(task, record))}
            else:
                yield record, {"order": rankers.rank_at_random(len(posts), args.seed, record["id"])}
            progress.update()


def order_by_embeddings(
    task: Task,
    records: Iterable[Record],
    num_texts: int,
    encoder: "Encoder",
    batch_size: int | None,
    cache: "Embeddings | None",
    counts: dict[str, int],
) -> Iterator[tuple[Record, Ordered]]:
    """Yield each record with its profile's order. Each text of a block is embedded once.

    Args:
        num_texts: the number of questions and posts of all records, including repeated texts.
        cache: embeddings to read and extend; None: no cache.
        counts: gets "texts_embedded" and, of these, "texts_cut"; with `cache`, also "texts_kept".
    """
    from retrieval.encoder import WINDOW

    # Each window begins with its longest texts, so the ETA waits until a whole window is embedded.
    with closing(Progress(num_texts, "texts", at_once=WINDOW)) as progress:
        for block, row_of in split_into_blocks(task, records):
            before = counts.get("texts_embedded", 0)
            embeddings = embed(encoder, list(row_of), batch_size, cache, counts, progress)
            num_embedded = counts["texts_embedded"] - before
            # The rest are repeated and cached texts.
            progress.update(sum(len(record["profile"]) + 1 for record in block) - num_embedded)
            yield from order_block(task, block, row_of, embeddings, encoder)


def embed(
    encoder: "Encoder",
    texts: list[str],
    batch_size: int | None,
    cache: "Embeddings | None",
    counts: dict[str, int],
    progress: Progress,
) -> "np.ndarray":
    """Return the embeddings (T, D) of distinct texts; `cache` and `counts` are as in `order_by_embeddings`."""
    import numpy as np

    from retrieval.encoder import embed_texts

    cached = cache.find(texts) if cache else {}
    new_texts = [text for text in texts if text not in cached]
    embeddings, num_cut = embed_texts(encoder, new_texts, batch_size, progress)
    if cache:
        cache.add(new_texts, embeddings)
        counts["texts_kept"] = counts.get("texts_kept", 0) + len(texts)
        rows = cached | dict(zip(new_texts, embeddings, strict=True))
        embeddings = np.stack([rows[text] for text in texts])
    counts["texts_embedded"] = counts.get("texts_embedded", 0) + len(new_texts)
    counts["texts_cut"] = counts.get("texts_cut", 0) + num_cut
    return embeddings


def order_block(
    task: Task, records: Iterable[Record], row_of: dict[str, int], embeddings: "np.ndarray", encoder: "Encoder"
) -> Iterator[tuple[Record, Ordered]]:
    """Yield each record with its profile's order; `embeddings` has a row for each text (`row_of`)."""
    from retrieval.embeddings import usable_rows
    from retrieval.rankers import rank_by_embedding

    usable = usable_rows(embeddings)
    for record in records:
        rows = [row_of[text] for text in texts_of(task, record)]
        refuse_unusable(record, usable[rows], encoder.model.config.name_or_path)
        yield record, {"order": rank_by_embedding(embeddings, rows[0], rows[1:])}


def refuse_unusable(record: Record, usable: "np.ndarray", model: str) -> None:
    """Raise UserError that names the first unusable text; `usable` is for the question, then the posts."""
    if not usable.all():
        number = int(usable.argmin())
        text = "its question" if number == 0 else f"item {number} of its profile"
        if number and "id" in (item := record["profile"][number - 1]):
            text += f" (id {quote(item['id'])})"
        raise UserError(
            f"id {quote(record['id'])}: {text}: {model} returns no usable embedding for this text "
            "(NaN, infinite or all zeros)\n"
            "  use an undamaged encoder, or another --dtype; finished rankings are kept"
        )


def mix_with_recent(task: Task, orders: Iterator[tuple[Record, Ordered]]) -> Iterator[tuple[Record, Ordered]]:
    """Yield each record with an order that takes items from its given order and from the order by recency in turn."""
    from retrieval.rankers import alternate, rank_by_recency

    with closing(orders):
        for record, ordered in orders:
            yield record, {"order": alternate(ordered["order"], rank_by_recency(dates_of(task, record)))}


def split_into_blocks(task: Task, records: Iterable[Record]) -> Iterator[tuple[list[Record], dict[str, int]]]:
    """Yield blocks of questions in file order, with a row number per text; all but the last have at least `BLOCK`."""
    block, row_of = [], {}
    for record in records:
        block.append(record)
        for text in texts_of(task, record):
            row_of.setdefault(text, len(row_of))
        if len(row_of) >= BLOCK:
            yield block, row_of
            block, row_of = [], {}
    if block:
        yield block, row_of
