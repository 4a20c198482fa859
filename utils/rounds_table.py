"""Make a table of a training's rounds: rewards, what was left out, and the validation score of each round's policy.

  python utils/rounds_table.py --output_addr rounds.md \\
      --round_files 1/samples.json 1/policy/last 1/validation_scores.json 1/samples/scores_{0..7}.json \\
      --round_files 2/samples.json 2/policy/last 2/validation_scores.json 2/samples/scores_{0..7}.json

Rewards are those of the samples that the round learns from, so of the policy before it; a score that is an error counts
as negative. Words are counted in the samples that are not empty. What a round left out comes from its training's
manifest. The validation score is the average over the questions with a score in every round (utils/select_model.py).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python finds only utils/

from statistics import fmean

from utils import cli
from utils.cli import UserError
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.files.manifest import read_folder_manifest
from utils.records.responses import Responses, read_responses
from utils.records.scores import metric_behind, read_scores
from utils.tables.averages import compare_averages
from utils.tables.best_of_n import are_rewards, in_order, read_rewards, read_sample_scores, split
from utils.tables.formats import Cell, Table, to_markdown

SCRIPT = "utils/rounds_table.py"
COLUMNS = ("Round", "Questions", "Samples", "Mean reward", "Words per answer", "Without an answer", "Validation score")


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    # fmt: off
    add("--round_files", nargs="+", action="append", required=True, metavar=("SAMPLES", "FILE"),
        help="a round: its samples, its policy's folder, the validation scores of the policy, and a file of scores or "
        "rewards per sample; once per round")
    add("--output_addr", required=True, metavar="FILE", help="output file, Markdown")
    # fmt: on
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if short := [paths[0] for paths in args.round_files if len(paths) < 4]:
        raise UserError(
            f"--round_files {short[0]}: give samples, policy, validation scores, then a score file per sample"
        )
    cli.check_outputs([args.output_addr], [path for paths in args.round_files for path in (paths[0], *paths[2:])])
    prepare_derived([args.output_addr], SCRIPT, args.overwrite)
    validation = {paths[2]: read_scores(paths[2]) for paths in args.round_files}
    if len(validation) < len(args.round_files):
        raise UserError("--round_files: two rounds have the same validation scores; give each its own")
    averages, compared = compare_averages(validation)
    rows, notes = [], [f"Validation: {compared}."]
    for number, ((samples, policy, _, *scores), average) in enumerate(zip(args.round_files, averages, strict=True), 1):
        figures = [f"{number}", *describe_samples(read_responses(samples), scores, samples), f"{average:z.4f}"]
        rows.append(list(map(Cell, figures)))
        left_out = (read_folder_manifest(policy) or {}).get("notes", ["what it left out is not known"])
        notes += [f"Round {number}: {note}." for note in left_out]
    text = to_markdown([Table(COLUMNS, rows, notes)])
    publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    print(text, end="")
    return 0


def describe_samples(responses: Responses, score_addrs: list[str], path: str) -> list[str]:
    """Return the columns about a round's samples; UserError if the scores are not of these samples."""
    samples = split(responses)
    if are_rewards(score_addrs):
        by_sample, sign = read_rewards(in_order(score_addrs, samples, path)), 1
    else:
        files = list(read_sample_scores(score_addrs, samples, path).values())
        by_sample = [{entry["id"]: entry["score"] for entry in content["per_question_scores"]} for content in files]
        sign = -1 if metric_behind(files[0]).lower_is_better else 1
    rewards = [sign * score for scores in by_sample for score in scores.values() if score is not None]
    outputs = [answer["output"] for answers in responses.values() for answer in answers]
    words = [len(output.split()) for output in outputs if output]
    means = [f"{fmean(rewards):z.4f}" if rewards else "–", f"{fmean(words):.1f}" if words else "–"]
    return [f"{len(responses)}", f"{len(outputs)}", *means, f"{len(outputs) - len(words)}"]


if __name__ == "__main__":
    cli.run_script(main)
