"""The identity of a model behind an API: its name with the server's report, or else with the server's address."""

import hashlib
import json
import os
import threading
from argparse import Namespace
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from api_server import Reply, serve

import baselines
import evaluate_responses
from utils import make_table
from utils.base import manifest
from utils.base.errors import UserError
from utils.base.manifest import manifest_of, publish, read_manifest
from utils.generation.engines import identify_api_model
from utils.generation.store import ModelStore
from utils.models import model_folder
from utils.models.model_folder import ModelFolder

ROOT = Path(__file__).resolve().parents[2]
TEST = ROOT / "tests/data/mini_lampqa/test.json"
NUM_QUESTIONS = len(json.loads(TEST.read_text(encoding="utf-8")))


def answer(request):
    if "match_score" in request["messages"][0]["content"]:
        return Reply(json.dumps({"match_score": 1}))
    return Reply(json.dumps({"personalized_answer": "An answer."}))


def models(name="chat", root="org/chat", status=200):
    """Return the models that vLLM's server lists: `root` is the model it was started with, whatever its name."""
    return lambda: (status, {"object": "list", "data": [{"id": "other", "root": "x"}, {"id": name, "root": root}]})


@contextmanager
def server_with(list_models=None, reply=answer):
    with serve(reply) as server:
        if list_models is not None:
            server.list_models = list_models
        yield server


def words(server, output, *more, model="chat"):
    """Return the flags of baselines.py for a server."""
    flags = ["--openai", "--model_addr", model, "--base_url", server.url, "--inputs_addr", TEST]
    return [*map(str, flags), "--output_addr", str(output), *map(str, more)]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "answers.json"


def judge(server, output, scores, *more):
    flags = ["--openai", "--evaluator_llm", "chat", "--base_url", server.url, "--inputs_addr", TEST]
    flags += ["--response_addr", output, "--score_addr", scores]
    return evaluate_responses.main([*map(str, flags), *map(str, more)])


def own_store(path):
    return "--completions", f"{path}.completions"


# Another address


def test_a_run_resumes_at_another_port(output):
    with server_with(models()) as first, server_with(models()) as second:
        assert baselines.main(words(first, output, "--limit", 5)) == baselines.main(words(second, output)) == 0
        assert len(first.requests) == 5 and len(second.requests) == NUM_QUESTIONS - 5
    manifest = read_manifest(output)
    assert manifest["arguments"]["base_url"] == second.url
    assert manifest["settings"]["model"] == "chat (org/chat)"
    assert second.url not in json.dumps(manifest["settings"])


def test_finished_outputs_are_recognized_without_requests(output, tmp_path, capsys):
    scores = tmp_path / "scores.json"
    with server_with(models()) as server:
        assert baselines.main(words(server, output)) == judge(server, output, scores) == 0
        lists_before = server.lists_asked
        assert baselines.main(words(server, output)) == judge(server, output, scores) == 0
        assert baselines.main(words(server, tmp_path / "new.json", "--dry_run")) == 0
        assert judge(server, output, tmp_path / "new_scores.json", "--dry_run") == 0
        assert server.lists_asked == lists_before
    capsys.readouterr()
    assert baselines.main(words(server, output)) == judge(server, output, scores) == 0  # the server is gone
    assert capsys.readouterr().out.count("already finished; skipped") == 2


# Another model


def test_two_models_with_one_name_are_distinguished(output):
    with server_with(models(root="org/chat-7b")) as first:
        assert baselines.main(words(first, output, "--limit", 2)) == 0
    before = output.read_bytes()
    with server_with(models(root="org/chat-32b")) as second:
        with pytest.raises(UserError, match=r'model: "chat \(org/chat-7b\)", now "chat \(org/chat-32b\)"'):
            baselines.main(words(second, output))
        assert second.requests == [] and output.read_bytes() == before
        # In the same store, it has a folder of its own.
        assert baselines.main(words(second, output, "--overwrite")) == 0
        assert len(second.requests) == NUM_QUESTIONS


def test_a_server_that_loads_another_model_under_its_name_is_refused(output):
    with server_with(models(root="org/chat-7b")) as server:
        assert baselines.main(words(server, output, "--limit", 2)) == 0
        server.list_models = models(root="org/chat-32b")
        problem = r'has completions of "chat \(org/chat-7b\)", but the server now reports "chat \(org/chat-32b\)"'
        with pytest.raises(UserError, match=problem):
            baselines.main(words(server, output))
        assert len(server.requests) == 2
        assert baselines.main(words(server, output, *own_store(output), "--overwrite")) == 0
        assert len(server.requests) == 2 + NUM_QUESTIONS


