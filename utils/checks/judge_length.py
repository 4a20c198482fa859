"""How long a judge's context is to be, before a job: what evaluate_responses.py will load it for."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from prompts import Messages, load_prompt
from utils.benchmarks.judging import STRATEGIES
from utils.benchmarks.responses import read_responses
from utils.checks.estimate import STAND_IN
from utils.checks.report import Report
from utils.generation.chat import (
    PAPER_LENGTH,
    VERDICT_TOKENS,
    LocalChat,
    choose_judge_length,
    choose_length,
    render_all,
)
from utils.scoring.verdicts import SCORINGS

Record = dict[str, Any]


def judge_length(report: Report, args: Namespace, records: list[Record], chat: LocalChat) -> int:
    """Tokens of prompt and verdict together that a judge is loaded for; says what they come from.

    Args:
        args: the flags of utils/preflight.py. Without --response_addr every response is taken to have --max_tokens.
        records: what it judges; without any, its length is taken as a generator's.

    Raises:
        UserError: a response file cannot be read, or --max_model_len leaves no room for the verdict or is over the
            model's limit.
    """
    name = f"judge {args.evaluator_llm}"
    if args.max_model_len or not records:
        length = choose_length(chat, args.max_model_len, VERDICT_TOKENS, PAPER_LENGTH)
        if not args.max_model_len:
            report.note(f"{name}: {length} tokens assumed; its prompts tell, so give --inputs_addr")
        return length
    longest = max((chat.length(prompt) for prompt in render_prompts(args, records, chat)), default=1)
    source = ", ".join(args.response_addr or [])
    if not args.response_addr:
        longest += num_responses(args.strategy) * (args.max_tokens - 1)
        source = f"responses of {args.max_tokens} tokens, as none are given"
    length = choose_judge_length(chat, None, VERDICT_TOKENS, longest)
    report.note(
        f"{name}: {length} tokens, as its longest prompt has {longest} and a verdict {VERDICT_TOKENS} ({source})"
    )
    return length


def render_prompts(args: Namespace, records: list[Record], chat: LocalChat) -> Iterator[Any]:
    for group in render_all(chat, build_groups(args, records)):
        yield from group


def build_groups(args: Namespace, records: list[Record]) -> Iterator[list[Messages]]:
    """What is asked of each response, or of each pair; without responses of one of a token to each question."""
    strategy = STRATEGIES[args.strategy]
    prompt = load_prompt(strategy.prompt)
    files = [read_responses(address) for address in args.response_addr or []]
    number = num_responses(args.strategy)
    for start in range(0, len(files) or number, number):
        for record in records:
            outputs = [STAND_IN] * number
            if files:
                outputs = [file.get(record["id"], [{"output": None}])[0]["output"] for file in files[start:][:number]]
            if all(output and output.strip() for output in outputs):
                keys = SCORINGS[args.strategy].keys(record)
                yield [strategy.messages(prompt, record, outputs, key[1]) for key in keys]


def num_responses(strategy: str) -> int:
    """In a prompt."""
    return 2 if strategy == "pairwise" else 1
