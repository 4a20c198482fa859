"""Draw a figure of the paper, scores by group, best of N, or a training run, for a column or the width of a paper.

  python utils/make_figures.py --figure 2 --system 0 k0_scores.json --system 10 k10_scores.json --output_addr figure2
  python utils/make_figures.py --figure 3 --system PlanPers planpers_scores.json \\
      --system "PlanPers, gold plans" gold_scores.json --output_addr figure3
  python utils/make_figures.py --figure 4 --agreement_addr evaluators.json --output_addr figure4
  python utils/make_figures.py --figure 5 --inputs_addr data/*.json --output_addr figure5
  python utils/make_figures.py --figure groups --by distance --system "Whole history" whole_scores.json \\
      --system RAG rag_scores.json --output_addr distance
  python utils/make_figures.py --figure best_of_n --response_addr samples.json --score_addr scores.json \\
      --system "Reward model" rewards.json --system Ranker ranker states.safetensors --output_addr best_of_n
  python utils/make_figures.py --figure training --training_dir planner --output_addr planner/training

2 (test) and 16 (validation): scores by the number of posts. 3: systems side by side, with the last one's score as a
percentage of the first one's. 4: how often evaluators agree with humans, and their mean scores. 5: the number of
questions per community. groups: every system's score in each group of questions. best_of_n: the expected score of the
sample that a reward model likes best of N. training: losses, rewards and evaluations by step.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun, first_five, quote
from utils.base.json_files import read_bytes, read_json
from utils.base.made import add_overwrite_argument, prepare_derived, publish_derived
from utils.base.manifest import folder_settings
from utils.benchmarks.readers import one_line
from utils.data.responses import read_responses
from utils.data.scores import metric_behind, read_rewards, read_sample_scores
from utils.show import paper_figures
from utils.show.dataset_counts import read_columns
from utils.show.figure_style import (
    COLUMN,
    KINDS,
    MARKERS,
    SMALL_TEXT,
    figure_style,
    new_figure,
    render_figure,
    score_label,
    wrapped,
)
from utils.show.paper_figures import MOST_EVALUATORS, Evaluator, best_of_n_figure, communities_figure
from utils.tables.best_of_n import make_curve, shares_of_headroom
from utils.tables.columns import interval_words, points_of
from utils.tables.notes import notes_on, print_notes
from utils.tables.system_scores import System, add_board_arguments, boards_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCRIPT = "utils/make_figures.py"
SOURCES = {  # the input flags of each figure
    "2": ("--system",), "3": ("--system",), "4": ("--agreement_addr",), "5": ("--inputs_addr",), "16": ("--system",),
    "groups": ("--system",), "training": ("--training_dir",),
    "best_of_n": ("--response_addr", "--score_addr", "--system"),
}  # fmt: skip
LARGEST_K = 9_999
NUM_SYSTEMS = {"2": (2, LARGEST_K), "16": (2, LARGEST_K), "3": (2, len(MARKERS))}
NUM_SYSTEMS |= dict.fromkeys(("groups", "best_of_n"), (1, len(MARKERS)))
# By field of training_log.jsonl: the panel's number from the top, its axis label, the limits of its axis (None: as the
# values need), and the curve's style.
ANY, FROM_0, SHARE = (None, None), (0, None), (0, 1)
TRAINED = {"color": "0.6", "linewidth": 0.8}
EVALUATED = {"color": "black", "marker": "s", "markersize": 3, "linewidth": 1.2}
EVALUATED |= {"clip_on": False}  # a marker at 0 stands on the axis
CURVES = {
    "loss": (0, None, ANY, {"label": "training", **TRAINED}),
    "eval_loss": (0, None, ANY, {"label": "validation", **EVALUATED, "marker": "o"}),
    "eval_aspect_recall": (1, "aspect recall (0 to 1)", SHARE, EVALUATED),
    "eval_score": (1, "metric in validation", FROM_0, EVALUATED),
    "rewards/margins": (1, "reward margin, best over worst", ANY, TRAINED),
    "rewards/accuracies": (2, "best ahead of worst (share of pairs)", SHARE, TRAINED),
}
LOSSES = {  # the loss's axis label, by --objective; a planner has none
    "dpo": "DPO loss per pair (nats)",
    "distill": "KL divergence per sampled token (nats)",
    "grpo": "GRPO loss of a step (sum / mean tokens per step)",  # a step with more tokens than the others counts more
}
LARGEST = 1e30  # far beyond any loss, and small enough for an axis


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--figure", required=True, choices=list(SOURCES),
        help="a figure of the paper, by its number; or groups, training or best_of_n")
    add("--system", nargs="+", action="append", metavar=("NAME", "FILE"),
        help="figures 2, 3, 16 and groups: a name, then one or more score files of evaluate_responses.py; once per "
        "system. In 2 and 16 the name is the number of posts; in the others systems appear in the given order. Figure "
        "best_of_n: a name, then the scores to choose by (--samples all), or a ranker and its states; once per curve")
    add("--response_addr", metavar="FILE", help="figure best_of_n: responses with several samples per question")
    add("--score_addr", metavar="FILE", help="figure best_of_n: the judge's scores of all samples (--samples all)")
    add("--agreement_addr", metavar="FILE", help="figure 4: output of utils/compare_evaluators.py")
    add("--inputs_addr", nargs="+", metavar="FILE", help="figure 5: datasets")
    add("--training_dir", metavar="DIR", help="figure training: folder of a training run")
    add("--output_addr", required=True, metavar="FILE",
        help="path of the figure, with .pdf, .svg or .png; without one of these, a PNG and a PDF are written")
    # fmt: on
    add_board_arguments(parser.add_argument_group("figures 2, 3, 16 and groups (--by: groups only)"))
    add_overwrite_argument(parser)
    for flags in ("--system", "--agreement_addr", "--inputs_addr", "--training_dir", "--response_addr --score_addr"):
        figures = [figure for figure, needed in SOURCES.items() if {*flags.split()} <= {*needed}]
        is_other = lambda args, figures=figures: args.figure not in figures  # noqa: E731
        parser.without_effect(flags, is_other, f"except with --figure {' or '.join(figures)}")
    parser.without_effect(
        "--allow_partial --unscored_as_zero --samples --groups",
        lambda args: SOURCES[args.figure] != ("--system",),
        "except with --figure 2, 3, 16 or groups",
    )
    parser.without_effect("--by", lambda args: args.figure != "groups", "except with --figure groups")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if missing := [flag for flag in SOURCES[args.figure] if getattr(args, flag.removeprefix("--")) is None]:
        raise UserError(f"--figure {args.figure}: needs {', '.join(missing)}")
    files = output_files(args.output_addr)
    inputs = [path for _, *paths in args.system or [] for path in paths] + (args.inputs_addr or [])
    inputs += filter(None, [args.score_addr, args.agreement_addr, args.response_addr])
    cli.check_outputs(list(map(str, files)), inputs)
    figure, notes = make_figure(args)
    prepare_derived(files, SCRIPT, args.overwrite)
    publish_derived({path: render_figure(figure, kind) for path, kind in files.items()}, SCRIPT, args)
    print_notes(notes)
    print(f"figure {args.figure}: {', '.join(map(str, files))}")
    return 0


def output_files(address: str) -> dict[Path, str]:
    """Return the paths to write, with their kinds: the one that the address names, or else PNG and PDF."""
    path = Path(address)
    if (kind := path.suffix.lower().removeprefix(".")) in KINDS:
        return {path: kind}
    return {path.with_name(f"{path.name}.{kind}"): kind for kind in ("png", "pdf")}


def make_figure(args: argparse.Namespace) -> tuple["Figure", list[str]]:
    """Read the figure's input and draw it; return notes for its readers too."""
    if args.figure == "training":
        return training_figure(args.training_dir), []
    if args.figure == "5":
        return communities_figure(read_columns(args.inputs_addr)), []
    if args.figure == "4":
        return paper_figures.trade_off_figure(read_evaluators(args.agreement_addr)), []
    check_names(args.figure, [one_line(name) for name, *_ in args.system])
    if args.figure == "best_of_n":
        return curves_of(args)
    systems, notes = read_scored(args)
    metric = systems[0].metric
    if args.figure == "groups":
        return paper_figures.groups_figure(systems), notes
    if args.figure == "3" and metric.is_unbounded:
        raise UserError("--figure 3: its axis begins at 0, but a reward may be negative; use --figure groups")
    if args.figure == "3":
        return paper_figures.systems_figure(systems), notes
    points = {int(system.name): points_of(system) for system in systems}
    bars = [f"bars: 95% {interval_words(systems[0])}"]
    bars += [f"k = {system.name}: {system.excluded}" for system in systems if system.excluded]
    return paper_figures.posts_figure(dict(sorted(points.items())), metric, bars), notes


