"""The store: every completion of every model in append-only files, so that no completion is requested twice.

  completions/
    Qwen2.5-7B-Instruct-1f2e3d4c/            one folder per model
      model.json                             the model's identity
      20261124T015000-node7-4711-9c2e.jsonl  one file per writing process

The first line of a file names the model, the writer, and package versions. Every other line is a completion: its key,
its fields, and a CRC-32. Files only grow, so several processes and nodes can share a store: each reads the others' new
lines when it opens the store, and every ten seconds. If two lines have the same key, the older file's line is used.
"""

import hashlib
import json
import os
import re
import socket
import time
import zlib
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from utils.base import manifest
from utils.base.errors import UserError, describe_os_error
from utils.base.writing import (
    check_could_write,
    check_regular,
    naming,
    open_appending,
    own_name,
    sync,
    write_atomically,
    write_line,
)

KEY_START, KEY_END = 8, 40  # a line's key: {"key":"<32 hex digits>",...
NO_KEY = "0" * (KEY_END - KEY_START)  # the key of a file's first line
SUM = b',"crc32":"%08x"}\n'
SUM_LENGTH = len(SUM % 0)
REFRESH_SECONDS = 10  # between reads of the lines that other processes add
SYNC_SECONDS = 1  # between fsyncs; a power cut loses the completions of this time
OPEN_FILES = 100  # files open for reading at a time: every run adds one to a store, and a process may open about 1000
HOLE_LOOKS = 5  # reads, one second apart, of a line with zeros: on a network file system, it may still be incomplete


class ModelStore:
    """One model's completions, or one ranker's orders, each by the key of its request.

    Attributes:
        folder: the model's folder, which is created with the first completion.
        described: everything that distinguishes this model from others.
        server: the server that has this model, as "NAME at ADDRESS". It is recorded with the first new completion, so
            that later runs know the server's model without asking the server.
    """

    server: str | None = None

    def __init__(self, store: str | Path, model: str, described: dict[str, Any]):
        """`store` is the folder of all models, and `model` the model's name, with which its folder's name begins."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name)[:60] or "model"
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:8]
        self._root, self._pattern = Path(store), f"*-{digest}"  # runs with another name for the model may add folders
        self._own_name = f"{name}-{digest}"
        self.described = described
        self._places: dict[bytes, tuple[_Lines, int, int]] = {}  # key -> the line's file, offset and length in bytes
        self._files: list[_Lines] = []
        self._opened: dict[_Lines, IO[bytes]] = {}  # for `get`
        self._own: IO[bytes] | None = None  # the file to which this process appends
        self._own_lines: _Lines | None = None  # the same file, with the end of its last whole line
        self._read_at = -float("inf")
        self._synced_at = 0.0

    @cached_property
    def folder(self) -> Path:
        return next(iter(sorted(self._root.glob(self._pattern))), self._root / self._own_name)

    @property
    def is_empty(self) -> bool:
        """Whether no process has ever added a completion, or the files have been deleted."""
        return not any(self._root.glob(f"{self._pattern}/*.jsonl"))

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the fields stored under a key, or None; UserError if a file is damaged."""
        if time.monotonic() - self._read_at >= REFRESH_SECONDS:
            self._read_new()
        place = self._places.get(bytes.fromhex(key))
        if place is None:
            return None
        file, offset, length = place
        if file not in self._opened:
            if len(self._opened) == OPEN_FILES:
                self._close_opened()
            self._opened[file] = file.open(buffering=0)
        line = os.pread(self._opened[file].fileno(), length, offset)
        if not _is_whole(line) or line[KEY_START:KEY_END] != key.encode():
            raise UserError(f"{file.path}: changed while this run used it; run the same command again")
        return json.loads(line)

    def add(self, key: str, fields: dict[str, Any]) -> None:
        """Store a completion. It survives the end of this process at once, and a power cut about a second later."""
        if self._own is None:
            self._begin()
        self._places.setdefault(bytes.fromhex(key), self._append(key, fields))
        if time.monotonic() - self._synced_at >= SYNC_SECONDS:
            with naming(self._own.name):
                sync(self._own)
            self._synced_at = time.monotonic()

    def check_writable(self) -> None:
        """Raise UserError if completions could not be added; called before a request is paid for. Creates nothing."""
        check_could_write(self.folder / "model.json")

    def close(self) -> None:
        self._close_opened()
        own, self._own = self._own, None
        self._files, self._places, self._read_at = [], {}, -float("inf")
        if own is not None:
            with own, naming(own.name):
                sync(own)

    def _close_opened(self) -> None:
        while self._opened:
            self._opened.popitem()[1].close()

    def _begin(self) -> None:
        """Create the folder and this process's own file, whose name begins with the time: older files sort first."""
        model = self.folder / "model.json"
        recorded = _read_model(model)["servers"]
        servers = [*recorded, *({self.server} - {None, *recorded})]
        described = self.described | ({"servers": servers} if servers else {})
        self.folder.mkdir(parents=True, exist_ok=True)
        if servers != recorded or not model.exists():
            write_atomically(model, json.dumps(described, indent=2) + "\n")
        path = self.folder / f"{own_name()}.jsonl"
        self._own = open_appending(path)
        self._own_lines = _Lines(path, self.described)
        self._files.append(self._own_lines)
        writer = {"model": self.described, "host": socket.gethostname(), "versions": manifest.versions()}
        self._append(NO_KEY, writer)

    def _append(self, key: str, fields: dict[str, Any]) -> tuple["_Lines", int, int]:
        """Append a line; return its file, offset and length. If only a part can be written, that part is removed."""
        file = self._own_lines
        line = line_of(key, fields)
        try:
            write_line(self._own, line, file.path)
        except OSError:
            try:
                self._own.truncate(file.end)
            except OSError:
                self._own = None  # the file ends with an incomplete line, so later lines go to another file
            raise
        file.end += len(line)
        return file, file.end - len(line), len(line)

    def refresh(self) -> None:
        """Make the next `get` read the lines that other processes have added."""
        self._read_at = -float("inf")

    def _read_new(self) -> None:
        """Index the lines that other processes have added since the last read."""
        paths = {file.path for file in self._files}
        for path in sorted(self._root.glob(f"{self._pattern}/*.jsonl"), key=lambda path: path.name):
            if path not in paths:
                check_regular(path)
                self._files.append(_Lines(path, self.described))
        for file in self._files:
            if self._own is None or file is not self._own_lines:
                for key, offset, length in file.read_new():
                    self._places.setdefault(key, (file, offset, length))
        self._read_at = time.monotonic()


