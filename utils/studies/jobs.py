"""A study's steps as SLURM jobs of the files in utils/slurm."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from utils.cli import UserError
from utils.files.manifest import without_password
from utils.models.hub import is_folder
from utils.studies.checks import models_of
from utils.studies.plan import Step
from utils.studies.state import Pending, state_of
from utils.studies.study import Study

_ANSWER = {"MODEL": "--model_addr", "INPUTS": "--inputs_addr", "OUTPUT": "--output_addr"}
_DRAWN = {"OUTPUT": "--output_addr"}
VARIABLES = {  # of a file: the flag whose value each one holds
    "rank": {"ENCODER": "--model_name", "INPUTS": "--input_dataset_addr", "OUTPUT": "--output_dataset_addr"},
    "train": {
        "MODEL": "--model_addr",
        "OUTPUT": "--output_dir",
        "INPUTS": "--inputs_addr",
        "VALIDATION": "--validation_addr",
    },
    "answer": _ANSWER,
    "plan_and_answer": {**_ANSWER, "PLANNER": "--planner_model"},
    "judge": {"JUDGE": "--evaluator_llm", "INPUTS": "--inputs_addr"},
    "table": _DRAWN,
    "figure": _DRAWN,
}


@dataclass(frozen=True)
class Job:
    """One call of sbatch.

    Attributes:
        name: without the study's output in front.
        file: in utils/slurm, without .sbatch.
        resources: options of sbatch.
        variables: what the file reads from its environment.
        flags: further flags of its script.
        after: names of the jobs that have to succeed first.
    """

    name: str
    file: str
    resources: list[str]
    variables: dict[str, str]
    flags: list[str]
    after: list[str] = field(default_factory=list)


def make_jobs(study: Study, pending: list[Pending], overwrite: bool = False) -> list[Job]:
    """The jobs of these steps, each after those it waits for; with `overwrite` shards replace what is in their way.

    Raises:
        UserError: without `overwrite`: there are shards that were made with other settings.
    """
    jobs: list[Job] = []
    maker: dict[str, str] = {}  # of each output: the job that has it finished
    for one in pending:
        needed = [path for output in one.reasons for path in one.step.outputs[output]]
        after = sorted({maker[path] for path in (*needed, *one.step.after) if path in maker})
        if one.step.kind in ("answer", "judge"):
            one = replace(one, overwrite=overwrite or one.overwrite or has_old_shards(study, one))
        if one.step.kind == "judge":
            new = list(judge_jobs(study, one, maker))
        elif one.step.kind == "answer":
            new = list(answer_jobs(study, one, after))
        else:
            new = [single_job(study, one, after)]
        jobs += new
        maker |= {output: new[-1].name for output in one.reasons if output not in maker}
    return jobs


def has_old_shards(study: Study, one: Pending) -> bool:
    """Are there shards of an earlier submission, made from other inputs? Those of a new one replace them."""
    shards = study.slurm[f"{one.step.kind}_shards"]
    is_old = False
    for output, index in product(one.reasons, range(shards)):
        shard = f"{output.removesuffix('.json')}.{index}_of_{shards}.json"
        state = state_of(one.step, output, shard)
        if state.refusal is not None:
            raise UserError(f"{shard}: {state.refusal}\n  set the study back, or --overwrite")
        is_old |= state.overwrite
    return is_old


def variables_of(step: Step, file: str) -> dict[str, str]:
    """Also those without a value: the user's environment goes along."""
    return {variable: step.named.get(flag, "") for variable, flag in VARIABLES[file].items()}


def flags_of(one: Pending) -> list[str]:
    return [*one.step.flags, *one.step.given, *(one.step.overwrite_flags() if one.overwrite else [])]


def single_job(study: Study, one: Pending, after: list[str]) -> Job:
    """Ranking, training, tables and figures: a job each."""
    step = one.step
    file = "figure" if step.kind == "agreement" else step.kind
    variables = ({"SCRIPT": step.script} if file == "figure" else {}) | variables_of(step, file)
    resources = study.slurm[f"{step.kind}_resources" if step.kind in ("rank", "train") else "cpu_resources"]
    return Job(step.job, file, list(resources), variables, flags_of(one), after)


def answer_jobs(study: Study, one: Pending, after: list[str]) -> Iterator[Job]:
    """An array that answers, and the merge of its shards."""
    step, shards = one.step, study.slurm["answer_shards"]
    file, resources = "answer", study.slurm["answer_resources"]
    if step.script == "planpers.py":
        file, resources = "plan_and_answer", study.slurm["planpers_resources"]
    variables = variables_of(step, file)
    options = array_options(shards, resources, "--openai" in flags_of(one) and not variables.get("PLANNER"))
    yield Job(step.job, file, options, variables, flags_of(one), after)
    yield merge_job(study, step.job.replace("answer", "merge", 1), variables["INPUTS"], shards, one, list(one.reasons))


