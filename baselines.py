"""Answer questions without personalization, or with RAG over the asker's profile (--rag).

  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct \\
      --inputs_addr test.json --output_addr none.json
  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --rag --num_contexts 10 \\
      --inputs_addr test_ranked.json --output_addr rag.json
  python baselines.py --model_addr gpt-4o-mini --openai --api_key_addr key.txt \\
      --inputs_addr test.json --output_addr none_gpt.json

Several datasets share one load of the model, and each gets its own output. For questions with options, --choose
likelihood picks the likeliest option without generating text. An encoder-decoder, such as a FlanT5 fine-tuned by
utils/train_generator.py, answers by beam search. Your own method is a Python file with
`async def answer(record, ask)` (docs/your_own_method.md):

  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --method mine.py \\
      --inputs_addr test_ranked.json --output_addr mine.json

The output is {question id: [{"output": answer, ...}]} in the dataset's order. Run the same command again to resume:
each completion is saved in `completions/` beside the output as soon as it arrives.
"""

import sys

from utils import cli
from utils.benchmarks.task import Record
from utils.files.output import Piece
from utils.generation.chat import PAPER_LENGTH
from utils.runs.answers import add_answer_arguments, add_dataset_arguments, prepare_answers, read_datasets
from utils.runs.ask import Ask
from utils.runs.command import Command, execute
from utils.runs.own_method import add_method_arguments, answer_by_method, begin_with_fixed_hashes


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


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.prepare_run(args, args.output_addr, args.inputs_addr)
    return answer_by_method(args) if args.method else execute(prepare(args), args)


def prepare(args: cli.Arguments) -> Command:
    method = "rag" if args.rag else "none"
    number = args.num_contexts if args.rag else None
    needs = ["asked", *(["profile"] if args.rag else []), *(["options"] if args.choose else [])]
    datasets = read_datasets(args, needs, number)
    task = datasets[0].task

    async def answer(record: Record, ask: Ask) -> Piece:
        """Answer the question alone, or with --rag after the asker's best posts (paper, figures 13 and 14)."""
        if args.choose:
            return await ask.record(method, items=task.best_items(record, number), options=task.options.texts(record))
        if args.trim_items:  # as LaMP's code does
            return await ask.record(method, items=task.best_entries(record, number), trimmed=True)
        # Some benchmarks vary the prompt for further answers, for example by shuffling the options.
        variant = task.vary(record, ask.key[1], args.seed or 0) if task.vary and ask.key[1] else None
        return await ask.record(method, items=task.best_items(record, number), variant=variant)

    return prepare_answers(args, datasets, answer, method)


if __name__ == "__main__":
    if any(one.startswith("--method") for one in sys.argv):
        begin_with_fixed_hashes()
    cli.run_script(main)
