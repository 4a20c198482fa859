"""Make one HTML file to read: table and figures, and every question with its answers, verdicts, plans and posts.

  python utils/report.py --inputs_addr test_ranked.json --output_addr report.html \\
      --system RAG rag.json rag_scores.json \\
      --system PlanPers planpers.json planpers_scores.json planpers.json.plans.json

A system's files are told apart by what they hold: responses, which it needs, and where there are any its scores and
its plans, each in as many files as there are categories. The file opens in a browser from disk and asks no network.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python sees utils/ only

import argparse
import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from utils import cli
from utils.cli import UserError
from utils.cli.errors import first_five, quote
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.files.json_files import read_json
from utils.files.manifest import file_hash, manifest_of
from utils.make_table import judge_notes, make_notes, make_row, means_table
from utils.parsing.plans import one_line
from utils.records.datasets import read_dataset
from utils.records.responses import match_responses, read_plans, read_responses
from utils.show_answers import VERDICTS
from utils.tables.formats import counted
from utils.tables.report_figures import category_of, heat_map, score_panels
from utils.tables.system_scores import System, check_judged_alike, read_systems
from utils.tables.wordings import wording_note

SCRIPT = "utils/report.py"
TEMPLATE = Path(__file__).with_name("tables") / "report_template.html"
Record = dict[str, Any]


@dataclass
class Datasets:
    """Questions by id, and their profiles by the hash of the file they are from: each ranks them in its own way."""

    questions: dict[str, Record] = field(default_factory=dict)
    profiles: dict[str, dict[str, list[Record]]] = field(default_factory=dict)


@dataclass
class Side:
    """What the report shows of one system, by question id.

    Attributes:
        inputs: hash of the dataset file a question was answered from; absent where that is not known.
        verdicts: entries of the score files, None for a system that has none.
    """

    name: str
    responses: dict[str, list[Record]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, Record] | None = None
    plans: dict[str, list[Record]] = field(default_factory=dict)


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        "--inputs_addr",
        nargs="+",
        required=True,
        metavar="FILE",
        help="datasets the systems answered from; ranked ones where the posts they used are to be shown",
    )
    parser.add_argument(
        "--system",
        nargs="+",
        action="append",
        required=True,
        metavar=("NAME", "FILE"),
        help="a column: its name, then its files of responses, scores and plans; give it once a system",
    )
    parser.add_argument("--output_addr", required=True, metavar="FILE", help="where the report goes")
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.check_outputs([args.output_addr], [*args.inputs_addr, *(path for _, *paths in args.system for path in paths)])
    files = sort_files(args.system)
    datasets = read_datasets(args.inputs_addr)
    sides = [read_side(name, kinds, datasets.questions) for name, kinds in files.items()]
    systems, notes = read_scores_into(sides, files, datasets.questions)
    notes += posts_notes(sides, datasets)
    page = make_page(make_index(sides, datasets.questions, systems, notes), make_texts(sides, datasets))
    prepare_derived([args.output_addr], SCRIPT, args.overwrite)
    publish_derived({Path(args.output_addr): page.encode()}, SCRIPT, args)
    held = f"{counted(len(datasets.questions), 'question')}, {counted(len(sides), 'system')}"
    print(f"{args.output_addr}: {held}, {len(page) / 1e6:.1f} MB")
    return 0


# What is read


def sort_files(arguments: list[list[str]]) -> dict[str, dict[str, list[str]]]:
    """{name of a system: {"responses", "scores" or "plans": its files}} of every `[name, file, ...]`."""
    systems: dict[str, dict[str, list[str]]] = {}
    for name, *paths in arguments:
        if one_line(name) in systems:
            raise UserError(f"--system {name!r} is given twice; put all its files behind one --system")
        kinds: dict[str, list[str]] = {"responses": [], "scores": [], "plans": []}
        for path in paths:
            kinds[kind_of(path)].append(path)
        if not kinds["responses"]:
            raise UserError(f"--system {name!r}: no file of responses; give a name, then its files")
        systems[one_line(name)] = kinds
    return systems


def kind_of(path: str) -> str:
    """What a file holds: "responses", "scores" or "plans"."""
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
    """Read the datasets; a question may stand in several, ranked in different ways.

    Raises:
        UserError: two files have the same id for different questions.
    """
    datasets = Datasets()
    for path in paths:
        profiles = datasets.profiles.setdefault(file_hash(path), {})
        for record in read_dataset(path, needs=["profile", "rubric_aspects"]):
            profiles[record["id"]] = record.pop("profile")
            known = datasets.questions.setdefault(record["id"], record)
            if any(known[key] != record[key] for key in ("question", "rubric_aspects")):
                raise UserError(f"{path}: id {quote(record['id'])} is another question in another --inputs_addr")
    return datasets


def read_side(name: str, kinds: dict[str, list[str]], questions: dict[str, Record]) -> Side:
    """Responses and plans of a system."""
    side = Side(name)
    for path in kinds["responses"]:
        responses = read_responses(path)
        match_responses(list(questions.values()), responses, path, questions, allow_partial=True)
        add_new(side.responses, responses, path)
        manifest = manifest_of(path)
        if manifest is not None:
            side.inputs |= dict.fromkeys(responses, manifest["fingerprint"].get("inputs"))
    for path in kinds["plans"]:
        plans = read_plans(path)
        check_known(plans, questions, path)
        add_new(side.plans, plans, path)
    return side


def add_new(whole: Record, part: Record, path: str) -> None:
    """Add a file's questions to a system's; UserError where one stands in two files."""
    if twice := whole.keys() & part.keys():
        raise UserError(f"{path}: another file of this system has {first_five(sorted(twice))} too")
    whole.update(part)


def check_known(ids: Any, questions: dict[str, Record], path: str) -> None:
    if foreign := [question_id for question_id in ids if question_id not in questions]:
        verb = "is" if len(foreign) == 1 else "are"
        raise UserError(f"{path}: {counted(len(foreign), 'id')} {verb} in no --inputs_addr: {first_five(foreign)}")


def read_scores_into(
    sides: list[Side], files: dict[str, dict[str, list[str]]], questions: dict[str, Record]
) -> tuple[list[System], list[str]]:
    """Read the score files, as utils/make_table.py does, into the sides; the systems that have any, and notes on them.

    Raises:
        UserError: as `read_systems` and `check_judged_alike`, or scores of other aspects than the dataset's.
    """
    arguments = [[name, *kinds["scores"]] for name, kinds in files.items() if kinds["scores"]]
    if not arguments:
        return [], []
    systems = read_systems(arguments, unscored_as_zero=False)
    notes = [*make_notes(systems, False), *judge_notes(check_judged_alike(systems)), wording_note(systems)]
    by_name = {side.name: side for side in sides}
    for system in systems:
        where = ", ".join(system.paths)
        check_known((entry["id"] for entry in system.all_questions()), questions, where)
        for entry in system.all_questions():
            asked = [aspect["aspect"] for aspect in questions[entry["id"]]["rubric_aspects"]]
            if not has_level(entry) and [detail["aspect"] for detail in entry["details"]] != asked:
                raise UserError(
                    f"{where}: question {quote(entry['id'])} was judged by other aspects than its dataset's"
                )
        by_name[system.name].verdicts = {entry["id"]: entry for entry in system.all_questions()}
    return systems, notes


def has_level(entry: Record) -> bool:
    """Whether a question was judged as a whole (direct scoring), not aspect by aspect."""
    return any("aspect" not in detail for detail in entry["details"])


def posts_notes(sides: list[Side], datasets: Datasets) -> Iterator[str]:
    """Of which systems the posts they used cannot be shown."""
    for side in sides:
        missing = [
            question_id
            for question_id, answers in side.responses.items()
            if answers[0].get("num_contexts_used") and posts_used(side, question_id, datasets) is None
        ]
        if missing:
            yield (
                f"{side.name}: the posts used in {counted(len(missing), 'answer')} are not shown; by the manifest "
                "beside its responses, or for want of one, they are from no --inputs_addr."
            )


def posts_used(side: Side, question_id: str, datasets: Datasets) -> list[str] | None:
    """The posts that stood in the prompt, best first; None where it is not known which they were."""
    number = side.responses[question_id][0].get("num_contexts_used") or 0
    profile = datasets.profiles.get(side.inputs.get(question_id, ""), {}).get(question_id)
    if number and profile is None:
        return None
    return [post["text"] for post in (profile or [])[:number]]


# What is shown


def make_index(
    sides: list[Side], questions: dict[str, Record], systems: list[System], notes: list[str]
) -> dict[str, Any]:
    """What the first page and the list of questions need; the texts come apart, to be parsed when they are looked at.

    The table and the panels hold the systems with scores, by their place in `sides`: "judged".
    """
    entries = [index_entry(sides, record) for record in questions.values()]
    names = [side.name for side in sides]
    return {
        "systems": names,
        "judged": [names.index(system.name) for system in systems],
        "verdicts": VERDICTS,
        "table": table_of(systems) if systems else None,
        "panels": score_panels(systems) if systems else [],
        "communities": heat_map(entries),
        "notes": notes,
        "questions": entries,
    }


def table_of(systems: list[System]) -> Record:
    """The table of utils/make_table.py, without what needs a baseline."""
    table = means_table([make_row(system) for system in systems], [], None, [])
    rows = [[{"text": cell.text, "bold": cell.bold} for cell in row] for row in table.rows]
    return {"columns": table.columns, "rows": rows}


def index_entry(sides: list[Side], record: Record) -> Record:
    """A question with each system's score (None where it has none) and what failed."""
    community = as_text(record.get("category")) or "unknown"
    return {
        "id": record["id"],
        "question": record["question"],
        "community": community,
        "category": category_of(community),
        "scores": [(side.verdicts or {}).get(record["id"], {}).get("score") for side in sides],
        "failures": [failures(side, record["id"]) for side in sides],
    }


