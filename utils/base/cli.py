"""The scripts' command line: value types, a parser that refuses flags without effect, and flags that scripts share.

A shared flag has the same name and meaning in every script. Scripts also import the names of errors.py from here.
"""

import argparse
import difflib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from utils.base.errors import (
    INTERRUPTED,
    LAUNCHED,
    LEAVE_SECONDS,
    RESUME_HINT,
    USER_ERROR,
    UserError,
    describe_missing,
    describe_os_error,
    exit_on_signal,
    is_first_process,
    is_launched,
    num_processes,
    quote,
    report_missing,
    run_script,
    tells_errors,
)


class Arguments(argparse.Namespace):
    """Parsed command-line flags. They do not change after parsing; `replaced` returns a changed copy.

    Attributes (slots, so that `vars()` does not include them):
        given: names of the flags that are on the command line.
        idle: names of the flags that do not affect an output.
    """

    __slots__ = ("given", "idle", "is_frozen")  # copying sets them in this order, so `is_frozen` is last

    # Defaults for commands that lack these flags. Class attributes do not appear in settings or manifests.
    trace, num_shards, max_retries, num_contexts, set, requests_to = False, 1, 0, 0, None, None
    start_adapter, schedule, lora_alpha, lora_dropout, lora_target_modules = None, "linear", 16, 0.05, None

    def __init__(self, given: frozenset[str] = frozenset(), idle: frozenset[str] = frozenset(), /, **values: Any):
        super().__init__(**values)
        self.given, self.idle = given, idle

    def freeze(self) -> "Arguments":
        self.is_frozen = True
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "is_frozen", False):
            raise AttributeError(f"--{name} was parsed and does not change; use `replaced`")
        super().__setattr__(name, value)

    def replaced(self, **values: Any) -> "Arguments":
        """Return a copy with these values replaced, and with the same `given` and `idle`."""
        return Arguments(self.given, self.idle, **{**vars(self), **values}).freeze()

    def settings(self) -> dict[str, Any]:
        """Return the flags that affect an output: all except those given to `FlagParser.not_a_setting`."""
        return {name: value for name, value in vars(self).items() if name not in self.idle}


Condition = Callable[[argparse.Namespace], bool]


class FlagParser(argparse.ArgumentParser):
    """A parser that reports mistakes in a line or two, and refuses given flags that have no effect (`without_effect`).

    A flag counts as given only if it is on the command line; a default, even from the environment, does not count.
    """

    def __init__(self, **settings: object):
        super().__init__(**settings)
        self._rules: list[tuple[list[str], Condition, str, str]] = []
        self._given: dict[str, None] = {}  # the words of the command line, without `=value`; not all of them are flags
        self._models: dict[str, Condition] = {}
        self.idle: dict[str, str] = {}  # flag that does not affect an output -> the reason

    def without_effect(self, flags: str, when: Condition, why: str, remedy: str = "") -> None:
        """Refuse these flags (separated by spaces) if they are given but have no effect.

        Args:
            when: returns whether they have no effect, given the parsed flags.
            why: how the message "--flag: has no effect ..." ends.
            remedy: what the user can do instead of removing the flags.
        """
        self._rules.append((flags.split(), when, why, remedy))

    def not_a_setting(self, flags: str, because: str) -> None:
        """Leave these flags (separated by spaces) out of an output's settings; `because` documents the reason."""
        self.idle |= dict.fromkeys(flags.split(), because)

    def names_model(self, flag: str, is_behind_api: Condition = lambda args: False) -> None:
        """Resolve a link to a local model in this flag's value, because training may change the link at any time."""
        self._models[flag.removeprefix("--")] = is_behind_api

    def parse_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None) -> Arguments:
        parsed = super().parse_args(args, namespace)
        refusals: dict[str, str] = {}  # by flag; if several rules refuse it, the last one names the flag to add first
        for flags, when, why, remedy in self._rules:
            given = [flag for flag in flags if flag in self._given]
            if given and when(parsed):
                verb, them = ("has", given[0]) if len(given) == 1 else ("have", "these flags")
                remove = f"{remedy}, or remove" if remedy else "remove"
                message = f"{', '.join(given)}: {verb} no effect {why}\n  {remove} {them}"
                refusals |= dict.fromkeys(given, message)
        if refusals:
            self.refuse(next(iter(refusals.values())))
        for name, is_behind_api in self._models.items():
            if not is_behind_api(parsed):
                setattr(parsed, name, without_link(getattr(parsed, name)))
        return parsed.freeze()

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[Arguments, list[str]]:
        words = sys.argv[1:] if args is None else args
        self._given = dict.fromkeys(word.partition("=")[0] for word in words)
        for word in words:
            if not is_text(word):  # the manifest, written at the end of the run, must be UTF-8
                self.refuse(f"{word!r} is not UTF-8; rename the file, or use another name")
        try:
            words = list(map(at_home, words))
        except argparse.ArgumentTypeError as error:
            self.refuse(str(error))
        parsed, rest = super().parse_known_args(words, namespace)
        actions = self._option_string_actions
        given = frozenset(actions[flag].dest for flag in actions.keys() & self._given.keys())
        idle = frozenset(actions[flag].dest for flag in self.idle)
        return Arguments(given, idle, **vars(parsed)), rest

    def error(self, message: str) -> None:
        """End the process with argparse's message, or with a hint if a flag is misspelt."""
        looks_like_flag = re.compile(r"--?[^\W\d]\S*").fullmatch  # neither -1 nor a value with spaces
        # The message has no values, because they may be secret.
        if unknown := [
            flag for flag in self._given if looks_like_flag(flag) and flag not in self._option_string_actions
        ]:
            meant = ", ".join(nearest(flag, self._option_string_actions) for flag in unknown)
            self.refuse(f"unrecognized arguments: {', '.join(unknown)}; did you mean {meant}?")
        self.refuse(f"{message}; --help lists the flags")

    def refuse(self, message: str) -> None:
        """End the process with exit code 2 and a message about its command line."""
        self.exit(USER_ERROR, f"error: {message}\n" if tells_errors() else None)


