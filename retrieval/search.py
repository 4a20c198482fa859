"""Search a profile with any query: the order of its items is made once, and kept in the store.

For a question itself, the order is that of `rank_dataset.py` with the same ranker, encoder and dates.
"""

import argparse
import asyncio
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.encoder_flags import (
    ENCODER_FLAGS,
    add_encoder_arguments,
    find_pooling,
    open_encoder,
    settings_of_embeddings,
    settings_of_encoder,
)
from retrieval.profiles import texts_of, with_dates
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import quote
from utils.cli.flags import FlagParser
from utils.files.manifest import noted_settings
from utils.generation.completions import NotStoredError
from utils.generation.store import ModelStore

if TYPE_CHECKING:
    import numpy as np

    from retrieval.embeddings import Embeddings
    from retrieval.encoder import Encoder
    from retrieval.rankers import BM25Index

MOST = 100  # items of an order that are kept
AT_ONCE = 64  # texts embedded at a time, between which a signal can end the run
DTYPE = "float32"


def add_search_arguments(parser: FlagParser) -> None:
    """Add the flags of `ask.search`."""
    # fmt: off
    group = parser.add_argument_group("searches of a method of your own (ask.search)")
    add = group.add_argument
    add("--search", choices=["bm25", "dense"], default="bm25",
        help="how ask.search compares a query with posts: shared words, or an encoder's embeddings (%(default)s)")
    add_encoder_arguments(group)
    add("--search_device", choices=["cpu", "cuda"], default="cpu",
        help="device of the encoder for --search dense; a GPU must have room for it beside the model (%(default)s)")
    # fmt: on
    flags = f"{ENCODER_FLAGS} --search_device"
    parser.without_effect(flags, lambda args: args.search != "dense", "without --search dense", "give --search dense")
    parser.decides_nothing(f"--search --search_device {ENCODER_FLAGS}", "the settings of the search do")


class Searched:
    """A record's profile as it is searched."""

    def __init__(self, record: Record, task: Task):
        self.record, self._task = record, task
        self.question, *self.texts = texts_of(task, record)

    @cached_property
    def digest(self) -> "hashlib._Hash":
        digest = hashlib.sha256()
        for text in self.texts:
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
        return digest

    def key(self, query: str) -> str:
        """Return the key of an order in the store."""
        digest = self.digest.copy()
        digest.update(query.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]

    @cached_property
    def index(self) -> "BM25Index":
        from retrieval.rankers import BM25Index

        return BM25Index(self.texts)


