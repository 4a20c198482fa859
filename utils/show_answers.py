"""Print some answers, with the verdict on each aspect if scores are given, and with the calls of a traced run.

python utils/show_answers.py --inputs_addr test.json --response_addr rag.json
python utils/show_answers.py --inputs_addr test.json --response_addr rag.json --score_addr rag_scores.json --worst
python utils/show_answers.py --inputs_addr test.json --response_addr rag.json --ids 101 102
python utils/show_answers.py --num_questions 5 baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --rag \\
    --inputs_addr test.json --output_addr rag.json

The last form is for a command of baselines.py or planpers.py that is still running, or was stopped. It prints the
answers so far from the store, on any machine that has the command's files; it needs neither GPU nor API key.
"""

import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun, first_five, printable, quote
from utils.benchmarks import task_of
from utils.benchmarks.checks import Record
from utils.benchmarks.lampqa.aspects import in_words
from utils.data.datasets import read_dataset
from utils.data.responses import Responses, read_responses, refuse_other_questions
from utils.data.scores import Entry, metric_behind, read_scores, refuse_scores_of_others
from utils.runs.runner import make_pieces
from utils.runs.stage import models_of
from utils.runs.trace import read_turns

COMMANDS = ("baselines.py", "planpers.py")
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
    words = sys.argv[1:] if argv is None else argv
    start = next((place for place, word in enumerate(words) if word in COMMANDS), len(words))
    if start < len(words):
        show_so_far(words[:start], words[start], words[start + 1 :])
        return 0
    args = build_parser().parse_args(words)
    records = read_dataset(args.inputs_addr)
    responses = read_responses(args.response_addr, task_of(args.inputs_addr, records))
    refuse_other_questions(args.response_addr, responses, records)
    entries = dict.fromkeys(responses) if args.score_addr is None else read_entries(args)
    source = args.score_addr or args.response_addr
    show(args, records, responses, entries, source, read_turns(args.response_addr))
    return 0


def show(
    args: cli.Arguments,
    records: list[Record],
    responses: Responses,
    entries: dict[str, Any],
    source: str,
    turns: dict[str, str],
) -> None:
    """Print the answers to the questions that the flags choose; `entries` are from `source`."""
    questions = {record["id"]: record["question"] for record in records}
    if unknown := [question_id for question_id in args.ids or () if question_id not in entries]:
        raise UserError(f"--ids: not in {source}: {first_five(unknown)}")
    shown = args.ids or list(entries)[: args.num_questions]
    for question_id in shown:
        if question_id not in questions or question_id not in responses:
            raise UserError(f"{source}: id {quote(question_id)} is missing from the dataset or the responses")
    for question_id in shown:
        print(describe_answer(questions, question_id, responses[question_id][0]["output"], entries[question_id]))
        if question_id in turns:
            print(textwrap.indent(printable(turns[question_id]), "    ") + "\n")


def show_so_far(own: list[str], script: str, words: list[str]) -> None:
    """Print the answers for which the store of a command has all completions; `own` are the flags before its name.

    The command's method runs, as in a dry run: nothing is requested, locked or written.
    """
    parser = build_parser()
    if other := {word.partition("=")[0] for word in own if word.startswith("--")} - {"--ids", "--num_questions"}:
        parser.refuse(f"{', '.join(sorted(other))}: with {script}, only --ids and --num_questions can be given")
    command = import_module(script.removesuffix(".py"))
    args = command.build_parser().parse_args([*words, "--dry_run", "--cached_only"])
    pairs = zip(args.inputs_addr, args.output_addr, strict=False)
    shown = [parser.parse_args([*own, f"--inputs_addr={dataset}", f"--response_addr={to}"]) for dataset, to in pairs]
    args = cli.prepare_run(args, args.output_addr, args.inputs_addr)
    stages = command.prepare(args)
    for model in models_of(stages).values():
        model.load()
    records = {stage: [*stage.expect().values()] for stage in stages}
    make_pieces(stages, args)
    for flags, stage in zip(shown, stages[-len(shown) :], strict=True):
        [file] = stage.files
        responses = file.content()
        number = f"{len(file.pieces)} of {count_noun(len(file.keys), file.noun)}"
        print(f"{file.path}: {number} so far, in {args.completions}\n")
        show(flags, records[stage], responses, dict.fromkeys(responses), f"{file.path} so far", {})


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
