"""Ask people: make an HTML page on which raters compare answers or rate aspects, and collect their result files.

  python utils/human_evaluation.py --ask pairs --inputs_addr test.json --output_addr study.html --raters Ann Bo \\
      --system PlanPers planpers.json --system RAG rag.json
  python utils/human_evaluation.py --collect ratings_ann.json ratings_bo.json --key_addr study_key.json \\
      --output_addr preferences.json

Every rater gets the same page, chooses their name there, and sends back the result file that the page saves. Only the
key, study_key.json beside study.html, says which system wrote each answer. Keep the key private; --collect needs it.

--ask pairs: which of two systems' answers is better, for utils/compare_evaluators.py. --ask verdicts: how well one
system's answers cover each aspect (0, 1 or 2, like the judge's verdicts). --ask aspects: how valid and important each
aspect is, how well its evidence fits, and how complete the aspects are together (1 to 5).

See docs/asking_people.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import argparse
import json
from typing import Any

from utils.base import cli
from utils.base.errors import UserError, count_noun
from utils.base.made import add_output_arguments, prepare_derived, publish_derived
from utils.base.manifest import file_hash
from utils.benchmarks import task_of
from utils.benchmarks.checks import Record
from utils.benchmarks.readers import one_line
from utils.benchmarks.task import Task
from utils.data.datasets import read_dataset, refuse_shared_ids
from utils.data.responses import match_responses, read_responses
from utils.people import rater_tables, raters, rating_study
from utils.people.rating_study import NUM_SYSTEMS
from utils.show.pages import add_new, fill_template, rubric, rubric_parts, to_json, unseen_texts
from utils.tables.formats import to_markdown
from utils.tables.system_scores import files_by_name

SCRIPT = "utils/human_evaluation.py"
# The script's name in manifests of results. It differs from the pages' name, so that neither replaces the other.
COLLECTING = f"{SCRIPT} --collect"
TEMPLATE = Path(rating_study.__file__).with_name("rating_template.html")
SHOWN = ["question", "details", "aspects"]
NEEDS = {"pairs": "answers of both systems", "verdicts": "an answer and aspects", "aspects": "aspects"}


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    # fmt: off
    add_output_arguments(parser, "page for raters; with --collect, file for their results (default: only print tables)")
    add = parser.add_argument_group("make a study").add_argument
    add("--ask", choices=list(NUM_SYSTEMS), default="pairs", help="what raters decide (%(default)s)")
    add("--inputs_addr", nargs="+", metavar="FILE", help="datasets to draw questions from")
    add("--system", nargs="+", action="append", metavar=("NAME", "FILE"),
        help="a system: its name, then its response files; two systems for pairs, one with a single file for verdicts")
    add("--show", choices=SHOWN, default="details",
        help="pairs: what raters see: only the question, also the details that the scorer sees, or these and the "
        "aspects too (%(default)s)")
    add("--draw", type=cli.positive_int, default=100, metavar="N",
        help="number of questions to draw, in proportion to each category's size (%(default)s)")
    add("--raters", nargs="+", metavar="NAME", help="names of the raters (default: rater_1 and rater_2)")
    add("--overlap", type=cli.non_negative_int, metavar="N",
        help="number of questions for all raters; each of the others is for one rater (default: all questions)")
    add("--seed", type=cli.non_negative_int, default=0, help="sampling seed (%(default)s)")
    add = parser.add_argument_group("collect results").add_argument
    add("--collect", nargs="+", metavar="FILE", help="raters' result files, one or more per rater")
    add("--key_addr", metavar="FILE", help="the key that was written beside the page, *_key.json")
    add("--score_addr", metavar="FILE",
        help="verdicts: the responses' score file, to compare its judge with the raters (default: none)")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    args = args.replaced(system=args.system or [])
    needed = ["key_addr"] if args.collect else ["inputs_addr", "output_addr"]
    if missing := [f"--{name}" for name in needed if vars(args)[name] is None]:
        purpose = "to collect results" if args.collect else "to make a study"
        raise UserError(f"{', '.join(missing)}: required {purpose}; see --help")
    if args.collect:
        collect(args)
    else:
        make(args)
    return 0


# Make


def make(args: argparse.Namespace) -> None:
    page_addr = Path(args.output_addr)
    key_addr = page_addr.with_name(f"{page_addr.stem}_key.json")
    inputs = [*args.inputs_addr, *(path for _, *paths in args.system for path in paths)]
    cli.check_outputs([args.output_addr, str(key_addr)], inputs)
    names = list(map(one_line, args.raters or ["rater_1", "rater_2"]))
    if "" in names or len(set(names)) < len(names):
        raise UserError(f"--raters {' '.join(map(repr, names))}: each rater needs a unique name")
    files_of = files_by_name(args.system)
    if len(files_of) != NUM_SYSTEMS[args.ask]:
        raise UserError(f"--ask {args.ask}: needs {NUM_SYSTEMS[args.ask] or 'no'} --system, got {len(files_of)}")
    if args.ask == "verdicts" and len(next(iter(files_of.values()))) > 1:
        raise UserError("--ask verdicts: takes only one response file; make one study per file")
    task, records = read_records(args.inputs_addr)
    if args.ask != "pairs" and not rubric_parts(task):
        raise UserError(f"--ask {args.ask}: the questions of {task.name} have no aspects; use --ask pairs")
    systems = [read_system(paths, records) for paths in files_of.values()]
    rateable = [i for i, record in records.items() if args.ask == "pairs" or rubric(task, record)]
    places = {i: task.group_of(records[i]) for i in rateable if all(i in answers for answers in systems)}
    groups = {i: place["group"] or place.get("subgroup") for i, place in places.items()}
    if not groups:
        raise UserError(f"{', '.join(inputs)}: no question has {NEEDS[args.ask]}")
    drawn = rating_study.draw(groups, args.draw, args.seed)
    overlap = len(drawn) if args.overlap is None else args.overlap
    if overlap > len(drawn):
        raise UserError(f"--overlap {overlap}: the study has only {count_noun(len(drawn), 'question')}")
    swapped = rating_study.draw_swapped(drawn, groups, args.seed) if args.ask == "pairs" else set()
    answers = {i: [system[i] for system in (systems[::-1] if i in swapped else systems)] for i in drawn}
    questions = [describe(args, task, records[i], answers[i]) for i in drawn]
    shares = rating_study.share_out(drawn, names, overlap, args.seed)
    has_post_detail = rubric_parts(task) is not None and args.show != "question"
    content = rating_study.make_content(args.ask, questions, shares, has_post_detail)
    systems_noted = [{"name": name, "responses": list(map(file_hash, paths))} for name, paths in files_of.items()]
    publish(args, page_addr, key_addr, content, rating_study.make_key(content, systems_noted, groups, swapped))
    counts = {"without aspects": len(records) - len(rateable), "without an answer": len(rateable) - len(groups)}
    print(f"{page_addr}: {len(drawn)} of {count_noun(len(groups), 'question')}, {overlap} of them for all raters")
    if left_out := ", ".join(f"{count} {why}" for why, count in counts.items() if count):
        print(f"  left out: {left_out}")
    print(f"{key_addr}: keep this file private; --collect needs it")


def publish(
    args: argparse.Namespace, page_addr: Path, key_addr: Path, content: dict[str, Any], key: dict[str, Any]
) -> None:
    prepare_derived([page_addr, key_addr], SCRIPT, args.overwrite)
    if key_addr.exists() and not args.overwrite and raters.read_key(str(key_addr))["study"] != key["study"]:
        raise UserError(
            f"{key_addr}: is the key of another study, whose results are useless without it\n"
            "  choose another --output_addr, or add --overwrite if nobody has rated yet"
        )
    page = fill_template(TEMPLATE, {}).replace("{{study}}", to_json(content))
    text = json.dumps(key, ensure_ascii=False, indent=2) + "\n"
    publish_derived({page_addr: page.encode(), key_addr: text.encode()}, SCRIPT, args)
    key_addr.chmod(0o600)  # raters may share this machine


def read_records(paths: list[str]) -> tuple[Task, dict[str, Record]]:
    """Return the datasets' common task, and all questions by id."""
    read = {path: read_dataset(path, lambda task: task.first_metric.needs) for path in paths}
    files = {path: {record["id"]: record for record in records} for path, records in read.items()}
    refuse_shared_ids(files)
    records = {question_id: record for file_records in files.values() for question_id, record in file_records.items()}
    return task_of(", ".join(paths), records.values()), records


