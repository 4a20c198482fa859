"""Files from a web server, cached completely or not at all. If a connection breaks, the download resumes."""

import posixpath
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from utils.cli import UserError
from utils.cli.environment import check_environment, wrong
from utils.cli.progress import Progress, announce
from utils.files.manifest import without_password
from utils.files.writing import check_could_write, delete_leftovers, locked, open_whole, replacing

if TYPE_CHECKING:
    import httpx

TRIES = 6  # in a row without any data
WAIT = 1.0  # seconds before the second try, doubled before each further one
SILENCE = 60  # seconds without a byte after which a connection counts as broken
MB = 10**6


class Server(NamedTuple):
    """JSON files below an address; fetched files stay in the cache and are not requested again."""

    url: str
    cache_dir: str

    commit = None  # a web server has no named versions
    is_folder = False

    @property
    def name(self) -> str:
        return without_password(self.url).rstrip("/")

    def fetch(self, path: str) -> Path:
        """Return the local copy of the file at `path`, relative to the address; UserError if it cannot be fetched."""
        place = urlsplit(f"{self.name}/{path}")
        cached = Path(self.cache_dir, place.netloc, posixpath.normpath(f"/{place.path}").lstrip("/"))
        if not cached.exists():
            check_could_write(cached)
            with locked(cached):
                if not cached.exists():  # another process may have fetched it meanwhile
                    delete_leftovers(cached)
                    _download(f"{self.url.rstrip('/')}/{path}", cached)
        return cached


class _TroubleError(Exception):
    """A temporary problem: the same request may succeed later."""


def _download(url: str, path: Path) -> None:
    import httpx

    check_environment()
    shown, tries, is_away = without_password(url), 0, True
    version: dict[str, str] = {}
    # Without compression, so that a download can resume at a byte of the file.
    try:
        client = httpx.Client(follow_redirects=True, timeout=SILENCE, headers={"Accept-Encoding": "identity"})
    except httpx.InvalidURL:  # the other variables are checked
        raise wrong("NO_PROXY", "has an entry that httpx cannot read, such as an IPv6 network") from None
    with client, replacing(path) as part, open_whole(part, "wb") as file:
        while True:
            before = file.tell()
            try:
                _receive(client, url, file, path.name, version)
                break
            except _TroubleError as error:
                problem, is_away = str(error), False
            except httpx.TransportError as error:
                problem = f"the connection failed ({type(error).__name__})"
                is_away = is_away and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise UserError(f"{shown}: cannot be downloaded ({type(error).__name__})") from None
            tries = 1 if file.tell() > before else tries + 1
            if tries == TRIES or is_away:  # no retries on a node without internet
                raise UserError(
                    f"{shown}: cannot be downloaded: {problem}\n"
                    "  try again later, or copy the files to this machine and give their folder as --source_dir"
                )
            wait = WAIT * 2 ** (tries - 1)
            announce(f"{path.name}: {problem}; retrying in {wait:.0f} s")
            time.sleep(wait)


def _receive(client: "httpx.Client", url: str, file: IO[bytes], name: str, version: dict[str, str]) -> None:
    """Append the rest of a download to `file`, or start over if the server's file has changed.

    `version` is the request header that identifies the version of the first part; empty if the server sent none.
    """
    start, shown = file.tell() if version else 0, without_password(url)
    with client.stream("GET", url, headers={"Range": f"bytes={start}-", **version} if start else {}) as response:
        if response.status_code in (408, 425, 429) or response.status_code >= 500:
            raise _TroubleError(f"the server returned status {response.status_code}")
        if response.status_code not in (200, 206):
            raise UserError(f"{shown}: the server returned status {response.status_code}; check the address")
        if response.status_code == 200:
            start = file.seek(0)
            file.truncate()
            version.clear()
            tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
            version.update({"If-Range": tag} if tag else {})
        total = start + int(response.headers.get("Content-Length", 0))
        progress = Progress(total // MB, f"MB of {name}", start // MB, quiet=True)
        for piece in response.iter_raw():
            if not file.tell() and piece.lstrip().startswith(b"<"):
                raise UserError(f"{shown}: the server returned a web page instead of JSON; check the address")
            file.write(piece)
            if total >= 10 * MB:
                progress.update(file.tell() // MB - progress.done)
        progress.close()
