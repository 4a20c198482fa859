"""What a command is going to read, ask or load, and write: from its words, by its script's own parser."""

import importlib
import json
import os
from argparse import Namespace
from types import ModuleType
from typing import Any

from retrieval import WITH_ENCODER
from utils.cli import UserError
from utils.cli.flags import Arguments, FlagParser
from utils.files.manifest import refuse_unranked
from utils.generation.templates import template_variables

STEPS = {
    "retrieval/rank_dataset.py": "rank",
    "train_planner.py": "train",
    "utils/train_generator.py": "generator",
}  # else it hangs on the flags
CHECKED = (*STEPS, "baselines.py", "planpers.py", "evaluate_responses.py")
DATASETS = ("input_dataset_addr", "inputs_addr", "validation_addr")  # flags that name them
MODELS = ("model_addr", "evaluator_llm", "model_name")  # that name what a script asks or loads
MEMORY = ("cache_dir", "max_model_len", "tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization", "dtype")


def module_of(script: str) -> ModuleType:
    """A script by its path from the root of the repository; importing one loads no engine."""
    return importlib.import_module(script.removesuffix(".py").replace("/", "."))


def parser_of(script: str) -> FlagParser:
    return module_of(script).build_parser()


def step_of(script: str, args: Namespace) -> str | None:
    """What a script is in `STEP_NEEDS`; None for a judge, whose needs are its strategy's."""
    if script == "baselines.py":
        return "rag" if args.rag else "none"
    if script == "planpers.py":
        return "planpers_gold" if args.gold_plan else "planpers"
    return STEPS.get(script)


def model_of(args: Namespace) -> str | None:
    """What a script asks or loads, a planner beside it aside; None for a ranking that needs no encoder."""
    if getattr(args, "ranker", "dense") not in WITH_ENCODER:
        return None
    return next(getattr(args, name) for name in MODELS if name in args)


def preflights_of(command: list[str]) -> list[list[str]]:
    """The flags of utils/preflight.py that check a command: one line of them, and one for a planner that it loads.

    UserError where it is no script that asks or loads a model.
    """
    script, *words = command or [""]
    if script not in CHECKED:
        raise UserError(f"--command {script}: found none of {', '.join(CHECKED)}")
    args = parser_of(script).parse_args(words)
    given, model = vars(args).get, model_of(args)
    flags = {"inputs_addr": [path for name in DATASETS if (path := given(name))]}
    flags |= {"output_addr": outputs_of(script, args), "step": step_of(script, args), "plans_addr": given("plans_addr")}
    if "unranked" in args and args.num_contexts and flags["step"] != "none":
        for path in filter(os.path.exists, flags["inputs_addr"]):
            refuse_unranked(path, args.unranked)
    if model and script == "evaluate_responses.py":
        flags |= {name: given(name) for name in ("evaluator_llm", "strategy", "response_addr")}
        room = {"max_tokens_verdict": set_by_user(args, "max_tokens"), "verdicts": args.verdicts}
    elif model:
        flags["model_addr"] = model
        room = {"max_tokens": set_by_user(args, "max_tokens"), "choose": given("choose")}
    memory, parser = {name: given(name) for name in MEMORY}, {"reasoning_parser": given("reasoning_parser")}
    if given("openai"):
        flags |= {"openai": [], "api_key_addr": args.api_key_addr, **parser}
    elif model:
        flags |= memory | parser | room | {"chat_template_kwargs": template_variables(args) or None}
    if planner := given("planner_model"):  # which has an API of its own, or runs here, wherever the generator is
        key = {"openai": [], "api_key_addr": args.planner_api_key_addr}
        here = memory | {"max_tokens": set_by_user(args, "max_tokens_plan")}
        return [words_of(flags), words_of({"model_addr": planner, **(key if args.planner_base_url else here)})]
    return [words_of(flags)]


def set_by_user(args: Arguments, flag: str) -> int | None:
    """Return a flag's value, or None if the user has not set it: a thinking model then gets more than the default."""
    return getattr(args, flag) if flag in args.given else None


def outputs_of(script: str, args: Namespace) -> list[str]:
    if script == "evaluate_responses.py":
        return args.score_addr
    if "output_dir" in args:
        return [f"{args.output_dir}/training_log.jsonl"]
    if script == "planpers.py":
        return [args.output_addr, f"{args.output_addr}.plans.json"]
    return [args.output_dataset_addr if "output_dataset_addr" in args else args.output_addr]


def words_of(flags: dict[str, Any]) -> list[str]:
    """A command line of flags with their values, a list or one; those whose value is None are left out."""
    values = {name: value if isinstance(value, list) else [value] for name, value in flags.items() if value is not None}
    texts = {
        name: [json.dumps(one) if isinstance(one, dict) else str(one) for one in its] for name, its in values.items()
    }
    return [word for name, its in texts.items() for word in (f"--{name}", *its)]
