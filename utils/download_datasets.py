"""Download LaMP-QA: its three categories x three splits, a JSON array each, named <category>_<split>.json.

  python utils/download_datasets.py --dataset_save_directory data --cache_dir ./cache

A file that is there already is left alone, so the same command again fetches what is missing.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.cli import UserError
from utils.models import check_cache_dir
from utils.run_files import prepare_output, write_atomically

# Questions a file holds by the paper's Table 1.
QUESTIONS = {
    ("Art_and_Entertainment", "train"): 9349,
    ("Art_and_Entertainment", "validation"): 801,
    ("Art_and_Entertainment", "test"): 767,
    ("Lifestyle_and_Personal_Development", "train"): 7370,
    ("Lifestyle_and_Personal_Development", "validation"): 892,
    ("Lifestyle_and_Personal_Development", "test"): 989,
    ("Society_and_Culture", "train"): 7614,
    ("Society_and_Culture", "validation"): 810,
    ("Society_and_Culture", "test"): 1074,
}


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--dataset_save_directory", required=True, metavar="DIR", help="where the nine files go")
    parser.add_argument("--cache_dir", default="./cache", help="where the hub's own files are kept (%(default)s)")
    parser.add_argument(
        "--dataset_name", default="alireza7/LaMP-QA", help="hub name, or a folder with a copy of it (%(default)s)"
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: the newest)")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_cache_dir(args.cache_dir)
    for (category, split), expected in QUESTIONS.items():
        path = Path(args.dataset_save_directory) / f"{category}_{split}.json"
        if path.exists():
            print(f"{path}: already there, left alone")
            continue
        prepare_output(path, {}, overwrite=False)
        records = fetch(args, category, split)
        write_atomically(path, json.dumps(records, ensure_ascii=False, indent=4) + "\n")
        note = "" if len(records) == expected else f"; the paper's Table 1 says {expected}"
        print(f"{path}: {len(records)} questions{note}")
    return 0


def fetch(args: argparse.Namespace, category: str, split: str) -> list[dict]:
    """One split of one category, from the hub or a local copy; UserError where it cannot be had."""
    from datasets import disable_progress_bars, load_dataset
    from datasets.exceptions import DatasetGenerationError
    from datasets.utils.logging import set_verbosity
    from huggingface_hub.errors import HfHubHTTPError

    set_verbosity(logging.CRITICAL)  # it logs a whole traceback for a damaged file; the outcome is told below
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        dataset = load_dataset(
            args.dataset_name, category, split=split, cache_dir=args.cache_dir, revision=args.revision
        )
    # Not found, not reachable, no such category or split, a damaged file; an empty one is the StopIteration.
    except (OSError, ValueError, HfHubHTTPError, DatasetGenerationError, StopIteration) as error:
        reason = (str(error.__cause__ or error).strip() or "an empty file").splitlines()[0]
        raise UserError(
            f"{args.dataset_name}, {category}, {split}: cannot be downloaded: {reason}\n"
            "  without internet copy the dataset's folder here and give it as --dataset_name"
        ) from None
    return dataset.to_list()


if __name__ == "__main__":
    cli.run_script(main)
