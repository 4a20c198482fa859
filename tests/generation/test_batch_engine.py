"""--openai_batch against a server on loopback that speaks OpenAI's batch interface: runs as users start them."""

import gc
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from api_server import Reply, default_reply
from batch_server import EXPIRED, serve_batches

import baselines
import evaluate_responses
import planpers
from utils.cli import UserError
from utils.generation import batch_engine
from utils.generation.batch_engine import Item, _parts
from utils.generation.refusals import MalformedError

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(batch_engine, "POLLS", (0.01, 0.02))
    monkeypatch.setattr(batch_engine, "QUIET_SECONDS", 0.1)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


@pytest.fixture
def server():
    with serve_batches() as server:
        yield server


def make_questions(path, number):
    records = [
        {"id": f"q{i}", "question": f"What of {i}?", "category": "law", "profile": [], "narrative": "Mine.",
         "rubric_aspects": [{"aspect": "A", "evidence": "e", "reason": "r"}]}
        for i in range(number)
    ]  # fmt: skip
    path.write_text(json.dumps(records))
    return path


def command(server, inputs, output, *more):
    flags = [
        "--model_addr",
        "m",
        "--openai",
        "--base_url",
        server.url,
        "--inputs_addr",
        inputs,
        "--output_addr",
        output,
    ]
    return [*map(str, flags), *map(str, more)]


def drawn(body):
    return int(hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:8], 16)


def test_two_thousand_questions_with_a_tenth_of_failing_items(server, tmp_path):
    """They are answered as without batches, each once."""
    inputs = make_questions(tmp_path / "in.json", 2000)
    assert baselines.main(command(server, inputs, tmp_path / "live/out.json", "--max_concurrency", "64")) == 0
    live, _ = dict(server.paid), server.paid.clear()
    server.requests.clear()

    def outcome(number, body):
        if drawn(body) % 10 == 0 and (number == 0 or drawn(body) % 100 == 0):  # a hundredth fails in every batch
            return Reply("Out of order.", status=500)
        return default_reply(body)

    server.outcome = outcome
    assert baselines.main(command(server, inputs, tmp_path / "batch.json", "--openai_batch")) == 0
    assert (tmp_path / "batch.json").read_bytes() == (tmp_path / "live/out.json").read_bytes()
    sizes = [batch["request_counts"]["total"] for batch in server.batches]
    assert len(sizes) == 3 and sizes[0] == 2000 and sizes[2] < sizes[1] < 300
    assert server.paid == live and set(live.values()) == {1}
    # Live were the second tries of texts that could not be used, and what three batches had not answered.
    assert 0 < len(server.requests) < 500


def test_what_expired_is_asked_for_again(server, tmp_path):
    inputs = make_questions(tmp_path / "in.json", 40)
    server.outcome = lambda number, body: EXPIRED if number == 0 and drawn(body) % 2 else default_reply(body)
    assert baselines.main(command(server, inputs, tmp_path / "out.json", "--openai_batch")) == 0
    assert [batch["status"] for batch in server.batches] == ["expired", "completed"]
    assert server.batches[1]["request_counts"]["total"] == server.batches[0]["request_counts"]["failed"] > 0
    assert len(json.loads((tmp_path / "out.json").read_text())) == 40 and set(server.paid.values()) == {1}


def test_where_all_expired_the_same_file_is_a_new_batch(server, tmp_path):
    inputs = make_questions(tmp_path / "in.json", 3)
    server.outcome = lambda number, body: default_reply(body) if number else EXPIRED
    assert baselines.main(command(server, inputs, tmp_path / "out.json", "--openai_batch")) == 0
    assert [batch["status"] for batch in server.batches] == ["expired", "completed"]


