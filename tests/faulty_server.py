"""The loopback chat server with faults, like those of real servers under load, drawn by a seed.

A request's fault depends on the seed, the request, and how often it was sent. So a run can be repeated, and each
request succeeds in the end.
"""

import json
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from api_server import ChatServer, Reply, _completion, _error, _Handler

FAULTS = {  # with their relative frequencies
    "429": 1,  # without Retry-After
    "429 with Retry-After": 1,
    "500": 4,
    "502": 4,
    "503": 4,
    "reset": 4,  # the connection is reset, instead of an answer
    "hang": 1,  # until the client gives up
    "truncated": 4,  # the connection ends in the middle of the body
    "broken JSON": 4,
    "HTML": 4,  # with status 200, as from a proxy
    "empty": 4,  # a completion without content
    "slow": 2,  # right, but late
}


def draw_faults(rate: float, seed: int) -> Callable[[dict[str, Any], int], str | None]:
    """Return a function for `FaultyServer.faults` that draws one of FAULTS with probability `rate`, else None."""

    def draw(body: dict[str, Any], times: int) -> str | None:
        drawn = random.Random(json.dumps([seed, body, times]))
        return drawn.choices(list(FAULTS), FAULTS.values())[0] if drawn.random() < rate else None

    return draw


class FaultyServer(ChatServer):
    """
    Attributes:
        faults: returns a request's fault, or None, by its body and how often it was sent before.
        allowed: maximum number of concurrent requests; others are refused with 429.
        open_at: number of concurrent requests at each request's arrival, including itself.
        refused_at: indexes in `requests` of the requests refused because of `allowed`.
        met: number of times each fault occurred.
        retry_after: the header that "429 with Retry-After" sends.
        body: what three more faults, which are not in FAULTS, send. "other JSON": a value or raw bytes, or a function
            that makes either from the right completion. "nested error": bytes, with status 400. "trickle": bytes,
            again and again.
        answered: number of complete answers to each request (as JSON).
    """

    def __init__(
        self,
        reply: Callable[[dict[str, Any]], Reply],
        faults: Callable[[dict[str, Any], int], str | None] = lambda body, times: None,
        allowed: int = 10**6,
        delay: float = 0,
    ):
        super().__init__(reply, delay=delay)
        self.RequestHandlerClass = _FaultyHandler
        self.faults = faults
        self.allowed = allowed
        self.retry_after = "0.05"
        self.body: Any = None
        self.open_at: list[int] = []
        self.refused_at: list[int] = []
        self.met: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self._times_sent: Counter[str] = Counter()
        self._counting = threading.Lock()

    def begin(self, path: str, key: str, body: dict[str, Any]) -> None:
        with self._counting:
            super().begin(path, key, body)
            self.open_at.append(self._open)

    def count_fault(self, body: dict[str, Any]) -> str | None:
        """Return this request's fault, and count it."""
        with self._counting:
            text = json.dumps(body)
            fault = self.faults(body, self._times_sent[text])
            self._times_sent[text] += 1
            if fault is not None:
                self.met[fault] += 1
            if fault in (None, "slow"):
                self.answered[text] += 1
            return fault


class _FaultyHandler(_Handler):
    server: FaultyServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.begin(self.path, "", body)
        with server._counting:
            if too_many := server._open > server.allowed:
                server.refused_at.append(len(server.requests) - 1)
        if not too_many:
            time.sleep(server.delay)
        server.end()  # before the answer, because the next request may arrive while it is being sent
        self._meet("429" if too_many else server.count_fault(body), body)

    def _meet(self, fault: str | None, body: dict[str, Any]) -> None:
        reply = self.server.reply(body)
        content = json.dumps(_completion(body, reply)).encode()
        if fault == "429 with Retry-After":
            self._send_error(429, ("Retry-After", self.server.retry_after))
        elif fault in ("429", "500", "502", "503"):
            self._send_error(int(fault))
        elif fault == "reset":
            # With this option, closing discards unsent data, and the kernel sends RST.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._hang_up()
        elif fault == "hang":
            self.connection.settimeout(600)
            self.connection.recv(1)
            self._hang_up()
        elif fault == "truncated":
            self._send_bytes(content[:40], "application/json", length=len(content))
            self._hang_up()
        elif fault == "broken JSON":
            self._send_bytes(content[:40], "application/json")
        elif fault == "HTML":
            self._send_bytes(b"<html><body>Just a moment...</body></html>", "text/html")
        elif fault == "other JSON":
            other = self.server.body(_completion(body, reply)) if callable(self.server.body) else self.server.body
            self._send_bytes(other if isinstance(other, bytes) else json.dumps(other).encode(), "application/json")
        elif fault == "nested error":
            self._send_bytes(self.server.body, "application/json", status=400)
        elif fault == "trickle":  # until the client gives up
            self._send_bytes(b"", "application/json", length=10**6)
            with suppress(OSError):
                while True:
                    self.wfile.write(self.server.body)
                    time.sleep(0.05)
            self._hang_up()
        elif fault == "empty":
            self._send_bytes(json.dumps(_completion(body, Reply(""))).encode(), "application/json")
        else:
            time.sleep(0.2 if fault == "slow" else 0)
            self._send_bytes(content, "application/json")

    def _send_error(self, status: int, *headers: tuple[str, str]) -> None:
        content = json.dumps(_error(Reply("Try again later.", status=status), "")).encode()
        self._send_bytes(content, "application/json", *headers, status=status)

    def _send_bytes(
        self, content: bytes, kind: str, *headers: tuple[str, str], status: int = 200, length: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _hang_up(self) -> None:
        os.close(self.connection.detach())  # at once, although the handler's files still refer to it
        self.close_connection = True
