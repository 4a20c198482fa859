"""Draw the questions of one round of training from a dataset.

  python utils/draw_questions.py --input_dataset_addr train_ranked.json --questions_per_round 1000 --round 2 \\
      --output_dataset_addr train_round_2.json

All questions are drawn before any is repeated: they are shuffled once, and each round takes the next ones, beginning
again after the last. Questions of a ranked dataset stay ranked. A finished file is skipped.
"""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun
from utils.base.made import Made, State, publish_together, say_finished
from utils.base.manifest import describe_run, file_hash, read_manifest
from utils.benchmarks.checks import Record
from utils.benchmarks.personamem.contexts import open_profile, reordered
from utils.data.datasets import DatasetFile


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--input_dataset_addr", required=True, metavar="FILE", help="dataset to draw from, ranked or not")
    add("--output_dataset_addr", required=True, metavar="FILE", help="output file, the drawn questions")
    add("--questions_per_round", required=True, type=cli.positive_int, metavar="N", help="questions per round")
    add("--round", type=cli.positive_int, default=1, metavar="N", help="number of the round, from 1 (%(default)s)")
    add("--seed", type=int, default=0, help="random seed (%(default)s)")
    add("--overwrite", action="store_true",
        help="replace a file that was drawn with other settings, or that another program wrote (off)")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    source, path, size = args.input_dataset_addr, Path(args.output_dataset_addr), args.questions_per_round
    cli.check_outputs([str(path)], [source])
    source_manifest = read_manifest(source) or {"settings": {}}
    drawn = {"from": file_hash(source), "questions_per_round": size, "round": args.round, "seed": args.seed}
    settings = source_manifest["settings"] | {"drawn": drawn}
    output = Made(path, settings, args.overwrite)
    if output.check() is State.CURRENT:
        say_finished(path)
        return 0
    dataset = DatasetFile(source)
    ids = [record["id"] for record in dataset.scan()]
    if size > len(ids):
        raise UserError(f"--questions_per_round {size}: {source} has only {count_noun(len(ids), 'question')}")
    random.Random(args.seed).shuffle(ids)
    start = (args.round - 1) * size
    chosen = {ids[place % len(ids)] for place in range(start, start + size)}
    numbers = [number for number, question_id in enumerate(dataset.ids) if question_id in chosen]
    figures = {"dataset": source_manifest["dataset"]} if "dataset" in source_manifest else {}
    records = (moved(dataset[number], source, path) for number in numbers)
    publish_together({output: records}, describe_run(vars(args), settings, None, **figures))
    print(f"{path}: {len(numbers)} of {count_noun(len(ids), 'question')}")
    return 0


def moved(record: Record, source: str, path: Path) -> Record:
    """Return a record of `source` as stored in the dataset `path`, perhaps in another folder than the histories."""
    if not isinstance(record.get("profile"), dict):
        return record
    profile = open_profile(record, Path(source))
    return {**record, "profile": reordered(profile, range(len(profile)), path)}


if __name__ == "__main__":
    cli.run_script(main)
