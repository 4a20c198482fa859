"""How well strategies and judges agree with human preferences, and with each other (paper section 5.2, Figure 4).

  python utils/compare_evaluators.py --human_addr preferences.json --output_addr evaluators.json \\
      --evaluator "Aspects, 32B" planpers_scores.json rag_scores.json \\
      --evaluator "Direct, 32B" planpers_direct.json rag_direct.json \\
      --evaluator "Pairwise, 32B" planpers_rag_pairs.json

An evaluator is a name and the score files that evaluate_responses.py wrote for two systems: of the strategies aspect
and direct the first system's file and the second system's, of pairwise the one file. Where there is a file a category,
give --evaluator with the same name once a category. First and second are the same systems for all evaluators and for
the humans, who have one file, with a choice a question or a list of them, a rater each, of any number:

  {"question id": "first", "another id": ["tie", "second"], "a third": ["second", "second"]}

The humans' outcome of a question is what more than half of the raters say, else a tie. The tables go to stdout.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from statistics import fmean
from typing import Any

from utils import cli
from utils.benchmarks.score_files import check_counts_unanswered, check_digest, read_scores
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.derived_files import add_overwrite_argument, prepare_derived, publish_derived
from utils.files.json_files import read_json
from utils.files.manifest import manifest_of
from utils.make_table import judge_notes
from utils.parsing.plans import one_line
from utils.scoring.verdicts import SYSTEMS, pair_result, result_by_default
from utils.tables.formats import Cell, Table, number, signed, to_markdown
from utils.tables.preferences import PREFERENCES, read_human
from utils.tables.significance import differences
from utils.tables.system_scores import (
    add_unscored_argument,
    check_same_content,
    check_same_judge,
    count_unscored_as_zero,
)

SCRIPT = "utils/compare_evaluators.py"
RESULTS = {"win": 1, "tie": 0, "loss": -1}  # a pairwise result, which is the first system's, likewise
PAPER_KAPPA = 0.726  # of the paper's two raters (section 5.2)

_ANSWERED = [[one, other] for one in (True, False) for other in (True, False)]

Pairs = Sequence[tuple[float, float]]  # two sides' preferences on the same questions


@dataclass
class Evaluator:
    """What one judge with one strategy says of two systems.

    Attributes:
        files: as they were given, the first system's and the second's, or a pairwise one alone.
        preferences: by question id the first system's score minus the second's, -1 to 1; of a pairwise comparison
            1, 0 or -1.
        unscored: ids of the questions that lack a score of one of the systems, or a pairwise result.
        not_asked: ids of the questions whose pairwise result stands without a judge, for an answer is missing.
        scores: all question scores of both systems, 0 to 1; none of a pairwise comparison.
    """

    name: str
    strategy: str
    files: list[list[str]] = field(default_factory=list)
    preferences: dict[str, float] = field(default_factory=dict)
    unscored: set[str] = field(default_factory=set)
    not_asked: set[str] = field(default_factory=set)
    scores: list[float] = field(default_factory=list)


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        "--evaluator",
        nargs="+",
        action="append",
        required=True,
        metavar=("NAME", "FILE"),
        help="a row: its name, then the first system's score file and the second's, or one pairwise score file; "
        "files behind the same name are pooled",
    )
    parser.add_argument(
        "--human_addr",
        metavar="FILE",
        help="the humans' choices, first, second or tie (default: compare the evaluators with each other only)",
    )
    add_unscored_argument(parser)
    parser.add_argument("--output_addr", metavar="FILE", help="where all figures go, as JSON")
    add_overwrite_argument(parser)
    parser.without_effect(
        "--overwrite", lambda args: args.output_addr is None, "without --output_addr", "give --output_addr"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Print the tables; returns 0. Raises UserError before anything is written."""
    args = build_parser().parse_args(argv)
    inputs = check_files(args)
    if args.output_addr is not None:
        cli.check_outputs([args.output_addr], inputs)
    evaluators = read_evaluators(args.evaluator, args.unscored_as_zero)
    unknown_judge = [path for evaluator in evaluators for path in check_same_judge(chain(*evaluator.files))]
    check_order(evaluators)
    choices = {} if args.human_addr is None else read_human(args.human_addr)
    check_enough(args, evaluators, choices)
    if args.output_addr is not None:
        prepare_derived([args.output_addr], SCRIPT, args.overwrite)

    human = {question_id: PREFERENCES[majority(its) or "tie"] for question_id, its in choices.items()}
    figures = {
        "human": human_figures(choices) if choices else None,
        "evaluators": [evaluator_figures(evaluator, human) for evaluator in evaluators],
        "pairs": [pair_figures(one, other) for one, other in combinations(evaluators, 2)],
    }
    print(to_markdown(make_tables(figures, list(judge_notes(unknown_judge)))), end="")
    if args.output_addr is not None:
        text = json.dumps(figures, ensure_ascii=False, indent=2) + "\n"
        publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    return 0


