"""An OpenAI-compatible chat server on loopback, whose answers depend only on the request.

The same request always gets the same answer, so runs can be compared byte for byte. An invalid request gets 400 and a
text, a request for batches 404. In a test, use `with serve(reply) as server`. As a separate process,
`python tests/api_server.py --port 0` prints its port, answers with `default_reply` and lists its requests at
GET /requests.
"""

import argparse
import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

CRITERIA = ("need_alignment", "content_depth", "tone", "explanation_style")


@dataclass(frozen=True)
class Reply:
    """A completion, or an error if `status` is not 200 ("$KEY" in its text becomes the client's key).

    Attributes:
        tells_cached: report the number of cached tokens, as only some servers do.
        param: the parameter that an error names.
        body: the error's body, instead of OpenAI's object with these fields.
        thoughts: more fields of the message, in which servers return thoughts.
        reasoning_tokens: the reported number of thought tokens in the completion.
        model: the model that answered, if it is not the one that was asked.
    """

    text: str
    finish_reason: str = "stop"
    status: int = 200
    code: str | None = None
    tells_cached: bool = True
    param: str | None = None
    body: Any = None
    thoughts: dict[str, Any] = field(default_factory=dict)
    reasoning_tokens: int | None = None
    model: str | None = None


def default_reply(request: dict[str, Any]) -> Reply:
    """Return an output that fits one of our prompts, or a line of text, drawn by a hash of prompt and seed.

    If tries have different seeds and the output is unconstrained, one in six is unusable.
    """
    drawn = hashlib.sha256(json.dumps([request["messages"], request.get("seed")]).encode()).hexdigest()
    system, user = (text_of(request["messages"][place]) for place in (0, -1))
    if int(drawn[:8], 16) % 6 == 0 and request.get("seed") is not None and "response_format" not in request:
        return Reply(f"Let me think about {drawn[:6]}.")
    number = int(drawn[8:16], 16)
    if "need_alignment" in system:
        scores = {name: 1 + (number >> 3 * place) % 5 for place, name in enumerate(CRITERIA)}
        return Reply(json.dumps({"reasoning": f"Compared {drawn[:6]}.", **scores}))
    if "contained" in system:
        return Reply(json.dumps({"contained": number % 2 == 1}))
    if "match_score" in system:
        return Reply(json.dumps({"match_score": number % 3}))
    if "better_response" in system:
        return Reply(json.dumps({"better_response": number % 2 + 1}))
    if "Score 0.75" in system:
        return Reply(json.dumps({"score": number % 5 / 4}))
    if "<final_answer>" in user:
        return Reply(f"It is <final_answer>({'abcd'[number % 4]})")
    if "needs_personalization" in system:
        return Reply(json.dumps({"needs_personalization": int(drawn[:8], 16) % 5 > 0}))
    if "enough_details" in system:
        return aspects_reply(user, int(drawn[:8], 16))
    if "titles of the aspects" in system:
        return Reply(f"Cost of {drawn[:4]}\nTime for {drawn[4:8]}")
    if "personalized_answer" in system:
        return Reply(json.dumps({"personalized_answer": f"Answer {drawn}."}))
    return Reply(lamp_label(user, number) or f"A line about {drawn[:6]}.")


def lamp_label(user: str, number: int) -> str | None:
    """Return a label if LaMP's task has labels."""
    if "with [1] or [2]" in user:
        return f"[{number % 2 + 1}]"
    if "with 1, 2, 3, 4, or 5" in user:
        return str(number % 5 + 1)
    if tags := re.findall(r"tags: \[(.*?)\]", user):
        return (names := tags[-1].split(", "))[number % len(names)]
    return None


def text_of(message: dict[str, Any]) -> str:
    """Return a message's text, which some clients send in parts."""
    content = message.get("content")
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


