"""`baselines.py --method FILE`: answers by a user's own method, written whole from the store and the inputs."""

import argparse
import asyncio
import json
from argparse import Namespace
from collections.abc import Collection
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from prompts import load_prompt
from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.flags import Arguments
from utils.files.journal import keys_hash
from utils.files.journal_lines import Key
from utils.files.lock import Lock
from utils.files.manifest import (
    describe_run,
    file_hash,
    prepare_output,
    publish,
    read_manifest,
    refuse_unranked,
    run_fingerprint,
)
from utils.files.writing import check_writable
from utils.generation.completions import NotStoredError
from utils.generation.cost import describe_cost, prices_of
from utils.generation.driver import describe_records
from utils.generation.encoder_decoder import TextModel, choose_answerer
from utils.generation.engines import Model, batch_invariance, confirm_model, open_engine, share_base
from utils.generation.requests import Engine
from utils.generation.vllm_engine import VLLMEngine
from utils.records.datasets import STEP_NEEDS, select_questions
from utils.records.responses import collect_responses, count_responses
from utils.records.stream import read_questions
from utils.runs.methods import Ask, Method, Question, Settings, load_method
from utils.runs.runner import Outcome, report_raised, run_method

# An output that differs in these alone is made again without --overwrite: no completion is wrong for it.
MAY_CHANGE = ("inputs", "keys", "method", "settings")


def answer_by_method(args: Namespace) -> int:
    """Answer the questions by --method; returns the exit code."""
    method = load_method(args.method)
    args.completions = args.completions or str(Path(args.output_addr).parent / "completions")
    records = read_questions(args.inputs_addr, STEP_NEEDS["rag"])
    task = task_of(args.inputs_addr, records)
    refuse_unranked(args.inputs_addr, args.unranked)
    selected = select_questions(records, args.limit, args.num_shards, args.shard_index)
    asked = {(record["id"], i): record for record in selected for i in range(args.num_generated_outputs)}
    models = choose_models(args, task)
    shared = Settings(task, models, args.seed, args.num_contexts, args.prompts_dir, dict(args.set or []), {})
    settings = make_fingerprint(args, task, models, method, asked)
    if args.dry_run:
        print(describe_first_calls(method, shared, asked))
        return 0

    is_whole = args.num_shards == 1
    if is_whole:
        check_writable(Path(args.output_addr))
        lock = Lock(args.output_addr)
        if is_finished(args, settings):
            lock.release()
            return 0
    for model in models.values():
        confirm_model(args, model.addr, [], model.completions)
    outcome = run_method(method, shared, asked, partial(open_method_engine, args, models, len(asked)))
    if is_whole:
        publish_answers(args, task, settings, records, asked, outcome, models)
        lock.release()
    else:
        which = f"shard {args.shard_index} of {args.num_shards}"
        print(f"{args.completions}: {which} is in it; the same command without shards writes {args.output_addr}")
    code = report_raised(outcome.raised)
    return max(code, cli.report_missing(len(outcome.missing), "answer"))


def choose_models(args: Arguments, task: Task) -> dict[str, Model]:
    """The models by role: the generator, and those of --model."""
    if args.openai_batch:
        raise UserError("--openai_batch: a method's calls follow one another, often within seconds; leave it out")
    models = {}
    for role, addr in [("generator", args.model_addr), *(args.model or [])]:
        if role in models:
            raise UserError(f"--model {role}={addr}: there is a model of that name; give another name")
        own = args.replaced(model_addr=addr)
        models[role] = choose_answerer(own, task.output.schema, task.prompt_length)
        if isinstance(models[role], TextModel):
            raise UserError(f"{addr}: an encoder-decoder; --method needs chat models")
    return models


def open_method_engine(
    args: Arguments, models: dict[str, Model], outputs: int, role: str
) -> tuple[Engine, Collection[str]]:
    """An engine for a role, and for all that can share it: behind an API all, here those on the same base model."""
    model = models[role]
    if args.openai:
        return open_engine(args, model.addr, model.length, [], outputs), models.keys()
    served = [name for name, other in models.items() if share_base([model.addr, other.addr], args.cache_dir)]
    own = args.replaced(reasoning_parser=model.policy.reasoning_parser)
    addrs = list(dict.fromkeys(models[name].addr for name in served))
    return VLLMEngine(own, addrs, max(models[name].length for name in served), outputs), served


