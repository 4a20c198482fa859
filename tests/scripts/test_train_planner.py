"""train_planner.py without training: examples, settings, checkpoints in the output folder, and errors."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tiny_chat import END, SAMPLE, sample_records, save_tiny_chat
from zygote import LAUNCHED

import train_planner
from prompts import load_prompt
from train_planner import PAPER_BATCH, build_examples, build_parser, score_plans, settings_of_training, with_defaults
from utils.base.errors import UserError
from utils.base.manifest import publish, write_folder_manifest
from utils.benchmarks.lampqa.task import TASK
from utils.generation.chat import LocalChat
from utils.generation.fitting import Window
from utils.models.model_folder import ModelFolder
from utils.training.checkpoints import check_run, open_run
from utils.training.launch import describe_batch, set_up

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Run as a single process, without accelerate, on one device."""
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)


def launch(monkeypatch, **values):
    """Set the variables of a process that accelerate launch has started."""
    for name, value in {**LAUNCHED, **values}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def chat(model):
    return LocalChat(ModelFolder(str(model)))


@pytest.fixture(scope="module")
def prompt():
    return load_prompt("lampqa/planner")


def parse(*more, model="m", inputs="train.json", output="planner"):
    named = ["--model_addr", model, "--inputs_addr", inputs, "--unranked", "--output_dir", output]
    return build_parser().parse_args([str(word) for word in (*named, *more)])


def read_sample(name):
    return json.loads((SAMPLE / f"{name}.json").read_text(encoding="utf-8"))


def write_json(path, data):
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


def refusal(call, *args):
    """Return the message of a UserError, one to three lines. The exception is dropped, which releases its locks."""
    try:
        call(*args)
    except UserError as error:
        assert 1 <= len(str(error).splitlines()) <= 3
        return str(error)
    pytest.fail("no UserError")


def listing(folder):
    """Return the content of every file below a folder, by relative path."""
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


# Examples


WITH_TARGET = "[system]\nList.\n[user]\n\n{profile}\n{question}\n\n[assistant]\nWhat counts:\n{plan}\n[end]\n"


@pytest.fixture
def with_target(tmp_path):
    """A prompts folder whose planner prompt has a target, as utils/import_prompts.py writes it."""
    folder = tmp_path / "prompts_paper"
    folder.mkdir()
    (folder / "planner.txt").write_text(WITH_TARGET)
    return folder


def test_reference_target_has_lead_in_and_one_dashed_title_per_line(chat, with_target):
    record = sample_records("train", 1)[0]
    record["rubric_aspects"] = [{"aspect": " Cost  of it"}, {"aspect": "Time"}]
    prompt = load_prompt("lampqa/planner", with_target)
    args = parse("--planner_target", "reference", "--max_seq_length", 4096, "--num_contexts", 1)
    (example,) = build_examples(TASK, [record], "f", prompt, chat, args)
    # Titles are not normalized.
    assert chat.tokenizer.decode(example.target) == f"What counts:\n-  Cost  of it\n- Time\n{END}"
    user = f"\n{record['profile'][0]['text']}\n{record['question']}\n"
    messages = [{"role": "system", "content": "List."}, {"role": "user", "content": user}]
    assert list(example.prompt) == list(chat.render(messages))
    (example,) = build_examples(TASK, [record], "f", prompt, chat, parse("--max_seq_length", 4096))
    assert chat.tokenizer.decode(example.target) == f"Cost of it\nTime{END}"


def sentences(text):
    """Split a text into sentences of 15 characters or more; shorter ones would match anywhere."""
    return [part.strip() for part in re.split(r"\.\.\.|(?<=[.!?])\s", text) if len(part.strip()) >= 15]


# Lengths, defaults and settings


