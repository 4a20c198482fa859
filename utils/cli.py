"""Command line: the flags that several scripts share, and how a run ends."""

import argparse
import atexit
import errno
import logging
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from utils.flags import (
    USER_ERROR,
    FlagParser,
    fraction,
    is_first_process,
    non_negative_float,  # noqa: F401 (this and the other types: the scripts take them from here)
    non_negative_int,
    positive_int,
    temperature,
)
from utils.redo import add_redo_arguments

SERVER_FAILED = 1  # exit code: a server left requests unanswered; the same command asks again
INTERRUPTED = 130  # exit code: stopped by SIGINT or SIGTERM; the same command goes on
UNREAD = 141  # exit code: nobody reads the output any more (... | head); a shell's for what SIGPIPE ended

RESUME_HINT = "interrupted; what is finished is kept, run the same command again"
LEAVE_SECONDS = 8  # after a SIGTERM: schedulers kill what is still there after ten or more

# Never heard below a warning: their lines show addresses and headers, secrets included.
HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2")

_GO_ON = "what is finished is kept, run the same command again"
_MAKE_WRITABLE = "have it made writable, or give another path; what is finished is kept"
REMEDIES = {  # what to do where a file cannot be written
    errno.ENOSPC: f"free some space on its disk; {_GO_ON}",
    errno.EDQUOT: f"free some of your space on its disk; {_GO_ON}",
    errno.EFBIG: f"raise the limit on a file's size (ulimit -f); {_GO_ON}",
    errno.EROFS: _MAKE_WRITABLE,
    errno.EACCES: _MAKE_WRITABLE,
    errno.EPERM: _MAKE_WRITABLE,
}


class UserError(Exception):
    """A mistake of the user's: one to three lines that say what, where and what to do."""


def run_script(main: Callable[[], int]) -> None:
    """Run `main` and leave the process.

    A UserError becomes its message and exit code 2, and so does a disk that is full or may not be written; a signal
    becomes a hint and exit code 130, within `LEAVE_SECONDS` of a SIGTERM whatever may hang. Where nobody reads the
    output any more it ends without a word, as other programs in a pipe do.
    """
    # A shell that starts a job in the background has it ignore SIGINT; SIGTERM needs it (below).
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    atexit.register(_drop_unwritten)
    sys.unraisablehook = _leave_if_interrupted
    try:
        code = _exit_code(main)
        _stop_on_signal(code)
    except KeyboardInterrupt as interrupt:
        code, hint = INTERRUPTED, str(interrupt) or RESUME_HINT
        _on_signals(partial(_leave, hint=hint))  # SLURM sends a task several: given twice rather than not at all
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # the signal came before it was
        print(hint, file=sys.stderr)
        _stop_on_signal(code)
    sys.exit(code)


def _exit_code(main: Callable[[], int]) -> int:
    try:
        code = main()
        if sys.stdout is not None:  # it is, where the shell closed it
            sys.stdout.flush()  # here its error is told like any other's
        return code
    except UserError as error:
        if is_first_process():  # one tells it for all
            print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        if error.errno == errno.EPIPE and sys.stdout is not None and _is_unread(sys.stdout.fileno()):
            return UNREAD
        if error.errno not in REMEDIES:
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {where}{describe_os_error(error)}", file=sys.stderr)
    return USER_ERROR


def _is_unread(fd: int) -> bool:
    """It is the end of a pipe that nobody has the other end of."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _drop_unwritten() -> None:
    """Let go of output that cannot be written: Python would fail over it again, and end with a code of its own."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def describe_os_error(error: OSError) -> str:
    """What is wrong with a file, and what to do about it where that is known, in a second line."""
    remedy = REMEDIES.get(error.errno)
    return f"{error.strerror}\n  {remedy}" if remedy else str(error.strerror)


def _stop_on_signal(code: int) -> None:
    """From here on there is nothing left to interrupt: a signal ends the process on the spot, with this code."""
    _on_signals(lambda *_: os._exit(code))


