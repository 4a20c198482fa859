"""Download a benchmark: fetch its original files, check them, and write one file per split for the other commands.

  python utils/download_datasets.py --output_dir data                                     LaMP-QA
  python utils/download_datasets.py --dataset LaMP-4 --setting time --output_dir data     LaMP-1 to LaMP-7: user, time
  python utils/download_datasets.py --dataset LongLaMP-review --output_dir data           user, temporal
  python utils/download_datasets.py --dataset PersonaMem-32k --output_dir data            32k, 128k, 1M
  python utils/download_datasets.py --dataset PersonaMem-v2-32k --output_dir data         32k, 128k
  python utils/download_datasets.py --dataset BESPOKE --output_dir data                   all histories, chat, search
  python utils/download_datasets.py --dataset PersonalizedRewardBench --output_dir data   pairs of responses

LaMP-QA's files, one for each of three categories and three splits, are JSON arrays named <category>_<split>.json. LaMP
and LongLaMP have <dataset>_<setting>_<split>.json. PersonaMem has PersonaMem_<size>.json, with the histories that its
questions share in PersonaMem_<size>_contexts.jsonl; PersonaMem-v2's names begin with PersonaMem-v2. BESPOKE has
BESPOKE_all.json, and the responses that people scored in BESPOKE_meta_test.json, ..._responses.json and
..._ratings.json. Personalized RewardBench has LaMP-QA's test questions in PersonalizedRewardBench_<category>.json, with
the responses to them in ..._chosen.json and ..._rejected.json. Finished files are skipped, so running the same command
again fetches only the missing ones. <file>.manifest.json has each file's origin (for a dataset on the hub, the commit),
number of questions and hashes. Without internet, read the original files from a folder with --source_dir, or set
HF_HUB_OFFLINE=1 to use the files that an earlier run saved in --cache_dir.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun
from utils.base.manifest import describe_run, read_manifest
from utils.base.progress import announce
from utils.base.web_files import Server
from utils.base.writing import Lock, check_could_write
from utils.benchmarks import FIRST, tasks
from utils.benchmarks.published import AVOCADO, OnHub, OnServer, Pairs, Published, Source
from utils.benchmarks.task import Task
from utils.data import downloads
from utils.data.downloads import compare_ids, make_file
from utils.models.hub import HubFailedError, UnreachableError, check_cache_dir


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    names = [name for name, (_, parts) in datasets().items() if parts]
    add("--dataset", default=FIRST, choices=names, metavar="NAME", help=f"{', '.join(names)} (%(default)s)")
    add("--setting",
        help="user or time for LaMP, user or temporal for LongLaMP: split by user or by time (user); for PersonaMem-v2 "
        "train or validation, instead of its benchmark table (off); for BESPOKE chat or search (both histories)")
    add("--dataset_save_directory", "--output_dir", required=True, metavar="DIR", help="output folder")
    add("--source_dir", metavar="DIR", help="folder with the original files (default: download them)")
    add("--cache_dir", default="./cache", help="folder for downloaded original files (%(default)s)")
    add("--dataset_name", help="dataset on the hub, or a folder with a copy of it (default: the published one)")
    add("--source_url", metavar="URL", help="server with LaMP's folders (default: the published one)")
    add("--revision", help="branch, tag or commit on the hub (default: the newest)")
    add("--skip_invalid", action="store_true",
        help="skip questions whose history ends at a message that does not exist (off: an error)")
    add("--overwrite", action="store_true", help="replace an output that was made with other settings")
    def is_fetched(args: argparse.Namespace, kind: type[Published]) -> bool:
        return args.source_dir is None and isinstance(parts_of(args.dataset, None)[0], kind)

    without_effect = parser.without_effect
    without_effect("--dataset_name --source_url", lambda args: args.source_dir is not None, "with --source_dir")
    elsewhere = "for a dataset that is not on the hub"
    without_effect("--dataset_name --revision", lambda args: is_fetched(args, OnServer), elsewhere)
    without_effect("--source_url", lambda args: is_fetched(args, OnHub), "for a dataset on the hub")
    # fmt: on
    return parser


@cache
def datasets() -> dict[str, tuple[Task, Mapping[str, Sequence[Published]]]]:
    """Return each dataset's task and published parts, by name: the tasks' own datasets, then further ones."""
    further = {name: (task, parts) for task in tasks().values() for name, parts in task.files.also_published().items()}
    return {name: (task, task.files.published()) for name, task in tasks().items()} | further


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_cache_dir(args.cache_dir)
    task, folder = datasets()[args.dataset][0], Path(args.dataset_save_directory)
    parts = parts_of(args.dataset, args.setting)
    outputs = {folder / f"{part.name}_{split}.json": (part, split) for part in parts for split in part.questions}
    if not args.overwrite:
        outputs = {path: what for path, what in outputs.items() if not is_the_users_own(path)}
    if not outputs:
        return 0
    check_could_write(next(iter(outputs)))
    try:
        source = find_source(parts[0], args)
    except (UnreachableError, HubFailedError) as error:
        if args.overwrite or not all(path.exists() for path in outputs):
            raise
        announce(f"note: {error}")
        print(f"{folder}: all files exist; skipped, not compared with the hub")
        return 0
    if not args.overwrite:
        check_commits(outputs, source)
    run = describe_run(vars(args), {}, None)  # once, because this takes longer than writing a small file
    for path, (part, split) in outputs.items():
        lock = Lock(path)
        try:
            make_file(task, part, split, source, path, args.overwrite, run, args.skip_invalid)
        finally:
            lock.release()
        if isinstance(part, Pairs):
            compare_ids(path, folder / f"{split}_test.json")
    return 0


def parts_of(dataset: str, setting: str | None) -> list[Published]:
    """Return a dataset's published parts in this setting (None: the first one); UserError for an unknown setting."""
    published = datasets()[dataset][1]
    if setting is None:
        setting = next(iter(published))
    if setting not in published:
        settings = " and ".join(filter(None, published)) or "none"
        raise UserError(f"--setting {setting}: {dataset} has no such setting; its settings: {settings}")
    return published[setting]


