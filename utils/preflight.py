"""Check data, models, GPUs and disk before a job: every check in one line, exit code 2 if any fails.

  python utils/preflight.py --inputs_addr test_ranked.json --step rag --model_addr Qwen/Qwen2.5-7B-Instruct \\
      --output_addr rag.json
  python utils/preflight.py --inputs_addr test.json --evaluator_llm Qwen/Qwen2.5-32B-Instruct --gpu_memory 80
  python utils/preflight.py --inputs_addr test_ranked.json --model_addr gpt-4o-mini --openai \\
      --api_key_addr key.txt --estimate
  python utils/preflight.py --command baselines.py --rag --model_addr Qwen/Qwen2.5-7B-Instruct \\
      --inputs_addr test_ranked.json --output_addr rag.json

What the data have to hold hangs on what reads them: a judge (--evaluator_llm), the --step that is named, every step of
--estimate. Where nothing says it, all that a step would refuse is a failure, and what the data lack is told.

Nothing is fetched, written or changed. --estimate adds what each step of the benchmark would ask of each model.
"""

import argparse
import os
import sys
from pathlib import Path
from shutil import disk_usage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks import metric_names, task_of
from utils.benchmarks.task import Record, Task
from utils.checks.commands import preflights_of
from utils.checks.estimate import describe_estimate
from utils.checks.models import check_models
from utils.checks.report import Report
from utils.cli.errors import UserError, first_five
from utils.files.journal_lines import read_journal
from utils.files.lock import Lock
from utils.files.manifest import is_ranked, manifest_of
from utils.files.writing import check_regular, probe_folder
from utils.generation.chat import PAPER_LENGTH, VERDICT_TOKENS
from utils.generation.engines import read_api_key
from utils.models.memory import GB
from utils.records.datasets import STEP_NEEDS, check_record, read_dataset, refuse_shared_ids
from utils.records.responses import match_responses, read_plans, read_responses, refuse_gaps

# An answer of 2048 tokens is about 10 kB; the journal and the output hold it as it came and as it was read, and the
# output is written beside its name first: six times that.
QUESTION_BYTES = 64_000


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add, without_effect = parser.add_argument, parser.without_effect
    add("--inputs_addr", nargs="+", metavar="FILE", help="datasets, ranked or not")
    add("--step", choices=list(STEP_NEEDS),
        help="what is to read them, a judge aside: ranking, training, a method's answers or a merge "
        "(default: judging with --evaluator_llm alone, else any step)")
    add("--output_addr", nargs="+", metavar="FILE", help="where outputs are to go")
    add("--plans_addr", metavar="FILE", help="plans that planpers.py is to answer with")

    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--model_addr", nargs="+", metavar="MODEL", help="hub names, folders, adapters, or API models")
    add("--evaluator_llm", metavar="MODEL", help="the judge, which evaluate_responses.py loads for its longest prompt")
    add("--response_addr", nargs="+", metavar="FILE", help="responses it is to judge (default: of --max_tokens each)")
    add("--strategy", choices=metric_names(), help="how it judges (default: the benchmark's first)")
    cli.add_memory_arguments(group)
    cli.add_reasoning_argument(group)
    add("--max_model_len", type=cli.positive_int,
        help=f"tokens of prompt and output together (default: {PAPER_LENGTH}, or the model's limit if less; "
        "a judge's: what its longest prompt needs)")
    cli.add_template_argument(add)
    add("--choose", choices=["likelihood"],
        help="baselines.py chooses an option by this instead of generating text, so no thoughts need room (off)")
    add("--verdicts", choices=["probability"],
        help="evaluate_responses.py takes verdicts from this instead of generated text, so no thoughts need room (off)")
    add("--max_tokens_verdict", type=cli.positive_int, default=VERDICT_TOKENS,
        help="tokens a verdict may have (%(default)s; more for a thinking judge)")
    add("--gpu_memory", type=cli.non_negative_float, metavar="GB",
        help="compute for GPUs of 10^9 times this many bytes instead of those here (default: those here)")
    of_judge, of_thoughts = "--max_tokens_verdict --verdicts", "--choose --max_tokens_verdict --verdicts"
    without_effect(f"--strategy {of_judge}", lambda args: args.evaluator_llm is None,
        "without --evaluator_llm", "give --evaluator_llm")
    without_effect("--choose", lambda args: args.model_addr is None, "without --model_addr", "give --model_addr")
    without_effect("--max_tokens_verdict", lambda args: args.verdicts is not None,
        "with --verdicts, for no text is generated", "leave out --verdicts")
    cli.add_key_arguments(parser.add_argument_group("API"))
    without_effect("--api_key_addr", lambda args: not args.openai, "without --openai", "give --openai")
    memory_flags = "--tensor_parallel_size --data_parallel_size --gpu_memory_utilization --dtype --gpu_memory"
    memory_flags += " --chat_template_kwargs"
    without_effect(f"{memory_flags} {of_thoughts}", lambda args: args.openai, "with --openai, for no model is loaded")
    without_effect(memory_flags, lambda args: not (args.model_addr or args.evaluator_llm),
        "without a model", "give --model_addr or --evaluator_llm")

    add = parser.add_argument_group("estimate").add_argument
    add("--estimate", action="store_true", help="count prompts and tokens of every step, for each model")
    add("--num_contexts", type=cli.non_negative_int, default=10, help="posts in a prompt (%(default)s)")
    for flag, tokens, what in (
        ("--max_tokens", 2048, "an output may have"),
        ("--max_tokens_plan", 512, "a plan may have"),
        ("--answer_tokens", 400, "that answers are assumed to have"),
        ("--plan_tokens", 40, "that plans are assumed to have"),
        ("--verdict_tokens", 15, "that verdicts are assumed to have"),
    ):
        add(flag, type=cli.positive_int, default=tokens, help=f"tokens {what} (%(default)s)")
    without_effect("--num_contexts --max_tokens_plan --answer_tokens --plan_tokens --verdict_tokens",
        lambda args: not args.estimate, "without --estimate", "give --estimate")
    without_effect("--max_tokens",
        lambda args: not args.estimate and (args.evaluator_llm is None or args.response_addr is not None)
        and (args.openai or args.model_addr is None),
        "without --estimate, a model that is loaded, or a judge whose responses are still to be made",
        "give --estimate")
    parser.add_argument("--command", nargs=argparse.PARSER, metavar="WORD",
        help="after all other flags: a script with its flags, which say all of the above (default: the flags do)")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    lines = [words]
    if "--command" in words:
        place = words.index("--command")
        lines = [[*words[:place], *flags] for flags in preflights_of(words[place + 1 :])]
    return max([check(build_parser().parse_args(line)) for line in lines])