def test_of_two_systems_that_answer_alike_each_has_its_verdict(server, tmp_path):
    """Their judge is asked the same, by the same seed."""
    inputs = make_questions(tmp_path / "in.json", 4)
    for name in "ab":
        answers = {f"q{i}": [{"output": f"{name if i else 'same'} {i}"}] for i in range(4)}
        (tmp_path / f"{name}.json").write_text(json.dumps(answers))
    flags = ["--evaluator_llm", "m", "--openai", "--base_url", server.url, "--inputs_addr", inputs, "--openai_batch"]
    flags += ["--response_addr", tmp_path / "a.json", tmp_path / "b.json"]
    flags += ["--score_addr", tmp_path / "a_scores.json", tmp_path / "b_scores.json"]
    assert evaluate_responses.main(list(map(str, flags))) == 0
    assert [batch["request_counts"]["total"] for batch in server.batches] == [7]
    a, b = (json.loads((tmp_path / f"{name}_scores.json").read_text())["per_question_scores"] for name in "ab")
    assert a[0] == b[0] and len(a) == len(b) == 4


def test_with_a_store_a_new_systems_verdicts_alone_are_in_a_batch(server, tmp_path):
    """Also where the API has no trace of the earlier batch."""
    inputs, store = make_questions(tmp_path / "in.json", 6), tmp_path / "completions"

    def judge(*names):
        flags = ["--evaluator_llm", "m", "--openai", "--base_url", server.url, "--inputs_addr", inputs]
        flags += ["--openai_batch", "--completions", store]
        flags += ["--response_addr", *(tmp_path / f"{name}.json" for name in names)]
        flags += ["--score_addr", *(tmp_path / f"{name}_scores.json" for name in names)]
        assert evaluate_responses.main(list(map(str, flags))) == 0
        contents = {name: (tmp_path / f"{name}_scores.json").read_bytes() for name in names}
        for path in tmp_path.glob("*_scores.json*"):
            path.unlink()
        sizes = [batch["request_counts"]["total"] for batch in server.batches]
        server.batches.clear()
        server.files.clear()
        return contents, sizes

    for name in "abc":
        answers = {f"q{i}": [{"output": f"{'same' if i == 0 else name} {i}"}] for i in range(6)}
        (tmp_path / f"{name}.json").write_text(json.dumps(answers))
    before, sizes = judge("a", "b")
    assert sizes == [11]  # they answer one question alike
    after, sizes = judge("a", "b", "c")
    assert sizes == [5] and after == before | {"c": after["c"]}
    paid = dict(server.paid)
    assert set(paid.values()) == {1}
    assert judge("a", "b", "c") == (after, []) and server.paid == paid


def test_of_a_batch_whose_files_are_gone_nothing_is_taken(server, tmp_path):
    inputs, output = make_questions(tmp_path / "in.json", 3), tmp_path / "out.json"
    assert baselines.main(command(server, inputs, output, "--openai_batch")) == 0
    whole = output.read_bytes()
    shutil.rmtree(tmp_path / "completions")
    for path in tmp_path.glob("out.json*"):
        path.unlink()
    server.files.clear()
    assert baselines.main(command(server, inputs, output, "--openai_batch")) == 0
    assert output.read_bytes() == whole and len(server.batches) == 2


def without_temperature(body):
    """The answer of a model that takes no temperature."""
    refused = Reply("Unsupported value: 'temperature'.", status=400, code="unsupported_value", param="temperature")
    return refused if "temperature" in body else default_reply({"seed": 0, **body, "response_format": None})


def test_a_parameter_that_lines_of_a_batch_are_refused_for_is_left_out_of_the_next(server, tmp_path, capsys):
    server.outcome = lambda number, body: without_temperature(body)
    server.reply = lambda body: server.answer(body, without_temperature(body))
    inputs, output = make_questions(tmp_path / "in.json", 20), tmp_path / "out.json"
    assert baselines.main(command(server, inputs, output, "--openai_batch")) == 0
    assert [batch["request_counts"]["total"] for batch in server.batches] == [20, 19]
    assert len(server.requests) == 2 and set(server.paid.values()) == {1}
    answers = [answer for [answer] in json.loads(output.read_text()).values()]
    assert len(answers) == 20 and all(answer["refused_parameters"] == ["temperature"] for answer in answers)
    assert capsys.readouterr().err.count("the run continues without temperature") == 1


