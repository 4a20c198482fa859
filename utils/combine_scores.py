"""Combine scores with terms computed from the responses into rewards, for a training with --objective grpo.

  python utils/combine_scores.py --response_addr samples/sample_{0..7}.json --score_addr samples/scores_{0..7}.json \\
      --output_addr samples/rewards_{0..7}.json --contrast -0.1 --contrast_addr plain.json \\
      --length -0.01 --length_note intent --length_over 200

A reward is the sum of the score and of the terms, each times its weight (docs/beyond_planpers.md). These weights are
those of IAP; PR2's penalty for a wrong form is --form -0.5. A score that is an
error, such as LaMP-3's, is subtracted. With --own 1 --own_addr FILE, a term is what the Python function
`reward(response)` in FILE returns for an answer's object in the response file.

A response without a score has no reward. A missing answer has at most the lowest reward of the question's answers.
"""

import copy
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.derived_files import add_overwrite_argument, prepare_derived
from utils.files.file_hashes import file_hash
from utils.files.made import ALL_BUT_SCRIPT, Made, publish_together
from utils.files.manifest import describe_run, settings_of
from utils.records.responses import read_responses
from utils.records.scores import metric_behind, read_scores, refuse_scores_of_others
from utils.scoring.references import rouge
from utils.tables.best_of_n import COMBINED

Term = Callable[[str, dict[str, Any]], float]  # from a question's id and its response


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--response_addr", nargs="+", required=True, metavar="FILE", help="response files, one per sample")
    add("--score_addr", nargs="+", required=True, metavar="FILE", help="their score files, in the same order")
    add("--output_addr", nargs="+", required=True, metavar="FILE", help="output files, one per response file")
    add("--score", type=float, default=1.0, metavar="WEIGHT", help="weight of the score (%(default)s)")
    add("--contrast", type=float, default=0.0, metavar="WEIGHT",
        help="weight of ROUGE-L (0 to 1, without IAP's stemming) between the response and the one in --contrast_addr "
        "(%(default)s)")
    add("--contrast_addr", metavar="FILE", help="responses to compare with, such as those of the untrained model")
    add("--length", type=float, default=0.0, metavar="WEIGHT", help="weight of each word over a limit (%(default)s)")
    add("--length_note", metavar="NAME",
        help="name of the note (ask.note) whose words are counted (default: count the response's words)")
    add("--length_over", type=cli.non_negative_int, default=0, metavar="N", help="the limit, in words (%(default)s)")
    add("--form", type=float, default=0.0, metavar="WEIGHT",
        help="weight of a response in a wrong form: it lacks a text of --form_texts, or has them in another order "
        "(%(default)s)")
    add("--own", type=float, default=0.0, metavar="WEIGHT",
        help="weight of what `reward(response)` in --own_addr returns (%(default)s)")
    add("--own_addr", metavar="FILE", help="Python file with a function `reward(response)`, which returns a number")
    add("--form_texts", nargs="+", metavar="TEXT", help="texts in the required order, such as headings")
    # fmt: on
    parser.without_effect("--contrast_addr", lambda args: not args.contrast, "without --contrast", "give --contrast")
    parser.without_effect("--length_note --length_over", lambda args: not args.length, "without --length")
    parser.without_effect("--form_texts", lambda args: not args.form, "without --form", "give --form")
    parser.without_effect("--own_addr", lambda args: not args.own, "without --own", "give --own")
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.check_same_number(args, "response_addr", "score_addr", "output_addr")
    for name, needed in (("contrast", "contrast_addr"), ("form", "form_texts"), ("own", "own_addr")):
        if vars(args)[name] and vars(args)[needed] is None:
            raise UserError(f"--{name}: needs --{needed}")
    cli.check_outputs(args.output_addr, [*args.response_addr, *args.score_addr])
    prepare_derived(args.output_addr, COMBINED, args.overwrite)
    terms, weights = terms_of(args), {name: vars(args)[name] for name in ("score", "contrast", "length", "form")}
    weights |= {"own": args.own} if args.own else {}
    options = {"length_note": args.length_note, "length_over": args.length_over, "form_texts": args.form_texts}
    options |= {"contrast_with": args.contrast_addr and file_hash(args.contrast_addr)}
    options |= {"own_with": file_hash(args.own_addr)} if args.own else {}
    contents = [combined(*paths, weights, terms) for paths in zip(args.response_addr, args.score_addr, strict=True)]
    lower_missing_answers(contents)
    run = describe_run(vars(args), {}, None)
    for content, response_addr, score_addr, output_addr in zip(
        contents, args.response_addr, args.score_addr, args.output_addr, strict=True
    ):
        settings = {"script": COMBINED, "responses": file_hash(response_addr), "scores": file_hash(score_addr)}
        settings |= {"weights": weights} | options
        publish_together({Made(output_addr, settings, args.overwrite, ALL_BUT_SCRIPT): content}, run)
        means = ", ".join(f"{name} {mean:z.4f}" for name, mean in content["means"].items())
        print(f"{output_addr}: mean reward {content['reward']:z.4f}; means of the terms: {means}")
    return 0


