"""What does PersonaMem take besides the model: the download, and the requests of a whole size?

  python tests/speed/histories.py --size 1M

The data are random words in PersonaMem's format: of 32k 589 questions over 37 contexts, of 1M 2,674 over 33.
baselines.py asks with the whole history, of a server in a process of its own that answers at once. CPU seconds are
those of the process that asks, not of the server.
"""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from measure import parse_flags, peak_memory, reset_peak_memory, write_figures
from ranking import WORDS

from utils.cli import positive_int, run_script

# By size: questions, contexts, tokens of each, sessions of each, and messages of a session.
SHAPES = {"32k": (589, 37, 32_000, 10, 20), "128k": (2727, 60, 128_000, 20, 24), "1M": (2674, 33, 1_000_000, 60, 30)}
TOKENS_PER_WORD = 1.3
SECONDS_BAR, MEMORY_BAR = 60.0, 2e9  # of 32k, and over what is held at the beginning
COMPLETION = {
    "id": "1", "object": "chat.completion", "created": 0, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "(b)"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Its answer to GET is how many bytes it was sent so far."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    received, counting = 0, threading.Lock()

    def do_POST(self) -> None:
        left = int(self.headers["Content-Length"])
        with Handler.counting:
            Handler.received += left
        while left > 0:
            left -= len(self.rfile.read(min(left, 1 << 20)))
        self.send(json.dumps(COMPLETION).encode())

    def do_GET(self) -> None:
        self.send(json.dumps({"data": [], "received": Handler.received}).encode())

    def send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Silence."""


FLAGS = {
    "size": {"choices": SHAPES, "default": "32k", "help": "whose shape the data have (%(default)s)"},
    "max_model_len": {"type": positive_int, "metavar": "N", "help": "as of baselines.py (default: the size's)"},
    "questions": {"type": positive_int, "metavar": "N", "help": "only the first N (default: all)"},
    "serve": {"action": "store_true", "help": "be the server"},
}


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(__doc__, argv, runs=None, **FLAGS)
    if args.serve:
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.request_queue_size = 128
            print(server.server_port, flush=True)
            server.serve_forever()
    import baselines
    from utils import download_datasets

    figures: dict[str, Any] = {"size": args.size, "cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        originals = write_data(folder / "originals", args.size)
        flags = ["--dataset", f"PersonaMem-{args.size}", "--source_dir", originals, "--output_dir", folder / "data"]
        figures["download"] = measured("download", lambda: download_datasets.main(list(map(str, flags))))
        made, given = (sum(path.stat().st_size for path in one.iterdir()) for one in (folder / "data", originals))
        figures["disk"] = made / given
        print(f"on disk {figures['disk']:.3f} x the original files")
        common = ["--inputs_addr", folder / "data" / f"PersonaMem_{args.size}.json"]
        common += ["--limit", args.questions] if args.questions else []
        common += ["--max_model_len", args.max_model_len] if args.max_model_len else []
        server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
        try:
            os.environ["OPENAI_API_KEY"] = "key"
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
            flags = ["--model_addr", "m", "--openai", "--base_url", url, *common, "--output_addr", folder / "api.json"]
            figures["server"] = measured("through a server", lambda: baselines.main(list(map(str, flags))))
            with urllib.request.urlopen(f"{url}/models") as answer:
                figures["sent"] = json.load(answer)["received"]
            each = figures["server"]["cpu_seconds"] / figures["sent"] * 1e9
            print(f"{figures['sent'] / 1e9:.2f} GB sent, {each:.1f} CPU seconds a GB")
        finally:
            server.kill()
    write_figures(args.json_addr, figures)
    return 0


def measured(what: str, work: Any) -> dict[str, float]:
    reset_peak_memory()
    held, started, cpu = peak_memory(), time.perf_counter(), time.process_time()
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(io.StringIO()):
        work()
    figures = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    figures["memory"] = peak_memory() - held
    print(
        f"{what}: {figures['seconds']:.1f} s, {figures['cpu_seconds']:.1f} CPU seconds (bar of 32k {SECONDS_BAR:.0f}), "
        f"{figures['memory'] / 1e9:.2f} GB more than before (bar {MEMORY_BAR / 1e9:.0f})\n  {told.getvalue().strip()}",
        flush=True,
    )
    return figures


def write_data(folder: Path, size: str) -> Path:
    """Contexts and questions of random words; each question asks behind a random message."""
    import csv

    from utils.benchmarks.personamem import TYPES

    rng, words = random.Random(0), WORDS.split()
    questions, contexts, tokens, sessions, turns = SHAPES[size]
    folder.mkdir()
    length = round(tokens / TOKENS_PER_WORD / sessions / turns)

    def text(number: int) -> str:
        return " ".join(rng.choices(words, k=number))

    with open(folder / f"shared_contexts_{size}.jsonl", "w") as file:
        for number in range(contexts):
            card = {"role": "system", "content": f"Current user persona: {text(100)}"}
            messages = []
            for _ in range(sessions):
                messages.append(card)
                roles = ["User", "Assistant"] * (turns // 2)
                messages += [{"role": role.lower(), "content": f"{role}: {text(length)}"} for role in roles]
            file.write(json.dumps({f"context{number}": messages}) + "\n")
    with open(folder / f"questions_{size}.csv", "w", newline="") as file:
        names = "persona_id question_id question_type topic user_question_or_message correct_answer all_options"
        table = csv.writer(file)
        table.writerow([*names.split(), "shared_context_id", "end_index_in_shared_context"])
        for number in range(questions):
            options = [f"({letter}) {text(50)}" for letter in "abcd"]
            row = [number % contexts // 2, number, rng.choice(list(TYPES)), "none", text(30), "(a)", repr(options)]
            table.writerow([*row, f"context{number % contexts}", rng.randrange(sessions * (turns + 1)) + 1])
    return folder


if __name__ == "__main__":
    run_script(main)
