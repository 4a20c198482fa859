"""A dry run's report on the machine. Files, models and disks are real; GPUs are not.

Only torch.cuda's is_available, device_count, mem_get_info and get_device_properties are replaced.
"""

from argparse import Namespace
from types import SimpleNamespace

import pytest
from hollow_models import save_hollow_qwen
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder

from utils.models.machine import Loaded, describe_disk, describe_engine, describe_weights


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A real model: Qwen 2 with two layers, two heads of 64, tied embeddings and 4096 tokens."""
    return save_tiny_chat(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def judge_32b(tmp_path_factory):
    """A config and hollow weights of a 32B model."""
    return save_hollow_qwen(tmp_path_factory.mktemp("judge"), "32B")


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Add GPUs with this much total and free memory in GB, and what Triton needs to compile for them."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name, scheme: str(tmp_path))
    monkeypatch.setenv("CC", "cat")

    def install(*free, total=80):
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: len(free))
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda i: (int(free[i] * 10**9), int(total * 10**9)))
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda i: SimpleNamespace(name=f"Card {i}"))

    return install


def describe(folder, length=4096, limit=None, **flags):
    defaults = {"tensor_parallel_size": 1, "data_parallel_size": 1, "gpu_memory_utilization": 0.9, "dtype": "auto"}
    flags = defaults | flags
    return describe_engine(Namespace(cache_dir=None, **flags), [Loaded(str(folder), length, limit, flags["dtype"])])


def test_without_a_gpu_the_required_size_is_reported(judge_32b):
    # (65,527,752,704 + 3 GiB + 4096 x 256 KiB) / 0.9 = 77.6 GB
    assert describe(judge_32b) == [
        "note: there is no GPU here, so GPU memory could not be checked",
        f"{judge_32b}: needs 1 GPU of 77.6 GB at --gpu_memory_utilization 0.9: 65.5 GB of weights, 3.2 for vLLM itself "
        "(a guess; up to 4.5, or 6.4 on several GPUs), 1.07 for a request of 4096 tokens (256 KiB per token)",
    ]
    [_, line] = describe(judge_32b, tensor_parallel_size=2, data_parallel_size=2, dtype="float32")
    assert ": needs 4 GPUs of 77.6 GB at " in line and "65.5 GB of weights" in line


def test_gpus_that_a_model_fits_on(gpus, tiny):
    gpus(79, 78.5, 1)
    lines = describe(tiny, 4000, 4096, tensor_parallel_size=2)
    assert lines[:4] == [
        "GPU 0: Card 0, 79.0 of 80.0 GB free",
        "GPU 1: Card 1, 78.5 of 80.0 GB free",
        "GPU 2: Card 2, 1.0 of 80.0 GB free",
        "C compiler: cat, with Python's headers",
    ]
    # 0.9 x 80 - 3 GiB leaves 68.8 GB less 1 MB of weights. Each GPU holds one of two heads: 2 x 2 x 64 x 2 bytes.
    assert lines[4].endswith(" for a request of 4000 tokens (0.5 KiB per token)")
    assert lines[5].startswith(f"{tiny}: 68.8 GB are left for the KV cache: ")
    assert lines[5].endswith(" requests of 4000 tokens at a time, longest --max_model_len 4096") and len(lines) == 6


@pytest.mark.parametrize(
    ("total", "length", "flags", "expected"),
    [
        # 72,000,000,000 - 65,527,752,704 - 3 GiB are 775 blocks of 16 tokens with 262,144 bytes each.
        (80, 6192, 1, "{}: 3.3 GB are left for the KV cache: 2 requests of 6192 tokens at a time, longest "
         "--max_model_len 12400"),
        (80, 12_400, 1, "{}: 3.3 GB are left for the KV cache: 1 request of 12400 tokens at a time, longest "
         "--max_model_len 12400"),
        (80, 12_401, 1, "missing: memory for {} on GPUs of 80.0 GB; use larger GPUs, or more of them "
         "(--tensor_parallel_size), or give --max_model_len 12400"),
        # 72,000,000,000 - 32,763,876,352 - 3 GiB are 17,173 blocks of 2,097,152 bytes.
        (80, 4096, 2, "{}: 36.0 GB are left for the KV cache: 67 requests of 4096 tokens at a time, longest "
         "--max_model_len 32768"),
        # A GPU sold as 40 GB has 2.2 GB left.
        (42.4, 4096, 2, "{}: 2.2 GB are left for the KV cache: 4 requests of 4096 tokens at a time, longest "
         "--max_model_len 16592"),
        (80, 4096, 3, "missing: --tensor_parallel_size 3: does not divide the model's 40 attention heads"),
    ],
)  # fmt: skip
def test_the_judge_on_gpus(gpus, judge_32b, total, length, flags, expected):
    gpus(*[total] * flags, total=total)
    assert describe(judge_32b, length, 32_768, tensor_parallel_size=flags)[-1] == expected.format(judge_32b)


def test_gpus_that_are_too_few_or_in_use(gpus, tiny):
    gpus(79, 71)
    # 71e9 / 2^30 = 66.1, 80e9 / 2^30 = 74.5, 0.9 of it 67.1
    in_use = "missing: GPU 1 has 66.1 of 74.5 GiB free, --gpu_memory_utilization 0.9 asks for 67.1; another process"
    few = "missing: --tensor_parallel_size 2 --data_parallel_size 2: this machine has only 2 GPUs"
    lines = describe(tiny, tensor_parallel_size=2, data_parallel_size=2)
    assert lines[3] == few and lines[4].startswith(in_use)
    lines = describe(tiny, tensor_parallel_size=2, gpu_memory_utilization=0.8)
    assert not any(line.startswith("missing") for line in lines)


def test_gpus_that_the_driver_refuses(gpus, tiny, monkeypatch):
    gpus(79)

    def refuse(index):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore lines")

    monkeypatch.setattr("torch.cuda.mem_get_info", refuse)
    problem = "CUDA error: all CUDA-capable devices are busy or unavailable"
    assert describe(tiny) == [f"missing: the GPUs cannot be used: {problem}; see nvidia-smi"]


@pytest.mark.parametrize(
    ("capability", "dtype", "expected"),
    [
        ("7.0", "auto", "missing: {} 7.0, but torch and vLLM need at least 7.5; "),
        ("7.5", "auto", "note: {} 7.5, but bfloat16 and FlashAttention need at least 8.0: with --dtype auto, vLLM "),
        ("7.5", "bfloat16", "missing: {} 7.5, but bfloat16 and FlashAttention need at least 8.0; use another --dtype "),
        *((capability, "bfloat16", None) for capability in ("8.0", "12.0", "[N/A]")),
    ],
)  # fmt: skip
def test_older_gpus(gpus, tiny, monkeypatch, tmp_path, capability, dtype, expected):
    gpus(79)
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\necho "0, Card 0, {capability}"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    lines = [line for line in describe(tiny, dtype=dtype) if line.startswith(("missing: ", "note: "))]
    assert len(lines) == (expected is not None)
    assert all(line.startswith(expected.format("GPU 0 (Card 0) has compute capability")) for line in lines)


def test_a_gpu_needs_a_compiler(gpus, tiny, monkeypatch, tmp_path):
    gpus(79)
    (tmp_path / "Python.h").unlink()
    headers = f"missing: {tmp_path}/Python.h, which Triton needs on a GPU; install Python's headers (python3-dev)"
    assert describe(tiny)[1] == headers
    what, remedy = "missing: a C compiler, which Triton needs on a GPU", "load a module that has one, or set CC"
    for words in ("missing-cc", "", "cat -n"):
        monkeypatch.setenv("CC", words)
        assert describe(tiny)[1] == f"{what}: CC={words}: no such program; {remedy}"
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(tiny)[1] == f"{what}: no gcc or clang; {remedy}"


def test_models_that_transformers_loads(gpus, tmp_path, judge_32b):
    encoder = str(save_tiny_encoder(tmp_path / "encoder"))
    assert describe_weights(encoder, None, 4) == [
        "note: there is no GPU here, so GPU memory could not be checked",
        f"{encoder}: 0.0 GB of weights per GPU, plus activations",
    ]
    gpus(79)
    name = str(judge_32b)
    assert describe_weights(name, None, 2)[2:] == [f"{name}: 65.5 GB of weights per GPU, plus activations"]
    assert describe_weights(name, None, 4, "weights in float32")[3] == (
        f"missing: the weights in float32 of {name}: 131.1 GB per GPU do not fit into 80.0 GB; "
        "use a larger GPU, or a smaller model"
    )


def test_a_disk_without_room(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10**9))
    line, path = f"disk of {tmp_path}: 1.0 GB free", str(tmp_path / "new/rag.json")
    assert describe_disk(path) == [line]
    assert describe_disk(path, 832_001) == [f"{line}, the output takes up to 1 MB"]
    problem = f"missing: {line}, the output takes up to 2,000 MB; free some space, or put the output on another disk"
    assert describe_disk(path, 2_000_000_000) == [problem]
    assert list(tmp_path.iterdir()) == []
