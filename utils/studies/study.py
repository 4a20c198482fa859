"""A study: one small TOML file that says which models, methods and judges are compared, on which data.

Every key has the default of LaMP-QA's paper, so an empty file is a study too: Table 2 for Qwen2.5 7B. With `tasks` a
study is of LaMP or LongLaMP instead, whose metrics need no judge.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from utils.benchmarks import FIRST, tasks
from utils.benchmarks.lampqa import FILES, paper_files
from utils.benchmarks.task import Task
from utils.cli import UserError
from utils.cli.errors import quote
from utils.cli.flags import nearest
from utils.files.json_files import read_toml
from utils.files.manifest import without_password

GENERATOR = "Qwen/Qwen2.5-7B-Instruct"
JUDGE = "Qwen/Qwen2.5-32B-Instruct"
METHODS = ("none", "rag_random", "rag", "planpers", "planpers_gold")
CATEGORIES = tuple(one for one in FILES if f"{one}_test" in paper_files())  # as the paper's files are called
SPLITS = ("train", "validation", "test")
FINE_TUNED = ("ipa", "fid")  # methods of generators that are trained for them alone
WITHOUT_PLANS = ("none", "rag_random", "rag")
RANKERS = ("contriever", "bm25", "bm25-okapi", "recency", "random", "hybrid")
NUM_CONTEXTS = 10  # of the paper, unless a figure says otherwise
FIGURES = {2: ("planpers",), 3: ("planpers", "planpers_gold"), 4: ("planpers", "rag"), 16: ("planpers",)}  # drawn from

_GPU = ("--gres=gpu:1", "--cpus-per-task=8", "--mem=64G", "--time=04:00:00")
SLURM = {  # for A100 GPUs of 80 GB; a judge on two of them also needs --tensor_parallel_size 2 in [arguments]
    "sbatch_args": (),  # of every job: account, partition
    "answer_shards": 4,  # tasks of an array; they stay the same when a study is submitted again
    "judge_shards": 4,
    "rank_resources": _GPU,
    "train_resources": (*_GPU[:3], "--time=24:00:00"),
    "answer_resources": _GPU,
    "planpers_resources": _GPU,
    "judge_resources": (*_GPU[:2], "--mem=128G", _GPU[3]),
    "cpu_resources": ("--cpus-per-task=1", "--mem=16G", "--time=00:30:00"),  # merging, tables, figures
}
SERVER = {"base_url": "", "api_key_addr": "", "price_in": 0.0, "price_out": 0.0, "price_cached": 0.0}  # flags, typed
ARGUMENTS = ("rank", "train", "answer", "planpers", "judge")  # what [arguments] has flags for


@dataclass(frozen=True)
class Study:
    """The keys of a study file."""

    path: str  # of the file
    data: str = "data"  # folder of the dataset files <category>_<split>.json, or <task>_<setting>_<split>.json
    output: str = "output/table2"  # folder of everything that is made
    models: tuple[str, ...] = ()  # generators that run here; Qwen2.5 7B where no generator is named
    openai_models: tuple[str, ...] = ()  # those behind an API
    api_key_addr: str | None = None  # of what is behind an API and has no address of its own, as the flag of this name
    base_url: str | None = None
    # By name, of models and judges behind an API: an address and key of its own, and its prices; see `SERVER`.
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    judges: tuple[str, ...] = ()  # each judges all answers; Qwen2.5 32B where none is named
    openai_judges: tuple[str, ...] = ()
    planner_base: str = GENERATOR  # what the planners, one a category, are trained on
    encoder: str = "facebook/contriever-msmarco"
    methods: tuple[str, ...] = METHODS[:4]
    num_contexts: tuple[int, ...] = (NUM_CONTEXTS,)  # posts from the profile, for every method that uses them
    rankers: tuple[str, ...] = ()  # that "rag" takes its posts by; the encoder where none is named
    fine_tuned: bool = False  # each file of answers is by the model as it was fine-tuned on such inputs
    ipa_contexts: tuple[int, ...] = (4,)  # items in the prompt of "ipa", a row each
    categories: tuple[str, ...] = CATEGORIES  # or the tasks
    splits: tuple[str, ...] = ("test",)  # of tasks with the setting in front, as in their files' names
    tasks: tuple[str, ...] = ()  # of LaMP or LongLaMP, in place of the categories
    settings: tuple[str, ...] = ()  # of the tasks, such as user and time
    paper: str | None = (
        None  # the model whose printed numbers of the tasks stand in the tables, as the flag of this name
    )
    seeds: tuple[int, ...] = (0,)  # of the answers; of several each is a row, and their mean ± deviation a table
    # Rows for methods of your own, by name: each a path with {split} and {category}, which gives a response file.
    responses: dict[str, str] = field(default_factory=dict)
    unscored_as_zero: bool = False  # the flag of this name, for tables and figures
    figure: int | None = None  # of the paper, drawn in the end: 2, 3, 4 or 16
    human_addr: str | None = None  # people's choices between planpers (first) and rag (second), for figure 4
    arguments: dict[str, list[str]] = field(default_factory=dict)  # further flags; those for "answer" are PlanPers' too
    slurm: dict[str, Any] = field(default_factory=dict)  # see `SLURM`

    @property
    def name(self) -> str:
        return Path(self.path).stem

    @property
    def all_models(self) -> tuple[str, ...]:
        return (*self.models, *self.openai_models)

    @property
    def all_judges(self) -> tuple[str, ...]:
        return (*self.judges, *self.openai_judges)

    def task_of(self, category: str) -> Task:
        return tasks()[category if category in self.tasks else FIRST]


def short_name(model: str) -> str:
    """The last part of a model's hub name or folder, which names its files."""
    return model.rstrip("/").rpartition("/")[2]


