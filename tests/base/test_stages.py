"""Two parallel commands in the demos: their output, failures, and Ctrl-C."""

import os
import signal
import subprocess

import psutil
import pytest

ROOT = __file__.rpartition("/tests/")[0]


def demo(body: str, **environment: str) -> subprocess.Popen:
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment = inherited | {"CUDA_VISIBLE_DEVICES": ""} | environment
    return subprocess.Popen(
        ["sh", "-c", f"set -eu; num_stages=1; . utils/demo/stages.sh; {body}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_background_output_is_shown_when_both_have_ended():
    body = 'other() { run echo second "$OMP_NUM_THREADS"; }; aside other; run echo first; together'
    run = demo(body + '; echo "${OMP_NUM_THREADS-none}"')
    output, _ = run.communicate(timeout=600)
    half = max(1, len(os.sched_getaffinity(0)) // 2)
    assert output == f"\n$ echo first\nfirst\n\n$ echo second {half}\nsecond {half}\nnone\n"
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("visible", "seen"),
    [(None, "0"), ("2,3", "2"), ("GPU-a,GPU-b", "GPU-a"), ("", None), ("-1", None)],
)
def test_on_a_gpu_both_run_in_turn_on_the_first_gpu(tmp_path, visible, seen):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100'\necho 'GPU 1: NVIDIA H100'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    which = f"export CUDA_VISIBLE_DEVICES={visible}" if visible is not None else "unset CUDA_VISIBLE_DEVICES"
    body = 'other() { echo "$CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS"; }; aside other; echo front; together'
    run = demo(f"PATH={tmp_path}:$PATH; {which}; . utils/demo/stages.sh; {body}", OMP_NUM_THREADS="5")
    lines = run.communicate(timeout=600)[0].splitlines()
    assert lines == ([f"{seen} 5", "front"] if seen else ["front", f"{visible} 5"]) and run.returncode == 0


def test_a_background_failure_ends_the_run_after_its_output():
    run = demo("other() { echo why; false; echo on; }; aside other; run echo first; together; echo never")
    output, _ = run.communicate(timeout=600)
    assert "first" in output and output.endswith("why\n") and run.returncode == 1


@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_left_running(fails):
    """The run itself fails, or Ctrl-C reaches all processes."""
    # The foreground command reports its start, because an earlier signal would not reach it.
    ends = "; false" if fails else "; exec sleep 1000"
    run = demo(f"other() {{ sleep 1000; }}; aside other; sh -c 'echo begun{ends}'")
    assert run.stdout.readline() == "begun\n"
    children = psutil.Process(run.pid).children(recursive=True)
    if not fails:
        os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=600) == (1 if fails else 130)
    assert not psutil.wait_procs(children, timeout=600)[1]