# Reading


def check_files(args: argparse.Namespace) -> list[str]:
    """All files that are read; UserError where an evaluator has none, or a file stands twice."""
    inputs = [] if args.human_addr is None else [args.human_addr]
    for name, *paths in args.evaluator:
        if not paths:
            raise UserError(f"--evaluator {quote(name)}: no score file; give a name, then one file or two")
        inputs += paths
    seen: set[str] = set()
    for path in inputs:
        if os.path.realpath(path) in seen:
            raise UserError(f"{path}: is given twice; every file stands once")
        seen.add(os.path.realpath(path))
    return inputs


def read_evaluators(arguments: list[list[str]], unscored_as_zero: bool) -> list[Evaluator]:
    """The evaluators of every `[name, file, ...]`, in the order of their names' first appearance.

    Args:
        unscored_as_zero: as in `read_systems`; a pairwise comparison without a verdict has no result all the same.

    Raises:
        UserError: a file that is not a score file or holds no questions, files that are not of one strategy or not as
            many as it takes, two files without a common question, a question that stands twice in an evaluator, or is
            not the same in both systems.
    """
    evaluators: dict[str, Evaluator] = {}
    for name, *paths in arguments:
        files = [read_score_file(path) for path in paths]
        strategies = [scores.get("strategy", "aspect") for scores in files]
        evaluator = evaluators.setdefault(one_line(name), Evaluator(one_line(name), strategies[0]))
        check_strategies(evaluator, paths, strategies)
        systems = [index_questions(path, scores) for path, scores in zip(paths, files, strict=True)]
        check_new(evaluator, paths, systems)
        check_same_content(
            (question, [path]) for path, its in zip(paths, systems, strict=True) for question in its.values()
        )
        if unscored_as_zero and evaluator.strategy != "pairwise":
            count_unscored_as_zero(question for questions in systems for question in questions.values())
        add_questions(evaluator, systems)
        evaluator.files.append(paths)
    return list(evaluators.values())


def read_score_file(path: str) -> dict[str, Any]:
    """Read a score file of any strategy, with at least one question; UserError where it is none."""
    scores = read_json(path)
    if isinstance(scores, dict) and scores.get("strategy") == "pairwise":
        check_results(path, scores)
    else:
        scores = read_scores(path)
    if not scores["per_question_scores"]:
        raise UserError(f"{path}: holds no questions; leave it out, or judge the responses again")
    return scores


def check_results(path: str, scores: dict[str, Any]) -> None:
    """Raise UserError unless every question of a pairwise score file has the result that its two orders give."""
    if not isinstance(scores.get("per_question_scores"), list):
        raise UserError(f"{path}: not a score file: it has no list 'per_question_scores'")
    for index, question in enumerate(scores["per_question_scores"]):
        if not isinstance(question, dict) or not isinstance(question.get("id"), str):
            raise UserError(f"{path}: per_question_scores, item {index}: not a scored question: it has no field 'id'")
        _check_result(question, f"{path}: question {quote(question['id'])}")
    check_counts_unanswered(path, scores)


