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
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from utils.cli import UserError
from utils.files.writing import (
    as_user_error,
    check_could_write,
    open_appending,
    own_name,
    sync,
    write_atomically,
    write_line,
)

HASH = 16  # bytes of a text's hash
NUMBER = 4  # bytes of a float32


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
        self._own: tuple[IO[bytes], IO[bytes]] | None = None  # the rows and hashes that this process adds
        self._size = 0  # bytes of a row

    @cached_property
    def _places(self) -> dict[bytes, tuple[Path, int]]:
        """By a text's hash, the file of its row, and the row's number there."""
        places: dict[bytes, tuple[Path, int]] = {}
        for folder in (folder for root in self._roots for folder in sorted(root.glob(self._pattern))):
            self._size = self._dimension(folder) * NUMBER
            for path in sorted(folder.glob("*.sha")):
                hashes, rows = path.read_bytes(), path.with_suffix(".f32")
                number = len(hashes) // HASH
                if number and (not rows.is_file() or rows.stat().st_size < number * self._size):
                    raise UserError(f"{rows}: is damaged: it lacks rows; delete it and {path.name}")
                places |= {hashes[row * HASH : (row + 1) * HASH]: (rows, row) for row in range(number)}
        return places

    def _dimension(self, folder: Path) -> int:
        path = folder / "encoder.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            dimension = int(content.pop("dimension"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: is missing or damaged; delete {folder}") from None
        if content != self._described:
            raise UserError(f"{path}: describes another encoder; delete {folder}")
        return dimension

    def find(self, texts: Iterable[str]) -> dict[str, np.ndarray]:
        """Return the kept embeddings, float32 (D,), by text; UserError if one is not usable."""
        rows, wanted = {}, defaultdict[Path, list[tuple[str, int]]](list)
        for text in texts:
            if (place := self._places.get(_hash(text))) is not None:
                wanted[place[0]].append((text, place[1]))
        for path, texts_and_rows in wanted.items():
            with path.open("rb", buffering=0) as file:
                for text, number in texts_and_rows:
                    row = np.frombuffer(os.pread(file.fileno(), self._size, number * self._size), dtype=np.float32)
                    if len(row) * NUMBER != self._size or not usable_rows(row[None]).all():
                        problem = f"row {number + 1} is damaged; delete it and the .sha file beside it"
                        raise UserError(f"{path}: {problem}")
                    rows[text] = row
        return rows

    def add(self, texts: Sequence[str], rows: np.ndarray) -> None:
        """Keep the embeddings (N, D) of different texts that are new, except those that are not usable."""
        hashes = [_hash(text) for text in texts]
        new = [place for place in np.flatnonzero(usable_rows(rows)) if hashes[place] not in self._places]
        if not new:
            return
        if self._own is None:
            self._begin(rows.shape[1])
        rows_file, hashes_file = self._own
        path, first = Path(rows_file.name), hashes_file.tell() // HASH
        try:
            write_line(rows_file, rows[new].astype(np.float32, copy=False).tobytes(), path)
            write_line(hashes_file, b"".join(hashes[place] for place in new), path.with_suffix(".sha"))
        except OSError:
            self._own = None  # it may end within a row, so later ones go to another file
            raise
        self._places.update({hashes[place]: (path, first + number) for number, place in enumerate(new)})

    def _begin(self, dimension: int) -> None:
        """Make this process's own files."""
        path = self.folder / "encoder.json"
        if self._size not in (0, dimension * NUMBER):
            raise UserError(f"{path}: is damaged: its dimension is not the encoder's; delete {self.folder}")
        self._size = dimension * NUMBER
        with as_user_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_atomically(path, json.dumps({**self._described, "dimension": dimension}, indent=2) + "\n")
        name = own_name()
        self._own = open_appending(self.folder / f"{name}.f32"), open_appending(self.folder / f"{name}.sha")

    def check_writable(self) -> None:
        """Raise UserError if nothing could be added. Creates nothing."""
        check_could_write(self.folder / "encoder.json")

    def close(self) -> None:
        for file in self._own or ():
            with file:
                sync(file)
        self._own = None
        vars(self).pop("_places", None)


def usable_rows(embeddings: np.ndarray) -> np.ndarray:
    """Return which embeddings (N, D) can be compared: neither NaN nor infinite, nor all zeros. Shape (N,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(embeddings, axis=1)
    return np.isfinite(norms) & (norms > 0)  # the dot product of two such ones is finite too


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:HASH]
