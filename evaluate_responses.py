"""Judge responses: how well they cover each aspect the user cares about (paper section 3.2, Algorithm 1).

  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr rag.json --score_addr rag_scores.json
  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct --inputs_addr test.json \\
      --response_addr none.json rag.json --score_addr none_scores.json rag_scores.json

Several response files are judged in one load of the model. A response file is {question id: [{"output": text}]};
the first response of each question is judged. An answer that is missing scores 0 and is counted; a verdict that the
judge failed to give is counted, and never a 0. The same command again judges what has changed since, and nothing else.

--strategy direct and pairwise are what the paper compares this with: one of five levels for a whole response, or two
systems compared on each question, in both orders (two response files, one score file):

  python evaluate_responses.py --strategy pairwise --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr planpers.json rag.json --score_addr planpers_rag_pairs.json
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prompts import Messages, Prompt, load_prompt
from utils import cli
from utils.benchmarks import metric_names, task_of
from utils.benchmarks.task import Judge, Metric, Record, Task
from utils.cli import UserError
from utils.cli.progress import announce
from utils.files.journal import Key
from utils.files.json_files import read_json
from utils.files.manifest import file_hash, run_fingerprint
from utils.files.outputs import OutputFile, open_outputs
from utils.generation.chat import VERDICT_TOKENS, APIChat, LocalChat, choose_judge_length, open_chat, render_all
from utils.generation.driver import Policy, Request, Stage, describe_records, describe_requests, generate
from utils.generation.engines import batch_invariance, confirm_model, identify_model, open_engine
from utils.records.datasets import read_dataset, select_questions
from utils.records.judged import (
    MADE_FROM,
    System,
    answers_to,
    are_answered,
    count_taken_over,
    drop_others,
    refuse_other_responses,
    take_over,
    what_verdicts_belong_to,
)
from utils.records.responses import match_responses, origin_of, read_responses, refuse_gaps
from utils.records.scores import check_counts_unanswered, score_file
from utils.scoring.verdicts import no_answer
from utils.tables.summary import describe_scores

MANY_PROMPTS = 5000  # take seconds to render


@dataclass(frozen=True)
class Judging:
    """A judge as this run asks it."""

    judge: Judge
    prompt: Prompt
    policy: Policy


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--inputs_addr", required=True, metavar="FILE", help="the dataset")
    parser.add_argument(
        "--strategy",
        choices=metric_names(),
        help="verdicts on aspects, a level for the whole response, or two systems compared "
        "(default: the benchmark's first, aspect for LaMP-QA)",
    )
    parser.add_argument("--response_addr", required=True, nargs="+", metavar="FILE", help="responses, a file a system")
    parser.add_argument(
        "--score_addr", required=True, nargs="+", metavar="FILE", help="where the scores go, as many; one for pairwise"
    )
    parser.add_argument("--allow_partial", action="store_true", help="score only the questions that have a response")
    cli.add_engine_arguments(
        parser,
        "--evaluator_llm",
        "judge: hub name, model folder, or API model (needed unless scores are computed)",
        False,
    )
    cli.add_sampling_arguments(
        parser, temperature_default=0.0, max_tokens=VERDICT_TOKENS, max_model_len="what the longest prompt needs"
    )
    cli.add_run_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.prepare_run(args, args.score_addr, [args.inputs_addr, *args.response_addr])
    records = read_dataset(args.inputs_addr, needs=[args.strategy or "score"])
    task = task_of(args.inputs_addr, records)
    metric = choose_metric(args, task)
    check_pairs(args, metric)
    judging = None if metric.judge is None else describe_judging(args, metric.judge)
    systems = read_systems(args, task, records, judging)
    if args.dry_run:
        for system in systems:
            refuse_other_responses(system)
            system.output.check()
    else:
        systems = open_systems(systems)
        if judging:
            confirm_model(args, args.evaluator_llm, [system.journal for system in systems if system.pending])
        for system in systems:  # all verdicts, where it was another judge
            system.pending |= set(system.output.keys) - system.journal.entries.keys()
    if not systems:
        return 0

    for system in systems:
        pass_over_unanswered(system, args.dry_run)
    if not args.dry_run and args.overwrite != "all":
        take_over(systems)
    if args.dry_run:
        if judging:
            ask_judge(args, systems, records, metric, judging)
        return 0
    asked = [(system, set(system.pending)) for system in systems]
    device = None
    if judging:
        device = ask_judge(args, systems, records, metric, judging)
    else:
        compute_verdicts(systems, records, metric)
    for system in systems:
        publish_scores(system, task, args, device)
    return cli.report_missing(sum(system.output.num_missing(keys) for system, keys in asked), "verdict")


def choose_metric(args: argparse.Namespace, task: Task) -> Metric:
    """The metric that is asked for, else the benchmark's first; UserError where flags don't go with it."""
    args.strategy = args.strategy or next(iter(task.metrics))
    if args.strategy not in task.metrics:
        raise UserError(f"--strategy {args.strategy}: {task.name} has {', '.join(task.metrics)}")
    metric = task.metrics[args.strategy]
    if metric.judge is None and args.evaluator_llm:
        raise UserError(f"--evaluator_llm: {task.name}'s {args.strategy} is computed, no judge is asked; leave it out")
    if metric.judge is not None and not args.evaluator_llm:
        raise UserError(f"--evaluator_llm: {task.name}'s {args.strategy} needs a judge; name a model")
    return metric


def check_pairs(args: argparse.Namespace, metric: Metric) -> None:
    """Raise UserError unless there are as many files as the metric takes."""
    response_addrs, score_addrs = args.response_addr, args.score_addr
    if metric.num_systems > 1:
        if (len(response_addrs), len(score_addrs)) != (metric.num_systems, 1):
            raise UserError(
                f"{len(response_addrs)} --response_addr, {len(score_addrs)} --score_addr: "
                f"--strategy {args.strategy} takes two and one"
            )
        return
    if len(response_addrs) != len(score_addrs):
        raise UserError(f"{len(response_addrs)} --response_addr, {len(score_addrs)} --score_addr: give as many of each")
    if len({Path(score_addr).resolve() for score_addr in score_addrs}) < len(score_addrs):
        raise UserError("--score_addr: the same file twice; every system needs its own")


def describe_judging(args: argparse.Namespace, judge: Judge) -> Judging:
    policy = Policy.from_arguments(args, judge.output.schema)
    return Judging(judge, load_prompt(judge.prompt, args.prompts_dir), policy)


def read_systems(args: argparse.Namespace, task: Task, records: list[Record], judging: Judging | None) -> list[System]:
    """What is to be judged, with the responses read and held against the dataset."""
    metric = task.metrics[args.strategy]
    selected = select_questions(records, args.limit, args.num_shards, args.shard_index)
    ids = [record["id"] for record in records]
    shared = score_fingerprint(args, judging)
    compares = metric.num_systems > 1
    response_addrs = [args.response_addr] if compares else [[address] for address in args.response_addr]
    systems = []
    for addresses, score_addr in zip(response_addrs, args.score_addr, strict=True):
        responses, questions = [], selected
        for address in addresses:
            responses.append(read_responses(address))
            if not args.allow_partial:
                refuse_gaps(address)
            questions = match_responses(questions, responses[-1], address, ids, args.allow_partial)
            if any(len(outputs) > 1 for outputs in responses[-1].values()):
                print(f"note: {address}: only the first response to each question is judged", file=sys.stderr)
        hashes = [file_hash(address) for address in addresses]
        fingerprint = {**shared, "responses": hashes if compares else hashes[0]}
        keys = [key for question in questions for key in metric.keys(question)]
        asked = {question["id"] for question in questions}
        collect = partial(score_file, task, args.strategy, records, asked)
        output = OutputFile(score_addr, fingerprint, keys, collect, args.overwrite, args.retry_failed, MADE_FROM)
        belongs = what_verdicts_belong_to(records, responses, metric)
        systems.append(System(addresses, responses, questions, metric, belongs, output, set(keys)))
    return systems


def score_fingerprint(args: argparse.Namespace, judging: Judging | None) -> dict[str, Any]:
    """What decides the verdicts, besides the responses."""
    if judging is None:
        return {"script": "evaluate_responses.py", "strategy": args.strategy, "inputs": file_hash(args.inputs_addr)}
    return run_fingerprint(
        "evaluate_responses.py",
        args,
        [judging.prompt],
        judging.policy.fingerprint(),
        strategy=args.strategy,
        judge=identify_model(args, args.evaluator_llm),
    )


def open_systems(systems: list[System]) -> list[System]:
    """Open the score files and see what is missing; those that are finished are said, and left out."""
    for system in systems:
        refuse_other_responses(system)
    open_outputs(*(system.output for system in systems))
    unfinished = []
    for system in systems:
        if system.journal is None:
            check_counts_unanswered(system.score_addr, read_json(system.score_addr))
        else:
            drop_others(system)
        if not system.output.is_finished():
            system.pending = set(system.output.left())
            unfinished.append(system)
    return unfinished


def pass_over_unanswered(system: System, dry_run: bool) -> None:
    """Where an answer is missing the judge is not asked: what stands in its verdicts' place is known."""
    for question in system.questions:
        answered = are_answered(answers_to(system.responses, question["id"]))
        for key in [] if all(answered) else system.pending.intersection(system.metric.keys(question)):
            system.pending.remove(key)
            if not dry_run:
                system.journal.add(key, no_answer(answered))