def is_text(word: str) -> bool:
    """Return whether a word can be written as UTF-8; a file name with other bytes cannot."""
    return word.isascii() or not any("\ud800" <= character <= "\udfff" for character in word)


def at_home(word: str) -> str:
    """Expand ~ or ~user at the beginning of a path or of the value in `--flag=PATH`, as some shells do not.

    ArgumentTypeError if there is no such user.
    """
    flag, sign, path = word.partition("=") if word.startswith("--") else ("", "", word)
    expanded = os.path.expanduser(path)
    if path.startswith("~") and "/" in path and expanded == path:
        raise argparse.ArgumentTypeError(f"{path}: no such user; if this is a folder, write ./{path}")
    return flag + sign + expanded


def without_link(path: str | None) -> str | None:
    """Return the real path if `path` is a symbolic link; otherwise, `path` as it is."""
    return os.path.realpath(path) if path and os.path.islink(path.rstrip("/")) else path


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the choice closest to a misspelt or shortened name."""
    choices = list(choices)
    longer = [choice for choice in choices if choice.startswith(name)]
    return difflib.get_close_matches(name, longer or choices, n=1, cutoff=0)[0]


def value_type(name: str, kind: type, is_valid: Callable[[float], bool], problem: str) -> Callable[[str], float]:
    """Return an argparse `type` for a number of this kind; `problem` is the message if the number is not valid."""

    def read(text: str) -> float:
        if not is_valid(value := kind(text)):
            raise argparse.ArgumentTypeError(f"{text} {problem}")
        return value

    read.__name__ = name  # shown in argparse's message if the text is not a number
    return read


def api_address(text: str) -> str:
    """Return a server's address unchanged (an argparse `type`); ArgumentTypeError if it is not valid."""
    if problem := address_problem(text):
        is_default = text == os.environ.get("OPENAI_BASE_URL")
        raise argparse.ArgumentTypeError(f"OPENAI_BASE_URL in the environment: {problem}" if is_default else problem)
    return text


def address_problem(text: str) -> str | None:
    """Return why `text` is not an HTTP address, without quoting it and its password; None if it is one."""
    with suppress(ValueError):  # an invalid port, or an unclosed bracket
        parts = urlsplit(text)
        is_complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_complete and not parts.fragment and text.isprintable() and " " not in text:
            return None
    return "not an address such as http://127.0.0.1:8000/v1 (in a password, write # / ? @ as %23 %2F %3F %40)"


