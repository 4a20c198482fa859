"""Combine scores and terms computed from the responses into rewards, for training with --objective grpo.

  python utils/combine_scores.py --response_addr samples.json --score_addr scores.json --output_addr rewards.json \\
      --contrast -0.1 --contrast_addr plain.json --length_weight -0.01 --length_note intent --length_over 200

The scores are those of all samples (evaluate_responses.py --samples all). The output has, in `rewards`, a list per
question, in the order of the samples.

A reward is the weighted sum of the score and the terms (docs/beyond_planpers.md). The weights above are those of IAP;
PR2's penalty for a wrong form is --form -0.5. A score that is an error, such as LaMP-3's, is subtracted. With --own 1
--own_addr FILE, one term is what the Python function `reward(response)` in FILE returns for a response, an object of
the response file.

A response without a score has no reward. The reward of a missing answer is at most the lowest reward of the question's
answers.
"""

import copy
import math
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, quote
from utils.base.made import ALL_BUT_SCRIPT, Made, add_overwrite_argument, prepare_derived, publish_together
from utils.base.manifest import describe_run, file_hash, settings_of
from utils.benchmarks.references import rouge
from utils.data.responses import are_answered, as_read, read_responses
from utils.data.scores import COMBINED, judges_of, metric_behind, read_sample_scores

Term = Callable[[str, dict[str, Any]], float]  # of a question's id and a response


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--response_addr", required=True, metavar="FILE", help="responses, with any number of samples per question")
    add("--score_addr", required=True, metavar="FILE", help="scores of all samples")
    add("--output_addr", required=True, metavar="FILE", help="output file")
    add("--score", type=float, default=1.0, metavar="WEIGHT", help="weight of the score (%(default)s)")
    add("--contrast", type=float, default=0.0, metavar="WEIGHT",
        help="weight of ROUGE-L (0 to 1, without IAP's stemming) between the response and the one in --contrast_addr "
        "(%(default)s)")
    add("--contrast_addr", metavar="FILE", help="responses to compare with, such as those of the untrained model")
    add("--length_weight", type=float, default=0.0, metavar="WEIGHT",
        help="weight of each word over a limit (%(default)s)")
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
    parser.without_effect("--contrast_addr", lambda args: not args.contrast, "without --contrast", "add --contrast")
    parser.without_effect("--length_note --length_over", lambda args: not args.length_weight, "without --length_weight")
    parser.without_effect("--form_texts", lambda args: not args.form, "without --form", "add --form")
    parser.without_effect("--own_addr", lambda args: not args.own, "without --own", "add --own")
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    for name, needed in (("contrast", "contrast_addr"), ("form", "form_texts"), ("own", "own_addr")):
        if vars(args)[name] and vars(args)[needed] is None:
            raise UserError(f"--{name}: needs --{needed}")
    cli.check_outputs([args.output_addr], [args.response_addr, args.score_addr])
    prepare_derived([args.output_addr], COMBINED, args.overwrite)
    weights = {"score": args.score, "contrast": args.contrast, "length": args.length_weight, "form": args.form}
    weights |= {"own": args.own} if args.own else {}
    content = combined(args, weights, terms_of(args, weights))
    settings = {"script": COMBINED, "responses": file_hash(args.response_addr), "scores": file_hash(args.score_addr)}
    settings |= {"weights": weights, "length_note": args.length_note, "length_over": args.length_over}
    settings |= {"judges": sorted(judges_of(settings_of(args.score_addr)))}
    settings |= {"form_texts": args.form_texts, "contrast_with": args.contrast_addr and file_hash(args.contrast_addr)}
    settings |= {"own_with": file_hash(args.own_addr)} if args.own else {}
    made = Made(args.output_addr, settings, args.overwrite, ALL_BUT_SCRIPT)
    publish_together({made: content}, describe_run(vars(args), {}, None))
    means = ", ".join(f"{name} {mean:z.4f}" for name, mean in content["means"].items())
    print(f"{args.output_addr}: mean reward {content['reward']:z.4f}; means of the terms: {means}")
    return 0