def _check_result(question: dict[str, Any], where: str) -> None:
    check_digest(question, where)
    details, answered = question.get("details"), question.get("answered")
    if answered not in _ANSWERED:
        raise UserError(f"{where}: field 'answered' is {quote(answered)}; it must say of each system whether it did")
    if not all(answered):
        expected, source = result_by_default(answered), "missing answers give"
    elif not isinstance(details, list) or len(details) != 2 or not all(map(_is_order, details)):
        raise UserError(f"{where}: field 'details' is not the two orders of a pairwise comparison")
    else:
        expected, source = pair_result(*(detail["preferred"] for detail in details)), "two orders give"
    if "result" not in question or question["result"] != expected:
        raise UserError(f"{where}: its result is {quote(question.get('result'))}, but its {source} {quote(expected)}")


def _is_order(detail: Any) -> bool:
    return isinstance(detail, dict) and "preferred" in detail and detail["preferred"] in (*SYSTEMS, None)


def check_strategies(evaluator: Evaluator, paths: list[str], strategies: list[str]) -> None:
    """Raise UserError unless the files are of the evaluator's strategy, and as many as that takes."""
    for path, strategy in zip(paths, strategies, strict=True):
        if strategy != evaluator.strategy:
            raise UserError(
                f"{path}: its strategy is {strategy}, but --evaluator {quote(evaluator.name)} has files of "
                f"{evaluator.strategy}\n  give every strategy its own name"
            )
    if len(paths) != (1 if evaluator.strategy == "pairwise" else 2):
        taken = "one file" if evaluator.strategy == "pairwise" else "two files, the first system's and the second's"
        raise UserError(
            f"--evaluator {quote(evaluator.name)}: {len(paths)} of {evaluator.strategy} at a time, which takes "
            f"{taken}\n  for more files, such as one a category, give --evaluator with this name again"
        )


