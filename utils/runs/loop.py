"""An event loop that can be closed while tasks ignore their cancellation, and that tells a method's tasks apart."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Branch:
    """A task of a user's method, with the places of its calls and of the tasks that it makes.

    Attributes:
        path: what tells the task from others, the same in every run: of each task from the method's to this one, a hash
            of its function and arguments, and its number among tasks of the same parent that have the same hash. The
            order alone would not do, because asyncio.as_completed makes tasks in any order.
    """

    def __init__(self, path: tuple[str | int, ...] = (), place: tuple[int, ...] = ()):
        self.path, self._place, self._number = path, place, 0
        self._same = Counter[str]()

    def next_place(self) -> tuple[int, ...]:
        """Return the place of the next call or task: places sort as a method that waits for each step makes them."""
        self._number += 1
        return (*self._place, self._number - 1)

    def of_task(self, work: Any) -> "Branch":
        """Return the branch of a task that this one makes, which runs the coroutine `work`."""
        frame, given = getattr(work, "cr_frame", None), ""
        with suppress(TypeError, ValueError, RecursionError):  # arguments that JSON cannot hold do not count
            given = json.dumps(frame.f_locals if frame else {}, default=_type_name, skipkeys=True, sort_keys=True)
        digest = hashlib.sha256(f"{getattr(work, '__qualname__', '')} {given}".encode()).hexdigest()[:16]
        self._same[digest] += 1
        return Branch((*self.path, digest, self._same[digest]), self.next_place())


def _type_name(value: Any) -> str:
    return type(value).__name__


BRANCH: ContextVar[Branch | None] = ContextVar("branch", default=None)  # of the running task


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None, **more: Any
) -> asyncio.Task:
    """Return a new task (the loop's task factory); if a task of a method makes it, it has a branch of its own.

    A call that is a task (asyncio.gather(ask(...), ask(...))) has none: it is numbered as a call of the task that makes
    it, as if that task awaited it.
    """
    context = context or copy_context()
    if (branch := BRANCH.get()) is not None and not getattr(work, "__qualname__", "").startswith("Ask."):
        context.run(BRANCH.set, branch.of_task(work))
    return asyncio.Task(work, loop=loop, context=context, **more)


class Loop:
    """An event loop that, unlike asyncio.run, does not wait at its end for tasks that ignore their cancellation.

    A user's method with a bare `except` can be such a task.
    """

    def __init__(self) -> None:
        self._runner, self._task = asyncio.Runner(), None
        self._runner.get_loop().set_exception_handler(self._report)
        self._runner.get_loop().set_task_factory(_make_task)

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
