"""Make control responses: with a known rank, to test a judge; or chosen by the options' form, to test a dataset.

  python utils/make_controls.py --inputs_addr test.json --response_addr rag.json --output_dir controls
  python utils/make_controls.py --inputs_addr PersonaMem_32k.json --output_dir controls

For a benchmark with a judge, it writes six response files, made from a dataset and one system's responses. Judge them
like any system's:

  question.json      only the question, repeated
  other_answer.json  the system's answer to another question, drawn with --seed
  half.json          the first half of the system's answer, by characters
  ceiling.json       the asker's wishes, as the judge sees them, in place of an answer
  orders.json        a text that tells the judge to give the highest score
  mention.json       the system's answer after a sentence that names one of the asker's posts, drawn with --seed

docs/trusting_the_judge.md says which scores to expect.

For a multiple-choice benchmark, it writes three files of answers, made from the dataset alone (docs/personamem.md):

  longest.json       the longest option, by characters; of equal ones, the first in the record's order
  shortest.json      the shortest option, in the same way
  first.json         the first option
"""

import argparse
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun
from utils.base.made import ALL_BUT_SCRIPT, Made, add_overwrite_argument, publish_together
from utils.base.manifest import describe_run, file_hash
from utils.benchmarks import task_of
from utils.benchmarks.checks import Record
from utils.benchmarks.metric import Controls
from utils.benchmarks.task import Options
from utils.data.datasets import read_questions
from utils.data.responses import (
    CONTROLS_SCRIPT,
    Responses,
    answers_to,
    are_answered,
    collect_responses,
    match_responses,
    read_responses,
)

MENTIONED = 12  # words to quote from the first line of a post
SENTENCE_END = re.compile(r"[.!?]['\"”’)\]*_]*(?=\s)|[。！？]|\n")


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="the dataset")
    add("--response_addr", metavar="FILE",
        help="responses of one system (required if the benchmark has a judge; refused for multiple choice)")
    add("--output_dir", required=True, metavar="DIR", help="folder for the files")
    add("--seed", type=cli.non_negative_int, default=0,
        help="seed for drawing other questions' answers, and posts (%(default)s)")
    # fmt: on
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    records = read_questions(
        args.inputs_addr,
        lambda task: [
            *((*task.controls.needs, "profile") if task.controls else ()),
            *(task.options.needs if task.options else ()),
        ],
    )
    task = task_of(args.inputs_addr, records)
    # The same settings as of a model's answers, without the prompt.
    settings = {"script": CONTROLS_SCRIPT, "inputs": file_hash(args.inputs_addr)}
    if task.options is not None:
        if flags := [f"--{name}" for name in ("response_addr", "seed") if name in args.given]:
            raise UserError(f"{', '.join(flags)}: no effect for {task.name}; remove {' and '.join(flags)}")
        controls = choose_options(records, task.options)
    elif task.controls is None:
        problem = "has no controls: no text that its judge must score highest, and no options"
        raise UserError(f"{args.inputs_addr}: {task.name} {problem}")
    elif args.response_addr is None:
        raise UserError(f"--response_addr: required for {task.name}, whose controls are made from a system's responses")
    else:
        responses = read_responses(args.response_addr)
        ids = [record["id"] for record in records]
        questions = match_responses(records, responses, args.response_addr, ids, allow_partial=True)
        answers = {question["id"]: answers_to([responses], question["id"])[0] for question in questions}
        answers = {key: answer if all(are_answered([answer])) else None for key, answer in answers.items()}
        controls = make_controls(questions, answers, task.controls, args.seed, args.response_addr)
        settings |= {"responses": file_hash(args.response_addr), "seed": args.seed}
    files = {Path(args.output_dir) / f"{name}.json": responses for name, responses in controls.items()}
    cli.check_outputs(list(map(str, files)), list(filter(None, [args.inputs_addr, args.response_addr])))
    contents = {Made(path, settings, args.overwrite, ALL_BUT_SCRIPT): responses for path, responses in files.items()}
    publish_together(contents, describe_run(vars(args), {}, None))
    for path, responses in files.items():
        print(f"{path}: {describe(responses)}")
    return 0


