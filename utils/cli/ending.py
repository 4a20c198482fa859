"""How a run ends: exit codes, signals, and error messages."""

import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar

from utils.cli.errors import AWAY, REMEDIES, EngineDiedError, UserError, describe_missing, describe_os_error, printable
from utils.cli.flags import USER_ERROR, tells_errors

# Exit code: a server, an engine or a disk failed (run the same command again), or half of the outputs are unusable.
SERVER_FAILED = 1
INTERRUPTED = 130  # exit code: stopped by SIGINT or SIGTERM; run the same command again to resume
UNREAD = 141  # exit code: the reader of a pipe is gone (... | head); shells use it for SIGPIPE
RESUME_HINT = "interrupted; finished work is kept, run the same command again to resume"
LEAVE_SECONDS = 8  # to end after a SIGTERM; schedulers send SIGKILL after 10 s or more


def run_script(main: Callable[[], int]) -> None:
    """Run `main` and end the process.

    A UserError, or a disk that is full or not writable, becomes a message and exit code 2, an engine's death or
    a failing disk a message and exit code 1. A signal becomes a hint and exit code 130, within `LEAVE_SECONDS` of a
    SIGTERM even if something hangs. If the reader of a pipe is gone, the process ends its work and then exits silently,
    as other programs in a pipe do.
    """
    _print_whatever_happens()
    # Shells make background jobs ignore SIGINT, but our handling of SIGTERM raises it (below).
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _leave_if_interrupted
    try:
        code = _exit_code(main)
        _on_signals(lambda *_: os._exit(code))  # nothing is left to interrupt
    except KeyboardInterrupt as interrupt:
        code, hint = INTERRUPTED, str(interrupt) or RESUME_HINT
        _on_signals(partial(_leave, hint=hint))  # SLURM sends several: better print it twice than never
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # the signal came before the await
        print(hint, file=sys.stderr)
        _on_signals(lambda *_: os._exit(code))
    sys.exit(code)


class _Printed(io.FileIO):
    """Standard output or error. What cannot be written is dropped, because a run's work does not depend on it."""

    errors: ClassVar[dict[int, OSError]] = {}  # the first one of each stream

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)  # None if a non-blocking stream is full
        except OSError as error:
            self.errors.setdefault(self.fileno(), error)
            if error.errno != errno.ENOSPC:  # a full disk may get space again
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def _print_whatever_happens() -> None:
    """Let no character, closed pipe or full disk stop a print.

    A character that the terminal cannot show is escaped. A stream that the shell closed is opened on /dev/null.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue  # somebody else's, such as a test's
        if stream is None:
            stream = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
            setattr(sys, f"__{name}__", stream)  # keeps it open
            os.set_inheritable(stream.fileno(), True)  # else a child process would have none
        layout = {name: getattr(stream, name) for name in ("encoding", "line_buffering", "write_through")}
        # Not on its own buffer, because a library may hold the old stream.
        file = _Printed(stream.fileno(), "w", closefd=False)
        file = file if stream.write_through else io.BufferedWriter(file)
        setattr(sys, name, io.TextIOWrapper(file, errors="backslashreplace", **layout))


def _exit_code(main: Callable[[], int]) -> int:
    try:
        code = main()
        sys.stdout.flush()
        error = _Printed.errors.get(1)
        if code or error is None:
            return code
        if error.errno == errno.EPIPE:
            return UNREAD
        raise UserError(f"standard output cannot be written: {describe_os_error(error)}")
    except UserError as error:
        if tells_errors():  # one process prints it for all
            print(f"error: {printable(str(error))}", file=sys.stderr)
        is_passing = isinstance(error, EngineDiedError) or getattr(error.__context__, "errno", None) in AWAY
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        where = "" if error.filename is None else f"{printable(str(error.filename))}: "
        print(f"error: {where}{describe_os_error(error)}", file=sys.stderr)
        is_passing = error.errno in AWAY
    return SERVER_FAILED if is_passing else USER_ERROR


def _on_signals(handler: Callable[[int, object], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def report_missing(count: int, unit: str) -> int:
    """Print how many outputs (`unit`, in the singular) a server failed to give, and return the exit code."""
    if count == 0:
        return 0
    again = "it" if count == 1 else "them"
    print(f"{describe_missing(count, unit)}; run the same command again to retry {again}", file=sys.stderr)
    return SERVER_FAILED


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once instead of raising KeyboardInterrupt.

    Meant for code that may swallow the exception, as vLLM's start-up does. Nothing is lost: finished work is on disk,
    and the engine's processes die with this one.
    """
    before = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(signum: int, frame: object, hint: str = RESUME_HINT) -> None:
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{hint}\n".encode())  # the signal may have interrupted print
    os._exit(INTERRUPTED)


def _leave_if_interrupted(unraisable: "sys.UnraisableHookArgs") -> None:
    """End the process if a signal came while an object was finalized, because Python ignores the exception.

    If a bare `except` in a method keeps its coroutine from closing, Python's warning is dropped (utils/runs).
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _leave(signal.SIGINT, None)
    if str(unraisable.exc_value) != "coroutine ignored GeneratorExit":
        sys.__unraisablehook__(unraisable)


def _terminate(signum: int, frame: object) -> None:
    signal.signal(signal.SIGALRM, _leave)  # in case the exception is swallowed, or closing hangs
    signal.alarm(LEAVE_SECONDS)
    signal.raise_signal(signal.SIGINT)  # SIGTERM ends like Ctrl-C, which closes engines
