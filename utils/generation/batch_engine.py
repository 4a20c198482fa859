"""OpenAI's batch interface: first tries are asked for in files, at half the price, and answered within a day.

A request is known by the hash of its body, which holds the model and the seed. Before a run submits anything it looks
for its requests in the batches that this project has submitted for the same model, whichever command they were for.
Nothing that is answered or under way there is asked for again. There is no other state.
"""

import asyncio
import hashlib
import json
import math
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import openai

from utils.cli import UserError
from utils.cli.progress import announce
from utils.generation.api_engine import AbsentError, APIEngine, field_of
from utils.generation.chat import Rendered
from utils.generation.refusals import MalformedError, Way
from utils.generation.requests import Completion, RefusedError, Sampling, UnavailableError

MOST_REQUESTS = 50_000  # in a batch, by OpenAI's documentation, and
MOST_BYTES = 200_000_000
ROUNDS = 3  # batches that an item is asked for in; after that by itself
QUIET_SECONDS = 1.0  # without a further request: then those that wait make a batch
POLLS = (2.0, 60.0)  # seconds from one look at a batch to the next, at first and at most
TELL_SECONDS = 30.0
UNDER_WAY = ("validating", "in_progress", "finalizing", "cancelling")
TOO_MUCH = "token_limit_exceeded"  # the error of a batch for which the API's queue, as it is, has no room

Line = dict[str, Any]  # of an output or error file


class Batch(NamedTuple):
    """What is used of the API's batch object."""

    id: str
    status: str
    metadata: dict[str, Any]
    errors: list[dict[str, Any]]
    counts: dict[str, Any]
    input_file_id: str | None
    output_file_id: str | None
    error_file_id: str | None


class Item(NamedTuple):
    """A request that waits for its answer."""

    body: dict[str, Any]
    # Of what a batch does not take the refusal; UnavailableError: no batch answers it.
    answer: asyncio.Future[bytes | MalformedError]


