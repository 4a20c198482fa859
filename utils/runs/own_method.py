"""`baselines.py --method FILE`: a user's own method answers."""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from prompts import digests, load_prompt
from retrieval.search import Search, add_search_arguments
from utils.base import cli
from utils.base.errors import UserError, counted
from utils.base.file_hashes import file_hash
from utils.base.flags import Arguments
from utils.base.manifest import noted_settings, without_password
from utils.base.output import refuse_other_source
from utils.benchmarks.task import Task
from utils.generation.calls import describe_counts, prices_of
from utils.generation.chat import PAPER_LENGTH
from utils.generation.engines import choose_model, is_classifier, is_encoder_decoder
from utils.generation.model import Model
from utils.runs.answers import Dataset, ResponseFile, check_ranked, read_datasets
from utils.runs.driver import run_stages
from utils.runs.files import cost_in_words
from utils.runs.methods import Method, load_method
from utils.runs.stage import Stage

ROLE_FLAGS = {  # FLAG in --model NAME=MODEL,FLAG=VALUE -> the function that parses its value
    "base_url": cli.api_address,
    "api_key_addr": cli.at_home,
    "model_id": str,
    "price_in": cli.price,
    "price_out": cli.price,
    "price_cached": cli.price,
    "max_model_len": cli.positive_int,
}


def answer_by_method(args: Arguments) -> int:
    """Answer the questions by --method and return the exit code."""
    method = load_method(args.method)
    if len(args.inputs_addr) + len(args.output_addr) > 2:
        raise UserError("--method: give only one --inputs_addr and one --output_addr")
    shown = tuple(args.show_fields or ())
    [dataset] = read_datasets(args, lambda task: ["profile", *task.asked_needs, *shown], None, args.asking)
    check_ranked(args, [dataset])
    task = dataset.task
    check_shown(shown, task)
    note_unknown_names(args, method)
    models, search = choose_models(args, task), Search(args, task, dataset.path)
    settings = settings_of_method(args, task, models) | {"code": method.code(), "search": search.settings}
    answers = MethodFile(dataset, settings, method.path, models)
    stage = Stage(task, answers.records, partial(method, task=task, shown=shown), [answers], models, search=search)
    return run_stages([stage], args)


class MethodFile(ResponseFile):
    """Answers by a user's own method."""

    many_calls = True

    def __init__(self, dataset: Dataset, settings: dict[str, Any], path: Path, models: Mapping[str, Model]):
        """`path`: the method's file."""
        super().__init__(dataset, settings, method_path=str(path.resolve()))
        self._method, self._models = path, models
        self._earlier_code = noted_settings(self.path).get("code")  # None if there is no file to replace

    def check_replaced(self, made: Mapping[str, Any]) -> None:
        """Refuse to replace another file's answers. The same code elsewhere is the same method."""
        if "method_path" in made and made["settings"].get("code") != self.settings["code"]:
            refuse_other_source([made["method_path"]], [self.figures["method_path"]])

    def line(self, content: Any, figures: Mapping[str, Any]) -> str:
        """Also print a note if the method's code has changed, or if it did not repeat its calls when it ran again."""
        requested, reused = figures["completions"]["requested"], figures["completions"]["from_store"]
        earlier, code = self._earlier_code, self.settings["code"]
        if earlier not in (None, code):
            changed = sorted(name for name in {*earlier, *code} if earlier.get(name) != code.get(name))
            again = f"{requested} of {counted(requested + reused, 'completion')} requested"
            print(f"note: {self._method.parent / changed[0]} has changed: {again}", file=sys.stderr)
        if number := figures["asked_otherwise"]:
            remedy = "each run pays for its new calls; use ask.random for all randomness"
            records = counted(number, "record")
            print(f"note: {self._method} made other calls on its second run for {records}; {remedy}", file=sys.stderr)
        line = f"{self.path}: {describe_counts(figures['counts'])}"
        for role, calls in figures["calls"].items():
            if "unusable" in calls:
                line += f"; {calls['unusable']} of {counted(calls['num_calls'], 'call')} of {role} unusable"
        line += f"; {counted(requested, 'completion')} requested, {reused} from the store{cost_in_words(figures)}"
        unpriced = [role for role, model in self._models.items() if prices_of(model.flags) is None]
        return line + (f" without {', '.join(unpriced)}" if "cost_usd" in figures and unpriced else "")


def note_unknown_names(args: Arguments, method: Method) -> None:
    """Print the names in --set and --model that the method's file does not contain, because they may be misspelt."""
    text = method.path.read_text(encoding="utf-8", errors="replace")
    in_settings = " ".join(value for _, value in args.set or ())  # a setting may name a model
    for flag, pairs, places in (("--set", args.set, text), ("--model", args.model, f"{text} {in_settings}")):
        if unknown := [name for name, *_ in pairs or () if not re.search(rf"\b{name}\b", places)]:
            names = ", ".join(unknown)
            print(f"note: {method.path} does not contain the name {names}, given with {flag}", file=sys.stderr)


def check_shown(shown: Sequence[str], task: Task) -> None:
    """Raise UserError if --show_fields names anything but fields that only the scorer sees."""
    hidden = task.hidden_fields
    if unknown := [name for name in shown if name not in hidden]:
        raise UserError(
            f"--show_fields {unknown[0]}: not a field that only the scorer sees; those of {task.name} are "
            f"{', '.join(sorted(hidden))}"
        )


