"""A study's steps as SLURM jobs: what would be submitted, what the jobs run, and a whole study on a real cluster."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from slurm_cluster import start_cluster
from test_run_study import (  # noqa: F401 (fixtures)
    FOLDER,
    SAMPLE,
    TABLE,
    finished,
    forget,
    make_data,
    server,
    work,
)
from test_slurm import api, clean_environment, gate, on_a_cluster  # noqa: F401 (fixtures)
from test_study import ART, ROOT, SOCIETY, study_of, write_study
from tiny_chat import sample_records
from tiny_encoder import save_tiny_encoder

from utils import run_study
from utils.checks.commands import parser_of, preflights_of
from utils.cli import UserError
from utils.studies.jobs import make_jobs, prefetch_command
from utils.studies.plan import plan_study
from utils.studies.state import find_pending
from utils.studies.study import CATEGORIES, read_study

# What is submitted


@dataclass
class Job:
    variables: dict[str, str]
    options: dict[str, str]
    file: str
    flags: list[str]
    after: list[str]


RECORDER = (
    f"#!{sys.executable} -IS"
    + """
import json, os, sys
with open(os.environ["CALLS"], "a+") as calls:
    calls.seek(0)
    number = len(calls.readlines()) + 1
    names = "MODEL JUDGE ENCODER PLANNER INPUTS VALIDATION OUTPUT FOLDER SYSTEMS SUFFIX RESPONSES SHARDS OVERWRITE"
    variables = {name: os.environ[name] for name in names.split() if name in os.environ}
    calls.write(json.dumps([variables, sys.argv[1:]]) + "\\n")
