"""Keys, tokens and passwords are shown nowhere, and code that comes with a model is never run.

The scripts run as real processes (most as forks of one with the needed imports) with a server that repeats its requests
and with the libraries' debug messages; then all bytes they wrote to files and streams are searched.
"""

import base64
import json
import os
import pickle
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from api_server import running
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-distinctive-0123456789abcdef"
TOKEN = "hf_distinctiveTOKEN0123456789abcd"
PASSWORD = "distinctive-Pass-987654"
USER = "someone"
SECRETS = {
    "the key": KEY,
    "the token": TOKEN,
    "the password": PASSWORD,
    "user and password, as they are sent": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
}


ASPECT = {"aspect": "Price", "evidence": "e", "reason": "r"}
RECORD = {"id": "q1", "question": "How to play chess?", "narrative": "I play.", "category": "boardgames"}
RECORDS = [{**RECORD, "rubric_aspects": [ASPECT], "profile": [{"id": "p1", "text": "the history of rome"}]}]


class Handler(BaseHTTPRequestHandler):
    """Answers with the server's `reply(path, sent)`; `sent` has all headers of the request as one text."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sent = "; ".join(f"{name}: {value}" for name, value in self.headers.items())
        self.server.sent.append(f"{self.path} {sent}")
        status, headers, body = self.server.reply(self.path, sent)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body.encode())), "retry-after-ms": "1", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_GET = do_POST = do_HEAD = answer

    def log_message(self, *_):
        """Silence."""


@contextmanager
def serve(reply):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.reply, server.sent = reply, []
    with running(server):
        yield server


def as_json(status, value):
    return status, {"Content-Type": "application/json"}, json.dumps(value)


def completion(path, sent):
    message = {"role": "assistant", "content": '{"personalized_answer": "Yes.", "match_score": 1}'}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return as_json(200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})


def refusal(status, code=None):
    def reply(path, sent):
        return as_json(status, {"error": {"message": f"You sent {sent}", "type": "t", "param": sent, "code": code}})

    return reply


REPLIES = {
    "a completion": completion,
    "a refused key": refusal(401),
    "a refused request": refusal(400),
    "a refused prompt": refusal(400, "content_filter"),
    "no such model": refusal(404),
    "a server in trouble": refusal(503),
    "an error of text": lambda path, sent: (403, {"Content-Type": "text/plain"}, f"You sent {sent}"),
    "an error with status 200": lambda path, sent: as_json(200, {"error": {"message": sent}}),
    "a path that is repeated": lambda path, sent: as_json(404, {"error": {"message": f"no such path: {path}"}}),
    "broken JSON": lambda path, sent: (200, {"Content-Type": "application/json"}, f'{{"{sent}'),
    "a redirect": lambda path, sent: (307, {"Location": f"http://{KEY}:{KEY}@127.0.0.1:9/v1"}, sent),
}


COMMANDS = {
    "baselines.py": "--model_addr m --inputs_addr data.json --output_addr out/answers.json",
    "planpers.py": "--model_addr m --gold_plan --unranked --inputs_addr data.json --output_addr out/plan.json",
    "evaluate_responses.py": "--evaluator_llm m --inputs_addr data.json --response_addr responses.json "
    "--score_addr out/scores.json",
}
COMMANDS = {script: words.split() for script, words in COMMANDS.items()}


@pytest.fixture
def folder(tmp_path):
    """Input of every kind, and a separate home, so that no keys or caches of this machine are used."""
    (tmp_path / "data.json").write_text(json.dumps(RECORDS))
    (tmp_path / "responses.json").write_text('{"q1": [{"output": "Yes."}]}')
    (tmp_path / "home").mkdir()
    return tmp_path


@pytest.fixture
def run(warm, folder):
    """Run a script as a fork of a process with its imports; return its exit code and output."""

    def call(script, arguments, stdin="", **environment):
        done = warm.run(script, arguments, stdin, live_in=(str(folder), environment_of(folder) | environment))
        return done.returncode, done.printed + done.errors

    return call


def run_plain(folder, script, arguments, stdin="", **environment):
    """Run a script like a user, so that messages of its imports are seen too."""
    done = subprocess.run(
        [sys.executable, ROOT / script, *map(str, arguments)], cwd=folder, env=environment_of(folder) | environment,
        input=stdin, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout


def environment_of(folder):
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return inherited | {"HOME": str(folder / "home"), "HF_HOME": str(folder / "home/hf"), "OMP_NUM_THREADS": "1"}


def leaks(folder, shown, but=()):
    """Return the secrets that were shown or written to a file, with their places."""
    places = {"what was shown": shown.encode()}
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in but:
            places[str(path.relative_to(folder))] = path.read_bytes() + path.name.encode()
    return [
        f"{name} in {place}" for place, content in places.items() for name, secret in SECRETS.items()
        if secret.encode() in content
    ]  # fmt: skip


# The API's key


API_CASES = [
    *(("baselines.py", name) for name in REPLIES),
    ("planpers.py", "a completion"),
    ("evaluate_responses.py", "a completion"),
]


@pytest.mark.parametrize(("script", "name"), API_CASES)
def test_the_key_is_shown_nowhere(folder, run, script, name):
    (folder / "key.txt").write_text(KEY)
    with serve(REPLIES[name]) as server:
        arguments = ["--openai", "--api_key_addr", "key.txt", "--base_url", f"http://127.0.0.1:{server.server_port}/v1"]
        arguments += [*COMMANDS[script], "--log_level", "debug", "--max_retries", "0"]
        one = partial(run_plain, folder) if name == "a completion" else run
        _, shown = one(script, arguments, HF_TOKEN=TOKEN)
        assert KEY in server.sent[0]
    assert "Sending HTTP Request" in shown  # the client library does log
    assert leaks(folder, shown, but=["key.txt"]) == []
    if name in ("a completion", "a refused prompt"):
        [stored] = folder.glob("out/completions/*/*.jsonl")  # which `leaks` has read too
        assert list(folder.glob("out/*.manifest.json"))
        assert ("Yes." if name == "a completion" else "You sent") in stored.read_text()


@pytest.mark.parametrize(("name", "given"), [("a refused key", "environment"), ("an error of text", "file")])
def test_the_hubs_token_is_shown_nowhere(folder, name, given):
    (folder / "token").write_text(TOKEN)
    token = {"HF_TOKEN": TOKEN} if given == "environment" else {"HF_TOKEN_PATH": str(folder / "token")}
    arguments = ["--model_addr", "owner/model", *COMMANDS["baselines.py"][2:], "--log_level", "debug"]
    with serve(REPLIES[name]) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        more = {"HF_ENDPOINT": endpoint, "HF_HUB_VERBOSITY": "debug", **token}  # read when the client is imported
        _, shown = run_plain(folder, "baselines.py", arguments, **more)
        assert any(TOKEN in sent for sent in server.sent)
    assert "error: owner/model: " in shown
    assert leaks(folder, shown, but=["token"]) == []


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny encoder and a tiny chat model."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_encoder(folder / "encoder")
    save_tiny_chat(folder / "chat")
    return folder


RANK = ["--input_dataset_addr", "data.json", "--output_dataset_addr", "out/ranked.json", "--device", "cpu"]
TRAIN = ["--inputs_addr", "data.json", "--validation_addr", "data.json", "--output_dir", "out", "--unranked"]
TRAIN += ["--max_steps", "1", "--save_steps", "1", "--gradient_accumulation_steps", "1", "--eval_generate", "0"]
TRAIN += ["--max_seq_length", "512"]


@pytest.mark.parametrize("script", ["retrieval/rank_dataset.py", "train_planner.py"])
def test_scripts_with_a_local_model_show_no_environment_secrets(folder, run, models, script):
    arguments = {
        "retrieval/rank_dataset.py": [*RANK, "--model_name", models / "encoder"],
        "train_planner.py": [*TRAIN, "--model_addr", models / "chat"],
    }[script]
    secrets = {"HF_TOKEN": TOKEN, "OPENAI_API_KEY": KEY, "HTTPS_PROXY": f"http://{USER}:{PASSWORD}@127.0.0.1:9"}
    code, shown = run(script, [*arguments, "--log_level", "debug"], "\n", HF_HUB_OFFLINE="1", **secrets)
    assert code == 0, shown
    assert leaks(folder, shown) == []


# Code that comes with a model


class Payload:
    """A pickle that creates a file when loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def with_code(source, folder, known):
    """Return a copy of a model that refers to its own code everywhere; `own.py` leaves a marker when run."""
    shutil.copytree(source, folder)
    marker = folder.parent / "marker"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": dict.fromkeys(names, "own.Own")}
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    if not known:
        config["model_type"] = settings["tokenizer_class"] = "own"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return marker