class Search:
    """Finds a profile's best items for a query.

    Attributes:
        settings: what its orders depend on, for an output's settings.
    """

    def __init__(self, args: argparse.Namespace, task: Task, dataset: str):
        """UserError if there is no such encoder, and the store has no orders by it.

        Args:
            dataset: the path of the records' file; if it was ranked with dates, its items are searched with them.
        """
        made = noted_settings(dataset)
        use_date = made.get("use_date", made.get("setting") == "time" and task.date_field is not None)
        self._args, self._task, self._is_dense = args, with_dates(task) if use_date else task, args.search == "dense"
        self._encoder: Encoder | None = None
        self._kept: Embeddings | None = None
        self._under_way: dict[str, asyncio.Task[list[int]]] = {}  # by key
        self._waiting: dict[str, asyncio.Future[np.ndarray]] = {}  # texts to embed
        self._embedding: asyncio.Task[None] | None = None
        self._folder = Path(dataset).parent / "embeddings"
        described = {"search": args.search} | (self._find_encoder() if self._is_dense else {})
        self.settings = described | {"use_date": bool(use_date)}
        self.store = ModelStore(args.completions, f"search-{self._name}", described)
        self.store.server = self._name

    @property
    def _name(self) -> str:
        return Path(self._args.model_name).name if self._is_dense else "bm25"

    def _find_encoder(self) -> dict[str, Any]:
        """Return what the orders depend on; with --cached_only, from the store if there is no such encoder here."""
        length = {"max_length": self._args.max_length}
        try:
            self._pooling = find_pooling(self._args)
            return settings_of_encoder(self._args, self._pooling) | length
        except UserError:
            if not self._args.cached_only:
                raise
            given = {name: vars(self._args)[name] for name in ("pooling", "normalize")}
            wanted = length | {name: value for name, value in given.items() if value is not None}
            for path in sorted(Path(self._args.completions).glob("search-*/model.json")):
                with suppress(ValueError, AttributeError):
                    described = json.loads(path.read_text(encoding="utf-8"))
                    is_same = described.pop("search") == "dense" and self._name in described.pop("servers", ())
                    if is_same and wanted.items() <= described.items():
                        return described
            raise

    def check(self) -> None:
        """Raise UserError if nothing could be stored."""
        if not self._args.cached_only:
            self.store.check_writable()

    def close(self) -> None:
        """Close the store and the embeddings; a later search opens them again."""
        self.store.close()
        if self._kept is not None:
            self._kept.close()

    def open(self, record: Record) -> Searched:
        return Searched(record, self._task)

    async def order(self, searched: Searched, query: str) -> list[int]:
        """Return the places of the best items in the profile, best first, at most `MOST`; ties keep their order.

        Raises:
            NotStoredError: --dry_run, and the order would need the encoder.
            UserError: so it would with --cached_only; or the encoder has no usable embedding of a text.
        """
        if query == searched.record["question"]:
            query = searched.question  # as it is ranked: without the instructions of LaMP's inputs
        if not searched.texts:
            return []
        key = searched.key(query)
        if (stored := self.store.get(key)) is not None:
            return stored["order"]
        if key not in self._under_way:
            self._under_way[key] = asyncio.create_task(self._make(searched, query, key))
            self._under_way[key].add_done_callback(lambda _: self._under_way.pop(key))
        return await asyncio.shield(self._under_way[key])

    async def _make(self, searched: Searched, query: str, key: str) -> list[int]:
        order = (await self._by_embeddings(searched, query) if self._is_dense else searched.index.rank(query))[:MOST]
        if not self._args.dry_run:
            self.store.add(key, {"id": searched.record["id"], "query": query, "order": order})
        return order

    async def _by_embeddings(self, searched: Searched, query: str) -> list[int]:
        from retrieval.embeddings import usable_rows
        from retrieval.rankers import rank_by_embedding

        if self._args.dry_run:
            raise NotStoredError
        if self._args.cached_only:
            raise UserError(
                f"{self.store.folder}: lacks the order of {quote(searched.record['id'])} for {quote(query)}\n"
                "  run the same command without --cached_only"
            )
        before, between = self._pooling.prefixes
        texts = [before + query, *(between + text for text in searched.texts)]
        row_of = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        rows = await self._embed(list(row_of))
        usable = usable_rows(rows)
        if not usable.all():
            text = next(text for text, number in row_of.items() if not usable[number])
            raise UserError(
                f"id {quote(searched.record['id'])}: {self._args.model_name} returns no usable embedding for the text "
                f"{quote(text)} (NaN, infinite or all zeros)\n  use an undamaged encoder; finished work is kept"
            )
        return rank_by_embedding(rows, row_of[texts[0]], [row_of[text] for text in texts[1:]])

    async def _embed(self, texts: Sequence[str]) -> "np.ndarray":
        """Return the embeddings (N, D) of distinct texts; those that are not kept are embedded together with others."""
        import numpy as np

        from retrieval.embeddings import Embeddings

        if self._kept is None:
            described = settings_of_embeddings(self._args, self._pooling, DTYPE)
            folder = Path(self._args.completions) / "embeddings"
            self._kept = Embeddings(folder, self._args.model_name, described, [self._folder])
        rows = self._kept.find(texts)
        lacking = [text for text in texts if text not in rows]
        loop = asyncio.get_running_loop()
        futures = [self._waiting.setdefault(text, loop.create_future()) for text in lacking]
        if futures and (self._embedding is None or self._embedding.done()):
            self._embedding = asyncio.create_task(self._embed_waiting())
        rows |= dict(zip(lacking, await asyncio.gather(*futures), strict=True))
        return np.stack([rows[text] for text in texts])

    async def _embed_waiting(self) -> None:
        """Embed all texts that wait, in the order in which they came, some at a time."""
        while self._waiting:
            texts = list(self._waiting)[:AT_ONCE]
            try:
                rows = await asyncio.to_thread(self._embed_now, texts)
                self._kept.add(texts, rows)
            except Exception as error:
                for text in texts:
                    if not (future := self._waiting.pop(text)).done():
                        future.set_exception(error)
            else:
                for text, row in zip(texts, rows, strict=True):
                    if not (future := self._waiting.pop(text)).done():
                        future.set_result(row)

    def _embed_now(self, texts: Sequence[str]) -> "np.ndarray":
        from retrieval.encoder import embed_texts

        if self._encoder is None:
            self._encoder = open_encoder(self._args, self._pooling, self._args.search_device, DTYPE)
        return embed_texts(self._encoder, texts)[0]
