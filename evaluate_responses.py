"""Score by a judge how well responses cover each aspect the user cares about (paper, section 3.2, Algorithm 1).

  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr rag.json --score_addr rag_scores.json
  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct --inputs_addr test.json \\
      --response_addr none.json rag.json --score_addr none_scores.json rag_scores.json

Several response files share one load of the model. A response file is {question id: [{"output": text}]}; the first
response to each question is judged. A missing answer gets the worst score (0, unless lower is better) and is counted.
A missing verdict is counted and never scored 0. Run the same command again to judge only the changes.

LaMP and LongLaMP need no judge: their metrics compare a response with the reference (--strategy f1, rouge-1, ...).
Files in LaMP's own format and PersonaMem's CSV files are read too. To measure how sure the judge is, --verdicts
probability takes the expected value over 0, 1 and 2; --num_verdicts averages several verdicts at a --temperature.
The paper compares its judge with --strategy direct, which gives a response one of five levels, and --strategy pairwise,
which compares two systems in both orders (docs/evaluation.md describes all of these):

  python evaluate_responses.py --strategy pairwise --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr planpers.json rag.json --score_addr planpers_rag_pairs.json
"""

from utils import cli
from utils.benchmarks import metric_names, task_of
from utils.cli import UserError
from utils.files.output import Output, Piece, Pieces
from utils.generation.calls import Call, describe_calls, prices_of
from utils.generation.chat import VERDICT_TOKENS
from utils.generation.engines import print_machine
from utils.generation.failures import common_reasons
from utils.records.datasets import read_questions
from utils.runs.ask import Ask
from utils.runs.command import Command, execute, writing
from utils.runs.judging import (
    calls_to,
    check_verdicts,
    choose_judge,
    choose_metric,
    compute_verdicts,
    load_judge,
    note_incomplete,
    pass_over_unanswered,
    publish_scores,
    read_systems,
)
from utils.runs.runner import run_steps
from utils.runs.shared import Role, Shared, Step


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="the dataset")
    add("--strategy", choices=metric_names(),
        help="metric. LaMP-QA: aspect (a verdict per aspect), direct (a level per response) or pairwise (two systems); "
        "LaMP and LongLaMP: computed from the reference (default: the benchmark's first, aspect for LaMP-QA; its "
        "-official variant for an encoder-decoder's labels and ratings)")
    add("--reading", choices=["official"],
        help="parse the raw output again, as LaMP's or PersonaMem's public code does: --reading official --strategy f1 "
        "is --strategy f1-official (default: the answer that the run parsed)")
    add("--response_addr", required=True, nargs="+", metavar="FILE",
        help="response files, one per system; LaMP's and PersonaMem's own formats work too")
    add("--score_addr", required=True, nargs="+", metavar="FILE",
        help="score files to write, one per response file; just one for pairwise")
    add("--verdicts", choices=["probability"],
        help="score by the expected verdict, from likelihoods; generates no text (off: the written verdict)")
    add("--num_verdicts", type=cli.positive_int, default=1, metavar="N",
        help="verdicts per aspect, averaged; more than one needs a --temperature above 0 (%(default)s)")
    add("--allow_partial", action="store_true", help="score only the questions that have a response")
    judge_help = "judge: hub name, model folder, or API model (required unless the metric is computed)"
    cli.add_engine_arguments(parser, "--evaluator_llm", judge_help, required=False)
    cli.add_sampling_arguments(
        parser, temperature_default=0.0, max_tokens=VERDICT_TOKENS, max_model_len="as many as the longest prompt needs"
    )
    cli.add_run_arguments(parser)
    parser.without_effect(
        "--num_verdicts --temperature --top_p --top_k --min_p --presence_penalty --max_tokens --seed --max_retries"
        " --constrained_decoding",
        lambda args: args.verdicts is not None,
        "with --verdicts, which generates no text",
        "leave out --verdicts",
    )
    parser.decides_nothing("--inputs_addr --response_addr --score_addr", "the settings have their hashes")
    parser.decides_nothing("--reading", "the strategy that it selects does")
    parser.decides_nothing("--allow_partial", "which pieces an output has; its manifest has their hash")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.prepare_run(args, args.score_addr, [args.inputs_addr, *args.response_addr])
    return execute(prepare(args), args)


def prepare(args: cli.Arguments) -> Command:
    records = read_questions(args.inputs_addr, [args.strategy or "score"])
    task = task_of(args.inputs_addr, records)
    metric = choose_metric(args, task)
    check_verdicts(args, task, metric.judge and metric.judge.scale)
    task = task.asking(args.strategy, args.verdicts, args.num_verdicts)
    chosen = metric.judge and choose_judge(args, metric.judge)
    if chosen is None and args.num_shards > 1:
        raise UserError(f"--num_shards: {args.strategy} needs no judge, so it has no shards; leave it out")
    systems = read_systems(args, task, records, chosen)
    note_incomplete(args.inputs_addr, systems)

    async def judge(asked: tuple[Call, Pieces], ask: Ask) -> Piece:
        """Judge how well the response covers one aspect (Algorithm 1, with the prompt of figure 10)."""
        call, verdicts = asked
        verdicts[call.key] = await ask.send("judge", lambda: (ask.model("judge"), call, str))
        return verdicts[call.key]

    def describe() -> None:
        pass_over_unanswered(systems)
        if chosen is None:
            return print_machine(args, [], args.score_addr, len(args.score_addr) * len(records))
        model, asked = calls_to(args, systems, records, load_judge(args, chosen))
        print(describe_calls([call for call, _ in asked], model.chat, model.policy, prices_of(args)))
        print_machine(args, [model], args.score_addr, len(args.score_addr) * len(records))

    def work(left: list[list[Output]]) -> int:
        its = [system for system in systems if [system.output] in left]
        pass_over_unanswered(its)
        if chosen is None:
            with writing(system.output for system in its):
                compute_verdicts(its, records)
                for system in its:
                    publish_scores(system, task, args, None, {})
        else:
            model, asked = calls_to(args, its, records, load_judge(args, chosen))
            shared = Shared(task, {"judge": Role(args, model)}, args.seed, num_contexts=0)
            done = sum(len(system.output.pieces) for system in its)
            step = Step(judge, lambda: dict(enumerate(asked)), "verdicts", {}, "judge", done=done)
            with writing(system.output for system in its):
                device, _ = run_steps([step], shared)
                for system in its:
                    publish_scores(system, task, args, device, model.figures)
        code = max(system.output.report_failed(common_reasons) for system in its)
        return max(code, cli.report_missing(sum(len(system.output.missing()) for system in its), "verdict"))

    return Command([[system.output] for system in systems], describe, work)


if __name__ == "__main__":
    cli.run_script(main)
