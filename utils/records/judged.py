"""What is judged together, where its scores go, and how the judge is asked."""

import os
from argparse import Namespace
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prompts import Messages, Prompt, load_prompt
from utils.benchmarks.task import Judge, Metric, Record, Scale
from utils.cli import UserError
from utils.cli.progress import announce
from utils.files.manifest import manifest_of
from utils.files.output import Key, Output
from utils.generation.chat import Chat, LocalChat, choose_judge_length, open_chat, render_all
from utils.generation.completions import Completions
from utils.generation.cost import prices_of
from utils.generation.driver import Policy, Request, Stage, describe_requests, generate
from utils.generation.engines import Model, identify_model, open_completions, open_engine, print_machine
from utils.generation.scoring import split_shared
from utils.generation.thinking import end_thoughts, find_thoughts, settle_tokens
from utils.scoring.sureness import weigh

MANY_PROMPTS = 5000  # take seconds to render


@dataclass
class System:
    """What is judged together: one response file, or the two of a pairwise comparison; and where its scores go."""

    response_addrs: list[str]
    responses: list[dict[str, list[dict[str, Any]]]]  # what each of these files holds
    questions: list[Record]  # to be judged, in the dataset's order; each has a response in each file
    metric: Metric
    output: Output  # the score file, whose pieces are the verdicts


def answers_to(responses: list[dict[str, list[dict[str, Any]]]], question_id: str) -> list[str | None]:
    """What each of the response files has for a question: its first response, which is the one that is judged."""
    return [one[question_id][0]["output"] for one in responses]


def are_answered(outputs: Iterable[str | None]) -> list[bool]:
    return [bool(output and output.strip()) for output in outputs]


def verdict_options(scale: Scale, chat: LocalChat) -> tuple[array, dict[str, array]]:
    """What a judge's output has ahead of its number, and how each number goes on, as token ids."""
    return split_shared({str(number): chat.render_option(f"{scale.begin}{number}") for number in scale.values})


def is_finished(system: System) -> bool:
    """`Output.is_finished`; UserError too where the score file is of another response file: its name may be a mistake.

    A response file that has changed is judged again.
    """
    output, path = system.output, system.output.path
    if output.is_finished():
        return True
    manifest = None if output.is_shard or output.args.overwrite else manifest_of(path)
    if manifest is None:
        return False
    judged, is_alike = manifest["judged"], manifest["settings"]["responses"] == output.settings["responses"]
    if not is_alike and [*map(os.path.realpath, judged)] != [*map(os.path.realpath, system.response_addrs)]:
        raise UserError(
            f"{path}: was made from {', '.join(judged)}, not from {', '.join(system.response_addrs)}\n"
            "  give another output, or --overwrite to replace it"
        )
    return False


@dataclass(frozen=True)
class Judging:
    """A judge as this run asks it."""

    judge: Judge
    prompt: Prompt
    policy: Policy
    identity: str  # of the model
    chat: Chat | None = None  # of a model that runs here
    completions: Completions | None = None  # what it has been asked before


def choose_judge(args: Namespace, judge: Judge) -> Judging:
    """The judge that `args` asks for, as far as it is known before a tokenizer is loaded."""
    prompt, policy = load_prompt(judge.prompt, args.prompts_dir), Policy.from_arguments(args, judge.output.schema)
    return Judging(judge, prompt, policy, identify_model(args, args.evaluator_llm))


def load_judge(args: Namespace, judging: Judging) -> Judging:
    """The judge with its chat template and its completions; `args` then has the tokens that its thoughts need."""
    chat = None if args.openai else open_chat(args, args.evaluator_llm)
    thoughts = find_thoughts(args, chat, args.evaluator_llm)
    args.reasoning_parser = thoughts.parser
    if args.verdicts:
        end_thoughts(chat, thoughts)
    else:
        settle_tokens(args, thoughts, args.evaluator_llm, chat and chat.model_limit)
    policy = Policy.from_arguments(args, judging.judge.output.schema).with_thoughts(thoughts)
    completions = open_completions(args, args.evaluator_llm, judging.identity)
    return replace(judging, policy=policy, chat=chat, completions=completions)


