"""Score responses: by a judge, how well they cover each aspect the user cares about (paper section 3.2, Algorithm 1).

  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr rag.json --score_addr rag_scores.json
  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct --inputs_addr test.json \\
      --response_addr none.json rag.json --score_addr none_scores.json rag_scores.json

Several response files are judged in one load of the model. A response file is {question id: [{"output": text}]};
the first response of each question is judged. An answer that is missing has the worst score, 0 unless scores are
errors, and is counted; a verdict that the judge failed to give is counted, and never a 0. The same command again judges
what has changed since, and nothing else.

LaMP and LongLaMP need no judge: their metrics compare a response with the reference. The file says which they are;
without --strategy it is the first of accuracy and f1, MAE and RMSE, or rouge-1, rouge-L and meteor. Labels and ratings
can also be scored from the raw text by the rule of LaMP's code: accuracy-official, f1-official, MAE-official and
RMSE-official. The answers of an encoder-decoder are, unless --strategy says otherwise.

  python evaluate_responses.py --strategy f1 --inputs_addr LaMP-2_user_dev.json --response_addr bm25.json \\
      --score_addr bm25_f1.json

Other people's runs are read too: files in LaMP's own format, {"task": ..., "golds": [{"id": ..., "output": ...}]}, and
the CSV files that PersonaMem's public code writes: the columns question_id and model_response, or predicted_answer, or
p (docs/evaluation.md).

How sure the judge is of a verdict on an aspect: --verdicts probability takes the expectation over 0, 1 and 2 by their
likelihoods, without a text being generated; --num_verdicts takes the mean of several verdicts at a temperature:

  python evaluate_responses.py --verdicts probability --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr rag.json --score_addr rag_probability.json
  python evaluate_responses.py --num_verdicts 5 --temperature 0.7 --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr rag.json --score_addr rag_5_verdicts.json

--strategy direct and pairwise are what LaMP-QA's paper compares its judge with: one of five levels for a whole
response, or two systems compared on each question, in both orders (two response files, one score file):

  python evaluate_responses.py --strategy pairwise --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr planpers.json rag.json --score_addr planpers_rag_pairs.json
"""

import sys
from argparse import Namespace
from contextlib import closing
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from prompts import digests
from utils import cli
from utils.benchmarks import metric_names, task_of
from utils.benchmarks.task import OFFICIAL, Metric, Record, Scale, Task
from utils.cli import UserError
from utils.cli.flags import Arguments
from utils.cli.progress import Progress
from utils.files.manifest import file_hash
from utils.files.output import Output
from utils.generation.chat import VERDICT_TOKENS
from utils.generation.cost import describe_cost, prices_of
from utils.generation.driver import describe_records
from utils.generation.engines import (
    batch_invariance,
    print_machine,
    report_shard,
    reported,
)
from utils.parsing.thoughts import UNFINISHED_COUNT, describe_unfinished
from utils.records import judged
from utils.records.datasets import select_questions
from utils.records.judged import Judging, System, answers_to, are_answered, ask_judge, choose_judge, lacking, load_judge
from utils.records.responses import as_read, default_metric, match_responses, origin_of, read_responses, refuse_gaps
from utils.records.scores import carried, score_file
from utils.records.stream import read_questions
from utils.scoring.verdicts import no_answer
from utils.tables.summary import describe_scores

