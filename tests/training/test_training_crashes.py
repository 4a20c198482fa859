"""Trainings of a tiny planner that are interrupted or hit a full disk; resumed runs match uninterrupted ones."""

import json
import re
import shutil
import signal
import subprocess
import sys

import pytest
from tiny_chat import sample_records, save_tiny_chat
from zygote import ROOT, Zygote

pytestmark = pytest.mark.engine

STEPS = (2, 4, 6)  # with checkpoints
NOT_REPEATED = ("eval_seconds", "train_runtime")  # depend on the machine


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    zygote = Zygote(tmp_path_factory.mktemp("zygote"), "train_planner", "utils.training.trainer")
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """All flags except --output_dir; an epoch has two steps of two batches, which are grouped by length."""
    folder = tmp_path_factory.mktemp("data")
    save_tiny_chat(folder / "model")
    (folder / "train.json").write_text(json.dumps(sample_records("train", 8)))
    (folder / "validation.json").write_text(json.dumps(sample_records("validation", 2)))
    return [
        "--model_addr", f"{folder}/model", "--inputs_addr", f"{folder}/train.json", "--unranked",
        "--validation_addr", f"{folder}/validation.json", "--num_contexts", "1", "--learning_rate", "1e-2",
        "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--max_steps", "6",
        "--save_steps", "2", "--eval_generate", "0",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(flags, zygote, tmp_path_factory):
    """The `contents` of an uninterrupted run."""
    output = tmp_path_factory.mktemp("uninterrupted") / "planner"
    finish(zygote, flags, output)
    whole = contents(output)
    assert sorted(whole["adapters"]) == [*STEPS] and not whole["left over"]
    return whole


@pytest.fixture(scope="module")
def every_step(flags, zygote, tmp_path_factory):
    """Adapters by step, saved after every step."""
    output = tmp_path_factory.mktemp("every_step") / "planner"
    finish(zygote, [*flags, "--save_steps", "1"], output)
    return whole_checkpoints(output)


def finish(zygote, flags, output, *more, code=0, **setup):
    """Run train_planner.py, and return its stderr."""
    run = zygote.run("train_planner", [*flags, "--output_dir", output, *more], **setup)
    assert run.returncode == code and "Traceback" not in run.errors, run.errors
    return run.errors


def whole_checkpoints(output):
    """Return the adapters of checkpoints with a manifest, by step."""
    manifests = output.glob("checkpoint-*/manifest.json")
    return {
        int(path.parent.name.partition("-")[2]): path.with_name("adapter_model.safetensors").read_bytes()
        for path in manifests
        if json.loads(path.read_text())
    }


def contents(output):
    """Return the results of a finished run, except figures that depend on the machine."""
    state = json.loads((output / "last/trainer_state.json").read_text())
    log = [json.loads(line) for line in (output / "training_log.jsonl").read_text().splitlines()]
    log = [{name: value for name, value in figures.items() if name not in NOT_REPEATED} for figures in log]
    return {
        "adapters": whole_checkpoints(output),
        "checkpoints": sorted(path.name for path in output.glob("checkpoint-*")),
        "manifests": {path.parent.name: without_folder(path) for path in output.glob("checkpoint-*/manifest.json")},
        "best": (output / "best").readlink(),
        "log": [figures for figures in log if figures.keys() > {"step", "epoch"}],
        "flos": state["total_flos"],
        "losses": [entry["loss"] for entry in state["log_history"] if "loss" in entry],
        "left over": [*output.rglob("*.tmp"), *output.rglob("*.lock")],
    }


def without_folder(path):
    manifest = json.loads(path.read_text())
    del manifest["arguments"]["output_dir"], manifest["command"]
    return manifest


@pytest.mark.parametrize("size", [1000, 50_000, 80_000])  # the last stops the tokenizer
def test_full_disk_keeps_finished_work(size, flags, uninterrupted, zygote, tmp_path):
    whole = uninterrupted
    output = tmp_path / "planner"
    run = zygote.run("train_planner", [*flags, "--output_dir", output], limit_file_size=size)
    assert run.returncode in (1, 2) and "File too large" in run.errors  # 1, with a traceback, from a library's writes
    assert whole_checkpoints(output).items() <= whole["adapters"].items()
    finish(zygote, flags, output)
    assert contents(output) == whole


TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
MOMENTS = {  # name: ([(trainer method, after which step, signal)], checkpoints after the signal, message)
    "in a step's last batch": (
        [("compute_loss", 2, 0), ("compute_loss", 2, TERM)], [2, 3], "stopped after step 3; checkpoint-3 is kept",
    ),
    "by Ctrl-C": ([("compute_loss", 4, INT)], [2, 4, 5], "stopped after step 5; checkpoint-5 is kept"),
    "in the first step": ([("compute_loss", 0, TERM)], [1], "stopped after step 1; checkpoint-1 is kept"),
    "in a checkpoint": ([("_save_checkpoint", 2, TERM)], [2, 3], "stopped after step 3; checkpoint-3 is kept"),
    "in an evaluation": ([("_target_loss", 2, TERM)], [2, 3], "stopped after step 3; checkpoint-3 is kept"),
    "killed before the first checkpoint": ([("compute_loss", 1, KILL)], [], None),
    "killed in a batch": ([("compute_loss", 3, KILL)], [2], None),
    "killed in a checkpoint": ([("_save_rng_state", 4, KILL)], [2], None),
    "killed in an evaluation": ([("_target_loss", 4, KILL)], [2], None),
    "twice": ([("compute_loss", 2, TERM), ("_save_rng_state", 3, TERM)], [2], "stopping once a step is saved"),
}  # fmt: skip


@pytest.mark.parametrize("case", MOMENTS)
def test_signal_keeps_finished_steps(case, flags, uninterrupted, every_step, zygote, tmp_path):
    whole = uninterrupted
    moments, steps, message = MOMENTS[case]
    output = tmp_path / "planner"
    errors = finish(zygote, flags, output, code=-KILL if moments[-1][2] == KILL else 130, signal_itself=moments)
    if message is not None:
        assert errors.splitlines()[-1].startswith(message)
    saved = whole_checkpoints(output)
    assert sorted(saved) == steps and saved.items() <= every_step.items()
    if (output / "best").exists():
        assert (output / "best").readlink().name in ("checkpoint-2", "checkpoint-4")
    finish(zygote, flags, output)
    assert contents(output) == whole


def test_signal_in_the_last_evaluation_lets_the_run_finish(flags, uninterrupted, zygote, tmp_path):
    output = tmp_path / "planner"
    finish(zygote, flags, output, signal_itself=[("_target_loss", 6, TERM)])
    assert contents(output) == uninterrupted


def test_checkpoint_without_its_states_is_refused(flags, uninterrupted, zygote, tmp_path):
    """transformers would continue from its weights with new averages or a new schedule."""
    output = tmp_path / "planner"
    finish(zygote, flags, output, code=130, signal_itself=[("compute_loss", 2, TERM)])
    checkpoint = output / "checkpoint-3"
    for name in ("optimizer.pt", "scheduler.pt"):
        (checkpoint / name).rename(tmp_path / name)
        assert f"error: {checkpoint}: {name} is missing" in finish(zygote, flags, output, code=2)
        (tmp_path / name).rename(checkpoint / name)
    shutil.rmtree(checkpoint)
    finish(zygote, flags, output)
    assert contents(output) == uninterrupted


SPOILED = """
import torch
from utils.training.trainer import PlannerTrainer
learn = PlannerTrainer.learn

def spoil(self, *arguments):
    weight = next(weight for weight in self.model.parameters() if weight.requires_grad)
    weight.register_hook(lambda gradient: gradient * float("nan") if self.state.global_step == 3 else None)
    return learn(self, *arguments)

PlannerTrainer.learn = spoil
"""


def test_non_finite_gradients_end_the_run_before_a_checkpoint(flags, uninterrupted, zygote, tmp_path):
    whole = uninterrupted
    output = tmp_path / "planner"
    for _ in range(2):  # the same command fails again
        _, is_error, error = finish(zygote, flags, output, code=2, do=SPOILED).rpartition("error: ")
        what = "step 4: the gradient norm is nan, so training cannot continue; checkpoints of earlier steps are"
        assert is_error and error.startswith(what)
        assert whole_checkpoints(output) == {2: whole["adapters"][2]}
    finish(zygote, flags, output)
    assert contents(output) == whole


# A clock that advances 500 s per step.
SLOW = """
from types import SimpleNamespace
from utils.training.trainer import PlannerTrainer
from utils.training import recorder
clock = [0]
recorder.time = SimpleNamespace(monotonic=lambda: clock[0])
training_step = PlannerTrainer.training_step

def take_time(self, *arguments, **named):
    clock[0] += 250
    return training_step(self, *arguments, **named)

PlannerTrainer.training_step = take_time
"""


def test_slow_run_loses_at_most_15_minutes(flags, every_step, zygote, tmp_path):
    """Step 3 has a checkpoint by --save_steps; steps 2 and 5 have one because 15 minutes have passed."""
    outputs = {name: tmp_path / name for name in ("slow", "whole")}
    more = ["--save_steps", "3"]
    setup = {"do": SLOW, "signal_itself": [("compute_loss", 5, KILL)]}
    errors = finish(zygote, flags, outputs["slow"], *more, code=-KILL, **setup)
    assert re.findall(r"step (\d): saved", errors) == ["2", "3", "5"]
    saved = whole_checkpoints(outputs["slow"])
    assert sorted(saved) == [3, 5] and saved.items() <= every_step.items()  # 2 is deleted once 3 is complete
    assert (outputs["slow"] / "best").readlink().name == "checkpoint-3"
    for output in outputs.values():
        finish(zygote, flags, output, *more)
    assert contents(outputs["slow"]) == contents(outputs["whole"])


STOPPER = """
import os, signal
from utils.base import cli
from utils.training import recorder
recorder.SAME_SIGNAL = 1000
def main():
    with recorder.Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        print(signals.first is not None, flush=True)
        return 0
cli.run_script(main)
"""


def test_repeat_of_the_first_signal_is_ignored():
    """torch's launcher forwards signals that its processes already got from the terminal or SLURM."""
    done = subprocess.run([sys.executable, "-c", STOPPER], cwd=ROOT, capture_output=True, text=True, timeout=3600)
    stopping = "stopping once a step is saved; a second signal ends the run now\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", stopping)
