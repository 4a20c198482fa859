"""--objective grpo: from the scores of sampled answers to the calls behind them."""

import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from statistics import pstdev, stdev
from types import SimpleNamespace

import made_up_lessons
import made_up_rounds as rounds
import pytest
import torch
from safetensors.torch import load_file
from test_losses import log_probs, make_example, trainer_of
from test_planner_training import ROOT, TWO
from tiny_chat import save_tiny_chat

from utils import combine_scores
from utils.base.errors import UserError, count_plural, quote
from utils.base.manifest import file_hash, read_folder_manifest
from utils.generation.chat import LocalChat
from utils.generation.fitting import Window
from utils.models.base_model import target_loss
from utils.models.model_folder import ModelFolder
from utils.training.resumable import Resumable
from utils.training.rounds import (
    describe_round,
    examples_of_round,
    note_restricted_sampling,
    relative_scores,
    relative_to_no_search,
    why_no_advantages,
)
from utils.training.trainer import CausalTrainer
from utils.training.trainers import ScoreTrainer

SEARCHES = """
import re

async def answer(record, ask):
    first = await ask("{question}")
    wants = re.match(r"Look 1[0-3] steps", first or "")
    posts = await ask.search(record["question"], k=1) if wants else record.best(1)
    text = await ask("rag", items=posts)
    return text and text + (" searched" if wants else "")
"""
LEARNING = ["--learning_rate", 5e-3, "--per_device_train_batch_size", 16, "--gradient_accumulation_steps", 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounds")
    made_up_lessons.write_files(folder)
    save_tiny_chat(folder / "model")
    (folder / "key.txt").write_text("sk-test")
    return folder


@pytest.fixture(scope="module")
def beginner(folder):
    """The model after it has learnt to answer with any of eight numbers."""
    assert rounds.make_beginner(folder) < 0.3
    return folder / "beginner"


def near(text):
    return 2 if re.match(r"Look 1[0-3] steps", text) else 0


# Advantages


def test_an_advantage_is_relative_to_the_question():
    scores = {0: 1.0, 1: 0.5, 3: 0.0}
    expected = {number: (score - 0.5) / (pstdev(scores.values()) + 1e-4) for number, score in scores.items()}
    assert relative_scores(scores) == pytest.approx(expected)
    assert relative_scores({0: 1.0, 1: 1.0}) == relative_scores({0: 1.0}) == relative_scores({}) == {}


def test_pr2s_advantage_by_hand():
    """Its deleted code's: (s - v - mean) / sd - 2 v / sd_search, where v did not search, and 0 for v."""
    scores, searched = {0: 0.2, 1: 0.5, 2: 0.9, 3: 0.4}, {0: False, 1: True, 2: True, 3: True}
    mean, of_all, of_searched = 0.5, stdev([0.2, 0.5, 0.9, 0.4]), stdev([0.5, 0.9, 0.4])
    by_hand = {i: (scores[i] - 0.2 - mean) / of_all - 2 * 0.2 / of_searched for i in (1, 2, 3)} | {0: 0.0}
    assert relative_to_no_search(scores, searched) == pytest.approx(by_hand)
    assert relative_to_no_search(scores, dict.fromkeys(scores, True)) == {}
    assert relative_to_no_search({0: 0.2, 1: 0.5, 2: 0.5}, searched) == {}


@pytest.mark.parametrize(
    "scores",
    [
        {0: 0.3, 1: 0.1 + 0.2, 2: 0.3, 3: 0.3},
        {0: 0.5, 1: 0.5 + 1e-7, 2: 0.5, 3: 0.5 - 1e-7},
        {0: -12.0, 1: -12.0, 2: -12.000001, 3: -12.0},  # rewards
        {0: 1e-9, 1: 1e-9, 2: 1e-9 * (1 + 1e-8), 3: 1e-9},
        {0: 0.0, 1: 5.5e-17, 2: 0.0, 3: 1e-17},
    ],
)
def test_scores_that_differ_by_rounding_are_equal(scores):
    assert relative_scores(scores) == {}
    assert relative_to_no_search(scores, {0: False, 1: True, 2: True, 3: True}) == {}


@pytest.mark.parametrize("step", [0.1, 0.01, 1e-3, 1e-5, 1e-9])
def test_no_pr2_advantage_explodes(step):
    """Its numerator does not shrink with the differences: a deviation of 0.001 would give advantages over 1,000."""
    scores = {number: 0.5 + number * step for number in range(4)}
    advantages = relative_to_no_search(scores, {number: number > 0 for number in scores})
    assert all(abs(advantage) < 200 for advantage in advantages.values()) and bool(advantages) == (step >= 0.01)


@pytest.mark.parametrize("scores", [(0.9, 0.5, 0.517, 0.5), (100, 0.001, 0.002, 0)])
def test_nearly_equal_searches_far_below_the_bare_sample_are_equal(scores):
    """The bare score is divided by the deviation of those that searched."""
    assert relative_to_no_search(dict(enumerate(scores)), {number: number > 0 for number in range(4)}) == {}


# The loss


def test_grpo_by_hand(folder, tmp_path):
    """Three calls of two samples, with clipping and the KL term, against the plain log-probabilities."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    torch.manual_seed(0)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=4, lora_dropout=0.5, task_type="CAUSAL_LM"))
    calls = [([5, 6, 7], [8, 9], 1.5), ([5, 6], [9, 8, 7, 6], 1.5), ([11, 12], [5], -0.7)]
    examples = []
    for prompt, target, advantage in calls:
        example = make_example(prompt, target)
        examples.append(type(example)(**{**vars(example), "advantage": advantage}))
    trainer = trainer_of(ScoreTrainer, folder / "model", tmp_path, model, examples, kl=0.3, epochs=1)
    before = [[value.item() for value in log_probs(model, *call[:2])] for call in calls]
    computed = trainer.log_probs()
    for values, by_hand in zip(computed, before, strict=True):
        assert values == pytest.approx(by_hand, abs=1e-4)
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=3.0)
    losses, clipped = [], 0
    for (prompt, target, advantage), earlier in zip(calls, before, strict=True):
        for now, then in zip(log_probs(model, prompt, target), earlier, strict=True):
            ratio = (now - then).exp()
            bounded = ratio.clamp(0.8, 1.2)
            clipped += (ratio * advantage > bounded * advantage).item()
            kl = (then - now).exp() - (then - now) - 1
            losses.append(-torch.minimum(ratio * advantage, bounded * advantage) + 0.3 * kl)
    assert 0 < clipped < len(losses) == 7
    expected = sum(losses) / 7
    expected.backward()
    gradients = {name: weights.grad.clone() for name, weights in model.named_parameters() if weights.grad is not None}
    model.zero_grad()
    loss = trainer.compute_loss(model, trainer.collate(list(zip(examples, computed, strict=True)), 0))
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
    for name, weights in model.named_parameters():
        if weights.requires_grad:
            assert torch.allclose(weights.grad, gradients[name], rtol=1e-2, atol=1e-4), name


def test_a_call_keeps_as_much_for_its_gradient_as_a_target_of_sft(folder, tmp_path):
    """But for a few numbers per token, so that the memory measured for `sft` is that of `grpo`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    example = make_example(list(range(5, 400)), list(range(400, 600)))
    trainer = trainer_of(ScoreTrainer, folder / "model", tmp_path, model, [example], kl=0.1, epochs=1)
    [before], sizes = trainer.log_probs(), []
    for compute in (
        lambda: trainer.compute_loss(model, trainer.collate([(example, before)], 0)),
        lambda: target_loss(model, **CausalTrainer.collate([example], 0))[0],
    ):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor, kept=kept: kept.append(tensor), lambda _: None):
            compute()
        sizes.append(sum({tensor.data_ptr(): tensor.nbytes for tensor in kept}.values()))
    assert sizes[1] > 10**6 and abs(sizes[0] - sizes[1]) < 200 * 100, sizes


