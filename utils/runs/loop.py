"""An event loop that can be closed while tasks ignore their cancellation."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class Loop:
    """An event loop that, unlike asyncio.run, does not wait at its end for tasks that ignore their cancellation.

    A user's method with a bare `except` can be such a task.
    """

    def __init__(self) -> None:
        self._runner, self._task = asyncio.Runner(), None
        self._runner.get_loop().set_exception_handler(self._report)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def begin() -> Any:
            self._task = asyncio.current_task()
            return await work

        return self._runner.run(begin())

    @staticmethod
    def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "Task was destroyed" not in context["message"]:  # expected of a task that ignored its cancellation
            loop.default_exception_handler(context)

    def close(self) -> None:
        loop = self._runner.get_loop()
        while self._task is not None and not self._task.done():  # interrupted by a signal; it has engines to close
            for task in asyncio.all_tasks(loop):
                task.cancel()
            with suppress(asyncio.CancelledError, SystemExit):
                loop.run_until_complete(self._task)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
