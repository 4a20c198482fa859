"""Print some answers with the verdict on each aspect, and with their calls and searches if the run was traced.

python utils/show_answers.py --inputs_addr test.json --response_addr rag.json --score_addr rag_scores.json
"""

import argparse
import sys
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks import task_of
from utils.cli.errors import UserError, printable, quote
from utils.records.datasets import read_dataset
from utils.records.responses import read_responses, refuse_other_questions
from utils.records.scores import read_scores, refuse_scores_of_others
from utils.runs.trace import read_turns
from utils.scoring.aspects import in_words

WIDTH = 100  # characters per line


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="dataset the questions are from")
    add("--response_addr", required=True, metavar="FILE", help="responses of one system")
    add("--score_addr", required=True, metavar="FILE", help="scores of these responses by evaluate_responses.py")
    add(
        "--num_questions",
        type=cli.positive_int,
        default=3,
        help="number of questions to print, from the first (%(default)s)",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    records = read_dataset(args.inputs_addr)
    questions = {record["id"]: record["question"] for record in records}
    responses = read_responses(args.response_addr, task_of(args.inputs_addr, records))
    refuse_other_questions(args.response_addr, responses, records)
    refuse_scores_of_others(args.score_addr, [args.response_addr])
    entries = read_scores(args.score_addr)["per_question_scores"][: args.num_questions]
    for entry in entries:
        if entry["id"] not in questions or entry["id"] not in responses:
            raise UserError(f"{args.score_addr}: id {quote(entry['id'])} is missing from the dataset or the responses")
    turns = read_turns(args.response_addr)
    for entry in entries:
        print(describe_answer(questions[entry["id"]], responses[entry["id"]][0]["output"], entry))
        if entry["id"] in turns:
            print(textwrap.indent(printable(turns[entry["id"]]), "    ") + "\n")
    return 0


def describe_answer(question: str, answer: str | None, entry: dict[str, Any]) -> str:
    """Return a question with its answer, score and verdicts on aspects, the answer wrapped at `WIDTH` characters."""
    lines = [f"{printable(question)}  [{printable(entry['id'])}]", ""]
    for paragraph in printable(answer or "(no answer)").splitlines():
        lines += textwrap.wrap(paragraph, WIDTH, initial_indent="  | ", subsequent_indent="  | ") or ["  |"]
    score = "unscored" if entry["score"] is None else f"{entry['score']:.2f}"
    lines += ["", f"  score {score}{'' if entry['answered'] else ' (no answer)'}"]
    for detail in entry["details"]:
        if "aspect" in detail:
            lines.append(f"    {in_words(detail['score']):<14} {printable(detail['aspect'])}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    cli.run_script(main)
