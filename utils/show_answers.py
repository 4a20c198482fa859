"""Print some answers, with the verdict on each aspect if scores are given, and with the calls of a traced run.

python utils/show_answers.py --inputs_addr test.json --response_addr rag.json
python utils/show_answers.py --inputs_addr test.json --response_addr rag.json --score_addr rag_scores.json --worst
python utils/show_answers.py --inputs_addr test.json --response_addr rag.json --ids 101 102
"""

import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, first_five, printable, quote
from utils.benchmarks import task_of
from utils.benchmarks.lampqa.aspects import in_words
from utils.data.datasets import read_dataset
from utils.data.responses import read_responses, refuse_other_questions
from utils.data.scores import Entry, metric_behind, read_scores, refuse_scores_of_others
from utils.runs.trace import read_turns

WIDTH = 100  # characters per line


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="dataset the questions are from")
    add("--response_addr", required=True, metavar="FILE", help="responses of one system")
    add("--score_addr", metavar="FILE",
        help="scores of these responses by evaluate_responses.py (default: show no scores)")
    add("--ids", nargs="+", metavar="ID", help="questions to print, by id (default: the first --num_questions)")
    add("--worst", action="store_true",
        help="begin with the worst score, of equal ones with the first in the file; unscored answers come last (off: "
        "the file's order)")
    add("--num_questions", type=cli.positive_int, default=3,
        help="number of questions to print, from the first (%(default)s)")
    # fmt: on
    parser.without_effect("--worst", lambda args: args.score_addr is None, "without --score_addr", "add --score_addr")
    parser.without_effect("--worst", lambda args: args.ids, "with --ids, which are printed in the given order")
    parser.without_effect("--num_questions", lambda args: args.ids, "with --ids, which are all printed")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    records = read_dataset(args.inputs_addr)
    questions = {record["id"]: record["question"] for record in records}
    responses = read_responses(args.response_addr, task_of(args.inputs_addr, records))
    refuse_other_questions(args.response_addr, responses, records)
    entries = dict.fromkeys(responses) if args.score_addr is None else read_entries(args)
    source = args.score_addr or args.response_addr
    if unknown := [question_id for question_id in args.ids or () if question_id not in entries]:
        raise UserError(f"--ids: not in {source}: {first_five(unknown)}")
    shown = args.ids or list(entries)[: args.num_questions]
    for question_id in shown:
        if question_id not in questions or question_id not in responses:
            raise UserError(f"{source}: id {quote(question_id)} is missing from the dataset or the responses")
    turns = read_turns(args.response_addr)
    for question_id in shown:
        print(describe_answer(questions, question_id, responses[question_id][0]["output"], entries[question_id]))
        if question_id in turns:
            print(textwrap.indent(printable(turns[question_id]), "    ") + "\n")
    return 0


def read_entries(args: cli.Arguments) -> dict[str, Entry]:
    """Return the scored questions by id; with --worst the worst ones first."""
    refuse_scores_of_others(args.score_addr, [args.response_addr])
    scores = read_scores(args.score_addr)
    sign = -1 if metric_behind(scores).lower_is_better else 1

    def place(entry: Entry) -> tuple[bool, float]:
        return entry["score"] is None, sign * (entry["score"] or 0)

    entries = scores["per_question_scores"]
    return {entry["id"]: entry for entry in (sorted(entries, key=place) if args.worst else entries)}


def describe_answer(questions: dict[str, str], question_id: str, answer: str | None, entry: Entry | None) -> str:
    """Return a question with its answer, wrapped at `WIDTH` characters, and its score and verdicts if it has any."""
    lines = [f"{printable(questions[question_id])}  [{printable(question_id)}]", ""]
    for paragraph in printable(answer or "(no answer)").splitlines():
        lines += textwrap.wrap(paragraph, WIDTH, initial_indent="  | ", subsequent_indent="  | ") or ["  |"]
    if entry is not None:
        score = "unscored" if entry["score"] is None else f"{entry['score']:.2f}"
        lines += ["", f"  score {score}{'' if entry['answered'] else ' (no answer)'}"]
        for detail in entry["details"]:
            if "aspect" in detail:
                lines.append(f"    {in_words(detail['score']):<14} {printable(detail['aspect'])}")
            elif (part := detail.get("criterion") or detail.get("claim")) is not None:  # of BESPOKE
                lines.append(f"    {'-' if detail['score'] is None else detail['score']:<14} {printable(part)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    cli.run_script(main)
