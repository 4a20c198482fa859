"""What a run is doing, a line on stderr: so that nothing takes longer than a moment without a word."""

import sys

from utils.cli import is_first_process


def announce(text: str) -> None:
    """Say it once for all processes, above the bar where a terminal shows one."""
    if not is_first_process():
        return
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)
