"""How long does every script take to print its help?

python tests/speed/startup.py
"""

import subprocess
import sys
import time

from measure import ROOT, parse_flags, print_spread, write_figures
from test_cli import SCRIPTS

from utils.cli import run_script

BAR = 0.3  # seconds


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(__doc__, argv)
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