def test_lowest_ranked_posts_are_dropped_first_and_target_is_kept(chat, prompt):
    record = sample_records("train", 1, num_posts=5)[0]
    posts = [post["text"] for post in record["profile"]]
    titles = "\n".join(aspect["aspect"] for aspect in record["rubric_aspects"])
    target = [*chat.tokenizer.encode(titles, add_special_tokens=False), chat.tokenizer.eos_token_id]

    def rendered(count):
        return list(chat.render(prompt.messages(question=record["question"], profile="\n\n".join(posts[:count]))))

    whole = [len(rendered(count)) + len(target) for count in range(6)]
    args = parse("--max_seq_length", whole[0] - 1)
    assert "too small for 1 of 1" in refusal(build_examples, TASK, [record], "f", prompt, chat, args)
    for length, num_dropped, is_cut in ((whole[5], 0, False), (whole[3] - 1, 3, False), (whole[1] - 1, 4, True)):
        [example] = build_examples(TASK, [record], "f", prompt, chat, parse("--max_seq_length", length))
        assert list(example.target) == target and len(example.prompt) + len(target) <= length
        assert (example.fitted.num_contexts_dropped, example.fitted.context_cut) == (num_dropped, is_cut)
        assert is_cut or list(example.prompt) == rendered(5 - num_dropped)


def test_defaults_match_the_paper(monkeypatch):
    args = with_defaults(parse())
    described = {name: getattr(args, name) for name in ("learning_rate", "weight_decay", "max_steps", "warmup_steps")}
    assert described == {"learning_rate": 5e-5, "weight_decay": 0.0, "max_steps": 2000, "warmup_steps": 200}
    assert (args.lora_rank, args.lora_alpha, args.lora_dropout, args.lora_target_modules) == (16, 16, 0.05, None)
    assert (args.save_steps, args.num_contexts, args.resume) == (250, 10, True)
    batch = "effective batch size: 1 per device x {} accumulation steps x {} = {} sequences per step"
    assert describe_batch(args, "sequences", PAPER_BATCH) == batch.format(32, "1 process", 32)
    for flags, warmup_steps in ((["--max_steps", 19], 1), (["--max_steps", 9], 0), (["--warmup_steps", 0], 0)):
        assert with_defaults(parse(*flags)).warmup_steps == warmup_steps
    monkeypatch.setenv("WORLD_SIZE", "4")  # of something else
    assert "x 1 process = 64 sequences" in describe_batch(parse("--gradient_accumulation_steps", 64), "sequences", 4)
    launch(monkeypatch, WORLD_SIZE="4")
    described = describe_batch(parse("--gradient_accumulation_steps", 64), "sequences", PAPER_BATCH)
    assert described == f"{batch.format(64, '4 processes', 256)} (paper: 32)"


CHANGES = [  # flags and the settings that they change
    (["--seed", 1], {"seed"}),
    (["--per_device_train_batch_size", 2], {"effective_batch_size"}),
    (["--num_contexts", 9], {"num_contexts"}),
    (["--learning_rate", 1e-4], {"learning_rate"}),
    (["--weight_decay", 0.01], {"weight_decay"}),
    (["--max_steps", 1000], {"max_steps", "warmup_steps"}),  # the learning rate decays to zero over them
    (["--lora_rank", 8], {"lora_rank"}),
    (["--lora_alpha", 8], {"lora_alpha"}),
    (["--lora_dropout", 0], {"lora_dropout"}),
    (["--lora_target_modules", "q_proj"], {"lora_target_modules"}),
    (["--per_device_train_batch_size", 2, "--gradient_accumulation_steps", 16], set()),  # 2 x 16 = 1 x 32
    (["--eval_generate", 0, "--log_level", "info"], set()),
    (["--save_steps", 10], {"save_steps"}),  # the best checkpoint is one of these
    (["--no-gradient_checkpointing"], set()),
]


