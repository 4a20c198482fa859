"""`baselines.py --method FILE`: answers by a user's own method, written whole from the store and the inputs."""

import argparse
import asyncio
import json
import os
import re
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from prompts import digests, load_prompt
from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.flags import Arguments
from utils.files.manifest import file_hash, refuse_unranked, without_password
from utils.files.output import Key, Output
from utils.generation.completions import NotStoredError
from utils.generation.cost import describe_cost, prices_of
from utils.generation.driver import describe_records
from utils.generation.encoder_decoder import TextModel, choose_answerer
from utils.generation.engines import (
    Model,
    batch_invariance,
    confirm_model,
    identify_model,
    open_engine,
    print_machine,
    report_shard,
    share_base,
)
from utils.generation.requests import Engine
from utils.generation.vllm_engine import VLLMEngine
from utils.parsing.thoughts import UNFINISHED_COUNT
from utils.records.datasets import STEP_NEEDS, select_questions
from utils.records.responses import collect_responses, count_responses
from utils.records.stream import read_questions
from utils.runs.methods import Method, Settings, load_method, sum_calls
from utils.runs.runner import AT_ONCE, Outcome, Run, report_raised, run_method

ROLE_FLAGS = {  # of a model of --model, with what reads them
    "base_url": cli.api_address,
    "api_key_addr": str,
    "model_id": str,
    "price_in": cli.non_negative_float,
    "price_out": cli.non_negative_float,
    "price_cached": cli.non_negative_float,
}


def answer_by_method(args: Namespace) -> int:
    """Answer the questions by --method; returns the exit code."""
    method = load_method(args.method)
    records = read_questions(args.inputs_addr, STEP_NEEDS["rag"])
    task = task_of(args.inputs_addr, records)
    refuse_unranked(args.inputs_addr, args.unranked)
    selected = select_questions(records, args.limit, args.num_shards, args.shard_index)
    asked = {(record["id"], i): record for record in selected for i in range(args.num_generated_outputs)}
    flags = flags_of_roles(args)
    models = choose_models(flags, task)
    shared = Settings(task, models, args.seed, args.num_contexts, args.prompts_dir, dict(args.set or []), {})
    settings = settings_of_method(args, task, models)
    output = Output(args.output_addr, settings, list(asked), partial(collect_responses, records), "answers", args)
    output.is_finished()  # the method's file may have changed, so it is run in any case
    if args.dry_run:
        code = describe_first_calls(method, shared, asked)
        print_machine(args, list(models.values()), [args.output_addr], len(asked))
        return code

    output.open()
    outcome = run_method(method, shared, asked, partial(open_engines, flags, models, len(asked)))
    output.pieces = outcome.pieces
    publish_answers(args, task, output, outcome, flags, models)
    report_shard(args, [args.output_addr])
    code = 0 if outcome.device is None else output.report_failed()
    return max(code, report_raised(outcome.raised), cli.report_missing(len(outcome.missing), "answer"))


def flags_of_roles(args: Arguments) -> dict[str, Arguments]:
    """The flags by role: of the generator the command's, of those of --model with their own in place."""
    if args.openai_batch:
        raise UserError("--openai_batch: a method's calls follow one another, often within seconds; leave it out")
    flags = {"generator": args.replaced()}
    for role, addr, own in args.model or []:
        if role in flags:
            raise UserError(f"--model {role}={addr}: the name is taken; choose another")
        if args.openai and own.keys() & {"base_url", "api_key_addr"} == {"base_url"}:
            raise UserError(
                f"--model {role}={addr}@{without_password(own['base_url'])}: give its key too, ,api_key_addr=FILE"
            )
        none = dict.fromkeys(("model_id", "price_in", "price_out", "price_cached"))
        flags[role] = args.replaced(model_addr=addr, openai=args.openai or "base_url" in own, **{**none, **own})
    return flags


def choose_models(flags: dict[str, Arguments], task: Task) -> dict[str, Model]:
    """The models by role. Where two are the same one they share its completions."""
    models, stores = {}, {}
    for role, own in flags.items():
        identity = identify_model(own, own.model_addr)
        model = choose_answerer(own, identity, task.output.schema, task.prompt_length)
        if isinstance(model, TextModel):
            raise UserError(f"{own.model_addr}: an encoder-decoder; --method needs chat models")
        first, completions = stores.setdefault(model.completions.store.folder, (own, model.completions))
        if own.openai and own.base_url != first.base_url:
            raise UserError(
                f"--model {role}={own.model_addr}: has another model's name; tell them apart, ,model_id=NAME"
            )
        models[role] = replace(model, completions=completions)
    return models


def open_engines(flags: dict[str, Arguments], models: dict[str, Model], outputs: int, role: str) -> dict[str, Engine]:
    """Engines by role: for this one with those here on the same base model, and for all behind an API."""
    by_api: dict[tuple[str | None, str | None], Engine] = {}
    engines = {}
    for name, own in flags.items():
        if own.openai:
            place, model = (own.base_url, own.api_key_addr), models[name]
            if place not in by_api:
                by_api[place] = open_engine(own, model.addr, model.length, model.completions, [], outputs)
            else:
                confirm_model(own, model.addr, model.completions)
            engines[name] = by_api[place]
    if role not in engines:
        own, model = flags[role], models[role]
        here = [name for name in flags if name not in engines]
        served = [name for name in here if share_base([model.addr, models[name].addr], own.cache_dir)]
        own = own.replaced(reasoning_parser=model.policy.reasoning_parser)
        addrs = list(dict.fromkeys(models[name].addr for name in served))
        engine = VLLMEngine(own, addrs, max(models[name].length for name in served), outputs)
        engines |= dict.fromkeys(served, engine)
    return engines


