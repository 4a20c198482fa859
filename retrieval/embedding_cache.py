"""Embeddings on disk, so that a second ranking of the same posts embeds nothing again.

`<folder>/<what decides an embedding, hashed>/` holds pairs of files, `<name>.embeddings.npy` and `<name>.hashes.npy`:
some embeddings, and for each the hash of its text and a checksum of text and embedding. What is damaged is named and
computed again. Every writer adds pairs of its own, the hashes last and each file whole
or not at all, so any number of processes may share a cache.
"""

import functools
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from retrieval import encoder
from utils.cli import UserError, describe_os_error
from utils.cli.progress import Progress
from utils.files.writing import open_whole, probe_folder

HASH_BYTES, CHECKSUM_BYTES = 32, 16


def check_cache(folder: str) -> None:
    """Raise UserError if an EmbeddingCache could not be made or written there; nothing is made: for a dry run."""
    try:
        probe_folder(Path(folder) / "embeddings" / "identity.txt")
    except OSError as error:
        raise UserError(f"--embedding_cache {folder}: cannot be written: {describe_os_error(error)}") from None


class EmbeddingCache:
    """The embeddings that one encoder with one setting has computed; they stay on disk until they are asked for."""

    def __init__(self, folder: str | Path, identity: str):
        """See what is there, and say what is damaged; UserError where the folder cannot be made or written.

        Args:
            identity: all that decides an embedding besides the text: model, pooling, max length, dtype.
        """
        self._folder = Path(folder) / hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._identity = identity
        self._parts: list[tuple[Path, np.ndarray, np.ndarray]] = []  # its file of hashes, these, and its embeddings
        self._damaged: set[Path] = set()
        self._place_of: dict[bytes, tuple[int, int]] = {}  # part and row, by the text's hash
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write("identity.txt", lambda file: file.write(f"{identity}\n".encode()))
        except OSError as error:
            raise UserError(f"--embedding_cache {folder}: cannot be written: {describe_os_error(error)}") from None
        for path in sorted(self._folder.glob("*.hashes.npy"), key=_age):  # of a text that is there twice the newest
            self._open(path)

    @property
    def is_empty(self) -> bool:
        return not self._place_of

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The embeddings (D,) of those of `texts` that are there undamaged, by text."""
        found = {text: self._read(_text_hash(text)) for text in texts}
        return {text: embedding for text, embedding in found.items() if embedding is not None}

    def _read(self, text_hash: bytes) -> np.ndarray | None:
        if text_hash not in self._place_of:
            return None
        part, row = self._place_of[text_hash]
        path, hashes, embeddings = self._parts[part]
        embedding = np.array(embeddings[row])
        if bytes(hashes[row]) == text_hash + self._checksum(text_hash, embedding) and np.isfinite(embedding).all():
            return embedding
        self._tell_damage(path)
        return None

    def _checksum(self, text_hash: bytes, embedding: np.ndarray) -> bytes:
        """Of an embedding, its type, its text and the encoder, in CHECKSUM_BYTES."""
        its = f"{self._identity} {embedding.dtype.str}".encode() + text_hash + embedding.tobytes()
        return hashlib.blake2b(its, digest_size=CHECKSUM_BYTES).digest()

    def _tell_damage(self, path: Path) -> None:
        if path not in self._damaged:
            self._damaged.add(path)
            print(f"note: {path}: it or its embeddings are damaged", file=sys.stderr)
            print("  what is damaged is computed again; delete both files if this is said again", file=sys.stderr)

    def add(self, texts: Sequence[str], embeddings: np.ndarray) -> None:
        """Keep the embeddings (len(texts), D) of some texts."""
        if not texts:
            return
        text_hashes = list(map(_text_hash, texts))
        sealed = [one + self._checksum(one, row) for one, row in zip(text_hashes, embeddings, strict=True)]
        hashes = np.frombuffer(b"".join(sealed), dtype=np.uint8).reshape(len(texts), -1)
        name = hashlib.sha256(b"".join(text_hashes)).hexdigest()[:32]
        self._write(f"{name}.embeddings.npy", lambda file: np.save(file, embeddings, allow_pickle=False))
        self._write(f"{name}.hashes.npy", lambda file: np.save(file, hashes, allow_pickle=False))
        self._open(self._folder / f"{name}.hashes.npy")

    def _write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        staged = self._folder / f"{name}.{os.getpid()}.tmp"
        with open_whole(staged, "wb") as file:
            write(file)
        try:
            staged.replace(self._folder / name)
        except IsADirectoryError:
            staged.unlink()
            raise UserError(f"{self._folder / name}: a folder; move it away") from None
        except FileNotFoundError:  # another writer of the same texts was first, and has swept it away
            pass
        for left in self._folder.glob(f"{name}.*.tmp"):  # by a killed run
            left.unlink(missing_ok=True)

    def _open(self, path: Path) -> None:
        other = path.with_name(path.name.replace(".hashes.", ".embeddings."))
        try:
            if not (path.is_file() and other.is_file()):  # a pipe would be waited for
                raise ValueError
            hashes, embeddings = (np.load(file, allow_pickle=False, mmap_mode="r") for file in (path, other))
            width = HASH_BYTES + CHECKSUM_BYTES
            if (hashes.dtype, hashes.shape) != (np.uint8, (*embeddings.shape[:1], width)) or embeddings.ndim != 2:
                raise ValueError
        except Exception:  # numpy raises many kinds over what is not an array
            self._tell_damage(path)
            return
        part = len(self._parts)
        self._parts.append((path, hashes, embeddings))
        self._place_of.update((bytes(line[:HASH_BYTES]), (part, row)) for row, line in enumerate(np.array(hashes)))


def _age(path: Path) -> tuple[int, Path]:
    return (path.stat().st_mtime_ns if path.exists() else 0), path


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
