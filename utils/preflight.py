"""Check data, models, GPUs and disk before a job: every check in one line, exit code 2 if any fails.

  python utils/preflight.py --inputs_addr test_ranked.json --model_addr Qwen/Qwen2.5-7B-Instruct \\
      --output_addr rag.json
  python utils/preflight.py --inputs_addr test.json --evaluator_llm Qwen/Qwen2.5-32B-Instruct --gpu_memory 80
  python utils/preflight.py --inputs_addr test_ranked.json --model_addr gpt-4o-mini --openai \\
      --api_key_addr key.txt --estimate

Nothing is fetched, written or changed. --estimate adds what each step of the benchmark would ask of each model.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from shutil import disk_usage
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evaluate_responses import STRATEGIES
from utils import cli
from utils.chat import PAPER_LENGTH
from utils.check_report import Report
from utils.cli import UserError
from utils.engines import read_api_key
from utils.estimate import add_estimate_arguments, describe_estimate
from utils.journal import read_journal
from utils.lock import Lock
from utils.memory import GB
from utils.model_checks import check_models
from utils.records import read_dataset
from utils.run_files import manifest_of, read_manifest

# An answer of 2048 tokens is about 10 kB; the journal and the output hold it as it came and as it was read, and the
# output is written beside its name first: six times that.
QUESTION_BYTES = 64_000


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--inputs_addr", nargs="+", metavar="FILE", help="datasets, ranked or not")
    parser.add_argument("--output_addr", nargs="+", metavar="FILE", help="where outputs are to go")
    group = parser.add_argument_group("model")
    group.add_argument("--model_addr", nargs="+", metavar="MODEL", help="hub names, folders, adapters, or API models")
    group.add_argument(
        "--evaluator_llm", metavar="MODEL", help="the judge, which evaluate_responses.py loads for its longest prompt"
    )
    group.add_argument(
        "--response_addr", nargs="+", metavar="FILE", help="responses it is to judge (default: of --max_tokens each)"
    )
    group.add_argument("--strategy", choices=list(STRATEGIES), default="aspect", help="how it judges (%(default)s)")
    cli.add_memory_arguments(group)
    group.add_argument(
        "--max_model_len",
        type=cli.positive_int,
        help=f"tokens of prompt and output together (default: {PAPER_LENGTH}, or the model's limit if less; "
        "a judge's: what its longest prompt needs)",
    )
    group.add_argument(
        "--gpu_memory",
        type=cli.non_negative_float,
        metavar="GB",
        help="compute for GPUs of 10^9 times this many bytes instead of those here (default: those here)",
    )
    cli.add_key_arguments(parser.add_argument_group("API"))
    add_estimate_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    check_flags(args)
    os.environ["HF_HUB_OFFLINE"] = "1"  # before the hub's library is imported: nothing is fetched
    report = Report()
    needs = STRATEGIES[args.strategy].needs if args.evaluator_llm else []
    needs = ["profile", "narrative", "rubric_aspects"] if args.estimate else needs
    datasets = [report.attempt(check_dataset, report, path, needs) for path in args.inputs_addr or []]
    records = [record for records in datasets if records for record in records]
    if args.openai:
        report.attempt(check_key, report, args.api_key_addr)
    elif args.model_addr or args.evaluator_llm:
        check_models(report, args, records)
    if args.cache_dir:
        report.attempt(check_cache, report, Path(args.cache_dir))
    folders = [report.attempt(check_output, report, Path(path)) for path in args.output_addr or []]
    check_space(report, [folder for folder in folders if folder], len(records))
    if args.estimate and not all(datasets):
        report.note("estimate: left out, for a dataset is not whole")
    elif args.estimate:
        for model in args.model_addr:
            report.attempt(print_estimate, args, model, records)
    return cli.USER_ERROR if report.failed else 0


def check_flags(args: argparse.Namespace) -> None:
    if not (args.inputs_addr or args.model_addr or args.evaluator_llm or args.output_addr or args.openai):
        raise UserError("nothing to check: give --inputs_addr, --model_addr, --evaluator_llm or --output_addr")
    if args.response_addr and not (args.inputs_addr and args.evaluator_llm):
        raise UserError("--response_addr needs --inputs_addr and --evaluator_llm")
    if args.strategy == "pairwise" and args.response_addr and len(args.response_addr) != 2:
        raise UserError(f"{len(args.response_addr)} --response_addr: --strategy pairwise takes two")
    if args.estimate and not (args.inputs_addr and args.model_addr):
        raise UserError("--estimate needs --inputs_addr and --model_addr")
    if (args.prompt_tokens_per_second is None) != (args.output_tokens_per_second is None):
        raise UserError("--prompt_tokens_per_second and --output_tokens_per_second: give both or neither")


def check_dataset(report: Report, path: str, needs: list[str]) -> list[dict[str, Any]]:
    """The questions, which have the fields that are read."""
    records = read_dataset(path, needs=needs)
    ranked = "ranked" if read_manifest(path) else "not ranked: no manifest beside it"
    report.ok(f"data {path}: {len(records)} questions, {ranked}")
    return records


def check_key(report: Report, path: str | None) -> None:
    read_api_key(path)
    report.ok(f"API key: in {path or 'OPENAI_API_KEY'}")


def check_cache(report: Report, folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"--cache_dir {folder}: no such folder")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UserError(f"--cache_dir {folder}: no permission to read it")
    report.ok(f"cache {folder}: readable, {size_text(disk_usage(folder).free)} free (a run takes none of it)")


def check_output(report: Report, path: Path) -> Path:
    """The folder that exists, at or above the output's; no folder is made and no file stays.

    Raises:
        UserError: the output cannot be written, or another run writes it.
    """
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; give the name of a file in it")
        folder = existing_folder(path)
        with tempfile.TemporaryFile(dir=folder):
            pass  # a file without a name, where the file system knows such
        if Path(f"{path}.lock").exists():
            Lock(path).release()
        report.ok(f"output {path}: {describe_output(path)}")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    return folder


def existing_folder(path: Path) -> Path:
    """The folder of `path`, or the nearest above it that exists: the others are made by the run."""
    return next(folder for folder in path.absolute().parents if folder.exists())


def describe_output(path: Path) -> str:
    """What a run would find here.

    Raises:
        UserError: a damaged journal.
    """
    if path.exists():
        manifest = manifest_of(path)
        if manifest is not None:
            if manifest.get("missing"):
                return f"not whole, {manifest['missing']} pieces are missing: the same command goes on"
            if "responses" in manifest["fingerprint"]:
                return "finished already: the same command judges only what has changed since"
            return "finished already: the same command leaves it alone"
        return "exists, and no manifest says that it is finished: a run may ask for --overwrite"
    journal = Path(f"{path}.journal.jsonl")
    if journal.exists() and b"\n" in journal.read_bytes():  # else a run died in its first line
        return f"begun, {len(read_journal(journal)[1])} pieces done: the same command goes on"
    return "can be written"


def check_space(report: Report, folders: list[Path], questions: int) -> None:
    """Every disk has room for the outputs that go there; `folders` has one for each output."""
    disks: dict[int, list[Path]] = {}
    for folder in folders:
        disks.setdefault(folder.stat().st_dev, []).append(folder)
    for its_folders in disks.values():
        report.attempt(check_disk, report, its_folders[0], len(its_folders) * max(questions, 1) * QUESTION_BYTES)


def check_disk(report: Report, folder: Path, need: int) -> None:
    free = disk_usage(folder).free
    what = f"disk of {folder}: {size_text(free)} free, the outputs there take up to {size_text(need)}"
    if free < need:
        raise UserError(f"{what}\n  free some, or give outputs on another disk")
    report.ok(what)


def size_text(size: int) -> str:
    return f"{size / GB:.1f} GB" if size >= GB else f"{size / 1e6:.2f} MB"


def print_estimate(args: argparse.Namespace, model: str, records: list[dict[str, Any]]) -> None:
    print(f"\n{describe_estimate(args, model, records)}")


if __name__ == "__main__":
    cli.run_script(main)