def test_settings_are_exactly_the_flags_that_change_the_adapter(settings, files, model, with_target, tmp_path):
    before = settings()
    assert [differing(before, settings(*flags)) for flags, _ in CHANGES] == [names for _, names in CHANGES]
    with pytest.MonkeyPatch.context() as patch:
        launch(patch, WORLD_SIZE="4")
        assert settings("--gradient_accumulation_steps", 8) == before  # 1 x 8 x 4 = 1 x 32 x 1
    own = settings(prompts_dir=with_target)
    assert differing(before, own) == {"prompt"}
    after = settings("--planner_target", "reference", prompts_dir=with_target)
    assert after == {**own, "planner_target": "reference", "lead_in": "What counts:\n"}
    retrained = shutil.copytree(model, tmp_path / "retrained")
    assert settings(model_addr=retrained) == before
    weights = bytearray((retrained / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (retrained / "model.safetensors").write_bytes(weights)
    assert differing(before, settings(model_addr=retrained)) == {"model"}
    for path in files:
        path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert differing(before, settings()) == {"inputs", "validation"}


def test_resumes_from_the_checkpoint_with_the_highest_step(folder):
    assert reopen(folder) == reopen(folder, "--no-resume") == (None, [])
    make_run(folder)
    assert reopen(folder, settings={**SETTINGS, "seed": 1}) == (None, [])  # no step was trained yet
    make_run(folder, 250, 1000, 500)
    (folder / "checkpoint-1900.tar.gz").write_text("mine")  # only a name that resembles a checkpoint
    (folder / "checkpoint-1900").write_text("mine")
    shutil.copytree(folder / "checkpoint-250", folder / "checkpoint-1900-backup")
    assert reopen(folder) == reopen(folder, "--overwrite") == (folder / "checkpoint-1000", [])


def test_each_device_needs_its_own_process(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    message = refusal(set_up, parse(), "train_planner.py")
    assert message.startswith("4 GPUs are visible to one process\n")
    assert "accelerate launch --multi_gpu --num_processes 4 train_planner.py" in message
    monkeypatch.setenv("LOCAL_RANK", "0")  # of something else
    assert refusal(set_up, parse(), "train_planner.py") == message and "LOCAL_RANK" not in os.environ
    launch(monkeypatch, WORLD_SIZE="4")
    set_up(parse(), "train_planner.py")


# Settings


@pytest.fixture
def files(tmp_path):
    """Training and validation file."""
    return (
        write_json(tmp_path / "train.json", sample_records("train", 2)),
        write_json(tmp_path / "validation.json", sample_records("validation", 2)),
    )


@pytest.fixture
def settings(model, files):
    """Return a function from flags to the command's settings, checked to survive a JSON round trip."""

    def make(*more, model_addr=model, prompts_dir=None):
        inputs, validation = files
        args = parse("--validation_addr", validation, *more, model=model_addr, inputs=inputs)
        args = with_defaults(args).replaced(prompts_dir=prompts_dir)
        identity = ModelFolder(args.model_addr, args.cache_dir).checked(safetensors_only=True).identity
        made = settings_of_training(args, load_prompt("lampqa/planner", prompts_dir), identity)
        assert json.loads(json.dumps(made)) == made  # as in a manifest
        return made

    return make


def differing(a, b):
    assert a.keys() == b.keys()
    return {name for name in a if a[name] != b[name]}


# Checkpoints in the output folder

SETTINGS = {"script": "train_planner.py", "seed": 0, "learning_rate": 5e-5}


def make_checkpoint(folder, step, settings=SETTINGS):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt"):
        (checkpoint / name).write_bytes(b"tensors")
    write_folder_manifest(checkpoint, {"settings": settings, "step": step})
    return checkpoint


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "planner"


def make_run(folder, *steps, settings=SETTINGS):
    for step in steps:
        make_checkpoint(folder, step, settings)
    folder.mkdir(exist_ok=True)
    write_folder_manifest(folder, {"settings": settings})
    (folder / "training_log.jsonl").write_text('{"step": 1, "loss": 3.0}\n')
    if steps:
        (folder / "best").symlink_to(f"checkpoint-{steps[0]}")


def reopen(folder, *flags, settings=SETTINGS):
    """Return the checkpoint to resume from, and the names of those to replace; a dry run must agree."""
    args, before, refused = parse(*flags, output=folder), listing(folder), None
    try:
        check_run(args, settings)
    except UserError as error:
        refused = str(error)
    assert listing(folder) == before
    try:
        run = open_run(args, settings)
    except UserError as error:
        assert str(error) == refused
        raise
    assert (run.folder, refused) == (folder, None)
    if run.lock is not None:
        run.lock.release()
    return run.checkpoint, [path.name for path in run.replaced]


def test_checkpoints_with_other_settings_or_from_other_programs_are_refused_and_kept(folder):
    make_run(folder, 250)
    before = listing(folder)
    for flags in ([], ["--no-resume"]):
        assert refusal(open_run, parse(*flags, output=folder), {**SETTINGS, "seed": 1}) == (
            f"{folder}: holds a run with other settings: seed: 0, now 1\n"
            "  choose another --output_dir, or add --overwrite to delete its checkpoints and start over"
        )
    assert listing(folder) == before
    other = folder.with_name("other")
    (other / "checkpoint-250").mkdir(parents=True)
    (other / "checkpoint-250/pytorch_model.bin").write_bytes(b"somebody's")
    for flags in ([], ["--no-resume"], ["--overwrite"]):
        message = refusal(reopen, other, *flags)
        assert message == f"{other}: holds checkpoints of another program; choose another --output_dir"
    assert (other / "checkpoint-250/pytorch_model.bin").read_bytes() == b"somebody's"


@pytest.mark.parametrize(("flags", "seed"), [(["--no-resume"], 0), (["--overwrite"], 1)])
def test_run_is_replaced_on_request_but_only_once_training_begins(folder, flags, seed):
    make_run(folder, 250, 500, settings={**SETTINGS, "seed": seed})
    (folder / "checkpoint-500/manifest.json").unlink()  # incomplete, but from this run
    (folder / "checkpoint-250.tar.gz").write_text("mine")
    shutil.copytree(folder / "checkpoint-250", folder / "checkpoint-250-backup")
    before = listing(folder)
    assert reopen(folder, *flags) == (None, ["checkpoint-250", "checkpoint-500"])
    assert listing(folder) == before


# A command up to training


@pytest.fixture
def calls(monkeypatch):
    """Replace train() by a function that only records its arguments, and return the records."""
    calls = []

    def train(training, run, manifest, source):
        calls.append(SimpleNamespace(**locals()))
        if run.lock is not None:
            run.lock.release()  # as at the end of the process
        return {"steps": training.args.max_steps, "best_step": 4, "best_loss": 1.25}

    module = ModuleType("utils.training.trainer")
    module.train = train
    monkeypatch.setitem(sys.modules, "utils.training.trainer", module)
    return calls


@pytest.fixture
def command(model, files, folder):
    inputs, validation = files
    flags = ["--model_addr", model, "--inputs_addr", inputs, "--validation_addr", validation, "--output_dir", folder]
    flags += ["--unranked"]
    return [str(word) for word in flags] + ["--max_steps", "8", "--save_steps", "4"]


def test_train_gets_examples_manifest_and_checkpoint(command, folder, calls, capsys, settings, monkeypatch):
    assert train_planner.main(command) == 0
    (call,) = calls
    assert (len(call.training.examples), len(call.training.validation), call.run.checkpoint) == (2, 2, None)
    assert call.source == {"revision": "main", "cache_dir": None, "trust_remote_code": False}
    expected = {**settings("--max_steps", 8, "--save_steps", 4), "max_seq_length": 4096}  # the model's limit
    assert call.manifest["settings"] == expected
    assert f"{folder}: 8 steps; best is checkpoint-4, validation loss 1.2500" in capsys.readouterr().out

    make_run(folder, 4, settings=expected)
    launch(monkeypatch, RANK="1")  # other processes print nothing
    assert train_planner.main(command) == 0
    assert calls[1].run.checkpoint == folder / "checkpoint-4" and capsys.readouterr() == ("", "")
    monkeypatch.delenv("RANK")
    assert train_planner.main([*command, "--no-resume"]) == 0
    assert calls[2].run.checkpoint is None
    assert [path.name for path in calls[2].run.replaced] == ["checkpoint-4"]


def test_dry_run_describes_what_would_be_trained(command, files, folder, calls, capsys):
    assert train_planner.main([*command, "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"^{files[0]}: 2 questions with 10 aspects; prompts: \d+ .* targets: \d+", said)
    assert "= 32 sequences per step\nnote: there is no GPU here, so GPU memory could not be checked\n" in said
    assert calls == [] and not folder.exists()


REFUSED = {  # flags, and a part of the message; {0} is the folder of the files
    "tracker": (["--report_to", "no such thing"], "--report_to no such thing: not installed, or unknown to transform"),
    "dropout": (["--lora_dropout", "1"], "--lora_dropout 1.0: must be below 1"),
    "target": (["--planner_target", "reference"], "--planner_target reference: planner.txt has no"),
    "adapter": (["--model_addr", "{0}/adapter"], "--model_addr {0}/adapter: is an adapter; pass the base"),
    "half a model": (["--model_addr", "{0}/half"], "{0}/half/model.safetensors: damaged or incomplete"),
    "too long": (["--max_seq_length", "4097"], "--max_seq_length 4097: the model supports at most 4096"),
    "too short": (["--max_seq_length", "50"], "too small for 2 of 2 questions of {0}/train.json\n"),
    "rate of 0": (["--max_steps", "1", "--warmup_steps", "1"], "the learning rate would be 0 in every step: "),
    "no template": (["--model_addr", "{0}/untuned"], "{0}/untuned: has no chat template"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_input_is_refused_before_anything_is_written(case, command, model, folder, tmp_path):
    flags, expected = REFUSED[case]
    (tmp_path / "adapter").mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": str(model), "r": 16}
    write_json(tmp_path / "adapter/adapter_config.json", config)
    weights = shutil.copytree(model, tmp_path / "half") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    shutil.copytree(model, tmp_path / "untuned", ignore=shutil.ignore_patterns("chat_template*"))
    for dry in ([], ["--dry_run"]):
        message = refusal(train_planner.main, [*command, *(flag.format(tmp_path) for flag in flags), *dry])
        assert expected.format(tmp_path) in message
    assert not folder.exists()


def test_unranked_dataset_is_refused(command, files, calls, tmp_path):
    command.remove("--unranked")
    assert refusal(train_planner.main, command).startswith(f"{files[0]}: not ranked: ")
    publish(files[0], json.loads(files[0].read_text()), {"settings": {"ranker": "bm25"}})
    assert refusal(train_planner.main, command).startswith(f"{files[1]}: not ranked: ")
    train_planner.main([*command, "--num_contexts", "0", "--output_dir", str(tmp_path / "without")])
    assert len(calls) == 1


# Prompts and targets


@pytest.mark.parametrize("num_contexts", [0, 2])
def test_prompt_is_the_one_of_planpers_and_only_the_titles_are_trained_on(chat, prompt, num_contexts):
    records = read_sample("train")
    args = parse("--num_contexts", num_contexts, "--max_seq_length", 4096)
    # The length is more than enough here, so neither script drops a post.
    window = Window(chat, 4096, 512)
    examples = build_examples(TASK, records, "train.json", prompt, chat, args)
    assert len(examples) == len(records) > 8
    searched = 0
    for record, example in zip(records, examples, strict=True):
        posts = [post["text"] for post in record["profile"]][:num_contexts]
        messages = prompt.messages(question=record["question"], profile="\n\n".join(posts))
        assert list(example.prompt) == list(chat.render(messages))
        fitted = window.fit(prompt, TASK.best_items(record, num_contexts), TASK.join, **TASK.values(record))
        assert list(example.prompt) == list(fitted.prompt)
        titles = [aspect["aspect"] for aspect in record["rubric_aspects"]]
        assert chat.tokenizer.decode(example.target) == "\n".join(titles) + END
        assert list(example.target).count(chat.tokenizer.eos_token_id) == 1
        assert (example.fitted.num_contexts_dropped, example.fitted.context_cut) == (0, False)
        text = chat.tokenizer.decode([*example.prompt, *example.target])
        assert sentences(record["question"])[0] in text and all(post in text for post in posts)  # the search works
        secret = [record["narrative"]]
        secret += [aspect[field] for aspect in record["rubric_aspects"] for field in ("evidence", "reason")]
        for sentence in (part for hidden in secret for part in sentences(hidden)):
            assert sentence not in text
            searched += 1
    assert searched > 15 * len(records)


def test_each_title_is_one_line_and_questions_without_titles_are_skipped(chat, prompt):
    records = sample_records("train", 2)
    records[0]["rubric_aspects"] = []
    records[1]["rubric_aspects"] = [{"aspect": title} for title in (" Cost of\n  the  trip ", "Food\r\n")]
    args = parse("--max_seq_length", 4096)
    (example,) = build_examples(TASK, records, "f", prompt, chat, args)
    assert chat.tokenizer.decode(example.target) == f"Cost of the trip\nFood{END}"
    message = refusal(build_examples, TASK, records[:1], "train.json", prompt, chat, args)
    assert message == "train.json: no question has aspects in its rubric to train on"


def test_plans_are_scored_by_the_share_of_the_titles_that_they_have():
    records = {record["id"]: record for record in sample_records("train", 3)}
    for record in records.values():
        record["rubric_aspects"] = [{"aspect": title} for title in (" Cost of\n  the  trip ", "Food\r\n")]
    plans = [("Cost of the trip\nFood", False), ("Food\nWine", False), ("", True)]
    assert score_plans(TASK, None, records, dict(zip(records, plans, strict=True))) == {
        "eval_aspect_recall": 0.5, "eval_plans": 3, "eval_plans_without_an_aspect": 1,
    }  # fmt: skip
