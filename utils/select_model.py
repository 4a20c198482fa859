"""Link the best of several trained models, by the scores of their answers to a validation set.

  python utils/select_model.py --model_addr round_1/policy/last round_2/policy/last \\
      --score_addr round_1/validation_scores.json round_2/validation_scores.json --link_addr best

The scores must be by the same judge, on the same questions. The averages are those of a table, over the questions with
a score in every file. In a tie, the first model wins. chosen.json in its folder records which judge chose it, on which
questions, so that tables can note it.
"""

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError
from utils.base.manifest import manifest_of, settings_of
from utils.base.writing import check_could_write, replace_link, replacing, write_json
from utils.data.scores import judges_of, metric_behind, read_scores
from utils.models.model_folder import CHOSEN, ModelFolder
from utils.tables.averages import compare_averages


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
    cli.check_same_number(args, "model_addr", "score_addr")
    for folder in args.model_addr:
        if not Path(folder).is_dir():
            raise UserError(f"--model_addr {folder}: no such folder")
    link = Path(args.link_addr)
    if os.path.lexists(link) and not link.is_symlink():
        raise UserError(f"--link_addr {link}: exists and is not a link; choose another name")
    scores = {path: read_scores(path) for path in args.score_addr}
    refuse_swapped(args.model_addr, args.score_addr)
    averages, questions = compare_averages(scores)
    kind = next(iter(scores.values()))
    best = (min if metric_behind(kind).lower_is_better else max)(averages)
    chosen = averages.index(best)
    check_could_write(link.parent / "manifest.json")
    link.parent.mkdir(parents=True, exist_ok=True)
    model = os.path.realpath(args.model_addr[chosen])
    if len(args.model_addr) > 1:
        note_choice(Path(model), args.score_addr)
    replace_link(link, os.path.relpath(model, os.path.realpath(link.parent)))
    for number, (folder, score) in enumerate(zip(args.model_addr, averages, strict=True)):
        print(f"{score:z.4f}  {folder}{'  <- ' + args.link_addr if number == chosen else ''}")
    tie = f"; {averages.count(best)} models tie, and the first is chosen" if averages.count(best) > 1 else ""
    print(f"{questions}{tie}")
    return 0


def note_choice(folder: Path, score_addrs: list[str]) -> None:
    """Add the judges of these scores, and the hashes of the datasets that were answered, to the folder's `CHOSEN`."""
    before = ModelFolder(str(folder)).chosen
    judges, inputs = {*before.get("judges", ())}, {*before.get("inputs", ())}
    for path in score_addrs:
        judges |= judges_of(settings_of(path))
        inputs |= {settings_of(judged).get("inputs") for judged in (manifest_of(path) or {}).get("judged") or []}
    with replacing(folder / CHOSEN) as staged:
        write_json(staged, {"judges": sorted(judges), "inputs": sorted(inputs - {None})})


def refuse_swapped(folders: list[str], score_addrs: list[str]) -> None:
    """Raise UserError if, by the manifests of the judged responses, scores belong to another folder's model."""
    identities: dict[str, str] = {}
    for folder in folders:
        with suppress(UserError):  # not a model's folder, or an incomplete one
            identities[folder] = ModelFolder(folder).checked(safetensors_only=True).identity
    for folder, score_addr in zip(folders, score_addrs, strict=True):
        judged = (manifest_of(score_addr) or {}).get("judged") or []
        models = {settings_of(path).get("model") for path in judged} - {None, identities.get(folder)}
        if others := [other for other, identity in identities.items() if identity in models]:
            raise UserError(f"{score_addr}: has scores of {others[0]}, not of {folder}\n  list both in the same order")


if __name__ == "__main__":
    cli.run_script(main)
