"""The losses of --objective by hand, on a model in memory: what has a loss, and where its gradient goes."""

import math
from array import array

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_chat import sample_records, save_tiny_chat
from transformers import AutoModelForCausalLM

from utils import train_generator
from utils.benchmarks import tasks
from utils.generation.chat import LocalChat
from utils.generation.fitting import Fitted
from utils.models.base_model import NO_LOSS
from utils.models.model_folder import ModelFolder
from utils.training.checkpoints import Selection
from utils.training.examples import Example, Training
from utils.training.lessons import distillation_lessons
from utils.training.pairs import PairTrainer
from utils.training.trainer import CausalTrainer, trainer_settings
from utils.training.trainers import DistillationTrainer, clipped_loss, forward_kl, reply_logits

TASK = tasks()["LaMP-QA"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("chat"))


@pytest.fixture
def model(folder):
    """With an adapter that has learnt something, so that it differs from its base."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(0)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=4, lora_dropout=0.0, task_type="CAUSAL_LM"))
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.3)
    return model


def make_example(prompt, target=(), rejected=(), teacher=(), key="q"):
    fitted = Fitted(array("i", prompt), 1, 0)
    return Example({"id": key}, fitted, array("i", target), False, array("i", rejected), array("i", teacher))


def trainer_of(kind, folder, tmp_path, model, examples, **flags):
    """A trainer of this kind as train_generator.py builds it."""
    words = ["--model_addr", folder, "--inputs_addr", "-", "--output_dir", tmp_path, "--lora_rank", 4]
    args = train_generator.build_parser().parse_args(list(map(str, words)))
    steps = {"max_steps": 1, "save_steps": 1, "warmup_steps": 0, "learning_rate": 0.0, "weight_decay": 0.0}
    steps |= {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_target_length": 12}
    args = args.replaced(**steps | {"gradient_checkpointing": False} | flags)
    training = Training(
        args,
        {},
        "",
        Selection("eval_score", "best_score", "score"),
        LocalChat(ModelFolder(str(folder))),
        examples,
        [],
        None,
        None,
    )
    return kind(training, model, trainer_settings(training, False))


def log_probs(model, prompt, reply):
    """By the plain logits of the whole sequence: the log-probability of each token of a reply."""
    logits = model(torch.tensor([[*prompt, *reply]])).logits[0].double().log_softmax(-1)
    return [logits[len(prompt) + place - 1, token] for place, token in enumerate(reply)]


def test_sft_counts_the_answers_tokens_alone(folder, model, tmp_path):
    examples = [make_example([5, 6, 7], [8, 9], key="a"), make_example([5], [9, 8, 7, 6], key="b")]
    trainer = trainer_of(CausalTrainer, folder, tmp_path, model, examples)
    batch = CausalTrainer.collate(examples, 0)
    assert batch["labels"].tolist() == [[NO_LOSS] * 3 + [8, 9], [NO_LOSS, 9, 8, 7, 6]]
    expected = -sum(sum(log_probs(model, example.prompt, example.target)) for example in examples) / 6
    loss = trainer.compute_loss(model, batch, num_items_in_batch=torch.tensor(6))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_dpo_by_hand(folder, model, tmp_path):
    """-log sigmoid(beta ((log p(best) - log p0(best)) - (log p(worst) - log p0(worst)))); p0 is the start."""
    prompt, best, worst = [5, 6, 7], [8, 9, 10], [11, 12]
    trainer = trainer_of(PairTrainer, folder, tmp_path, model, [make_example(prompt, best, worst)], beta=0.3)
    inputs = next(iter(trainer.get_train_dataloader()))
    start = [sum(log_probs(model, prompt, reply)).item() for reply in (best, worst)]
    assert trainer.compute_loss(model, inputs).item() == pytest.approx(math.log(2), abs=1e-5)  # nothing learnt yet
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B.default" in name:
                weights += 0.2
    now = [sum(log_probs(model, prompt, reply)).item() for reply in (best, worst)]
    margin = 0.3 * ((now[0] - start[0]) - (now[1] - start[1]))
    assert abs(margin) > 0.01
    loss = trainer.compute_loss(model, inputs)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-margin)), rel=1e-3)
    loss.backward()
    assert {name.split(".")[-2] for name, weights in model.named_parameters() if weights.grad is not None} == {
        "default"
    }


def test_forward_kl_by_hand():
    """Three tokens, over a vocabulary of three: sum of p log(p / q), with p the teacher's."""
    teacher = [[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1 / 3, 1 / 3, 1 / 3]]
    student = [[0.25, 0.5, 0.25], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]]
    expected = [
        sum(p * math.log(p / q) for p, q in zip(*rows, strict=True)) for rows in zip(teacher, student, strict=True)
    ]
    computed = forward_kl(torch.tensor(teacher).log() + 3.0, torch.tensor(student).log() - 1.0)  # any shift of logits
    assert computed.tolist() == pytest.approx(expected, abs=1e-6)
    assert expected[0] == pytest.approx(0.25 * math.log(2)) and expected[1] == 0


