"""Print the time and memory to write, index and look up 100,000 completions in the store.

python tests/speed/store.py
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time

from measure import parse_flags, peak_memory, print_spread, reset_peak_memory, write_figures

from utils.base.errors import run_script
from utils.generation.store import ModelStore

BARS = {"written": 2.0, "indexed": 0.5, "looked up": 3.0}  # seconds of CPU for 100,000; MB of memory below
MEMORY_BAR = 50.0
DESCRIBED = {"model": "benchmark"}
TEXT = 'The reed rattles when it dries out, so soak it, and "seat" it lower on the table. ' * 18  # 1,500 characters


def main(argv: list[str] | None = None) -> int:
    reader = {"metavar": "DIR", "help": argparse.SUPPRESS}  # of the process that reads it
    args = parse_flags(__doc__, argv, num_completions=(100_000, "in the store"), store=reader)
    if args.store:
        print(json.dumps(read(args.store, args.num_completions)))
        return 0
    runs = [measure(args.num_completions) for _ in range(args.runs)]
    share = args.num_completions / 100_000
    figures = {
        name: print_spread(f"{args.num_completions} {name}", [one[name] for one in runs], bar * share, " s", below=True)
        for name, bar in BARS.items()
    }
    memory = [one["memory"] for one in runs]
    figures["memory"] = print_spread("memory of the index", memory, MEMORY_BAR * share, " MB", below=True)
    print(f"{runs[0]['bytes']:.0f} bytes a line")
    write_figures(args.json_addr, figures)
    return 0


def measure(number: int) -> dict[str, float]:
    """Return CPU seconds, MB of memory, and bytes per line; a separate process reads the store."""
    with tempfile.TemporaryDirectory() as folder:
        store, started = ModelStore(folder, "model", DESCRIBED), time.process_time()
        for place in range(number):
            store.add(key_of(place), make_fields(place))
        store.close()
        seconds = time.process_time() - started
        size = sum(path.stat().st_size for path in store.folder.glob("*.jsonl"))
        command = [sys.executable, __file__, "--store", folder, "--num_completions", str(number)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {"written": seconds, "bytes": size / number, **found}


def read(folder: str, number: int) -> dict[str, float]:
    store = ModelStore(folder, "model", DESCRIBED)
    reset_peak_memory()
    before, started = peak_memory(), time.process_time()
    assert store.get(key_of(number)) is None
    indexed, memory = time.process_time() - started, peak_memory() - before
    keys = list(map(key_of, random.Random(0).sample(range(number), number)))
    started = time.process_time()
    assert all(map(store.get, keys))
    return {"indexed": indexed, "memory": memory / 1e6, "looked up": time.process_time() - started}


def key_of(place: int) -> str:
    return f"{place + 1:032x}"


def make_fields(place: int) -> dict[str, object]:
    """Return a completion's fields, like those of generation."""
    counts = {"prompt_tokens": 2400, "cached_tokens": 1024, "completion_tokens": 400}
    told = {"id": f"question_{place}", "unit": "answers", "try": 1}
    return {**told, "text": f'{{"personalized_answer": "{place} {TEXT}"}}', "finish_reason": "stop", **counts}


if __name__ == "__main__":
    run_script(main)
