"""utils/train_generator.py and baselines.py with what it made: a tiny T5 on the samples of LaMP and LongLaMP."""

import asyncio
import json
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lamp_samples import CONFIGS, LAMP, lamp_scores, read_sample
from tiny_chat import save_tiny_chat
from tiny_t5 import DATA, save_tiny_t5
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config

import baselines
import evaluate_responses
from prompts import load_prompt
from utils import download_datasets, export_predictions, train_generator
from utils.base.errors import UserError
from utils.base.json_files import read_json
from utils.base.writing import replace_link
from utils.benchmarks import tasks
from utils.generation import beams, engines
from utils.generation.beams import Room, batches, padded_length, room_of, write
from utils.generation.chat import PlainText
from utils.generation.encoder_decoder import TextWindow, TransformersEngine
from utils.generation.model import Policy
from utils.generation.requests import Passages
from utils.models.model_folder import ModelFolder
from utils.training.examples import Lesson, make_examples
from utils.training.trainer import load_with_lora

ROOT = Path(__file__).resolve().parents[2]
NOT_REPEATED = ("eval_seconds", "train_runtime")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tiny T5, and the samples as datasets; `LaMP-4_train.json` is small enough to be learnt by heart."""
    folder = tmp_path_factory.mktemp("data")
    save_tiny_t5(folder / "t5")
    for name in [*LAMP, *CONFIGS]:
        for split in ("train", "dev"):
            (folder / f"{name}_{split}.json").write_text(json.dumps(read_sample(name, split)), encoding="utf-8")
    again = [{**record, "id": f"{n}-{record['id']}"} for n in range(15) for record in read_sample("LaMP-4", "train")]
    (folder / "again_train.json").write_text(json.dumps(again), encoding="utf-8")  # an epoch is 15 of the sample's
    return folder


def flags_of(data, output, name="LaMP-4", validation="dev", **more):
    flags = {
        "model_addr": data / "t5",
        "inputs_addr": data / f"{name}_train.json",
        **({"validation_addr": data / f"{name}_{validation}.json"} if validation else {}),
        "output_dir": output,
        "num_contexts": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "learning_rate": 5e-3,
        "max_target_length": 32,
        "epochs": 3,
        **more,
    }
    return ["--unranked", *(word for key, value in flags.items() for word in (f"--{key}", str(value)))]


def learn(warm, flags, *more):
    run = warm.run("utils/train_generator.py", [*flags, *more])
    assert run.returncode == 0, run.errors
    return run.printed + run.errors


def answer(warm, *words):
    run = warm.run("baselines.py", words)
    assert run.returncode == 0, run.errors
    return run.printed + run.errors


def log_of(output):
    lines = (output / "training_log.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in NOT_REPEATED} for line in lines]


def figures_of(output, name):
    return [entry[name] for entry in log_of(output) if name in entry]


# Learnt by heart


@pytest.fixture(scope="module", params=["none", "decoder"])
def by_heart(request, data, warm, tmp_path_factory):
    output = tmp_path_factory.mktemp("by_heart") / "generator"
    more = {"inputs_addr": data / "again_train.json", "epochs": 4, "learning_rate": 1e-2}
    flags = flags_of(data, output, validation="train", fusion=request.param, **more)
    return request.param, output, learn(warm, flags)


def test_a_sample_is_learnt_by_heart(by_heart, data, warm, tmp_path):
    """Loss, metric, and what baselines.py writes with it."""
    fusion, output, _ = by_heart
    assert figures_of(output, "loss")[-1] < 0.3 and figures_of(output, "eval_score")[-1] == 1.0
    inputs, answers = data / "LaMP-4_train.json", tmp_path / "answers.json"
    words = ["--model_addr", output / "best", "--rag", "--unranked", "--num_contexts", 2]
    words += ["--inputs_addr", inputs, "--output_addr", answers]
    printed = answer(warm, *words)
    assert ("fusion in decoder, 4 beams" if fusion == "decoder" else "4 beams, reads") in printed
    targets = {record["id"]: record["target"] for record in read_json(inputs)}
    assert {key: samples[0]["output"] for key, samples in read_json(answers).items()} == targets
    manifest = read_json(Path(f"{answers}.manifest.json"))
    assert manifest["settings"]["fusion"] == fusion and manifest["settings"]["num_beams"] == 4
    assert "already finished; skipped" in answer(warm, *words)


def test_what_is_kept_of_a_run(by_heart):
    _, output, printed = by_heart
    log = log_of(output)
    assert [entry["step"] for entry in log if "loss" in entry] == list(range(1, 121))  # 4 epochs of 60 questions, by 2
    scores = {entry["step"]: entry["eval_score"] for entry in log if "eval_score" in entry}
    best = max(scores, key=scores.get)  # the first of equal ones
    assert list(scores) == [30, 60, 90, 120]
    assert (output / "best").readlink() == Path(f"checkpoint-{best}")
    assert {path.name for path in output.glob("checkpoint-*")} == {f"checkpoint-{best}", "checkpoint-120"}
    assert f"best is checkpoint-{best}, validation rouge-1 1.0000" in printed
    rates = [entry["learning_rate"] for entry in log if "loss" in entry]
    assert rates[0] == 0 and max(rates) == pytest.approx(1e-2) and rates.index(max(rates)) == 6  # of 5% of 120
    # The head that makes logits is not FlanT5's embedding, and does not become it when a checkpoint is loaded.
    model = AutoModelForSeq2SeqLM.from_pretrained(output / "best")
    assert not torch.equal(model.lm_head.weight, model.shared.weight)
    assert model.config.scale_decoder_outputs is False


# The inputs


def examples_of(data, model, fused, records, num_contexts, read=512, trim_items=False, name="LaMP-4"):
    task = tasks()[name]
    window = TextWindow(PlainText(ModelFolder(str(model))), read + 32, 32, fused)
    lessons = [Lesson(record, task.values(record), record["target"]) for record in records]
    return make_examples(task, lessons, load_prompt(task.prompts["rag"]), window, num_contexts, trim_items)


def test_an_input_is_plain_text_without_an_instruction(data):
    record = read_sample("LaMP-3", "dev")[0]
    [example] = examples_of(data, data / "t5", False, [record], 2, name="LaMP-3")
    tokenizer = AutoTokenizer.from_pretrained(data / "t5")
    text = tokenizer.decode(list(example.prompt))
    assert text.endswith(tokenizer.eos_token) and list(example.prompt).count(tokenizer.eos_token_id) == 1
    assert record["question"][:60] in text and text.startswith("So far the user gave the score ")
    assert "Write 1, 2, 3, 4 or 5" not in text


def test_fused_each_item_stands_alone_with_the_question(data):
    record = read_sample("LaMP-4", "dev")[0]
    record["profile"] = [{"id": str(n), "title": f"Title {n}", "text": "long text " * 9 * n} for n in range(1, 6)]
    [whole] = examples_of(data, data / "t5", True, [record], 5, read=2048)
    [tight] = examples_of(data, data / "t5", True, [record], 5, read=150)
    assert isinstance(whole.prompt, Passages) and len(whole.prompt.parts) == len(tight.prompt.parts) == 5
    tokenizer = AutoTokenizer.from_pretrained(data / "t5")
    for n, part in enumerate(whole.prompt.parts, 1):
        text = tokenizer.decode(list(part))
        assert record["question"][:40] in text
        assert [title for title in range(1, 6) if f"Title {title}" in text] == [n]
    assert max(map(len, tight.prompt.parts)) <= 150 < max(map(len, whole.prompt.parts))
    assert all(record["question"][-20:] in tokenizer.decode(list(part)) for part in tight.prompt.parts)
    [bare] = examples_of(data, data / "t5", True, [{**record, "profile": []}], 5)
    assert len(bare.prompt.parts) == 1


def test_a_question_beyond_the_budget_is_cut_at_its_end_and_counted(data):
    record = read_sample("LaMP-4", "dev")[0]
    for fused in (False, True):
        [example] = examples_of(data, data / "t5", fused, [record], 2, read=20)
        [tokens] = example.prompt.parts if fused else [example.prompt]
        assert len(tokens) == 20 and example.fitted.question_cut and example.fitted.num_contexts_used == 0
        text = AutoTokenizer.from_pretrained(data / "t5").decode(list(tokens), skip_special_tokens=True)
        assert record["question"].startswith(text)


# Beam search in batches


def test_batches_are_of_like_length_and_hold_all():
    prompts = [[0] * length for length in (9000, 5, 7000, 6, 300, 8000, 20_000)]
    assert list(batches(prompts, Room())) == [[6], [0], [5, 2], [4, 3, 1]]
    assert padded_length(Passages(([0] * 10, [0] * 30))) == 60


@pytest.fixture
def on_cuda(monkeypatch):
    """A model as if it were on a GPU with this many free bytes; torch holds a tenth of them."""

    def pretend(config, free, dtype=torch.float32):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * 9 // 10, free))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: free // 5)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: free // 5 - free // 10)
        return SimpleNamespace(config=config, dtype=dtype, device=torch.device("cuda"))

    return pretend


FLAN_T5_BASE = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
GB = 10**9


@pytest.mark.parametrize(
    ("free", "dtype", "plain", "fused"),
    [
        (140 * GB, torch.float32, 256, 16),  # 50 GB of caches
        (80 * GB, torch.float32, 203, 15),  # 40 GB / (640 tokens x 307,200 bytes); / (8,320 x 307,200)
        (80 * GB, torch.bfloat16, 256, 16),
        (GB // 100, torch.float32, 1, 1),  # one prompt is tried whatever it takes
    ],
)
def test_on_cuda_a_batch_is_what_the_memory_holds(on_cuda, free, dtype, plain, fused):
    room = room_of(on_cuda(T5Config(**FLAN_T5_BASE), free, dtype), 4, 128)
    assert len(next(batches([[0] * 512] * 300, room))) == plain
    assert len(next(batches([Passages(([0] * 512,) * 16)] * 20, room))) == fused


def test_beams_in_a_batch_are_transformers_own_one_by_one(data):
    """In fp32, with padding: prompts of very different length together."""
    model = AutoModelForSeq2SeqLM.from_pretrained(data / "t5").eval()
    tokenizer = AutoTokenizer.from_pretrained(data / "t5")
    records = [record for name in LAMP for record in read_sample(name)]
    prompts = [[*tokenizer.encode(record["question"]), tokenizer.eos_token_id] for record in records]
    together = write(model, tokenizer, prompts, 4, 16)
    assert together == write(model, tokenizer, prompts, 4, 16)
    for prompt, (ids, _) in zip(prompts, together, strict=True):
        [[_, *own]] = model.generate(input_ids=torch.tensor([prompt]), num_beams=4, max_new_tokens=16).tolist()
        assert ids == (own[: own.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in own else own)
    assert len({tuple(ids) for ids, _ in together}) > len(records) / 2


# Killed and resumed


@pytest.fixture(scope="module")
def uninterrupted(data, warm, tmp_path_factory):
    output = tmp_path_factory.mktemp("uninterrupted") / "generator"
    learn(warm, flags_of(data, output, fusion="decoder"))
    return output


@pytest.mark.parametrize(("ending", "lines"), [(signal.SIGKILL, 3), (signal.SIGTERM, 5)])
def test_a_killed_run_goes_on_to_the_same_losses_and_weights(ending, lines, data, warm, uninterrupted, tmp_path):
    flags, log = flags_of(data, tmp_path / "generator", fusion="decoder"), tmp_path / "generator/training_log.jsonl"
    run = warm.start("utils/train_generator.py", flags)
    while run.returncode is None and (not log.exists() or log.read_bytes().count(b"\n") < lines):
        pass
    run.send(ending)
    assert run.wait() in (-signal.SIGKILL, 130, 0), run.errors
    printed = learn(warm, flags)
    assert log_of(tmp_path / "generator") == log_of(uninterrupted), printed
    for name in ("best", "checkpoint-6"):
        resumed, wanted = (folder / name / "model.safetensors" for folder in (tmp_path / "generator", uninterrupted))
        assert resumed.read_bytes() == wanted.read_bytes()
    assert "already finished; skipped" in learn(warm, flags)


def test_patience_ends_a_run_which_is_then_finished(data, warm, tmp_path):
    """At a learning rate of almost 0 nothing gets better."""
    flags = flags_of(data, tmp_path / "generator", learning_rate=1e-30, patience=2, epochs=9)
    printed = learn(warm, flags)
    assert len(figures_of(tmp_path / "generator", "loss")) == 3 * 2  # three epochs: the first, and two no better
    assert "6 steps; best is checkpoint-2" in printed
    assert "already finished; skipped" in learn(warm, flags)


# Scores of the epochs, of two steps each. The run is killed once, in the fourth epoch.
SCORED = """
import math, os, signal
from pathlib import Path
from utils.training.trainers import EncoderDecoderTrainer
from utils.models.model_folder import ModelFolder
figures, training_step = EncoderDecoderTrainer.figures, EncoderDecoderTrainer.training_step

