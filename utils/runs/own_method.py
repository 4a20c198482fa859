"""`baselines.py --method FILE`: answers by a user's own method; each run rebuilds them all from the store."""

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from prompts import digests, load_prompt
from utils import cli
from utils.benchmarks.task import Task
from utils.cli import Arguments, UserError
from utils.files.manifest import file_hash, read_manifest, without_password
from utils.files.output import Output
from utils.generation.calls import count_unfinished, describe_cost, describe_counts, describe_records, prices_of
from utils.generation.completions import NotStoredError
from utils.generation.engines import (
    batch_invariance,
    choose_generator,
    identify_model,
    is_encoder_decoder,
    print_machine,
    report_shard,
)
from utils.generation.failures import common_reasons
from utils.parsing.thoughts import UNFINISHED_COUNT
from utils.records.responses import collect_responses, count_responses
from utils.runs.answers import check_ranked, read_datasets
from utils.runs.command import writing
from utils.runs.methods import load_method, report_raised, sum_calls
from utils.runs.runner import AT_ONCE, Run, Servers, end_tasks, run_steps
from utils.runs.shared import Role, Shared, Step

ROLE_FLAGS = {  # flags of a model that --model adds, and the functions that parse them
    "base_url": cli.api_address,
    "api_key_addr": cli.at_home,
    "model_id": str,
    "price_in": cli.non_negative_float,
    "price_out": cli.non_negative_float,
    "price_cached": cli.non_negative_float,
    "max_model_len": cli.positive_int,
}


def answer_by_method(args: Arguments) -> int:
    """Answer the questions by --method and return the exit code."""
    method = load_method(args.method)
    if len(args.inputs_addr) + len(args.output_addr) > 2:
        raise UserError("--method: give only one --inputs_addr and one --output_addr")
    shown = tuple(args.show_fields or ())
    [dataset] = read_datasets(args, ["profile", "asked", *shown], None)
    check_ranked(args, [dataset])
    task, asked = dataset.task, dataset.asked
    check_shown(shown, task)
    roles = choose_roles(flags_of_roles(args), task)
    shared = Shared(task, roles, args.seed, args.num_contexts, args.prompts_dir, dict(args.set or []), shown)
    settings = settings_of_method(args, task, roles)
    collect = partial(collect_responses, dataset.records)
    output = Output(dataset.output_addr, settings, list(asked), collect, "answers", args, dataset=dataset.path)
    output.is_finished()  # the method's file may have changed, so it is run in any case
    earlier = (read_manifest(output.path) or {}).get("method_sha256")
    step = Step(method, lambda: asked, "answers", output.pieces)
    if args.dry_run:
        code = describe_first_calls(step, shared)
        print_machine(args, [role.model for role in roles.values()], args.output_addr, len(asked))
        return code

    with writing([output]):
        device, [run] = run_steps([step], shared)
        publish_answers(args, task, output, run, device, earlier)
    report_shard(args, args.output_addr)
    unread = [name for name in shared.settings if name not in shared.settings_read]
    if unread and output.pieces:  # a record that failed may not have come to read it
        print(f"note: the method did not read --set {', '.join(unread)} for any question", file=sys.stderr)
    code = 0 if device is None else output.report_failed(common_reasons)
    return max(code, report_raised(run.raised), cli.report_missing(len(run.missing), "answer"))


def check_shown(shown: Sequence[str], task: Task) -> None:
    """Raise UserError if --show_fields names anything but fields that only the scorer sees."""
    hidden = task.hidden_fields
    if unknown := [name for name in shown if name not in hidden]:
        raise UserError(
            f"--show_fields {unknown[0]}: the fields of {task.name} for the scorer are {', '.join(sorted(hidden))}"
        )


