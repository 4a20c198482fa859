"""Merge the score files of several judges over the same responses into the scores of a panel.

  python utils/panel_scores.py --score_addr qwen_scores.json gemma_scores.json llama_scores.json \\
      --output_addr panel_scores.json --merge majority

The output is a score file for tables, figures and the report, which name the panel. Each aspect has the judges'
verdicts in the order of the files (`drawn`, null for a missing one). The command prints how far the judges agree on
single verdicts, and the questions on which their scores differ most.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from statistics import median_low
from typing import Any

from utils.base import cli
from utils.base.errors import UserError, count_noun, first_five
from utils.base.made import ALL_BUT_SCRIPT, Made, add_overwrite_argument, publish_together
from utils.base.manifest import describe_run, file_hash, manifest_of
from utils.benchmarks.lampqa import aspects
from utils.benchmarks.metric import Metric
from utils.benchmarks.scoring import Verdict, average, cohens_kappa, krippendorffs_alpha
from utils.data.scores import CARRIED, Entry, Scores, metric_behind, read_scores, strategy_in_words
from utils.tables.comparable import check_same_content
from utils.tables.formats import interval_text, number, signed

SCRIPT = "utils/panel_scores.py"
OF_SAMPLES = ("samples", "sample_words", "unanswered_samples")


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--score_addr", required=True, nargs="+", metavar="FILE",
        help="score files of the same responses, one per judge, two or more")
    add("--output_addr", required=True, metavar="FILE", help="output file, a score file")
    add("--merge", choices=["mean", "majority", "least"], default="mean",
        help="a part's score: the mean of the verdicts; the verdict of more than half of the judges, else their lower "
        "median; or the lowest verdict (%(default)s)")
    # fmt: on
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.check_outputs([args.output_addr], args.score_addr)
    files = {path: read_scores(path) for path in args.score_addr}
    metric = metric_behind(next(iter(files.values())))
    manifests = check_panel(files, metric)
    judges = [manifest["settings"]["judge"] for manifest in manifests.values()]
    names = [Path(manifest["arguments"]["evaluator_llm"]).name for manifest in manifests.values()]
    by_judge = [{entry["id"]: entry for entry in scores["per_question_scores"]} for scores in files.values()]
    panels = [[entries[key] for entries in by_judge] for key in by_judge[0]]
    content = merged(next(iter(files.values())), panels, metric, f"{args.merge} of {' and '.join(names)}", args.merge)
    first = next(iter(manifests.values()))
    shared = {name: value for name, value in first["settings"].items() if name in ("inputs", "responses", "strategy")}
    settings = {**shared, "script": SCRIPT, "judge": f"{args.merge} of {', '.join(judges)}", "judges": judges}
    settings |= {"prompt": first["settings"].get("prompt"), "scores": list(map(file_hash, args.score_addr))}
    made = Made(args.output_addr, settings, args.overwrite, ALL_BUT_SCRIPT)
    origins = {name: first[name] for name in ("answers", "judged") if name in first}
    publish_together({made: content}, {**describe_run(vars(args), {}, None), **origins})
    mean = "none" if content["score"] is None else f"{content['score']:.4f}"
    questions = count_noun(content["num_scored_questions"], "question")
    print(f"{args.output_addr}: score {mean} over {questions}; {content['verdicts']}")
    print(*agreement_lines(panels, names), sep="\n")
    divided = aspects.most_divided(content["per_question_scores"])
    listed = ", ".join(f"{key} ({number(width, 2)})" for key, width in divided)
    print(f"questions on which the judges' scores differ most: {listed or 'none'}")
    return 0


def check_panel(files: dict[str, Scores], metric: Metric) -> dict[str, dict[str, Any]]:
    """Return the files' manifests; UserError unless they have different judges' verdicts on the same responses."""
    if len(files) < 2:
        raise UserError("--score_addr: a panel needs score files of two or more judges")
    if metric.judge is None or metric.parts is None:
        raise UserError("--score_addr: a panel merges verdicts on parts of an answer; use files of strategy aspect")
    manifests = {path: manifest_of(path) for path in files}
    first_path, first = next(iter(manifests.items()))
    seen: dict[str, str] = {}
    for path, manifest in manifests.items():
        if manifest is None:
            raise UserError(f"{path}: has no valid manifest, so its judge is unknown; judge the responses again")
        if manifest["settings"].get("responses") != first["settings"].get("responses"):
            raise UserError(f"{path}: has scores of different responses from {first_path}; judge the same ones")
        if (other := seen.setdefault(manifest["settings"]["judge"], path)) != path:
            raise UserError(f"{path}: has the same judge as {other}; pass each judge once")
        pair = files[path], files[first_path]
        kind, first_kind = ((content["task"], strategy_in_words(content)) for content in pair)
        if kind != first_kind:
            raise UserError(
                f"{path}: has {', '.join(kind)}, but {first_path} has {', '.join(first_kind)}; use files that agree"
            )
        ids, first_ids = ({entry["id"] for entry in content["per_question_scores"]} for content in pair)
        if differing := sorted(ids ^ first_ids):
            raise UserError(
                f"{path}: has different questions from {first_path}: {first_five(differing)}; judge all with both"
            )
    check_same_content((entry, [path]) for path, scores in files.items() for entry in scores["per_question_scores"])
    return manifests


def merged(first: Scores, panels: list[list[Entry]], metric: Metric, title: str, merge: str) -> Scores:
    """Return the panel's score file, in the order of the first judge's file; `title` describes its verdicts."""
    entries = []
    for panel in panels:
        entry = {name: value for name, value in panel[0].items() if name not in OF_SAMPLES}
        if entry["answered"]:
            titles = [detail["aspect"] for detail in entry["details"]]
            entry |= aspects.entry(titles, [merge_parts(parts, merge) for parts in parts_of(panel)])
        entries.append(entry)
    head = {name: first[name] for name in ("task", *CARRIED, "partial") if name in first} | metric.summarize(entries)
    return {**head, "verdicts": title, "per_question_scores": entries}


def parts_of(panel: list[Entry]) -> Iterator[tuple[dict[str, Any], ...]]:
    """Yield the judges' details about each part of a response."""
    return zip(*(entry["details"] for entry in panel), strict=True)


