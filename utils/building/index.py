"""An SQLite file of the questions in all inputs; it finds an author's earlier ones without loading all into memory.

All inputs are added in one transaction, so a run that was killed starts over.
"""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from utils.base.errors import UserError
from utils.base.json_files import check_readable
from utils.base.progress import announce
from utils.base.writing import check_regular
from utils.benchmarks.readers import one_line
from utils.building.posts import Post, User, read_dump, read_sepqa, read_users
from utils.building.steps import format_counts

VERSION = 2  # of the posts' content: the fields, and how texts are cleaned
LAYOUT = 5  # version of the file's tables
_TABLES = """
CREATE TABLE inputs (place INTEGER PRIMARY KEY, identity TEXT, counts TEXT);
CREATE TABLE posts (
    community TEXT, number INTEGER, author TEXT, date TEXT, title TEXT, body TEXT, licence TEXT,
    words INTEGER, digest BLOB, UNIQUE (community, number)
);
"""
# Created after all posts are added, which is faster than updating the indexes for each post.
_ORDERS = (
    "CREATE INDEX by_author ON posts (author, date, community, number, words, digest)",
    "CREATE INDEX by_text ON posts (digest, date, community, number)",
)
# Of posts with the same body, all but the first are copies. Otherwise a post asked twice, or in two communities, would
# be in its own asker's profile, and a post by two authors could be in two splits.
_IS_COPY = """(digest IS NOT NULL AND EXISTS (
    SELECT 1 FROM posts AS other WHERE other.digest = posts.digest
    AND (other.date, other.community, other.number) < (posts.date, posts.community, posts.number)
))"""
_REPEATED = "with a repeated number"  # in the same or another input
_REMEDY = "if it is damaged, delete it; the next run reads the posts again"
_COLUMNS = "community, number, author, date, title, body, licence"