def or_word(word: str, kind: Callable[[str], float]) -> Callable[[str], float | None]:
    """Return an argparse `type` that turns `word` into None and parses any other text with `kind`."""

    def read(text: str) -> float | None:
        return None if text == word else kind(text)

    read.__name__ = f"{kind.__name__} or {word}"
    return read


def json_object(taken: Sequence[str], why: str) -> Callable[[str], dict[str, Any]]:
    """Return an argparse `type` for a JSON object; `why` is the reason for refusing a key in `taken`."""

    def read(text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
            is_sound = isinstance(value, dict) and is_text(json.dumps(value, ensure_ascii=False, allow_nan=False))
        except (ValueError, RecursionError):
            is_sound = False
        if not is_sound:
            raise argparse.ArgumentTypeError(f'{quote(text)} is not a JSON object, such as {{"key": true}}')
        if own := sorted(value.keys() & set(taken)):
            raise argparse.ArgumentTypeError(f"{own[0]}: {why}")
        return value

    read.__name__ = "JSON object"
    return read


positive_int = value_type("positive_int", int, lambda value: value >= 1, "is not a positive number")
non_negative_int = value_type("non_negative_int", int, lambda value: value >= 0, "is negative")
non_negative_float = value_type(
    "non_negative_float", float, lambda value: 0 <= value < math.inf, "is not a number from 0 up"
)
LEAST_PRICE = 0.001  # US dollars per million tokens; a lower price is probably per token


def price(text: str) -> float:
    """Return a price in US dollars per million tokens; print a note if it looks like a price per token."""
    value = non_negative_float(text)
    if 0 < value < LEAST_PRICE:
        unit = "prices are in US dollars per million tokens"
        print(f"note: price {text}: {unit}; if this is the price of one token, use {value * 1e6:g}", file=sys.stderr)
    return value


finite_float = value_type("finite_float", float, math.isfinite, "is not a finite number")
penalty = value_type("penalty", float, lambda value: -2 <= value <= 2, "is not between -2 and 2")
share = value_type("share", float, lambda value: 0 <= value <= 1, "is not between 0 and 1")
temperature = value_type("temperature", float, lambda value: 0 <= value <= 2, "is not between 0 and 2")
fraction = value_type("fraction", float, lambda value: 0 < value <= 1, "is not above 0 and at most 1")


VERSION = "1.0.0"  # docs/changelog.md says what each version changes in numbers; CITATION.cff has it too

# Loggers limited to warnings and errors, because other messages contain addresses and headers with secrets.
HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2")

# Flags besides temperature, top_p and seed that change requests. SAMPLED lists those that affect sampling.
SAMPLED = ("top_k", "min_p", "presence_penalty")
FURTHER = (*SAMPLED, "reasoning_effort", "chat_template_kwargs", "extra_body")
LIMITS = ("max_tokens", "max_completion_tokens")  # OpenAI's old and new name of the same limit

# Request parameters and chat template variables that users may not set, because this program sets them.
OWN_PARAMETERS = ("model", "messages", "stream", "n", "response_format", "max_completion_tokens", "max_tokens",
                  "temperature", "top_p", "seed", "top_k", "min_p", "presence_penalty", "reasoning_effort",
                  "chat_template_kwargs")  # fmt: skip
OWN_VARIABLES = ("messages", "conversation", "add_generation_prompt", "continue_final_message", "chat_template",
                 "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
                 "return_assistant_tokens_mask", "tokenizer_kwargs")  # fmt: skip
extra_body = json_object(OWN_PARAMETERS, "is set by this program, or by the flag of that name")
template_kwargs = json_object(OWN_VARIABLES, "is set by this program")
drawn_temperature, drawn_top_p = or_word("default", temperature), or_word("default", fraction)
seed_or_none = or_word("none", non_negative_int)


def make_parser(doc: str) -> FlagParser:
    """Return a parser with the script's docstring at the top of its --help."""
    parser = FlagParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"LaMP-QA {VERSION}", help="print the version, and exit")
    return parser


def set_up_logging(level: str) -> None:
    """Send log messages of at least `level`, including those of libraries, to stderr as plain lines."""
    logging.basicConfig(level=level.upper(), format="%(message)s", stream=sys.stderr)
    for name in HTTP_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


