"""Write answers in the format of a benchmark's own scorer or leaderboard.

  python utils/export_predictions.py --output_dir export \\
      --inputs_addr LaMP-3_user_test.json LaMP-4_user_test.json --response_addr lamp3.json lamp4.json

Each task gets one file; LaMP's leaderboard takes a zip of all seven. The first response to each question is exported. A
question without an answer is exported with an empty one and counted. The dataset's right answers are used only for
PersonaMem's result table, which has each question's right letter and score.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun, first_five
from utils.base.made import add_overwrite_argument, prepare_derived, publish_derived
from utils.benchmarks import task_of
from utils.benchmarks.checks import selection_of
from utils.data.datasets import read_questions
from utils.data.responses import as_read, default_metric, match_responses, read_responses

SCRIPT = "utils/export_predictions.py"


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, nargs="+", metavar="FILE", help="datasets, one per task")
    add(
        "--response_addr",
        required=True,
        nargs="+",
        metavar="FILE",
        help="response files, one per dataset, in the same order",
    )
    add("--output_dir", required=True, metavar="DIR", help="folder for the files, named after their tasks")
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.check_same_number(args, "inputs_addr", "response_addr")
    texts: dict[str, str] = {}
    lines = []
    for inputs_addr, response_addr in zip(args.inputs_addr, args.response_addr, strict=True):
        name, text, line = export(inputs_addr, response_addr)
        if name in texts:
            raise UserError(f"{inputs_addr}: has the same task as an earlier file; export each into its own folder")
        texts[name] = text
        lines.append(f"{Path(args.output_dir) / name}: {line}")
    contents = {Path(args.output_dir) / name: text.encode() for name, text in texts.items()}
    cli.check_outputs(list(map(str, contents)), [*args.inputs_addr, *args.response_addr])
    prepare_derived(contents, SCRIPT, args.overwrite)
    publish_derived(contents, SCRIPT, args)
    print("\n".join(lines))
    return 0


def export(inputs_addr: str, response_addr: str) -> tuple[str, str, str]:
    """Return the exported file's name and text, and a line with counts."""
    records = read_questions(inputs_addr, lambda task: task.files.export.needs if task.files.export else ())
    task = task_of(inputs_addr, records)
    if task.files.export is None:
        raise UserError(f"{inputs_addr}: {task.name} has no format for predictions; use the response file itself")
    responses = read_responses(response_addr, task)
    responses = as_read(responses, task.metrics[default_metric(task, [response_addr])].reads)
    ids = [record["id"] for record in records]
    match_responses(records, responses, response_addr, ids, allow_partial=True)
    if unanswered := [question_id for question_id in ids if question_id not in responses]:
        print(
            f"note: {response_addr}: no response to {len(unanswered)} of {count_noun(len(ids), 'question')}, "
            f"exported as empty: {first_five(unanswered)}",
            file=sys.stderr,
        )
    firsts = {question_id: responses.get(question_id, [{"output": None}])[0] for question_id in ids}
    firsts = {question_id: {**first, "output": first["output"] or ""} for question_id, first in firsts.items()}
    empty = sum(not first["output"].strip() for first in firsts.values())
    line = f"{count_noun(len(ids), 'answer')}, {empty} of them empty"
    if selected := sum(map(bool, map(selection_of, firsts.values()))):
        line += f", {selected} selected by their scores, so not comparable with other systems"
    return task.files.export.name, task.files.export.write(records, firsts), line


if __name__ == "__main__":
    cli.run_script(main)
