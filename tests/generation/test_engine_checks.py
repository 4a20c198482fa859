"""Checks before weights are loaded; nvidia-smi is a script with the real one's output."""

import os
import re
from argparse import Namespace
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from test_models import NOT_SERVED, SERVED

from utils.base.errors import UserError
from utils.generation import engines, vllm_engine
from utils.generation.requests import Sampling
from utils.models.adapters import MOST_RANK
from utils.models.loading import longest_sequence


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put an nvidia-smi on the PATH that lists two GPUs of 81559 MiB and supports --id."""

    def install(free: list[int]) -> None:
        lines = ["#!/bin/sh"]
        for index, mebibytes in enumerate(free):
            row = f'echo "{index}, {mebibytes}, 81559"'
            lines.append(f'case "$*" in *--id=*{index}*) {row};; *--id=*) ;; *) {row};; esac')
        (tmp_path / "nvidia-smi").write_text("\n".join(lines) + "\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(vllm_engine, "check_before_fetching", lambda *_, **__: None)  # tests/models/test_memory.py's
    return install


def flags(gpus, utilization, copies=1):
    sizes = {"tensor_parallel_size": gpus, "data_parallel_size": copies, "gpu_memory_utilization": utilization}
    return Namespace(**sizes, dtype="auto", cache_dir=None)


def test_a_gpu_that_another_process_holds_is_named(nvidia_smi):
    nvidia_smi([80000, 30000])
    vllm_engine._check_gpus(flags(1, 0.9), "a-model")  # the busy one is not used
    # 30000 / 1024 = 29.3 of 81559 / 1024 = 79.6 GiB; 0.9 x 79.6 = 71.7
    with pytest.raises(UserError, match=r"GPU 1 has 29\.3 of 79\.6 GiB free, .* asks for 71\.7"):
        vllm_engine._check_gpus(flags(2, 0.9), "a-model")
    vllm_engine._check_gpus(flags(2, 0.3), "a-model")


def test_only_visible_gpus_count(nvidia_smi, monkeypatch):
    nvidia_smi([80000, 30000])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UserError, match="GPU 1 has"):
        vllm_engine._check_gpus(flags(1, 0.9), "a-model")
    with pytest.raises(UserError, match=r"this machine has only 1 GPU$"):
        vllm_engine._check_gpus(flags(2, 0.9), "a-model")


def test_each_copy_of_the_model_has_its_own_gpus(nvidia_smi):
    nvidia_smi([80000, 80000, 80000, 30000])
    vllm_engine._check_gpus(flags(1, 0.9, copies=3), "a-model")
    with pytest.raises(UserError, match="GPU 3 has"):
        vllm_engine._check_gpus(flags(2, 0.9, copies=2), "a-model")
    with pytest.raises(
        UserError, match="--tensor_parallel_size 1 --data_parallel_size 5: this machine has only 4 GPUs"
    ):
        vllm_engine._check_gpus(flags(1, 0.9, copies=5), "a-model")


@pytest.mark.parametrize("answer", ["echo 'No devices were found'; exit 6", "echo '0, [N/A], [N/A]'"])
def test_unreported_gpu_memory_is_left_to_vllm(nvidia_smi, tmp_path, answer):
    """It reports nothing for a part of a GPU (MIG), and some GPUs have no separate memory."""
    nvidia_smi([])
    with open(tmp_path / "nvidia-smi", "a") as script:
        script.write(f"{answer}\n")
    vllm_engine._check_gpus(flags(1, 0.9), "a-model")


def test_the_key_comes_from_the_file_else_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    (tmp_path / "key").write_text("from-file\n")
    assert engines.read_api_key(str(tmp_path / "key")) == "from-file"
    assert engines.read_api_key(None) == "from-environment"


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_answers_are_requested_without_log_probabilities(temperature):
    """vLLM's front end makes an object per token, which would cost most of its speed."""
    pytest.importorskip("vllm")
    for schema in (None, {"type": "object"}):
        params = vllm_engine.sampling_params(Sampling(temperature, 0.95, 10, 1, schema))
        assert params.num_logprobs is None and params.prompt_logprobs is None


