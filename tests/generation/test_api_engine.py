"""The API engine and a server with faults: real HTTP through the real openai client."""

import json
import re
import socket
import threading
import time
from collections import Counter
from email.utils import formatdate

import pytest
from api_server import Reply, running
from faulty_server import FAULTS, FaultyServer, draw_faults
from test_baselines import flags, output, run, write_json  # noqa: F401 (fixtures)

import baselines
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.base.web_files import LONGEST_WAIT, read_retry_after
from utils.generation import api_engine, refusals
from utils.generation.refusals import LimitedClient


def reply_to(request):
    return Reply(json.dumps({"personalized_answer": f"To: {question_of(request)}"}))


def question_of(request):
    return request["messages"][-1]["content"]


@pytest.fixture
def server():
    with running(FaultyServer(reply_to)) as server:
        yield server


@pytest.fixture
def questions(tmp_path):
    """Return a dataset with this many questions."""

    def make(count):
        records = [{"id": f"q{n}", "question": f"Question number {n}?", "profile": []} for n in range(count)]
        return write_json(tmp_path / "data.json", records)

    return make


@pytest.fixture
def quick(monkeypatch):
    """Shorten the library's pauses and ours: tests check that they are kept, not their length."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(api_engine, "LONGEST_PAUSE", 0.05)


def elsewhere(output):
    """An output with its own store."""
    return output.parent / "elsewhere" / output.name


# Faults that pass

NUMBER = 300


@pytest.mark.slow
def test_hundreds_of_requests_at_thirty_percent_faults(server, flags, output, questions, monkeypatch):
    data = questions(NUMBER)
    expected = run(flags, elsewhere(output), data=data)
    asked, server.faults = len(server.requests), draw_faults(0.3, seed=0)
    server.answered.clear()
    given_up = count_given_up(monkeypatch)
    answers = run(flags, output, "--request_timeout", 1, data=data)

    assert list(answers) == list(expected)
    assert all(answers[key][0]["output"] == expected[key][0]["output"] != "" for key in answers)
    # Only an empty completion costs a try with another seed; faults on the way leave no trace in the record.
    once = [key for key in answers if answers[key][0]["attempts"] == 1]
    assert NUMBER - len(once) <= server.met["empty"] < NUMBER / 10
    assert all(answers[key] == expected[key] for key in once)
    # Each question was answered once, except answers after the client had given up.
    answered = Counter(question_of(json.loads(request)) for request in server.answered.elements())
    assert len(answered) == NUMBER and answered - given_up <= Counter(set(answered))
    # It really was 30%, and every kind.
    assert set(server.met) == set(FAULTS)
    assert 0.24 < server.met.total() / (len(server.requests) - asked) < 0.36


def count_given_up(monkeypatch):
    """Count how often the client stops waiting for each answer."""
    given_up, send = Counter(), LimitedClient.send

    async def watch(client, request, **options):
        try:
            return await send(client, request, **options)
        except Exception as error:  # httpx's or httpx2's, as the client library has it
            given_up[question_of(json.loads(request.content))] += "Timeout" in type(error).__name__
            raise

    monkeypatch.setattr(LimitedClient, "send", watch)
    return given_up


def test_more_requests_than_the_server_allows_are_all_answered(server, flags, output, questions, quick):
    server.allowed, server.delay = 4, 0.05
    answers = run(flags, output, "--max_concurrency", 16, data=questions(60))
    assert len(answers) == 60 and {outputs[0]["attempts"] for outputs in answers.values()} == {1}
    assert len(server.refused_at) > 0 and max(server.open_at) <= 16


def test_nothing_is_sent_before_the_retry_after_time(server, flags, output, questions, monkeypatch):
    came, is_told, send = [], threading.Event(), LimitedClient.send

    async def told(client, request, **options):
        response = await send(client, request, **options)
        if response.status_code == 429:
            is_told.set()
        return response

    def faults(body, times):
        came.append((time.monotonic(), question_of(body)))
        return "429 with Retry-After" if len(came) == 1 else None

    def reply(body):
        if question_of(body) != came[0][1]:
            is_told.wait(600)  # the other requests are answered when the client knows
        return reply_to(body)

    monkeypatch.setattr(LimitedClient, "send", told)
    server.faults, server.reply, server.retry_after = faults, reply, "0.7"
    run(flags, output, "--max_concurrency", 3, data=questions(5))
    assert len(came) == 6 and min(came[3:])[0] - came[0][0] >= 0.7


def test_the_run_waits_for_a_server_that_comes_back(server, flags, output, questions, quick, capsys):
    down = range(10, 25)  # the requests that come while it is away
    server.faults = lambda body, times: "503" if len(server.requests) - 1 in down else None
    answers = run(flags, output, "--max_concurrency", 4, data=questions(30))
    assert len(answers) == 30 and None not in {outputs[0]["output"] for outputs in answers.values()}
    assert "note: the API at 127.0.0.1 answers 503: Try again later.; retrying in" in capsys.readouterr().err


# Faults that last


def answer(flags, output, *more, data):
    """Run the script in this process; return its exit code and answers."""
    arguments = [*flags, "--inputs_addr", str(data), "--output_addr", str(output), *map(str, more)]
    return baselines.main(arguments), json.loads(output.read_text())


def fail_on(*numbers):
    """Let the server always fail on these questions."""
    return lambda body, times: "500" if question_number(body) in numbers else None


def question_number(body):
    return int(re.search(r"Question number (\d+)\?", question_of(body))[1])


def test_a_lasting_outage_ends_the_run_and_the_same_command_resumes(server, flags, output, questions, quick, capsys):
    data = questions(300)
    server.faults = lambda body, times: "503" if len(server.requests) > 10 else None
    code, answers = answer(flags, output, "--max_concurrency", 4, data=data)
    assert code == 1 and 7 <= len(answers) <= 10
    ended, progress, missing = capsys.readouterr().err.splitlines()[-3:]
    assert ended == (
        "note: the API at 127.0.0.1 answers 503: Try again later.; the server no longer answers; sending no more "
        "requests to this model"
    )
    assert progress.startswith(f"{len(answers)}/300 answers")
    gap = 300 - len(answers)
    assert missing == f"{gap} answers are missing because the server failed; run the same command again to retry them"
    assert len(server.requests) < 10 + 300  # not even the client library's tries for each of them
    server.faults = lambda body, times: None
    asked = len(server.requests)
    assert len(run(flags, output, data=data)) == 300
    assert len(server.requests) - asked == gap


def test_a_prompt_that_the_server_fails_on_is_left_for_the_next_run(server, flags, output, questions, quick, capsys):
    data = questions(200)
    server.faults, server.delay = fail_on(3), 0.01  # others are answered while it is tried
    code, answers = answer(flags, output, "--max_concurrency", 4, data=data)
    assert (code, list(answers)) == (1, [f"q{n}" for n in range(200) if n != 3])
    assert None not in [outputs[0]["output"] for outputs in answers.values()]
    assert server.met["500"] == 4 * (1 + api_engine.LIBRARY_RETRIES)
    said = capsys.readouterr().err.splitlines()
    assert "failed 0, missing 1" in said[-2]
    assert said[-1] == "1 answer is missing because the server failed; run the same command again to retry it"
    assert read_manifest(output)["missing"] == 1

    code, again = answer(flags, output, data=data)  # it still fails, and nothing else is left to request
    assert (code, again) == (1, answers)
    assert capsys.readouterr().err.splitlines()[-1] == said[-1]

    asked, server.faults = len(server.requests), fail_on()
    code, whole = answer(flags, output, data=data)
    assert code == 0 and [question_number(body) for body in server.requests[asked:]] == [3]
    assert whole == run(flags, elsewhere(output), data=data)
    assert read_manifest(output)["missing"] == 0
    asked = len(server.requests)
    assert answer(flags, output, data=data) == (0, whole) and len(server.requests) == asked
    assert "already finished; skipped" in capsys.readouterr().out


@pytest.mark.parametrize("failing", [(0,), (9,), (3, 6, 9)])
def test_with_one_request_at_a_time_failing_prompts_are_skipped(server, flags, output, questions, quick, failing):
    """With no other requests in flight, a failing request looks like an outage."""
    server.faults = fail_on(*failing)
    code, answers = answer(flags, output, "--max_concurrency", 1, "--max_retries", 0, data=questions(10))
    assert (code, list(answers)) == (1, [f"q{n}" for n in range(10) if n not in failing])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("HTML", "returned no completion; check --base_url: <html><body>Just a moment...</body></html>"),
        ("broken JSON", 'returned no completion; check --base_url: {"id": "chatcmpl-1", "object": "chat.com'),
        ("hang", "cannot be reached: Request timed out."),
        ("reset", "cannot be reached: Connection error."),
        ("truncated", "cannot be reached: Connection error."),
        ("502", "answers 502: Try again later."),
    ],
)
def test_server_that_never_answers(server, flags, output, questions, quick, fault, message):
    server.faults = lambda body, times: fault
    with pytest.raises(UserError) as raised:
        run(flags, output, "--max_retries", 0, "--request_timeout", 1 if fault == "hang" else 600, data=questions(3))
    assert str(raised.value) == (
        f"the API at 127.0.0.1 {message}\n  tried 1 times; finished work is kept, run the same command again to resume"
    )


@pytest.mark.parametrize("sent", [b"\n", b" " * 100])
def test_an_answer_that_only_trickles_in_is_given_up(server, flags, output, questions, quick, sent):
    server.faults, server.body = lambda body, times: "trickle", sent
    with pytest.raises(UserError, match="cannot be reached: Request timed out"):
        answer(flags, output, "--request_timeout", 1, "--max_retries", 0, data=questions(1))
    assert len(server.requests) == 1 + api_engine.LIBRARY_RETRIES


def test_server_that_is_not_there(server, flags, output, questions, quick):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        flags[flags.index(server.url)] = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(UserError, match=r"the API at 127\.0\.0\.1 cannot be reached: Connection error"):
        run(flags, output, data=questions(3))
    assert not output.exists()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "7", "retry-after-ms": "20"}, 0.02),
        ({"retry-after": "7", "retry-after-ms": "soon"}, 7),
        ({"retry-after": str(LONGEST_WAIT)}, LONGEST_WAIT),
        ({"retry-after": "86400"}, 0),
        ({"retry-after": "inf"}, 0),
        ({"retry-after": "later"}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": formatdate(time.time() - 60, usegmt=True)}, 0),
        ({}, 0),
    ],
)
def test_retry_after(headers, seconds):
    assert read_retry_after(headers) == seconds


def test_a_reply_that_is_too_long_is_given_up(server, flags, output, quick):
    """Also the list of models, which is asked for first."""
    padding = " " * refusals.MOST_BYTES
    server.list_models = lambda: (200, {"data": [{"id": "m", "root": "read"}], "more": padding})
    server.faults, server.body = lambda body, times: "other JSON", lambda right: {**right, "more": padding}
    with pytest.raises(UserError, match="sends a reply of more than 16 MiB; check --base_url"):
        run(flags, output, "--max_retries", 0, "--limit", 1)
    server.faults = lambda body, times: None
    run(flags, output, "--limit", 1)
    assert "(read)" not in json.dumps(read_manifest(output)["settings"])
