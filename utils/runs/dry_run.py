"""--dry_run: a run without engines counts the completions that the store lacks and the command would pay for."""

import json
from collections.abc import Sequence

from utils.cli import Arguments
from utils.cli.errors import counted, named, printable
from utils.files.writing import write_atomically
from utils.models.machine import Loaded, describe_disk, describe_engine
from utils.runs.stage import Stage
from utils.runs.tally import Lacking, Tally

# Disk space per token: an answer of 2048 tokens has about 10 kB, the store and the output keep its raw text, the output
# also the parsed answer, and the output is first written under a temporary name. Higher token limits are for thoughts,
# which are rarely so long, so at most 2048 tokens are counted.
TOKEN_BYTES, MOST_TOKENS = 32, 2048
FIELDS_BYTES = 1000  # of a piece, without its texts
NUM_IDS = 5  # how many ids of questions with too long prompts are printed


def describe_requests(stages: Sequence[Stage], tallies: Sequence[Tally], args: Arguments) -> None:
    """Print what stages would still request; with --dry_run FILE, write it also to that file.

    `tallies` are those of the stages that would run.
    """
    rows, tally_of = [], {tally.stage: tally for tally in tallies}
    for stage in stages:
        names, after = ", ".join(file.path for file in stage.files), tally_of.get(stage.after)
        if stage not in tally_of:
            print(f"{names}: finished, 0 requests")
        elif tally_of[stage].left is None:
            print(f"{names}: not counted, because {stage.after.files[0].path} is not complete")
        else:
            describe_tally(tally_of[stage], names)
            rows += tally_of[stage].rows()
            if after is not None and after.left and stage.after.files[0].stand_in_note:
                print(f"  {stage.after.files[0].stand_in_note}")
    costs = [row["cost_usd"]["most"] for row in rows if row["cost_usd"]]
    tokens, most = sum(row["prompt_tokens"] for row in rows), f", at most {sum(costs):.4f} USD" if costs else ""
    is_open = any(tally.left is None or (tally.left and tally.stage.many_calls) for tally in tallies)
    more = ", and more for requests that depend on answers" if is_open else ""
    print(f"total: {counted(sum(row['requests'] for row in rows), 'request')}, {tokens} prompt tokens{most}{more}")
    describe_machine(args, tallies, stages[0].files[0].path)
    if isinstance(args.dry_run, str):
        write_atomically(args.dry_run, json.dumps(rows, indent=2) + "\n")


def describe_tally(tally: Tally, names: str) -> None:
    """Print what a stage lacks; `names` are those of its files."""
    stage, lacking = tally.stage, tally.lacking.values()
    print(f"{names}: {len(tally.left)} of {counted(tally.total, stage.files[0].noun)} to request")
    for role, requests in tally.lacking.items():
        print(requests.describe(role))
    if tally.lacking_searches:
        queries = counted(tally.lacking_searches, "query")
        print(f"  search: {queries} to embed with the encoder; requests after them are not counted")
    dropped, cut = (sum(getattr(requests, name) for requests in lacking) for name in ("num_dropped", "num_cut"))
    if dropped or cut:
        print(f"  {named(dropped, stage.task.item_words)} left out for length, {counted(cut, 'prompt')} cut at the end")
    unsent = [key for (_, key), pairs in tally.calls.items() for _, record in pairs if "attempts" not in record]
    if too_long := [str(question_id) for question_id, *_ in unsent]:
        print(printable(f"  {counted(len(too_long), 'prompt')} too long, skipped: {', '.join(too_long[:NUM_IDS])}"))
    if stage.many_calls and tally.left:
        print("  requests that depend on the answers to these are not counted")


def describe_machine(args: Arguments, tallies: Sequence[Tally], path: str) -> None:
    """Print whether this machine has the memory and disk space for a run; `path` is an output on the disk to check."""
    lacking_of: dict[str, Lacking] = {}  # by role, with the longest requests
    needed = 0
    for tally in tallies:
        for role, lacking in tally.lacking.items():
            lacking_of[role] = max(lacking_of.get(role, lacking), lacking, key=lambda one: one.length)
        tokens = max((model.window.max_tokens for model in tally.stage.models.values()), default=0)
        num_pieces = sum(len(file.keys or ()) for file in tally.stage.files)
        needed += num_pieces * (FIELDS_BYTES + TOKEN_BYTES * min(tokens, MOST_TOKENS))
    loaded, lines, flags = [], [], next((lacking.model.flags for lacking in lacking_of.values()), args)
    for lacking in lacking_of.values():
        model = lacking.model
        if (memory_lines := model.describe_memory()) is not None:
            lines += memory_lines
        elif model.is_local:
            loaded.append(Loaded(model.addr, lacking.length, model.chat.model_limit, model.flags.dtype))
    lines = [*(describe_engine(flags, loaded) if loaded else []), *lines]
    print(*lines, *describe_disk(path, needed), sep="\n")
