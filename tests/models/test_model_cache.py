"""A model by hub name in --cache_dir: downloaded by the hub's client, then used without internet.

The real scripts and the real vLLM, with a hub on loopback; Hugging Face's own cache is an empty folder. Offline runs
are forks of a process that was never online.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import MODEL, serve
from test_learnt_planner import engines_of, lives_of

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "demo/models/chat"
DATA = ROOT / "tests/data/mini_lampqa"
# Beside the model: what a hub often has too, and a run neither needs nor may read.
OTHERS = dict.fromkeys(["pytorch_model.bin", "consolidated.safetensors", "onnx/model.safetensors"], b"not for us")

pytestmark = pytest.mark.engine


def words(flags):
    return [str(part) for name, value in flags.items() for part in (f"--{name}", value)]


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    """The cache of an online run, the run's answers, and its downloads to other places."""
    assert (CHAT / "config.json").exists(), "the demo's models are missing: run `make models`"
    folder = tmp_path_factory.mktemp("online")
    files = {path.name: path.read_bytes() for path in CHAT.iterdir()} | OTHERS
    with serve(files, lfs_from=1_000_000) as hub:
        environment = {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url}
        flags = {
            "model_addr": MODEL, "cache_dir": folder / "cache", "inputs_addr": DATA / "test.json", "limit": 1,
            "output_addr": folder / "answers.json", "max_tokens": 16, "constrained_decoding": "always",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "baselines.py", *words(flags)],
            cwd=ROOT, capture_output=True, text=True, timeout=3600, env=os.environ | environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    yield folder, hub
    shutil.rmtree(folder)  # half a gigabyte


def test_online_a_run_fetches_what_it_reads_into_the_cache_dir(fetched):
    folder, hub = fetched
    assert sorted(hub.fetched) == sorted(path.name for path in CHAT.iterdir() if path.name != "SOURCE.md")
    assert not list((folder / "home").rglob("models--*"))
    assert json.loads((folder / "answers.json").read_text())
    [commit] = hub.commits
    manifest = json.loads((folder / "answers.json.manifest.json").read_text())
    assert manifest["settings"]["model"] == f"{MODEL}@{commit}"


@pytest.fixture
def run(warm_engine):
    """Run a script to its end; return the lives of its engines."""

    def call(script, **flags):
        more = [] if "evaluator_llm" in flags else ["--unranked"]
        return engines_of(lives_of(warm_engine.start(script, [*words(flags), *more], look_at_models=None)))

    return call


def test_offline_the_pipeline_runs_from_the_cache_dir(fetched, run, warm_engine, tmp_path):
    """Train a planner, plan and answer on one engine, judge: all use only the model's hub name."""
    cache = fetched[0] / "cache"
    snapshot = next(cache.glob("models--*/snapshots/*"))
    assert (snapshot / "model.safetensors").is_symlink() and (snapshot.parent.parent / "refs/main").is_file()
    run(
        "train_planner.py", model_addr=MODEL, cache_dir=cache, inputs_addr=DATA / "train.json",
        output_dir=tmp_path / "planner", num_contexts=1, gradient_accumulation_steps=1, max_steps=1, save_steps=1,
    )  # fmt: skip
    adapter = tmp_path / "planner/checkpoint-1"
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == MODEL
    assert not (adapter / "README.md").exists()  # PEFT's, a form that nobody fills in
    engines = run(
        "planpers.py", planner_model=adapter, model_addr=MODEL, cache_dir=cache, inputs_addr=DATA / "test.json",
        output_addr=tmp_path / "answers.json", limit=1, num_contexts=2, max_tokens_plan=24, max_tokens=24,
        constrained_decoding="always",
    )  # fmt: skip
    assert len(engines) == 1
    assert all(samples[0]["output"] for samples in json.loads((tmp_path / "answers.json").read_text()).values())
    run(
        "evaluate_responses.py", evaluator_llm=MODEL, cache_dir=cache, inputs_addr=DATA / "test.json",
        response_addr=tmp_path / "answers.json", score_addr=tmp_path / "scores.json", limit=1, max_tokens=16,
        constrained_decoding="always",
    )  # fmt: skip
    assert json.loads((tmp_path / "scores.json").read_text())["num_unscored"] == 0
    for name in ("answers.json", "answers.json.plans.json", "scores.json"):
        manifest = (tmp_path / f"{name}.manifest.json").read_text()
        assert f"{MODEL}@{snapshot.name}" in manifest and str(snapshot) not in manifest
    assert not list(warm_engine.folder.rglob("models--*"))
