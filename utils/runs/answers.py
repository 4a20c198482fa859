"""The parts of baselines.py besides its method: questions, model, and response files."""

import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prompts import Prompt, digests
from utils.base import cli
from utils.base.cli import Arguments
from utils.base.errors import UserError
from utils.base.json_files import read_json
from utils.base.made import Key, Piece, is_failed
from utils.base.manifest import file_hash, refuse_unranked
from utils.benchmarks import tasks
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task
from utils.data.datasets import Needs, read_questions, read_task, select_questions
from utils.data.responses import WITHOUT_PROFILE, Responses, collect_responses, count_responses
from utils.generation.chat import PAPER_LENGTH
from utils.generation.engines import choose_answerer
from utils.generation.model import Model, settings_by_scores
from utils.generation.thinking import template_variables
from utils.runs.stage import Stage, StageFile

Method = Callable[..., Awaitable[Piece]]  # see `Stage.method`


@dataclass(frozen=True)
class Dataset:
    """A dataset and the questions that a run answers. The file is read when needed, never for a finished output."""

    path: str
    output_addr: str
    task: Task
    args: Arguments
    needs: Needs
    most_items: int | None

    @cached_property
    def records(self) -> list[Record]:
        return read_questions(self.path, self.needs, self.most_items)

    @cached_property
    def questions(self) -> dict[Key, Record]:
        """Return each answer's question, by the answer's key: (question id, number of the answer)."""
        args = self.args
        selected = select_questions(self.records, args.limit, args.num_shards, args.shard_index, args.ids_addr)
        return {(record["id"], i): record for record in selected for i in range(args.num_generated_outputs)}


class QuestionFile(StageFile):
    """A file with a piece for each answer to a dataset's questions: the answer itself, or its plan."""

    knows_keys = True

    def __init__(self, dataset: Dataset, path: str, settings: dict[str, Any], *given: Any, **figures: Any):
        """`given`: keys and pieces, as for a `MadeFile`."""
        super().__init__(path, settings, dataset.args, *given, dataset=dataset.path, **figures)
        self._dataset = dataset

    def records(self) -> Iterator[tuple[StageFile, Key, Record]]:
        """Yield file, key and record of each piece, for a `Stage`."""
        return ((self, key, record) for key, record in self._dataset.questions.items())


class ResponseFile(QuestionFile):
    """Answers to the questions of a dataset: `{question id: [{"output": text or null, ...}, ...]}`.

    `shows_posts` says that prompts include posts; answers to askers without any post are then counted.
    """

    unit = "answers"

    def __init__(
        self,
        dataset: Dataset,
        settings: dict[str, Any],
        path: str | None = None,
        shows_posts: bool = False,
        **figures: Any,
    ):
        """`path`: replaces --output_addr, for the file of an earlier stage."""
        super().__init__(dataset, path or dataset.output_addr, settings, **figures)
        self._shows_posts = shows_posts

    def content(self) -> Responses:
        return collect_responses(self._dataset.records, self.in_order())

    def usable_before_and_now(self, made: dict[str, Any]) -> tuple[int, int]:
        """As in the base class, but count only answers to questions that the existing file has."""
        before = read_json(self.path)
        usable = [
            (question_id, number)
            for question_id, outputs in before.items()
            for number, output in enumerate(outputs)
            if output["output"] is not None
        ]
        return len(usable), sum(key in self.pieces and not is_failed(self.pieces[key]) for key in usable)

    def counts(self, content: Responses) -> dict[str, int]:
        outputs, task = [output for outputs in content.values() for output in outputs], self._dataset.task
        counts = count_responses(content, task.item_words) | task.count_outputs(outputs)
        if any("plan" in output for output in outputs):
            counts["answered without a plan"] = sum(output.get("plan") is None for output in outputs)
        records = self._dataset.records if self._shows_posts else ()
        ids = [record["id"] for record in records if not record["profile"]]
        without_profile = sum(output["output"] is not None for key in ids for output in content.get(key, ()))
        return counts | ({WITHOUT_PROFILE: without_profile} if without_profile else {})


def add_dataset_arguments(parser: cli.FlagParser, inputs_help: str) -> None:
    """Add the flags that `read_datasets` uses."""
    # fmt: off
    add = parser.add_argument
    add("--inputs_addr", required=True, nargs="+", metavar="FILE", help=inputs_help)
    add("--output_addr", required=True, nargs="+", metavar="FILE", help="output file for each dataset")
    add("--num_generated_outputs", type=cli.positive_int, default=1, help="answers per question (%(default)s)")
    add("--trace", action="store_true",
        help="also write <output>.trace.jsonl: the messages, text and value of every call, and every search (off)")
    # fmt: on
    parser.not_a_setting("--inputs_addr --output_addr", "the hash of the dataset is a setting")
    parser.not_a_setting("--trace", "it only adds a file")
    parser.not_a_setting("--num_generated_outputs", "the manifest has the hash of the keys of all answers")


