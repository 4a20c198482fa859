"""Progress of a long run on stderr: a bar on a terminal, a plain line about every 30 seconds elsewhere.

What takes seconds and has no pieces to count, such as loading a model, is announced before it begins.
"""

import math
import sys
import time
from contextlib import suppress
from pathlib import Path

from utils.cli.errors import printable
from utils.cli.flags import is_first_process

LINE_SECONDS = 30  # between two plain lines: a log of a day's run stays readable
ENOUGH = 3  # finished pieces tell how long the next ones take, where one is worked on at a time
LARGE = 100 * 10**6  # bytes: such a file takes seconds to read or to write


def announce(phase: str) -> None:
    """Print what takes the next seconds, because silence looks like a hang.

    Control characters are spelled out: a server's or a file's text must not steer the terminal.
    """
    if not is_first_process():
        return
    phase = printable(phase)
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(phase, file=sys.stderr)  # above the bar where one is shown
    else:
        print(phase, file=sys.stderr, flush=True)


def announce_file(doing: str, path: str | Path, size: int | None = None) -> None:
    """`announce` that a file is read or written, where its size in bytes (default: as it is now) makes that long."""
    with suppress(OSError):  # the reader reports what is wrong with it
        size = Path(path).stat().st_size if size is None else size
        if size >= LARGE:
            announce(f"{doing} {path} ({size / 1e6:.0f} MB)")


class Progress:
    """Counts finished pieces and shows how many, how fast and how long the rest will take."""

    def __init__(self, total: int, unit: str, initial: int = 0, at_once: int = 1, quiet: bool = False):
        """Begin, and say so, at `initial` of `total` pieces, which an earlier run has finished; `unit` is a plural.

        With `quiet` nothing is said before the first piece.

        Of pieces that are worked on `at_once` the first ones are finished when the last ones nearly are, so by their
        number alone the rest would seem to take hours.
        """
        self.total, self.unit = total, unit
        self.initial = self.done = initial
        self._enough = min(max(at_once, ENOUGH), math.ceil((total - initial) / 2))
        self._counts: dict[str, int | str] = {}
        self._started = self._last_line = time.monotonic()
        self._bar, self._is_shown = None, False
        if not quiet:
            self._show()

    def _show(self) -> None:
        self._is_shown = True
        if sys.stderr.isatty():
            from tqdm import tqdm

            # Without its own rate and ETA: they come with the first piece and speak of seconds only.
            layout = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}{postfix}]"
            its = {"total": self.total, "initial": self.initial, "unit": f" {self.unit}"}
            self._bar = tqdm(**its, file=sys.stderr, bar_format=layout)
        else:
            self._print_line([])

    def update(self, n: int = 1, **counts: int | str) -> None:
        """`n` more pieces are finished; `counts` (failures so far, the last loss) are shown beside them."""
        if not self._is_shown:
            self._show()
        self.done += n
        self._counts.update(counts)
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(self._figures("=")), refresh=False)
            self._bar.update(n)
        elif self.done < self.total and time.monotonic() - self._last_line >= LINE_SECONDS:  # the last is `close`'s
            self._print_line(self._figures(" "))

    def close(self) -> None:
        """Show how far it came, once: call it on success and failure alike."""
        if self._bar is not None:
            self._bar.close()
        elif self.done > self.initial or self._counts:
            self._print_line(self._figures(" "))

    def _print_line(self, figures: list[str]) -> None:
        self._last_line = time.monotonic()
        announce(", ".join([f"{self.done}/{self.total} {self.unit}", *figures]))

    def _figures(self, sign: str) -> list[str]:
        """Rate, time and counts as far as they mean something; `sign` stands between a count and its name."""
        seconds = time.monotonic() - self._started
        finished = self.done - self.initial
        figures = []
        if finished > 0 and seconds > 0:
            figures.append(_rate(finished / seconds))
        if self.done >= self.total:
            figures.append(f"took {_clock(seconds)}")
        elif finished >= self._enough:
            figures.append(f"ETA {_clock((self.total - self.done) / finished * seconds)}")
        return figures + [f"{name}{sign}{count}" for name, count in self._counts.items()]


def _rate(a_second: float) -> str:
    """Pieces a second, minute or hour, whichever is the first to have one."""
    rates = ((a_second * seconds, unit) for seconds, unit in ((1, "s"), (60, "min")))
    rate, unit = next((found for found in rates if found[0] >= 1), (a_second * 3600, "h"))
    return f"{rate:.0f}/{unit}" if rate >= 10 else f"{rate:.1f}/{unit}"


def _clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