SCRIPT = "evaluate_responses.py"


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="the dataset")
    add("--strategy", choices=metric_names(),
        help="the metric. LaMP-QA: verdicts on aspects, a level for the whole response, or two systems compared; "
        "LaMP and LongLaMP: computed from the reference (default: the benchmark's first, aspect for LaMP-QA; -official "
        "for an encoder-decoder's labels and ratings)")
    add("--reading", choices=["official"],
        help="read all that the model wrote, by the rule of LaMP's or PersonaMem's public code: --reading official "
        "--strategy f1 is --strategy f1-official (default: the answer as it was read when it was asked for)")
    add("--response_addr", required=True, nargs="+", metavar="FILE",
        help="responses, a file a system; also as LaMP's or PersonaMem's own code writes them")
    add("--score_addr", required=True, nargs="+", metavar="FILE",
        help="where the scores go, as many; one for pairwise")
    add("--verdicts", choices=["probability"],
        help="take the expectation over the verdicts that a judge may give, by their likelihoods; no text is generated "
        "(off: the verdict that the judge writes)")
    add("--num_verdicts", type=cli.positive_int, default=1, metavar="N",
        help="verdicts on each aspect, of which the mean is taken; more than one need a --temperature (%(default)s)")
    add("--allow_partial", action="store_true", help="score only the questions that have a response")
    judge_help = "judge: hub name, model folder, or API model (needed unless scores are computed)"
    cli.add_engine_arguments(parser, "--evaluator_llm", judge_help, required=False)
    cli.add_sampling_arguments(
        parser, temperature_default=0.0, max_tokens=VERDICT_TOKENS, max_model_len="what the longest prompt needs"
    )
    cli.add_run_arguments(parser)
    parser.without_effect(
        "--num_verdicts --temperature --top_p --top_k --min_p --presence_penalty --max_tokens --seed --max_retries"
        " --constrained_decoding",
        lambda args: args.verdicts is not None,
        "with --verdicts, for no text is generated",
        "leave out --verdicts",
    )
    parser.decides_nothing("--inputs_addr --response_addr --score_addr", "their hashes do")
    parser.decides_nothing("--reading", "the strategy that it stands for does")
    parser.decides_nothing("--allow_partial", "which pieces an output has; it remembers them")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.prepare_run(args, args.score_addr, [args.inputs_addr, *args.response_addr])
    records = read_questions(args.inputs_addr, [args.strategy or "score"])
    task = task_of(args.inputs_addr, records)
    metric = choose_metric(args, task)
    check_verdicts(args, task, metric.judge and metric.judge.scale)
    task = task.asking(args.strategy, args.verdicts, args.num_verdicts)
    judging = metric.judge and choose_judge(args, metric.judge)
    if judging is None and args.num_shards > 1:
        raise UserError(f"--num_shards: {args.strategy} is computed, which needs no shards; leave it out")
    systems = read_systems(args, task, records, judging)
    note_incomplete(args.inputs_addr, systems)
    are_finished = [judged.is_finished(system) for system in systems]
    if args.dry_run:
        pass_over_unanswered(systems)
        if judging:
            ask_judge(args, systems, records, load_judge(args, judging))
        else:
            print_machine(args, [], args.score_addr, len(records))
        return 0

    codes = [system.output.report_finished() for system in compress(systems, are_finished)]
    systems = [system for system, is_finished in zip(systems, are_finished, strict=True) if not is_finished]
    if not systems:
        return max(codes)
    for system in systems:
        system.output.open()
    pass_over_unanswered(systems)
    device = None
    if judging:
        judging = load_judge(args, judging)
        device = ask_judge(args, systems, records, judging)
    else:
        compute_verdicts(systems, records)
    for system in systems:
        publish_scores(system, task, args, device, reported(args, judging.completions) if judging else {})
    report_shard(args, [system.output.path for system in systems])
    codes += [system.output.report_failed() for system in systems]
    return max(*codes, cli.report_missing(sum(len(system.output.missing()) for system in systems), "verdict"))


def choose_metric(args: Namespace, task: Task) -> Metric:
    """The metric that is asked for, else the default one; UserError where flags don't go with it."""
    if args.reading is not None:
        args.strategy = (args.strategy or next(iter(task.metrics))).removesuffix(OFFICIAL) + OFFICIAL
    args.strategy = args.strategy or default_metric(task, args.response_addr)
    if args.strategy not in task.metrics:
        if args.reading is not None:
            raise UserError(f"--reading {args.reading}: {task.name}'s answers are read in one way; leave it out")
        raise UserError(f"--strategy {args.strategy}: {task.name} has {', '.join(task.metrics)}")
    metric, what = task.metrics[args.strategy], f"--evaluator_llm: {task.name}'s {args.strategy}"
    if metric.judge is None and args.evaluator_llm:
        raise UserError(f"{what} is computed, no judge is asked; leave it out")
    if metric.judge is not None and not args.evaluator_llm:
        raise UserError(f"{what} needs a judge; name a model")
    responses, scores = len(args.response_addr), len(args.score_addr)
    given = f"{responses} --response_addr, {scores} --score_addr"
    if metric.num_systems > 1 and (responses, scores) != (metric.num_systems, 1):
        raise UserError(f"{given}: --strategy {args.strategy} takes two and one")
    if metric.num_systems == 1 and responses != scores:
        raise UserError(f"{given}: give as many of each")
    if len({Path(score_addr).resolve() for score_addr in args.score_addr}) < scores:
        raise UserError("--score_addr: the same file twice; every system needs its own")
    return metric


