"""VLLM_BATCH_INVARIANT and --enforce_eager on a GPU: who may have them, what vLLM is told, what the manifest says.

No GPU need be here: nvidia-smi is a script that prints what the real one would, torch is told that there is a GPU, and
vllm is a package of a few lines that answers with what it finds in its environment.
"""

import json
import os
from pathlib import Path

import pytest
from tiny_chat import save_tiny_chat

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
NAME = "VLLM_BATCH_INVARIANT"
REFUSAL = "error: VLLM_BATCH_INVARIANT=1 needs a GPU of compute capability 8.0 or more; "
ON_A_GPU = "import torch; torch.cuda.is_available = lambda: True"
NVIDIA_SMI = """#!/bin/sh
case "$*" in *compute_cap*) echo "0, Pretended GPU, {}"; echo "1, Pretended GPU, 9.0";;
    *) echo "0, 80000, 81559"; echo "1, 80000, 81559";; esac
"""
VLLM = {
    "__init__.py": "import sys; print('vllm is imported', file=sys.stderr)",
    "engine/arg_utils.py": """
import os, sys
AT_IMPORT = os.environ.get("VLLM_BATCH_INVARIANT")
class AsyncEngineArgs:
    def __init__(self, enforce_eager, **settings): print("enforce_eager", enforce_eager, file=sys.stderr)
    def create_engine_config(self, context): return self
    @property
    def model_config(self): return self
    dtype = "torch.bfloat16"
    def try_get_generation_config(self): return {}
""",
    "usage/usage_lib.py": "class UsageContext: ENGINE_CONTEXT = None",
    "lora/request.py": "LoRARequest = None",
    "platforms.py": """
from types import SimpleNamespace
current_platform = SimpleNamespace(is_cpu=lambda: False, get_device_name=lambda: "Pretended GPU")
""",
    "sampling_params.py": """
from types import SimpleNamespace
RequestOutputKind = SimpleNamespace(FINAL_ONLY=None)
SamplingParams = StructuredOutputsParams = SimpleNamespace
""",
    "v1/engine/exceptions.py": "class EngineDeadError(Exception): pass",
    "v1/engine/async_llm.py": """
import functools, json, subprocess, sys
from types import SimpleNamespace
from vllm.engine.arg_utils import AT_IMPORT
ITS_PROCESS = "import os; print(os.environ.get('VLLM_BATCH_INVARIANT'), end='')"
@functools.cache
def ask_its_process():
    return subprocess.run([sys.executable, "-c", ITS_PROCESS], capture_output=True, text=True).stdout
class AsyncLLM:
    vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=2),
        cache_config=SimpleNamespace(num_gpu_blocks=9, block_size=9),
    )
    @classmethod
    def from_vllm_config(cls, config, disable_log_stats):
        return cls()
    async def generate(self, prompt, params, number, lora_request, data_parallel_rank, reasoning_ended):
        text = json.dumps({"personalized_answer": f"{AT_IMPORT} {ask_its_process()}"})
        output = SimpleNamespace(text=text, finish_reason="stop", token_ids=[1])
        yield SimpleNamespace(outputs=[output], prompt_token_ids=prompt["prompt_token_ids"], num_cached_tokens=0)
    def shutdown(self, timeout): pass
""",
}


def vllm_first(folder):
    """Code that has this folder's vllm imported."""
    return f"import sys; sys.path.insert(0, {str(folder)!r})"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("chat"))


@pytest.fixture
def run(warm, model, tmp_path):
    """A run on a GPU of this compute capability, beside a second one of 9.0."""

    def call(capability, *flags, code=0, variable=None):
        for name, text in VLLM.items():
            path = tmp_path / "packages/vllm" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin/nvidia-smi").write_text(NVIDIA_SMI.format(capability))
        (tmp_path / "bin/nvidia-smi").chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if name not in (NAME, "CUDA_VISIBLE_DEVICES")}
        environment |= {"PATH": f"{tmp_path}/bin:{environment['PATH']}"} | ({NAME: variable} if variable else {})
        output = ["--output_addr", tmp_path / "answers.json"]
        done = warm.run(
            "baselines", ["--model_addr", model, "--inputs_addr", SAMPLE, *output, "--limit", "1", *flags],
            live_in=(str(ROOT), environment), do=f"{vllm_first(tmp_path / 'packages')}; {ON_A_GPU}",
        )  # fmt: skip
        assert done.returncode == code, done.errors
        return done

    return call


def manifest_of(path):
    return json.loads(Path(f"{path}.manifest.json").read_text())


@pytest.mark.parametrize(
    ("capability", "flags", "variable", "found", "recorded"),
    [
        ("8.0", ["--tensor_parallel_size", "2"], "1", "1 1", True),
        ("12.0", [], "1", "1 1", True),
        ("[N/A]", [], "1", "1 1", True),  # a part of a GPU
        ("7.5", [], "0", "0 0", False),
        ("7.5", [], None, "None None", False),
    ],
)
def test_vllm_and_its_processes_are_told_and_the_manifest_says_so(
    run, tmp_path, capability, flags, variable, found, recorded
):
    run(capability, *flags, variable=variable)
    [[answer]] = json.loads((tmp_path / "answers.json").read_text()).values()
    assert answer["output"] == found
    assert manifest_of(tmp_path / "answers.json")["batch_invariant"] is recorded


@pytest.mark.parametrize(
    ("flags", "eager", "said"),
    [
        ([], True, "no CUDA graphs for 1 outputs: starts sooner (--no-enforce_eager captures them)"),
        (["--num_generated_outputs", "256"], True, "no CUDA graphs for 256 outputs"),
        (["--num_generated_outputs", "257"], False, None),
        (["--num_generated_outputs", "257", "--data_parallel_size", "2"], True, "no CUDA graphs for 257 outputs"),
        (["--no-enforce_eager"], False, None),
        (["--num_generated_outputs", "257", "--enforce_eager"], True, None),
    ],
)
def test_few_outputs_have_no_graphs_captured(run, tmp_path, flags, eager, said):
    done = run("9.0", *flags)
    assert f"enforce_eager {eager}\n" in done.errors
    assert said in done.errors if said else "CUDA graphs" not in done.errors
    assert manifest_of(tmp_path / "answers.json")["arguments"]["enforce_eager"] is eager


def test_on_a_cpu_it_is_refused(warm, model, tmp_path):
    """vLLM itself dies of it in the first step."""
    arguments = ["--model_addr", model, "--inputs_addr", SAMPLE, "--output_addr", tmp_path / "answers.json"]
    environment = {**os.environ, NAME: "1", "CUDA_VISIBLE_DEVICES": ""}
    done = warm.run("baselines", arguments, live_in=(str(ROOT), environment))
    assert (done.returncode, done.errors.splitlines()[-1]) == (2, f"{REFUSAL}none is here")
