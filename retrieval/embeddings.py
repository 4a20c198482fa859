"""Embeddings that are kept on disk, so that each text is embedded once.

  embeddings/
    contriever-msmarco-1f2e3d4c/             one folder per encoder
      encoder.json                           what its embeddings depend on, and their dimension D
      20261124T015000-node7-4711-9c2e.f32    one file per writing process: rows of D float32 numbers
      20261124T015000-node7-4711-9c2e.sha    the hashes of the rows' texts

Files only grow, so several processes and nodes can share a folder. A row counts once its hash is written, which happens
after the row is.
"""

import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from utils.cli import UserError
from utils.files.writing import as_user_error, check_could_write, open_appending, sync, write_atomically, write_line

HASH = 16  # bytes of a text's hash
NUMBER = 4  # bytes of a float32


class _File:
    """A file of rows, with the sorted hashes of their texts and the number of each hash's row."""

    def __init__(self, path: Path, dimension: int):
        """`path` is the file of hashes."""
        hashes = np.frombuffer(path.read_bytes()[: path.stat().st_size // HASH * HASH], dtype=f"S{HASH}")
        rows_path = path.with_suffix(".f32")
        self.size = dimension * NUMBER
        self.rows: IO[bytes] = rows_path.open("rb", buffering=0)
        if len(hashes) * self.size > rows_path.stat().st_size:
            raise UserError(f"{rows_path}: is damaged: it lacks rows; delete it and {path.name}")
        self.numbers = np.argsort(hashes, kind="stable")
        self.hashes = hashes[self.numbers]

    def find(self, hashes: np.ndarray) -> dict[int, int]:
        """Return, by place in `hashes`, the number of the row of each text that is kept here."""
        if not len(self.hashes):
            return {}
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return {int(i): int(self.numbers[places[i]]) for i in np.flatnonzero(self.hashes[places] == hashes)}


class Embeddings:
    """The kept embeddings of one encoder, by text."""

    def __init__(self, folder: Path, model_name: str, described: dict[str, Any], also: Sequence[Path] = ()):
        """
        Args:
            folder: the folder of all encoders; new embeddings are written there.
            described: everything that an embedding depends on besides its text.
            also: further such folders, which are only read.
        """
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:8]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model_name).name) or "encoder"
        self.folder = folder / f"{name}-{digest}"
        self._described = described
        self._roots, self._pattern = (folder, *also), f"*-{digest}"
        self._own: tuple[IO[bytes], IO[bytes]] | None = None  # this process's rows and hashes
        self._own_rows: dict[bytes, int] = {}  # by hash, the number of a row that this process has written

    @cached_property
    def _files(self) -> list[_File]:
        folders = [folder for root in self._roots for folder in sorted(root.glob(self._pattern))]
        with as_user_error(self.folder):
            return [_File(path, self._dimension(folder)) for folder in folders for path in sorted(folder.glob("*.sha"))]

    def _dimension(self, folder: Path) -> int:
        path = folder / "encoder.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            dimension = content.pop("dimension")
        except (OSError, ValueError, KeyError, AttributeError):
            raise UserError(f"{path}: is missing or damaged; delete {folder}") from None
        if content != self._described:
            raise UserError(f"{path}: describes another encoder; delete {folder}")
        return dimension

    def find(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the kept embeddings, float32 (D,), by text; UserError if one is not usable."""
        hashes, rows = [_hash(text) for text in texts], {}
        for place, digest in enumerate(hashes):
            if digest in self._own_rows:
                rows[texts[place]] = self._read(self._own[0], self._own_size, self._own_rows[digest])
        wanted = np.array(hashes, dtype=f"S{HASH}")
        for file in self._files:
            for place, number in file.find(wanted).items():
                if texts[place] not in rows:
                    rows[texts[place]] = self._read(file.rows, file.size, number)
        return rows

    def _read(self, file: IO[bytes], size: int, number: int) -> np.ndarray:
        row = np.frombuffer(os.pread(file.fileno(), size, number * size), dtype=np.float32)
        if len(row) * NUMBER != size or not usable_rows(row[None]).all():
            raise UserError(f"{file.name}: row {number + 1} is damaged; delete it and the .sha file beside it")
        return row

    def add(self, texts: Sequence[str], rows: np.ndarray) -> None:
        """Keep the embeddings (N, D) of texts that are new, except those that are not usable."""
        usable = usable_rows(rows)
        hashes = [_hash(text) for text in texts]
        kept = [place for place in np.flatnonzero(usable) if hashes[place] not in self._own_rows]
        if not kept:
            return
        if self._own is None:
            self._begin(rows.shape[1])
        rows_file, hashes_file = self._own
        try:
            write_line(rows_file, rows[kept].astype(np.float32, copy=False).tobytes(), Path(rows_file.name))
            write_line(hashes_file, b"".join(hashes[place] for place in kept), Path(hashes_file.name))
        except OSError:
            self._own, self._own_rows = None, {}  # it may end within a row, so later ones go to another file
            raise
        for place in kept:
            self._own_rows[hashes[place]] = len(self._own_rows)

    def _begin(self, dimension: int) -> None:
        """Make this process's own files."""
        path = self.folder / "encoder.json"
        with as_user_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_atomically(path, json.dumps({**self._described, "dimension": dimension}, indent=2) + "\n")
        host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())
        now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{now}-{host}-{os.getpid()}-{secrets.token_hex(8)}"
        self._own = open_appending(self.folder / f"{name}.f32"), open_appending(self.folder / f"{name}.sha")
        self._own_size = dimension * NUMBER

    def check_writable(self) -> None:
        """Raise UserError if nothing could be added. Creates nothing."""
        check_could_write(self.folder / "encoder.json")

    def close(self) -> None:
        for file in self._own or ():
            with file:
                sync(file)
        for file in vars(self).pop("_files", ()):
            file.rows.close()
        self._own, self._own_rows = None, {}


def usable_rows(embeddings: np.ndarray) -> np.ndarray:
    """Return which embeddings (N, D) can be compared: neither NaN nor infinite, nor all zeros. Shape (N,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(embeddings, axis=1)
    return np.isfinite(norms) & (norms > 0)  # the dot product of two such ones is finite too


def _hash(text: str) -> bytes:
    # numpy's byte strings end before trailing zeros, so the last byte is never one.
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:HASH]
    return digest[:-1] + (digest[-1:] if digest[-1] else b"\1")