def test_a_run_of_batches_that_goes_on_knows_what_is_refused(server, tmp_path):
    server.outcome = lambda number, body: without_temperature(body)
    server.reply = lambda body: server.answer(body, without_temperature(body))
    inputs, output = make_questions(tmp_path / "in.json", 20), tmp_path / "out.json"
    assert baselines.main(command(server, inputs, output, "--openai_batch", "--limit", "5")) == 0
    assert baselines.main(command(server, inputs, output, "--openai_batch")) == 0
    assert [batch["request_counts"]["total"] for batch in server.batches] == [5, 4, 15]
    assert len(server.requests) == 2 and len(json.loads(output.read_text())) == 20


def test_what_a_batch_refuses_and_the_api_takes_alone_is_asked_for_alone(server, tmp_path):
    server.outcome = lambda number, body: without_temperature(body)
    inputs, output = make_questions(tmp_path / "in.json", 6), tmp_path / "out.json"
    assert baselines.main(command(server, inputs, output, "--openai_batch", "--max_retries", "0")) == 0
    assert len(server.batches) == 1 and len(server.requests) == 6


def test_what_nothing_can_be_done_about_ends_a_run_of_batches(server, tmp_path):
    server.outcome = lambda number, body: Reply("No such thing.", status=400)
    server.reply = lambda body: Reply("No such thing.", status=400)
    inputs, output = make_questions(tmp_path / "in.json", 6), tmp_path / "out.json"
    with pytest.raises(UserError, match="refuses the request: No such thing"):
        baselines.main(command(server, inputs, output, "--openai_batch"))


def test_a_file_that_the_api_does_not_take_ends_the_run(server, tmp_path, monkeypatch):
    """Not as lines that it does not take: nothing is asked for at the full price."""

    async def refuse(engine, content):
        raise MalformedError("too much")

    monkeypatch.setattr(batch_engine.BatchEngine, "_submit", refuse)
    inputs, output = make_questions(tmp_path / "in.json", 6), tmp_path / "out.json"
    with pytest.raises(UserError, match="too much"):
        baselines.main(command(server, inputs, output, "--openai_batch"))
    assert server.requests == []


def test_without_a_seed_two_answers_to_one_question_are_two_requests(server, tmp_path):
    reply, number = server.outcome, iter(range(100))
    server.outcome = lambda batch, body: reply(batch, {**body, "seed": next(number), "response_format": None})
    inputs, output = make_questions(tmp_path / "in.json", 3), tmp_path / "out.json"
    words = command(server, inputs, output, "--openai_batch", "--seed", "none", "--num_generated_outputs", "2")
    assert baselines.main(words) == 0
    assert [batch["request_counts"]["total"] for batch in server.batches] == [6]
    texts = [answer["output"] for answers in json.loads(output.read_text()).values() for answer in answers]
    assert len(set(texts)) == 6


def test_what_the_api_takes_is_found_out_by_one_for_the_next_batch(server, tmp_path):
    refused = Reply("No response_format here.", status=400)
    server.outcome = lambda number, body: refused if "response_format" in body else default_reply(body)
    server.reply = lambda body: server.answer(body, server.outcome(0, body))
    inputs, output = make_questions(tmp_path / "in.json", 5), tmp_path / "out.json"
    words = command(server, inputs, output, "--openai_batch", "--constrained_decoding", "always")
    assert baselines.main(words) == 0
    assert [batch["request_counts"]["total"] for batch in server.batches] == [5, 4]
    held = [body["response_format"]["type"] for body in server.requests if "response_format" in body]
    assert held == ["json_schema", "json_object"] and len(json.loads(output.read_text())) == 5