class _Lines:
    """A file of the store, read up to `end`."""

    def __init__(self, path: Path, described: dict[str, Any]):
        self.path, self.end = path, 0
        self._described, self._number = described, 0

    def read_new(self, looks: int = HOLE_LOOKS) -> list[tuple[bytes, int, int]]:
        """Return key, offset and length of each new line, except an incomplete last line.

        Another process is still writing an incomplete line, or was killed; no other process appends to its file.
        UserError if a line is damaged, or is complete except for its line break.
        """
        lines = []
        with self.open(buffering=1 << 20) as file:
            file.seek(self.end)
            for line in file:
                if not _is_whole(line):
                    if not line.endswith(b"\n") and not _is_whole(line[:-1] + b"\n"):
                        break
                    if b"\0" in line and looks > 1:
                        time.sleep(1)
                        return lines + self.read_new(looks - 1)
                    raise UserError(
                        f"{self.path}: line {self._number + 1} is damaged\n"
                        "  delete that line to request its completion again"
                    )
                self._number += 1
                if (key := line[KEY_START:KEY_END].decode()) != NO_KEY:
                    lines.append((bytes.fromhex(key), self.end, len(line)))
                elif (model := json.loads(line).get("model")) != self._described:
                    raise UserError(
                        f"{self.path}: has completions of another model, {json.dumps(model)}\n"
                        "  move it back to that model's folder"
                    )
                self.end += len(line)
        return lines

    def open(self, buffering: int) -> IO[bytes]:
        try:
            return open(self.path, "rb", buffering=buffering)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {describe_os_error(error)}") from None


def models_of_server(store: str | Path, server: str) -> list[dict[str, Any]]:
    """Return the model.json of each model with stored completions from this server, given as "NAME at ADDRESS"."""
    models = map(_read_model, sorted(Path(store).glob("*/model.json")))
    return [model for model in models if server in model["servers"]]


def _read_model(path: Path) -> dict[str, Any]:
    """Return the content of a model.json, always with the list `servers`; UserError if the file is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return content | {"servers": [*content.get("servers", [])]}
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{path}: is damaged; delete it") from None


def line_of(key: str, fields: dict[str, Any]) -> bytes:
    """Return the line of the store for a completion; `key` has 32 hex digits."""
    import msgspec  # here, so that --help needs no package

    text = msgspec.json.encode({"key": key, **fields})[:-1]
    return text + SUM % zlib.crc32(text)


def _is_whole(line: bytes) -> bool:
    return line[-SUM_LENGTH:] == SUM % zlib.crc32(line[:-SUM_LENGTH])
