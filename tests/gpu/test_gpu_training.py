"""Trainings: the memory of the 7B shape, attention, padding, a study on all GPUs, and T5 with beams."""

import json
import re

import pytest
from gpu_runs import CHAT, ENCODER, SAMPLE, needs_package
from tiny_chat import sample_records

ROUNDING = 1e-2  # of a loss in bf16
FORESEEN = 20e9  # bytes: a step of 8192 tokens by docs/speed_and_hardware.md, computed
STEPS = 4

# train_planner.py, and what torch allocated at most.
MEASURED = """
import sys, torch, train_planner
assert train_planner.main(sys.argv[1:]) == 0
print("peak", torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0)
"""

# The same of utils/train_generator.py.
MEASURED_GENERATOR = MEASURED.replace(
    "import sys, torch, train_planner", "import sys, torch; from utils import train_generator"
)
MEASURED_GENERATOR = MEASURED_GENERATOR.replace("train_planner.main", "train_generator.main")


ATTENDED = """
import sys
import train_planner
from utils.base import cli
from utils.models import base_model
base_model.choose_attention = lambda *_: "{attention}"
cli.run_script(train_planner.main)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Questions with two short posts each, and one with a post longer than any model's limit."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "train.json").write_text(json.dumps(sample_records("train", 8)))
    [record] = json.loads((SAMPLE / "train.json").read_text(encoding="utf-8"))[:1]
    record["profile"] = [{**record["profile"][0], "text": " ".join(f"word {number}" for number in range(20_000))}]
    (folder / "long.json").write_text(json.dumps([record]))
    return folder


def flags_of(data, output, **more):
    """Return flags for a few steps of the demo's model, without dropout, which differs between devices."""
    flags = {
        "model_addr": CHAT, "inputs_addr": data / "train.json", "output_dir": output, "num_contexts": 2,
        "learning_rate": 1e-3, "lora_dropout": 0, "max_steps": STEPS, "save_steps": 2,
        "gradient_accumulation_steps": 4, **more,
    }  # fmt: skip
    return ["--unranked", *(word for name, value in flags.items() for word in (f"--{name}", value))]


def log_of(output, name):
    lines = map(json.loads, (output / "training_log.jsonl").read_text().splitlines())
    return [entry[name] for entry in lines if name in entry]


@pytest.fixture(scope="module")
def uninterrupted(machine, data, tmp_path_factory):
    output = tmp_path_factory.mktemp("uninterrupted") / "planner"
    machine.run("train_planner.py", *flags_of(data, output), one_gpu=True)
    return output


def listed(values):
    return ", ".join(f"{value:.4f}" for value in values)


def test_a_step_of_the_7b_shape_fits_where_a_dry_run_says_so(machine, data, generator, tmp_path, figure):
    length = machine.pick(8192, 512)
    flags = flags_of(
        data, tmp_path / "planner", model_addr=generator, inputs_addr=data / "long.json", max_seq_length=length,
        max_steps=2, gradient_accumulation_steps=1, num_contexts=1,
    )  # fmt: skip
    machine.wait_until_idle()
    said = machine.run("train_planner.py", *flags, "--dry_run", one_gpu=True).splitlines()
    if missing := [line for line in said if line.startswith("missing: ")]:
        pytest.skip("; ".join(missing))
    with machine.watching() as samples:
        printed = machine.run("-c", MEASURED, *flags, one_gpu=True)
    tokens = int(re.search(r"the longest example (\d+)", printed)[1])
    peak = int(re.search(r"^peak (\d+)$", printed, re.M)[1])
    figure(f"{tokens} tokens, losses {listed(log_of(tmp_path / 'planner', 'loss'))}")
    assert length - 16 <= tokens <= length  # the post is cut between two of its words
    if machine.num_gpus:
        taken = max((machine.above_idle(used) for used in samples), default=0)
        figure(f"{peak / 1e9:.1f} GB at the peak, foreseen {FORESEEN / 1e9:.0f}; {taken} MiB of the GPU were taken")
        assert peak <= 1.2 * FORESEEN


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_gives_the_loss_of_the_one_that_is_chosen(machine, data, uninterrupted, tmp_path, attention, figure):
    flags = flags_of(data, tmp_path / "planner", max_steps=1, save_steps=1)
    machine.run("-c", ATTENDED.format(attention=attention), *flags, one_gpu=True)
    for name in ("loss", "grad_norm"):  # of the first step, when both are the base model
        ours, theirs = (log_of(output, name)[0] for output in (tmp_path / "planner", uninterrupted))
        figure(f"{name} {ours:.4f}, of the default {theirs:.4f}")
        assert ours == pytest.approx(theirs, rel=ROUNDING if name == "loss" else 5 * ROUNDING)


STUDY = {
    "MODELS": CHAT, "OPENAI_MODELS": "", "PLANNER_BASE": CHAT, "JUDGE": CHAT, "ENCODER": ENCODER,
    "CATEGORIES": "Society_and_Culture",
    "TRAIN_FLAGS": "--num_contexts 1 --max_steps 2 --save_steps 1 --eval_generate 0",
    "ANSWER_FLAGS": "--num_contexts 1 --max_model_len 2048 --max_tokens 32 --constrained_decoding always",
    "PLANPERS_FLAGS": "--max_tokens_plan 24",
    "JUDGE_FLAGS": "--max_tokens 16 --constrained_decoding always",
}  # fmt: skip