@pytest.mark.parametrize("temperatures", [[0.3, 0.3, 0.3], [0.8, 1.0, 0.3], [1.0, 1.0, 1.0]])
def test_log_probabilities_are_at_the_temperature_of_the_samples(folder, tmp_path, temperatures):
    """Before the round and in its steps, alone and in a batch, as torch by hand and TRL's function compute them."""
    from transformers import AutoModelForCausalLM
    from trl.trainer.utils import selective_log_softmax

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    calls = [([5, 6, 7], [8, 9]), ([5, 6], [9, 8, 7, 6]), ([11, 12], [5])]
    examples = [
        replace(make_example(*call), temperature=temperature, advantage=1.0)
        for call, temperature in zip(calls, temperatures, strict=True)
    ]
    trainer = trainer_of(ScoreTrainer, folder / "model", tmp_path, model, examples, kl=0.5, epochs=1)
    before, by_hand = trainer.log_probs(), []
    for (prompt, target), temperature in zip(calls, temperatures, strict=True):
        logits = model(torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1].detach()
        by_hand.append((logits.double() / temperature).log_softmax(-1)[range(len(target)), target].tolist())
        by_trl = selective_log_softmax(logits, torch.tensor(target), temperature=temperature)
        assert by_hand[-1] == pytest.approx(by_trl.tolist(), abs=1e-4)
    for values, expected in zip(before, by_hand, strict=True):
        assert values == pytest.approx(expected, abs=1e-4)
    for weights in model.parameters():
        weights.data += 0.02 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0))
    losses = []
    for (prompt, target), temperature, earlier in zip(calls, temperatures, by_hand, strict=True):
        logits = model(torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1].detach().double()
        now = (logits / temperature).log_softmax(-1)[range(len(target)), target]
        ratio = (now - torch.tensor(earlier)).exp()
        losses += (-torch.minimum(ratio, ratio.clamp(0.8, 1.2)) + 0.5 * (1 / ratio + ratio.log() - 1)).tolist()
    loss = trainer.compute_loss(model, trainer.collate(list(zip(examples, before, strict=True)), 0))
    assert loss.item() == pytest.approx(sum(losses) / 7, rel=1e-3) and len(set(losses)) == 7


