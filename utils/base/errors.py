"""Errors that the user can fix, and how a run ends: exit codes and signals."""

import errno
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

USER_ERROR = 2  # exit code: a problem that the user can solve
# Exit code: a server, engine or disk failed (run the same command again), or at least half of the outputs are unusable.
SERVER_FAILED = 1
INTERRUPTED = 130  # exit code: stopped by SIGINT or SIGTERM; run the same command again to resume
UNREAD = 141  # exit code: the reader of a pipe has ended (... | head); shells use the same code for SIGPIPE
RESUME_HINT = "interrupted; finished work is kept, run the same command again to resume"
LEAVE_SECONDS = 8  # seconds from SIGTERM to a forced end; schedulers send SIGKILL after 10 s or more
# Environment variables that HTTP clients read.
OF_CLIENTS = "*_PROXY, SSL_CERT_FILE, SSL_CERT_DIR, SSLKEYLOGFILE, HF_* and OPENAI_*"
TRAININGS = ("train_planner", "train_generator")  # the scripts that a launcher (accelerate launch) may start
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def kind(value: Any) -> str:
    """Return a description of an invalid JSON value, such as "an empty list", for an error message."""
    if value is None:
        return "missing or null"
    if isinstance(value, str):
        return "an empty text" if not value.strip() else f"the text {value[:40]!r}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    return f"{json.dumps(value)}"


def first_five(ids: Iterable[str]) -> str:
    """Return the first five different ids, quoted, for an error message."""
    different = list(dict.fromkeys(ids))
    return ", ".join(quote(i) for i in different[:5]) + (", ..." if len(different) > 5 else "")


def plural(noun: str) -> str:
    return f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"


def count_noun(number: int, noun: str, irregular: str | None = None) -> str:
    """Return the number with its noun, such as "1 question" or "2 questions"; `irregular` is an irregular plural."""
    return f"{number} {noun if number == 1 else irregular or plural(noun)}"


def count_plural(number: int, nouns: str) -> str:
    """Return the number with a plural noun, made singular for 1: "2 answers", "1 answer", "1 post cut"."""
    return f"{number} {re.sub(r'^[a-z]+s( or [a-z]+s)?(?![a-z])', _singular, nouns) if number == 1 else nouns}"


def _singular(match: re.Match[str]) -> str:
    return re.sub(r"s\b", "", re.sub(r"ies\b", "ys", match[0]))


def quote(value: Any) -> str:
    """Return a value's repr for an error message, shortened to 100 characters."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def printable(text: str) -> str:
    """Return the text with control characters escaped, because a model's text must not control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


_RESUME = "finished work is kept, run the same command again to resume"
_MAKE_WRITABLE = "make it writable, or choose another path; finished work is kept"
AWAY = (errno.EIO, errno.ESTALE)  # a disk or file server failed, perhaps temporarily (exit code 1)
REMEDIES = {  # what to do if a file cannot be written
    errno.ENOSPC: f"free some space on its disk; {_RESUME}",
    errno.EDQUOT: f"free some of your disk quota; {_RESUME}",
    errno.EFBIG: f"raise the limit on a file's size (ulimit -f); {_RESUME}",
    errno.EROFS: _MAKE_WRITABLE,
    errno.EACCES: _MAKE_WRITABLE,
    errno.EPERM: _MAKE_WRITABLE,
    **dict.fromkeys(
        (errno.ENOTSUP, errno.ENOSYS, errno.EBUSY, errno.ENOLCK),
        "check its disk, or choose a path on another one; finished work is kept",
    ),
    **dict.fromkeys(AWAY, f"check its disk; {_RESUME}"),
}


class UserError(Exception):
    """An error that the user can fix. Its message, of one to three lines, says what is wrong, where, and what to do."""


class PassingError(UserError):
    """A failure outside this program, such as of a server; the same command may succeed later (exit code 1)."""


class EngineDiedError(PassingError):
    """A model's engine died, possibly through no fault of the user: the same command resumes the run."""


@contextmanager
def setting_up_client() -> Iterator[None]:
    """Turn any error in setting up an HTTP client into a UserError that names only the error's type.

    The error's own text may contain a proxy's password or a token.
    """
    try:
        yield
    except Exception as error:  # libraries raise many kinds
        problem = f"an HTTP client cannot be set up ({type(error).__name__})"
        raise UserError(f"{problem}\n  correct or unset its variables in the environment: {OF_CLIENTS}") from None