def read_system(paths: list[str], records: dict[str, Record]) -> dict[str, str]:
    """Return a system's answers by question id, without missing and empty ones."""
    answers: dict[str, str] = {}
    for path in paths:
        responses = read_responses(path)
        match_responses(list(records.values()), responses, path, records, allow_partial=True)
        add_new(answers, {question_id: outputs[0]["output"] or "" for question_id, outputs in responses.items()}, path)
    return {question_id: answer for question_id, answer in answers.items() if answer.strip()}


def describe(args: argparse.Namespace, task: Task, record: Record, answers: list[str]) -> dict[str, Any]:
    """Return a question in the form that the page needs."""
    shown = SHOWN.index(args.show) if args.ask == "pairs" else len(SHOWN)
    return {
        "id": record["id"],
        "question": record["question"],
        "details": unseen_texts(task, record) if shown >= SHOWN.index("details") else {},
        "aspects": rubric(task, record) if shown >= SHOWN.index("aspects") else [],
        "answers": answers,
    }


# Collect


def collect(args: argparse.Namespace) -> None:
    outputs = [] if args.output_addr is None else [args.output_addr]
    cli.check_outputs(outputs, [*args.collect, args.key_addr, *filter(None, [args.score_addr])])
    results = raters.read_results(args.collect, raters.read_key(args.key_addr))
    tables, content = rater_tables.all_tables(results), raters.collected(results)
    if args.score_addr is not None:
        pairs = raters.judge_pairs(results, raters.read_judge(args.score_addr, results))
        tables += rater_tables.judge_tables(results, pairs)
        content["with_judge"] = pairs
    prepare_derived(outputs, COLLECTING, args.overwrite)
    print(to_markdown(tables), end="")
    if outputs:
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
        publish_derived({Path(args.output_addr): text.encode()}, COLLECTING, args)


if __name__ == "__main__":
    cli.run_script(main)