def curves_of(args: argparse.Namespace) -> tuple["Figure", list[str]]:
    """Draw the curves of best of N; the notes have their values."""
    of = (read_responses(args.response_addr), args.response_addr)
    judged, samples = read_sample_scores(args.score_addr, *of)
    rewards, curves, notes = read_rewards(args.score_addr, *of), {}, []
    for name, *paths in args.system:
        if len(paths) not in (1, 2):
            raise UserError(f"--system {name!r}: needs for best_of_n one file of scores, or a ranker and its states")
        if len(paths) == 1:
            chosen_by = read_rewards(paths[0], *of)
        else:
            from utils.training.ranker import rank_samples  # torch

            chosen_by, _ = rank_samples(paths, *of)
        curve = make_curve(judged, samples, chosen_by)
        curves[one_line(name)] = curve
        values = ", ".join(f"{number}: {mean:z.4f}" for number, mean in zip(curve.numbers, curve.means, strict=True))
        fewer = f"; {count_noun(curve.num_fewer, 'question')} with fewer usable samples" if curve.num_fewer else ""
        notes.append(f"{one_line(name)}: the expected score of the best of N is {values}{fewer}")
        best = make_curve(judged, samples, {key: own for key, own in rewards.items() if key in chosen_by})
        shares = zip(curve.numbers, shares_of_headroom(curve, best), strict=True)
        if shares := ", ".join(f"{number}: {share:.1%}" for number, share in shares if share is not None):
            notes.append(f"{one_line(name)}: its share of the headroom, (selected - mean) / (best - mean), is {shares}")
    return best_of_n_figure(curves, score_label(metric_behind(judged))), notes


