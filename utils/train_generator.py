"""Fine-tune a generator on a task with references, such as LaMP's: FlanT5 with items of the profile in its prompt.

With --lora_rank, it trains an adapter on a chat model.

  python utils/train_generator.py --model_addr google/flan-t5-base --num_contexts 4 --trim_items \\
      --inputs_addr train_ranked.json --validation_addr dev_ranked.json --output_dir generator
  python utils/train_generator.py --model_addr google/flan-t5-base --num_contexts 16 --fusion decoder \\
      --inputs_addr train_ranked.json --validation_addr dev_ranked.json --output_dir generator
  accelerate launch --multi_gpu --num_processes 4 utils/train_generator.py --gradient_accumulation_steps 1 \\
      --model_addr google/flan-t5-base --num_contexts 0 \\
      --inputs_addr train.json --validation_addr dev.json --output_dir generator
  python utils/train_generator.py --model_addr Qwen/Qwen2.5-7B-Instruct --lora_rank 16 --num_contexts 4 \\
      --inputs_addr train_ranked.json --validation_addr dev_ranked.json --output_dir generator

After each epoch, the task's metric scores the model's texts, written with 4 beams, or greedily by a chat model. The
best checkpoint is linked as <output_dir>/best, a model for baselines.py; the last one is kept too. Run the same command
again to resume; on SIGTERM or Ctrl-C, the current step is finished and saved.
"""

import argparse
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prompts import Prompt, digests, load_prompt
from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import first_five
from utils.cli.progress import announce
from utils.files.manifest import refuse_unranked
from utils.files.writing import check_could_write
from utils.generation.chat import PAPER_LENGTH, LocalChat, choose_length
from utils.generation.engines import identify_local_model
from utils.generation.model import Model, Policy
from utils.generator.encoder_decoder import INPUT_TOKENS, TARGET_TOKENS, text_model
from utils.generator.examples import Example, build_examples, check_base, describe_examples
from utils.generator.plain_text import PlainText
from utils.models.devices import set_up_allocator
from utils.records.datasets import read_dataset
from utils.scoring.verdicts import no_answer
from utils.training.checkpoints import Run, Selection
from utils.training.launch import (
    add_data_arguments,
    add_run_arguments,
    check_launch,
    check_report_to,
    describe_batch,
    execute,
    num_processes,
    settings_of,
)

SCRIPT = "utils/train_generator.py"
WARMUP = 0.05  # share of all steps
PAPER_BATCH = 64  # questions per step
TRAINED_BYTES = 16  # per trained weight: the weight, its gradient and AdamW's two averages, all float32


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add_data_arguments(parser, "encoder-decoder, or with --lora_rank a chat model: hub name or model folder")
    add = parser.add_argument
    add("--num_contexts", type=cli.non_negative_int, default=10,
        help="items of the profile to use, 0 for none (%(default)s)")
    cli.add_unranked_argument(parser)
    add("--fusion", choices=["none", "decoder"], default="none",
        help="decoder: each item is encoded with the question by itself, and one decoder attends to all; none: all "
        "share one prompt (%(default)s)")
    add("--trim_items", action="store_true",
        help="over the token budget cut each item at its end, then the question, as LaMP's code does (off: the "
        "lowest-ranked items are left out)")
    add("--max_input_length", type=cli.positive_int,
        help="tokens of a prompt, or with --fusion decoder of each of its passages (default: "
        f"{INPUT_TOKENS}; with --lora_rank {PAPER_LENGTH} with the answer, or the model's limit if less)")
    add("--max_target_length", type=cli.positive_int, default=TARGET_TOKENS,
        help="tokens of an answer; a longer reference is cut (%(default)s)")
    parser.without_effect(
        "--fusion --trim_items", lambda args: args.num_contexts == 0, "with --num_contexts 0: the prompt has no items"
    )

    add = parser.add_argument_group("optimization").add_argument  # AdamW, linear decay, gradients clipped at 1
    add("--per_device_train_batch_size", type=cli.positive_int,
        help="questions at a time (default: 16; 4 with --fusion decoder, 1 with --lora_rank, which need more memory)")
    add("--gradient_accumulation_steps", type=cli.positive_int,
        help="batches per step on each device (default: as many as give the paper's 64 questions on one device)")
    add("--learning_rate", type=cli.non_negative_float, default=5e-5, help="at its peak (%(default)s)")
    add("--weight_decay", type=cli.non_negative_float, default=1e-4, help="of AdamW (%(default)s)")
    add("--lora_rank", type=cli.positive_int, metavar="N",
        help="learn an adapter of this rank on a chat model (default: all weights of an encoder-decoder)")
    add("--epochs", type=cli.positive_int, help="times through the data (default: the task's, for LaMP 10 or 20)")
    add("--patience", type=cli.positive_int, metavar="N",
        help="stop after this number of epochs without a better one (default: never)")
    parser.without_effect(
        "--patience", lambda args: args.validation_addr is None, "without --validation_addr", "give --validation_addr"
    )

    add_run_arguments(parser)
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.set_up_logging(args.log_level)
    set_up_allocator()
    check_report_to(args.report_to)
    check_launch(SCRIPT)
    records, validation_records = read_ranked(args.inputs_addr, args), read_ranked(args.validation_addr, args)
    task = task_of(args.inputs_addr, records)
    check_task(args, task, validation_records)
    prompt = choose_prompt(args, task)
    model = choose_model(args, identify_local_model(args.model_addr, args.cache_dir), task)
    args.epochs = args.epochs or task.epochs
    choose_batch(args)
    name = chosen_by(args, task)
    own = {"task": task.name, "metric": name}
    settings = settings_of(args, SCRIPT, model.identity, digests([prompt])) | own
    check_could_write(Path(args.output_dir) / "manifest.json")
    announce(f"tokenizing (questions: {len(records) + len(validation_records)})")
    build = partial(
        build_examples, task, prompt=prompt, model=model, num_contexts=args.num_contexts, trim_items=args.trim_items
    )
    examples, validation = build(records), build(validation_records)
    check_lengths(args, [*records, *validation_records], [*examples, *validation])
    plan_steps(args, len(examples))
    selection = Selection(
        "eval_score", "best_score", f"validation {name}", not task.metrics[name].lower_is_better, args.patience, False
    )

    def learn(source: dict[str, Any], manifest: dict[str, Any], run: Run) -> dict[str, Any]:
        from utils.generator.trainer import train

        score = partial(score_texts, task, name, [example.record for example in validation])
        return train(args, source, model.chat, examples, validation, manifest, run, score, selection)

    value_bytes = 2 if args.lora_rank else TRAINED_BYTES
    return execute(args, settings, describe_training(args, examples, validation), selection, learn, value_bytes)


