"""Checks before a job. Files, models, locks, disks and users are real; GPUs are not.

No machine that runs these tests need have a GPU: torch.cuda's is_available, device_count, mem_get_info and
get_device_properties are replaced, nothing above them.
"""

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import lamp_samples
import numpy as np
import pytest
from hollow_models import save_hollow_qwen
from hub_server import MODEL, serve
from safetensors.numpy import load_file, save_file
from test_run_files import HOLD, start
from thinking_chat import save_tiny_thinker
from tiny_chat import SAMPLE, save_tiny_chat
from tiny_encoder import save_tiny_encoder
from tiny_t5 import save_tiny_t5

import baselines
import evaluate_responses
import planpers
from utils import download_datasets, preflight
from utils.cli import UserError
from utils.files.journal import Journal
from utils.files.manifest import publish
from utils.generation import engines
from utils.generation.chat import LocalChat, choose_judge_length

ROOT = Path(__file__).resolve().parents[2]
DATA = SAMPLE / "test.json"
KEY = "sk-a-secret-that-nobody-may-see"
COMMIT = "0123456789" * 4
NOBODY = 65534  # user id of one who owns nothing
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user, or mount")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """As `main` has it in a process of its own; and put back afterwards."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A real model: Qwen 2 of two layers, tied embeddings, float32, for 4096 tokens."""
    return save_tiny_chat(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(tiny, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(tiny, tmp_path / "model")


@pytest.fixture
def check(capsys):
    """Run preflight.py with these flags: exit code and lines."""

    def run(*flags):
        capsys.readouterr()  # what the test itself has made a library say
        code = preflight.main([str(flag) for flag in flags])
        out, err = capsys.readouterr()
        assert err == ""
        return code, out.splitlines()

    return run


def run_process(*flags, **more):
    command = [sys.executable, "utils/preflight.py", *map(str, flags)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, **more)


AS_NOBODY = f"""
import os, sys
from utils import preflight
from utils.benchmarks import tasks
tasks()  # reads and imports what it can't where this user may not look
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
sys.exit(preflight.main(sys.argv[1:]))
"""


def run_as_nobody(*flags):
    """Started as root, for others may not be let into the folder of this Python."""
    command = [sys.executable, "-c", AS_NOBODY, *map(str, flags)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def read_sample():
    return json.loads(DATA.read_text(encoding="utf-8"))


def tree(folder):
    """Every path below a folder, with what a file holds."""
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(Path(folder).rglob("*"))}


# Data


@pytest.mark.parametrize(
    ("fingerprint", "told"),
    [
        (None, "not ranked"),
        ({"ranker": "bm25"}, "ranked"),
        ({"dataset_name": "hub"}, "not ranked"),
    ],
)
def test_a_dataset_is_counted_and_its_manifest_says_whether_it_is_ranked(check, tmp_path, fingerprint, told):
    path = DATA
    if fingerprint is not None:
        path = tmp_path / "test.json"
        publish(path, read_sample(), {"fingerprint": fingerprint})
    assert check("--inputs_addr", path) == (0, [f"ok   data {path}: 13 questions, {told}"])


def save_changed(folder, name, change):
    """The sample with its second record changed."""
    records = read_sample()
    change(records[1])
    path = folder / name
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


WRONG = {  # what no script that reads the field takes, and what it says of it
    "profile": (
        lambda record: record.update(profile="posts"),
        "field 'profile' is the text 'posts'; it must be a list",
    ),
    "rubric_aspects": (
        lambda record: record["rubric_aspects"][0].pop("aspect"),
        "field 'rubric_aspects', item 0: field 'aspect' is missing or null; it must be a text",
    ),
    "narrative": (
        lambda record: record.update(narrative=None),
        "field 'narrative' is missing or null; it must be a text",
    ),
}
READING = {  # what preflight is asked about: the fields that are read then
    "": ["profile", "narrative", "rubric_aspects"],
    "--evaluator_llm j": ["narrative", "rubric_aspects"],
    "--evaluator_llm j --strategy direct": ["narrative"],
    "--evaluator_llm j --step rag": ["profile", "narrative", "rubric_aspects"],
    "--model_addr m": ["profile", "narrative", "rubric_aspects"],
    "--model_addr m --step none": [],
    "--model_addr m --step rag": ["profile"],
    "--model_addr m --step planpers": ["profile"],
    "--model_addr m --step planpers_gold": ["profile", "rubric_aspects"],
    "--model_addr m --step rank": ["profile"],
    "--model_addr m --step train": ["profile", "rubric_aspects"],
    "--step merge": [],
}


@pytest.mark.parametrize("flags", READING)
@pytest.mark.parametrize("field", WRONG)
def test_data_are_checked_for_what_reads_them(check, tmp_path, monkeypatch, flags, field):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    change, message = WRONG[field]
    path = save_changed(tmp_path, "data.json", change)
    asked = [*flags.split(), *(["--openai"] if "_llm" in flags or "_addr" in flags else [])]
    code, lines = check("--inputs_addr", path, *asked)
    if field in READING[flags]:
        assert code == 2 and lines[0].startswith(f"FAIL {path}: record 1 (id '") and message in lines[0]
    else:
        assert (code, lines[0]) == (0, f"ok   data {path}: 13 questions, not ranked")


@pytest.mark.parametrize(
    "script",
    [
        "baselines.py --openai --model_addr m --output_addr o.json", "retrieval/rank_dataset.py",
        "baselines.py --rag --unranked --openai --model_addr m --output_addr o.json",
        "planpers.py --gold_plan --unranked --openai --model_addr m --output_addr o.json",
        "evaluate_responses.py --openai --evaluator_llm m --response_addr r.json --score_addr o.json",
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", WRONG)
def test_what_it_refuses_for_a_step_is_what_the_script_refuses(check, tmp_path, monkeypatch, script, field):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    path = save_changed(tmp_path, "data.json", WRONG[field][0])
    ids = [record["id"] for record in read_sample()]
    Path("r.json").write_text(json.dumps({question_id: [{"output": "x"}] for question_id in ids}))
    name, *flags = script.split()
    if "rank" in name:
        words = ["--ranker", "bm25", "--input_dataset_addr", path, "--output_dataset_addr", "o.json"]
    else:
        words = [*flags, "--inputs_addr", path, "--dry_run"]
    step = {"evaluate_responses.py": ["--evaluator_llm", "m", "--openai"], "planpers.py": ["--step", "planpers_gold"]}
    step |= {"retrieval/rank_dataset.py": ["--step", "rank"]}
    _, lines = check("--inputs_addr", path, *step.get(name, ["--step", "rag" if "--rag" in flags else "none"]))
    told = [line.removeprefix("FAIL ") for line in lines if line.startswith("FAIL ")]
    try:
        importlib.import_module(name.removesuffix(".py").replace("/", ".")).main([str(word) for word in words])
    except UserError as error:
        assert [str(error)] == told
    else:
        assert told == []


def test_what_the_data_lack_is_told_where_nothing_says_what_reads_them(check, tmp_path):
    """A file for answering only is whole without a narrative; the judge's is not."""
    path = save_changed(tmp_path, "data.json", lambda record: record.pop("narrative"))
    code, lines = check("--inputs_addr", path)
    assert (code, lines[1:]) == (0, [f"note data {path}: 1 questions have no 'narrative', which judges read"])


def test_an_id_in_two_files_is_named_with_both(check, tmp_path):
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    records = read_sample()
    one.write_text(json.dumps(records[:4]))
    other.write_text(json.dumps(records[3:]))
    code, lines = check("--inputs_addr", one, other)
    assert code == 2 and [line[:4] for line in lines] == ["ok  ", "ok  ", "FAIL"]
    assert lines[2].startswith(f"FAIL {one} and {other}: an id stands in both: {records[3]['id']!r}; one table cannot")
    other.write_text(json.dumps(records[4:]))
    assert check("--inputs_addr", one, other)[0] == 0
    other.write_text(json.dumps([{**record, "question": "Another one?"} for record in records[:4]]))
    assert check("--inputs_addr", one, other)[0] == 2
    assert check("--inputs_addr", one, other, "--step", "train")[0] == 0  # training and validation: no table


def test_a_dataset_and_its_ranked_file_are_one(check, tmp_path):
    """And so is a part of it."""
    records = read_sample()
    ranked, part = tmp_path / "ranked.json", tmp_path / "part.json"
    ranked.write_text(json.dumps([{**record, "profile": record["profile"][::-1]} for record in records]))
    part.write_text(json.dumps(records[:5]))
    assert check("--inputs_addr", part, DATA, ranked)[0] == 0


def test_plans_are_read(check, tmp_path):
    records = read_sample()
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({record["id"]: [{"aspects": ["Cost"]}] for record in records}))
    asked = ["--inputs_addr", DATA, "--step", "planpers", "--plans_addr", path]
    assert check(*asked) == (0, [check("--inputs_addr", DATA)[1][0], f"ok   plans {path}: for all 13 questions"])
    path.write_text(json.dumps({record["id"]: [{"aspects": ["Cost"]}] for record in records[1:]}))
    lacks = f"note {path}: lacks the plans of 1 of 13 questions: {records[0]['id']!r}"
    assert check(*asked)[1][1] == lacks  # planpers.py takes them with a --limit or a shard that does not ask for it
    path.write_text(json.dumps({records[0]["id"]: [{"aspects": "Cost"}]}))
    code, lines = check(*asked)
    assert code == 2 and lines[1].endswith("'aspects' is the text 'Cost', not a list of titles")


def test_every_check_is_made_whatever_fails(check, tmp_path):
    broken, empty = tmp_path / "broken.json", tmp_path / "empty.json"
    broken.write_text('[{"id": "a", "question"')
    empty.write_text("[]")
    code, lines = check("--inputs_addr", tmp_path / "none.json", broken, empty, DATA, "--output_addr", tmp_path)
    assert code == 2
    assert lines[0] == f"FAIL {tmp_path}/none.json: no such file"
    assert lines[1].startswith(f"FAIL {broken}: the JSON breaks off at line 1")
    assert lines[2] == f"FAIL {empty}: holds no questions"
    assert lines[3].startswith(f"ok   data {DATA}: ")
    assert lines[4:] == [f"FAIL {tmp_path}: is a folder; give the name of a file in it"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "nothing to check: give --inputs_addr, --model_addr, --evaluator_llm or --output_addr"),
        ("--plans_addr p.json --model_addr m", "--plans_addr needs --inputs_addr"),
        ("--evaluator_llm j --response_addr r.json", "--response_addr needs --inputs_addr and --evaluator_llm"),
        ("--inputs_addr d.json --response_addr r.json", "--response_addr needs --inputs_addr and --evaluator_llm"),
        (
            "--evaluator_llm j --inputs_addr d --strategy pairwise --response_addr r",
            "1 --response_addr: --strategy pairwise takes two",
        ),
        ("--estimate --inputs_addr d.json", "--estimate needs --inputs_addr and --model_addr"),
        ("--estimate --model_addr m", "--estimate needs --inputs_addr and --model_addr"),
    ],
)
def test_flags_that_do_not_go_together(flags, message):
    with pytest.raises(UserError, match=rf"^{re.escape(message)}$"):
        preflight.main(flags.split())


# Models


NO_GPU = "note GPU: none here, so memory is not checked; --gpu_memory GB computes for one that is elsewhere"


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_a_whole_model_in_a_folder(check, tiny, no_gpu):
    from transformers import AutoModelForCausalLM

    parameters = AutoModelForCausalLM.from_pretrained(tiny).num_parameters()
    line = f"ok   model {tiny}: {parameters:,} parameters, a folder"
    assert check("--model_addr", tiny) == (0, [line, NO_GPU])


def cache_model(cache, name, tiny):
    """The model as Hugging Face's cache keeps it."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return shutil.copytree(tiny, repository / "snapshots" / COMMIT)


def test_a_hub_model_in_the_cache_with_its_commit(check, tiny, tmp_path, no_gpu):
    cache_model(tmp_path, "owner/tiny", tiny)
    code, lines = check("--model_addr", "owner/tiny", "--cache_dir", tmp_path)
    assert (code, len(lines)) == (0, 3)
    assert lines[0].endswith(f" parameters, commit {COMMIT}")
    assert re.fullmatch(rf"ok   cache {tmp_path}: readable, [\d.]+ [GM]B free \(a run takes none of it\)", lines[2])


def test_a_hub_model_of_which_only_what_is_read_was_fetched(check, tiny, tmp_path, no_gpu):
    """As utils/slurm/prefetch.sh does: the cache has a list of the hub's files, and knows that some are missing."""
    files = {path.name: path.read_bytes() for path in Path(tiny).iterdir()}
    with serve(files | {"README.md": b"# A model", "pytorch_model.bin": b"pickled"}) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", MODEL, "--cache-dir", tmp_path / "cache"]
        patterns = ["--include", "*.safetensors", "--include", "*.json", "--include", "*.jinja"]
        subprocess.run([*command, *patterns], env=environment, check=True, capture_output=True, timeout=600)
        [commit] = hub.commits
    assert list((tmp_path / "cache").rglob(f"trees/{commit}.json"))
    code, lines = check("--model_addr", MODEL, "--cache_dir", tmp_path / "cache")
    assert (code, lines[0].partition(" parameters, ")[2]) == (0, f"commit {commit}")


def test_a_hub_model_that_is_not_cached_is_not_fetched(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as hub:
        environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
        environment.pop("HF_HUB_OFFLINE")
        done = run_process("--model_addr", "owner/none", "--cache_dir", tmp_path, env=environment)
        hub.setblocking(False)
        with pytest.raises(BlockingIOError):
            hub.accept()  # nobody has called
    first = done.stdout.splitlines()[0]
    assert (done.returncode, done.stderr) == (2, "")
    assert first.startswith(f"FAIL owner/none: neither a folder nor in the hub cache {tmp_path}")
    assert f"hf download owner/none --cache-dir {tmp_path}" in first
    assert list(tmp_path.iterdir()) == []
    assert "a check fetches nothing" in first and "HF_HUB_OFFLINE" not in first


def test_why_a_model_is_not_fetched_is_told_as_it_is(tiny, tmp_path):
    """Where the user's own setting is the reason it is named, also for an adapter's base model."""
    save_adapter(tmp_path / "adapter", "owner/none")
    for variables, why in (({}, "a check fetches nothing"), ({"HF_HUB_OFFLINE": "ON"}, "HF_HUB_OFFLINE is set")):
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | variables
        done = run_process(
            "--model_addr", "owner/none", tmp_path / "adapter", "--cache_dir", tmp_path / "cache", env=environment
        )
        lines = [line for line in done.stdout.splitlines() if "nor in the hub cache" in line]
        assert len(lines) == 2 and all(why in line for line in lines), done.stdout
        assert done.stdout.count("HF_HUB_OFFLINE is set") == (2 if variables else 0)


def test_a_missing_folder(check, tmp_path, no_gpu):
    code, lines = check("--model_addr", tmp_path / "none")
    assert (code, lines[1:]) == (2, [NO_GPU])
    assert lines[0].startswith(f"FAIL {tmp_path}/none: no such folder; give the folder")


PICKLED = "only pickled weights (*.bin), which may hold code; convert them to safetensors"


def pickle_weights(folder):
    import torch

    weights = {name: torch.from_numpy(array) for name, array in load_file(folder / "model.safetensors").items()}
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def lose_a_shard(folder):
    name = next(iter(load_file(folder / "model.safetensors")))
    index = {"weight_map": {name: "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def cut_weights_short(folder):
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)


def drop_chat_template(folder):
    (folder / "chat_template.jinja").unlink()


def make_unknown(folder):
    (folder / "config.json").write_text('{"model_type": "abacus", "architectures": ["AbacusForCausalLM"]}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_shard, "{}: lacks model-00002-of-00002.safetensors, which model.safetensors.index*"),
        (cut_weights_short, "{}/model.safetensors: damaged or half-written*"),
        (pickle_weights, f"{{}}: {PICKLED}"),
        (drop_chat_template, "{}: no chat template; give an instruction-tuned model"),
        (make_unknown, "{}: its config.json cannot be loaded: *"),
    ],
)
def test_a_model_that_is_not_whole(check, model, no_gpu, damage, message):
    damage(model)
    code, lines = check("--model_addr", model)
    assert (code, lines[1:]) == (2, [NO_GPU])
    assert fnmatchcase(lines[0], f"FAIL {message.format(model)}")


def test_a_length_over_the_model_s(check, model, no_gpu):
    code, lines = check("--model_addr", model, "--max_model_len", 4097)
    assert code == 2
    assert lines == ["FAIL --max_model_len 4097: the model takes at most 4096 tokens", NO_GPU]


def save_adapter(folder, base, width=128):
    """A LoRA adapter of rank 2 on the first layer's q_proj, which has `width` inputs and outputs."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.lora_A.weight": np.zeros((2, width)), f"{name}.lora_B.weight": np.zeros((width, 2))}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_is_checked_with_its_base(check, tiny, tmp_path, no_gpu):
    adapter = save_adapter(tmp_path / "adapter", tiny)
    code, lines = check("--model_addr", adapter)
    assert (code, lines[1:]) == (0, [NO_GPU])
    assert lines[0].startswith(f"ok   model {adapter}: adapter on {tiny}, ")


def test_an_adapter_without_its_base(check, model, tmp_path, no_gpu):
    adapter = save_adapter(tmp_path / "adapter", tmp_path / "gone")
    narrow = save_adapter(tmp_path / "narrow", model, width=64)
    on_pickled = save_adapter(tmp_path / "on_pickled", shutil.copytree(model, tmp_path / "pickled"))
    pickle_weights(tmp_path / "pickled")
    code, lines = check("--model_addr", adapter, narrow, on_pickled)
    assert (code, lines[3:]) == (2, [NO_GPU])
    assert lines[0].startswith(f"FAIL {adapter}: its base model cannot be used")
    assert lines[1].startswith(f"FAIL {narrow}: an adapter for another architecture than {model}; ")
    assert lines[2].startswith(f"FAIL {on_pickled}: its base model cannot be used ")
    assert lines[2].endswith(f"; {tmp_path}/pickled: {PICKLED}")


def test_an_encoder_needs_no_share_of_a_gpu(check, tmp_path, monkeypatch):
    from transformers import BertConfig, BertModel

    BertModel(
        BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    ).save_pretrained(tmp_path)
    monkeypatch.setattr("torch.cuda.device_count", lambda: pytest.fail("GPUs are looked at"))
    expected = (0, [f"ok   model {tmp_path}: an encoder, a folder"])
    assert check("--model_addr", tmp_path) == expected
    pickle_weights(tmp_path)  # as facebook/contriever-msmarco has them; transformers reads them without their code
    assert check("--model_addr", tmp_path) == expected


def test_an_encoder_decoder_reads_plain_text_and_is_not_for_vllm(check, tmp_path, monkeypatch):
    save_tiny_t5(tmp_path)
    monkeypatch.setattr("torch.cuda.device_count", lambda: pytest.fail("GPUs are looked at"))
    [line] = expected = [f"ok   model {tmp_path}: an encoder-decoder, a folder"]
    assert check("--model_addr", tmp_path, "--gpu_memory", 1) == (0, expected)
    monkeypatch.undo()
    assert check("--model_addr", tmp_path) == (0, expected)
    code, lines = check("--evaluator_llm", tmp_path)
    assert (code, lines[0]) == (2, f"FAIL {tmp_path}: no chat template; give an instruction-tuned model")
    (tmp_path / "tokenizer.json").unlink()
    code, [line, *_] = check("--model_addr", tmp_path)
    assert code == 2 and line.startswith(f"FAIL {tmp_path}: ")


# The API's key


def test_a_key_in_a_file_or_in_the_environment(check, tmp_path, monkeypatch):
    path = tmp_path / "key.txt"
    path.write_text(f"{KEY}\n")
    assert check("--openai", "--api_key_addr", path) == (0, [f"ok   API key: in {path}"])
    code, [line] = check("--openai")
    assert code == 2 and line.startswith("FAIL --openai needs a key: ")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert check("--openai", "--model_addr", "gpt-4o") == (0, ["ok   API key: in OPENAI_API_KEY"])


@pytest.mark.parametrize(
    "content", [f"{KEY} {KEY}", f"{KEY}\n{KEY}", "", None], ids=["two words", "two lines", "empty", "none"]
)
def test_no_key(check, tmp_path, content):
    path = tmp_path / "key.txt"
    if content is not None:
        path.write_text(content)
    code, lines = check("--openai", "--api_key_addr", path)
    assert code == 2
    [line] = lines
    assert line.startswith(f"FAIL --api_key_addr {path}: ")
    assert "secret" not in line


def test_the_key_is_never_printed(tmp_path):
    path = tmp_path / "key.txt"
    path.write_text(KEY)
    flags = ["--openai", "--api_key_addr", path, "--model_addr", "gpt-4o-mini", "--inputs_addr", DATA, "--estimate"]
    done = run_process(*flags, env={**os.environ, "OPENAI_API_KEY": KEY, "HTTPS_PROXY": "http://127.0.0.1:9"})
    assert done.returncode == 0
    assert "secret" not in done.stdout + done.stderr


# GPUs


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Put GPUs of 80 * 10^9 bytes in, by what each has free, and what Triton needs to compile for them."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name, scheme: str(tmp_path))
    monkeypatch.setenv("CC", "cat")

    def install(*free):
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: len(free))
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: (int(free[index]), 80 * 10**9))
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(name=f"Card {index}"))

    return install


def test_free_gpus_and_a_model_that_fits(check, tiny, gpus):
    gpus(79e9, 78.5e9, 1e9)
    code, lines = check("--model_addr", tiny, "--tensor_parallel_size", 2, "--max_model_len", 4000)
    assert code == 0
    assert lines[1:3] == ["ok   GPU 0: Card 0, 79.0 of 80.0 GB free", "ok   GPU 1: Card 1, 78.5 of 80.0 GB free"]
    # 0.9 x 80 - 3 GiB (3.2 GB) leaves 68.8 GB less 1 MB of weights. A GPU holds one of two heads: 2 x 2 layers x 1 head
    # x 64 x 2 bytes = 512 bytes a token.
    assert lines[3].startswith(
        f"ok   memory {tiny}: of 0.9 x 80.0 GB a GPU, 0.0 are weights and 3.2 a guessed allowance; 68.8"
    )
    assert "68.8 are left for a KV cache of 0.5 KiB a token" in lines[3]
    assert lines[3].endswith(" requests of 4000 tokens at once; longest --max_model_len 4096")


def test_a_gpu_needs_a_compiler(check, tiny, gpus, monkeypatch, tmp_path):
    gpus(79e9)
    assert check("--model_addr", tiny)[1][-1] == "ok   C compiler: cat, with Python's headers"
    (tmp_path / "Python.h").unlink()
    code, lines = check("--model_addr", tiny)
    assert code == 2
    assert lines[-1] == (
        f"FAIL {tmp_path}/Python.h: no such file, and Triton needs it on a GPU; "
        "install Python's headers (python3-dev), or take a Python that has them"
    )
    for words in ("missing-cc", "", "cat -n"):
        monkeypatch.setenv("CC", words)
        problem = f"FAIL CC={words}: no such program, and Triton needs a C compiler on a GPU; name it alone"
        assert check("--model_addr", tiny)[1][-1] == problem
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check("--model_addr", tiny)[1][-1].startswith("FAIL no C compiler is here, and Triton needs one on a GPU; ")
    assert "C compiler" not in check("--model_addr", tiny, "--gpu_memory", 80)[1][-1]  # one that is elsewhere


def test_a_gpu_that_another_process_holds(check, tiny, gpus):
    gpus(79e9, 71e9)
    code, lines = check("--model_addr", tiny, "--tensor_parallel_size", 2)
    assert code == 2
    assert lines[1].startswith("ok   GPU 0")
    # 71e9 / 2^30 = 66.1, 80e9 / 2^30 = 74.5, 0.9 of it 67.1
    asked = "GPU 1 has 66.1 of 74.5 GiB free, --gpu_memory_utilization 0.9 asks for 67.1"
    assert lines[2].startswith(f"FAIL {asked}; another process uses it (see nvidia-smi)")
    assert lines[3].startswith("ok   memory")
    assert check("--model_addr", tiny, "--tensor_parallel_size", 2, "--gpu_memory_utilization", 0.8)[0] == 0


def test_too_few_gpus(check, tiny, gpus):
    gpus(79e9)
    code, lines = check("--model_addr", tiny, "--tensor_parallel_size", 2)
    assert code == 2
    assert lines[1:3] == [
        "FAIL --tensor_parallel_size 2: only 1 GPUs are here",
        "ok   GPU 0: Card 0, 79.0 of 80.0 GB free",
    ]
    assert lines[3].startswith("ok   memory")


def test_a_gpu_that_the_driver_refuses(check, tiny, gpus, monkeypatch):
    gpus(79e9)

    def refuse(index):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore lines")

    monkeypatch.setattr("torch.cuda.mem_get_info", refuse)
    code, lines = check("--model_addr", tiny)
    problem = "CUDA error: all CUDA-capable devices are busy or unavailable"
    assert (code, lines[1:]) == (2, [f"FAIL the GPUs cannot be used: {problem}; see nvidia-smi"])


@pytest.fixture
def card(gpus, monkeypatch, tmp_path):
    """Put one GPU in, of which an nvidia-smi on the PATH tells the compute capability."""

    def install(capability):
        gpus(79e9)
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin/nvidia-smi").write_text(f'#!/bin/sh\necho "0, Card 0, {capability}"\n')
        (tmp_path / "bin/nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return install


@pytest.mark.parametrize("kind", ["generator", "encoder"])
def test_a_gpu_that_is_too_old(check, tiny, card, tmp_path, kind):
    card("7.0")
    model = tiny if kind == "generator" else save_tiny_encoder(tmp_path / "encoder")
    code, lines = check("--model_addr", model)
    problem = "GPU 0 (Card 0) has compute capability 7.0, and the kernels of torch and vLLM begin at 7.5; take a newer"
    assert code == 2
    assert lines[1].startswith(f"FAIL {problem}") and len(lines) == 2
    assert check("--model_addr", model, "--gpu_memory", 80)[0] == 0  # one that is elsewhere


def test_a_gpu_without_bfloat16(check, tiny, card):
    card("7.5")
    what = "GPU 0 (Card 0) has compute capability 7.5, and bfloat16 and FlashAttention begin at 8.0"
    code, lines = check("--model_addr", tiny)
    assert code == 0
    assert lines[1].startswith(f"note {what}: with --dtype auto vLLM takes float16 ")
    code, lines = check("--model_addr", tiny, "--dtype", "bfloat16")
    assert (code, lines[1]) == (2, f"FAIL {what}; take another --dtype or a newer GPU")


@pytest.mark.parametrize("capability", ["8.0", "9.0", "12.0", "[N/A]"])
def test_gpus_that_are_meant(check, tiny, card, capability):
    card(capability)
    for dtype in ("auto", "bfloat16"):
        code, lines = check("--model_addr", tiny, "--dtype", dtype)
        assert code == 0
        assert lines[1] == "ok   GPU 0: Card 0, 79.0 of 80.0 GB free"


def test_a_gpu_that_is_elsewhere(check, tiny, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: pytest.fail("GPUs are looked at"))
    code, lines = check("--model_addr", tiny, "--gpu_memory", 24)
    assert code == 0
    assert lines[1] == "note GPU: computed for 1 of 24 GB; those here are not looked at"
    assert lines[2].startswith(f"ok   memory {tiny}: of 0.9 x 24.0 GB a GPU")


# Memory. Weights of the real size are files with a real header and a hole for the numbers.


@pytest.fixture(scope="module")
def judge_32b(tiny, tmp_path_factory):
    """The tiny model's tokenizer, with a config and hollow weights of 32B's size."""
    folder = tmp_path_factory.mktemp("judges") / "judge"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*config.json", "*.safetensors"))
    shutil.copy(tiny / "tokenizer_config.json", folder)
    return save_hollow_qwen(folder, "32B")


def test_the_judge_on_gpus_of_80_gb(check, judge_32b):
    folder = judge_32b
    flags = ["--model_addr", folder, "--gpu_memory", 80, "--max_model_len"]
    # 72,000,000,000 - 65,527,752,704 - 3,221,225,472 = 3,251,021,824 bytes; a block of 16 tokens takes 4,194,304:
    # 775.1 blocks are 12,400 tokens, three times 4096.
    code, lines = check(*flags, 4096)
    assert code == 0
    by_guess = (
        f"memory {folder}: of 0.9 x 80.0 GB a GPU, 65.5 are weights and 3.2 a guessed allowance; 3.3 are left for a KV "
        "cache of 256 KiB a token; {} requests of {} tokens at once; longest --max_model_len 12400"
    )
    assert lines[2] == "ok   " + by_guess.format(3, 4096)
    code, lines = check(*flags, 12_416)
    assert code == 2
    assert lines[2].endswith("; 12416 tokens do not fit, --max_model_len 12400 may; or take more GPUs")
    # With 4.2 GiB instead of 3 it has 1,962,497,607 bytes: 467 blocks, 7,472 tokens.
    assert check(*flags, 7472)[1][2] == "ok   " + by_guess.format(1, 7472)
    unsure = (
        "; may not fit: by published logs the allowance may be up to 4.5; try it before a long job, or take "
        "--max_model_len 7472 or more GPUs"
    )
    for length in (7473, 12_400):
        code, lines = check(*flags, length)
        assert (code, lines[2]) == (0, "note " + by_guess.format(1, length) + unsure)
    # On two: 72,000,000,000 - 32,763,876,352 - 3,221,225,472 = 36,014,898,176; a block 2,097,152: 17,173 of them.
    code, lines = check(*flags, 4096, "--tensor_parallel_size", 2)
    assert code == 0
    assert "32.8 are weights" in lines[2]
    assert lines[2].endswith("67 requests of 4096 tokens at once; longest --max_model_len 32768")
    # On 40 GB not even the weights fit; three do not share 40 heads.
    code, lines = check("--model_addr", folder, "--gpu_memory", 40)
    assert code == 2
    assert lines[2] == (
        f"FAIL the weights of {folder}: 65.5 GB a GPU and a guessed allowance of 3.2 do not fit into 0.9 x 40.0 GB; "
        "take a larger GPU, or more of them (--tensor_parallel_size)"
    )
    code, lines = check(*flags, 4096, "--tensor_parallel_size", 3)
    assert (code, lines[2]) == (2, "FAIL --tensor_parallel_size 3: does not divide the model's 40 attention heads")


@pytest.mark.parametrize(
    ("memory", "verdict"),
    [
        # 36,000,000,000 - 32,763,876,352 - 3,221,225,472 = 14,898,176 bytes are 7 blocks of 2,097,152.
        (40, "FAIL {}; 4096 tokens do not fit, --max_model_len 112 may; or take more GPUs"),
        # One sold as 40 GB has 42.4: 2,174,898,176 bytes are left, and none if it is 6 GiB that vLLM takes.
        (
            42.4,
            "note {}; may not fit: by published logs the allowance may be up to 6.4 on each of several GPUs; "
            "try it before a long job, or take larger GPUs or more of them",
        ),
        # 43,200,000,000 - 32,763,876,352 - 6 GiB = 3,993,672,704 bytes: 1,904 blocks.
        (48, "ok   {}"),
    ],
)
def test_the_judge_on_two_gpus_of_40_to_48_gb(check, judge_32b, memory, verdict):
    """What vLLM takes besides weights and KV cache each of them has for itself, and outside torch twice as much."""
    judge = ["--model_addr", judge_32b, "--max_model_len", 4096, "--tensor_parallel_size", 2]
    code, lines = check(*judge, "--gpu_memory", memory)
    kind, _, rest = verdict.partition("{}")
    assert code == (2 if kind == "FAIL " else 0)
    assert lines[2].startswith(f"{kind}memory {judge_32b}: of ") and lines[2].endswith(rest)
    assert " 32.8 are weights and 3.2 a guessed allowance; " in lines[2]


# A judge


@pytest.fixture
def responses(tmp_path):
    """Two response files with answers of different lengths, a null, and one that lacks a question."""
    records = read_sample()
    paths = []
    for number, word in enumerate(("Well, that depends on you. ", "Yes!\n\n- No. ")):
        outputs = {record["id"]: [{"output": word * (5 * i + 20 * number)}] for i, record in enumerate(records, 1)}
        outputs[records[3]["id"]] = [{"output": None}]
        if number:
            del outputs[records[-1]["id"]]
        paths.append(tmp_path / f"responses {number}.json")
        paths[-1].write_text(json.dumps(outputs))
    return paths


def loaded_length(monkeypatch, judge, tmp_path, *flags):
    """Tokens that evaluate_responses.py would load the judge for."""
    lengths = []

    def open_engine(args, model, max_model_len, journals, outputs):
        lengths.append(max_model_len)
        raise UserError("no engine in this test")

    monkeypatch.setattr(evaluate_responses, "open_engine", open_engine)
    arguments = ["--evaluator_llm", judge, "--inputs_addr", DATA, "--allow_partial", *flags]
    with pytest.raises(UserError, match="no engine in this test"):
        evaluate_responses.main([str(argument) for argument in arguments])
    return lengths.pop()


def fitted_length(lines):
    """Tokens of the requests that the memory was computed for."""
    [found] = [re.search(r" requests of (\d+) tokens at once", line) for line in lines if " memory " in line]
    return int(found[1])


@pytest.mark.parametrize(
    ("strategy", "systems"), [("aspect", 1), ("aspect", 2), ("direct", 1), ("direct", 2), ("pairwise", 2)]
)
def test_a_judge_gets_the_length_that_it_is_loaded_for(
    check, tiny, tmp_path, monkeypatch, responses, strategy, systems
):
    files = responses[:systems]
    scores = [tmp_path / f"scores {i}.json" for i in range(1 if strategy == "pairwise" else systems)]
    flags = ["--strategy", strategy, "--response_addr", *files]
    length = loaded_length(monkeypatch, tiny, tmp_path, *flags, "--score_addr", *scores)
    assert length % 64 == 0 and length < 4096  # what a generator gets
    code, lines = check("--evaluator_llm", tiny, "--inputs_addr", DATA, *flags, "--gpu_memory", 80)
    assert (code, fitted_length(lines)) == (0, length)
    note = re.fullmatch(
        rf"note judge {tiny}: {length} tokens, as its longest prompt has (\d+) and a verdict 512 "
        rf"\({', '.join(map(str, files))}\)",
        lines[1],
    )
    assert length - 64 < int(note[1]) + 512 <= length


@pytest.mark.parametrize(("strategy", "number"), [("aspect", 1), ("direct", 1), ("pairwise", 2)])
def test_without_responses_a_judge_reads_the_longest_that_may_be(check, tiny, tmp_path, monkeypatch, strategy, number):
    text = "Yes, x" + " x" * 300
    size = len(LocalChat(str(tiny)).tokenizer.encode(text))
    path = tmp_path / "responses.json"
    records = read_sample()
    path.write_text(json.dumps({record["id"]: [{"output": text}] for record in records}))
    flags = ["--strategy", strategy, "--response_addr", *[path] * number, "--score_addr", tmp_path / "scores.json"]
    length = loaded_length(monkeypatch, tiny, tmp_path, *flags)
    asked = ["--evaluator_llm", tiny, "--inputs_addr", DATA, "--strategy", strategy, "--gpu_memory", 80]
    code, lines = check(*asked, "--max_tokens", size)
    assert code == 0
    assert lines[1].endswith(f" and a verdict 512 (responses of {size} tokens, as none are given)")
    assert abs(fitted_length(lines) - length) <= 64  # at its ends a response may share a token with the prompt
    assert "(responses of 2048 tokens, as none are given)" in check(*asked)[1][1]


@pytest.fixture(scope="module")
def thinkers(tmp_path_factory):
    """Two models with long contexts, whose templates open a thought."""
    folder = tmp_path_factory.mktemp("thinkers")
    return [save_tiny_thinker(folder / f"{seed}", max_positions=100_000, seed=seed) for seed in range(2)]


@pytest.fixture(scope="module")
def personamem(tmp_path_factory):
    folder = tmp_path_factory.mktemp("personamem")
    words = ["--dataset", "PersonaMem-32k", "--source_dir", SAMPLE.with_name("mini_personamem"), "--output_dir", folder]
    assert download_datasets.main(list(map(str, words))) == 0
    return folder / "PersonaMem_32k.json"


ROOM_FOR_THOUGHTS = {  # a script with its flags, and tokens of prompt and output together; of a judge, of the output
    "answers": (baselines, "", 8192 + 8192),
    "answers of so many tokens": (baselines, "--max_tokens 100", 8192),
    "a length": (baselines, "--max_model_len 3000", 3000),
    "options": (baselines, "--choose likelihood", 56_000),
    "without a parser": (baselines, "--reasoning_parser none", 8192),
    "plans": (planpers, "--planner_model PLANNER", 8192 + 8192),
    "plans of so many tokens": (planpers, "--planner_model PLANNER --max_tokens_plan 100", 8192),
    "answers to plans": (planpers, "--gold_plan --max_tokens 100", 8192),
    "verdicts": (evaluate_responses, "", 512 + 8192),
    "verdicts of so many tokens": (evaluate_responses, "--max_tokens 100", 100),
    "likelihoods of verdicts": (evaluate_responses, "--verdicts probability", 2),
}


@pytest.mark.parametrize("case", ROOM_FOR_THOUGHTS)
def test_thoughts_get_the_room_that_they_get_in_the_run(
    check, tmp_path, monkeypatch, responses, thinkers, personamem, case
):
    script, flags, tokens = ROOM_FOR_THOUGHTS[case]
    lengths, longest = [], []

    def open_engine(args, models, max_model_len, outputs):
        lengths.append(max_model_len)
        raise UserError("no engine in this test")

    def choose_length(chat, max_model_len, max_tokens, its_longest):
        longest.append(its_longest)
        return choose_judge_length(chat, max_model_len, max_tokens, its_longest)

    for module in (engines, planpers):
        monkeypatch.setattr(module, "VLLMEngine", open_engine)
    monkeypatch.setattr(evaluate_responses, "choose_judge_length", choose_length)
    model, planner = thinkers
    words = ["--inputs_addr", personamem if "--choose" in flags else DATA]
    words += flags.replace("PLANNER", str(planner)).split()
    if script is evaluate_responses:
        words += ["--evaluator_llm", model, "--response_addr", responses[0], "--score_addr", tmp_path / "scores.json"]
    else:
        words += ["--model_addr", model, "--output_addr", tmp_path / "out.json"]
    words += ["--num_contexts", 0] if script is planpers else []
    with pytest.raises(UserError, match="no engine in this test"):
        script.main(list(map(str, words)))
    _, lines = check("--gpu_memory", 80, "--command", f"{script.__name__}.py", *words)
    memory = [line for line in lines if f"memory {planner if 'PLANNER' in flags else model}:" in line]
    assert [fitted_length(memory)] == lengths
    if script is evaluate_responses:
        [told] = [line for line in lines if " and a verdict " in line]
        assert f" as its longest prompt has {longest[0]} and a verdict {tokens}" in told
    else:
        assert lengths == [tokens]


def test_a_training_leaves_no_room_for_thoughts(check, tmp_path, thinkers):
    words = ["--inputs_addr", DATA, "--model_addr", thinkers[0], "--output_dir", tmp_path / "out", "--num_contexts", 0]
    _, lines = check("--gpu_memory", 80, "--command", "train_planner.py", *words)
    assert fitted_length(lines) == 8192


def test_likelihoods_of_verdicts_that_a_strategy_does_not_have(check, tiny):
    words = ["--evaluator_llm", tiny, "--inputs_addr", DATA, "--strategy", "direct", "--verdicts", "probability"]
    code, lines = check(*words, "--gpu_memory", 80)
    told = "FAIL --verdicts probability: LaMP-QA's direct has no verdicts on parts of an answer; leave it out"
    assert code == 2 and told in lines


def test_a_judge_of_unknown_data_is_taken_for_a_generator(check, tiny):
    code, lines = check("--evaluator_llm", tiny, "--gpu_memory", 80)
    assert (code, fitted_length(lines)) == (0, 4096)
    assert lines[0] == f"note judge {tiny}: 4096 tokens assumed; its prompts tell, so give --inputs_addr"


def test_a_judge_with_a_length_of_the_users(check, tiny, responses):
    asked = ["--evaluator_llm", tiny, "--inputs_addr", DATA, "--response_addr", *responses, "--gpu_memory", 80]
    code, lines = check(*asked, "--max_model_len", 3000)
    assert (code, fitted_length(lines)) == (0, 3000)
    assert not any(line.startswith("note judge") for line in lines)
    code, lines = check(*asked, "--max_model_len", 512)
    assert code == 2
    assert lines[1] == ("FAIL --max_tokens 512 leaves no room for the prompt: prompt and output share 512 tokens")


def test_a_judge_that_fits_because_its_prompts_are_short(check, judge_32b, responses):
    # 70,200,000,000 - 65,527,752,704 - 3,221,225,472 = 1,451,021,824 bytes: 345 blocks, 5,520 tokens, below 8192.
    data = ["--inputs_addr", DATA, "--response_addr", *responses, "--gpu_memory", 78]
    code, lines = check("--model_addr", judge_32b, "--gpu_memory", 78)
    assert code == 2 and lines[2].endswith("; 8192 tokens do not fit, --max_model_len 5520 may; or take more GPUs")
    assert check("--evaluator_llm", judge_32b, *data)[0] == 0


def test_a_judge_and_a_generator_that_are_one_model(check, tiny, responses):
    flags = ["--inputs_addr", DATA, "--response_addr", *responses, "--gpu_memory", 80]
    code, lines = check("--model_addr", tiny, "--evaluator_llm", tiny, *flags)
    lengths = [re.search(r" requests of (\d+) tokens at once", line)[1] for line in lines if " memory " in line]
    assert code == 0 and lengths[0] == "4096" and int(lengths[1]) < 4096


def test_a_judge_behind_an_api_needs_a_key_only(check, monkeypatch, responses):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    flags = ["--inputs_addr", DATA, "--response_addr", responses[0]]
    code, lines = check("--evaluator_llm", "gpt-4o", "--openai", *flags)
    assert (code, lines[1:]) == (0, ["ok   API key: in OPENAI_API_KEY"])


@pytest.mark.parametrize("flags", [["--openai"], ["--gpu_memory", 80, "--max_model_len", 3000]])
def test_responses_are_read_also_where_no_length_hangs_on_them(check, tiny, tmp_path, monkeypatch, responses, flags):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    asked = ["--evaluator_llm", tiny, *flags, "--inputs_addr", DATA, "--response_addr"]
    code, lines = check(*asked, *responses)
    part = f"note {responses[1]}: only a part of the questions has a response; --allow_partial scores that part; "
    assert code == 0 and [line for line in lines if line.startswith(part)] == lines[-1:]
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"q1": [{"output": 3}]}))
    code, lines = check(*asked, broken, tmp_path / "none.json")
    assert code == 2
    assert lines[-2:] == [
        f"FAIL {broken}: id 'q1': response 0: 'output' is 3, not a text", f"FAIL {tmp_path}/none.json: no such file"
    ]  # fmt: skip
    broken.write_text(json.dumps({"q1": [{"output": "of another dataset"}]}))
    code, lines = check(*asked, broken)
    assert code == 2 and lines[-1].startswith(f"FAIL {broken}: its ids are not the dataset's; give the dataset these")


def test_answers_that_a_server_failed_to_give_are_told(check, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ids = [record["id"] for record in read_sample()]
    path = tmp_path / "responses.json"
    publish(path, {i: [{"output": "x"}] for i in ids[1:]}, {"fingerprint": {}, "missing": 1})
    code, lines = check("--evaluator_llm", "j", "--openai", "--inputs_addr", DATA, "--response_addr", path)
    assert code == 0 and lines[-1].startswith(f"note {path}: 1 answer is missing because the server failed; ")


def test_what_a_judge_lacks(check, tiny, tmp_path, no_gpu, responses):
    records = read_sample()
    for record in records:
        del record["rubric_aspects"]
    data = tmp_path / "test.json"
    data.write_text(json.dumps(records))
    code, lines = check("--evaluator_llm", tiny, "--inputs_addr", data)
    assert code == 2 and lines[0].startswith(f"FAIL {data}: ") and "'rubric_aspects'" in lines[0]
    assert check("--evaluator_llm", tiny, "--inputs_addr", data, "--strategy", "direct")[0] == 0
    missing = tmp_path / "missing.json"
    code, lines = check("--evaluator_llm", tiny, "--inputs_addr", DATA, "--response_addr", missing)
    assert (code, lines[1]) == (2, f"FAIL {missing}: no such file")


# Outputs


def test_an_output_can_be_written_and_nothing_is_left(check, tmp_path):
    path = tmp_path / "new" / "folder" / "rag.json"
    code, lines = check("--output_addr", path, tmp_path / "none.json")
    assert code == 0
    assert lines[:2] == [f"ok   output {path}: can be written", f"ok   output {tmp_path}/none.json: can be written"]
    # two outputs of one question at least, 64,000 bytes each
    assert re.fullmatch(rf"ok   disk of {tmp_path}: [\d.]+ GB free, the outputs there take up to 0\.13 MB", lines[2])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file(check, tmp_path):
    (tmp_path / "file").write_text("")
    code, lines = check("--output_addr", tmp_path / "file" / "rag.json")
    assert (code, lines) == (2, [f"FAIL {tmp_path}/file/rag.json: cannot be written: Not a directory"])


def test_an_output_that_another_run_writes(check, tmp_path):
    path = tmp_path / "rag.json"
    with start(HOLD, path) as process:
        before = tree(tmp_path)
        who = f"process {process.pid} on {socket.gethostname()}"
        expected = (2, [f"FAIL {path}: {who} is writing it; wait for it, or end it"])
        assert check("--output_addr", path) == expected
        assert check("--output_addr", path) == expected
        assert tree(tmp_path) == before
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert Path(f"{path}.lock").exists()  # left over
    assert check("--output_addr", path)[0] == 0


@contextmanager
def folder_of_others(mode):
    """A folder that is not below pytest's own, which others may not enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "folder"
        folder.mkdir()
        Path(name).chmod(0o755)
        folder.chmod(mode)
        yield folder
        folder.chmod(0o755)


@AS_ROOT
def test_a_folder_where_the_user_may_not_write(tmp_path):
    with folder_of_others(0o755) as folder:
        done = run_as_nobody("--output_addr", folder / "rag.json", folder / "new" / "rag.json")
        assert (done.returncode, done.stderr) == (2, "")
        assert done.stdout.splitlines() == [
            f"FAIL {folder}/rag.json: cannot be written: Permission denied",
            f"FAIL {folder}/new/rag.json: cannot be written: Permission denied",
        ]
        folder.chmod(0o777)
        assert run_as_nobody("--output_addr", folder / "rag.json").returncode == 0
        assert list(folder.iterdir()) == []


@AS_ROOT
def test_folders_that_the_user_may_not_enter():
    with folder_of_others(0o700) as folder:
        done = run_as_nobody("--output_addr", folder / "a" / "rag.json", "--cache_dir", folder)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines() == [
        f"FAIL --cache_dir {folder}: no permission to read it",
        f"FAIL {folder}/a/rag.json: cannot be written: Permission denied",
    ]


def test_a_cache_that_is_not_there(check, tmp_path):
    expected = f"FAIL --cache_dir {tmp_path}/none: no such folder"
    code, lines = check("--cache_dir", tmp_path / "none", "--output_addr", tmp_path / "rag.json")
    assert (code, lines[0]) == (2, expected)
    assert not (tmp_path / "none").exists()


def test_what_is_there_already_is_told(check, tmp_path):
    finished, gaps, changed, foreign = (tmp_path / f"{n}.json" for n in ("finished", "gaps", "changed", "foreign"))
    publish(finished, {}, {"fingerprint": {}, "missing": 0})
    publish(gaps, {}, {"fingerprint": {}, "missing": 3})
    publish(changed, {}, {"fingerprint": {}})
    changed.write_text("{} ")
    foreign.write_text("{}")
    code, lines = check("--output_addr", finished, gaps, changed, foreign)
    assert code == 0
    assert lines[0] == f"ok   output {finished}: finished already: the same command leaves it alone"
    scores = tmp_path / "scores.json"
    publish(scores, {}, {"fingerprint": {"responses": "0" * 64}})
    judged = "finished already: the same command judges only what has changed since"
    assert check("--output_addr", scores)[1][0] == f"ok   output {scores}: {judged}"
    theirs = "exists, and no manifest says that it is finished: a run may ask for --overwrite"
    assert lines[1] == f"ok   output {gaps}: not whole, 3 pieces are missing: the same command goes on"
    assert lines[2:4] == [f"ok   output {changed}: {theirs}", f"ok   output {foreign}: {theirs}"]


def test_a_run_that_was_begun_is_told(check, tmp_path):
    path = tmp_path / "rag.json"
    journal = Journal(path, {"model": "m"})
    journal.add(("q1", 0), {"value": "a"})
    journal.add(("q2", 0), {"value": "b"})
    journal.close()
    before = tree(tmp_path)
    code, lines = check("--output_addr", path)
    assert (code, lines[0]) == (0, f"ok   output {path}: begun, 2 pieces done: the same command goes on")
    assert tree(tmp_path) == before
    file = Path(f"{path}.journal.jsonl")
    whole = file.read_text()
    file.write_text(whole[:10])  # a run that died in the first line
    code, lines = check("--output_addr", path)
    assert (code, lines[0]) == (0, f"ok   output {path}: can be written")
    file.write_text(whole.replace("q1", "q\0"))
    code, lines = check("--output_addr", path)
    assert code == 2
    assert lines[0].startswith(f"FAIL {file}: line 2 is damaged")
    file.unlink()
    os.mkfifo(file)
    code, lines = check("--output_addr", path)
    assert code == 2
    assert lines[0].startswith(f"FAIL {file}: not a regular file")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@AS_ROOT
def test_a_disk_that_is_full(check, small_disk, tmp_path):
    path = small_disk / "new" / "rag.json"
    # 13 questions x 64,000 bytes are 832,000 of 1,048,576; two such outputs are too many.
    code, lines = check("--inputs_addr", DATA, "--output_addr", path)
    assert (code, lines[2]) == (0, f"ok   disk of {small_disk}: 1.05 MB free, the outputs there take up to 0.83 MB")
    code, lines = check("--inputs_addr", DATA, "--output_addr", path, small_disk / "none.json")
    advice = "free some, or give outputs on another disk"
    asked = f"FAIL disk of {small_disk}: 1.05 MB free, the outputs there take up to 1.66 MB; {advice}"
    assert (code, lines[3]) == (2, asked)
    code, lines = check("--inputs_addr", DATA, "--output_addr", path, tmp_path / "none.json")
    assert (code, [line[:5] for line in lines]) == (0, ["ok   "] * 5)  # one on each of two disks
    (small_disk / "full").write_bytes(bytes(1000 * 1024))
    code, lines = check("--inputs_addr", DATA, "--output_addr", path)
    assert (code, lines[2][:4]) == (2, "FAIL")


@AS_ROOT
def test_a_disk_without_room_for_a_trainings_checkpoints(check, small_disk, tmp_path):
    """Four of the tiny T5's parameters at 12 bytes each are more than 1 MiB."""
    save_tiny_t5(tmp_path / "t5")
    (tmp_path / "in.json").write_text(json.dumps(lamp_samples.read_sample("LaMP-4")))
    words = ["--model_addr", tmp_path / "t5", "--inputs_addr", tmp_path / "in.json", "--num_contexts", 0]
    code, lines = check("--command", "utils/train_generator.py", *words, "--output_dir", tmp_path / "out")
    assert code == 0 and [line for line in lines if "free, the training's checkpoints take up to 0.0 GB" in line]
    code, lines = check("--command", "utils/train_generator.py", *words, "--output_dir", small_disk / "out")
    [told] = [line for line in lines if "the training's checkpoints" in line]
    assert code == 2 and told.startswith("FAIL disk of") and told.endswith("give an output on another disk")


# The estimate

ROWS = ("no personalization", "RAG", "planner", "PlanPers answer", "judge, one system")


def read_table(lines):
    """The cells by the row's name, numbers as numbers; the header's by "step"."""
    rows = {}
    for line in lines:
        name, *cells = re.split(r"  +", line.strip())
        rows[name] = [float(cell.replace(",", "")) if re.fullmatch(r"[\d.,]+", cell) else cell for cell in cells]
    return {name: rows[name] for name in ("step", *ROWS)}


def estimate(check, *flags, data=DATA):
    code, lines = check("--inputs_addr", data, "--estimate", *flags)
    assert code == 0
    return read_table(lines), lines


def dry_run(script, capsys, *flags, data=DATA):
    """Prompts and tokens of each stage that --dry_run tells of."""
    assert script.main([str(flag) for flag in (*flags, "--inputs_addr", data, "--dry_run")]) == 0
    found = re.findall(r"^(\d+) prompts, (\d+) tokens", capsys.readouterr().out, re.MULTILINE)
    return [[float(prompts), float(tokens)] for prompts, tokens in found]


MORE = [(), ("--max_model_len", 3000), ("--max_model_len", 2180), ("--num_contexts", 3, "--max_tokens", 1000)]


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("openai", [False, True], ids=["local", "API"])
def test_it_counts_what_the_scripts_count(check, tiny, tmp_path, capsys, monkeypatch, openai, more):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = "gpt-4o" if openai else tiny
    monkeypatch.setattr("utils.generation.chat._tiktoken_encoder", lambda name: None)  # its table is not here
    api = ["--openai"] if openai else []
    table, lines = estimate(check, "--model_addr", model, *api, *more)
    asked = ["--model_addr", model, "--output_addr", tmp_path / "o.json", *api]
    without_posts = more[2:] if more[:1] == ("--num_contexts",) else more
    assert [table["no personalization"][:2]] == dry_run(baselines, capsys, *asked, *without_posts)
    assert [table["RAG"][:2]] == dry_run(baselines, capsys, *asked, "--rag", "--unranked", *more)
    assert [table["PlanPers answer"][:2]] == dry_run(planpers, capsys, *asked, "--gold_plan", "--unranked", *more)
    if not openai:
        [planning, _] = dry_run(planpers, capsys, *asked, "--planner_model", model, "--unranked", *more)
        assert table["planner"][:2] == planning
    counter = "estimate: 1 token per 3 bytes" if openai else "the model's tokenizer"
    assert any(line.startswith(f"  prompt tokens: {counter}; output tokens are assumed: 400 an") for line in lines)


def test_a_question_without_aspects_is_answered_as_rag_does(check, tiny, tmp_path, capsys):
    records = read_sample()
    for record in records[::2]:
        record["rubric_aspects"] = []
    data = tmp_path / "test.json"
    data.write_text(json.dumps(records))
    table, _ = estimate(check, "--model_addr", tiny, data=data)
    asked = ["--model_addr", tiny, "--output_addr", tmp_path / "o.json", "--gold_plan", "--unranked"]
    assert [table["PlanPers answer"][:2]] == dry_run(planpers, capsys, *asked, data=data)
    assert table["PlanPers answer"][0] == 13


def test_the_judge_reads_responses_of_the_assumed_length(check, tiny, tmp_path, capsys):
    records = read_sample()
    responses = tmp_path / "responses.json"
    responses.write_text(json.dumps({record["id"]: [{"output": "x"}] for record in records}))
    flags = ["--evaluator_llm", tiny, "--response_addr", responses, "--score_addr", tmp_path / "scores.json"]
    [[prompts, tokens]] = dry_run(evaluate_responses, capsys, *flags)
    assert prompts == sum(len(record["rubric_aspects"]) for record in records)
    table, _ = estimate(check, "--model_addr", tiny, "--answer_tokens", 301, "--verdict_tokens", 20)
    # "x" is a token of its own, so each prompt is 300 longer
    assert table["judge, one system"] == [prompts, tokens + 300 * prompts, 20 * prompts]


def test_output_tokens_are_the_assumed_ones(check, tiny):
    table, _ = estimate(check, "--model_addr", tiny, "--answer_tokens", 100, "--plan_tokens", 7)
    assert [table[name][2] for name in ROWS] == [1300, 1300, 91, 1300, 15 * table["judge, one system"][0]]
    assert table["step"] == ["prompts", "prompt tokens", "output tokens"]


def test_several_files_count_together(check, tiny):
    one, _ = estimate(check, "--model_addr", tiny)
    code, lines = check("--inputs_addr", DATA, DATA, "--estimate", "--model_addr", tiny)
    assert code == 0
    assert read_table(lines)["RAG"] == [2 * value for value in one["RAG"]]


def test_of_a_model_behind_an_api_the_calls_are_counted(check, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    table, lines = estimate(check, "--model_addr", "m", "--openai")
    assert table["step"] == ["API calls", "prompt tokens", "output tokens"]
    assert table["RAG"][0] == 13
    assert lines[-1] == "  the planner runs here, not behind the API"


def test_a_benchmark_of_long_prompts_is_checked_for_its_own_length(check, no_gpu, tmp_path):
    """PersonaMem-32k's, where no --max_model_len is set: what baselines.py asks, and what a model is loaded for."""
    source = SAMPLE.with_name("mini_personamem")
    words = ["--dataset", "PersonaMem-32k", "--source_dir", str(source), "--output_dir", str(tmp_path)]
    assert download_datasets.main(words) == 0
    data = ["--inputs_addr", tmp_path / "PersonaMem_32k.json"]
    model = save_tiny_chat(tmp_path / "model", max_positions=100_000)
    _, lines = check(*data, "--model_addr", model, "--gpu_memory", 24, "--estimate", "--max_tokens", 8100)
    assert any(" requests of 56000 tokens at once" in line for line in lines)
    [tokens] = re.findall(r"no personalization +24 +([\d,]+)", "\n".join(lines))
    assert int(tokens.replace(",", "")) > 24 * 1000  # of 8192 there would be 92 left for a prompt


def test_without_the_model_its_tokens_are_estimated_and_that_is_said(check, no_gpu, tmp_path):
    code, lines = check("--inputs_addr", DATA, "--estimate", "--model_addr", "owner/none", "--cache_dir", tmp_path)
    assert code == 2  # for the model is not here
    assert any(line.startswith("  prompt tokens: estimate: 1 token per 3 bytes; ") for line in lines)
    assert read_table(lines)["RAG"][0] == 13


def test_data_that_lacks_what_a_step_reads(check, tiny, tmp_path, no_gpu):
    records = read_sample()
    del records[3]["narrative"]
    path = tmp_path / "test.json"
    path.write_text(json.dumps(records))
    assert check("--inputs_addr", path)[0] == 0
    code, lines = check("--inputs_addr", path, "--estimate", "--model_addr", tiny)
    assert code == 2
    assert lines[0].startswith(f"FAIL {path}: record 3 ")
    assert lines[-1] == "note estimate: left out, for a dataset is not whole"


# As a process


def test_as_a_process_it_tells_all_and_ends_with_2(tiny, tmp_path):
    flags = ["--inputs_addr", DATA, tmp_path / "none.json", "--model_addr", tiny, "--output_addr", tmp_path / "o.json"]
    done = run_process(*flags, "--gpu_memory", 80)
    assert (done.returncode, done.stderr) == (2, "")
    assert [line[:5] for line in done.stdout.splitlines()] == ["ok   ", "FAIL ", "ok   ", "note ", *["ok   "] * 3]
    assert list(tmp_path.iterdir()) == []
