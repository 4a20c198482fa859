"""How many requests may be under way at an API at a time, by what it refuses."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import openai

LONGEST_PAUSE = 300.0  # seconds; where nothing is answered, our tries come after 5, 25, 125, 300, ...


LONGEST_WAIT = 600.0  # seconds, for the time that a refusal names; the library waits two minutes at most


RISE_AFTER = 10  # answers, for each request that may be under way, before more are tried


class Throttle:
    """How many requests may be under way at a time: what the user allows, less what the API's refusals (429) teach.

    Refusals come in waves: of many requests sent at once, those over the API's limit. Each lowers the limit by one, a
    wave at most to half. Answers, `RISE_AFTER` times as many as the limit, raise it by a quarter again. No request is
    sent before the time that a refusal names. Where it names none, the client library holds back that request alone;
    from the second wave without an answer between, all wait: 1 s, doubled with every wave, so that minutes in which
    everything is refused do not use up the tries.
    """

    def __init__(self, most: int):
        self.limit = self._most = most  # of requests that may be under way now
        self._under_way = 0
        self._answered = 0  # with a lowered limit, since it last rose
        self._freed = asyncio.Event()
        self._quiet_until = self._wave_began = -math.inf
        self._floor = 1  # of the limit in this wave
        self._pause = self._next_pause = 0.0  # of this wave and the next one, where the API names none

    async def enter(self) -> float:
        """Wait for a place; returns the time at which it was given."""
        while True:
            now = time.monotonic()
            if now < self._quiet_until:
                await asyncio.sleep(self._quiet_until - now)
            elif self._under_way < self.limit:
                self._under_way += 1
                return now
            else:
                self._freed.clear()
                await self._freed.wait()

    def leave(self) -> None:
        self._under_way -= 1
        self._freed.set()

    def accepted(self) -> None:
        """A request was answered."""
        self._next_pause = 0.0
        if self.limit == self._most:
            return
        self._answered += 1
        if self._answered >= RISE_AFTER * self.limit:
            self.limit = min(self._most, self.limit + max(1, self.limit // 4))
            self._answered = 0

    def refused(self, entered: float, named: float) -> float:
        """A request that entered at `entered` was refused for `named` seconds (0: for a time that is not told).

        Returns the seconds for which none may enter now.
        """
        now = time.monotonic()
        if entered >= self._wave_began:
            self._wave_began, self._floor = now, max(1, self.limit // 2)
            self._pause, self._next_pause = self._next_pause, min(max(1.0, 2 * self._next_pause), LONGEST_PAUSE)
        self.limit = max(self._floor, self.limit - 1)
        pause = named or self._pause
        self._quiet_until = max(self._quiet_until, now + pause)
        return pause


class ThrottledClient(openai.DefaultAsyncHttpxClient):
    """The client library's own HTTP client, which waits for its turn at a `Throttle` before each request.

    The library's retries go through it too.
    """

    def __init__(self, most: int, note: Callable[[str], None]):
        super().__init__()
        self._throttle = Throttle(most)
        self._note = note

    async def send(self, request: Any, **options: Any) -> Any:
        entered = await self._throttle.enter()
        try:
            response = await super().send(request, **options)
            if response.is_success:
                self._throttle.accepted()
            elif response.status_code == 429:
                pause = self._throttle.refused(entered, read_retry_after(response.headers))
                quiet = f", none for {pause:.1f} s" if pause else ""
                self._note(f"the API asks for less: at most {self._throttle.limit} requests at a time{quiet}")
            return response
        finally:
            self._throttle.leave()


def read_retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that a refusal asks to wait, `LONGEST_WAIT` at most; 0 where it names none.

    `Retry-After` holds seconds or a date (RFC 9110, section 10.2.3); `retry-after-ms` is OpenAI's finer one.
    """
    for name, read in (
        ("retry-after-ms", lambda text: float(text) / 1000),
        ("retry-after", float),
        ("retry-after", lambda text: parsedate_to_datetime(text).timestamp() - time.time()),
    ):
        with suppress(KeyError, ValueError, OverflowError):
            return min(max(0.0, read(headers[name])), LONGEST_WAIT)  # 0 of NaN too
    return 0.0
