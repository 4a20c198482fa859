"""utils/slurm: the helpers of the sbatch files, and the files on a real cluster where tasks die in every way."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from api_server import default_reply, serve
from hub_server import MODEL, QUESTIONS
from hub_server import serve as serve_hub
from slurm_cluster import start_cluster, why_not
from tiny_chat import SAMPLE
from tiny_encoder import save_tiny_encoder

import baselines
import evaluate_responses
from retrieval import rank_dataset
from utils import make_table
from utils.data.datasets import read_dataset, select_questions

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "utils/slurm"
SBATCH_FILES = sorted(path.name for path in FOLDER.glob("*.sbatch"))
VARIABLES = {"OUTPUT", "FOLDER", "DATASETS", "PYTHON", "MAX_REQUEUES"}  # that the files read, or tests
SHARDS = 4
DATA = SAMPLE / "test.json"


def clean_environment(**variables):
    """Without variables that the user or a SLURM job has set."""
    mine = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    mine = {name: value for name, value in mine.items() if not name.startswith(("SLURM_", "SBATCH_", "OPENAI_", "HF_"))}
    return mine | {"PYTHON": sys.executable} | {name: str(value) for name, value in variables.items()}


# The files


@pytest.mark.parametrize("name", SBATCH_FILES)
def test_every_job_can_be_requeued(name):
    lines = [line for line in (FOLDER / name).read_text().splitlines() if line and not line.startswith("# ")]
    options = " ".join(line for line in lines if line.startswith("#SBATCH"))
    for option in ("--requeue", "--signal=B:TERM@120", "--open-mode=append", "--time=", "--mem=", "--cpus-per-task="):
        assert option in options
    commands = [line for line in lines if not line.startswith("#")]
    assert commands[0] == 'source "$SLURM_SUBMIT_DIR/utils/slurm/common.sh"'


def test_triton_compiles_into_a_temporary_folder_of_the_task(tmp_path):
    (tmp_path / "own").mkdir()
    job = {"SLURM_SUBMIT_DIR": ROOT, "SLURM_JOB_NAME": "judge", "SLURM_JOB_ID": 1, "TMPDIR": tmp_path}
    caches = []
    for more in ({}, {"TRITON_CACHE_DIR": tmp_path / "own"}):
        command = ["bash", FOLDER / "job.sbatch", "bash", "-c", 'ls -d "$TRITON_CACHE_DIR"']
        environment = clean_environment(**job, **more)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        caches.append(Path(done.stdout.splitlines()[-1]))
    assert caches[0].parent == tmp_path and not caches[0].exists()
    assert caches[1] == tmp_path / "own" and caches[1].exists()


# Downloads


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_needed_files_are_downloaded_once(tmp_path, kind):
    weights = ["model.safetensors", "pytorch_model.bin", "x.gguf"] if kind == "safetensors" else ["pytorch_model.bin"]
    files = {name: name.encode() for name in ("config.json", "tokenizer.json", "README.md", "tf_model.h5", *weights)}
    for folder in ("data", "folder"):
        (tmp_path / folder).mkdir()
    for category, split in QUESTIONS:
        (tmp_path / f"data/{category}_{split}.json").write_text("[]")
    with serve_hub(files) as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": f"{tmp_path}/hf"}
        command = ["bash", "utils/slurm/prefetch.sh", tmp_path / "data", MODEL, tmp_path / "folder"]
        for _ in range(2):
            done = subprocess.run(
                command, cwd=ROOT, env=clean_environment(**variables), capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stderr
            assert sorted(hub.fetched) == ["config.json", weights[0], "tokenizer.json"]  # the second time nothing
    *_, model, folder = done.stdout.splitlines()
    assert folder == f"{tmp_path}/folder: a folder, skipped"
    place = f"{tmp_path}/hf/hub/models--{MODEL.replace('/', '--')}/snapshots/{hub.branches['main']}"
    assert model == f"{MODEL}: in {place}" and (Path(place) / weights[0]).read_text() == weights[0]


def test_without_arguments_it_prints_its_usage():
    done = subprocess.run(["bash", FOLDER / "prefetch.sh"], env=clean_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: utils/slurm/prefetch.sh FOLDER [MODEL...]\n"


# On a cluster


def on_a_cluster(test):
    return pytest.mark.engine(pytest.mark.skipif(why_not() is not None, reason=str(why_not()))(test))


@pytest.fixture(scope="module")
def cluster():
    with start_cluster() as cluster:
        yield cluster


class Gate:
    """Passes requests on to the API, or holds some of them.

    Attributes:
        held: results of `name` for the requests that are, or were last, held.
    """

    def __init__(self):
        self.held = set()
        self._rule = (lambda request: None, threading.Event())

    def close(self, name):
        """From now on, hold the requests that `name` names; release earlier ones."""
        self.open()
        self.held, self._rule = set(), (name, threading.Event())

    def open(self):
        _, opened = self._rule
        self._rule = (lambda request: None, opened)
        opened.set()

    def reply(self, request):
        name, opened = self._rule
        if (held := name(request)) is not None:
            self.held.add(held)
            opened.wait()
        return default_reply(request)


@pytest.fixture
def gate():
    gate = Gate()
    with serve(gate.reply) as server:
        gate.server = server
        yield gate
        gate.open()


@pytest.fixture
def api(gate, tmp_path):
    """Return flags of a script that uses the API, one question at a time."""
    (tmp_path / "key.txt").write_text("sk-test")
    key = ["--api_key_addr", f"{tmp_path}/key.txt"]
    return ["--openai", "--base_url", gate.server.url, *key, "--max_concurrency", "1"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(save_tiny_encoder(tmp_path_factory.mktemp("encoder")))


@dataclass
class Queue:
    """Submits the included files as in their usage lines; logs go to one folder."""

    cluster: object
    logs: Path

    def job(self, name, *command, python=sys.executable, after=(), array=None, **variables):
        """Submit a command with utils/slurm/job.sbatch."""
        options = [f"--job-name={name}", "--kill-on-invalid-dep=yes", f"--chdir={ROOT}"]
        if after:
            options.append(f"--dependency=afterok:{':'.join(after)}")
        if array:
            options.append(f"--array={array}")
        options.append(f"--output={self.logs}/%x{'_%a' if array else ''}.log")
        environment = self.cluster.environment | {"PYTHON": sys.executable} | variables
        command = ["sbatch", "--parsable", *options, "utils/slurm/job.sbatch", python, *map(str, command)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def in_shards(self, name, *command, number, after=()):
        """Submit an array, and the job that writes the output from its tasks' completions; return their ids."""
        shard = "--num_shards $SLURM_ARRAY_TASK_COUNT --shard_index $SLURM_ARRAY_TASK_ID"
        line = f"exec {shlex.join([sys.executable, *map(str, command)])} {shard}"
        array = self.job(name, "-c", line, python="bash", after=after, array=f"0-{number - 1}")
        return array, self.job(f"{name}_output", *command, "--cached_only", after=[array])

    def log(self, name):
        return (self.logs / f"{name}.log").read_text()


