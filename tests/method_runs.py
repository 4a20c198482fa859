"""Fixtures that run a user's own method with an API on loopback."""

import hashlib
import json
import random
from pathlib import Path

import pytest
from api_server import Reply, serve

import baselines
from utils import download_datasets
from utils.generation.requests import Completion, UnavailableError

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
IDS = [record["id"] for record in json.loads(SAMPLE.read_text())]
TWO_CALLS = '''
SUMMARY = """Summarize in one sentence what this user cares about.

{profile}"""


async def answer(record, ask):
    summary = await ask(SUMMARY, items=record.best(20), max_tokens=64)
    return await ask("rag", items=[summary] if summary else record.best(ask.num_contexts))
'''

SEARCHES = """
QUERY = "Write a search query ({number}) for the posts of this user.\\n\\n{question}"
ANSWER = "{question}\\n\\nPosts:\\n\\n{profile}"


async def answer(record, ask):
    seen = []
    for number in ("one", "two"):
        query = await ask(QUERY, number=number)
        posts = await ask.search(query, k=2, exclude=seen)
        seen += posts.ids
    return await ask(ANSWER, items=posts)
"""
WORDS = ["cat", "chess", "bread", "music", "guitar", "rome", "town", "mat", "history", "play"]


def draw(request):
    """Return digits that are the same in every process, unlike Python's hash of a text."""
    return hashlib.sha256(json.dumps([request["messages"], request["seed"]]).encode()).hexdigest()[:8]


def reply(request):
    """Return a sentence or an answer, drawn by prompt and seed."""
    drawn = draw(request)
    if "Summarize" in request["messages"][-1]["content"]:
        return Reply(f"The user {drawn} cares about cost.")
    return Reply(json.dumps({"personalized_answer": f"Answer {drawn}."}))


def search_reply(request):
    """Return a query of words that depend on the prompt, or a long answer."""
    prompt = request["messages"][-1]["content"]
    if prompt.startswith("Write a search query"):
        return Reply(" ".join(random.Random(prompt).sample(WORDS, 3)))
    return Reply(f"An answer to {prompt}")


@pytest.fixture
def server():
    with serve(reply) as server:
        yield server


class Runs:
    """Runs baselines.py with one method file, which a test may rewrite."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        (folder / "key.txt").write_text("sk-test")
        self.output, self.name = folder / "out" / "answers.json", f"{folder}/mine.py"
        self.write(TWO_CALLS)

    def write(self, text):
        (self.folder / "mine.py").write_text(text)

    def flags(self, *more, output=None, dataset=SAMPLE):
        flags = ["--openai", "--model_addr", "some-model", "--base_url", self.server.url, "--max_concurrency", "4"]
        flags += ["--api_key_addr", f"{self.folder}/key.txt", "--inputs_addr", str(dataset), "--unranked"]
        flags += ["--output_addr", str(output or self.output), "--method", self.name]
        return [*flags, *map(str, more)]

    def run(self, *more, code=0, **addresses):
        """Run the method in this process, and return the number of its requests."""
        before = len(self.server.requests)
        assert baselines.main(self.flags(*more, **addresses)) == code
        return len(self.server.requests) - before

    @property
    def answers(self):
        return json.loads(self.output.read_text())


@pytest.fixture
def runs(tmp_path, server):
    return Runs(tmp_path, server)


@pytest.fixture
def searching(runs):
    runs.write(SEARCHES)
    runs.server.reply = search_reply
    return runs


@pytest.fixture
def personamem(tmp_path):
    """Return the path of a small dataset of conversations."""
    source = ["--source_dir", str(ROOT / "tests/data/mini_personamem"), "--output_dir", str(tmp_path)]
    assert download_datasets.main(["--dataset", "PersonaMem-32k", *source]) == 0
    return tmp_path / "PersonaMem_32k.json"


class Scripted:
    """An engine that answers immediately and counts requests."""

    concurrency, device = 4, "scripted"

    def __init__(self, role, log):
        self.role, self.log = role, log

    async def complete(self, model, prompt, sampling):
        assert not self.log or self.log[-1] != f"{self.role} closed"
        self.log.append(model)
        return Completion(json.dumps({"personalized_answer": f"by {self.role} {sampling.seed}"}), "stop", 9, 0, 9)

    async def close(self):
        self.log.append(f"{self.role} closed")


class Failing(Scripted):
    """Fails if `fails` returns true for the log of requests."""

    def __init__(self, role, log, fails, error):
        super().__init__(role, log)
        self.fails, self.error = fails, error

    async def complete(self, model, prompt, sampling):
        if self.fails(self.log):
            raise self.error
        return await super().complete(model, prompt, sampling)


def failing_generator(monkeypatch, fails):
    """Make every run use scripted engines, one at a time; the generator's fails when `fails` returns true."""
    log, error = [], UnavailableError("the server failed")

    def open_engines(roles, asked):
        return {asked[0]: Failing(asked[0], log, fails if asked[0] == "generator" else lambda log: False, error)}

    monkeypatch.setattr("utils.runs.runner.open_engines", open_engines)