# Reading


def check_names(figure: str, names: list[str]) -> None:
    """Raise UserError for a wrong number of systems, or for a name that should be a number of posts and is not."""
    least, most = NUM_SYSTEMS[figure]
    if not least <= len(names) <= most:
        raise UserError(
            f"--system: given {count_noun(len(names), 'time')}; figure {figure} takes {least} to {most} systems"
        )
    for name in names if figure in ("2", "16") else ():
        if not (name.isascii() and name.isdigit() and int(name) <= LARGEST_K):
            raise UserError(f"--system {quote(name)}: not a number of posts; the name must be k, from 0 to {LARGEST_K}")


def read_scored(args: argparse.Namespace) -> tuple[list[System], list[str]]:
    """Return the systems and notes on them; UserError also if no question of any system has a score."""
    board, *others = boards = boards_of(args)
    systems, notes = board.systems, notes_on(boards, args.unscored_as_zero)
    if others:
        path = next(iter(others[0].systems[0].files))
        raise UserError(
            f"{path}: scores of {others[0].title}, but {next(iter(systems[0].files))} has scores of {board.title}\n"
            "  a figure shows one task and metric; draw a figure for each"
        )
    scored = {question["group"] for system in systems for question in system.questions if question["score"] is not None}
    if not scored:
        raise UserError("--system: no question of any system has a score; there is nothing to draw")
    if missing := [group for group in systems[0].task.groups if group not in scored]:
        average = "" if systems[0].task.overall else ", and so no average"
        notes.append(f"No score in {', '.join(missing)}{average}.")
    return systems, notes


