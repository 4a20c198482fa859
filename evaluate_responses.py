"""Judge responses: how well they cover each aspect the user cares about (paper section 3.2, Algorithm 1).

  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr rag.json --score_addr rag_scores.json
  python evaluate_responses.py --evaluator_llm Qwen/Qwen2.5-32B-Instruct --inputs_addr test.json \\
      --response_addr none.json rag.json --score_addr none_scores.json rag_scores.json

Several response files are judged in one load of the model. A response file is {question id: [{"output": text}]};
the first response of each question is judged. An answer that is missing scores 0 and is counted; a verdict that the
judge failed to give is counted, and never a 0. The same command again judges what has changed since, and nothing else.

--strategy direct and pairwise are what the paper compares this with: one of five levels for a whole response, or two
systems compared on each question, in both orders (two response files, one score file):

  python evaluate_responses.py --strategy pairwise --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --inputs_addr test.json --response_addr planpers.json rag.json --score_addr planpers_rag_pairs.json
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from prompts import Messages, Prompt, load_prompt
from utils import cli
from utils.benchmarks.judged import (
    MADE_FROM,
    System,
    answers_to,
    are_answered,
    count_taken_over,
    drop_others,
    refuse_other_responses,
    take_over,
    what_verdicts_belong_to,
)
from utils.benchmarks.judging import STRATEGIES
from utils.benchmarks.records import read_dataset, select_questions
from utils.benchmarks.responses import match_responses, read_responses, refuse_gaps
from utils.benchmarks.score_files import check_counts_unanswered
from utils.cli import UserError
from utils.cli.progress import announce
from utils.files.journal import Key, check_journal, open_journal, overwrite_run
from utils.files.json_files import read_json
from utils.files.manifest import file_hash
from utils.generation.chat import VERDICT_TOKENS, APIChat, LocalChat, choose_judge_length, open_chat, render_all
from utils.generation.driver import (
    Policy,
    Request,
    Stage,
    describe_records,
    describe_requests,
    generate,
    left_to_ask,
)
from utils.generation.engines import batch_invariance, confirm_model, identify_model, open_engine
from utils.scoring.verdicts import CATEGORIES, SCORINGS, category_means, is_known, macro_average, no_answer, score_file
from utils.tables.formats import counted
from utils.tables.wordings import origin_of

MANY_PROMPTS = 5000  # take seconds to render


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--inputs_addr", required=True, metavar="FILE", help="dataset with narratives and aspects")
    parser.add_argument(
        "--strategy",
        choices=list(STRATEGIES),
        default="aspect",
        help="verdicts on aspects, a level for the whole response, or two systems compared (%(default)s)",
    )
    parser.add_argument("--response_addr", required=True, nargs="+", metavar="FILE", help="responses, a file a system")
    parser.add_argument(
        "--score_addr", required=True, nargs="+", metavar="FILE", help="where the scores go, as many; one for pairwise"
    )
    parser.add_argument("--allow_partial", action="store_true", help="score only the questions that have a response")
    cli.add_engine_arguments(parser, "--evaluator_llm", "judge: hub name, model folder, or API model")
    cli.add_sampling_arguments(
        parser, temperature_default=0.0, max_tokens=VERDICT_TOKENS, max_model_len="what the longest prompt needs"
    )
    cli.add_run_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.prepare_run(args, args.score_addr, [args.inputs_addr, *args.response_addr])
    check_pairs(args.strategy, args.response_addr, args.score_addr)
    strategy = STRATEGIES[args.strategy]
    prompt = load_prompt(strategy.prompt, args.prompts_dir)
    records = read_dataset(args.inputs_addr, needs=strategy.needs)
    policy = Policy.from_arguments(args, strategy.schema)
    systems = read_systems(args, records, prompt, policy)
    if args.dry_run:
        for system in systems:
            check_scores(system, args)
    else:
        run = overwrite_run(args.overwrite, args.score_addr)
        systems = [system for system in systems if open_scores(system, records, args, run)]
        confirm_model(args, args.evaluator_llm, [system.journal for system in systems if system.pending])
        for system in systems:  # all verdicts, where it was another judge
            system.pending |= keys_of(system.questions, args.strategy) - system.journal.entries.keys()
    if not systems:
        return 0

    device = None
    for system in systems:
        pass_over_unanswered(system, args.dry_run)
    if not args.dry_run and args.overwrite != "all":
        take_over(systems)
    chat = open_chat(args, args.evaluator_llm)
    requests, max_model_len = fit_context(build_requests(systems, records, prompt, chat), args, chat)
    if args.dry_run:
        print(describe_requests(requests, chat, policy))
        return 0
    if requests:
        done = sum(len(system.journal.entries.keys() - system.pending) for system in systems)
        total = done + len(requests)
        stage = Stage(args.evaluator_llm, requests, policy, strategy.parse, "verdicts", total, done)
        device = generate(lambda: open_engine(args, args.evaluator_llm, max_model_len), stage)
    missing = 0
    for system in systems:
        missing += publish_scores(system, records, args, device)
    return cli.report_missing(missing, "verdict")


def check_pairs(strategy: str, response_addrs: list[str], score_addrs: list[str]) -> None:
    if strategy == "pairwise":
        if (len(response_addrs), len(score_addrs)) != (2, 1):
            raise UserError(
                f"{len(response_addrs)} --response_addr, {len(score_addrs)} --score_addr: "
                "--strategy pairwise takes two and one"
            )
        return
    if len(response_addrs) != len(score_addrs):
        raise UserError(f"{len(response_addrs)} --response_addr, {len(score_addrs)} --score_addr: give as many of each")
    if len({Path(score_addr).resolve() for score_addr in score_addrs}) < len(score_addrs):
        raise UserError("--score_addr: the same file twice; every system needs its own")


def read_systems(
    args: argparse.Namespace, records: list[dict[str, Any]], prompt: Prompt, policy: Policy
) -> list[System]:
    selected = select_questions(records, args.limit, args.num_shards, args.shard_index)
    ids = [record["id"] for record in records]
    shared = {
        "script": "evaluate_responses.py",
        "strategy": args.strategy,
        "judge": identify_model(args, args.evaluator_llm),
        "inputs": file_hash(args.inputs_addr),
        "prompt": {prompt.name: prompt.digest},
        "max_model_len": args.max_model_len,
        "dtype": args.dtype,
        **policy.fingerprint(),
    }
    pairwise = args.strategy == "pairwise"
    response_addrs = [args.response_addr] if pairwise else [[address] for address in args.response_addr]
    systems = []
    for addresses, score_addr in zip(response_addrs, args.score_addr, strict=True):
        responses, questions = [], selected
        for address in addresses:
            responses.append(read_responses(address))
            if not args.allow_partial:
                refuse_gaps(address)
            questions = match_responses(questions, responses[-1], address, ids, args.allow_partial)
            if any(len(outputs) > 1 for outputs in responses[-1].values()):
                print(f"note: {address}: only the first response to each question is judged", file=sys.stderr)
        hashes = [file_hash(address) for address in addresses]
        fingerprint = {**shared, "responses": hashes if pairwise else hashes[0]}
        pending = keys_of(questions, args.strategy)
        belongs = what_verdicts_belong_to(records, responses, args.strategy)
        systems.append(
            System(score_addr, args.strategy, addresses, responses, questions, fingerprint, pending, belongs)
        )
    return systems


def keys_of(questions: list[dict[str, Any]], strategy: str) -> set[Key]:
    """Of all verdicts on these questions."""
    return {key for question in questions for key in SCORINGS[strategy].keys(question)}


def check_scores(system: System, args: argparse.Namespace) -> None:
    """Raise UserError where `open_scores` would."""
    if not args.overwrite:
        refuse_other_responses(system)
    check_journal(system.score_addr, system.fingerprint, args.overwrite, system.pending, args.retry_failed, MADE_FROM)


def open_scores(system: System, records: list[dict[str, Any]], args: argparse.Namespace, run: str | None) -> bool:
    """Open a system's journal and see what is missing; False, and said, where its score file is finished."""
    keys = system.pending
    if not args.overwrite:
        refuse_other_responses(system)
    system.journal = open_journal(
        system.score_addr, system.fingerprint, bool(args.overwrite), keys, run, args.retry_failed, MADE_FROM
    )
    if system.journal is not None:
        drop_others(system)
        system.pending = set(left_to_ask(system.journal, keys, args.retry_failed))
        if system.pending or not system.journal.holds(keys, lambda: make_scores(system, records)):
            return True
    else:
        check_counts_unanswered(system.score_addr, read_json(system.score_addr))
    print(f"{system.score_addr}: already finished, left alone")
    return False