def test_model_id_names_what_a_server_cannot(output, tmp_path, capsys):
    with server_with(models(root="/node1/chat")) as first, server_with(models(root="/node2/chat")) as second:
        assert baselines.main(words(first, output, "--limit", 2, "--model_id", "chat 7B at 4 bits")) == 0
        assert first.lists_asked == 1  # for the kind of server
        with pytest.raises(UserError, match='model: "chat 7B at 4 bits", now "chat 32B"'):
            baselines.main(words(second, output, "--model_id", "chat 32B"))
        assert baselines.main(words(second, output, "--model_id", "chat 7B at 4 bits")) == 0
        assert len(second.requests) == NUM_QUESTIONS - 2
        assert {request["model"] for request in second.requests} == {"chat"}

        other = tmp_path / "other.json"  # begun without, by a server that names a folder of its own
        assert baselines.main(words(first, other, "--limit", 2)) == 0
        requests_before = len(second.requests)
        assert baselines.main(words(second, other, "--model_id", "chat (/node1/chat)")) == 0
        assert len(second.requests) - requests_before == NUM_QUESTIONS - 2


def test_one_model_under_two_names_is_paid_once(output, tmp_path):
    """The identity alone decides: of two deployments with one --model_id, and of two names of one folder."""
    with server_with() as server:
        assert baselines.main(words(server, output, "--limit", 2, "--model_id", "7B", model="east")) == 0
        other, requests_before = tmp_path / "other.json", len(server.requests)
        assert baselines.main(words(server, other, "--limit", 3, "--model_id", "7B", model="west")) == 0
        assert len(server.requests) - requests_before == 1
    assert [path.name.startswith("east-") for path in (tmp_path / "completions").iterdir() if path.is_dir()] == [True]


def test_folders_that_two_names_began_at_once_are_both_read(tmp_path):
    first, second = (ModelStore(tmp_path, name, {"model": "7B"}) for name in ("best", "checkpoint-4"))
    assert len({first.folder, second.folder}) == 2  # chosen before either exists
    second.add("1" * 32, {"text": "one"})
    first.add("2" * 32, {"text": "two"})
    for name in ("best", "checkpoint-4", "last"):
        store = ModelStore(tmp_path, name, {"model": "7B"})
        assert [store.get(key * 32)["text"] for key in "12"] == ["one", "two"] and store.folder == first.folder


# Servers that don't say

UNSAID = {
    "404": (404, {"detail": "Not Found"}),
    "500": (500, {}),
    "a list of others": models(name="another")(),
    "only the name": models(root="chat")(),
    "no root": (200, {"data": [{"id": "chat"}]}),
    "something else": (200, {"data": {"chat": 1}}),
    "a text": (200, "chat"),
}


@pytest.mark.parametrize("name", [*UNSAID, "nothing in time"])
def test_without_server_information_the_address_is_part_of_the_identity(output, name, monkeypatch):
    held = threading.Event()

    def hang():
        held.wait(600)
        return UNSAID["404"]

    other = output.with_name("other.json")  # in the same store
    with server_with(hang if name == "nothing in time" else lambda: UNSAID[name]) as silent:
        if name == "nothing in time":
            monkeypatch.setattr("utils.generation.api_engine.ROOT_SECONDS", 0.2)
        assert baselines.main(words(silent, output, "--limit", 2)) == 0
        held.set()
        address = silent.url.removeprefix("http://")
        assert read_manifest(output)["settings"]["model"] == f"chat at {address}"
        assert baselines.main(words(silent, output, "--limit", 3)) == 0  # the same server again
        assert len(silent.requests) == 3
    with server_with(lambda: UNSAID["404"]) as another:
        with pytest.raises(UserError, match="other settings: model"):
            baselines.main(words(another, output))
        assert baselines.main(words(another, other, "--limit", 2)) == 0
        assert len(another.requests) == 2
        assert baselines.main(words(another, output, "--model_id", f"chat at {address}")) == 0
        assert len(another.requests) == 2 + NUM_QUESTIONS - 3
    # Without any server, the store's completions are found by the address.
    assert baselines.main(words(another, other.with_name("new.json"), "--limit", 2, "--cached_only")) == 0


@pytest.mark.parametrize("url", [None, "https://api.openai.com/v1"])
def test_a_model_of_openai_has_only_its_name(url):
    args = Namespace(openai=True, cached_only=True, model_id=None, base_url=url)
    assert identify_api_model(args, "gpt-4o") == "gpt-4o"