def failures(side: Side, question_id: str) -> list[str]:
    """Any of "no answer" and "unscored": an aspect without a verdict, or the whole question in a system with scores.

    The first is the system's failure and may have a score, 0; the second is the judge's.
    """
    found = []
    if question_id not in side.responses or not (side.responses[question_id][0]["output"] or "").strip():
        found.append("no answer")
    if side.verdicts is not None:
        entry = side.verdicts.get(question_id)
        if entry is None or any(detail["score"] is None for detail in entry["details"]):
            found.append("unscored")
    return found


def make_texts(sides: list[Side], datasets: Datasets) -> Iterator[Record]:
    """All texts of each question, in the order of the index."""
    for question_id, record in datasets.questions.items():
        posts: dict[str, int] = {}  # the place of each text: systems share most of them
        answers = [describe_answer(side, question_id, datasets, posts) for side in sides]
        yield {
            "narrative": as_text(record.get("narrative")),
            "aspects": [
                [aspect[key] for key in ("aspect", "evidence", "reason")] for aspect in record["rubric_aspects"]
            ],
            "posts": list(posts),
            "answers": answers,
        }


def describe_answer(side: Side, question_id: str, datasets: Datasets, posts: dict[str, int]) -> Record | None:
    """The judged answer of a system with its plan and verdicts; adds to `posts` those it used. None without one."""
    if question_id not in side.responses:
        return None
    answer, *others = side.responses[question_id]
    used = posts_used(side, question_id, datasets)
    plan = side.plans.get(question_id, [{}])[0]
    titles = plan["aspects"] if plan else (as_text(answer.get("plan")) or "").splitlines()
    entry = (side.verdicts or {}).get(question_id, {"details": []})
    return {
        "output": answer["output"],
        "raw": None if answer["output"] else as_text(answer.get("raw")),  # else it says the same once more
        "answered": entry.get("answered", True),
        "level": has_level(entry),
        "notes": answer_notes(answer, len(others)),
        "plan": titles or [],
        "plan_raw": as_text(plan.get("raw")),
        "posts": None if used is None else [posts.setdefault(text, len(posts)) for text in used],
        "verdicts": [
            [detail["score"], as_text(detail.get("raw")), as_text(detail.get("reason"))] for detail in entry["details"]
        ],
    }


