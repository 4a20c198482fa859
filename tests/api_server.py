"""An OpenAI-compatible chat server on loopback: what it answers is a function of the request alone.

Whatever the order and however many at a time, the same request gets the same answer, so runs can be compared byte
for byte. In a test, `with serve(reply) as server`; as a process of its own, `python tests/api_server.py --port 0`,
which prints its port, answers with `default_reply` and shows the requests it got at GET /requests.
"""

import argparse
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse


@dataclass(frozen=True)
class Reply:
    """A completion, or an error where `status` is not 200 ("$KEY" in its text becomes the client's key).

    Attributes:
        tells_cached: it says how many tokens came from a cache, as not every server does.
    """

    text: str
    finish_reason: str = "stop"
    status: int = 200
    code: str | None = None
    tells_cached: bool = True


def default_reply(request: dict[str, Any]) -> Reply:
    """What a prompt of ours asks for, drawn by a hash of prompt and seed; one in six can't be used, if it is free."""
    drawn = hashlib.sha256(json.dumps([request["messages"], request["seed"]]).encode()).hexdigest()
    system, user = (request["messages"][place]["content"] for place in (0, -1))
    if int(drawn[:8], 16) % 6 == 0 and "response_format" not in request:
        return Reply(f"Let me think about {drawn[:6]}.")
    if "match_score" in system:
        return Reply(json.dumps({"match_score": int(drawn[8:16], 16) % 3}))
    if "<final_answer>" in user:
        return Reply(f"It is <final_answer>({'abcd'[int(drawn[8:16], 16) % 4]})")
    if "needs_personalization" in system:
        return Reply(json.dumps({"needs_personalization": int(drawn[:8], 16) % 5 > 0}))
    if "enough_details" in system:
        return aspects_reply(user, int(drawn[:8], 16))
    return Reply(json.dumps({"personalized_answer": f"Answer {drawn}."}))


def aspects_reply(user: str, drawn: int) -> Reply:
    """What a post is made to ask for: evidence as in it, in other quotation marks, shortened or made up; or nothing."""
    post = re.search(r"\npost: (.*)\n\noutput:", user, re.DOTALL)[1]
    first, last = post[: len(post) // 2].strip(), post[-60:].strip()
    other = " ".join(last.split()).replace("'", "’").replace('"', "”")
    shortened = f"{first[:9]} [...] {other}"
    quoted = [first, f"“{other}”", shortened, "nobody ever wrote this"][: drawn % 4 + 1]
    quoted = ["nobody ever wrote this"] if drawn % 11 == 0 else quoted
    aspects = [{"aspect": f"Aspect\n{i} <b>", "evidence": one, "reason": "r"} for i, one in enumerate(quoted)]
    enough = drawn % 7 > 0
    text = json.dumps({"enough_details": enough, "aspects": aspects if enough else []})
    return Reply(f"```json\n{text}\n```")


def refuse_formats(
    reply: Callable[[dict[str, Any]], Reply], *kinds: str, status: int = 400
) -> Callable[[dict[str, Any]], Reply]:
    """`reply` of a server that refuses each `response_format` of these kinds."""

    def refuse(request: dict[str, Any]) -> Reply:
        kind = request.get("response_format", {}).get("type")
        return Reply(f"response_format {kind} is not supported", status=status) if kind in kinds else reply(request)

    return refuse


def ignore_formats(reply: Callable[[dict[str, Any]], Reply]) -> Callable[[dict[str, Any]], Reply]:
    """`reply` of a server that takes each `response_format` and heeds none."""
    return lambda request: reply({name: value for name, value in request.items() if name != "response_format"})


class ChatServer(ThreadingHTTPServer):
    """
    Attributes:
        reply: makes the answer to a request; a test may change it between runs.
        requests: the bodies of all requests, in the order they came.
        paths, keys: of the same requests, where they went and the bearer token they carried.
        most_at_once: the most requests that were open at a time.
        list_models: makes the answer to GET /v1/models, its status and value; `lists_asked` counts how often.
        system_fingerprint: stands in every completion, if not None.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, reply: Callable[[dict[str, Any]], Reply], port: int = 0, delay: float = 0):
        super().__init__(("127.0.0.1", port), _Handler)
        self.reply = reply
        self.delay = delay
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.most_at_once = 0
        self.list_models: Callable[[], tuple[int, Any]] = lambda: (404, {"detail": "Not Found"})
        self.lists_asked = 0
        self.system_fingerprint: str | None = None
        self._open = 0
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def users(self) -> list[str]:
        """The user message of every request."""
        return [request["messages"][-1]["content"] for request in self.requests]

    def wait_for(self, count: int, seconds: float = 600) -> None:
        """Block until `count` requests have come."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, seconds):
                raise TimeoutError(f"{len(self.requests)} requests came, not {count}")

    def begin(self, path: str, key: str, body: dict[str, Any]) -> None:
        with self._changed:
            self.requests.append(body)
            self.paths.append(path)
            self.keys.append(key)
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as a real server's
    disable_nagle_algorithm = True
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.server.begin(self.path, key, body)
        try:
            if self.path != "/v1/chat/completions":
                reply = Reply(f"no such path: {self.path}", status=404)
            else:
                reply = self.server.reply(body)
            time.sleep(self.server.delay)
        finally:
            self.server.end()
        self._reply(body, key, reply)

    def _reply(self, body: dict[str, Any], key: str, reply: Reply) -> None:
        if reply.status != 200:
            return self._send(reply.status, _error(reply, key))
        state = self.server.system_fingerprint
        return self._send(200, _completion(body, reply) | ({"system_fingerprint": state} if state else {}))

    def do_GET(self) -> None:
        """/requests shows all so far, /requests?wait=N once there are N of them."""
        if self.path == "/v1/models":
            self.server.lists_asked += 1
            return self._send(*self.server.list_models())
        waited = parse_qs(urlparse(self.path).query).get("wait", ["0"])
        self.server.wait_for(int(waited[0]))
        return self._send(200, self.server.requests)

    def _send(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("retry-after-ms", "1")  # what the client would wait seconds for before it tries again
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Silence."""


def _completion(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    prompt_tokens = sum(len(message["content"].split()) for message in body["messages"])
    completion_tokens = len(reply.text.split())
    details = {"prompt_tokens_details": {"cached_tokens": prompt_tokens // 2}} if reply.tells_cached else {}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply.text},
                "finish_reason": reply.finish_reason,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            **details,
        },
    }


def _error(reply: Reply, key: str) -> dict[str, Any]:
    kind = "server_error" if reply.status >= 500 else "invalid_request_error"
    message = reply.text.replace("$KEY", key)
    return {"error": {"message": message, "type": kind, "param": None, "code": reply.code}}


@contextmanager
def serve(reply: Callable[[dict[str, Any]], Reply] = default_reply, delay: float = 0) -> Iterator[ChatServer]:
    """A server in a thread of this process."""
    with running(ChatServer(reply, delay=delay)) as server:
        yield server


@contextmanager
def running(server: ChatServer) -> Iterator[ChatServer]:
    """Have a server answer in a thread of this process."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (%(default)s)")
    parser.add_argument("--delay", type=float, default=0, help="seconds an answer takes (%(default)s)")
    args = parser.parse_args()
    with ChatServer(default_reply, args.port, args.delay) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
