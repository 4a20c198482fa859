"""An event loop that a user's method cannot stop or keep open, and that identifies each task that a method makes."""

import asyncio
import ctypes
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any
from weakref import WeakSet

from utils.base.errors import UserError

EXITED = "the method called sys.exit; return None if there is no answer"
THREADS = 32  # most threads for functions that methods run with asyncio.to_thread


class Branch:
    """The identity of a task of a user's method, and the order of the calls and tasks that it makes.

    Attributes:
        path: identifies the task, and is the same in every run. For each task from the method's own to this one, it has
            a hash of the task's function and arguments (texts, numbers, lists and dicts), and the task's number among
            its parent's tasks with the same hash. The order of creation alone does not identify a task, because
            asyncio.as_completed creates tasks in any order. A list is hashed as it was when a task first received it,
            because later results may be added to it in the order of their arrival.
        root: the branch of the method's own task.
        tasks: only of the root: all tasks that the method has made and that still exist.
    """

    def __init__(self, path: tuple[str | int, ...] = (), place: tuple[int, ...] = (), root: "Branch | None" = None):
        self.path, self.root, self._place, self._number = path, root or self, place, 0
        self._same = Counter[str]()
        self._first: dict[int, tuple[Any, str]] = {}  # by id(): a mutable value, and its first text
        self.tasks = WeakSet[asyncio.Task]()

    def next_place(self) -> tuple[int, ...]:
        """Return the place of the next call or task; places sort in program order, whenever replies arrive."""
        self._number += 1
        return (*self._place, self._number - 1)

    def fixed(self, value: Any) -> str:
        """Return a text that identifies texts, numbers, tuples, lists, sets and dicts by content, others by type."""
        if isinstance(value, str | int | float | None):
            return repr(value)
        if type(value) is tuple:
            return f"({', '.join(map(self.fixed, value))})"
        if type(value) not in (list, set, dict):
            return type(value).__name__
        if id(value) not in self._first:
            self._first[id(value)] = (value, type(value).__name__)  # ends the recursion if the value contains itself
            inner = list(map(self.fixed, value.items() if type(value) is dict else value))
            self._first[id(value)] = (value, f"[{', '.join(sorted(inner) if type(value) is set else inner)}]")
        return self._first[id(value)][1]

    def of_task(self, work: Any) -> "Branch":
        """Return the branch of a new child task that runs the coroutine `work`."""
        frame = getattr(work, "cr_frame", None)
        given = sorted((name, self.root.fixed(value)) for name, value in (frame.f_locals if frame else {}).items())
        digest = hashlib.sha256(f"{getattr(work, '__qualname__', '')} {given}".encode()).hexdigest()[:16]
        self._same[digest] += 1
        return Branch((*self.path, digest, self._same[digest]), self.next_place(), self.root)


BRANCH: ContextVar[Branch | None] = ContextVar("branch", default=None)  # of the running task


class _Task(asyncio.Task):
    """A task that a method can cancel only if the method made it.

    `root` is the branch of the method's own task; None for tasks that no method made.
    """

    root: Branch | None = None

    def cancel(self, msg: Any = None) -> bool:
        if sys._getframe(1).f_globals.get("__name__") == asyncio.Runner.__module__:
            # Ctrl-C, which asyncio.Runner turns into this call, arrives in whatever task is running.
            return Context().run(super().cancel, msg)
        by = BRANCH.get()
        # A method's parser, which runs inside a call, may not cancel tasks: calls end in random order, so which task it
        # cancels first would be random. In a callback, such as that of asyncio.timeout, no task is running.
        running = asyncio.current_task() if by is not None else None
        if by is not None and not (self.root is by.root and (running is None or running.root is by.root)):
            raise RuntimeError("a method can cancel only its own tasks")
        return super().cancel(msg)


def begin_branch() -> None:
    """Make the running task a method's own task, with a new root branch."""
    branch = Branch()
    BRANCH.set(branch)
    asyncio.current_task().root = branch


def without_branch(work: Coroutine[Any, Any, Any]) -> asyncio.Task:
    """Return a new task that does not belong to the calling method: engines start tasks inside a method's call."""
    context = copy_context()
    context.run(BRANCH.set, None)
    return _Task(work, loop=asyncio.get_running_loop(), context=context)


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None, **more: Any
) -> asyncio.Task:
    """Return a new task (this is the loop's task factory). A task made by a method's task gets its own branch.

    An `ask` that runs as a task, as in asyncio.gather(ask(...), ask(...)), gets no branch: it is numbered among the
    calls of the task that made it, as if that task awaited it directly.
    """
    context = copy_context() if context is None else context
    task = _Task(work, loop=loop, context=context, **more)
    if (branch := BRANCH.get()) is not None:
        task.root = branch.root
        branch.root.tasks.add(task)
        if not getattr(work, "__qualname__", "").startswith("Ask."):
            context.run(BRANCH.set, branch.of_task(work))
    return task


class _EventLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._threads = _Threads()

    def stop(self) -> None:
        if BRANCH.get() is not None:
            raise RuntimeError("a method cannot stop the event loop")
        super().stop()

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future:
        """Run a method's functions (also asyncio.to_thread) in daemon threads, which cannot keep the process alive."""
        if executor is None and BRANCH.get() is not None:
            return asyncio.wrap_future(self._threads.submit(func, *args), loop=self)
        return super().run_in_executor(executor, func, *args)


class _Threads(Executor):
    """Up to THREADS daemon threads; at exit, Python would wait for the threads of a ThreadPoolExecutor."""

    def __init__(self) -> None:
        self._work = SimpleQueue[tuple[Future, Callable[[], Any]]]()
        self._number = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **values: Any) -> Future:
        future = Future()
        self._work.put((future, partial(function, *args, **values)))
        if self._number < THREADS:
            self._number += 1
            Thread(target=self._run, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, function = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # raised where the future is awaited
                    future.set_exception(error)


class Loop:
    """An event loop that, unlike asyncio.run, closes without waiting for tasks that ignore their cancellation.

    A user's method with a bare `except` may ignore it.
    """

    def __init__(self) -> None:
        self._runner, self._task = asyncio.Runner(loop_factory=_EventLoop), None
        self._runner.get_loop().set_exception_handler(self._report)
        self._runner.get_loop().set_task_factory(_make_task)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def begin() -> Any:
            self._task = asyncio.current_task()
            return await work

        try:
            return self._runner.run(begin())
        except SystemExit as error:  # in a task that a method made
            raise error if error.code else UserError(EXITED) from None
        finally:
            self._keep_tasks()

    def _keep_tasks(self) -> None:
        """Never destroy the remaining tasks: a coroutine with a bare `except` in a loop would then spin."""
        for task in asyncio.all_tasks(self._runner.get_loop()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))

    @staticmethod
    def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "Task was destroyed" not in context["message"]:  # expected of a task that ignored its cancellation
            loop.default_exception_handler(context)

    def close(self) -> None:
        loop = self._runner.get_loop()
        while self._task is not None and not self._task.done():  # a signal came before it closed its engines
            for task in asyncio.all_tasks(loop):
                task.cancel()
            with suppress(asyncio.CancelledError, SystemExit):
                loop.run_until_complete(self._task)
        loop.run_until_complete(loop.shutdown_default_executor())
        self._keep_tasks()
        loop.close()