# fmt: off
def add_loading_arguments(parser: FlagParser, model_flag: str, model_help: str, required: bool = True) -> Callable:
    """Add the flags that name a model and load it with vLLM; return the function that adds flags to their group."""
    add = parser.add_argument_group("model").add_argument
    add(model_flag, required=required, metavar="MODEL", help=model_help)
    add("--cache_dir", help="where hub models are kept (default: Hugging Face's own cache)")
    add("--tensor_parallel_size", type=positive_int, default=1,
        help="GPUs that share one copy of the model (%(default)s)")
    add("--data_parallel_size", type=positive_int, default=1,
        help="copies of the model, each on its own GPUs (%(default)s)")
    add("--gpu_memory_utilization", type=fraction, default=0.9, help="share of each GPU's memory to use (%(default)s)")
    add("--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32"],
        help="type of the weights; `auto`: the model's own type, but 16 bits for a float32 model that is not a reward "
        "model or an encoder-decoder, and float32 on a CPU without bfloat16 (%(default)s)")
    add("--enforce_eager", action="store_true",
        help="do not use CUDA graphs: starts sooner, runs slower (off; always on for a CPU)")
    parser.not_a_setting(model_flag, "the identity of the model is a setting")
    parser.names_model(model_flag)
    parser.not_a_setting(
        "--cache_dir --tensor_parallel_size --data_parallel_size --gpu_memory_utilization --enforce_eager",
        "they only decide where and how the model runs",
    )
    return add


def add_engine_arguments(parser: FlagParser, model_flag: str, model_help: str, required: bool = True) -> None:
    """Add the flags that name a model, load it, or reach its API; `model_flag` is --model_addr or --evaluator_llm."""
    add = add_loading_arguments(parser, model_flag, model_help, required)
    add("--reasoning_parser", metavar="NAME",
        help="vLLM's reasoning parser, or `none`; with --openai only deepseek_r1, for texts with a thought at "
        "the beginning but no opening tag (default: detected from the chat template, or with --openai from tags in the "
        "text)")

    group = parser.add_argument_group("API")
    add = group.add_argument
    add("--openai", action="store_true", help="use an OpenAI-compatible API")
    add("--api_key_addr", metavar="FILE", help="file with the API key (default: OPENAI_API_KEY)")
    add("--base_url", metavar="URL", type=api_address,
        default=os.environ.get("OPENAI_BASE_URL") or None,  # as the default, so that the manifest has it
        help="address of the API (default: OPENAI_BASE_URL, else OpenAI's)")
    add("--model_id", metavar="NAME", help="identity of the API's model (default: the name it reports)")
    add("--max_concurrency", type=positive_int, default=32,
        help="maximum number of concurrent API requests; after a 429, all wait as long as the API asks (%(default)s)")
    add("--request_timeout", type=positive_int, default=600, metavar="SECONDS",
        help="retry an API request that has no answer after this many seconds (%(default)s)")
    add("--extra_body", type=extra_body, metavar="JSON",
        help="JSON object with additional parameters for each API request (default: none)")
    add_price_arguments(parser, group)
    parser.names_model(model_flag, lambda args: args.openai)
    parser.not_a_setting(
        "--api_key_addr --base_url --model_id --max_concurrency --request_timeout",
        "they only decide how the server is reached, and the identity of the model is a setting",
    )
    parser.without_effect(
        "--api_key_addr --base_url --model_id --extra_body --price_in --price_out --price_cached",
        lambda args: not args.openai,
        "without --openai, because the model is local",
        "add --openai",
    )


def add_price_arguments(parser: FlagParser, group: argparse._ActionsContainer, prefix: str = "") -> None:
    """Add the flags for the prices of an API's tokens; `prefix` is put before the names, as in --planner_price_in."""
    for name, what in (
        ("in", "a million input tokens"),
        ("out", "a million output tokens, including thoughts"),
        ("cached", "a million input tokens from the API's cache (default: the price of input tokens)"),
    ):
        help_text = f"price of {what}, in US dollars"
        group.add_argument(f"--{prefix}price_{name}", type=price, metavar="USD", help=help_text)
        parser.not_a_setting(f"--{prefix}price_{name}", "it only decides which cost is reported")
    first, second = f"--{prefix}price_in", f"--{prefix}price_out"
    for flags, missing in ((first, second), (f"{second} --{prefix}price_cached", first)):
        is_missing = partial(lambda name, args: vars(args)[name] is None, missing[2:])
        parser.without_effect(flags, is_missing, f"without {missing}", f"add {missing}")