def pass_over_unanswered(system: System, dry_run: bool) -> None:
    """Where an answer is missing the judge is not asked: what stands in its verdicts' place is known."""
    for question in system.questions:
        answered = are_answered(answers_to(system.responses, question["id"]))
        for key in [] if all(answered) else system.pending.intersection(SCORINGS[system.strategy].keys(question)):
            system.pending.remove(key)
            if not dry_run:
                system.journal.add(key, no_answer(answered))


def build_requests(
    systems: list[System], records: list[dict[str, Any]], prompt: Prompt, chat: LocalChat | APIChat
) -> list[Request]:
    """A request for each verdict that is missing.

    All aspects of a response stand next to each other, and so do all responses to a question: the judge's prompt
    puts the aspect last and the response before it, so the engine computes what they share once.
    """
    strategy_keys = SCORINGS[systems[0].strategy].keys
    responses = [  # of each system to each question, with the verdicts it lacks
        (record, system, keys)
        for record in records
        for system in systems
        if (keys := sorted(system.pending.intersection(strategy_keys(record))))
    ]
    num_prompts = sum(len(keys) for _, _, keys in responses)
    if num_prompts >= MANY_PROMPTS:
        announce(f"rendering {num_prompts} prompts")
    requests = []
    groups = (list(response_messages(prompt, *response)) for response in responses)
    for (_, system, keys), rendered in zip(responses, render_all(chat, groups), strict=True):
        for key, ids in zip(keys, rendered, strict=True):
            requests.append(Request(key, ids, system.journal, {"of": system.belongs[key]}))
    return requests


