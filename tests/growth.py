"""How the time of a piece of work grows with what it is given, as a ratio: seconds are another machine's own."""

import time
from collections.abc import Callable


def times_as_long(work: Callable[[str], object], text: str, longer: str) -> float:
    """How many times as long `work` takes for `longer`, in CPU time of this thread, the least of several runs each."""
    least = [min(_seconds(work, given) for _ in range(5)) for given in (text, longer)]
    return least[1] / least[0]


def _seconds(work: Callable[[str], object], given: str) -> float:
    started = time.thread_time()
    work(given)
    return time.thread_time() - started