@pytest.fixture
def queue(cluster, tmp_path):
    (tmp_path / "logs").mkdir()
    return Queue(cluster, tmp_path / "logs")


def pid_of_task(job, index):
    """Return the process id of Python in an array's task."""
    wanted = {f"SLURM_ARRAY_JOB_ID={job}".encode(), f"SLURM_ARRAY_TASK_ID={index}".encode()}
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            command = (process / "cmdline").read_bytes().split(b"\0")
            if command[0] == sys.executable.encode() and wanted <= {*(process / "environ").read_bytes().split(b"\0")}:
                pids.append(int(process.name))
    [pid] = pids
    return pid


def test_a_jobs_log_hides_passwords_and_keys():
    """A command is printed before it runs."""
    url = "https://me:cret@host/v1?api-version=1&api-key=sk-123&x=2"
    command = f"source utils/slurm/common.sh; run true --base_url '{url}' --extra 'Token=kept'"
    job = {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "job"}
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env={**os.environ, **job}, capture_output=True, text=True)
    printed = "$ true --base_url https://host/v1?api-version=1&api-key=***&x=2 --extra Token=kept\n"
    assert done.returncode == 0 and printed in done.stdout


def restarts(cluster, job):
    return {int(fields["ArrayTaskId"]): int(fields["Restarts"]) for fields in cluster.jobs(job)}


def asked(request, questions):
    """Return whether the request is about one of these questions."""
    return any(question["question"] in request["messages"][-1]["content"] for question in questions)


def run_alone(folder, encoder, api):
    """Return one process's outputs for the sample, with the jobs' file names."""
    ranked, responses, scores = folder / "ranked.json", [folder / "none.json", folder / "rag.json"], score_files(folder)
    for main, words in (
        (rank_dataset.main, ["--input_dataset_addr", DATA, "--output_dataset_addr", ranked, "--model_name", encoder]),
        (baselines.main, ["--model_addr", "a-model", *api, "--inputs_addr", DATA, "--output_addr", responses[0]]),
        (
            baselines.main,
            ["--model_addr", "a-model", *api, "--inputs_addr", ranked, "--rag", "--output_addr", responses[1]],
        ),
        (evaluate_responses.main, [*judging_flags(api), "--response_addr", *responses, "--score_addr", *scores]),
        (make_table.main, [*table_rows(folder), "--output_addr", folder / "table.md"]),
    ):
        assert main([str(word) for word in words]) == 0