def check_verdicts(args: Namespace, task: Task, scale: Scale | None) -> None:
    """Raise UserError where the judge's verdicts cannot be had as --verdicts and --num_verdicts say."""
    asked = f"--verdicts {args.verdicts}" if args.verdicts else f"--num_verdicts {args.num_verdicts}"
    if (args.verdicts or args.num_verdicts > 1) and scale is None:
        raise UserError(f"{asked}: {task.name}'s {args.strategy} has no verdicts on parts of an answer; leave it out")
    if args.verdicts and args.openai:
        raise UserError(f"{asked}: no API tells how likely a text is; give a judge that runs here")
    if args.num_verdicts > 1 and args.temperature == 0:
        raise UserError(f"{asked}: a greedy judge only repeats itself; give a --temperature above 0")


def read_systems(args: Namespace, task: Task, records: list[Record], judging: Judging | None) -> list[System]:
    """What is to be judged, with the responses read and held against the dataset."""
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
        output = Output(score_addr, settings, keys, collect, "verdicts", args)
        systems.append(System(addresses, responses, questions, metric, output))
    return systems


def note_incomplete(path: str, systems: list[System]) -> None:
    """Count what is judged without a text that the judge's prompt has a place for, as an aspect without evidence."""
    metric, asked = systems[0].metric, {one["id"]: one for system in systems for one in system.questions}
    if metric.judge is None or metric.parts is None:
        return
    parts = [part for question in asked.values() for part in metric.parts(question)]
    if incomplete := sum(not all(part) for part in parts):
        texts = "a text that the judge is shown (such as evidence or reason)"
        print(f"note: {path}: {incomplete} of {len(parts)} {metric.unit}s lack {texts}", file=sys.stderr)


def shared_settings(args: Arguments, judging: Judging | None) -> dict[str, Any]:
    """What decides the verdicts, besides the responses; of computed ones no flag but the metric does."""
    its = {"script": SCRIPT, "strategy": args.strategy, "inputs": file_hash(args.inputs_addr)}
    if judging is None:
        return its
    return args.settings() | its | {"judge": judging.identity, "prompt": digests([judging.prompt])}


def pass_over_unanswered(systems: list[System]) -> None:
    """Where an answer is missing the judge is not asked: what stands in its verdicts' place is known."""
    for system in systems:
        for question in system.questions:
            answered = are_answered(answers_to(system.responses, question["id"]))
            if not all(answered):
                system.output.pieces |= {key: no_answer(answered) for key in system.metric.keys(question)}


def compute_verdicts(systems: list[System], records: list[Record]) -> None:
    """The verdicts of a metric that asks no judge."""
    with closing(Progress(sum(len(system.output.missing()) for system in systems), "verdicts")) as progress:
        for record, system, keys in lacking(systems, records):
            [response] = answers_to(system.responses, record["id"])
            for key in keys:
                system.output.pieces[key] = {"value": system.metric.compute(record, response)}
                progress.update()


def publish_scores(system: System, task: Task, args: Namespace, device: str | None, found: dict[str, Any]) -> None:
    """Write the score file, and say what it holds; `found` is as for `Output.publish`."""
    scores, verdicts = system.output.content(), system.output.pieces.values()
    names = ("num_questions", "num_scored_questions", "num_unanswered", "num_unscored")
    figures = {
        "batch_invariant": batch_invariance(device, args.openai),
        "counts": {name: scores[name] for name in names},
        **describe_records(verdicts),
        "judged": system.response_addrs,
        "answers": [origin_of(address) for address in system.response_addrs],
    }
    prices = prices_of(args)
    cost = {"cost_usd": prices.cost(figures["tokens"])} if prices else {}
    if not system.output.publish(device, found, **figures, **cost):
        return
    chose = any("chose_checkpoint" in (origin or {}) for origin in figures["answers"])
    told = describe_unfinished(figures.get(UNFINISHED_COUNT, 0))
    told += f"; {describe_cost(cost['cost_usd'])}" if cost else ""
    print(describe_scores(task, system.output.path, scores, figures["tokens"], chose) + told)


if __name__ == "__main__":
    cli.run_script(main)