# Which calls are learnt


def sample_of_two(folder, server, output):
    """A round whose second call is of another model, with a sample of each question that searched."""
    method = SEARCHES.replace('ask("rag", items=posts)', 'ask("rag", items=posts, model="other")')
    other = f"other=policy@{server.url},api_key_addr={folder / 'key.txt'}"
    return rounds.sample(folder, server, output, "--model", other, method=method, number=4)


@pytest.fixture(scope="module")
def sampled(folder):
    with rounds.scripted(near) as server:
        return sample_of_two(folder, server, folder / "sampled")


def examples_of(folder, trace, scores, window=(200, 40), **more):
    args = {"response_addr": None, "trace_addr": str(trace), "score_addr": str(scores), "role": "generator",
            "advantage": "grpo", "keep_cut": False, "inputs_addr": "ten.json"}  # fmt: skip
    chat = LocalChat(ModelFolder(str(folder / "model")))
    records = made_up_lessons.records()[30:]
    return examples_of_round(SimpleNamespace(objective="grpo", **args | more), records, Window(chat, *window))


def test_the_calls_of_one_role_are_learnt_with_their_own_texts(folder, sampled):
    trace, scores = sampled
    lines = [json.loads(line) for line in trace.open()]
    chat = LocalChat(ModelFolder(str(folder / "model")))
    for role, other in (("generator", "other"), ("other", "generator")):
        examples, notes = examples_of(folder, trace, scores, role=role)
        texts = {(line["id"], line["text"]) for line in lines if line.get("role") == role}
        for example in examples:
            [*target, end] = example.target
            text = chat.tokenizer.decode(target)
            assert (example.record["id"], text) in texts and end == chat.end_of_turn
            [line] = [line for line in lines if line.get("role") == role and line["id"] == example.record["id"]
                      and line["text"] == text][:1]  # fmt: skip
            assert example.prompt == chat.render(line["messages"]) and other != line["role"]
        assert len(examples) > 10 and all("whose samples" in note or "cut off" in note for note in notes), notes
    for key in {example.record["id"] for example in examples}:
        assert sum(example.advantage for example in examples if example.record["id"] == key) == pytest.approx(0, abs=1)
    with pytest.raises(UserError, match=r"--role critic: .* has calls of generator, other"):
        examples_of(folder, trace, scores, role="critic")


def test_what_cannot_be_learnt_is_counted(folder, sampled, tmp_path):
    """A call that was cut or is long, a sample without a verdict, equal scores; --keep_cut gives a cut sample 0."""
    copy = tmp_path / "round"
    copy.mkdir()
    for path in sampled[0].parent.glob("*.json*"):
        (copy / path.name).write_bytes(path.read_bytes())
    trace = copy / sampled[0].name
    lines = [json.loads(line) for line in trace.open()]
    first = next(line for line in lines if line.get("role") == "generator")
    first["finish_reason"] = "length"  # though something was read before the cut: `truncated` is False
    rounds.rewrite(trace, "".join(json.dumps(line) + "\n" for line in lines))
    scores = copy / sampled[1].name
    examples, notes = examples_of(folder, trace, scores)
    kept, notes_kept = examples_of(folder, trace, scores, keep_cut=True)
    assert len(kept) != len(examples) or "skipped: 1 call cut off" not in notes
    assert not any("cut off" in note for note in notes_kept)
    for length, left in ((8, 0), (200, len(kept))):
        fitting, notes = examples_of(folder, trace, scores, keep_cut=True, window=(length + 300, length))
        assert len(fitting) == left and any(f"{len(kept)} calls too long for" in note for note in notes) == (left == 0)
    content = json.loads(scores.read_text())
    content["per_question_scores"][0]["samples"][1] = None
    rounds.rewrite(scores, json.dumps(content))
    _, notes = examples_of(folder, trace, scores)
    assert "skipped: 1 sample without a verdict" in notes


