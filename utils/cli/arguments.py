"""The flags that several scripts share: one spelling and one meaning in every script."""

import argparse
import logging
import os
import sys

from utils.cli.errors import UserError
from utils.cli.flags import FlagParser, api_address, fraction, non_negative_int, positive_int, temperature

# Never heard below a warning: their lines show addresses and headers, secrets included.
HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2")


def make_parser(doc: str) -> FlagParser:
    """A parser whose --help opens with the script's own docstring."""
    return FlagParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)


def set_up_logging(level: str) -> None:
    """Our own messages go to stderr as plain lines; libraries speak from `level` on."""
    logging.basicConfig(level=level.upper(), format="%(message)s", stream=sys.stderr)
    for name in HTTP_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


# fmt: off
def add_engine_arguments(parser: FlagParser, model_flag: str, model_help: str, required: bool = True) -> None:
    """Which model answers, and how it is loaded: `model_flag` is --model_addr or --evaluator_llm."""
    group = parser.add_argument_group("model")
    group.add_argument(model_flag, required=required, metavar="MODEL", help=model_help)
    add_memory_arguments(group)
    add = group.add_argument
    add("--enforce_eager", action=argparse.BooleanOptionalAction,
        help="no CUDA graphs: starts sooner, runs slower (default: where the outputs are few; always so on a CPU)")
    add("--batch_invariant", action="store_true",
        help="compute an output as if it were asked alone, so that shards and resumed runs write what one run would; "
        "slower, and for GPUs of compute capability 8.0 or more (off; VLLM_BATCH_INVARIANT=1 does the same)")

    group = parser.add_argument_group("API")
    add_key_arguments(group)
    add = group.add_argument
    add("--base_url", metavar="URL", type=api_address,
        default=os.environ.get("OPENAI_BASE_URL") or None,  # here, so that the manifest names it
        help="address of the API (default: OPENAI_BASE_URL, else OpenAI's)")
    add("--model_id", metavar="NAME", help="which model the API has (default: as it calls it itself)")
    add("--max_concurrency", type=positive_int, default=32,
        help="API requests under way at a time; fewer where the API asks for it (%(default)s)")
    add("--request_timeout", type=positive_int, default=600, metavar="SECONDS",
        help="an API request without an answer is made again after this time (%(default)s)")
    add("--openai_batch", action="store_true",
        help="ask by OpenAI's batch interface: half the price, answers within a day; requests that are "
        "in a batch already are found there (off)")
    parser.without_effect(
        "--api_key_addr --base_url --model_id --max_concurrency --request_timeout --openai_batch",
        lambda args: not args.openai,
        "without --openai, for the model runs here",
        "give --openai",
    )
    parser.without_effect(
        "--cache_dir --tensor_parallel_size --data_parallel_size --gpu_memory_utilization --dtype"
        " --enforce_eager --no-enforce_eager",
        lambda args: args.openai and not vars(args).get("planner_model"),  # a planner runs here all the same
        "with --openai, for no model is loaded here",
    )


def add_memory_arguments(group: argparse._ActionsContainer) -> None:
    """Where hub models are, and what decides how much GPU memory one takes."""
    add = group.add_argument
    add("--cache_dir", help="where hub models are kept (default: Hugging Face's own cache)")
    add("--tensor_parallel_size", type=positive_int, default=1,
        help="GPUs that share one copy of the model (%(default)s)")
    add("--data_parallel_size", type=positive_int, default=1,
        help="copies of the model that share the work, each on GPUs of its own (%(default)s)")
    add("--gpu_memory_utilization", type=fraction, default=0.9, help="share of each GPU's memory to use (%(default)s)")
    add("--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32"],
        help="weights' type (%(default)s)")


def add_key_arguments(group: argparse._ActionsContainer) -> None:
    """Whether the model is behind an API, and the key to it."""
    group.add_argument("--openai", action="store_true", help="the model is behind an OpenAI-compatible API")
    group.add_argument("--api_key_addr", metavar="FILE", help="file with the API key (default: OPENAI_API_KEY)")


