"""Progress of a long run on stderr: a bar on a terminal, a plain line about every 30 seconds elsewhere."""

import sys
import time

LINE_SECONDS = 30  # between two plain lines: a log of a day's run stays readable


class Progress:
    """Counts finished pieces and shows how many, how fast and how long the rest will take."""

    def __init__(self, total: int, unit: str, initial: int = 0):
        """Begin at `initial` of `total` pieces (`initial` finished by an earlier run); `unit` is their plural."""
        self.total = total
        self.unit = unit
        self.initial = self.done = initial
        self._counts: dict[str, int | str] = {}
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=initial, unit=f" {unit}", file=sys.stderr)

    def update(self, n: int = 1, **counts: int | str) -> None:
        """`n` more pieces are finished; `counts` (failures so far, the last loss) are shown beside them."""
        self.done += n
        self._counts.update(counts)
        if self._bar is not None:
            self._bar.set_postfix(self._counts, refresh=False)
            self._bar.update(n)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._print_line()

    def close(self) -> None:
        """Show how far it came, once: call it on success and failure alike."""
        if self._bar is not None:
            self._bar.close()
        else:
            self._print_line()

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        seconds = self._last_line - self._started
        rate = (self.done - self.initial) / seconds if seconds > 0 else 0.0
        parts = [f"{self.done}/{self.total} {self.unit}", f"{rate:.1f}/s"]
        if self.done >= self.total:
            parts.append(f"took {_clock(seconds)}")
        elif rate > 0:
            parts.append(f"ETA {_clock((self.total - self.done) / rate)}")
        parts += [f"{name} {count}" for name, count in self._counts.items()]
        print(", ".join(parts), file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