def judging_flags(api):
    return ["--evaluator_llm", "a-judge", *api, "--inputs_addr", DATA]


def score_files(folder):
    return [f"{folder}/none_scores.json", f"{folder}/rag_scores.json"]


def table_rows(folder):
    none, rag = score_files(folder)
    return ["--system", "None", none, "--system", "RAG", rag]


def submit_chain(queue, out, encoder, api):
    """Submit the jobs from ranking to table, each after those it needs; return ids by name, and all ids."""
    ranked = out / "ranked.json"
    ranking = ["--model_name", encoder, "--input_dataset_addr", DATA, "--output_dataset_addr", ranked]
    ids = {"rank": queue.job("rank", "retrieval/rank_dataset.py", *ranking)}
    outputs = []
    for name, inputs, flags in (("none", DATA, []), ("rag", ranked, ["--rag"])):
        command = ["baselines.py", "--model_addr", "a-model", *api, "--inputs_addr", inputs, *flags]
        command += ["--output_addr", out / f"{name}.json"]
        ids[name], output = queue.in_shards(name, *command, number=SHARDS, after=[ids["rank"]])
        outputs.append(output)
    judging = [*judging_flags(api), "--response_addr", out / "none.json", out / "rag.json"]
    judging += ["--score_addr", *score_files(out)]
    ids["judge"], output = queue.in_shards("judge", "evaluate_responses.py", *judging, number=SHARDS, after=outputs)
    table = [*table_rows(out), "--output_addr", out / "table.md"]
    ids["table"] = queue.job("table", "utils/make_table.py", *table, after=[output])
    return ids, [*ids.values(), *outputs, output]


@on_a_cluster
def test_tasks_that_die_change_nothing(queue, gate, api, encoder, tmp_path):
    """Of the tasks for RAG answers, one is killed, one nears its time limit, one is requeued, one gets the signal.

    Of those for verdicts, one is killed and one requeued. Each pauses at its second question, or its only one. Another
    task, with no jobs after it, reaches its time limit before the warning.
    """
    cluster, out, alone = queue.cluster, tmp_path / "out", tmp_path / "alone"
    alone.mkdir()
    run_alone(alone, encoder, api)
    asked_alone = list(gate.server.requests)
    shards = [select_questions(read_dataset(str(DATA)), None, SHARDS, index) for index in range(SHARDS)]
    assert [len(shard) for shard in shards] == [6, 2, 1, 4]
    first = [shard[0] for shard in shards if len(shard) > 1]

    def held_shard(request, verdicts):
        places = [i for i, shard in enumerate(shards) if asked(request, shard[1:] or shard)]
        is_verdict = "match_score" in request["messages"][0]["content"]
        return places[0] if places and is_verdict == verdicts else None

    def held_answer(request):
        if request["model"] == "late-model":
            return "late"
        has_posts = "ast post" in request["messages"][-1]["content"]
        return held_shard(request, verdicts=False) if has_posts else None

    gate.close(held_answer)
    ids, jobs = submit_chain(queue, out, encoder, api)
    files = ["--inputs_addr", DATA, "--output_addr", out / "late.json"]
    late = queue.job("late", "baselines.py", "--model_addr", "late-model", *api, *files, array="0-0")
    cluster.wait_until(lambda: gate.held == {0, 1, 2, 3, "late"})
    end = ["scontrol", "update", f"jobid={late}_0", "endtime=now"]  # refused if that second is over when it arrives
    cluster.wait_until(lambda: subprocess.run(end, env=cluster.environment, capture_output=True).returncode == 0)
    os.kill(pid_of_task(ids["rag"], 0), signal.SIGKILL)
    cluster.call("scontrol", "update", f"jobid={ids['rag']}_1", "endtime=now+100")
    cluster.call("scontrol", "requeue", f"{ids['rag']}_2")
    cluster.call("scancel", "--batch", "--signal=TERM", f"{ids['rag']}_3")
    cluster.wait_until(lambda: restarts(cluster, ids["rag"]) == {0: 1, 1: 1, 2: 1, 3: 1})
    cluster.wait_until(lambda: restarts(cluster, late) == {0: 1})

    gate.close(lambda request: held_shard(request, verdicts=True))
    cluster.wait_until(lambda: gate.held == {0, 1, 2, 3})
    os.kill(pid_of_task(ids["judge"], 0), signal.SIGKILL)
    cluster.call("scontrol", "requeue", f"{ids['judge']}_3")
    cluster.wait_until(lambda: restarts(cluster, ids["judge"]) == {0: 1, 1: 0, 2: 0, 3: 1})
    gate.open()
    cluster.wait(*jobs, late)

    assert {state for job in (*jobs, late) for state in cluster.states(job)} == {"COMPLETED"}
    for name in ("ranked.json", "none.json", "rag.json", "none_scores.json", "rag_scores.json", "table.md"):
        assert (out / name).read_bytes() == (alone / name).read_bytes(), name
    # Work finished before a task died was not requested again.
    asked_here = [request for request in gate.server.requests[len(asked_alone) :] if request["model"] != "late-model"]
    counts = [sum(asked(request, first) for request in requests) for requests in (asked_alone, asked_here)]
    assert counts[0] == counts[1] > 0

    logs = {name: queue.log(name) for name in ("rag_0", "rag_1", "rag_2", "rag_3", "judge_0", "judge_3", "late_0")}
    for log in logs.values():  # of both runs
        assert re.findall(r"^== .*, restart (\d)$", log, re.MULTILINE) == ["0", "1"]
    back = "requeued; the next run resumes here\n"
    assert {name for name, log in logs.items() if f"killed, exit code 137\n{back}" in log} == {"rag_0", "judge_0"}
    # 143 if SLURM's TERM to all processes of a task reaches one that is already exiting.
    warned = {name for name, log in logs.items() if re.search(f"stopped by a signal, exit code 1(30|43)\n{back}", log)}
    assert warned == {"rag_1", "rag_3", "late_0"}
    # SLURM omits the reason if the task is already requeued.
    assert re.search(r"CANCELLED AT \S+ (DUE TO TIME LIMIT )?\*\*\*", logs["late_0"])


