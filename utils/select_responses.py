"""Select the best of several sampled responses per question by their scores, and the worst for training on pairs.

  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct --samples all --inputs_addr train.json \\
      --response_addr rag_16.json --score_addr rag_16_scores.json
  python utils/select_responses.py --response_addr rag_16.json --score_addr rag_16_scores.json \\
      --output_addr best.json --worst_addr worst.json

The judge sees the rubric, which no system may see. So on a test set, selected responses are an upper bound, and their
score files, tables and reports say so. docs/evaluation.md lists what is dropped and counted.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun
from utils.base.made import ALL_BUT_SCRIPT, Made, add_overwrite_argument, publish_together
from utils.base.manifest import describe_run, file_hash, manifest_of, settings_of
from utils.benchmarks.metric import Metric
from utils.data.responses import Responses, are_answered, read_responses
from utils.data.scores import SampleScores, judges_of, metric_behind, read_sample_scores, seen_by, strategy_in_words
from utils.data.states import RANKER
from utils.tables.notes import describe_selection

SCRIPT = "utils/select_responses.py"
ROUNDING = 1e-9  # in floats, 0.6 - 0.4 is slightly less than 0.2
ADDRESS = {"best": "output_addr", "worst": "worst_addr"}


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--response_addr", required=True, metavar="FILE", help="responses with several outputs per question")
    by = parser.add_mutually_exclusive_group(required=True)
    by.add_argument("--score_addr", metavar="FILE", help="the scores of all samples (--samples all)")
    by.add_argument("--ranker", nargs=2, metavar=("DIR", "STATES"),
        help="select by a ranker instead (utils/train_ranker.py), from the states of the responses")
    add("--output_addr", required=True, metavar="FILE", help="output file for the best response to each question")
    add("--worst_addr", metavar="FILE",
        help="output file for the worst response to each of these questions; questions whose responses all have the "
        "same score, or none, are dropped (default: no file)")
    add("--min_score", type=cli.finite_float, metavar="SCORE",
        help="drop questions whose best response scores less, or has no score (default: no minimum)")
    # fmt: on
    parser.without_effect("--worst_addr --min_score", lambda args: args.ranker is not None, "with --ranker")
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    responses = read_responses(args.response_addr)
    num_samples = max(map(len, responses.values()), default=0)
    if num_samples < 2 and args.min_score is None:
        raise UserError(
            f"{args.response_addr}: has no more than one response to any question\n"
            "  sample several (--num_generated_outputs 16 --temperature 1), or set a --min_score"
        )
    # The best responses are written last: if their file exists, the other one does too.
    paths = {which: path for which in ("worst", "best") if (path := getattr(args, ADDRESS[which])) is not None}
    cli.check_different("--output_addr, --worst_addr", list(paths.values()))
    cli.check_outputs([*paths.values()], [args.response_addr, args.score_addr or args.ranker[1]])
    if args.ranker is not None:
        from utils.training.ranker import rank_samples  # torch

        scores, trained = rank_samples(args.ranker, responses, args.response_addr)
        selected, counts = select(responses, scores, args)
        described, further = describe_ranker(args, trained)
    else:
        content, scores = read_sample_scores(args.score_addr, responses, args.response_addr)
        metric = metric_behind(content)
        if metric.lower_is_better and args.min_score is not None:
            raise UserError(f"--min_score: {content['strategy']} is an error, so lower is better; remove the flag")
        selected, counts = select(responses, scores, args, metric.lower_is_better)
        described = describe_scorer(args.score_addr, content, metric)
        further = {"scores": file_hash(args.score_addr)}
    if not counts["kept"]:
        raise UserError(f"{args.response_addr}: no question is left\n  {in_words(counts)}")
    contents = {}
    for which, path in paths.items():
        by = {"which": which, "samples": num_samples, **described}
        by |= {"unscored": unscored} if (unscored := counts.get("samples without a score")) else {}
        settings = {**settings_of(args.response_addr), "script": SCRIPT, "selected_by": by}
        settings |= {"responses": file_hash(args.response_addr), **further}
        contents[Made(path, settings, args.overwrite, ALL_BUT_SCRIPT)] = selected[which]
    publish_together(contents, describe_run(vars(args), {}, None, counts=counts))
    for file in contents:
        by = describe_selection(file.settings["selected_by"])
        print(f"{file.path}: {counts['kept']} of {count_noun(len(responses), 'question')}; {by}")
    print(in_words(counts))
    return 0


def select(
    responses: Responses, scores: SampleScores, args: argparse.Namespace, lower_is_better: bool = False
) -> tuple[dict[str, Responses], dict[str, int]]:
    """Return the best and the worst response to each kept question by the samples' scores, and counts.

    If no sample has both an answer and a score, the first answer is kept, so that a test set stays complete.
    """
    pick = {"best": min, "worst": max} if lower_is_better else {"best": max, "worst": min}
    selected: dict[str, Responses] = {"best": {}, "worst": {}}
    counts, most = Counter(), max(map(len, responses.values()))
    for key, outputs in responses.items():
        scored = {number: score for number, score in enumerate(scores.get(key, ())) if score is not None}
        answered = {number: score for number, score in scored.items() if all(are_answered([outputs[number]["output"]]))}
        counts["questions with fewer samples"] += len(outputs) < most
        counts["samples without a score"] += len(outputs) - len(scored)
        counts["samples without an answer"] += len(scored) - len(answered)
        if reason := reason_to_drop(list(answered.values()), args):
            counts[f"dropped, {reason}"] += 1
            continue
        if not answered:
            first = max(range(len(outputs)), key=are_answered([output["output"] for output in outputs]).__getitem__)
            answered = {first: scored.get(first)}
            counts["without a scored answer, the first one kept"] += 1
        for which, of in pick.items():
            score = of(answered.values())
            first, *others = [number for number, other in answered.items() if other == score]
            selected[which][key] = [{**outputs[first], "sample": first, "score": score}]
            counts[f"ties for the {which}"] += bool(others) and getattr(args, ADDRESS[which]) is not None
    return selected, {"questions": len(responses), "kept": len(selected["best"]), **dict(sorted(counts.items()))}


def reason_to_drop(scores: list[float], args: argparse.Namespace) -> str | None:
    """Return why a question with these scores is dropped; None if it is kept (always, without these flags)."""
    if not scores:
        return None if args.worst_addr is None and args.min_score is None else "no scored answer"
    if args.worst_addr is not None and min(scores) == max(scores):
        return "all scores equal"
    if args.min_score is not None and max(scores) < args.min_score - ROUNDING:
        return "below --min_score"
    return None


def describe_scorer(score_addr: str, scores: dict[str, Any], metric: Metric) -> dict[str, Any]:
    """Return the judge and its identity (None if the metric needs none), the strategy, and the scorer's fields."""
    made = manifest_of(score_addr)
    identity = metric.judge and made["settings"].get("judge")
    return {
        "judge": metric.judge and (made["arguments"].get("evaluator_llm") or identity),
        "identity": identity,
        "judges": sorted(judges_of(made["settings"])) if metric.judge else [],
        "strategy": strategy_in_words(scores),
        "saw": seen_by(scores),
    }


def describe_ranker(args: argparse.Namespace, trained: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `selected_by` for a ranker, and more settings: what it and the responses' models saw in training."""
    made = settings_of(args.response_addr)
    judges = sorted({*made.get("rewarded_by", ()), *trained["judges"]})
    further = {"rewarded_by": judges} if judges else {}
    further |= {"ranker": file_hash(Path(args.ranker[0]) / RANKER), "states": file_hash(args.ranker[1])}
    saw = made.get("saw") or {"when": "training", "fields": []}
    if saw["when"] == "training" and (fields := sorted({*saw["fields"], *trained["saw"]})):
        further["saw"] = {**saw, "fields": fields}
    return {"judges": [], "strategy": "ranker", "saw": [], "learnt": trained["strategy"]}, further


def in_words(counts: dict[str, int]) -> str:
    return "; ".join(f"{name}: {count}" for name, count in counts.items() if count or name == "kept")


if __name__ == "__main__":
    cli.run_script(main)