@pytest.mark.parametrize(
    ("lowest", "on_gpu", "refusal"),
    [(7.5, True, "this GPU has 7.5"), (8.0, False, "this machine has no GPU"), (8.0, True, None)],
)
def test_batch_invariance_needs_a_gpu_that_has_it(lowest, on_gpu, refusal, monkeypatch):
    monkeypatch.setattr(vllm_engine, "find_capabilities", lambda: {"GPU 0": 9.0, "GPU 1": lowest})
    with pytest.raises(UserError, match=refusal) if refusal else nullcontext():
        vllm_engine._check_batch_invariance(2, on_gpu)


def test_on_a_gpu_vllm_compiles_nothing_with_nvcc_unless_the_user_says_so(monkeypatch):
    monkeypatch.setattr("os.environ", {"VLLM_ALLREDUCE_USE_FLASHINFER": "1"})
    vllm_engine.set_defaults(on_gpu=True, engines=1)
    assert os.environ == {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ALLREDUCE_USE_FLASHINFER": "1"}


ROPES = [
    {"rope_type": "linear", "factor": 4.0}, {"type": "dynamic", "factor": 2.5}, {"type": "mrope", "mrope_section": [2]},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, {"rope_type": "default"},
    {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 100, "low_freq_factor": 1.0,
     "high_freq_factor": 4.0}, {"type": "su", "short_factor": [1.0], "long_factor": [1.0]},
    {"rope_type": "longrope", "factor": 32.0, "short_factor": [1.0], "long_factor": [1.0]},
    {"rope_type": "linear", "factor": None},
    {"full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1.0},
     "sliding_attention": {"rope_type": "default", "rope_theta": 1.0}},
]  # fmt: skip


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["qwen2", "gemma3_text"])
@pytest.mark.parametrize("rope", ROPES)
def test_the_longest_sequence_is_vllms(field, kind, rope):
    config = pytest.importorskip("vllm.config.model")
    from transformers import AutoConfig
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    model_config = AutoConfig.for_model(kind, **{field: {**rope}}, max_position_embeddings=400)
    derived = SimpleNamespace(
        derived_max_model_len_and_key=ModelArchConfigConvertorBase(
            model_config, model_config
        ).derive_max_model_len_and_key()
    )
    longest = longest_sequence(model_config)
    assert config._get_and_verify_max_len(model_config, derived, None, longest, False, None) == longest >= 400
    with pytest.raises(ValueError, match="is greater than the derived max_model_len"):
        config._get_and_verify_max_len(model_config, derived, None, longest + 1, False, None)


@pytest.mark.parametrize("settings", [*NOT_SERVED, *SERVED])
def test_vllm_serves_the_adapters_that_are_not_refused(settings):
    from vllm.config.lora import LoRAConfig
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper.from_dict({"r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], **settings})
    with pytest.raises(ValueError) if settings in NOT_SERVED else nullcontext():
        helper.validate_legal(LoRAConfig(max_lora_rank=MOST_RANK))


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("/scratch/" + "d" * 70, "/tmp"), ("/scratch/" + "é" * 40, "/tmp"), ("/scratch/" + "d" * 61, None)],
)
def test_sockets_are_in_a_folder_with_a_short_name(folder, expected, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", folder)
    monkeypatch.setattr("os.environ", {})
    vllm_engine.set_defaults(on_gpu=True, engines=1)
    assert os.environ.get("VLLM_RPC_BASE_PATH") == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], None),
        (["libgomp: a warning"], None),
        (["(EngineCore pid=7) ERROR 11-26 [core.py:9] torch.OutOfMemoryError: CUDA out of memory"], "OutOf.*memory"),
        (["ValueError: first", "RuntimeError: Engine core failed. See root cause above."], "ValueError: first"),
        (["KeyError: 'a'", "During handling", "ValueError: \x1b[1mthe last\x1b[0m"], "ValueError: .*the last"),
    ],
)
def test_the_last_message_of_an_engine(tmp_path, lines, expected):
    (tmp_path / "log").write_text("\n".join(lines))
    message = vllm_engine.last_message(str(tmp_path / "log"))
    assert re.fullmatch(f"{expected}.*", message) if expected else message is None
