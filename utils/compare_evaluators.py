"""Measure how well strategies and judges agree with humans and with each other (paper, section 5.2, figure 4).

  python utils/compare_evaluators.py --human_addr preferences.json --output_addr evaluators.json \\
      --evaluator "Aspects, 32B" planpers_scores.json rag_scores.json \\
      --evaluator "Direct, 32B" planpers_direct.json rag_direct.json \\
      --evaluator "Pairwise, 32B" planpers_rag_pairs.json

An evaluator is a name and the score files that evaluate_responses.py wrote for two systems, or its one pairwise file.
If each category has its own files, repeat --evaluator with the same name for each category. First and second must be
the same systems for all evaluators and for the humans. The humans' file is the output of utils/human_evaluation.py
--collect, or an object with one choice per question, or with a list of the raters' choices:

  {"question id": "first", "another id": ["tie", "second"], "a third": ["second", "second"]}

The humans' outcome on a question is the choice of more than half of the raters, else a tie. The tables go to stdout.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import argparse
import json
import os
from collections import Counter
from itertools import chain
from typing import Any

from utils import cli
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.derived_files import add_output_arguments, prepare_derived, publish_derived
from utils.files.manifest import settings_of
from utils.parsing.plans import one_line
from utils.records.scores import Scores, read_scores, strategy_in_words
from utils.scoring.pairwise import SYSTEMS
from utils.tables import agreement
from utils.tables.agreement import Evaluator, Human
from utils.tables.formats import NOT_COMPARED, Cell, Table, counted, interval_text, number, p_text, signed, to_markdown
from utils.tables.notes import judge_notes
from utils.tables.significance import differences
from utils.tables.system_scores import (
    add_unscored_argument,
    check_same_content,
    check_same_judge,
    refuse_other_benchmarks,
)

SCRIPT = "utils/compare_evaluators.py"
RESULTS = {"win": 1, "tie": 0, "loss": -1}  # preference by the first system's pairwise result
PAPER_KAPPA = 0.726  # between the paper's two raters (section 5.2)


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--evaluator", nargs="+", action="append", required=True, metavar=("NAME", "FILE"),
        help="a row: its name, then the score files of the first and the second system, or one pairwise score file; "
        "repeat for more rows; files with the same name are pooled")
    add("--human_addr", metavar="FILE",
        help="human choices: first, second or tie (default: compare only the evaluators with each other)")
    # fmt: on
    add_unscored_argument(parser)
    add_output_arguments(parser, "JSON file for all figures")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    outputs = [] if args.output_addr is None else [args.output_addr]
    cli.check_outputs(outputs, check_files(args))
    evaluators = read_evaluators(args.evaluator, args.unscored_as_zero)
    human = None if args.human_addr is None else agreement.read_human(args.human_addr)
    check_systems(evaluators, human)
    prepare_derived(outputs, SCRIPT, args.overwrite)

    figures = agreement.all_figures(evaluators, human)
    tables = [human_table(figures["human"], figures["evaluators"])] if human else []
    tables += [pairs_table(figures["pairs"])] if figures["pairs"] else []
    tables[0].notes.extend(judge_notes(path for evaluator in evaluators for path in chain(*evaluator.files)))
    print(to_markdown(tables), end="")
    if outputs:
        text = json.dumps(figures, ensure_ascii=False, indent=2) + "\n"
        publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    return 0


# Reading


def check_files(args: argparse.Namespace) -> list[str]:
    """Return all input files; UserError if an evaluator has none or is alone, or a file is given twice."""
    inputs = [] if args.human_addr is None else [args.human_addr]
    for name, *paths in args.evaluator:
        if not paths:
            raise UserError(f"--evaluator {quote(name)}: no score file; give a name, then one or two files")
        inputs += paths
    counts = Counter(map(os.path.realpath, inputs))
    if twice := [path for path in inputs if counts[os.path.realpath(path)] > 1]:
        raise UserError(f"{twice[-1]}: is given twice; give each file once")
    if args.human_addr is None and len({one_line(name) for name, *_ in args.evaluator}) < 2:
        raise UserError("--evaluator: a single evaluator has nothing to compare with; add another one, or --human_addr")
    return inputs


def read_evaluators(arguments: list[list[str]], unscored_as_zero: bool) -> list[Evaluator]:
    """Read the evaluators of lists `[name, file, ...]`, in the order in which their names first appear."""
    evaluators: dict[str, Evaluator] = {}
    read: dict[str, Scores] = {}
    for name, *paths in arguments:
        files = {path: read_scores(path, pairs=True, unscored_as_zero=unscored_as_zero) for path in paths}
        strategy = strategy_in_words(files[paths[0]])
        evaluator = evaluators.setdefault(one_line(name), Evaluator(one_line(name), strategy))
        check_strategies(evaluator, files)
        add_questions(evaluator, files)
        check_same_content((entry, [path]) for path, its in files.items() for entry in its["per_question_scores"])
        evaluator.files.append(paths)
        read |= files
    refuse_other_benchmarks(read, "task")
    for evaluator in evaluators.values():
        check_same_judge({path: read[path] for path in chain(*evaluator.files)})
    return list(evaluators.values())


def check_strategies(evaluator: Evaluator, files: dict[str, Scores]) -> None:
    """Raise UserError unless there is one pairwise file, or two files of another strategy: the evaluator's."""
    strategies = dict.fromkeys([evaluator.strategy, *map(strategy_in_words, files.values())])
    if len(strategies) > 1 or len(files) != (1 if evaluator.strategy == "pairwise" else 2):
        raise UserError(
            f"--evaluator {quote(evaluator.name)}: found {' and '.join(files)} of strategy {' and '.join(strategies)}, "
            "expected one pairwise file, or two files of the same strategy (first system, second system)\n"
            "  use one name per strategy, and repeat --evaluator with that name for more files, such as categories"
        )


