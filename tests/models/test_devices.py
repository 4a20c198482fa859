"""A GPU that torch cannot use ends a run; vLLM's settings if it can.

The tests need no GPU: nvidia-smi is a script with the real one's output.
"""

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch
from test_train_planner import sample_records
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder
from zygote import LAUNCHED

from retrieval.encoder import pick_devices
from utils.base.errors import UserError
from utils.models.devices import check_devices, has_gpu, settle_dtype

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
CARD = "GPU 0: NVIDIA A100-SXM4-80GB"
NVIDIA_SMI = f"""#!/bin/sh
case "$*" in
    -L) echo "{CARD} (UUID: GPU-5a80c0de)";;
    *driver_version*) echo 535.104.05;;
    *index,name,compute_cap*) echo "0, NVIDIA A100-SXM4-80GB, {{0}}"; echo "1, NVIDIA H100 80GB HBM3, 9.0";;
    *compute_cap*) echo {{0}}; echo 9.0;;
    *) echo "0, 80000, 81920"; echo "1, 81000, 81559";;
esac
"""
TWO_GPUS = NVIDIA_SMI.format("8.0")
MEANT = '\n  to use the CPU, set CUDA_VISIBLE_DEVICES="" (or add --device cpu, if the script has it)'
CPU_BUILD = "this is torch's CPU build; for the GPU run: make setup REQUIREMENTS=requirements.txt"
SETTINGS = ("VLLM_USE_FLASHINFER_SAMPLER", "VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_NO_USAGE_STATS")
without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")


def install(folder, script):
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(0o755)


@pytest.fixture(autouse=True)
def no_word_of_gpus(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", *SETTINGS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put an nvidia-smi on the PATH that lists two GPUs, or a given script."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    return lambda script=TWO_GPUS: install(tmp_path / "bin", script)


@pytest.fixture
def unseen(monkeypatch):
    """Torch finds no GPU, as without a driver or with an old one; it is built for this version of CUDA."""

    def set_up(cuda):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.setattr("torch.version.cuda", cuda)

    return set_up


def refusal():
    with pytest.raises(UserError) as caught:
        check_devices()
    return str(caught.value)


# What is refused


def test_a_cpu_build_on_a_machine_with_a_gpu(nvidia_smi, unseen):
    nvidia_smi()
    unseen(None)
    assert refusal() == f"this machine has {CARD}, but torch finds no GPU\n  {CPU_BUILD}{MEANT}"
    with pytest.raises(UserError, match="but torch finds no GPU"):
        has_gpu()
    for device in ("auto", "cuda"):
        with pytest.raises(UserError, match="but torch finds no GPU"):
            pick_devices(device)
    assert pick_devices("cpu") == ["cpu"]


def test_a_driver_that_is_too_old(nvidia_smi, unseen, monkeypatch):
    nvidia_smi()
    unseen("13.0")
    what = "torch is built for CUDA 13.0; CUDA 13 needs driver 580 or newer, or cuda-compat"
    what += "; this driver: 535.104.05 (see docs/gpu.md)"
    assert refusal() == f"this machine has {CARD}, but torch finds no GPU\n  {what}{MEANT}"
    for visible in ("7", "0,1", "GPU-5a80c0de", "MIG-5a80c0de"):  # only the first two exist, so it may be this one
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert f"this driver: 535.104.05, CUDA_VISIBLE_DEVICES: {visible} (see docs/gpu.md)\n" in refusal()


def test_a_gpu_that_slurm_gave(nvidia_smi, unseen, monkeypatch):
    """The driver does not answer, or the container lacks it."""
    nvidia_smi("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver'\nexit 9\n")
    unseen("13.0")
    check_devices()
    for count in ("", "0"):
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", count)
        check_devices()
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert refusal().startswith("SLURM allocated GPUs to this job (2), but torch finds no GPU\n")
    assert "this driver: unknown, CUDA_VISIBLE_DEVICES: 0,1 (see" in refusal()


@pytest.mark.parametrize("script", ["echo 'No devices found.'", "exit 9", None])
def test_no_gpu_is_none(script, nvidia_smi, unseen, monkeypatch, tmp_path):
    if script:
        nvidia_smi(f"#!/bin/sh\n{script}\n")
    else:
        monkeypatch.setenv("PATH", str(tmp_path))  # without this machine's own, if any
    unseen("13.0")
    assert has_gpu() is False
    assert pick_devices("auto") == ["cpu"]


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "-1,0"])
def test_the_cpu_is_requested(visible, nvidia_smi, unseen, monkeypatch):
    nvidia_smi()
    unseen("13.0")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert has_gpu() is False


