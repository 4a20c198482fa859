"""What can be known of a study before its first command runs: files, folders, keys, prompts, datasets and models.

A mistake that a command would meet in hours is told now, by the check that the command itself makes.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from prompts import choose_lead_in, load_prompt
from utils.benchmarks.lampqa import METRICS
from utils.cli import UserError
from utils.files.writing import check_could_write
from utils.generation.chat import LocalChat
from utils.generation.engines import identify_local_model, identify_model, read_api_key
from utils.models.hub import cached_commit, cached_folder, check_model, is_folder
from utils.models.memory import GB
from utils.records.datasets import STEP_NEEDS, refuse_shared_ids
from utils.records.stream import DatasetFile
from utils.studies.plan import Step, data_file
from utils.studies.state import DRAWN, MODEL_FLAGS, Pending, parse
from utils.studies.study import Study
from utils.tables.agreement import read_human

DATASET_FLAGS = ("--input_dataset_addr", "--inputs_addr", "--validation_addr")
KEYS = {"rank": "encoder", "train": "planner_base", "answer": "models", "judge": "judges"}  # that name a step's model
LONG = GB // 2  # bytes of datasets that take a few seconds to read


def check_study(study: Study, steps: list[Step], pending: list[Pending], is_submitted: bool) -> None:
    """Raise UserError where the steps that are left could not be done; without any only where a file is missing.

    Args:
        is_submitted: they are to be jobs on a cluster, which fetch no models: those are left to the user.
    """
    check_inputs(study, steps)
    check_outputs(pending)
    check_keys(pending)
    check_prompts(pending)
    check_datasets(study, steps, pending)
    check_models(study, pending, is_submitted)


def check_inputs(study: Study, steps: list[Step]) -> None:
    """Raise UserError where a file is missing that no step makes."""
    if study.human_addr is not None and Path(study.human_addr).exists():
        read_human(study.human_addr)
    made = {output for step in steps for output in step.outputs}
    read = {path for step in steps for inputs in step.outputs.values() for path in inputs}
    if missing := sorted(path for path in read - made if not Path(path).is_file()):
        text = f"{missing[0]}: no such file" + (f", nor {len(missing) - 1} others" if len(missing) > 1 else "")
        if missing[0].startswith(f"{study.data}/"):
            text += "; the dataset is fetched by utils/download_datasets.py"
        raise UserError(text)


def check_outputs(pending: list[Pending]) -> None:
    for one in pending:
        for output in one.reasons:
            is_planner = one.step.kind == "train"  # a folder; what is next to it goes where it goes
            check_could_write(Path(output).with_name("training_log.jsonl") if is_planner else Path(output))


def check_keys(pending: list[Pending]) -> None:
    """Raise UserError where an API's key is missing, or what is in its file is none."""
    for args in (arguments_of(one) for one in pending):
        if getattr(args, "openai", False):
            if args.api_key_addr is not None and not Path(args.api_key_addr).is_file():
                raise UserError(f"--api_key_addr {args.api_key_addr}: no such file")
            read_api_key(args.api_key_addr)


def arguments_of(one: Pending) -> Namespace:
    return parse(one.step, list(one.step.outputs))


def check_prompts(pending: list[Pending]) -> None:
    """Raise UserError where a --prompts_dir has a prompt that its script would refuse, or lacks one that it needs."""
    for one in pending:
        args = arguments_of(one)
        if getattr(args, "prompts_dir", None) is None:
            continue
        prompts = {name: load_prompt(f"lampqa/{name}", args.prompts_dir) for name in prompts_of(one.step, args)}
        if "planner" in prompts:
            choose_lead_in(args.planner_target or "paper", prompts["planner"])


def prompts_of(step: Step, args: Namespace) -> list[str]:
    if step.script == "evaluate_responses.py":
        return [METRICS[args.strategy].judge.prompt.rpartition("/")[2]]
    if step.script == "baselines.py":
        return ["rag" if args.rag else "no_personalization"]
    return ["planner"] if step.script == "train_planner.py" else ["planner", "planpers", "rag"]


