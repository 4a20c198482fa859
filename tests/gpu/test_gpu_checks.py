"""GPU tests on a machine without a GPU: they are skipped in one line, and the simplest pass on the CPU."""

import os
import subprocess
import sys

import pytest
from gpu_runs import ROOT


@pytest.mark.parametrize(
    ("flags", "card", "reason"),
    [
        ([], "A100", "make test-gpu runs them, where there is one"),
        (["--device", "cuda"], "0, Tesla V100, 7.0", "compute capability 7.5 is needed, and GPU 0 (Tesla V100) has 7"),
    ],
)
def test_checks_are_skipped_in_one_line(tmp_path, flags, card, reason):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{card}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    words = ["-q", "-p", "no:cacheprovider", "tests/gpu", "-k", "not test_gpu_checks", *flags]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--report", tmp_path / "report"], cwd=ROOT, capture_output=True,
        text=True, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0"},
    )  # fmt: skip
    [line] = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert done.returncode == 0 and reason in line and not (tmp_path / "report").exists()


def test_a_check_prints_its_figures_and_keeps_its_log(tmp_path):
    words = ["-q", "-p", "no:cacheprovider", "tests/gpu", "--device", "cpu", "--report", tmp_path]
    words += ["-k", "attention_has"]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "attention has finite gradients: the project's attention: finite gradients" in done.stdout
    assert "FIGURE" in (tmp_path / "01.log").read_text()
