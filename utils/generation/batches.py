"""OpenAI's batch interface for utils/batch.py: send requests in batches, and store the answers.

A request's id is its key in the store. `batches.jsonl` in the store's folder has a line per batch: its id, the hash of
its content, the ids of its requests, and the parameters that each model's server had refused before. If the process
died before it recorded the id of a batch, the batch is found in the API's list by the hash of its content.
"""

import asyncio
import hashlib
import json
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import openai

from utils.base.errors import UserError, count_noun, printable
from utils.base.progress import Progress, announce
from utils.base.writing import locked, open_appending, sync, write_line
from utils.generation.api_engine import AbsentError, APIEngine, field_of
from utils.generation.completions import Completions, Lack
from utils.generation.requests import RefusedError, UnavailableError

Fields = dict[str, Any]  # a JSON object

MOST_REQUESTS = 50_000  # per batch; this limit and the next one are from OpenAI's documentation
MOST_BYTES = 200_000_000
ROUNDS = 3  # failed batches, or tries of an output, after which a request is sent without a batch
SINGLES = 3  # requests to send one by one before the others are sent concurrently
POLLS = (2.0, 60.0)  # seconds between polls of a batch: initial and maximum
UNDER_WAY = ("validating", "in_progress", "finalizing", "cancelling", None)  # statuses of a batch; None: unknown
FILE_UNDER_WAY = ("pending", "running", "processing", "notRunning")  # statuses of a file that is not processed yet
TOO_MUCH = "token_limit_exceeded"  # error code: the batch does not fit in the API's queue


@dataclass(frozen=True)
class Wanted:
    """A request whose answer is to be stored."""

    model: str
    completions: Completions
    lack: Lack


