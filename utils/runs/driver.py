"""The driver of every script that asks a model: it checks the outputs, then makes their missing pieces.

A dry run opens no engine: it only counts the missing completions, which the command would request."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from utils.base import cli
from utils.base.cli import Arguments
from utils.base.errors import count_noun, count_plural, first_five, printable
from utils.base.writing import write_atomically
from utils.models.machine import Loaded, describe_engine
from utils.runs.runner import make_pieces, report_shard
from utils.runs.stage import Place, Stage, models_of
from utils.runs.tally import Lacking, Tally
from utils.runs.trace import check_trace, has_trace

NUM_IDS = 5  # most ids to print of questions whose prompts are too long


def describe_requests(stages: Sequence[Stage], tallies: Sequence[Tally], args: Arguments) -> None:
    """Print the requests that stages still need; `tallies` are those of the stages that would run.

    The last line has the totals of requests and prompt tokens, and with prices the cost in US dollars: of the prompts
    alone, and with the longest possible outputs. If more requests may follow, which depend on the answers, these are
    lower bounds. utils/studies/steps.sh parses this line to add up several commands.
    """
    tally_of = {tally.stage: tally for tally in tallies}
    for stage in stages:
        names, after = ", ".join(file.path for file in stage.files), tally_of.get(stage.after)
        if stage not in tally_of:
            print(f"{names}: finished, 0 requests")
        elif tally_of[stage].left is None:
            print(f"{names}: not counted: {stage.after.files[0].path} is not complete yet")
        else:
            describe_tally(tally_of[stage], names)
            if after is not None and after.left and stage.after.files[0].stand_in_note:
                print(f"  {stage.after.files[0].stand_in_note}")
    lacking = [requests for tally in tallies for requests in tally.lacking.values()]
    lengths = [length for requests in lacking for length in requests.lengths]
    least = "at least " if any(tally.left is None or tally.is_open for tally in tallies) else ""
    total = f"total: {least}{count_noun(len(lengths), 'request')}, {least}{sum(lengths)} prompt tokens"
    if costs := [cost for requests in lacking if (cost := requests.cost()) is not None]:
        prompts, most = map(sum, zip(*costs, strict=True))
        total += f", {least}{prompts:.4f} USD" if least else f", {prompts:.4f} to {most:.4f} USD without retries"
    print(total)
    describe_machine(args, tallies)


def describe_tally(tally: Tally, names: str) -> None:
    """Print the requests that a stage still needs; `names` are the names of its files."""
    stage, lacking = tally.stage, tally.lacking.values()
    print(f"{names}: {len(tally.left)} of {count_noun(tally.total, stage.files[0].noun)} still need requests")
    for role, requests in tally.lacking.items():
        print(requests.describe(role, "at least " if tally.is_open else ""))
    if tally.lacking_searches:
        queries = count_noun(tally.lacking_searches, "query")
        print(f"  search: {queries} to embed with the encoder; requests after them are not counted")
    dropped, cut = (sum(getattr(requests, name) for requests in lacking) for name in ("num_dropped", "num_cut"))
    if dropped or cut:
        items = count_plural(dropped, stage.task.item_words)
        print(f"  {items} left out for length, {count_noun(cut, 'prompt')} cut at the end")
    unsent = [key for (_, key), pairs in tally.calls.items() for _, record in pairs if "attempts" not in record]
    if too_long := [str(question_id) for question_id, *_ in unsent]:
        print(printable(f"  {count_noun(len(too_long), 'prompt')} too long, skipped: {', '.join(too_long[:NUM_IDS])}"))
    if tally.is_open:
        print("  requests that depend on the answers to these are not counted")


def describe_machine(args: Arguments, tallies: Sequence[Tally]) -> None:
    """Print whether this machine has enough memory for the run."""
    lacking_of: dict[str, Lacking] = {}  # by role: the stage's with the longest requests
    for tally in tallies:
        for role, lacking in tally.lacking.items():
            lacking_of[role] = max(lacking_of.get(role, lacking), lacking, key=lambda one: one.length)
    loaded, lines, flags = [], [], next((lacking.model.flags for lacking in lacking_of.values()), args)
    for lacking in lacking_of.values():
        model = lacking.model
        if (memory_lines := model.describe_memory()) is not None:
            lines += memory_lines
        elif model.is_local:
            loaded.append(Loaded(model.folder, lacking.length, model.flags.dtype))
    for line in [*(describe_engine(flags, loaded) if loaded else []), *lines]:
        print(line)


NUM_ERRORS, LONGEST_ERROR = 5, 500  # most errors of a method to print, and most characters of each


def run_stages(stages: Sequence[Stage], args: Arguments) -> int:
    """Make the outputs that are not finished, and return the exit code. With --dry_run, only count missing completions.

    A record that a server failed to answer has no piece. If a server stops answering, all stages that use it end early.

    With --requests_to, requests to APIs are written to that file instead of being sent.

    Raises:
        UserError: an output cannot be written, a server has never answered, or the store lacks a completion that an
            earlier run paid for or that --cached_only needs. Other exceptions of an engine or the store also end the
            run.
        KeyboardInterrupt: SIGINT or SIGTERM was received. Completions received until then are in the store.
    """
    left = unfinished(stages, args)
    running = to_run(stages, left)
    for stage in running:
        stage.refuse_deleted_store(stage.files, args)
    if not args.dry_run:
        for file in (file for stage in stages for file in stage.files if file.finished):
            file.report_finished()
        if not left:
            return 0
    for model in models_of(running).values():
        model.load()
    if args.dry_run:
        tallies = make_pieces(running, args)
        describe_requests(stages, tallies, args)
        return max([0, *(report_raised(tally.raised) for tally in tallies)])
    for stage in running:
        if stage.search is not None:
            stage.search.check()
    with ExitStack() as locks:
        for file in (file for stage in running for file in stage.made):
            file.open()
            locks.callback(file.close)
            if args.trace and not file.is_shard:
                check_trace(file)
        tallies = make_pieces(running, args)
    if args.requests_to:
        lines = [json.dumps(line) + "\n" for tally in tallies for line in tally.noted.values()]
        write_atomically(args.requests_to, "".join(lines))
        if lines:
            return 0
    report_shard(args, [file.path for stage in running for file in stage.files])
    return report(tallies)


def unfinished(stages: Sequence[Stage], args: Arguments) -> list[Stage]:
    """Return the stages with a file that is not finished or lacks its trace (--trace), and the stages after them."""
    left: list[Stage] = []
    for stage in stages:
        before = stage.after
        follows_finished = before is None or before.is_finished
        for file in stage.files:  # all of them, so that each mistake is found before the first request
            file.is_finished(follows_finished)
        if before is not None and before not in left and not has_pieces(before) and not has_outputs(stage, args):
            for file in before.files:
                file.load()
        for file in stage.files:
            if not file.finished and file.keys is None and (file.knows_keys or before is None or has_pieces(before)):
                stage.expect()
                file.is_finished(follows_finished)
        if not has_outputs(stage, args):
            left.append(stage)
    return left


def has_outputs(stage: Stage, args: Arguments) -> bool:
    """Return whether all files of a stage are finished and, with --trace, have their traces."""
    return stage.is_finished and not (args.trace and any(not has_trace(file) for file in stage.files))


def to_run(stages: Sequence[Stage], left: Sequence[Stage]) -> list[Stage]:
    """Return the stages to run, in order: those in `left`, and finished ones whose pieces they need and cannot load."""
    running: list[Stage] = []
    for stage in reversed(stages):
        if stage in left or (not has_pieces(stage) and any(other.after is stage for other in running)):
            running.insert(0, stage)
    return running


def has_pieces(stage: Stage) -> bool:
    return any(file.pieces for file in stage.files)


def are_complete(stages: Sequence[Stage]) -> bool:
    """Return whether all outputs have all their pieces; called after `run_stages`."""
    files = [file for stage in stages for file in stage.files]
    return all(file.finished or (file.keys is not None and not file.missing()) for file in files)


def report(tallies: Sequence[Tally]) -> int:
    """Print unusable pieces, errors of methods, and missing pieces, and return the exit code."""
    # A finished file has nothing new to report, and commands that depend on it can run.
    new = [file for tally in tallies for file in tally.made if not file.finished]
    codes = [max(file.report_failed(), int(file.is_kept)) for file in new]
    codes += [report_raised(tally.raised) for tally in tallies]
    missing = {tally.stage: sum(len(file.missing()) for file in tally.made) - len(tally.raised) for tally in tallies}
    for stage, number in missing.items():
        # A record without a piece here usually lacks one in the later stage too, which reports it.
        if not any(missing[other] for other in missing if other.after is stage):
            codes.append(cli.report_missing(number, stage.files[0].noun))
    return max(codes)


def report_raised(raised: Mapping[Place, str]) -> int:
    """Print a method's most common errors, each with the ids of some questions, and return the exit code."""
    if not raised:
        return 0
    again = "fix it and run the command again; finished completions are reused"
    print(f"the method failed on {count_noun(len(raised), 'record')}; {again}:", file=sys.stderr)
    alike: dict[str, list[str]] = {}
    for (_, (question_id, *_)), error in raised.items():
        alike.setdefault(error, []).append(str(question_id))
    for error, ids in sorted(alike.items(), key=lambda item: len(item[1]), reverse=True)[:NUM_ERRORS]:
        print(f"  {printable(error[:LONGEST_ERROR])} (id {first_five(ids)})", file=sys.stderr)
    return 1