def api_flags(study: Study, model: str) -> list[str]:
    """Of a model behind an API; the study's key goes to no address of the model's own."""
    own = study.servers.get(model, {})
    shared = {} if "base_url" in own else {"api_key_addr": study.api_key_addr, "base_url": study.base_url}
    flags = {name: str(value) for name, value in (shared | own).items() if value is not None}
    return ["--openai", *(word for name, value in flags.items() for word in (f"--{name}", value))]


def file_name(name: str) -> str:
    """What files of the user's own method are called."""
    return re.sub(r"\W+", "_", name)


def read_study(path: str) -> Study:
    """Read and check a study file.

    Raises:
        UserError: it is missing or not TOML; a key, method, category or split is unknown; a value is of another type,
            empty or given twice; two models would have one folder; the figure needs what the study does not make.
    """
    found = read_toml(path)
    kinds = {one.name: one.type for one in fields(Study) if one.name != "path"}
    check_names(path, "key", found, kinds)
    for key, value in found.items():
        check_value(path, key, kinds[key], value)
    if "tasks" in found:
        take_tasks(path, found)
    choices = [("methods", (*METHODS, *FINE_TUNED)), ("rankers", RANKERS)]
    choices += [] if "tasks" in found else [("categories", FILES), ("splits", SPLITS)]
    for key, names in choices:
        check_names(path, key, found.get(key, ()), names)
    found["arguments"] = {key: found.get("arguments", {}).get(key, []) for key in ARGUMENTS}
    found["slurm"] = {**SLURM, **found.get("slurm", {})}
    for key, default in (("models", GENERATOR), ("judges", JUDGE)):
        if key not in found and f"openai_{key}" not in found:
            found[key] = [default]
    require("tasks" in found or "settings" not in found, path, "settings", found.get("settings"), "them with tasks")
    require("tasks" in found or "paper" not in found, path, "paper", found.get("paper"), "it with tasks")
    require("tasks" in found or "fine_tuned" not in found, path, "fine_tuned", True, "it with tasks")
    if found.get("fine_tuned"):
        asked = found.get("openai_models")
        require(asked is None, path, "openai_models", asked, "models alone with fine_tuned = true")
    for method in set(found.get("methods", ())) & set(FINE_TUNED):
        require(found.get("fine_tuned", False), path, "methods", method, "it with fine_tuned = true")
    study = Study(path, **{key: tuple(value) if isinstance(value, list) else value for key, value in found.items()})
    check_short_names(study)
    for name in study.servers:
        behind = (*study.openai_models, *study.openai_judges)
        require(name in behind, path, "servers", name, "a name of openai_models or openai_judges")
    files = [file_name(name) for name in study.responses]
    for name, pattern in study.responses.items():
        expected = f"one name that becomes {file_name(name)}: its score files are called so"
        require(files.count(file_name(name)) == 1, path, "responses", name, expected)
        has_split = len(study.splits) == 1 or "{split}" in pattern
        require(has_split, path, f"responses: {name}", pattern, "{split} in it: the study has several splits")
    check_figure(study)
    return study