def answer_notes(answer: Record, num_others: int) -> list[str]:
    notes = []
    if answer.get("reason"):
        notes.append(f"reason: {as_text(answer['reason'])}")
    if answer.get("no_plan"):
        notes.append(f"answered without a plan: {as_text(answer['no_plan'])}")
    if answer.get("truncated"):
        notes.append("cut at --max_tokens")
    if answer.get("parsed") == "repaired":
        notes.append("read from damaged JSON")
    if answer.get("num_contexts_dropped"):
        notes.append(f"{as_text(answer['num_contexts_dropped'])} posts left out for length")
    if num_others:
        notes.append(f"the first of {num_others + 1} answers")
    return notes


def as_text(value: Any) -> str | None:
    """A field that may hold anything, for others' files do."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


# The page


def make_page(index: Record, texts: Iterator[Record]) -> str:
    """The template with its data, and the policy that lets its own style and script run and nothing else."""
    page = TEMPLATE.read_text(encoding="utf-8")
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1] for tag in ("style", "script"))
    policy = (
        f"default-src 'none'; style-src '{source_hash(style)}'; script-src '{source_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = page.replace("{{policy}}", policy)
    head, rest = page.split("{{index}}")
    middle, end = rest.split("{{texts}}")
    blocks = (f'<script type="application/json" id="text-{i}">{to_json(text)}</script>' for i, text in enumerate(texts))
    return f"{head}{to_json(index)}{middle}" + "\n".join(blocks) + end


def source_hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def to_json(value: Any) -> str:
    """JSON that no HTML parser sees a tag, an end of a script or a comment in: pure ASCII without < > &.

    Escaped, half a surrogate pair or a null byte is ASCII too.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


if __name__ == "__main__":
    cli.run_script(main)
