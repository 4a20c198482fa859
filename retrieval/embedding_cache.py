"""Embeddings on disk, so that a second ranking of the same posts embeds nothing again.

`<folder>/<what decides an embedding, hashed>/` holds pairs of files, `<name>.embeddings.npy` and `<name>.hashes.npy`:
some embeddings, and the hashes of their texts. Every writer adds pairs of its own, the hashes last and each file whole
or not at all, so any number of processes may share a cache.
"""

import functools
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from retrieval import encoder
from utils.cli import UserError, describe_os_error
from utils.cli.progress import Progress
from utils.files.writing import open_whole


class EmbeddingCache:
    """The embeddings that one encoder with one setting has computed; they stay on disk until they are asked for."""

    def __init__(self, folder: str | Path, identity: str):
        """See what is there; UserError where the folder cannot be made or written, or a file in it is damaged.

        Args:
            identity: all that decides an embedding besides the text: model, pooling, max length, dtype.
        """
        self._folder = Path(folder) / hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._parts: list[np.ndarray] = []
        self._place_of: dict[bytes, tuple[int, int]] = {}  # part and row, by the text's hash
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "identity.txt").write_text(identity + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--embedding_cache {folder}: cannot be written: {describe_os_error(error)}") from None
        for path in sorted(self._folder.glob("*.hashes.npy")):
            self._open(path)

    @property
    def is_empty(self) -> bool:
        return not self._place_of

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The embeddings (D,) of those of `texts` that are there, by text."""
        places = {text: self._place_of.get(_text_hash(text)) for text in texts}
        return {text: np.array(self._parts[place[0]][place[1]]) for text, place in places.items() if place}

    def add(self, texts: Sequence[str], embeddings: np.ndarray) -> None:
        """Keep the embeddings (len(texts), D) of some texts."""
        if not texts:
            return
        hashes = np.frombuffer(b"".join(map(_text_hash, texts)), dtype=np.uint8).reshape(len(texts), -1)
        name = hashlib.sha256(hashes.tobytes()).hexdigest()[:32]
        self._write(f"{name}.embeddings.npy", embeddings)
        self._write(f"{name}.hashes.npy", hashes)
        self._open(self._folder / f"{name}.hashes.npy")

    def _write(self, name: str, array: np.ndarray) -> None:
        staged = self._folder / f"{name}.{os.getpid()}.tmp"
        with open_whole(staged, "wb") as file:
            np.save(file, array, allow_pickle=False)
        with suppress(FileNotFoundError):  # another writer of the same texts was first, and has swept it away
            staged.replace(self._folder / name)
        for left in self._folder.glob(f"{name}.*.tmp"):  # by a killed run
            left.unlink(missing_ok=True)

    def _open(self, path: Path) -> None:
        other = path.with_name(path.name.replace(".hashes.", ".embeddings."))
        try:
            hashes = np.load(path, allow_pickle=False)
            embeddings = np.load(other, allow_pickle=False, mmap_mode="r")
            if len(hashes) != len(embeddings):
                raise ValueError
        except (OSError, ValueError, EOFError):
            raise UserError(
                f"{path}: it or its embeddings are damaged; delete it, and they are computed again"
            ) from None
        part = len(self._parts)
        self._parts.append(embeddings)
        self._place_of.update((bytes(text_hash), (part, row)) for row, text_hash in enumerate(hashes))


def _text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Embedder:
    """Embeds the texts that a cache lacks.

    Attributes:
        encoder: gives the encoder. Only the first text to embed takes one: torch and the device, which is checked
            then, take longer than a small file.
        counts: "texts_embedded" and "texts_cut" (of those).
    """

    def __init__(self, load: Callable[[], encoder.Encoder], batch_size: int | None, cache: EmbeddingCache | None):
        self.encoder = functools.cache(load)
        self.cache, self._batch_size = cache, batch_size
        self.counts: Counter[str] = Counter()

    def embed(self, texts: list[str], progress: Progress) -> np.ndarray:
        """The embeddings (len(texts), D) of distinct texts."""
        known = self.cache.get(texts) if self.cache else {}
        progress.update(len(known))
        new = [text for text in texts if text not in known]
        self.counts.update(texts_embedded=len(new), texts_cut=0)
        if new:
            computed, num_cut = encoder.embed_texts(self.encoder(), new, self._batch_size, progress)
            self.counts.update(texts_cut=num_cut)
            if self.cache:
                self.cache.add(new, computed)
            if not known:
                return computed
            known.update(zip(new, computed, strict=True))
        return np.stack([known[text] for text in texts])
