"""How long does every script take to print its help?

python tests/speed/startup.py
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import add_arguments, print_spread, write_figures
from test_cli import ROOT, SCRIPTS

from utils.cli import make_parser, run_script

BAR = 0.3  # seconds


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    figures = {"python alone": print_spread("python alone", times(args.runs, "-c", ""), unit=" s")}
    for name in SCRIPTS:
        figures[name] = print_spread(name, times(args.runs, name, "--help"), BAR, " s", below=True)
    write_figures(args.json_addr, figures)
    return 0


def times(runs: int, *arguments: str) -> list[float]:
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    run_script(main)
