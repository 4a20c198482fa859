"""Everything in baselines.py except its method: questions, model, and response files."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from prompts import Prompt, digests, load_prompt
from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import Arguments, UserError
from utils.files.manifest import file_hash, refuse_unranked
from utils.files.output import Key, Output, Piece
from utils.generation.calls import describe_calls, prices_of
from utils.generation.engines import choose_answerer, identify_model, print_machine, publish_records
from utils.generation.failures import common_reasons
from utils.generation.model import Model
from utils.generation.thinking import template_variables
from utils.records.datasets import read_questions, select_questions
from utils.records.responses import collect_responses, count_responses
from utils.runs.ask import Ask
from utils.runs.command import Command, calls_of, writing
from utils.runs.runner import run_steps
from utils.runs.shared import Role, Shared, Step

Method = Callable[[Record, Ask], Awaitable[Piece]]


@dataclass(frozen=True)
class Dataset:
    """A dataset and the questions that a run answers."""

    path: str
    output_addr: str
    records: list[Record]
    task: Task
    asked: dict[Key, Record] = field(default_factory=dict)  # question by answer key, (id, number)


def add_dataset_arguments(parser: cli.FlagParser, inputs_help: str) -> None:
    """Add the flags that `read_datasets` uses."""
    # fmt: off
    add = parser.add_argument
    add("--inputs_addr", required=True, nargs="+", metavar="FILE", help=inputs_help)
    add("--output_addr", required=True, nargs="+", metavar="FILE", help="output file for each dataset")
    add("--num_generated_outputs", type=cli.positive_int, default=1, help="answers per question (%(default)s)")
    # fmt: on
    parser.decides_nothing("--inputs_addr --output_addr", "the dataset's hash does")
    parser.decides_nothing("--num_generated_outputs", "which pieces an output has; its manifest has their hash")


def add_answer_arguments(parser: cli.FlagParser) -> None:
    """Add the flags for ways of answering that only some benchmarks have."""
    # fmt: off
    add = parser.add_argument
    add("--choose", choices=["likelihood"],
        help="choose the likeliest option (by mean log-probability per token) instead of generating text; only for "
        "questions with options (off)")
    add("--trim_items", action="store_true",
        help="if a prompt is too long, trim each post, then the question, as LaMP's code does (off: leave out the "
        "lowest-ranked posts; LaMP and LongLaMP only)")
    # fmt: on
    parser.without_effect(
        "--num_contexts --unranked --trim_items",
        lambda args: not (args.rag or args.method),
        "without --rag, because the prompt has no posts",
        "give --rag",
    )
    parser.without_effect(
        "--temperature --top_p --top_k --min_p --presence_penalty --max_tokens --seed --max_retries"
        " --constrained_decoding --num_generated_outputs",
        lambda args: args.choose is not None,
        "with --choose, which generates no text",
        "leave out --choose",
    )


def read_datasets(args: Arguments, needs: Sequence[str], most_items: int | None) -> list[Dataset]:
    """Return the datasets of --inputs_addr. UserError if one is not a dataset or they are from different benchmarks.

    Args:
        most_items: how many profile items a prompt may use; None for all.
    """
    if len(args.inputs_addr) != len(args.output_addr):
        given = f"{len(args.inputs_addr)} --inputs_addr, {len(args.output_addr)} --output_addr"
        raise UserError(f"{given}: give the same number of each")
    cli.check_different("--output_addr", args.output_addr)
    datasets = []
    for path, output_addr in zip(args.inputs_addr, args.output_addr, strict=True):
        records = read_questions(path, needs, most_items)
        task = task_of(path, records)
        if datasets and task is not (first := datasets[0]).task:
            raise UserError(
                f"{path}: is of {task.name}, but {first.path} is of {first.task.name}; run a command for each"
            )
        selected = select_questions(records, args.limit, args.num_shards, args.shard_index)
        asked = {(record["id"], i): record for record in selected for i in range(args.num_generated_outputs)}
        datasets.append(Dataset(path, output_addr, records, task, asked))
    return datasets


def check_ranked(args: Arguments, datasets: list[Dataset]) -> None:
    """Raise UserError if a dataset is not ranked; with --unranked, only print a note."""
    for one in datasets:
        refuse_unranked(one.path, args.unranked)


def prepare_answers(args: Arguments, datasets: list[Dataset], method: Method, name: str) -> Command:
    """Return the command that answers datasets by a method with the prompt `name`."""
    task = datasets[0].task
    _check_flags(args, task)
    if args.rag and args.num_contexts:
        check_ranked(args, datasets)
    prompts = task.options.prompts if args.choose else task.prompts
    prompt = load_prompt(prompts[name], args.prompts_dir)
    identity = identify_model(args, args.model_addr)
    told = {"script": "baselines.py", "model": identity, "prompt": digests([prompt])}
    outputs = [
        Output(
            one.output_addr,
            args.settings() | told | {"inputs": file_hash(one.path)},
            list(one.asked),
            partial(collect_responses, one.records),
            "answers",
            args,
            dataset=one.path,
        )
        for one in datasets
    ]

    def load() -> Shared:
        if args.choose:
            args.max_tokens = 1  # one token is reserved here; each call reserves what its options need
        model = choose_answerer(args, identity, task.output.schema, task.prompt_length)
        asked = {"num_contexts": args.num_contexts if args.rag else 0, "trim_items": args.trim_items}
        check_trained(args, model, task.name, prompt, **asked)
        values = task.options.values if args.choose else task.values
        roles = {"generator": Role(args, model)}
        return Shared(task, roles, args.seed, args.num_contexts, args.prompts_dir, prompts=prompts, values=values)

    def steps(shared: Shared, its: list[list[Output]]) -> list[Step]:
        return [
            Step(
                method,
                lambda one=one: one.asked,
                "answers",
                output.pieces,
                "generator",
                finish=partial(_publish, args, shared, output),
            )
            for one, output in zip(datasets, outputs, strict=True)
            if [output] in its
        ]

    def describe() -> None:
        shared = load()
        model = shared.roles["generator"].model
        calls = chain.from_iterable(calls_of(step, shared) for step in steps(shared, [[one] for one in outputs]))
        print(describe_calls(calls, model.chat, model.policy, prices_of(args), task.item_words))
        pieces = sum(len(output.keys) for output in outputs)
        print_machine(args, [model], args.output_addr, pieces)

    def work(its: list[list[Output]]) -> int:
        shared, left = load(), [output for [output] in its]
        with writing(left):
            run_steps(steps(shared, its), shared)
        # Beam search would write the same text again, and LaMP's own rule scores any text.
        by_beams = "num_beams" in shared.roles["generator"].model.settings
        codes = [output.report_failed(common_reasons) for output in left]
        missing = sum(len(output.missing()) for output in left)
        return max(0 if by_beams else max(codes), cli.report_missing(missing, "answer"))

    return Command([[output] for output in outputs], describe, work)


def check_trained(args: Arguments, model: Model, task: str, prompt: Prompt, **asked: Any) -> None:
    """Print notes if a fine-tuned generator is used differently than in its training.

    Args:
        asked: the current values, by their names in `trained_settings`.

    Raises:
        UserError: it was trained on another task, or --chat_template_kwargs is given.
    """
    if not (trained := model.trained):
        return
    if trained.get("task", task) != task:
        raise UserError(
            f"--model_addr {args.model_addr}: was fine-tuned on {trained['task']}\n"
            f"  {args.inputs_addr[0]} is of {task}; give a generator for {task}, or the base model"
        )
    if template_variables(args):
        raise UserError(f"--chat_template_kwargs: {args.model_addr} was fine-tuned without them; leave the flag out")
    now = {name: value for name, value in asked.items() if trained.get(name, value) != value}
    for name, value in now.items():
        print(f"note: {args.model_addr} was trained with {name} {trained[name]}, this run has {value}", file=sys.stderr)
    if trained.get("prompt", {prompt.name: prompt.digest}) != {prompt.name: prompt.digest}:
        print(f"note: {args.model_addr} was trained with a different {prompt.name} prompt", file=sys.stderr)


def _check_flags(args: Arguments, task: Task) -> None:
    """Raise UserError for a flag that the benchmark or the kind of model does not support."""
    if args.choose and args.openai:
        raise UserError("--choose likelihood: APIs do not return these likelihoods; give a local model")
    if args.choose and task.options is None:
        raise UserError(f"--choose {args.choose}: the questions of {task.name} have no options; leave the flag out")
    if args.trim_items and task.trimmed is None:
        raise UserError(f"--trim_items: not supported for {task.name}; leave the flag out")


def _publish(args: Arguments, shared: Shared, output: Output, device: str | None) -> None:
    """Write a response file and its manifest."""
    model, task = shared.roles["generator"].model, shared.task
    responses = output.content()
    counts = count_responses(responses, task.item_words) | task.count_outputs(chain.from_iterable(responses.values()))
    found = dict(model.settings)
    if output.settings["inputs"] in (model.trained.get("validation"), model.trained.get("inputs")):
        found["chose_checkpoint"] = True
    if seen := model.saw_in_training:
        found["saw"] = {"when": "training", "fields": seen}
    publish_records(output, device, counts, args.openai, prices_of(args), found, **model.figures)
