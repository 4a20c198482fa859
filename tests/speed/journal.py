"""What does keeping every answer at once cost? Prints the share of the time at 1,000 completions a second.

python tests/speed/journal.py
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import add_arguments, peak_memory, print_spread, write_figures

from utils.cli import make_parser, positive_int, run_script
from utils.files.journal import Journal

PER_SECOND = 1000  # completions, far more than one machine generates
BAR = 1.0  # percent
ANSWER = 'The reed rattles when it dries out, so soak it, and "seat" it lower on the table. ' * 20  # 1,600 characters


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--num_answers", type=positive_int, default=20_000, help="answers a run (%(default)s)")
    add_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    percentages = [100 * share_of_time(args.num_answers) for _ in range(args.runs)]
    figures = print_spread(
        f"journaling at {PER_SECOND} completions a second, of the time", percentages, BAR, "%", below=True
    )
    write_figures(args.json_addr, {"percentages": figures, "peak_memory": peak_memory()})
    return 0


def share_of_time(num_answers: int) -> float:
    """Seconds of journaling for each second of generation."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "answers.json", {"model": "benchmark"})
        records = [make_record(number) for number in range(num_answers)]
        started = time.perf_counter()
        for number, record in enumerate(records):
            journal.add((f"question_{number}", 0), record)
        seconds = time.perf_counter() - started
        journal.close()
    return seconds / num_answers * PER_SECOND


def make_record(number: int) -> dict[str, object]:
    """A record as generation makes it: the answer, and the raw text it was read from."""
    return {
        "value": f"{number} {ANSWER}",
        "num_contexts_used": 10,
        "num_contexts_dropped": 0,
        "context_cut": False,
        "raw": f'{{"personalized_answer": "{number} {ANSWER}"}}',
        "parsed": "strict",
        "truncated": False,
        "finish_reason": "stop",
        "attempts": 1,
        "constrained": False,
        "temperature": 0.1,
        "prompt_tokens": 2400,
        "cached_tokens": 1024,
        "completion_tokens": 400,
    }


if __name__ == "__main__":
    run_script(main)