def holding_all(request):
    """Hold all requests of a gate."""
    return request["messages"][-1]["content"]


def answering(folder, api, data=DATA):
    return ["baselines.py", "--model_addr", "m", *api, "--inputs_addr", data, "--output_addr", folder / "none.json"]


@on_a_cluster
def test_a_cancelled_task_stays_cancelled(queue, gate, api, tmp_path):
    cluster = queue.cluster
    gate.close(holding_all)
    answers, output = queue.in_shards("none", *answering(tmp_path, api), number=2)
    cluster.wait_until(lambda: len(gate.held) == 2)
    cluster.call("scancel", answers)
    cluster.wait(answers, output)
    assert cluster.states(answers) == cluster.states(output) == {"CANCELLED"}
    assert restarts(cluster, answers) == {0: 0, 1: 0}
    for log in (queue.log("none_0"), queue.log("none_1")):
        assert "interrupted; finished work is kept" in log
        assert re.search("stopped by a signal, exit code 1(30|43)\n", log) and "requeued; the next" not in log


@on_a_cluster
def test_a_mistake_is_not_made_twice(queue, api, tmp_path):
    cluster = queue.cluster
    missing, output = queue.in_shards("none", *answering(tmp_path, api, tmp_path / "no.json"), number=2)
    table = queue.job("table", "utils/make_table.py", "--system", "None", tmp_path / "none.json", after=[output])
    cluster.wait(missing, output, table)
    ends = {(fields["JobState"], fields["ExitCode"], fields["Restarts"]) for fields in cluster.jobs(missing)}
    assert ends == {("FAILED", "2:0", "0")}
    assert f"{tmp_path}/no.json: no such file" in queue.log("none_0")
    assert cluster.states(output) == cluster.states(table) == {"CANCELLED"}


@on_a_cluster
def test_a_gpu_that_slurm_gave_and_torch_cannot_use(queue, encoder, tmp_path):
    """The job's first command finds it; the variables are SLURM's own, except the one that its task prolog clears."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nCUDA_VISIBLE_DEVICES=0 exec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    ranking = ["--model_name", encoder, "--input_dataset_addr", str(SAMPLE / "test.json")]
    ranking += ["--output_dataset_addr", f"{tmp_path}/ranked.json"]
    job = queue.job("rank", "retrieval/rank_dataset.py", *ranking, python=str(tmp_path / "python"))
    queue.cluster.wait(job)
    (fields,) = queue.cluster.jobs(job)
    assert (fields["JobState"], fields["ExitCode"], fields["Restarts"]) == ("FAILED", "2:0", "0")
    assert "error: SLURM allocated GPUs to this job (1), but torch finds no GPU\n" in queue.log("rank")
    assert not (tmp_path / "ranked.json").exists()


@on_a_cluster
def test_a_task_killed_repeatedly_is_given_up(queue, gate, api, tmp_path):
    cluster = queue.cluster
    for number in range(2):
        gate.close(holding_all)
        if number == 0:
            job = queue.job("none", *answering(tmp_path, api), array="0-0", MAX_REQUEUES="1")
        cluster.wait_until(lambda: gate.held)
        os.kill(pid_of_task(job, 0), signal.SIGKILL)
    cluster.wait(job)
    (fields,) = cluster.jobs(job)
    assert (fields["JobState"], fields["Restarts"]) == ("FAILED", "1")
    assert "killed, exit code 137, already requeued 1 times; giving up" in queue.log("none_0")
