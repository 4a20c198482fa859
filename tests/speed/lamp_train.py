"""Does a train file of LaMP-3 at its full size, 20,000 users with 200 reviews each, go its way within 2 GB?

  python tests/speed/lamp_train.py --folder /somewhere/with/12/GB
  python tests/speed/lamp_train.py --folder . --questions 500

Each step is a process of its own, as a user would start it: utils/download_datasets.py with --source_dir, BM25, RAG
through a server on loopback that answers at once, and the scores. Memory is that of a process and all it starts.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import psutil
from api_server import Reply, serve
from measure import log_normal, write_figures

from utils.cli import make_parser, positive_int, run_script

ROOT = Path(__file__).resolve().parent.parent.parent
REVIEWS, WORDS, VOCABULARY = 200, 100, 20_000
MOST_MEMORY = 2e9  # bytes


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--questions", type=positive_int, default=20_000, help="users (%(default)s)")
    parser.add_argument("--folder", required=True, help="where the files go, and are deleted again")
    parser.add_argument("--limit", type=positive_int, help="questions that are answered (default: all)")
    parser.add_argument("--json_addr", metavar="FILE", help="where the figures go too")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    figures = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as name, serve(lambda request: Reply("4")) as server:
        folder = Path(name)
        write_originals(folder / "LaMP_3", args.questions)
        data, ranked, answers = folder / "LaMP-3_user_train.json", folder / "ranked.json", folder / "answers.json"
        limit = [] if args.limit is None else ["--limit", args.limit]
        api = ["--model_addr", "m", "--openai", "--base_url", server.url]
        rank = ["--ranker", "bm25", "--input_dataset_addr", data, "--output_dataset_addr", ranked]
        scored = ["--inputs_addr", ranked, "--response_addr", answers, "--score_addr", folder / "scores.json", *limit]
        steps = {
            "download": ["utils/download_datasets.py", "--dataset", "LaMP-3", "--source_dir", folder],
            "again": ["utils/download_datasets.py", "--dataset", "LaMP-3", "--source_dir", folder],
            "rank": ["retrieval/rank_dataset.py", *rank],
            "answer": ["baselines.py", "--rag", *api, "--inputs_addr", ranked, "--output_addr", answers, *limit],
            "evaluate": ["evaluate_responses.py", *scored],
        }
        for step, command in steps.items():
            more = ["--output_dir", folder] if "download" in command[0] else []
            figures[step] = measure([*command, *more], args.questions)
            server.requests.clear()
            print(f"{step}: " + ", ".join(f"{name} {value:,}" for name, value in figures[step].items()), flush=True)
        figures["bytes"] = data.stat().st_size
    peak = max(entry["peak_bytes"] for entry in figures.values() if isinstance(entry, dict))
    print(f"a file of {figures['bytes']:,} bytes; most memory {peak / 1e9:.2f} GB; ", end="")
    print(f"the bar is {MOST_MEMORY / 1e9} GB: {'met' if peak <= MOST_MEMORY else 'NOT met'}")
    write_figures(args.json_addr, figures)
    return 0


def write_originals(folder: Path, number: int) -> None:
    """Three splits as LaMP has them: train of so many users, and two of one."""
    folder.mkdir()
    for split, size in (("train", number), ("dev", 1), ("test", 1)):
        with open(folder / f"{split}_questions.json", "w", encoding="utf-8") as file:
            for index, question in enumerate(make_questions(size)):
                file.write((", " if index else "[") + json.dumps(question, ensure_ascii=False))
            file.write("]")
        golds = [{"id": str(index), "output": str(index % 5 + 1)} for index in range(size)]
        if split != "test":
            (folder / f"{split}_outputs.json").write_text(json.dumps({"task": "LaMP_3", "golds": golds}))


def make_questions(number: int) -> Iterator[dict[str, object]]:
    """Reviews of about a hundred words, which are drawn as a language's are: the n-th one n times rarer."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghilmnoprstuvwy", k=log_normal(rng, 5, 0.4) + 1)) for _ in range(VOCABULARY)]
    sums, total = [], 0.0
    for rank in range(VOCABULARY):
        total += 1 / (rank + 1)
        sums.append(total)

    def review() -> str:
        return " ".join(rng.choices(words, cum_weights=sums, k=log_normal(rng, WORDS, 0.6) + 1))

    for index in range(number):
        profile = [
            {"id": f"{index}{n:03}", "text": review(), "score": str(rng.randint(1, 5)), "date": f"20{n % 20:02}-03-04"}
            for n in range(REVIEWS)
        ]
        ask = "What is the score of the following review on a scale of 1 to 5? just answer with 1, 2, 3, 4, or 5 "
        yield {"id": str(index), "input": f"{ask}without further explanation. review: {review()}", "profile": profile}


def measure(command: list[object], questions: int) -> dict[str, int | float]:
    """Seconds and most memory of a script, of all its processes together."""
    started, peak = time.perf_counter(), 0
    process = psutil.Popen(
        [sys.executable, *map(str, command)], cwd=ROOT, env=os.environ | {"OPENAI_API_KEY": "key"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    while process.poll() is None:
        peak = max(peak, memory_of(process))
        time.sleep(0.05)
    printed = process.stdout.read().decode()
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}:\n{printed}")
    seconds = time.perf_counter() - started
    return {"seconds": round(seconds, 1), "questions_a_second": round(questions / seconds), "peak_bytes": peak}


def memory_of(process: psutil.Process) -> int:
    """Bytes that a process and its descendants hold now."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


if __name__ == "__main__":
    run_script(main)