NUMBERS = {  # fields of a request with their minimum and maximum
    "temperature": (0, 2),
    "top_p": (0, 1),
    "max_tokens": (1, 10**9),
    "max_completion_tokens": (1, 10**9),
    "seed": (-(2**63), 2**63),
    "n": (1, 1),  # it writes one answer
}


def problem_with(body: Any) -> str | None:
    """Return the problem with a request for a completion; None without one."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    if not isinstance(body.get("model"), str):
        return "'model' is missing, or no text"
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        return "'messages' is missing, or no list with a message"
    for place, message in enumerate(body["messages"]):
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) and content else [{"text": content}]
        are_texts = all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts)
        if not are_texts or not isinstance(message.get("role"), str):
            return f"'messages[{place}]' needs a role and a content, as texts"
    for name, (least, most) in NUMBERS.items():
        kinds = (int, float) if name in ("temperature", "top_p") else (int,)
        if (value := body.get(name)) is not None and not (type(value) in kinds and least <= value <= most):
            return f"{name!r} is not a number from {least} to {most}"
    if body.get("stream"):
        return "'stream': answers come whole here"
    kind = body.get("response_format")
    if kind is not None and not (isinstance(kind, dict) and isinstance(kind.get("type"), str)):
        return "'response_format' is not an object with a 'type'"
    return None


def aspects_reply(user: str, drawn: int) -> Reply:
    """Return aspects of a post, their evidence quoted exactly or with changes, shortened or invented; or none."""
    post = re.search(r"\npost: (.*)\n\noutput:", user, re.DOTALL)[1]
    words = post.split(" ")
    first, last = " ".join(words[: len(words) // 2 + 1]).strip(), " ".join(words[-10:]).strip()
    other = " ".join(last.split()).replace("'", "’").replace('"', "”")
    shortened = f"{words[0]} [...] {other}"
    quoted = [first, f"“{other}”", shortened, "nobody ever wrote this"][: drawn % 4 + 1]
    quoted = ["nobody ever wrote this"] if drawn % 11 == 0 else quoted
    aspects = [{"aspect": f"Aspect\n{i} <b>", "evidence": one, "reason": "r"} for i, one in enumerate(quoted)]
    enough = drawn % 7 > 0
    text = json.dumps({"enough_details": enough, "aspects": aspects if enough else []})
    return Reply(f"```json\n{text}\n```")


def refuse_formats(
    reply: Callable[[dict[str, Any]], Reply], *kinds: str, status: int = 400
) -> Callable[[dict[str, Any]], Reply]:
    """Return the `reply` of a server that refuses these kinds of `response_format`."""

    def refuse(request: dict[str, Any]) -> Reply:
        kind = request.get("response_format", {}).get("type")
        return Reply(f"response_format {kind} is not supported", status=status) if kind in kinds else reply(request)

    return refuse


def ignore_formats(reply: Callable[[dict[str, Any]], Reply]) -> Callable[[dict[str, Any]], Reply]:
    """Return the `reply` of a server that accepts and ignores every `response_format`."""
    return lambda request: reply({name: value for name, value in request.items() if name != "response_format"})


class ChatServer(ThreadingHTTPServer):
    """
    Attributes:
        reply: returns the answer to a request; a test may change it between runs.
        requests: the bodies of all requests, in order of arrival.
        paths, keys: the paths and bearer tokens of the same requests.
        most_at_once: the highest number of concurrent requests.
        list_models: returns status and value, or raw bytes, for GET /v1/models; `lists_asked` counts these requests.
        system_fingerprint: part of every completion, if not None.
        classifies: whether it has /classify, whose replies are texts with a JSON list of logits.
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
        self.classifies = False
        self._open = 0
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def users(self) -> list[str]:
        """Return the user message of every request."""
        return [request["messages"][-1]["content"] for request in self.requests]

    def wait_for(self, count: int, seconds: float = 600) -> None:
        """Block until `count` requests have arrived."""
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
        """Ignore killed clients."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep connections open, like a real server
    disable_nagle_algorithm = True
    server: ChatServer

    def do_POST(self) -> None:
        problem, is_chat = None, urlparse(self.path).path == "/v1/chat/completions"
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        except (
            TypeError,
            ValueError,
            RecursionError,
        ):  # the first one, because without a length nobody knows where it ends
            body, problem = {}, "the body is not JSON, or has no Content-Length"
            self.close_connection = "Content-Length" not in self.headers
        if is_chat and (problem := problem or problem_with(body)):
            return self._send(400, _error(Reply(problem, status=400), ""))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        classifies = self.server.classifies and self.path == "/classify"
        self.server.begin(self.path, key, body)
        try:
            reply = (
                self.server.reply(body) if is_chat or classifies else Reply(f"no such path: {self.path}", status=404)
            )
            time.sleep(self.server.delay)
        finally:
            self.server.end()
        return self._reply(body, key, reply)

    def _reply(self, body: dict[str, Any], key: str, reply: Reply) -> None:
        if reply.status != 200:
            return self._send(reply.status, _error(reply, key))
        if self.path == "/classify":  # as vLLM's server, whose `probs` without an activation are logits
            logits = json.loads(reply.text)
            data = [{"index": 0, "label": "LABEL_0", "probs": logits, "num_classes": len(logits)}]
            return self._send(200, {"object": "list", "data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}})
        state = self.server.system_fingerprint
        return self._send(200, _completion(body, reply) | ({"system_fingerprint": state} if state else {}))

    def do_GET(self) -> None:
        """Return all requests for /requests, after the N-th for /requests?wait=N; there are no batches and no files."""
        if urlparse(self.path).path == "/v1/models":
            self.server.lists_asked += 1
            return self._send(*self.server.list_models())
        if urlparse(self.path).path != "/requests":
            return self._send(404, _error(Reply(f"no such path: {self.path}", status=404), ""))
        waited = parse_qs(urlparse(self.path).query).get("wait", ["0"])
        self.server.wait_for(int(waited[0]))
        return self._send(200, self.server.requests)

    def _send(self, status: int, value: Any) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("retry-after-ms", "1")  # because the client would wait seconds before a retry
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Silence."""