def add_questions(evaluator: Evaluator, files: dict[str, Scores]) -> None:
    """Add preferences and scores from a pairwise file or two systems' files; UserError for a repeated question."""
    systems = [{entry["id"]: entry for entry in scores["per_question_scores"]} for scores in files.values()]
    for path, scores in files.items():
        ids = [*evaluator.preferences, *(entry["id"] for entry in scores["per_question_scores"])]
        if twice := [question_id for question_id, count in Counter(ids).items() if count > 1]:
            where = f"{path}: question {quote(twice[0])} is repeated in the files of --evaluator"
            raise UserError(f"{where} {quote(evaluator.name)}; a question may be in only one of them")
    for question_id in set().union(*systems):
        entries = [system.get(question_id, {}) for system in systems]
        if evaluator.strategy == "pairwise":
            preference = RESULTS.get(entries[0]["result"])
            evaluator.not_asked |= set() if entries[0]["details"] else {question_id}
        else:
            scores = [entry["score"] for entry in entries if entry.get("score") is not None]
            preference = differences([scores])[0] if len(scores) == 2 else None
            evaluator.scores += scores
        evaluator.preferences[question_id] = preference


def check_systems(evaluators: list[Evaluator], human: Human | None) -> None:
    """Raise UserError if evaluators and humans judged other systems, or in another order, according to manifests."""
    seen = {digest: place for place, its in enumerate(human.responses if human else ()) for digest in its}
    place_of = {digest: (place, human.path) for digest, place in seen.items()}
    for evaluator in evaluators:
        if human and human.choices.keys().isdisjoint(evaluator.preferences):
            both = f"no question in common with --evaluator {quote(evaluator.name)} ({', '.join(evaluator.files[0])})"
            raise UserError(f"{human.path}: has {both}\n  give the human choices for the questions in these files")
        known = filter(None, map(judged_responses, evaluator.files))
        for place, its in enumerate(zip(*known, strict=True)):
            # The humans' file lacks the responses of categories that they were not asked about.
            if seen and not any(digest in seen for _, digest in its):
                raise UserError(
                    f"{its[0][0]}: scores other answers than those in {human.path}\n"
                    "  give the scores of the response files that the humans compared"
                )
            for path, digest in its:
                known_place, known_path = place_of.setdefault(digest, (place, path))
                if place != known_place:
                    raise UserError(
                        f"{path}: its {SYSTEMS[place]} system is the {SYSTEMS[known_place]} system in "
                        f"{known_path}\n  give the systems in the same order for all evaluators and in the human file"
                    )


def judged_responses(paths: list[str]) -> list[tuple[str, str]]:
    """Return both systems' (score file, hash of the judged responses); empty if unknown."""
    found = []
    for path in paths:
        responses = settings_of(path).get("responses")
        found += [(path, digest) for digest in (responses if isinstance(responses, list) else [responses])]
    is_known = len(found) == len(SYSTEMS) and all(isinstance(digest, str) for _, digest in found)
    return found if is_known else []