def test_a_fault_of_ours_ends_the_run(server, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_engine.BatchEngine, "_answer_in", lambda self, line: line["nothing of the kind"])
    with pytest.raises(KeyError):
        baselines.main(
            command(server, make_questions(tmp_path / "in.json", 3), tmp_path / "out.json", "--openai_batch")
        )


@pytest.mark.parametrize("ends", [False, True])
def test_a_batch_that_the_api_was_not_heard_of_is_found(server, tmp_path, ends):
    """Also where it has ended by then."""
    server.lose = 1
    create = server.create
    server.create = lambda asked: (batch := create(asked), server.work(batch) if ends else None)[0]
    inputs = make_questions(tmp_path / "in.json", 20)
    assert baselines.main(command(server, inputs, tmp_path / "out.json", "--openai_batch")) == 0
    assert len(server.batches) == 1 and set(server.paid.values()) == {1}


def test_what_the_queue_has_no_room_for_is_asked_for_in_smaller_batches(server, tmp_path):
    server.room = 6
    inputs = make_questions(tmp_path / "in.json", 20)
    assert baselines.main(command(server, inputs, tmp_path / "out.json", "--openai_batch")) == 0
    sizes = [batch["request_counts"]["total"] for batch in server.batches if batch["status"] == "completed"]
    assert sizes == [5, 5, 5, 5] and set(server.paid.values()) == {1}
    assert len(json.loads((tmp_path / "out.json").read_text())) == 20


def test_where_others_fill_the_queue_their_end_is_waited_for(server, tmp_path, capsys):
    server.room, server.polls = 24, 5
    server.outcome = lambda number, body: default_reply(body) if number else Reply("Theirs.")
    others = {"custom_id": "x", "body": {"model": "m", "messages": [{"role": "user", "content": "What?"}]}}
    file = server.keep("\n".join([json.dumps(others)] * 10).encode())
    server.create({"endpoint": "/v1/chat/completions", "input_file_id": file["id"], "completion_window": "24h"})
    inputs = make_questions(tmp_path / "in.json", 20)
    assert baselines.main(command(server, inputs, tmp_path / "out.json", "--openai_batch")) == 0
    assert [batch["status"] for batch in server.batches] == ["completed", "failed", "completed"]
    assert "is full, waiting for batch_0\n" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "out.json").read_text())) == 20


def test_what_the_api_calls_its_batches_does_not_steer_the_terminal(server, tmp_path, capsys):
    work = server.work

    def finish(batch):
        work(batch)
        batch["status"] = "completed\x1b[2J"

    server.work = finish
    inputs = make_questions(tmp_path / "in.json", 5)
    assert baselines.main(command(server, inputs, tmp_path / "out.json", "--openai_batch")) == 0
    assert "batch_0: completed\\x1b[2J\n" in capsys.readouterr().err


def test_a_batch_that_somebody_cancelled_is_not_made_again_by_this_run(server, tmp_path):
    inputs, output = make_questions(tmp_path / "in.json", 20), tmp_path / "out.json"
    server.outcome = lambda number, body: EXPIRED if number == 0 and drawn(body) % 2 else default_reply(body)
    work = server.work

    def cancel(batch):
        work(batch)
        batch["status"] = "cancelled"

    server.work = cancel
    with pytest.raises(UserError, match=r"batch_0 was cancelled at the API at 127.0.0.1\n  the same command again"):
        baselines.main(command(server, inputs, output, "--openai_batch"))
    gc.collect()  # the error's traceback holds the output's lock
    assert len(server.batches) == 1
    server.work = work
    assert baselines.main(command(server, inputs, output, "--openai_batch")) == 0
    assert len(server.batches) == 2 and len(json.loads(output.read_text())) == 20
    assert set(server.paid.values()) == {1}