def judge_jobs(study: Study, one: Pending, maker: dict[str, str]) -> Iterator[Job]:
    """For each model an array that judges all its answers to a file's questions, and the merge of its shards."""
    step, shards = one.step, study.slurm["judge_shards"]
    folders: dict[str, list[str]] = {}
    for output in one.reasons:
        folders.setdefault(os.path.dirname(output), []).append(output)
    for folder, outputs in folders.items():
        responses = [step.outputs[output][1] for output in outputs]
        stems = [Path(path).stem for path in responses]
        suffix = Path(outputs[0]).stem.removeprefix(stems[0])  # _scores, or _scores_<judge>
        model, split, category = Path(folder).parts[-3:]
        name = f"{model}.{category}.{split}"
        variables = {**variables_of(step, "judge"), "FOLDER": folder, "SYSTEMS": " ".join(stems), "SUFFIX": suffix}
        options = array_options(shards, study.slurm["judge_resources"], "--openai" in flags_of(one))
        judge = f"judge.{name}{suffix.removeprefix('_scores').replace('_', '.', 1)}"
        after = sorted({maker[path] for path in responses if path in maker})
        yield Job(judge, "judge", options, variables, flags_of(one), after)
        merge = merge_job(study, f"merge.{name}.{suffix[1:]}", variables["INPUTS"], shards, one, outputs, judge)
        maker |= dict.fromkeys(outputs, merge.name)
        yield merge


def array_options(shards: int, resources: list[str], no_gpu: bool) -> list[str]:
    if no_gpu:  # said, for the files' heads ask for a GPU too
        resources = [*(word for word in resources if not word.startswith(("--gres=", "--gpus"))), "--gres=none"]
    return [f"--array=0-{shards - 1}", *resources]


def merge_job(
    study: Study, name: str, inputs: str, shards: int, one: Pending, outputs: list[str], after: str | None = None
) -> Job:
    variables = {"INPUTS": inputs, "SHARDS": str(shards), "OVERWRITE": "1" if one.overwrite else ""}
    return Job(name, "merge", list(study.slurm["cpu_resources"]), variables, outputs, [after or one.step.job])


# Submitting


def prefetch_command(study: Study, pending: list[Pending]) -> str | None:
    """What brings the models of these steps into the cache; None where they need none from the hub."""
    found = (name for _, args, name in models_of(pending) if not getattr(args, "openai", False))
    models = dict.fromkeys(name for name in found if not is_folder(name))
    return shlex.join(["utils/slurm/prefetch.sh", study.data, *models]) if models else None


def sbatch_words(study: Study, job: Job, ids: dict[str, str]) -> list[str]:
    """The call of sbatch; `ids` has the job ids, or shell variables, of the names in `job.after`."""
    logs = f"{study.output}/logs/%x{'_%a' if any(word.startswith('--array') for word in job.resources) else ''}.log"
    after = ":".join(ids[name] for name in job.after)
    return [
        "sbatch", "--parsable", "--export=ALL", f"--job-name={Path(study.output).name}.{job.name}",
        "--kill-on-invalid-dep=yes", *study.slurm["sbatch_args"], *job.resources, f"--output={logs}",
        # Two jobs of one name, which write the same file, never run at a time.
        f"--dependency={f'afterok:{after},' if after else ''}singleton", f"utils/slurm/{job.file}.sbatch", *job.flags,
    ]  # fmt: skip


def print_jobs(study: Study, jobs: list[Job]) -> None:
    """Print what would be submitted, as a shell script."""
    ids = {}
    for number, job in enumerate(jobs, 1):
        ids[job.name] = f"$job{number}"
        words = [shlex.quote(without_password(word)) for word in sbatch_words(study, job, ids)]
        words = [word if "--dependency=" not in word else f'"{word.strip(chr(39))}"' for word in words]
        variables = [shlex.quote(f"{name}={value}") for name, value in job.variables.items()]
        print(f"job{number}=$(env {' '.join([*variables, *words])})")


def submit_jobs(study: Study, jobs: list[Job]) -> None:
    """Submit them all, and print their ids and names.

    Raises:
        UserError: there is no sbatch, or it refuses a job; those before it stay submitted.
    """
    Path(study.output, "logs").mkdir(parents=True, exist_ok=True)
    ids: dict[str, str] = {}
    for job in jobs:
        words = sbatch_words(study, job, ids)
        try:
            done = subprocess.run(words, env={**os.environ, **job.variables}, capture_output=True, text=True)
        except FileNotFoundError:
            raise UserError("--sbatch: there is no sbatch here; run it on a login node of the cluster") from None
        if done.returncode != 0:
            raise UserError(
                f"sbatch refuses {job.name}: {done.stderr.strip()}\n"
                f"  {len(ids)} jobs are submitted; the same command submits what is missing, each to run once"
            )
        ids[job.name] = done.stdout.strip().partition(";")[0]  # on a cluster of clusters its name follows
        print(ids[job.name], job.name, flush=True)
