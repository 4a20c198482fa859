"""Run a study: a small file says what is compared, and every command that is still missing is run, in order.

  python utils/run_study.py --study_addr utils/studies/table2.toml --dry_run
  python utils/run_study.py --study_addr utils/studies/table2.toml
  python utils/run_study.py --study_addr utils/studies/table2.toml --sbatch

Rank, train, answer, judge, table, figure: what is there, made from the files as they are now and with these settings,
is left alone. After a failure, an interruption or a change of the data the same command does what is left to do.
utils/studies has a study for each of the paper's experiments, utils/studies/study.py says what may stand in one.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.checks.commands import parser_of
from utils.cli.errors import UserError, quote
from utils.cli.flags import drop_flags
from utils.files.manifest import without_password
from utils.studies.checks import check_study
from utils.studies.jobs import make_jobs, prefetch_command, print_jobs, submit_jobs
from utils.studies.plan import Step, plan_study
from utils.studies.state import Pending, describe_cost, find_pending, look_at
from utils.studies.study import Study, read_study
from utils.studies.training import count_gpus, launch
from utils.training.launch import end_with_parent
from utils.training.stopping import STUDY_SECONDS

ROOT = Path(__file__).resolve().parent.parent
LEAVE_SECONDS = 60  # for a training to save a checkpoint after a signal; the others take cli.LEAVE_SECONDS
KILL_SECONDS = LEAVE_SECONDS + 5  # what is still there after a signal is killed
NOT_HERE = {  # flags that would make a part of the work, or another piece of it
    "--limit", "--num_generated_outputs", "--strategy", "--num_shards", "--shard_index", "--dry_run", "--overwrite",
    "--help", "-h", "--rag", "--random_profile", "--retry_failed",
}  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--study_addr", required=True, metavar="FILE", help="the study, a TOML file")
    add("--sbatch", action="store_true", help="submit the commands to SLURM instead of running them")
    add("--dry_run", action="store_true",
        help="print the commands and why, then what a run would refuse; run and submit nothing")
    add("--overwrite", action="store_true", help="replace an output that was made with other settings")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if args.sbatch and Path.cwd() != ROOT:
        raise UserError(f"--sbatch: run it from the root of the repository, {ROOT}")
    study = read_study(args.study_addr)
    steps = check_commands(study, plan_study(study))
    pending = find_pending(steps)
    refuse_replacing(pending, args.overwrite)
    if not args.dry_run:
        check_study(study, steps, pending, args.sbatch)
    code, num_gpus = 0, 0 if args.sbatch else count_gpus(pending)
    if not pending:
        print(f"everything is there: {sum(len(step.outputs) for step in steps)} outputs{describe_results(steps)}")
    elif args.sbatch:
        jobs = make_jobs(study, pending, args.overwrite)
        if (command := prefetch_command(study, pending)) is not None:
            print(f"note: jobs fetch no models; first: {command}", file=sys.stderr)
        print_jobs(study, jobs) if args.dry_run else submit_jobs(study, jobs)
    elif args.dry_run:
        for number, one in enumerate(pending, 1):
            print(f"# step {number} of {len(pending)}")
            print_command(one, num_gpus)
    else:
        code = run_steps([one.step for one in pending], num_gpus, args.overwrite, describe_results(steps))
    is_whole = code == 0 and not args.dry_run and not (args.sbatch and pending)
    if is_whole and (cost := describe_cost(steps)):
        print(cost)
    if args.dry_run:  # with the commands in sight
        check_study(study, steps, pending, args.sbatch)
    if study.figure == 4 and study.human_addr is None and code == 0:
        missing = "human_addr, a file of people's choices for utils/compare_evaluators.py, is not given"
        print(f"note: figure 4 is not drawn: {missing}", file=sys.stderr)
    return code


def check_commands(study: Study, steps: list[Step]) -> list[Step]:
    """The steps without flags that have no effect in them, as of an engine where the model is behind an API.

    Raises:
        UserError: a script does not take its command; [arguments] sets what the study does, or a flag that has no
            effect in any step it is for.
    """
    checked, used = [], set()
    idle: dict[tuple[str, str], str] = {}  # by kind of step and flag, what the script says of it
    for step in steps:
        where = f"{study.path}: arguments, {Path(step.script).name}"

        def refuse(message: str, where: str = where) -> NoReturn:
            raise UserError(f"{where}: {message}")

        outputs = list(step.outputs)
        given = {word.partition("=")[0]: word for word in step.given if word.startswith("-")}
        taken = NOT_HERE.union(replace(step, given=[]).words(outputs, overwrite=False))
        for flag, word in given.items():
            if flag in taken:
                expected = "none of the flags that a study sets itself or that make a part of the work"
                refuse(f"found {quote(without_password(word))}, expected {expected}")
        parser = parser_of(step.script)
        parser.refuse = refuse
        refused = parser.idle_flags(step.words(outputs, overwrite=False)[1:])
        named = {flag: value for flag, value in step.named.items() if flag not in refused}
        flags, kept = drop_flags(step.flags, refused), drop_flags(step.given, refused)
        checked.append(replace(step, named=named, flags=flags, given=kept))
        used |= {(step.kind, flag) for flag in given.keys() - refused.keys()}
        idle |= {(step.kind, flag): f"{where}: {refused[flag]}" for flag in given.keys() & refused.keys()}
    if useless := [message for one, message in idle.items() if one not in used]:
        raise UserError(useless[0])
    return checked


def refuse_replacing(pending: list[Pending], overwrite: bool) -> None:
    """Raise UserError where something else is in an output's place, unless the user lets it be replaced."""
    refusals = [f"{output}: {text}" for one in pending for output, text in one.refusals.items()]
    if refusals and not overwrite:
        more = f" and {len(refusals) - 1} other outputs" if len(refusals) > 1 else ""
        raise UserError(f"{refusals[0]}\n  set the study back, give another output, or --overwrite to redo it{more}")


