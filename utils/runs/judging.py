"""Everything in evaluate_responses.py except its method: responses, the judge's prompts, and score files."""

import sys
from array import array
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prompts import Messages, Prompt, digests, load_prompt
from utils import cli
from utils.benchmarks.task import OFFICIAL, Judge, Metric, Record, Scale, Task
from utils.cli import Arguments, UserError
from utils.cli.progress import Progress, announce
from utils.files.manifest import file_hash
from utils.files.output import Key, Output, Pieces, refuse_other_source
from utils.generation.calls import Call, describe_cost, describe_records, prices_of
from utils.generation.chat import Chat, LocalChat, choose_judge_length, open_chat, render_all
from utils.generation.completions import Completions
from utils.generation.engines import batch_invariance, identify_model, open_completions
from utils.generation.model import Model, Policy
from utils.generation.scoring import split_shared
from utils.generation.thinking import end_thoughts, find_thoughts, settle_tokens
from utils.parsing.thoughts import UNFINISHED_COUNT, describe_unfinished
from utils.records.datasets import select_questions
from utils.records.responses import (
    answers_to,
    are_answered,
    as_read,
    default_metric,
    match_responses,
    origin_of,
    read_responses,
    refuse_gaps,
)
from utils.records.scores import carried, score_file
from utils.scoring.verdicts import expected_value, no_answer
from utils.tables.notes import describe_scores

SCRIPT = "evaluate_responses.py"
MANY_PROMPTS = 5000  # take seconds to render


@dataclass
class System:
    """Responses that are judged together (one file, or two for a pairwise comparison), and their score file."""

    response_addrs: list[str]
    responses: list[dict[str, list[dict[str, Any]]]]  # the contents of each file
    questions: list[Record]  # to be judged, in the dataset's order; each has a response in each file
    metric: Metric
    output: Output  # the score file; its pieces are the verdicts


def verdict_options(scale: Scale, chat: LocalChat) -> tuple[array, dict[str, array]]:
    """Return the beginning of a judge's output before its number, and each number's continuation, as token ids."""
    return split_shared({str(number): chat.render_option(f"{scale.begin}{number}") for number in scale.values})


@dataclass(frozen=True)
class Judging:
    """A judge as this run asks it."""

    judge: Judge
    prompt: Prompt
    policy: Policy
    identity: str  # the model's
    chat: Chat | None = None  # None before `load_judge`
    completions: Completions | None = None  # its earlier completions


def choose_metric(args: Arguments, task: Task) -> Metric:
    """Return the requested metric, or the default one. UserError if flags contradict it."""
    if args.reading is not None:
        args.strategy = (args.strategy or next(iter(task.metrics))).removesuffix(OFFICIAL) + OFFICIAL
    args.strategy = args.strategy or default_metric(task, args.response_addr)
    if args.strategy not in task.metrics:
        if args.reading is not None:
            raise UserError(f"--reading {args.reading}: {task.name} has only one reading; leave the flag out")
        raise UserError(f"--strategy {args.strategy}: the metrics of {task.name} are {', '.join(task.metrics)}")
    metric, what = task.metrics[args.strategy], f"--evaluator_llm: {task.name}'s {args.strategy}"
    if metric.judge is None and args.evaluator_llm:
        raise UserError(f"{what} is computed without a judge; leave the flag out")
    if metric.judge is not None and not args.evaluator_llm:
        raise UserError(f"{what} needs a judge; give a model")
    responses, scores = len(args.response_addr), len(args.score_addr)
    given = f"{responses} --response_addr, {scores} --score_addr"
    if metric.num_systems > 1 and (responses, scores) != (metric.num_systems, 1):
        raise UserError(f"{given}: --strategy {args.strategy} needs two response files and one score file")
    if metric.num_systems == 1 and responses != scores:
        raise UserError(f"{given}: give the same number of each")
    cli.check_different("--score_addr", args.score_addr)
    return metric


def check_verdicts(args: Arguments, task: Task, scale: Scale | None) -> None:
    """Raise UserError if the judge cannot give verdicts as --verdicts and --num_verdicts ask."""
    asked = f"--verdicts {args.verdicts}" if args.verdicts else f"--num_verdicts {args.num_verdicts}"
    if (args.verdicts or args.num_verdicts > 1) and scale is None:
        raise UserError(f"{asked}: {task.name}'s {args.strategy} has no verdicts per aspect; leave the flag out")
    if args.verdicts and args.openai:
        raise UserError(f"{asked}: APIs do not return these likelihoods; give a local judge")
    if args.num_verdicts > 1 and args.temperature == 0:
        raise UserError(f"{asked}: a greedy judge always gives the same verdict; give a --temperature above 0")


