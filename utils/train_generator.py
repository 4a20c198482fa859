"""Fine-tune a generator: FlanT5 on references such as LaMP's, or with --lora_rank an adapter on a chat model.

  python utils/train_generator.py --model_addr google/flan-t5-base --num_contexts 4 --trim_items \\
      --inputs_addr train_ranked.json --validation_addr dev_ranked.json --output_dir generator
  python utils/train_generator.py --model_addr google/flan-t5-base --num_contexts 16 --fusion decoder \\
      --inputs_addr train_ranked.json --validation_addr dev_ranked.json --output_dir generator
  accelerate launch --multi_gpu --num_processes 4 utils/train_generator.py --gradient_accumulation_steps 1 \\
      --model_addr google/flan-t5-base --num_contexts 0 \\
      --inputs_addr train.json --validation_addr dev.json --output_dir generator
  python utils/train_generator.py --model_addr Qwen/Qwen2.5-7B-Instruct --lora_rank 16 --num_contexts 4 \\
      --inputs_addr train_ranked.json --validation_addr dev_ranked.json --output_dir generator

--objective says what to learn from: texts, pairs of texts, a teacher that sees the rubric, or the scores of samples.
The last two need samples of the model itself (docs/beyond_planpers.md):

  python utils/train_generator.py --model_addr Qwen/Qwen2.5-7B-Instruct --lora_rank 16 \\
      --inputs_addr train_ranked.json --target_addr best.json --output_dir policy
  python utils/train_generator.py --model_addr Qwen/Qwen2.5-7B-Instruct --lora_rank 16 --objective grpo \\
      --inputs_addr train_ranked.json --trace_addr samples.json.trace.jsonl --score_addr scores.json \\
      --output_dir policy
  python utils/train_generator.py --model_addr Qwen/Qwen2.5-7B-Instruct --lora_rank 16 --objective distill \\
      --inputs_addr train_ranked.json --response_addr samples.json --output_dir student

With references and --validation_addr, the task's metric scores the model's texts after each epoch (written with 4
beams, or greedily by a chat model), and the best checkpoint is linked as <output_dir>/best. The last one is always
linked as <output_dir>/last. Both are models for baselines.py. On SIGTERM or Ctrl-C, the current step is finished and
saved. Run the same command again to resume.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prompts import Prompt, digests
from utils.base import cli
from utils.base.errors import UserError, count_noun
from utils.base.progress import announce
from utils.base.writing import check_could_write
from utils.benchmarks import task_of
from utils.benchmarks.checks import Record
from utils.benchmarks.scoring import no_answer
from utils.benchmarks.task import Task
from utils.generation.chat import PAPER_LENGTH, LocalChat, PlainText, choose_length
from utils.generation.encoder_decoder import INPUT_TOKENS, TARGET_TOKENS, TextWindow
from utils.generation.fitting import Window
from utils.models.model_folder import ModelFolder
from utils.training import launch, lessons
from utils.training.checkpoints import Selection
from utils.training.examples import Example, Texts, Training, describe_examples, make_examples, refuse_too_long
from utils.training.rounds import (
    describe_round,
    examples_of_round,
    note_other_model,
    note_restricted_sampling,
)

SCRIPT = "utils/train_generator.py"


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    launch.add_data_arguments(parser, "encoder-decoder, or with --lora_rank a chat model: hub name or model folder")
    add = parser.add_argument
    add("--num_contexts", type=cli.non_negative_int, default=10,
        help="items of the profile to use, 0 for none (%(default)s)")
    cli.add_unranked_argument(parser)
    add("--fusion", choices=["none", "decoder"], default="none",
        help="decoder: each item is encoded separately with the question, as a passage, and one decoder attends to "
        "all; none: all items are in one prompt (%(default)s)")
    add("--trim_items", action="store_true",
        help="if a prompt exceeds the token budget, cut each item at its end, then the question, as LaMP's code does "
        "(off: the lowest-ranked items are left out)")
    add("--max_input_length", type=cli.positive_int,
        help="tokens per prompt, or with --fusion decoder per passage; with --lora_rank of prompt and answer together "
        f"(default: {INPUT_TOKENS}; with --lora_rank {PAPER_LENGTH}, or the model's limit if less)")
    add("--max_target_length", type=cli.positive_int,
        help=f"tokens per answer; a longer reference or sample is cut, a longer response or call is skipped "
        f"(default: {TARGET_TOKENS} for references, 2048 for responses and calls, with distill 512)")
    parser.without_effect(
        "--num_contexts --trim_items",
        lambda args: args.objective == "grpo",
        "with --objective grpo, whose prompts are in the trace",
    )
    parser.without_effect(
        "--fusion --trim_items", lambda args: args.num_contexts == 0, "with --num_contexts 0: the prompt has no items"
    )

    add = parser.add_argument_group("optimization").add_argument  # AdamW, linear decay, gradients clipped at 1
    add("--per_device_train_batch_size", type=cli.positive_int,
        help="questions (with grpo, calls) per batch on each device (default: 16; 4 with --fusion decoder, 1 with "
        "--lora_rank, which need more memory)")
    add("--gradient_accumulation_steps", type=cli.positive_int,
        help="batches per step on each device (default: on one device 64 questions per step for references, 64 calls "
        "with grpo, else 32 questions)")
    add("--learning_rate", type=cli.non_negative_float, default=5e-5,
        help="peak learning rate (%(default)s; with dpo 5e-06, with grpo 1e-05)")
    add("--weight_decay", type=cli.non_negative_float, default=1e-4,
        help="weight decay of AdamW (%(default)s for references, 0.1 with distill, else 0)")
    add("--lora_rank", type=cli.positive_int, metavar="N",
        help="train an adapter of this rank on a chat model (default: train all weights of an encoder-decoder)")
    add("--epochs", type=cli.positive_int,
        help="number of epochs (default: for references the task's, for LaMP 10 or 20; 3 for responses, else 1)")
    add("--patience", type=cli.positive_int, metavar="N",
        help="stop after this number of epochs without improvement (default: never)")
    parser.without_effect(
        "--patience", lambda args: args.validation_addr is None, "without --validation_addr", "add --validation_addr"
    )
    # fmt: on
    lessons.add_objective_arguments(parser)
    launch.add_run_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL would report every training run
    args = build_parser().parse_args(argv)
    launch.set_up(args, SCRIPT)
    lessons.check_objective(args)
    is_round = args.objective == "grpo"

    # The data and the prompt.
    records, validation_records = launch.read_datasets(args, partial(needs, args))
    task = task_of(args.inputs_addr, records)
    check_task(args, task, validation_records)
    if args.num_contexts and not is_round:
        launch.check_ranked(args)
    prompt, teacher = lessons.choose_prompt(args, task), lessons.choose_teacher(args, task)
    if teacher:
        lessons.check_samples(args, prompt)

    # The model, and the defaults that depend on it.
    args = with_defaults(args, task)
    model = ModelFolder(args.model_addr, args.cache_dir).checked(safetensors_only=True)
    window = choose_window(args, task, model)
    args = args.replaced(max_input_length=window.length - window.max_tokens)

    # The settings: what the trained model depends on.
    name = task.metric_names(official=args.lora_rank is None)[0]  # encoder-decoders are scored by LaMP's rule
    settings = launch.settings_of(args, SCRIPT, model.identity, digests([prompt, *filter(None, [teacher])]))
    seen = lessons.seen_in_training(args, task, prompt, model)
    settings |= {"task": task.name, "metric": name, "saw_in_training": seen}
    if judges := lessons.judges_of_rewards(args, model):
        settings["rewarded_by"] = judges
    if model.trained_on:
        settings["trained_before_on"] = model.trained_on
    settings |= lessons.hashes_of_texts(args)
    if args.objective in ("distill", "grpo"):
        note_other_model(args, model.identity)
        note_restricted_sampling(args)
    check_could_write(Path(args.output_dir) / "manifest.json")
    settings |= window.chat.dated

    # The examples: the calls behind samples (grpo), or the texts that `lessons` chooses.
    announce(f"tokenizing (questions: {len(records) + len(validation_records)})")
    if is_round:
        examples, notes = examples_of_round(args, records, window)
        validation = []
    else:
        read = partial(examples_of_texts, args, task, prompt, teacher, window)
        examples, notes = read(args.inputs_addr, records)
        validation = read(args.validation_addr, validation_records)[0] if validation_records else []
    # References that are too long are cut at the limit, as in LaMP's code; other texts are skipped.
    if not lessons.uses_references(args) and (num_cut := sum(example.is_cut for example in examples)):
        notes.append(f"{count_noun(num_cut, 'question')} skipped: the text was cut, or exceeds --max_target_length")
        examples = [example for example in examples if not example.is_cut]
    if not examples:
        raise UserError("\n  ".join([f"{args.inputs_addr}: no question is left to learn from", *notes]))
    # A training that assumed temperature 1 for all samples would be another one.
    if temperatures := sorted({example.temperature for example in examples} - {1.0}):
        settings["temperatures"] = temperatures

    # The number of steps depends on the examples; the task's metric chooses the best checkpoint.
    args = with_steps(args, len(examples))
    args = args.replaced(start_adapter=model.addr if model.adapter else None, model_addr=model.base.addr)
    description = describe_training(args, examples, validation, notes)
    is_higher_better = not task.metrics[name].lower_is_better
    selection = Selection(
        "eval_score", "best_score", f"validation {name}", is_higher_better, args.patience, keeps_all=False
    )
    score = partial(score_texts, task, name, [example.record for example in validation])
    load = partial(lessons.load_trainer, args)
    chat = window.chat
    return launch.execute(
        Training(args, settings, description, selection, chat, examples, validation, score, load, notes)
    )


def needs(args: cli.Arguments, task: Task) -> list[str]:
    """Return the fields that records must have."""
    if lessons.uses_references(args) and "target" in task.fields:
        return ["profile", *task.asked_needs, "target"]
    return ["profile", *task.asked_needs, *(task.gold_plan_needs if args.objective == "distill" else ())]


def examples_of_texts(
    args: cli.Arguments,
    task: Task,
    prompt: Prompt,
    teacher: Prompt | None,
    window: Window,
    path: str,
    records: list[Record],
) -> tuple[list[Example], list[str]]:
    """Return the examples of a dataset, and lines that say what was skipped."""
    texts, notes = lessons.lessons_of(args, task, records, prompt)
    examples = make_examples(task, texts, prompt, window, args.num_contexts, args.trim_items, teacher)
    refuse_too_long("--max_input_length", args.max_input_length, path, texts, examples)
    return examples, notes


def describe_training(args: cli.Arguments, examples: list[Example], validation: list[Example], notes: list[str]) -> str:
    """Return a description of a training's data and batches."""
    is_round, defaults = args.objective == "grpo", lessons.objective_of(args)
    what = {"grpo": "calls", "distill": "samples"}.get(args.objective, "questions")
    if is_round:
        first = describe_round(args.trace_addr, examples)
    else:
        first = describe_examples(args.response_addr or args.inputs_addr, examples, what)
    lines = [first, *(f"  {note}" for note in notes)]
    if validation:
        lines.append(describe_examples(args.validation_addr, validation))
    batch = launch.describe_batch(args, what, defaults.batch if defaults.is_published else None)
    return "\n".join([*lines, f"{batch}; {count_noun(args.save_steps, 'step')} per epoch"])


