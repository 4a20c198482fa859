"""Real training of the planner on a tiny random model: one run, several, on one device and on two."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import chain, groupby
from pathlib import Path

import pytest
from tiny_chat import sample_records, save_tiny_chat, save_tiny_gemma

ROOT = Path(__file__).resolve().parents[2]
TWO = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
NOT_REPEATED = ("eval_seconds", "train_runtime")  # figures of the machine, not of the training

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


def train(*arguments, launcher=(), **environment):
    command = [sys.executable, *launcher, "train_planner.py", *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process):
    printed, _ = process.communicate(timeout=3600)
    assert process.returncode == 0, printed
    return printed


def learn(warm, *arguments, **setup):
    """A run as a fork of the warmed process, to its end; what it printed."""
    run = warm.run("train_planner", arguments, **setup)
    assert run.returncode == 0, run.errors
    return run.printed + run.errors


# Killed, resumed, and on several devices


@pytest.fixture(scope="module")
def uninterrupted(data, warm, tmp_path_factory):
    output = tmp_path_factory.mktemp("uninterrupted") / "planner"
    printed = learn(warm, *short_run(data, output))
    return output, printed


def short_run(data, output, **more):
    """Eight steps of two sequences, a checkpoint every third: in the middle of an epoch of four steps."""
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
    # Linear: no warm-up of 8 // 10 = 0 steps, then down to nothing.
    rates = [entry["learning_rate"] for entry in log if "loss" in entry]
    assert rates == pytest.approx([1e-2 * (8 - step) / 8 for step in range(8)])
    assert "1 on a device x 2 accumulated x 1 processes = 2 sequences a step (the paper's is 32)" in printed
    assert f"best is checkpoint-{best['step']}, validation loss {best['eval_loss']:.4f}" in printed
    assert "attention: sdpa" in printed and "q_proj, v_proj" in printed


def test_every_phase_of_a_run_is_named_and_the_steps_end_before_the_last_evaluation(uninterrupted, data):
    output, printed = uninterrupted
    phases = [
        "tokenizing (questions: 12)", f"loading {data}/model",
        f"step 3: saving {output}/checkpoint-3", "step 3: evaluating (questions: 4, plans: 1)", "step 3: validation",
        f"step 6: saving {output}/checkpoint-6", "step 6: evaluating (questions: 4, plans: 1)", "step 6: validation",
        "8/8 steps, ",
        f"step 8: saving {output}/checkpoint-8", "step 8: evaluating (questions: 4, plans: 1)", "step 8: validation",
    ]  # fmt: skip
    lines = [line for line in printed.splitlines() if line.startswith(("tokenizing", "loading", "step ", "8/8 "))]
    lines = [next(same) for _, same in groupby(lines, key=lambda line: line.partition(",")[0])]  # "8/8 steps" in a row
    assert len(lines) == len(phases)
    assert all(line.startswith(phase) for line, phase in zip(lines, phases, strict=True))


def test_the_card_is_true(uninterrupted, data):
    from huggingface_hub import ModelCard

    output, _ = uninterrupted
    for folder, planner in [(output, "$PLANNER/best "), (output / "checkpoint-6", "$PLANNER ")]:
        card = ModelCard.load(folder / "README.md")
        assert card.data.library_name == "peft" and card.data.base_model is None  # a folder has no name on the hub
        assert "None" not in card.text and str(data) not in card.content and str(output) not in card.content
        assert planner in card.text
        fingerprint = json.loads((folder / "manifest.json").read_text())["settings"]
        for name in ("model", "inputs", "validation"):
            assert f"`{fingerprint[name]}`" in card.text
    best = json.loads((output / "best/manifest.json").read_text())["step"]
    losses = {entry["step"]: entry["eval_loss"] for entry in log_of(output) if "eval_loss" in entry}
    shown = {step: f"{step} (best checkpoint)" if step == best else str(step) for step in losses}
    text = (output / "README.md").read_text()
    assert all(f"| {shown[step]} | {losses[step]:.4f} | " in text for step in losses)
    assert "Up to step 6," in (output / "checkpoint-6/README.md").read_text()
    assert "| 8" not in (output / "checkpoint-6/README.md").read_text()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_ended_goes_on_as_if_nothing_had_happened(uninterrupted, data, warm, tmp_path, ending):
    from safetensors.numpy import load_file

    expected, _ = uninterrupted
    output = tmp_path / "planner"
    run = warm.start("train_planner", short_run(data, output))
    log = output / "training_log.jsonl"
    wait_for(lambda: log.exists() and '"step": 5' in log.read_text())
    run.send(ending)
    assert run.wait() == (130 if ending == signal.SIGTERM else -9), run.errors
    printed = run.printed + run.errors
    assert "Traceback" not in printed
    assert not (output / "checkpoint-8").exists()
    if ending == signal.SIGTERM:
        step = int(re.search(r"^stopped after step (\d); checkpoint-\1 is kept, run the same", printed, re.M)[1])
        assert step >= 5
    else:
        step = 3
        (output / "checkpoint-6").mkdir(exist_ok=True)  # as a kill while it is written leaves it
        (output / "checkpoint-6/adapter_model.safetensors").write_bytes(b"half")
        (output / "checkpoint-6/manifest.json").unlink(missing_ok=True)
    assert f"going on from {output}/checkpoint-{step}\n" in learn(warm, *short_run(data, output))
    assert {path.name for path in output.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-6", "checkpoint-8"}
    assert log_of(output) == log_of(expected)
    weights = [load_file(folder / "checkpoint-8/adapter_model.safetensors") for folder in (output, expected)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[1])
    assert "already finished" in learn(warm, *short_run(data, output))


def wait_for(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# For train_planner.py: each process writes down which sequences it computes, in which order.
SEEN = """
import json, os
from utils.planner.trainer import PlannerTrainer
compute_loss = PlannerTrainer.compute_loss

