import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_server import FINE, MODEL, Fault, serve
from huggingface_hub import is_offline_mode
from safetensors.numpy import load, save
from zygote import LAUNCHED

from utils.base.errors import UserError
from utils.models.hub import is_offline
from utils.models.model_folder import ModelFolder

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789" * 4


def save_model(folder, weights=b"weights", config="config.json"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / config).write_text('{"model_type": "bert"}')
    (folder / "model.safetensors").write_bytes(save({"weights": np.frombuffer(weights, np.uint8)}))
    return folder


def save_adapter(folder, base, width=4, module="model.layers.0.self_attn.q_proj", **settings):
    """Save a LoRA adapter of rank 2 for a module with `width` inputs and 3 outputs."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(base), **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = f"base_model.model.{module}"
    tensors = {f"{name}.lora_A.weight": np.zeros((2, width)), f"{name}.lora_B.weight": np.zeros((3, 2))}
    (folder / "adapter_model.safetensors").write_bytes(save(tensors))
    return folder


def save_base(folder, prefix="model."):
    save_model(folder)
    tensors = {f"{prefix}layers.0.self_attn.q_proj.weight": np.zeros((3, 4))}
    (folder / "model.safetensors").write_bytes(save(tensors))
    return folder


def save_cached(cache, name, commit=COMMIT):
    """Save a hub model in the layout of Hugging Face's cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    return save_model(repository / "snapshots" / commit)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("prefix", ["model.", "", "language_model.model."])
