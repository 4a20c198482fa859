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

How often judges prefer the chosen response of a pair, and whether they rank three or more systems alike:

  python utils/compare_evaluators.py --preferred "Aspects, 32B" chosen_scores.json rejected_scores.json \\
      --preferred "Pairwise, 32B" chosen_rejected_pairs.json
  python utils/compare_evaluators.py --output_addr judges.json \\
      --systems "Aspects, 32B" none_scores.json rag_scores.json planpers_scores.json \\
      --systems "Direct, 32B" none_direct.json rag_direct.json planpers_direct.json
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import json
import os
from collections import Counter
from itertools import chain
from typing import Any

from utils import cli
from utils.benchmarks import tasks
from utils.benchmarks.task import Task
from utils.cli import UserError
from utils.cli.errors import counted, quote
from utils.files.derived_files import add_output_arguments, prepare_derived, publish_derived
from utils.files.manifest import settings_of
from utils.parsing.plans import one_line
from utils.records.scores import Scores, metric_of, read_scores, strategy_in_words
from utils.scoring.pairwise import SYSTEMS
from utils.tables import agreement, judge_trials
from utils.tables.agreement import Evaluator, Human
from utils.tables.formats import NOT_COMPARED, Cell, Table, interval_text, number, p_text, signed, to_markdown
from utils.tables.notes import judge_notes
from utils.tables.score_table import share_intervals_note
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
BEST_PUBLISHED = 0.7594  # of Personalized RewardBench's pairs (arXiv 2604.07343), by a reward model
LEAST_SYSTEMS = 3  # two systems have only two orders


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--evaluator", nargs="+", action="append", metavar=("NAME", "FILE"),
        help="a row: its name, then the score files of the first and the second system, or one pairwise score file; "
        "repeat for more rows; files with the same name are pooled")
    add("--preferred", nargs="+", action="append", metavar=("NAME", "FILE"),
        help="a judge on pairs of responses: its name, then the score files of the chosen and of the rejected ones, or "
        "one pairwise score file; repeated and pooled like --evaluator")
    add("--systems", nargs="+", action="append", metavar=("NAME", "FILE"),
        help=f"a judge that ranks systems: its name, then a score file for each of {LEAST_SYSTEMS} or more systems, in "
        "the same order for all judges; repeated and pooled like --evaluator")
    parser.add_argument("--human_addr", metavar="FILE",
        help="human choices: first, second or tie (default: compare only the evaluators with each other)")
    # fmt: on
    add_unscored_argument(parser)
    add_output_arguments(parser, "JSON file for all figures")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    outputs = [] if args.output_addr is None else [args.output_addr]
    modes = {"--evaluator": args.evaluator, "--preferred": args.preferred, "--systems": args.systems}
    [(flag, arguments)] = [(flag, given) for flag, given in modes.items() if given]
    cli.check_outputs(outputs, check_files(flag, arguments, args.human_addr))
    evaluators = read_evaluators(flag, arguments, args.unscored_as_zero)
    human = None if args.human_addr is None else agreement.read_human(args.human_addr)
    check_systems(evaluators, human)
    prepare_derived(outputs, SCRIPT, args.overwrite)

    if flag == "--preferred":
        rows = list(map(judge_trials.preference_figures, evaluators))
        figures = {"judges": rows, "best_published": BEST_PUBLISHED}
        tables = [preferred_table(evaluators[0].task, rows)]
    elif flag == "--systems":
        systems = [one_line(Path(path).stem) for path in evaluators[0].files[0]]
        figures = judge_trials.ranking_figures(evaluators, systems)
        tables = [rankings_table(figures, evaluators)]
    else:
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


