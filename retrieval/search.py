"""Search a profile with any query; the order of its items is computed once and stored.

For the question itself, the order is the same as by `rank_dataset.py` with the same ranker, encoder and dates.
"""

import argparse
import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval import WITHOUT_TEXTS, WORDS_VERSION
from retrieval.encoder_flags import (
    ENCODER_FLAGS,
    add_encoder_arguments,
    find_pooling,
    open_encoder,
    settings_of_encoder,
)
from retrieval.profiles import texts_of, with_dates
from utils.base.cli import FlagParser
from utils.base.errors import UserError, quote
from utils.base.manifest import noted_settings, read_manifest
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task
from utils.generation.completions import KEY_DIGITS, NotStoredError
from utils.generation.store import ModelStore, models_of_server
from utils.models.devices import has_gpu

if TYPE_CHECKING:
    import numpy as np

    from retrieval.embeddings import Embeddings
    from retrieval.encoder import Encoder
    from retrieval.rankers import BM25Index

MOST = 100  # items of an order to store
AT_ONCE = 64  # texts to embed at a time; a signal can end the run in between
DTYPE = "float32"
SERVER = "search by {}"  # the server's name under which the store records an encoder's orders


def add_search_arguments(parser: FlagParser) -> None:
    """Add the flags of `ask.search`."""
    # fmt: off
    group = parser.add_argument_group("searches of your own method (ask.search)")
    add = group.add_argument
    add("--search", choices=["bm25", "dense"], default="bm25",
        help="how ask.search compares a query with posts: shared words, or an encoder's embeddings (%(default)s)")
    add_encoder_arguments(group)
    add("--search_device", choices=["cpu", "cuda"], default="cpu",
        help="device of the encoder for --search dense; cuda: the first GPU, with room for it (%(default)s)")
    # fmt: on
    flags = f"{ENCODER_FLAGS} --search_device"
    parser.without_effect(flags, lambda args: args.search != "dense", "without --search dense", "use --search dense")
    parser.not_a_setting(f"--search --search_device {ENCODER_FLAGS}", "searches have their own settings")


class Searched:
    """A record's profile, prepared for searches."""

    def __init__(self, record: Record, task: Task):
        self.record = record
        self.question, *self.texts = texts_of(task, record)

    @cached_property
    def _own_ids(self) -> list[str]:
        """Each item's id in the dataset as a text; "" without one."""
        return [_as_text(item.get("id")) for item in self.record["profile"]]

    @cached_property
    def ids(self) -> list[str | int]:
        """A unique id for each item: its id in the dataset, or its place in the profile (from 0).

        The place is used if the dataset's id is missing, empty or shared with another item.
        """
        counts = Counter(self._own_ids)
        return [own if own and counts[own] == 1 else place for place, own in enumerate(self._own_ids)]

    @cached_property
    def _places_of(self) -> dict[str | int, set[int]]:
        """By id, the places of its items: several if items share an id in the dataset, one for each of `ids`."""
        places_of: dict[str | int, set[int]] = {post_id: {place} for place, post_id in enumerate(self.ids)}
        for place, own in enumerate(self._own_ids):
            if own:
                places_of.setdefault(own, set()).add(place)
        return places_of

    def places(self, ids: Iterable[str | int]) -> set[int]:
        """Return the places of the items with these ids, from `ids` or from the dataset, where items may share an id.

        ValueError if no item has the id (a text instead of an id, for example).
        """
        places: set[int] = set()
        for post_id in ids:
            same = self._places_of.get(post_id) or self._places_of.get(_as_text(post_id))
            if not same:
                raise ValueError(f"{quote(post_id)} is not the id of a post; use the .ids of a search result")
            places |= same
        return places

    @cached_property
    def _digest(self) -> "hashlib._Hash":
        return hashlib.sha256(json.dumps(self.texts).encode())

    def key(self, query: str) -> str:
        """Return the store's key for the order of this profile's items by a query."""
        digest = self._digest.copy()
        digest.update(json.dumps(query).encode())
        return digest.hexdigest()[:KEY_DIGITS]

    @cached_property
    def index(self) -> "BM25Index":
        from retrieval.rankers import BM25Index

        return BM25Index(self.texts)


def _as_text(post_id: str | int | None) -> str:
    return "" if post_id is None else str(post_id).strip()