class BatchEngine(APIEngine):
    """An `APIEngine` that gets answers from batches."""

    def __init__(self, args: Namespace, api_key: str):
        super().__init__(args, api_key)
        self._path = Path(args.completions) / "batches.jsonl"
        self._wanted: dict[str, Wanted] = {}  # sorted by key, so that the same requests give the same content
        self._requests: dict[str, Fields] = {}  # with all parameters, by key
        self._tries = Counter[str]()  # failed batches by the body's hash; after ROUNDS, the request goes alone
        self._done: set[str] = set()  # keys of answers that are stored
        self._failed: set[str] = set()  # keys of requests that failed without a batch
        self._read_batches: set[str] = set()  # ids of batches that were read

    async def answer(self, wanted: Mapping[str, Wanted]) -> None:
        """Get and store the answers to requests (by key): first from batches sent earlier, then from new batches.

        The first request to a model is sent without a batch, because a parameter that the API refuses would fail a
        whole batch. A request that the API refused, or that has failed often, is also sent without a batch. Once such a
        request shows which parameter to leave out, the others are sent in a batch again.
        """
        self._wanted = wanted = dict(sorted(wanted.items()))
        self._requests = {
            key: await self._request(one.model, one.lack.prompt, one.lack.sampling) for key, one in wanted.items()
        }
        await self._take_sent(wanted.keys())
        if self._for_batches(wanted):
            await self._insist(self._list)  # UserError if the API has no batches, before it is asked for anything
        models = dict.fromkeys(one.completions for one in wanted.values())
        for completions in models:
            own = {key: one for key, one in wanted.items() if one.completions is completions}
            with self._locked():  # another process may send the same requests
                completions.store.refresh()
                self._done |= {key for key in own if completions.store.get(key) is not None}
                is_first = completions.store.is_empty
                for key, one in own.items():
                    if is_first and one.model not in self._open:
                        await self._ask_alone(key, one)
        while unfinished := {key: one for key, one in wanted.items() if key not in self._done | self._failed}:
            if rest := self._for_batches(unfinished):
                await self._send_batches(rest)
                continue
            for item in [*unfinished.items()][:SINGLES]:  # each may show what the API refuses in all of them
                await self._ask_alone(*item)
                if self._for_batches(unfinished):
                    break
            else:
                await asyncio.gather(*(self._ask_alone(*item) for item in [*unfinished.items()][SINGLES:]))
        for completions in models:
            completions.keep_refusals()

    def _for_batches(self, wanted: Mapping[str, Wanted]) -> dict[str, Fields]:
        """Return the bodies of requests that may be sent in a batch: without an answer, and not failed too often."""
        ended = self._done | self._failed
        left = [key for key, one in wanted.items() if key not in ended and one.lack.sampling.attempt < ROUNDS]
        return {key: body for key in left if self._tries[_digest(body := self._body(key))] < ROUNDS}

    def _body(self, key: str) -> Fields:
        return self.refusals.body(self._requests[key])

    async def _ask_alone(self, key: str, one: Wanted) -> None:
        """Send a request without a batch, and store the answer; if it fails here, the run itself sends it again."""
        completions, (_, prompt, sampling, fields) = one.completions, one.lack
        try:
            await completions.complete(self, one.model, completions.hashed(prompt), sampling, False, **fields)
            self._done.add(key)
        except (UnavailableError, RefusedError):
            self._failed.add(key)

    async def _send_batches(self, bodies: dict[str, Fields]) -> None:
        parts, lines = [], self._recorded()
        sent = {line["sha256"] for line in lines if "id" in line}
        for line in lines:  # first repeat each batch that a process may have sent before it died
            if line["sha256"] not in sent and bodies.keys() >= set(line["requests"]):
                parts.append({key: bodies.pop(key) for key in line["requests"]})
        for part in parts + parts_of(bodies):
            await self._ask_for(part)

    async def _ask_for(self, part: dict[str, Fields]) -> None:
        """Get answers to the requests with these bodies from one batch, or from two if the API's queue is full."""
        shared = {"method": "POST", "url": "/v1/chat/completions"}
        content = b"".join(_encode({"custom_id": key, **shared, "body": part[key]}) + b"\n" for key in part)
        with self._locked():
            is_new = not self._unread(part.keys())
            models = {self._wanted[key].model for key in part}
            line = {"requests": list(part), "refused": {model: sorted(self.refusals.of(model)) for model in models}}
            batch_id = await self._insist(lambda: self._submit(content, line)) if is_new else None
        if not is_new:  # another process has just sent some of them
            return await self._take_sent(part.keys())
        size = f"{count_noun(len(part), 'request')}, {len(content) / 1e6:.1f} MB"
        announce(f"{batch_id}: {size}; if you stop now, run the same command again to wait for it")
        batch = await self._ended(batch_id, len(part))
        errors = field_of(field_of(batch, "errors", dict), "data", list) or []
        if TOO_MUCH in [field_of(error, "code", str) for error in errors] and len(part) > 1:
            self._read_batches.add(batch_id)
            half, whole = (len(part) + 1) // 2, list(part.items())
            await self._ask_for(dict(whole[:half]))
            await self._ask_for(dict(whole[half:]))
        elif batch["status"] == "failed":  # its requests are not sent alone, at twice the price
            reason = "; ".join(str(field_of(error, "message", object)) for error in errors) or "no reason given"
            raise UserError(f"the {self.device} rejected the batch ({batch_id}): {self._one_line(reason)}")
        else:
            await self._take(batch, part.keys())
            self._read_batches.add(batch_id)

    async def _take_sent(self, keys: Set[str]) -> None:
        """Store the answers to these requests from batches that are already sent, once they have ended."""
        for batch_id, requests in self._unread(keys).items():
            announce(f"{batch_id}: already sent by an earlier run")
            with suppress(AbsentError):  # the API keeps files for 30 days
                await self._take(await self._ended(batch_id, len(requests)), requests & keys)
            self._read_batches.add(batch_id)

    def _locked(self) -> AbstractContextManager[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return locked(self._path, patience=math.inf)

    async def _list(self) -> list[Fields]:
        async def read() -> list[Fields]:
            return [batch.model_dump(warnings=False) async for batch in self._client.batches.list(limit=100)]

        try:
            return await self._explained(read())
        except AbsentError as error:
            hint = "\n  this API may not support batches; then run the command without utils/batch.py"
            raise UserError(f"{error}{hint}") from None

    async def _submit(self, content: bytes, line: Fields) -> str:
        """Send a batch with this content, or find it at the API if its id was not recorded; return its id.

        `line` has the further fields of its line in batches.jsonl.
        """
        digest, recorded = hashlib.sha256(content).hexdigest(), {line.get("id") for line in self._recorded()}

        async def find() -> list[str]:
            same = [batch for batch in await self._list() if field_of(batch.get("metadata"), "sha256", str) == digest]
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

        ids = await find()
        if not ids:
            self._record({"sha256": digest, **line})
            ids = await self._explained(send())
        if not isinstance(ids[0], str):
            raise UnavailableError(f"the {self.device} returned a batch without an id")
        self._record({"id": ids[0], "sha256": digest, **line})
        return ids[0]

    def _record(self, line: Fields) -> None:
        with open_appending(self._path) as file:
            # The first line break ends a line cut by a killed process.
            write_line(file, b"\n" + _encode(line) + b"\n", self._path)
            sync(file)

    def _recorded(self) -> list[Fields]:
        content = self._path.read_bytes() if self._path.exists() else b""
        return [line for line in _read_lines(content, "sha256") if isinstance(line.get("requests"), list)]

    def _unread(self, keys: Set[str]) -> dict[str, set[str]]:
        """Return the sent batches that have some of these requests and are not read yet: batch id -> request ids."""
        sent = {line["id"]: set(line["requests"]) for line in self._recorded() if "id" in line}
        return {
            batch_id: requests
            for batch_id, requests in sent.items()
            if batch_id not in self._read_batches and requests & keys
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

    async def _take(self, batch: Fields, keys: Set[str]) -> None:
        """Store a finished batch's answers to these requests; an expired batch has only some of the answers."""
        completed = field_of(field_of(batch, "request_counts", dict), "completed", int) or 0
        refused = next((line.get("refused") for line in self._recorded() if line.get("id") == batch["id"]), None)
        for name, number in (("output", completed), ("error", 0)):
            if (file_id := field_of(batch, f"{name}_file_id", str)) is None:
                continue
            content = await self._insist(lambda: self._whole_file(file_id, number))  # noqa: B023
            for line in _read_lines(content, "custom_id"):
                key, response = line["custom_id"], field_of(line, "response", dict)
                status, body = field_of(response, "status_code", int), field_of(response, "body", dict)
                if key in keys and status is not None:  # None: the request expired
                    self._take_answer(key, status, body, refused or {})
        if batch["status"] != "failed":  # a failed batch never began
            self._tries.update(_digest(self._body(key)) for key in keys if key not in self._done)

    def _take_answer(self, key: str, status: int, answer: Fields | None, refused: Mapping[str, list[str]]) -> None:
        """Store an answer or a refusal; after another permanent error, this form of the request needs no more batches.

        `refused` has, by model, the parameters that the batch's requests left out.
        """
        one, error = self._wanted[key], field_of(answer, "error", dict)
        body = self.refusals.body(self._requests[key], {*refused.get(one.model, ())})
        result = None
        problem = self._problem(status, field_of(error, "code", str), field_of(error, "message", object))
        if status == 200:
            with suppress(UnavailableError):  # the answer is not a completion
                completion = self._read(_encode(answer), one.lack.sampling, body)
                result = self.refusals.noted(self._requests[key], body, completion)
                self._has_answered(one.model)
        elif isinstance(problem, RefusedError):
            result = problem
        elif not isinstance(problem, UnavailableError):
            self._tries[_digest(body)] = ROUNDS
        if result is not None:
            self._done.add(key)
            if one.completions.store.get(key) is None:  # another process may have read the same batch
                one.completions.keep(key, one.lack.fields, result)

    async def _whole_file(self, file_id: str, number: int) -> bytes:
        """Return the content of a file of at least `number` lines; UnavailableError if it is cut short."""
        content = (await self._explained(self._client.files.content(file_id))).content
        last = content.rpartition(b"\n")[2]
        lines = content.count(b"\n") + len(list(_read_lines(last, "custom_id")))
        if lines < number:
            raise UnavailableError(
                f"the {self.device} returned {lines} of {count_noun(number, 'answer')} of {printable(file_id)}"
            )
        return content

    async def _explained(self, request: Awaitable[Any]) -> Any:
        """Like `APIEngine._explained`; also UnavailableError if the client library cannot read the answer."""
        try:
            return await super()._explained(request)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError, openai.OpenAIError) as error:
            raise UnavailableError(f"the {self.device} returned unexpected JSON: {error}") from None


def parts_of(bodies: Mapping[str, Fields]) -> list[dict[str, Fields]]:
    """Split requests into batches, and fill each batch up to the limits."""
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


def _digest(body: Fields) -> str:
    return hashlib.sha256(_encode(body)).hexdigest()