class AgreementFile(TypedDict):
    """The part of utils/compare_evaluators.py's output file that figure 4 needs."""

    evaluators: list[Evaluator]


def read_evaluators(path: str) -> list[Evaluator]:
    """Read the evaluators from the file that utils/compare_evaluators.py wrote; UserError if it is invalid."""
    import msgspec  # here, so that --help needs no package

    try:
        evaluators = msgspec.convert(read_json(path), AgreementFile)["evaluators"]
    except (msgspec.ValidationError, UnicodeError) as error:  # lone surrogates cannot be encoded as UTF-8
        raise UserError(f"{path}: {error}\n  use the file that utils/compare_evaluators.py wrote") from None
    for number, evaluator in enumerate(evaluators):
        shares = [evaluator.accuracy, evaluator.mean_score, *(evaluator.accuracy_interval or ())]
        if not all(share is None or 0 <= share <= 1 for share in shares):
            raise UserError(
                f"{path}: evaluators, item {number}: found {first_five(shares)}, expected numbers from 0 to 1"
            )
    if not 2 <= len(evaluators) <= MOST_EVALUATORS:
        raise UserError(
            f"{path}: has {count_noun(len(evaluators), 'evaluator')}; figure 4 takes 2 to {MOST_EVALUATORS}"
        )
    return [replace(evaluator, name=one_line(evaluator.name)) for evaluator in evaluators]


# A training run


@figure_style()
def training_figure(folder: str) -> "Figure":
    """Draw losses by step, and rewards or evaluations below them; UserError if no loss is logged yet."""
    log = read_log(Path(folder) / "training_log.jsonl")
    if not log.keys() & {"loss", "eval_loss"}:
        raise UserError(f"{folder}/training_log.jsonl: has no loss yet; try again after the first logged step")
    objective = folder_settings(folder).get("objective")
    count = 1 + max(CURVES[name][0] for name in log)
    figure = new_figure(COLUMN, 0.6 + 1.4 * count)
    panels = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    for name, values in log.items():
        number, axis, limits, style = CURVES[name]
        dot = {"marker": "."} if len(values) == 1 else {}  # a line through one point shows nothing
        panels[number].plot(list(values), list(values.values()), **{**dot, **style})
        label = axis or LOSSES.get(objective, "cross-entropy per target token (nats)")
        panels[number].set_ylabel(wrapped(label, 1.35), fontsize=SMALL_TEXT)
        panels[number].grid()
        panels[number].set_ylim(*limits)
    panels[0].legend()
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    if len(steps := {step for values in log.values() for step in values}) == 1:
        panels[-1].set_xticks([*steps])  # else the axis has fractions of a step
    panels[-1].set_xlabel("training step")
    return figure


def read_log(path: Path) -> dict[str, dict[int, float]]:
    """Read the values of each field of `CURVES` by step; UserError for a damaged line other than the last."""
    logged: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    lines = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            for name in logged.keys() & entry.keys():
                if abs(float(entry[name])) < LARGEST:  # also not NaN
                    logged[name][int(entry["step"])] = entry[name]
        except (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError):
            if number < len(lines):  # a run may be writing the last one
                raise UserError(f"{path}: line {number} is damaged; delete that line") from None
    return {name: dict(sorted(values.items())) for name, values in logged.items() if values}


if __name__ == "__main__":
    cli.run_script(main)