def start(server, inputs, output):
    words = [sys.executable, ROOT / "baselines.py", *command(server, inputs, output, "--openai_batch")]
    return subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(true):
    while not true():
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_finds_its_batch(server, tmp_path, number):
    inputs, output = make_questions(tmp_path / "in.json", 30), tmp_path / "out.json"
    server.held = True
    run = start(server, inputs, output)
    wait_until(lambda: server.batches and server.batches[0]["status"] == "in_progress")
    run.send_signal(number)
    said = run.communicate(timeout=600)[1]
    if number != signal.SIGKILL:
        assert "goes on with batch_0; the same command again takes the answers" in said
    server.held = False
    again = start(server, inputs, output)
    assert again.communicate(timeout=600)[1].count("resuming batch_0\n") == 1 and again.returncode == 0
    assert len(server.batches) == 1 and set(server.paid.values()) == {1}
    assert len(json.loads(output.read_text())) == 30


def stopped(self, batch):
    raise UserError("stopped while the batch is under way")


def test_another_output_takes_the_answers_of_a_running_batch(server, tmp_path, monkeypatch, capsys):
    """Of one for another model, or without the same requests, nothing is taken."""
    server.outcome = lambda number, body: Reply(json.dumps({"personalized_answer": f"Drawn {drawn(body)}."}))
    inputs, longer = make_questions(tmp_path / "in.json", 10), make_questions(tmp_path / "more.json", 14)
    with monkeypatch.context() as patch:
        patch.setattr(batch_engine.BatchEngine, "_wait_for", stopped)
        for model, seed in (("other", 0), ("m", 1), ("m", 0)):
            words = command(server, inputs, tmp_path / f"{model}{seed}.json", "--openai_batch", "--seed", seed)
            with pytest.raises(UserError, match="stopped"):
                baselines.main(["--model_addr", model, *words[2:]])
    assert [batch["request_counts"]["total"] for batch in server.batches] == [10, 10, 10] and not server.paid
    assert baselines.main(command(server, longer, tmp_path / "elsewhere.json", "--openai_batch")) == 0
    assert [batch["request_counts"]["total"] for batch in server.batches] == [10, 10, 10, 4]
    assert [batch["status"] for batch in server.batches] == ["validating", "validating", "completed", "completed"]
    assert capsys.readouterr().err.count("resuming batch_2\n") == 1 and set(server.paid.values()) == {1}
    assert len(json.loads((tmp_path / "elsewhere.json").read_text())) == 14
    # And of batches that have ended since.
    assert baselines.main(command(server, longer, tmp_path / "again.json", "--openai_batch")) == 0
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "elsewhere.json").read_bytes()
    assert len(server.batches) == 4 and set(server.paid.values()) == {1}


def test_a_system_that_is_added_leaves_the_others_verdicts_in_their_batch(server, tmp_path, monkeypatch):
    inputs = make_questions(tmp_path / "in.json", 5)
    flags = ["--evaluator_llm", "m", "--openai", "--base_url", server.url, "--inputs_addr", inputs, "--openai_batch"]
    for name in "ab":
        answers = {f"q{i}": [{"output": f"{name} {i}"}] for i in range(5)}
        (tmp_path / f"{name}.json").write_text(json.dumps(answers))

    def judge(names):
        files = [[tmp_path / f"{name}{end}.json" for name in names] for end in ("", "_scores")]
        words = [*flags, "--response_addr", *files[0], "--score_addr", *files[1]]
        return evaluate_responses.main(list(map(str, words)))

    with monkeypatch.context() as patch:
        patch.setattr(batch_engine.BatchEngine, "_wait_for", stopped)
        with pytest.raises(UserError, match="stopped"):
            judge("a")
    gc.collect()  # the error's traceback holds the output's lock
    assert judge("ab") == 0
    assert [batch["request_counts"]["total"] for batch in server.batches] == [5, 5]
    assert set(server.paid.values()) == {1}