def with_pickle(source, folder, name="pytorch_model.bin"):
    """Return a copy of a model whose only weights are a pickle that leaves a marker when loaded."""
    shutil.copytree(source, folder)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    marker = folder.parent / "marker"
    (folder / name).write_bytes(pickle.dumps(Payload(marker)))
    return marker


def errors(shown):
    return [line for line in shown.splitlines() if line.startswith("error: ")]


LOADERS = {
    "retrieval/rank_dataset.py": ("encoder", [*RANK, "--model_name", "model"]),
    "train_planner.py": ("chat", [*TRAIN, "--model_addr", "./model"]),
    "baselines.py": ("chat", ["--model_addr", "./model", *COMMANDS["baselines.py"][2:], "--dry_run"]),
}


@pytest.mark.parametrize("script", LOADERS)
@pytest.mark.parametrize("known", [True, False])
def test_code_in_a_models_folder_is_never_run(folder, run, models, script, known):
    name, arguments = LOADERS[script]
    marker = with_code(models / name, folder / "model", known)
    code, shown = run(script, arguments, "y\n" * 9, HF_HUB_OFFLINE="1")  # every question is answered with yes
    assert not marker.exists(), shown
    assert "Traceback" not in shown and "wish to run" not in shown
    assert (code, len(errors(shown))) == ((0, 0) if known else (2, 1)), shown


