"""Print how long a finished command with 100,000 questions takes to run again: it only compares hashes of its files.

python tests/speed/finished.py
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import ROOT, parse_flags, print_spread, write_figures

from utils.base.errors import run_script

BAR = 1.0  # seconds
METHOD = "async def answer(record, ask):\n    return record['profile'][0]['tag']\n"
TEXT = "The reed rattles when it dries out, so soak it, and seat it lower on the table. "


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(__doc__, argv, num_questions=(100_000, "questions in the dataset"))
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args, Path(folder))
    write_figures(args.json_addr, figures)
    return 0


def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Run each command once, then time further runs; return the minimum, median and maximum of each."""
    source, ranked, answers = (folder / f"{name}.json" for name in ("source", "ranked", "answers"))
    key, method = folder / "key.txt", folder / "method.py"
    key.write_text("not-sent")
    method.write_text(METHOD)
    profile = [{"id": str(n), "description": n * TEXT, "tag": "comedy"} for n in (1, 2)]
    shared = {"task": "LaMP-2", "target": "comedy", "profile": profile}
    records = [{"id": str(n), "question": f"description: {n}: {TEXT}", **shared} for n in range(args.num_questions)]
    source.write_text(json.dumps(records))
    rank = ["--ranker", "bm25", "--input_dataset_addr", source, "--output_dataset_addr", ranked]
    model = ["--openai", "--base_url", "http://127.0.0.1:9/v1", "--api_key_addr", key, "--model_addr", "none"]
    model += ["--model_id", "none"]
    answer = ["--method", method, "--inputs_addr", ranked, "--output_addr", answers]
    score = ["--strategy", "accuracy", "--inputs_addr", ranked, "--response_addr", answers]
    commands = {
        "ranking": ["retrieval/rank_dataset.py", *rank],
        "answering": ["baselines.py", *model, *answer],
        "scoring": ["evaluate_responses.py", *score, "--score_addr", folder / "scores.json"],
    }
    figures = {}
    for name, command in commands.items():
        words = [sys.executable, *map(str, command)]
        subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds = [run(words) for _ in range(args.runs)]
        what = f"finished {name} run again, {args.num_questions} questions"
        figures[name] = print_spread(what, seconds, BAR, " s", below=True)
    return figures


def run(words: list[str]) -> float:
    started = time.perf_counter()
    printed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "already finished" in printed, printed
    return time.perf_counter() - started


if __name__ == "__main__":
    run_script(main)