@needs_package("vllm")
def test_a_study_takes_all_gpus(machine, tmp_path, figure):
    """Figure 3, from ranking to the figure, with one process and one copy of the model per GPU."""
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        records = sample_records(split, 4, category="history")
        (tmp_path / f"data/Society_and_Culture_{split}.json").write_text(json.dumps(records))
    planner, gpus = tmp_path / "out/planner/Society_and_Culture", max(machine.num_gpus, 1)
    variables = {"DATA": tmp_path / "data", "OUT": tmp_path / "out", "GPUS": gpus, **STUDY}
    words = ("import os, sys; os.environ['PATH'] = os.path.dirname(sys.executable) + ':' + os.environ['PATH']; "
             "os.execvp('bash', ['bash', 'utils/studies/figure3.sh'])")  # fmt: skip
    printed = machine.run("-c", words, **{name: str(value) for name, value in variables.items()})
    batch = re.search(r"1 per device x (\d+) accumulation steps x (\d+) processes = 32 sequences per step", printed)
    figure(f"{batch[2]} processes of {batch[1]} sequences each; losses {listed(log_of(planner, 'loss'))}")
    assert int(batch[2]) == gpus
    assert list(tmp_path.glob("out/*/test/figure3.png"))


@pytest.mark.parametrize("fusion", ["none", "decoder"])
def test_a_t5_learns_and_answers_with_beams(machine, make_model, tmp_path, fusion, figure):
    """FlanT5 base's shape; the best checkpoint's answers are of the task."""
    from lamp_samples import read_sample

    model, inputs, output = (
        make_model("t5", machine.pick("flan-t5-base", "tiny")),
        tmp_path / "in.json",
        tmp_path / "t5",
    )
    inputs.write_text(json.dumps(read_sample("LaMP-4")))
    flags = ["--model_addr", model, "--inputs_addr", inputs, "--validation_addr", inputs, "--output_dir", output,
             "--num_contexts", 16, "--fusion", fusion, "--epochs", 2, "--per_device_train_batch_size",
             machine.pick(4, 2), "--gradient_accumulation_steps", 1]  # fmt: skip
    printed = machine.run("-c", MEASURED_GENERATOR, *flags, one_gpu=True)
    peak = int(re.search(r"^peak (\d+)$", printed, re.M)[1])
    losses, norms = log_of(output, "loss"), log_of(output, "grad_norm")
    figure(f"{peak / 1e9:.1f} GB at the peak; losses {listed(losses)}; gradients {listed(norms)}")
    assert all(0 < value < float("inf") for value in [*losses, *norms])
    answers = tmp_path / "answers.json"
    machine.run("baselines.py", "--model_addr", output / "best", "--inputs_addr", inputs, "--output_addr", answers,
                "--rag", "--num_contexts", 16, one_gpu=True)  # fmt: skip
    assert len(json.loads(answers.read_text())) == len(json.loads(inputs.read_text()))


@pytest.mark.parametrize(
    ("foreseen", "flags"), [(17 * 2**30, ["--fusion", "decoder"]), (FORESEEN, ["--lora_rank", 16])], ids=["fid", "lora"]
)
def test_the_default_batch_takes_what_is_computed(machine, make_model, generator, tmp_path, foreseen, flags, figure):
    """64 questions with 16 items that are longer than a passage; FlanT5 base's shape, and the 7B's with an adapter."""
    from lamp_samples import read_sample

    model = generator if "--lora_rank" in flags else make_model("t5", machine.pick("flan-t5-base", "tiny"))
    [first, *_] = read_sample("LaMP-4", "train")
    words = " ".join(f"word {number}" for number in range(machine.pick(400, 40)))
    items = [{**first["profile"][0], "id": str(number), "text": words} for number in range(16)]
    inputs = tmp_path / "in.json"
    inputs.write_text(json.dumps([{**first, "id": str(number), "profile": items} for number in range(64)]))
    printed = machine.run(
        "-c", MEASURED_GENERATOR, "--model_addr", model, "--inputs_addr", inputs, "--unranked", "--output_dir",
        tmp_path / "out", "--num_contexts", 16, "--epochs", 1, *flags, one_gpu=True,
    )  # fmt: skip
    peak = int(re.search(r"^peak (\d+)$", printed, re.M)[1])
    figure(f"{peak / 2**30:.1f} GiB at the peak, foreseen {foreseen / 2**30:.1f}")
    assert "= 64 questions per step;" in printed and len(log_of(tmp_path / "out", "loss")) == 1
    assert not machine.num_gpus or peak <= 1.2 * foreseen


def test_a_padded_batch_has_finite_gradients(machine, data, tmp_path, figure):
    """Batches of four sequences with different lengths."""
    flags = flags_of(
        data, tmp_path / "planner", per_device_train_batch_size=4, gradient_accumulation_steps=1, num_contexts=1
    )
    machine.run("train_planner.py", *flags, one_gpu=True)
    losses, norms = log_of(tmp_path / "planner", "loss"), log_of(tmp_path / "planner", "grad_norm")
    figure(f"losses {listed(losses)}; gradients {listed(norms)}")
    assert len(norms) == STEPS and all(0 < value < float("inf") for value in [*losses, *norms])
