"""What each objective learns from forty made-up records, by train_generator.py on a tiny model."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import made_up_lessons as made_up
import pytest
import torch
from made_up_lessons import figures, greedy_answers, learn
from tiny_chat import save_tiny_chat
from transformers import AutoTokenizer, Trainer

from utils.benchmarks.lampqa.answers import write_answer
from utils.training.pairs import PairTrainer
from utils.training.resumable import Resumable
from utils.training.trainer import PlannerTrainer
from utils.training.trainers import DistillationTrainer, EncoderDecoderTrainer, ScoreTrainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made_up")
    made_up.write_files(folder)
    save_tiny_chat(folder / "model")
    return folder


@pytest.fixture(scope="module")
def policy(folder):
    """A policy that has learnt the answers by heart, and its log."""
    flags = ["--model_addr", folder / "model", "--target_addr", folder / "best.json", "--learning_rate", 2e-2]
    flags += ["--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 1, "--epochs", 80]
    return folder / "sft", learn(folder, folder / "sft", *flags)


def expected():
    return {record["id"]: write_answer(made_up.answer_to(record)) for record in made_up.records()}


def test_responses_are_learnt_by_heart(folder, policy):
    output, log = policy
    losses = figures(log, "loss")
    assert losses[0] > 5 and losses[-1] < 0.1
    assert greedy_answers(folder, folder / "model", output / "last") == expected()


@pytest.mark.long
def test_a_teachers_answers_are_learnt_by_heart(folder):
    """The teacher answers by its notes; the student, which has none, learns from samples with these answers."""
    assert made_up.make_teacher(folder, folder / "model", steps=150) < 0.01
    teacher = folder / "teacher"
    assert greedy_answers(folder, teacher, prompt="teacher") == expected()
    before = greedy_answers(folder, teacher)
    assert sum(before[key] == text for key, text in expected().items()) < 10
    flags = ["--model_addr", teacher, "--objective", "distill", "--max_target_length", 60, "--learning_rate", 1e-2]
    flags += ["--response_addr", folder / "samples.json", "--gradient_accumulation_steps", 8, "--epochs", 16]
    log = learn(folder, folder / "distill", *flags)
    losses = figures(log, "loss")
    assert losses[0] > 0.3 and losses[-1] < 0.02
    assert greedy_answers(folder, teacher, folder / "distill/last") == expected()


def test_dpo_widens_the_margin(folder, policy):
    """It starts from the adapter; the reference is the adapter as it was."""
    flags = ["--model_addr", policy[0] / "last", "--objective", "dpo", "--learning_rate", 1e-3, "--epochs", 4]
    flags += ["--target_addr", folder / "worst.json", "--worst_addr", folder / "best.json"]
    log = learn(folder, folder / "dpo", *flags, "--gradient_accumulation_steps", 8)
    margins = figures(log, "rewards/margins")
    assert abs(margins[0]) < 1e-3 and margins[-1] > 1 and figures(log, "rewards/accuracies")[-1] == 1.0
    assert not any(path.is_dir() for path in (folder / "dpo/last").iterdir())  # no copy of the reference


@pytest.mark.parametrize(
    ("objective", "more"),
    [("sft", ["--target_addr", "best"]), ("dpo", ["--target_addr", "best", "--worst_addr", "worst"])],
)
def test_a_tokenizer_without_padding_pads_with_any_token(folder, tmp_path, objective, more):
    """Padding is masked, so that the losses are the same; settings of sampling that contradict are not an adapter's."""
    bare = shutil.copytree(folder / "model", tmp_path / "bare")
    for name in ("tokenizer_config", "config", "generation_config"):
        settings = json.loads((bare / f"{name}.json").read_text()) | {"pad_token": None, "pad_token_id": None}
        settings |= {"top_p": 0.9} if name == "generation_config" else {}
        (bare / f"{name}.json").write_text(json.dumps(settings))
    assert AutoTokenizer.from_pretrained(bare).pad_token is None
    flags = ["--objective", objective, "--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 5]
    flags += [folder / f"{word}.json" if word in ("best", "worst") else word for word in more]
    whole, log = (
        learn(folder, tmp_path / f"{model.name}_{objective}", "--model_addr", model, *flags, "--epochs", 1)
        for model in (folder / "model", bare)
    )
    assert figures(log, "loss") == figures(whole, "loss") and len(figures(log, "loss")) >= 2


@pytest.mark.parametrize("objective", ["sft", "dpo", "distill"])
def test_a_training_of_one_step_learns(folder, tmp_path, objective):
    """An adapter begins as no change, with a B of zeros; a warm-up of one step would leave it so."""
    flags = ["--model_addr", folder / "model", "--objective", objective, "--epochs", 1, "--max_target_length", 60]
    texts = ("response", "samples") if objective == "distill" else ("target", "best")
    flags += [f"--{texts[0]}_addr", folder / f"{texts[1]}.json"]
    flags += ["--worst_addr", folder / "worst.json"] if objective == "dpo" else []
    log = learn(folder, tmp_path / "one", *flags, "--gradient_accumulation_steps", 40)
    assert len(figures(log, "loss")) == 1 and figures(log, "learning_rate")[0] > 0
    assert any(weights.any() for name, weights in weights_of(tmp_path / "one").items() if "lora_B" in name)


def test_a_checkpoint_is_on_disk_before_its_manifest_says_so(folder, monkeypatch, tmp_path):
    """Every file as it is then, and the folder, so that a power cut leaves no checkpoint that only looks whole."""
    synced, whole, fsync, replace = {}, [], os.fsync, os.replace

    def note(file):
        status = os.fstat(file if isinstance(file, int) else file.fileno())
        synced[status.st_ino] = status.st_mtime_ns
        fsync(file)

    def check(source, target):
        checkpoint = Path(target).parent
        if checkpoint.name.startswith("checkpoint-") and Path(target).name == "manifest.json":
            whole.append({path.name for path in checkpoint.iterdir()})
            for path in checkpoint.iterdir():
                assert synced.get(path.stat().st_ino) == path.stat().st_mtime_ns, path
            assert checkpoint.stat().st_ino in synced
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", check)
    flags = ["--model_addr", folder / "model", "--target_addr", folder / "best.json", "--epochs", 2]
    learn(folder, tmp_path / "synced", *flags, "--gradient_accumulation_steps", 40)
    assert len(whole) >= 2
    assert all({"adapter_model.safetensors", "optimizer.pt", "tokenizer.json"} <= names for names in whole)


@pytest.fixture(scope="module")
def beginner(folder):
    """An adapter that has learnt a little, so that its samples differ in length."""
    flags = ["--model_addr", folder / "model", "--target_addr", folder / "best.json", "--learning_rate", 2e-2]
    learn(folder, folder / "beginner", *flags, "--per_device_train_batch_size", 8,
          "--gradient_accumulation_steps", 1, "--epochs", 10)  # fmt: skip
    return folder / "beginner/last"


# Stopped and resumed


def test_no_trainer_overrides_a_private_method():
    """They may change with each version of transformers."""
    trainers = (PlannerTrainer, EncoderDecoderTrainer, DistillationTrainer, ScoreTrainer, PairTrainer)
    ours = {kind for trainer in trainers for kind in trainer.__mro__ if kind.__module__.startswith("utils.")}
    private = {name for kind in ours for name in vars(kind) if re.match("_[a-z]", name)}
    assert "_remedy" in private and {name for name in private if hasattr(Trainer, name)} == set()


def weights_of(output):
    from safetensors.torch import load_file

    return load_file(output / "last/adapter_model.safetensors")


@pytest.mark.parametrize("objective", ["sft", "dpo", "distill"])
def test_a_stopped_training_ends_as_a_whole_one(folder, beginner, monkeypatch, tmp_path, objective):
    """Stopped by a signal within its fourth step: the same log and weights, and no step twice."""
    flags = {
        "sft": ["--target_addr", folder / "best.json"],
        "dpo": ["--target_addr", folder / "best.json", "--worst_addr", folder / "worst.json"],
        "distill": ["--response_addr", folder / "samples.json", "--max_target_length", 8],
    }[objective]
    start = folder / "model" if objective == "distill" else beginner
    flags = ["--model_addr", start, "--objective", objective, *flags, "--epochs", 1]
    flags += ["--gradient_accumulation_steps", 5]
    whole = learn(folder, tmp_path / "whole", *flags)
    steps = []

    def training_step(self, *args, step=Resumable.training_step, **kwargs):
        steps.append(self.state.global_step)
        if len(steps) == 17:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="stopped after step 4; checkpoint-4"):
        patch.setattr(Resumable, "training_step", training_step)
        learn(folder, tmp_path / "parts", *flags)
    log = learn(folder, tmp_path / "parts", *flags)
    assert figures(log, "loss") == figures(whole, "loss")
    weights, others = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    assert weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)