def merge_parts(parts: tuple[dict[str, Any], ...], merge: str) -> Verdict:
    """Return the panel's verdict on a part of a response, from the judges' details about it."""
    verdict = average([{"value": part["score"], "reason": "no judge gave a verdict"} for part in parts])
    values = [value for value in verdict["drawn"] if value is not None]
    if not values or merge == "mean":
        return verdict
    [(most, count)] = Counter(values).most_common(1)
    majority = most if 2 * count > len(values) else median_low(values)
    return verdict | {"value": {"majority": majority, "least": min(values)}[merge]}


def agreement_lines(panels: list[list[Entry]], names: list[str]) -> list[str]:
    """Return lines on the agreement of each pair of judges, and of all."""
    answered = [panel for panel in panels if panel[0]["answered"]]
    verdicts = [[[part["score"] for part in parts] for parts in parts_of(panel)] for panel in answered]
    lines, units = [], []
    for first, second in combinations(range(len(names)), 2):
        pairs = [[(part[first], part[second]) for part in parts] for parts in verdicts]
        kappa = cohens_kappa([[pair for pair in of_question if None not in pair] for of_question in pairs], steps=True)
        both = f"{names[first]} and {names[second]}"
        lines.append(f"{both}: weighted kappa {signed(kappa.value)} {interval_text(kappa.interval)}")
    for parts in verdicts:
        given = [[value for value in part if value is not None] for part in parts]
        units.append([part for part in given if len(part) > 1])
    alpha = krippendorffs_alpha(units, steps=True)
    lines.append(f"Krippendorff's alpha of all judges: {signed(alpha.value)} {interval_text(alpha.interval)}")
    return lines


if __name__ == "__main__":
    cli.run_script(main)