def lacking(systems: list[System], records: list[Record]) -> list[tuple[Record, System, list[Key]]]:
    """Each system's response to each question, with the verdicts that it lacks."""
    missing = [set(system.output.missing()) for system in systems]
    return [
        (record, system, keys)
        for record in records
        for system, its in zip(systems, missing, strict=True)
        if (keys := sorted(its.intersection(system.metric.keys(record))))
    ]


def ask_judge(args: Namespace, systems: list[System], records: list[Record], judging: Judging) -> str | None:
    """Ask for the verdicts that are pending, or say what would be asked; returns the device, if one was used."""
    chat = judging.chat or open_chat(args, args.evaluator_llm)
    requests = build_requests(systems, records, judging, chat)
    if args.verdicts:
        requests, args.max_tokens = ask_for_likelihoods(requests, judging.judge.scale, chat)
    requests, max_model_len = fit_context(requests, args, chat)
    if args.dry_run:
        print(describe_requests(requests, chat, judging.policy, prices_of(args)))
        model = Model(args.evaluator_llm, judging.identity, chat, max_model_len, judging.policy)
        print_machine(args, [model], args.score_addr, len(records))
    if args.dry_run or not requests:
        return None
    known = [system.output.pieces for system in systems]
    done, parse, completions = sum(map(len, known)), judging.judge.output.parse, judging.completions
    total = done + len(requests)
    stage = Stage(args.evaluator_llm, requests, judging.policy, parse, "verdicts", total, completions, done)
    return generate(partial(open_engine, args, args.evaluator_llm, max_model_len, completions, known), stage)


def build_requests(systems: list[System], records: list[Record], judging: Judging, chat: Chat) -> list[Request]:
    """A request for each verdict that is not there; equal ones, as on two systems' equal answers, are asked once.

    All verdicts on a response stand next to each other, and so do all responses to a question: the judge's prompt
    puts the aspect last and the response before it, so the engine computes what they share once.
    """
    responses = lacking(systems, records)
    num_prompts = sum(len(keys) for _, _, keys in responses)
    if num_prompts >= MANY_PROMPTS:
        announce(f"rendering {num_prompts} prompts")

    def messages(record: Record, system: System, keys: list[Key]) -> list[Messages]:
        outputs = answers_to(system.responses, record["id"])
        return [judging.judge.messages(judging.prompt, record, outputs, number) for _, number, *_ in keys]

    rendered = render_all(chat, (messages(*response) for response in responses))
    return [
        Request(key, prompt, system.output.pieces)
        for (_, system, keys), prompts in zip(responses, rendered, strict=True)
        for key, prompt in zip(keys, prompts, strict=True)
    ]


def ask_for_likelihoods(requests: list[Request], scale: Scale, chat: Chat) -> tuple[list[Request], int]:
    """Requests for how likely each number is where the judge's output has one; and the tokens that one has besides."""
    begin, options = verdict_options(scale, chat)
    requests = [replace(one, prompt=one.prompt + begin, options=options, weigh=weigh) for one in requests]
    return requests, max(map(len, options.values())) + 1  # vLLM generates a token


def fit_context(requests: list[Request], args: Namespace, chat: Chat) -> tuple[list[Request], int]:
    """The requests with over-long prompts taken out, and the model length to load: what the longest prompt needs."""
    lengths = [chat.length(request.prompt) for request in requests]
    longest = max(lengths, default=1)  # nothing may be left to ask
    max_model_len = choose_judge_length(chat, args.max_model_len, args.max_tokens, longest)

    def fit(request: Request, length: int) -> Request:
        if length <= max_model_len - args.max_tokens:
            return request
        reason = f"a prompt of {length} tokens is too long"
        return replace(request, prompt=None, record={**request.record, "reason": reason})

    return list(map(fit, requests, lengths)), max_model_len
