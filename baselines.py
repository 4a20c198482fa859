"""Answer questions without personalization, or with RAG over the asker's profile (--rag).

  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct \\
      --inputs_addr test.json --output_addr none.json
  python baselines.py --model_addr Qwen/Qwen2.5-7B-Instruct --rag --num_contexts 10 \\
      --inputs_addr test_ranked.json --output_addr rag.json
  python baselines.py --model_addr gpt-4o-mini --openai --api_key_addr key.txt \\
      --inputs_addr test.json --output_addr none_gpt.json

The output is {question id: [{"output": answer, ...}]} in the dataset's order. The same command again goes on from
where a run stopped.
"""

import argparse
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from prompts import Prompt, load_prompt
from utils import cli
from utils.files.journal import Journal, Key, check_journal, open_journal, overwrite_run
from utils.files.manifest import file_hash, warn_unless_ranked
from utils.generation.chat import (
    PAPER_LENGTH,
    APIChat,
    Fitted,
    LocalChat,
    choose_length,
    fit_posts,
    fit_profile,
    open_chat,
)
from utils.generation.driver import (
    Policy,
    Request,
    Stage,
    describe_records,
    describe_requests,
    fitted_request,
    generate,
    left_to_ask,
)
from utils.generation.engines import batch_invariance, confirm_model, identify_model, open_engine
from utils.parsing.model_output import ANSWER_SCHEMA, parse_answer
from utils.records.datasets import STEP_NEEDS, read_dataset, select_questions
from utils.records.responses import collect_responses, count_responses


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--inputs_addr", required=True, metavar="FILE", help="dataset; with --rag a ranked one")
    parser.add_argument("--output_addr", required=True, metavar="FILE", help="where the answers go")
    parser.add_argument("--rag", action="store_true", help="put the asker's best-ranked posts into the prompt")
    parser.add_argument("--num_contexts", type=cli.non_negative_int, default=10, help="posts for --rag (%(default)s)")
    parser.add_argument(
        "--num_generated_outputs", type=cli.positive_int, default=1, help="answers a question (%(default)s)"
    )
    parser.without_effect(
        "--num_contexts", lambda args: not args.rag, "without --rag, for the prompt has no posts", "give --rag"
    )
    cli.add_engine_arguments(parser, "--model_addr", "hub name, model folder, LoRA adapter folder, or API model")
    cli.add_sampling_arguments(
        parser, temperature_default=0.1, max_tokens=2048, max_model_len=f"{PAPER_LENGTH}, or the model's limit if less"
    )
    cli.add_run_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.prepare_run(args, [args.output_addr], [args.inputs_addr])
    prompt = load_prompt("rag" if args.rag else "no_personalization", args.prompts_dir)
    records = read_dataset(args.inputs_addr, needs=STEP_NEEDS["rag" if args.rag else "none"])
    if args.rag:
        warn_unless_ranked(args.inputs_addr)
    questions = select_questions(records, args.limit, args.num_shards, args.shard_index)
    model = identify_model(args, args.model_addr)
    policy = Policy.from_arguments(args, ANSWER_SCHEMA)
    chat = open_chat(args, args.model_addr)
    args.max_model_len = choose_length(chat, args.max_model_len, args.max_tokens, PAPER_LENGTH)
    keys = [(question["id"], i) for question in questions for i in range(args.num_generated_outputs)]
    fingerprint = {
        "script": "baselines.py",
        "model": model,
        "inputs": file_hash(args.inputs_addr),
        "prompt": {prompt.name: prompt.digest},
        "num_contexts": args.num_contexts if args.rag else None,
        "max_model_len": args.max_model_len,
        "dtype": args.dtype,
        **policy.fingerprint(),
    }
    if args.dry_run:
        check_journal(args.output_addr, fingerprint, args.overwrite, keys, args.retry_failed)
        print(describe_requests(build_requests(questions, keys, args, prompt, chat, None), chat, policy))
        return 0

    run = overwrite_run(args.overwrite, [args.output_addr])
    journal = open_journal(args.output_addr, fingerprint, bool(args.overwrite), keys, run, args.retry_failed)
    left = left_to_ask(journal, keys, args.retry_failed) if journal else []
    if journal is None or (not left and journal.holds(keys, lambda: collect_responses(records, journal.entries))):
        print(f"{args.output_addr}: already finished, left alone")
        return 0
    device = None
    if left:
        confirm_model(args, args.model_addr, [journal])
        left = left_to_ask(journal, keys, args.retry_failed)  # all of them, where it was another model
        requests = build_requests(questions, left, args, prompt, chat, journal)
        stage = Stage(args.model_addr, requests, policy, parse_answer, "answers", len(keys), len(keys) - len(left))
        device = generate(lambda: open_engine(args, args.model_addr, args.max_model_len), stage)
    responses = collect_responses(records, journal.entries)
    counts = count_responses(responses)
    figures = {
        "batch_invariant": batch_invariance(device, args.openai),
        "counts": counts,
        "missing": len(journal.missing(keys)),
        **describe_records(journal.entries.values()),
        "token_counter": chat.counter,
    }
    journal.publish(responses, vars(args), device, **figures)
    print(f"{args.output_addr}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return cli.report_missing(len(set(left) - journal.added), "answer")  # a server failed to give them


def build_requests(
    questions: list[dict[str, Any]],
    keys: list[Key],
    args: argparse.Namespace,
    prompt: Prompt,
    chat: LocalChat | APIChat,
    journal: Journal | None,
) -> Iterator[Request]:
    """A request for each of `keys`, made when it is asked for; the answers to one question share their prompt."""
    by_id = {question["id"]: question for question in questions}
    for question_id, its_keys in groupby(keys, key=lambda key: key[0]):
        fitted = fit_question(by_id[question_id], args, prompt, chat)
        yield from (fitted_request(key, fitted, journal) for key in its_keys)


def fit_question(
    question: dict[str, Any], args: argparse.Namespace, prompt: Prompt, chat: LocalChat | APIChat
) -> Fitted | None:
    """The prompt of one question (paper figures 13 and 14); narrative and aspects are never part of it."""
    budget = args.max_model_len - args.max_tokens
    if not args.rag:
        return fit_posts(lambda posts: prompt.messages(question=question["question"]), [], chat, budget)
    return fit_profile(prompt, question, args.num_contexts, chat, budget)


if __name__ == "__main__":
    cli.run_script(main)
