"""What the steps of the benchmark ask of a model: prompts, tokens, GPU-hours or dollars. Asks nothing itself.

Prompts are rendered as the scripts render them, so their figures are those of --dry_run. How long outputs are is
assumed.
"""

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompts import Prompt, load_prompt
from utils import cli
from utils.benchmarks.judging import judge_messages
from utils.cli import UserError
from utils.files.json_files import read_json
from utils.generation.chat import PAPER_LENGTH, APIChat, LocalChat, Rendered, choose_length, fit_posts, fit_profile
from utils.parsing.plans import gold_aspects, plan_text

PRICE_FILE = Path(__file__).with_name("api_prices.json")
PRICES = ("input", "cached_input", "output")  # of a million tokens, in USD
PLANNER = "planner"  # runs here, also where the generator is behind an API
STAND_IN = "x"  # for the response that a judge is to read: a token

Record = dict[str, Any]
Chat = LocalChat | APIChat


@dataclass(frozen=True)
class Step:
    """One step of the benchmark.

    Attributes:
        prompts: how many are asked; those too long for the model are not.
        prompt_tokens, output_tokens: of all prompts together, without retries.
    """

    name: str
    prompts: int
    prompt_tokens: int
    output_tokens: int


def add_estimate_arguments(parser: cli.FlagParser) -> None:
    group = parser.add_argument_group("estimate")
    group.add_argument("--estimate", action="store_true", help="count prompts and tokens of every step, for each model")
    group.add_argument("--num_contexts", type=cli.non_negative_int, default=10, help="posts in a prompt (%(default)s)")
    group.add_argument(
        "--max_tokens", type=cli.positive_int, default=2048, help="tokens an output may have (%(default)s)"
    )
    group.add_argument(
        "--max_tokens_plan", type=cli.positive_int, default=512, help="tokens a plan may have (%(default)s)"
    )
    for what, tokens in (("answer", 400), ("plan", 40), ("verdict", 15)):
        group.add_argument(
            f"--{what}_tokens",
            type=cli.positive_int,
            default=tokens,
            help=f"tokens that {what}s are assumed to have (%(default)s)",
        )
    for what in ("prompt", "output"):
        group.add_argument(
            f"--{what}_tokens_per_second",
            type=cli.positive_int,
            metavar="N",
            help=f"{what} tokens a second of the engine, as you measured it: both give GPU-hours (default: none)",
        )
    group.add_argument("--price_file", metavar="FILE", help=f"prices for --openai (default: utils/{PRICE_FILE.name})")
    rates, price = "--prompt_tokens_per_second --output_tokens_per_second", "--price_file"
    parser.without_effect(
        f"--num_contexts --max_tokens_plan --answer_tokens --plan_tokens --verdict_tokens {rates} {price}",
        lambda args: not args.estimate,
        "without --estimate",
        "give --estimate",
    )
    parser.without_effect(
        "--max_tokens",
        lambda args: not args.estimate and (args.evaluator_llm is None or args.response_addr is not None),
        "without --estimate, or a judge whose responses are still to be made",
        "give --estimate",
    )
    parser.without_effect(price, lambda args: not args.openai, "without --openai, for nothing is paid", "give --openai")
    parser.without_effect(rates, lambda args: args.openai, "with --openai, for no GPU is used")


def describe_estimate(args: Namespace, model: str, records: list[Record]) -> str:
    """A table of what every step asks of `model`, and what it rests on.

    Args:
        args: the flags of utils/preflight.py.
        records: questions with profile, narrative and rubric.

    Raises:
        UserError: the flags leave no room for a prompt, or the price file has no price for the model.
    """
    prices = read_prices(Path(args.price_file or PRICE_FILE), model) if args.openai else None
    chat = open_counter(args, model)
    rows = [make_row(args, step, prices) for step in count_steps(args, records, chat)]
    columns = ["step", "API calls" if args.openai else "prompts", "prompt tokens", "output tokens"]
    if args.openai:
        columns += ["USD", "USD, all input cached"]
    elif args.prompt_tokens_per_second:
        columns += ["GPU-hours"]
    return "\n".join([f"{model}, {len(records)} questions:", *align([columns, *rows]), *describe_basis(args, chat)])


def open_counter(args: Namespace, model: str) -> Chat:
    """The model's own tokenizer where it is here, else the counter for API models."""
    if args.openai:
        return APIChat(model)
    try:
        return LocalChat(model, args.cache_dir)
    except UserError:
        return APIChat(model)