@pytest.mark.parametrize(
    ("scores", "searched", "what"),
    [
        ({}, {}, "1 question with fewer than two scored samples"),
        ({2: 0.5}, {2: False}, "1 question with fewer than two scored samples"),
        ({0: 0.5, 1: 0.5}, None, "1 question whose samples have equal scores"),
        ({0: 0.1, 1: 0.5}, {0: True, 1: True}, "1 question without exactly one scored sample that did not search"),
        ({0: 0.1, 1: 0.5}, {0: False, 1: False}, "1 question without exactly one scored sample that did not search"),
        ({0: 0.1, 1: 0.5}, {0: False, 1: True}, "1 question with fewer than two scored samples that searched"),
        ({0: 0.1, 1: 0.5, 2: 0.5}, {0: False, 1: True, 2: True},
         "1 question whose samples that searched have equal scores"),
    ],
)  # fmt: skip
def test_why_a_question_has_no_advantages(scores, searched, what):
    assert (relative_scores(scores) if searched is None else relative_to_no_search(scores, searched)) == {}
    assert count_plural(1, why_no_advantages(scores, searched)) == what


def test_each_reason_of_a_question_without_advantages_is_counted_by_itself(folder, sampled, changed):
    """One scored sample has no equal, and samples that all searched, or all did not, may differ in score."""
    trace, scores = changed(lambda line: line.update(finish_reason="stop"))
    content = json.loads(scores.read_text())
    first, second, *others = content["per_question_scores"]
    of_samples = [
        (first, [0.5, None, None, None]),
        (second, [0.5] * 4),
        *((other, [0, 0.5, 0.5, 1]) for other in others),
    ]
    for entry, samples in of_samples:
        entry |= {"score": samples[0], "answered": True, "samples": samples}
        entry["details"][0]["score"] = int(2 * samples[0])
    rounds.rewrite(scores, json.dumps(content | {"num_unanswered": 0}))
    _, notes = examples_of(folder, trace, scores)
    assert notes[:2] == [
        "skipped: 1 question with fewer than two scored samples",
        "skipped: 1 question whose samples have equal scores",
    ]
    lines = [line for line in map(json.loads, trace.open()) if "search" not in line]
    rounds.rewrite(trace, "".join(json.dumps(line) + "\n" for line in lines))
    _, notes = examples_of(folder, trace, scores, advantage="pr2")
    assert notes[:2] == [
        "skipped: 1 question with fewer than two scored samples",
        "skipped: 9 questions without exactly one scored sample that did not search",
    ]


def test_an_empty_text_that_a_stop_ended_is_not_too_long(folder, sampled, changed):
    every, _ = examples_of(folder, *sampled, keep_cut=True)
    number = itertools.count()

    def empty(line):
        if line["role"] == "generator" and next(number) % 2:
            line |= {"text": "", "stop": ["Search:"], "finish_reason": "stop"}

    examples, notes = examples_of(folder, *changed(empty), keep_cut=True)
    left = len(every) - len(examples)
    assert left > 3 and f"skipped: {left} calls with an empty text that a stop or the token limit ended" in notes
    assert not any("too long" in note for note in notes)