def combined(args: cli.Arguments, weights: dict[str, float], terms: dict[str, Term]) -> dict[str, Any]:
    """Return the rewards by question id and sample, their mean, and the means of the terms, over samples with a score.

    The reward of a missing answer is at most the lowest of the question's answers. Otherwise a missing answer could
    beat an answer with penalties, and training would learn not to answer.
    """
    responses, rewards, rows = read_responses(args.response_addr), {}, []
    scores, samples = read_sample_scores(args.score_addr, responses, args.response_addr)
    metric = metric_behind(scores)
    sign = -1 if metric.lower_is_better else 1
    for question_id, sample_scores in samples.items():
        rewards[question_id] = sample_rewards = [None] * len(sample_scores)
        for number, (score, response) in enumerate(zip(sample_scores, responses[question_id], strict=True)):
            if score is not None:
                values = {name: term(question_id, response) for name, term in terms.items()}
                rows.append({"score": sign * score, **values})
                sample_rewards[number] = sum(weights[name] * value for name, value in rows[-1].items())
        read = as_read({question_id: responses[question_id]}, metric.reads)
        answered = are_answered(response["output"] for response in read[question_id])
        answer_rewards = [reward for reward, is_answer in zip(sample_rewards, answered, strict=True) if is_answer]
        lowest = min((reward for reward in answer_rewards if reward is not None), default=math.inf)
        for number, reward in enumerate(sample_rewards):
            if reward is not None and not answered[number]:
                sample_rewards[number] = min(reward, lowest)
    if not rows:
        raise UserError(f"{args.score_addr}: no response has a score; judge the responses again")
    mean = fmean(reward for sample_rewards in rewards.values() for reward in sample_rewards if reward is not None)
    return {"reward": mean, "means": {name: fmean(row[name] for row in rows) for name in rows[0]}, "rewards": rewards}


def terms_of(args: cli.Arguments, weights: dict[str, float]) -> dict[str, Term]:
    """Return the terms that have a weight, by name."""
    others = read_responses(args.contrast_addr) if args.contrast else {}

    def contrast(question_id: str, response: dict[str, Any]) -> float:
        if question_id not in others:
            raise UserError(f"{args.contrast_addr}: has no response to {question_id}; every question needs one")
        return rouge(others[question_id][0]["output"] or "", response["output"] or "", "rougeL")

    def length(_: str, response: dict[str, Any]) -> float:
        text = (response.get("notes") or {}).get(args.length_note) if args.length_note else response["output"]
        return max(0, len(str(text or "").split()) - args.length_over)

    def form(_: str, response: dict[str, Any]) -> float:
        in_order = ".*?".join(map(re.escape, args.form_texts))
        return re.search(in_order, response.get("raw") or "", re.DOTALL) is None

    made = {"contrast": contrast, "length": length, "form": form, "own": own_term(args.own_addr) if args.own else None}
    return {name: term for name, term in made.items() if weights.get(name)}


def own_term(path: str) -> Term:
    """Return the term that a user's file computes; UserError if `reward` is missing or returns no number."""
    try:
        names = runpy.run_path(path)
    except Exception as error:  # a user's mistake
        raise UserError(f"--own_addr {path}: cannot be loaded: {type(error).__name__}: {error}") from None
    if not callable(names.get("reward")):
        raise UserError(f"--own_addr {path}: has no function `reward(response)`")

    def own(question_id: str, response: dict[str, Any]) -> float:
        try:
            number = names["reward"](copy.deepcopy(response))
        except Exception as error:  # a user's mistake
            problem = f"reward raised {type(error).__name__}: {error}"
            raise UserError(f"{path}: id {quote(question_id)}: {problem}") from None
        if type(number) not in (int, float) or not abs(number) <= sys.float_info.max:
            raise UserError(f"{path}: id {quote(question_id)}: reward returned {quote(number)}, not a finite number")
        return float(number)

    return own


if __name__ == "__main__":
    cli.run_script(main)
