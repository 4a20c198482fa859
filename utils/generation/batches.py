"""OpenAI's batch interface for utils/batch.py: collect requests, send them in batches, and read the answers.

A request's id is a hash of its body, its seed, and the API's address. `batches.jsonl` in the store's folder has a line
per batch: its id, the hash of its content, and the ids of its requests. If the process died before it recorded the id
of a batch, the batch is found in the API's list by the hash of its content.
"""

import asyncio
import hashlib
import json
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import openai

from utils.cli import UserError
from utils.cli.errors import counted, printable
from utils.cli.progress import Progress, announce
from utils.files.locks import locked
from utils.files.writing import open_appending, sync, write_line
from utils.generation.api_engine import APIEngine
from utils.generation.api_server import AbsentError, field_of
from utils.generation.completions import NotStoredError
from utils.generation.refusals import Refusals
from utils.generation.requests import Completion, RefusedError, Rendered, Sampling, UnavailableError

Fields = dict[str, Any]  # a JSON object

MOST_REQUESTS = 50_000  # per batch; this limit and the next one are from OpenAI's documentation
MOST_BYTES = 200_000_000
ROUNDS = 3  # failed batches, or tries of an output, after which a request is sent without a batch
POLLS = (2.0, 60.0)  # seconds between polls of a batch: initial and maximum
UNDER_WAY = ("validating", "in_progress", "finalizing", "cancelling", None)  # None: the API did not say
FILE_UNDER_WAY = ("pending", "running", "processing", "notRunning")  # statuses of an uploaded file
TOO_MUCH = "token_limit_exceeded"  # error code: the batch does not fit in the API's queue


@dataclass
class Asked:
    """Requests to one API by their ids, kept from one run of a command to the next."""

    noted: dict[str, Fields] = field(default_factory=dict)  # bodies of requests not sent yet
    answers: dict[str, bytes | str] = field(default_factory=dict)  # completions, or why the content was refused
    tries: Counter[str] = field(default_factory=Counter)  # failed batches per request; from ROUNDS on, it goes alone
    read: set[str] = field(default_factory=set)  # ids of batches that were read
    refusals: Refusals | None = None  # what the API has refused so far
    answering: set[str] = field(default_factory=set)  # models that have answered