@pytest.fixture
def changed(sampled, tmp_path):
    """Return a function that writes a copy of the round, with each call's line changed by a function."""

    def write(change, arguments=None):
        for path in sampled[0].parent.glob("*.json*"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        trace = tmp_path / sampled[0].name
        lines = [json.loads(line) for line in trace.open()]
        for line in lines:
            if "role" in line:
                change(line)
        rounds.rewrite(trace, "".join(json.dumps(line) + "\n" for line in lines))
        manifest = tmp_path / "answers.json.manifest.json"
        made = json.loads(manifest.read_text())
        made["arguments"] |= arguments or {}
        manifest.write_text(json.dumps(made))
        return trace, tmp_path / sampled[1].name

    return write


def test_each_call_has_the_temperature_at_which_it_was_sampled(folder, sampled, changed):
    examples, _ = examples_of(folder, *sampled)
    assert {example.temperature for example in examples} == {1.0}
    number = itertools.count()
    mixed = [0.3, 0.8, 1.4]
    trace = changed(lambda line: line.update(temperature=mixed[next(number) % 3]))
    texts = {
        (line["id"], line["text"], line["temperature"]) for line in map(json.loads, trace[0].open()) if "role" in line
    }
    examples, _ = examples_of(folder, *trace)
    chat = LocalChat(ModelFolder(str(folder / "model")))
    for example in examples:
        assert (example.record["id"], chat.tokenizer.decode(example.target[:-1]), example.temperature) in texts
    assert {example.temperature for example in examples} == {*mixed}
    assert describe_round("trace", examples).endswith("; sampled at temperature 0.3 and 0.8 and 1.4")


@pytest.mark.parametrize(
    ("role", "arguments", "expected"),
    [
        ("generator", {"temperature": 0.7}, 0.7),
        ("other", {"temperature": 0.7, "model": [["other", "policy", {"temperature": 0.2}]]}, 0.2),
        ("other", {"temperature": 0.7, "model": [["third", "policy", {"temperature": 0.2}]]}, 0.7),
    ],
)
def test_an_older_trace_has_the_temperature_of_its_run(folder, changed, role, arguments, expected):
    trace = changed(lambda line: line.pop("temperature"), arguments)
    examples, _ = examples_of(folder, *trace, role=role)
    assert {example.temperature for example in examples} == {expected}


def test_a_greedy_call_is_left_out_and_an_unknown_temperature_is_taken_as_1(folder, sampled, changed):
    known, _ = examples_of(folder, *sampled, keep_cut=True)
    trace = changed(lambda line: line.update(temperature=0.0 if line["sample"] == 1 else None))
    examples, notes = examples_of(folder, *trace, keep_cut=True)
    greedy = len(known) - len(examples)
    assert greedy > 3 and {example.temperature for example in examples} == {1.0}
    assert f"skipped: {greedy} calls at temperature 0 (greedy, not sampled)" in notes
    assert f"{len(examples)} calls at the model's default temperature, taken as 1; sample with --temperature 1" in notes


WHOLE = "but training uses the full distribution; to match, sample with"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"top_p": 0.95}, f"--top_p 0.95, {WHOLE} --top_p 1"),
        ({"top_k": 20, "top_p": 1.0}, f"--top_k 20, {WHOLE} --top_k 0"),
        ({"min_p": 0.1, "top_p": 1.0, "model": [["generator", "policy", {"top_p": 0.5}]]},
         f"--top_p 0.5 and --min_p 0.1, {WHOLE} --top_p 1 and --min_p 0"),
        ({"extra_body": {"top_k": 5}, "top_p": 1.0}, f"top_k 5, {WHOLE} top_k 0"),
        ({"extra_body": {"repetition_penalty": 1.1, "frequency_penalty": 0.5}, "top_p": 1.0},
         f"frequency_penalty 0.5 and repetition_penalty 1.1, {WHOLE} frequency_penalty 0 and repetition_penalty 1"),
        ({"top_p": 1.0, "top_k": -1, "min_p": 0.0, "extra_body": {}}, None),
        # `--top_p default` may be below 1, by the model's generation_config.json.
        ({"top_p": None}, "the model's default top_p, taken as 1; sample with --top_p 1"),
    ],
)  # fmt: skip
def test_sampling_from_a_part_of_the_vocabulary_is_told(changed, capsys, arguments, told):
    trace, _ = changed(lambda line: None, arguments)
    note_restricted_sampling(
        SimpleNamespace(objective="grpo", trace_addr=str(trace), role="generator", response_addr=None)
    )
    assert capsys.readouterr().err == (f"note: {trace}: sampled with {told}\n" if told else "")


def share(line, *samples):
    """Make a sample's first call one that these samples share."""
    if line["role"] == "generator" and line["sample"] in samples:
        line |= {"text": "Look 12 steps away.", "messages": [{"role": "user", "content": "Where?"}], "shared": True}
        line |= {"truncated": False, "finish_reason": "stop"}