def write_down(self, model, inputs, *args, **kwargs):
    with open(f"{folder}/seen-{{os.environ.get('RANK', 0)}}.jsonl", "a") as file:
        print(json.dumps(inputs["input_ids"].tolist()), file=file)
    return compute_loss(self, model, inputs, *args, **kwargs)

PlannerTrainer.compute_loss = write_down
"""


def seen_by(folder, rank):
    """Token ids of the sequences that a process computed, one at a time."""
    return [sequence for line in open(folder / f"seen-{rank}.jsonl") for sequence in json.loads(line)]


def test_two_processes_learn_what_one_learns_with_twice_the_accumulation(data, warm, tmp_path):
    """Without dropout, whose draws differ between processes. Eight questions are two epochs of two steps."""
    for name, setup, accumulated in [("one", {}, 4), ("two", {"be_two": None}, 2)]:
        (tmp_path / name).mkdir()
        more = {"lora_dropout": 0, "max_steps": 4, "save_steps": 4, "gradient_accumulation_steps": accumulated}
        flags = short_run(data, tmp_path / name / "planner", **more)
        printed = learn(warm, *flags, **setup, do=SEEN.format(folder=tmp_path / name))
    assert "1 on a device x 2 accumulated x 2 processes = 4 sequences a step" in printed
    assert printed.count("sequences a step") == 1  # one process speaks for all
    losses = {name: losses_of(tmp_path / name / "planner") for name in ("one", "two")}
    assert losses["two"] == pytest.approx(losses["one"], rel=1e-2)
    last = [log_of(tmp_path / name / "planner")[-2]["eval_loss"] for name in ("one", "two")]
    assert last[0] == pytest.approx(last[1], rel=1e-2)

    # What the two compute at the same time are neighbours in the order of length of the step's sequences.
    # The first batch is the longest, tried before the first step.
    one, ranks = seen_by(tmp_path / "one", 0)[1:], [seen_by(tmp_path / "two", rank)[1:] for rank in (0, 1)]
    steps = [sorted(one[start : start + 4], key=len, reverse=True) for start in (0, 4, 8, 12)]
    assert len({len(sequence) for sequence in one}) > 4
    assert [list(pair) for pair in zip(*ranks, strict=True)] == [
        step[start : start + 2] for step in steps for start in (0, 2)
    ]


@pytest.mark.parametrize(("batch", "accumulated"), [(2, 2), (4, 1)])
def test_a_step_learns_the_same_whatever_its_batches_are(data, warm, tmp_path, batch, accumulated):
    """Eight questions, steps of four: two epochs, each in an order of its own; targets of one title and of all."""
    records = json.loads((data / "train.json").read_text())
    for record in records[::2]:
        del record["rubric_aspects"][1:]
    (tmp_path / "train.json").write_text(json.dumps(records))
    printed = {}
    for name, sizes in [("single", (1, 4)), ("batches", (batch, accumulated))]:
        more = dict(zip(("per_device_train_batch_size", "gradient_accumulation_steps"), sizes, strict=True))
        more |= {"lora_dropout": 0, "max_steps": 4, "save_steps": 4, "inputs_addr": tmp_path / "train.json"}
        printed[name] = learn(warm, *short_run(data, tmp_path / name, **more))
    assert losses_of(tmp_path / "batches") == pytest.approx(losses_of(tmp_path / "single"), rel=5e-4)
    assert "\n0.0% of the tokens are padding" in printed["single"]
    assert 0 < float(re.search(r"\n(.*)% of the tokens are padding", printed["batches"])[1]) < 30


@pytest.mark.parametrize(("batch", "accumulated"), [(2, 1), (1, 2)])
def test_several_processes_go_on_within_an_epoch(data, warm, tmp_path, batch, accumulated):
    """The third of four steps ends in the middle of the second epoch."""
    output = tmp_path / "planner"
    more = {"lora_dropout": 0, "max_steps": 4}
    more |= {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulated}
    flags = short_run(data, output, **more)
    learn(warm, *flags, be_two=None, do="import train_planner; train_planner.drop_states = lambda folder: None")
    expected = losses_of(output)
    shutil.rmtree(output / "checkpoint-4")  # as if it had been killed before the end
    assert "going on from" in learn(warm, *flags, be_two=None)
    assert losses_of(output) == pytest.approx(expected, rel=1e-6)


def test_several_processes_save_together_what_is_finished(data, warm, tmp_path):
    """The launcher gets the signal, and hands it on. Each process goes on with its own random numbers, for dropout."""
    flags = {name: short_run(data, tmp_path / name, max_steps=4, save_steps=4) for name in ("whole", "stopped")}
    learn(warm, *flags["whole"], be_two=None)
    process = train(*flags["stopped"], launcher=TWO, OMP_NUM_THREADS="1")
    log = tmp_path / "stopped/training_log.jsonl"
    wait_for(lambda: log.exists() and '"step": 1' in log.read_text())
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=3600)
    (step,) = re.findall(r"^stopped after step (\d); checkpoint-\1 is kept, run the same", printed, re.M)  # one speaks
    checkpoint = tmp_path / f"stopped/checkpoint-{step}"
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert f"going on from {checkpoint}" in learn(warm, *flags["stopped"], be_two=None)
    assert log_of(tmp_path / "stopped") == log_of(tmp_path / "whole")


# The second process alone has its gradients spoiled, after the second step, and its 15 minutes over after the first.
SECOND_ONE = """
import os, torch
from utils.planner.trainer import PlannerTrainer
from utils.training import resumable
follow = PlannerTrainer.follow

