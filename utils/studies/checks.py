"""What can be known of a study before its first command runs: files, folders, keys, prompts, datasets and models.

A mistake that a command would meet in hours is told now, by the check that the command itself makes.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from prompts import choose_lead_in, load_prompt
from utils.benchmarks import tasks
from utils.benchmarks.task import Metric
from utils.checks.commands import DATASETS, model_of, step_of
from utils.checks.disk import free_bytes, training_room
from utils.cli import UserError
from utils.files.writing import check_could_write
from utils.generation.chat import LocalChat
from utils.generation.encoder_decoder import is_encoder_decoder
from utils.generation.engines import identify_local_model, identify_model, read_api_key
from utils.generation.templates import template_variables
from utils.generator.base import check_base
from utils.models.hub import cached_commit, cached_folder, check_model, is_folder
from utils.models.memory import GB
from utils.records.datasets import STEP_NEEDS, refuse_shared_ids
from utils.records.stream import DatasetFile
from utils.studies.plan import Step, data_file
from utils.studies.state import Pending
from utils.studies.study import Study
from utils.studies.training import check_training
from utils.tables.agreement import read_human
from utils.tables.paper_results import read_paper

KEYS = {"rank": "encoder", "train": "planner_base", "answer": "models", "judge": "judges"}  # that name a step's model
PROMPTS = {
    "none": ("none",),
    "rag": ("rag",),
    "train": ("planner",),
    "generator": ("rag",),
}  # of a step; else PlanPers' three
LONG = GB // 2  # bytes of datasets that take a few seconds to read


def check_study(study: Study, steps: list[Step], pending: list[Pending], is_submitted: bool) -> None:
    """Raise UserError where the steps that are left could not be done; without any only where a file is missing.

    Where they are submitted, as jobs on a cluster, which fetch no models, those are left to the user.
    """
    check_inputs(study, steps)
    if study.paper is not None:
        check_paper(study, [one.arguments() for one in pending if one.step.kind == "table"])
    for one in pending:
        check_command(one.step, one.arguments(), list(one.reasons))
    check_training(study, pending, is_submitted)
    check_datasets(study, steps, pending)
    check_models(study, pending, is_submitted)
    check_disk(study, pending, is_submitted)


def check_inputs(study: Study, steps: list[Step]) -> None:
    """Raise UserError where a file is missing that no step makes."""
    if study.human_addr is not None and Path(study.human_addr).exists():
        read_human(study.human_addr)
    made = {output for step in steps for output in step.outputs}
    read = {path for step in steps for inputs in step.outputs.values() for path in inputs}
    if missing := sorted(path for path in read - made if not Path(path).is_file()):
        text = f"{missing[0]}: no such file" + (f", nor {len(missing) - 1} others" if len(missing) > 1 else "")
        if missing[0].startswith(f"{study.data}/"):
            text += f"; the dataset is fetched by {download_words(study, missing[0])}"
        raise UserError(text)


def check_paper(study: Study, tables: list[Namespace]) -> None:
    """Raise UserError where the paper's numbers cannot stand in one of these tables."""
    found = [tasks()[name] for name in study.tasks]
    shown = {column: column for task in found for column in map(task.scored_by, task.metrics)}
    for args in tables:
        read_paper(found[0], args.paper, args.paper_table, [name for name, *_ in args.system], shown)


def download_words(study: Study, path: str) -> str:
    """What fetches a dataset file, in words."""
    task, setting, *_ = [*Path(path).stem.split("_"), ""]
    flags = f" --dataset {task} --setting {setting}" if task in study.tasks else ""
    return f"utils/download_datasets.py{flags}"


def check_command(step: Step, args: Namespace, outputs: list[str]) -> None:
    """Raise UserError where an output cannot be written, an API's key is missing or none, or a prompt is refused."""
    for output in outputs:  # a planner is a folder; what is next to it goes where it goes
        check_could_write(Path(output).with_name("training_log.jsonl") if step.kind == "train" else Path(output))
    if getattr(args, "openai", False):
        if args.api_key_addr is not None and not Path(args.api_key_addr).is_file():
            raise UserError(f"--api_key_addr {args.api_key_addr}: no such file")
        read_api_key(args.api_key_addr)
    if getattr(args, "prompts_dir", None) is None:
        return
    if step.kind == "judge":
        if (judge := metric_of(step, args).judge) is not None:
            load_prompt(judge.prompt, args.prompts_dir)
        return
    names = PROMPTS.get(step_of(step.script, args), ("planner", "planpers", "rag"))
    prompts = {name: load_prompt(tasks()[step.task].prompts[name], args.prompts_dir) for name in names}
    if "planner" in prompts:
        choose_lead_in(args.planner_target or "paper", prompts["planner"])


def metric_of(step: Step, args: Namespace) -> Metric:
    metrics = tasks()[step.task].metrics
    return metrics[args.strategy or next(iter(metrics))]