def describe_training(args: argparse.Namespace, examples: list[Example], validation: list[Example]) -> str:
    """Return a description of a training's data and batches."""
    lines = [describe_examples(args.inputs_addr, examples)]
    if validation:
        lines.append(describe_examples(args.validation_addr, validation))
    return "\n".join([*lines, f"{describe_batch(args, 'questions', PAPER_BATCH)}; {args.save_steps} steps an epoch"])


def read_ranked(path: str | None, args: argparse.Namespace) -> list[Record]:
    if path is None:
        return []
    records = read_dataset(path, ["profile", "target", "asked"])
    if args.num_contexts:
        refuse_unranked(path, args.unranked)
    return records


def check_task(args: argparse.Namespace, task: Task, validation: list[Record]) -> None:
    """Raise UserError if the task has no references to learn from, or the validation data are of another task."""
    if "target" not in task.fields or task.history is not None:
        raise UserError(f"{args.inputs_addr}: {task.name} has no references that a text could be learnt from")
    if validation and task_of(args.validation_addr, validation) is not task:
        raise UserError(f"{args.validation_addr}: of another task than {args.inputs_addr}, which is of {task.name}")
    if args.trim_items and task.trimmed is None:
        raise UserError(f"--trim_items: the posts of {task.name} are whole or left out; leave the flag out")


def choose_model(args: argparse.Namespace, identity: str, task: Task) -> Model:
    """Return the model that examples are built for; UserError if it is not of the kind to train."""
    check_base(args)
    written, fused = args.max_target_length, args.fusion == "decoder"
    if args.lora_rank is None:
        args.max_input_length = args.max_input_length or INPUT_TOKENS
        chat = PlainText(args.model_addr, args.cache_dir)
        return text_model(args.model_addr, identity, chat, args.max_input_length, written, fused, task.output.schema)
    chat = LocalChat(args.model_addr, args.cache_dir)
    wanted = args.max_input_length and args.max_input_length + written
    length = choose_length(chat, wanted, written, PAPER_LENGTH)
    args.max_input_length = length - written
    return Model(args.model_addr, identity, chat, length, Policy(0.0, 1.0, written, 0, 0, "never", task.output.schema))


def check_lengths(args: argparse.Namespace, records: list[Record], examples: list[Example]) -> None:
    """Raise UserError if a question alone is too long for a chat model; an encoder-decoder's are cut instead."""
    if too_long := [record["id"] for record in records if record["id"] not in {one.record["id"] for one in examples}]:
        raise UserError(
            f"--max_input_length {args.max_input_length}: too small for {len(too_long)} of {len(records)} questions, "
            f"which are longer without any item: {first_five(too_long)}"
        )


def choose_prompt(args: argparse.Namespace, task: Task) -> Prompt:
    return load_prompt(task.prompts["rag" if args.num_contexts else "none"], args.prompts_dir)


def choose_batch(args: argparse.Namespace) -> None:
    """Set the batch's defaults: a size that fits a GPU with 24 GB, and the paper's questions per step."""
    if args.per_device_train_batch_size is None:
        args.per_device_train_batch_size = 1 if args.lora_rank else 4 if args.fusion == "decoder" else 16
    if args.gradient_accumulation_steps is None:
        args.gradient_accumulation_steps = max(1, PAPER_BATCH // args.per_device_train_batch_size)


def plan_steps(args: argparse.Namespace, num_examples: int) -> None:
    """Set the numbers of steps from the epochs, with a checkpoint and an evaluation after each epoch."""
    batches = math.ceil(num_examples / (args.per_device_train_batch_size * num_processes()))
    epoch = math.ceil(batches / args.gradient_accumulation_steps)
    args.max_steps, args.save_steps, args.eval_steps = epoch * args.epochs, epoch, epoch
    args.warmup_steps = math.ceil(WARMUP * args.max_steps)


def chosen_by(args: argparse.Namespace, task: Task) -> str:
    """Return the metric that chooses the best checkpoint: the first, by LaMP's rule for an encoder-decoder."""
    return task.metric_names(official=args.lora_rank is None)[0]


def score_texts(task: Task, name: str, records: list[Record], texts: dict[str, tuple[str, bool]]) -> float:
    """Score texts as evaluate_responses.py would; `texts` holds each question's text and whether it was cut."""
    metric = task.metrics[name]
    entries = []
    for record in records:
        text, is_cut = texts[record["id"]]
        answer = (text or None) if metric.reads == "raw" else task.output.parse(text, is_cut).value
        verdict = no_answer([False]) if answer is None else {"value": metric.compute(record, answer)}
        entries.append({"id": record["id"], **task.group_of(record), **metric.entry(record, [verdict])})
    return metric.summarize(entries)["score"]


if __name__ == "__main__":
    cli.run_script(main)