class BatchEngine(APIEngine):
    """An `APIEngine` that reads completions from batches, and collects requests that no batch has answered."""

    def __init__(self, args: Namespace, api_key: str, shared: Asked):
        super().__init__(args, api_key)
        self._shared, self._base_url = shared, args.base_url
        self.refusals = shared.refusals = shared.refusals or self.refusals
        self._answering = shared.answering
        self._path = Path(args.completions) / "batches.jsonl"
        self._finding, self._has_found = asyncio.Lock(), False

    async def complete(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion:
        """Like `APIEngine.complete`, but with the answers of batches.

        NotStoredError if no batch has the answer yet; the request is then noted for the next batch.
        """
        shared, schema, alone = self._shared, sampling.schema, super().complete
        request = await self._request(model, prompt, sampling)
        # The first individual requests find out what the API refuses; the others wait for them.
        async with self._finding:
            refused = self.refusals.refused
            body = self.refusals.body(refused, request, schema)
            # The key has the seed even if the request does not: otherwise, two samples would share a request.
            key = hashlib.sha256(_encode([self._base_url, sampling.seed, body])).hexdigest()[:32]
            goes_alone = max(sampling.attempt, shared.tries[key]) >= ROUNDS
            if goes_alone and (self.refusals.doubtful or not self._has_found):
                self._has_found = True
                return await alone(model, prompt, sampling)
        if goes_alone:
            return await alone(model, prompt, sampling)
        answer = shared.answers.pop(key, None)
        if isinstance(answer, str):
            raise RefusedError(answer)
        if answer is not None:
            try:
                return self.refusals.with_refused(refused, request, schema, self._read(answer, sampling, body))
            except UnavailableError:  # the answer is not a completion
                shared.tries[key] += 1
        shared.noted[key] = body
        raise NotStoredError

    async def answer_noted(self) -> None:
        """Get answers to the collected requests: from batches sent earlier, then from new batches."""
        shared = self._shared
        left = dict(sorted(shared.noted.items()))  # the same requests give the same content
        shared.noted.clear()
        await self._take_sent(left)
        rest, parts = self._unanswered(left), []
        lines = self._recorded()
        sent = {line["sha256"] for line in lines if "id" in line}
        for line in lines:  # first, unchanged, each batch that a process may have sent before it died
            if line["sha256"] not in sent and rest.keys() >= set(line["requests"]):
                parts.append({key: rest.pop(key) for key in line["requests"]})
        for part in parts + parts_of(rest):
            await self._ask_for(part)
        shared.answering |= {left[key]["model"] for key in left if isinstance(shared.answers.get(key), bytes)}

    def _unanswered(self, requests: dict[str, Fields]) -> dict[str, Fields]:
        """Return the requests that are still to be sent in a batch: without an answer, and not failed too often."""
        shared = self._shared
        return {key: requests[key] for key in requests if key not in shared.answers and shared.tries[key] < ROUNDS}

    async def _ask_for(self, part: dict[str, Fields]) -> None:
        """Get answers to these requests from one batch, or from smaller ones if the API's queue is full."""
        shared = {"method": "POST", "url": "/v1/chat/completions"}
        content = b"".join(_encode({"custom_id": key, **shared, "body": part[key]}) + b"\n" for key in part)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._path, patience=math.inf):
            is_new = not self._unread(part)
            batch_id = await self._insist(lambda: self._submit(content, list(part))) if is_new else None
        if not is_new:  # another process has just sent some of them
            await self._take_sent(part)
            left = self._unanswered(part)
            return await self._ask_for(left) if left else None
        size = f"{counted(len(part), 'request')}, {len(content) / 1e6:.1f} MB"
        announce(f"{batch_id}: {size}; if you stop now, run the same command again to wait for it")
        batch = await self._ended(batch_id, len(part))
        errors = field_of(field_of(batch, "errors", dict), "data", list) or []
        if TOO_MUCH in [field_of(error, "code", str) for error in errors] and len(part) > 1:
            self._shared.read.add(batch_id)
            half, whole = (len(part) + 1) // 2, list(part.items())
            await self._ask_for(dict(whole[:half]))
            await self._ask_for(dict(whole[half:]))
        elif batch["status"] == "failed":  # without a batch, its requests would cost twice as much
            reason = "; ".join(str(field_of(error, "message", object)) for error in errors) or "no reason given"
            raise UserError(f"the {self.device} rejected the batch ({batch_id}): {self._one_line(reason)}")
        else:
            await self._take(batch, part.keys())
            self._shared.read.add(batch_id)

    async def _take_sent(self, left: dict[str, Fields]) -> None:
        """Read the answers to these requests from batches that are already sent, once they have ended."""
        for batch_id, requests in self._unread(left).items():
            announce(f"{batch_id}: already sent by an earlier run")
            with suppress(AbsentError):  # the API keeps files for 30 days
                await self._take(await self._ended(batch_id, len(requests)), requests & left.keys())
            self._shared.read.add(batch_id)

    async def _submit(self, content: bytes, requests: list[str]) -> str:
        """Send a batch with this content, or find it at the API if its id was not recorded; return its id."""
        digest, recorded = hashlib.sha256(content).hexdigest(), {line.get("id") for line in self._recorded()}

        async def find() -> list[str]:
            batches = [batch.model_dump(warnings=False) async for batch in self._client.batches.list(limit=100)]
            same = [batch for batch in batches if field_of(batch.get("metadata"), "sha256", str) == digest]
            return [batch["id"] for batch in same if batch["status"] != "failed" and batch["id"] not in recorded]

        async def send() -> list[str]:
            file = await self._client.files.create(file=("batch.jsonl", content), purpose="batch")
            for looks in count():  # Azure refuses a batch until it has processed the file
                if file.status not in FILE_UNDER_WAY:
                    break
                if not looks:
                    announce(
                        f"{printable(file.id)}: waiting until the {self.device} has processed the uploaded requests"
                    )
                await asyncio.sleep(min(POLLS[0] * 1.5 ** min(looks, 50), POLLS[1]))
                file = await self._client.files.retrieve(file.id)
            if file.status in ("error", "deleted"):
                problem = self._one_line(file.status_details or file.status)
                raise UserError(f"the {self.device} cannot process the uploaded requests ({file.id}): {problem}")
            # If the answer is lost, a retry by the library would pay for a second batch.
            batch = await self._client.with_options(max_retries=0).batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"sha256": digest},
            )
            return [batch.id]

        try:
            ids = await self._explained(find())
            if not ids:
                self._record({"sha256": digest, "requests": requests})
                ids = await self._explained(send())
        except AbsentError as error:
            hint = "\n  this API may not support batches; then run the command without utils/batch.py"
            raise UserError(f"{error}{hint}") from None
        if not isinstance(ids[0], str):
            raise UnavailableError(f"the {self.device} returned a batch without an id")
        self._record({"id": ids[0], "sha256": digest, "requests": requests})
        return ids[0]

    def _record(self, line: Fields) -> None:
        with open_appending(self._path) as file:
            # The first line break ends a line cut by a killed process.
            write_line(file, b"\n" + _encode(line) + b"\n", self._path)
            sync(file)

    def _recorded(self) -> list[Fields]:
        content = self._path.read_bytes() if self._path.exists() else b""
        return [line for line in _read_lines(content, "sha256") if isinstance(line.get("requests"), list)]

    def _unread(self, left: dict[str, Fields]) -> dict[str, set[str]]:
        """Return the sent batches that have some of these requests and are not read yet: batch id -> request ids."""
        sent = {line["id"]: set(line["requests"]) for line in self._recorded() if "id" in line}
        return {
            batch_id: requests
            for batch_id, requests in sent.items()
            if batch_id not in self._shared.read and requests & left.keys()
        }

    async def _ended(self, batch_id: str, number: int) -> Fields:
        """Wait until a batch of `number` requests has ended, and return it."""

        async def look() -> Fields:
            return (await self._client.batches.retrieve(batch_id)).model_dump(warnings=False)

        with closing(Progress(number, f"requests of {printable(batch_id)}")) as progress:
            for looks in count():
                batch = await self._insist(lambda: self._explained(look()))
                counts, status = field_of(batch, "request_counts", dict), field_of(batch, "status", str)
                done = sum(field_of(counts, name, int) or 0 for name in ("completed", "failed"))
                if done > progress.done:
                    progress.update(done - progress.done)
                if looks and status == "cancelled":  # by a user
                    again = "run the same command again: it uses the finished answers and sends the rest again"
                    raise UserError(f"{batch_id} was cancelled at the {self.device}\n  {again}")
                if status not in UNDER_WAY:
                    return batch
                await asyncio.sleep(min(POLLS[0] * 1.5 ** min(looks, 50), POLLS[1]))

    async def _take(self, batch: Fields, requests: Collection[str]) -> None:
        """Read a finished batch's answers to these requests; an expired batch has only some of the answers."""
        shared, completed = self._shared, field_of(field_of(batch, "request_counts", dict), "completed", int) or 0
        for name, number in (("output", completed), ("error", 0)):
            if (file_id := field_of(batch, f"{name}_file_id", str)) is None:
                continue
            content = await self._insist(lambda: self._whole_file(file_id, number))  # noqa: B023
            for line in _read_lines(content, "custom_id"):
                key, response = line["custom_id"], field_of(line, "response", dict)
                status, body = field_of(response, "status_code", int), field_of(response, "body", dict)
                if key not in requests or status is None:  # None: the request expired
                    continue
                error = field_of(body, "error", dict)
                problem = self._problem(status, field_of(error, "code", str), field_of(error, "message", object))
                if status == 200:
                    shared.answers[key] = _encode(body)
                elif isinstance(problem, RefusedError):
                    shared.answers[key] = str(problem)
                elif not isinstance(problem, UnavailableError):
                    shared.tries[key] = ROUNDS
        if batch["status"] != "failed":  # a failed batch never began
            shared.tries.update(key for key in requests if key not in shared.answers)

    async def _whole_file(self, file_id: str, number: int) -> bytes:
        """Return the content of a file of at least `number` lines; UnavailableError if it is cut short."""
        content = (await self._explained(self._client.files.content(file_id))).content
        last = content.rpartition(b"\n")[2]
        lines = content.count(b"\n") + len(list(_read_lines(last, "custom_id")))
        if lines < number:
            raise UnavailableError(
                f"the {self.device} returned {lines} of {counted(number, 'answer')} of {printable(file_id)}"
            )
        return content

    async def _explained(self, request: Awaitable[Any]) -> Any:
        """Like `APIEngine._explained`; also UnavailableError if the client library cannot read the answer."""
        try:
            return await super()._explained(request)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError, openai.OpenAIError) as error:
            raise UnavailableError(f"the {self.device} returned unexpected JSON: {error}") from None


def parts_of(bodies: dict[str, Fields]) -> list[dict[str, Fields]]:
    """Return requests split into batches, each as large as the limits allow."""
    parts, size = [], MOST_BYTES
    for key, body in bodies.items():
        num_bytes = len(_encode(body)) + 200  # for the fields around the body
        if size + num_bytes > MOST_BYTES or len(parts[-1]) == MOST_REQUESTS:
            parts.append({})
            size = 0
        parts[-1][key] = body
        size += num_bytes
    return parts


def _read_lines(content: bytes, name: str) -> Iterator[Fields]:
    """Yield the JSON objects with a text in the field `name`; skip other lines."""
    for line in content.splitlines():
        with suppress(ValueError, RecursionError):
            if field_of(value := json.loads(line), name, str) is not None:
                yield value


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