def check_files(flag: str, arguments: list[list[str]], human_addr: str | None) -> list[str]:
    """Return all input files; UserError if an evaluator has none or is alone, or a file is given twice."""
    inputs = [] if human_addr is None else [human_addr]
    for name, *paths in arguments:
        if not paths:
            raise UserError(f"{flag} {quote(name)}: no score file; give a name, then its score files")
        if flag == "--systems" and len(paths) != len(arguments[0]) - 1:
            counts = f"{counted(len(paths), 'file')}, but {quote(arguments[0][0])} has {len(arguments[0]) - 1}"
            raise UserError(f"{flag} {quote(name)}: has {counts}; give one per system, the same systems for all judges")
        inputs += paths
    counts = Counter(map(os.path.realpath, inputs))
    if twice := [path for path in inputs if counts[os.path.realpath(path)] > 1]:
        raise UserError(f"{twice[-1]}: is given twice; give each file once")
    is_alone = len({one_line(name) for name, *_ in arguments}) < 2
    if is_alone and human_addr is None and flag != "--preferred":
        more = "add another one" + (", or --human_addr" if flag == "--evaluator" else "")
        raise UserError(f"{flag}: a single evaluator has nothing to compare with; {more}")
    return inputs


def read_evaluators(flag: str, arguments: list[list[str]], unscored_as_zero: bool) -> list[Evaluator]:
    """Read the evaluators of lists `[name, file, ...]`, in the order in which their names first appear."""
    evaluators: dict[str, Evaluator] = {}
    read: dict[str, Scores] = {}
    for name, *paths in arguments:
        pairs = flag != "--systems"
        files = {path: read_scores(path, pairs=pairs, unscored_as_zero=unscored_as_zero) for path in paths}
        first = files[paths[0]]
        task = tasks()[first["task"]]
        made = Evaluator(one_line(name), strategy_in_words(first), task, metric_of(task, first)[1])
        evaluator = evaluators.setdefault(one_line(name), made)
        check_strategies(flag, evaluator, files)
        add_questions(flag, evaluator, files)
        check_same_content((entry, [path]) for path, scores in files.items() for entry in scores["per_question_scores"])
        evaluator.files.append(paths)
        read |= files
    refuse_other_benchmarks(read, "task")
    for evaluator in evaluators.values():
        check_same_judge({path: read[path] for path in chain(*evaluator.files)})
    return list(evaluators.values())


def check_strategies(flag: str, evaluator: Evaluator, files: dict[str, Scores]) -> None:
    """Raise UserError unless the files are of the evaluator's strategy, and as many as it and the flag need."""
    strategies = dict.fromkeys([evaluator.strategy, *map(strategy_in_words, files.values())])
    if flag == "--systems":
        is_right = len(files) >= LEAST_SYSTEMS and evaluator.metric.pooled is None
        expected = f"{LEAST_SYSTEMS} or more files of the same strategy, whose scores are means over questions"
    else:
        is_right = len(files) == (1 if evaluator.strategy == "pairwise" else 2)
        expected = "one pairwise file, or two files of the same strategy (first system, second system)"
    if len(strategies) > 1 or not is_right:
        raise UserError(
            f"{flag} {quote(evaluator.name)}: found {' and '.join(files)} of strategy {' and '.join(strategies)}, "
            f"expected {expected}\n"
            f"  use one name per strategy, and repeat {flag} with that name for more files, such as categories"
        )


def add_questions(flag: str, evaluator: Evaluator, files: dict[str, Scores]) -> None:
    """Add entries, preferences and scores from a file per system, or a pairwise one; UserError for a repeated id."""
    systems = [{entry["id"]: entry for entry in scores["per_question_scores"]} for scores in files.values()]
    for path, scores in files.items():
        ids = [*evaluator.preferences, *(entry["id"] for entry in scores["per_question_scores"])]
        if twice := [question_id for question_id, count in Counter(ids).items() if count > 1]:
            where = f"{path}: question {quote(twice[0])} is repeated in the files of {flag}"
            raise UserError(f"{where} {quote(evaluator.name)}; a question may be in only one of them")
    for question_id in set().union(*systems):
        entries = [system.get(question_id, {}) for system in systems]
        if evaluator.strategy == "pairwise":
            preference = RESULTS.get(entries[0]["result"])
            evaluator.not_asked |= set() if entries[0]["details"] else {question_id}
        else:
            scores = [entry["score"] for entry in entries if entry.get("score") is not None]
            upward = scores[::-1] if evaluator.metric.lower_is_better else scores
            preference = differences([upward])[0] if len(scores) == len(systems) == 2 else None
            evaluator.scores += scores
        evaluator.entries[question_id] = entries
        evaluator.preferences[question_id] = preference


