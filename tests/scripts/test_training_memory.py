"""Memory and disk of a training: out-of-memory errors give a remedy, and only files needed later are kept."""

import json
import os
from pathlib import Path

import pytest
from lamp_samples import read_sample
from tiny_chat import sample_records, save_tiny_chat
from tiny_t5 import save_tiny_t5

from utils import train_generator
from utils.benchmarks import tasks
from utils.training.launch import effective_batch_size

pytestmark = pytest.mark.engine
NOT_REPEATED = ("eval_seconds", "train_runtime")
SCRIPTS = {"planner": "train_planner", "fused": "utils/train_generator", "lora": "utils/train_generator"}
FLAGS = {"planner": "--max_seq_length", "fused": "--max_input_length", "lora": "--max_input_length"}
TOO_LITTLE = """
import torch, transformers
def training_step(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
transformers.Trainer.training_step = training_step
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Models with dropout, and questions of different lengths."""
    folder = tmp_path_factory.mktemp("data")
    save_tiny_chat(folder / "chat")
    save_tiny_t5(folder / "t5", dropout_rate=0.1)
    (folder / "planner.json").write_text(json.dumps(sample_records("train", 8)))
    (folder / "validation.json").write_text(json.dumps(sample_records("validation", 2)))
    (folder / "lamp.json").write_text(json.dumps(read_sample("LaMP-4", "train")))
    return folder


def flags_of(data, output, kind, size=2):
    flags = {
        "inputs_addr": data / f"{'planner' if kind == 'planner' else 'lamp'}.json",
        "validation_addr": data / f"{'validation' if kind == 'planner' else 'lamp'}.json",
        "model_addr": data / ("t5" if kind == "fused" else "chat"),
        "output_dir": output,
        "num_contexts": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": 2,
        **{
            "planner": {"max_steps": 4, "save_steps": 2, "eval_generate": 1},
            "fused": {"fusion": "decoder", "epochs": 2, "max_target_length": 32},
            "lora": {"lora_rank": 4, "epochs": 2, "max_target_length": 32},
        }[kind],
    }
    return ["--unranked", *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]


def learn(warm, data, output, kind, code=0, **setup):
    run = warm.run(SCRIPTS[kind], flags_of(data, output, kind), **setup)
    assert run.returncode == code, run.errors
    return run.errors


def log_of(output):
    lines = (output / "training_log.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in NOT_REPEATED} for line in lines]


# The batch


def test_default_batch_is_the_papers_64_questions_per_step():
    needed = ["--inputs_addr", "a", "--output_dir", "b", "--model_addr", "c"]
    for words, batch in (
        ("", (16, 4)),
        ("--fusion decoder", (4, 16)),
        ("--lora_rank 8", (1, 64)),
        ("--fusion decoder --gradient_accumulation_steps 4", (4, 4)),
    ):
        args = train_generator.build_parser().parse_args([*needed, *words.split()])
        args = train_generator.with_defaults(args, tasks()["LaMP-4"])
        assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == batch
        assert effective_batch_size(args) == batch[0] * batch[1]


# Out of memory


@pytest.mark.parametrize("kind", SCRIPTS)
def test_out_of_memory_gives_flags_with_which_the_run_resumes(kind, data, warm, tmp_path):
    said = learn(warm, data, tmp_path / "out", kind, code=2, do=TOO_LITTLE)
    [*_, told, remedy] = said.splitlines()
    assert "error: out of memory: a batch of shape (2, " in told and "on cpu" in told
    assert remedy == "  --per_device_train_batch_size 1 --gradient_accumulation_steps 4"
    run = warm.run(SCRIPTS[kind], flags_of(data, tmp_path / "out", kind, size=1), do=TOO_LITTLE)
    assert run.errors.splitlines()[-1] == f"  use a GPU with more memory, or a smaller {FLAGS[kind]}"
    learn(warm, data, tmp_path / "out", kind)


# The allocator


def test_allocator_has_expandable_segments_in_training_and_ranking_but_not_with_vllm(data, warm, tmp_path):
    told = "import atexit, os; atexit.register(lambda: print('conf', os.environ.get('PYTORCH_ALLOC_CONF')))"
    environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    own = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    files = ["--inputs_addr", data / "lamp.json", "--output_addr", tmp_path / "out.json", "--dry_run"]
    ranked = ["--input_dataset_addr", data / "lamp.json", "--output_dataset_addr", tmp_path / "r.json"]
    ranked += ["--ranker", "bm25"]
    for script, words, variables, expected in (
        ("utils/train_generator", [*flags_of(data, tmp_path / "fused", "fused"), "--dry_run"], {}, "expandable_segme"),
        ("train_planner", [*flags_of(data, tmp_path / "p", "planner"), "--dry_run"], {}, "expandable_segments"),
        ("retrieval/rank_dataset", ranked, {}, "expandable_segments:True"),
        ("retrieval/rank_dataset", ranked, own, "max_split_size_mb:64"),
        ("retrieval/rank_dataset", ranked, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, "None"),  # the old name
        ("baselines", ["--model_addr", data / "chat", *files], {}, "None"),
    ):
        run = warm.run(script, words, live_in=(str(Path.cwd()), environment | variables), do=told)
        assert run.printed.splitlines()[-1].startswith(f"conf {expected}"), (script, run.errors)


# The disk


@pytest.mark.parametrize("kind", SCRIPTS)
def test_finished_training_keeps_weights_but_no_optimizer_states(kind, data, warm, tmp_path):
    output = tmp_path / "out"
    seen = "import shutil, utils.training.launch as script; drop = script.drop_states"
    seen += f"; copy = lambda folder: shutil.copytree(folder, '{tmp_path}/before', symlinks=True)"
    seen += "; script.drop_states = lambda folder: (copy(folder), drop(folder))"
    learn(warm, data, output, kind, do=seen)
    before, after = ({path.relative_to(folder): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
                     for folder in (tmp_path / "before", output))  # fmt: skip
    gone = {path.name for path in before.keys() - after.keys()} - {"training_log.jsonl.lock"}
    assert gone == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    assert after.keys() - before.keys() <= {Path("manifest.json")}
    # If a run was killed before it deleted them, the same command does so.
    (output / "best/optimizer.pt").write_bytes(b"left")
    run = warm.run(SCRIPTS[kind], flags_of(data, output, kind))
    assert "already finished; skipped" in run.printed and not (output / "best/optimizer.pt").exists()