def choose_options(records: list[Record], options: Options) -> dict[str, Responses]:
    """Return, by file name, the answers chosen by the options' length or order; of equal ones, the first."""
    chosen: dict[str, dict[tuple[str, int], dict[str, Any]]] = {"longest": {}, "shortest": {}, "first": {}}
    for record in records:
        longest, shortest = options.of_length(record, max), options.of_length(record, min)
        for name, (answer, *tied) in zip(chosen, (longest, shortest, [*options.texts(record)][:1]), strict=True):
            chosen[name][record["id"], 0] = {"value": answer} | ({"tied_with": tied} if tied else {})
    return {name: collect_responses(records, answers) for name, answers in chosen.items()}


def make_controls(
    questions: list[Record], answers: dict[str, str | None], controls: Controls, seed: int, response_addr: str
) -> dict[str, Responses]:
    """Return the control responses by file name; `answers` has the system's by question, None if missing."""
    answered = [question_id for question_id, answer in answers.items() if answer is not None]
    if len(answered) < 2:
        raise UserError(
            f"{response_addr}: answers {count_noun(len(answered), 'question')}; swapping answers needs at least two"
        )
    answer_of = draw_others(answered, seed)
    missing = {"output": None, "reason": "the system has no answer"}
    mentions = {question["id"]: mention(question, answers[question["id"]], seed) for question in questions}
    controls_by_name = {
        "question": {question["id"]: {"output": question["question"]} for question in questions},
        "other_answer": {
            question_id: {"output": answers[answer_of[question_id]], "answer_to": answer_of[question_id]}
            for question_id in answered
        },
        "half": {question_id: halve(answers[question_id]) for question_id in answered},
        "ceiling": {question["id"]: {"output": controls.ceiling(question)} for question in questions},
        "orders": {question["id"]: {"output": controls.order} for question in questions},
        "mention": {question_id: mentions[question_id] for question_id in answered},
    }
    return {
        name: {question["id"]: [outputs.get(question["id"], missing)] for question in questions}
        for name, outputs in controls_by_name.items()
    }


def draw_others(ids: list[str], seed: int) -> dict[str, str]:
    """Draw another id for each id, each once: the ids are shuffled into a ring, and each gets its predecessor."""
    ring = random.Random(seed).sample(ids, len(ids))
    return {question_id: ring[place - 1] for place, question_id in enumerate(ring)}


def mention(question: Record, answer: str | None, seed: int) -> dict[str, str | None]:
    """Return an answer that begins with a sentence about one of the asker's posts, so it only seems personal."""
    posts = [words for post in question["profile"] if (words := post["text"].split("\n")[0].split())]
    if not posts:
        return {"output": None, "reason": "the asker has no posts"}
    title = " ".join(random.Random(f"{seed} {question['id']}").choice(posts)[:MENTIONED])
    return {"output": f"I remember that you once wrote about “{title}”. {answer}"}


def halve(answer: str) -> dict[str, str]:
    """Return the first half of an answer, and whether it was cut after a sentence, a word or a character."""
    answer = answer.strip()
    half = max(1, len(answer) // 2)
    ends = [end for match in SENTENCE_END.finditer(answer) if half / 2 <= (end := match.end()) <= half]
    if ends:
        return {"output": answer[: ends[-1]].rstrip(), "cut_at": "sentence"}
    if words := re.match(r"(.*\S)\s", answer[: half + 1], re.DOTALL):
        return {"output": words[1], "cut_at": "word"}
    return {"output": answer[:half], "cut_at": "character"}  # for example in a script without spaces


def describe(responses: Responses) -> str:
    outputs = [output for [output] in responses.values()]
    cuts = Counter(output["cut_at"] for output in outputs if "cut_at" in output)
    missing = sum(output["output"] is None for output in outputs)
    tied = sum("tied_with" in output for output in outputs)
    parts = [
        count_noun(len(outputs) - missing, "answer"),
        *(f"{count} cut at a {name}" for name, count in cuts.items()),
    ]
    parts += [f"{tied} chosen as the first of several options of the same length"] if tied else []
    return ", ".join([*parts, *([f"{missing} without one"] if missing else [])])


if __name__ == "__main__":
    cli.run_script(main)