def score(self):
    return figures(self) | {{"eval_score": [math.nan, 0.2, 0.3, 0.3, math.nan, 0.9][self.state.global_step // 2 - 1]}}

def be_killed(self, *arguments, **named):
    if self.state.global_step == 7 and not Path("{killed}").exists():
        Path("{killed}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return training_step(self, *arguments, **named)

EncoderDecoderTrainer.figures, EncoderDecoderTrainer.training_step = score, be_killed
"""


def test_best_and_patience_of_a_resumed_run(data, warm, tmp_path):
    """The first of equal scores is the best; NaN never is."""
    output, code = tmp_path / "generator", SCORED.format(killed=tmp_path / "killed")
    flags = flags_of(data, output, patience=2, epochs=6)
    assert warm.run("utils/train_generator.py", flags, do=code).returncode == -signal.SIGKILL
    assert (output / "best").readlink() == (output / "last").readlink() == Path("checkpoint-6")
    run = warm.run("utils/train_generator.py", flags, do=code)
    assert "10 steps; best is checkpoint-6, validation rouge-1 0.3000" in run.printed, run.errors
    assert {path.name for path in output.glob("checkpoint-*")} == {"checkpoint-6", "checkpoint-10"}
    assert (output / "best").readlink() == Path("checkpoint-6")
    assert "already finished; skipped" in learn(warm, flags)


@pytest.mark.slow
def test_batches_and_processes_that_share_a_step_learn_the_same(data, warm, tmp_path):
    """Up to rounding, though targets are of different length; with the evaluation that processes share."""
    for name, size, accumulated, setup in (("4", 4, 1, {}), ("2", 2, 2, {}), ("two", 2, 1, {"be_two": None})):
        more = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated, "fusion": "decoder"}
        run = warm.run("utils/train_generator.py", flags_of(data, tmp_path / name, **more), **setup)
        assert run.returncode == 0, run.errors
    for name in ("4", "two"):
        for figure in ("loss", "eval_score"):
            values, wanted = figures_of(tmp_path / name, figure), figures_of(tmp_path / "2", figure)
            # The texts of a model that has learnt little depend on rounding, which processors do differently.
            values, wanted = (values[-1:], wanted[-1:]) if figure == "eval_score" else (values, wanted)
            assert values == pytest.approx(wanted, rel=0.02)


# All tasks, and the whole way


def test_from_training_to_the_table(data, warm, tmp_path):
    """LaMP-3 and LaMP-4, with trimmed items and fused; the best is scored as in training."""
    rows = []
    for title, more, flag in (
        ("IPA, k = 2", {"num_contexts": 2}, ["--trim_items"]),
        ("FiD, k = 16", {"fusion": "decoder", "num_contexts": 16}, []),
    ):
        scores = []
        for name, best_of, rule, other in (("LaMP-3", min, "MAE", "RMSE-official"), ("LaMP-4", max, "rouge-1", None)):
            folder = tmp_path / f"{title} {name}"
            learn(warm, flags_of(data, folder, name, **more), *flag)
            inputs, answers = data / f"{name}_dev.json", tmp_path / f"{title} {name}.json"
            rag = ["--rag", "--unranked", "--num_contexts", more["num_contexts"], *flag]
            answer(warm, "--model_addr", folder / "best", *rag, "--inputs_addr", inputs, "--output_addr", answers)
            for metric in ([], ["--strategy", other or "rouge-L"]):
                scored = tmp_path / f"{title} {name} {metric}.json"
                words = ["--inputs_addr", inputs, "--response_addr", answers, "--score_addr", scored, *metric]
                run = warm.run("evaluate_responses.py", words)
                assert "; optimistic: the generator was trained or chosen" in run.printed, run.errors
                scores.append(scored)
            assert read_json(scores[-2])["score"] == pytest.approx(best_of(figures_of(folder, "eval_score")))
            assert read_json(scores[-2])["strategy"].startswith(rule)
        rows += ["--system", title, *scores]
    run = warm.run("utils/make_table.py", ["--paper", "FlanT5-base", "--paper_table", "user", *rows])
    for title in ("IPA, k = 2", "FiD, k = 16", r"IPA, tuned \(paper\)"):
        assert re.search(rf"^\| {title} \|", run.printed, re.M), run.errors
    assert "LaMP-3: FiD, k = 16: optimistic, because its generator was trained or chosen on " in run.printed
    assert ".180" in run.printed  # the paper's ROUGE-1 of FiD


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"lora_rank": 8}, "--lora_rank: .*t5 is an encoder-decoder; use a chat model"),
        ({"lora_rank": 8, "fusion": "decoder", "model_addr": "{data}/chat"}, "--fusion decoder: only for encoder-dec"),
        ({"model_addr": "{data}/chat"}, "not an encoder-decoder such as .*\n  --lora_rank 16 fine-tunes a chat model"),
        ({"lora_rank": 8, "max_input_length": 20, "model_addr": "{data}/chat"}, "--max_input_length 20: too small for"),
        (
            {"lora_rank": 8, "max_target_length": 10**6, "model_addr": "{data}/chat"},
            "--max_target_length 1000000 leaves no room .*\n  lower --max_target_length$",
        ),
        ({"inputs_addr": "tests/data/mini_lampqa/train.json"}, "LaMP-QA has no references to learn from"),
        ({"validation_addr": "{data}/LaMP-3_dev.json"}, "belongs to a different task from"),
    ],
)
def test_what_cannot_be_trained_is_told_before_anything_is_made(more, message, adapter, data, tmp_path):
    filled = {key: value.format(data=data) if isinstance(value, str) else value for key, value in more.items()}
    for dry in ([], ["--dry_run"]):
        with pytest.raises(UserError, match=message):
            train_generator.main([*flags_of(data, tmp_path / "generator", **filled), *dry])
    assert not (tmp_path / "generator").exists()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("generation_config.json", {"temperature": 0.7}, "_config.json is invalid and cannot be saved; .*`temperat"),
        ("generation_config.json", {"num_beams": 1, "length_penalty": 2.0}, "cannot be saved; .*`length_penalty`"),
        ("config.json", {"decoder_start_token_id": None}, "its config.json has no decoder_start_token_id"),
        ("config.json", {"pad_token_id": None}, "its config.json has no pad_token_id"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry_run"]])
def test_what_could_not_be_saved_is_refused_at_once(file, change, message, dry, data, tmp_path, monkeypatch):
    monkeypatch.setattr("utils.training.trainer.train", lambda *_: pytest.fail("it trains"))
    model = shutil.copytree(data / "t5", tmp_path / "t5")
    (model / file).write_text(json.dumps({**json.loads((model / file).read_text()), **change}))
    with pytest.raises(UserError, match=message) as error:
        train_generator.main([*flags_of(data, tmp_path / "generator", model_addr=model), *dry])
    assert len(str(error.value).splitlines()) <= 3


@pytest.mark.parametrize("name", ["best", "last"])
@pytest.mark.parametrize("dry", [[], ["--dry_run"]])
def test_what_is_in_the_way_of_a_link_is_named(name, dry, data, tmp_path):
    path = tmp_path / "generator" / name
    path.mkdir(parents=True) if name == "best" else (path.parent.mkdir(), path.write_text("mine"))
    with pytest.raises(UserError, match=f"^{path}: a link to a checkpoint will be made here; move it"):
        train_generator.main([*flags_of(data, path.parent), *dry])


POLICY = Policy(0.0, 1.0, 8, 0, 0, "never")


def engine_of(data, monkeypatch):
    """An encoder-decoder's engine that takes two prompts at a time."""
    window = TextWindow(PlainText(ModelFolder(str(data / "t5"))), 64 + 8, 8)
    monkeypatch.setattr("utils.generation.beams.room_of", lambda *_: Room(prompts=2))
    return window, TransformersEngine(SimpleNamespace(dtype="float32"), ModelFolder(str(data / "t5")), window)


@pytest.mark.parametrize("broken", ["write", "batches"])
def test_an_error_of_the_beam_search_ends_all_requests(broken, data, monkeypatch):
    """Those of its batch, and those that wait for a later one."""
    window, engine = engine_of(data, monkeypatch)
    calls, whole = [], getattr(beams, broken)

    def fails_later(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("out of luck")
        return whole(*args)

    async def ask_all():
        sampling, prompt = POLICY.sampling(("q",), 0), window.chat.render_reply("How to")
        requests = [engine.complete("t5", prompt, sampling) for _ in range(9)]
        return await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 60)

    monkeypatch.setattr(beams, broken, fails_later)
    results = asyncio.run(ask_all())
    assert [isinstance(result, RuntimeError) for result in results] == [False] * 2 + [True] * 7 and len(calls) == 2


def test_an_encoder_decoder_without_memory_says_what_to_do(data, monkeypatch):
    window, engine = engine_of(data, monkeypatch)
    monkeypatch.setattr(beams, "write", lambda *_: torch.empty(2**60))
    request = engine.complete("t5", window.chat.render_reply("How to"), POLICY.sampling(("q",), 0))
    with pytest.raises(UserError, match=r"memory: 1 prompt with 4 beams, on .*\n  lower --max_model_len"):
        asyncio.run(request)


def test_what_an_encoder_decoder_cannot_do_is_refused(data, tmp_path):
    source = ["--source_dir", str(DATA / "mini_personamem"), "--output_dir", str(tmp_path)]
    download_datasets.main(["--dataset", "PersonaMem-32k", *source])
    plain, talks = data / "LaMP-4_dev.json", tmp_path / "PersonaMem_32k.json"
    conversation = "reads plain text, but a prompt of this benchmark is a conversation"
    for inputs, flags, message in (
        (plain, ["--num_generated_outputs", "2"], "--num_generated_outputs: .* beam search writes one answer"),
        (plain, ["--data_parallel_size", "2"], "--data_parallel_size: .* is an encoder-decoder"),
        (talks, [], conversation),
        (talks, ["--dry_run"], conversation),
    ):
        with pytest.raises(UserError, match=message):
            files = ["--inputs_addr", str(inputs), "--output_addr", str(tmp_path / "a.json")]
            baselines.main(["--model_addr", str(data / "t5"), *files, *flags])
    assert not (tmp_path / "a.json").exists()


def test_an_encoder_decoder_is_scored_and_exported_by_lamp_s_rule(data, tmp_path, monkeypatch, capsys):
    """Whatever beams write, through the real commands: only the raw text counts."""
    texts = ["4.5", "6", "4 stars", " 3", "[1]", ""]
    records = read_sample("LaMP-3")
    by_question = {record["question"]: text for record, text in zip(records, texts, strict=True)}

    def write_texts(model, tokenizer, prompts, *others):
        decoded = [tokenizer.decode(list(prompt), skip_special_tokens=True) for prompt in prompts]
        written = [text for prompt in decoded for question, text in by_question.items() if question in prompt]
        return [(tokenizer.encode(text, add_special_tokens=False), False) for text in written]

    monkeypatch.setattr("utils.generation.beams.write", write_texts)
    inputs, answers, scores = data / "LaMP-3_dev.json", tmp_path / "answers.json", tmp_path / "scores.json"
    files = ["--inputs_addr", str(inputs), "--response_addr", str(answers)]
    baselines.main(["--model_addr", str(data / "t5"), *files[:2], "--output_addr", str(answers)])
    golds = [record["target"] for record in records]
    expected = lamp_scores("LaMP-3", golds, texts)
    evaluate_responses.main([*files, "--score_addr", str(scores)])
    assert read_json(scores)["strategy"] == "MAE-official"
    assert read_json(scores)["score"] == pytest.approx(expected["MAE"], abs=1e-9)
    printed = capsys.readouterr().out
    assert "1 of them without an answer, counted as the rating" in printed and "; 2 answers unreadable, " in printed
    # The rule by which checkpoints are chosen is this one.
    by_id = {record["id"]: (text, False) for record, text in zip(records, texts, strict=True)}
    figures = train_generator.score_texts(tasks()["LaMP-3"], "MAE-official", records, by_id)
    assert figures == {"eval_score": pytest.approx(expected["MAE"], abs=1e-9)}
    # The export is what was written, so that LaMP's scorer finds the same.
    export_predictions.main([*files, "--output_dir", str(tmp_path / "export")])
    exported = [gold["output"] for gold in read_json(tmp_path / "export/LaMP_3.json")["golds"]]
    assert [text.strip() for text in exported] == [text.strip() for text in texts]
    # Beside answers that were made in another way no rule is the default.
    others = tmp_path / "others.json"
    others.write_text(json.dumps({record["id"]: [{"output": "3"}] for record in records}))
    both = [*files, str(others), "--score_addr", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    with pytest.raises(UserError, match="are by an encoder-decoder, which is scored by MAE-official, and some are not"):
        evaluate_responses.main(both)


# A chat model with an adapter


@pytest.fixture(scope="module")
def adapter(data, warm, tmp_path_factory):
    """A run on a tiny chat model, never stopped; and its flags."""
    save_tiny_chat(data / "chat")
    more = {"model_addr": data / "chat", "lora_rank": 16, "learning_rate": 5e-2, "max_target_length": 8, "epochs": 6}
    output = tmp_path_factory.mktemp("adapter") / "generator"
    learn(warm, flags_of(data, output, name="LaMP-3", **more))
    return output, more


def test_an_adapter_learns_and_the_best_is_one_for_vllm(adapter, data):
    output, _ = adapter
    losses = figures_of(output, "loss")
    assert losses[-1] < losses[0] / 2 and len(figures_of(output, "eval_score")) == 6
    assert (output / "best/adapter_model.safetensors").exists() and not (output / "best/model.safetensors").exists()
    config = read_json(output / "best/adapter_config.json")
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (16, 16, str(data / "chat"))


def test_only_the_answer_counts_and_its_prompt_is_baselines_own(adapter, data):
    from utils.generation.chat import LocalChat
    from utils.generation.fitting import Window
    from utils.training.trainer import CausalTrainer

    task, records = tasks()["LaMP-3"], read_sample("LaMP-3", "train")
    chat, prompt = LocalChat(ModelFolder(str(data / "chat"))), load_prompt("lamp/rating")
    window = Window(chat, 4096, 8)
    lessons = [Lesson(record, task.values(record), record["target"]) for record in records]
    examples = make_examples(task, lessons, prompt=prompt, window=window, num_contexts=2, trim_items=False)
    messages = prompt.messages(profile=task.join(task.best_items(records[0], 2)), **task.values(records[0]))
    assert list(examples[0].prompt) == list(chat.render(messages))
    batch = CausalTrainer.collate(examples, 0)
    for row, example in enumerate(examples):
        labels = batch["labels"][row].tolist()
        assert [label for label in labels if label != -100] == [*example.target]
        assert labels[: len(example.prompt)] == [-100] * len(example.prompt)
        assert batch["attention_mask"][row].sum() == example.length
    assert chat.tokenizer.decode(examples[0].target[:-1]) == records[0]["target"]


def test_the_adapter_is_drawn_by_the_seed(data, tmp_path):
    save_tiny_chat(tmp_path / "chat")
    drawn = []
    for seed in (0, 1, 0):
        words = flags_of(data, tmp_path / "out", model_addr=tmp_path / "chat", lora_rank=2, seed=seed)
        model = load_with_lora(train_generator.build_parser().parse_args(words), {}, False, "sdpa")
        drawn.append(torch.cat([weights.flatten() for name, weights in model.named_parameters() if "lora_A" in name]))
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])


# What is refused


def test_a_dry_run_counts_what_all_weights_take_and_writes_nothing(data, tmp_path, capsys):
    words = [*flags_of(data, tmp_path / "generator"), "--dry_run"]
    assert train_generator.main(words) == 0
    *_, batch, no_gpu, weights = capsys.readouterr().out.splitlines()
    assert batch.startswith("effective batch size: ")
    assert no_gpu == "note: there is no GPU here, so GPU memory could not be checked"
    assert " GB of weights, gradients and AdamW's averages per GPU, plus " in weights
    assert not (tmp_path / "generator").exists()


@pytest.mark.parametrize("name", ["LaMP-3", "LongLaMP-topic"])
def test_another_task_is_refused(name, uninterrupted, adapter, data, tmp_path):
    """Of encoder-decoders and of adapters, which vLLM would serve."""
    files = ["--inputs_addr", str(data / f"{name}_dev.json"), "--output_addr", str(tmp_path / "a.json")]
    for model, task in ((uninterrupted, "LaMP-4"), (adapter[0], "LaMP-3")):
        if task != name:
            refused = rf"-\d+: was fine-tuned on {task}\n  .*{name}_dev\.json is of {name}; use a generator for {name}"
            with pytest.raises(UserError, match=refused):
                baselines.main(["--model_addr", str(model / "best"), *files])


def test_a_link_that_moves_while_a_command_loads_changes_nothing(data, tmp_path, monkeypatch):
    """The answers are of the model whose identity is in the manifest: the link's when the command started."""
    for seed in (1, 2):
        save_tiny_t5(tmp_path / f"checkpoint-{seed}", seed=seed)
    (tmp_path / "best").symlink_to("checkpoint-1")

    def answer_with(name):
        output = tmp_path / f"{name}.json"
        words = ["--inputs_addr", data / "LaMP-4_dev.json", "--output_addr", output, "--completions", tmp_path / name]
        assert baselines.main(list(map(str, [*words, "--max_tokens", 16, "--model_addr", tmp_path / name]))) == 0
        return read_json(output), read_json(f"{output}.manifest.json")["settings"]["model"]

    first, second = answer_with("checkpoint-1"), answer_with("checkpoint-2")
    assert all(before != after for before, after in zip(first, second, strict=True))

    def find(*args, find_folder=engines.find_folder):
        folder = find_folder(*args)
        replace_link(tmp_path / "best", "checkpoint-2")
        return folder

    monkeypatch.setattr(engines, "find_folder", find)
    assert answer_with("best") == first
