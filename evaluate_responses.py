"""Have a judge score how well responses cover each aspect the user cares about (paper, section 3.2, Algorithm 1).

  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr rag.json --score_addr rag_scores.json
  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct --inputs_addr test.json \\
      --response_addr none.json rag.json --score_addr none_scores.json rag_scores.json

Several response files share one load of the model. A response file is {question id: [{"output": text}]}; the first
response to each question is judged, or every one with --samples all. A missing answer gets the worst score (0, unless
lower is better) and is counted. A missing verdict is counted and never scored 0. Run the same command again to judge
only what has changed.

LaMP and LongLaMP need no judge: their metrics compare a response with the reference (--strategy f1, rouge-1, ...).
Files in LaMP's own format and PersonaMem's CSV files are read too. To measure how sure the judge is, --verdicts
probability computes the expected value over 0, 1 and 2; --num_verdicts averages several verdicts at a --temperature.
The paper compares its judge with --strategy direct, which gives a response one of five levels, and --strategy pairwise,
which compares two systems in both orders. With --strategy reward, a reward model scores each response from the question
and posts alone (docs/evaluation.md describes all of these):

  python evaluate_responses.py --strategy pairwise --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr planpers.json rag.json --score_addr planpers_rag_pairs.json
"""

from collections.abc import Iterator, Sequence
from functools import partial

from utils.base import cli
from utils.base.errors import UserError
from utils.base.made import Key, Piece
from utils.base.manifest import refuse_unranked
from utils.benchmarks import metric_names
from utils.benchmarks.scoring import no_answer
from utils.data.datasets import read_task
from utils.data.responses import are_answered
from utils.generation.chat import VERDICT_TOKENS
from utils.runs.ask import Ask
from utils.runs.driver import run_stages
from utils.runs.judging import (
    JudgedDataset,
    Request,
    ScoreFile,
    choose_judge,
    choose_strategy,
    requests_to,
    score_files,
    settings_of_judge,
)
from utils.runs.stage import Stage
from utils.tables.notes import describe_scores


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="the dataset")
    add("--strategy", choices=metric_names(),
        help="metric. LaMP-QA: aspect (a verdict per aspect), direct (a level per response) or pairwise (two systems); "
        "BESPOKE: personal (four scores from one verdict) or recall (a verdict per claim); "
        "LaMP and LongLaMP: computed from the reference; PersonaMem-v2: accuracy, or open (by the majority of three "
        "verdicts) for answers to --asking open (default: the benchmark's first metric, for LaMP-QA aspect; for labels "
        "and ratings by an encoder-decoder its -official variant)")
    add("--reading", choices=["official"],
        help="parse the raw output again, as LaMP's or PersonaMem's public code does: --reading official --strategy f1 "
        "is the same as --strategy f1-official (default: the answer that the run parsed)")
    add("--response_addr", required=True, nargs="+", metavar="FILE",
        help="response files, one per system; LaMP's and PersonaMem's own formats work too")
    add("--score_addr", required=True, nargs="+", metavar="FILE",
        help="score files to write, one per response file; just one for pairwise")
    add("--samples", choices=["all"],
        help="score every response to a question: `samples` of the score file has their scores (off: the first one)")
    add("--verdicts", choices=["probability"],
        help="score by the expected verdict, computed from the verdicts' likelihoods; generates no text (off: score by "
        "the written verdict)")
    add("--num_verdicts", type=cli.positive_int, default=1, metavar="N",
        help="verdicts per aspect, averaged; more than one needs a --temperature above 0 (%(default)s)")
    add("--num_contexts", type=cli.non_negative_int, default=10,
        help="with --strategy reward: posts of a ranked dataset that the model sees, if they fit (%(default)s)")
    add("--shots", type=cli.non_negative_int, default=5, metavar="N",
        help="with BESPOKE's --strategy personal: the most responses scored by the asker that the judge sees as "
        "examples (%(default)s)")
    cli.add_unranked_argument(parser)
    add("--allow_partial", action="store_true", help="score only the questions that have a response")
    judge_help = "judge: hub name, model folder, or API model (required unless the metric is computed)"
    cli.add_engine_arguments(parser, "--evaluator_llm", judge_help, required=False)
    cli.add_sampling_arguments(
        parser, temperature_default=0.0, max_tokens=VERDICT_TOKENS, max_model_len="the model's, at most 32000"
    )
    cli.add_run_arguments(parser)
    parser.without_effect(
        "--num_verdicts --temperature --top_p --top_k --min_p --presence_penalty --max_tokens --seed --max_retries"
        " --constrained_decoding",
        lambda args: args.verdicts is not None,
        "with --verdicts, which generates no text",
        "remove --verdicts",
    )
    parser.without_effect(
        "--temperature --top_p --top_k --min_p --presence_penalty --max_tokens --seed --constrained_decoding",
        lambda args: args.strategy == "reward",
        "with --strategy reward, which generates no text",
    )
    parser.not_a_setting("--inputs_addr --response_addr --score_addr", "the inputs' hashes are settings")
    parser.not_a_setting("--num_contexts", "it is a setting of reward models alone")
    parser.not_a_setting("--shots", "it is a setting of the metric that has them alone")
    parser.not_a_setting("--reading", "the strategy that it selects is a setting")
    parser.not_a_setting("--allow_partial", "it only selects questions, and the manifest has the hash of their keys")
    # fmt: on
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    args = cli.prepare_run(args, args.score_addr, [args.inputs_addr, *args.response_addr])
    return run_stages([prepare(args)], args)


def prepare(args: cli.Arguments) -> Stage:
    """Return the stage that judges all systems."""
    task = read_task(args.inputs_addr)
    strategy = choose_strategy(args, task)
    task = task.asking(strategy, args.verdicts, args.num_verdicts)
    metric = task.metrics[strategy]
    if strategy == "reward" and args.num_contexts:
        refuse_unranked(args.inputs_addr, args.unranked)
    if "shots" in args.given and "shots" not in metric.needs:
        raise UserError(f"--shots: the judge of {task.name}'s {strategy} sees no scored responses; remove the flag")
    if metric.num_samples > 1 and "temperature" not in args.given:
        args = args.replaced(temperature=1.0)

    def requests() -> Iterator[tuple[ScoreFile, Key, Request]]:
        return requests_to(files, dataset.records)

    async def judge(request: Request, ask: Ask) -> Piece:
        """Judge how well the response covers one aspect (Algorithm 1, with the prompt in figure 10)."""
        if not all(answered := are_answered(request.outputs)):
            return no_answer(answered)
        return await ask.steps.send("judge", partial(model.call, request))

    async def compute(request: Request, ask: Ask) -> Piece:
        """Compute a score from the response and the reference."""
        if not all(answered := are_answered(request.outputs)):
            return no_answer(answered)
        return {"value": metric.compute(request.record, *request.outputs)}

    dataset = JudgedDataset(args.inputs_addr, task, strategy, args)
    model = choose_judge(args, metric.judge) if metric.judge else None
    files = score_files(dataset, settings_of_judge(args, model) if model else {}, describe_scores)
    return Stage(task, requests, judge if model else compute, files, {"judge": model} if model else {})


if __name__ == "__main__":
    cli.run_script(main)