def _on_signals(handler: Callable[[int, object], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def report_missing(count: int, unit: str) -> int:
    """A run's exit code, and a line on stderr where a server failed to give `count` of what `unit` calls one."""
    if count == 0:
        return 0
    again = "it" if count == 1 else "them"
    print(f"{describe_missing(count, unit)}; the same command asks for {again} again", file=sys.stderr)
    return SERVER_FAILED


def describe_missing(count: int, unit: str) -> str:
    return f"{count} {unit}{' is' if count == 1 else 's are'} missing because the server failed"


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Within this, SIGINT and SIGTERM end the process on the spot instead of raising KeyboardInterrupt.

    For code that may swallow the exception, as vLLM's start-up does. Nothing is lost: what is finished is on disk,
    and the engine's processes die with this one.
    """

    before = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(signum: int, frame: object, hint: str = RESUME_HINT) -> None:
    os.write(sys.stderr.fileno(), f"{hint}\n".encode())  # print may be what the signal came into
    os._exit(INTERRUPTED)


def _leave_if_interrupted(unraisable: "sys.UnraisableHookArgs") -> None:
    """A signal that came while an object was being finalized: Python swallows its exception, so it acts here."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _leave(signal.SIGINT, None)
    sys.__unraisablehook__(unraisable)


def _terminate(signum: int, frame: object) -> None:
    signal.signal(signal.SIGALRM, _leave)  # where the exception is swallowed, or closing hangs
    signal.alarm(LEAVE_SECONDS)
    signal.raise_signal(signal.SIGINT)  # SIGTERM leaves like Ctrl-C: engines are closed, the journal stays


def make_parser(doc: str) -> FlagParser:
    """A parser whose --help opens with the script's own docstring."""
    return FlagParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)


def set_up_logging(level: str) -> None:
    """Our own messages go to stderr as plain lines; libraries speak from `level` on."""
    logging.basicConfig(level=level.upper(), format="%(message)s", stream=sys.stderr)
    for name in HTTP_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


# Groups of flags: one spelling and one meaning in every script.


def add_engine_arguments(parser: FlagParser, model_flag: str, model_help: str) -> None:
    """Which model answers, and how it is loaded: `model_flag` is --model_addr or --evaluator_llm."""
    group = parser.add_argument_group("model")
    group.add_argument(model_flag, required=True, metavar="MODEL", help=model_help)
    add_memory_arguments(group)
    group.add_argument(
        "--enforce_eager",
        action="store_true",
        help="no CUDA graphs: starts sooner, runs slower (always so on a CPU)",
    )
    group.add_argument(
        "--batch_invariant",
        action="store_true",
        help="compute an output as if it were asked alone, so that shards and resumed runs write what one run would; "
        "slower, and for GPUs of compute capability 8.0 or more (off; VLLM_BATCH_INVARIANT=1 does the same)",
    )
    group = parser.add_argument_group("API")
    add_key_arguments(group)
    group.add_argument(
        "--base_url",
        metavar="URL",
        default=os.environ.get("OPENAI_BASE_URL") or None,  # here, so that the manifest names it
        help="address of the API (default: OPENAI_BASE_URL, else OpenAI's)",
    )
    group.add_argument("--model_id", metavar="NAME", help="which model the API has (default: as it calls it itself)")
    group.add_argument(
        "--max_concurrency",
        type=positive_int,
        default=32,
        help="API requests under way at a time; fewer where the API asks for it (%(default)s)",
    )
    group.add_argument(
        "--request_timeout",
        type=positive_int,
        default=600,
        metavar="SECONDS",
        help="an API request without an answer is made again after this time (%(default)s)",
    )
    parser.without_effect(
        "--api_key_addr --base_url --model_id --max_concurrency --request_timeout",
        lambda args: not args.openai,
        "without --openai, for the model runs here",
        "give --openai",
    )
    parser.without_effect(
        "--cache_dir --tensor_parallel_size --gpu_memory_utilization --dtype --enforce_eager",
        lambda args: args.openai and not vars(args).get("planner_model"),  # a planner runs here all the same
        "with --openai, for no model is loaded here",
    )


def add_memory_arguments(group: argparse._ActionsContainer) -> None:
    """Where hub models are, and what decides how much GPU memory one takes."""
    group.add_argument("--cache_dir", help="where hub models are kept (default: Hugging Face's own cache)")
    group.add_argument(
        "--tensor_parallel_size",
        type=positive_int,
        default=1,
        help="GPUs that share one copy of the model (%(default)s)",
    )
    group.add_argument(
        "--gpu_memory_utilization",
        type=fraction,
        default=0.9,
        help="share of each GPU's memory to use (%(default)s)",
    )
    group.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "bfloat16", "float16", "float32"],
        help="weights' type (%(default)s)",
    )


def add_key_arguments(group: argparse._ActionsContainer) -> None:
    """Whether the model is behind an API, and the key to it."""
    group.add_argument("--openai", action="store_true", help="the model is behind an OpenAI-compatible API")
    group.add_argument("--api_key_addr", metavar="FILE", help="file with the API key (default: OPENAI_API_KEY)")


