"""Compare a planner's plans with the gold aspects: precision, recall and F1 of the titles, a row a category.

  python utils/evaluate_plans.py --inputs_addr test.json --plans_addr planpers.json.plans.json
  python utils/evaluate_plans.py --inputs_addr test.json --plans_addr planpers.json.plans.json \\
      --embedding_model none --output_addr plan_scores.json

Recall is the share of a question's gold aspects that match a planned one, precision the share of planned aspects that
match a gold one, each under up to three rules for when two titles match. A question without a plan counts 0.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import first_five, quote
from utils.cli.progress import Progress, announce
from utils.files.derived_files import add_output_arguments, prepare_derived, publish_derived
from utils.files.manifest import file_hash
from utils.models.hub import check_model, model_fingerprint
from utils.parsing.plans import WORDS_THRESHOLD, coverage, one_line, same_title, share_words
from utils.records.datasets import read_dataset
from utils.records.responses import read_plans
from utils.scoring.means import mean
from utils.tables.formats import Cell, Table, number, to_markdown

SCRIPT = "utils/evaluate_plans.py"
MEASURES = {"precision": "P", "recall": "R", "f1": "F1"}

Rule = Callable[[str, str], bool]


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="dataset with the gold aspects")
    add("--plans_addr", required=True, metavar="FILE", help="plans, the <output>.plans.json of planpers.py")
    add("--allow_partial", action="store_true", help="evaluate only the questions that have a plan")
    add_output_arguments(parser, "where the figures of every question go, as JSON")
    add("--words_threshold", type=cli.fraction, default=WORDS_THRESHOLD,
        help="Dice coefficient of their words from which two titles match (%(default)s)")
    cli.add_log_argument(parser)
    add = parser.add_argument_group("encoder").add_argument
    add("--embedding_model", default="facebook/contriever-msmarco", metavar="MODEL",
        help="BERT-like encoder, by hub name or folder; none leaves the embedding rule out (%(default)s)")
    add("--embedding_threshold", type=cli.fraction, default=0.8,
        help="cosine of their embeddings from which two titles match (%(default)s)")
    add("--cache_dir", help="where hub models are kept (default: Hugging Face's own cache)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: a GPU if any (%(default)s)")
    idle = "--embedding_threshold --cache_dir --device"
    parser.without_effect(idle, lambda args: args.embedding_model == "none", "with --embedding_model none")
    return parser
    # fmt: on


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.set_up_logging(args.log_level)
    outputs = [] if args.output_addr is None else [args.output_addr]
    cli.check_outputs(outputs, [args.inputs_addr, args.plans_addr])
    records = read_dataset(args.inputs_addr, needs=["gold_plan"])
    task = task_of(args.inputs_addr, records)
    if task.gold_plan is None:
        raise UserError(f"{args.inputs_addr}: {task.name} has no gold plans to compare with")
    plans = read_plans(args.plans_addr)
    missing = [record["id"] for record in records if record["id"] not in plans]
    check_missing(missing, len(records), args)
    planned = [record for record in records if record["id"] in plans]
    questions = [read_question(record, plans, task, args) for record in planned if task.gold_plan(record)]
    if not questions:
        needs = " and ".join(task.gold_plan_needs)
        raise UserError(f"{args.inputs_addr}: no question with a plan has {needs} to compare it with")
    if args.embedding_model != "none":
        check_model(args.embedding_model, args.cache_dir)
    prepare_derived(outputs, SCRIPT, args.overwrite)
    if any(len(plans[record["id"]]) > 1 for record in planned):
        print(f"note: {args.plans_addr}: only the first plan of each question is evaluated", file=sys.stderr)

    rules = make_rules(questions, args)
    for question in questions:
        titles = question["gold"], question["planned"]
        question["scores"] = {name: question_scores(*titles, rule) for name, rule in rules.items()}
    means = means_by_group(questions, task)
    left_out = {
        "without gold aspects": [record["id"] for record in planned if not task.gold_plan(record)],
        "not in the file of plans": missing,
    }
    print(describe_rules(args), to_markdown([make_table(means, left_out, task)]), sep="\n", end="")
    if outputs:
        everything = {"settings": settings(args), "means": means, "left_out": left_out, "per_question": questions}
        text = json.dumps(everything, ensure_ascii=False, indent=2) + "\n"
        publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    return 0


# Reading


def check_missing(missing: list[str], num_questions: int, args: argparse.Namespace) -> None:
    """Raise UserError where no question stands in the file of plans, or not every one without --allow_partial."""
    if len(missing) == num_questions:
        raise UserError(
            f"{args.plans_addr}: holds no plan for any question of {args.inputs_addr}\n"
            "  give the dataset these plans were made for"
        )
    if missing and not args.allow_partial:
        raise UserError(
            f"{args.plans_addr}: only a part of the questions has a plan; --allow_partial evaluates that part\n"
            f"  {len(missing)} of {num_questions} questions without a plan: {first_five(missing)}"
        )


def read_question(record: Record, plans: dict[str, Any], task: Task, args: argparse.Namespace) -> dict[str, Any]:
    """What is compared: two lists of titles; UserError where the question's group is not known."""
    place = task.place(record)
    group_word, _, subgroup_word = task.group_words
    if place["group"] is None:
        raise UserError(
            f"{args.inputs_addr}: id {quote(record['id'])}: no {group_word} is known for the {subgroup_word} "
            f"{quote(place.get('subgroup'))}\n"
            f"  add it to the {group_word} it belongs to in {task.facts}"
        )
    return {
        "id": record["id"],
        group_word: place["group"],
        "gold": list(map(one_line, task.gold_plan(record))),
        "planned": [one_line(title) for title in plans[record["id"]][0]["aspects"] or []],
    }