def find_source(part: Published, args: argparse.Namespace) -> Source | Server:
    """Return the source of the original files; UserError if there is none."""
    if args.source_dir is not None:
        return downloads.find_folder(args.source_dir, "--source_dir", args.revision)
    place = (args.source_url if isinstance(part, OnServer) else args.dataset_name) or part.at
    if place is None:
        raise UserError(
            f"{part.name}: its texts are from the Avocado corpus, which needs a licence and cannot be downloaded\n"
            f"  build its files as described in {AVOCADO}, then pass their folder as --source_dir"
        )
    if not isinstance(part, OnServer):
        return downloads.find_source(place, args.revision, args.cache_dir)
    if not place.startswith(("http://", "https://")):
        raise UserError(f"--source_url {place}: not an address; it must begin with http:// or https://")
    return Server(place, args.cache_dir)


def is_the_users_own(path: Path) -> bool:
    """Return whether a file exists without a manifest, and so is not from this script; print a note if so."""
    is_own = path.is_file() and read_manifest(path) is None
    if is_own:
        print(f"{path}: already exists; skipped. Its origin is unknown, because it has no manifest")
    return is_own


def check_commits(outputs: Iterable[Path], source: Source | Server) -> None:
    """Raise UserError if finished files are from another commit than the source, because commits must not be mixed."""
    manifests = {path: read_manifest(path) for path in outputs if path.exists()}
    commits = {path: manifest["settings"].get("commit") for path, manifest in manifests.items() if manifest}
    others = [path for path, commit in commits.items() if commit not in (None, source.commit)]
    if others and source.commit is not None:
        path, commit = others[0], commits[others[0]]
        more = f" (and {count_noun(len(others) - 1, 'more file')} from another commit)" if len(others) > 1 else ""
        raise UserError(
            f"{path}: made from commit {commit}; {source.name} is at {source.commit}{more}\n"
            f"  use --revision {commit} to continue with that commit, or --overwrite to make all files again"
        )


if __name__ == "__main__":
    cli.run_script(main)