def response_messages(prompt: Prompt, record: dict[str, Any], system: System, keys: list[Key]) -> Iterator[Messages]:
    """The prompts for some verdicts on a response."""
    outputs = answers_to(system.responses, record["id"])
    for key in keys:
        yield STRATEGIES[system.strategy].messages(prompt, record, outputs, key[1])


def fit_context(
    requests: list[Request], args: argparse.Namespace, chat: LocalChat | APIChat
) -> tuple[list[Request], int]:
    """The requests with over-long prompts taken out, and the model length to load: what the longest prompt needs."""
    lengths = [chat.length(request.prompt) if request.prompt else 0 for request in requests]
    longest = max(lengths, default=0) or 1  # nothing may be left to ask
    max_model_len = choose_judge_length(chat, args.max_model_len, args.max_tokens, longest)
    budget = max_model_len - args.max_tokens
    fitted = [
        request
        if length <= budget
        else replace(
            request, prompt=None, record={**request.record, "reason": f"a prompt of {length} tokens is too long"}
        )
        for request, length in zip(requests, lengths, strict=True)
    ]
    return fitted, max_model_len


def make_scores(system: System, records: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of the score file."""
    asked = {question["id"] for question in system.questions}
    return score_file(records, system.journal.entries, asked, system.strategy)


def publish_scores(system: System, records: list[dict[str, Any]], args: argparse.Namespace, device: str | None) -> int:
    """Write the score file, and say what it holds; returns how many verdicts a server failed to give."""
    scores = make_scores(system, records)
    names = ("num_questions", "num_scored_questions", "num_unanswered", "num_unscored")
    figures = {
        "batch_invariant": batch_invariance(device, args.openai),
        "counts": {name: scores[name] for name in names},
        "missing": len(system.journal.missing(system.pending)),
        **describe_records(system.journal.entries.values()),
        "judged": system.response_addrs,
        "taken_over": count_taken_over(system.journal.entries.values()),
        "answers": [origin_of(address) for address in system.response_addrs],
    }
    system.journal.publish(scores, vars(args), device, **figures)
    print(describe_scores(system.score_addr, scores, figures["tokens"]))
    return len(system.pending - system.journal.added)


def describe_scores(score_addr: str, scores: dict[str, Any], tokens: dict[str, int | None]) -> str:
    text = f"{score_addr}: {describe_wins(scores) if 'wins' in scores else describe_mean(scores)}"
    if "partial" in scores:
        text += f"; a part: {scores['partial']['questions_judged']} of {scores['partial']['questions_in_dataset']}"
    if tokens["prompt_tokens"] and tokens["cached_tokens"] is not None:
        text += f"; {tokens['cached_tokens'] / tokens['prompt_tokens']:.0%} of prompt tokens from the cache"
    return text


def describe_mean(scores: dict[str, Any]) -> str:
    mean = "none" if scores["score"] is None else f"{scores['score']:.4f}"
    text = f"score {mean} over {counted(scores['num_scored_questions'], 'question')}{describe_macro(scores)}"
    if scores["num_unanswered"]:
        text += f"; {scores['num_unanswered']} of them without an answer, counted 0"
    if scores["num_unscored"]:
        unit = "response" if scores.get("strategy") == "direct" else "aspect"
        text += f"; {counted(scores['num_unscored'], unit)} unscored (as zeros: {scores['score_unscored_as_zero']:.4f})"
    if scores.get("questions_without_aspects"):
        text += f"; without aspects, left out: {', '.join(scores['questions_without_aspects'])}"
    return text


def describe_macro(scores: dict[str, Any]) -> str:
    """The average that a table has, which weighs the categories alike; nothing without a score in each of them."""
    placed = [question for question in scores["per_question_scores"] if is_known(question["category"])]
    average = macro_average(category_means(placed))
    if average is None:
        return ""
    unplaced = len(scores["per_question_scores"]) - len(placed)
    without = f", without {counted(unplaced, 'question')} of no known category" if unplaced else ""
    return f" (macro: {average:.4f} over {len(CATEGORIES)} categories{without})"


def describe_wins(scores: dict[str, Any]) -> str:
    rate = "none" if scores["position_swap_rate"] is None else f"{scores['position_swap_rate']:.0%}"
    text = f"the first system wins {scores['wins']}, ties {scores['ties']}, loses {scores['losses']} "
    text += f"of {counted(scores['num_scored_questions'], 'question')}; position-swap rate {rate}"
    if any(scores["num_unanswered"]):
        first, second = scores["num_unanswered"]
        text += f"; {first} without the first's answer, {second} without the second's: nobody was asked"
    if scores["num_unscored"]:
        unscored = scores["num_questions"] - scores["num_scored_questions"]
        missing = scores["num_unscored"]
        text += f"; {counted(unscored, 'question')} unscored, for {counted(missing, 'verdict')} "
        text += "is missing" if missing == 1 else "are missing"
    return text


if __name__ == "__main__":
    cli.run_script(main)