def compute_verdicts(systems: list[System], records: list[Record], metric: Metric) -> None:
    """The verdicts of a metric that asks no judge."""
    for system in systems:
        for record in records:
            for key in sorted(system.pending.intersection(metric.keys(record))):
                [response] = answers_to(system.responses, record["id"])
                system.journal.add(key, {"value": metric.compute(record, response), "of": system.belongs[key]})


def ask_judge(
    args: argparse.Namespace, systems: list[System], records: list[Record], metric: Metric, judging: Judging
) -> str | None:
    """Ask for the verdicts that are pending, or say what would be asked; returns the device, if one was used."""
    chat = open_chat(args, args.evaluator_llm)
    requests, max_model_len = fit_context(build_requests(systems, records, metric, judging, chat), args, chat)
    if args.dry_run:
        print(describe_requests(requests, chat, judging.policy))
    if args.dry_run or not requests:
        return None
    done = sum(len(system.journal.entries.keys() - system.pending) for system in systems)
    parse, total = judging.judge.output.parse, done + len(requests)
    stage = Stage(args.evaluator_llm, requests, judging.policy, parse, "verdicts", total, done)
    return generate(lambda: open_engine(args, args.evaluator_llm, max_model_len), stage)


def build_requests(
    systems: list[System], records: list[Record], metric: Metric, judging: Judging, chat: LocalChat | APIChat
) -> list[Request]:
    """A request for each verdict that is missing.

    All verdicts on a response stand next to each other, and so do all responses to a question: the judge's prompt
    puts the aspect last and the response before it, so the engine computes what they share once.
    """
    responses = [  # of each system to each question, with the verdicts it lacks
        (record, system, keys)
        for record in records
        for system in systems
        if (keys := sorted(system.pending.intersection(metric.keys(record))))
    ]
    num_prompts = sum(len(keys) for _, _, keys in responses)
    if num_prompts >= MANY_PROMPTS:
        announce(f"rendering {num_prompts} prompts")
    requests = []
    groups = (list(response_messages(judging, *response)) for response in responses)
    for (_, system, keys), rendered in zip(responses, render_all(chat, groups), strict=True):
        for key, ids in zip(keys, rendered, strict=True):
            requests.append(Request(key, ids, system.journal, {"of": system.belongs[key]}))
    return requests


