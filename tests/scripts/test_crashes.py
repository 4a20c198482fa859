"""Runs of the real scripts that are killed or interrupted: the same command ends them, and pays for nothing twice.

Most runs are forks of a process that has imported what they need (zygote.py), so that there can be hundreds.
"""

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from api_server import default_reply, serve
from crash_cases import (
    AFTER,
    UNDER_WAY,
    Watcher,
    Zygotes,
    check_whole,
    make_case,
    make_data,
    manifest_path,
    run_whole,
)
from zygote import ROOT

from retrieval.embedding_cache import EmbeddingCache

pytestmark = pytest.mark.slow

HINT = "interrupted; what is finished is kept, run the same command again\n"
KILLS = {
    "baselines": 55,
    "evaluate_responses": 55,
    "planpers": 45,
    "rank_dataset": 20,
    "rank_dataset bm25": 70,
}


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


# Killed


@pytest.mark.parametrize("case", KILLS, indirect=True)
def test_killed_at_random_moments(case, zygotes, server):
    run_whole(case, zygotes)  # the first one reads its files from disk: its time is no measure
    whole = run_whole(case, zygotes)
    dice, hits = random.Random(case.name), Counter()
    with Watcher([path for output in case.outputs for path in (output, manifest_path(output))]) as watcher:
        for _ in range(20 * KILLS[case.name]):
            if sum(hits.values()) >= KILLS[case.name] and all(hits[place] >= 3 for place in case.places):
                break
            killed_at = kill_once(case, zygotes, server, dice, whole)
            hits.update([killed_at] if killed_at else [])
            if killed_at in (AFTER, None):
                case.finish(zygotes)
                check_whole(case, whole)
                case.clear()
    print(f"{case.name}: killed {dict(hits)}")
    assert sum(hits.values()) >= KILLS[case.name] and all(hits[place] >= 3 for place in case.places), hits
    for output in case.outputs:
        assert watcher.seen[output] == {whole.contents[output]}  # whenever it was there, it was whole
        assert all(json.loads(manifest) for manifest in watcher.seen[manifest_path(output)])


def kill_once(case, zygotes, server, dice, whole):
    """Kill a run at a random moment; returns how far it had come, None where it had ended before."""
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