def flags_of_roles(args: Arguments) -> dict[str, Arguments]:
    """Return the flags by role: the command's for the generator, with overrides for each --model."""
    flags = {"generator": args.replaced()}
    for role, addr, own in args.model or []:
        if role in flags:
            raise UserError(f"--model {role}={addr}: the name is taken; choose another")
        if args.openai and "base_url" not in own and Path(addr).is_dir():
            raise UserError(
                f"--model {role}={addr}: is a folder here, but with --openai the model runs where the generator does\n"
                f"  give the name of one of the API's models; if that is its name, add the address: {role}={addr}@URL"
            )
        if args.openai and own.keys() & {"base_url", "api_key_addr"} == {"base_url"}:
            raise UserError(
                f"--model {role}={addr}@{without_password(own['base_url'])}: add its key, ,api_key_addr=FILE"
            )
        none = dict.fromkeys(("model_id", "price_in", "price_out", "price_cached"))
        openai = args.openai or "base_url" in own
        addr = addr if openai else cli.without_link(addr)
        flags[role] = args.replaced(model_addr=addr, openai=openai, **{**none, **own})
    return flags


def choose_roles(flags: dict[str, Arguments], task: Task) -> dict[str, Role]:
    """Return the models by role; roles with the same model share its completions."""
    roles, stores = {}, {}
    for role, own in flags.items():
        identity = identify_model(own, own.model_addr)
        if not own.openai and is_encoder_decoder(own.model_addr, own.cache_dir):
            raise UserError(f"{own.model_addr}: is an encoder-decoder; give a chat model")
        model = choose_generator(own, identity, task.output.schema, task.prompt_length)
        completions = stores.setdefault(model.completions.store.folder, model.completions)
        roles[role] = Role(own, replace(model, completions=completions))
    return roles


def settings_of_method(args: Arguments, task: Task, roles: dict[str, Role]) -> dict[str, Any]:
    """Return the settings of the answers, without the method's code, which may change."""
    prompts = [load_prompt(name, args.prompts_dir) for name in dict.fromkeys(task.prompts.values())]
    learnt = sorted({name for role in roles.values() for name in role.model.saw_in_training})
    saw = {"when": "training", "fields": learnt}
    if args.show_fields:
        saw = {"when": "test", "fields": args.show_fields, "models_saw": learnt}
    return args.settings() | {
        "script": "baselines.py",
        "method": Path(args.method).stem,
        "model": roles["generator"].model.identity,
        "models": {name: role.model.identity for name, role in roles.items()},
        "inputs": file_hash(args.inputs_addr[0]),
        "prompt": digests(prompts),
        "set": dict(args.set or []),
        **({"saw": saw} if saw["fields"] else {}),
    }


def cost_of(tokens: Mapping[str, Mapping[str, int | None]], roles: Mapping[str, Role]) -> dict[str, float | None]:
    """Return a manifest's `cost_usd`, summed over the roles with prices; empty if no role has prices."""
    costs = [prices.cost(tokens[role]) for role in roles if (prices := prices_of(roles[role].args))]
    return {"cost_usd": None if None in costs else round(sum(costs), 6)} if costs else {}


def publish_answers(
    args: Arguments, task: Task, output: Output, run: Run, device: str | None, earlier: str | None
) -> None:
    """Write the response file and its manifest, and print a summary; a shard writes nothing.

    `earlier` is the hash of the method's file that the replaced output was made with, if there was one.
    """
    responses = output.content()
    counts = count_responses(responses, task.item_words) | task.count_outputs(chain.from_iterable(responses.values()))
    pieces, calls = list(output.pieces.values()), list(chain.from_iterable(run.calls.values()))
    roles = run.shared.roles
    stores = {one.model.completions.store.folder: one.model.completions for one in roles.values()}.values()
    requested = sum(one.asked for one in stores)
    reused = max(0, sum(call.get("attempts", 0) for _, call in calls) - requested)
    made = describe_records(call for _, call in calls)
    made.pop(UNFINISHED_COUNT, None)  # counts calls; the summary counts answers
    made |= count_unfinished(pieces)
    by_role = {role: sum_calls(call for its, call in calls if its == role) for role in roles}
    cost = cost_of(by_role, roles)
    digest = file_hash(run.step.method.path)
    is_written = output.publish(
        device,
        method_sha256=digest,
        batch_invariant=batch_invariance(device, args.openai),
        counts=counts,
        completions={"requested": requested, "from_store": reused},
        calls=by_role,
        **roles["generator"].model.figures,
        raised=len(run.raised),
        **made,
        **cost,
    )
    if not is_written:
        return
    if earlier not in (None, digest):
        told = f"{requested} of {requested + reused} completions were requested again"
        print(f"note: {run.step.method.path} has changed: {told}", file=sys.stderr)
    told = describe_counts(counts)
    for role, its in by_role.items():
        told += f"; {its['unusable']} of {its['num_calls']} calls of {role} unusable" if its.get("unusable") else ""
    told += f"; {requested} completions requested, {reused} from the store"
    if cost:
        unpriced = ", ".join(role for role in roles if prices_of(roles[role].args) is None)
        told += f"; {describe_cost(cost['cost_usd'])}" + (f" without {unpriced}" if unpriced else "")
    print(f"{output.path}: {told}")


