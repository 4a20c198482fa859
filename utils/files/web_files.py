"""Files from a web server, cached completely or not at all. If a connection breaks, the download resumes."""

import errno
import os
import posixpath
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from utils.cli import UserError
from utils.cli.flags import address_problem
from utils.cli.progress import Progress, announce
from utils.files.manifest import without_password
from utils.files.writing import Lock, check_writable, open_whole, rename

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
            check_writable(cached)
            lock = Lock(cached)
            try:
                if not cached.exists():  # another process may have fetched it meanwhile
                    _download(f"{self.url.rstrip('/')}/{path}", cached)
            finally:
                lock.release()
        return cached


def check_environment(*headers: str) -> None:
    """Raise UserError for an environment variable with which HTTP clients would fail.

    `headers` are the variables whose values are sent in a header.
    """
    for name, address in _proxies().items():
        scheme, _, rest = (address if "://" in address else f"http://{address}").partition("://")
        is_socks = scheme in ("socks5", "socks5h")
        if is_socks and find_spec("socksio") is None:
            raise _wrong(name, "a SOCKS proxy needs the package socksio (pip install socksio)")
        if problem := address_problem(f"{'http' if is_socks else scheme}://{rest}"):
            raise _wrong(name, problem)
    for name, read in READERS.items():
        if value := os.environ.get(name):
            try:
                read(value)
            except OSError as error:  # also what ssl raises
                raise _wrong(name, f"{value} cannot be used: {error.strerror or error}") from None
    for name in headers:
        value = os.environ.get(name, "")
        value = value.strip() if name == "HF_TOKEN" else value  # as the hub's client does
        lines = value.split("\n") if name.endswith("_HEADERS") else [value]  # of `name: value`
        if not all(line.isascii() and line.isprintable() and line == line.strip() for line in lines):
            raise _wrong(name, "is sent in an HTTP header, so it must be printable ASCII without spaces around it")


def proxy_before(url: str) -> str | None:
    """Return the variable with a proxy through which a server on this machine or in its network is reached, or None."""
    parts = urlsplit(url)
    host, proxies = parts.hostname or "", _proxies()
    with suppress(ValueError):  # a name
        if not ip_address(host).is_private:
            return None
    if ("." in host and not host.replace(".", "").isdigit()) or proxy_bypass(host):
        return None
    return next((name for name in proxies if name.lower() in (f"{parts.scheme}_proxy", "all_proxy")), None)


def _proxies() -> dict[str, str]:
    """Return the proxies in the environment, by the variable's name; in lower case, if both are set."""
    found = getproxies()
    names = [name for scheme in ("http", "https", "all") for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")]
    values = {name: found.get(name.lower().removesuffix("_proxy")) for name in names if os.environ.get(name)}
    return {name: value for name, value in values.items() if value}


def _wrong(name: str, problem: str) -> UserError:
    return UserError(f"{name} in the environment: {problem}; correct or unset it")


def _list_any(folders: str) -> None:
    """Raise OSError unless one of these folders, separated by colons, exists."""
    if not any(map(os.path.isdir, folders.split(os.pathsep))):
        raise FileNotFoundError(errno.ENOENT, "no such folder")


READERS: dict[str, Callable[[str], object]] = {  # of variables with paths, that Python and HTTP clients read
    "SSL_CERT_FILE": lambda path: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path),
    "SSL_CERT_DIR": _list_any,
    "SSLKEYLOGFILE": lambda path: open(path, "a").close(),
}


class _TroubleError(Exception):
    """A temporary problem: the same request may succeed later."""


def _download(url: str, path: Path) -> None:
    import httpx

    check_environment()
    shown, part, tries, is_away = without_password(url), path.with_name(f"{path.name}.part"), 0, True
    version: dict[str, str] = {}
    # Without compression, so that a download can resume at a byte of the file.
    try:
        client = httpx.Client(follow_redirects=True, timeout=SILENCE, headers={"Accept-Encoding": "identity"})
    except httpx.InvalidURL:  # the other variables are checked
        raise _wrong("NO_PROXY", "has an entry that httpx cannot read, such as an IPv6 network") from None
    with client, open_whole(part, "wb") as file:
        while True:
            before = file.tell()
            try:
                _receive(client, url, file, version)
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
    rename(part, path)


def _receive(client: "httpx.Client", url: str, file: IO[bytes], version: dict[str, str]) -> None:
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
        progress = Progress(total // MB, f"MB of {Path(file.name).stem}", start // MB, quiet=True)
        for piece in response.iter_raw():
            if not file.tell() and piece.lstrip().startswith(b"<"):
                raise UserError(f"{shown}: the server returned a web page instead of JSON; check the address")
            file.write(piece)
            if total >= 10 * MB:
                progress.update(file.tell() // MB - progress.done)
        progress.close()
