"""What a command is going to read, ask or load, and write: from its words, by its script's own parser."""

import importlib
from argparse import Namespace
from types import ModuleType

from utils.cli import UserError
from utils.cli.flags import FlagParser

STEPS = {"retrieval/rank_dataset.py": "rank", "train_planner.py": "train"}  # else it hangs on the flags
CHECKED = (*STEPS, "baselines.py", "planpers.py", "evaluate_responses.py")
DATASETS = ("input_dataset_addr", "inputs_addr", "validation_addr")  # flags that name them
MODELS = ("model_addr", "evaluator_llm", "model_name")  # that name what a script asks or loads
MEMORY = ("cache_dir", "max_model_len", "tensor_parallel_size", "gpu_memory_utilization", "dtype")


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
    if getattr(args, "ranker", "dense") != "dense":
        return None
    return next(getattr(args, name) for name in MODELS if name in args)


def preflights_of(command: list[str]) -> list[list[str]]:
    """The flags of utils/preflight.py that check a command: one line of them, and one for a planner that it loads.

    Args:
        command: a script and its flags.

    Raises:
        UserError: it is no script that asks or loads a model.
    """
    script, *words = command or [""]
    if script not in CHECKED:
        raise UserError(f"--command {script}: found none of {', '.join(CHECKED)}")
    args = parser_of(script).parse_args(words)
    flags = ["--inputs_addr", *(path for name in DATASETS if (path := getattr(args, name, None)))]
    flags += ["--output_addr", *outputs_of(script, args)]
    if step := step_of(script, args):
        flags += ["--step", step]
    if getattr(args, "plans_addr", None):
        flags += ["--plans_addr", args.plans_addr]
    memory = [word for name in MEMORY if getattr(args, name, None) is not None
              for word in (f"--{name}", str(getattr(args, name)))]  # fmt: skip
    if script == "evaluate_responses.py":
        flags += ["--evaluator_llm", args.evaluator_llm] if args.evaluator_llm else []
        flags += ["--strategy", args.strategy] if args.evaluator_llm and args.strategy else []
        flags += ["--response_addr", *args.response_addr] if args.evaluator_llm else []
    elif model := model_of(args):
        flags += ["--model_addr", model]
    if getattr(args, "openai", False):
        flags += ["--openai", *(["--api_key_addr", args.api_key_addr] if args.api_key_addr else [])]
    elif model_of(args):
        flags += memory
    planner = getattr(args, "planner_model", None)  # which runs here even where the generator is behind an API
    return [flags, ["--model_addr", planner, *memory]] if planner else [flags]


def outputs_of(script: str, args: Namespace) -> list[str]:
    if script == "evaluate_responses.py":
        return args.score_addr
    if script == "train_planner.py":
        return [f"{args.output_dir}/training_log.jsonl"]
    if script == "planpers.py":
        return [args.output_addr, f"{args.output_addr}.plans.json"]
    return [args.output_dataset_addr if "output_dataset_addr" in args else args.output_addr]