def spoil(self, *arguments):
    follow(self, *arguments)
    weight = next(weight for weight in self.model.parameters() if weight.requires_grad)
    weight.register_hook(lambda gradient: gradient * (float("nan") if self.state.global_step == 2 else 1))
    resumable.INTERIM_SECONDS = 0

if os.environ["RANK"] == "1":
    PlannerTrainer.follow = spoil
"""


def test_several_processes_end_together_over_the_gradients_of_one(data, warm, tmp_path):
    """And save together where one finds that it is time."""
    outputs = {name: short_run(data, tmp_path / name, max_steps=4, save_steps=4) for name in ("whole", "spoiled")}
    learn(warm, *outputs["whole"], be_two=None)
    run = warm.run("train_planner", outputs["spoiled"], be_two=None, do=SECOND_ONE)
    assert run.returncode == 1 and "Traceback" not in run.errors, run.errors  # as the launcher ends over an error
    assert run.errors.count("step 3: the norm of the gradients is nan; nothing is learnt from it, checkpoint-2") == 1
    assert [path.name for path in (tmp_path / "spoiled").glob("checkpoint-*")] == ["checkpoint-2"]
    assert "going on from" in learn(warm, *outputs["spoiled"], be_two=None)
    assert log_of(tmp_path / "spoiled") == log_of(tmp_path / "whole")


def test_several_processes_take_leave_of_each_other(data, tmp_path):
    """A process group that is left to the end of the process aborts it now and then, after its work is done.

    The user has once told accelerate that a machine runs one process.
    """
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: 'no'\nnum_machines: 1\n"
        "num_processes: 1\nuse_cpu: false\n"
    )
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, torch, train_planner\nfrom utils.training import launch\n"
        "assert train_planner.main(sys.argv[2:]) == 0\n"
        "assert launch.num_processes() == 2 and not torch.distributed.is_initialized()\n"
    )
    environment = {"HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    flags = short_run(data, tmp_path / "planner", max_steps=1, save_steps=1)
    for words in (": 1 steps;", "already finished"):
        assert words in finish(train(*flags, launcher=(*TWO, script), **environment))


@pytest.mark.parametrize("save", [save_tiny_chat, save_tiny_gemma])  # the second caps its logits
@pytest.mark.parametrize("checkpointing", [False, True])
def test_only_each_rows_own_targets_go_through_the_vocabulary(save, checkpointing, tmp_path):
    """In double precision loss and gradients are those of the plain formula over all logits."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from utils.training import NO_LOSS
    from utils.training.causal import target_loss

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
    weights, projected = [one for one in model.parameters() if one.requires_grad], []
    hook = model.get_output_embeddings().register_forward_hook(lambda *called: projected.append(called[-1].shape[:2]))
    loss, num_right = target_loss(model, labels=labels, input_ids=ids, attention_mask=mask)
    gradients = torch.autograd.grad(loss, weights)
    hook.remove()
    assert projected == [(1, 15)]  # ten of the first and five of the second sequence
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    likelihoods = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    plain = -likelihoods[labels[:, 1:] != NO_LOSS].sum()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
    for ours, theirs in zip(gradients, torch.autograd.grad(plain, weights), strict=True):
        assert (ours - theirs).norm() <= 1e-6 * theirs.norm() > 0
    assert num_right == (logits.argmax(-1) == labels[:, 1:]).sum()