def check(args: argparse.Namespace) -> int:
    check_flags(args)
    args.why_offline = go_offline()
    report, paths = Report(), args.inputs_addr or []
    found = [(path, report.attempt(check_dataset, report, path, args)) for path in paths]
    datasets = [(path, records) for path, records in found if records]
    are_whole = len(datasets) == len(paths)
    records = [record for _, its_records in datasets for record in its_records]
    if args.step != "train":  # whose files go into no table
        report.attempt(check_ids, datasets)
    if args.openai:
        report.attempt(check_key, report, args.api_key_addr)
    elif args.model_addr or args.evaluator_llm:
        check_models(report, args, records)
    for path in args.response_addr or [] if are_whole else []:
        report.attempt(check_responses, report, path, [its_records for _, its_records in datasets])
    if args.plans_addr:
        report.attempt(check_plans, report, args.plans_addr, records)
    if args.cache_dir:
        report.attempt(check_cache, report, Path(args.cache_dir))
    check_outputs(report, args.output_addr or [], len(records))
    if args.estimate and not are_whole:
        report.note("estimate: left out, for a dataset is not whole")
    elif args.estimate:
        for model in args.model_addr:
            if text := report.attempt(describe_estimate, args, model, records):
                print(f"\n{text}")
    return cli.USER_ERROR if report.failed else 0


def check_flags(args: argparse.Namespace) -> None:
    if not (args.inputs_addr or args.model_addr or args.evaluator_llm or args.output_addr or args.openai):
        raise UserError("nothing to check: give --inputs_addr, --model_addr, --evaluator_llm or --output_addr")
    if args.response_addr and not (args.inputs_addr and args.evaluator_llm):
        raise UserError("--response_addr needs --inputs_addr and --evaluator_llm")
    if args.plans_addr and not args.inputs_addr:
        raise UserError("--plans_addr needs --inputs_addr")
    if args.strategy == "pairwise" and args.response_addr and len(args.response_addr) != 2:
        raise UserError(f"{len(args.response_addr)} --response_addr: --strategy pairwise takes two")
    if args.estimate and not (args.inputs_addr and args.model_addr):
        raise UserError("--estimate needs --inputs_addr and --model_addr")


def go_offline() -> str:
    """Have nothing asked of the hub, whose library is imported later; returns why, in words."""
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")  # as that library reads it
    os.environ["HF_HUB_OFFLINE"] = "1"
    return "HF_HUB_OFFLINE is set" if is_offline else "a check fetches nothing"


def check_key(report: Report, path: str | None) -> None:
    read_api_key(path)
    report.ok(f"API key: in {path or 'OPENAI_API_KEY'}")


def check_dataset(report: Report, path: str, args: argparse.Namespace) -> list[Record]:
    """The questions, which have the fields that are going to be read; else it is said what reads those they lack."""
    judging = [args.strategy or "score"] if args.evaluator_llm else []
    needs = ("profile", "gold_plan", "score") if args.estimate else STEP_NEEDS[args.step or "none"]
    is_told = args.estimate or args.step is not None or (args.evaluator_llm and not args.model_addr)
    records = read_dataset(path, [*judging, *needs])
    task = task_of(path, records)
    others = [] if is_told else list(task.fields)
    for number, record in enumerate(records if others else []):
        check_record(record, f"{path}: record {number}", [field for field in others if field in record])
    report.ok(f"data {path}: {len(records)} questions, {'ranked' if is_ranked(path) else 'not ranked'}")
    for field in others:
        if lacking := sum(field not in record for record in records):
            report.note(f"data {path}: {lacking} questions have no {field!r}, which {readers_of(task, field)} read")
    return records


