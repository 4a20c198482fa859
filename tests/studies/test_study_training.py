"""A study's training on a node with several GPUs, which torch is told of: one process each, or one GPU."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import product

import psutil
import pytest
from api_server import serve
from test_run_study import PLANNER_TEXT, ROOT, SOCIETY, run_here
from test_study import study_of, write_study
from tiny_chat import sample_records, save_tiny_chat
from zygote import ServerPlanner

from utils import run_study
from utils.checks.commands import parser_of
from utils.cli import UserError
from utils.files.manifest import read_folder_manifest
from utils.studies.jobs import make_jobs
from utils.studies.plan import plan_study
from utils.studies.state import find_pending
from utils.studies.study import CATEGORIES, read_study
from utils.studies.training import LAUNCHER, count_asked
from utils.training.launch import divide_batch

BATCH = ["--per_device_train_batch_size", "--gradient_accumulation_steps"]


@pytest.mark.parametrize(
    ("one", "processes", "each"),
    [((1, 32), 4, (1, 8)), ((16, 4), 4, (16, 1)), ((16, 4), 8, (8, 1)), ((16, 4), 16, (4, 1)), ((4, 16), 8, (4, 2)),
     ((6, 4), 3, (4, 2)), ((1, 32), 3, None), ((16, 4), 5, None), ((1, 1), 2, None)],
)  # fmt: skip
def test_a_step_is_shared_by_all(one, processes, each):
    assert divide_batch(*one, processes) == each


def test_what_is_shared_is_the_same_step_in_the_same_memory():
    for size, accumulated, processes in product(range(1, 20), range(1, 20), range(1, 17)):
        each = divide_batch(size, accumulated, processes)
        assert (each is None) == (size * accumulated % processes != 0)
        assert each is None or (each[0] <= size and each[0] * each[1] * processes == size * accumulated)


@pytest.mark.parametrize(
    ("words", "num_gpus"),
    [
        ([], 1),
        (["--mem=64G", "--cpus-per-task=8"], 1),
        (["--gres=gpu:4", "--mem=64G"], 4),
        (["--gres", "gpu:4"], 4),
        (["--gres=gpu:a100:2(S:0-1)"], 2),
        (["--gres=gpu:2g.10gb:3"], 3),
        (["--gres=gpu", "--mem=64G"], 1),
        (["--gres=gpu:a100"], 1),
        (["--gres=shard:1,gpu:2"], 2),
        (["--gpus=4"], 4),
        (["--gpus-per-node=h100:8"], 8),
        (["--gres=gpu:2", "--gres=gpu:4"], 4),
    ],
)
def test_the_gpus_that_a_job_asks_for(words, num_gpus):
    assert count_asked(words) == num_gpus


# Here


class Node:
    """A folder with a study, and what it has run: (variables, words), each in this process."""

    def __init__(self, folder, url, monkeypatch):
        self.folder, self.ran, self._patch = folder, [], monkeypatch
        monkeypatch.chdir(folder)
        flags = {"base_url": url, "api_key_addr": str(folder / "key.txt")}
        monkeypatch.setattr("utils.generation.engines.VLLMEngine", partial(ServerPlanner, flags))
        monkeypatch.setattr(run_study, "run", self._run)
        self.has_gpus(0)

    def has_gpus(self, count, visible=None):
        if visible is None:
            self._patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            self._patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        self._patch.setattr("torch.cuda.device_count", lambda: count)

    def _run(self, words, **variables):
        self.ran.append((variables, words))
        if "-m" in words or variables:  # several processes, or one of several GPUs
            return 7
        return run_here(words)

    def start(self, *flags):
        self.ran.clear()
        return run_study.main(["--study_addr", "study.toml", *flags])


@pytest.fixture
def node(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        records = sample_records(split, 4, category="history")
        (tmp_path / f"data/{SOCIETY}_{split}.json").write_text(json.dumps(records))
    (tmp_path / "key.txt").write_text("sk-test")
    save_tiny_chat(tmp_path / "chat")
    with serve() as server:
        text = PLANNER_TEXT.format(url=server.url).replace('steps", "1", "--eval', 'steps", "12", "--eval')
        write_study(tmp_path, text)
        yield Node(tmp_path, server.url, monkeypatch)


def test_a_training_takes_all_gpus(node, capsys):
    node.has_gpus(4)
    assert node.start("--dry_run") == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "train_planner.py" in line]
    assert node.start() == 7 and len(node.ran) == 4
    variables, words = node.ran[-1]
    launcher = [*LAUNCHER, "--num_processes", "4"]
    assert variables == {} and words[: len(launcher)] == launcher
    script, *flags = words[len(launcher) :]
    assert script == os.path.relpath(ROOT / "train_planner.py")
    assert shlex.split(line) == ["python", *words]
    args = parser_of("train_planner.py").parse_args(flags)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (1, 3)  # of 12
    assert "note: " not in capsys.readouterr().err


@pytest.mark.parametrize(("visible", "first"), [(None, "0"), ("2,3,5,6,7", "2"), ("GPU-a,GPU-b", "GPU-a")])
def test_gpus_that_cannot_share_a_step_are_hidden_but_one_which_is_said_first(node, capsys, visible, first):
    node.has_gpus(5, visible)
    assert node.start() == 7 and len(node.ran) == 4
    variables, words = node.ran[-1]
    assert variables == {"CUDA_VISIBLE_DEVICES": first} and words[0].endswith("train_planner.py")
    assert not set(BATCH[:1]) & set(words)
    printed = capsys.readouterr()
    note = "note: 5 GPUs cannot share a step of 12 questions evenly, so training uses only the first\n"
    assert printed.err.startswith(note)
    assert f"\nCUDA_VISIBLE_DEVICES={first} python " in printed.out


@pytest.mark.parametrize("count", [0, 1])
def test_one_gpu_or_none_changes_nothing(node, count):
    node.has_gpus(count)
    assert node.start("--dry_run") == 0
    pending = find_pending(plan_study(read_study("study.toml")))
    [training] = [one for one in pending if one.step.kind == "train"]
    variables, words = run_study.command_of(training, count)
    assert variables == {} and words[1:] == training.words()[1:]


def test_gpus_that_torch_cannot_use_are_told_before_the_first_step(node, monkeypatch):
    """A .venv for the CPU on a node with GPUs."""
    (node.folder / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100'\necho 'GPU 1: NVIDIA H100'\n")
    (node.folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{node.folder}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"^GPU 0: NVIDIA H100 is here, but torch sees none\n"):
        node.start()
    assert node.ran == []


@pytest.mark.slow
def test_two_processes_train_what_one_would(node, monkeypatch):
    """In processes, by Gloo on the CPU; then one process, or three, find it made with the same settings."""

    def run(words, **variables):
        if "-m" not in words:
            return run_here(words)
        node.ran.append((variables, words))
        command = [sys.executable, *words]
        return subprocess.run(
            command, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        ).returncode

    monkeypatch.setattr(run_study, "run", run)
    node.has_gpus(2)
    assert node.start() == 0 and len(node.ran) == 1
    planner = node.folder / "out/planner" / SOCIETY
    manifest = read_folder_manifest(planner)
    assert manifest["fingerprint"]["effective_batch_size"] == 12
    assert manifest["arguments"]["gradient_accumulation_steps"] == 6
    for count in (1, 2, 3):
        node.has_gpus(count)
        assert node.start() == 0 and node.ran == []


TRAINING = """
import os, sys, time
sys.path.insert(0, {root!r})
from utils.training.launch import check_launch
check_launch("train.py")
open(f"pid{{os.environ['RANK']}}.tmp", "w").write(str(os.getpid()))
os.rename(f"pid{{os.environ['RANK']}}.tmp", f"pid{{os.environ['RANK']}}")
time.sleep(1000)
"""


def test_the_processes_of_a_training_end_with_a_killed_study(tmp_path):
    """Torch's launcher starts each in a session of its own, so no signal for the launcher's group reaches them."""
    (tmp_path / "train.py").write_text(TRAINING.format(root=str(ROOT)))
    words = [*LAUNCHER, "--num_processes", "2", "train.py"]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from utils import run_study; run_study.run({words!r})"
    study = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, start_new_session=True)
    files = [tmp_path / f"pid{rank}" for rank in range(2)]
    while not all(file.exists() for file in files):
        assert study.poll() is None
        time.sleep(0.1)
    pids = [int(file.read_text()) for file in files]
    study.send_signal(signal.SIGKILL)
    study.wait()
    deadline = time.monotonic() + 300
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


# As jobs


def training_jobs(folder, asked, more=""):
    text = f'categories = ["{CATEGORIES[0]}"]\n[slurm]\ntrain_resources = ["--gres=gpu:{asked}"]\n{more}'
    study = study_of(folder, text)
    return study, [job for job in make_jobs(study, find_pending(plan_study(study))) if job.file == "train"]


@pytest.mark.parametrize(("asked", "flags"), [(1, []), (4, ["1", "8"])])
def test_a_job_shares_the_step_among_the_gpus_it_asks_for(tmp_path, asked, flags):
    _, [job] = training_jobs(tmp_path, asked)
    assert job.flags == [word for pair in zip(BATCH, flags, strict=False) for word in pair]


def test_a_job_keeps_the_step_that_the_study_sets(tmp_path):
    """Else the study would find another batch in the planner's manifest than its own, and refuse it."""
    own = '[arguments]\ntrain = ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "8"]'
    _, [job] = training_jobs(tmp_path, 4, own)
    names = ["--model_addr", "m", "--inputs_addr", "i", "--output_dir", "o"]
    args = parser_of("train_planner.py").parse_args([*names, *job.flags])
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 2)


