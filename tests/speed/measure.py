"""Shared by the benchmarks: the machine's limit, ratios of paired runs, and their record."""

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = map(str, (ROOT, ROOT / "tests", ROOT / "tests/base"))  # so that importing modules find the project


def parse_flags(doc: str, argv: list[str] | None, runs: int | None = 5, **flags: Any) -> argparse.Namespace:
    """Parse flags by name: default and help text of a number, or the settings of `add_argument`."""
    from utils.base.cli import make_parser, positive_int

    parser = make_parser(doc)
    flags |= {} if runs is None else {"runs": (runs, "paired runs")}
    for name, its in flags.items():
        if isinstance(its, tuple):
            its = {"type": positive_int, "default": its[0], "help": f"{its[1]} (%(default)s)"}
        parser.add_argument(f"--{name}", **its)
    parser.add_argument("--json_addr", metavar="FILE", help="where the figures go too")
    return parser.parse_args(argv)


CHAT = {"required": True, "metavar": "MODEL", "help": "chat model"}


def matrix_rate(dtype: str, device: str = "cpu", seconds: float = 2.0) -> float:
    """Return the machine's limit: operations per second of a large matrix product over some seconds.

    The best of many products is up to a fifth faster on a machine that shares its processor with others.
    """
    import torch

    size = 2048 if device == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    product = torch.mm(left, right)
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        torch.mm(left, right, out=product)
        if device != "cpu":
            torch.cuda.synchronize()
        count += 1
    return 2 * size**3 * count / elapsed


def print_spread(
    name: str, values: Sequence[float], bar: float | None = None, unit: str = "", below: bool = False
) -> dict[str, Any]:
    """Print minimum, median and maximum of the paired runs, and whether the median reaches its bar.

    With `below`, it must stay under the bar.
    """
    figures: dict[str, Any] = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    text = ", ".join(f"{key} {value:.3f}{unit}" for key, value in figures.items())
    if bar is not None:
        figures["bar"] = bar
        met = figures["median"] < bar if below else figures["median"] >= bar
        text += f"; the bar is {bar:g}{unit}: {'met' if met else 'NOT met'}"
    print(f"{name}: {text}", flush=True)
    return figures


def log_normal(rng: random.Random, mean: float, spread: float) -> int:
    """Draw a length from a log-normal distribution with this mean: many short, few very long."""
    return round(rng.lognormvariate(math.log(mean) - spread**2 / 2, spread))  # its mean is exp(mu + spread^2 / 2)


def peak_memory(process: int | str = "self") -> int:
    """Return a process's peak memory in bytes; getrusage's includes the peak of its parent process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def reset_peak_memory() -> None:
    """Reset `peak_memory` to the current memory."""
    Path("/proc/self/clear_refs").write_text("5")


def write_figures(path: str | None, figures: dict[str, Any]) -> None:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(figures, indent=2) + "\n")