class BatchEngine(APIEngine):
    """`APIEngine`, whose first tries go in batches; those that follow an unusable text are asked for at once."""

    def __init__(self, args: Namespace, api_key: str):
        super().__init__(args, api_key)
        self.concurrency = MOST_REQUESTS
        self._waiting: dict[str, Item] = {}  # not yet in a batch
        self._answers: dict[str, bytes] = {}  # of batches of earlier processes
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[str] = set()
        self._read_already: set[str] = set()  # batches
        self._finding = asyncio.Lock()
        self._taken_alone: set[Way] = set()  # ways that a batch refused, and the API took by themselves
        self._earlier: list[Batch] | None = None  # of other processes, those not read yet, the newest first
        self._requests_of: dict[str, set[str]] = {}  # by batch, as far as they were looked up
        self._reading_earlier = asyncio.Lock()
        self._last = 0.0  # when the last request came

    async def complete(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion:
        """As `APIEngine.complete`; a first try waits until its batch is answered."""
        asked, schema, alone = self._asked(model, prompt, sampling), sampling.schema, super().complete
        while sampling.attempt == 0:
            way = self.refusals.way(schema)
            try:
                body = self.refusals.body(way, asked, schema)
                answer = await self._answer(body, sampling.seed)
                if isinstance(answer, bytes):
                    completion = self._read(answer, sampling, body)
                    return self.refusals.told(way, asked, schema, completion)
            except UnavailableError:  # no answer, or one without an output
                break
            async with self._finding:  # one of the refused finds out by itself what is taken: the next batch has that
                if self.refusals.way(schema) == way and way not in self._taken_alone:
                    completion = await alone(model, prompt, sampling)
                    self._taken_alone |= {way} & {self.refusals.way(schema)}
                    return completion
            if way in self._taken_alone:
                break
        return await alone(model, prompt, sampling)

    async def _answer(self, body: dict[str, Any], seed: int) -> bytes | MalformedError:
        """What a batch answers to a request, or its refusal; UnavailableError where it says nothing."""
        if not self._waiting:
            self._start(self._send_when_quiet())
        # Two requests may be one: a judge's, of two systems that answer a question alike. But not two with two seeds,
        # also where none is sent.
        key = _hash({**body, "seed": seed})
        item = self._waiting.setdefault(key, Item(body, asyncio.get_running_loop().create_future()))
        self._last = time.monotonic()
        return await item.answer

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._under_way:
            announce(
                f"note: the {self.device} goes on with {', '.join(sorted(self._under_way))}; "
                "the same command again takes the answers"
            )
        await super().close()

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_when_quiet(self) -> None:
        """Have all that waits answered, once no other request comes."""
        while (rest := self._last + QUIET_SECONDS - time.monotonic()) > 0:
            await asyncio.sleep(rest)
        items, self._waiting = self._waiting, {}
        try:
            async with self._reading_earlier:
                await self._answer_from_earlier(items)
            for number in range(ROUNDS):
                items = {key: item for key, item in items.items() if not item.answer.done()}
                for part in _parts(items):
                    await self._answer_by_batch(part, number)
            for item in items.values():
                if not item.answer.done():
                    item.answer.set_exception(UnavailableError("no batch has an answer"))
        except Exception as error:  # of ours too: who waits for an answer raises it
            for item in items.values():
                if not item.answer.done():
                    item.answer.set_exception(error)

    async def _answer_from_earlier(self, items: dict[str, Item]) -> None:
        """What batches that another process submitted, for whichever output, have an answer to."""
        if self._earlier is None:
            model = next(iter(items.values())).body["model"]
            found = [batch for batch in await self._find_batches() if batch.metadata.get("model") == model]
            self._earlier = [batch for batch in found if batch.status != "failed"]
        for batch in list(self._earlier):
            if not (items.keys() - self._answers.keys()) & await self._asked_in(batch):
                continue
            if batch.status in UNDER_WAY:
                announce(f"resuming {batch.id}")
                batch = await self._wait_for(batch)
            self._earlier = [other for other in self._earlier if other.id != batch.id]
            with suppress(AbsentError):  # the API keeps a file for 30 days
                async for line in self._lines(batch):
                    if (answer := self._answer_in(line)) is not None:
                        self._answers[line["custom_id"]] = answer
        for key, item in items.items():
            if (answer := self._answers.pop(key, None)) is not None:
                item.answer.set_result(answer)

    async def _answer_by_batch(self, items: dict[str, Item], number: int) -> None:
        """Ask for these in one batch, or as many as the API takes; what it doesn't answer still waits afterwards."""
        lines = (
            {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": item.body}
            for key, item in items.items()
        )
        content = b"".join(_encode(line) + b"\n" for line in lines)
        again = f", for the {('second', 'third')[number - 1]} time" if number else ""
        announce(f"a batch of {len(items)} requests, {len(content) / 1e6:.1f} MB{again}")
        batch = await self._wait_for(await self._insist(lambda: self._submit(content)))
        if TOO_MUCH in [error.get("code") for error in batch.errors] and (
            parts := await self._when_there_is_room(items)
        ):
            for part in parts:
                await self._answer_by_batch(part, number)
            return
        if batch.status == "failed":
            told = self._one_line(
                "; ".join(str(error.get("message")) for error in batch.errors) or "it doesn't say why"
            )
            raise UserError(f"the {self.device} takes no such batch ({batch.id}): {told}")
        async for line in self._lines(batch):
            item = items.get(line["custom_id"])
            if item is None or item.answer.done():
                continue
            if (answer := self._answer_in(line)) is not None:
                item.answer.set_result(answer)
            elif isinstance(problem := self._problem_in(line), MalformedError):
                item.answer.set_result(problem)
            elif isinstance(problem, RefusedError):
                item.answer.set_exception(problem)
            elif isinstance(problem, UserError):  # asked for by itself the run ends
                item.answer.set_exception(UnavailableError(str(problem)))

    async def _when_there_is_room(self, items: dict[str, Item]) -> list[dict[str, Item]]:
        """What to ask for in a batch each, of items that were too many for the queue; nothing if only one was.

        Where other batches are in the queue they are asked for again as soon as the oldest of those has ended; else in
        halves.
        """
        if others := [batch for batch in await self._list_batches() if batch.status in UNDER_WAY]:
            announce(f"the queue of the {self.device} is full, waiting for {others[-1].id}")
            await self._ended(others[-1])
            return [items]
        half, whole = (len(items) + 1) // 2, list(items.items())
        return [dict(whole[:half]), dict(whole[half:])] if half < len(items) else []

    async def _submit(self, content: bytes) -> Batch:
        """A batch of this file. Whether the API has it already is looked up: its answer may have been lost."""
        digest = hashlib.sha256(content).hexdigest()
        for batch in await self._find_batches():
            if batch.metadata["sha256"] == digest and batch.status != "failed" and batch.id not in self._read_already:
                return batch
        file = await self._plain(self._client.files.create(file=("batch.jsonl", content), purpose="batch"))
        if (file_id := field_of(file, "id", str)) is None:
            raise UnavailableError(f"the {self.device} does not say what it calls a file")
        once = self._client.with_options(max_retries=0)  # the library would pay twice for an answer that was lost
        created = once.batches.create(
            input_file_id=file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"model": json.loads(content.partition(b"\n")[0])["body"]["model"], "sha256": digest},
        )
        return self._batch(await self._plain(created))

    async def _find_batches(self) -> list[Batch]:
        """Those that this project has submitted, the newest first."""
        return [batch for batch in await self._list_batches() if "sha256" in batch.metadata]

    async def _list_batches(self) -> list[Batch]:
        """All that the key may see, the newest first."""

        async def ask() -> list[Any]:
            return [batch async for batch in self._client.batches.list(limit=100)]

        try:
            found = map(_read_batch, await self._insist(lambda: self._plain(ask())))
            return [batch for batch in found if batch is not None]
        except AbsentError as error:
            raise UserError(f"{error}\n  is it one with a batch interface? if not, leave out --openai_batch") from None

    async def _wait_for(self, batch: Batch) -> Batch:
        """A batch once it has ended; UserError if it was cancelled, for somebody doesn't want it."""
        self._under_way.add(batch.id)
        batch = await self._ended(batch)
        self._under_way.discard(batch.id)
        if batch.status == "cancelled":
            again = "the same command again takes its answers, and asks for the others"
            raise UserError(f"{batch.id} was cancelled at the {self.device}\n  {again}")
        return batch

    async def _ended(self, batch: Batch) -> Batch:
        """Any batch, when it has ended."""
        pause, told, said = POLLS[0], -math.inf, None
        while batch.status in UNDER_WAY:
            counts = [batch.counts.get(name) for name in ("completed", "failed", "total")]
            told_counts = all(type(count) is int for count in counts)
            done = f"{counts[0] + counts[1]}/{counts[2]} answered" if told_counts else "nothing told"
            if said != (batch.status, done) and time.monotonic() - told >= TELL_SECONDS:
                announce(f"{batch.id}: {batch.status}, {done}")
                told, said = time.monotonic(), (batch.status, done)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLLS[1])
            batch = await self._insist(lambda: self._retrieve(batch.id))  # noqa: B023
        announce(f"{batch.id}: {batch.status}")
        return batch

    async def _retrieve(self, batch_id: str) -> Batch:
        return self._batch(await self._plain(self._client.batches.retrieve(batch_id)))

    def _batch(self, found: Any) -> Batch:
        if (batch := _read_batch(found)) is None:
            raise UnavailableError(f"the {self.device} sends no batch: {self._one_line(found)}")
        return batch

    async def _plain(self, asked: Awaitable[Any]) -> Any:
        """What the client library gives, as plain JSON; UnavailableError where it cannot read the answer."""
        try:
            return _plain(await self._explained(asked))
        except (ValueError, TypeError, AttributeError, RecursionError, openai.OpenAIError) as error:
            raise UnavailableError(f"the {self.device} answers what is no JSON, or another: {error}") from None

    async def _asked_in(self, batch: Batch) -> set[str]:
        """Which requests a batch has, or of one that has ended, whose files are smaller, those that it has answered.

        None where the API has its files no longer: it keeps them for 30 days.
        """
        if batch.id not in self._requests_of:
            file_id = batch.input_file_id if batch.status in UNDER_WAY else batch.output_file_id
            try:
                content = await self._content(file_id) if file_id else b""
            except AbsentError:
                content = b""
                self._read_already.add(batch.id)
            self._requests_of[batch.id] = {line["custom_id"] for line in _read_lines(content)}
        return self._requests_of[batch.id]

    async def _lines(self, batch: Batch) -> AsyncIterator[Line]:
        """What a batch that has ended says of each request; of one that has expired too."""
        self._read_already.add(batch.id)
        for file_id in filter(None, [batch.output_file_id, batch.error_file_id]):
            for line in _read_lines(await self._content(file_id)):
                yield line

    async def _content(self, file_id: str) -> bytes:
        found = await self._insist(lambda: self._explained(self._client.files.content(file_id)))
        return found.content

    def _answer_in(self, line: Line) -> bytes | None:
        response = field_of(line, "response", dict)
        body = field_of(response, "body", dict) if field_of(response, "status_code", int) == 200 else None
        return None if body is None else json.dumps(body).encode()

    def _problem_in(self, line: Line) -> Exception:
        """What `APIEngine` makes of it: only what it would ask for again is in the next batch."""
        response = field_of(line, "response", object)
        status = 500 if response is None else field_of(response, "status_code", int) or 0  # 0: asked for by itself
        error = field_of(field_of(response, "body", dict), "error", object)
        message = error.get("message") if isinstance(error, dict) else error
        return self._problem(status, field_of(error, "code", str), message, field_of(error, "param", str), str(error))


