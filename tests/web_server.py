"""A web server on loopback that sends files, complete or from a byte on, with faults."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from api_server import running

PIECE = 1 << 16  # bytes that are sent at a time


@dataclass(frozen=True)
class Trouble:
    """A fault of one answer.

    Attributes:
        status: answer with this status and nothing else.
        page: send this instead of the file, with status 200.
        cut_after: number of bytes after which the connection is closed.
        hold_after: number of bytes after which the server pauses until its `released` is set.
    """

    status: int = 200
    page: bytes | None = None
    cut_after: int | None = None
    hold_after: int | None = None


FINE = Trouble()


class FileServer(ThreadingHTTPServer):
    """The common part of file servers on loopback.

    Attributes:
        changed: notified after every piece that is sent.
        sent: number of bytes sent of each file.
        released: resumes paused answers when set.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]):
        super().__init__(("127.0.0.1", 0), handler)
        self.changed = threading.Condition()
        self.sent: dict[str | None, int] = {}
        self.released = threading.Event()

    def wait_until(self, condition: Callable[[], bool], seconds: float = 600) -> None:
        """Block until a condition holds; it is checked after every change."""
        with self.changed:
            if not self.changed.wait_for(condition, seconds):
                raise TimeoutError(f"not so after {seconds} s")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore killed clients."""


class FileHandler(BaseHTTPRequestHandler):
    """Sends files in pieces."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FileServer

    def send(self, status: int, content: bytes, headers: dict[str, str], fault: Any, path: str | None = None) -> None:
        """Send content with the `cut_after` and `hold_after` of a fault; without the content for HEAD."""
        kept = b"" if self.command == "HEAD" else content[: fault.cut_after]
        self.close_connection = self.command != "HEAD" and len(kept) < len(content)
        released = self.server.released
        with suppress(ConnectionError):  # the client was killed, or stopped reading
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            for start in range(0, len(kept), PIECE):
                if fault.hold_after is not None and start >= fault.hold_after:
                    released.wait()
                piece = kept[start : start + PIECE]
                self.wfile.write(piece)
                with self.server.changed:
                    self.server.sent[path] = self.server.sent.get(path, 0) + len(piece)
                    self.server.changed.notify_all()

    def log_message(self, *_: Any) -> None:
        """Silence."""


class WebServer(FileServer):
    """
    Attributes:
        files: by path, without the leading slash.
        trouble: returns a request's fault by its path.
        tells: whether files have an ETag and can be requested in part.
        asked: path and Range of every request.
    """

    def __init__(self, files: dict[str, bytes]):
        super().__init__(_Handler)
        self.files = files
        self.trouble: Callable[[str], Trouble] = lambda path: FINE
        self.tells = True
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/downloads/LaMP"

    def in_turn(self, *troubles: Trouble) -> None:
        """Return a `trouble` with these faults for the next requests, and none afterwards."""
        left = iter(troubles)
        self.trouble = lambda path: next(left, FINE)


class _Handler(FileHandler):
    server: WebServer

    def do_GET(self) -> None:
        place = urlsplit(self.path).path  # as a proxy, it is asked for a full address
        path, wanted = place.removeprefix("/downloads/LaMP/"), self.headers.get("Range")
        self.server.asked.append((path, wanted))
        trouble = self.server.trouble(path)
        content = trouble.page if trouble.page is not None else self.server.files.get(path)
        if content is None or trouble.status != 200:
            return self.send(404 if content is None else trouble.status, b"", {}, FINE)
        if not self.server.tells or trouble.page is not None:
            return self.send(200, content, {}, trouble)
        tag = f'"{hashlib.sha1(content).hexdigest()}"'
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if not first or self.headers.get("If-Range") != tag:
            return self.send(200, content, {"ETag": tag}, trouble)
        place = f"bytes {first}-{len(content) - 1}/{len(content)}"
        return self.send(206, content[first:], {"ETag": tag, "Content-Range": place}, trouble)


def lamp_files(sample: Path) -> dict[str, bytes]:
    """Return tests/data/mini_lamp in the layout of LaMP's server, where LaMP_2 itself has news categories."""
    files = {}
    for path in sorted(sample.glob("LaMP_*/*.json")):
        folder = f"{path.parent.name}/new" if path.parent.name == "LaMP_2" else path.parent.name
        split = path.name.partition("_")[0]
        files[f"{folder}/{split}/{path.name}"] = path.read_bytes()
        files[f"time/{folder}/{split}/{path.name}"] = path.read_bytes()
    return files


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[WebServer]:
    """Run a server in a thread of this process."""
    with running(WebServer(files)) as server:
        yield server
        server.released.set()
