"""A model's GPU memory needs, from its config and the headers of its weights."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hollow_models import save_hollow, save_hollow_qwen
from hub_server import MODEL, serve
from lamp_samples import read_sample
from safetensors.numpy import load_file, save_file
from tiny_chat import save_tiny_chat
from tiny_t5 import save_tiny_t5

from utils.models.loading import load_config, read_headers
from utils.models.machine import ModelSize, read_size


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(tiny, tmp_path):
    """A copy of the model, to change."""
    return shutil.copytree(tiny, tmp_path / "model")


def size_of(folder, dtype="auto"):
    return read_size(read_headers(folder), load_config(folder), dtype)


@pytest.mark.parametrize(
    ("name", "parameters", "token_bytes"),
    [
        ("7B", 7_615_616_512, 57_344),  # 2 x 28 layers x 4 heads x 128 x 2 bytes = 56 KiB
        ("32B", 32_763_876_352, 262_144),  # 2 x 64 x 8 x 128 x 2 = 256 KiB
    ],
)
def test_the_table_of_the_readme(tmp_path, name, parameters, token_bytes):
    size = size_of(save_hollow_qwen(tmp_path, name))
    assert (size.weights, size.token_bytes()) == (2 * parameters, token_bytes)
    in_full = size_of(tmp_path, "float32")
    assert (in_full.weights, in_full.token_bytes()) == (4 * parameters, 2 * token_bytes)


def test_more_gpus_than_key_value_heads():
    size = ModelSize(weights=70, kv_heads=4, head_bytes=2 * 28 * 128 * 2)
    # each GPU holds one head: 2 x 28 x 1 x 128 x 2
    assert [size.token_bytes(count) for count in (1, 2, 4, 7, 14)] == [57_344, 28_672, 14_336, 14_336, 14_336]


def test_a_real_model_s_parameters_and_tied_embeddings(model):
    from transformers import AutoModelForCausalLM

    parameters = AutoModelForCausalLM.from_pretrained(model).num_parameters()
    size = size_of(model)
    assert size.weights == 2 * parameters  # float32 on disk, 16 bits in vLLM
    assert size_of(model, "float32").weights == 4 * parameters == size_on_disk(model)
    weights = load_file(model / "model.safetensors")
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}, model / "model.safetensors")
    assert size_of(model) == size  # stored twice, loaded once


def size_on_disk(folder):
    return sum(array.nbytes for array in load_file(folder / "model.safetensors").values())


def test_other_architectures(tmp_path):
    from transformers import Gemma2Config, GPT2Config, LlamaConfig

    small = {"hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4,
             "vocab_size": 7}  # fmt: skip
    wide_heads = Gemma2Config(**small, num_key_value_heads=2, head_dim=16, sliding_window=4)
    assert size_of(save_hollow(tmp_path, wide_heads)).token_bytes() == 2 * 3 * 2 * 16 * 2
    assert size_of(save_hollow(tmp_path, LlamaConfig(**small))).token_bytes() == 2 * 3 * 4 * 8 * 2
    assert size_of(save_hollow(tmp_path, GPT2Config(n_embd=32, n_layer=3, n_head=4))).token_bytes() == 2 * 3 * 4 * 8 * 2


def test_quantized_weights_keep_their_size(model):
    weights = {"a": np.zeros((4, 8), np.int32), "b": np.zeros(10, np.uint8), "c": np.zeros(6, np.float16)}
    save_file(weights, model / "model.safetensors")
    assert size_of(model).weights == 4 * 32 + 10 + 2 * 6
    assert size_of(model, "float32").weights == 4 * 32 + 10 + 4 * 6


# Before a model is fetched

ROOT = Path(__file__).resolve().parents[2]
NVIDIA_SMI = """#!/bin/sh
case "$*" in
    *compute_cap*) echo "0, Pretended GPU, 9.0";;
    *index,memory.free*) echo "0, {0}, {0}";;
    *) echo {0};;
esac
"""
ON_A_GPU = """
import runpy, sys, torch
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def large_header(folder, parameters):
    """Return the header of a weights file with this many bfloat16 numbers, without the numbers."""
    header = {"w": {"dtype": "BF16", "shape": [parameters // 1000, 1000], "data_offsets": [0, 2 * parameters]}}
    text = json.dumps(header).encode()
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {
        "model.safetensors": len(text).to_bytes(8, "little") + text
    }


@pytest.mark.parametrize(
    ("script", "gigabytes"),
    [
        ("utils/train_generator.py", "121.6 GB"),  # 16 bytes a parameter
        ("baselines.py", "15.2 GB"),  # 2 bytes
    ],
)
def test_a_model_that_cannot_fit_is_refused_before_the_download(script, gigabytes, tmp_path):
    """7.6 billion parameters on a card of 12 GiB."""
    save_tiny = save_tiny_chat if script == "baselines.py" else save_tiny_t5
    files = large_header(save_tiny(tmp_path / "model"), 7_600_000_000)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text(NVIDIA_SMI.format(12 * 1024))
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    (tmp_path / "in.json").write_text(json.dumps(read_sample("LaMP-4", "train")))
    out = ["--output_addr"] if script == "baselines.py" else ["--num_contexts", 0, "--output_dir"]
    words = [script, "--model_addr", MODEL, "--inputs_addr", tmp_path / "in.json", *out, tmp_path / "out"]
    words += ["--cache_dir", tmp_path / "cache"]
    with serve(files) as hub:
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        environment |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        command = [sys.executable, "-c", ON_A_GPU, *map(str, words)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2, done.stderr
    share = "0.9 x " if script == "baselines.py" else ""
    expected = f"error: the weights of {MODEL}: {gigabytes} per GPU do not fit into {share}12.9 GB"
    assert done.stderr.splitlines()[-2] == expected, done.stderr
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