def describe_results(steps: list[Step]) -> str:
    """Where the tables and figures are, for the last line: what the study is for."""
    text = ""
    for kind in ("table", "figure"):
        if outputs := [output for step in steps if step.kind == kind for output in step.outputs]:
            text += f"; {kind}{'s' if len(outputs) > 1 else ''}: {', '.join(outputs)}"
    return text


# Running


def command_of(one: Pending, num_gpus: int) -> tuple[dict[str, str], list[str]]:
    """Variables, and the command without the interpreter, as it is run and printed here."""
    script, *words = one.words()
    return launch(one, [os.path.relpath(ROOT / script), *words], num_gpus)


def print_command(one: Pending, num_gpus: int) -> None:
    for output, reason in one.reasons.items():
        print(f"# {reason}: {output}")
    variables, words = command_of(one, num_gpus)
    told = [f"{name}={value}" for name, value in variables.items()]
    print(*told, shlex.join(map(without_password, ["python", *words])), flush=True)


def run_steps(steps: list[Step], num_gpus: int, overwrite: bool, results: str) -> int:
    """Run those of the steps that, when their turn comes, are not up to date; returns the first exit code but 0.

    A training takes the GPUs that can share its batch. The last line ends with `results`.
    """
    started = time.monotonic()
    for number, step in enumerate(steps, 1):
        one = look_at(step)
        print(f"# step {number} of {len(steps)}, {time_since(started)} so far", flush=True)
        if one is None:
            print("# not needed: what it reads is what it was", flush=True)
            continue
        refuse_replacing([one], overwrite)
        print_command(one, num_gpus)
        variables, words = command_of(one, num_gpus)
        if (code := run(words, **variables)) != 0:
            text = f"step {number} of {len(steps)} ended with exit code {code}; the same command goes on from here"
            print(text, file=sys.stderr)
            return code
    print(f"done: {len(steps)} steps, {time_since(started)}{results}")
    return 0


def time_since(started: float) -> timedelta:
    return timedelta(seconds=int(time.monotonic() - started))


def run(words: list[str], **variables: str) -> int:
    """Run a script until it ends, whose exit code is returned: 128 and the signal's number where one ended it.

    It has a process group of its own: a signal for this script reaches it once, from here.
    """
    command, environment = [sys.executable, *words], {**os.environ, STUDY_SECONDS: str(LEAVE_SECONDS), **variables}
    # Else nobody would wait for it once this process is gone.
    process = subprocess.Popen(command, env=environment, preexec_fn=end_with_parent, process_group=0)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        if signal.alarm(0):  # a SIGTERM's, which leaves this process less time than the command has
            signal.alarm(KILL_SECONDS + cli.LEAVE_SECONDS)
        process.terminate()
        try:
            process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    cli.run_script(main)
