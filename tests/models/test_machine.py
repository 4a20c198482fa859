"""A dry run's report on the machine. Files and models are real; GPUs are not.

Only torch.cuda's is_available, device_count, mem_get_info and get_device_properties are replaced.
"""

from argparse import Namespace
from types import SimpleNamespace

import pytest
from hollow_models import save_hollow_qwen
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder

from utils.models.machine import Loaded, describe_engine, describe_weights
from utils.models.model_folder import ModelFolder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A real model: Qwen 2 with two layers, two heads of 64, tied embeddings and 4096 tokens."""
    return save_tiny_chat(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def judge_32b(tmp_path_factory):
    """A config and hollow weights of a 32B model."""
    return save_hollow_qwen(tmp_path_factory.mktemp("judge"), "32B")


@pytest.fixture
def gpus(monkeypatch):
    """Add GPUs with this much total and free memory in GB."""

    def install(*free, total=80):
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: len(free))
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda i: (int(free[i] * 10**9), int(total * 10**9)))
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda i: SimpleNamespace(name=f"Card {i}"))

    return install


def describe(folder, length=4096, **flags):
    defaults = {"tensor_parallel_size": 1, "data_parallel_size": 1, "gpu_memory_utilization": 0.9, "dtype": "auto"}
    flags = defaults | flags
    return describe_engine(
        Namespace(cache_dir=None, **flags), [Loaded(ModelFolder(str(folder)), length, flags["dtype"])]
    )


def test_without_a_gpu_the_required_size_is_reported(judge_32b):
    """2 bytes for each of 32.8 billion parameters, and 256 KiB for a token (2 x 64 layers x 8 heads x 128 x 2)."""
    assert describe(judge_32b) == [
        "note: there is no GPU here, so GPU memory could not be checked",
        f"{judge_32b}: 65.5 GB of weights per GPU; the longest request, of 4096 tokens, takes 1.07 GB of KV cache",
    ]
    [_, line] = describe(judge_32b, tensor_parallel_size=2, data_parallel_size=2, dtype="float32")
    assert ": 65.5 GB of weights per GPU;" in line and "1.07 GB of KV cache" in line


def test_gpus_that_a_model_fits_on(gpus, tiny):
    gpus(79, 78.5, 1)
    lines = describe(tiny, 4000, tensor_parallel_size=2)
    assert lines[:3] == [
        "GPU 0: Card 0, 79.0 of 80.0 GB free",
        "GPU 1: Card 1, 78.5 of 80.0 GB free",
        "GPU 2: Card 2, 1.0 of 80.0 GB free",
    ]
    assert lines[3].startswith(f"{tiny}: 0.0 GB of weights per GPU; the longest request, of 4000") and len(lines) == 4


def test_weights_that_do_not_fit(gpus, judge_32b):
    gpus(80, 80, total=80)
    assert not any(line.startswith("missing") for line in describe(judge_32b))
    gpus(42.4, 42.4, total=42.4)
    expected = (
        f"missing: the weights of {judge_32b}: 65.5 GB per GPU do not fit into 0.9 x 42.4 GB; use a larger GPU, or "
    )
    assert describe(judge_32b)[-1] == f"{expected}more of them (--tensor_parallel_size)"
    assert not any(line.startswith("missing") for line in describe(judge_32b, tensor_parallel_size=2))


def test_gpus_that_are_too_few_or_in_use(gpus, tiny):
    gpus(79, 71)
    # 71e9 / 2^30 = 66.1, 80e9 / 2^30 = 74.5, 0.9 of it 67.1
    in_use = "missing: GPU 1 has 66.1 of 74.5 GiB free, --gpu_memory_utilization 0.9 asks for 67.1; another process"
    few = "missing: --tensor_parallel_size 2 --data_parallel_size 2: this machine has only 2 GPUs"
    lines = describe(tiny, tensor_parallel_size=2, data_parallel_size=2)
    assert lines[2] == few and lines[3].startswith(in_use)
    lines = describe(tiny, tensor_parallel_size=2, gpu_memory_utilization=0.8)
    assert not any(line.startswith("missing") for line in lines)


def test_gpus_that_the_driver_refuses(gpus, tiny, monkeypatch):
    gpus(79)

    def refuse(index):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore lines")

    monkeypatch.setattr("torch.cuda.mem_get_info", refuse)
    problem = "CUDA error: all CUDA-capable devices are busy or unavailable"
    assert describe(tiny) == [f"missing: the GPUs cannot be used: {problem}; see nvidia-smi"]


def test_models_that_transformers_loads(gpus, tmp_path, judge_32b):
    encoder = str(save_tiny_encoder(tmp_path / "encoder"))
    assert describe_weights(ModelFolder(encoder), 4) == [
        "note: there is no GPU here, so GPU memory could not be checked",
        f"{encoder}: 0.0 GB of weights per GPU, plus activations",
    ]
    gpus(79)
    name = str(judge_32b)
    assert describe_weights(ModelFolder(name), 2)[1:] == [f"{name}: 65.5 GB of weights per GPU, plus activations"]
    assert describe_weights(ModelFolder(name), 4, "weights in float32")[2] == (
        f"missing: the weights in float32 of {name}: 131.1 GB per GPU do not fit into 80.0 GB; "
        "use a larger GPU, or a smaller model"
    )
