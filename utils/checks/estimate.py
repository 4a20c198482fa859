"""What the benchmark's steps would ask of a model: for --estimate, and for the length that a judge is loaded for.

Nothing is asked. Prompts are rendered as the scripts render them, so their figures are those of --dry_run; how long
outputs are is assumed. `args` are the flags of utils/preflight.py.
"""

from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from typing import Any

from prompts import Messages, load_prompt
from utils.benchmarks import task_of
from utils.benchmarks.task import Metric, Record, Task
from utils.checks.report import Report
from utils.cli import UserError
from utils.generation import chat as chats
from utils.generation.chat import PAPER_LENGTH, APIChat, LocalChat, choose_length
from utils.generation.history import fit_items
from utils.generation.templates import template_variables
from utils.generation.thinking import USUAL_THOUGHTS, end_thoughts, find_thoughts
from utils.parsing.plans import gold_text
from utils.records.judged import are_answered, verdict_options
from utils.records.responses import read_responses

STAND_IN = "x"  # for a response that is still to be made: a token

Chat = LocalChat | APIChat


def describe_estimate(args: Namespace, model: str, records: list[Record]) -> str:
    """A table of what every step asks of `model`, and what it rests on."""
    try:
        chat = APIChat(model) if args.openai else LocalChat(model, args.cache_dir, template_variables(args))
    except UserError:  # its tokenizer is not here
        chat = APIChat(model)
    thinks = find_thoughts(args, chat, model).thinks
    rows = [["step", "API calls" if args.openai else "prompts", "prompt tokens", "output tokens"]]
    for step, lengths, output_tokens in count_steps(args, model, records, chat):
        output_tokens += USUAL_THOUGHTS if thinks else 0
        numbers = (len(lengths), sum(lengths), len(lengths) * output_tokens)
        rows.append([step, *(f"{number:,}" for number in numbers)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{model}, {len(records)} questions:",
        *("  ".join(["", row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows),
        f"  prompt tokens: {chat.counter}; output tokens are assumed: {args.answer_tokens} an answer, "
        f"{args.plan_tokens} a plan, {args.verdict_tokens} a verdict",
        *([f"  and {USUAL_THOUGHTS} for the thoughts of each, a guess"] if thinks else []),
        "  PlanPers' answers are counted with the gold plans; retries come on top",
    ]
    return "\n".join([*lines, *(["  the planner runs here, not behind the API"] if args.openai else [])])


def count_steps(args: Namespace, model: str, records: list[Record], chat: Chat) -> Iterator[tuple[str, list[int], int]]:
    """Of each step its name, the tokens of each prompt that is not too long for the model, and those of an output."""
    task = task_of("--inputs_addr", records)
    thoughts = find_thoughts(args, chat, model)

    def budget_of(flag: str, wanted: int) -> int:
        room = thoughts.room(flag in args.given, args.max_model_len, chat.model_limit)
        tokens = getattr(args, flag) + room
        return choose_length(chat, args.max_model_len, tokens, wanted + room, f"--{flag}") - tokens

    to_answer = budget_of("max_tokens", task.prompt_length or PAPER_LENGTH)
    for step, method, budget, output_tokens in (
        ("no personalization", "none", to_answer, args.answer_tokens),
        ("RAG", "rag", to_answer, args.answer_tokens),
        ("planner", "planner", budget_of("max_tokens_plan", PAPER_LENGTH), args.plan_tokens),
        ("PlanPers answer", "planpers", to_answer, args.answer_tokens),
    ):
        if method in task.prompts and (method != "planpers" or task.gold_plan):
            fitted = (fit_prompt(task, method, record, args.num_contexts, chat, budget) for record in records)
            yield step, [chat.length(one.prompt) for one in fitted if one], output_tokens
    metric = next(iter(task.metrics.values()))
    if metric.judge:  # which is loaded for its longest prompt, so all fit
        lengths = [length + args.answer_tokens - 1 for length in judge_lengths(metric, records, [], chat)]
        yield "judge, one system", lengths, args.verdict_tokens


def fit_prompt(
    task: Task, method: str, record: Record, num_contexts: int, chat: Chat, budget: int
) -> chats.Fitted | None:
    """A question's prompt as its script fits it; PlanPers' with the gold plan, as `planpers.py --gold_plan`."""
    titles = task.gold_plan(record) if method == "planpers" else []
    prompt = load_prompt(task.prompts["rag" if method == "planpers" and not titles else method])
    plan = {"plan": gold_text(titles)} if titles else {}
    items = task.best_items(record, None if method == "none" else num_contexts)
    return fit_items(prompt, items, chat, budget, task.join, **task.values(record), **plan)


def judge_length(report: Report, args: Namespace, records: list[Record], chat: LocalChat) -> int:
    """Tokens of prompt and verdict together that evaluate_responses.py loads a judge for; says what they come from.

    Without --response_addr every response is taken to have --max_tokens; without records it is a generator's length.
    """
    name, addresses = f"judge {args.evaluator_llm}", args.response_addr or []
    thoughts = find_thoughts(args, chat, args.evaluator_llm)
    if args.verdicts:
        end_thoughts(chat, thoughts)
        tokens, room = 1, 0
    else:
        room = thoughts.room("max_tokens_verdict" in args.given, args.max_model_len, chat.model_limit)
        tokens = args.max_tokens_verdict + room
    if args.max_model_len or not records:
        length = choose_length(chat, args.max_model_len, tokens, PAPER_LENGTH + room)
        if not args.max_model_len:
            report.note(f"{name}: {length} tokens assumed; its prompts tell, so give --inputs_addr")
        return length
    task = task_of("--inputs_addr", records)
    strategy = args.strategy or next(iter(task.metrics))
    metric = task.metrics[strategy]
    longest = max(judge_lengths(metric, records, list(map(read_responses, addresses)), chat), default=1)
    if args.verdicts:
        if metric.judge.scale is None:
            what = f"--verdicts {args.verdicts}: {task.name}'s {strategy}"
            raise UserError(f"{what} has no verdicts on parts of an answer; leave it out")
        begin, options = verdict_options(metric.judge.scale, chat)
        longest, tokens = longest + len(begin), max(map(len, options.values())) + 1
    source = ", ".join(addresses)
    if not addresses:
        longest += metric.num_systems * (args.max_tokens - 1)
        source = f"responses of {args.max_tokens} tokens, as none are given"
    length = chats.choose_judge_length(chat, None, tokens, longest)
    needs = f"its longest prompt has {longest} and a verdict {tokens}"
    needs += f", of which {room} are for thoughts (a guess)" if room else ""
    report.note(f"{name}: {length} tokens, as {needs} ({source})")
    return length


def judge_lengths(
    metric: Metric, records: list[Record], files: list[dict[str, list[dict[str, Any]]]], chat: Chat
) -> Iterator[int]:
    """Tokens of each prompt for a judge of these responses; without a file, of responses of one token."""
    prompt, number = load_prompt(metric.judge.prompt), metric.num_systems
    files = files or [{record["id"]: [{"output": STAND_IN}] for record in records}] * number

    def build_groups() -> Iterator[list[Messages]]:
        for start, record in product(range(0, len(files), number), records):
            outputs = [file.get(record["id"], [{"output": None}])[0]["output"] for file in files[start:][:number]]
            if all(are_answered(outputs)):
                yield [metric.judge.messages(prompt, record, outputs, i) for _, i in metric.keys(record)]

    for group in chats.render_all(chat, build_groups()):
        yield from map(chat.length, group)