print(f"{number};cluster")
"""
)


@pytest.fixture
def recorder(tmp_path):
    """Variables for a shell whose `sbatch` only writes down how it was called."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(RECORDER)
    (tmp_path / "bin/sbatch").chmod(0o755)
    return {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CALLS": tmp_path / "calls"}


def read_jobs(calls):
    """The submitted jobs by name, without what stands in front of it; `after` are names too."""
    jobs, names = {}, {}
    for number, line in enumerate(calls.read_text().splitlines(), 1):
        variables, words = json.loads(line)
        place = next(i for i, word in enumerate(words) if word.startswith("utils/"))
        options = dict(word.removeprefix("--").partition("=")[::2] for word in words[:place])
        condition, _, rest = options["dependency"].rpartition("singleton")
        assert (rest, condition.endswith(",") or not condition) == ("", True)
        after = [names[int(job)] for job in condition.rstrip(",").split(":")[1:]]
        names[number] = options["job-name"].partition(".")[2]
        jobs[names[number]] = Job(variables, options, words[place], words[place + 1 :], after)
    return jobs


CLUSTER = """
data = "{folder}/data"
output = "{folder}/t2"
[slurm]
sbatch_args = ["--account=lab"]
"""


def sbatch(*flags, environment=None):
    return subprocess.run(
        [sys.executable, "utils/run_study.py", "--sbatch", *flags],
        cwd=ROOT, env=environment or clean_environment(), capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.fixture
def cluster_data(tmp_path):
    (tmp_path / "data").mkdir()
    for category, split in product(CATEGORIES, ("train", "validation", "test")):
        record = sample_records("test", 1)[0] | {"id": f"{category} {split}"}
        (tmp_path / f"data/{category}_{split}.json").write_text(json.dumps([record]))
    return tmp_path


def jobs_of(study):
    steps = run_study.check_commands(study, plan_study(study))
    return {job.name: job for job in make_jobs(study, find_pending(steps))}


def test_the_whole_table_is_submitted(recorder, cluster_data):
    path = write_study(cluster_data, CLUSTER.format(folder=cluster_data))
    done = sbatch("--study_addr", path, environment=clean_environment(**recorder))
    assert done.returncode == 0, done.stderr
    jobs, out = read_jobs(recorder["CALLS"]), f"{cluster_data}/t2"
    # 3 categories: 4 rankings, a training, 4 times answers and their merge, verdicts and their merge; then the table.
    assert len(jobs) == 3 * (4 + 1 + 4 * 2 + 2) + 1 == len(done.stdout.splitlines())
    model, category = "Qwen2.5-7B-Instruct", "Society_and_Culture"
    answers, merge = f"answer.{model}.{category}.test.", f"merge.{model}.{category}.test."
    edges = {name: sorted(job.after) for name, job in jobs.items() if category in name}
    assert edges == {
        f"rank.{category}.test": [],
        f"rank.{category}.test_random": [f"rank.{category}.test"],
        f"rank.{category}.train": [],
        f"rank.{category}.validation": [],
        f"train.{category}": [f"rank.{category}.train", f"rank.{category}.validation"],
        answers + "none": [],
        answers + "rag": [f"rank.{category}.test"],
        answers + "rag_random": [f"rank.{category}.test_random"],
        answers + "planpers": [f"rank.{category}.test", f"train.{category}"],
        **{merge + method: [answers + method] for method in ("none", "rag", "rag_random", "planpers")},
        f"judge.{model}.{category}.test": [merge + method for method in ("none", "planpers", "rag", "rag_random")],
        merge + "scores": [f"judge.{model}.{category}.test"],
    }
    assert [name for name, job in jobs.items() if not set(job.after) <= set(jobs)] == []
    assert len(jobs[f"table.{model}.test.study"].after) == 3
    for name, job in jobs.items():
        assert job.options["job-name"] == f"t2.{name}"
        assert job.options["kill-on-invalid-dep"] == "yes" and job.options["account"] == "lab"
        is_array = Path(job.file).name in ("answer.sbatch", "plan_and_answer.sbatch", "judge.sbatch")
        assert job.options.get("array") == ("0-3" if is_array else None)
        assert job.options["output"] == f"{out}/logs/%x" + ("_%a.log" if is_array else ".log")
        assert "--max_model_len" not in job.flags
        resources = {name: job.options[name] for name in ("gres", "mem", "time") if name in job.options}
        assert resources == {
            "train": {"gres": "gpu:1", "mem": "64G", "time": "24:00:00"},
            "judge": {"gres": "gpu:1", "mem": "128G", "time": "04:00:00"},
            "merge": {"mem": "16G", "time": "00:30:00"},
            "table": {"mem": "16G", "time": "00:30:00"},
        }.get(Path(job.file).stem, {"gres": "gpu:1", "mem": "64G", "time": "04:00:00"})
    assert jobs[f"judge.{model}.{category}.test"].variables == {
        "JUDGE": "Qwen/Qwen2.5-32B-Instruct", "INPUTS": f"{cluster_data}/data/{category}_test.json",
        "FOLDER": f"{out}/{model}/test/{category}", "SYSTEMS": "none rag_random rag planpers", "SUFFIX": "_scores",
        "RESPONSES": "",
    }  # fmt: skip
    assert jobs[answers + "planpers"].variables == {
        "MODEL": "Qwen/Qwen2.5-7B-Instruct", "PLANNER": f"{out}/planner/{category}/best",
        "INPUTS": f"{out}/ranked/{category}_test.json", "OUTPUT": f"{out}/{model}/test/{category}/planpers.json",
    }  # fmt: skip
    assert (Path(out) / "logs").is_dir()


def test_a_dry_run_prints_the_commands_that_would_be_called(recorder, cluster_data):
    path = write_study(cluster_data, CLUSTER.format(folder=cluster_data) + "[arguments]\nanswer = ['--top_p', '1']")
    environment = clean_environment(**recorder)
    printed = sbatch("--study_addr", path, "--dry_run", environment=environment)
    assert printed.returncode == 0, printed.stderr
    assert not recorder["CALLS"].exists() and not (cluster_data / "t2").exists()
    assert sbatch("--study_addr", path, environment=environment).returncode == 0
    called = recorder["CALLS"].read_text()
    recorder["CALLS"].unlink()
    script = printed.stdout.replace("$(", "$(cut -d';' -f1 <<<$(").replace(")\n", "))\n")  # as the script reads ids
    subprocess.run(["bash", "-eu", "-c", script], env=environment, check=True)
    assert recorder["CALLS"].read_text() == called


def test_flags_go_to_the_jobs_in_which_they_have_an_effect(tmp_path):
    text = """
categories = ["Society_and_Culture"]
[arguments]
rank = ["--ranker", "bm25"]
answer = ["--temperature", "0", "--top_p", "1"]
planpers = ["--max_tokens_plan", "9"]
"""
    jobs = jobs_of(study_of(tmp_path, text))
    ranked = [job for name, job in jobs.items() if name.startswith("rank.")]
    assert len(ranked) == 4 and not any("--embedding_cache" in job.flags for job in ranked)
    assert {job.variables["ENCODER"] for job in ranked} == {""}  # whatever the user's environment has
    flags = {name.rpartition(".")[2]: job.flags for name, job in jobs.items() if name.startswith("answer.")}
    sampling = ["--seed", "0", "--temperature", "0", "--top_p", "1"]
    assert flags["none"] == sampling
    assert flags["rag"] == ["--rag", "--num_contexts", "10", *sampling]
    assert flags["planpers"] == [*flags["rag"], "--max_tokens_plan", "9"]


@pytest.mark.parametrize("asked", ["--gres=gpu:2", "--gpus=2", "--gpus-per-task=2"])
def test_models_behind_an_api_take_no_gpu(tmp_path, asked):
    """Nor does a planner's training or a ranking lose its own."""
    resources = ["--mem=8G", asked, "--time=01:00:00"]
    text = f"openai_models = ['gpt']\nopenai_judges = ['gpt']\n[slurm]\nanswer_resources = {resources}\n"
    for name, job in jobs_of(study_of(tmp_path, text + f"judge_resources = {resources}")).items():
        gpus = [word for word in job.resources if word.startswith(("--gres", "--gpus"))]
        if job.file in ("answer", "judge"):
            assert gpus == ["--gres=none"] and {"--mem=8G", "--time=01:00:00", "--array=0-3"} <= set(job.resources)
        else:
            assert gpus == ([] if job.file in ("merge", "table") else ["--gres=gpu:1"]), name


def printed_jobs(text):
    """The printed commands: variables, options of sbatch, file and flags, by the job's name."""
    jobs = {}
    for line in text.splitlines():
        words = shlex.split(re.fullmatch(r"job\d+=\$\(env (.*)\)", line)[1])
        place = words.index("sbatch")
        file = next(i for i, word in enumerate(words) if word.startswith("utils/slurm/"))
        name = next(word.partition("=")[2] for word in words if word.startswith("--job-name="))
        variables = dict(word.partition("=")[::2] for word in words[:place])
        jobs[name.partition(".")[2]] = (variables, words[place + 1 : file], words[file], words[file + 1 :])
    return jobs


PYTHON = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done >> "$COMMANDS"
printf '\\n' >> "$COMMANDS"
"""


def commands_of(job, tmp_path):
    """The commands that a job's file runs, with something in Python's place that writes them down."""
    variables, options, file, flags = job
    python, commands = tmp_path / "python", tmp_path / "commands"
    python.write_text(PYTHON)
    python.chmod(0o755)
    commands.unlink(missing_ok=True)
    slurm = {"SLURM_SUBMIT_DIR": ROOT, "SLURM_JOB_ID": 1, "SLURM_JOB_NAME": "job", "SLURM_GPUS_ON_NODE": 1}
    if array := next((word for word in options if word.startswith("--array=")), None):
        last = int(array.rpartition("-")[2])
        slurm |= {"SLURM_ARRAY_JOB_ID": 1, "SLURM_ARRAY_TASK_ID": last, "SLURM_ARRAY_TASK_COUNT": last + 1}
    environment = clean_environment(**slurm) | variables | {"PYTHON": str(python), "COMMANDS": str(commands)}
    done = subprocess.run(
        ["bash", file, *flags], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 or "cat:" in done.stderr, done.stderr  # the table's file shows a table
    return [line.split("\0")[:-1] for line in commands.read_text().splitlines()]


@pytest.mark.slow
def test_every_printed_job_runs_commands_that_the_scripts_take(cluster_data):
    (cluster_data / "human.json").write_text('{"q1": "first"}')
    text = CLUSTER.format(folder=cluster_data).replace("[slurm]", "[slurm]\nanswer_shards = 2\njudge_shards = 3")
    path = write_study(
        cluster_data,
        f"openai_models = ['gpt']\nfigure = 4\nhuman_addr = '{cluster_data}/human.json'\n"
        "judges = ['Qwen/Qwen2.5-32B-Instruct', 'lab/small']\nmethods = ['none', 'rag', 'planpers', 'planpers_gold']\n"
        f"categories = ['{ART}', '{SOCIETY}']\nseeds = [0, 1]\n{text}",
    )
    done = sbatch("--study_addr", path, "--dry_run", environment=clean_environment(OPENAI_API_KEY="sk-test"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"note: jobs fetch no models; first: utils/slurm/prefetch.sh {cluster_data}/data facebook/contriever-msmarco "
        "Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-32B-Instruct lab/small\n"
    )
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
    jobs = printed_jobs(done.stdout)
    # 2 categories: 3 rankings, 1 training, 4 methods x 2 seeds answered and merged, 2 judges and merges; then tables, a
    # comparison of the judges and the figure.
    assert len(jobs) == len(done.stdout.splitlines()) == 2 * (3 + 1 + 4 * 2 * 2 + 2 * 2) + 2 + 1 + 1
    made = set()
    for job in jobs.values():
        for script, *words in (command for command in commands_of(job, cluster_data)):
            if words[:1] == ["--command"]:  # of utils/preflight.py
                assert [parser_of(script).parse_args(flags) for flags in preflights_of(words[1:])]
                continue
            args = vars(parser_of(script).parse_args(words))
            if script in ("utils/merge_shards.py", "utils/make_table.py", "retrieval/rank_dataset.py"):
                made.add(args.get("output_addr") or args["output_dataset_addr"])
            if script == "utils/merge_shards.py":
                assert len(args["shard_addr"]) == (3 if "_scores" in args["output_addr"] else 2)
            if script in ("utils/make_figures.py", "utils/compare_evaluators.py"):
                made.add(args["output_addr"])
            if script == "train_planner.py":
                made.add(f"{args['output_dir']}/best")
                assert args["gradient_accumulation_steps"] == 32
            if script == "planpers.py":
                assert bool(args["planner_model"]) != args["gold_plan"]
    steps = plan_study(read_study(path))
    assert made == {output for step in steps for output in step.outputs}
    no_gpu = {name for name, job in jobs.items() if "--gres=none" in job[1]}
    assert all(len([word for word in job[1] if "gres" in word]) <= 1 for job in jobs.values())
    wanted = {name for name in jobs if name.startswith("answer.gpt.") and ".planpers" not in name}
    assert no_gpu == wanted | {name for name in jobs if name.startswith("answer.gpt.") and ".planpers_gold" in name}


@pytest.mark.parametrize("judge", ["Qwen2.5-32B-Instruct", "small"])
def test_the_users_own_methods_are_judged_where_their_files_are(tmp_path, judge):
    text = f"judges = ['lab/{judge}']\nmethods = ['none']\ncategories = ['{ART}']\n[responses]\n"
    jobs = jobs_of(
        study_of(tmp_path, text + "'My method' = 'my mine/{category}.json'\nmy_scores = 'b/{category}.json'")
    )
    suffix = "" if judge.startswith("Qwen") else f"_{judge}"
    names = [f"output/table2/own/test/{ART}/{name}_scores{suffix}" for name in ("My_method", "my_scores")]
    job = jobs[f"judge.own.{ART}.test{suffix.replace('_', '.')}"]
    _, command = commands_of((job.variables, job.resources, f"utils/slurm/{job.file}.sbatch", job.flags), tmp_path)
    args = parser_of(command[0]).parse_args(command[1:])
    assert args.response_addr == [f"my mine/{ART}.json", f"b/{ART}.json"]
    assert args.score_addr == [f"{name}.3_of_4.json" for name in names]
    [merge] = [job for job in jobs.values() if job.file == "merge" and job.flags == [f"{name}.json" for name in names]]
    assert len(merge.after) == 1


def test_sbatch_is_called_from_the_root_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^--sbatch: run it from the root of the repository, "):
        run_study.main(["--study_addr", "study.toml", "--sbatch"])


def test_no_cluster_and_one_that_refuses(cluster_data):
    path = write_study(cluster_data, CLUSTER.format(folder=cluster_data))
    done = sbatch("--study_addr", path, environment=clean_environment(PATH="/nowhere"))
    assert done.returncode == 2
    assert done.stderr.endswith("error: --sbatch: there is no sbatch here; run it on a login node of the cluster\n")
    (cluster_data / "bin").mkdir()
    (cluster_data / "bin/sbatch").write_text("#!/bin/sh\necho 'invalid account' >&2; exit 1\n")
    (cluster_data / "bin/sbatch").chmod(0o755)
    done = sbatch("--study_addr", path, environment=clean_environment(PATH=f"{cluster_data}/bin:{os.environ['PATH']}"))
    assert done.returncode == 2
    assert f"error: sbatch refuses rank.{ART}.test: invalid account\n  0 jobs are submitted; " in done.stderr


def test_folders_are_not_fetched(tmp_path, monkeypatch):
    """Nor an encoder that ranking does not need, nor what is behind an API."""

    def fetched(text):
        study = study_of(tmp_path, text)
        return prefetch_command(study, find_pending(run_study.check_commands(study, plan_study(study))))

    monkeypatch.chdir(tmp_path)
    for name in ("m", "j", "e"):
        Path(name).mkdir()
    here = "models = ['m']\njudges = ['j']\nencoder = 'e'\nplanner_base = 'm'\n"
    assert fetched(here) is None
    assert fetched(here.replace("['j']", "['lab/j']")) == "utils/slurm/prefetch.sh data lab/j"
    bm25 = here.replace("'e'", "'lab/e'") + "[arguments]\nrank = ['--ranker', 'bm25']"
    assert fetched(bm25) is None
    api = "openai_judges = ['j2']\nopenai_models = ['m2']\nmethods = ['none']"
    assert fetched(api) is None


def test_where_nothing_is_to_be_fetched_nothing_is_said_of_it(work, monkeypatch, capsys):
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    forget(work.folder / FOLDER / ART / "none.json")
    assert work.run("--sbatch", "--dry_run") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    arrays = [options for _, options, _, _ in printed_jobs(printed.out).values() if any("array" in o for o in options)]
    assert len(arrays) == 2  # all of an API: said once, and no GPU asked for beside it
    assert all([o for o in options if "gres" in o] == ["--gres=none"] for options in arrays)


def test_only_what_is_missing_is_submitted(work, monkeypatch, capsys):
    """And what may change: its merge may replace what is there, as the scripts may."""
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    path = work.folder / f"data/{ART}_test.json"
    path.write_text(path.read_text() + "\n")
    assert work.run("--sbatch", "--dry_run") == 0
    jobs = printed_jobs(capsys.readouterr().out)
    names = [
        f"{kind}.tiny.{ART}.test.{m}" for m in ("none", "rag_random", "planpers_gold") for kind in ("answer", "merge")
    ]
    assert list(jobs) == [
        f"rank.{ART}.test", f"rank.{ART}.test_random", *names, f"judge.tiny.{ART}.test",
        f"merge.tiny.{ART}.test.scores", "table.tiny.test.study",
    ]  # fmt: skip
    for name, (variables, _, _, flags) in jobs.items():
        if name.startswith("merge"):
            assert variables["OVERWRITE"] == "1"
        else:
            assert ("--overwrite" in flags) == (not name.startswith("table"))  # which is made again without


def leave_a_shard(work):
    """Of the study's first answers nothing stays but a shard, as of an earlier submission."""
    answers = work.folder / FOLDER / ART / "none.json"
    for suffix in ("", ".manifest.json"):
        shutil.copy(f"{answers}{suffix}", f"{answers.with_suffix('')}.0_of_4.json{suffix}")
    forget(answers)


def test_shards_of_an_earlier_submission_are_replaced(work, monkeypatch, capsys):
    """The output is gone, but not the shards that were made from another dataset."""
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    leave_a_shard(work)
    for change, expected in (("", False), ("\n", True)):
        path = work.folder / f"data/{ART}_test.json"
        path.write_text(path.read_text() + change)
        assert work.run("--sbatch", "--dry_run") == 0
        jobs = printed_jobs(capsys.readouterr().out)
        assert ("--overwrite" in jobs[f"answer.tiny.{ART}.test.none"][3]) == expected
        assert (jobs[f"merge.tiny.{ART}.test.none"][0]["OVERWRITE"] == "1") == expected


def test_shards_with_other_settings_are_refused_and_redone_on_demand(work, monkeypatch, capsys):
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    leave_a_shard(work)
    work.edit("[arguments]", '[arguments]\nanswer = ["--temperature", "0.5"]')
    for other in work.folder.glob(f"{FOLDER}/*/*"):
        if not other.name.startswith("none.0_of_4"):
            other.unlink()
    with pytest.raises(
        UserError, match=r"none\.0_of_4\.json: was made with other settings: temperature: 0\.1, now 0\.5"
    ):
        work.run("--sbatch", "--dry_run")
    capsys.readouterr()
    assert work.run("--sbatch", "--dry_run", "--overwrite") == 0
    jobs = printed_jobs(capsys.readouterr().out)
    assert "--overwrite" in jobs[f"answer.tiny.{ART}.test.none"][3]
    assert jobs[f"merge.tiny.{ART}.test.none"][0]["OVERWRITE"] == "1"


ON_A_CLUSTER = """
data = "{folder}/data"
output = "{folder}/out"
encoder = "{folder}/encoder"
openai_models = ["tiny"]
api_key_addr = "{folder}/key.txt"
base_url = "{url}"
methods = ["rag"]
categories = ["Society_and_Culture"]
[arguments]
judge = ["--openai", "--api_key_addr", "{folder}/key.txt", "--base_url", "{url}"]
[slurm]
answer_shards = 2
judge_shards = 2
"""


@on_a_cluster
def test_a_study_on_a_cluster(server, tmp_path):
    """Once, and again when the dataset has changed: then every job replaces what the first ones made."""
    folder = make_data(tmp_path / "study", server.url)
    save_tiny_encoder(folder / "encoder")
    path = write_study(folder, ON_A_CLUSTER.format(folder=folder, url=server.url))
    with start_cluster() as cluster:
        environment = cluster.environment | {"PYTHON": sys.executable}
        for _ in range(2):
            done = sbatch("--study_addr", path, environment=environment)
            assert done.returncode == 0, done.stderr
            jobs = [line.split()[0] for line in done.stdout.splitlines()]
            assert len(jobs) == 6  # ranking, answers, their merge, verdicts, their merge, table
            cluster.wait(*jobs)
            logs = "".join(log.read_text() for log in (folder / "out/logs").iterdir())
            assert {state for job in jobs for state in cluster.states(job)} == {"COMPLETED"}, logs
            assert sbatch("--study_addr", path).stdout == (f"everything is there: 4 outputs; table: {folder}/{TABLE}\n")
            dataset = folder / f"data/{SOCIETY}_test.json"
            records = json.loads(dataset.read_text())
            assert len(json.loads((folder / f"{FOLDER}/{SOCIETY}/rag.json").read_text())) == len(records)
            dataset.write_text(json.dumps(records[:-1]))


@on_a_cluster
def test_a_study_is_submitted_twice_and_made_once(gate, api, tmp_path):
    """The second submission waits for the first, job by job, and finds everything finished."""
    records = json.loads((SAMPLE / "test.json").read_text(encoding="utf-8"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/Society_and_Culture_test.json").write_text(json.dumps(records[-4:]))
    flags = [word for word in api if word != "--openai"]
    text = f"""
data = "{tmp_path}/data"
output = "{tmp_path}/t2"
encoder = "{save_tiny_encoder(tmp_path / "encoder")}"
openai_models = ["a-model"]
openai_judges = ["a-judge"]
methods = ["none", "rag_random"]
categories = ["Society_and_Culture"]
[arguments]
answer = {flags}
judge = {flags}
[slurm]
answer_shards = 2
judge_shards = 1
"""
    path = write_study(tmp_path, text)
    with start_cluster() as cluster:
        environment = cluster.environment | {"PYTHON": sys.executable}
        gate.close(lambda request: "held")  # the first submission is not finished before the second
        jobs = []
        for _ in range(2):
            printed = sbatch("--study_addr", path, environment=environment)
            assert printed.returncode == 0, printed.stderr
            jobs += [line.split()[0] for line in printed.stdout.splitlines()]
        gate.open()
        cluster.wait(*jobs)
        assert {state for job in jobs for state in cluster.states(job)} == {"COMPLETED"}
    table = (tmp_path / "t2/a-model/test/study_a-judge.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in table[2:4]] == ["| No personalization", "| RAG (random profile)"]
    assert all(line.endswith("| 4 | 0 | 0 |") for line in table[2:4])
    requests = [json.dumps(request) for request in gate.server.requests]
    assert len(requests) == len(set(requests)) > 2 * 4  # nothing was asked twice
    log = (tmp_path / "t2/logs/t2.merge.a-model.Society_and_Culture.test.scores_a-judge.log").read_text()
    assert log.count("scores of 1 shards, 4 questions") == 2 == log.count("already finished, left alone")
