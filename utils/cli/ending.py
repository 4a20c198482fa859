"""How a run ends: exit codes, signals, and error messages."""

import atexit
import errno
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from utils.cli.errors import REMEDIES, EngineDiedError, UserError, describe_missing, describe_os_error, printable
from utils.cli.flags import USER_ERROR, is_first_process

# Exit code: a server failed on some requests or an engine died (run the same command again), or half of the outputs
# are unusable.
SERVER_FAILED = 1
INTERRUPTED = 130  # exit code: stopped by SIGINT or SIGTERM; run the same command again to resume
UNREAD = 141  # exit code: the reader of a pipe is gone (... | head); shells use it for SIGPIPE
RESUME_HINT = "interrupted; finished work is kept, run the same command again to resume"
LEAVE_SECONDS = 8  # to end after a SIGTERM; schedulers send SIGKILL after 10 s or more


def run_script(main: Callable[[], int]) -> None:
    """Run `main` and end the process.

    A UserError, or a disk that is full or not writable, becomes a message and exit code 2, an engine's death a message
    and exit code 1. A signal becomes a hint and exit code 130, within `LEAVE_SECONDS` of a SIGTERM even if something
    hangs. If the reader of a pipe is gone, the process ends silently, as other programs in a pipe do.
    """
    # Shells make background jobs ignore SIGINT, but our handling of SIGTERM raises it (below).
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    atexit.register(_drop_unwritten)
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


def _exit_code(main: Callable[[], int]) -> int:
    try:
        code = main()
        if sys.stdout is not None:  # None if the shell closed it
            sys.stdout.flush()  # here, so that its error is reported like any other
        return code
    except UserError as error:
        if is_first_process():  # one process prints it for all
            print(f"error: {printable(str(error))}", file=sys.stderr)
        if isinstance(error, EngineDiedError):
            return SERVER_FAILED
    except OSError as error:
        if error.errno == errno.EPIPE and sys.stdout is not None and _is_unread(sys.stdout.fileno()):
            return UNREAD
        if error.errno not in REMEDIES:
            raise
        where = "" if error.filename is None else f"{printable(str(error.filename))}: "
        print(f"error: {where}{describe_os_error(error)}", file=sys.stderr)
    return USER_ERROR


def _is_unread(fd: int) -> bool:
    """Return whether a file descriptor is a pipe without a reader."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _drop_unwritten() -> None:
    """Drop output that cannot be written: Python would fail on it again and end with its own exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
