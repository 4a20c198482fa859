"""Trainings of a tiny planner that are killed, or meet a full disk: the same command ends them, as if not."""

import json
import math
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from tiny_chat import sample_records, save_tiny_chat
from zygote import ROOT, Zygote

from utils.training.checkpoints import is_unevaluated
from utils.training.stopping import seconds_left

pytestmark = pytest.mark.engine

STEPS = (2, 4, 6)  # of the checkpoints
KILLS = 20
NOT_REPEATED = ("eval_seconds", "train_runtime")  # figures of the machine, not of the training


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    zygote = Zygote(tmp_path_factory.mktemp("zygote"), "train_planner", "utils.planner.trainer")
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """All but --output_dir."""
    folder = tmp_path_factory.mktemp("data")
    save_tiny_chat(folder / "model")
    (folder / "train.json").write_text(json.dumps(sample_records("train", 8)))
    (folder / "validation.json").write_text(json.dumps(sample_records("validation", 2)))
    return [
        "--model_addr", f"{folder}/model", "--inputs_addr", f"{folder}/train.json", "--unranked",
        "--validation_addr", f"{folder}/validation.json", "--num_contexts", "1", "--learning_rate", "1e-2",
        "--gradient_accumulation_steps", "2", "--max_steps", "6", "--save_steps", "2", "--eval_generate", "0",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(flags, zygote, tmp_path_factory):
    """(what `contents` finds, seconds it took)."""
    output = tmp_path_factory.mktemp("uninterrupted") / "planner"
    finish(zygote, flags, output)
    shutil.rmtree(output)  # the first one reads its files from disk: its time is no measure
    started = time.monotonic()
    finish(zygote, flags, output)
    return contents(output), time.monotonic() - started


@pytest.fixture(scope="module")
def every_step(flags, zygote, tmp_path_factory):
    """The adapter after each step, by step."""
    output = tmp_path_factory.mktemp("every_step") / "planner"
    finish(zygote, [*flags, "--save_steps", "1"], output)
    return whole_checkpoints(output)


def finish(zygote, flags, output):
    run = zygote.start("train_planner", [*flags, "--output_dir", output])
    assert run.wait() == 0, run.errors


def whole_checkpoints(output):
    """Adapters of the checkpoints that have a manifest, by step."""
    manifests = output.glob("checkpoint-*/manifest.json")
    return {
        int(path.parent.name.partition("-")[2]): path.with_name("adapter_model.safetensors").read_bytes()
        for path in manifests
        if json.loads(path.read_text())
    }


def contents(output):
    """What a finished run has left, without what the machine decides."""
    state = json.loads((output / "trainer_state.json").read_text())
    log = [json.loads(line) for line in (output / "training_log.jsonl").read_text().splitlines()]
    return {
        "adapters": whole_checkpoints(output),
        "checkpoints": sorted(path.name for path in output.glob("checkpoint-*")),
        "manifests": {path.parent.name: without_folder(path) for path in output.glob("checkpoint-*/manifest.json")},
        "card": (output / "README.md").read_text(),
        "best": (output / "best").readlink(),
        "log": [figures for figures in map(without_times, log) if figures.keys() > {"step", "epoch"}],
        "flos": state["total_flos"],
        "losses": [entry["loss"] for entry in state["log_history"] if "loss" in entry],
        "left over": [*output.rglob("*.tmp"), *output.rglob("*.probe"), *output.rglob("*.lock")],
    }


def without_folder(path):
    manifest = json.loads(path.read_text())
    del manifest["arguments"]["output_dir"]
    return manifest


def without_times(figures):
    return {name: value for name, value in figures.items() if name not in NOT_REPEATED}


def test_killed_at_random_moments(flags, uninterrupted, every_step, zygote, tmp_path):
    whole, seconds = uninterrupted
    assert sorted(whole["adapters"]) == [*STEPS] and not whole["left over"]
    output, dice, hits = tmp_path / "planner", random.Random(0), Counter()
    wanted = {"before the first", "between"}  # after the last there are milliseconds only
    for _ in range(5 * KILLS):
        if sum(hits.values()) >= KILLS and wanted <= hits.keys():
            break
        run = zygote.start("train_planner", [*flags, "--output_dir", output])
        checkpoints, hung = dice.randint(len(whole_checkpoints(output)), 3), time.monotonic() + 600
        while len(whole_checkpoints(output)) < checkpoints:
            assert time.monotonic() < hung
            time.sleep(0.002)
        time.sleep(dice.uniform(0, seconds / 4))
        signum = dice.choice([signal.SIGKILL, signal.SIGTERM])
        run.send(signum)
        code = run.wait()
        assert code in (0, -signum) or (code == 130 and signum == signal.SIGTERM), run.errors
        assert "Traceback" not in run.errors, run.errors
        saved = whole_checkpoints(output)
        assert saved.items() <= every_step.items()  # what looks whole is whole
        if kept := re.search(r"^stopped after step (\d+); checkpoint-(\d+) is kept", run.errors, re.M):
            assert kept[1] == kept[2] and int(kept[2]) == max(saved)
        if (output / "best").is_symlink():
            assert (output / "best/manifest.json").exists()
        if code != 0:
            hits["before the first" if not saved else "between" if len(saved) < 3 else "after the last"] += 1
        if code == 0 or len(saved) == 3:
            finish(zygote, flags, output)
            assert contents(output) == whole
            shutil.rmtree(output)
    print(f"train_planner: killed {dict(hits)}")
    finish(zygote, flags, output)
    assert contents(output) == whole
    assert sum(hits.values()) >= KILLS and wanted <= hits.keys(), hits


@pytest.mark.parametrize("size", [1000, 5000, 50_000, 100_000])
def test_files_that_may_not_grow(size, flags, uninterrupted, zygote, tmp_path):
    whole, _ = uninterrupted
    output = tmp_path / "planner"
    run = zygote.start("train_planner", [*flags, "--output_dir", output], limit_file_size=size)
    assert run.wait() == 2, run.errors
    assert "Traceback" not in run.errors, run.errors
    _, found, error = run.errors.rpartition("error: ")
    assert found and error.startswith(f"{output}/") and 1 <= error.count("\n") <= 3
    assert "what is finished is kept, run the same command again\n" in error
    assert whole_checkpoints(output).items() <= whole["adapters"].items()
    finish(zygote, flags, output)
    assert contents(output) == whole


TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
MOMENTS = {  # name: ([(method of the trainer, after which step, signal)], checkpoints that are there then, message)
    "in a batch": ([("compute_loss", 3, TERM)], [2, 3], "stopped after step 3; checkpoint-3 is kept"),
    "in a step's last batch": (
        [("compute_loss", 3, 0), ("compute_loss", 3, TERM)], [2, 3], "stopped after step 3; checkpoint-3 is kept",
    ),
    "by Ctrl-C": ([("compute_loss", 5, INT)], [2, 4, 5], "stopped after step 5; checkpoint-5 is kept"),
    "in the first step": ([("compute_loss", 0, TERM)], [], "stopped before the end of the first step, so nothing is"),
    "a step's end": ([("log", 3, TERM)], [2, 3], "stopped after step 3; checkpoint-3 is kept"),
    "in a checkpoint": ([("_save_checkpoint", 2, TERM)], [2], "stopped after step 2; checkpoint-2 is kept"),
    "in an evaluation": ([("_target_loss", 4, TERM)], [2, 4], "stopped after step 4; checkpoint-4 is kept"),
    "killed in an evaluation": ([("_target_loss", 4, KILL)], [2, 4], None),
    "in the last evaluation": ([("_target_loss", 6, TERM)], [2, 4, 6], "stopped after step 6; checkpoint-6 is kept"),
    "killed in the last evaluation": ([("_target_loss", 6, KILL)], [2, 4, 6], None),
    "twice": (
        [("compute_loss", 3, TERM), ("_save_rng_state", 3, TERM)], [2], "stopped after step 3; checkpoint-2 is kept",
    ),
    "killed in the checkpoint of a signal": ([("compute_loss", 3, TERM), ("_save_rng_state", 3, KILL)], [2], None),
}  # fmt: skip


@pytest.mark.parametrize("case", MOMENTS)
def test_a_signal_keeps_what_is_finished(case, flags, uninterrupted, every_step, zygote, tmp_path):
    whole, _ = uninterrupted
    moments, steps, message = MOMENTS[case]
    output = tmp_path / "planner"
    run = zygote.start("train_planner", [*flags, "--output_dir", output], signal_itself=moments)
    assert run.wait() == (-KILL if moments[-1][2] == KILL else 130), run.errors
    assert "Traceback" not in run.errors, run.errors
    if message is not None:
        assert run.errors.splitlines()[-1].startswith(message)
        assert run.errors.splitlines()[-1].endswith("run the same command again")
    saved = whole_checkpoints(output)
    assert sorted(saved) == steps and saved.items() <= every_step.items()
    unevaluated = [step for step in steps if is_unevaluated(output / f"checkpoint-{step}")]
    assert unevaluated == (steps[-1:] if "evaluation" in case or case == "in a checkpoint" else [])
    if (output / "best").exists():
        assert (output / "best").readlink().name in ("checkpoint-2", "checkpoint-4")
    finish(zygote, flags, output)
    assert contents(output) == whole


TAMPERED = {
    "optimizer.pt": b"no such archive",
    "scheduler.pt": None,
    "rng_state.pth": b"",
    "adapter_model.safetensors": b"\xff" * 99,
    "trainer_state.json": b'{"global_step": "three"}',
}


def test_a_tampered_checkpoint_is_named(flags, uninterrupted, zygote, tmp_path):
    whole, _ = uninterrupted
    output = tmp_path / "planner"
    arguments = [*flags, "--output_dir", output]
    assert zygote.start("train_planner", arguments, signal_itself=[("compute_loss", 3, TERM)]).wait() == 130
    checkpoint = output / "checkpoint-3"
    for name, content in TAMPERED.items():
        before = (checkpoint / name).read_bytes()
        (checkpoint / name).unlink()
        if content is not None:
            (checkpoint / name).write_bytes(content)
        run = zygote.start("train_planner", arguments)
        assert run.wait() == 2 and "Traceback" not in run.errors, run.errors
        remedy = "  delete it, and the same command continues from the one before\n"
        assert f"error: {checkpoint}: damaged: " in run.errors and run.errors.endswith(remedy), run.errors
        (checkpoint / name).write_bytes(before)
    shutil.rmtree(checkpoint)
    finish(zygote, flags, output)
    assert contents(output) == whole


def test_a_checkpoint_that_is_there_only_to_go_on_from_is_never_the_best(flags, zygote, tmp_path):
    """Evaluated at every step: step 3 has a loss of its own, and a checkpoint after the signal."""
    outputs = {name: tmp_path / name for name in ("stopped", "whole")}
    more = ["--eval_steps", "1"]
    moments = [("compute_loss", 3, TERM)]
    arguments = [*flags, *more, "--output_dir", outputs["stopped"]]
    assert zygote.start("train_planner", arguments, signal_itself=moments).wait() == 130
    assert (outputs["stopped"] / "checkpoint-3").is_dir()
    assert (outputs["stopped"] / "best").readlink().name == "checkpoint-2"
    for output in outputs.values():
        finish(zygote, [*flags, *more], output)
    assert contents(outputs["stopped"]) == contents(outputs["whole"])
    assert sorted(whole_checkpoints(outputs["whole"])) == [*STEPS]


def test_a_run_that_goes_on_saves_as_it_is_told_now(flags, uninterrupted, zygote, tmp_path):
    """transformers would go on with the --save_steps of the checkpoint, which its trainer_state.json holds."""
    whole, _ = uninterrupted
    output = tmp_path / "planner"
    arguments = [*flags, "--output_dir", output]
    assert zygote.start("train_planner", arguments, signal_itself=[("compute_loss", 2, TERM)]).wait() == 130
    finish(zygote, [*flags, "--save_steps", "3"], output)
    saved = whole_checkpoints(output)
    assert sorted(saved) == [2, 3, 6] and saved[6] == whole["adapters"][6]
    evaluated = [figures["step"] for figures in contents(output)["log"] if "eval_loss" in figures]
    assert evaluated == [2, 3, 6]


SPOILED = """
import torch
from utils.planner.trainer import PlannerTrainer
follow = PlannerTrainer.follow

def spoil(self, *arguments):
    follow(self, *arguments)
    weight = next(weight for weight in self.model.parameters() if weight.requires_grad)
    weight.register_hook(lambda gradient: torch.full_like(gradient, {value}) if self.state.global_step == 3 else None)

PlannerTrainer.follow = spoil
"""


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_gradients_that_are_not_finite_end_the_run_before_they_are_learnt(
    value, flags, uninterrupted, zygote, tmp_path
):
    whole, _ = uninterrupted
    output = tmp_path / "planner"
    arguments = [*flags, "--output_dir", output]
    for _ in range(2):  # the same command comes to the same end
        run = zygote.start("train_planner", arguments, do=SPOILED.format(value=f"float('{value}')"))
        assert run.wait() == 2 and "Traceback" not in run.errors, run.errors
        _, found, error = run.errors.rpartition("error: ")
        what = f"step 4: the norm of the gradients is {value}; nothing is learnt from it, checkpoint-2 is kept\n"
        assert found and error.startswith(what) and error.count("\n") == 3
        assert whole_checkpoints(output) == {2: whole["adapters"][2]}
    finish(zygote, flags, output)
    assert contents(output) == whole


NO_LOSS = """
from utils.planner.trainer import PlannerTrainer
training_step = PlannerTrainer.training_step

def spoil(self, *arguments, **named):
    return training_step(self, *arguments, **named) * (float("nan") if self.state.global_step == 3 else 1)

PlannerTrainer.training_step = spoil
"""


def test_a_loss_that_is_none_is_logged_as_such(flags, uninterrupted, zygote, tmp_path):
    run = zygote.run("train_planner", [*flags, "--output_dir", tmp_path / "planner"], do=NO_LOSS)
    assert run.returncode == 0, run.errors
    found, expected = (one["losses"] for one in (contents(tmp_path / "planner"), uninterrupted[0]))
    assert math.isnan(found.pop(3)) and expected[:3] + expected[4:] == found


# A clock that shows 500 s more after each step.
SLOW = """
from types import SimpleNamespace
from utils.planner.trainer import PlannerTrainer
from utils.training import resumable
clock = [0]
resumable.time = SimpleNamespace(monotonic=lambda: clock[0])
training_step = PlannerTrainer.training_step

def take_time(self, *arguments, **named):
    clock[0] += 250
    return training_step(self, *arguments, **named)

PlannerTrainer.training_step = take_time
"""


def test_a_slow_run_loses_a_quarter_of_an_hour_at_most(flags, every_step, zygote, tmp_path):
    """Step 3 has a checkpoint by --save_steps; 2 and 5 have one because 15 minutes were over."""
    outputs = {name: tmp_path / name for name in ("slow", "whole")}
    arguments = [*flags, "--save_steps", "3"]
    setup = {"do": SLOW, "signal_itself": [("compute_loss", 5, KILL)]}
    run = zygote.run("train_planner", [*arguments, "--output_dir", outputs["slow"]], **setup)
    assert run.returncode == -KILL, run.errors
    assert re.findall(r"step (\d): saving", run.errors) == ["2", "3", "5"]
    saved = whole_checkpoints(outputs["slow"])
    assert sorted(saved) == [3, 5] and saved.items() <= every_step.items()  # 2 went when 3 was whole
    assert (outputs["slow"] / "best").readlink().name == "checkpoint-3"
    for output in outputs.values():
        finish(zygote, arguments, output)
    assert contents(outputs["slow"]) == contents(outputs["whole"])


def test_a_checkpoint_after_every_step_changes_nothing(flags, uninterrupted, zygote, tmp_path):
    output = tmp_path / "planner"
    every = "from utils.training import resumable; resumable.INTERIM_SECONDS = 0"
    run = zygote.run("train_planner", [*flags, "--output_dir", output], do=every)
    assert run.returncode == 0, run.errors
    assert re.findall(r"step (\d): saving", run.errors) == list("123456")
    assert contents(output) == uninterrupted[0]


# A checkpoint takes 3 s, the launcher gives 1.
SLOW_DISK = """
import os, time
from utils.planner.trainer import PlannerTrainer
from utils.training import stopping
os.environ.update({variables})
stopping.LAUNCHER_SECONDS = 1
save = PlannerTrainer._save_checkpoint

def save_slowly(self, *arguments):
    time.sleep(3 * self._stopper.asked)
    save(self, *arguments)

PlannerTrainer._save_checkpoint = save_slowly
"""


@pytest.mark.parametrize(("variables", "kept"), [({"SLURM_JOB_ID": "1"}, 3), ({}, 2)])
def test_a_slow_disk_has_the_time_that_slurm_gives(variables, kept, flags, uninterrupted, zygote, tmp_path):
    output = tmp_path / "planner"
    setup = {"do": SLOW_DISK.format(variables=variables), "signal_itself": [("compute_loss", 3, TERM)]}
    run = zygote.run("train_planner", [*flags, "--output_dir", output], **setup)
    assert run.returncode == 130, run.errors
    assert f"stopped after step 3; checkpoint-{kept} is kept, run the same command again\n" in run.errors
    assert max(whole_checkpoints(output)) == kept
    finish(zygote, flags, output)
    assert contents(output) == uninterrupted[0]


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, 25),
        ({"SLURM_JOB_ID": "1"}, 100),
        ({"LOCAL_RANK": "0", "SLURM_JOB_ID": "1"}, 25),  # by accelerate
    ],
)
def test_the_time_between_a_signal_and_the_kill(variables, seconds, monkeypatch):
    for name in ("LOCAL_RANK", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert seconds_left() == seconds


STOPPER = """
import os, signal, time
from utils import cli
from utils.training import stopping
stopping.LAUNCHER_SECONDS = stopping.SLURM_SECONDS = 3
stopping.SAME_SIGNAL = 1000
def main():
    with stopping.Stopper() as stopper:
        stopper.step, stopper.saved = 3, 2
        os.kill(os.getpid(), {first})
        os.kill(os.getpid(), signal.SIGTERM)
        print(stopper.asked, flush=True)
        {then}
cli.run_script(main)
"""


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        ("signal.SIGINT", "return 0", 0),
        ("signal.SIGTERM", "stopper.leave()", 130),
        ("signal.SIGTERM", "time.sleep(1000)", 130),  # a batch that takes longer than there is time
    ],
)
def test_an_echo_of_the_first_signal_is_none_and_time_runs_out(first, then, code):
    """torch's launcher sends its processes what they have got from the terminal or SLURM already."""
    script = STOPPER.format(first=first, then=then)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=3600)
    stopping = "stopping: a checkpoint of step 3 comes after this batch; a second signal leaves now\n"
    stopped = "stopped after step 3; checkpoint-2 is kept, run the same command again\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, "True\n", stopping + (stopped if code else ""))
