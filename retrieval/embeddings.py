"""Embeddings on disk, so that each text is embedded once.

  embeddings/
    contriever-msmarco-1f2e3d4c5b6a7980/         one folder per encoder and its settings
      20261124T015000-node7-4711-9c2e.768.f32    one file per writing process: rows of 768 float32 numbers (.f16: 16)
      20261124T015000-node7-4711-9c2e.768.sha    the hashes of the rows' texts

Files only grow, so several processes and nodes can share a folder. A row is written before its hash, and counts only
when its hash is there.
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

from utils.base.errors import UserError
from utils.base.writing import check_could_write, open_appending, own_name, sync, write_line

HASH = 16  # bytes of a text's hash


class Embeddings:
    """The stored embeddings of one encoder, by text."""

    def __init__(self, folder: Path, model_name: str, settings: dict[str, Any], read_only: Sequence[Path] = ()):
        """
        Args:
            folder: the folder for all encoders; new embeddings are written to it.
            settings: everything except the text that an embedding depends on.
            read_only: further folders of this kind, from which embeddings are only read.
        """
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model_name).name) or "encoder"
        self.folder = folder / f"{name}-{digest}"
        self._roots, self._pattern = (folder, *read_only), f"*-{digest}/*.sha"
        self._own: tuple[IO[bytes], IO[bytes]] | None = None  # this process's files, for rows and hashes

    @cached_property
    def _places(self) -> dict[bytes, tuple[Path, int]]:
        """By the hash of a text: the file with its embedding, and the row in the file."""
        places: dict[bytes, tuple[Path, int]] = {}
        for path in (path for root in self._roots for path in sorted(root.glob(self._pattern))):
            hashes, rows = path.read_bytes(), path.with_suffix(".f32")
            rows = half if (half := path.with_suffix(".f16")).is_file() else rows
            num_rows = len(hashes) // HASH
            if num_rows and (not rows.is_file() or rows.stat().st_size < num_rows * _row_size(rows)):
                raise UserError(f"{rows}: is damaged: rows are missing; delete it and {path.name}")
            places.update((hashes[row * HASH : (row + 1) * HASH], (rows, row)) for row in range(num_rows))
        return places

    def find(self, texts: Iterable[str]) -> dict[str, np.ndarray]:
        """Return the stored embeddings (D,) of these texts, by text; UserError if a stored embedding is not usable."""
        rows, wanted = {}, defaultdict[Path, list[tuple[str, int]]](list)
        for text in texts:
            if (place := self._places.get(_hash(text))) is not None:
                wanted[place[0]].append((text, place[1]))
        for path, texts_in_file in wanted.items():
            size, kind = _row_size(path), f"float{path.suffix[2:]}"
            with path.open("rb", buffering=0) as file:
                rows |= {
                    text: np.frombuffer(os.pread(file.fileno(), size, row * size), kind) for text, row in texts_in_file
                }
            if not usable_rows(np.stack([rows[text] for text, _ in texts_in_file])).all():
                raise UserError(f"{path}: is damaged; delete it and the .sha file beside it")
        return rows

    def add(self, texts: Sequence[str], rows: np.ndarray) -> None:
        """Store the embeddings (N, D) of these distinct texts, in the array's type, if they are new and usable."""
        hashes = [_hash(text) for text in texts]
        new = [index for index in np.flatnonzero(usable_rows(rows)) if hashes[index] not in self._places]
        if not new:
            return
        if self._own is None:
            name = f"{own_name()}.{rows.shape[1]}"
            self.folder.mkdir(parents=True, exist_ok=True)
            ends = (f"f{8 * rows.dtype.itemsize}", "sha")
            self._own = tuple(open_appending(self.folder / f"{name}.{end}") for end in ends)
        rows_file, hashes_file = self._own
        path, first = Path(rows_file.name), hashes_file.tell() // HASH
        try:
            write_line(rows_file, rows[new].tobytes(), path)
            write_line(hashes_file, b"".join(hashes[index] for index in new), path.with_suffix(".sha"))
        except OSError:
            self._own = None  # the file may end within a row now, so later rows go to a new one
            raise
        self._places.update({hashes[index]: (path, first + number) for number, index in enumerate(new)})

    def check_writable(self) -> None:
        """Raise UserError if the folder could not be written; create nothing."""
        check_could_write(self.folder / "rows.f32")

    def close(self) -> None:
        for file in self._own or ():
            with file:
                sync(file)
        self._own = None
        vars(self).pop("_places", None)


def _row_size(path: Path) -> int:
    """Return the number of bytes per row of a file, from the dimension in the file's name."""
    return int(path.suffixes[-2][1:]) * int(path.suffix[2:]) // 8


def usable_rows(embeddings: np.ndarray) -> np.ndarray:
    """Return which of the embeddings (N, D) can be compared: no NaN, not infinite, not all zeros. Shape (N,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(embeddings.astype(np.float32, copy=False), axis=1)
    return np.isfinite(norms) & (norms > 0)  # the dot product of two usable ones is finite too


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:HASH]