def with_prompt(folder, examples):
    prompt = LocalChat(ModelFolder(str(folder / "model"))).render([{"role": "user", "content": "Where?"}])
    return [example for example in examples if example.prompt == prompt]


def test_a_call_that_all_samples_share_is_not_learnt(folder, sampled, changed):
    """Its advantages sum to 0; nor does it count among the tokens that divide the loss."""
    examples, notes = examples_of(folder, *changed(lambda line: share(line, 0, 1, 2, 3)))
    assert examples == [] and "skipped: 1 call that samples share, whose advantages sum to 0" in notes
    others, _ = examples_of(folder, *sampled, role="other")
    assert len(examples_of(folder, *changed(lambda line: share(line, 0, 1, 2, 3)), role="other")[0]) == len(others) > 4


def test_a_call_that_some_samples_share_is_learnt_once_with_the_sum(folder, changed):
    """It is the same call in all questions."""
    trace, scores = changed(lambda line: share(line, 0, 2))
    [learnt] = with_prompt(folder, examples_of(folder, trace, scores)[0])
    entries = json.loads(scores.read_text())["per_question_scores"]
    advantages = [relative_scores(dict(enumerate(entry["samples"]))) for entry in entries]
    assert learnt.advantage == pytest.approx(sum(of[n] for of in advantages if of for n in (0, 2)))


def test_a_samples_equal_shared_calls_are_several(folder, changed):
    """As when a method asks the same twice: each was sampled, with a seed of its own."""
    trace, scores = changed(lambda line: share(line, 0, 2))
    lines = [json.loads(line) for line in trace.open()]
    again = [{**line, "number": 90} for line in lines if line.get("shared")]
    rounds.rewrite(trace, "".join(json.dumps(line) + "\n" for line in lines + again))
    first, second = with_prompt(folder, examples_of(folder, trace, scores)[0])
    assert first.advantage == pytest.approx(second.advantage)


def test_equal_calls_that_are_not_shared_are_several(folder, changed):
    """Samples may happen to have the same text: each was sampled, and each is learnt."""

    def equal(line):
        share(line, 0, 2)
        line.pop("shared", None)

    questions = [example.record["id"] for example in with_prompt(folder, examples_of(folder, *changed(equal))[0])]
    assert len(questions) == 2 * len({*questions}) > 4


def test_a_question_that_dominates_the_loss_is_named(folder, changed):
    trace, scores = changed(lambda line: line.update(finish_reason="stop"))
    records = made_up_lessons.records()[30:33]
    lines = [line for line in map(json.loads, trace.open()) if "role" in line]
    lines += [{"id": record["id"], "sample": number, "number": 90, "search": "q", "ids": []}
              for record in records for number in (1, 2, 3)]  # fmt: skip
    rounds.rewrite(trace, "".join(json.dumps(line) + "\n" for line in lines))
    rewards = scores.with_name("rewards.json")
    words = ["--response_addr", scores.with_name("answers.json"), "--score_addr", scores, "--output_addr", rewards]
    rounds.run(combine_scores, *words)
    content = json.loads(rewards.read_text())
    steps = {record["id"]: step for record, step in zip(records, (0.01, 0.5, 0.5), strict=True)}
    content["rewards"] = {key: [0.5 + n * steps.get(key, 0) for n in range(4)] for key in content["rewards"]}
    rounds.rewrite(rewards, json.dumps(content))
    _, notes = examples_of(folder, trace, rewards, advantage="pr2")
    named = f"question {quote(records[0]['id'])} dominates the loss: its largest advantage is "
    assert [note.startswith(named) for note in notes] == [False, True], notes
    _, notes = examples_of(folder, trace, rewards)
    assert not any("dominates" in note for note in notes)
    content["rewards"] = dict.fromkeys(content["rewards"], [0.5] * 4) | {records[0]["id"]: [0.9, 0.5, 0.52, 0.5]}
    rounds.rewrite(rewards, json.dumps(content))
    _, notes = examples_of(folder, trace, rewards, advantage="pr2")
    assert notes[-1] == f"{named}161.0, the median over questions is 161.0"  # the only question


# Rewards