def test_sequences_of_a_step_stand_by_length():
    from accelerate.data_loader import SeedableRandomSampler

    from utils.training.resumable import ByLengthInSteps

    lengths = [7, 3, 9, 1, 5, 8, 2, 6, 4, 10]
    sampler, plain = ByLengthInSteps(lengths, 4, seed=3), SeedableRandomSampler(lengths, data_seed=3)
    assert len(sampler) == 10
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        plain.set_epoch(epoch)
        order, random_order = list(sampler), list(plain)
        for start in (0, 4, 8):
            step = order[start : start + 4]
            assert set(step) == set(random_order[start : start + 4])
            assert [lengths[i] for i in step] == sorted((lengths[i] for i in step), reverse=True)
        epochs.append(order)
    assert epochs[0] == epochs[2] != epochs[1]


@pytest.mark.parametrize("size", [2, 10, 11, 12, 16])
@pytest.mark.parametrize("batch", [1, 2])
def test_processes_compute_sequences_of_like_length(size, batch):
    """The three processes' batches, as accelerate deals them out: of which sequences a step is stays as it was."""
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
    from torch.utils.data import BatchSampler

    from utils.training.resumable import ByLengthInSteps

    lengths = [i * 7 % 16 for i in range(size)]
    at_once = 3 * batch
    sampler = ByLengthInSteps(lengths, 2 * at_once, seed=3, at_once=at_once)

    def dealt_out(sampler):
        """For each moment what the three compute."""
        ranks = [BatchSamplerShard(BatchSampler(sampler, batch, drop_last=False), 3, rank) for rank in range(3)]
        batches = []
        for rank in ranks:
            sampler.set_epoch(0)
            batches.append(list(rank))
            assert len(rank) == len(batches[-1])
        return [list(chain(*parts)) for parts in zip(*batches, strict=True)]

    ours, plain = dealt_out(sampler), dealt_out(SeedableRandomSampler(lengths, data_seed=3))
    assert len(ours) == len(plain) == -(-size // at_once)
    for start in range(0, len(ours), 2):
        step = list(chain(*ours[start : start + 2]))
        assert sorted(step) == sorted(chain(*plain[start : start + 2]))
        assert [lengths[i] for i in step] == sorted((lengths[i] for i in step), reverse=True)


def test_processes_evaluate_sequences_of_like_length():
    from types import SimpleNamespace

    from utils.planner.trainer import PlannerTrainer

    examples = [SimpleNamespace(length=length) for length in (4, 9, 2, 7, 5)]

    def shares(count):
        accelerators = [SimpleNamespace(process_index=index, num_processes=count) for index in range(count)]
        trainers = [SimpleNamespace(accelerator=accelerator) for accelerator in accelerators]
        return [[example.length for example in PlannerTrainer._mine(trainer, examples)] for trainer in trainers]

    assert shares(1) == [[4, 9, 2, 7, 5]]
    assert shares(2) == [[9, 5, 2], [7, 4]]


# Which checkpoint is the best


def test_the_best_checkpoint_is_one_that_was_saved(tmp_path):
    """Evaluated at every step, saved at every second: the lowest loss of all is no checkpoint's."""
    from transformers import TrainerControl, TrainerState

    from utils.planner.card import make_card
    from utils.training.checkpoints import Run
    from utils.training.recorder import Recorder

    names = ("model_addr", "inputs_addr", "validation_addr", "num_contexts", "prompts_dir")
    fingerprint = {"model": "m@1", "inputs": "1", "validation": "2"}
    manifest = {"arguments": dict.fromkeys(names, "m"), "settings": fingerprint, "versions": {}, "device": "CPU"}
    recorder = Recorder(Run(tmp_path, None, None, []), {**manifest, "git_commit": None}, make_card)
    state = TrainerState(save_steps=2, max_steps=9)
    links = []
    for step, loss in enumerate([3.0, 2.5, 1.0, 2.0, 1.5, 2.0, 1.2, 1.9], 1):
        state.global_step = step
        state.log_history.append({"step": step, "eval_loss": loss})
        if step % 2 == 0:
            (tmp_path / f"checkpoint-{step}").mkdir()
            recorder.on_save(None, state, TrainerControl())
            links.append((tmp_path / "best").readlink().name)
    assert links == ["checkpoint-2", "checkpoint-4", "checkpoint-4", "checkpoint-8"]  # 2.5, 2.0, 2.0 again, 1.9
    assert recorder.best(state) == {"best_step": 8, "best_loss": 1.9}
    assert json.loads((tmp_path / "best/manifest.json").read_text())["best_loss"] == 1.9


# Beginning anew


def test_an_earlier_run_is_replaced_when_training_begins_and_nothing_else_goes(tmp_path):
    from types import SimpleNamespace

    from transformers import TrainerState

    from utils.training.checkpoints import Run
    from utils.training.recorder import Recorder

    for name in ("checkpoint-3", "checkpoint-6", "checkpoint-3-backup", "plots"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "best").symlink_to("checkpoint-3")
    (tmp_path / "trainer_state.json").write_text("{}")
    (tmp_path / "training_log.jsonl").write_text('{"step": 1, "loss": 3.0}\n')
    replaced = [tmp_path / "checkpoint-3", tmp_path / "checkpoint-6"]
    recorder = Recorder(Run(tmp_path, None, None, replaced), {"settings": {"seed": 1}}, None)
    state = TrainerState(is_world_process_zero=True, max_steps=8)
    recorder.on_train_begin(SimpleNamespace(logging_steps=1, eval_steps=None, save_steps=3), state, None)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"checkpoint-3-backup", "plots", "training_log.jsonl", "manifest.json"}
    assert (tmp_path / "training_log.jsonl").read_text() == ""
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"settings": {"seed": 1}}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lora_target_modules", "q_proj", "nosuch"], "--lora_target_modules: {model} has no module nosuch"),
        (["--attn_implementation", "flash_attention_2"], "--attn_implementation flash_attention_2: flash-attn is not"),
    ],
)
def test_what_the_model_cannot_do_is_named_and_the_earlier_run_stays(uninterrupted, data, warm, flags, message):
    output, _ = uninterrupted
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    run = warm.run("train_planner", [*short_run(data, output, seed=1), *flags, "--overwrite"])
    assert run.returncode == 2
    assert "error: " + message.format(model=data / "model") in run.errors and "Traceback" not in run.errors
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