# When two titles match


def make_rules(questions: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Rule]:
    """The rules by name, in the table's order; the embedding rule needs the encoder and embeds all titles here."""
    rules: dict[str, Rule] = {"exact": same_title, "words": partial(share_words, threshold=args.words_threshold)}
    if args.embedding_model != "none":
        titles = [title for question in questions for title in question["gold"] + question["planned"]]
        rules["embedding"] = embedding_rule(list(dict.fromkeys(titles)), args)
    return rules


def embedding_rule(titles: Sequence[str], args: argparse.Namespace) -> Rule:
    """Whether two of `titles`, which are distinct, have embeddings of a cosine of at least --embedding_threshold."""
    import numpy as np

    from retrieval.encoder import embed_texts, load_encoder

    announce(f"loading {args.embedding_model} (this may take a minute)")
    encoder = load_encoder(args.embedding_model, args.cache_dir, args.device)
    with closing(Progress(len(titles), "titles")) as progress:
        embeddings, _ = embed_texts(encoder, titles, progress=progress)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    embedding_of = dict(zip(titles, embeddings, strict=True))

    def matches(a: str, b: str) -> bool:
        # Rounding may leave a title's cosine with itself just below 1.
        return a == b or bool(embedding_of[a] @ embedding_of[b] >= args.embedding_threshold)

    return matches


# Figures


def question_scores(gold: Sequence[str], planned: Sequence[str], matches: Rule) -> dict[str, float]:
    """Precision, recall and F1 (their harmonic mean) of one plan, each 0 to 1; all 0 for an empty one."""
    precision = coverage(planned, gold, matches)
    recall = coverage(gold, planned, matches)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def means_by_group(questions: list[dict[str, Any]], task: Task) -> dict[str, dict[str, Any]]:
    """A row for each group that occurs, in the task's order, and one for "All": see `mean_scores`."""
    chosen = {group: [one for one in questions if one[task.group_words[0]] == group] for group in task.groups}
    return {group: mean_scores(its) for group, its in {**chosen, "All": questions}.items() if its}


def mean_scores(questions: list[dict[str, Any]]) -> dict[str, Any]:
    """Two counts, and for each rule the means over the questions, each with "planned" and "scores" by rule."""
    scores = {
        rule: {measure: mean([question["scores"][rule][measure] for question in questions]) for measure in MEASURES}
        for rule in questions[0]["scores"]
    }
    without_a_plan = sum(not question["planned"] for question in questions)
    return {"questions": len(questions), "without_a_plan": without_a_plan, "scores": scores}


# What is written


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What decides the figures."""
    found = {"inputs_sha256": file_hash(args.inputs_addr), "plans_sha256": file_hash(args.plans_addr)}
    found["words_threshold"] = args.words_threshold
    if args.embedding_model != "none":
        found["embedding_model"] = model_fingerprint(args.embedding_model, args.cache_dir)
        found["embedding_threshold"] = args.embedding_threshold
    return found


def describe_rules(args: argparse.Namespace) -> str:
    text = "Two titles match by these rules: exact: the same words, whatever their case and what stands between them; "
    text += f"words: Dice coefficient of their words at least {args.words_threshold}"
    if args.embedding_model != "none":
        text += f"; embedding: cosine by {args.embedding_model} at least {args.embedding_threshold}"
    return f"{text}.\n"


def make_table(means: dict[str, dict[str, Any]], left_out: dict[str, list[str]], task: Task) -> Table:
    rules = means["All"]["scores"]
    figures = [f"{rule.capitalize()} {short}" for rule in rules for short in MEASURES.values()]
    rows = []
    for group, row in means.items():
        scores = [number(score) for its_scores in row["scores"].values() for score in its_scores.values()]
        rows.append(list(map(Cell, [group, *scores, str(row["questions"]), str(row["without_a_plan"])])))
    notes = [f"Left out, {reason}: {len(ids)} ({first_five(ids)})." for reason, ids in left_out.items() if ids]
    return Table([task.group_words[0].capitalize(), *figures, "Questions", "Without a plan"], rows, notes)


if __name__ == "__main__":
    cli.run_script(main)