def add_sampling_arguments(
    parser: argparse.ArgumentParser, *, temperature_default: float, max_tokens: int, max_model_len: str
) -> None:
    """How text is sampled; `max_model_len` is the help text for that flag's default."""
    add = parser.add_argument_group("sampling").add_argument
    add("--temperature", type=temperature, default=temperature_default, help="0 is greedy (%(default)s)")
    add("--top_p", type=fraction, default=0.95, help="nucleus sampling (%(default)s)")
    add("--max_tokens", type=positive_int, default=max_tokens, help="tokens an output may have (%(default)s)")
    add("--max_model_len", type=positive_int, help=f"tokens of prompt and output together (default: {max_model_len})")
    add("--seed", type=non_negative_int, default=0, help="seed of all sampling (%(default)s)")
    add("--max_retries", type=non_negative_int, default=3,
        help="how often an output that cannot be used is asked for again (at --temperature 0 once, held to its schema: "
        "a greedy model only repeats itself, so such an output shows 2 attempts), "
        "and how often an API request that failed for good is made again (%(default)s)")
    add("--constrained_decoding", choices=["fallback", "always", "never"], default="fallback",
        help="hold the output to its JSON schema: on the last try, always, or never, "
        "which raises the temperature by 0.1 a retry as the paper's code does (%(default)s)")


def add_run_arguments(parser: FlagParser, shards: bool = True) -> None:
    """Which part of the data to work on, and what to do with what is already there."""
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--limit", type=positive_int, metavar="N", help="only the first N questions (default: all)")
    if shards:
        num_shards, shard_index = slurm_shard()
        add("--num_shards", type=int, default=num_shards,
            help="parts the questions are split into; in a SLURM array its size, else 1 (%(default)s)")
        add("--shard_index", type=int, default=shard_index,
            help="the part to work on, from 0; in a SLURM array the task's place in it (%(default)s)")
    add_overwrite_argument(group)
    add("--retry_failed", action="store_true",
        help="ask again for what the model gave no usable output for, also in a finished output, with new seeds; "
        "everything else is kept (off)")
    parser.without_effect(
        "--retry_failed", lambda args: args.overwrite == "all", "with --overwrite, which asks for everything again"
    )
    add("--prompts_dir", metavar="DIR", help="prompts to use instead of the ones in prompts/")
    add("--dry_run", action="store_true",
        help="render every prompt, count its tokens and say what would be cut and asked; load no weights")
    add_log_argument(group)


def add_overwrite_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--overwrite", nargs="?", const="all", choices=["all", "changed"],
        help="make the output anew from nothing, also a finished one; interrupted, the same command goes on. With "
        "`changed` only what was made with other settings or from other files (default: replace nothing)")


def add_unranked_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument("--unranked", action="store_true",
        help="take the posts in the order of the file, the first ones as the best, if it is not ranked (off: refuse)")


def add_log_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument("--log_level", choices=["debug", "info", "warning"], default="warning",
                       help="what the libraries below may print (%(default)s)")
# fmt: on


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
    set_up_torch(args.log_level)
    if "num_shards" in args:
        _settle_shard(args)
    check_outputs(outputs, inputs)


def _settle_shard(args: argparse.Namespace) -> None:
    """Check the flags of a shard; what stands in `args` is then what holds."""
    array_size, place = slurm_shard()
    if args.num_shards == 1 and args.shard_index == place:
        args.shard_index = 0  # --num_shards 1 alone, in an array
    check_shard(args.num_shards, args.shard_index)
    if array_size > 1 and args.num_shards > 1 and args.shard_index == place:
        print(f"note: shard {args.shard_index} of {args.num_shards}, from the SLURM array", file=sys.stderr)


def set_up_torch(log_level: str) -> None:
    """What torch reads once, when it is imported, where the user has not set it."""
    # How often a thread of a CPU looks whether the next operation is there before it sleeps. Short enough to leave the
    # core to the driver, long enough for the gaps within a model's step: four cores write 285 tokens a second with it,
    # 188 where threads sleep at once; beside one busy core 76 and 86, and 27 with libgomp's own 300,000.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if log_level == "warning":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


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