@pytest.mark.slow
def test_a_run_killed_between_any_two_steps_pays_for_nothing_twice(server, tmp_path):
    """The client is killed as soon as each of its requests is answered, in turn, and started again.

    All texts can be used: a second try goes by itself, and what is under way then is lost as in any run.
    """
    server.outcome = lambda number, body: Reply(json.dumps({"personalized_answer": f"Drawn {drawn(body)}."}))
    inputs = make_questions(tmp_path / "in.json", 12)
    assert baselines.main(command(server, inputs, tmp_path / "whole.json", "--openai_batch")) == 0
    whole = (tmp_path / "whole.json").read_bytes()
    output, steps = tmp_path / "out.json", 0
    for steps in range(1, 20):
        for path in tmp_path.glob("out.json*"):
            path.unlink()
        shutil.rmtree(tmp_path / "completions")
        server.batches.clear(), server.paid.clear(), server.files.clear()
        stop = f"""
import os, sys

sys.path.insert(0, {str(ROOT)!r})
import httpx2, baselines
from utils.generation import batch_engine
batch_engine.POLLS, batch_engine.QUIET_SECONDS = (0.01, 0.02), 0.1
send, sent = httpx2.AsyncClient.send, []
async def killed(self, request, **more):
    response = await send(self, request, **more)
    sent.append(request)
    if len(sent) == {steps}:
        os.kill(os.getpid(), 9)
    return response
httpx2.AsyncClient.send = killed
sys.exit(baselines.main(sys.argv[2:]))
"""
        words = command(server, inputs, output, "--openai_batch")
        died = subprocess.run([sys.executable, "-c", stop, "-", *words], capture_output=True, timeout=600)
        if died.returncode == 0:
            break
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert baselines.main(words) == 0
        assert output.read_bytes() == whole
        assert set(server.paid.values()) == {1} and len(server.batches) == 1, steps
    assert steps > 5 and died.returncode == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"has_interface": False}, "is it one with a batch interface? if not, leave out --openai_batch"),
        ({"invalid": "No such model."}, "takes no such batch (batch_0): No such model."),
        ({"room": 0}, "takes no such batch (batch_2): Enqueued token limit reached for m."),
    ],
)
def test_a_server_that_refuses(server, tmp_path, capsys, change, told):
    for name, value in change.items():
        setattr(server, name, value)
    words = command(server, make_questions(tmp_path / "in.json", 3), tmp_path / "out.json", "--openai_batch")
    with pytest.raises(UserError) as error:
        baselines.main(words)
    assert told in str(error.value) and not (tmp_path / "out.json").exists() and not server.paid


def odd(*path_and_value):
    *path, value = path_and_value

    def change(line):
        place = line
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        return line

    return change


ODD_LINES = {
    "no JSON": lambda line: "<html>",
    "a list": lambda line: [line],
    "null": lambda line: None,
    "nested": lambda line: "[" * 100_000,
    "many digits": lambda line: '{"custom_id": ' + "9" * 6000 + "}",
    "no custom_id": lambda line: {**line, "custom_id": None},
    "custom_id is a list": odd("custom_id", ["x"]),
    "custom_id is unknown": odd("custom_id", "x"),
    "response is a list": odd("response", []),
    "response is a text": odd("response", "none"),
    "status is a text": odd("response", "status_code", "200"),
    "status is missing": odd("response", "status_code", None),
    "status is 404": odd("response", "status_code", 404),
    "body is a text": odd("response", "body", "answer"),
    "body is a list": odd("response", "body", [1]),
    "body has no choices": odd("response", "body", {"choices": {}}),
    "error is a text": odd("response", {"status_code": 500, "body": {"error": "no room"}}),
    "error is a list": odd("response", {"status_code": 400, "body": {"error": ["no"]}}),
    "code is a list": odd("response", {"status_code": 400, "body": {"error": {"code": ["content_filter"]}}}),
}


