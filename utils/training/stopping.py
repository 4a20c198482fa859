"""Stop a training on SIGTERM or Ctrl-C: after the current step, with a checkpoint of it."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from utils import cli

SAME_SIGNAL = 2  # seconds in which a second signal counts as the first: torch's launcher forwards it to all processes


class Stopper:
    """A context that records signals; the training checks for them where it can be resumed.

    A second signal ends the process immediately.
    """

    def __init__(self) -> None:
        self.has_signal = False
        self.step = 0  # the last finished step
        self.saved = 0  # the step of the checkpoint to resume from; 0 without one
        self._first = 0.0
        self._at_once = False

    def __enter__(self) -> "Stopper":
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind not in (KeyboardInterrupt, SystemExit):  # a leaving process must not be interrupted again
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _message(self) -> str:
        if self.step == 0:
            return "stopped before the end of the first step, so nothing is kept; run the same command again"
        return f"stopped after step {self.step}; {self.kept}, run the same command again"

    @property
    def kept(self) -> str:
        return f"checkpoint-{self.saved} is kept" if self.saved else "no checkpoint is kept"

    def leave(self) -> NoReturn:
        """Leave as `run_script` expects on a signal; only the first process prints a message."""
        if cli.is_first_process():
            raise KeyboardInterrupt(self._message())
        raise SystemExit(cli.INTERRUPTED)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the process immediately, while no unsaved step can be lost."""
        self._at_once = True
        try:
            if self.has_signal:
                self.leave()
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: object) -> None:
        if self.has_signal:
            if time.monotonic() - self._first > SAME_SIGNAL:
                if cli.is_first_process():
                    _print(self._message())
                os._exit(cli.INTERRUPTED)
            return
        self.has_signal, self._first = True, time.monotonic()
        if self._at_once:
            self.leave()
        if cli.is_first_process():
            _print("stopping after this step, with a checkpoint; a second signal leaves now")


def _print(text: str) -> None:
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode())  # the signal may have interrupted print
