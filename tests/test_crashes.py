"""Killed, interrupted and damaged runs of the real scripts: the same command ends them, and pays for nothing twice."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from api_server import default_reply, serve

import baselines
import evaluate_responses
from utils.cli import UserError
from utils.generation import Policy

ROOT = Path(__file__).resolve().parent.parent
MAX_RETRIES = 3
POLICIES = {  # of the two scripts as they are run here: their requests' seeds tell which piece of work they belong to
    name: Policy(0.0, 1.0, 1, 0, MAX_RETRIES, "fallback", {}) for name in ("baselines.py", "evaluate_responses.py")
}


@dataclass
class ServerProcess:
    """The server as a process of its own, as a script meets it."""

    process: subprocess.Popen
    port: int

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def requests(self, wait_for=0):
        """All requests so far, once there are `wait_for` of them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/requests?wait={wait_for}", timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def server_process():
    command = [sys.executable, "tests/api_server.py", "--port", "0", "--delay", "0.004"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield ServerProcess(process, int(process.stdout.readline()))
        process.kill()


@pytest.fixture
def server():
    with serve() as server:
        yield server


@dataclass
class Work:
    """A script with the files it works on.

    Attributes:
        script: its file name.
        size: pieces of work, a line in the journal each.
        arguments: all of its flags but the output and the server.
    """

    script: str
    size: int
    arguments: list[str]

    def flags(self, output, url):
        name = "--output_addr" if self.script == "baselines.py" else "--score_addr"
        return [*self.arguments, name, str(output), "--base_url", url]

    def run(self, output, url, *more):
        """In this process."""
        main = baselines.main if self.script == "baselines.py" else evaluate_responses.main
        assert main([*self.flags(output, url), *more]) == 0

    def start(self, output, url, *more, **environment):
        """As a process of its own."""
        return subprocess.Popen(
            [sys.executable, self.script, *self.flags(output, url), *more], cwd=ROOT, text=True,
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
        )  # fmt: skip


def make_dataset(folder, size, num_aspects):
    aspects = [{"aspect": f"Aspect {i}", "evidence": "é", "reason": "r"} for i in range(num_aspects)]
    records = [
        {"id": f"q{i}", "question": f"Why {i} — 猫?", "narrative": "n", "category": "law", "rubric_aspects": aspects}
        for i in range(size)
    ]
    (folder / "data.json").write_text(json.dumps(records))
    (folder / "responses.json").write_text(json.dumps({record["id"]: [{"output": record["id"]}] for record in records}))


@pytest.fixture(params=["baselines.py", "evaluate_responses.py"])
def work(request, tmp_path):
    (tmp_path / "key.txt").write_text("sk-test")
    common = ["--openai", "--api_key_addr", f"{tmp_path}/key.txt", "--inputs_addr", f"{tmp_path}/data.json"]
    common += ["--max_concurrency", "4"]
    if request.param == "baselines.py":
        make_dataset(tmp_path, size=40, num_aspects=0)
        return Work(request.param, 40, [*common, "--model_addr", "some-model"])
    make_dataset(tmp_path, size=12, num_aspects=3)
    common += ["--response_addr", f"{tmp_path}/responses.json"]
    return Work(request.param, 36, [*common, "--evaluator_llm", "some-judge"])


def journal_path(output):
    return Path(f"{output}.journal.jsonl")


def finished_keys(output):
    """Keys of the journal's whole lines."""
    if not journal_path(output).exists():
        return set()
    lines = journal_path(output).read_bytes().splitlines(keepends=True)[1:]
    return {tuple(json.loads(line)["key"]) for line in lines if line.endswith(b"\n")}


def seeds_of(keys, script):
    return {POLICIES[script].sampling(key, attempt).seed for key in keys for attempt in range(MAX_RETRIES + 1)}


# Killed


def test_killed_at_random_moments(work, server_process, tmp_path):
    reference, output = tmp_path / "reference.json", tmp_path / "output.json"
    work.run(reference, server_process.url)
    dice = random.Random(work.script)
    kills = 0
    for _ in range(25):
        finished, before = finished_keys(output), len(server_process.requests())
        process = work.start(output, server_process.url)
        if kills < 6 and (left := work.size - len(finished)):
            kills += kill_after(process, server_process, before + dice.randint(1, min(6, left)), dice)
        _, errors = process.communicate(timeout=60)
        asked = {request["seed"] for request in server_process.requests()[before:]}
        assert not asked & seeds_of(finished, work.script), "asked again for what was finished"
        assert finished <= finished_keys(output)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        assert not output.exists() or output.read_bytes() == reference.read_bytes()
    assert process.returncode == 0 and kills >= 3
    assert output.read_bytes() == reference.read_bytes()
    assert json.loads(Path(f"{output}.manifest.json").read_text())["resumed"] == len(finished)


def kill_after(process, server_process, count, dice):
    """Kill the process a random moment after the server has got `count` requests; False where it ended before."""
    server_process.requests(wait_for=count)
    try:
        process.wait(timeout=dice.uniform(0, 0.01))
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        return True


# Kills its own process right before the n-th step that puts a file in place.
KILLER = """
import os, signal
steps = int(os.environ["KILL_BEFORE_STEP"])
def counted(function):
    def call(*arguments):
        global steps
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        steps -= 1
        return function(*arguments)
    return call
os.fsync, os.replace = counted(os.fsync), counted(os.replace)
"""


# The final file and its manifest: two fsyncs, then twice a renaming and the folder's fsync.
@pytest.mark.parametrize("step", range(6))
def test_killed_while_publishing(server, tmp_path, step):
    folder = tmp_path / "killer"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(KILLER)
    make_dataset(tmp_path, size=6, num_aspects=1)
    (tmp_path / "key.txt").write_text("sk-test")
    common = ["--openai", "--api_key_addr", f"{tmp_path}/key.txt", "--inputs_addr", f"{tmp_path}/data.json"]
    if step % 2:  # turn and turn about
        work = Work("baselines.py", 6, [*common, "--model_addr", "some-model"])
    else:
        responses = f"{tmp_path}/responses.json"
        work = Work("evaluate_responses.py", 6, [*common, "--evaluator_llm", "m", "--response_addr", responses])
    reference, output = tmp_path / "reference.json", tmp_path / "output.json"
    work.run(reference, server.url)
    work.run(output, server.url, "--limit", "2")
    part, whole = output.read_bytes(), reference.read_bytes()

    process = work.start(output, server.url, PYTHONPATH=str(folder), KILL_BEFORE_STEP=str(step))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    assert output.read_bytes() == (whole if step == 5 else part)  # never half of either
    asked = len(server.requests)
    work.run(output, server.url)
    assert output.read_bytes() == whole and len(server.requests) == asked
    assert not list(tmp_path.glob("*.tmp"))


# Interrupted


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_interrupted(work, server, tmp_path, which):
    reference, output = tmp_path / "reference.json", tmp_path / "output.json"
    work.run(reference, server.url)
    before = len(server.requests)
    hold = threading.Event()

    def reply(request):
        if len(server.requests) > before + 10:
            hold.wait(30)  # the run is stopped while the server takes its time
        return default_reply(request)

    server.reply = reply
    process = work.start(output, server.url)
    server.wait_for(before + 14)  # 10 were answered, and 4 at a time are under way
    process.send_signal(which)
    try:
        _, errors = process.communicate(timeout=10)
    finally:
        process.kill()
        hold.set()
    assert process.returncode == 130
    progress, last = errors.splitlines()
    assert progress.endswith("failed 0") and last == "interrupted; what is finished is kept, run the same command again"
    assert not output.exists()
    finished, asked = finished_keys(output), len(server.requests)
    assert len(finished) >= 5
    work.run(output, server.url)
    assert output.read_bytes() == reference.read_bytes()
    assert not {request["seed"] for request in server.requests[asked:]} & seeds_of(finished, work.script)


def test_two_runs_of_one_output(work, server, tmp_path):
    output = tmp_path / "output.json"
    hold = threading.Event()

    def reply(request):
        hold.wait(30)
        return default_reply(request)

    server.reply = reply
    first = work.start(output, server.url)
    server.wait_for(1)
    second = work.start(output, server.url)
    _, errors = second.communicate(timeout=30)
    hold.set()
    assert second.returncode == 2
    holder = f"process {first.pid} on {socket.gethostname()}"
    assert errors == f"error: {output}: {holder} is writing it; wait for it, or end it\n"
    _, errors = first.communicate(timeout=30)
    assert first.returncode == 0, errors
    assert len(finished_keys(output)) == work.size


# Damaged


@pytest.fixture
def finished(work, server, tmp_path):
    """An output whose final files are lost: (its path, its bytes, the journal's lines)."""
    output = tmp_path / "output.json"
    work.run(output, server.url)
    content = output.read_bytes()
    output.unlink()
    Path(f"{output}.manifest.json").unlink()
    return output, content, journal_path(output).read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("kept", [1, 0.5, -1], ids=["first byte", "half", "all but the newline"])
def test_torn_last_line_is_done_again(work, server, finished, kept):
    output, content, lines = finished
    whole = lines[-1]
    lines[-1] = whole[: kept if isinstance(kept, int) else int(kept * len(whole))]
    journal_path(output).write_bytes(b"".join(lines))
    asked = len(server.requests)
    work.run(output, server.url)
    assert output.read_bytes() == content
    torn = tuple(json.loads(whole)["key"])
    again = [request["seed"] for request in server.requests[asked:]]
    assert again and set(again) <= seeds_of([torn], work.script)
    assert journal_path(output).read_bytes() == b"".join(lines[:-1]) + whole


@pytest.mark.parametrize("header", [b"", b'{"fingerpr'])
def test_torn_first_line_begins_anew(work, server, finished, header):
    output, content, lines = finished
    journal_path(output).write_bytes(header)
    work.run(output, server.url)
    assert output.read_bytes() == content
    assert sorted(journal_path(output).read_bytes().splitlines(keepends=True)) == sorted(lines)


@pytest.mark.parametrize("damage", [b"\n", b'{"key": ["q1", 0]}\n', b'{"key": ["q1", 0], "v\n', b"\xff\xfe\n", b"7\n"])
def test_damaged_line_is_named(work, server, finished, damage):
    output, _, lines = finished
    lines[4] = damage
    journal_path(output).write_bytes(b"".join(lines))
    asked = len(server.requests)
    with pytest.raises(UserError, match=r"output\.json\.journal\.jsonl: line 5 is damaged\n"):
        work.run(output, server.url)
    assert journal_path(output).read_bytes() == b"".join(lines)
    assert len(server.requests) == asked and not output.exists()


def test_damaged_line_ends_the_process_with_code_2(work, server, finished):
    output, _, lines = finished
    lines[0] = b"garbage\n"
    journal_path(output).write_bytes(b"".join(lines))
    process = work.start(output, server.url)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors.startswith(f"error: {journal_path(output)}: line 1 is damaged\n") and errors.count("\n") <= 3