def flags_of_roles(args: Arguments) -> dict[str, Arguments]:
    """Return each role's flags: the generator has the command's own, and each --model overrides some of these."""
    flags = {"generator": args.replaced()}
    for role, addr, own_flags in args.model or []:
        if role in flags:
            raise UserError(f"--model {role}={addr}: the name is taken; choose another")
        if args.openai and "base_url" not in own_flags and Path(addr).is_dir():
            raise UserError(
                f"--model {role}={addr}: is a folder here, but with --openai this model runs at the generator's API\n"
                f"  give the name of one of the API's models; if that is its name, add the address: {role}={addr}@URL"
            )
        if args.openai and own_flags.keys() & {"base_url", "api_key_addr"} == {"base_url"}:
            url = without_password(own_flags["base_url"])
            raise UserError(f"--model {role}={addr}@{url}: needs a key: append ,api_key_addr=FILE")
        none = dict.fromkeys(("model_id", "price_in", "price_out", "price_cached"))
        openai = args.openai or "base_url" in own_flags
        addr = addr if openai else cli.without_link(addr)
        flags[role] = args.replaced(model_addr=addr, openai=openai, **{**none, **own_flags})
    return flags


def choose_models(args: Arguments, task: Task) -> dict[str, Model]:
    """Return the models by role; roles that have the same model share one `Completions`."""
    models: dict[str, Model] = {}
    for role, flags in flags_of_roles(args).items():
        is_generator = not models
        gives_rewards = not is_generator and not flags.openai and is_classifier(flags.model_addr, flags.cache_dir)
        for_api = f"add an address: --model {role}={flags.model_addr}@https://api.openai.com/v1"
        model = choose_model(
            flags,
            for_api="add --openai" if is_generator else for_api,
            wanted_length=task.prompt_length or PAPER_LENGTH,
            gives_rewards=gives_rewards,
        )
        if model.is_local and is_encoder_decoder(model.addr, flags.cache_dir):
            raise UserError(f"{model.addr}: is an encoder-decoder; give a chat model")
        folder = model.completions.store.folder
        same = (other.completions for other in models.values() if other.completions.store.folder == folder)
        models[role] = replace(model, completions=next(same, model.completions))
    return models


def settings_of_method(args: Arguments, task: Task, models: dict[str, Model]) -> dict[str, Any]:
    """Return the settings of the answers, without the method's code."""
    names = [*task.prompts.values()]
    if "reward" in task.metrics and any(model.gives_rewards for model in models.values()):
        names.append(task.metrics["reward"].judge.prompt)
    prompts = [load_prompt(name, args.prompts_dir) for name in dict.fromkeys(names)]
    learnt = sorted({name for model in models.values() for name in model.saw_in_training})
    saw = {"when": "training", "fields": learnt}
    if args.show_fields:
        saw = {"when": "test", "fields": args.show_fields, "models_saw": learnt}
    return args.settings() | {
        "script": "baselines.py",
        "method": Path(args.method).stem,
        "model": models["generator"].identity,
        "models": {role: model.identity for role, model in models.items()},
        "inputs": file_hash(args.inputs_addr[0]),
        "prompt": digests(prompts),
        "set": dict(args.set or []),
        **({"saw": saw} if saw["fields"] else {}),
    }


def add_method_arguments(parser: cli.FlagParser) -> None:
    # fmt: off
    add = parser.add_argument_group("method of your own").add_argument
    add("--method", metavar="FILE",
        help="Python file with `async def answer(record, ask)`, or the name of a method in utils/methods")
    add("--model", type=named_model, action="append", metavar="NAME=MODEL[@URL][,FLAG=VALUE]",
        help="additional model for ask(..., model=NAME). @URL: address of its API. FLAG: its api_key_addr, model_id, "
        "price_in, price_out, price_cached or max_model_len; repeatable (default: none)")
    add("--set", type=named, action="append", metavar="NAME=VALUE",
        help="setting for --method, read as ask.settings[NAME]; repeatable (default: none)")
    add("--show_fields", nargs="+", metavar="FIELD",
        help="fields that only the scorer should see and --method may read, to make training data; tables call its "
        "scores an upper bound (default: none)")
    # fmt: on
    add_search_arguments(parser)
    parser.not_a_setting("--model", "the identities of the models are settings")
    parser.without_effect(
        "--rag --choose --trim_items",
        lambda args: args.method is not None,
        "with --method, because the method itself decides what to ask",
    )
    parser.without_effect(
        "--model --set --show_fields --search", lambda args: args.method is None, "without --method", "give --method"
    )


def named(text: str) -> tuple[str, str]:
    """Return the name and the value in a NAME=VALUE of --set; ArgumentTypeError if the text is not of this form."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{json.dumps(without_password(text))} is not NAME=VALUE")
    return name, value


def named_model(text: str) -> tuple[str, str, dict[str, Any]]:
    """Return the role, the model's address and its own flags from --model NAME=MODEL[@URL][,FLAG=VALUE...]."""
    role, rest = named(text)
    rest, *parts = re.split(f",(?=(?:{'|'.join(ROLE_FLAGS)})=)", rest)
    model, _, url = (rest, "", "") if Path(cli.at_home(rest)).exists() else rest.partition("@")
    flags = {"base_url": cli.api_address(url)} if url else {}
    for name, _, value in (part.partition("=") for part in parts):
        try:
            flags[name] = ROLE_FLAGS[name](value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name}={value}: {error}") from None
    return role, cli.at_home(model), flags
