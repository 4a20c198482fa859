"""A planner overfitted on a tiny random model: its weights, and its plans with PEFT and vLLM."""

import json
import threading
import time
from pathlib import Path

import pytest
from test_planner_training import data, flags_of, log_of, losses_of  # noqa: F401 (a fixture)
from tiny_chat import save_tiny_chat

from utils.models.model_folder import ModelFolder

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def overfitted(data, tmp_path_factory):
    """Overfit a planner on the eight questions; return its folder, and the model in memory at the end."""
    import train_planner
    from utils.models import base_model

    output = tmp_path_factory.mktemp("overfitted") / "planner"
    loaded = []
    load_base = base_model.load_base
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_model, "load_base", lambda *args: loaded.append(load_base(*args)) or loaded[0])
        flags = flags_of(
            data, output, validation_addr=data / "train.json", max_steps=80, save_steps=40, eval_generate=8,
            per_device_train_batch_size=8, gradient_accumulation_steps=1,
            lora_rank=32, lora_alpha=32, lora_dropout=0,
        )  # fmt: skip
        code = train_planner.main([*flags, "--lora_target_modules", "all-linear", "--no-gradient_checkpointing"])
    assert code == 0
    return output, loaded[0]


@pytest.fixture(scope="module")
def plans_by_peft(overfitted, data):
    """Greedy plans for the first three questions by PEFT's own generate, in float32; they equal the targets."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from prompts import join_posts, load_prompt
    from utils.generation.chat import LocalChat

    output, _ = overfitted
    chat = LocalChat(ModelFolder(str(output / "best")))
    base = AutoModelForCausalLM.from_pretrained(data / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, output / "best").eval()
    plans, records = [], json.loads((data / "train.json").read_text())[:3]
    for record in records:
        posts = join_posts([post["text"] for post in record["profile"]])
        prompt = chat.render(load_prompt("lampqa/planner").messages(question=record["question"], profile=posts))
        ids = torch.tensor([list(prompt)])
        generated = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=200, do_sample=False
        )
        plans.append(chat.tokenizer.decode(generated[0, len(prompt) :], skip_special_tokens=True))
    assert plans == ["\n".join(aspect["aspect"] for aspect in record["rubric_aspects"]) for record in records]
    return plans


# Plans by vLLM


class EngineWatch(threading.Thread):
    """Watches the vLLM processes that descend from a process; `lives` is [first seen, last seen, name] by pid."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid = pid
        self.lives = {}

    def run(self):
        import psutil

        while psutil.pid_exists(self.pid):
            try:
                for child in psutil.Process(self.pid).children(recursive=True):
                    if (name := " ".join(child.cmdline())).startswith("VLLM::"):
                        parent = child.parent()
                        if parent is not None and parent.cmdline() == child.cmdline():
                            continue  # just forked, about to run another program
                        first, *_ = self.lives.get(child.pid, [time.monotonic()])
                        self.lives[child.pid] = [first, time.monotonic(), name]
            except psutil.NoSuchProcess:
                continue
            time.sleep(0.05)


def lives_of(run):
    """Wait for a run to succeed, and return the lives of its vLLM processes, in order."""
    watch = EngineWatch(run.pid)
    watch.start()
    assert run.wait() in (0, 1), run.errors  # 1: with random weights, most answers may be unusable
    watch.join()
    return sorted(watch.lives.values())


@pytest.fixture
def plan_and_answer(data, warm_engine):
    """Make greedy plans and short answers for three questions; return the lives of the vLLM processes, in order."""

    def call(planner, generator, output, *more):
        arguments = [
            "--model_addr", generator, "--planner_model", planner, "--inputs_addr", data / "train.json",
            "--output_addr", output, "--limit", "3", "--num_contexts", "2", "--temperature", "0", "--dtype", "float32",
            "--max_model_len", "1024", "--max_tokens_plan", "200", "--max_tokens", "16", "--max_retries", "1",
            "--unranked",
        ]  # fmt: skip
        run = warm_engine.start("planpers", [*arguments, *more], look_at_models=None)
        return lives_of(run)

    return call


def engines_of(lives):
    return [life for life in lives if "EngineCore" in life[2]]


def test_one_engine_plans_like_peft_and_answers_with_the_base_model(
    overfitted, data, plans_by_peft, plan_and_answer, tmp_path
):
    planner, _ = overfitted
    lives = plan_and_answer(planner / "best", data / "model", tmp_path / "answers.json")
    assert len(engines_of(lives)) == 1
    plans = json.loads((tmp_path / "answers.json.plans.json").read_text())
    assert [samples[0]["raw"] for samples in plans.values()] == plans_by_peft
    assert all(samples[0]["parsed"] == "strict" and not samples[0]["constrained"] for samples in plans.values())
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert [samples[0]["plan"] for samples in answers.values()] == plans_by_peft
    for samples in answers.values():  # constrained to the schema, because the model is random
        assert samples[0]["constrained"] and samples[0]["raw"].startswith('{"personalized_answer":')


def test_with_different_base_models_the_planner_ends_before_the_generator_loads(
    overfitted, plans_by_peft, plan_and_answer, tmp_path
):
    """On two devices unless there is only one GPU: workers hold a GPU's memory until they end."""
    import torch

    devices = "1" if torch.cuda.device_count() == 1 else "2"
    planner, _ = overfitted
    other = save_tiny_chat(tmp_path / "other", seed=1)
    lives = plan_and_answer(planner / "best", other, tmp_path / "answers.json", "--tensor_parallel_size", devices)
    _, (generator_begins, *_) = engines_of(lives)
    planners = [last_seen for first_seen, last_seen, _ in lives if first_seen < generator_begins]
    assert planners and max(planners) < generator_begins  # a process that lives for milliseconds may go unseen
    plans = json.loads((tmp_path / "answers.json.plans.json").read_text())
    assert [samples[0]["raw"] for samples in plans.values()] == plans_by_peft
    assert len(json.loads((tmp_path / "answers.json").read_text())) == 3


def test_training_overfits_the_targets_and_changes_only_the_adapter(overfitted, data):
    import torch
    from safetensors.torch import load_file

    output, model = overfitted
    assert losses_of(output)[0] > 5 and losses_of(output)[-1] < 0.1
    evaluations = [entry for entry in log_of(output) if "eval_loss" in entry]
    assert [entry["step"] for entry in evaluations] == [40, 80]
    assert evaluations[1]["eval_loss"] < 0.1
    assert evaluations[1]["eval_aspect_recall"] == 1 and evaluations[1]["eval_plans"] == 8
    assert (output / "best").readlink() == Path("checkpoint-80")

    before = load_file(data / "model/model.safetensors")
    after = {name.replace(".base_layer", ""): value for name, value in model.state_dict().items()}
    for name, value in before.items():
        assert torch.equal(after[name].cpu(), value.to(after[name].dtype)), name
    adapters = [load_file(output / f"checkpoint-{step}" / "adapter_model.safetensors") for step in (40, 80)]
    assert all("lora_" in name for name in adapters[0])
    assert all(not torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])
    assert all(value.abs().sum() > 0 for name, value in adapters[0].items() if "lora_B" in name)  # zero at the start

    manifest = json.loads((output / "best/manifest.json").read_text())
    assert manifest["settings"]["model"].startswith("sha256:")
    assert (manifest["settings"]["effective_batch_size"], manifest["arguments"]["lora_rank"]) == (8, 32)
    assert (manifest["step"], manifest["best_step"]) == (80, 80)
    adapter = json.loads((output / "best/adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(data / "model")
    assert (adapter["r"], adapter["lora_alpha"], adapter["bias"]) == (32, 32, "none")