class Search:
    """Finds a profile's best items for a query.

    Attributes:
        settings: what orders depend on, for the settings of an output.
    """

    def __init__(self, args: argparse.Namespace, task: Task, dataset: str):
        """Find the encoder and open the store; UserError if neither this machine nor the store has it.

        Args:
            dataset: the path of the records' file. If it was ranked with dates, texts are searched with dates. If its
                ranker reads no texts, the manifest of the file that it was ranked from decides.
        """
        settings = noted_settings(dataset)
        if settings.get("ranker") in WITHOUT_TEXTS:
            settings = noted_settings((read_manifest(dataset) or {}).get("dataset", dataset))
        is_time_based = settings.get("setting") == "time" and task.date_field is not None
        use_date = bool(settings.get("use_date", is_time_based))
        self._args, self._is_dense = args, args.search == "dense"
        self._task = with_dates(task) if use_date else task
        self._name = Path(args.model_name).name if self._is_dense else "bm25"
        encoder = self._find_encoder() if self._is_dense else {}
        ranker = {"search": args.search} | (encoder or {"words": WORDS_VERSION})
        self.settings = ranker | {"use_date": use_date}
        self.store = ModelStore(args.completions, f"search-{self._name}", ranker)
        self.store.server = SERVER.format(self._name)
        self._embedding_settings = encoder | {"dtype": DTYPE}
        self._ranked_embeddings = Path(dataset).parent / "embeddings"  # of rank_dataset.py --keep_embeddings
        self._encoder: Encoder | None = None
        self._waiting: dict[str, None] = {}  # texts to embed, in order of arrival
        self._turn = asyncio.Lock()  # held by the search that is embedding
        self._failure: Exception | None = None  # the encoder's error, if it failed

    def _find_encoder(self) -> dict[str, Any]:
        """Return the encoder's settings; with --cached_only, if the encoder is not on this machine, from the store."""
        args = self._args
        try:
            self._pooling = find_pooling(args)
            return settings_of_encoder(args, self._pooling)
        except UserError:
            if not args.cached_only:
                raise
            chosen = {name: vars(args)[name] for name in ("max_length", "pooling", "normalize")}
            chosen = {name: value for name, value in chosen.items() if value is not None}
            stored = models_of_server(args.completions, SERVER.format(self._name))
            encoders = [model for model in stored if chosen.items() <= model.items()]
            if len(encoders) > 1:
                problem = f"{args.completions} has searches by {len(encoders)} encoders named {self._name}"
                raise UserError(f"{problem}\n  pass the encoder's folder as --model_name") from None
            if not encoders:
                raise
            return {name: value for name, value in encoders[0].items() if name not in ("search", "servers")}

    @cached_property
    def _cache(self) -> "Embeddings":
        from retrieval.embeddings import Embeddings

        folder = Path(self._args.completions) / "embeddings"
        return Embeddings(folder, self._name, self._embedding_settings, [self._ranked_embeddings])

    def check(self) -> None:
        """Raise UserError if results could not be stored, or if --search_device is cuda and there is no GPU."""
        if self._args.cached_only:
            return
        self.store.check_writable()
        if self._is_dense:
            self._cache.check_writable()
            if self._args.search_device == "cuda" and not has_gpu():
                raise UserError("--search_device cuda: torch finds no GPU on this machine")

    def close(self) -> None:
        """Close the store and the embeddings; a later search, in another event loop, opens them again."""
        self.store.close()
        if self._is_dense:
            self._cache.close()
        self._turn = asyncio.Lock()

    def open(self, record: Record) -> Searched:
        return Searched(record, self._task)

    async def order(self, searched: Searched, query: str) -> tuple[list[int], bool]:
        """Return the numbers of the profile's best items, best first, at most `MOST`; ties stay in file order.

        The second value is False if words are compared and no item has a word of the query, so that the items are in
        file order; otherwise True.

        Raises:
            NotStoredError: with --dry_run, if the order needs the encoder.
            UserError: with --cached_only, if the order needs the encoder; or if an embedding is not usable.
        """
        if query == searched.record["question"]:
            query = searched.question  # the text that is ranked, without the instructions in LaMP's inputs
        if not searched.texts:
            return [], True
        key, args = searched.key(query), self._args
        stored = self.store.get(key)
        if stored is not None:
            return stored["order"], stored.get("shares_words", True)
        if self._is_dense:
            order, extra = await self._by_embeddings(searched, query), {}
        else:
            order, extra = searched.index.rank(query), {"shares_words": bool(searched.index.shared_words(query))}
        is_new = self.store.get(key) is None  # an equal search may have ended since
        if is_new and not (args.dry_run or args.cached_only):
            self.store.add(key, {"id": searched.record["id"], "query": query, "order": order[:MOST], **extra})
        return order[:MOST], extra.get("shares_words", True)

    async def _by_embeddings(self, searched: Searched, query: str) -> list[int]:
        import numpy as np

        from retrieval.rankers import rank_by_embedding

        record_id = quote(searched.record["id"])
        if self._args.dry_run:
            raise NotStoredError
        if self._args.cached_only:
            raise UserError(
                f"{self.store.folder}: has no search of record {record_id} for {quote(query)}\n"
                "  run the same command without --cached_only"
            )
        query_prefix, post_prefix = self._pooling.prefixes
        texts = [query_prefix + query, *(post_prefix + text for text in searched.texts)]
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        rows = await self._embed(row_of)
        if unusable := [text for text in row_of if text not in rows]:
            raise UserError(
                f"id {record_id}: {self._args.model_name} returns no usable embedding for the text "
                f"{quote(unusable[0])} (NaN, infinite or all zeros)\n  use an undamaged encoder; finished work is kept"
            )
        embeddings = np.stack([rows[text] for text in row_of])
        return rank_by_embedding(embeddings, row_of[texts[0]], [row_of[text] for text in texts[1:]])

    async def _embed(self, texts: Collection[str]) -> "dict[str, np.ndarray]":
        """Return usable embeddings (D,) by text; new texts are embedded together with those of other searches."""
        rows = self._cache.find(texts)
        new_texts = [text for text in texts if text not in rows]
        if not new_texts:
            return rows
        self._waiting |= dict.fromkeys(new_texts)
        async with self._turn:
            while any(text in self._waiting for text in new_texts):
                batch = list(self._waiting)[:AT_ONCE]
                try:
                    if self._failure is not None:
                        raise self._failure
                    self._cache.add(batch, await asyncio.to_thread(self._embed_now, batch))
                except Exception as error:  # every waiting search raises the same error
                    self._failure = error
                    raise
                for text in batch:
                    del self._waiting[text]
        return rows | self._cache.find(new_texts)

    def _embed_now(self, texts: Sequence[str]) -> "np.ndarray":
        from retrieval.encoder import embed_texts

        if self._encoder is None:
            device = self._args.search_device.replace("cuda", "cuda:0")  # one GPU is enough for queries
            self._encoder = open_encoder(self._args, self._pooling, device, DTYPE)
        return embed_texts(self._encoder, texts)[0]
