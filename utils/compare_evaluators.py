"""Measure how well strategies and judges agree with humans and with each other (paper, section 5.2, figure 4).

  python utils/compare_evaluators.py --human_addr preferences.json --output_addr evaluators.json \\
      --evaluator "Aspects, 32B" planpers_scores.json rag_scores.json \\
      --evaluator "Direct, 32B" planpers_direct.json rag_direct.json \\
      --evaluator "Pairwise, 32B" planpers_rag_pairs.json

An evaluator has a name and two score files of evaluate_responses.py, one per system, or one pairwise score file. If
each category has its own files, repeat --evaluator with the same name for each category. The first and the second
system must be the same for all evaluators and for the humans. The human file is the output of
utils/human_evaluation.py --collect, or an object that maps each question to one choice or to a list of raters' choices:

  {"question id": "first", "another id": ["tie", "second"], "a third": ["second", "second"]}

The humans' outcome on a question is the choice of more than half of the raters, else a tie. The tables go to stdout.

--preferred measures how often judges prefer the chosen response of a pair. --systems measures whether judges give the
same verdicts on the same responses and rank three or more systems in the same order:

  python utils/compare_evaluators.py --preferred "Aspects, 32B" chosen_scores.json rejected_scores.json \\
      --preferred "Pairwise, 32B" chosen_rejected_pairs.json
  python utils/compare_evaluators.py --output_addr judges.json \\
      --systems "Aspects, 32B" none_scores.json rag_scores.json planpers_scores.json \\
      --systems "Direct, 32B" none_direct.json rag_direct.json planpers_direct.json

--corrected corrects systems' scores by people's verdicts on some of their answers, and measures how well the judge
agrees with people. The verdicts come from human_evaluation.py (--ask verdicts, then --collect); for BESPOKE, they are
people's scores, which download_datasets.py saves:

  python utils/compare_evaluators.py --corrected RAG rag_scores.json rag_people.json \\
      --corrected PlanPers planpers_scores.json planpers_people.json
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import json
import os
from collections import Counter
from itertools import chain

from utils.base import cli
from utils.base.errors import UserError, count_noun, quote
from utils.base.made import add_output_arguments, prepare_derived, publish_derived
from utils.base.manifest import settings_of
from utils.benchmarks import tasks
from utils.benchmarks.lampqa.pairwise import SYSTEMS
from utils.benchmarks.readers import one_line
from utils.data.scores import Scores, metric_of, read_scores, strategy_in_words
from utils.people import agreement, evaluator_tables
from utils.people.agreement import Evaluator, Human
from utils.people.corrected import agreement_of_people, corrected_figures, corrected_tables, read_rated
from utils.people.evaluator_tables import (
    BEST_PUBLISHED,
    LEAST_RANKED,
    human_table,
    pairs_table,
    preferred_table,
    rankings_table,
    verdicts_table,
)
from utils.tables.comparable import check_same_content, check_same_judge, refuse_other_benchmarks
from utils.tables.formats import to_markdown
from utils.tables.groups import with_own_groups
from utils.tables.notes import judge_notes
from utils.tables.significance import differences
from utils.tables.system_scores import add_unscored_argument

SCRIPT = "utils/compare_evaluators.py"
RESULTS = {"win": 1, "tie": 0, "loss": -1}  # the first system's pairwise result as a preference


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--evaluator", nargs="+", action="append", metavar=("NAME", "FILE"),
        help="a row: its name, then the score files of the first and the second system, or one pairwise score file; "
        "repeat for more rows; files with the same name are pooled")
    add("--preferred", nargs="+", action="append", metavar=("NAME", "FILE"),
        help="a judge to test on pairs of a chosen and a rejected response: its name, then the score files of the "
        "chosen and of the rejected ones, or one pairwise score file; repeated and pooled like --evaluator")
    add("--systems", nargs="+", action="append", metavar=("NAME", "FILE"),
        help="a judge of several systems: its name, then a score file per system, or SYSTEM=FILE to name it, in the "
        f"same order for all judges, {LEAST_RANKED} or more to compare ranks; repeated and pooled like --evaluator")
    add("--corrected", nargs=3, action="append", metavar=("NAME", "SCORES", "PEOPLE"),
        help="a system whose scores people correct: its name, the judge's score file, and people's verdicts on some of "
        "its answers; once per system")
    parser.add_argument("--human_addr", metavar="FILE",
        help="human choices: first, second or tie (default: compare only the evaluators with each other)")
    # fmt: on
    add_unscored_argument(parser)
    add_output_arguments(parser, "JSON file for all figures")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    outputs = [] if args.output_addr is None else [args.output_addr]
    if args.corrected:
        return compare_with_people(args, outputs)
    modes = {"--evaluator": args.evaluator, "--preferred": args.preferred, "--systems": args.systems}
    [(flag, arguments)] = [(flag, arguments) for flag, arguments in modes.items() if arguments]
    arguments, names = split_names(arguments) if flag == "--systems" else (arguments, {})
    cli.check_outputs(outputs, check_files(flag, arguments, args.human_addr))
    evaluators = read_evaluators(flag, arguments, args.unscored_as_zero)
    human = None if args.human_addr is None else agreement.read_human(args.human_addr)
    check_systems(evaluators, human)
    prepare_derived(outputs, SCRIPT, args.overwrite)

    if flag == "--preferred":
        rows = list(map(evaluator_tables.preference_figures, evaluators))
        figures = {"judges": rows, "best_published": BEST_PUBLISHED}
        tables = [preferred_table(evaluators[0].task, rows)]
    elif flag == "--systems":
        systems = [names.get(path, one_line(Path(path).stem)) for path in evaluators[0].files[0]]
        figures = evaluator_tables.ranking_figures(evaluators, systems)
        tables = [rankings_table(figures, evaluators), *filter(None, [verdicts_table(figures)])]
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


def compare_with_people(args: cli.Arguments, outputs: list[str]) -> int:
    """Print the systems' scores corrected by people's verdicts."""
    if args.human_addr or args.unscored_as_zero:
        raise UserError("--corrected: --human_addr and --unscored_as_zero have no effect; remove them")
    cli.check_outputs(outputs, [path for _, *paths in args.corrected for path in paths])
    read = {path: read_scores(path) for _, path, _ in args.corrected}
    systems = [read_rated(one_line(name), path, read[path], people) for name, path, people in args.corrected]
    check_same_judge(read)
    prepare_derived(outputs, SCRIPT, args.overwrite)
    figures = [corrected_figures(system) | {"agreement": agreement_of_people(system)} for system in systems]
    print(to_markdown(corrected_tables(figures)), end="")
    if outputs:
        text = json.dumps({"systems": figures}, ensure_ascii=False, indent=2) + "\n"
        publish_derived({Path(args.output_addr): text.encode()}, SCRIPT, args)
    return 0


# Reading


def split_names(arguments: list[list[str]]) -> tuple[list[list[str]], dict[str, str]]:
    """Return the arguments with FILE for each NAME=FILE, and the names by file; existing files are not split."""
    names: dict[str, str] = {}
    split = []
    for judge, *words in arguments:
        split.append([judge])
        for word in words:
            name, is_named, path = word.partition("=")
            path = path if is_named and not Path(word).exists() else word
            names |= {path: one_line(name)} if path != word else {}
            split[-1].append(path)
    return split, names


def check_files(flag: str, arguments: list[list[str]], human_addr: str | None) -> list[str]:
    """Return all input files; UserError if an evaluator has no files or is the only one, or a file appears twice."""
    inputs = [] if human_addr is None else [human_addr]
    for name, *paths in arguments:
        if not paths:
            raise UserError(f"{flag} {quote(name)}: needs a name, then its score files")
        if flag == "--systems" and len(paths) != len(arguments[0]) - 1:
            counts = f"{count_noun(len(paths), 'file')}, but {quote(arguments[0][0])} has {len(arguments[0]) - 1}"
            raise UserError(
                f"{flag} {quote(name)}: has {counts}; each judge needs one per system, for the same systems"
            )
        inputs += paths
    counts = Counter(map(os.path.realpath, inputs))
    if twice := [path for path in inputs if counts[os.path.realpath(path)] > 1]:
        raise UserError(f"{twice[-1]}: appears twice; pass each file once")
    is_alone = len({one_line(name) for name, *_ in arguments}) < 2
    if is_alone and human_addr is None and flag != "--preferred":
        more = "add another one" + (", or --human_addr" if flag == "--evaluator" else "")
        raise UserError(f"{flag}: a single evaluator has nothing to be compared with; {more}")
    return inputs


def read_evaluators(flag: str, arguments: list[list[str]], unscored_as_zero: bool) -> list[Evaluator]:
    """Read the evaluators from lists `[name, file, ...]`, in the order of their first appearance."""
    evaluators: dict[str, Evaluator] = {}
    paths_read, pairs = list(chain(*(paths for _, *paths in arguments))), flag != "--systems"
    read = {path: read_scores(path, pairs=pairs, unscored_as_zero=unscored_as_zero) for path in paths_read}
    refuse_other_benchmarks(read, "task")
    task, read = with_own_groups(tasks()[read[paths_read[0]]["task"]], read)
    for name, *paths in arguments:
        files = {path: read[path] for path in paths}
        first = files[paths[0]]
        made = Evaluator(one_line(name), strategy_in_words(first), task, metric_of(task, first)[1])
        evaluator = evaluators.setdefault(one_line(name), made)
        check_strategies(flag, evaluator, files)
        add_questions(flag, evaluator, files)
        check_same_content((entry, [path]) for path, scores in files.items() for entry in scores["per_question_scores"])
        evaluator.files.append(paths)
    for evaluator in evaluators.values():
        check_same_judge({path: read[path] for path in chain(*evaluator.files)})
    return list(evaluators.values())


def check_strategies(flag: str, evaluator: Evaluator, files: dict[str, Scores]) -> None:
    """Raise UserError unless all files have the evaluator's strategy, and their number fits it and the flag."""
    strategies = dict.fromkeys([evaluator.strategy, *map(strategy_in_words, files.values())])
    if flag == "--systems":
        is_right = evaluator.metric.pooled is None
        expected = "files of the same strategy, whose scores are means over questions"
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
    """Add entries, preferences and scores from a file per system or a pairwise file; UserError for a repeated id."""
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
    """Raise UserError if, by the manifests, evaluators and humans judged different systems, or in a different order."""
    seen = {digest: place for place, digests in enumerate(human.responses if human else ()) for digest in digests}
    place_of = {digest: (place, human.path) for digest, place in seen.items()}
    firsts: dict[int, tuple[Evaluator, set[str], str]] = {}  # by place: an evaluator, its responses, and its score file
    for evaluator in evaluators:
        if human and human.choices.keys().isdisjoint(evaluator.preferences):
            both = f"no question in common with --evaluator {quote(evaluator.name)} ({', '.join(evaluator.files[0])})"
            raise UserError(f"{human.path}: has {both}\n  use human choices for the questions in these files")
        with_hashes = filter(None, map(judged_responses, evaluator.files))
        for place, judged in enumerate(zip(*with_hashes, strict=True)):
            digests = {digest for _, digest in judged}
            # One response file in common is enough: the humans may have rated only some categories.
            if seen and digests.isdisjoint(seen):
                raise UserError(
                    f"{judged[0][0]}: scores different answers from those in {human.path}\n"
                    "  use scores of the response files that the humans compared"
                )
            for path, digest in judged:
                first_place, first_path = place_of.setdefault(digest, (place, path))
                if place != first_place:
                    raise UserError(
                        f"{path}: its system {place + 1} is system {first_place + 1} in {first_path}\n"
                        "  list the systems in the same order for all evaluators and in the human file"
                    )
            first, first_digests, first_path = firsts.setdefault(place, (evaluator, digests, judged[0][0]))
            if digests.isdisjoint(first_digests) and not first.entries.keys().isdisjoint(evaluator.entries):
                remedy = "use all evaluators' scores of the same response files"
                raise UserError(f"{judged[0][0]}: scores different answers from {first_path}\n  {remedy}")


def judged_responses(paths: list[str]) -> list[tuple[str, str]]:
    """Return each system's (score file, hash of the judged responses); empty if one is unknown."""
    judged = []
    for path in paths:
        responses = settings_of(path).get("responses")
        judged += [(path, digest) for digest in (responses if isinstance(responses, list) else [responses])]
    is_complete = len(judged) == max(len(paths), len(SYSTEMS)) and all(isinstance(digest, str) for _, digest in judged)
    return judged if is_complete else []


if __name__ == "__main__":
    cli.run_script(main)