def test_an_adapter_on_its_base_model_is_fine(tmp_path, prefix):
    base = save_base(tmp_path / "base", prefix)
    ModelFolder(str(save_adapter(tmp_path / "adapter", base))).checked()
    assert ModelFolder(str(tmp_path / "adapter")).base == ModelFolder(str(base))
    assert ModelFolder(str(base)).adapter is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"width": 5}, "model.layers.0.self_attn.q_proj: this module has width 4 in the base model, but 5"),
        ({"module": "model.layers.1.self_attn.q_proj"}, "model.layers.1.self_attn.q_proj: the base model has no such"),
    ],
)
def test_an_adapter_for_another_architecture_is_refused(tmp_path, change, problem):
    base = save_base(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, **change)
    message = f"^{adapter}: adapter does not match the architecture of {base}\n  {problem}"
    with pytest.raises(UserError, match=message):
        ModelFolder(str(adapter)).checked()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "not a LoRA adapter, or without the name of its base"),
        ({"base_model_name_or_path": None}, "not a LoRA adapter, or without the name of its base"),
        ({"r": 0}, "not a LoRA adapter, or without the name of its base"),
        ({"r": True}, "damaged"),
        ({"base_model_name_or_path": 7}, "damaged"),
        ({"base_model_name_or_path": "a\0b"}, "damaged"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(tmp_path, settings, message):
    adapter = save_adapter(tmp_path / "adapter", save_base(tmp_path / "base"), **settings)
    with pytest.raises(UserError, match=rf"^{adapter}/adapter_config\.json: {message}"):
        ModelFolder(str(adapter)).checked()


NOT_SERVED = [
    {"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"bias": "all"}, {"lora_bias": True},
    {"init_lora_weights": "pissa_niter_4"}, {"layer_replication": [[0, 1]]}, {"use_qalora": True}, {"r": 513},
    {"rank_pattern": {"q_proj": 513}}, {"alora_invocation_tokens": [3]},
]  # fmt: skip
SERVED = [
    {"use_dora": False, "modules_to_save": None, "bias": "none", "init_lora_weights": True},
    {"use_rslora": True, "alpha_pattern": {"q_proj": 4}, "rank_pattern": {"k_proj": 512}},
    {"init_lora_weights": "gaussian", "layer_replication": None},
]  # fmt: skip


@pytest.mark.parametrize("settings", [*NOT_SERVED, {"trainable_token_indices": [7]}, *SERVED])
def test_an_adapter_that_vllm_does_not_serve_is_refused(tmp_path, settings):
    adapter = save_adapter(tmp_path / "adapter", save_base(tmp_path / "base"), **settings)
    if settings in SERVED:
        ModelFolder(str(adapter)).checked()
        return
    what = "rank 513" if "513" in str(settings) else next(iter(settings))
    with pytest.raises(UserError, match=rf"^{adapter}: vLLM does not serve an adapter with {what} .*\n.*merge it into"):
        ModelFolder(str(adapter)).checked()


@pytest.mark.parametrize(
    "name", ["self_attn.q_proj.lora_magnitude_vector", "self_attn.q_proj.lora_B.bias", "mlp.up_proj.weight"]
)
def test_an_adapter_with_other_weights_is_refused(tmp_path, name):
    adapter = save_adapter(tmp_path / "adapter", save_base(tmp_path / "base"))
    path, name = adapter / "adapter_model.safetensors", f"base_model.model.model.layers.0.{name}"
    path.write_bytes(save({**load(path.read_bytes()), name: np.zeros(3)}))
    with pytest.raises(UserError, match=f"does not serve an adapter with the weight {name}"):
        ModelFolder(str(adapter)).checked()


NO_OBJECT = [b"[1]", b'{"r": 1', b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize(
    "content",
    [*NO_OBJECT, b"{}", b'{"weight_map": ["model.safetensors"]}', b'{"weight_map": {"a": ["model.safetensors"]}}'],
)
def test_a_damaged_index_of_weights_is_named(tmp_path, content):
    index = save_model(tmp_path) / "model.safetensors.index.json"
    index.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{index}: damaged\n  pass the folder"):
        ModelFolder(str(tmp_path)).checked()


@pytest.mark.parametrize("other", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.name)])
@pytest.mark.parametrize("name", ["tokenizer.json", "model-2.safetensors"])
def test_a_non_file_in_a_models_folder_is_named(tmp_path, name, other):
    other(save_model(tmp_path) / name)
    with pytest.raises(UserError, match=rf"^{tmp_path / name}: a folder, a pipe or a broken link, not a file\n"):
        ModelFolder(str(tmp_path)).checked()


@pytest.mark.parametrize("lost", [1, 20, 100, 10**6])
def test_an_incomplete_checkpoint_is_refused(tmp_path, lost):
    adapter = save_adapter(tmp_path / "adapter", save_base(tmp_path / "base"))
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-lost])
    with pytest.raises(UserError, match=rf"^{weights}: damaged or incomplete"):
        ModelFolder(str(adapter)).checked()
    weights.unlink()
    with pytest.raises(UserError, match="has no weights"):
        ModelFolder(str(adapter)).checked()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LO')
    with pytest.raises(UserError, match=r"adapter_config\.json: damaged|has no weights"):
        ModelFolder(str(adapter)).checked()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "no such folder") for name in ("./nothing", "/nothing/here", "~/nothing", "a/b/c")),
        ("empty", r"has no config\.json"),
        ("config", "has no weights"),
        ("config/config.json", "not a folder"),
        ("shard", r"lacks model-00002-of-00002\.safetensors"),
        ("adapter", r"its base model cannot be used \(base_model_name_or_path .*\)\n  gone: no such folder; "),
        ("no spaces/allowed here", "neither a folder nor a valid name on the hub"),
        ("some/--model", "neither a folder nor a valid name on the hub"),
    ],
)
def test_an_incomplete_model_is_named(tmp_path, monkeypatch, offline, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.json").write_text("{}")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (save_model(tmp_path / "shard") / "model.safetensors.index.json").write_text(json.dumps(index))
    save_adapter(tmp_path / "adapter", "./gone")
    with pytest.raises(UserError, match=message):
        ModelFolder(name, str(tmp_path / "cache")).checked()


def test_offline_a_hub_model_must_be_cached(tmp_path, offline):
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE is set\n  on a node .* hf download some/model"):
        ModelFolder("some/model", str(tmp_path)).checked()
    snapshot = save_cached(tmp_path, "some/model")
    ModelFolder("some/model", str(tmp_path)).checked()
    assert ModelFolder("some/model", str(tmp_path)).fetch() == snapshot
    assert (
        ModelFolder("some/model", str(tmp_path)).commit == COMMIT
        and ModelFolder("other/model", str(tmp_path)).commit is None
    )
    assert ModelFolder("some/model", str(tmp_path)).fingerprint == f"some/model@{COMMIT}"
    assert ModelFolder("other/model", str(tmp_path)).fingerprint == "other/model@main"
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has no weights"):
        ModelFolder("some/model", str(tmp_path)).checked()


# A model's folder, fetched by the hub's own client from a hub on loopback

FIND = (
    "import sys; from utils.models.model_folder import ModelFolder; from utils.base import cli;"
    "name, cache = sys.argv[1:];"
    "cli.run_script(lambda: print(ModelFolder(name, cache).checked(safetensors_only=True).fetch()) or 0)"
)
WEIGHTS = save({"weights": np.zeros(3)})
FILES = {
    "config.json": b'{"model_type": "bert"}', "generation_config.json": b"{}", "tokenizer.json": b"[]",
    "vocab.txt": b"a", "chat_template.jinja": b"{{ x }}", "model.safetensors": WEIGHTS,
}  # fmt: skip
NOT_OURS = {"pytorch_model.bin": b"pickled", "consolidated.safetensors": WEIGHTS, "onnx/model.safetensors": WEIGHTS}


FETCHING = f"downloading the weights of {MODEL} from the hub (gigabytes take minutes)\n"


def find(url, cache, code=0, offline="0"):
    """Return where another process finds the model, or its messages except that it downloads weights."""
    lacks_weights = not any(cache.glob("models--*/snapshots/*/*.safetensors"))
    environment = {**os.environ, "HF_HOME": f"{cache}.home", "HF_ENDPOINT": url, "HF_HUB_OFFLINE": offline}
    done = subprocess.run(
        [sys.executable, "-c", FIND, MODEL, str(cache)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stderr
    assert not list(Path(f"{cache}.home").rglob("models--*"))
    assert done.stderr.startswith(FETCHING) == (lacks_weights and any(cache.glob("models--*/snapshots/*")))
    return done.stderr.removeprefix(FETCHING) if code else Path(done.stdout.strip())


def test_a_hub_model_is_fetched_into_the_cache_and_found_there_again(tmp_path):
    with serve(FILES | NOT_OURS) as hub:
        [commit] = hub.commits
        folder = find(hub.url, tmp_path / "cache")
        assert folder == tmp_path / "cache" / "models--owner--chat" / "snapshots" / commit
        assert sorted(hub.fetched) == sorted(FILES) == sorted(path.name for path in folder.iterdir())
        assert not hub.strangers
    assert find(hub.url, tmp_path / "cache") == folder  # the hub is gone
    assert find(hub.url, tmp_path / "cache", offline="1") == folder


def test_an_incomplete_download_is_completed_at_the_same_commit(tmp_path):
    with serve(FILES) as hub:
        hub.fault = lambda method, path: Fault(cut_after=0) if path.endswith(".safetensors") else FINE
        refused = find(hub.url, tmp_path / "cache", code=2)
        assert refused.startswith(f"error: {MODEL}: cannot be downloaded: the connection failed (")
        assert "\n  run the same command again to resume" in refused and refused.count("\n") == 2
        [commit] = hub.commits
        hub.commit({**FILES, "model.safetensors": b"trained again"})
        hub.fault = lambda method, path: FINE
        assert find(hub.url, tmp_path / "cache").name == commit


def test_an_expired_token_is_named_also_if_the_model_is_in_the_cache(tmp_path, monkeypatch):
    said = f"error: {MODEL}: the hub does not accept the token (from HF_TOKEN or `hf auth login`): it has expired or"
    with serve(FILES) as hub:
        hub.fault = lambda method, path: Fault(401, "RepoNotFound")
        missing = f"error: {MODEL}: no such folder, and no such model on the hub, or a private one"
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
        assert find(hub.url, tmp_path / "cache", code=2).startswith(missing)
        monkeypatch.setenv("HF_TOKEN", "hf_expired")
        assert find(hub.url, tmp_path / "cache", code=2).startswith(said)
        hub.fault = lambda method, path: Fault(cut_after=0) if path.endswith(".safetensors") else FINE
        find(hub.url, tmp_path / "cache", code=2)  # without its weights
        hub.fault = lambda method, path: Fault(401, "RepoNotFound")
        assert find(hub.url, tmp_path / "cache", code=2).startswith(said)


# An unreachable hub, and a slow one


SAMPLE = "tests/data/mini_lampqa/test.json"
COUNT = (
    "import atexit, runpy, socket, sys; calls = []; connect = socket.create_connection;"
    "socket.create_connection = lambda *args, **more: calls.append(args) or connect(*args, **more);"
    "atexit.register(lambda: print(f'{len(calls)} connections'));"
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
MODEL_FLAGS = {  # with --openai, and without
    "baselines.py": ("--model_addr", f"--inputs_addr {SAMPLE} --output_addr OUT", True),
    "planpers.py": ("--model_addr", f"--gold_plan --unranked --inputs_addr {SAMPLE} --output_addr OUT", True),
    "evaluate_responses.py": (
        "--evaluator_llm", f"--inputs_addr {SAMPLE} --response_addr ANSWERS --score_addr OUT", True,
    ),
    "retrieval/rank_dataset.py": ("--model_name", f"--input_dataset_addr {SAMPLE} --output_dataset_addr OUT", False),
    "train_planner.py": ("--model_addr", f"--unranked --inputs_addr {SAMPLE} --output_dir OUT", False),
}  # fmt: skip
OUR_FLAG = "  for an API model add --openai\n"


def run_counting(tmp_path, script, model, endpoint):
    """Return a script's message about a model, and its number of network requests."""
    flag, rest, _ = MODEL_FLAGS[script]
    ids = [record["id"] for record in json.loads(Path(ROOT, SAMPLE).read_text(encoding="utf-8"))]
    (tmp_path / "ANSWERS").write_text(json.dumps({question_id: [{"output": "Yes."}] for question_id in ids}))
    (tmp_path / "PLANS").write_text(json.dumps({question_id: [{"aspects": ["Cost"]}] for question_id in ids}))
    words = [str(tmp_path / word) if word.isupper() else word for word in rest.split()]
    environment = {**os.environ, "HF_HOME": f"{tmp_path}/home", "HF_ENDPOINT": endpoint, **LAUNCHED}
    done = subprocess.run(
        [sys.executable, "-c", COUNT, script, flag, model, *words],
        cwd=ROOT, env={**environment, "HF_HUB_OFFLINE": "0"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    errors = done.stderr.splitlines(keepends=True)
    first = next(number for number, line in enumerate(errors) if line.startswith("error: "))
    return "".join(errors[first:]), int(done.stdout.split()[-2])


@pytest.fixture
def refusing():
    """Return an address that refuses connections: a reserved port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("script", MODEL_FLAGS)
def test_an_unreachable_hub_is_tried_once(tmp_path, script, refusing):
    stderr, connections = run_counting(tmp_path, script, "some/model", refusing)
    hint = OUR_FLAG if MODEL_FLAGS[script][2] else ""
    what = "no such folder, missing or incomplete in the cache, and the hub cannot be reached or HF_HUB_OFFLINE is set"
    remedy = f"on a node with internet, run: hf download some/model --repo-type model --cache-dir {tmp_path}/home/hub"
    assert stderr == f"error: some/model: {what}\n  {remedy}\n{hint}"
    assert connections == 1


@pytest.mark.parametrize("name", ["gpt-4o-mini", "o3", "chatgpt-4o-latest", "claude-opus-4", "gemini-2.5-pro"])
def test_an_api_models_name_is_not_looked_up_on_the_hub(tmp_path, name, refusing):
    stderr, connections = run_counting(tmp_path, "baselines.py", name, refusing)
    assert stderr == f"error: {name}: neither a local folder nor a hub name (owner/model)\n{OUR_FLAG}"
    assert connections == 0


@pytest.mark.parametrize("trouble", ["an error", "silence"])
def test_a_failing_hub_is_not_unreachable(monkeypatch, trouble):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("utils.models.hub.ANSWER_SECONDS", 0.2)
    if trouble == "silence":
        with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and says nothing
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
            assert not is_offline()
        return
    with serve(FILES) as hub:
        hub.fault = lambda method, path: Fault(status=503)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        assert not is_offline()


def test_a_cached_model_is_used_at_once_if_the_hub_is_unreachable(tmp_path, refusing, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", refusing)
    calls, connect = [], socket.create_connection
    monkeypatch.setattr("socket.create_connection", lambda *args, **more: calls.append(args) or connect(*args, **more))
    snapshot = save_cached(tmp_path, "some/model")
    assert ModelFolder("some/model", str(tmp_path)).fetch() == snapshot  # without a list of the hub's files
    assert len(calls) == 1
    assert ModelFolder("some/model", str(tmp_path)).source["revision"] == COMMIT
    assert len(calls) == 1 and is_offline_mode()  # not asked again in this process


def test_a_hub_with_pickled_weights_only_is_refused(tmp_path):
    files = {name: content for name, content in FILES.items() if name != "model.safetensors"}
    with serve(files | {"pytorch_model.bin": b"pickled"}) as hub:
        stderr = find(hub.url, tmp_path / "cache", code=2)
        assert ": has no weights (*.safetensors or *.bin)\n  the hub has no such file, or cannot be reached; " in stderr
        assert "pytorch_model.bin" not in hub.fetched


def test_the_fingerprint_follows_the_content_not_the_path(tmp_path):
    first = ModelFolder(str(save_model(tmp_path / "first"))).fingerprint
    assert ModelFolder(str(tmp_path / "first")).fetch() == tmp_path / "first"
    assert ModelFolder(str(tmp_path / "first")).commit is None
    # It is part of the key of completions that have been paid for, so it must never change.
    assert first == "sha256:f61b3766ba22f8f6207eb97bc4add6a6d54477b49c474f2e29047e9ab2758d3d"
    adapter = ModelFolder(str(save_adapter(tmp_path / "adapter", tmp_path / "first")))
    assert adapter.identity == f"{adapter.fingerprint} on {first}"
    assert ModelFolder(str(save_model(tmp_path / "second"))).fingerprint == first
    (tmp_path / "second" / "README.md").write_text("notes")
    assert ModelFolder(str(tmp_path / "second")).fingerprint == first
    (tmp_path / "second" / "tokenizer_config.json").write_text("{}")
    assert ModelFolder(str(tmp_path / "second")).fingerprint != first
    assert ModelFolder(str(save_model(tmp_path / "third", weights=b"trained"))).fingerprint != first