def read_systems(args: Arguments, task: Task, records: list[Record], judging: Judging | None) -> list[System]:
    """Read the responses and check them against the dataset."""
    metric = task.metrics[args.strategy]
    selected = select_questions(records, args.limit, args.num_shards, args.shard_index)
    ids = [record["id"] for record in records]
    shared = shared_settings(args, judging)
    compares = metric.num_systems > 1
    response_addrs = [args.response_addr] if compares else [[address] for address in args.response_addr]
    systems = []
    for addresses, score_addr in zip(response_addrs, args.score_addr, strict=True):
        responses, questions = [], selected
        for address in addresses:
            responses.append(as_read(read_responses(address, task), metric.reads))
            if not args.allow_partial:
                refuse_gaps(address)
            questions = match_responses(questions, responses[-1], address, ids, args.allow_partial)
            if any(len(outputs) > 1 for outputs in responses[-1].values()):
                print(f"note: {address}: only the first response to each question is judged", file=sys.stderr)
        hashes = [file_hash(address) for address in addresses]
        settings = shared | {"responses": hashes if compares else hashes[0]}
        keys = [key for question in questions for key in metric.keys(question)]
        asked = {question["id"] for question in questions}
        head = {} if compares else carried(questions, responses[0])
        head |= metric.over_outputs(questions, responses[0])
        collect = partial(score_file, task, args.strategy, records, asked, head=head)
        check = partial(refuse_other_responses, addresses, settings["responses"])
        output = Output(score_addr, settings, keys, collect, "verdicts", args, check=check)
        systems.append(System(addresses, responses, questions, metric, output))
    return systems


def note_incomplete(path: str, systems: list[System]) -> None:
    """Print how many aspects lack a text that the judge's prompt shows, such as evidence."""
    metric, asked = systems[0].metric, {one["id"]: one for system in systems for one in system.questions}
    if metric.judge is None or metric.parts is None:
        return
    parts = [part for question in asked.values() for part in metric.parts(question)]
    if incomplete := sum(not all(part) for part in parts):
        texts = "a text that the judge sees (such as evidence or reason)"
        print(f"note: {path}: {incomplete} of {len(parts)} {metric.unit}s lack {texts}", file=sys.stderr)


def shared_settings(args: Arguments, judging: Judging | None) -> dict[str, Any]:
    """Return the settings that decide the verdicts, without the responses; computed ones have no judge's settings."""
    its = {"script": SCRIPT, "strategy": args.strategy, "inputs": file_hash(args.inputs_addr)}
    if judging is None:
        return its
    return args.settings() | its | {"judge": judging.identity, "prompt": digests([judging.prompt])}


def refuse_other_responses(addrs: list[str], hashes: Any, made: dict[str, Any]) -> None:
    """Raise UserError if a score file was made from another response file, because its name may be a mistake.

    The same response file with other contents is judged again.
    """
    if made["settings"]["responses"] != hashes:
        refuse_other_source(made["judged"], addrs)


def choose_judge(args: Arguments, judge: Judge) -> Judging:
    """Return the judge of `args`, without the parts that need a tokenizer (`load_judge`)."""
    prompt, policy = load_prompt(judge.prompt, args.prompts_dir), Policy.from_arguments(args, judge.output.schema)
    return Judging(judge, prompt, policy, identify_model(args, args.evaluator_llm))


def load_judge(args: Arguments, judging: Judging) -> Judging:
    """Add the judge's chat template and completions, and the tokens of its thoughts to `args`."""
    chat = open_chat(args, args.evaluator_llm)
    thoughts = find_thoughts(args, chat, args.evaluator_llm)
    args.reasoning_parser = thoughts.parser
    if args.verdicts:
        end_thoughts(chat, thoughts)
    else:
        settle_tokens(args, thoughts, args.evaluator_llm, chat.model_limit)
    policy = Policy.from_arguments(args, judging.judge.output.schema).for_chat(chat, thoughts)
    completions = open_completions(args, args.evaluator_llm, judging.identity)
    return replace(judging, policy=policy, chat=chat, completions=completions)


def lacking(systems: list[System], records: list[Record]) -> list[tuple[Record, System, list[Key]]]:
    """Return question, system, and missing verdicts of each response that lacks verdicts."""
    missing = [set(system.output.missing()) for system in systems]
    return [
        (record, system, keys)
        for record in records
        for system, its in zip(systems, missing, strict=True)
        if (keys := sorted(its.intersection(system.metric.keys(record))))
    ]


def calls_to(
    args: Arguments, systems: list[System], records: list[Record], judging: Judging
) -> tuple[Model, list[tuple[Call, Pieces]]]:
    """Return the judge, sized for its longest prompt, and a call (with the pieces to fill) for each missing verdict."""
    made = build_calls(systems, records, judging)
    calls, places = [call for call, _ in made], [place for _, place in made]
    if args.verdicts:
        calls, args.max_tokens = ask_for_likelihoods(calls, judging.judge.scale, judging.chat)
    model, calls = size_judge(args, judging, calls)
    return model, list(zip(calls, places, strict=True))