def make_fingerprint(
    args: Namespace, task: Task, models: dict[str, Model], method: Method, asked: dict[Key, Record]
) -> dict[str, Any]:
    generator, *others = models.values()
    own = {"model": generator.identity, "num_contexts": args.num_contexts, "method": method.files}
    own |= {"models": {role: model.identity for role, model in models.items()}} if others else {}
    own |= {"settings": dict(args.set or []), "keys": keys_hash(asked), "max_model_len": generator.length}
    prompts = [load_prompt(name, args.prompts_dir) for name in dict.fromkeys(task.prompts.values())]
    inputs = file_hash(args.inputs_addr)
    return run_fingerprint("baselines.py", args, inputs, prompts, generator.policy.fingerprint(), **own)


def is_finished(args: Namespace, settings: dict[str, Any]) -> bool:
    if not prepare_output(args.output_addr, settings, bool(args.overwrite), MAY_CHANGE):
        return False
    if read_manifest(args.output_addr).get("missing"):
        return False
    print(f"{args.output_addr}: already finished, left alone")
    return True


def publish_answers(
    args: Namespace,
    task: Task,
    settings: dict[str, Any],
    records: list[Record],
    asked: dict[Key, Record],
    outcome: Outcome,
    models: dict[str, Model],
) -> None:
    """Write the response file and its manifest, and say what they hold."""
    responses = collect_responses(records, outcome.pieces)
    counts = count_responses(responses, task.item_words) | task.count_outputs(chain.from_iterable(responses.values()))
    pieces, prices = list(outcome.pieces.values()), prices_of(args)
    requested, reused = (
        sum(getattr(model.completions, name) for model in models.values()) for name in ("asked", "reused")
    )
    made = describe_records(pieces)
    cost = {"cost_usd": prices.cost(made["tokens"])} if prices else {}
    manifest = describe_run(
        vars(args),
        settings,
        outcome.device,
        batch_invariant=batch_invariance(outcome.device, args.openai),
        counts=counts,
        pieces=len(pieces),
        keys_sha256=keys_hash(asked),
        missing=len(outcome.missing) + len(outcome.raised),
        unusable=sum(piece["value"] is None for piece in pieces),
        completions={"requested": requested, "from_store": reused},
        token_counter=models["generator"].chat.counter,
        **made,
        **cost,
    )
    publish(args.output_addr, responses, manifest)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    told += f"; {requested} completions requested, {reused} from the store"
    print(f"{args.output_addr}: {told}" + (f"; {describe_cost(cost['cost_usd'])}" if cost else ""))


class _Counting:
    """In an engine's place: counts the prompts that the store lacks."""

    concurrency = 1

    def __init__(self, models: dict[str, Model]):
        self._chats = {model.addr: model.chat for model in models.values()}
        self.lengths: list[int] = []

    async def complete(self, model: str, prompt: Any, sampling: Any) -> Any:
        self.lengths.append(self._chats[model].length(prompt))
        raise NotStoredError


def describe_first_calls(method: Method, shared: Settings, asked: dict[Key, Record]) -> str:
    """What the records would ask first of what the store lacks; what follows depends on the answers."""
    counting, done = _Counting(shared.models), 0

    async def run() -> None:
        nonlocal done
        for key, record in asked.items():
            ask = Ask(shared, record, key, dict.fromkeys(shared.models, counting), [])
            try:
                await method.answer(Question(record, shared.task), ask)
                done += ask.ended is None
            except asyncio.CancelledError:
                if ask.ended is None:
                    raise
            await ask.settle()

    asyncio.run(run())
    lengths, generator = counting.lengths, shared.models["generator"]
    return (
        f"{len(asked)} records: {done} are in the store whole, {len(asked) - done} ask now\n"
        f"{len(lengths)} first calls, {sum(lengths)} tokens ({generator.chat.counter}); "
        f"longest {max(lengths, default=0)}; at most {generator.policy.max_tokens} tokens an output\n"
        "calls that follow on their answers are not counted"
    )


def named(text: str) -> tuple[str, str]:
    """A value of --set or --model, NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{json.dumps(text)} is not NAME=VALUE")
    return name, value
