"""Publish a stage's outputs, with the run's figures in their manifests, and print a line about each output."""

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence

from utils.base.output import Piece
from utils.benchmarks.thoughts import UNFINISHED, UNFINISHED_COUNT
from utils.generation.calls import (
    THOUGHT_COUNT,
    TOKEN_COUNTS,
    count_unfinished,
    describe_records,
    prices_of,
    total,
)
from utils.generation.model import Model
from utils.generation.vllm_engine import is_batch_invariant
from utils.runs.files import StageFile
from utils.runs.tally import Tally

COUNTED = {  # figures of a role's calls: each is the sum of what the function returns for every call record
    "unusable": lambda call: call["value"] is None,
    "unfinished": lambda call: call.get("reason") == UNFINISHED,
    "truncated": lambda call: bool(call.get("truncated")),
    "repaired": lambda call: call.get("parsed") == "repaired",
    "num_contexts_dropped": lambda call: call.get("num_contexts_dropped", 0),
}


def publish(tally: Tally) -> None:
    """Write a stage's new files, manifests and traces, and print a line about each; a shard writes nothing."""
    stage, before = tally.stage, tally.stage.requested()
    for model in stage.models.values():
        model.completions.keep_refusals()
    requested = tally.requested + stage.requested() - before
    for file in tally.made:
        if not file.finished:
            _publish(tally, file, list(tally.calls_of(file)), requested)
        tally.publish_trace(file)


def _publish(tally: Tally, file: StageFile, calls: Sequence[tuple[str, Piece]], requested: int) -> None:
    """`calls`: role and record of each call from which the file's pieces were made."""
    models, content, device = tally.stage.models, file.content(), " and ".join(tally.devices) or None
    first = next(iter(models.values()), None)
    made = describe_records(record for _, record in calls)
    made.pop(UNFINISHED_COUNT, None)  # this counts calls, but the manifest has the count of pieces
    by_role = {role: sum_calls(record for name, record in calls if name == role) for role in models}
    figures = {
        # A figure, as the device is, and not a setting, so that a run may resume on another kind of GPU.
        "batch_invariant": None if device is None or not first.is_local else is_batch_invariant(),
        "counts": file.counts(content),
        **(first.figures if first else {}),
        **made,
        **count_unfinished(file.pieces.values()),
        **cost_of(by_role, models),
    }
    if file.many_calls:
        reused = max(0, sum(record.get("attempts", 0) for _, record in calls) - requested)
        figures |= {"calls": by_role, "completions": {"requested": requested, "from_store": reused}}
        figures |= {"raised": len(tally.raised), "asked_otherwise": len(tally.asked_otherwise)}
    if file.finish(content, device, **figures):
        print(file.line(content, figures))


def sum_calls(calls: Iterable[Piece]) -> dict[str, int | None]:
    """Return figures of several calls: their number, tries, tokens (None if a server reported none), and COUNTED."""
    calls = list(calls)
    figures = {"num_calls": len(calls), "attempts": sum(call.get("attempts", 0) for call in calls)}
    figures |= {name: total([call.get(name, 0) for call in calls]) for name in TOKEN_COUNTS}
    thought = {THOUGHT_COUNT: sum(call.get(THOUGHT_COUNT, 0) for call in calls)}
    counted = {name: sum(map(count, calls)) for name, count in COUNTED.items()}
    return figures | {name: count for name, count in (thought | counted).items() if count}


def cost_of(by_role: Mapping[str, Mapping[str, int | None]], models: Mapping[str, Model]) -> dict[str, float | None]:
    """Return {"cost_usd": US dollars, or None if unknown} for all roles with prices; empty if no role has prices."""
    costs = [prices.cost(by_role[role]) for role in models if (prices := prices_of(models[role].flags))]
    return {"cost_usd": None if None in costs else round(sum(costs), 6)} if costs else {}


def report_shard(args: Namespace, outputs: Sequence[str]) -> None:
    """If this run is a shard, print where its completions are and how to write the outputs."""
    if args.num_shards > 1:
        which = f"shard {args.shard_index} of {args.num_shards}"
        print(
            f"{args.completions}: {which} is stored; run the command without --num_shards to write {', '.join(outputs)}"
        )
