"""What a server refuses of a request, found out once a run: parameters, and ways to hold an output to its schema.

The first request of a kind goes alone. What it is refused for is left out or renamed, and it is asked again; the others
wait for it, so that they are right the first time.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from utils.cli import UserError
from utils.generation.requests import FORMATS, Completion

LIMITS = ("max_tokens", "max_completion_tokens")  # one limit by its old name and by OpenAI's new one
# What the run can go on without, or by its other name. A refusal may name several ("temperature and top_p cannot both
# be specified"): the first of these goes.
ADAPTABLE = ("seed", "top_p", "min_p", "top_k", "presence_penalty", *LIMITS, "temperature", "reasoning_effort")
FIRST_SECONDS = 15.0  # that a first request is waited for: parameters are refused before an answer is begun

_ALLOWED = re.compile(
    r"\b(?:expected one of|(?:supported|allowed|valid|permitted) (?:fields|parameters|values))\b", re.I
)

Asked = dict[str, Any]  # a request's body but for its response_format, with the limit as max_tokens


class MalformedError(UserError):
    """The API does not take a request as it is, for a parameter, its response_format or anything else in it.

    `param` is the parameter that it names as such, `found` all that it says.
    """

    def __init__(self, message: str, param: str | None = None, found: str = ""):
        super().__init__(message)
        self.param, self.found = param or "", found


class Way(NamedTuple):
    """How a request is made."""

    limit: str  # of LIMITS
    left_out: frozenset[str]  # of ADAPTABLE
    format: int  # of FORMATS


class Refusals:
    """What one server has refused so far, and so the way in which it is asked.

    Args:
        limit: the one of LIMITS that is tried first.
        server: what notes on stderr call it.
    """

    def __init__(self, limit: str, server: str):
        self._preferred = self._limit = limit
        self._server = server
        self._left_out: frozenset[str] = frozenset()
        self._format = 0
        self._refused_limits: set[str] = set()  # in this process
        self._firsts: dict[Way, asyncio.Event] = {}  # by way whether its first request has come back
        self._finding = asyncio.Lock()
        self._untold: list[str] = []  # notes on what was found out and has not helped yet

    def way(self, schema: Any) -> Way:
        """How an output is asked for now, which is held to `schema` if that is JSON's."""
        return Way(self._limit, self._left_out, self._format if isinstance(schema, dict) else len(FORMATS) - 1)

    def body(self, way: Way, asked: Asked, schema: Any) -> dict[str, Any]:
        """The whole body of a request."""
        kept = {name: value for name, value in asked.items() if name not in way.left_out}
        limited = {way.limit if name == "max_tokens" else name: value for name, value in kept.items()}
        held = response_format(FORMATS[way.format], schema)
        return {**limited, **({"response_format": held} if held else {})}

    def told(self, way: Way, asked: Asked, schema: Any, completion: Completion) -> Completion:
        """A completion that says what the server did not take of what it was asked by."""
        refused = [*(way.left_out & asked.keys()), *([self._preferred] if way.limit != self._preferred else [])]
        taken = FORMATS[way.format] if isinstance(schema, dict) and way.format else None
        return replace(completion, response_format=taken, refused_parameters=tuple(sorted(refused)))

    def recall(self, records: Iterable[dict[str, Any]]) -> None:
        """Take over what an earlier process has found out, from the records that it kept."""
        names, formats = set(), [0]
        for record in records:
            names.update(record.get("refused_parameters", ()))
            formats.append(FORMATS.index(record.get("response_format", FORMATS[0])))
        if names & {*LIMITS}:
            self._limit = _other(self._preferred)
        self._left_out |= names.difference(LIMITS)
        self._format = max(formats)
        if refused := [*FORMATS[: self._format], *sorted(names)]:
            what = " and ".join(refused)
            print(f"note: the {self._server} refused {what} before; the run continues without", file=sys.stderr)

    async def ask(
        self, asked: Asked, schema: Any, send: Callable[[dict[str, Any]], Awaitable[Completion]]
    ) -> Completion:
        """What `send` makes of a body that the server takes.

        MalformedError where it names nothing that could be changed, and takes no other response_format either.
        """

        async def ask_in(way: Way) -> Completion:
            completion = self.told(way, asked, schema, await send(self.body(way, asked, schema)))
            self._tell()
            return completion

        while True:
            async with self._finding:  # what is being found out is not asked by halves
                way = self.way(schema)
            is_first = way not in self._firsts
            first = self._firsts.setdefault(way, asyncio.Event())
            if not is_first and not first.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(first.wait(), FIRST_SECONDS)
                async with self._finding:  # it was refused, and finds out what is taken
                    pass
                if self.way(schema) != way:
                    continue
            try:
                return await ask_in(way)
            except MalformedError as refusal:
                async with self._finding:
                    if self.way(schema) == way:
                        return await self._find(way, asked, schema, ask_in, refusal)
            finally:
                first.set()

    async def _find(
        self, way: Way, asked: Asked, schema: Any, ask_in: Callable[[Way], Awaitable[Completion]], refusal: Any
    ) -> Completion:
        """A completion that is asked for in a way that the server takes, behind one that it has refused."""
        first, number = None, way.format  # of a refusal that may be of the response_format
        while True:
            body = self.body(way, asked, schema)
            if (name := _named(refusal, body)) is not None:
                self._adapt(name, refusal)
            elif "response_format" in body:
                first, number = first or refusal, number + 1
            else:
                raise refusal
            way = Way(self._limit, self._left_out, number)
            try:
                completion = await ask_in(way)
            except MalformedError as error:
                refusal = error
                continue
            if first is not None:
                refused = " and ".join(FORMATS[self._format : number])
                self._untold.append(f"{first}; the run continues without {refused}")
                self._format = number
            self._tell()
            self._firsts.setdefault(way, asyncio.Event()).set()
            return completion

    def _adapt(self, name: str, refusal: MalformedError) -> None:
        """Do without a parameter that was refused; the refusal where neither name of the limit is taken."""
        if name not in LIMITS:
            self._left_out |= {name}
            self._untold.append(f"{refusal}; the run continues without {name}")
            return
        self._refused_limits.add(name)
        self._limit = _other(name)
        if self._limit in self._refused_limits:
            raise refusal
        self._untold.append(f"{refusal}; the run continues with {self._limit}")

    def _tell(self) -> None:
        """What was found out, now that it has helped."""
        for text in self._untold:
            print(f"note: {text}", file=sys.stderr, flush=True)
        self._untold.clear()


def _other(limit: str) -> str:
    return LIMITS[1 - LIMITS.index(limit)]


def _named(refusal: MalformedError, body: dict[str, Any]) -> str | None:
    """The parameter in a request's body that its refusal names, None where it names none of ADAPTABLE."""
    found = _ALLOWED.split(refusal.found)[0]  # what it would take instead may follow
    words = set(re.findall(r"\w+", refusal.param)) & body.keys() or set(re.findall(r"\w+", found))
    if "response_format" in words & body.keys():
        return None
    return next((name for name in ADAPTABLE if name in words and name in body), None)


def response_format(kind: str, schema: Any) -> dict[str, Any] | None:
    """The parameter for one of FORMATS, None where there is none.

    Without what OpenAI's strict mode does not document: that a text is not empty. The parser sees to it.
    """
    if kind == "none":
        return None
    if kind == "json_object":
        return {"type": kind}
    fields = {
        name: {key: value for key, value in field.items() if key != "minLength"}
        for name, field in schema["properties"].items()
    }
    return {"type": kind, kind: {"name": "output", "schema": {**schema, "properties": fields}, "strict": True}}
