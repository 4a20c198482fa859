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

from utils.cli.errors import REMEDIES, UserError, describe_missing, describe_os_error, printable
from utils.cli.flags import USER_ERROR, is_first_process

# Exit code: a server left requests unanswered; the same command asks again. Also where most outputs are unusable.
SERVER_FAILED = 1
INTERRUPTED = 130  # exit code: stopped by SIGINT or SIGTERM; run the same command again to resume
UNREAD = 141  # exit code: nobody reads the output any more (... | head); a shell's for what SIGPIPE ended
RESUME_HINT = "interrupted; what is finished is kept, run the same command again"
LEAVE_SECONDS = 8  # after a SIGTERM: schedulers kill a process after ten or more


def run_script(main: Callable[[], int]) -> None:
    """Run `main` and leave the process.

    A UserError becomes its message and exit code 2, and so does a disk that is full or may not be written; a signal
    becomes a hint and exit code 130, within `LEAVE_SECONDS` of a SIGTERM whatever may hang. Where nobody reads the
    output any more it ends without a word, as other programs in a pipe do.
    """
    # A shell that starts a job in the background has it ignore SIGINT; SIGTERM needs it (below).
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    atexit.register(_drop_unwritten)
    sys.unraisablehook = _leave_if_interrupted
    try:
        code = _exit_code(main)
        _on_signals(lambda *_: os._exit(code))  # nothing is left to interrupt
    except KeyboardInterrupt as interrupt:
        code, hint = INTERRUPTED, str(interrupt) or RESUME_HINT
        _on_signals(partial(_leave, hint=hint))  # SLURM sends a task several: given twice rather than not at all
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # the signal came before it was
        print(hint, file=sys.stderr)
        _on_signals(lambda *_: os._exit(code))
    sys.exit(code)


def _exit_code(main: Callable[[], int]) -> int:
    try:
        code = main()
        if sys.stdout is not None:  # it is, where the shell closed it
            sys.stdout.flush()  # here its error is reported like any other's
        return code
    except UserError as error:
        if is_first_process():  # one tells it for all
            print(f"error: {printable(str(error))}", file=sys.stderr)
    except OSError as error:
        if error.errno == errno.EPIPE and sys.stdout is not None and _is_unread(sys.stdout.fileno()):
            return UNREAD
        if error.errno not in REMEDIES:
            raise
        where = "" if error.filename is None else f"{printable(str(error.filename))}: "
        print(f"error: {where}{describe_os_error(error)}", file=sys.stderr)
    return USER_ERROR


def _is_unread(fd: int) -> bool:
    """Return whether it is a pipe without a reader."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _drop_unwritten() -> None:
    """Let go of output that cannot be written: Python would fail over it again, and end with a code of its own."""
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
    """Return a run's exit code, and print how many outputs (`unit`, in the singular) a server failed to give."""
    if count == 0:
        return 0
    again = "it" if count == 1 else "them"
    print(f"{describe_missing(count, unit)}; the same command asks for {again} again", file=sys.stderr)
    return SERVER_FAILED


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Have SIGINT and SIGTERM end the process at once instead of raising KeyboardInterrupt.

    For code that may swallow the exception, as vLLM's start-up does. Nothing is lost: what is finished is on disk,
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
    """Leave if a signal came while an object was being finalized, because Python ignores its exception.

    Ignore methods with a bare `except` that keep their coroutine from ending (utils/runs).
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _leave(signal.SIGINT, None)
    if str(unraisable.exc_value) != "coroutine ignored GeneratorExit":
        sys.__unraisablehook__(unraisable)


def _terminate(signum: int, frame: object) -> None:
    signal.signal(signal.SIGALRM, _leave)  # where the exception is swallowed, or closing hangs
    signal.alarm(LEAVE_SECONDS)
    signal.raise_signal(signal.SIGINT)  # SIGTERM leaves like Ctrl-C: engines are closed
