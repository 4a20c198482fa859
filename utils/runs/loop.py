"""An event loop that does not wait for tasks that ignore their cancellation."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class Loop:
    """An event loop that is closed without waiting for tasks that ignore their cancellation, as asyncio.run would.

    A bare `except` in a method makes such tasks.
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
        if "Task was destroyed" not in context["message"]:  # of such a task
            loop.default_exception_handler(context)

    def close(self) -> None:
        loop = self._runner.get_loop()
        while self._task is not None and not self._task.done():  # after a signal; it has engines to close
            for task in asyncio.all_tasks(loop):
                task.cancel()
            with suppress(asyncio.CancelledError, SystemExit):
                loop.run_until_complete(self._task)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
