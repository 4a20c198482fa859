"""What does evaluate_responses.py take besides the engine, for the verdicts of a whole test set?

  python tests/speed/own_work.py --model_addr demo/models/chat

The engine here answers at once, so what is measured is all the rest: reading and checking, rendering and tokenizing
every prompt, parsing, store and score file. Beside it the plain way, which tokenizes every prompt by itself. The data
are made up: 2,830 questions (the paper's test sets) with five aspects, or four for every sixth question. Importing the
libraries is not counted.
"""

import contextlib
import io
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from measure import CHAT, parse_flags, peak_memory, print_spread, write_figures
from ranking import WORDS

import evaluate_responses
from prompts import Messages
from utils.cli import run_script
from utils.generation.chat import LocalChat
from utils.generation.requests import Completion
from utils.runs import roles

BAR = 5.0  # seconds


class InstantEngine:
    """Answers every request at once."""

    concurrency, device = 512, "none"

    async def complete(self, model: str, prompt: Any, sampling: Any) -> Completion:
        return Completion('{"match_score": 1}', "stop", len(prompt), 0, 8)

    async def close(self) -> None:
        pass


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(__doc__, argv, model_addr=CHAT, questions=(2830, "how many are judged"))
    LocalChat(args.model_addr)  # imports what is to be imported
    roles.VLLMEngine = lambda *_: InstantEngine()
    with tempfile.TemporaryDirectory() as folder:
        num_verdicts = write_data(Path(folder), args.questions)
        rows = [one_run(args.model_addr, Path(folder), run) for run in range(args.runs)]
    print(f"{num_verdicts} verdicts, {len(os.sched_getaffinity(0))} cores")
    figures = {
        "seconds": print_spread("seconds besides the engine", [row["ours"] for row in rows], BAR, " s", below=True),
        "ours_to_plain": print_spread("times the plain way", [row["plain"] / row["ours"] for row in rows]),
    }
    print(f"peak memory {peak_memory() / 1e9:.2f} GB, of both ways")
    write_figures(args.json_addr, {"verdicts": num_verdicts, **figures, "peak_memory": peak_memory()})
    return 0


def write_data(folder: Path, num_questions: int) -> int:
    """A dataset and responses with the paper's mean lengths; returns the number of aspects."""
    rng = random.Random(0)
    words = WORDS.split()

    def text(num_words: int) -> str:
        """In paragraphs of about 60 words."""
        parts = [" ".join(rng.choices(words, k=min(60, num_words - done))) for done in range(0, num_words, 60)]
        return "\n\n".join(parts)

    records = []
    for number in range(num_questions):
        sizes = [{"aspect": 4, "evidence": 25, "reason": 25}] * (5 if number % 6 else 4)
        aspects = [{name: text(size) for name, size in its.items()} for its in sizes]
        texts = {"question": text(11), "narrative": text(160), "category": "cooking"}
        records.append({"id": f"q{number}", **texts, "rubric_aspects": aspects})
    (folder / "data.json").write_text(json.dumps(records))
    (folder / "responses.json").write_text(json.dumps({r["id"]: [{"output": text(350)}] for r in records}))
    return sum(len(record["rubric_aspects"]) for record in records)


def one_run(model: str, folder: Path, run: int) -> dict[str, float]:
    """Seconds of both ways, which take turns in beginning."""
    seconds = {}
    for way in ("ours", "plain") if run % 2 == 0 else ("plain", "ours"):
        render = LocalChat.render_groups if way == "ours" else render_one_by_one
        with mock.patch.object(LocalChat, "render_groups", render):
            seconds[way] = evaluate(model, folder, folder / f"{way}_{run}.json")
    return seconds


def render_one_by_one(chat: LocalChat, groups: Sequence[Sequence[Messages]]) -> list[list[Any]]:
    return [[chat.render(messages) for messages in group] for group in groups]


def evaluate(model: str, folder: Path, scores: Path) -> float:
    command = ["--evaluator_llm", model, "--inputs_addr", folder / "data.json"]
    command += ["--response_addr", folder / "responses.json", "--score_addr", scores]
    command += ["--completions", f"{scores}.completions"]
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        evaluate_responses.main([str(word) for word in command])
    return time.perf_counter() - started


if __name__ == "__main__":
    run_script(main)
