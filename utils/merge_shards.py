"""Merge what shards wrote into one file, in the order and the form that a single process would have given it.

  python utils/merge_shards.py --inputs_addr test_ranked.json --output_addr rag.json \\
      --shard_addr rag_0.json rag_1.json rag_2.json rag_3.json

Responses, plans and scores, as outputs or as journals of unfinished runs (*.journal.jsonl), of any number of shards
and of different numbers of them. A merge that is not whole is refused, with what is missing. The merged file has a
journal too: the same command without shards finds it finished.

Of scores made with --allow_partial, whole is what has a response in the file that was judged. That file is looked for
where the shards' manifests say it was, and must not have changed since.
"""

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import first_five
from utils.files.fingerprints import REPORTED, differences
from utils.files.journal import Key, journal_path
from utils.files.journal_lines import read_journal
from utils.files.manifest import file_hash, manifest_of, read_manifest
from utils.files.outputs import OutputFile, Pieces, is_failed
from utils.generation.driver import describe_records
from utils.records.datasets import select_questions
from utils.records.responses import collect_responses, read_plans, read_responses
from utils.records.scores import carried, score_file
from utils.records.stream import read_questions


@dataclass(frozen=True)
class Shard:
    """What one shard has finished."""

    path: str
    fingerprint: dict[str, Any]
    entries: Pieces
    manifest: dict[str, Any]  # empty where it is unfinished


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="dataset that the shards worked on")
    add("--shard_addr", required=True, nargs="+", metavar="FILE", help="outputs or journals of shards")
    add("--output_addr", required=True, metavar="FILE", help="where the merged file goes")
    add("--response_addr", nargs="+", metavar="FILE",
        help="what was judged, for scores made with --allow_partial (default: where the shards' manifests say)")
    add = parser.add_argument_group("run").add_argument
    add("--limit", type=cli.positive_int, metavar="N", help="only the first N questions (default: all)")
    add("--overwrite", action="store_true", help="replace an output that was made with other settings")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.check_outputs([args.output_addr], [args.inputs_addr, *args.shard_addr])
    shards = [read_shard(path) for path in args.shard_addr]
    fingerprint = shared_fingerprint(shards)
    kind, strategy = kind_of(fingerprint, shards[0].path), fingerprint.get("strategy")
    records = read_questions(args.inputs_addr, [strategy] if strategy else [])
    task = task_of(args.inputs_addr, records)
    if fingerprint["inputs"] != file_hash(args.inputs_addr):
        raise UserError(f"{args.inputs_addr}: not the dataset that {shards[0].path} was made from")
    if strategy is not None:
        task = task.asking(strategy, fingerprint.get("verdicts"), fingerprint.get("num_verdicts", 1))
    entries = merge_entries(shards)
    questions = select_questions(records, args.limit)
    if strategy is not None and any(shard.manifest.get("arguments", {}).get("allow_partial") for shard in shards):
        # Kept in the manifest, for a merge of merged files.
        args.response_addr, args.allow_partial = judged_responses(shards, args.response_addr), True
        cli.check_outputs([args.output_addr], args.response_addr)
        responses = [read_responses(path, task) for path in args.response_addr]
        questions = [question for question in questions if all(question["id"] in one for one in responses)]
    if strategy is not None:
        keys = [key for question in questions for key in task.metrics[strategy].keys(question)]
        asked = {question["id"] for question in questions}
        collect = partial(score_file, task, strategy, records, asked, head=carried_on(shards, args, task, questions))
    else:  # as many outputs a question as any question has
        number = max((key[1] for key in entries), default=0) + 1
        keys = [(question["id"], i) for question in questions for i in range(number)]
        collect = partial(collect_responses, records, field="aspects" if kind == "plans" else "output")
    check_complete(args, records, keys, entries)

    output = OutputFile(args.output_addr, fingerprint, keys, collect, "changed" if args.overwrite else None)
    output.open()
    held = output.pieces if output.journal else entries  # of an earlier merge
    usable = [key for key in held.keys() & entries if not is_failed(held[key])]
    if any(held[key]["value"] != entries[key]["value"] for key in usable):  # the shards were run again
        if not args.overwrite:
            raise UserError(
                f"{args.output_addr}: an earlier merge, of other answers than the shards have now\n"
                "  give another output, or --overwrite to replace it"
            )
        output.journal.forget()
    new = [key for key in keys if key not in held or (is_failed(held[key]) and not is_failed(entries[key]))]
    if not new and output.is_finished():
        return 0
    for key in new:
        output.journal.add(key, entries[key])
    figures = {"counts": {kind: len(keys)}, **describe_records(output.pieces.values()), **shared_figures(shards)}
    costs = [shard.manifest.get("cost_usd") for shard in shards]
    if any(cost is not None for cost in costs):
        figures["cost_usd"] = None if None in costs else round(sum(costs), 6)
    output.publish(vars(args), None, **figures, merged=[shard.path for shard in shards])
    print(f"{args.output_addr}: {len(keys)} {kind} of {len(shards)} shards, {len(questions)} questions")
    return 0