def check_task(args: argparse.Namespace, task: Task, validation: list[Record]) -> None:
    """Raise UserError if the task has no references to learn from, or the validation data belong to another task."""
    learns_texts = args.objective != "grpo"  # grpo learns calls of a trace instead, with all their messages
    if learns_texts and (task.history is not None or (lessons.uses_references(args) and "target" not in task.fields)):
        hint = "" if task.history else "\n  pass responses to learn as --target_addr, or use another --objective"
        raise UserError(f"{args.inputs_addr}: {task.name} has no references to learn from{hint}")
    if validation and task_of(args.validation_addr, validation) is not task:
        raise UserError(f"{args.validation_addr}: belongs to a different task from {args.inputs_addr} ({task.name})")
    if args.trim_items and task.trimmed is None:
        raise UserError(f"--trim_items: the posts of {task.name} are whole or left out; remove the flag")


def choose_window(args: argparse.Namespace, task: Task, model: ModelFolder) -> Window:
    """Return the window for prompts and texts.

    UserError if the model needs --lora_rank, cannot be trained with it, or has an adapter of another rank.
    """
    is_seq2seq, target_length = model.is_encoder_decoder, args.max_target_length
    if args.lora_rank is None:
        if not is_seq2seq:
            hint = "\n  --lora_rank 16 fine-tunes a chat model"
            raise UserError(f"--model_addr {args.model_addr}: not an encoder-decoder such as google/flan-t5-base{hint}")
        chat = PlainText(model)
        return TextWindow(
            chat, (args.max_input_length or INPUT_TOKENS) + target_length, target_length, args.fusion == "decoder"
        )
    if is_seq2seq:
        raise UserError(f"--lora_rank: {args.model_addr} is an encoder-decoder; use a chat model")
    if model.adapter and (rank := model.adapter["r"]) != args.lora_rank:
        raise UserError(f"--lora_rank {args.lora_rank}: the adapter {args.model_addr} has rank {rank}")
    if args.fusion == "decoder":
        raise UserError("--fusion decoder: only for encoder-decoders; remove --lora_rank or --fusion")
    chat = LocalChat(model)
    length = args.max_input_length and args.max_input_length + target_length
    default = task.prompt_length or PAPER_LENGTH
    length = choose_length(chat, length, target_length, default, "--max_target_length")
    return Window(chat, length, target_length)