def take_tasks(path: str, found: dict[str, Any]) -> None:
    """Put a study's tasks in place of categories, and their settings in front of splits; UserError over a mistake."""
    for key in ("categories", "judges", "openai_judges", "planner_base", "figure", "human_addr"):
        require(key not in found, path, key, found.get(key), "nothing of the kind with tasks")
    for key in ("settings", "splits"):
        require(key in found, path, key, None, "a list: they are in the names of the tasks' files")
    for name in found["tasks"]:
        what = "tasks of LaMP or LongLaMP: no study runs PersonaMem; docs/personamem.md has its commands"
        require(not name.startswith("PersonaMem"), path, "tasks", name, what)
    check_names(path, "tasks", found["tasks"], [name for name, task in tasks().items() if task.benchmark])
    benchmarks = {tasks()[name].benchmark for name in found["tasks"]}
    require(len(benchmarks) == 1, path, "tasks", found["tasks"], "those of one benchmark, which one table can hold")
    found.setdefault("methods", ["none", "rag"])
    for method in set(found["methods"]) & set(METHODS):
        require(
            method in WITHOUT_PLANS, path, "methods", method, f"one of {', '.join(WITHOUT_PLANS)}: tasks have no plans"
        )
    if found.get("fine_tuned"):
        what = "one first that the best checkpoints may be chosen by, as dev and val"
        require(found["splits"][0] != "test", path, "splits", found["splits"], what)
    found["categories"], found["judges"] = found["tasks"], []
    found["splits"] = [f"{setting}_{split}" for setting in found["settings"] for split in found["splits"]]


def check_names(path: str, what: str, names: Iterable[str], choices: Iterable[str]) -> None:
    """Raise UserError for a name that is none of the choices; it suggests the nearest one."""
    for name in names:
        if name not in choices:
            meant = quote(nearest(name, choices))
            raise UserError(f"{path}: {what}: there is no {quote(name)}; did you mean {meant}?")


def require(holds: bool, path: str, key: str, found: Any, expected: str) -> None:
    """Raise UserError over what stands under a key unless what is expected of it holds."""
    if not holds:
        found = list(found) if isinstance(found, tuple) else found  # as it stands in the file
        raise UserError(f"{path}: {key}: found {quote(found)}, expected {expected}")


def is_text(value: Any) -> bool:
    """One line: what is printed as a command must stay one, in the comments above it too."""
    return isinstance(value, str) and value.isprintable() and value.strip() != ""