def readers_of(task: Task, field: str) -> str:
    if field == "profile":
        return "ranking, training, RAG and PlanPers"
    readers = ["training", "gold plans"] if field in task.gold_plan_needs else []
    if units := [metric.unit for metric in task.metrics.values() if field in metric.needs]:
        readers.append("judges" if len(units) == len(task.metrics) else f"judges of {units[0]}s")
    return " and ".join([", ".join(readers[:-1]), readers[-1]] if len(readers) > 1 else readers)


def check_ids(datasets: list[tuple[str, list[Record]]]) -> None:
    """Raise UserError where an id stands in two of these files, unless they are one dataset: ranked, or a part."""
    questions: dict[str, dict[str, str]] = {}
    for path, records in datasets:
        its = {record["id"]: record["question"] for record in records}
        if not any(its.items() <= other.items() or other.items() <= its.items() for other in questions.values()):
            questions[path] = its
    refuse_shared_ids(questions)


def check_responses(report: Report, path: str, datasets: list[list[Record]]) -> None:
    """Raise UserError where evaluate_responses.py would; a note where it would without --allow_partial or a --limit.

    Of several datasets a file answers the one that it has most of the ids of.
    """
    responses = read_responses(path, task_of(path, datasets[0]))
    records = max(datasets, key=lambda records: sum(record["id"] in responses for record in records))
    ids = [record["id"] for record in records]
    match_responses(records, responses, path, ids, allow_partial=True)
    try:
        refuse_gaps(path)
        match_responses(records, responses, path, ids)
    except UserError as error:
        report.note(str(error))


def check_plans(report: Report, path: str, records: list[Record]) -> None:
    """Raise UserError where planpers.py cannot read them; a note where it would need a --limit."""
    plans = read_plans(path)
    if missing := [record["id"] for record in records if record["id"] not in plans]:
        report.note(f"{path}: lacks the plans of {len(missing)} of {len(records)} questions: {first_five(missing)}")
    else:
        report.ok(f"plans {path}: for all {len(records)} questions")


def check_cache(report: Report, folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"--cache_dir {folder}: no such folder")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UserError(f"--cache_dir {folder}: no permission to read it")
    report.ok(f"cache {folder}: readable, {size_text(disk_usage(folder).free)} free (a run takes none of it)")


def check_outputs(report: Report, paths: list[str], questions: int) -> None:
    """Can each output be written, and has every disk room for those that go there? Nothing is made, no file stays."""
    disks: dict[int, list[Path]] = {}  # by device a folder for each output: what exists of the path to it
    for path in map(Path, paths):
        if folder := report.attempt(check_output, report, path):
            disks.setdefault(folder.stat().st_dev, []).append(folder)
    for folders in disks.values():
        report.attempt(check_room, report, folders[0], len(folders) * max(questions, 1) * QUESTION_BYTES)


def check_output(report: Report, path: Path) -> Path:
    """The folder that exists, at or above the output's; UserError where a run could not write it, or another does."""
    try:
        folder = probe_folder(path)
        if Path(f"{path}.lock").exists():
            Lock(path).release()
        report.ok(f"output {path}: {describe_output(path)}")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    return folder


def check_room(report: Report, folder: Path, need: int) -> None:
    free = disk_usage(folder).free
    what = f"disk of {folder}: {size_text(free)} free, the outputs there take up to {size_text(need)}"
    if free < need:
        raise UserError(f"{what}\n  free some, or give outputs on another disk")
    report.ok(what)


def describe_output(path: Path) -> str:
    """What a run would find here; UserError over a damaged journal."""
    if not path.exists():
        journal = Path(f"{path}.journal.jsonl")
        check_regular(journal)
        if journal.exists() and b"\n" in journal.read_bytes():  # else a run died in its first line
            return f"begun, {len(read_journal(journal)[1])} pieces done: the same command goes on"
        return "can be written"
    manifest = manifest_of(path)
    if manifest is None:
        return "exists, and no manifest says that it is finished: a run may ask for --overwrite"
    if manifest.get("missing"):
        return f"not whole, {manifest['missing']} pieces are missing: the same command goes on"
    is_score_file = "responses" in manifest["fingerprint"]
    rest = "judges only what has changed since" if is_score_file else "leaves it alone"
    return f"finished already: the same command {rest}"


def size_text(size: int) -> str:
    return f"{size / GB:.1f} GB" if size >= GB else f"{size / 1e6:.2f} MB"


if __name__ == "__main__":
    cli.run_script(main)