# train_planner.py on a GPU that has FlashAttention 2 and no bfloat16, as far as choosing goes.
IN_FP32 = """
from utils.models import devices
from utils.planner import trainer as planner_trainer
from utils.training import base_model
base_model.is_flash_attn_2_available = lambda: True
devices.has_bf16 = lambda: False
"""


@pytest.fixture
def train_in_fp32(data, warm, tmp_path):
    def call(*flags, code=""):
        settings = flags_of(data, tmp_path / "planner", max_steps=1, eval_generate=0, gradient_accumulation_steps=1)
        return warm.run("train_planner", [*settings, *flags], do=IN_FP32 + code)

    return call


def test_flash_attention_is_not_taken_in_fp32(train_in_fp32, tmp_path):
    done = train_in_fp32()
    assert done.returncode == 0, done.errors
    assert "; fp32; attention: sdpa; " in done.printed
    manifest = json.loads((tmp_path / "planner/manifest.json").read_text())
    assert (manifest["attention"], manifest["bf16"]) == ("sdpa", False)


def test_flash_attention_in_fp32_is_refused_before_the_weights_load(train_in_fp32, tmp_path):
    done = train_in_fp32("--attn_implementation", "flash_attention_2", code="base_model.load_base = None")
    assert done.returncode == 2
    expected = "--attn_implementation flash_attention_2: takes no fp32, and this device has no bf16"
    assert done.errors == f"error: {expected}\n" or done.errors.endswith(f"\nerror: {expected}\n")
    assert not list((tmp_path / "planner").glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("wanted", "installed", "bf16", "qwen", "capped"),
    [
        ("auto", True, True, "flash_attention_2", "flash_attention_2"),
        ("auto", True, False, "sdpa", "eager"),
        ("auto", False, True, "sdpa", "eager"),
        ("flash_attention_2", True, True, "flash_attention_2", "flash_attention_2"),
        ("eager", True, False, "eager", "eager"),
    ],
)
def test_which_attention_is_taken(data, gemma, monkeypatch, capsys, wanted, installed, bf16, qwen, capped):
    from utils.training.base_model import choose_attention

    monkeypatch.setattr("utils.training.base_model.is_flash_attn_2_available", lambda: installed)
    monkeypatch.setattr("utils.training.base_model.is_flash_attn_greater_or_equal", lambda version: installed)
    assert choose_attention(wanted, bf16, str(data / "model"), {}) == qwen
    assert capsys.readouterr().err == ""
    assert choose_attention(wanted, bf16, str(gemma), {}) == capped
    note = f"note: {gemma}: sdpa would leave out its attn_logit_softcapping; attention is eager\n"
    assert capsys.readouterr().err == (note if (wanted, capped) == ("auto", "eager") else "")


