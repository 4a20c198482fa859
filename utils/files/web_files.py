"""Files from a web server: streamed to disk, and there whole or not at all.

If a connection breaks, it resumes from what is there, in this run or a later one, if the server can tell that the file
is still the same.
"""

import codecs
import os
import posixpath
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from utils.cli import UserError
from utils.cli.flags import address_problem
from utils.cli.progress import Progress, announce
from utils.files.manifest import without_password
from utils.files.writing import Lock, check_writable, naming, open_appending, rename, write_line

if TYPE_CHECKING:
    import httpx

TRIES = 6  # in a row that brought nothing
WAIT = 1.0  # seconds before the second try, and before each further one twice as many
SILENCE = 60  # seconds without a byte after which a connection counts as broken
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
        """Return the file at `path`, which begins behind the address; UserError where it cannot be had."""
        place = urlsplit(f"{self.name}/{path}")
        cached = Path(self.cache_dir, place.netloc, posixpath.normpath(f"/{place.path}").lstrip("/"))
        if not cached.exists():
            check_writable(cached)
            lock = Lock(cached)
            try:
                if not cached.exists():  # it may have come just now
                    _download(f"{self.url.rstrip('/')}/{path}", cached)
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


class _TroubleError(Exception):
    """A temporary problem: the same request may succeed later."""


def _download(url: str, path: Path) -> None:
    """Fetch a file to `path`: what has come is in `<path>.part`, and beside it which version that is."""
    import httpx

    check_proxies()
    part, tag = (path.with_name(f"{path.name}{ending}") for ending in (".part", ".part.tag"))
    shown, tries, is_away = without_password(url), 0, True
    # As it is on disk there: its length can be compared, and the rest of it asked for.
    with httpx.Client(follow_redirects=True, timeout=SILENCE, headers={"Accept-Encoding": "identity"}) as client:
        while True:
            before = _size(part)
            try:
                _receive(client, url, part, tag)
                break
            except _TroubleError as error:
                problem, is_away = str(error), False
            except httpx.TransportError as error:
                problem = f"the connection failed ({type(error).__name__})"
                is_away = is_away and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise UserError(f"{shown}: cannot be downloaded ({type(error).__name__})") from None
            tries = 1 if _size(part) > before else tries + 1
            if tries == TRIES or is_away:  # on a node without internet that is told at once
                kept = "what has come is kept: run the same command again" if _rest(part, tag) else "run it again later"
                raise UserError(
                    f"{shown}: cannot be downloaded: {problem}\n"
                    f"  {kept}, or copy the files here and give their folder as --source_dir"
                )
            wait = WAIT * 2 ** (tries - 1)
            announce(f"{path.name}: {problem}; again in {wait:.0f} s")
            time.sleep(wait)
    rename(part, path)
    tag.unlink(missing_ok=True)


def _receive(client: "httpx.Client", url: str, part: Path, tag: Path) -> None:
    """Append the rest of a file to `part`; UserError if the server has no such file."""
    shown, wanted = without_password(url), _rest(part, tag)
    with client.stream("GET", url, headers=wanted) as response:
        status, start = response.status_code, _size(part) if response.status_code == 206 else 0
        _, _, place = response.headers.get("Content-Range", "").partition("bytes ")
        if status == 416 and place == f"*/{_size(part)}":
            return  # nothing follows: a run ended between the last byte and the new name
        if status in (408, 416, 425, 429) or status >= 500:
            if status == 416:
                part.unlink(missing_ok=True)
            raise _TroubleError(f"the server answers {status}")
        if status not in (200, 206):
            raise UserError(f"{shown}: the server answers {status}; is the address right?")
        if start and not (place.startswith(f"{start}-") and _tag_of(response) == tag.read_text()):
            part.unlink()
            raise _TroubleError("the file was changed")
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        pieces = response.iter_raw()
        first = next(pieces, b"")
        if not start:
            _check_begin(shown, first)  # before anything that came earlier is given up
            part.unlink(missing_ok=True)
            tag.write_text(_tag_of(response))
        progress = Progress((total or 0) // MB, f"MB of {part.stem}", start // MB, quiet=True)
        with naming(part), open_appending(part) as file:
            for piece in chain([first], pieces):
                write_line(file, piece, part)
                if (total or 0) >= 10 * MB:
                    progress.update(file.tell() // MB - progress.done)
            os.fsync(file.fileno())
        progress.close()
    if total is not None and _size(part) != total:
        come = _size(part)
        if come > total:
            part.unlink()
        raise _TroubleError(f"{come} bytes came of {total}")


def _rest(part: Path, tag: Path) -> dict[str, str]:
    """Headers that ask for the rest of what has come, unless the file was changed since; else for all of it."""
    known = tag.read_text() if tag.exists() and _size(part) else ""
    return {"Range": f"bytes={_size(part)}-", "If-Range": known} if known else {}


def _check_begin(shown: str, begin: bytes) -> None:
    """Raise UserError if a server sent a web page with status 200, as it does for a wrong address."""
    begin = begin.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if begin not in (b"[", b"{"):
        what = {b"<": "a web page, not JSON", b"": "an empty file"}.get(begin, "something else than JSON")
        raise UserError(f"{shown}: the server sends {what}; is the address right?")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _tag_of(response: "httpx.Response") -> str:
    """Return the server's identifier of a file's version, empty if it has none."""
    tag = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")