@dataclass(frozen=True)
class Renderer:
    """The prompts of every step for one question, as the scripts render them; those too long are left out.

    Attributes:
        budget, plan_budget: most tokens that the prompt for an answer, or for a plan, may have.
    """

    chat: Chat
    prompts: dict[str, Prompt]
    num_contexts: int
    budget: int
    plan_budget: int

    def alone(self, record: Record) -> list[Rendered]:
        prompt = self.prompts["no_personalization"]
        fitted = fit_posts(lambda posts: prompt.messages(question=record["question"]), [], self.chat, self.budget)
        return [fitted.prompt] if fitted else []

    def rag(self, record: Record) -> list[Rendered]:
        return self._with_profile("rag", record, self.budget)

    def planner(self, record: Record) -> list[Rendered]:
        return self._with_profile("planner", record, self.plan_budget)

    def planpers(self, record: Record) -> list[Rendered]:
        """With the gold plan, as `planpers.py --gold_plan`."""
        titles = gold_aspects(record)
        if not titles:
            return self.rag(record)
        return self._with_profile("planpers", record, self.budget, plan=plan_text(titles))

    def judge(self, record: Record) -> list[Rendered]:
        """One prompt an aspect, with a response of one token; a judge is loaded for its longest prompt, so all fit."""
        prompt = self.prompts["aspect_judge"]
        return [
            self.chat.render(judge_messages(prompt, record, STAND_IN, aspect)) for aspect in record["rubric_aspects"]
        ]

    def _with_profile(self, name: str, record: Record, budget: int, **values: str) -> list[Rendered]:
        fitted = fit_profile(self.prompts[name], record, self.num_contexts, self.chat, budget, **values)
        return [fitted.prompt] if fitted else []


def open_renderer(args: Namespace, chat: Chat) -> Renderer:
    length = choose_length(chat, args.max_model_len, args.max_tokens, PAPER_LENGTH)
    plan_length = choose_length(chat, args.max_model_len, args.max_tokens_plan, PAPER_LENGTH, "--max_tokens_plan")
    names = ("no_personalization", "rag", "planner", "planpers", "aspect_judge")
    prompts = {name: load_prompt(name) for name in names}
    budgets = (length - args.max_tokens, plan_length - args.max_tokens_plan)
    return Renderer(chat, prompts, args.num_contexts, *budgets)


def count_steps(args: Namespace, records: list[Record], chat: Chat) -> list[Step]:
    """The five steps; the judge's prompts are longer by the response that it is assumed to read."""
    renderer = open_renderer(args, chat)

    def step(name: str, render: Callable[[Record], list[Rendered]], output_tokens: int, more: int = 0) -> Step:
        lengths = [chat.length(prompt) + more for record in records for prompt in render(record)]
        return Step(name, len(lengths), sum(lengths), len(lengths) * output_tokens)

    return [
        step("no personalization", renderer.alone, args.answer_tokens),
        step("RAG", renderer.rag, args.answer_tokens),
        step(PLANNER, renderer.planner, args.plan_tokens),
        step("PlanPers answer", renderer.planpers, args.answer_tokens),
        step("judge, one system", renderer.judge, args.verdict_tokens, more=args.answer_tokens - 1),
    ]


def make_row(args: Namespace, step: Step, prices: dict[str, float] | None) -> list[str]:
    """A step's cells of the table."""
    cells = [step.name, *(f"{number:,}" for number in (step.prompts, step.prompt_tokens, step.output_tokens))]
    if prices is not None:
        costs = [cost(step, prices, kind) for kind in ("input", "cached_input")]
        return cells + ["-" if step.name == PLANNER else f"{dollars:.3f}" for dollars in costs]
    if args.prompt_tokens_per_second:
        return [*cells, f"{gpu_hours(args, step):.2f}"]
    return cells


def cost(step: Step, prices: dict[str, float], kind: str) -> float:
    """USD for a step whose prompt tokens all cost the price `kind`: input or cached_input."""
    return (step.prompt_tokens * prices[kind] + step.output_tokens * prices["output"]) / 1e6


def gpu_hours(args: Namespace, step: Step) -> float:
    """Hours of the engine by the rates that the user gave, times its GPUs."""
    seconds = step.prompt_tokens / args.prompt_tokens_per_second + step.output_tokens / args.output_tokens_per_second
    return seconds / 3600 * args.tensor_parallel_size


def align(rows: list[list[str]]) -> list[str]:
    """The rows as lines, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def describe_basis(args: Namespace, chat: Chat) -> list[str]:
    """What the figures rest on."""
    lines = [
        f"  prompt tokens: {chat.counter}; output tokens are assumed: {args.answer_tokens} an answer, "
        f"{args.plan_tokens} a plan, {args.verdict_tokens} a verdict",
        "  PlanPers' answers are counted with the gold plans; retries come on top",
    ]
    if args.openai:
        date = read_json(args.price_file or PRICE_FILE).get("date", "unknown")
        lines.append(f"  prices of {date} from {args.price_file or PRICE_FILE.name}: check them; the planner runs here")
    elif args.prompt_tokens_per_second:
        lines.append(
            f"  GPU-hours: by your {args.prompt_tokens_per_second:,} prompt and {args.output_tokens_per_second:,} "
            f"output tokens a second, one after the other, on {args.tensor_parallel_size} GPUs"
        )
    return lines


def read_prices(path: Path, model: str) -> dict[str, float]:
    """A model's prices in USD per million tokens, by `PRICES`; UserError where the file has none."""
    content = read_json(path)
    models = content.get("models") if isinstance(content, dict) else None
    if not isinstance(models, dict):
        raise UserError(f'{path}: not a file of prices: {{"models": {{model: {{input, cached_input, output}}}}}}')
    if model not in models:
        known = ", ".join(sorted(models)) or "none"
        raise UserError(f"{path}: no price for {model} (it has: {known})\n  add it, or give another --price_file")
    prices = models[model]
    for name in PRICES:
        price = prices.get(name) if isinstance(prices, dict) else None
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
            raise UserError(f"{path}: {model}: {name!r} must be a number of USD per million tokens")
    return prices
