"""Draw the paper's figures 2, 3, 4, 5 and 16, scores by group, or a training run, each as a PNG and a PDF.

  python utils/make_figures.py --figure 2 --system 0 k0_scores.json --system 10 k10_scores.json --output_addr figure2
  python utils/make_figures.py --figure 3 --system PlanPers planpers_scores.json \\
      --system "PlanPers (gold plans)" gold_scores.json --output_addr figure3
  python utils/make_figures.py --figure 4 --agreement_addr evaluators.json --output_addr figure4
  python utils/make_figures.py --figure 5 --inputs_addr data/*.json --output_addr figure5
  python utils/make_figures.py --figure groups --by distance --system "Whole history" whole_scores.json \\
      --system RAG rag_scores.json --output_addr distance
  python utils/make_figures.py --figure training --training_dir planner --output_addr planner/training

2 (test) and 16 (validation): the score by the number of posts from the profile, with 95% intervals. 3: systems side by
side, and the last one's score in percent of the first one's, such as gold plans against the planner's. 4: how often
evaluators of several sizes agree with humans, and the mean score they give. 5: the questions of every community.
groups: every system's score in each group of questions, with 95% intervals; of PersonaMem by type, topic or distance.
training: the losses and evaluations of a training run by step, also while it goes on.

All can be read in grey. Figures 2, 4 and 16 fit a column of 3.3 inches, and so does 3 with two systems.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.files.json_files import read_json
from utils.parsing.plans import one_line
from utils.tables import paper_figures
from utils.tables.columns import interval_words, points_of
from utils.tables.dataset_counts import communities_figure, read_columns
from utils.tables.drawing import render_figure
from utils.tables.formats import counted
from utils.tables.group_figure import MARKERS, groups_figure
from utils.tables.notes import print_notes, read_compared
from utils.tables.paper_figures import HATCHES, MOST_EVALUATORS, Evaluator
from utils.tables.score_table import make_row
from utils.tables.system_scores import SELECTED, System, add_unscored_argument
from utils.tables.training_figure import training_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCRIPT = "utils/make_figures.py"
SOURCES = {  # a figure's flag
    "2": "system", "3": "system", "4": "agreement_addr", "5": "inputs_addr", "16": "system", "groups": "system",
    "training": "training_dir",
}  # fmt: skip

DOTS_PER_INCH = 300  # of the PNG
LARGEST_K = 9_999


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--figure", required=True, choices=list(SOURCES), help="a figure of the paper, groups, or a training run")
    add("--system", nargs="+", action="append", metavar=("NAME", "FILE"),
        help="figures 2, 3, 16 and groups: a name, then one or more score files of evaluate_responses.py; give it once "
        "a system. In 2 and 16 the name is the number of posts; in the others the systems stand as they are given")
    add("--by", metavar="NAME",
        help="figure groups: what tells the questions apart, as in a table: topic or distance of PersonaMem, of "
        "PersonaMem-v2 also who or updated (default: their groups)")
    add("--agreement_addr", metavar="FILE", help="figure 4: the file that utils/compare_evaluators.py wrote")
    add("--inputs_addr", nargs="+", metavar="FILE", help="figure 5: datasets")
    add("--training_dir", metavar="DIR", help="figure training: folder of a training run")
    add("--output_addr", required=True, metavar="FILE", help="where the figure goes, with .png and .pdf put behind it")
    add("--allow_partial", action="store_true",
        help="figures 2, 3, 16 and groups: take systems that were not scored on the same questions")
    # fmt: on
    add_unscored_argument(parser)
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_flags(args)
    kinds = output_files(args.output_addr)
    inputs = [path for _, *paths in args.system or [] for path in paths] + (args.inputs_addr or [])
    cli.check_outputs(list(map(str, kinds)), [*inputs, *filter(None, [args.agreement_addr])])
    figure, notes = make_figure(args)
    prepare_derived(kinds, SCRIPT, args.overwrite)
    publish_derived(render_figure(figure, kinds, DOTS_PER_INCH), SCRIPT, args)
    print_notes(notes)
    print(f"figure {args.figure}: {', '.join(map(str, kinds))}")
    return 0


def check_flags(args: argparse.Namespace) -> None:
    """Raise UserError unless exactly the flags of this figure are given."""
    needed = SOURCES[args.figure]
    for name in dict.fromkeys(SOURCES.values()):
        given = getattr(args, name) is not None
        if given and name != needed:
            raise UserError(f"--{name}: not for --figure {args.figure}, which is drawn from --{needed}")
        if name == needed and not given:
            raise UserError(f"--figure {args.figure}: is drawn from --{needed}; give it")
    for name in ("allow_partial", "unscored_as_zero"):
        if getattr(args, name) and needed != "system":
            raise UserError(f"--{name}: not for --figure {args.figure}, which reads no score files")
    if args.by is not None and args.figure != "groups":
        raise UserError(f"--by: not for --figure {args.figure}, but for --figure groups")


def output_files(address: str) -> dict[Path, str]:
    """The PNG and the PDF to write, with their kinds; UserError where `address` is a folder."""
    path = Path(address)
    if path.is_dir() or address.endswith("/"):
        raise UserError(f"--output_addr {address}: a folder; give the name of a file in it")
    name = path.stem if path.suffix.lower() in (".png", ".pdf") else path.name
    return {path.with_name(f"{name}.{kind}"): kind for kind in ("png", "pdf")}


def make_figure(args: argparse.Namespace) -> tuple["Figure", list[str]]:
    """Read the input of the figure and draw it; the notes are what its readers must know."""
    if args.figure == "training":
        return training_figure(args.training_dir), []
    if args.figure == "5":
        return communities_figure(read_columns(args.inputs_addr)), []
    if args.figure == "4":
        return paper_figures.trade_off_figure(read_evaluators(args.agreement_addr)), []
    names = [one_line(name) for name, *_ in args.system]
    if args.figure == "groups":
        if len(names) > len(MARKERS):
            raise UserError(f"--system: given {counted(len(names), 'time')}; figure groups has 1 to {len(MARKERS)}")
        systems, notes = read_scored(args)
        return groups_figure(systems), notes
    if args.figure == "3":
        if not 2 <= len(names) <= len(HATCHES):
            raise UserError(f"--system: given {counted(len(names), 'time')}; figure 3 has 2 to {len(HATCHES)} systems")
        systems, notes = read_scored(args)
        return paper_figures.systems_figure(list(map(make_row, systems)), are_errors(systems)), notes
    check_numbers_of_posts(names)
    systems, notes = read_scored(args)
    points = {int(system.name): points_of(system) for system in systems}
    bars = f"95% {interval_words(systems[0])}"
    if selected := [system.name for system in systems if system.num_selected]:
        bars += f"\nk = {', '.join(selected)}: {SELECTED}"
    return paper_figures.posts_figure(dict(sorted(points.items())), are_errors(systems), bars), notes


# Reading


def check_numbers_of_posts(names: list[str]) -> None:
    numbers: set[int] = set()
    for name in names:
        if not (name.isascii() and name.isdigit() and len(name) <= len(str(LARGEST_K))):
            raise UserError(f"--system {quote(name)}: not a number of posts; the name is k, from 0 to {LARGEST_K}")
        if int(name) in numbers:
            raise UserError(f"--system {name!r} is given twice; put all its files behind one --system")
        numbers.add(int(name))
    if len(numbers) < 2:
        raise UserError(f"--system {names[0]!r}: is the only number of posts; give two or more")


def read_scored(args: argparse.Namespace) -> tuple[list[System], list[str]]:
    """The systems, and notes on them; UserError too where no question of any system has a score."""
    [board, *others], notes = read_compared(args.system, args.unscored_as_zero, args.allow_partial, args.by)
    systems = board.systems
    if others:
        path = others[0].systems[0].paths[0]
        raise UserError(
            f"{path}: scores of {others[0].title}, but {systems[0].paths[0]} has scores of {board.title}\n"
            "  a figure shows one task by one metric: draw one for each"
        )
    scored = {question["group"] for system in systems for question in system.questions if question["score"] is not None}
    if not scored:
        raise UserError(f"{systems[0].paths[0]}: no question of any system has a score; there is nothing to draw")
    if missing := [group for group in systems[0].task.groups if group not in scored]:
        average = "" if systems[0].task.overall else ", and so no average"
        notes.append(f"No score in {', '.join(missing)}{average}.")
    return systems, notes


def are_errors(systems: list[System]) -> bool:
    return systems[0].metric.lower_is_better


def read_evaluators(path: str) -> list[Evaluator]:
    """The evaluators of the file that utils/compare_evaluators.py wrote, as they stand there."""
    data = read_json(path)
    entries = data.get("evaluators") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"{path}: has no list 'evaluators'\n  give the file that utils/compare_evaluators.py wrote")
    evaluators = [read_evaluator(entry, f"{path}: evaluators, item {i}") for i, entry in enumerate(entries)]
    if not 2 <= len(evaluators) <= MOST_EVALUATORS:
        raise UserError(f"{path}: evaluators: {len(evaluators)} are given; figure 4 has 2 to {MOST_EVALUATORS}")
    if all(evaluator.accuracy is None for evaluator in evaluators):
        raise UserError(f"{path}: no evaluator has an accuracy\n  give utils/compare_evaluators.py a --human_addr")
    if all(evaluator.mean_score is None for evaluator in evaluators):
        raise UserError(f"{path}: no evaluator has a mean score\n  give it evaluators that score responses")
    return evaluators


def read_evaluator(entry: Any, where: str) -> Evaluator:
    """An entry of the list; UserError where a field is not what utils/compare_evaluators.py writes."""
    if not isinstance(entry, dict):
        raise UserError(f"{where}: {quote(entry)} where an evaluator's figures belong")
    for field in ("name", "strategy"):
        if not isinstance(entry.get(field), str) or not entry[field].strip():
            raise UserError(f"{where}: field {field!r} is {quote(entry.get(field))}; it must be a text")
    where = f"{where} ({quote(entry['name'])})"
    accuracy, interval, mean_score = (entry.get(name) for name in ("accuracy", "accuracy_interval", "mean_score"))
    for field, value in (("accuracy", accuracy), ("mean_score", mean_score)):
        if value is not None and not _is_share(value):
            raise UserError(f"{where}: field {field!r} is {quote(value)}; it must be a number from 0 to 1, or null")
    is_interval = isinstance(interval, list) and len(interval) == 2 and all(map(_is_share, interval))
    if interval is not None and not is_interval:
        raise UserError(f"{where}: field 'accuracy_interval' is {quote(interval)}; it must be two shares, or null")
    return Evaluator(one_line(entry["name"]), entry["strategy"], accuracy, interval and tuple(interval), mean_score)


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


if __name__ == "__main__":
    cli.run_script(main)
