"""Make one HTML file to read: table and figures, and every question with its answers, verdicts, plans and posts.

  python utils/report.py --inputs_addr test_ranked.json --output_addr report.html \\
      --system RAG rag.json rag_scores.json \\
      --system PlanPers planpers.json planpers_scores.json planpers.json.plans.json

A system's files are told apart by what they hold: responses, which it needs, and where there are any its scores and
its plans, each in any number of files. The report opens in a browser from disk and asks no network.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python sees utils/ only

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from utils import cli
from utils.benchmarks import task_of, tasks
from utils.cli import UserError
from utils.cli.errors import first_five, quote
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.files.json_files import read_json
from utils.files.manifest import file_hash, settings_of
from utils.parsing.plans import one_line
from utils.records.datasets import read_dataset
from utils.records.responses import TABLE, read_plans, read_responses
from utils.tables import pages, report_page
from utils.tables.formats import counted
from utils.tables.notes import notes_on, wording_note
from utils.tables.pages import rubric
from utils.tables.report_texts import Datasets, Side, has_options, is_whole, profile_of
from utils.tables.system_scores import Board, System, read_boards

SCRIPT = "utils/report.py"


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", nargs="+", required=True, metavar="FILE",
        help="datasets the systems answered from; ranked ones where the posts they used are to be shown")
    add("--system", nargs="+", action="append", required=True, metavar=("NAME", "FILE"),
        help="a column: its name, then its files of responses, scores and plans; give it once a system")
    add("--output_addr", required=True, metavar="FILE", help="where the report goes")
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
    held = f"{counted(len(datasets.questions), 'question')}, {counted(len(sides), 'system')}"
    print(f"{args.output_addr}: {held}, {len(page) / 1e6:.1f} MB")
    return 0


# What is read


def read_sides(arguments: list[list[str]], datasets: Datasets) -> list[Side]:
    """Read the responses and plans of every `[name, file, ...]`; the scores, which a table needs at once, wait."""
    sides: dict[str, Side] = {}
    for name, *paths in arguments:
        if one_line(name) in sides:
            raise UserError(f"--system {name!r} is given twice; put all its files behind one --system")
        kinds = {path: kind_of(path) for path in paths}
        if "responses" not in kinds.values():
            raise UserError(f"--system {name!r}: no file of responses; give a name, then its files")
        side = sides[one_line(name)] = Side(one_line(name), [path for path in paths if kinds[path] == "scores"])
        for path in paths:
            if kinds[path] == "plans":
                add_new(side.plans, as_keys(path, read_plans(path), side, datasets), path, datasets)
            elif kinds[path] == "responses":
                responses = as_keys(path, read_responses(path, datasets.tasks[0]), side, datasets)
                add_new(side.responses, responses, path, datasets)
                if Path(path).suffix != TABLE:  # a table doesn't say what its prompts held
                    side.inputs |= dict.fromkeys(responses, settings_of(path).get("inputs", ""))
    return list(sides.values())


def kind_of(path: str) -> str:
    """Tell what a file holds: "responses", "scores" or "plans"."""
    if Path(path).suffix == TABLE:
        return "responses"
    content = read_json(path)
    if isinstance(content, dict) and "per_question_scores" in content:
        return "scores"
    samples = next(iter(content.values()), None) if isinstance(content, dict) else None
    first = samples[0] if isinstance(samples, list) and samples else None
    for key, kind in (("output", "responses"), ("aspects", "plans")):
        if isinstance(first, dict) and key in first:
            return kind
    raise UserError(f"{path}: holds neither responses nor scores nor plans")


def read_datasets(paths: list[str]) -> Datasets:
    """Read the datasets; a question may stand in several, ranked in different ways."""
    files = {path: read_dataset(path, needs=["profile", "gold_plan"]) for path in paths}
    found = [task_of(path, records) for path, records in files.items()]
    if len({task.benchmark or task.name for task in found}) > 1:
        task_of(", ".join(paths), [records[0] for records in files.values()])  # says which two
    datasets = Datasets([task for task in tasks().values() if task in found])
    for task, (path, records) in zip(found, files.items(), strict=True):
        digest = file_hash(path)
        datasets.task_of_file[digest] = task
        profiles = datasets.profiles.setdefault(digest, {})
        for record in records:
            record["id"] = datasets.key(task, record["id"])
            profiles[record["id"]] = record.pop("profile")
            shown = [name for name in task.fields_for(task.metrics) if record.get(name) not in (None, "")]
            options = ["options"] if has_options(task, record) else []
            task.check(record, f"{path}: id {quote(record['id'])}", [*shown, *options])
            known = datasets.questions.setdefault(record["id"], record)
            asked = [(one["question"], rubric(task, one)) for one in (known, record)]
            if asked[0] != asked[1]:
                raise UserError(f"{path}: id {quote(record['id'])} is another question in another --inputs_addr")
    return datasets


def as_keys(path: str, content: dict[str, Any], side: Side, datasets: Datasets) -> dict[str, Any]:
    """Return what a file has by question id, by the questions' keys; UserError where it may be of two tasks.

    Its task is that of the dataset that it was made from, else of the scores of it, else the one that has its ids.
    """
    if len(datasets.tasks) == 1:
        return content
    digest = file_hash(path)
    scored = [task_of(one, [read_json(one)]) for one in side.scores if settings_of(one).get("responses") == digest]
    told = [datasets.task_of_file.get(settings_of(path).get("inputs", "")), *scored]
    by_ids = [one for one in datasets.tasks if any(datasets.key(one, key) in datasets.questions for key in content)]
    found = [task for task in told if task][:1] or by_ids
    if len(found) > 1:
        raise UserError(
            f"{path}: its ids are of {found[0].name} and of {found[1].name}, and nothing tells which one it answers\n"
            "  give the dataset that it was made from as --inputs_addr, with the manifest beside the file"
        )
    return {datasets.key(found[0], question_id): value for question_id, value in content.items()} if found else content


def add_new(whole: dict[str, Any], part: dict[str, Any], path: str, datasets: Datasets) -> None:
    """Add a file's questions to a system's; UserError where one stands in two files, or in no dataset."""
    check_known(part, datasets, path)
    pages.add_new(whole, part, path)


def check_known(ids: Iterable[str], datasets: Datasets, path: str) -> None:
    if foreign := [question_id for question_id in ids if question_id not in datasets.questions]:
        verb = "is" if len(foreign) == 1 else "are"
        raise UserError(f"{path}: {counted(len(foreign), 'id')} {verb} in no --inputs_addr: {first_five(foreign)}")


def read_scores_into(sides: list[Side], datasets: Datasets) -> tuple[list[Board], list[str]]:
    """Read the score files into the sides, as utils/make_table.py does: the boards of its table, and notes on them."""
    arguments = [[side.name, *side.scores] for side in sides if side.scores]
    if not arguments:
        return [], []
    boards = read_boards(arguments, allow_partial=True)
    notes = notes_on(boards)
    systems = [system for board in boards for system in board.systems]
    for system in systems:
        check_scores(system, datasets)
        [side] = (side for side in sides if side.name == system.name)
        title = system.task.scored_by(system.metric_name)
        side.verdicts = (side.verdicts or {}) | {title: {entry["id"]: entry for entry in system.entries}}
    judged = any(board.metric.judge for board in boards)
    return boards, [*notes, wording_note(systems)] if judged else notes


def check_scores(system: System, datasets: Datasets) -> None:
    """Name a system's entries as the report does; UserError where they are of other questions, or other aspects."""
    where = ", ".join(system.paths)
    if system.task not in datasets.tasks:
        names = ", ".join(task.name for task in datasets.tasks)
        raise UserError(f"{where}: scores of {system.task.name}, but the datasets are of {names}")
    for entry in system.entries:
        entry["id"] = datasets.key(system.task, entry["id"])
    check_known((entry["id"] for entry in system.entries), datasets, where)
    for entry in system.entries:
        asked = [title for title, *_ in rubric(system.task, datasets.questions[entry["id"]])]
        if not is_whole(entry) and [detail["aspect"] for detail in entry["details"]] != asked:
            one = f"{where}: question {quote(entry['id'])}"
            raise UserError(f"{one} was judged by other aspects than its dataset's")


def posts_notes(sides: list[Side], datasets: Datasets) -> Iterator[str]:
    """Say of which systems plans, or the posts that they used, cannot be shown."""
    for side in sides:
        if side.plans and (lacking := len(side.responses.keys() - side.plans.keys())):
            yield f"{side.name}: its files have no plan for {counted(lacking, 'question')} that it answers."
        used = (key for key, answers in side.responses.items() if answers[0].get("num_contexts_used"))
        if missing := sum(profile_of(side, question_id, datasets) is None for question_id in used):
            yield (
                f"{side.name}: the posts used in {counted(missing, 'answer')} are not shown; by the manifest "
                "beside its responses, or for want of one, they are from no --inputs_addr."
            )


if __name__ == "__main__":
    cli.run_script(main)
