"""Files from a web server: streamed to disk, and there whole or not at all.

Where a connection breaks it goes on from what is there, in this run or a later one, if the server can tell that the
file is still the same. A file has a largest size, a server a lowest speed.
"""

import asyncio
import codecs
import os
import posixpath
import time
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from utils.cli import UserError
from utils.cli.flags import address_problem
from utils.cli.progress import Progress, announce
from utils.files.lock import Lock
from utils.files.manifest import without_password
from utils.files.writing import check_writable, naming, open_appending, rename, write_line

if TYPE_CHECKING:
    import httpx

TRIES = 6  # in a row that were too slow
WAIT = 1.0  # seconds before the second try, and before each further one twice as many
SILENCE = 60  # seconds without a byte after which a connection counts as broken
SLOWEST = 1000  # bytes a second, over `SILENCE` seconds: a server that sends less would send for ever
LARGEST = 50 * 10**9  # bytes of one file: more fills the disk
SHOWN = 10**7  # bytes from which on a file's progress is shown
MB = 10**6


class Server(NamedTuple):
    """JSON files below an address; what was fetched stays in the cache, and is not asked for again."""

    url: str
    cache_dir: str

    commit = None  # it has no versions by name
    is_folder = False

    @property
    def name(self) -> str:
        return without_password(self.url).rstrip("/")

    def fetch(self, path: str) -> Path:
        """The file at `path`, which begins behind the address; UserError where it cannot be had."""
        place = urlsplit(f"{self.name}/{path}")
        cached = Path(self.cache_dir, place.netloc, posixpath.normpath(f"/{place.path}").lstrip("/"))
        if not cached.exists():
            check_writable(cached)
            lock = Lock(cached)
            try:
                if not cached.exists():  # it may have come just now
                    _Download(f"{self.url.rstrip('/')}/{path}", cached).run()
            finally:
                lock.release()
        return cached


def check_proxies() -> None:
    """Raise UserError for a proxy in the environment over which the HTTP library would fail with a traceback."""
    for scheme, address in getproxies().items():
        if scheme in ("http", "https", "all") and not address.startswith("socks"):
            address = address if "://" in address else f"http://{address}"
            if problem := address_problem(address):
                raise UserError(f"{scheme.upper()}_PROXY in the environment: {problem}")


@cache
def _note(text: str) -> None:
    """Once a run, not for every file."""
    announce(f"note: {text}")


def _note_way(urls: "list[httpx.URL]") -> None:
    """Say where a file comes without TLS, and from another host than was asked."""
    for url in urls:
        is_here = url.host in ("localhost", "::1") or url.host.startswith("127.")
        if url.scheme == "http" and not is_here:
            _note(f"{url.host}: http without TLS, so others on the way can change the files; use https if you can")
    if urls[-1].host != urls[0].host:
        _note(f"{urls[0].host} redirects to another host, {urls[-1].host}")


class _TroubleError(Exception):
    """What may pass: the same request again may succeed."""


