"""Tests that need a GPU: `make test-gpu` runs them one at a time, because they measure the GPU's memory.

The output of each script is in gpu_report/NN.log, and figures are printed at the end. `--device cpu` runs the tests on
a small scale, to test them.
"""

import shutil
import tempfile
from importlib import metadata
from pathlib import Path

import pytest
from gpu_runs import CHAT, ROOT, Machine

from utils.models.devices import OLDEST, ask_nvidia_smi, find_capabilities

# What matters most comes first, in case the time runs out.
TOPICS = ("machine", "speed", "engines", "training", "ranking")
DISK = 16 * 10**9  # bytes: the weights of the 7B shape are 15.2
GPU_MEMORY = 22_000  # MiB that a GPU has at least to hold the 7B shape and something to compute with


def pytest_addoption(parser):
    parser.addoption("--device", choices=["cuda", "cpu"], help="where tests/gpu computes; without it nothing is run")
    parser.addoption("--report", type=Path, default=ROOT / "gpu_report", help="folder of the logs and the results")


def waits_for(config):
    """Return what the tests lack here; None if they can run."""
    device = config.getoption("device", None)
    if device == "cuda":
        old = [f"{gpu} has {has:g}" for gpu, has in find_capabilities().items() if has < OLDEST]
        if old:
            return f"compute capability {OLDEST} is needed, and {', '.join(old)} (CUDA_VISIBLE_DEVICES leaves one out)"
        return None if ask_nvidia_smi("name") else "no GPU is here"
    return None if device == "cpu" else "make test-gpu runs them, where there is one"


def is_check(item):
    return "machine" in getattr(item, "fixturenames", ())  # of these files alone


def pytest_collection_modifyitems(config, items):
    checks = [item for item in items if is_check(item)]
    if config.getoption("device", None):  # what needs no GPU is for `make test`, and calls pytest on this folder
        items[:] = checks
    if checks and (reason := waits_for(config)):
        checks[0].add_marker(pytest.mark.skip(reason=f"{len(checks)} checks of tests/gpu; {reason}"))
        items[:] = [item for item in items if item is checks[0] or not is_check(item)]  # skipped in one line
    elif checks:
        topic_of = {item: item.path.stem.removeprefix("test_gpu_") for item in checks}
        items[:] = sorted(checks, key=lambda item: TOPICS.index(topic_of[item]))


def pytest_report_header(config):
    if config.getoption("device", None):
        cards = ask_nvidia_smi("name,memory.total,driver_version") or ["no GPU"]
        packages = ("torch", "vllm", "transformers", "peft", "flash-attn")
        return ["; ".join(cards), ", ".join(f"{name} {version_of(name)}" for name in packages)]
    return None


def version_of(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def pytest_terminal_summary(terminalreporter):
    """Print the figures of each test."""
    for report in (report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])):
        for _, figure in (pair for pair in report.user_properties if pair[0] == "figure" and report.when == "call"):
            terminalreporter.write_line(f"{report.nodeid.partition('::test_')[2].replace('_', ' ')}: {figure}")


@pytest.fixture(scope="session")
def machine(request):
    assert (CHAT / "config.json").exists(), "the demo's models are missing: run `make models`"
    folder = request.config.getoption("report").absolute()
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
    return Machine(request.config.getoption("device"), folder)


@pytest.fixture(autouse=True)
def in_time(request):
    """Skip the tests without enough remaining time."""
    if is_check(request.node) and request.getfixturevalue("machine").seconds_left() <= 0:
        pytest.skip("the time was over (MINUTES)")


@pytest.fixture
def figure(record_property):
    """Record a figure, before it is compared with its expected value."""

    def note(text):
        record_property("figure", text)
        print(text)

    return note


@pytest.fixture(scope="session")
def models():
    """A folder for models made by the tests; it is deleted, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="gpu_models_") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def make_model(machine, models):
    """Make a model of tests/gpu/gpu_models.py once, and return its folder."""

    def make(kind, shape):
        folder = models / f"{kind}-{shape}"
        if not folder.exists():
            device = "cuda" if machine.num_gpus else "cpu"
            machine.run("tests/gpu/gpu_models.py", kind, shape, folder, device)
        return folder

    return make


@pytest.fixture(scope="session")
def generator(machine, models, make_model):
    """A chat model with random weights; for a GPU, in the shape of Qwen 2.5 7B."""
    if machine.num_gpus and (free := shutil.disk_usage(models).free) < DISK:
        pytest.skip(f"{models.parent} (TMPDIR) has {free / 1e9:.0f} GB free, {DISK / 1e9:.0f} are needed")
    if machine.sizes and min(machine.sizes) < GPU_MEMORY:
        pytest.skip(f"a GPU has {min(machine.sizes)} MiB, the 7B shape takes {GPU_MEMORY}")
    return make_model("generator", machine.pick("7B", "tiny"))