def describe_os_error(error: OSError) -> str:
    """Return the problem with a file, and a remedy in a second line if one is known."""
    remedy = REMEDIES.get(error.errno)
    return f"{error.strerror}\n  {remedy}" if remedy else str(error.strerror)


def describe_missing(count: int, unit: str, cause: str = "the server failed") -> str:
    return f"{count} {unit}{' is' if count == 1 else 's are'} missing because {cause}"


def is_launched() -> bool:
    """Return whether a launcher of trainings, such as accelerate launch, started this process.

    A launcher sets all variables in LAUNCHED; a user or SLURM may set some of them for something else.
    """
    return all(os.environ.get(name) for name in LAUNCHED)


def num_processes() -> int:
    return int(os.environ["WORLD_SIZE"]) if is_launched() else 1


def is_first_process() -> bool:
    """Return whether this is the main process, which prints and writes; always True without a launcher."""
    return not is_launched() or os.environ["RANK"] == "0"


def tells_errors() -> bool:
    """Return whether this process prints errors: False only in a launched training's processes after the first."""
    return is_first_process() or not sys.argv[0].removesuffix(".py").endswith(TRAININGS)


def run_script(main: Callable[[], int]) -> None:
    """Run `main`, and end the process with the exit code that `main` returns, or with one of these:

    2, after a message: UserError, or a disk that is full or not writable. 1, after a message: PassingError, or a disk
    that failed. 130, after a hint: SIGINT or SIGTERM; after SIGTERM, the process ends within `LEAVE_SECONDS` even if
    something hangs. 141, silently: the reader of a pipe has ended.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: the next file opened would get its descriptor
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (until the process ends)
    sys.stdout.reconfigure(errors="backslashreplace")  # so that no unusual character ends a run
    # Shells make background jobs ignore SIGINT, but `_terminate` raises it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _leave_if_interrupted
    try:
        code = _exit_code(main)
        _on_signals(lambda *_: os._exit(code))  # nothing is left to interrupt
    except KeyboardInterrupt as interrupt:
        code, hint = INTERRUPTED, str(interrupt) or RESUME_HINT
        _on_signals(partial(_leave, hint=hint))  # SLURM sends several signals; the hint may be printed twice
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # the signal came before the await
        _tell(hint)
        _on_signals(lambda *_: os._exit(code))
    finally:
        _give_up_streams()
    sys.exit(code)


def _exit_code(main: Callable[[], int]) -> int:
    try:
        code = main()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return UNREAD
    except UserError as error:
        if tells_errors():  # one process of a training prints the error for all
            _tell(f"error: {printable(str(error))}")
        is_passing = isinstance(error, PassingError) or getattr(error.__context__, "errno", None) in AWAY
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        where = "" if error.filename is None else f"{printable(str(error.filename))}: "
        _tell(f"error: {where}{describe_os_error(error)}")
        is_passing = error.errno in AWAY
    return SERVER_FAILED if is_passing else USER_ERROR


def _tell(text: str) -> None:
    with suppress(OSError):  # nobody reads it, or its disk is full
        print(text, file=sys.stderr)


def _give_up_streams() -> None:
    """Redirect streams that cannot be flushed to /dev/null, so that the interpreter's last flush succeeds."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _on_signals(handler: Callable[[int, object], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def report_missing(count: int, unit: str) -> int:
    """Print how many pieces (`unit` is the singular noun) are missing after server failures; return the exit code."""
    if count == 0:
        return 0
    again = "it" if count == 1 else "them"
    print(f"{describe_missing(count, unit)}; run the same command again to retry {again}", file=sys.stderr)
    return SERVER_FAILED


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once instead of raising KeyboardInterrupt.

    Used around code that may swallow the exception, such as vLLM's start-up. Nothing is lost: finished work is on disk,
    and the engine's processes end with this process.
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
    """End the process if a signal arrived while an object was finalized, because Python would ignore the exception.

    Python's warning about a coroutine of a user's method is not shown, if a bare `except` keeps it from closing.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _leave(signal.SIGINT, None)
    if str(unraisable.exc_value) != "coroutine ignored GeneratorExit":
        sys.__unraisablehook__(unraisable)


def _terminate(signum: int, frame: object) -> None:
    signal.signal(signal.SIGALRM, _leave)  # in case the exception is swallowed, or closing hangs
    signal.alarm(LEAVE_SECONDS)
    signal.raise_signal(signal.SIGINT)  # SIGTERM ends like Ctrl-C, which closes engines