def check_systems(evaluators: list[Evaluator], human: Human | None) -> None:
    """Raise UserError if evaluators and humans judged other systems, or in another order, according to manifests."""
    seen = {digest: place for place, digests in enumerate(human.responses if human else ()) for digest in digests}
    place_of = {digest: (place, human.path) for digest, place in seen.items()}
    firsts: dict[int, tuple[Evaluator, set[str], str]] = {}  # by place, an evaluator, its responses and score file
    for evaluator in evaluators:
        if human and human.choices.keys().isdisjoint(evaluator.preferences):
            both = f"no question in common with --evaluator {quote(evaluator.name)} ({', '.join(evaluator.files[0])})"
            raise UserError(f"{human.path}: has {both}\n  give the human choices for the questions in these files")
        with_hashes = filter(None, map(judged_responses, evaluator.files))
        for place, judged in enumerate(zip(*with_hashes, strict=True)):
            # The humans' file lacks the responses of categories that they were not asked about.
            digests = {digest for _, digest in judged}
            if seen and digests.isdisjoint(seen):
                raise UserError(
                    f"{judged[0][0]}: scores other answers than those in {human.path}\n"
                    "  give the scores of the response files that the humans compared"
                )
            for path, digest in judged:
                first_place, first_path = place_of.setdefault(digest, (place, path))
                if place != first_place:
                    raise UserError(
                        f"{path}: its system {place + 1} is system {first_place + 1} in {first_path}\n"
                        "  give the systems in the same order for all evaluators and in the human file"
                    )
            first, first_digests, first_path = firsts.setdefault(place, (evaluator, digests, judged[0][0]))
            if digests.isdisjoint(first_digests) and not first.entries.keys().isdisjoint(evaluator.entries):
                remedy = "give all evaluators' scores of the same response files"
                raise UserError(f"{judged[0][0]}: scores other answers than {first_path}\n  {remedy}")


def judged_responses(paths: list[str]) -> list[tuple[str, str]]:
    """Return each system's (score file, hash of the judged responses); empty if one is unknown."""
    judged = []
    for path in paths:
        responses = settings_of(path).get("responses")
        judged += [(path, digest) for digest in (responses if isinstance(responses, list) else [responses])]
    is_complete = len(judged) == max(len(paths), len(SYSTEMS)) and all(isinstance(digest, str) for _, digest in judged)
    return judged if is_complete else []


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


def preferred_table(task: Task, rows: list[dict[str, Any]]) -> Table:
    groups = [group for group in task.groups if any(group in row["groups"] for row in rows)]
    columns = ["Judge", "Strategy", "Saw", "Pairs", "Left out", "Ties", "Right", "95% interval", *groups, "Swap rate"]
    lines = []
    for row in rows:
        texts = [row["name"], row["strategy"], f"{', '.join(row['saw'])} (upper bound)" if row["saw"] else "–"]
        texts += [str(row["num_pairs"]), str(row["num_left_out"]), str(row["num_ties"])]
        texts += [number(row["share"]), interval_text(row["interval"], number)]
        for part in map(row["groups"].get, groups):
            texts.append(f"{number(part['share'])} {interval_text(part['interval'], number)}" if part else "–")
        lines.append(list(map(Cell, [*texts, number(row["position_swap_rate"])])))
    is_clustered = any(row["num_clusters"] < row["num_pairs"] for row in rows)
    notes = [
        "Right: share of the pairs in which the chosen response has the higher score or, in pairwise, is preferred in "
        "both orders; ties count half: equal scores, or a preference that flips with the order (swap rate).",
        share_intervals_note(task.user_field if is_clustered else ""),
        "Left out: pairs without both scores, or without a preference in both orders.",
        "Saw: fields that the judge reads and a reward model must not; the judge is an upper bound for reward models.",
        f"Published: {BEST_PUBLISHED:.2%} by the best reward model (arXiv 2604.07343, abstract), to compare with the "
        "pairs of Personalized RewardBench only.",
        *[NOT_COMPARED] * (len(rows) > 1),
    ]
    return Table(columns, lines, notes, num_names=3)


