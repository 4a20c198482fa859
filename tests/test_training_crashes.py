"""Trainings of a tiny planner that are killed, or meet a full disk: the same command ends them, as if not."""

import json
import random
import shutil
import signal
import time
from collections import Counter

import pytest
from tiny_chat import sample_records, save_tiny_chat
from zygote import Zygote

pytestmark = pytest.mark.engine

STEPS = (2, 4, 6)  # of the checkpoints
KILLS = 20
NOT_REPEATED = ("eval_seconds", "train_runtime")  # figures of the machine, not of the training


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    zygote = Zygote(tmp_path_factory.mktemp("zygote"), "train_planner", "utils.planner_trainer")
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
        "--model_addr", f"{folder}/model", "--inputs_addr", f"{folder}/train.json",
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
        "best": (output / "best").readlink(),
        "log": [figures for figures in map(without_times, log) if figures.keys() > {"step", "epoch"}],
        "losses": [entry["loss"] for entry in state["log_history"] if "loss" in entry],
        "left over": [*output.rglob("*.tmp"), *output.rglob("*.probe"), *output.rglob("*.lock")],
    }


def without_times(figures):
    return {name: value for name, value in figures.items() if name not in NOT_REPEATED}


def test_killed_at_random_moments(flags, uninterrupted, zygote, tmp_path):
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
        assert saved.items() <= whole["adapters"].items()  # what looks whole is whole
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
