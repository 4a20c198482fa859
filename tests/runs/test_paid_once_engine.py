"""The store with the real vLLM: stored completions need no model and give the same outputs."""

import json
from pathlib import Path

import pytest
from tiny_chat import save_tiny_chat

from utils.base.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "demo/models/chat"
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
SHORT = ["--inputs_addr", SAMPLE, "--limit", 4, "--max_tokens", 24, "--max_retries", 1, "--max_model_len", 4096]

pytestmark = pytest.mark.engine


@pytest.fixture
def run(warm_engine, tmp_path):
    """Run a script; return its outputs' bytes and the loaded models. The outputs are deleted, the store is kept."""

    def run(script, flags, *outputs):
        done = warm_engine.run(script, flags, look_at_models=None)
        assert done.returncode in (0, 1), done.errors  # 1: most answers of a small model may be unusable
        contents = [path.read_bytes() for path in outputs]
        devices = {read_manifest(path)["device"] for path in outputs}
        for path in tmp_path.glob("*.json*"):
            path.unlink()
        loaded = [line for line in done.errors.splitlines() if "(this may take a minute" in line]
        assert bool(loaded) == (devices != {None}), done.errors
        return contents, loaded

    return run


def test_plans_and_answers_of_one_base(run, tmp_path):
    output = tmp_path / "answers.json"
    flags = ["--model_addr", CHAT, "--planner_model", CHAT, *SHORT, "--output_addr", output, "--unranked"]
    flags += ["--num_contexts", 2, "--max_tokens_plan", 24]
    outputs = [output, Path(f"{output}.plans.json")]
    contents, loaded = run("planpers.py", flags, *outputs)
    assert len(loaded) == 1
    assert run("planpers.py", flags, *outputs) == (contents, [])


CRITICIZED = """
async def answer(record, ask):
    draft = await ask("Answer briefly: {question}", max_tokens=12)
    critique = await ask("Criticize: {draft}", draft=draft or "nothing", model="critic", max_tokens=8)
    ask.note(draft=draft)
    return critique
"""


def test_a_method_with_two_base_models_loads_each_once(run, tmp_path):
    output = tmp_path / "answers.json"
    (tmp_path / "mine.py").write_text(CRITICIZED)
    flags = ["--model_addr", CHAT, "--model", f"critic={save_tiny_chat(tmp_path / 'critic')}", *SHORT, "--unranked"]
    flags += ["--method", tmp_path / "mine.py", "--output_addr", output]
    contents, loaded = run("baselines.py", flags, output)
    answers = [answer for [answer] in json.loads(contents[0]).values()]
    assert len(loaded) == 2 and len(answers) == 4
    calls = [[its["num_calls"] for its in answer["calls"].values()] for answer in answers]
    assert calls == [[1, 1]] * 4 and all(answer["notes"]["draft"] for answer in answers)
    again, loaded = run("baselines.py", flags, output)
    assert (again, loaded) == (contents, [])