def size_judge(args: Arguments, judging: Judging, calls: list[Call]) -> tuple[Model, list[Call]]:
    """Return the judge, sized for its longest prompt, and the calls without over-long prompts."""
    calls, length = fit_context(calls, args, judging.chat)
    model = Model(args.evaluator_llm, judging.identity, judging.chat, length, judging.policy, judging.completions)
    return model, calls


def build_calls(systems: list[System], records: list[Record], judging: Judging) -> list[tuple[Call, Pieces]]:
    """Return a call for each missing verdict, and the pieces that get the verdict.

    Verdicts on one response are adjacent, and so are responses to one question. In the judge's prompt, the aspect comes
    last, after the response, so the engine computes the shared prefix once.
    """
    responses = lacking(systems, records)
    num_prompts = sum(len(keys) for _, _, keys in responses)
    if num_prompts >= MANY_PROMPTS:
        announce(f"rendering {num_prompts} prompts")

    def messages(record: Record, system: System, keys: list[Key]) -> list[Messages]:
        outputs = answers_to(system.responses, record["id"])
        return [judging.judge.messages(judging.prompt, record, outputs, number) for _, number, *_ in keys]

    rendered = render_all(judging.chat, (messages(*response) for response in responses))
    return [
        (Call(key, prompt, judging.judge.output.parse), system.output.pieces)
        for (_, system, keys), prompts in zip(responses, rendered, strict=True)
        for key, prompt in zip(keys, prompts, strict=True)
    ]


def ask_for_likelihoods(calls: list[Call], scale: Scale, chat: Chat) -> tuple[list[Call], int]:
    """Return calls for the likelihood of each verdict's number, and the tokens to reserve after each prompt."""
    begin, options = verdict_options(scale, chat)
    calls = [replace(one, prompt=one.prompt + begin, options=options, expected_value=expected_value) for one in calls]
    return calls, max(map(len, options.values())) + 1  # vLLM generates a token


def fit_context(calls: list[Call], args: Arguments, chat: Chat) -> tuple[list[Call], int]:
    """Return the calls without over-long prompts, and the model length that the longest prompt needs."""
    lengths = [chat.length(call.prompt) for call in calls]
    longest = max(lengths, default=1)  # there may be no calls
    max_model_len = choose_judge_length(chat, args.max_model_len, args.max_tokens, longest)

    def fit(call: Call, length: int) -> Call:
        if length <= max_model_len - args.max_tokens:
            return call
        reason = f"a prompt of {length} tokens is too long"
        return replace(call, prompt=None, record={**call.record, "reason": reason})

    return list(map(fit, calls, lengths)), max_model_len


def pass_over_unanswered(systems: list[System]) -> None:
    """Fill in the verdicts on missing answers, which need no judge."""
    for system in systems:
        for question in system.questions:
            answered = are_answered(answers_to(system.responses, question["id"]))
            if not all(answered):
                system.output.pieces |= {key: no_answer(answered) for key in system.metric.keys(question)}


def compute_verdicts(systems: list[System], records: list[Record]) -> None:
    """Compute the verdicts of a metric without a judge."""
    with closing(Progress(sum(len(system.output.missing()) for system in systems), "verdicts")) as progress:
        for record, system, keys in lacking(systems, records):
            [response] = answers_to(system.responses, record["id"])
            for key in keys:
                system.output.pieces[key] = {"value": system.metric.compute(record, response)}
                progress.update()


def publish_scores(system: System, task: Task, args: Arguments, device: str | None, of_judge: dict[str, str]) -> None:
    """Write the score file and print its summary; `of_judge` are the judge's `Model.figures`."""
    scores, verdicts = system.output.content(), system.output.pieces.values()
    names = ("num_questions", "num_scored_questions", "num_unanswered", "num_unscored")
    figures = {
        "batch_invariant": batch_invariance(device, args.openai),
        "counts": {name: scores[name] for name in names},
        **describe_records(verdicts),
        **of_judge,
        "judged": system.response_addrs,
        "answers": [origin_of(address) for address in system.response_addrs],
    }
    prices = prices_of(args)
    cost = {"cost_usd": prices.cost(figures["tokens"])} if prices else {}
    if not system.output.publish(device, **figures, **cost):
        return
    told = describe_unfinished(figures.get(UNFINISHED_COUNT, 0))
    told += f"; {describe_cost(cost['cost_usd'])}" if cost else ""
    print(describe_scores(task, system.output.path, scores, figures["tokens"], figures["answers"]) + told)