def read_shard(path: str) -> Shard:
    """A shard's journal; for an output whose journal was deleted, the output.

    UserError where the file is missing or damaged, was not written by one of the scripts, or was changed since.
    """
    output = path.removesuffix(".journal.jsonl")
    journal = journal_path(output)
    if journal.exists():
        fingerprint, entries = read_journal(journal)
        manifest = read_manifest(output)
        is_its = manifest is not None and not differences(manifest["fingerprint"], fingerprint)  # not an earlier run's
        return Shard(path, fingerprint, entries, manifest if is_its else {})
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file")
    manifest = manifest_of(path)
    if manifest is None:
        raise UserError(
            f"{path}: has no manifest, or was changed since it was written; only whole shards can be merged"
        )
    fingerprint = manifest["fingerprint"]
    kind = kind_of(fingerprint, path)
    if kind == "scores":
        raise UserError(f"{path}: its journal was deleted; scores are merged from journals ({journal.name})")
    field, samples = ("aspects", read_plans(path)) if kind == "plans" else ("output", read_responses(path))
    entries = {
        (question_id, i): {"value" if name == field else name: value for name, value in one.items()}
        for question_id, outputs in samples.items()
        for i, one in enumerate(outputs)
    }
    return Shard(path, fingerprint, entries, manifest)


def kind_of(fingerprint: dict[str, Any], path: str) -> str:
    """What the file holds: "scores", "plans" or "answers"."""
    script = fingerprint.get("script")
    if script == "evaluate_responses.py":
        return "scores"
    if script in ("baselines.py", "planpers.py"):
        return "answers" if "model" in fingerprint else "plans"
    raise UserError(f"{path}: only what baselines.py, planpers.py and evaluate_responses.py write can be merged")


def shared_fingerprint(shards: list[Shard]) -> dict[str, Any]:
    first = max(shards, key=lambda shard: REPORTED in shard.fingerprint)  # to compare with one that knows
    for shard in shards:
        if differing := differences(first.fingerprint, shard.fingerprint):
            raise UserError(f"{shard.path}: made with other settings than {first.path}: {differing}")
    return first.fingerprint


def shared_figures(shards: list[Shard]) -> dict[str, Any]:
    """What all shards' manifests say alike of how they were made, which their fingerprints don't; else None."""
    shared = {}
    for name in ("batch_invariant", "judged", "answers"):
        told = [shard.manifest.get(name) for shard in shards]
        if any(name in shard.manifest for shard in shards):
            shared[name] = told[0] if told.count(told[0]) == len(told) else None
    return shared


def judged_responses(shards: list[Shard], response_addr: list[str] | None) -> list[str]:
    """The response file that these scores were made from, or the two of a pairwise comparison in their order.

    It is looked for in `response_addr`, else where the shards' manifests say, by its hash: others may be among them.
    UserError where it is not there, or was changed since it was judged.
    """
    told = (shard.manifest.get("arguments", {}).get("response_addr") or [] for shard in shards)
    named = list(dict.fromkeys(response_addr or chain.from_iterable(told)))
    found = {file_hash(path): path for path in named if Path(path).is_file()}
    hashes = shards[0].fingerprint["responses"]
    hashes = [hashes] if isinstance(hashes, str) else hashes
    if not found.keys() >= set(hashes):
        raise UserError(
            f"{', '.join(named)}: not what {shards[0].path} was made from: not there, or changed since\n"
            "  which questions were to be judged hangs on it: give it as it was judged, --response_addr FILE"
        )
    return [found[digest] for digest in hashes]


def carried_on(shards: list[Shard], args: argparse.Namespace, task: Task, questions: list[Record]) -> dict[str, int]:
    """What the score file's head tells of the responses; nothing, and a note, where these are not there."""
    if not isinstance(shards[0].fingerprint["responses"], str):
        return {}  # two systems compared
    try:
        [path] = judged_responses(shards, args.response_addr)
    except UserError as error:
        told = str(error).partition("\n")[0]
        print(f"note: {told}; answers that were cut or selected by their scores are not counted", file=sys.stderr)
        return {}
    responses = read_responses(path, task)
    return carried([question for question in questions if question["id"] in responses], responses)


def merge_entries(shards: list[Shard]) -> Pieces:
    """All entries by key; UserError where two shards have different values for one."""
    merged: Pieces = {}
    origin: dict[Key, str] = {}
    differing: list[Key] = []
    for shard in shards:
        for key, entry in shard.entries.items():
            if merged.setdefault(key, entry)["value"] != entry["value"]:
                differing.append(key)
                others = f"{origin[key]} and {shard.path}"
            origin.setdefault(key, shard.path)
    if differing:
        named = first_five(key[0] for key in differing)
        raise UserError(f"{others}: differ in {len(differing)} pieces they both have: {named}\n  give one of them only")
    return merged


def check_complete(args: argparse.Namespace, records: list[Record], keys: list[Key], entries: Pieces) -> None:
    """Raise UserError where a piece is missing, or belongs to no question of the dataset."""
    known = {record["id"] for record in records}
    if foreign := [key[0] for key in entries if key[0] not in known]:
        what = f"{len(foreign)} pieces of no question of {args.inputs_addr}"
        raise UserError(f"--shard_addr: {what}: {first_five(foreign)}")
    if missing := [key[0] for key in keys if key not in entries]:
        raise UserError(
            f"--shard_addr: {len(missing)} of {len(keys)} pieces are missing: {first_five(missing)}\n"
            "  run their shard again, which does only what is missing, or give its file too"
        )


if __name__ == "__main__":
    cli.run_script(main)
