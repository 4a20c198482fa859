"""Progress of a long run on stderr: a bar on a terminal, a plain line about every 30 seconds elsewhere.

Work that takes seconds but has no pieces to count, such as loading a model, is announced before it begins.
"""

import math
import sys
import time
from contextlib import suppress
from pathlib import Path

from utils.base.errors import is_first_process, printable

LINE_SECONDS = 30  # between two plain lines, so that the log of a day's run stays readable
ENOUGH = 3  # finished pieces before an ETA is shown, if pieces are made one at a time
LARGE = 100 * 10**6  # bytes; such a file takes seconds to read or to write


def announce(phase: str) -> None:
    """Print a line about a phase that takes seconds, because silence would look like a hang.

    Control characters are escaped, because a server's or a file's text must not control the terminal.
    """
    if not is_first_process():
        return
    phase = printable(phase)
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(phase, file=sys.stderr)  # above the bar, if one is shown
    else:
        print(phase, file=sys.stderr, flush=True)


def announce_file(doing: str, path: str | Path, size: int | None = None) -> None:
    """Announce the reading or writing of a file if `size` in bytes (default: its current size) is at least `LARGE`."""
    with suppress(OSError):  # whoever reads the file reports the problem
        size = Path(path).stat().st_size if size is None else size
        if size >= LARGE:
            announce(f"{doing} {path} ({size / 1e6:.0f} MB)")


class Progress:
    """Counts finished pieces, and shows their number, their rate, and the time for the rest."""

    def __init__(self, total: int, unit: str, initial: int = 0, at_once: int = 1, quiet: bool = False):
        """
        Args:
            total: the number of pieces; 0 has the effect of `quiet`.
            unit: the plural noun for the pieces.
            initial: how many pieces an earlier run has finished.
            at_once: how many pieces begin and finish almost together. An ETA is shown only after about this many,
                because one from the first few would be far too long.
            quiet: show nothing before the first piece is finished.
        """
        self.total, self.unit = total, unit
        self.initial = self.done = initial
        self._enough = min(max(at_once, ENOUGH), math.ceil((total - initial) / 2))
        self._counts: dict[str, int | str] = {}
        self._started = self._last_line = time.monotonic()
        self._bar, self._is_shown = None, False
        if total and not quiet:
            self._show()

    def _show(self) -> None:
        self._is_shown = True
        if sys.stderr.isatty():
            from tqdm import tqdm

            # Without tqdm's own rate and ETA: it shows them from the first piece on, and its rate only per second.
            layout = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}{postfix}]"
            pieces = {"total": self.total, "initial": self.initial, "unit": f" {self.unit}"}
            self._bar = tqdm(**pieces, file=sys.stderr, bar_format=layout)
        else:
            self._print_line([])

    def update(self, n: int = 1, **counts: int | str) -> None:
        """Count `n` more finished pieces, and show `counts` (failures so far, the last loss) beside them."""
        if not self._is_shown:
            self._show()
        self.done += n
        self._counts.update(counts)
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(self._figures("=")), refresh=False)
            self._bar.update(n)
        elif self.done < self.total and time.monotonic() - self._last_line >= LINE_SECONDS:  # `close` prints the last
            self._print_line(self._figures(" "))

    def close(self) -> None:
        """Show the final state; call this once, after success or failure."""
        if self._bar is not None:
            self._bar.close()
        elif self.done > self.initial or self._counts:
            self._print_line(self._figures(" "))

    def _print_line(self, figures: list[str]) -> None:
        self._last_line = time.monotonic()
        announce(", ".join([f"{self.done}/{self.total} {self.unit}", *figures]))

    def _figures(self, sign: str) -> list[str]:
        """Return rate, time and counts as texts, if they mean something; `sign` separates a count's name and value."""
        seconds = time.monotonic() - self._started
        finished = self.done - self.initial
        figures = []
        if finished > 0 and seconds >= 1:  # otherwise, almost everything came from the store
            a_second = finished / seconds  # the rate is shown in the smallest unit in which it is at least 1
            unit, length = ("s", 1) if a_second >= 1 else ("min", 60) if a_second * 60 >= 1 else ("h", 3600)
            rate = a_second * length
            figures.append(f"{rate:.0f}/{unit}" if rate >= 10 else f"{rate:.1f}/{unit}")
        if self.done >= self.total:
            figures.append(f"took {_clock(seconds)}")
        elif finished >= self._enough and seconds >= 1:
            figures.append(f"ETA {_clock((self.total - self.done) / finished * seconds)}")
        return figures + [f"{name}{sign}{count}" for name, count in self._counts.items()]


def _clock(seconds: float) -> str:
    """Return seconds as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