@pytest.mark.parametrize("script", [*LOADERS, "planpers.py"])
def test_pickled_weights_and_adapters_are_refused_and_never_run(folder, run, models, script):
    if script == "planpers.py":
        (folder / "source").mkdir()
        config = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(models / "chat")}
        (folder / "source/adapter_config.json").write_text(json.dumps(config))
        marker = with_pickle(folder / "source", folder / "model", "adapter_model.bin")
        arguments = ["--inputs_addr", "data.json", "--output_addr", "out/a.json", "--model_addr", models / "chat"]
        arguments += ["--unranked", "--planner_model", "./model"]
    else:
        name, arguments = LOADERS[script]
        marker = with_pickle(models / name, folder / "model")
    code, shown = run(script, arguments, "y\n", HF_HUB_OFFLINE="1")
    assert not marker.exists(), shown
    assert code == 2 and "Traceback" not in shown, shown
    [error] = errors(shown)
    assert "model: " in error and "safetensors" in error


PLACES = [
    ("a completion", "info", "flag"),
    ("a refused prompt", "warning", "environment"),
    ("a refused key", "debug", "proxy"),
    ("a completion", "debug", "query"),
    ("a path that is repeated", "debug", "query"),
]


@pytest.mark.parametrize(("name", "level", "place"), PLACES)
def test_a_password_in_an_address_is_shown_nowhere(folder, run, name, level, place):
    with serve(REPLIES[name]) as server:
        url = f"http://{USER}:{PASSWORD}@127.0.0.1:{server.server_port}"
        flags, environment = {
            "flag": (["--base_url", f"{url}/v1"], {}),
            "environment": ([], {"OPENAI_BASE_URL": f"{url}/v1"}),
            "proxy": (["--base_url", "http://api.invalid/v1"], {"HTTP_PROXY": url, "http_proxy": url}),
            "query": (["--base_url", f"{url}/v1?api-version=1&Subscription-Key={PASSWORD}"], {}),
        }[place]
        arguments = ["--openai", *COMMANDS["baselines.py"], *flags, "--log_level", level, "--max_retries", "0"]
        _, shown = run("baselines.py", arguments, OPENAI_API_KEY=KEY, **environment)
        assert place != "proxy" or SECRETS["user and password, as they are sent"] in server.sent[0]
        assert place != "query" or f"/v1/chat/completions?api-version=1&Subscription-Key={PASSWORD}" in server.sent[-1]
        assert server.sent
    assert leaks(folder, shown) == []
