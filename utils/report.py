"""Make an HTML report: table and figures, and every question with its answers, verdicts, plans and posts.

  python utils/report.py --inputs_addr test_ranked.json --output_addr report.html \\
      --system RAG rag.json rag_scores.json \\
      --system PlanPers planpers.json planpers_scores.json planpers.json.plans.json

A system's files are responses (required), scores and plans, any number of each; their content shows which is
which. The report opens in a browser from disk and needs no network.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # when it runs this file, Python finds only utils/

import argparse
from collections.abc import Iterable, Iterator

from utils.base import cli
from utils.base.errors import UserError, count_noun, first_five, quote
from utils.base.json_files import read_json
from utils.base.made import add_overwrite_argument, prepare_derived, publish_derived
from utils.base.manifest import file_hash, settings_of
from utils.benchmarks import task_of
from utils.benchmarks.lampqa.aspects import most_divided
from utils.data.datasets import read_dataset
from utils.data.responses import (
    is_lamps_own,
    read_plans,
    read_responses,
    refuse_other_questions,
    refuse_plans_of_others,
)
from utils.data.scores import refuse_scores_of_others
from utils.data.tables import is_table
from utils.runs.trace import read_turns
from utils.show import report_page
from utils.show.pages import add_new, rubric
from utils.show.report_page import Datasets, Side, has_options, is_whole, profile_of
from utils.tables.notes import notes_on, wording_note
from utils.tables.system_scores import Board, System, files_by_name, read_boards

SCRIPT = "utils/report.py"
PANEL = "utils/panel_scores.py"  # its score files have the verdicts of several judges


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", nargs="+", required=True, metavar="FILE",
        help="datasets that the systems answered; pass the ranked ones to show the posts that were used")
    add("--system", nargs="+", action="append", required=True, metavar=("NAME", "FILE"),
        help="a column: its name, then its files of responses, scores and plans; repeat it for each system")
    add("--output_addr", required=True, metavar="FILE", help="output file, an HTML page")
    # fmt: on
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    named = (path for _, *paths in args.system for path in paths)
    cli.check_outputs([args.output_addr], [*args.inputs_addr, *named])
    datasets = read_datasets(args.inputs_addr)
    sides = read_sides(args.system, datasets)
    boards, notes = read_scores_into(sides, datasets)
    notes += posts_notes(sides, datasets)
    page = report_page.make_page(sides, datasets, boards, notes)
    prepare_derived([args.output_addr], SCRIPT, args.overwrite)
    publish_derived({Path(args.output_addr): page.encode()}, SCRIPT, args)
    held = f"{count_noun(len(datasets.questions), 'question')}, {count_noun(len(sides), 'system')}"
    print(f"{args.output_addr}: {held}, {len(page) / 1e6:.1f} MB")
    return 0


# Reading


def read_datasets(paths: list[str]) -> Datasets:
    """Read datasets of one task; a question may be in several, ranked differently."""
    files = {path: read_dataset(path, lambda task: ["profile", *task.gold_plan_needs]) for path in paths}
    task = task_of(", ".join(paths), (record for records in files.values() for record in records))
    datasets = Datasets(task)
    for path, records in files.items():
        profiles = datasets.profiles.setdefault(file_hash(path), {})
        for record in records:
            profiles[record["id"]] = record.pop("profile")
            shown = [name for name in task.scored_fields if record.get(name) not in (None, "")]
            options = task.options.needs if has_options(task, record) else ()
            task.check(record, f"{path}: id {quote(record['id'])}", [*shown, *options])
            earlier = datasets.questions.setdefault(record["id"], record)
            contents = [(question["question"], rubric(task, question)) for question in (earlier, record)]
            if contents[0] != contents[1]:
                raise UserError(f"{path}: id {quote(record['id'])} is a different question in another --inputs_addr")
    return datasets


def read_sides(arguments: list[list[str]], datasets: Datasets) -> list[Side]:
    """Read responses and plans from lists `[name, file, ...]`; `read_scores_into` reads the scores of all systems."""
    sides: dict[str, Side] = {}
    for name, paths in files_by_name(arguments).items():
        kinds = {path: kind_of(path) for path in paths}
        if "responses" not in kinds.values():
            raise UserError(f"--system {name!r}: needs a name, then its files, at least one of them with responses")
        side = sides[name] = Side(name, [path for path in paths if kinds[path] == "scores"])
        for path in side.scores:
            refuse_scores_of_others(path, [path for path in paths if kinds[path] == "responses"])
        plans = {}
        for path in (path for path in paths if kinds[path] != "scores"):
            is_plans = kinds[path] == "plans"
            content = read_plans(path) if is_plans else read_responses(path, datasets.task)
            check_known(content, datasets, path)
            if not is_plans:
                refuse_other_questions(path, content, datasets.questions.values())
            add_new(side.plans if is_plans else side.responses, content, path)
            plans |= {path: content} if is_plans else {}
            if not is_plans and not is_table(path):  # a CSV file does not name its dataset
                side.turns |= read_turns(path)
                side.inputs |= dict.fromkeys(content, settings_of(path).get("inputs", ""))
        answers = " and ".join(path for path in paths if kinds[path] == "responses")
        for path, content in plans.items():
            refuse_plans_of_others(path, content, side.responses, answers)
    return list(sides.values())


def kind_of(path: str) -> str:
    """Return a file's kind: "responses", "scores" or "plans"."""
    if is_table(path):
        return "responses"
    content = read_json(path)
    if isinstance(content, dict) and "per_question_scores" in content:
        return "scores"
    if is_lamps_own(content):
        return "responses"
    samples = next(iter(content.values()), None) if isinstance(content, dict) else None
    first = samples[0] if isinstance(samples, list) and samples else None
    for key, kind in (("output", "responses"), ("aspects", "plans")):
        if isinstance(first, dict) and key in first:
            return kind
    raise UserError(f"{path}: has neither responses nor scores nor plans")


