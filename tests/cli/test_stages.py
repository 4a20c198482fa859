"""Two commands side by side in the demos: what they print, what becomes of a failure, and of Ctrl-C."""

import os
import signal
import subprocess

import psutil
import pytest

ROOT = __file__.rpartition("/tests/")[0]


def demo(body: str, **environment: str) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | environment
    return subprocess.Popen(
        ["sh", "-c", f"set -eu; num_stages=1; . utils/cli/stages.sh; {body}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_what_runs_aside_is_shown_when_both_have_ended():
    body = 'other() { run echo second "$OMP_NUM_THREADS"; }; aside other; run echo first; together'
    run = demo(body + '; echo "${OMP_NUM_THREADS-none}"')
    output, _ = run.communicate(timeout=600)
    half = max(1, len(os.sched_getaffinity(0)) // 2)
    assert output.split("\n") == [
        "",
        "$ echo first",
        "first",
        "",
        f"$ echo second {half}",
        f"second {half}",
        "none",
        "",
    ]
    assert run.returncode == 0


def test_the_users_threads_stay():
    run = demo(
        'other() { echo "$OMP_NUM_THREADS"; }; aside other; together; echo "$OMP_NUM_THREADS"', OMP_NUM_THREADS="3"
    )
    assert run.communicate(timeout=600)[0] == "3\n3\n"


def test_a_failure_aside_ends_the_run_after_its_output():
    run = demo("other() { echo why; false; echo on; }; aside other; run echo first; together; echo never")
    output, _ = run.communicate(timeout=600)
    assert "first" in output and output.endswith("why\n") and run.returncode == 1


@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_left_running(fails):
    """The run itself fails, or the terminal's Ctrl-C comes to all of it."""
    # The command in front says itself that it runs: a signal that comes before it began does not reach it.
    ends = "; false" if fails else "; exec sleep 1000"
    run = demo(f"other() {{ sleep 1000; }}; aside other; sh -c 'echo begun{ends}'")
    assert run.stdout.readline() == "begun\n"
    children = psutil.Process(run.pid).children(recursive=True)
    if not fails:
        os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=600) == (1 if fails else 130)
    assert not psutil.wait_procs(children, timeout=600)[1]