@pytest.mark.parametrize(("capability", "is_refused"), [("7.0", True), ("7.5", False)])
def test_a_card_that_is_too_old(capability, is_refused, nvidia_smi, monkeypatch):
    nvidia_smi(NVIDIA_SMI.format(capability))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    if not is_refused:
        assert pick_devices("auto") == ["cuda:0", "cuda:1"] and pick_devices("cuda:0") == ["cuda:0"]
        assert not torch.backends.cuda.cudnn_sdp_enabled()  # its attention has faults
        return
    first, second = refusal().splitlines()
    assert first == ("GPU 0 (NVIDIA A100-SXM4-80GB) has compute capability 7.0, but torch and vLLM need at least 7.5")
    assert "CUDA_VISIBLE_DEVICES" in second


# The scripts


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {"chat": save_tiny_chat(folder / "chat"), "encoder": save_tiny_encoder(folder / "encoder")}


@pytest.fixture
def scripts(models, tmp_path):
    """A command of each kind of script, and its output."""
    records = sample_records("train", 2)
    (tmp_path / "train.json").write_text(json.dumps(records))
    (tmp_path / "answers.json").write_text(json.dumps({r["id"]: [{"output": "An answer."}] for r in records}))
    chat, out = models["chat"], tmp_path / "out"
    files = ["--inputs_addr", tmp_path / "train.json", "--output_addr", out]
    short = ["--num_contexts", 1, "--unranked", "--max_steps", 1, "--save_steps", 1, "--gradient_accumulation_steps", 1]
    scores = ["--response_addr", tmp_path / "answers.json", "--score_addr", out]
    return {
        "rank": ["retrieval/rank_dataset.py", "--input_dataset_addr", SAMPLE, "--output_dataset_addr", out,
                 "--model_name", models["encoder"], "--max_length", 64],
        "train": ["train_planner.py", *files[:2], "--model_addr", chat, "--output_dir", out, *short],
        "answer": ["baselines.py", *files, "--model_addr", chat],
        "plan and answer": ["planpers.py", *files, "--model_addr", chat, "--planner_model", chat, "--unranked"],
        "judge": ["evaluate_responses.py", *files[:2], "--evaluator_llm", chat, *scores],
    }  # fmt: skip


NAMES = ["rank", "train", "answer", "plan and answer", "judge"]


@without_a_gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_script_ends_before_it_loads_a_model(name, scripts, nvidia_smi, monkeypatch, tmp_path):
    nvidia_smi()
    for variable in LAUNCHED:
        monkeypatch.delenv(variable, raising=False)
    script, *words = map(str, scripts[name])
    with pytest.raises(UserError, match=f"^this machine has {CARD}, but torch finds no GPU"):
        import_module(script.removesuffix(".py").replace("/", ".")).main(words)
    made = [path for path in (*tmp_path.glob("out*"), *tmp_path.glob("out/*")) if path.is_file()]
    assert [path.name for path in made if path.suffix != ".lock"] == []


# vLLM's settings


def test_vllm_knows_these_settings(monkeypatch):
    from vllm import envs
    from vllm.usage import usage_lib

    monkeypatch.setattr(usage_lib, "_USAGE_STATS_ENABLED", None)
    monkeypatch.setattr(usage_lib, "_USAGE_STATS_DO_NOT_TRACK_PATH", "/none")
    monkeypatch.delenv("VLLM_DO_NOT_TRACK", raising=False)
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    assert (envs.VLLM_USE_FLASHINFER_SAMPLER, envs.VLLM_ALLREDUCE_USE_FLASHINFER) == (True, True)
    for name, value in zip(SETTINGS, ("0", "0", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert (envs.VLLM_USE_FLASHINFER_SAMPLER, envs.VLLM_ALLREDUCE_USE_FLASHINFER) == (False, False)
    assert not usage_lib.is_usage_stats_enabled()


@without_a_gpu
@pytest.mark.parametrize(
    ("can", "taken"),
    [({"avx512_bf16": True}, "auto"), ({"bf16": True}, "auto"), ({"avx512_f": True}, "float32"), ({}, "float32")],
)
def test_a_cpu_without_bfloat16_uses_float32_by_default(monkeypatch, can, taken):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    assert settle_dtype("auto") == taken
    assert [settle_dtype(one) for one in ("bfloat16", "float16", "float32")] == ["bfloat16", "float16", "float32"]