@pytest.mark.parametrize("name", ODD_LINES)
def test_a_line_of_another_shape_is_asked_for_again(server, tmp_path, capsys, name):
    """In this or another batch's file; also where a later run reads the batch."""
    keep, met = server.keep, []

    def damage(content):
        lines = content.splitlines()
        if b'"response"' in content and not met:
            met.append(1)
            found = ODD_LINES[name](json.loads(lines[0]))
            lines[0] = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        return keep(b"\n".join(lines) + b"\n")

    server.keep = damage
    inputs = make_questions(tmp_path / "in.json", 5)
    outputs = ["out.json", "again.json"] if name in ("no JSON", "custom_id is a list") else ["out.json"]
    for output in outputs:
        assert baselines.main(command(server, inputs, tmp_path / output, "--openai_batch")) == 0
        answers = json.loads((tmp_path / output).read_text())
        assert len(answers) == 5 and all(outputs[0]["output"] for outputs in answers.values())
    assert met


@pytest.mark.parametrize(
    "change",
    [
        {"request_counts": "many"}, {"request_counts": {"completed": "1"}}, {"request_counts": None},
        {"errors": "none"}, {"errors": {"data": ["x"]}}, {"metadata": "x"}, {"metadata": ["sha256"]},
        {"output_file_id": 7}, {"output_file_id": {}}, {"error_file_id": []}, {"id": None}, {"id": 3},
        {"status": None}, {"status": ["completed"]}, {"created_at": "now", "object": 3},
    ],
)  # fmt: skip
def test_a_batch_object_of_another_shape(server, tmp_path, monkeypatch, change):
    """Once: it is asked for again."""
    look, came = server.look, []

    def damage(batch):
        came.append(1)
        return {**look(batch), **change} if len(came) <= 1 else look(batch)

    server.look = damage
    monkeypatch.setattr("utils.generation.api_engine.LONGEST_PAUSE", 0.01)
    words = command(server, make_questions(tmp_path / "in.json", 3), tmp_path / "out.json", "--openai_batch")
    assert baselines.main(words) == 0
    assert len(json.loads((tmp_path / "out.json").read_text())) == 3


def test_a_list_of_batches_of_another_shape(server, tmp_path, monkeypatch):
    monkeypatch.setattr("utils.generation.api_engine.LONGEST_PAUSE", 0.01)
    inputs = make_questions(tmp_path / "in.json", 3)
    server.batches += [{"id": "batch_x", "status": None}, {"id": "batch_y", "status": 3, "metadata": "sha256"}]
    assert baselines.main(command(server, inputs, tmp_path / "out.json", "--openai_batch")) == 0


def test_the_judge_and_the_planners_answers_go_in_batches_too(server, tmp_path):
    inputs = make_questions(tmp_path / "in.json", 10)
    words = command(server, inputs, tmp_path / "gold.json", "--openai_batch", "--gold_plan", "--unranked")
    assert planpers.main(words) == 0
    flags = ["--evaluator_llm", "m", "--openai", "--base_url", server.url, "--inputs_addr", inputs, "--openai_batch"]
    flags += ["--response_addr", tmp_path / "gold.json", "--score_addr", tmp_path / "scores.json"]
    assert evaluate_responses.main(list(map(str, flags))) == 0
    assert [batch["request_counts"]["total"] for batch in server.batches] == [10, 10]
    assert json.loads((tmp_path / "scores.json").read_text())["num_scored_questions"] == 10


def test_no_file_is_over_the_limits(monkeypatch):
    items = {str(i): Item({"text": "x" * 1000}, None) for i in range(10)}
    assert list(map(len, _parts(items))) == [10]
    monkeypatch.setattr(batch_engine, "MOST_REQUESTS", 4)
    assert list(map(len, _parts(items))) == [4, 4, 2]
    monkeypatch.setattr(batch_engine, "MOST_BYTES", 3700)
    assert list(map(len, _parts(items))) == [3, 3, 3, 1]
    assert _parts({}) == []