def test_a_cache_is_whole_after_kills(data, server, tmp_path, zygotes):
    case = make_case("rank_dataset", data, tmp_path, server.url)
    whole = run_whole(case, zygotes)
    first = read_cache(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    dice = random.Random(0)
    for _ in range(10):
        if kill_once(case, zygotes, server, dice, whole) is None:
            case.clear()
    case.finish(zygotes)
    check_whole(case, whole)
    found = read_cache(tmp_path / "cache")
    assert found.keys() == first.keys() and all((found[text] == first[text]).all() for text in first)
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def read_cache(folder):
    """Every embedding of the dataset's texts in the one cache below a folder."""
    (identity,) = folder.glob("*/identity.txt")
    texts = [f"A post about chess {i} — 猫" for i in range(30)] + [f"Why {i} — 猫?" for i in range(24)]
    found = EmbeddingCache(folder, identity.read_text().removesuffix("\n")).get(texts)
    assert found.keys() == set(texts)
    return found


@pytest.mark.parametrize("case", [*KILLS], indirect=True)
def test_killed_before_each_step_of_putting_files_in_place(case, zygotes, server):
    whole = run_whole(case, zygotes)
    case.finish(zygotes)
    kills = 0
    while True:
        for path in (*case.outputs, *map(manifest_path, case.outputs)):
            path.unlink()
        asked = len(server.requests)
        run = case.start(zygotes, die_before_step=kills)
        if run.wait() == 0:
            break
        assert run.returncode == -signal.SIGKILL, run.errors
        for output in case.outputs:
            assert not output.exists() or output.read_bytes() == whole.contents[output]
        case.finish(zygotes)
        check_whole(case, whole)
        assert len(server.requests) == asked
        kills += 1
    # The final file and its manifest: two files synced, then twice a renaming and the folder synced. Before that the
    # embedding cache says whose it is: a file synced and renamed.
    assert kills == 6 * len(case.outputs) + 2 * (case.name == "rank_dataset")


@pytest.mark.parametrize("case", ["baselines"], indirect=True)
def test_killed_while_a_larger_output_takes_a_smaller_ones_place(case, zygotes, server):
    whole = run_whole(case, zygotes)
    (output,) = case.outputs
    case.finish(zygotes)
    for step in range(6):
        case.finish(zygotes, "--limit", 2, "--overwrite")
        part = output.read_bytes()
        run = case.start(zygotes, die_before_step=step)
        assert run.wait() == -signal.SIGKILL, run.errors
        assert output.read_bytes() == (whole.contents[output] if step == 5 else part)  # never half of either
        asked = len(server.requests)
        case.finish(zygotes)
        check_whole(case, whole)
        assert len(server.requests) == asked


@pytest.mark.parametrize(
    ("case", "wanted"),
    [("baselines", 3), ("evaluate_responses", 3), ("planpers gold", 2), ("rank_dataset", 1)],
    indirect=["case"],
)
def test_killed_as_plain_processes(case, wanted, zygotes):
    whole = run_whole(case, zygotes)
    dice = random.Random(case.name)
    kills = 0
    while kills < wanted:
        pieces = min(case.size, case.pieces() + dice.randint(1, 6))
        process = case.start_plain()
        case.wait_for(pieces)
        process.kill()
        _, errors = process.communicate(timeout=600)
        if process.returncode == 0:
            check_whole(case, whole)
            case.clear()
        else:
            assert process.returncode == -signal.SIGKILL, errors
            kills += 1
        assert all(not output.exists() or output.read_bytes() == whole.contents[output] for output in case.outputs)
    process = case.start_plain()
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    check_whole(case, whole)


# Interrupted


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("case", "requests"),
    [("baselines", 8), ("evaluate_responses", 8), ("planpers", 8), ("planpers", 22)],
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
    sent = time.monotonic()
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
    print(f"{case.name}: left after {time.monotonic() - sent:.2f} s")
    assert run.returncode == 130
    progress, last = errors.splitlines()[-2:]
    assert progress.endswith("failed 0") and f"{last}\n" == HINT
    assert "Traceback" not in errors
    stored, asked = len(case.stored()), len(server.requests)
    assert case.place() == ("in stage 1" if requests > 20 else "in stage 0")
    assert not case.outputs[-1].exists()
    case.finish(zygotes)
    check_whole(case, whole)
    assert stored == requests and len(server.requests) - asked == before - stored


STUBBORN = """
import time
from utils import cli
cli.LEAVE_SECONDS = 5
def main():
    while True:
        try:
            print("running", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:  # some library swallows it, or its closing never ends
            print("swallowed", flush=True)
cli.run_script(main)
"""


def test_sigterm_ends_a_run_that_swallows_the_interrupt():
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (130, HINT)
    assert printed == "swallowed\nrunning\n"


ENDING = """
import os, signal, sys
from utils import cli
def end():
    os.kill(os.getpid(), signal.{name})
    raise AssertionError("still here")
import atexit
atexit.register(end)
def main():
    print("finished")
    return 0
cli.run_script(main)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_to_a_run_that_is_leaving_changes_nothing(name):
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(name=name)], cwd=ROOT, text=True, capture_output=True, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "finished\n", "")


@pytest.mark.parametrize("case", ["baselines", "evaluate_responses"], indirect=True)
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
    assert errors == f"error: {case.outputs[0]}: {holder} is writing it; wait for it, or end it\n"
    _, errors = first.communicate(timeout=600)
    assert first.returncode == 0, errors
    assert case.place() == AFTER