def add_sampling_arguments(
    parser: FlagParser, *, temperature_default: float, max_tokens: int, max_model_len: str
) -> None:
    """Add the flags for sampling; `max_model_len` is the help text for that flag's default."""
    add = parser.add_argument_group("sampling").add_argument
    add("--temperature", type=drawn_temperature, default=temperature_default,
        help="0 is greedy; `default` is the model's generation_config.json, or the API's own default (%(default)s)")
    add("--top_p", type=drawn_top_p, default=0.95,
        help="nucleus sampling: share of the probability; `default` as for --temperature (%(default)s)")
    add("--top_k", type=non_negative_int, metavar="K",
        help="sample only from the K likeliest tokens; 0: from all (off)")
    add("--min_p", type=share, metavar="SHARE",
        help="drop tokens less likely than this share of the likeliest token's probability (off)")
    add("--presence_penalty", type=penalty, metavar="PENALTY",
        help="penalty on tokens already in the output, from -2 to 2 (off)")
    add("--reasoning_effort", metavar="LEVEL",
        help="low, medium or high, for an API or a chat template with this variable (default: the model's own)")
    add_template_argument(add)
    add("--max_tokens", type=positive_int, default=max_tokens,
        help="tokens per output, thoughts included (%(default)s; more for a reasoning model)")
    add("--max_model_len", type=positive_int, help=f"tokens of prompt and output together (default: {max_model_len})")
    add("--seed", type=seed_or_none, default=0, help="sampling seed; `none` sends the API no seed (%(default)s)")
    add("--max_retries", type=non_negative_int, default=3,
        help="retries of an unusable output (at --temperature 0 at most one, with constrained decoding) and of a "
        "failed API request (%(default)s)")
    add("--constrained_decoding", choices=["fallback", "always", "never"], default="fallback",
        help="constrain the output to its JSON schema: on the last try, always, or never; with never, each retry "
        "raises the temperature by 0.1, as in the paper's code (%(default)s)")
    parser.not_a_setting("--max_retries", "`MadeFile` compares it separately, if outputs were unusable")


def add_template_argument(add: Callable[..., object]) -> None:
    add("--chat_template_kwargs", type=template_kwargs, metavar="JSON",
        help="variables of the chat template, such as '{\"enable_thinking\": false}'; an API gets them in vLLM's "
        "format (default: none)")


def add_run_arguments(parser: FlagParser, shards: bool = True) -> None:
    """Add the flags of a run: which questions, the store, the prompts, --overwrite, --dry_run, and log messages."""
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--limit", type=positive_int, metavar="N", help="only the first N questions (default: all)")
    if shards:
        add("--ids_addr", metavar="FILE", help="only the questions whose ids are in this text file, one per line "
            "(default: all)")
        add("--num_shards", type=int, default=1,
            help="split the questions into shards, which fill the store and write no output (%(default)s)")
        add("--shard_index", type=int, default=0, help="shard to run, from 0 (%(default)s)")
    add_overwrite_argument(parser, group)
    add("--completions", metavar="DIR",
        help="folder of stored completions, shared by all commands with the same folder (default: `completions` beside "
        "the first output)")
    add("--cached_only", action="store_true",
        help="use only stored completions: send no requests, load no model (off)")
    add("--prompts_dir", metavar="DIR", help="prompts to use instead of the ones in prompts/")
    add("--requests_to", metavar="FILE",
        help="write API requests whose completions the store lacks to this file, instead of sending them (used by "
        "utils/batch.py)")
    parser.not_a_setting("--requests_to", "it only decides who sends requests")
    add_dry_run_argument(parser, group, "count prompts and tokens, and list what this machine lacks; load no weights")
    add_log_argument(parser, group)
    parser.not_a_setting("--limit", "it only selects questions, and the manifest has the hash of their keys")
    if shards:
        parser.not_a_setting("--ids_addr", "it only selects questions, and the manifest has the hash of their keys")
        parser.not_a_setting("--num_shards --shard_index", "they only divide the requests among processes")
    parser.not_a_setting("--completions --cached_only", "they only decide where completions come from")
    parser.not_a_setting("--prompts_dir", "the hashes of the prompts are settings")


def add_overwrite_argument(parser: FlagParser, group: argparse._ActionsContainer) -> None:
    parser.not_a_setting("--overwrite", "it only decides what may be replaced")
    group.add_argument("--overwrite", action="store_true",
        help="replace an output that was made with other settings, has more entries, or was written by another "
        "program; stored completions are still reused (off)")