def count_tokens(text: str) -> int:
    """Return the number of words, or a token per 8 characters if words are longer: no model has so few tokens."""
    words = text.split()
    return max(len(words), math.ceil(len(" ".join(words)) / 8))


def _completion(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    prompt_tokens = sum(count_tokens(text_of(message)) for message in body["messages"])
    completion_tokens = len(reply.text.split()) or 1  # the token that ends the turn
    details = {"prompt_tokens_details": {"cached_tokens": prompt_tokens // 2}} if reply.tells_cached else {}
    if reply.reasoning_tokens is not None:
        details["completion_tokens_details"] = {"reasoning_tokens": reply.reasoning_tokens}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": reply.model or body["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply.text, **reply.thoughts},
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


def _error(reply: Reply, key: str) -> Any:
    if reply.body is not None:
        return reply.body
    kind = "server_error" if reply.status >= 500 else "invalid_request_error"
    message = reply.text.replace("$KEY", key)
    return {"error": {"message": message, "type": kind, "param": reply.param, "code": reply.code}}


@contextmanager
def serve(reply: Callable[[dict[str, Any]], Reply] = default_reply, delay: float = 0) -> Iterator[ChatServer]:
    """Run a server in a thread of this process."""
    with running(ChatServer(reply, delay=delay)) as server:
        yield server


@contextmanager
def running(server: ChatServer) -> Iterator[ChatServer]:
    """Let a server answer in a thread of this process."""
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
    try:
        server = ChatServer(default_reply, args.port, args.delay)
    except OSError as error:
        parser.exit(2, f"error: --port {args.port}: {error.strerror}; use another one, or 0 for a free one\n")
    with server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
