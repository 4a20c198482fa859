"""Real training of the planner on a tiny random model, with one process and with two."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_chat import sample_records, save_tiny_chat, save_tiny_gemma
from transformers import GptOssConfig

from utils.models.base_model import choose_attention
from utils.models.model_folder import ModelFolder

ROOT = Path(__file__).resolve().parents[2]
TWO = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
NOT_REPEATED = ("eval_seconds", "train_runtime")  # depend on the machine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tiny model and eight questions with two short posts each, four more for validation."""
    folder = tmp_path_factory.mktemp("data")
    save_tiny_chat(folder / "model")
    (folder / "train.json").write_text(json.dumps(sample_records("train", 8)))
    (folder / "validation.json").write_text(json.dumps(sample_records("validation", 4)))
    return folder


def flags_of(data, output, **more):
    flags = {
        "model_addr": data / "model",
        "inputs_addr": data / "train.json",
        "validation_addr": data / "validation.json",
        "output_dir": output,
        "num_contexts": 2,
        "learning_rate": 1e-2,
        **more,
    }
    return ["--unranked", *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]


def log_of(output):
    lines = (output / "training_log.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in NOT_REPEATED} for line in lines]


def losses_of(output):
    return [entry["loss"] for entry in log_of(output) if "loss" in entry]


def learn(warm, *arguments, code=0, **setup):
    """Run train_planner.py as a fork of the warm process, and return its output."""
    run = warm.run("train_planner", arguments, **setup)
    assert run.returncode == code and "Traceback" not in run.errors, run.errors
    return run.printed + run.errors


# Single and multiple processes


@pytest.fixture(scope="module")
def uninterrupted(data, warm, tmp_path_factory):
    output = tmp_path_factory.mktemp("uninterrupted") / "planner"
    printed = learn(warm, *short_run(data, output))
    return output, printed


def short_run(data, output, **more):
    """Flags for eight steps of two sequences, with a checkpoint every third step, in the middle of an epoch."""
    settings = {"max_steps": 8, "save_steps": 3, "eval_generate": 1, "gradient_accumulation_steps": 2, **more}
    return flags_of(data, output, **settings)


def test_figures_of_a_run(uninterrupted):
    output, printed = uninterrupted
    log = log_of(output)
    assert [entry["step"] for entry in log if "loss" in entry] == list(range(1, 9))
    assert [entry["step"] for entry in log if "eval_loss" in entry] == [3, 6, 8]  # the last step as well
    assert {path.name for path in output.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-6", "checkpoint-8"}
    assert len({path.stat().st_mode for path in output.glob("checkpoint-*/*") if path.is_file()}) == 1
    best = min((entry for entry in log if "eval_loss" in entry), key=lambda entry: entry["eval_loss"])
    assert (output / "best").readlink() == Path(f"checkpoint-{best['step']}")
    # Linear decay to zero, after a warm-up of 8 // 10 = 0 steps.
    rates = [entry["learning_rate"] for entry in log if "loss" in entry]
    assert rates == pytest.approx([1e-2 * (8 - step) / 8 for step in range(8)])
    assert "1 per device x 2 accumulation steps x 1 process = 2 sequences per step (paper: 32)" in printed
    assert f"best is checkpoint-{best['step']}, validation loss {best['eval_loss']:.4f}" in printed
    assert "attention: sdpa" in printed and "q_proj, v_proj" in printed


# Code for train_planner.py: each process records the sequences that it computes, in order.
SEEN = """
import json, os
from utils.training.trainer import PlannerTrainer
compute_loss = PlannerTrainer.compute_loss

def write_down(self, model, inputs, *args, **kwargs):
    with open(f"{folder}/seen-{{os.environ.get('RANK', 0)}}.jsonl", "a") as file:
        print(json.dumps(inputs["input_ids"].tolist()), file=file)
    return compute_loss(self, model, inputs, *args, **kwargs)

PlannerTrainer.compute_loss = write_down
"""


def seen_by(folder, rank):
    """Return the token ids of each sequence that a process computed, in order."""
    return [sequence for line in open(folder / f"seen-{rank}.jsonl") for sequence in json.loads(line)]


def test_two_processes_match_one_with_twice_the_accumulation(data, warm, tmp_path):
    """Without dropout, which differs between processes. Each step is an epoch of eight questions."""
    for name, setup, accumulated in [("one", {}, 8), ("two", {"be_two": None}, 4)]:
        (tmp_path / name).mkdir()
        more = {"lora_dropout": 0, "max_steps": 4, "save_steps": 4, "gradient_accumulation_steps": accumulated}
        flags = short_run(data, tmp_path / name / "planner", **more)
        printed = learn(warm, *flags, **setup, do=SEEN.format(folder=tmp_path / name))
    batch = "1 per device x 4 accumulation steps x 2 processes = 8 sequences per step"
    assert printed.count(batch) == 1  # only the main process prints
    for figures in (losses_of, lambda output: [log_of(output)[-2]["eval_loss"]]):
        alone, shared = (figures(tmp_path / name / "planner") for name in ("one", "two"))
        assert alone == pytest.approx(shared, rel=1e-2)

    # Each epoch has each question once, in an order of its own. Sequences of similar length are computed at once.
    alone, ranks = seen_by(tmp_path / "one", 0), [seen_by(tmp_path / "two", rank) for rank in (0, 1)]
    assert len({len(sequence) for sequence in alone}) > 4
    shared = [sequence for pair in zip(*ranks, strict=True) for sequence in pair]
    epochs = [shared[start : start + 8] for start in (0, 8, 16, 24)]
    assert all(sorted(epoch) == sorted(alone[:8]) for epoch in epochs) and epochs[0] != epochs[1] != epochs[2]
    for first in (epoch[:4] for epoch in epochs):
        assert sorted(first, key=len, reverse=True) == first


def test_loss_does_not_depend_on_the_batch_size(data, warm, tmp_path):
    """Steps of eight questions, with short and long targets."""
    records = json.loads((data / "train.json").read_text())
    for record in records[::2]:
        del record["rubric_aspects"][1:]
    (tmp_path / "train.json").write_text(json.dumps(records))
    for name, sizes in [("single", (1, 8)), ("batches", (2, 4))]:
        more = dict(zip(("per_device_train_batch_size", "gradient_accumulation_steps"), sizes, strict=True))
        more |= {"lora_dropout": 0, "max_steps": 4, "save_steps": 4, "inputs_addr": tmp_path / "train.json"}
        learn(warm, *short_run(data, tmp_path / name, **more))
    assert losses_of(tmp_path / "batches") == pytest.approx(losses_of(tmp_path / "single"), rel=5e-4)


def test_two_processes_save_one_checkpoint_on_a_signal_and_resume(data, warm, tmp_path):
    """The launcher passes the signal on. Each process resumes with its own random state, for dropout."""
    flags = {name: short_run(data, tmp_path / name, max_steps=4, save_steps=4) for name in ("whole", "stopped")}
    learn(warm, *flags["whole"], be_two=None)
    command = [sys.executable, *TWO, "train_planner.py", *flags["stopped"]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    log, deadline = tmp_path / "stopped/training_log.jsonl", time.monotonic() + 600
    while not (log.exists() and '"step": 1' in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=3600)
    (step,) = re.findall(r"^stopped after step (\d); checkpoint-\1 is kept, run the same", printed, re.M)  # once
    checkpoint = tmp_path / f"stopped/checkpoint-{step}"
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert f"resuming from {checkpoint}" in learn(warm, *flags["stopped"], be_two=None)
    assert log_of(tmp_path / "stopped") == log_of(tmp_path / "whole")


# Only the second process: NaN gradients after the second step, and its 15 minutes are over after the first.
SECOND_ONE = """
import os, torch
from utils.training.trainer import PlannerTrainer
from utils.training import recorder
from utils.models.model_folder import ModelFolder
learn = PlannerTrainer.learn

def spoil(self, *arguments):
    weight = next(weight for weight in self.model.parameters() if weight.requires_grad)
    weight.register_hook(lambda gradient: gradient * (float("nan") if self.state.global_step == 2 else 1))
    recorder.INTERIM_SECONDS = 0
    return learn(self, *arguments)

if os.environ["RANK"] == "1":
    PlannerTrainer.learn = spoil
"""


def test_nan_gradients_of_one_process_end_both(data, warm, tmp_path):
    """If the 15 minutes of one process are over, both save."""
    outputs = {name: short_run(data, tmp_path / name, max_steps=4, save_steps=4) for name in ("whole", "spoiled")}
    learn(warm, *outputs["whole"], be_two=None)
    # 1 is the launcher's exit code after an error.
    printed = learn(warm, *outputs["spoiled"], code=1, be_two=None, do=SECOND_ONE)
    assert printed.count("step 3: the gradient norm is nan, so training cannot continue") == 1
    assert [path.name for path in (tmp_path / "spoiled").glob("checkpoint-*")] == ["checkpoint-2"]
    assert "resuming from" in learn(warm, *outputs["spoiled"], be_two=None)
    assert log_of(tmp_path / "spoiled") == log_of(tmp_path / "whole")


@pytest.mark.parametrize(("save", "checkpointing"), [(save_tiny_chat, False), (save_tiny_gemma, True)])
def test_only_target_positions_are_projected_to_the_vocabulary(save, checkpointing, tmp_path):
    """Loss and gradients, in double precision, match the plain formula over all logits, also with Gemma's caps."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from utils.models.base_model import NO_LOSS, target_loss

    save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False)).train()
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(5, 50, (2, 40), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(ids, NO_LOSS)
    labels[0, 30:], labels[1, 20:25] = ids[0, 30:], ids[1, 20:25]
    mask = torch.ones_like(ids)
    mask[1, 25:] = 0  # padding
    weights, projected = [weight for weight in model.parameters() if weight.requires_grad], []
    hook = model.get_output_embeddings().register_forward_hook(lambda *called: projected.append(called[-1].shape[:2]))
    loss, num_right = target_loss(model, labels=labels, input_ids=ids, attention_mask=mask)
    gradients = torch.autograd.grad(loss, weights)
    hook.remove()
    assert projected == [(1, 15)]  # ten in the first sequence and five in the second
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    likelihoods = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    plain = -likelihoods[labels[:, 1:] != NO_LOSS].sum()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
    for ours, theirs in zip(gradients, torch.autograd.grad(plain, weights), strict=True):
        assert (ours - theirs).norm() <= 1e-6 * theirs.norm() > 0
    assert num_right == (logits.argmax(-1) == labels[:, 1:]).sum()


# Starting over


def test_earlier_run_is_deleted_when_training_begins_and_other_files_are_kept(tmp_path):
    from transformers import TrainerState

    from utils.training.checkpoints import Run
    from utils.training.recorder import Recorder

    for name in ("checkpoint-3", "checkpoint-6", "checkpoint-3-backup", "plots"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "best").symlink_to("checkpoint-3")
    (tmp_path / "training_log.jsonl").write_text('{"step": 1, "loss": 3.0}\n')
    replaced = [tmp_path / "checkpoint-3", tmp_path / "checkpoint-6"]
    recorder = Recorder(Run(tmp_path, None, None, replaced), {"settings": {"seed": 1}}, None, None)
    state = TrainerState(is_world_process_zero=True, max_steps=8)
    recorder.on_train_begin(None, state, None)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"checkpoint-3-backup", "plots", "training_log.jsonl", "manifest.json"}
    assert (tmp_path / "training_log.jsonl").read_text() == ""
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"settings": {"seed": 1}}


def test_progress_moves_within_a_step(tmp_path, monkeypatch, capsys):
    from transformers import TrainerState

    from utils.base import progress
    from utils.training.checkpoints import Run
    from utils.training.recorder import Recorder

    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    recorder = Recorder(Run(tmp_path, None, None, []), {"settings": {}}, None, None)
    state, args = TrainerState(is_world_process_zero=True, max_steps=3), SimpleNamespace(gradient_accumulation_steps=4)
    recorder.on_train_begin(args, state, None)
    recorder.on_substep_end(args, state, None)
    recorder.on_substep_end(args, state, None)
    state.log_history.append({"loss": 1.0})
    recorder.on_log(args, state, None)
    lines = ["0/3 steps", "0/3 steps, batches 1/4", "0/3 steps, batches 2/4", "1/3 steps, batches 0/4, loss 1.000"]
    assert capsys.readouterr().err.splitlines() == lines


def test_unknown_lora_module_is_named_and_the_earlier_run_is_kept(uninterrupted, data, warm):
    output, _ = uninterrupted
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    flags = [*short_run(data, output, seed=1), "--lora_target_modules", "q_proj", "nosuch", "--overwrite"]
    assert f"error: --lora_target_modules: {data}/model has no module nosuch" in learn(warm, *flags, code=2)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


@pytest.mark.parametrize(
    ("version", "bf16", "qwen", "capped", "sinks"),
    [
        ("2.8.0", True, "flash_attention_2", "flash_attention_2", "eager"),
        ("2.5.0", True, "flash_attention_2", "eager", "eager"),
        ("2.8.0", False, "sdpa", "eager", "eager"),
        (None, True, "sdpa", "eager", "eager"),
    ],
)
def test_choice_of_attention(data, gemma, tmp_path, monkeypatch, capsys, version, bf16, qwen, capped, sinks):
    """Choose no attention that ignores a cap on attention scores, and no FlashAttention in fp32.

    For gpt-oss, transformers would download FlashAttention 3 from the hub.
    """
    GptOssConfig().save_pretrained(tmp_path)
    monkeypatch.setattr("utils.models.base_model.is_flash_attn_2_available", lambda: version is not None)
    monkeypatch.setattr(
        "utils.models.base_model.is_flash_attn_greater_or_equal", lambda least: (version or "0") >= least
    )
    assert choose_attention(bf16, str(data / "model"), {}) == qwen
    assert capsys.readouterr().err == ""
    assert choose_attention(bf16, str(gemma), {}) == capped
    note = f"note: {gemma}: sdpa would leave out its attn_logit_softcapping; using eager attention\n"
    assert capsys.readouterr().err == (note if capped == "eager" else "")
    assert choose_attention(bf16, str(tmp_path), {}) == sinks


# Gemma's caps on logits


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return save_tiny_gemma(tmp_path_factory.mktemp("gemma"))


def load(folder, attention, **settings):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, **settings).eval()


@pytest.fixture(scope="module")
def gemma_examples(gemma, data):
    """The eight questions as training examples by train_planner.py."""
    import train_planner
    from prompts import load_prompt
    from utils.benchmarks.lampqa.task import TASK
    from utils.generation.chat import LocalChat

    args = train_planner.build_parser().parse_args(flags_of(data, "-", model_addr=gemma, max_seq_length=4096))
    records = json.loads((data / "train.json").read_text())
    return train_planner.build_examples(
        TASK, records, "-", load_prompt("lampqa/planner"), LocalChat(ModelFolder(str(gemma))), args
    )


def own_loss(model, examples):
    """Return the mean loss over all target tokens by the model's own forward, one sequence at a time."""
    import torch

    from utils.training.trainer import CausalTrainer

    total = 0
    for example in examples:
        with torch.no_grad():
            total += model(**CausalTrainer.collate([example], 0)).loss.item() * len(example.target)
    return total / sum(len(example.target) for example in examples)


def test_gemma_is_trained_with_both_caps(gemma, data, gemma_examples, warm, tmp_path):
    """Learning rate almost 0: one step of all eight questions, then evaluation on the same."""
    more = {"model_addr": gemma, "validation_addr": data / "train.json", "learning_rate": 1e-30, "max_steps": 1}
    flags = flags_of(data, tmp_path / "planner", **more, eval_generate=0, gradient_accumulation_steps=8)
    fp32 = "from utils.models import devices; devices.has_bf16 = lambda: False"
    printed = learn(warm, *flags, do=fp32)
    assert f"note: {gemma}: sdpa would leave out its attn_logit_softcapping; using eager attention\n" in printed
    manifest = json.loads((tmp_path / "planner/manifest.json").read_text())
    assert (manifest["attention"], manifest["bf16"]) == ("eager", False)
    expected = own_loss(load(gemma, "eager"), gemma_examples)
    (evaluation,) = [entry["eval_loss"] for entry in log_of(tmp_path / "planner") if "eval_loss" in entry]
    assert [*losses_of(tmp_path / "planner"), evaluation] == pytest.approx([expected] * 2, rel=1e-4)
    for without in ("attn_logit_softcapping", "final_logit_softcapping"):
        assert own_loss(load(gemma, "eager", **{without: None}), gemma_examples) != pytest.approx(expected, rel=1e-3)
