"""Make a table of a training's rounds: rewards, what was skipped, and the validation score of each round's policy.

  python utils/rounds_table.py --output_addr rounds.md \\
      --round_files 1/samples.json 1/samples_scores.json 1/policy/last 1/validation_scores.json \\
      --round_files 2/samples.json 2/samples_scores.json 2/policy/last 2/validation_scores.json

Rewards are those of the samples that the round learns from, which the policy before it wrote; a score that is an error
counts as negative. Words are counted in the samples that are not empty. What a round skipped comes from its training's
manifest. The validation score is the average over the questions with a score in every round (utils/select_model.py).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python finds only utils/

from statistics import fmean

from utils.base import cli
from utils.base.errors import UserError
from utils.base.made import add_overwrite_argument, prepare_derived, publish_derived
from utils.base.manifest import read_folder_manifest
from utils.data.responses import read_responses
from utils.data.scores import read_rewards, read_scores
from utils.tables.averages import compare_averages
from utils.tables.formats import Cell, Table, to_markdown

SCRIPT = "utils/rounds_table.py"
COLUMNS = ("Round", "Questions", "Samples", "Mean reward", "Words per answer", "Without an answer", "Validation score")


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    # fmt: off
    add("--round_files", nargs=4, action="append", required=True, metavar=("SAMPLES", "SCORES", "POLICY", "VALIDATION"),
        help="a round: its samples, their scores or rewards, its policy's folder, and the policy's validation scores; "
        "once per round")
    add("--output_addr", required=True, metavar="FILE", help="output file, Markdown")
    # fmt: on
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    read = [path for samples, scores, _, validation in args.round_files for path in (samples, scores, validation)]
    cli.check_outputs([args.output_addr], read)
    prepare_derived([args.output_addr], SCRIPT, args.overwrite)
    validation = {path: read_scores(path) for *_, path in args.round_files}
    if len(validation) < len(args.round_files):
        raise UserError("--round_files: two rounds have the same validation scores; each needs its own")
    averages, compared = compare_averages(validation)
    rows, notes = [], [f"Validation: {compared}."]
    for number, ((samples, scores, policy, _), average) in enumerate(zip(args.round_files, averages, strict=True), 1):
        figures = [f"{number}", *describe_samples(samples, scores), f"{average:z.4f}"]
        rows.append(list(map(Cell, figures)))
        left_out = (read_folder_manifest(policy) or {}).get("notes", ["unknown whether anything was skipped"])
        notes += [f"Round {number}: {note}." for note in left_out]
    text = to_markdown([Table(COLUMNS, rows, notes)])
    publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    print(text, end="")
    return 0


def describe_samples(path: str, score_addr: str) -> list[str]:
    """Return the columns on a round's samples; UserError if the scores belong to other samples."""
    responses = read_responses(path)
    by_question = read_rewards(score_addr, responses, path).values()
    rewards = [reward for of_samples in by_question for reward in of_samples if reward is not None]
    outputs = [answer["output"] for answers in responses.values() for answer in answers]
    words = [len(output.split()) for output in outputs if output]
    means = [f"{fmean(rewards):z.4f}" if rewards else "–", f"{fmean(words):.1f}" if words else "–"]
    return [f"{len(responses)}", f"{len(outputs)}", *means, f"{len(outputs) - len(words)}"]


if __name__ == "__main__":
    cli.run_script(main)
