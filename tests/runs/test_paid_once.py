"""Completed requests are never sent again, without any flag; counted at the server."""

import json
import signal
from importlib import import_module
from pathlib import Path

import pytest
from api_server import Reply, serve
from crash_cases import make_case, make_data

from utils.base.errors import UserError
from utils.generation import completions

SCRIPTS = ["baselines", "evaluate_responses", "planpers gold", "planpers by API"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder


@pytest.fixture
def server():
    with serve() as server:
        yield server


class Command:
    """A script's command, to run in this process."""

    def __init__(self, name, data, folder, server):
        case_name = "planpers gold" if name == "planpers by API" else name
        self.case = make_case(case_name, data, folder, server.url)
        if name == "planpers by API":
            self.case.arguments.remove("--gold_plan")
            self.case.arguments += ["--planner_model", "some-planner", "--planner_base_url", server.url]
            self.case.arguments += ["--planner_api_key_addr", f"{data}/key.txt"]
        self.elsewhere, self._server = ["--completions", str(folder / "elsewhere")], server

    def run(self, *more, code=0):
        """Run it; return the number of requests."""
        before = len(self._server.requests)
        assert import_module(self.case.module).main([*self.case.arguments, *map(str, more)]) == code
        return len(self._server.requests) - before

    def run_elsewhere(self):
        """Run it with another store; return the number of requests and its outputs, which are deleted."""
        asked, contents = self.run(*self.elsewhere), self.contents()
        self.delete()
        return asked, contents

    def kill(self, *more, after):
        """Kill it with signal 9 after this many requests."""
        before, arguments = len(self._server.requests), self.case.arguments
        self.case.arguments = [*arguments, *map(str, more)]
        process, self.case.arguments = self.case.start_plain(), arguments
        self._server.wait_for(before + after)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL

    def contents(self):
        return [path.read_bytes() for path in self.case.outputs]

    def delete(self):
        """Delete the outputs, but not the store beside them."""
        for path in self.case.folder.glob("*.json*"):
            path.unlink()

    def to(self, name):
        """Give it another output in the same folder."""
        for old in {path for path in self.case.arguments if path.startswith(f"{self.case.folder}/")}:
            place = self.case.arguments.index(old)
            self.case.arguments[place] = str(Path(old).with_name(f"{name}_{Path(old).name}"))
        self.case.stages = [
            {path.with_name(f"{name}_{path.name}"): pieces for path, pieces in stage.items()}
            for stage in self.case.stages
        ]


def repeated(requests):
    """Return how many of these requests were made before."""
    texts = [json.dumps(request, sort_keys=True) for request in requests]
    return len(texts) - len(set(texts))


@pytest.fixture
def command(request, data, tmp_path, server):
    return Command(request.param, data, tmp_path, server)


every_script = pytest.mark.parametrize("command", SCRIPTS, indirect=True)
baselines_alone = pytest.mark.parametrize("command", ["baselines"], indirect=True)


@every_script
def test_a_deleted_output_and_another_one_cost_nothing(command):
    asked, contents = command.run_elsewhere()
    assert command.run() == asked > 0 and command.contents() == contents
    assert command.run() == 0  # finished
    command.delete()
    assert command.run() == 0 and command.contents() == contents
    command.to("again")
    assert command.run() == 0 and command.contents() == contents
    assert command.run("--overwrite") == 0 and command.contents() == contents


@every_script
def test_shards_and_then_the_whole(command):
    whole, contents = command.run_elsewhere()
    assert sum(command.run("--num_shards", 3, "--shard_index", index) for index in range(3)) == whole
    assert [path.name for path in command.case.folder.iterdir()] == ["completions"]
    assert command.run() == 0 and command.contents() == contents


@pytest.mark.parametrize("command", ["baselines", "evaluate_responses"], indirect=True)
def test_an_interrupted_overwrite_is_resumed(command, server):
    """The older output stays until the new one is whole."""
    command.run()
    contents, server.delay = command.contents(), 0.01
    del server.requests[:]
    for after in (5, 6):
        command.kill("--overwrite", "--seed", 1, after=after)
        assert command.contents() == contents
    assert command.run("--overwrite", "--seed", 1) > 0 and command.contents() != contents
    assert repeated(server.requests) <= 2 * 4


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("baselines", ["--max_model_len", 4000]),
        ("baselines", ["--max_concurrency", 2, "--request_timeout", 99]),
        ("planpers gold", ["--num_contexts", 1000]),  # no question has more than ten posts
        ("evaluate_responses", ["--max_model_len", 4000]),
    ],
    indirect=["command"],
)
def test_a_flag_that_changes_no_prompt_costs_nothing(command, flags):
    assert command.run() > 0
    command.to("other")
    assert command.run(*flags) == 0


