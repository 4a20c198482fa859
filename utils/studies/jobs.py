"""A study's steps as SLURM jobs of the files in utils/slurm."""

import os
import shlex
import subprocess
from itertools import product
from pathlib import Path
from typing import NamedTuple

from utils.cli import UserError
from utils.files.manifest import without_password
from utils.models.hub import is_folder
from utils.studies.checks import models_of
from utils.studies.state import Pending, state_of
from utils.studies.study import Study
from utils.studies.training import asked_for_training, batch_flags

_INPUTS, _OUTPUT = {"INPUTS": "--inputs_addr"}, {"OUTPUT": "--output_addr"}
_ANSWER = {"MODEL": "--model_addr", **_INPUTS, **_OUTPUT}
VARIABLES = {  # of a file in utils/slurm: the flag whose value each one holds
    "rank": {"ENCODER": "--model_name", "INPUTS": "--input_dataset_addr", "OUTPUT": "--output_dataset_addr"},
    "train": {"MODEL": "--model_addr", "OUTPUT": "--output_dir", **_INPUTS, "VALIDATION": "--validation_addr"},
    "answer": _ANSWER,
    "plan_and_answer": {**_ANSWER, "PLANNER": "--planner_model"},
    "judge": {"JUDGE": "--evaluator_llm", **_INPUTS},
    "table": _OUTPUT,
    "figure": _OUTPUT,
}
RESOURCES = {"plan_and_answer": "planpers_resources", "table": "cpu_resources", "figure": "cpu_resources"}
SHARDED = ("answer", "judge")  # kinds of steps whose jobs are arrays


class Job(NamedTuple):
    """One call of sbatch."""

    name: str  # without the study's output in front
    file: str  # in utils/slurm, without .sbatch
    resources: list[str]  # options of sbatch
    variables: dict[str, str]  # what the file reads from its environment
    flags: list[str]  # further flags of its script
    after: list[str]  # names of the jobs that have to succeed first


def make_jobs(study: Study, pending: list[Pending], overwrite: bool = False) -> list[Job]:
    """The jobs of these steps, each after those it waits for.

    With `overwrite` shards replace what is in their way; else UserError over those that were made with other settings.
    """
    jobs: list[Job] = []
    maker: dict[str, str] = {}  # of each output: the job that has it finished
    for one in pending:
        if one.step.kind in SHARDED:
            one = one._replace(overwrite=overwrite or one.overwrite or has_old_shards(study, one))
        folders: dict[str, list[str]] = {}  # a judge has a job for each model's answers
        for output in one.reasons:
            folders.setdefault(os.path.dirname(output), []).append(output)
        for outputs in folders.values():
            made_from = [path for output in outputs for path in one.step.outputs[output]]
            after = sorted({maker[path] for path in (*made_from, *one.step.after) if path in maker})
            jobs += step_jobs(study, one, outputs, after)
            maker |= {output: jobs[-1].name for output in outputs if output not in maker}
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


def step_jobs(study: Study, one: Pending, outputs: list[str], after: list[str]) -> list[Job]:
    """The job that makes some of a step's outputs; of answers and verdicts an array, and the merge of its shards."""
    step, name, merge = one.step, one.step.job, one.step.job.replace("answer", "merge", 1)
    file = {"planpers.py": "plan_and_answer", "utils/compare_evaluators.py": "figure"}.get(step.script, step.kind)
    # Also those without a value: the user's environment goes along.
    variables = {variable: step.named.get(flag, "") for variable, flag in VARIABLES[file].items()}
    if file in ("train", "figure"):
        variables = {"SCRIPT": step.script, **variables}
    if step.kind == "judge":
        folder, responses = os.path.dirname(outputs[0]), [step.outputs[output][1] for output in outputs]
        stems, (suffix, *_) = zip(*map(stem_and_suffix, outputs), strict=True)
        variables |= {"FOLDER": folder, "SYSTEMS": " ".join(stems), "SUFFIX": suffix}
        beside = [f"{folder}/{stem}.json" for stem in stems]
        variables["RESPONSES"] = "" if responses == beside else "\t".join(responses)  # of the user's own methods
        model, split, category = Path(folder).parts[-3:]
        name = f"judge.{model}.{category}.{split}{suffix.removeprefix('_scores').replace('_', '.', 1)}"
        merge = f"merge.{model}.{category}.{split}.{suffix[1:]}"
    flags = [*step.flags, *step.given, *(step.overwrite_flags() if one.overwrite else [])]
    if step.kind == "train" and (num_gpus := asked_for_training(study)) > 1:
        flags = [*flags, *(batch_flags(one, num_gpus) or [])]  # None is refused with what else cannot be done
    resources = list(study.slurm[RESOURCES.get(file, f"{file}_resources")])
    if step.kind not in SHARDED:
        return [Job(name, file, resources, variables, flags, after)]
    if step.kind == "judge" and "--evaluator_llm" not in step.named:  # scores are computed
        resources = [*study.slurm["cpu_resources"], "--gres=none"]
    elif "--openai" in flags and not variables.get("PLANNER"):  # said, for the files' heads ask for a GPU too
        resources = [*(word for word in resources if not word.startswith(("--gres=", "--gpus"))), "--gres=none"]
    shards = study.slurm[f"{step.kind}_shards"]
    array = Job(name, file, [f"--array=0-{shards - 1}", *resources], variables, flags, after)
    variables = {"INPUTS": variables["INPUTS"], "SHARDS": str(shards), "OVERWRITE": "1" if one.overwrite else ""}
    return [array, Job(merge, "merge", list(study.slurm["cpu_resources"]), variables, outputs, [name])]


def stem_and_suffix(score_file: str) -> tuple[str, str]:
    """A method, as its files are called, and _scores or _scores_<judge>."""
    stem, scores, judge = Path(score_file).stem.rpartition("_scores")
    return stem, scores + judge


def prefetch_command(study: Study, pending: list[Pending]) -> str | None:
    """What brings the models of these steps into the cache; None where they need none from the hub."""
    found = (name for _, args, name in models_of(pending) if not getattr(args, "openai", False))
    models = dict.fromkeys(name for name in found if not is_folder(name))
    words = shlex.join(["utils/slurm/prefetch.sh", study.data, *models]) if models else None
    datasets = " ".join(f"{task}:{setting}" for task in study.tasks for setting in study.settings)
    return f"DATASETS={shlex.quote(datasets)} {words}" if words and datasets else words


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
    """Submit them all, and print their ids and names; UserError where sbatch refuses one: those before it stay."""
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