def test_a_job_whose_gpus_cannot_share_the_step_is_refused_before_any_is_submitted(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        records = sample_records(split, 1, category="history")
        (tmp_path / f"data/{SOCIETY}_{split}.json").write_text(json.dumps(records))
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(ROOT)
    path = write_study(
        tmp_path,
        f'data = "{tmp_path}/data"\noutput = "{tmp_path}/out"\ncategories = ["{SOCIETY}"]\n'
        '[slurm]\ntrain_resources = ["--gres=gpu:3"]',
    )
    message = f"{path}: slurm: train_resources: 3 GPUs cannot share a step of 32 questions evenly; ask for a number"
    for flags in (["--dry_run"], []):
        with pytest.raises(UserError, match=re.escape(message)):
            run_study.main(["--study_addr", path, "--sbatch", *flags])
    assert not (tmp_path / "called").exists()


def test_every_generators_job_has_the_papers_64_questions_on_eight_gpus():
    study = read_study(str(ROOT / "utils/studies/lamp_flant5.toml"))
    study = replace(study, slurm={**study.slurm, "train_resources": ["--gres=gpu:8"]})
    jobs = [job for job in make_jobs(study, find_pending(plan_study(study))) if job.file == "train"]
    names = ["--model_addr", "m", "--inputs_addr", "i", "--output_dir", "o"]
    assert jobs
    for job in jobs:
        args = parser_of("utils/train_generator.py").parse_args([*names, *job.flags])
        assert args.per_device_train_batch_size * args.gradient_accumulation_steps * 8 == 64