def with_defaults(args: cli.Arguments, task: Task) -> cli.Arguments:
    """Return the flags with the defaults that depend on the objective; the batch fits a GPU with 24 GB."""
    defaults = lessons.objective_of(args)
    size, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    if size is None:
        size = 1 if args.lora_rank else 4 if args.fusion == "decoder" else 16
    if args.objective == "distill" and size > 1:
        raise UserError(
            "--per_device_train_batch_size: must be 1 with --objective distill; because its two prompts differ"
        )
    return args.replaced(
        **{flag: getattr(defaults, flag) for flag in {"learning_rate", "weight_decay"} - args.given},
        max_target_length=args.max_target_length or defaults.target_tokens,
        epochs=args.epochs or defaults.epochs or task.epochs,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=max(1, defaults.batch // size) if accumulated is None else accumulated,
    )


def with_steps(args: cli.Arguments, num_examples: int) -> cli.Arguments:
    """Return the flags with the numbers of steps; each epoch ends with an evaluation and a checkpoint."""
    defaults, steps = lessons.objective_of(args), launch.steps_per_epoch(args, num_examples)
    max_steps = steps * args.epochs
    return args.replaced(
        max_steps=max_steps,
        save_steps=steps,
        warmup_steps=int(defaults.warmup * max_steps),
        schedule=defaults.schedule,
    )


def score_texts(task: Task, name: str, records: list[Record], texts: Texts) -> dict[str, float]:
    """Score texts as evaluate_responses.py would."""
    metric = task.metrics[name]
    entries = []
    for record in records:
        text, is_cut = texts[record["id"]]
        answer = (text or None) if metric.reads == "raw" else task.output.parse(text, is_cut).value
        verdict = no_answer([False]) if answer is None else {"value": metric.compute(record, answer)}
        entries.append({"id": record["id"], **task.group_of(record), **metric.entry(record, [verdict])})
    return {"eval_score": metric.summarize(entries)["score"]}


if __name__ == "__main__":
    cli.run_script(main)
