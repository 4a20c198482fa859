"""Answer questions without personalization, or with RAG over the asker's profile (--rag).

  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct \\
      --inputs_addr test.json --output_addr none.json
  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --rag --num_contexts 10 \\
      --inputs_addr test_ranked.json --output_addr rag.json
  python baselines.py --model_addr gpt-4o-mini --openai --api_key_addr key.txt \\
      --inputs_addr test.json --output_addr none_gpt.json

Of questions with options the likeliest one is chosen, without a text being generated, by --choose likelihood:

  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --choose likelihood \\
      --inputs_addr personamem.json --output_addr likelihood.json

An encoder-decoder, such as a FlanT5 that utils/train_generator.py has fine-tuned, answers by beam search:

  python baselines.py --model_addr generator/best --rag --num_contexts 4 --trim_items \\
      --inputs_addr dev_ranked.json --output_addr ipa.json

A method of your own is a Python file with `async def answer(record, ask)` (docs/your_own_method.md):

  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --method mine.py \\
      --inputs_addr test_ranked.json --output_addr mine.json

The output is {question id: [{"output": answer, ...}]} in the dataset's order. The same command again goes on from
where a run stopped: every completion is in `completions/` beside the output the moment it is there.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, groupby

from prompts import Prompt, digests, load_prompt
from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.files.manifest import file_hash, refuse_unranked
from utils.files.output import Key, Output, Pieces
from utils.generation.chat import PAPER_LENGTH
from utils.generation.cost import prices_of
from utils.generation.driver import Request, describe_requests, fitted_request, generate
from utils.generation.encoder_decoder import TextModel, check_trained, choose_answerer, model_settings, open_answerer
from utils.generation.engines import Model, identify_model, print_machine, publish_records, report_shard, reported
from utils.records.datasets import STEP_NEEDS, select_questions
from utils.records.responses import collect_responses, count_responses
from utils.records.stream import read_questions
from utils.runs.own_method import answer_by_method, begin_with_fixed_hashes, named, named_model


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="dataset; with --rag a ranked one")
    add("--output_addr", required=True, metavar="FILE", help="where the answers go")
    add("--rag", action="store_true", help="put the asker's best-ranked posts into the prompt")
    add("--num_contexts", type=cli.non_negative_int, default=10, help="posts for --rag (%(default)s)")
    add("--method", metavar="FILE",
        help="Python file with your own method, async def answer(record, ask), or the name of one in utils/methods")
    add("--model", type=named_model, action="append", metavar="NAME=MODEL[@URL][,FLAG=VALUE]",
        help="another model for --method, asked by ask(..., model=NAME). @URL: address of its API. FLAG: its own "
        "api_key_addr, model_id, price_in, price_out or price_cached; repeatable (default: none)")
    add("--set", type=named, action="append", metavar="NAME=VALUE",
        help="setting for --method, read as ask.settings[NAME]; repeatable (default: none)")
    cli.add_unranked_argument(parser)
    add("--num_generated_outputs", type=cli.positive_int, default=1, help="answers a question (%(default)s)")
    add("--choose", choices=["likelihood"],
        help="generate no text, but choose the option with the highest mean log-probability a token, where the "
        "benchmark's questions have options (off)")
    add("--trim_items", action="store_true",
        help="over the token budget cut each post at its end, then the question, as LaMP's code does, where the "
        "benchmark knows how (off: the lowest-ranked posts are left out)")
    parser.without_effect(
        "--num_contexts --unranked --trim_items",
        lambda args: not (args.rag or args.method),
        "without --rag, for the prompt has no posts",
        "give --rag",
    )
    parser.without_effect(
        "--rag --choose --trim_items",
        lambda args: args.method is not None,
        "with --method, which decides itself what to ask",
    )
    parser.without_effect("--model --set", lambda args: args.method is None, "without --method", "give --method")
    cli.add_engine_arguments(parser, "--model_addr", "hub name, model folder, LoRA adapter folder, or API model")
    cli.add_sampling_arguments(
        parser, temperature_default=0.1, max_tokens=2048, max_model_len=f"{PAPER_LENGTH}, or the model's limit if less"
    )
    cli.add_run_arguments(parser)
    parser.without_effect(
        "--temperature --top_p --top_k --min_p --presence_penalty --max_tokens --seed --max_retries"
        " --constrained_decoding --num_generated_outputs",
        lambda args: args.choose is not None,
        "with --choose, for no text is generated",
        "leave out --choose",
    )
    parser.decides_nothing("--inputs_addr --output_addr", "the dataset's hash does")
    parser.decides_nothing("--num_generated_outputs", "which pieces an output has; it remembers them")
    parser.decides_nothing("--set --model", "a method is run in any case, and its file may change too")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.prepare_run(args, [args.output_addr], [args.inputs_addr])
    if args.method:
        return answer_by_method(args)
    if args.choose and args.openai:
        raise UserError("--choose likelihood: no API tells how likely a text is; give a model that runs here")
    method = "rag" if args.rag else "none"
    needs = [*STEP_NEEDS[method], "options"] if args.choose else STEP_NEEDS[method]
    records = read_questions(args.inputs_addr, needs, args.num_contexts if args.rag else None)
    task = task_of(args.inputs_addr, records)
    if args.choose and task.options is None:
        raise UserError(f"--choose {args.choose}: the questions of {task.name} have no options; leave the flag out")
    if args.trim_items and task.trimmed is None:
        raise UserError(f"--trim_items: the posts of {task.name} are whole or left out; leave the flag out")
    prompt = choose_prompt(args, task)
    if args.rag and args.num_contexts:
        refuse_unranked(args.inputs_addr, args.unranked)
    questions = select_questions(records, args.limit, args.num_shards, args.shard_index)
    keys = [(question["id"], i) for question in questions for i in range(args.num_generated_outputs)]
    identity = identify_model(args, args.model_addr)
    told = {
        "script": "baselines.py",
        "model": identity,
        "inputs": file_hash(args.inputs_addr),
        "prompt": digests([prompt]),
    }
    settings = args.settings() | told
    output = Output(args.output_addr, settings, keys, partial(collect_responses, records), "answers", args)
    if output.is_finished() and not args.dry_run:
        return output.report_finished()
    if args.choose:
        args.max_tokens = 1  # of the room that a prompt leaves; what its options need is seen below
    model = choose_answerer(args, identity, task.output.schema, task.prompt_length)
    if task.history is not None and isinstance(model, TextModel):
        what = f"an encoder-decoder reads plain text, but of {task.name} a prompt is a conversation"
        raise UserError(f"--model_addr {args.model_addr}: {what}\n  give a chat model")
    asked = {"num_contexts": args.num_contexts if args.rag else 0, "trim_items": args.trim_items}
    trained = check_trained(args, model, task.name, prompt, **asked)
    requests = build_requests(task, questions, keys, args, prompt, model, output.pieces)
    if args.dry_run:
        print(describe_requests(requests, model.chat, model.policy, prices_of(args), task.item_words))
        print_machine(args, [model], [args.output_addr], len(keys))
        return 0

    output.open()
    stage = model.stage(requests, task.output.parse, "answers", len(keys))
    device = generate(partial(open_answerer, args, model, output.pieces), stage)
    responses = output.content()
    counts = count_responses(responses, task.item_words) | task.count_outputs(chain.from_iterable(responses.values()))
    found = model_settings(model) | reported(args, model.completions)
    if trained and trained["validation"] == settings["inputs"]:
        found["chose_checkpoint"] = True
    prices = prices_of(args)
    publish_records(output, device, counts, args.openai, prices, found, token_counter=model.chat.counter)
    report_shard(args, [args.output_addr])
    code = output.report_failed()
    if isinstance(model, TextModel):  # another try would write the same, and the text is scored by LaMP's own rule
        code = 0
    return max(code, cli.report_missing(len(output.missing()), "answer"))


def choose_prompt(args: argparse.Namespace, task: Task) -> Prompt:
    prompts = task.options.prompts if args.choose else task.prompts
    return load_prompt(prompts["rag" if args.rag else "none"], args.prompts_dir)


def build_requests(
    task: Task,
    questions: list[Record],
    keys: list[Key],
    args: argparse.Namespace,
    prompt: Prompt,
    model: Model,
    pieces: Pieces,
) -> Iterator[Request]:
    """A request for each of `keys`, made when it is asked for; its record goes into `pieces`.

    The answers to one question share their prompt, unless the benchmark has each ask in another dress.

    The prompts are those of paper figures 13 and 14: what only the scorer may see is never part of them.
    """
    by_id = {question["id"]: question for question in questions}
    for question_id, its_keys in groupby(keys, key=lambda key: key[0]):
        question = by_id[question_id]
        values, options = task.values(question), None
        if args.choose:
            values = task.options.values(question)
            options = {answer: model.chat.render_option(text) for answer, text in task.options.texts(question).items()}
            room = max(map(len, options.values())) + 1  # vLLM generates a token
            model = replace(model, policy=replace(model.policy, max_tokens=room))
        if args.trim_items:
            fitted = model.fit_trimmed(prompt, task.best_entries(question, args.num_contexts), task.join, **values)
        else:
            items = task.best_items(question, args.num_contexts if args.rag else None)
            fitted = model.fit(prompt, items, task.join, **values)
        for key in its_keys:
            if args.choose:
                yield replace(fitted_request(key, fitted, pieces), options=options)
            elif key[1] == 0 or task.vary is None:
                yield fitted_request(key, fitted, pieces)
            else:
                variant = task.vary(question, key[1], args.seed or 0)
                refitted = model.fit(prompt, items, task.join, **variant.values)
                request = fitted_request(key, refitted, pieces, **variant.record)
                yield replace(request, parse=variant.parse)


if __name__ == "__main__":
    if any(one.startswith("--method") for one in sys.argv):
        begin_with_fixed_hashes()
    cli.run_script(main)