def add_answer_arguments(parser: cli.FlagParser) -> None:
    """Add the flags for ways of answering that only some benchmarks support."""
    # fmt: off
    add = parser.add_argument
    add("--choose", choices=["likelihood"],
        help="choose the likeliest option (by mean log-probability per token) instead of generating text; only for "
        "questions with options (off)")
    add("--asking", choices=list(dict.fromkeys(way for task in tasks().values() for way in task.ways)),
        help="PersonaMem-v2 only. official: with the public code's prompt and reading of the answer; open: without "
        "options, for an answer in prose (default: as for PersonaMem)")
    add("--trim_items", action="store_true",
        help="if a prompt is too long, trim each post, then the question, as LaMP's code does (off: leave out the "
        "lowest-ranked posts; LaMP and LongLaMP only)")
    # fmt: on
    parser.without_effect(
        "--num_contexts --unranked --trim_items",
        lambda args: not (args.rag or args.method),
        "without --rag, because the prompt has no posts",
        "add --rag",
    )
    parser.without_effect(
        "--asking --temperature --top_p --top_k --min_p --presence_penalty --max_tokens --seed --max_retries"
        " --constrained_decoding --num_generated_outputs",
        lambda args: args.choose is not None,
        "with --choose, which generates no text",
        "remove --choose",
    )


def read_datasets(args: Arguments, needs: Needs, most_items: int | None, way: str | None = None) -> list[Dataset]:
    """Return the datasets of --inputs_addr.

    Args:
        most_items: how many profile items a prompt may use; None for all.
        way: the value of --asking, a name in `Task.ways`; None for the task's usual way.

    UserError if a file is not a dataset, the files are from different benchmarks, or the benchmark lacks this way.
    """
    cli.check_same_number(args, "inputs_addr", "output_addr")
    cli.check_different("--output_addr", args.output_addr)
    datasets = []
    for path, output_addr in zip(args.inputs_addr, args.output_addr, strict=True):
        task = read_task(path)
        if way not in (None, *task.ways):
            raise UserError(f"--asking {way}: {task.name} has only one way of asking; remove the flag")
        task = task.ways[way] if way else task
        if datasets and task.name != (first := datasets[0]).task.name:
            raise UserError(
                f"{path}: is of {task.name}, but {first.path} is of {first.task.name}; run one command per task"
            )
        datasets.append(Dataset(path, output_addr, task, args, needs, most_items))
    return datasets


def check_ranked(args: Arguments, datasets: list[Dataset]) -> None:
    """Raise UserError if a dataset is not ranked; with --unranked, only print a note."""
    for dataset in datasets:
        refuse_unranked(dataset.path, args.unranked)


def choose_generator(args: Arguments, datasets: list[Dataset], prompt: Prompt) -> Model:
    """Return the model that answers the questions, after `check_trained`."""
    task = datasets[0].task
    wanted = task.prompt_length or PAPER_LENGTH
    model = choose_answerer(args, wanted_length=wanted, only_scores=args.choose is not None)
    current = {"num_contexts": args.num_contexts if args.rag else 0, "trim_items": args.trim_items}
    check_trained(model, datasets[0], prompt, **current)
    return model


def stage_of_answers(args: Arguments, dataset: Dataset, method: Method, model: Model, prompt: Prompt) -> Stage:
    """Return the stage that answers a dataset's questions with a method."""
    inputs, settings = file_hash(dataset.path), {"script": "baselines.py", "model": model.identity}
    settings = args.settings() | settings | {"prompt": digests([prompt]), "inputs": inputs}
    settings |= settings_by_training(model, inputs)
    responses = ResponseFile(dataset, settings, shows_posts=bool(args.rag and args.num_contexts))
    return Stage(dataset.task, responses.records, method, [responses], {"generator": model})


def settings_by_training(model: Model, inputs: str) -> dict[str, Any]:
    """Return the settings of answers that follow from the generator's kind and training.

    `inputs` is the dataset's hash.
    """
    settings = dict(model.settings)
    if learnt := model.saw_in_training:
        settings["saw"] = {"when": "training", "fields": learnt}
    return settings | settings_by_scores([model], inputs)


def check_trained(model: Model, dataset: Dataset, prompt: Prompt, **current: Any) -> None:
    """Print a note for each difference between this run and the training of a fine-tuned generator.

    Args:
        current: this run's values, by their names in `model.trained`.

    Raises:
        UserError: the generator was fine-tuned on another task, or is fine-tuned and --chat_template_kwargs is given.
    """
    if not (trained := model.trained):
        return
    if trained.get("task", task := dataset.task.name) != task:
        raise UserError(
            f"--model_addr {model.addr}: was fine-tuned on {trained['task']}\n"
            f"  {dataset.path} is of {task}; use a generator for {task}, or the base model"
        )
    if template_variables(model.flags):
        raise UserError(f"--chat_template_kwargs: {model.addr} was fine-tuned without them; remove the flag")
    for name, value in current.items():
        if trained.get(name, value) != value:
            difference = f"was trained with {name} {trained[name]}, but this run has {value}"
            print(f"note: {model.addr} {difference}", file=sys.stderr)
    if trained.get("prompt", {prompt.name: prompt.digest}) != {prompt.name: prompt.digest}:
        print(f"note: {model.addr} was trained with a different {prompt.name} prompt", file=sys.stderr)


def check_flags(args: Arguments, task: Task) -> None:
    """Raise UserError for a flag that the benchmark or the kind of model does not support."""
    if args.choose and args.openai:
        raise UserError("--choose likelihood: APIs do not return the likelihood of a given text; use a local model")
    if args.choose and task.options is None:
        raise UserError(f"--choose {args.choose}: the questions of {task.name} have no options; remove the flag")
    if args.trim_items and task.trimmed is None:
        raise UserError(f"--trim_items: not supported for {task.name}; remove the flag")