def rankings_table(figures: dict[str, Any], evaluators: list[Evaluator]) -> Table:
    means = {name: own for pair in figures["pairs"] for name, own in zip(pair["judges"], pair["means"], strict=True)}
    rows = zip(*(map(number, means[evaluator.name]) for evaluator in evaluators), strict=True)
    lines = [list(map(Cell, [system, *row])) for system, row in zip(figures["systems"], rows, strict=True)]
    units, notes = "questions", []
    if figures["num_clusters"] < figures["num_questions"]:
        units = f"{figures['num_clusters']} values of {evaluators[0].task.user_field} with all their questions"
    for pair in figures["pairs"]:
        names = {"spearman": "Spearman's correlation", "kendall": "Kendall's tau-b"}
        texts = [f"{word} {signed(pair[key])} {interval_text(pair[f'{key}_interval'])}" for key, word in names.items()]
        texts = ["no correlation, because a judge's means are all equal"] if pair["spearman"] is None else texts
        notes.append(f"{pair['judges'][0]} and {pair['judges'][1]}: {', '.join(texts)}.")
    notes += [
        "These compare the order of the systems by mean score; 1 if both judges rank them alike. Interval: 95%, by a "
        f"percentile bootstrap over {units}, for these systems.",
        f"Means over {counted(figures['num_questions'], 'question')}; left out, because a judge gave a system no "
        f"score: {figures['num_left_out']}.",
        *[
            f"{judge.name} saw fields that only a scorer may see: {', '.join(judge.saw)}."
            for judge in evaluators
            if judge.saw
        ],
    ]
    return Table(["System", *(f"{judge.name} ({judge.strategy})" for judge in evaluators)], lines, notes)


def describe_humans(human: dict[str, Any]) -> str:
    named, most = len(human["raters"]), human["num_raters"]
    raters = counted(max(named, most), "rater")
    if named > most:
        raters += f", at most {most} per question"
    elif human["num_rated_by_all"] < human["num_questions"]:
        raters += (
            f" for {human['num_rated_by_all']} of {counted(human['num_questions'], 'question')}, fewer for the others"
        )
    text = f"Humans, {raters}: first {human['first']}, second {human['second']}, tie {human['tie']}"
    if most > 1:
        text += f"; {human['no_majority']} of the ties because there is no majority"
        if named > most:
            text += ". Raters differ by question: utils/human_evaluation.py --collect prints the agreement of each pair"
        elif most == 2:
            whom = "two raters" if named else "first and second choices"
            text += f". Cohen's kappa of the {whom}: {signed(human['kappa'])} (the paper's two raters: {PAPER_KAPPA})"
    return f"{text}."


def describe_left_out(row: dict[str, Any]) -> str | None:
    missing = "result" if row["strategy"] == "pairwise" else "score of both systems"
    counts = {
        "rated but not in the files": row["not_in_files"],
        f"rated but without a {missing}": row["unscored"],
        "scored but not rated": row["not_rated"],
    }
    parts = [f"{count} {reason}" for reason, count in counts.items() if count]
    return f"{row['name']}: questions left out: {', '.join(parts)}." if parts else None


if __name__ == "__main__":
    cli.run_script(main)
