"""Answer questions without personalization, or with RAG over the asker's profile (--rag).

  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct \\
      --inputs_addr test.json --output_addr none.json
  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --rag --num_contexts 10 \\
      --inputs_addr test_ranked.json --output_addr rag.json
  python baselines.py --model_addr gpt-4o-mini --openai --api_key_addr key.txt \\
      --inputs_addr test.json --output_addr none_gpt.json

Several datasets share one load of the model, and each gets its own output. For questions with options, --choose
likelihood chooses the likeliest option without generating text. An encoder-decoder, such as a FlanT5 fine-tuned by
utils/train_generator.py, answers by beam search. Your own method is a Python file with
`async def answer(record, ask)` (docs/your_own_method.md):

  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --method mine.py \\
      --inputs_addr test_ranked.json --output_addr mine.json

The output is {question id: [{"output": answer, ...}]} in the dataset's order. Run the same command again to resume:
each completion is saved in `completions/` beside the output as soon as it arrives.
"""

from collections.abc import Sequence

from prompts import load_prompt
from utils.base import cli
from utils.base.made import Piece
from utils.benchmarks.checks import Record
from utils.generation.chat import PAPER_LENGTH
from utils.runs.answers import (
    add_answer_arguments,
    add_dataset_arguments,
    check_flags,
    check_ranked,
    choose_generator,
    read_datasets,
    stage_of_answers,
)
from utils.runs.ask import Ask
from utils.runs.driver import run_stages
from utils.runs.own_method import add_method_arguments, stage_of_method
from utils.runs.stage import Stage


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add_dataset_arguments(parser, "datasets; must be ranked for --rag")
    add("--rag", action="store_true", help="put the asker's best-ranked posts into the prompt")
    add("--num_contexts", type=cli.non_negative_int, default=10, help="posts for --rag (%(default)s)")
    cli.add_unranked_argument(parser)
    add_answer_arguments(parser)
    cli.add_engine_arguments(parser, "--model_addr", "hub name, model folder, LoRA adapter folder, or API model")
    cli.add_sampling_arguments(
        parser, temperature_default=0.1, max_tokens=2048, max_model_len=f"{PAPER_LENGTH}, or the model's limit if less"
    )
    cli.add_run_arguments(parser)
    add_method_arguments(parser)
    # fmt: on
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    args = cli.prepare_run(args, args.output_addr, args.inputs_addr)
    return run_stages(prepare(args), args)


def prepare(args: cli.Arguments) -> list[Stage]:
    """Return a stage for each dataset."""
    if args.method:
        return [stage_of_method(args)]
    most_items = args.num_contexts if args.rag else None
    datasets = read_datasets(args, lambda task: task.asked_fields(args), most_items, args.asking)
    task = datasets[0].task
    check_flags(args, task)
    if args.rag and args.num_contexts:
        check_ranked(args, datasets)

    async def answer(record: Record, ask: Ask) -> Piece:
        return await task.answer(record, ask, args)

    prompt = load_prompt(task.asked_prompt(args), args.prompts_dir)
    model = choose_generator(args, datasets, prompt)
    return [stage_of_answers(args, dataset, answer, model, prompt) for dataset in datasets]


if __name__ == "__main__":
    cli.run_script(main)