def test_rewards_by_hand(folder, sampled, tmp_path, capsys):
    """IAP's weights on one response, and PR2's penalty; the training takes the rewards in place of the scores."""
    responses = {"q": [{"output": "a b c d", "raw": "Intent: x Answer: a b c d", "notes": {"intent": "one two three"}}],
                 "r": [{"output": "a", "raw": "Answer: a Intent: x"}]}  # fmt: skip
    scores = [{"id": key, "category": "cooking", "question_sha256": "0", "answered": True, "score": verdict / 2,
               "details": [{"aspect": "A", "score": verdict}]} for key, verdict in (("q", 2), ("r", 1))]  # fmt: skip
    files = {"sample": responses, "plain": {"q": [{"output": "a b x y"}], "r": [{"output": None}]}}
    files["scores"] = {"score": 0.75, "num_unanswered": 0, "per_question_scores": scores}
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    made = {"settings": {"responses": file_hash(tmp_path / "sample.json")}}
    made |= {"output_sha256": file_hash(tmp_path / "scores.json")}
    (tmp_path / "scores.json.manifest.json").write_text(json.dumps(made))
    flags = ["--response_addr", tmp_path / "sample.json", "--score_addr", tmp_path / "scores.json"]
    flags += ["--output_addr", tmp_path / "rewards.json"]
    flags += ["--contrast", -0.1, "--contrast_addr", tmp_path / "plain.json"]
    flags += ["--length_weight", -0.01, "--length_note", "intent", "--length_over", 1]
    flags += ["--form", -0.5, "--form_texts", "Intent:", "Answer:"]
    rounds.run(combine_scores, *flags)
    rewards = json.loads((tmp_path / "rewards.json").read_text())["rewards"]
    rewards = {key: reward for key, [reward] in rewards.items()}
    assert rewards == pytest.approx({"q": 1 - 0.1 * 0.5 - 0.01 * 2, "r": 0.5 - 0.5})  # LCS "a b": 2 of 4 words in both
    assert "mean reward 0.4650; means of the terms: score 0.7500, contrast 0.2500" in capsys.readouterr().out
    trace, scores = sampled
    combined = tmp_path / "combined.json"
    words = ["--response_addr", scores.with_name("answers.json"), "--score_addr", scores, "--output_addr", combined]
    words += ["--score", 2]
    rounds.run(combine_scores, *words)
    examples, notes = examples_of(folder, trace, scores)
    again, notes_again = examples_of(folder, trace, combined)
    assert notes == notes_again and len(examples) == len(again)
    for example, other in zip(examples, again, strict=True):
        assert example.target == other.target and example.advantage == pytest.approx(other.advantage, abs=1e-3)
    rounds.run(combine_scores, *words[:-1], -2, "--overwrite")
    with pytest.raises(UserError, match="--keep_cut: some rewards are below 0, so 0 would not be a penalty"):
        examples_of(folder, trace, combined, keep_cut=True)


# Rounds


def test_a_steps_loss_stands_beside_its_number(folder, sampled, tmp_path, capsys):
    """Not the loss of the step before, nor a dash if there is only one step."""
    flags = [*LEARNING, "--per_device_train_batch_size", 1000, "--role", "other"]
    _, log = rounds.learn(folder, folder / "model", tmp_path / "out", *sampled, *flags)
    [step] = [entry for entry in log if "loss" in entry]
    assert f"loss {step['loss']:.3f}" in next(
        line for line in capsys.readouterr().err.splitlines() if "1/1 steps" in line
    )


def test_a_steps_loss_is_its_sum_over_the_mean_number_of_tokens_per_step(folder, sampled, tmp_path, monkeypatch):
    """As the figure's axis says. By hand: without learning every ratio is 1, so a token's loss is -advantage."""
    batches = []

    def collate(pairs, pad, original=ScoreTrainer.collate):
        batches.append([example for example, _ in pairs])
        return original(pairs, pad)

    monkeypatch.setattr(ScoreTrainer, "collate", staticmethod(collate))
    flags = [*LEARNING, "--learning_rate", 1e-12, "--per_device_train_batch_size", 8, "--role", "other"]
    _, log = rounds.learn(folder, folder / "model", tmp_path / "out", *sampled, *flags)
    losses = [entry["loss"] for entry in log if "loss" in entry]
    sums = [-sum(example.advantage * len(example.target) for example in batch) for batch in batches]
    tokens = [sum(len(example.target) for example in batch) for batch in batches]
    assert len(losses) == len(batches) > 2 and len({*tokens}) > 1
    assert losses == pytest.approx([value / (sum(tokens) / len(tokens)) for value in sums], abs=1e-3)
    assert losses != pytest.approx([value / count for value, count in zip(sums, tokens, strict=True)], abs=1e-3)