def check_known(ids: Iterable[str], datasets: Datasets, path: str) -> None:
    if foreign := [question_id for question_id in ids if question_id not in datasets.questions]:
        verb = "is" if len(foreign) == 1 else "are"
        found = f"{count_noun(len(foreign), 'id')} {verb} not in any --inputs_addr"
        raise UserError(f"{path}: {found}: {first_five(foreign)}")


def read_scores_into(sides: list[Side], datasets: Datasets) -> tuple[list[Board], list[str]]:
    """Add the score files' verdicts to the sides; return the boards for utils/make_table.py's table, and notes."""
    arguments = [[side.name, *side.scores] for side in sides if side.scores]
    if not arguments:
        return [], []
    boards = read_boards(arguments, allow_partial=True)
    systems = [system for board in boards for system in board.systems]
    for system in systems:
        check_scores(system, datasets)
        [side] = (side for side in sides if side.name == system.name)
        side.verdicts[system.metric_name] = {entry["id"]: entry for entry in system.entries}
    judged = any(board.metric.judge for board in boards)
    panels = [system for system in systems if PANEL in [settings_of(path).get("script") for path in system.files]]
    return boards, [*notes_on(boards), *([wording_note(systems)] if judged else []), *map(panel_note, panels)]


def panel_note(system: System) -> str:
    """Return a note on the questions on which a panel's judges differ most (utils/panel_scores.py)."""
    divided = ", ".join(f"{key} ({width:.2f})" for key, width in most_divided(system.entries))
    return f"{system.name}: the judges' scores differ most on {divided or 'no question'}."


def check_scores(system: System, datasets: Datasets) -> None:
    """Raise UserError if a system's scores belong to another task, or to other questions or aspects."""
    where = ", ".join(system.files)
    if system.task.name != datasets.task.name:
        raise UserError(f"{where}: has scores of {system.task.name}, but the datasets are of {datasets.task.name}")
    check_known((entry["id"] for entry in system.entries), datasets, where)
    for entry in system.entries:
        titles = [title for title, *_ in rubric(system.task, datasets.questions[entry["id"]])]
        if not is_whole(entry) and [detail["aspect"] for detail in entry["details"]] != titles:
            judged = f"{where}: question {quote(entry['id'])}"
            raise UserError(
                f"{judged} was judged by different aspects than --inputs_addr has; pass the dataset it was judged with"
            )


def posts_notes(sides: list[Side], datasets: Datasets) -> Iterator[str]:
    """Yield notes on answers without a plan, and on answers whose posts are not shown."""
    for side in sides:
        if side.plans and (without_plan := len(side.responses.keys() - side.plans.keys())):
            yield f"{side.name}: its files have no plan for {count_noun(without_plan, 'question')} that it answers."
        used = (key for key, answers in side.responses.items() if answers[0].get("num_contexts_used"))
        if missing := sum(profile_of(side, question_id, datasets) is None for question_id in used):
            yield (
                f"{side.name}: the posts used in {count_noun(missing, 'answer')} are not shown, because the "
                "responses have no manifest, or the manifest names a dataset that is not in --inputs_addr."
            )


if __name__ == "__main__":
    cli.run_script(main)
