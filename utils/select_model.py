"""Link the best of several trained models, by the scores of their answers to a validation set.

  python utils/select_model.py --model_addr round_1/policy/last round_2/policy/last \\
      --score_addr round_1/validation_scores.json round_2/validation_scores.json --link_addr best

The scores must be of the same judge and the same questions. In a tie, the first model is taken.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks import tasks
from utils.cli import UserError
from utils.files.writing import check_writable, replace_link
from utils.records.scores import Scores, read_scores
from utils.tables.system_scores import check_same_judge


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--model_addr", required=True, nargs="+", metavar="DIR", help="the models' folders")
    add("--score_addr", required=True, nargs="+", metavar="FILE", help="a score file per model, in the same order")
    add("--link_addr", required=True, metavar="LINK", help="symbolic link to make to the best model's folder")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if len(args.model_addr) != len(args.score_addr):
        given = f"{len(args.model_addr)} --model_addr, {len(args.score_addr)} --score_addr"
        raise UserError(f"{given}: give as many of each")
    for folder in args.model_addr:
        if not Path(folder).is_dir():
            raise UserError(f"--model_addr {folder}: no such folder")
    link = Path(args.link_addr)
    if os.path.lexists(link) and not link.is_symlink():
        raise UserError(f"--link_addr {link}: not a link; give another name")
    scores = {path: read_scores(path) for path in args.score_addr}
    best = choose(scores)
    check_writable(link.parent / "manifest.json", links=True)
    replace_link(link, os.path.relpath(os.path.realpath(args.model_addr[best]), os.path.realpath(link.parent)))
    for number, (folder, its) in enumerate(zip(args.model_addr, scores.values(), strict=True)):
        print(f"{its['score']:.4f}  {folder}{'  <- ' + args.link_addr if number == best else ''}")
    return 0


def choose(scores: dict[str, Scores]) -> int:
    """Return the number of the best model; UserError if the scores are not comparable."""
    check_same_judge(scores)
    first, *others = [[entry["id"] for entry in its["per_question_scores"]] for its in scores.values()]
    for path, ids in zip(list(scores)[1:], others, strict=True):
        if set(ids) != set(first):
            raise UserError(f"{path}: scores of other questions than {next(iter(scores))}; judge the same ones")
    for path, its in scores.items():
        if its["score"] is None:
            raise UserError(f"{path}: has no score, because no question was scored")
    kind = next(iter(scores.values()))
    lower_is_better = tasks()[kind["task"]].metrics[kind["strategy"]].lower_is_better
    found = [its["score"] for its in scores.values()]
    return found.index((min if lower_is_better else max)(found))


if __name__ == "__main__":
    cli.run_script(main)
