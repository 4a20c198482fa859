"""Files from a web server, cached completely or not at all. If a connection breaks, the download resumes."""

import posixpath
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from utils.base.errors import PassingError, UserError, setting_up_client
from utils.base.manifest import without_password
from utils.base.progress import Progress, announce
from utils.base.writing import delete_leftovers, locked, open_whole, replacing

TRIES = 6  # consecutive tries without new data, after which the download fails
WAIT = 1.0  # seconds before the second try, doubled before each further try
SILENCE = 60  # seconds without a byte after which a connection counts as broken
LONGEST_WAIT = 600.0  # seconds; a server's request for a longer wait is ignored
MB = 10**6


class Server(NamedTuple):
    """JSON files below a server's address. A fetched file stays in the cache, and is not requested again."""

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
            with locked(cached):
                if not cached.exists():  # another process may have fetched it meanwhile
                    delete_leftovers(cached)
                    _download(f"{self.url.rstrip('/')}/{path}", cached)
        return cached


def _download(url: str, path: Path) -> None:
    import httpx

    address, tries, tag = without_password(url), 0, None
    # Without compression, so that a download can resume at a byte of the file.
    with setting_up_client():
        client = httpx.Client(follow_redirects=True, timeout=SILENCE, headers={"Accept-Encoding": "identity"})
    with client, replacing(path) as part, open_whole(part, "wb") as file:
        while True:
            before = start = file.tell()
            retry_after, failure = 0.0, PassingError  # `retry_after`: the seconds that the server asks to wait
            # The server sends the rest if its file still has the same tag, and otherwise the whole file.
            resumed = {"Range": f"bytes={start}-", "If-Range": tag} if start and tag else {}
            try:
                with client.stream("GET", url, headers=resumed) as response:
                    response.raise_for_status()
                    if response.status_code != 206:
                        start = file.seek(0)
                        file.truncate()
                        tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
                    total = start + int(response.headers.get("Content-Length", 0))
                    progress = Progress(total // MB, f"MB of {path.name}", start // MB, quiet=True)
                    for piece in response.iter_raw():
                        if not file.tell() and piece.lstrip().startswith(b"<"):
                            what = "the server returned a web page instead of JSON"
                            raise UserError(f"{address}: {what}; check the address")
                        file.write(piece)
                        if total >= 10 * MB:
                            progress.update(file.tell() // MB - progress.done)
                    progress.close()
                return
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                problem = f"the server returned status {status}"
                if status not in (408, 425, 429) and status < 500:
                    raise UserError(f"{address}: {problem}; check the address") from None
                retry_after = read_retry_after(error.response.headers)
            except httpx.TransportError as error:
                problem = f"the connection failed ({type(error).__name__})"
                if not tries and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    tries, failure = TRIES - 1, UserError  # no retries on a node without internet
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise UserError(f"{address}: cannot be downloaded ({type(error).__name__})") from None
            tries = 1 if file.tell() > before else tries + 1
            if tries == TRIES:
                raise failure(
                    f"{address}: cannot be downloaded: {problem}\n"
                    "  try again later, or copy the files to this machine and pass their folder as --source_dir"
                )
            wait = retry_after or WAIT * 2 ** (tries - 1)
            announce(f"{path.name}: {problem}; retrying in {wait:.0f} s")
            time.sleep(wait)


def read_retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a response asks to wait; 0 if it asks for none, or for more than `LONGEST_WAIT`.

    `Retry-After` holds seconds or a date (RFC 9110, section 10.2.3); OpenAI also sends `retry-after-ms`.
    """
    for name, read in (
        ("retry-after-ms", lambda text: float(text) / 1000),
        ("retry-after", float),
        ("retry-after", lambda text: parsedate_to_datetime(text).timestamp() - time.time()),
    ):
        with suppress(KeyError, ValueError, OverflowError):
            return seconds if 0 < (seconds := read(headers[name])) <= LONGEST_WAIT else 0.0  # also for NaN
    return 0.0