# The tables


def human_table(human: dict[str, Any], rows: list[dict[str, Any]]) -> Table:
    columns = ["Evaluator", "Strategy", "Questions", "Left out", "Accuracy", "95% interval", "Decided by humans"]
    columns += ["Decided, ties half right", "Decided, ties wrong", "Kappa", "Spearman", "Mean score", "Swap rate"]
    lines = []
    for row in rows:
        texts = [row["name"], row["strategy"], str(row["num_questions"]), str(row["not_in_files"] + row["unscored"])]
        texts += [number(row["accuracy"]), interval_text(row["accuracy_interval"], number)]
        texts += [str(row["num_human_decided"]), number(row["accuracy_ties_half"]), number(row["accuracy_ties_wrong"])]
        texts += [signed(row["kappa"]), signed(row["spearman"])]
        texts += [number(row["mean_score"]), number(row["position_swap_rate"])]
        lines.append(list(map(Cell, texts)))
    notes = [
        "Accuracy: share of the questions where evaluator and humans agree on the outcome: first, second or tie. An "
        "evaluator's tie is equal scores or, in pairwise, a preference that flips with the order. Interval: Wilson.",
        "Decided by humans: questions whose outcome is not a tie for humans. The next two columns have the accuracy on "
        "these, with an evaluator's ties counted as half right or as wrong.",
        "Accuracy is compared with the paper's (section 5.2: aspect 0.73, direct 0.58), since its raters could choose "
        "a tie (appendix B). The paper does not say how it counts ties.",
        "Kappa: Cohen's, over the three outcomes. Spearman: between score difference (pairwise: 1, 0, -1) and human "
        "choice. Mean score: over all scores in the files, per question, not macro.",
        *[f"{NOT_COMPARED} The next table shows which of two evaluators is right more often."] * (len(rows) > 1),
        describe_humans(human),
        agreement.describe_sign_test(human, "first", "second"),
        *filter(None, map(describe_left_out, rows)),
    ]
    return Table(columns, lines, notes, num_names=2)


def pairs_table(rows: list[dict[str, Any]]) -> Table:
    columns = ["Evaluator", "Evaluator", "Questions", "Scored by one only", "Agreement", "Kappa", "Spearman"]
    notes = ["Agreement: share of the questions where both have the same outcome: first, second or tie."]
    if has_humans := "first_right" in rows[0]:
        columns += ["First alone right", "Second alone right", "Sign test p"]
        notes.append("Right: the same outcome as the humans. The sign test is exact, two-sided and uncorrected.")
    lines = []
    for row in rows:
        texts = [*row["evaluators"], str(row["num_questions"]), str(row["num_one_only"])]
        texts += [number(row["agreement"]), signed(row["kappa"]), signed(row["spearman"])]
        if has_humans:
            texts += [str(row["first_right"]), str(row["second_right"]), p_text(row["sign_test_p"])]
        lines.append(list(map(Cell, texts)))
    return Table(columns, lines, notes, num_names=2)


def describe_humans(human: dict[str, Any]) -> str:
    named, most = len(human["raters"]), human["num_raters"]
    raters = counted(max(named, most), "rater")
    if named > most:
        raters += f", at most {most} per question"
    elif human["num_rated_by_all"] < human["num_questions"]:
        raters += f" for {human['num_rated_by_all']} of {human['num_questions']} questions, fewer for the others"
    text = f"Humans, {raters}: first {human['first']}, second {human['second']}, tie {human['tie']}"
    if most > 1:
        text += f"; {human['no_majority']} of the ties because there is no majority"
        if named > most:
            text += ". Raters differ by question: utils/human_evaluation.py --collect has the agreement of each pair"
        elif most == 2:
            whom = "two raters" if named else "first and the second choice"
            text += f". Cohen's kappa of the {whom}: {signed(human['kappa'])} (the paper's two raters: {PAPER_KAPPA})"
    return f"{text}."


def describe_left_out(row: dict[str, Any]) -> str | None:
    missing = "result" if row["strategy"] == "pairwise" else "score of both systems"
    counts = {
        "rated but not in its files": row["not_in_files"],
        f"rated but without a {missing}": row["unscored"],
        "scored but not rated": row["not_rated"],
    }
    parts = [f"{count} {reason}" for reason, count in counts.items() if count]
    return f"{row['name']}: questions left out: {', '.join(parts)}." if parts else None


if __name__ == "__main__":
    cli.run_script(main)