def response_messages(judging: Judging, record: Record, system: System, keys: list[Key]) -> Iterator[Messages]:
    """The prompts for some verdicts on a response."""
    outputs = answers_to(system.responses, record["id"])
    for _, number in keys:
        yield judging.judge.messages(judging.prompt, record, outputs, number)


def fit_context(
    requests: list[Request], args: argparse.Namespace, chat: LocalChat | APIChat
) -> tuple[list[Request], int]:
    """The requests with over-long prompts taken out, and the model length to load: what the longest prompt needs."""
    lengths = [chat.length(request.prompt) if request.prompt else 0 for request in requests]
    longest = max(lengths, default=0) or 1  # nothing may be left to ask
    max_model_len = choose_judge_length(chat, args.max_model_len, args.max_tokens, longest)
    budget = max_model_len - args.max_tokens
    fitted = [
        request
        if length <= budget
        else replace(
            request, prompt=None, record={**request.record, "reason": f"a prompt of {length} tokens is too long"}
        )
        for request, length in zip(requests, lengths, strict=True)
    ]
    return fitted, max_model_len


def publish_scores(system: System, task: Task, args: argparse.Namespace, device: str | None) -> None:
    """Write the score file, and say what it holds."""
    scores, verdicts = system.output.content(), system.output.pieces.values()
    names = ("num_questions", "num_scored_questions", "num_unanswered", "num_unscored")
    figures = {
        "batch_invariant": batch_invariance(device, args.openai),
        "counts": {name: scores[name] for name in names},
        **describe_records(verdicts),
        "judged": system.response_addrs,
        "taken_over": count_taken_over(verdicts),
        "answers": [origin_of(address) for address in system.response_addrs],
    }
    system.output.publish(vars(args), device, **figures)
    print(describe_scores(task, system.score_addr, scores, figures["tokens"]))


if __name__ == "__main__":
    cli.run_script(main)
