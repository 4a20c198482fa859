"""utils/batch.py with a loopback server that has OpenAI's batch interface."""

import hashlib
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from api_server import Reply
from batch_server import EXPIRED, serve_batches

import baselines
import planpers
from utils import batch
from utils.base.errors import UserError
from utils.generation import batches

KEY = "sk-never-shown"
ROOT = Path(__file__).resolve().parents[2]
SETUP = f"""
import os
os.environ['OPENAI_API_KEY'] = '{KEY}'
from utils.generation import batches
batches.POLLS = (0.01, 0.02)
"""


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(batches, "POLLS", (0.01, 0.02))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server():
    with serve_batches() as server:
        server.reply = lambda body: server.answer(body, usable(0, body))
        yield server


def draw_unusable_too(server):
    server.reply = lambda body: server.answer(body, server.outcome(0, body))


def make_questions(path, number):
    profile = [{"id": "p", "text": "I grow beans."}]
    records = [
        {"id": f"q{i}", "question": f"What of {i}?", "category": "law", "profile": profile, "narrative": "Mine.",
         "rubric_aspects": [{"aspect": "A", "evidence": "e", "reason": "r"}]}
        for i in range(number)
    ]  # fmt: skip
    path.write_text(json.dumps(records))
    return path


def flags(server, inputs, output, *more):
    words = f"--openai --model_addr m --base_url {server.url} --inputs_addr {inputs} --output_addr {output}"
    return [*words.split(), *map(str, more)]


def answer(*its, script="baselines.py"):
    return batch.main([script, *flags(*its)])


def sizes_of(server):
    return [one["request_counts"]["total"] for one in server.batches]


def drawn(body):
    return int(hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:8], 16)


def usable(number, body):
    return Reply(json.dumps({"personalized_answer": f"Drawn {drawn(body)}."}))


