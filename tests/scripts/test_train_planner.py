"""train_planner.py up to where training begins: examples, settings, what is in the folder, and what is refused."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tiny_chat import END, SAMPLE, sample_records, save_tiny_chat

import train_planner
from prompts import load_prompt
from train_planner import (
    PAPER_BATCH,
    build_examples,
    build_parser,
    describe_result,
    fill_in_defaults,
    settings_of_training,
)
from utils import cli
from utils.benchmarks.lampqa import TASK
from utils.cli import UserError
from utils.files.lock import Lock
from utils.files.manifest import publish, read_folder_manifest, write_folder_manifest
from utils.generation.chat import PAPER_LENGTH, LocalChat, limit_length
from utils.generation.engines import Model, identify_local_model
from utils.generation.model import Policy
from utils.planner.examples import describe_examples
from utils.runs.ask import Role, Shared
from utils.training.checkpoints import check_run, open_run
from utils.training.launch import describe_batch

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("train", "validation", "test")
HEADING = "Past post questions and detailed descriptions of these questions:\n"


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Not started by accelerate, and on a machine with one device at most."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def chat(model):
    return LocalChat(str(model))


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
    """What a UserError says: one to three lines. Nothing keeps the exception, so a lock it holds is let go."""
    try:
        call(*args)
    except UserError as error:
        assert 1 <= len(str(error).splitlines()) <= 3
        return str(error)
    pytest.fail("no UserError")


def listing(folder):
    """Every file below a folder with its content."""
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_a_tracker_that_is_not_installed_is_refused(tmp_path):
    arguments = ["--model_addr", "m", "--inputs_addr", "train.json", "--output_dir", str(tmp_path)]
    for tracker in ("wandb", "no such thing"):
        with pytest.raises(UserError, match=rf"^--report_to {tracker}: not installed, or unknown to transformers; "):
            train_planner.main([*arguments, "--report_to", tracker])


# Examples


@pytest.mark.parametrize("num_contexts", [0, 2, 10])
@pytest.mark.parametrize("name", SAMPLES)
def test_prompt_is_what_planpers_sends_and_target_the_titles(chat, prompt, name, num_contexts):
    records = read_sample(name)
    args = parse("--num_contexts", num_contexts, "--max_seq_length", 4096)
    # The same length less the target is more than enough here: nothing is left out on either side.
    policy = Policy(0.1, 0.95, 512, 0, 3, "fallback", {})
    shared = Shared(TASK, {"planner": Role(args, Model("m", "m", chat, 4096, policy))}, 0, num_contexts)
    examples = build_examples(TASK, records, f"{name}.json", prompt, chat, args)
    assert len(examples) == len(records) > 8
    for record, example in zip(records, examples, strict=True):
        posts = [post["text"] for post in record["profile"]][:num_contexts]
        messages = prompt.messages(question=record["question"], profile="\n\n".join(posts))
        assert list(example.prompt) == list(chat.render(messages))
        asked = shared.make(record, ("q", 0), "planner", "planner", TASK.best_items(record, num_contexts), {})[1]
        assert list(example.prompt) == list(asked.prompt)
        text = chat.tokenizer.decode(example.prompt)
        assert text.endswith("<|im_start|>assistant\n")
        assert text.count(HEADING) == (1 if posts else 0)
        assert all(post in text for post in posts)

        titles = [aspect["aspect"] for aspect in record["rubric_aspects"]]
        assert example.aspects == titles
        assert chat.tokenizer.decode(example.target) == "\n".join(titles) + END
        assert list(example.target).count(chat.tokenizer.eos_token_id) == 1
        assert (example.num_dropped, example.is_cut) == (0, False)


WITH_TARGET = "[system]\nList.\n[user]\n\n{profile}\n{question}\n\n[assistant]\nWhat counts:\n{plan}\n[end]\n"


@pytest.fixture
def with_target(tmp_path):
    """A folder of prompts whose planner has a target, as utils/import_prompts.py writes it."""
    folder = tmp_path / "prompts_paper"
    folder.mkdir()
    (folder / "planner.txt").write_text(WITH_TARGET)
    return folder


def test_the_reference_target_is_the_lead_in_and_a_dash_and_title_a_line(chat, with_target):
    record = sample_records("train", 1)[0]
    record["rubric_aspects"] = [{"aspect": " Cost  of it"}, {"aspect": "Time"}]
    prompt = load_prompt("lampqa/planner", with_target)
    args = parse("--planner_target", "reference", "--max_seq_length", 4096, "--num_contexts", 1)
    (example,) = build_examples(TASK, [record], "f", prompt, chat, args)
    assert chat.tokenizer.decode(example.target) == f"What counts:\n-  Cost  of it\n- Time\n{END}"  # as they are
    assert example.aspects == ["Cost of it", "Time"]
    user = f"\n{record['profile'][0]['text']}\n{record['question']}\n"
    assert list(example.prompt) == list(
        chat.render([{"role": "system", "content": "List."}, {"role": "user", "content": user}])
    )
    (example,) = build_examples(TASK, [record], "f", prompt, chat, parse("--max_seq_length", 4096))
    assert chat.tokenizer.decode(example.target) == f"Cost of it\nTime{END}"


def test_loss_is_on_the_target_alone(chat, prompt):
    example = build_examples(
        TASK, read_sample("train")[:1], "train.json", prompt, chat, parse("--max_seq_length", 4096)
    )[0]
    row = example.row
    assert row.keys() == {"input_ids", "labels"}
    num_prompt = len(example.prompt)
    assert len(row["labels"]) == len(row["input_ids"]) == num_prompt + len(example.target)
    assert row["input_ids"][:num_prompt] == list(example.prompt)
    assert row["labels"][:num_prompt] == [-100] * num_prompt
    assert row["labels"][num_prompt:] == row["input_ids"][num_prompt:] == list(example.target)


def sentences(text):
    """Its parts between full stops or ellipses; those of a few letters would be found anywhere."""
    return [part.strip() for part in re.split(r"\.\.\.|(?<=[.!?])\s", text) if len(part.strip()) >= 15]


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_else_of_the_rubric_and_no_narrative_is_learnt(chat, prompt, name):
    records = read_sample(name)
    examples = build_examples(TASK, records, name, prompt, chat, parse("--num_contexts", 10, "--max_seq_length", 4096))
    searched = 0
    for record, example in zip(records, examples, strict=True):
        text = chat.tokenizer.decode(example.row["input_ids"])
        assert sentences(record["question"])[0] in text  # what is there is found
        secret = [record["narrative"]]
        for aspect in record["rubric_aspects"]:
            secret += [aspect["evidence"], aspect["reason"]]
        for sentence in (part for one in secret for part in sentences(one)):
            assert sentence not in text
            searched += 1
    assert searched > 15 * len(records)


def test_titles_are_one_line_each(chat, prompt):
    aspects = [{"aspect": title} for title in (" Cost of\n  the  trip ", "Safety\tat night", "Food\r\n")]
    record = {"id": "q", "question": "Where to?", "profile": [], "rubric_aspects": aspects}
    example = build_examples(TASK, [record], "f", prompt, chat, parse("--max_seq_length", 4096))[0]
    assert chat.tokenizer.decode(example.target) == f"Cost of the trip\nSafety at night\nFood{END}"
    assert example.aspects == ["Cost of the trip", "Safety at night", "Food"]


def test_questions_without_aspects_are_left_out(chat, prompt):
    records = sample_records("train", 3)
    records[1]["rubric_aspects"] = []
    args = parse("--max_seq_length", 4096)
    examples = build_examples(TASK, records, "train.json", prompt, chat, args)
    assert [example.aspects[0] for example in examples] == [records[i]["rubric_aspects"][0]["aspect"] for i in (0, 2)]
    for record in records:
        record["rubric_aspects"] = []
    assert refusal(build_examples, TASK, records, "train.json", prompt, chat, args) == (
        "train.json: no question has an aspect in its rubric; there is nothing to learn"
    )
    assert build_examples(TASK, [], None, prompt, chat, args) == []  # no validation set


# The length


def test_whole_posts_go_the_lowest_ranked_first_and_the_target_stays(chat, prompt):
    record = sample_records("train", 1, num_posts=5)[0]
    posts = [post["text"] for post in record["profile"]]
    titles = "\n".join(aspect["aspect"] for aspect in record["rubric_aspects"])
    target = [*chat.tokenizer.encode(titles, add_special_tokens=False), chat.tokenizer.eos_token_id]

    def tokens(kept):
        messages = prompt.messages(question=record["question"], profile="\n\n".join(kept))
        return len(chat.render(messages)) + len(target)

    whole = [tokens(posts[:count]) for count in range(6)]
    assert whole == sorted(set(whole))  # each post needs room
    for length in (1, len(target), whole[0] - 1):
        args = parse("--max_seq_length", length)
        assert "too small for 1 of 1" in refusal(build_examples, TASK, [record], "f", prompt, chat, args)
    seen = set()
    for length in range(whole[0], whole[5] + 2):
        example = build_examples(TASK, [record], "f", prompt, chat, parse("--max_seq_length", length))[0]
        assert list(example.target) == target
        assert len(example.prompt) + len(example.target) <= length
        count = max(n for n in range(6) if whole[n] <= length)
        text = chat.tokenizer.decode(example.prompt)
        if count == 0 and example.is_cut:
            kept = text.split(HEADING)[1].split("\n\nCurrent post question:")[0]
            assert posts[0].startswith(kept) and 0 < len(kept) < len(posts[0])
            assert example.num_dropped == 4
            seen.add("cut")
        else:
            assert example.num_dropped == 5 - count
            assert not example.is_cut
            assert list(example.prompt) == list(
                chat.render(prompt.messages(question=record["question"], profile="\n\n".join(posts[:count])))
            )
            seen.add(count)
    assert seen == {"cut", 0, 1, 2, 3, 4, 5}


def test_a_length_too_small_for_a_question_names_it(chat, prompt):
    records = sample_records("train", 7)
    message = refusal(build_examples, TASK, records, "train.json", prompt, chat, parse("--max_seq_length", 50))
    ids = ", ".join(repr(record["id"]) for record in records[:5])
    assert message == (
        "--max_seq_length 50: too small for 7 of 7 questions of train.json\n"
        f"  their question and aspects alone are longer: {ids}, ..."
    )
    for record in records[1:]:
        record["question"] = "Why?"
        record["rubric_aspects"] = record["rubric_aspects"][:1]
    records[0]["question"] *= 20
    message = refusal(build_examples, TASK, records, "train.json", prompt, chat, parse("--max_seq_length", 450))
    assert "too small for 1 of 7" in message
    assert message.endswith(f": {records[0]['id']!r}")


@pytest.mark.parametrize(
    ("limit", "wanted", "expected"),
    [(32768, None, 8192), (4096, None, 4096), (None, None, 8192), (4096, 4096, 4096), (32768, 10000, 10000)],
)
def test_the_length_is_the_papers_or_the_models(limit, wanted, expected):
    assert limit_length(SimpleNamespace(model_limit=limit), "--max_seq_length", wanted, PAPER_LENGTH) == expected


def test_no_more_than_the_model_takes():
    assert refusal(limit_length, SimpleNamespace(model_limit=4096), "--max_seq_length", 4097, PAPER_LENGTH) == (
        "--max_seq_length 4097: the model takes at most 4096 tokens"
    )


# Settings


def test_defaults_are_the_papers(model):
    args = parse(model=model)
    fill_in_defaults(args)
    found = {name: getattr(args, name) for name in ("learning_rate", "weight_decay", "max_steps", "warmup_steps")}
    assert found == {"learning_rate": 5e-5, "weight_decay": 0.0, "max_steps": 2000, "warmup_steps": 200}
    assert (args.lora_rank, args.lora_alpha, args.lora_dropout, args.lora_target_modules) == (16, 16, 0.05, None)
    assert (args.save_steps, args.eval_steps, args.num_contexts, args.resume) == (250, 250, 10, True)
    assert describe_batch(args, "sequences", PAPER_BATCH) == (
        "effective batch: 1 on a device x 32 accumulated x 1 processes = 32 sequences a step"
    )


@pytest.mark.parametrize(
    ("flags", "eval_steps", "warmup_steps"),
    [
        (["--save_steps", 6], 6, 200),
        (["--save_steps", 6, "--eval_steps", 2, "--max_steps", 19, "--validation_addr", "v"], 2, 1),
        (["--max_steps", 9], 250, 0),
        (["--warmup_steps", 0], 250, 0),
        (["--warmup_steps", 7], 250, 7),
    ],
)
def test_defaults_that_hang_on_other_flags(flags, eval_steps, warmup_steps):
    args = parse(*flags)
    fill_in_defaults(args)
    assert (args.eval_steps, args.warmup_steps) == (eval_steps, warmup_steps)


def test_a_batch_of_another_size_is_said_to_be(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert describe_batch(parse("--gradient_accumulation_steps", 64), "sequences", PAPER_BATCH) == (
        "effective batch: 1 on a device x 64 accumulated x 4 processes = 256 sequences a step (the paper's is 32)"
    )
    assert describe_batch(
        parse("--gradient_accumulation_steps", 4, "--per_device_train_batch_size", 2), "sequences", PAPER_BATCH
    ) == ("effective batch: 2 on a device x 4 accumulated x 4 processes = 32 sequences a step")


def test_several_devices_need_a_process_each(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    message = refusal(fill_in_defaults, parse())
    assert message.startswith("4 GPUs are visible to one process\n")
    assert "accelerate launch --multi_gpu --num_processes 4 train_planner.py" in message
    monkeypatch.setenv("LOCAL_RANK", "0")  # as accelerate launch sets it
    fill_in_defaults(parse())
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    fill_in_defaults(parse())


def test_examples_are_described_by_their_tokens(chat, prompt):
    examples = build_examples(TASK, sample_records("train", 2), "f", prompt, chat, parse("--max_seq_length", 4096))
    lengths = [len(example.row["input_ids"]) for example in examples]
    targets = sum(len(example.target) for example in examples)
    assert describe_examples("train.json", examples) == (
        f"train.json: 2 questions with 10 aspects; {sum(lengths)} tokens, the longest {max(lengths)}, "
        f"in the targets {targets}\n  0 posts left out for length, 0 cut at the end"
    )


def test_the_result_names_the_best_checkpoint():
    assert describe_result("planner", {"steps": 8, "best_step": 4, "best_loss": 1.23456}) == (
        "planner: 8 steps; best is checkpoint-4, validation loss 1.2346"
    )
    assert "nothing was evaluated" in describe_result("planner", {"steps": 8, "best_step": None, "best_loss": None})


# The settings that decide it


@pytest.fixture
def files(tmp_path):
    """Training and validation file."""
    return (
        write_json(tmp_path / "train.json", sample_records("train", 2)),
        write_json(tmp_path / "validation.json", sample_records("validation", 2)),
    )


@pytest.fixture
def settings(model, files):
    """The settings of a command, which goes through JSON as a manifest does."""

    def make(*more, model_addr=model, prompts_dir=None):
        inputs, validation = files
        args = parse("--validation_addr", validation, *more, model=model_addr, inputs=inputs)
        fill_in_defaults(args)
        args.prompts_dir = prompts_dir
        made = settings_of_training(
            args, load_prompt("lampqa/planner", prompts_dir), identify_local_model(args.model_addr, args.cache_dir)
        )
        assert json.loads(json.dumps(made)) == made  # or it would differ from the one in a manifest
        return made

    return make


def differing(a, b):
    assert a.keys() == b.keys()
    return {name for name in a if a[name] != b[name]}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--seed", 1], "seed"),
        (["--gradient_accumulation_steps", 16], "effective_batch_size"),
        (["--per_device_train_batch_size", 2], "effective_batch_size"),
        (["--num_contexts", 9], "num_contexts"),
        (["--learning_rate", 1e-4], "learning_rate"),
        (["--weight_decay", 0.01], "weight_decay"),
        (["--warmup_steps", 3], "warmup_steps"),
        (["--lora_rank", 8], "lora_rank"),
        (["--lora_alpha", 8], "lora_alpha"),
        (["--lora_dropout", 0], "lora_dropout"),
        (["--lora_target_modules", "q_proj"], "lora_target_modules"),
    ],
)
def test_a_flag_that_changes_the_adapter_is_a_setting(settings, flags, name):
    assert differing(settings(), settings(*flags)) == {name}


def test_the_number_of_steps_is_too(settings):
    # The learning rate falls to zero over them.
    assert differing(settings(), settings("--max_steps", 1000)) == {"max_steps", "warmup_steps"}


def test_the_reference_target_is_too_and_the_papers_goes_without_saying(settings, with_target):
    before = settings(prompts_dir=with_target)
    assert settings("--planner_target", "paper", prompts_dir=with_target) == before
    after = settings("--planner_target", "reference", prompts_dir=with_target)
    assert after == {**before, "planner_target": "reference", "lead_in": "What counts:\n"}


def test_so_are_data_prompt_and_model(settings, files, model, tmp_path):
    before = settings()
    own = tmp_path / "prompts"
    own.mkdir()
    text = (ROOT / "prompts/lampqa/planner.txt").read_text(encoding="utf-8")
    (own / "planner.txt").write_text(text.replace("short phrase", "phrase"), encoding="utf-8")
    assert differing(before, settings(prompts_dir=own)) == {"prompt"}
    retrained = shutil.copytree(model, tmp_path / "retrained")
    weights = bytearray((retrained / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (retrained / "model.safetensors").write_bytes(weights)
    assert differing(before, settings(model_addr=retrained)) == {"model"}
    shutil.copytree(model, tmp_path / "moved")
    assert settings(model_addr=tmp_path / "moved") == before
    for path, name in zip(files, ("inputs", "validation"), strict=True):
        path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
        after = settings()
        assert differing(before, after) == {name}
        before = after


@pytest.mark.parametrize(
    "flags",
    [
        ["--per_device_train_batch_size", 2, "--gradient_accumulation_steps", 16],  # 2 x 16 = 1 x 32
        ["--eval_generate", 0],
        ["--save_steps", 10],
        ["--save_steps", 10, "--eval_steps", 5],
        ["--no-gradient_checkpointing"],
        ["--attn_implementation", "eager"],
        ["--log_level", "info"],
    ],
)
def test_a_setting_that_leaves_the_adapter_as_it_is_may_change(settings, flags):
    assert settings(*flags) == settings()


def test_so_may_the_number_of_processes(settings, monkeypatch):
    before = settings()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert settings("--gradient_accumulation_steps", 8) == before  # 1 x 8 x 4 = 1 x 32 x 1


# What is in the folder

SETTINGS = {"script": "train_planner.py", "seed": 0, "learning_rate": 5e-5}


def make_checkpoint(folder, step, settings=SETTINGS):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "adapter_model.safetensors").write_bytes(b"weights")
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
    (folder / "trainer_state.json").write_text("{}")
    if steps:
        (folder / "best").symlink_to(f"checkpoint-{steps[0]}")


def reopen(folder, *flags, settings=SETTINGS):
    """The checkpoint to go on from, and the names of those that are to be replaced; a dry run says the same."""
    args, before, told = parse(*flags, output=folder), listing(folder), None
    try:
        check_run(args, settings)
    except UserError as error:
        told = str(error)
    assert listing(folder) == before
    try:
        run = open_run(args, settings)
    except UserError as error:
        assert str(error) == told
        raise
    assert (run.folder, told) == (folder, None)
    if run.lock is not None:
        run.lock.release()
    return run.checkpoint, [path.name for path in run.replaced]


def test_an_empty_folder_is_begun(folder):
    assert reopen(folder / "new") == (None, [])
    assert reopen(folder / "new", "--no-resume") == (None, [])
    assert {path.name for path in folder.rglob("*")} == {"new"}


def test_the_last_checkpoint_by_number_is_gone_on_from(folder):
    make_run(folder, 250, 1000, 500)
    before = listing(folder)
    assert reopen(folder) == (folder / "checkpoint-1000", [])  # by name 500 would be the last
    assert listing(folder) == before


def test_a_run_without_its_last_evaluation_is_not_finished(command, folder, settings, calls):
    finished = {**settings("--max_steps", 8), "max_seq_length": 4096}
    make_run(folder, 4, 8, settings=finished)
    write_folder_manifest(folder / "checkpoint-8", {"settings": finished, "step": 8, "unevaluated": True})
    assert train_planner.main(command) == 0
    (call,) = calls
    assert call.run.checkpoint == folder / "checkpoint-8"


@pytest.mark.parametrize("torn", [None, "", '{"settings": {"seed"', "[]", "{}"])
def test_a_checkpoint_that_is_not_whole_is_skipped(folder, torn):
    make_run(folder, 250, 500)
    (folder / "checkpoint-500/manifest.json").unlink()
    if torn is not None:
        (folder / "checkpoint-500/manifest.json").write_text(torn)
    assert reopen(folder) == (folder / "checkpoint-250", [])
    (folder / "checkpoint-250/manifest.json").unlink()
    assert reopen(folder) == (None, [])
    assert (folder / "checkpoint-500/adapter_model.safetensors").exists()


@pytest.mark.parametrize("flags", [[], ["--no-resume"]])
def test_checkpoints_of_other_settings_are_refused_and_stay(folder, flags):
    make_run(folder, 250)
    before = listing(folder)
    assert refusal(open_run, parse(*flags, output=folder), {**SETTINGS, "seed": 1}) == (
        f"{folder}: a run with other settings: seed: 0, now 1\n"
        "  give another --output_dir, or --overwrite to delete its checkpoints and begin anew"
    )
    assert listing(folder) == before


def test_overwrite_leaves_a_run_of_these_settings_alone(folder):
    make_run(folder, 250)
    assert reopen(folder, "--overwrite") == (folder / "checkpoint-250", [])


def test_other_settings_are_fine_where_nothing_was_learnt_yet(folder):
    make_run(folder)
    assert reopen(folder, settings={**SETTINGS, "seed": 1}) == (None, [])


@pytest.mark.parametrize("flags", [[], ["--no-resume"], ["--overwrite"]])
def test_checkpoints_of_something_else_are_refused_and_stay(folder, flags):
    (folder / "checkpoint-250").mkdir(parents=True)
    (folder / "checkpoint-250/pytorch_model.bin").write_bytes(b"somebody's")
    before = listing(folder)
    message = refusal(reopen, folder, *flags)
    assert message == f"{folder}: holds checkpoints of something else; give another --output_dir"
    assert listing(folder) == before


@pytest.mark.parametrize(("flags", "seed"), [(["--no-resume"], 0), (["--overwrite"], 1)])
def test_a_run_is_replaced_on_request_but_not_before_training_begins(folder, flags, seed):
    make_run(folder, 250, 500, settings={**SETTINGS, "seed": seed})
    (folder / "checkpoint-500/manifest.json").unlink()  # not whole, but of this run
    (folder / "checkpoint-250.tar.gz").write_text("mine")
    shutil.copytree(folder / "checkpoint-250", folder / "checkpoint-250-backup")
    before = listing(folder)
    assert reopen(folder, *flags) == (None, ["checkpoint-250", "checkpoint-500"])
    assert listing(folder) == before


def test_what_is_only_named_like_a_checkpoint_is_none(folder):
    make_run(folder, 250, 500)
    (folder / "checkpoint-900.tar.gz").write_text("mine")
    (folder / "checkpoint-900").write_text("mine")
    shutil.copytree(folder / "checkpoint-250", folder / "checkpoint-900-backup")
    assert reopen(folder) == (folder / "checkpoint-500", [])


def test_a_folder_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "cannot be written: Not a directory" in refusal(reopen, tmp_path / "file/planner")
    assert "cannot be written: File exists" in refusal(reopen, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_cannot_be_written(folder):
    folder.mkdir(mode=0o500)
    assert "cannot be written: Permission denied" in refusal(reopen, folder)


@pytest.mark.parametrize("flags", [[], ["--no-resume"]])
def test_a_run_under_way_is_left_alone(folder, flags):
    make_run(folder, 250)
    before = listing(folder)
    log = folder / "training_log.jsonl"
    lock = Lock(log)
    expected = f"{log}: process {os.getpid()} on {socket.gethostname()} is writing it; wait for it, or end it"
    assert refusal(reopen, folder, *flags) == expected
    lock.release()
    assert listing(folder) == before
    assert reopen(folder, *flags)[1] == (["checkpoint-250"] if flags else [])


def test_the_other_processes_of_a_run_find_what_the_first_has_found(folder, monkeypatch):
    make_run(folder, 250)
    first = open_run(parse(output=folder), SETTINGS)
    monkeypatch.setenv("RANK", "1")
    second = open_run(parse(output=folder), SETTINGS)  # while the first holds the lock
    assert second.lock is None and second.checkpoint == first.checkpoint == folder / "checkpoint-250"
    monkeypatch.setenv("RANK", "0")
    assert f"process {os.getpid()} on " in refusal(open_run, parse(output=folder), SETTINGS)
    first.lock.release()
    assert not (folder / "run.lock").exists()


# A whole run up to training


@pytest.fixture
def calls(monkeypatch):
    """What train() was called with; it trains nothing and loads no library."""
    calls = []

    def train(args, source, chat, examples, validation, manifest, run, lead_in):
        calls.append(SimpleNamespace(**locals()))
        if run.lock is not None:
            run.lock.release()  # as the end of the process does
        return {"steps": args.max_steps, "best_step": 4, "best_loss": 1.25}

    module = ModuleType("utils.planner.trainer")
    module.train = train
    monkeypatch.setitem(sys.modules, "utils.planner.trainer", module)
    return calls


@pytest.fixture
def command(model, files, folder):
    inputs, validation = files
    flags = ["--model_addr", model, "--inputs_addr", inputs, "--validation_addr", validation, "--output_dir", folder]
    flags += ["--unranked"]
    return [str(word) for word in flags] + ["--max_steps", "8", "--save_steps", "4"]


def test_a_run_hands_over_examples_manifest_and_checkpoint(command, folder, files, calls, capsys, settings):
    assert train_planner.main(command) == 0
    (call,) = calls
    assert (len(call.examples), len(call.validation), call.run.checkpoint) == (2, 2, None)
    assert call.source == {"revision": "main", "cache_dir": None, "trust_remote_code": False}
    expected = {**settings("--max_steps", 8), "max_seq_length": 4096}  # the model takes no more
    assert call.manifest["settings"] == expected
    assert call.manifest["arguments"]["max_seq_length"] == 4096
    assert "torch" in call.manifest["versions"]
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith(f"{files[0]}: 2 questions with 10 aspects; ")
    assert lines[2].startswith(f"{files[1]}: 2 questions with 10 aspects; ")
    assert lines[4:] == [
        "effective batch: 1 on a device x 32 accumulated x 1 processes = 32 sequences a step",
        f"{folder}: 8 steps; best is checkpoint-4, validation loss 1.2500",
    ]
    assert [line.partition(" not ranked: ")[0] for line in err.splitlines()[:2]] == [f"note: {path}:" for path in files]
    assert err.splitlines()[2:] == ["tokenizing (questions: 4)", f"loading {call.args.model_addr}"]

    make_run(folder, 4, settings=expected)
    assert train_planner.main(command) == 0
    assert calls[1].run.checkpoint == folder / "checkpoint-4"
    assert train_planner.main([*command, "--no-resume"]) == 0
    assert calls[2].run.checkpoint is None
    assert [path.name for path in calls[2].run.replaced] == ["checkpoint-4"]


def test_a_dry_run_says_what_would_be_trained_and_writes_nothing(command, files, folder, calls, capsys):
    assert train_planner.main([*command, "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{files[0]}: 2 questions with 10 aspects; ")
    assert lines[4:6] == [
        "effective batch: 1 on a device x 32 accumulated x 1 processes = 32 sequences a step",
        "note: there is no GPU here",
    ]
    assert lines[6].endswith(" GB of weights per GPU; activations come on top")
    assert lines[7].startswith(f"disk of {folder.parent}: ")
    assert len(lines) == 8 and calls == [] and not folder.exists()


def test_other_processes_say_nothing(command, calls, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert train_planner.main(command) == 0
    assert len(calls) == 1
    assert capsys.readouterr() == ("", "")


def test_no_note_for_a_ranked_dataset(command, files, calls, capsys):
    for path in files:
        publish(path, json.loads(path.read_text(encoding="utf-8")), {"settings": {"ranker": "bm25"}})
    command.remove("--unranked")
    train_planner.main(command)
    assert "note: " not in capsys.readouterr().err


def test_a_dataset_that_is_not_ranked_is_refused(command, files, calls, tmp_path):
    command.remove("--unranked")
    assert refusal(train_planner.main, command).startswith(f"{files[0]}: not ranked: ")
    publish(files[0], json.loads(files[0].read_text()), {"settings": {"ranker": "bm25"}})
    assert refusal(train_planner.main, command).startswith(f"{files[1]}: not ranked: ")
    train_planner.main([*command, "--num_contexts", "0", "--output_dir", str(tmp_path / "without")])
    assert len(calls) == 1


def without_modules(folder, *names, **stubs):
    """A folder for PYTHONPATH in which importing `names` fails."""
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    for name, text in stubs.items():
        (folder / f"{name}.py").write_text(text)
    return str(folder)


def run_process(arguments, pythonpath):
    command = [sys.executable, "train_planner.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": pythonpath, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)


def test_a_finished_run_is_left_alone_and_loads_no_trainer(command, folder, settings, tmp_path):
    finished = {**settings("--max_steps", 8), "max_seq_length": 4096}
    make_run(folder, 4, 8, settings=finished)
    before = listing(folder)
    done = run_process(command, without_modules(tmp_path / "blocked", "trl", "peft", "datasets"))
    assert (done.returncode, done.stdout) == (0, f"{folder}: already finished, left alone\n")
    assert all(line.startswith(("note: ", "  its posts", "tokenizing ")) for line in done.stderr.splitlines())
    assert listing(folder) == before


# What is refused


def without(field):
    def change(records):
        del records[1][field]

    return change


def write_adapter(path, base):
    path.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 16}
    write_json(path / "adapter_config.json", config)


def cut_weights(path, model):
    shutil.copytree(model, path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


# Name: (change to the files, more flags, part of the message); {0} is the folder of the files.
REFUSED_AT_ONCE = {
    "no aspects": ("train", without("rubric_aspects"), [], "train.json: record 1 (id 'anime_12761'): field 'rubric_"),
    "no profile": ("train", without("profile"), [], "field 'profile' is missing or null"),
    "validation": ("validation", without("question"), [], "validation.json: record 1 (id "),
    "empty": ("train", "", [], "{0}/train.json: the file is empty"),
    "cut short": ("train", '[{"id": "a"', [], "{0}/train.json: the JSON breaks off at line 1"),
    "no questions": ("train", "[]", [], "{0}/train.json: holds no questions"),
    "no file": (None, None, ["--inputs_addr", "{0}/nothing.json"], "{0}/nothing.json: no such file"),
    "no validation": (None, None, ["--validation_addr", "{0}/nothing.json"], "{0}/nothing.json: no such file"),
    "eval steps": (None, None, ["--eval_steps", "3"], "--eval_steps 3 does not divide --save_steps 4"),
    "dropout": (None, None, ["--lora_dropout", "1"], "--lora_dropout 1.0: must be below 1"),
    "target": (None, None, ["--planner_target", "reference"], "--planner_target reference: planner.txt has no"),
    "prompts": (None, None, ["--prompts_dir", "{0}/nothing"], "--prompts_dir {0}/nothing: no such folder"),
    "no model": (None, None, ["--model_addr", "{0}/nothing"], "{0}/nothing: no such folder"),
    "adapter": (None, None, ["--model_addr", "{0}/adapter"], "--model_addr {0}/adapter: an adapter; give the base"),
    "half a model": (None, None, ["--model_addr", "{0}/half"], "{0}/half/model.safetensors: damaged or half-written"),
}


@pytest.mark.parametrize("case", REFUSED_AT_ONCE)
def test_bad_input_is_refused_before_any_library_loads(case, command, files, model, tmp_path):
    name, change, flags, expected = REFUSED_AT_ONCE[case]
    if isinstance(change, str):
        (tmp_path / f"{name}.json").write_text(change)
    elif change is not None:
        records = sample_records(name, 2)
        change(records)
        write_json(tmp_path / f"{name}.json", records)
    write_adapter(tmp_path / "adapter", model)
    cut_weights(tmp_path / "half", model)
    no_device = "class cuda:\n    device_count = staticmethod(lambda: 0)\n"
    blocked = without_modules(tmp_path / "blocked", "transformers", "accelerate", "trl", "peft", torch=no_device)
    before = listing(tmp_path)
    done = run_process([*command, *(flag.format(tmp_path) for flag in flags)], blocked)
    assert (done.returncode, done.stdout) == (2, "")
    note, error, message = done.stderr.rpartition("error: ")
    assert error
    assert all(line.startswith(("note: ", "  its posts")) for line in note.splitlines())
    assert expected.format(tmp_path) in message
    assert 1 <= len(message.splitlines()) <= 3
    assert listing(tmp_path) == before


REFUSED_WITH_THE_TOKENIZER = {
    "longer than the model takes": (
        ["--max_seq_length", "4097"],
        "--max_seq_length 4097: the model takes at most 4096",
    ),
    "too short": (["--max_seq_length", "50"], "too small for 2 of 2 questions of {0}/train.json\n"),
    "validation too long": ([], "--max_seq_length 4096: too small for 1 of 2 questions of {0}/validation.json\n"),
    "nothing to learn": ([], "{0}/train.json: no question has an aspect in its rubric"),
    "no chat template": ([], "{0}/untuned: no chat template"),
}


@pytest.mark.parametrize("dry", [[], ["--dry_run"]], ids=["run", "dry run"])
@pytest.mark.parametrize("case", REFUSED_WITH_THE_TOKENIZER)
def test_bad_input_that_the_tokenizer_shows(case, dry, command, model, tmp_path, capsys, monkeypatch):
    flags, expected = REFUSED_WITH_THE_TOKENIZER[case]
    if case == "nothing to learn":
        write_json(tmp_path / "train.json", sample_records("train", 2, rubric_aspects=[]))
    if case == "validation too long":
        records = sample_records("validation", 2)
        records[1]["question"] *= 1000
        write_json(tmp_path / "validation.json", records)
    if case == "no chat template":
        shutil.copytree(model, tmp_path / "untuned", ignore=shutil.ignore_patterns("chat_template*"))
        flags = ["--model_addr", str(tmp_path / "untuned")]
    before = listing(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *args: None)  # pytest's own stay
    with pytest.raises(SystemExit) as ending:
        cli.run_script(lambda: train_planner.main([*command, *flags, *dry]))
    assert ending.value.code == 2
    out, err = capsys.readouterr()
    message = err.rpartition("error: ")[2]
    assert out == ""
    assert expected.format(tmp_path) in message
    assert 1 <= len(message.splitlines()) <= 3
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--learning_rate", "-1e-5"),
        ("--learning_rate", "nan"),
        ("--lora_dropout", "-0.1"),
        ("--lora_rank", "0"),
        ("--max_steps", "0"),
        ("--eval_steps", "0"),
        ("--save_steps", "-1"),
        ("--per_device_train_batch_size", "0"),
        ("--gradient_accumulation_steps", "1.5"),
        ("--max_seq_length", "0"),
        ("--num_contexts", "-1"),
        ("--attn_implementation", "fast"),
    ],
)
def test_a_value_out_of_range_names_its_flag(flag, value, capsys):
    with pytest.raises(SystemExit) as ending:
        parse(f"{flag}={value}")
    assert ending.value.code == 2
    assert flag in capsys.readouterr().err.splitlines()[-1]


def test_what_the_folder_holds_is_kept_where_training_cannot_begin(command, folder):
    make_run(folder, 4, settings=SETTINGS)  # of another run
    before = listing(folder)
    assert f"{folder}: a run with other settings: " in refusal(train_planner.main, command)
    assert read_folder_manifest(folder) == {"settings": SETTINGS}
    assert listing(folder) == before