def test_server_fingerprints_are_recorded_but_not_a_setting(output):
    with server_with() as server:
        for limit, state in ((2, "fp_1"), (3, "fp_2"), (4, None)):
            server.system_fingerprint = state
            assert baselines.main(words(server, output, "--limit", limit)) == 0
        assert len(server.requests) == 4
    assert read_manifest(output)["system_fingerprints"] == ["fp_1", "fp_2"]
    assert [answers[0].get("system_fingerprint") for answers in json.loads(output.read_text()).values()] == [
        "fp_1", "fp_1", "fp_2", None,
    ]  # fmt: skip


# A folder's model


@pytest.fixture
def hashing(tmp_path, monkeypatch):
    """Record each hashed file, with every file counting as large; cache/ has the stored hashes."""
    hashed, digest = [], hashlib.file_digest

    def note(file, name):
        hashed.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", note)
    monkeypatch.setattr(manifest, "LARGE", 1)
    monkeypatch.setattr(model_folder, "GB", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return hashed


def save_old(folder, weights=b"weights", seconds=1000):
    """Save a model's files with this modification time, in seconds after 1970."""
    folder.mkdir(exist_ok=True)
    for name, content in (("config.json", b"{}"), ("model.safetensors", weights)):
        (folder / name).write_bytes(content)
        os.utime(folder / name, (seconds, seconds))
    return str(folder)


def test_a_models_files_are_hashed_only_once(hashing, tmp_path, capsys):
    model = save_old(tmp_path / "model")
    first = ModelFolder(model).fingerprint
    assert hashing == ["config.json", "model.safetensors"]
    assert f"hashing the weights of {model}" in capsys.readouterr().err
    assert ModelFolder(model).fingerprint == first and len(hashing) == 2 and capsys.readouterr().err == ""
    assert ModelFolder(save_old(tmp_path / "copy")).fingerprint == first and len(hashing) == 4
    other = save_old(tmp_path / "other", b"swights")  # of the same size and time, as archives may give all files
    os.replace(f"{other}/model.safetensors", f"{model}/model.safetensors")
    assert ModelFolder(model).fingerprint != first and hashing[4:] == ["model.safetensors"]
    assert ModelFolder(save_old(tmp_path / "model", b"WEIGHTS", 1001)).fingerprint != first and len(hashing) == 7


def test_a_large_outputs_hash_is_kept_too(hashing, tmp_path):
    publish(tmp_path / "a.json", [1], {"settings": {}})
    os.utime(tmp_path / "a.json", (1000, 1000))
    hashing.clear()
    assert manifest_of(tmp_path / "a.json") == manifest_of(tmp_path / "a.json") is not None and hashing == ["a.json"]
    with open(tmp_path / "a.json", "a") as file:
        file.write(" ")
    os.utime(tmp_path / "a.json", (1000, 1000))
    assert manifest_of(tmp_path / "a.json") is None


# Who answered


def test_another_model_than_was_asked_is_told(output, tmp_path, capsys):
    """As a router's fallback; the judges of two score files are then not the same."""
    fallback = lambda request: replace(answer(request), model="m-mini" if request["seed"] % 2 else "chat")  # noqa: E731
    with server_with(reply=fallback) as server:
        assert baselines.main(words(server, output)) == 0
        mini = sum(request["seed"] % 2 for request in server.requests)
        models = [answers[0].get("answered_by") for answers in json.loads(output.read_text()).values()]
        assert 0 < mini < NUM_QUESTIONS
        assert (models.count("m-mini"), models.count(None)) == (mini, NUM_QUESTIONS - mini)
        assert read_manifest(output)["answered_by"] == {"m-mini": mini, "the model asked": NUM_QUESTIONS - mini}
        difference = (
            f"replies name a different model from the requested one: {mini} from m-mini (of {NUM_QUESTIONS} replies)\n"
        )
        assert f"note: {difference}" in capsys.readouterr().err
        scores = []
        always = lambda request: replace(answer(request), model="m-mini")  # noqa: E731
        for reply in (answer, fallback, always):
            server.reply, scores = reply, [*scores, tmp_path / f"{len(scores)}.json"]
            judge = ["--evaluator_llm", "chat", "--response_addr", output, "--score_addr", scores[-1]]
            judge += ["--completions", tmp_path / f"store {len(scores)}", "--inputs_addr", TEST]
            assert evaluate_responses.main(["--openai", "--base_url", server.url, *map(str, judge)]) == 0
    both = r"\['m-mini', 'the model asked'\]"
    for a, b, difference in ((0, 1, rf"{both}, not \[\]"), (1, 2, rf"\['m-mini'\], not {both}")):
        with pytest.raises(UserError, match=rf"judged differently from .*\n  answered_by {difference}"):
            make_table.main(["--system", "A", str(scores[a]), "--system", "B", str(scores[b])])
    assert read_manifest(scores[2])["answered_by"].keys() == {"m-mini"}