@pytest.mark.parametrize("kills", [[0], [3], [2, 4]])
def test_a_stopped_training_ends_as_a_whole_one(folder, sampled, tmp_path, monkeypatch, kills):
    """The ratio's denominators are those before the first step, also after a checkpoint was read."""
    flags = [*LEARNING, "--per_device_train_batch_size", 4, "--kl", 0.1, "--epochs", 2, "--role", "other"]
    _, whole = rounds.learn(folder, folder / "model", tmp_path / "whole", *sampled, *flags)
    for step in kills:

        def training_step(self, *args, step=step, original=Resumable.training_step, **kwargs):
            if self.state.global_step == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(self, *args, **kwargs)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="stopped after step"):
            patch.setattr(Resumable, "training_step", training_step)
            rounds.learn(folder, folder / "model", tmp_path / "parts", *sampled, *flags)
        gc.collect()  # what holds the lock on the log
    _, log = rounds.learn(folder, folder / "model", tmp_path / "parts", *sampled, *flags)
    assert [entry["loss"] for entry in log if "loss" in entry] == [entry["loss"] for entry in whole if "loss" in entry]
    weights, others = (load_file(tmp_path / name / "last/adapter_model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(weights[name], others[name]) for name in weights) and len(log) > 6


@pytest.mark.slow
def test_two_processes_learn_as_one(folder, beginner, tmp_path):
    """By accelerate, with half of each batch: the same losses and weights."""
    with rounds.served(folder, None, near) as server:
        trace, scores = sample_of_two(folder, server, tmp_path / "sampled")
    flags = ["--learning_rate", 5e-3, "--gradient_accumulation_steps", 1, "--role", "other", "--kl", 0.1]
    _, log = rounds.learn(folder, beginner, tmp_path / "one", trace, scores, *flags,
                          "--per_device_train_batch_size", 8)  # fmt: skip
    command = [*TWO, "utils/train_generator.py", "--model_addr", beginner, "--objective", "grpo"]
    command += ["--inputs_addr", trace.parent / "ten.json", "--trace_addr", trace, "--score_addr", scores]
    command += ["--output_dir", tmp_path / "two", "--lora_rank", 64, "--no-gradient_checkpointing", *flags]
    command = [sys.executable, *map(str, command), "--per_device_train_batch_size", "4"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    other = [json.loads(line) for line in (tmp_path / "two/training_log.jsonl").read_text().splitlines()]
    losses = [[entry["loss"] for entry in lines if "loss" in entry] for lines in (log, other)]
    assert len(losses[0]) > 2 and losses[0] == pytest.approx(losses[1], abs=1e-3)
    alone, shared = (load_file(tmp_path / name / "last/adapter_model.safetensors") for name in ("one", "two"))
    # Not each weight: Adam gives one whose gradient is rounding alone a whole step, either way.
    distance = sum((alone[name] - shared[name]).square().sum() for name in alone).sqrt()
    assert distance < 0.02 * sum(weights.square().sum() for weights in alone.values()).sqrt()


@pytest.mark.slow
@pytest.mark.parametrize(
    "reward",
    [
        "the second call's text",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("searching", "shuffled scores")),
    ],
)
def test_rounds_raise_a_reward(folder, beginner, reward):
    """The judge sees the answer alone; the call that decides it is learnt through the answer's score."""
    output, adapter, means, searches = folder / reward.replace(" ", "_").replace("'", ""), None, [], []
    verdict = (lambda text: 2 * ("searched" in text)) if reward == "searching" else near
    for number in range(5):
        with rounds.served(folder, adapter, verdict) as server:
            trace, scores = rounds.sample(folder, server, output / str(number), method=SEARCHES)
        means.append(rounds.mean_score(scores))
        lines = [json.loads(line) for line in trace.open()]
        searches.append(sum("search" in line for line in lines) / 80)
        if reward == "shuffled scores":
            scores = rounds.shuffled(scores)
        adapter, _ = rounds.learn(folder, adapter or beginner, output / f"adapter{number}", trace, scores,
                                  *LEARNING)  # fmt: skip
    if reward == "shuffled scores":
        assert abs(means[-1] - means[0]) < 0.2 and abs(searches[-1] - searches[0]) < 0.25, (means, searches)
    else:
        assert means[-1] > means[0] + 0.25, means
    if reward == "searching":
        assert searches[-1] > searches[0] + 0.25, searches
    made = read_folder_manifest(output / "adapter4")["settings"]
    assert made["saw_in_training"] and made["objective"] == "grpo"
