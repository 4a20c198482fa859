"""Runs of the real scripts that are killed or interrupted: the same command resumes, and pays for nothing twice.

Most runs are forks of a process with the needed imports (zygote.py), so that there can be many.
"""

import random
import signal
import socket
import threading
import time
from collections import Counter

import pytest
from api_server import default_reply, serve
from crash_cases import AFTER, UNDER_WAY, Zygotes, check_whole, make_case, make_data, run_whole

pytestmark = pytest.mark.slow

HINT = "interrupted; finished work is kept, run the same command again to resume\n"
KILLS = {"baselines": 20, "evaluate_responses": 12, "planpers": 20, "rank_dataset": 10}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder


@pytest.fixture(scope="module")
def zygotes(tmp_path_factory):
    with Zygotes(tmp_path_factory.mktemp("zygotes")) as zygotes:
        yield zygotes


@pytest.fixture
def server():
    with serve(delay=0.002) as server:
        yield server


@pytest.fixture
def case(request, data, server, tmp_path):
    return make_case(request.param, data, tmp_path, server.url)


@pytest.mark.parametrize("case", KILLS, indirect=True)
def test_killed_at_random_moments(case, zygotes, server):
    run_whole(case, zygotes)  # the first one reads its files from disk: its time is not representative
    whole = run_whole(case, zygotes)
    dice, hits = random.Random(case.name), Counter()
    for _ in range(20 * KILLS[case.name]):
        if sum(hits.values()) >= KILLS[case.name] and hits.keys() == case.places:
            break
        killed_at = kill_once(case, zygotes, server, dice, whole)
        assert all(not output.exists() or output.read_bytes() == whole.contents[output] for output in case.outputs)
        hits.update([killed_at] if killed_at else [])
        if killed_at in (AFTER, None):
            case.finish(zygotes)
            check_whole(case, whole)
            case.clear()
    print(f"{case.name}: killed {dict(hits)}")
    assert sum(hits.values()) >= KILLS[case.name] and hits.keys() == case.places, hits


def kill_once(case, zygotes, server, dice, whole):
    """Kill a run at a random moment; return how far it had come, None if it had already ended."""
    before, asked = case.finished(), len(server.requests)
    run = case.start(zygotes)
    kill_at = dice.choice(["piece", "piece", "last piece"] if any(before.values()) else ["start", "piece"])
    if kill_at == "start":
        time.sleep(dice.uniform(0, 0.3 * whole.seconds) * dice.random())  # near 0 too: it may be faster now
    else:
        case.wait_for(case.size if kill_at == "last piece" else dice.randint(case.pieces(), case.size))
        time.sleep(dice.uniform(0, 0.02))
    signum = dice.choice([signal.SIGKILL, signal.SIGTERM])
    run.send(signum)
    code = run.wait()
    after = case.finished()
    assert all(before[unit] <= after[unit] for unit in case.units)
    if case.asks:  # `finished` has seen that nothing that was there was added again
        added = sum(map(len, after.values())) - sum(map(len, before.values()))
        assert len(server.requests) - asked <= added + 2 * UNDER_WAY  # of this run, and the last ones of the run before
    if code == 0:
        return None
    if code == 130:
        assert signum == signal.SIGTERM and run.errors.endswith(HINT)
        assert "Traceback" not in run.errors and "ignored" not in run.errors, run.errors
    else:
        assert code == -signum, run.errors  # by a SIGTERM before the script has begun
    return case.place()


@pytest.mark.parametrize(
    ("case", "requests", "signum"),
    [("baselines", 8, signal.SIGTERM), ("baselines", 8, signal.SIGINT), ("planpers", 22, signal.SIGTERM)],
    indirect=["case"],
)
def test_interrupted_while_the_server_hangs(case, requests, zygotes, server, signum):
    whole = run_whole(case, zygotes)
    before = len(server.requests)
    hold = threading.Event()

    def reply(request):
        if len(server.requests) > before + requests:
            hold.wait()
        return default_reply(request)

    server.reply = reply
    plain = case.setup == {}
    run = case.start_plain() if plain else case.start(zygotes)
    server.wait_for(before + requests + 4)  # so many were answered, and 4 at a time are under way
    try:
        if plain:
            run.send_signal(signum)
            _, errors = run.communicate(timeout=600)
        else:
            run.send(signum)
            run.wait()
            errors = run.errors
    finally:
        hold.set()
    assert run.returncode == 130 and errors.endswith(HINT) and "Traceback" not in errors
    stored, asked = len(case.stored()), len(server.requests)
    assert case.place() == ("in stage 1" if requests > 20 else "in stage 0")
    assert not case.outputs[-1].exists()
    case.finish(zygotes)
    check_whole(case, whole)
    assert stored == requests and len(server.requests) - asked == before - stored


@pytest.mark.parametrize("case", ["baselines"], indirect=True)
def test_two_runs_of_one_output(case, server):
    hold = threading.Event()

    def reply(request):
        hold.wait()
        return default_reply(request)

    server.reply = reply
    first = case.start_plain()
    server.wait_for(1)
    second = case.start_plain()
    _, errors = second.communicate(timeout=600)
    hold.set()
    assert second.returncode == 2
    holder = f"process {first.pid} on {socket.gethostname()}"
    assert errors == f"error: {case.outputs[0]}: {holder} is writing it; wait for that process, or stop it\n"
    _, errors = first.communicate(timeout=600)
    assert first.returncode == 0, errors
    assert case.place() == AFTER