def test_distillation_by_hand(folder, model, tmp_path):
    """The teacher is the model without its adapter, behind its own prompt; only the adapter gets a gradient."""
    prompt, teacher, reply = [5, 6, 7], [20, 21, 22, 23, 24], [40, 41, 9, 42, 43, 44, 2]
    example = make_example(prompt, reply, teacher=teacher)
    trainer = trainer_of(DistillationTrainer, folder, tmp_path, model, [example])
    [inputs] = trainer.get_train_dataloader()
    with torch.no_grad(), model.disable_adapter():
        whole = model(torch.tensor([[*teacher, *reply]])).logits[0, len(teacher) - 1 : -1].double().log_softmax(-1)
    student = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
    expected = (whole.exp() * (whole - student)).sum(-1).mean()
    loss = trainer.compute_loss(model, inputs)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5) and loss.item() > 0.01
    loss.backward()
    assert {name for name, weights in model.named_parameters() if weights.grad is not None} == {
        name for name, _ in model.named_parameters() if "lora" in name
    }
    logits = reply_logits(model, torch.tensor([prompt]), torch.tensor(reply))
    assert logits.shape == (len(reply), model.config.vocab_size)


def test_the_teacher_has_no_dropout_and_the_student_has(folder, model, tmp_path, monkeypatch):
    trainer = trainer_of(
        DistillationTrainer, folder, tmp_path, model, [make_example([5, 6, 7], [8, 9], teacher=[20, 21])]
    )
    modes = []
    forward = type(model.get_base_model()).forward

    def spy(self, *args, **kwargs):
        modes.append((self.training, torch.is_grad_enabled()))
        return forward(self, *args, **kwargs)

    [inputs] = trainer.get_train_dataloader()
    monkeypatch.setattr(type(model.get_base_model()), "forward", spy)
    trainer.compute_loss(model.train(), inputs)
    assert set(modes[:-1]) == {(False, False)} and modes[-1] == (True, True)


def test_leaking_profiles_are_left_out():
    records = sample_records("train", 4)
    records[1]["profile"][0]["text"] = f"As I said:\n{records[1]['narrative']} Thanks."
    records[2]["profile"].append({"id": "x", "text": records[2]["rubric_aspects"][0]["reason"].replace(" ", "\n")})
    samples = {record["id"]: [{"raw": "a"}, {"raw": "b", "finish_reason": "length"}, {}] for record in records}
    lessons, [left_out, empty] = distillation_lessons(TASK, records, samples)
    ids = [records[0]["id"], records[3]["id"]]
    assert [lesson.record["id"] for lesson in lessons] == [ids[0], ids[0], ids[1], ids[1]]
    assert [(lesson.target, lesson.is_cut) for lesson in lessons[:2]] == [("a", False), ("b", True)]
    assert empty == "2 samples skipped: no field 'raw' with the text that the model wrote"
    assert left_out.startswith("2 questions skipped") and records[1]["id"] in left_out
    for lesson in lessons:
        for aspect in lesson.record["rubric_aspects"]:
            assert f"- {aspect['aspect']}: {aspect['reason']}" in lesson.notes.split("\n")


def test_a_tokens_loss_is_clipped_by_hand():
    """Ratios of 1.5 and 0.5, which are clipped at 1.2 and 0.8 where the step would gain by going further."""
    ratios, advantages = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0]), torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    before = torch.full((5,), -2.0)
    now = before + ratios.log()
    assert clipped_loss(now, before, advantages).tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8, -2.0])
    kl = (1 / ratios) + ratios.log() - 1  # k3: exp(before - now) - (before - now) - 1
    penalized = clipped_loss(now, before, advantages, kl=0.1)
    assert penalized.tolist() == pytest.approx((torch.tensor([-1.2, 1.5, -0.5, 0.8, -2.0]) + 0.1 * kl).tolist())
