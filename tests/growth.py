"""How the time of a piece of work grows with what it is given, as a ratio: seconds are another machine's own."""

import time
from collections.abc import Callable


def times_as_long(work: Callable[[str], object], text: str, longer: str) -> float:
    """How many times as long `work` takes for `longer`, in CPU time of this thread, the least of several runs each.

    Of few for `longer`: a run that something else held up is a small part of one that long.
    """
    least = [min(_seconds(work, given) for _ in range(runs)) for given, runs in ((text, 5), (longer, 2))]
    return least[1] / least[0]


def _seconds(work: Callable[[str], object], given: str) -> float:
    started = time.thread_time()
    work(given)
    return time.thread_time() - started