# Datasets


def check_datasets(study: Study, steps: list[Step], pending: list[Pending]) -> None:
    """Raise UserError where a dataset lacks what a step reads, or an id stands in two categories of one table."""
    needs = find_needs(steps, pending)
    splits = [[data_file(study, category, split) for category in study.categories] for split in study.splits]
    tables = [paths for paths in splits if needs.keys() & set(paths)]
    paths = list(dict.fromkeys([*needs, *(path for table in tables for path in table)]))
    size = sum(Path(path).stat().st_size for path in paths)
    if size > LONG:
        print(f"reading {size / GB:.1f} GB of datasets first, to check them", file=sys.stderr)
    ids = {path: read_ids(path, needs.get(path, set())) for path in paths}
    for table in tables:
        refuse_shared_ids({path: ids[path] for path in table})


def find_needs(steps: list[Step], pending: list[Pending]) -> dict[str, set[str]]:
    """Of each dataset that the pending steps read, themselves or ranked: the fields that they need."""
    rankings = (step for step in steps if step.kind == "rank")
    ranked_from = {output: inputs[0] for step in rankings for output, inputs in step.outputs.items()}
    needs: dict[str, set[str]] = {}
    for one in pending:
        for path in (one.step.named[flag] for flag in DATASET_FLAGS if flag in one.step.named):
            needs.setdefault(ranked_from.get(path, path), set()).update(needs_of(one.step))
    return needs


def needs_of(step: Step) -> tuple[str, ...] | list[str]:
    if step.kind == "judge":
        return METRICS["aspect"].needs
    if step.kind != "answer":
        return STEP_NEEDS[step.kind]
    if step.script == "planpers.py":
        return STEP_NEEDS["planpers_gold" if "--gold_plan" in step.flags else "planpers"]
    return STEP_NEEDS["rag" if "--rag" in step.flags else "none"]


def read_ids(path: str, needs: set[str]) -> dict[str, None]:
    """The ids of a dataset whose records have what is needed, in their order."""
    return {record["id"]: None for record in DatasetFile(path).scan(needs)}


# Models


def check_models(study: Study, pending: list[Pending], is_submitted: bool) -> None:
    """Raise UserError where a model cannot be loaded, or asked, by the commands that are to do so."""
    checked = set()
    for step, args, name in models_of(pending):
        decisive = ("openai", "base_url", "batch_invariant", "cache_dir")
        what = (step.kind, name, *(getattr(args, flag, None) for flag in decisive))
        if what in checked:
            continue
        checked.add(what)
        if getattr(args, "openai", False):
            identify_model(args, name)
        elif is_folder(name) or not is_submitted or cached_commit(name, args.cache_dir):
            check_here(study, step, name, args)


def models_of(pending: list[Pending]) -> Iterator[tuple[Step, Namespace, str]]:
    """The steps that ask or load a model which is there before the study, with their flags and its name."""
    for one in pending:
        if one.step.kind in DRAWN:
            continue
        args = arguments_of(one)
        if getattr(args, "ranker", "dense") == "dense":
            yield one.step, args, getattr(args, MODEL_FLAGS[one.step.script][1])


def check_here(study: Study, step: Step, name: str, args: Namespace) -> None:
    """Raise UserError where a model that is to run here is not whole, or writes text and has no chat template."""
    key = KEYS[step.kind]
    try:
        if step.kind == "rank":
            check_model(name, args.cache_dir)
            return
        identify_local_model(name, args.cache_dir)
        if any(cached_folder(name, args.cache_dir).glob("*.safetensors")):  # else it is still to be fetched
            LocalChat(name, args.cache_dir)
    except UserError as error:
        remedy = ""
        if key in ("models", "judges") and not is_folder(name):
            remedy = f"\n  a model behind an API stands in openai_{key}"
        raise UserError(f"{study.path}: {key}: {error}{remedy}") from None