class _Download:
    """One file on its way to `path`: what has come is in `<path>.part`, and beside it which version that is."""

    def __init__(self, url: str, path: Path):
        self._url, self._path = url, path
        self._shown = without_password(url)
        self._part, self._tag = (path.with_name(f"{path.name}{ending}") for ending in (".part", ".part.tag"))
        self._progress: Progress | None = None

    def run(self) -> None:
        import httpx

        check_proxies()
        # As it is on disk there: its length can be compared, and the rest of it asked for.
        plain = {"Accept-Encoding": "identity"}
        try:
            _note_way([httpx.URL(self._url)])
            client = httpx.AsyncClient(follow_redirects=True, timeout=SILENCE, headers=plain)
            asyncio.run(self._receive_all(client))  # a time limit on the headers needs asyncio
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"{self._shown}: cannot be downloaded ({type(error).__name__})") from None
        finally:
            if self._progress is not None:
                self._progress.close()
        rename(self._part, self._path)
        self._tag.unlink(missing_ok=True)

    async def _receive_all(self, client: "httpx.AsyncClient") -> None:
        async with client:
            await self._try_all(client)

    async def _try_all(self, client: "httpx.AsyncClient") -> None:
        import httpx

        tries, is_away, began = 0, True, time.monotonic()
        while True:
            before = self._size()
            try:
                return await self._try(client)
            except _TroubleError as error:
                problem, is_away = str(error), False
            except httpx.TransportError as error:
                problem = f"the connection failed ({type(error).__name__})"
                is_away = is_away and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            came, seconds, began = self._size() - before, time.monotonic() - began, time.monotonic()
            tries = 1 if came > 0 and came >= SLOWEST * seconds else tries + 1
            if tries == TRIES or is_away:  # on a node without internet that is told at once
                kept = "what has come is kept: run the same command again" if self._wanted() else "run it again later"
                raise UserError(
                    f"{self._shown}: cannot be downloaded: {problem}\n"
                    f"  {kept}, or copy the files here and give their folder as --source_dir"
                )
            wait = WAIT * 2 ** (tries - 1)
            announce(f"{self._path.name}: {problem}; again in {wait:.0f} s")
            await asyncio.sleep(wait)

    async def _try(self, client: "httpx.AsyncClient") -> None:
        request = client.build_request("GET", self._url, headers=self._wanted())
        try:
            async with asyncio.timeout(2 * SILENCE):  # redirects too; not `SILENCE`, by which connecting is limited
                response = await client.send(request, stream=True)
        except TimeoutError:
            raise self._trouble(f"no answer in {2 * SILENCE} s", forget=False) from None
        try:
            await self._receive(response)
        finally:
            await response.aclose()

    def _wanted(self) -> dict[str, str]:
        """The rest of what has come, unless the file was changed since; without a part of it, all."""
        tag = self._tag.read_text() if self._tag.exists() and self._size() else ""
        return {"Range": f"bytes={self._size()}-", "If-Range": tag} if tag else {}

    async def _receive(self, response: "httpx.Response") -> None:
        """Put the body of an answer where it belongs; UserError where the server has no such file."""
        status = response.status_code
        _, _, place = response.headers.get("Content-Range", "").partition("bytes ")
        if status == 416 and place == f"*/{self._size()}":
            return  # nothing follows: a run ended between the last byte and the new name
        if status in (408, 416, 425, 429) or status >= 500:
            raise self._trouble(f"the server answers {status}", forget=status == 416)
        if status not in (200, 206):
            raise UserError(f"{self._shown}: the server answers {status}; is the address right?")
        _note_way([one.url for one in (*response.history, response)])
        start = self._size() if status == 206 else 0
        if start and not (place.startswith(f"{start}-") and _tag_of(response) == self._tag.read_text()):
            raise self._trouble("the file was changed", forget=True)
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() and len(length) < 20 else None
        self._check_size(total or 0)
        pieces = response.aiter_raw()
        first = await anext(pieces, b"")
        if not start:
            self._check_begin(first)  # before anything that came earlier is given up
            for old in (self._part, self._tag):
                old.unlink(missing_ok=True)
            self._tag.write_text(_tag_of(response))
        self._show(start, total)
        await self._write(first, pieces)
        if total is not None and self._size() != total:
            raise self._trouble(f"{self._size()} bytes came of {total}", forget=self._size() > total)

    def _trouble(self, problem: str, forget: bool) -> _TroubleError:
        if forget:
            self._part.unlink(missing_ok=True)
        return _TroubleError(problem)

    def _check_begin(self, begin: bytes) -> None:
        """A server sends a page with status 200 for an address that is wrong."""
        begin = begin.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        if begin not in (b"[", b"{"):
            what = {b"<": "a web page, not JSON", b"": "an empty file"}.get(begin, "something else than JSON")
            raise UserError(f"{self._shown}: the server sends {what}; is the address right?")

    def _check_size(self, size: int) -> None:
        if size > LARGEST:
            self._part.unlink(missing_ok=True)
            limit = f"over the limit of {LARGEST / 1e9:.0f} GB a file"
            raise UserError(f"{self._shown}: the server sends {size / 1e9:.1f} GB, {limit}; is the address right?")

    def _show(self, start: int, total: int | None) -> None:
        if total is None or total < SHOWN:
            return
        if self._progress is None:
            self._progress = Progress(total // MB, f"MB of {self._path.name}", start // MB)
        self._progress.update(start // MB - self._progress.done)  # less than before where it begins anew

    async def _write(self, first: bytes, pieces: AsyncIterator[bytes]) -> None:
        began, came = time.monotonic(), 0
        with naming(self._part), open_appending(self._part) as file:
            write_line(file, first, self._part)
            async for piece in pieces:
                write_line(file, piece, self._part)
                self._check_size(file.tell())
                came += len(piece)
                if (seconds := time.monotonic() - began) >= SILENCE:
                    if came < SLOWEST * seconds:
                        raise self._trouble(f"only {came} bytes came in {seconds:.0f} s", forget=False)
                    began, came = time.monotonic(), 0
                if self._progress is not None:
                    self._progress.update(file.tell() // MB - self._progress.done)
            os.fsync(file.fileno())

    def _size(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0


def _tag_of(response: "httpx.Response") -> str:
    """What tells one version of a file from another, as the server says it; nothing where it doesn't."""
    tag = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")