# Parts of a model that an attention may leave out


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return save_tiny_gemma(tmp_path_factory.mktemp("gemma"))


def load(folder, attention, **settings):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, **settings).eval()


def logits_of(model, length=40):
    """Of two random sequences."""
    import torch

    ids = torch.randint(5, 50, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(ids).logits


def test_sdpa_drops_the_cap_on_attention_scores_and_nothing_else(gemma):
    """Why it is not taken for Gemma 2; sliding windows and the scale of the queries it has."""
    import torch

    def differ(one, other):
        return (one - other).abs().max().item() > 0.1

    capped, dropped = logits_of(load(gemma, "eager")), logits_of(load(gemma, "sdpa"))
    uncapped = logits_of(load(gemma, "eager", attn_logit_softcapping=None))
    assert differ(capped, dropped)
    torch.testing.assert_close(dropped, uncapped, atol=1e-3, rtol=0)
    for settings in ({"sliding_window": 1000}, {"query_pre_attn_scalar": 64}):
        model = load(gemma, "sdpa", attn_logit_softcapping=None, **settings)
        assert differ(logits_of(model), uncapped)
        expected = logits_of(load(gemma, "eager", attn_logit_softcapping=None, **settings))
        torch.testing.assert_close(logits_of(model), expected, atol=1e-3, rtol=0)


def test_a_flash_attention_without_the_cap_is_not_taken(gemma, monkeypatch):
    """transformers takes one from 2.3.3 on, and hands it the cap if it has an argument for it: since 2.6."""
    from transformers.modeling_flash_attention_utils import _lazy_define_process_function

    from utils.cli import UserError
    from utils.training.base_model import choose_attention

    handed = [
        _lazy_define_process_function(kernel)(8, 8, True, softcap=50.0).get("softcap")
        for kernel in (lambda q, k, v, softcap=0.0: None, lambda q, k, v: None)
    ]
    assert handed == [50.0, None]
    monkeypatch.setattr("utils.training.base_model.is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr("utils.training.base_model.is_flash_attn_greater_or_equal", lambda version: version < "2.6.0")
    assert choose_attention("auto", True, str(gemma), {}) == "eager"
    with pytest.raises(UserError, match=r"before 2\.6 would leave out its attn_logit_softcapping"):
        choose_attention("flash_attention_2", True, str(gemma), {})


def test_a_model_with_attention_sinks_gets_an_attention_that_has_them(tmp_path, monkeypatch, capsys):
    """For gpt-oss transformers would take FlashAttention 3 instead of 2, fetched from the hub."""
    from transformers import GptOssConfig

    from utils.cli import UserError
    from utils.training.base_model import choose_attention

    GptOssConfig().save_pretrained(tmp_path)
    monkeypatch.setattr("utils.training.base_model.is_flash_attn_2_available", lambda: True)
    assert choose_attention("auto", True, str(tmp_path), {}) == "eager"
    expected = f"note: {tmp_path}: GptOssForCausalLM does not support sdpa; attention is eager\n"
    assert capsys.readouterr().err == expected
    for wanted, name in [("sdpa", "sdpa"), ("flash_attention_2", "FlashAttention 2")]:
        with pytest.raises(UserError) as error:
            choose_attention(wanted, True, str(tmp_path), {})
        reason = f"{tmp_path}: GptOssForCausalLM does not support {name}; give auto"
        assert str(error.value) == f"--attn_implementation {wanted}: {reason}"


@pytest.fixture(scope="module")
def gemma_examples(gemma, data):
    """What train_planner.py makes of the eight questions."""
    import train_planner
    from prompts import load_prompt
    from utils.benchmarks.lampqa import TASK
    from utils.generation.chat import LocalChat

    args = train_planner.build_parser().parse_args(flags_of(data, "-", model_addr=gemma, max_seq_length=4096))
    records = json.loads((data / "train.json").read_text())
    return train_planner.build_examples(TASK, records, "-", load_prompt("lampqa/planner"), LocalChat(str(gemma)), args)


def own_loss(model, examples):
    """Mean over all target tokens by the model's own forward, a sequence at a time."""
    import torch

    total = 0
    for example in examples:
        row = {name: torch.tensor([ids]) for name, ids in example.row.items()}
        with torch.no_grad():
            total += model(**row).loss.item() * len(example.target)
    return total / sum(len(example.target) for example in examples)


@pytest.mark.parametrize("loss", ["PlannerTrainer", "SFTTrainer"])
def test_gemma_learns_with_both_of_its_caps(gemma, data, gemma_examples, train_in_fp32, tmp_path, loss):
    """At a learning rate of 0: a step of all eight questions, then their validation. SFTTrainer's loss is a GPU's."""
    code = f"planner_trainer.PlannerTrainer.compute_loss = planner_trainer.{loss}.compute_loss"
    flags = ["--model_addr", gemma, "--validation_addr", data / "train.json", "--learning_rate", "0"]
    done = train_in_fp32(*flags, "--gradient_accumulation_steps", "8", code=code)
    assert done.returncode == 0, done.errors
    assert f"note: {gemma}: sdpa would leave out its attn_logit_softcapping; attention is eager\n" in done.errors
    assert "; fp32; attention: eager; " in done.printed
    assert json.loads((tmp_path / "planner/manifest.json").read_text())["attention"] == "eager"
    expected = own_loss(load(gemma, "eager"), gemma_examples)
    (evaluation,) = [entry["eval_loss"] for entry in log_of(tmp_path / "planner") if "eval_loss" in entry]
    assert [*losses_of(tmp_path / "planner"), evaluation] == pytest.approx([expected] * 2, rel=1e-4)
    for without in ("attn_logit_softcapping", "final_logit_softcapping"):
        assert own_loss(load(gemma, "eager", **{without: None}), gemma_examples) != pytest.approx(expected, rel=1e-3)


def test_plans_of_an_evaluation_have_the_cap(gemma, gemma_examples):
    """Greedy, with a cache, as a whole forward of all tokens would write them."""
    from contextlib import nullcontext
    from types import SimpleNamespace

    import torch

    from utils.generation.chat import LocalChat
    from utils.planner.trainer import PlannerTrainer
    from utils.training.base_model import load_base

    def plan_of(model, example):
        accelerator = SimpleNamespace(device="cpu", autocast=nullcontext)
        trainer = SimpleNamespace(model=model, accelerator=accelerator, _chat=chat, _max_seq_length=example.length + 20)
        return PlannerTrainer._generate(trainer, example)[0]

    chat, example = LocalChat(str(gemma)), gemma_examples[0]
    model = load_base(str(gemma), {}, torch.float32, "eager").eval()
    ids = list(example.prompt)
    with torch.no_grad():
        while len(ids) < example.length + 20 and ids[-1] != chat.end_of_turn:
            ids.append(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax().item())
    expected = chat.tokenizer.decode(ids[len(example.prompt) :], skip_special_tokens=True)
    assert plan_of(model, example) == expected
    assert plan_of(load(gemma, "sdpa"), example) != expected


def test_sdpa_is_refused_for_gemma_before_the_weights_load(gemma, train_in_fp32, tmp_path):
    done = train_in_fp32("--model_addr", gemma, "--attn_implementation", "sdpa", code="base_model.load_base = None")
    assert done.returncode == 2
    reason = f"{gemma}: sdpa would leave out its attn_logit_softcapping; give auto"
    assert done.errors.endswith(f"error: --attn_implementation sdpa: {reason}\n")
    assert "Traceback" not in done.errors
    assert not list((tmp_path / "planner").glob("checkpoint-*"))