def settings_of_method(args: Arguments, task: Task, models: dict[str, Model]) -> dict[str, Any]:
    """What decides the answers besides the method's file, its --set and the dataset: those may change."""
    prompts = [load_prompt(name, args.prompts_dir) for name in dict.fromkeys(task.prompts.values())]
    return args.settings() | {
        "script": "baselines.py",
        "method": Path(args.method).stem,
        "model": models["generator"].identity,
        "models": {role: model.identity for role, model in models.items()},
        "inputs": file_hash(args.inputs_addr),
        "prompt": digests(prompts),
    }


def publish_answers(
    args: Namespace, task: Task, output: Output, outcome: Outcome, flags: dict[str, Arguments], models: dict[str, Model]
) -> None:
    """Write the response file and its manifest, and say what they hold; of a shard nothing is written."""
    responses = output.content()
    counts = count_responses(responses, task.item_words) | task.count_outputs(chain.from_iterable(responses.values()))
    pieces, calls = list(outcome.pieces.values()), list(chain.from_iterable(outcome.calls.values()))
    stores = {model.completions.store.folder: model.completions for model in models.values()}.values()
    requested = sum(one.asked for one in stores)
    reused = max(0, sum(call.get("attempts", 0) for _, call in calls) - requested)
    made = describe_records(call for _, call in calls)
    made.pop(UNFINISHED_COUNT, None)  # of the calls; what is told of is answers
    made |= {name: one for name, one in describe_records(pieces).items() if name == UNFINISHED_COUNT}
    by_role = {role: sum_calls(call for its, call in calls if its == role) for role in models}
    costs = {role: prices.cost(by_role[role]) for role in models if (prices := prices_of(flags[role]))}
    cost = {"cost_usd": None if None in costs.values() else round(sum(costs.values()), 6)} if costs else {}
    is_written = output.publish(
        outcome.device,
        batch_invariant=batch_invariance(outcome.device, args.openai),
        counts=counts,
        completions={"requested": requested, "from_store": reused},
        calls=by_role,
        token_counter=models["generator"].chat.counter,
        **made,
        **cost,
    )
    if not is_written:
        return
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    told += f"; {requested} completions requested, {reused} from the store"
    if costs:
        unpriced = ", ".join(models.keys() - costs.keys())
        told += f"; {describe_cost(cost['cost_usd'])}" + (f" without {unpriced}" if unpriced else "")
    print(f"{args.output_addr}: {told}")


class _Counting:
    """In an engine's place: counts the prompts that the store lacks."""

    concurrency = AT_ONCE

    def __init__(self, models: dict[str, Model]):
        self._chats = {model.addr: model.chat for model in models.values()}
        self.lengths: list[int] = []

    async def complete(self, model: str, prompt: Any, sampling: Any) -> Any:
        self.lengths.append(self._chats[model].length(prompt))
        raise NotStoredError

    async def close(self) -> None:
        pass


def describe_first_calls(method: Method, shared: Settings, asked: dict[Key, Record]) -> int:
    """Say what the records would ask first of what the store lacks; what follows depends on the answers.

    The exit code is 1 if the method raises.
    """
    counting, run = _Counting(shared.models), Run(method, shared)
    left = asyncio.run(run.all(asked, dict.fromkeys(shared.models, counting), is_shown=False))
    lengths, generator = counting.lengths, shared.models["generator"]
    print(
        f"{len(asked)} records: {len(run.outcome.pieces)} are complete in the store, {len(left)} need calls\n"
        f"{len(lengths)} first calls, {sum(lengths)} tokens ({generator.chat.counter}); "
        f"longest {max(lengths, default=0)}; at most {generator.policy.max_tokens} tokens an output\n"
        "calls that follow on their answers are not counted"
    )
    return report_raised(run.outcome.raised)


def begin_with_fixed_hashes() -> None:
    """Begin this process anew with PYTHONHASHSEED=0, unless it is set: else a set of texts has another order each time,
    and a method that goes through one asks otherwise."""
    if "PYTHONHASHSEED" not in os.environ:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def named(text: str) -> tuple[str, str]:
    """A value of --set, NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{json.dumps(text)} is not NAME=VALUE")
    return name, value


def named_model(text: str) -> tuple[str, str, dict[str, Any]]:
    """A value of --model, NAME=MODEL[@URL][,FLAG=VALUE...]: the role, the model, and its own flags."""
    role, rest = named(text)
    rest, *parts = re.split(f",(?=(?:{'|'.join(ROLE_FLAGS)})=)", rest)
    model, _, url = rest.partition("@")
    own = {"base_url": cli.api_address(url)} if url else {}
    for name, _, value in (part.partition("=") for part in parts):
        try:
            own[name] = ROLE_FLAGS[name](value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name}={value}: {error}") from None
    return role, model, own