def add_sampling_arguments(
    parser: argparse.ArgumentParser, *, temperature_default: float, max_tokens: int, max_model_len: str
) -> None:
    """How text is sampled; `max_model_len` is the help text for that flag's default."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=temperature, default=temperature_default, help="0 is greedy (%(default)s)")
    group.add_argument("--top_p", type=fraction, default=0.95, help="nucleus sampling (%(default)s)")
    group.add_argument(
        "--max_tokens", type=positive_int, default=max_tokens, help="tokens an output may have (%(default)s)"
    )
    group.add_argument(
        "--max_model_len", type=positive_int, help=f"tokens of prompt and output together (default: {max_model_len})"
    )
    group.add_argument("--seed", type=non_negative_int, default=0, help="seed of all sampling (%(default)s)")
    group.add_argument(
        "--max_retries",
        type=non_negative_int,
        default=3,
        help="how often an output that cannot be used is asked for again (at --temperature 0 once, held to its schema: "
        "a greedy model only repeats itself, so such an output shows 2 attempts), "
        "and how often an API request that failed for good is made again (%(default)s)",
    )
    group.add_argument(
        "--constrained_decoding",
        choices=["fallback", "always", "never"],
        default="fallback",
        help="hold the output to its JSON schema: on the last try, always, or never, "
        "which raises the temperature by 0.1 a retry as the paper's code does (%(default)s)",
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Which part of the data to work on, and what to do with what is already there."""
    group = parser.add_argument_group("run")
    group.add_argument("--limit", type=positive_int, metavar="N", help="only the first N questions (default: all)")
    num_shards, shard_index = slurm_shard()
    group.add_argument(
        "--num_shards",
        type=int,
        default=num_shards,
        help="parts the questions are split into; in a SLURM array its size, else 1 (%(default)s)",
    )
    group.add_argument(
        "--shard_index",
        type=int,
        default=shard_index,
        help="the part to work on, from 0; in a SLURM array the task's place in it (%(default)s)",
    )
    add_redo_arguments(group)
    parser.without_effect(
        "--retry_failed", lambda args: args.overwrite == "all", "with --overwrite, which asks for everything again"
    )
    group.add_argument("--prompts_dir", metavar="DIR", help="prompts to use instead of the ones in prompts/")
    group.add_argument(
        "--dry_run",
        action="store_true",
        help="render every prompt, count its tokens and say what would be cut and asked; load no weights",
    )
    add_log_argument(group)


def add_log_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--log_level",
        choices=["debug", "info", "warning"],
        default="warning",
        help="what the libraries below may print (%(default)s)",
    )


def slurm_shard() -> tuple[int, int]:
    """Number of shards and index of this one, from the SLURM array that this process is a task of; else (1, 0).

    Only an array without gaps counts: of `--array=1,4` a task cannot tell its place.
    """
    names = ("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_ID")
    if any(not os.environ.get(name, "").isdigit() for name in names):
        return 1, 0
    count, first, last, task = (int(os.environ[name]) for name in names)
    return (count, task - first) if count == last - first + 1 else (1, 0)


def prepare_run(args: argparse.Namespace, outputs: list[str], inputs: list[str]) -> None:
    """What a script that asks a model does first: set up logging, and check the flags of `add_run_arguments`."""
    set_up_logging(args.log_level)
    array_size, place = slurm_shard()
    if args.num_shards == 1 and args.shard_index == place:
        args.shard_index = 0  # --num_shards 1 alone, in an array
    check_shard(args.num_shards, args.shard_index)
    if array_size > 1 and args.num_shards > 1 and args.shard_index == place:
        print(f"note: shard {args.shard_index} of {args.num_shards}, from the SLURM array", file=sys.stderr)
    check_outputs(outputs, inputs)


def check_outputs(outputs: list[str], inputs: list[str]) -> None:
    """Raise UserError where an output is one of the inputs, which --overwrite would replace."""
    for path in outputs:
        if os.path.realpath(path) in {os.path.realpath(one) for one in inputs}:
            raise UserError(f"{path}: is an input too; give the output its own name")


def check_shard(num_shards: int, shard_index: int) -> None:
    """Raise UserError unless 0 <= shard_index < num_shards."""
    if num_shards < 1 or not 0 <= shard_index < num_shards:
        raise UserError(
            f"--shard_index {shard_index} is out of range: with --num_shards {num_shards} "
            f"it goes from 0 to {max(num_shards, 1) - 1}"
        )
