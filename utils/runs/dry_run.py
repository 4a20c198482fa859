"""--dry_run: a run without engines counts the completions that the store lacks and the command would pay for."""

from collections.abc import Sequence

from utils.base.errors import counted, named, printable
from utils.base.flags import Arguments
from utils.models.machine import Loaded, describe_engine
from utils.runs.stage import Stage
from utils.runs.tally import Lacking, Tally

# Disk space per token: an answer of 2048 tokens has about 10 kB, the store and the output keep its raw text, the output
# also the parsed answer, and the output is first written under a temporary name. Higher token limits are for thoughts,
# which are rarely so long, so at most 2048 tokens are counted.
TOKEN_BYTES, MOST_TOKENS = 32, 2048
FIELDS_BYTES = 1000  # of a piece, without its texts
NUM_IDS = 5  # how many ids of questions with too long prompts are printed


def describe_requests(stages: Sequence[Stage], tallies: Sequence[Tally], args: Arguments) -> None:
    """Print what stages would still request; `tallies` are those of the stages that would run.

    utils/studies/steps.sh adds up the line with the total: requests, prompt tokens, and if there are prices, US dollars
    for the prompts alone and with the longest outputs. If later requests depend on answers, it has the least of each.
    """
    tally_of = {tally.stage: tally for tally in tallies}
    for stage in stages:
        names, after = ", ".join(file.path for file in stage.files), tally_of.get(stage.after)
        if stage not in tally_of:
            print(f"{names}: finished, 0 requests")
        elif tally_of[stage].left is None:
            print(f"{names}: not counted, because {stage.after.files[0].path} is not complete")
        else:
            describe_tally(tally_of[stage], names)
            if after is not None and after.left and stage.after.files[0].stand_in_note:
                print(f"  {stage.after.files[0].stand_in_note}")
    lacking = [requests for tally in tallies for requests in tally.lacking.values()]
    lengths = [length for requests in lacking for length in requests.lengths]
    least = "at least " if any(tally.left is None or tally.is_open for tally in tallies) else ""
    total = f"total: {least}{counted(len(lengths), 'request')}, {least}{sum(lengths)} prompt tokens"
    if costs := [cost for requests in lacking if (cost := requests.cost()) is not None]:
        prompts, most = map(sum, zip(*costs, strict=True))
        total += f", {least}{prompts:.4f} USD" if least else f", {prompts:.4f} to {most:.4f} USD without retries"
    print(total)
    describe_machine(args, tallies)


def describe_tally(tally: Tally, names: str) -> None:
    """Print what a stage lacks; `names` are those of its files."""
    stage, lacking = tally.stage, tally.lacking.values()
    print(f"{names}: {len(tally.left)} of {counted(tally.total, stage.files[0].noun)} to request")
    for role, requests in tally.lacking.items():
        print(requests.describe(role, "at least " if tally.is_open else ""))
    if tally.lacking_searches:
        queries = counted(tally.lacking_searches, "query")
        print(f"  search: {queries} to embed with the encoder; requests after them are not counted")
    dropped, cut = (sum(getattr(requests, name) for requests in lacking) for name in ("num_dropped", "num_cut"))
    if dropped or cut:
        print(f"  {named(dropped, stage.task.item_words)} left out for length, {counted(cut, 'prompt')} cut at the end")
    unsent = [key for (_, key), pairs in tally.calls.items() for _, record in pairs if "attempts" not in record]
    if too_long := [str(question_id) for question_id, *_ in unsent]:
        print(printable(f"  {counted(len(too_long), 'prompt')} too long, skipped: {', '.join(too_long[:NUM_IDS])}"))
    if tally.is_open:
        print("  requests that depend on the answers to these are not counted")


def describe_machine(args: Arguments, tallies: Sequence[Tally]) -> None:
    """Print whether this machine has the memory for a run."""
    lacking_of: dict[str, Lacking] = {}  # by role, with the longest requests
    for tally in tallies:
        for role, lacking in tally.lacking.items():
            lacking_of[role] = max(lacking_of.get(role, lacking), lacking, key=lambda one: one.length)
    loaded, lines, flags = [], [], next((lacking.model.flags for lacking in lacking_of.values()), args)
    for lacking in lacking_of.values():
        model = lacking.model
        if (memory_lines := model.describe_memory()) is not None:
            lines += memory_lines
        elif model.is_local:
            loaded.append(Loaded(model.addr, lacking.length, model.flags.dtype))
    for line in [*(describe_engine(flags, loaded) if loaded else []), *lines]:
        print(line)
