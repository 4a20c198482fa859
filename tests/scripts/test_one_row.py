"""docs/one_row.py has none of the project's code, and its row is that of the commands: an independent check of both.

Greedy and in float32, so that a text depends neither on a seed nor on the other prompts in a batch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAT, ENCODER = ROOT / "demo/models/chat", ROOT / "demo/models/encoder"
SAMPLE = json.loads((ROOT / "tests/data/mini_lampqa/test.json").read_text(encoding="utf-8"))
# The demo's model ends four of its answers to these within 48 tokens; one question has no posts.
CATEGORIES = [[record for record in SAMPLE if record["category"] in names]
              for names in (("rpg", "sound", "gaming"), ("parenting", "interpersonal", "judaism"))]  # fmt: skip
ALIKE = ["--dtype", "float32", "--constrained_decoding", "always"]
ANSWERING = ["--model_addr", CHAT, "--temperature", "0", "--max_tokens", "48"]

pytestmark = pytest.mark.engine


def run(*words):
    """Run a script as a user does, and return what it prints."""
    assert (CHAT / "config.json").exists(), "the demo's models are missing: run `make models`"
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=3600,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_imports_nothing_from_this_repository_and_is_short():
    source = (ROOT / "docs/one_row.py").read_text(encoding="utf-8")
    names = {line.split()[1].partition(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert names == {"argparse", "json", "pathlib", "statistics", "torch", "transformers", "vllm"}
    assert source.count("import ") == source.count("\nimport ") + source.count("\nfrom ")
    assert source.count("\n") <= 150


@pytest.mark.long
def test_its_row_is_that_of_the_commands(warm_engine, tmp_path):
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for file, records in zip(files, CATEGORIES, strict=True):
        file.write_text(json.dumps(records))
    both = tmp_path / "both.json"
    both.write_text(json.dumps([*CATEGORIES[0], *CATEGORIES[1]]))
    printed = run("docs/one_row.py", "--inputs_addr", *files, "--output_addr", tmp_path / "row.json",
                  "--model_name", ENCODER, *ANSWERING, "--evaluator_llm", CHAT, *ALIKE)  # fmt: skip
    made = json.loads((tmp_path / "row.json").read_text(encoding="utf-8"))

    ranked, answered, scored = (tmp_path / f"{name}.json" for name in ("ranked", "rag", "scores"))
    for script, *words in [
        # The demo's encoder is not Contriever: its files ask for normalized embeddings of shorter texts.
        ["retrieval/rank_dataset.py", "--model_name", ENCODER, "--no-normalize", "--max_length", 512,
         "--input_dataset_addr", both, "--output_dataset_addr", ranked],
        ["baselines.py", "--rag", "--inputs_addr", ranked, "--output_addr", answered, *ANSWERING, *ALIKE],
        ["evaluate_responses.py", "--evaluator_llm", CHAT, "--inputs_addr", both, "--response_addr", answered,
         "--score_addr", scored, *ALIKE],
    ]:  # fmt: skip
        done = warm_engine.run(script, words, look_at_models=None)
        assert done.returncode == 0, done.errors
    answers = json.loads(answered.read_text(encoding="utf-8"))
    scores = {entry["id"]: entry for entry in json.loads(scored.read_text(encoding="utf-8"))["per_question_scores"]}

    assert [question["id"] for question in made["questions"]] == list(answers)
    whole = [question for question in made["questions"] if not answers[question["id"]][0].get("truncated")]
    assert len(whole) >= 4
    for question in whole:
        entry = scores[question["id"]]
        assert question["output"] == answers[question["id"]][0]["output"] != ""
        assert question["verdicts"] == [detail["score"] for detail in entry["details"]]
        assert question["score"] == pytest.approx(entry["score"])
    # An answer that was cut is not valid JSON; only the commands repair it.
    cut = [question for question in made["questions"] if question not in whole]
    assert all((question["output"], question["score"]) == ("", 0) for question in cut)
    by_id = {question["id"]: scores[question["id"]]["score"] for question in whole}
    expected = [fmean(by_id.get(record["id"], 0) for record in records) for records in CATEGORIES]
    assert made["row"] == pytest.approx(expected) and made["average"] == pytest.approx(fmean(expected))
    assert printed.splitlines()[-2] == " | ".join(f"{score:.4f}" for score in [*expected, fmean(expected)])
    assert printed.splitlines()[-1].startswith(f"6 questions: {len(cut)} without an answer")