def index_questions(path: str, scores: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The questions of a score file by their ids; UserError where one stands twice."""
    questions: dict[str, dict[str, Any]] = {}
    for question in scores["per_question_scores"]:
        if question["id"] in questions:
            raise UserError(f"{path}: question {quote(question['id'])} stands twice; a question counts once")
        questions[question["id"]] = question
    return questions


def check_new(evaluator: Evaluator, paths: list[str], systems: list[dict[str, dict[str, Any]]]) -> None:
    """Raise UserError where files share no question, or have one that the evaluator has from other files."""
    if not set.intersection(*map(set, systems)):
        raise UserError(
            f"{paths[0]} and {paths[1]}: have no question in common\n  give two systems' score files of one dataset"
        )
    for path, questions in zip(paths, systems, strict=True):
        for question_id in questions:
            if question_id in evaluator.preferences or question_id in evaluator.unscored:
                raise UserError(
                    f"{path}: question {quote(question_id)} stands in an earlier file of --evaluator "
                    f"{quote(evaluator.name)} too; a question counts once"
                )


def add_questions(evaluator: Evaluator, systems: list[dict[str, dict[str, Any]]]) -> None:
    """Add what one pairwise file, or the files of two systems, say of their questions."""
    for question_id in set().union(*systems):
        questions = [system.get(question_id, {}) for system in systems]
        if evaluator.strategy == "pairwise":
            preference = RESULTS.get(questions[0]["result"])
            if not questions[0]["details"]:
                evaluator.not_asked.add(question_id)
        else:
            first, second = (question.get("score") for question in questions)
            preference = None if first is None or second is None else differences([(first, second)])[0]
            evaluator.scores += [score for score in (first, second) if score is not None]
        if preference is None:
            evaluator.unscored.add(question_id)
        else:
            evaluator.preferences[question_id] = preference


# What must fit together


def check_order(evaluators: list[Evaluator]) -> None:
    """Raise UserError where the manifests tell that one evaluator's first system is another's second."""
    place_of: dict[str, tuple[int, str]] = {}
    for paths in (paths for evaluator in evaluators for paths in evaluator.files):
        for place, (path, responses) in enumerate(judged_responses(paths)):
            known_place, known_path = place_of.setdefault(responses, (place, path))
            if place != known_place:
                raise UserError(
                    f"{path}: its {SYSTEMS[place]} system's responses are the {SYSTEMS[known_place]} system's in "
                    f"{known_path}\n  give all evaluators' files in one order, which is the order of the human file"
                )


def judged_responses(paths: list[str]) -> Iterator[tuple[str, str]]:
    """The score file, and the hash of the responses judged in it, of the first and of the second system.

    Nothing where that is not known: without a manifest, or changed since.
    """
    found = []
    for path in paths:
        manifest = manifest_of(path)
        if manifest is None:
            return
        responses = manifest["fingerprint"].get("responses")
        found += [(path, digest) for digest in (responses if isinstance(responses, list) else [responses])]
    if len(found) == len(SYSTEMS) and all(isinstance(digest, str) for _, digest in found):
        yield from found


def check_enough(args: argparse.Namespace, evaluators: list[Evaluator], choices: dict[str, list[str]]) -> None:
    """Raise UserError where there is nothing to compare, or an evaluator and the humans judged other questions."""
    if args.human_addr is None:
        if len(evaluators) < 2:
            raise UserError("--evaluator: one alone has nothing to be compared with; give another one, or --human_addr")
        return
    for evaluator in evaluators:
        if choices.keys().isdisjoint(evaluator.preferences) and choices.keys().isdisjoint(evaluator.unscored):
            raise UserError(
                f"{args.human_addr}: has no question in common with --evaluator {quote(evaluator.name)} "
                f"({', '.join(evaluator.files[0])})\n  give the choices on the questions that these files score"
            )


# Figures


def majority(choices: Sequence[str]) -> str | None:
    """What more than half of the raters choose, None where there is no such choice."""
    [(choice, count)] = Counter(choices).most_common(1)
    return choice if 2 * count > len(choices) else None


def human_figures(choices: dict[str, list[str]]) -> dict[str, Any]:
    """The humans' own figures.

    Returns:
        num_questions; num_raters: the most that a question has; num_rated_by_all: questions that have as many; the
        outcomes first, second and tie in questions, and no_majority, those of the ties that are ties for lack of a
        majority; kappa: Cohen's, of two raters over the questions that both rated, else None.
    """
    outcomes = Counter(majority(its) for its in choices.values())
    num_raters = max(map(len, choices.values()))
    rated_by_all = [its for its in choices.values() if len(its) == num_raters]
    kappa = None
    if num_raters == 2:
        kappa = cohens_kappa([(PREFERENCES[one], PREFERENCES[other]) for one, other in rated_by_all])
    return {
        "num_questions": len(choices),
        "num_raters": num_raters,
        "num_rated_by_all": len(rated_by_all),
        "first": outcomes["first"],
        "second": outcomes["second"],
        "tie": outcomes["tie"] + outcomes[None],
        "no_majority": outcomes[None],
        "kappa": kappa,
    }


def evaluator_figures(evaluator: Evaluator, human: dict[str, int]) -> dict[str, Any]:
    """An evaluator against the humans; what has no value is None.

    Args:
        human: 1, 0 or -1 by question id; may be empty.

    Returns:
        num_questions: those compared, which both judged. Left out: not_in_files and unscored of the humans' questions,
            not_rated of the evaluator's scored ones.
        accuracy: share of the questions with the same outcome (first, second, tie), and its 95% Wilson interval.
        num_human_decided: questions that the humans call no tie, and the accuracy on these with the evaluator's ties
            as half right (accuracy_ties_half) and as wrong (accuracy_ties_wrong).
        kappa, spearman: -1 to 1.
        mean_score: of all question scores in the files of both systems, 0 to 1; None of pairwise.
        position_swap_rate: share of ties among all questions that a pairwise judge decided, 0 to 1; else None.
    """
    pairs = pair_up(evaluator.preferences, human)
    decided = [(mine, theirs) for mine, theirs in pairs if theirs != 0]
    judged = [its for question_id, its in evaluator.preferences.items() if question_id not in evaluator.not_asked]
    swap_rate = judged.count(0) / len(judged) if evaluator.strategy == "pairwise" and judged else None
    return {
        "name": evaluator.name,
        "strategy": evaluator.strategy,
        "num_questions": len(pairs),
        "not_in_files": len(human.keys() - evaluator.preferences.keys() - evaluator.unscored),
        "unscored": len(human.keys() & evaluator.unscored),
        "not_rated": len(evaluator.preferences.keys() - human.keys()),
        "accuracy": agreement(pairs),
        "accuracy_interval": wilson_interval(pairs),
        "num_human_decided": len(decided),
        "accuracy_ties_half": agreement(decided, tie_credit=0.5),
        "accuracy_ties_wrong": agreement(decided),
        "kappa": cohens_kappa(pairs),
        "spearman": spearman(pairs),
        "mean_score": fmean(evaluator.scores) if evaluator.scores else None,
        "position_swap_rate": swap_rate,
    }


def pair_figures(one: Evaluator, other: Evaluator) -> dict[str, Any]:
    """Two evaluators against each other, over the questions that both have a preference on."""
    pairs = pair_up(one.preferences, other.preferences)
    return {
        "evaluators": [one.name, other.name],
        "num_questions": len(pairs),
        "num_one_only": len(one.preferences.keys() ^ other.preferences.keys()),
        "agreement": agreement(pairs),
        "kappa": cohens_kappa(pairs),
        "spearman": spearman(pairs),
    }


def pair_up(one: dict[str, float], other: dict[str, float]) -> list[tuple[float, float]]:
    """The preferences on the questions that both have, in the order of their ids."""
    return [(one[question_id], other[question_id]) for question_id in sorted(one.keys() & other.keys())]


def outcome(preference: float) -> str:
    """The system that is preferred, "first" or "second", or "tie"."""
    if preference == 0:
        return "tie"
    return "first" if preference > 0 else "second"


def agreement(pairs: Pairs, tie_credit: float = 0.0) -> float | None:
    """Share of the questions with the same outcome on both sides, 0 to 1; None without questions.

    Args:
        tie_credit: what a question counts where the first side alone says tie.
    """
    if not pairs:
        return None
    half_right = sum(mine == 0 != theirs for mine, theirs in pairs)
    return (num_agreeing(pairs) + tie_credit * half_right) / len(pairs)


def num_agreeing(pairs: Pairs) -> int:
    return sum(outcome(one) == outcome(other) for one, other in pairs)


def wilson_interval(pairs: Pairs) -> tuple[float, float] | None:
    """95% interval of the agreement (Wilson 1927), None without questions."""
    from scipy.stats import binomtest

    if not pairs:
        return None
    interval = binomtest(num_agreeing(pairs), len(pairs)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def cohens_kappa(pairs: Pairs) -> float | None:
    """Agreement on the three outcomes beyond chance, unweighted: (p_o - p_e) / (1 - p_e), at most 1 (Cohen 1960).

    Returns:
        None without questions, and where both sides say one and the same of every question (p_e = 1).
    """
    one, other = Counter(outcome(mine) for mine, _ in pairs), Counter(outcome(theirs) for _, theirs in pairs)
    by_chance = sum(one[name] * other[name] for name in one)  # times the questions' number squared
    if by_chance == len(pairs) ** 2:
        return None
    return (num_agreeing(pairs) * len(pairs) - by_chance) / (len(pairs) ** 2 - by_chance)


def spearman(pairs: Pairs) -> float | None:
    """Rank correlation of the two sides' preferences, -1 to 1; None where one side is the same everywhere."""
    from scipy.stats import spearmanr

    one, other = {mine for mine, _ in pairs}, {theirs for _, theirs in pairs}
    return float(spearmanr(pairs).statistic) if len(one) > 1 and len(other) > 1 else None


# The tables


def make_tables(figures: dict[str, Any], judges: list[str]) -> list[Table]:
    """The evaluators against the humans, if there are any, and against each other, if there are two or more.

    Args:
        judges: notes on the judges, for the first table.
    """
    if not figures["human"]:
        return [pairs_table(figures["pairs"], judges)]
    against_humans = human_table(figures["human"], figures["evaluators"], judges)
    return [against_humans, pairs_table(figures["pairs"], [])] if figures["pairs"] else [against_humans]


def human_table(human: dict[str, Any], rows: list[dict[str, Any]], judges: list[str]) -> Table:
    columns = ["Evaluator", "Strategy", "Questions", "Left out", "Accuracy", "95% interval", "Decided by humans"]
    columns += ["On these, ties half right", "On these, ties wrong", "Kappa", "Spearman", "Mean score", "Swap rate"]
    lines = []
    for row in rows:
        cells = [row["name"], row["strategy"], str(row["num_questions"]), str(row["not_in_files"] + row["unscored"])]
        cells += [number(row["accuracy"]), interval_text(row["accuracy_interval"]), str(row["num_human_decided"])]
        cells += [number(row["accuracy_ties_half"]), number(row["accuracy_ties_wrong"])]
        cells += [signed(row["kappa"]), signed(row["spearman"])]
        cells += [number(row["mean_score"]), number(row["position_swap_rate"])]
        lines.append([Cell(text) for text in cells])
    notes = [
        "Accuracy: share of the questions where evaluator and humans name the same outcome: first, second or tie. An "
        "evaluator's tie: equal scores; in pairwise, the preference flips with the order. Interval: Wilson.",
        "Decided by humans: the questions they call no tie; next to it the accuracy on these, with an evaluator's ties "
        "as half right or as wrong.",
        "The paper's (section 5.2: aspect 0.73, direct 0.58) is taken to be Accuracy: its raters could choose a tie "
        "(appendix B); how it counts ties it does not say.",
        "Kappa: Cohen's, of the three outcomes. Spearman: of score difference (pairwise: 1, 0, -1) and the humans' "
        "choice. Mean score: over questions, of all scores in the files, not macro.",
        describe_humans(human),
        *filter(None, map(describe_left_out, rows)),
        *judges,
    ]
    return Table(columns, lines, notes, num_names=2)


def pairs_table(rows: list[dict[str, Any]], judges: list[str]) -> Table:
    columns = ["Evaluator", "Evaluator", "Questions", "Scored by one only", "Agreement", "Kappa", "Spearman"]
    lines = []
    for row in rows:
        cells = [*row["evaluators"], str(row["num_questions"]), str(row["num_one_only"])]
        cells += [number(row["agreement"]), signed(row["kappa"]), signed(row["spearman"])]
        lines.append([Cell(text) for text in cells])
    notes = ["Agreement: share of the questions where both name the same outcome: first, second or tie."]
    return Table(columns, lines, [*notes, *judges], num_names=2)


def interval_text(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"[{interval[0]:.4f}, {interval[1]:.4f}]"


def describe_humans(human: dict[str, Any]) -> str:
    raters = "1 rater" if human["num_raters"] == 1 else f"{human['num_raters']} raters"
    if human["num_rated_by_all"] < human["num_questions"]:
        raters += f" of {human['num_rated_by_all']} of {human['num_questions']} questions, fewer of the others"
    text = f"Humans, {raters}: first {human['first']}, second {human['second']}, tie {human['tie']}"
    if human["num_raters"] > 1:
        text += f"; {human['no_majority']} of the ties for lack of a majority"
    if human["num_raters"] == 2:
        text += f". Cohen's kappa of the two raters: {signed(human['kappa'])} (the paper's: {PAPER_KAPPA})"
    return text + "."


def describe_left_out(row: dict[str, Any]) -> str | None:
    """Which questions are not compared, None where all are."""
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