def combined(response_addr: str, score_addr: str, weights: dict[str, float], terms: dict[str, Term]) -> dict[str, Any]:
    """Return the rewards by question id, with the means of the terms over the responses that have a score."""
    if "responses" not in settings_of(score_addr):
        raise UserError(f"{score_addr}: has no manifest beside it that names the responses; judge them again")
    refuse_scores_of_others(score_addr, [response_addr])
    responses, scores, rewards, rows = read_responses(response_addr), read_scores(score_addr), {}, []
    sign, unanswered = -1 if metric_behind(scores).lower_is_better else 1, []
    for entry in scores["per_question_scores"]:
        if entry["score"] is None:
            rewards[entry["id"]] = None
            continue
        response = responses[entry["id"]][0]
        unanswered += [] if entry["answered"] else [entry["id"]]
        values = {name: term(entry["id"], response) for name, term in terms.items()}
        rows.append({"score": sign * entry["score"], **values})
        rewards[entry["id"]] = sum(weights[name] * value for name, value in rows[-1].items())
    if not rows:
        raise UserError(f"{score_addr}: no response has a score; judge the responses again")
    means = {name: fmean(row[name] for row in rows) for name in rows[0]}
    return {"reward": sum(weights[name] * mean for name, mean in means.items()), "means": means, "rewards": rewards,
            "unanswered": unanswered}  # fmt: skip


def lower_missing_answers(contents: list[dict[str, Any]]) -> None:
    """Lower the reward of each missing answer to the lowest of the question's answers in all files.

    Otherwise an answer that gets penalties would lose to none, and a training would learn to give none.
    """
    lowest: dict[str, float] = {}
    for content in contents:
        for question_id, reward in content["rewards"].items():
            if reward is not None and question_id not in content["unanswered"]:
                lowest[question_id] = min(reward, lowest.get(question_id, reward))
    for content in contents:
        rewards = content["rewards"]
        for question_id in content["unanswered"]:
            rewards[question_id] = min(rewards[question_id], lowest.get(question_id, rewards[question_id]))
        content["reward"] = fmean(reward for reward in rewards.values() if reward is not None)


def terms_of(args: cli.Arguments) -> dict[str, Term]:
    """Return the terms that have a weight, by name."""
    others = read_responses(args.contrast_addr) if args.contrast else {}

    def contrast(question_id: str, response: dict[str, Any]) -> float:
        if question_id not in others:
            raise UserError(f"{args.contrast_addr}: has no response to {question_id}; give responses to all questions")
        return rouge(others[question_id][0]["output"] or "", response["output"] or "", "rougeL")

    def length(_: str, response: dict[str, Any]) -> float:
        text = (response.get("notes") or {}).get(args.length_note) if args.length_note else response["output"]
        return max(0, len(str(text or "").split()) - args.length_over)

    def form(_: str, response: dict[str, Any]) -> float:
        in_order = ".*?".join(map(re.escape, args.form_texts))
        return re.search(in_order, response.get("raw") or "", re.DOTALL) is None

    made = {"contrast": contrast, "length": length, "form": form, "own": own_term(args.own_addr) if args.own else None}
    return {name: term for name, term in made.items() if vars(args)[name]}


def own_term(path: str) -> Term:
    """Return the term that a user's file computes; UserError if it has no `reward`, or that returns no number."""
    try:
        names = runpy.run_path(path)
    except Exception as error:
        raise UserError(f"--own_addr {path}: cannot be loaded: {type(error).__name__}: {error}") from None
    if not callable(names.get("reward")):
        raise UserError(f"--own_addr {path}: has no function `reward(response)`")

    def own(question_id: str, response: dict[str, Any]) -> float:
        try:
            number = names["reward"](copy.deepcopy(response))
        except Exception as error:
            problem = f"reward raised {type(error).__name__}: {error}"
            raise UserError(f"{path}: id {quote(question_id)}: {problem}") from None
        if type(number) not in (int, float) or not abs(number) <= sys.float_info.max:
            raise UserError(f"{path}: id {quote(question_id)}: reward returned {quote(number)}, not a finite number")
        return float(number)

    return own


if __name__ == "__main__":
    cli.run_script(main)