def test_batch_answers_equal_those_of_ordinary_requests(server, tmp_path, capsys):
    """Unusable texts are retried with other seeds in the next batches, and a fourth time alone."""
    draw_unusable_too(server)
    inputs = make_questions(tmp_path / "in.json", 300)
    more = ["--rag", "--unranked", "--num_contexts", "1", "--constrained_decoding", "never"]
    assert baselines.main(flags(server, inputs, tmp_path / "plain/out.json", *more)) == 0
    plain, _ = dict(server.paid), server.paid.clear()
    server.requests.clear()
    output = tmp_path / "out.json"
    assert answer(server, inputs, output, *more) == 0
    assert output.read_bytes() == (tmp_path / "plain/out.json").read_bytes()
    first, second, third = sizes_of(server)
    assert first == 299 > second > third > 0 and len(server.requests) <= third
    assert server.paid == plain and set(plain.values()) == {1}
    assert answer(server, inputs, output, *more) == 0 and answer(server, inputs, output, *more, "--dry_run") == 0
    assert len(server.batches) == 3 and server.paid == plain
    told = capsys.readouterr()
    assert "batch_0: 299 requests, 0." in told.err and KEY not in told.out + told.err
    assert not any(KEY in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_plans_and_then_the_answers_by_them(server, tmp_path):
    draw_unusable_too(server)
    inputs = make_questions(tmp_path / "in.json", 40)
    own = ["--unranked", "--planner_model", "p", "--planner_base_url", server.url, "--num_contexts", "1"]
    assert planpers.main(flags(server, inputs, tmp_path / "plain/out.json", *own)) == 0
    plain, _ = dict(server.paid), server.paid.clear()
    assert answer(server, inputs, tmp_path / "out.json", *own, script="planpers.py") == 0
    assert (tmp_path / "out.json").read_bytes() == (tmp_path / "plain/out.json").read_bytes()
    assert server.paid == plain and sizes_of(server)[:2] == [39, 39]


def test_expired_or_failed_requests_are_sent_again_and_finally_alone(server, tmp_path):
    def outcome(number, body):
        if drawn(body) % 2 and (number == 0 or drawn(body) % 4 == 1):
            return EXPIRED if number == 0 else Reply("Out of order.", status=500)
        return usable(number, body)

    server.outcome = outcome
    inputs = make_questions(tmp_path / "in.json", 40)
    assert answer(server, inputs, tmp_path / "out.json") == 0
    first, second, third = sizes_of(server)
    assert first == 39 > second > third == len(server.requests) - 1 > 0 and server.batches[0]["status"] == "expired"
    assert len(json.loads((tmp_path / "out.json").read_text())) == 40 and set(server.paid.values()) == {1}


def test_two_single_requests_find_what_the_api_accepts(server, tmp_path):
    """A prompt refused for its content is sent once."""

    def outcome(number, body):
        if "response_format" in body:
            return Reply("No response_format here.", status=400)
        if "of 3?" in body["messages"][-1]["content"]:
            return Reply("No.", status=400, code="content_filter")
        return usable(number, body)

    server.outcome = outcome
    server.reply = lambda body: server.answer(body, outcome(0, body))
    inputs, output = make_questions(tmp_path / "in.json", 5), tmp_path / "out.json"
    assert answer(server, inputs, output, "--constrained_decoding", "always") == 0
    # With a schema and without, for at most three prompts: the refused one, which may be first, shows nothing.
    assert sizes_of(server)[-1] in (2, 3, 4) and len(server.requests) <= 3 * 2 and set(server.paid.values()) == {1}
    outputs = json.loads(output.read_text())
    assert [key for key, [one] in outputs.items() if one["output"] is None] == ["q3"]


@pytest.mark.parametrize("line", [b"<html>", b"[" * 100_000, b'{"custom_id": $ID, "response": {"body": {}}}'])
def test_a_malformed_line_is_sent_again(server, tmp_path, line):
    keep, met = server.keep, []

    def damage(content):
        lines = content.splitlines()
        if b'"response"' in content and not met:
            met.append(1)
            lines[0] = line.replace(b"$ID", json.dumps(json.loads(lines[0])["custom_id"]).encode())
        return keep(b"\n".join(lines) + b"\n")

    server.keep, server.outcome = damage, usable
    assert answer(server, make_questions(tmp_path / "in.json", 5), tmp_path / "out.json") == 0
    assert sizes_of(server) == [4, 1] and len(json.loads((tmp_path / "out.json").read_text())) == 5


def test_a_batch_too_large_for_the_queue_is_halved(server, tmp_path):
    """A batch is also found if the API's reply was lost."""
    server.room, server.lose, server.outcome = 6, 1, usable
    assert answer(server, make_questions(tmp_path / "in.json", 20), tmp_path / "out.json") == 0
    assert sizes_of(server) == [19, 10, 5, 5, 9, 5, 4] and set(server.paid.values()) == {1}


@pytest.mark.parametrize("states", [["pending", "processed"], ["notRunning", "running", "running", "processed"]])
def test_a_batch_waits_until_its_file_is_processed(server, tmp_path, capsys, states):
    """As at Azure."""
    server.file_states = states
    assert answer(server, make_questions(tmp_path / "data.json", 3), tmp_path / "out.json") == 0
    assert len(server.batches) == 1 and set(server.paid.values()) == {1}
    assert capsys.readouterr().err.count("file-0: waiting until the API at 127.0.0.1 has processed the uploaded") == 1


def test_a_file_that_the_api_cannot_process_ends_the_run(server, tmp_path):
    server.file_states = ["pending", "error"]
    with pytest.raises(
        UserError, match=r"the API at 127\.0\.0\.1 cannot process the uploaded requests \(file-0\): error"
    ):
        answer(server, make_questions(tmp_path / "data.json", 3), tmp_path / "out.json")
    assert server.batches == []


def test_an_interrupted_run_finds_its_batch(warm_api, server, tmp_path):
    """Also with more questions, and if the API lists no batches."""
    inputs, output = make_questions(tmp_path / "in.json", 10), tmp_path / "out.json"
    server.held, server.outcome = True, usable
    run = begin(warm_api, server, inputs, output)
    while not (server.batches and server.batches[0]["status"] == "in_progress"):
        time.sleep(0.02)
    run.send(signal.SIGTERM)
    run.wait()
    assert "if you stop now, run the same command again to wait for it" in run.errors
    server.held = False
    server.batches[0]["metadata"] = None
    again = begin(warm_api, server, make_questions(tmp_path / "in.json", 14), output)
    assert again.wait() == 0 and "batch_0: already sent by an earlier run\n" in again.errors
    assert sizes_of(server) == [9, 4] and set(server.paid.values()) == {1}


def test_an_interrupted_run_notes_what_its_batch_left_out(warm_api, server, tmp_path):
    """The second run meets no refusal: it reads from batches.jsonl what the first one had left out."""

    def outcome(number, body):
        if "seed" in body:
            return Reply("Unsupported parameter: 'seed' is not supported.", status=400)
        return usable(number, body)

    server.outcome, server.held = outcome, True
    server.reply = lambda body: server.answer(body, outcome(0, body))
    inputs, output = make_questions(tmp_path / "in.json", 10), tmp_path / "out.json"
    run = begin(warm_api, server, inputs, output)
    while not (server.batches and server.batches[0]["status"] == "in_progress"):
        time.sleep(0.02)
    run.send(signal.SIGTERM)
    run.wait()
    server.held = False
    assert begin(warm_api, server, inputs, output).wait() == 0
    assert sizes_of(server) == [9] and len(server.requests) == 2
    manifest = json.loads((tmp_path / "out.json.manifest.json").read_text())
    assert manifest["refused_parameters"] == {"seed": [10, 10]}


@pytest.mark.slow
def test_a_run_killed_between_any_two_requests_pays_for_nothing_twice(warm_api, server, tmp_path):
    """Kill it after each answered request in turn, and start it again."""
    server.polls = 1
    inputs = make_questions(tmp_path / "in.json", 12)
    assert answer(server, inputs, tmp_path / "whole.json") == 0
    whole, sizes, code, steps = (tmp_path / "whole.json").read_bytes(), sizes_of(server), None, 0
    while code != 0:
        steps += 1
        output = tmp_path / f"{steps}/out.json"
        server.batches.clear(), server.paid.clear(), server.files.clear()
        run = begin(warm_api, server, inputs, output, KILLED.replace("STEPS", str(steps)))
        code = run.wait()
        assert code in (0, -signal.SIGKILL), run.errors
        assert answer(server, inputs, output) == 0 and output.read_bytes() == whole
        # Only the first request goes alone: it may be lost on its way into the store.
        assert server.paid.total() <= len(server.paid) + 1 and sizes_of(server) == sizes, steps
    assert steps > 10 and len(sizes) > 1


@pytest.mark.parametrize(
    ("change", "told"),
    [({"create": lambda asked: {}}, "returned a batch without an id\n  run the same"),
     ({"has_interface": False}, "this API may not support batches; then run the command without utils/batch.py"),
     ({"invalid": "No such model."}, "): No such model."), ({"room": 0}, "): Enqueued token limit reached for m.")],
)  # fmt: skip
def test_a_server_without_batches_gets_no_full_price_requests(server, tmp_path, monkeypatch, change, told):
    server.outcome = usable
    inputs, output = make_questions(tmp_path / "in.json", 3), tmp_path / "out.json"
    with monkeypatch.context() as patch:
        for name, value in change.items():
            patch.setattr(server, name, value)
        for _ in range(4):
            with pytest.raises(UserError) as error:
                answer(server, inputs, output, "--max_retries", 0)
            assert told in str(error.value) and not output.exists() and server.paid.total() <= 1
    assert answer(server, inputs, output) == 0 and len(server.requests) == 1


def test_no_batch_exceeds_the_limits(monkeypatch):
    bodies = {str(i): {"text": "x" * 1000} for i in range(10)}
    assert list(map(len, batches.parts_of(bodies))) == [10]
    monkeypatch.setattr(batches, "MOST_REQUESTS", 4)
    assert list(map(len, batches.parts_of(bodies))) == [4, 4, 2]
    monkeypatch.setattr(batches, "MOST_BYTES", 3700)
    assert list(map(len, batches.parts_of(bodies))) == [3, 3, 3, 1] and batches.parts_of({}) == []


def begin(zygote, server, inputs, output, setup=""):
    """Start a run in a new process."""
    return zygote.start("utils.batch", ["baselines.py", *flags(server, inputs, output)], do=SETUP + setup)


KILLED = """
import httpx2
send, sent = httpx2.AsyncClient.send, []
async def killed(self, request, **more):
    response = await send(self, request, **more)
    sent.append(request)
    if len(sent) == STEPS:
        os.kill(os.getpid(), 9)
    return response
httpx2.AsyncClient.send = killed
"""


def test_prompts_that_the_api_refuses_have_no_answer(server, tmp_path):
    """More of them than would end a run that has no answers. The first request is answered: its key, so its order,
    depends on the server's port."""
    first = []

    def outcome(number, body):
        question = body["messages"][-1]["content"]
        first.append(question)
        is_refused = "of 1" in question and question != first[0]  # 1 and 10 to 19
        return Reply("No.", status=400) if is_refused else usable(number, body)

    server.outcome = outcome
    server.reply = lambda body: server.answer(body, outcome(0, body))
    inputs, output = make_questions(tmp_path / "in.json", 40), tmp_path / "out.json"
    assert answer(server, inputs, output) == 0
    outputs = json.loads(output.read_text())
    lost = [key for key, [one] in outputs.items() if one["output"] is None]
    assert len(lost) == 11 - ("of 1" in first[0])
    assert outputs[lost[0]][0]["reason"] == "the API at 127.0.0.1 refuses the request: No."
    asked = len(server.requests), len(server.batches)
    assert answer(server, inputs, output, "--overwrite") == 0
    assert (len(server.requests), len(server.batches)) == asked


NO_LOCKS = """
import fcntl
def refuse(*_): raise OSError(38, "no locks")
fcntl.flock = refuse
"""


@pytest.mark.slow
@pytest.mark.parametrize("setup", ["", NO_LOCKS], ids=["locks", "no locks"])
@pytest.mark.parametrize("names", [("out.json", "out.json"), ("out.json", "other.json")])
def test_two_processes_at_once_pay_for_no_request_twice(server, tmp_path, names, setup, monkeypatch):
    """While one uploads, the other waits, and then reads the same batch. With the same output, it may be refused."""
    inputs, keep = make_questions(tmp_path / "in.json", 30), server.keep
    monkeypatch.setattr(server, "keep", lambda content: (time.sleep(0.5), keep(content))[1])
    server.outcome = usable
    code = "import sys\nfrom utils import batch\nfrom utils.base import cli\n"
    code = SETUP + setup + code + "cli.run_script(lambda: batch.main(sys.argv[1:]))"
    for number in range(2):
        server.batches.clear(), server.paid.clear(), server.files.clear()
        words = [["baselines.py", *flags(server, inputs, tmp_path / f"{number}" / name)] for name in names]
        runs = [
            subprocess.Popen([sys.executable, "-c", code, *its], cwd=ROOT, stderr=subprocess.PIPE, text=True)
            for its in words
        ]
        errors = [run.communicate()[1] for run in runs]
        for run, error in zip(runs, errors, strict=True):
            assert run.returncode == 0 or (run.returncode == 2 and "is writing it; wait" in error), error
        assert 0 in [run.returncode for run in runs]
        assert set(server.paid.values()) == {1} and sizes_of(server) == [29]


def test_a_batch_that_was_not_noted_is_found_among_the_failures_of_another(warm_api, server, tmp_path):
    """The run dies after the second batch is made, and requests of the first one have failed."""
    turns = itertools.count()
    server.outcome = lambda number, body: (
        Reply("Oh.", status=500) if number == 0 and next(turns) % 2 else usable(0, body)
    )
    inputs, output = make_questions(tmp_path / "in.json", 20), tmp_path / "out.json"
    create = "batches.MOST_REQUESTS = 10\n" + KILLED.replace("len(sent) == STEPS", "'/batches' in request.url.path "
             "and request.method == 'POST' and sum(one.method == 'POST' for one in sent) == 5")  # fmt: skip
    run = begin(warm_api, server, inputs, output, create)
    assert run.wait() == -signal.SIGKILL and sizes_of(server) == [10, 9]
    again = begin(warm_api, server, inputs, output, "batches.MOST_REQUESTS = 10\n")
    assert again.wait() == 0, again.errors
    assert server.batches[0]["request_counts"]["completed"] == 5
    assert sizes_of(server) == [10, 9, 5] and set(server.paid.values()) == {1}


def test_a_result_file_that_is_cut_short_is_read_again(server, tmp_path, monkeypatch):
    """Without a length, the end of a connection looks like the end of the file."""
    server.cut, server.outcome = 1, usable
    assert answer(server, make_questions(tmp_path / "in.json", 12), tmp_path / "out.json") == 0
    assert server.cut == 0 and sizes_of(server) == [11] and set(server.paid.values()) == {1}
