"""Attention on this machine, in a minute; the demo; one run of vLLM with its log."""

import re

import pytest
from gpu_runs import CHAT, SAMPLE, needs_package, note_lines

# vLLM's lines of a start: which code it takes, and what it measures (vllm 0.32: v1/worker/gpu_worker.py,
# platforms/cuda.py, config/vllm.py, v1/engine/core.py).
STARTUP = re.compile(
    r"Using V2 Model Runner|using the V1 model runner|attention backend|Model loading took|Available KV cache memory"
    r"|KV cache size|Graph capturing finished|CUDA graph pool memory|Actual usage is|init engine"
)


def test_attention_has_finite_gradients(machine, figure):
    note_lines(figure, machine.run("tests/gpu/attention_gradients.py", machine.device))


def test_the_demo_ends_with_its_table(machine, tmp_path, figure):
    """The README's first command, on one of the GPUs."""
    if not machine.num_gpus:
        pytest.skip("on a CPU `make demo` is this check")
    printed = machine.run("utils/demo/lampqa.sh", program="sh", DEMO_OUT=str(tmp_path))
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| ")]
    figure(f"{len(rows) - 1} systems are judged")
    assert len(rows) == 6 and "=== 5/5" in printed


@needs_package("vllm")
def test_vllm_starts_and_logs_its_settings(machine, tmp_path, figure):
    printed = machine.run(
        "baselines.py", "--model_addr", CHAT, "--inputs_addr", SAMPLE / "test.json", "--output_addr",
        tmp_path / "answers.json", "--limit", 2, "--max_tokens", 16, "--constrained_decoding", "always",
        "--max_model_len", 2048, "--log_level", "info", one_gpu=True,
    )  # fmt: skip
    said = [line.partition("] ")[2] for line in printed.splitlines() if STARTUP.search(line)]
    for line in dict.fromkeys(said):
        figure(line)
    assert said
