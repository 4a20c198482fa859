"""The driver of every script that asks a model: check the outputs, then make what they lack, or only count it."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from utils.base import cli
from utils.base.errors import counted, first_five, printable
from utils.base.flags import Arguments
from utils.base.writing import write_atomically
from utils.runs.dry_run import describe_requests
from utils.runs.publishing import report_shard
from utils.runs.runner import make_pieces
from utils.runs.stage import Place, Stage, models_of
from utils.runs.tally import Tally
from utils.runs.trace import check_trace, has_trace

NUM_ERRORS, LONGEST_ERROR = 5, 500  # how many of a method's errors are printed, and characters of each


def run_stages(stages: Sequence[Stage], args: Arguments) -> int:
    """Make the outputs that are not finished, and return the exit code. With --dry_run, only count what they lack.

    A record that a server failed to answer has no piece. If a server stops answering, all stages that use it end early.

    With --requests_to, requests to APIs are written to that file.

    Raises:
        UserError: an output cannot be written, a server has never answered, or the store lacks a completion that was
            paid for before or that --cached_only needs. Other exceptions of an engine or the store also end the run.
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
        follows_finished = stage.after is None or stage.after.is_finished
        for file in stage.files:  # all of them, so that each mistake is found before the first request
            file.is_finished(follows_finished)
            if not file.finished and file.keys is None and (stage.after is None or has_pieces(stage.after)):
                stage.expect()
                file.is_finished(follows_finished)
        if not stage.is_finished or (args.trace and any(not has_trace(file) for file in stage.files)):
            left.append(stage)
        for file in stage.files if stage not in left and any(other.after is stage for other in stages) else ():
            file.load()
    return left


def to_run(stages: Sequence[Stage], left: Sequence[Stage]) -> list[Stage]:
    """Return the stages to run, in order: those in `left`, and finished stages whose pieces these need and lack."""
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
    """Print what is unusable, raised or missing, and return the exit code."""
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
    """Print a method's most common errors, each with ids of questions, and return the exit code."""
    if not raised:
        return 0
    again = "correct the method and run the command again (completions are kept)"
    print(f"the method raised an error on {counted(len(raised), 'record')}; {again}:", file=sys.stderr)
    alike: dict[str, list[str]] = {}
    for (_, (question_id, *_)), error in raised.items():
        alike.setdefault(error, []).append(str(question_id))
    for error, ids in sorted(alike.items(), key=lambda item: len(item[1]), reverse=True)[:NUM_ERRORS]:
        print(f"  {printable(error[:LONGEST_ERROR])} (id {first_five(ids)})", file=sys.stderr)
    return 1