def is_number(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least  # no bool, which is an int too


ITEMS = {  # of a list's type: what an item has to be, and what one and several are called
    tuple[str, ...]: (is_text, "a text", "texts"),
    tuple[int, ...]: (is_number, "a whole number from 0 up", "whole numbers from 0 up"),
}


def check_value(path: str, key: str, kind: Any, value: Any) -> None:
    """Raise UserError unless a value is of its key's type."""
    if kind in ITEMS:
        is_one, one, several = ITEMS[kind]
        require(isinstance(value, list), path, key, value, f"a list of {several}")
        more = "; answers alone are made by baselines.py and planpers.py" if key.endswith("judges") else ""
        require(value != [], path, key, value, f"at least one, or no such line for the default{more}")
        for number, item in enumerate(value, 1):
            require(is_one(item), path, f"{key}, item {number}", item, one)
            require(value.count(item) == 1, path, key, f"{item} twice", "every item once")
    elif key == "arguments":
        check_table(path, key, value, dict.fromkeys(ARGUMENTS, ()), "a table of lists", '["--temperature", "0.5"]')
    elif key == "servers":
        check_servers(path, value)
    elif key == "responses":
        check_responses(path, value)
    elif key == "slurm":
        check_table(path, key, value, SLURM, "a table", '["--partition=gpu"]')
    elif key == "figure":
        is_one = is_number(value) and value in FIGURES
        require(is_one, path, key, value, "one of the figures 2, 3, 4 and 16, as a number")
    elif key in ("unscored_as_zero", "fine_tuned"):
        require(isinstance(value, bool), path, key, value, "true or false")
    else:
        require(is_text(value), path, key, value, "a text")


def check_servers(path: str, value: Any) -> None:
    """Raise UserError unless each name of [servers] has a table of an address, the file of its key, and prices."""
    require(isinstance(value, dict), path, "servers", value, 'tables, such as [servers."my/model"]')
    for name, table in value.items():
        where = f"servers: {name}"
        require(isinstance(table, dict), path, where, table, 'a table, such as { base_url = "http://node7:8000/v1" }')
        check_names(path, where, table, SERVER)
        for key, found in table.items():
            is_price = type(found) in (int, float) and 0 <= found < math.inf
            is_right, what = (is_text(found), "a text") if SERVER[key] == "" else (is_price, "a number from 0 up")
            require(is_right, path, f"{where}: {key}", without_password(found), what)
        prices = [key for key in table if key.startswith("price_")]
        require(not prices or {"price_in", "price_out"} <= {*prices}, path, where, prices, "price_in and price_out")


def check_responses(path: str, value: Any) -> None:
    """Raise UserError unless each name of [responses] has a path, which gives a file for every split and category."""
    require(isinstance(value, dict), path, "responses", value, 'a table, such as "My method" = "mine/{category}.json"')
    for name, pattern in value.items():
        require(is_text(name) and is_text(pattern), path, f"responses: {name}", pattern, "a name and a path, as texts")
        try:
            files = {pattern.format(split="a", category=category) for category in "ab"}
        except (KeyError, IndexError, ValueError):
            files = set()
        what = "a path with {category}, and with {split} where there are several, such as mine/{split}/{category}.json"
        require(len(files) == 2, path, f"responses: {name}", pattern, what)


def check_table(path: str, name: str, found: Any, defaults: dict[str, Any], what: str, example: str) -> None:
    """Raise UserError unless each key is one of the defaults', and its value a list of texts, or a number as there."""
    require(isinstance(found, dict), path, name, found, what)
    check_names(path, name, found, defaults)
    for key, value in found.items():
        if isinstance(defaults[key], int):
            require(is_number(value, 1), path, f"{name}.{key}", value, "a number from 1 up")
        else:
            are_texts = isinstance(value, list) and all(map(is_text, value))
            require(are_texts, path, f"{name}.{key}", value, f"a list of texts, such as {example}")


def check_short_names(study: Study) -> None:
    """Raise UserError where two models would write into one folder, or two judges one score file."""
    for key, models in (("models", study.all_models), ("judges", study.all_judges)):
        names = [short_name(model) for model in models]
        for model, name in zip(models, names, strict=True):
            expected = f"one model named {name}: its files bear that name"
            require(names.count(name) == 1, study.path, key, model, expected)


def check_figure(study: Study) -> None:
    """Raise UserError where the study does not make what its figure shows."""
    path, figure, methods, numbers = study.path, study.figure, study.methods, study.num_contexts
    require(study.human_addr is None or figure == 4, path, "human_addr", study.human_addr, "it only with figure = 4")
    if figure is None:
        return
    for method in FIGURES[figure]:
        require(method in methods, path, "methods", methods, f"{method!r} among them: figure {figure} shows it")
    if figure in (2, 16):
        require(len(numbers) > 1, path, "num_contexts", numbers, f"two or more: figure {figure} shows them")
    if figure == 4:
        require(len(study.all_judges) > 1, path, "judges", study.all_judges, "two or more: figure 4 shows them")
        is_one = len(study.all_models) == len(study.splits) == 1
        require(is_one, path, "figure", figure, "it in a study of one model and one split")
    else:
        require(len(study.seeds) == 1, path, "seeds", study.seeds, "one: a figure shows one answer a question")
    if figure in (3, 4):
        require(len(numbers) == 1, path, "num_contexts", numbers, f"one: figure {figure} shows one")
