"""An event loop that a user's method can neither stop nor keep from closing, and that tells a method's tasks apart."""

import asyncio
import ctypes
import hashlib
import json
import sys
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
        root: the branch of the method's own task.
    """

    def __init__(self, path: tuple[str | int, ...] = (), place: tuple[int, ...] = (), root: "Branch | None" = None):
        self.path, self.root, self._place, self._number = path, root or self, place, 0
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
        return Branch((*self.path, digest, self._same[digest]), self.next_place(), self.root)


def _type_name(value: Any) -> str:
    return type(value).__name__


BRANCH: ContextVar[Branch | None] = ContextVar("branch", default=None)  # of the running task


class _Task(asyncio.Task):
    """A task that a method cannot cancel unless it is the method's own.

    `root` is the branch of the method's own task, and None for other tasks.
    """

    root: Branch | None = None

    def cancel(self, msg: Any = None) -> bool:
        if sys._getframe(1).f_globals.get("__name__") == asyncio.Runner.__module__:
            # Ctrl-C, which asyncio.Runner turns into this call, arrives in whatever task is running.
            return Context().run(super().cancel, msg)
        by = BRANCH.get()
        if by is not None and by.root is not self.root:
            raise RuntimeError("a method can cancel only its own tasks")
        return super().cancel(msg)


def begin_branch() -> None:
    """Begin the branch of a method's own task, which is the running one."""
    branch = Branch()
    BRANCH.set(branch)
    asyncio.current_task().root = branch


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None, **more: Any
) -> asyncio.Task:
    """Return a new task (the loop's task factory); if a task of a method makes it, it has a branch of its own.

    A call that is a task (asyncio.gather(ask(...), ask(...))) has none: it is numbered as a call of the task that makes
    it, as if that task awaited it.
    """
    context = context or copy_context()
    task = _Task(work, loop=loop, context=context, **more)
    if (branch := BRANCH.get()) is not None:
        task.root = branch.root
        if not getattr(work, "__qualname__", "").startswith("Ask."):
            context.run(BRANCH.set, branch.of_task(work))
    return task


class _EventLoop(asyncio.SelectorEventLoop):
    def stop(self) -> None:
        if BRANCH.get() is not None:
            raise RuntimeError("a method cannot stop the event loop")
        super().stop()


class Loop:
    """An event loop that, unlike asyncio.run, does not wait at its end for tasks that ignore their cancellation.

    A user's method with a bare `except` can be such a task.
    """

    def __init__(self) -> None:
        self._runner, self._task = asyncio.Runner(loop_factory=_EventLoop), None
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
        for task in asyncio.all_tasks(loop):
            # Never destroyed: a coroutine with a bare `except` in a loop would then run forever.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
        loop.close()
