"""Train PlanPers' planner to write the titles of the rubric's aspects (paper, section 4 and appendix E).

  python train_planner.py --model_addr Qwen/Qwen2.5-7B-Instruct --inputs_addr train_ranked.json \\
      --validation_addr validation_ranked.json --output_dir planner
  accelerate launch --multi_gpu --num_processes 4 train_planner.py --gradient_accumulation_steps 8 \\
      --model_addr Qwen/Qwen2.5-7B-Instruct --inputs_addr train_ranked.json \\
      --validation_addr validation_ranked.json --output_dir planner

The planner is a LoRA adapter on a frozen model; only the target has a loss. Checkpoints are saved as
<output_dir>/checkpoint-<step>, and with --validation_addr <output_dir>/best links to the one with the lowest validation
loss. On SIGTERM or Ctrl-C, training saves a checkpoint after the current step and stops. Run the same command again to
resume from it.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from prompts import Prompt, choose_lead_in, digests, load_prompt
from utils.base import cli
from utils.base.errors import UserError, count_noun
from utils.base.progress import announce
from utils.base.writing import check_could_write
from utils.benchmarks import task_of
from utils.benchmarks.checks import Record
from utils.benchmarks.lampqa.plans import aspect_recall, gold_text, plan_parser, target_settings
from utils.benchmarks.readers import one_line
from utils.benchmarks.task import Task
from utils.generation.chat import PAPER_LENGTH, LocalChat, limit_length
from utils.generation.fitting import Window
from utils.models.model_folder import ModelFolder
from utils.training import launch
from utils.training.checkpoints import Selection
from utils.training.examples import (
    Example,
    Lesson,
    Texts,
    Training,
    describe_examples,
    make_examples,
    refuse_too_long,
)

SCRIPT = "train_planner.py"
PAPER_BATCH = 32  # sequences per step (paper, appendix E)
BEST = Selection("eval_loss", "best_loss", "validation loss")


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    launch.add_data_arguments(parser, "base model: hub name or model folder")
    add = parser.add_argument
    add("--num_contexts", type=cli.non_negative_int, default=10, help="posts to use (%(default)s)")
    cli.add_unranked_argument(parser)
    add("--planner_target", choices=["paper", "reference"], default="paper",
        help="format of plans: `paper`, only titles; `reference`, a lead-in and dashes as in the public code (needs "
        "--prompts_dir from utils/import_prompts.py) (%(default)s)")
    cli.add_template_argument(add)
    add("--max_seq_length", type=cli.positive_int,
        help=f"tokens of prompt and target together (default: {PAPER_LENGTH}, or the model's limit if less)")

    add = parser.add_argument_group("optimization").add_argument  # AdamW, linear decay, gradients clipped at 1
    add("--per_device_train_batch_size", type=cli.positive_int, default=1,
        help="sequences per batch on each device (%(default)s)")
    add("--gradient_accumulation_steps", type=cli.positive_int, default=PAPER_BATCH,
        help="batches per step on each device (%(default)s: the paper's 32 sequences, on one device)")
    add("--learning_rate", type=cli.non_negative_float, default=5e-5, help="peak learning rate (%(default)s)")
    add("--weight_decay", type=cli.non_negative_float, default=0.0, help="weight decay of AdamW (%(default)s)")
    add("--max_steps", type=cli.positive_int, default=2000, help="total number of steps (%(default)s)")
    add("--warmup_steps", type=cli.non_negative_int, help="steps until the peak (default: a tenth of --max_steps)")

    add = parser.add_argument_group("LoRA").add_argument
    add("--lora_rank", type=cli.positive_int, default=16, help="rank of the update (%(default)s)")
    add("--lora_alpha", type=cli.positive_int, default=16, help="scales the update by this / --lora_rank (%(default)s)")
    add("--lora_dropout", type=cli.non_negative_float, default=0.05,
        help="dropout before the update, below 1 (%(default)s)")
    add("--lora_target_modules", nargs="+", metavar="NAME",
        help="modules to adapt, or all-linear (default: PEFT's for the architecture, for Qwen 2.5 q_proj and v_proj)")

    add = parser.add_argument_group("evaluation").add_argument
    add("--save_steps", type=cli.positive_int, default=250,
        help="steps between checkpoints; with --validation_addr, each is evaluated (%(default)s)")
    add("--eval_generate", type=cli.non_negative_int, default=32, metavar="N",
        help="generate plans for this many validation questions at each evaluation, for aspect recall (%(default)s)")
    launch.add_run_arguments(parser)
    parser.not_a_setting("--planner_target", "the lead-in is a setting")
    parser.not_a_setting("--eval_generate", "these plans do not choose the best checkpoint")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    launch.set_up(args, SCRIPT)
    args, model = with_defaults(args), ModelFolder(args.model_addr, args.cache_dir)
    if model.adapter:
        raise UserError(f"--model_addr {args.model_addr}: is an adapter; pass the base model to train")

    def needs(task: Task) -> list[str]:
        return ["profile", *task.gold_plan_needs]

    records, validation_records = launch.read_datasets(args, needs)
    task = task_of(args.inputs_addr, records)
    if task.gold_plan is None:
        raise UserError(f"{args.inputs_addr}: {task.name} has no plans to train on")
    if args.num_contexts:
        launch.check_ranked(args)
    prompt = load_prompt(task.prompts["planner"], args.prompts_dir)
    lead_in = choose_lead_in(args.planner_target, prompt)
    settings = settings_of_training(args, prompt, model.checked(safetensors_only=True).identity)
    check_could_write(Path(args.output_dir) / "manifest.json")
    announce(f"tokenizing (questions: {len(records) + len(validation_records)})")
    chat = LocalChat(model, args.chat_template_kwargs)
    args = args.replaced(max_seq_length=limit_length(chat, "--max_seq_length", args.max_seq_length, PAPER_LENGTH))
    settings |= {"max_seq_length": args.max_seq_length, **chat.dated}
    examples = build_examples(task, records, args.inputs_addr, prompt, chat, args)
    validation = build_examples(task, validation_records, args.validation_addr, prompt, chat, args)

    def load_trainer() -> type:
        from utils.training.trainer import PlannerTrainer

        return PlannerTrainer

    lines = []
    for path, part in ((args.inputs_addr, examples), (args.validation_addr, validation)):
        num_aspects = sum(len(task.gold_plan(example.record)) for example in part)
        lines += [describe_examples(path, part, f"questions with {count_noun(num_aspects, 'aspect')}")] if part else []
    description = "\n".join([*lines, launch.describe_batch(args, "sequences", PAPER_BATCH)])
    score = partial(score_plans, task, lead_in, {record["id"]: record for record in validation_records})
    return launch.execute(Training(args, settings, description, BEST, chat, examples, validation, score, load_trainer))


def with_defaults(args: cli.Arguments) -> cli.Arguments:
    """Return the flags with the defaults that depend on other flags; UserError if flags contradict each other."""
    warmup_steps = args.max_steps // 10 if args.warmup_steps is None else args.warmup_steps
    args = args.replaced(warmup_steps=warmup_steps)
    if args.lora_dropout >= 1:
        raise UserError(f"--lora_dropout {args.lora_dropout}: must be below 1")
    return args


def settings_of_training(args: cli.Arguments, prompt: Prompt, model: str) -> dict[str, Any]:
    """Return the settings of the run, with the lead-in of the targets."""
    target = target_settings(choose_lead_in(args.planner_target, prompt))
    return launch.settings_of(args, SCRIPT, model, digests([prompt])) | target


def build_examples(
    task: Task, records: list[Record], path: str | None, prompt: Prompt, chat: LocalChat, args: argparse.Namespace
) -> list[Example]:
    """Return one example per question: the planner's prompt (paper, figure 15), with the aspects' titles as the target.

    The lowest-ranked posts are dropped until both fit; the target is never cut. Questions without aspects are skipped.
    UserError if all are skipped, or if a question exceeds --max_seq_length even without posts.
    """
    lead_in = choose_lead_in(args.planner_target, prompt)
    lessons = [
        Lesson(record, task.values(record), gold_text(titles, lead_in))
        for record in records
        if (titles := task.gold_plan(record))
    ]
    if records and not lessons:
        raise UserError(f"{path}: no question has aspects in its rubric to train on")
    window = Window(chat, args.max_seq_length, 0)
    examples = make_examples(task, lessons, prompt, window, args.num_contexts, cuts_targets=False)
    refuse_too_long("--max_seq_length", args.max_seq_length, path, lessons, examples)
    return examples


def score_plans(task: Task, lead_in: str | None, records: dict[str, Record], texts: Texts) -> dict[str, float]:
    """Return the mean share of a question's aspects that its plan has, and counts."""
    parse = plan_parser(lead_in)
    plans = {question_id: parse(*text).value for question_id, text in texts.items()}
    recalls = [
        aspect_recall(list(map(one_line, task.gold_plan(records[question_id]))), plan or [])
        for question_id, plan in plans.items()
    ]
    return {
        "eval_aspect_recall": sum(recalls) / len(recalls),
        "eval_plans": len(recalls),
        "eval_plans_without_an_aspect": sum(plan is None for plan in plans.values()),
    }


if __name__ == "__main__":
    cli.run_script(main)