@pytest.mark.parametrize("flags", [["--seed", 1], ["--temperature", 0.5], ["--max_tokens", 99], ["--top_k", 5]])
@baselines_alone
def test_other_sampling_is_another_request(command, flags):
    asked = command.run()
    command.to("other")
    assert command.run(*flags) >= asked - 4  # about as many, for another draw may be usable at once


@baselines_alone
def test_refusals_are_stored_and_failures_are_not(command, server):
    def reply(request):
        drawn = request["seed"] % 3
        if drawn == 0:
            return Reply("no", status=400, code="content_filter")
        return Reply("busy", status=500) if drawn == 1 else Reply(json.dumps({"personalized_answer": "Yes."}))

    server.reply = reply
    command.run("--max_retries", 0, code=1)
    refused = {key for key, [answer] in json.loads(command.contents()[0]).items() if answer["output"] is None}
    answered = len(json.loads(command.contents()[0]))
    server.reply = lambda request: Reply(json.dumps({"personalized_answer": "Now."}))
    command.to("again")
    total = command.case.size
    assert command.run("--max_retries", 0) == total - answered > 0
    answers = json.loads(command.contents()[0])
    assert {key for key, [answer] in answers.items() if answer["output"] is None} == refused != set()


def test_a_dry_run_makes_no_store(data, tmp_path, server):
    command = Command("baselines", data, tmp_path, server)
    assert command.run("--dry_run") == 0 and not list(command.case.folder.iterdir())


# --cached_only


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(completions, "WAIT_SECONDS", 0.1)


@every_script
def test_cached_only_requests_nothing(command, server, data, monkeypatch):
    """It assembles what shards requested, without an API key, and counts missing completions."""
    command.run("--num_shards", 2, "--shard_index", 0)
    with pytest.raises(
        UserError, match=r"lacks completions for \d+ of \d+ (plans|answers|verdicts)\n  run the missing"
    ):
        command.run("--cached_only")
    assert not command.case.outputs[-1].exists()
    command.run("--num_shards", 2, "--shard_index", 1)
    asked = len(server.requests)
    flags = command.case.arguments
    while "key.txt" in str(flags):
        place = next(i for i, word in enumerate(flags) if word.endswith("key.txt"))
        del flags[place - 1 : place + 1]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert command.run("--cached_only") == 0 == len(server.requests) - asked
    assert all(path.exists() for path in command.case.outputs)


def test_cached_only_waits_for_completions_that_another_node_writes(data, tmp_path, server, monkeypatch):
    command = Command("baselines", data, tmp_path, server)
    command.run()
    [path] = command.case.folder.glob("completions/*/*.jsonl")
    away, looks = path.with_suffix(".away"), []
    path.rename(away)

    async def sleep(seconds):
        looks.append(seconds)
        if seconds and away.exists():
            away.rename(path)

    monkeypatch.setattr(completions.asyncio, "sleep", sleep)
    command.to("again")
    assert command.run("--cached_only") == 0 and looks.count(0.1) == 1