def check_datasets(study: Study, steps: list[Step], pending: list[Pending]) -> None:
    """Raise UserError where a dataset lacks what a step reads, or an id stands in two categories of one table."""
    needs = find_needs(steps, pending)
    splits = [[data_file(study, category, split) for category in study.categories] for split in study.splits]
    splits = [] if study.tasks else splits  # a table holds the questions of each task apart
    tables = [paths for paths in splits if needs.keys() & set(paths)]
    paths = dict.fromkeys([*needs, *(path for table in tables for path in table)])
    size = sum(Path(path).stat().st_size for path in paths)
    if size > LONG:
        print(f"reading {size / GB:.1f} GB of datasets first, to check them", file=sys.stderr)
    # A file's ids in their order, once its records have what is needed.
    ids = {path: [record["id"] for record in DatasetFile(path).scan(needs.get(path, set()))] for path in paths}
    for table in tables:
        refuse_shared_ids({path: dict.fromkeys(ids[path]) for path in table})


def find_needs(steps: list[Step], pending: list[Pending]) -> dict[str, set[str]]:
    """Of each dataset that the pending steps read, themselves or ranked: the fields that they need."""
    rankings = (step for step in steps if step.kind == "rank")
    ranked_from = {output: inputs[0] for step in rankings for output, inputs in step.outputs.items()}
    needs: dict[str, set[str]] = {}
    for step, args in reading(pending):
        its = metric_of(step, args).needs if step.kind == "judge" else STEP_NEEDS[step_of(step.script, args)]
        for path in (getattr(args, flag) for flag in DATASETS if flag in args):
            needs.setdefault(ranked_from.get(path, path), set()).update(its)
    return needs


def reading(pending: list[Pending]) -> Iterator[tuple[Step, Namespace]]:
    """The steps that read a dataset, with their flags."""
    return ((one.step, one.arguments()) for one in pending if one.step.kind in KEYS)


def check_models(study: Study, pending: list[Pending], is_submitted: bool) -> None:
    """Raise UserError where a model cannot be loaded, or asked, by the commands that are to do so."""
    checked, made = set(), {output for one in pending for output in one.step.outputs}
    for step, args, name in models_of(pending):
        decisive = ("openai", "base_url", "cache_dir", "fusion")
        template = json.dumps(template_variables(args))
        what = (step.kind, name, template, *(getattr(args, flag, None) for flag in decisive))
        if what in checked or name in made:
            continue
        checked.add(what)
        if getattr(args, "openai", False):
            identify_model(args, name)
        elif is_folder(name) or not is_submitted or cached_commit(name, args.cache_dir):
            key = "models" if step.script == "utils/train_generator.py" else KEYS[step.kind]
            check_here(f"{study.path}: {key}", name, args)


def models_of(pending: list[Pending]) -> Iterator[tuple[Step, Namespace, str]]:
    """The steps that ask or load a model which is there before the study, with their flags and its name."""
    return ((step, args, name) for step, args in reading(pending) if (name := model_of(args)) is not None)


def check_here(where: str, name: str, args: Namespace) -> None:
    """Raise UserError where a model that is to run here is not whole, or writes text and has no chat template."""
    try:
        if "ranker" in args:
            check_model(name, args.cache_dir)
            return
        identify_local_model(name, args.cache_dir)
        if "fusion" in args:
            check_base(args)
        if is_encoder_decoder(name, args.cache_dir):
            return  # which reads plain text
        if any(cached_folder(name, args.cache_dir).glob("*.safetensors")):  # else it is still to be fetched
            LocalChat(name, args.cache_dir, template_variables(args))
    except UserError as error:
        may_be_api = "openai" in args and not is_folder(name)
        remedy = f"\n  a model behind an API stands in openai_{where.rpartition(' ')[2]}" if may_be_api else ""
        raise UserError(f"{where}: {error}{remedy}") from None


def check_disk(study: Study, pending: list[Pending], is_submitted: bool) -> None:
    """Raise UserError where the disk has no room for the trainings that are left, one after the other.

    Jobs on a cluster may run at the same time: a note says where there would be none for that.
    """
    trainings = [one.arguments() for one in pending if one.step.script == "utils/train_generator.py"]
    rooms = [training_room(one.model_addr, one.cache_dir, one.output_dir) for one in trainings if not one.lora_rank]
    if not (needs := list(filter(None, rooms))):
        return
    in_turn = sum(kept for _, kept in needs) + max(peak - kept for peak, kept in needs)
    at_once, free = sum(peak for peak, _ in needs), free_bytes(study.output)
    what = f"{study.output}: {len(needs)} trainings take up to {{:.1f}} GB{{}}, and {free / GB:.1f} GB are free there"
    if in_turn > free:
        raise UserError(what.format(in_turn / GB, "") + "\n  free some, or give another output")
    if is_submitted and at_once > free:
        print("note:", what.format(at_once / GB, " if all run at the same time"), file=sys.stderr)
