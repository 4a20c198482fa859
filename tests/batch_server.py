"""The chat server with OpenAI's batch interface: files, batches and their outputs.

It answers a request as it does without batches, so outputs can be compared byte for byte.
"""

import email
import email.policy
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlparse

from api_server import ChatServer, Reply, _completion, _error, _Handler, default_reply, running

EXPIRED = Reply("This request could not be executed before the completion window expired.", code="batch_expired")


class BatchServer(ChatServer):
    """
    Attributes:
        outcome: returns the reply for a batch's number, from 0, and a request's body; EXPIRED if it was not processed.
        polls: how often the client polls a batch until it ends.
        held: batches don't end.
        lose: number of following batches that are created, but whose reply the client never gets.
        cut: number of following files that end in the middle, and have no length.
        invalid: the error in every file, None for none.
        file_states: the statuses of each uploaded file at its upload and at each look. As at Azure,
            a batch of a file that is not "processed" is refused.
        room: maximum number of requests in the queue.
        batches, files: all batches in order, and files by id.
        paid: number of answers to each request, by the hash of its body, in batches or not.
    """

    def __init__(self, reply: Callable[[dict[str, Any]], Reply], port: int = 0):
        super().__init__(lambda body: self.answer(body, reply(body)), port)
        self.RequestHandlerClass = _BatchHandler
        self.outcome: Callable[[int, dict[str, Any]], Reply] = lambda number, body: reply(body)
        self.polls, self.lose, self.held, self.cut = 2, 0, False, 0
        self.invalid: str | None = None
        self.file_states = ["processed"]
        self.room = 1_000_000
        self.has_interface = True
        self.batches: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.paid: Counter[str] = Counter()
        self._looks: Counter[str] = Counter()
        self.looking = threading.Lock()

    def answer(self, body: dict[str, Any], reply: Reply) -> Reply:
        if reply.status == 200 and reply.code is None:
            self.paid[hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()] += 1
        return reply

    def keep(self, content: bytes) -> dict[str, Any]:
        name = f"file-{len(self.files)}"
        self.files[name] = content
        return self.describe(name)

    def describe(self, name: str) -> dict[str, Any]:
        """Return a file's description; its status advances with each look."""
        self._looks[name] += 1
        return {"id": name, "object": "file", "bytes": len(self.files[name]), "created_at": 0,
                "filename": "batch.jsonl", "purpose": "batch", "status": self.file_state(name)}  # fmt: skip

    def file_state(self, name: str) -> str:
        return self.file_states[min(self._looks[name], len(self.file_states)) - 1]

    def create(self, asked: dict[str, Any]) -> dict[str, Any]:
        lines = self.files[asked["input_file_id"]].splitlines()
        batch = {
            "id": f"batch_{len(self.batches)}", "object": "batch", "endpoint": asked["endpoint"], "created_at": 0,
            "input_file_id": asked["input_file_id"], "completion_window": asked["completion_window"],
            "metadata": asked.get("metadata"), "status": "validating",
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
        }  # fmt: skip
        self.batches.append(batch)
        return batch

    def look(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._looks[batch["id"]] += 1
        if batch["status"] == "validating" and self.invalid:
            self.fail(batch, message=self.invalid)
        elif batch["status"] == "validating" and self.queued() > self.room:
            self.fail(batch, message="Enqueued token limit reached for m.", code="token_limit_exceeded")
        elif batch["status"] in ("validating", "in_progress"):
            batch["status"] = "in_progress"
            if self._looks[batch["id"]] >= self.polls and not self.held:
                self.work(batch)
        return batch

    def queued(self) -> int:
        under_way = [batch for batch in self.batches if batch["status"] in ("validating", "in_progress")]
        return sum(batch["request_counts"]["total"] for batch in under_way)

    def fail(self, batch: dict[str, Any], **error: str) -> None:
        batch |= {"status": "failed", "errors": {"object": "list", "data": [error]}}

    def work(self, batch: dict[str, Any]) -> None:
        """End a batch with a file of answers and a file of failures, in another order than the requests."""
        number, told = self.batches.index(batch), {True: [], False: []}
        for line in map(json.loads, reversed(self.files[batch["input_file_id"]].splitlines())):
            reply = self.answer(line["body"], self.outcome(number, line["body"]))
            entry = {"id": "batch_req", "custom_id": line["custom_id"], "response": None, "error": None}
            if reply is EXPIRED:
                entry["error"] = {"code": reply.code, "message": reply.text}
            else:
                fine = reply.status == 200
                content = _completion(line["body"], reply) if fine else _error(reply, "")
                entry["response"] = {"status_code": reply.status, "request_id": "r", "body": content}
            told[reply.status == 200 and reply is not EXPIRED].append(json.dumps(entry))
        expired = any("batch_expired" in line for line in told[False])
        batch["status"] = "expired" if expired else "completed"
        batch["request_counts"] |= {"completed": len(told[True]), "failed": len(told[False])}
        for name, its in (("output_file_id", told[True]), ("error_file_id", told[False])):
            if its:
                batch[name] = self.keep("\n".join(its).encode() + b"\n")["id"]


class _BatchHandler(_Handler):
    server: BatchServer

    def do_POST(self) -> None:
        if self.path not in ("/v1/files", "/v1/batches"):
            return super().do_POST()
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.has_interface:
            return self._send(404, {"error": {"message": f"no such path: {self.path}"}})
        if self.path == "/v1/files":
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            message = email.message_from_bytes(head + content, policy=email.policy.HTTP)
            parts = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
            assert parts["purpose"].get_content().strip() == "batch"
            return self._send(200, self.server.keep(parts["file"].get_payload(decode=True)))
        asked = json.loads(content)
        if (state := self.server.file_state(asked["input_file_id"])) != "processed":
            return self._send(400, {"error": {"message": f"The file is not ready: its status is {state}"}})
        batch = self.server.create(asked)
        if self.server.lose:
            self.server.lose -= 1
            self.close_connection = True
            return None
        return self._send(200, batch)

    def do_GET(self) -> None:
        place = urlparse(self.path)
        parts = place.path.split("/")[2:]
        if parts[:1] not in (["files"], ["batches"]):
            return super().do_GET()
        if not self.server.has_interface:
            return self._send(404, {"error": {"message": f"no such path: {self.path}"}})
        if parts[0] == "files":
            if (content := self.server.files.get(parts[1])) is None:
                return self._send(404, {"error": {"message": "No such File object"}})
            if parts[2:] != ["content"]:
                return self._send(200, self.server.describe(parts[1]))
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            if is_cut := self.server.cut > 0:
                self.server.cut -= 1
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return self.wfile.write(content[: len(content) // 2] if is_cut else content)
        if len(parts) == 2:
            [batch] = [batch for batch in self.server.batches if batch["id"] == parts[1]]
            with self.server.looking:  # two clients may look at once
                return self._send(200, self.server.look(batch))
        newest, asked = self.server.batches[::-1], parse_qs(place.query)
        ids = [batch["id"] for batch in newest]
        begin = ids.index(asked["after"][0]) + 1 if "after" in asked else 0
        page = newest[begin : begin + min(2, int(asked["limit"][0]))]  # small pages
        more = begin + len(page) < len(newest)
        return self._send(200, {"object": "list", "data": page, "has_more": more})


@contextmanager
def serve_batches(reply: Callable[[dict[str, Any]], Reply] = default_reply) -> Iterator[BatchServer]:
    with running(BatchServer(reply)) as server:
        yield server