class PostIndex:
    """The index in the file `path`, which is created if it does not exist."""

    def __init__(self, path: Path):
        self._path = path
        check_regular(path)
        if path.is_symlink():  # SQLite would write to the link's target
            raise UserError(f"{path}: a symbolic link; move it away, or choose another --output_dir")
        try:
            self._file = sqlite3.connect(path, isolation_level=None)
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version == 0 and self._file.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                raise sqlite3.DatabaseError("another program created it")
            if version != LAYOUT:
                self._clear()
        except sqlite3.DatabaseError as error:
            problem = f"{one_line(str(error))}; move it away, or choose another --output_dir"
            raise UserError(f"{path}: cannot be used as the posts index: {problem}") from None

    def close(self) -> None:
        self._file.close()

    def fill(self, paths: Sequence[Path]) -> None:
        """Fill the file with exactly these inputs' posts, in this order; do nothing if it already has them."""
        wanted = [_identity(path) for path in paths]
        if (identities := self._identities()) == wanted:
            return
        if identities:
            announce(f"{self._path}: was made from other inputs; rebuilding it")
        with self._reporting_errors():
            self._clear()
        with self._reporting_errors(), self._file:  # rolls back after an error
            self._file.execute("BEGIN")
            for place, path in enumerate(paths):
                announce(f"reading {path}")
                counts = self._add(path)
                identity = json.dumps(wanted[place])
                self._file.execute("INSERT INTO inputs VALUES (?, ?, ?)", (place, identity, json.dumps(counts)))
                announce(f"{path}: {format_counts(counts)}")
            announce("sorting the posts")
            for order in _ORDERS:
                self._file.execute(order)

    def identity(self) -> list[Any]:
        """Return a value that changes with any input and with the version of the posts' content."""
        return [VERSION, *self._identities()]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return counts by input: questions kept, and posts dropped by reason."""
        by_input: dict[str, Counter[str]] = {}
        for identity, counts in self._inputs():
            by_input.setdefault(identity[0], Counter()).update(counts)
        return {name: dict(counts) for name, counts in by_input.items()}

    def communities(self) -> list[str]:
        """Return the communities that have posts, sorted."""
        return [name for (name,) in self._file.execute("SELECT DISTINCT community FROM posts ORDER BY community")]

    def authors_posts(self) -> Iterator[tuple[int, str, str, str, int, bool]]:
        """Yield each post's place, author, date, community, number of words, and whether it is a copy.

        Posts are sorted by author and date.
        """
        order = "ORDER BY author, date, community, number"
        return self._rows(f"SELECT rowid, author, date, community, words, {_IS_COPY} FROM posts {order}")

    def posts(self, places: Iterable[int]) -> Iterator[Post]:
        """Yield the posts at these places in the file."""
        for place in places:
            [row] = self._rows(f"SELECT {_COLUMNS} FROM posts WHERE rowid = ?", place)
            yield Post(*row)

    def earlier(self, author: str, date: str, most: int) -> list[Post]:
        """Return the newest `most` of an author's posts before a date, without copies, oldest first."""
        order = "ORDER BY date DESC, community DESC, number DESC LIMIT ?"
        where = f"WHERE author = ? AND date < ? AND NOT {_IS_COPY}"
        rows = self._rows(f"SELECT {_COLUMNS} FROM posts {where} {order}", author, date, most)
        return [Post(*row) for row in rows][::-1]

    def _rows(self, query: str, *values: str | int) -> Iterator[tuple[Any, ...]]:
        with self._reporting_errors():
            for row in self._file.execute(query, values):  # noqa: UP028 (`yield from` may close the cursor after the file)
                yield row

    def _identities(self) -> list[list[Any]]:
        return [identity for identity, _ in self._inputs()]

    def _inputs(self) -> list[tuple[list[Any], dict[str, int]]]:
        """Return each input's identity and counts."""
        rows = self._rows("SELECT identity, counts FROM inputs ORDER BY place")
        return [(json.loads(identity), json.loads(counts)) for identity, counts in rows]

    def _clear(self) -> None:
        drop = "DROP TABLE IF EXISTS inputs; DROP TABLE IF EXISTS posts;"
        # The version marks the file as ours. In one transaction, so a killed run leaves tables and version, or neither.
        self._file.executescript(f"BEGIN; {drop} {_TABLES} PRAGMA user_version = {LAYOUT}; COMMIT; VACUUM;")

    def _add(self, path: Path) -> dict[str, int]:
        """Add an input's posts, and return the counts of kept and dropped posts."""
        counts: Counter[str] = Counter(questions=0)
        posts = read_sepqa(path, counts) if path.suffix == ".jsonl" else read_dump(path, _read_users(path), counts)
        for post in posts:
            words = post.body.casefold().split()
            added = self._file.execute(
                "INSERT OR IGNORE INTO posts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*astuple(post), len(words), digest(words)),
            ).rowcount
            counts["questions" if added else _REPEATED] += 1
        if not counts["questions"] and not counts[_REPEATED]:
            raise UserError(
                f"{path}: has no question with title, author and date; use a dump's Posts.xml, or SE-PQA's *.jsonl"
            )
        return dict(counts)

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:  # a full disk, a lock of another process, or damage
            raise UserError(f"{self._path}: cannot be read or written: {one_line(str(error))}\n  {_REMEDY}") from None


def digest(words: list[str]) -> bytes | None:
    """Return a hash of a body's words; None if it has none."""
    return hashlib.sha256(" ".join(words).encode()).digest()[:16] if words else None


def _read_users(path: Path) -> dict[int, User]:
    """Return the users of a dump by number; without its Users.xml, print a note and return none."""
    if (beside := users_of(path)).is_file():
        return dict(read_users(beside))
    announce(f"note: {beside}: no such file; authors of this community cannot be matched with other communities")
    return {}


def users_of(path: Path) -> Path:
    """Return the path of a dump's Users.xml, which may not exist."""
    return path.with_name("Users.xml")


def _identity(path: Path) -> list[Any]:
    """Return an input's name, sizes and modification times as its identity, because hashing would take too long."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; pass the unpacked Posts.xml in it, or SE-PQA's *.jsonl")
    if not path.exists():
        raise UserError(f"{path}: no such file")
    try:
        files = [path, users_of(path)] if path.suffix != ".jsonl" and users_of(path).exists() else [path]
        for file in files:
            check_readable(file)
        statuses = [file.stat() for file in files]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    name = f"{path.resolve().parent.name}/{path.name}"
    return [name, *(number for status in statuses for number in (status.st_size, status.st_mtime_ns))]