def add_unranked_argument(parser: FlagParser) -> None:
    parser.not_a_setting("--unranked", "the hash of the dataset is a setting")
    parser.add_argument("--unranked", action="store_true",
        help="accept an unranked dataset, and use its posts in the file's order (off: refuse)")


def add_dry_run_argument(parser: FlagParser, group: argparse._ActionsContainer, does: str) -> None:
    parser.not_a_setting("--dry_run", "it writes no output")
    group.add_argument("--dry_run", action="store_true", help=f"{does} (off)")


def add_log_argument(parser: FlagParser, group: argparse._ActionsContainer) -> None:
    parser.not_a_setting("--log_level", "it only decides which messages are shown")
    group.add_argument("--log_level", choices=["debug", "info", "warning"], default="warning",
                       help="messages of libraries to show (%(default)s)")
# fmt: on


def prepare_run(args: Arguments, outputs: list[str], inputs: list[str]) -> Arguments:
    """Set up logging, check the flags of `add_run_arguments`, and return the flags with --completions filled in."""
    set_up_logging(args.log_level)
    set_up_torch(args.log_level)
    if "num_shards" in args:
        check_shard(args.num_shards, args.shard_index)
        if args.num_shards == 1 and os.environ.get("SLURM_ARRAY_TASK_COUNT", "1") != "1":
            note = "each task of this SLURM array runs all questions; to split them (array starting at 0), add"
            flags = "--num_shards $SLURM_ARRAY_TASK_COUNT --shard_index $SLURM_ARRAY_TASK_ID"
            print(f"note: {note}\n  {flags}", file=sys.stderr)
    check_outputs(outputs, inputs)
    folder = str(Path(outputs[0]).parent / "completions") if args.completions is None else args.completions
    check_completions(folder, outputs)
    return args.replaced(completions=folder)


def set_up_torch(log_level: str) -> None:
    """Set environment variables that torch reads when it is imported, unless the user has set them."""
    # How often a CPU thread polls for the next operation before it sleeps. 3000 polls cover the gaps within a model's
    # step; between steps, the thread sleeps and leaves the core to the main thread. Measured on four idle cores: 285
    # tokens per second, or 188 without polling. With one core busy: 76 tokens per second, or 86 without polling, or 27
    # with libgomp's default of 300,000 polls.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if log_level == "warning":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def check_outputs(outputs: list[str], inputs: list[str]) -> None:
    """Raise UserError if an output is also an input, because --overwrite would replace the input."""
    for path in outputs:
        if os.path.realpath(path) in {os.path.realpath(address) for address in inputs}:
            raise UserError(f"{path}: is also an input; choose another output path")


def check_same_number(args: argparse.Namespace, *names: str) -> None:
    """Raise UserError unless these flags, which take one or more values, all have the same number of values."""
    numbers = {name: len(vars(args)[name]) for name in names}
    if len(set(numbers.values())) > 1:
        counts = ", ".join(f"{number} --{name}" for name, number in numbers.items())
        raise UserError(f"{counts}: pass the same number of each")


def check_different(flag: str, outputs: list[str]) -> None:
    """Raise UserError if two outputs are the same file."""
    if len({os.path.realpath(path) for path in outputs}) < len(outputs):
        raise UserError(f"{flag}: the same file appears twice; each output needs its own file")


def check_completions(folder: str, outputs: list[str]) -> None:
    """Raise UserError if --completions is not a folder, or is an output's path."""
    if not folder.strip():
        raise UserError("--completions: is empty; pass a folder")
    if os.path.realpath(folder) in map(os.path.realpath, outputs):
        raise UserError(f"--completions {folder}: is also an output; choose another folder")
    if os.path.lexists(folder) and not os.path.isdir(folder):
        what = "a broken link" if os.path.islink(folder) and not os.path.exists(folder) else "not a folder"
        raise UserError(f"--completions {folder}: is {what}; choose another folder")


def check_shard(num_shards: int, shard_index: int) -> None:
    """Raise UserError unless 0 <= shard_index < num_shards."""
    if num_shards < 1 or not 0 <= shard_index < num_shards:
        raise UserError(
            f"--shard_index {shard_index} is out of range: with --num_shards {num_shards} "
            f"it must be from 0 to {max(num_shards, 1) - 1}"
        )