def _read_lines(content: bytes) -> Iterator[Line]:
    """The lines of a batch's file; what is no object with a `custom_id` is left out, and its request asked again."""
    for line in content.splitlines():
        with suppress(ValueError, RecursionError):
            if field_of(found := json.loads(line), "custom_id", str) is not None:
                yield found


def _plain(found: Any) -> Any:
    """An object of the client library, whose fields may have any type, as JSON has it."""
    if isinstance(found, list):
        return list(map(_plain, found))
    return found.model_dump(warnings=False) if isinstance(found, openai.BaseModel) else found


def _read_batch(found: Any) -> Batch | None:
    """A batch object; None where it does not say which it is or how it stands. Other odd fields count as missing."""
    batch_id, status = field_of(found, "id", str), field_of(found, "status", str)
    if not batch_id or not status:
        return None
    errors = field_of(field_of(found, "errors", dict), "data", list) or []
    return Batch(
        batch_id,
        status,
        field_of(found, "metadata", dict) or {},
        [error for error in errors if isinstance(error, dict)],
        field_of(found, "request_counts", dict) or {},
        *(field_of(found, name, str) for name in ("input_file_id", "output_file_id", "error_file_id")),
    )


def _parts(items: dict[str, Item]) -> list[dict[str, Item]]:
    """As few batches as the limits allow."""
    parts, size = [], math.inf
    for key, item in items.items():
        its = len(_encode(item.body)) + 200  # what stands around the body
        if size + its > MOST_BYTES or len(parts[-1]) == MOST_REQUESTS:
            parts.append({})
            size = 0
        parts[-1][key] = item
        size += its
    return parts


def _hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(_encode(body)).hexdigest()


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