class _Counting:
    """An engine that counts the prompts missing from the store, and answers none."""

    concurrency = AT_ONCE
    device = "none"

    def __init__(self, roles: dict[str, Role]):
        self._chats = {role.model.addr: role.model.chat for role in roles.values()}
        self.lengths: list[int] = []

    async def complete(self, model: str, prompt: Any, sampling: Any) -> Any:
        self.lengths.append(self._chats[model].length(prompt))
        raise NotStoredError

    async def score(self, model: str, prompt: Any, continuations: Any) -> Any:
        return await self.complete(model, prompt, None)

    async def close(self) -> None:
        pass


def describe_first_calls(step: Step, shared: Shared) -> int:
    """Print the first calls that the store lacks; later ones depend on the answers.

    Returns the exit code, which is 1 if the method raises.
    """
    counting, run = _Counting(shared.roles), Run(step, shared, Servers())

    async def go() -> None:
        await run.go(dict.fromkeys(shared.roles, counting), is_shown=False)
        await end_tasks()

    asyncio.run(go())
    lengths, generator = counting.lengths, shared.roles["generator"].model
    print(
        f"{len(step.records())} records: {len(step.pieces)} are complete in the store, {run.num_left} need calls\n"
        f"{len(lengths)} first calls, {sum(lengths)} tokens ({generator.chat.counter}); "
        f"longest {max(lengths, default=0)}; at most {generator.policy.max_tokens} tokens per output\n"
        "follow-up calls are not counted"
    )
    return report_raised(run.raised)


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
    parser.decides_nothing("--model", "the settings have the models' identities")
    parser.without_effect(
        "--rag --choose --trim_items",
        lambda args: args.method is not None,
        "with --method, because the method itself decides what to ask",
    )
    parser.without_effect(
        "--model --set --show_fields", lambda args: args.method is None, "without --method", "give --method"
    )


def begin_with_fixed_hashes() -> None:
    """Restart this process with PYTHONHASHSEED=0, unless it is set.

    Otherwise sets of strings iterate in a different order each run, and a method that loops over one would make
    different calls.
    """
    if "PYTHONHASHSEED" not in os.environ:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def named(text: str) -> tuple[str, str]:
    """Parse a value of --set, NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{json.dumps(without_password(text))} is not NAME=VALUE")
    return name, value


def named_model(text: str) -> tuple[str, str, dict[str, Any]]:
    """Parse a value of --model, NAME=MODEL[@URL][,FLAG=VALUE...], into the role, the model, and its own flags."""
    role, rest = named(text)
    rest, *parts = re.split(f",(?=(?:{'|'.join(ROLE_FLAGS)})=)", rest)
    model, _, url = (rest, "", "") if Path(cli.at_home(rest)).exists() else rest.partition("@")
    own = {"base_url": cli.api_address(url)} if url else {}
    for name, _, value in (part.partition("=") for part in parts):
        try:
            own[name] = ROLE_FLAGS[name](value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name}={value}: {error}") from None
    return role, cli.at_home(model), own
