"""Real runs of the scripts for GPU tests, and the GPUs' memory during them.

The tests' own process uses no GPU, because its memory there would be measured too.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from utils.models.devices import ask_nvidia_smi, has_gpu

ROOT = Path(__file__).resolve().parents[2]
CHAT, ENCODER = ROOT / "demo/models/chat", ROOT / "demo/models/encoder"
SAMPLE = ROOT / "tests/data/mini_lampqa"
MINUTES = float(os.environ.get("MINUTES", "30"))  # that all checks may take on a GPU
LONGEST = 600  # seconds of one program on a GPU; what takes longer hangs
PATIENCE = 60  # seconds to wait for memory that a run held, or for a killed process
NEAR = 1024  # MiB: so near to what it was is memory that was given back, for the driver keeps some
LOOK = 0.1  # seconds between two looks
TAIL = 30  # lines of a failed program that are shown


class Machine:
    """Where the tests run: on all visible GPUs, or on the CPU to test the tests."""

    def __init__(self, device: str, folder: Path):
        """Write programs' output to files NN.log in a folder."""
        import torch

        self.device, self.folder = device, folder
        self.logs = 0
        self.num_gpus = torch.cuda.device_count() if device == "cuda" and has_gpu() else 0
        assert device == "cpu" or self.num_gpus, "--device cuda: torch finds no GPU on this machine"
        self._deadline = time.monotonic() + MINUTES * 60 if self.num_gpus else None
        self.sizes, self.idle = self._ask("memory.total"), self.memory()

    def pick(self, on_gpu: object, on_cpu: object) -> object:
        """Return the GPU's size of work, or the CPU's, which is smaller."""
        return on_gpu if self.num_gpus else on_cpu

    def seconds_left(self) -> float:
        return LONGEST if self._deadline is None else self._deadline - time.monotonic()

    def start(
        self, *words: object, program: str = sys.executable, one_gpu: bool = False, **environment: str
    ) -> subprocess.Popen:
        """Start a program, Python by default, with all visible GPUs or the first, offline."""
        variables = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        variables |= environment
        if self.num_gpus:
            variables.pop("OMP_NUM_THREADS", None)  # is one for tests that share a machine, and these don't
            if one_gpu:
                variables["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        else:
            variables |= {"CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_KVCACHE_SPACE": "1"}
        command = [program, *map(str, words)]
        self.logs += 1
        log = self.folder / f"{self.logs:02}.log"
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8") as file:
            shown = " ".join(f"{name}={value}" for name, value in environment.items())
            print("$", shown, shlex.join(command), file=file, flush=True)
            process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        process.log = log
        return process

    def finish(self, process: subprocess.Popen, may_fail: bool = False) -> str:
        """Wait until a program succeeds, and return its output."""
        limit = min(LONGEST, self.seconds_left()) if self.num_gpus else None
        try:
            process.wait(limit and max(1, limit))
        except subprocess.TimeoutExpired:
            end(process)
            if limit < LONGEST:
                pytest.skip(f"the {MINUTES:g} minutes were over while it ran")
            self._fail(process, f"it took longer than {LONGEST} s")
        except BaseException:  # Ctrl-C is not for its group
            end(process)
            raise
        if process.returncode and not may_fail:
            code = process.returncode
            self._fail(process, f"ended with {code}" if code > 0 else f"ended by {signal.Signals(-code).name}")
        return printed_by(process)

    def _fail(self, process: subprocess.Popen, how: str) -> None:
        """Fail with the last lines that the program printed."""
        last = printed_by(process).splitlines()[-TAIL:]
        pytest.fail("\n".join([f"{shlex.join(process.args[:3])} ... {how} ({process.log})", *last]), pytrace=False)

    def run(self, *words: object, **more: object) -> str:
        return self.finish(self.start(*words, **more))

    def kill_when(self, process: subprocess.Popen, reached: Callable[[], bool]) -> None:
        """Kill a program once it has come this far; its child processes must end by themselves."""
        until = min(LONGEST, self.seconds_left()) + time.monotonic()
        while not reached():
            if process.poll() is not None:
                self._fail(process, "ended before it was killed")
            if time.monotonic() > until:
                end(process)
                self._fail(process, f"did not come so far in {LONGEST} s")
            time.sleep(LOOK)
        process.send_signal(signal.SIGKILL)
        wait_for(process)

    def memory(self) -> list[int]:
        """Return the used MiB on each visible GPU; empty on a CPU, or if nvidia-smi reports none (part of a GPU)."""
        return self._ask("memory.used")

    def _ask(self, field: str) -> list[int]:
        lines = ask_nvidia_smi(field) or [] if self.num_gpus else []
        return [int(line) for line in lines] if all(line.isdigit() for line in lines) else []

    def wait_until_idle(self) -> int:
        """Wait up to `PATIENCE` until runs have freed their memory; return the rest, as in `above_idle`.

        Another user's process may keep it.
        """
        until = time.monotonic() + PATIENCE
        while (held := self.above_idle(self.memory())) >= NEAR and time.monotonic() < until:
            time.sleep(LOOK)
        return held

    def above_idle(self, used: list[int]) -> int:
        """Return the largest increase of used MiB on a GPU since the start."""
        return max((now - before for now, before in zip(used, self.idle, strict=False)), default=0)

    @contextmanager
    def watching(self) -> Iterator[list[list[int]]]:
        """Sample `memory` repeatedly while something else runs."""
        samples, done = [], threading.Event()

        def watch() -> None:
            while not done.wait(LOOK):
                if len(used := self.memory()) == len(self.idle):  # else it could not tell at that moment
                    samples.append(used)

        thread = threading.Thread(target=watch, daemon=True)
        if self.idle:
            thread.start()
        try:
            yield samples
        finally:
            done.set()
            if self.idle:
                thread.join()


def printed_by(process: subprocess.Popen) -> str:
    """Return a program's output, without the command."""
    return process.log.read_text(encoding="utf-8", errors="replace").partition("\n")[2]


def end(process: subprocess.Popen) -> None:
    """Stop a program with all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    wait_for(process)


def wait_for(process: subprocess.Popen) -> None:
    """Wait for a killed process, which a hanging driver can keep forever."""
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"process {process.pid} is still here {PATIENCE} s after SIGKILL", pytrace=False)


def needs_package(name: str) -> pytest.MarkDecorator:
    """Skip a test if a package is not installed."""
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name.replace('_', '-')} is not installed")


def note_lines(figure: Callable[[str], None], printed: str) -> None:
    """Record the figures in a program's output."""
    for line in printed.splitlines():
        if line.startswith("FIGURE "):
            figure(line.removeprefix("FIGURE "))


def lowest_between_peaks(used: list[int]) -> int:
    """Return the minimum of a curve between its two plateaus, whatever their heights; for one plateau, its height.

    A valley is as deep as the lower of its two sides; the minimum is taken where this depth is largest.
    """
    deepest, lowest = 0, max(used)
    for place, value in enumerate(used):
        depth = min(max(used[: place + 1]), max(used[place:])) - value
        if depth > deepest:
            deepest, lowest = depth, value
    return lowest
