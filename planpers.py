"""PlanPers: plan which aspects the asker wants covered, then answer with profile and plan (paper, section 4).

  python planpers.py --model_addr Qwen/Qwen2.5-7B-Instruct --planner_model planner/best \\
      --inputs_addr test_ranked.json --output_addr planpers.json
  python planpers.py --model_addr gpt-4o-mini --openai --api_key_addr key.txt --planner_model planner/best \\
      --inputs_addr test_ranked.json --output_addr planpers_gpt.json
  python planpers.py --model_addr Qwen/Qwen2.5-7B-Instruct --gold_plan \\
      --inputs_addr test_ranked.json --output_addr planpers_gold.json

The output is {question id: [{"output": answer, "plan": what it was asked to cover, ...}]} in the dataset's order. The
plans are in <output>.plans.json. The same command again goes on from where a run stopped, in either stage.
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prompts import Prompt, load_prompt
from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import first_five
from utils.files.journal import Journal, Key
from utils.files.manifest import file_hash, run_fingerprint, warn_unless_ranked
from utils.files.outputs import OutputFile, Pieces, open_outputs
from utils.generation.chat import (
    PAPER_LENGTH,
    APIChat,
    Fitted,
    LocalChat,
    choose_length,
    fit_profile,
    open_chat,
    open_local_chat,
)
from utils.generation.driver import (
    Parser,
    Policy,
    Request,
    Stage,
    describe_records,
    describe_requests,
    fitted_request,
    generate,
)
from utils.generation.engines import (
    VLLMEngine,
    batch_invariance,
    confirm_model,
    identify_local_model,
    identify_model,
    open_engine,
)
from utils.models.hub import adapter_base, model_fingerprint
from utils.parsing.plans import (
    gold_plan,
    has_plan_now,
    plan_parser,
    plan_pattern,
    plan_text,
    plans_by_key,
    target_settings,
)
from utils.planner.targets import find_lead_in
from utils.records.datasets import STEP_NEEDS, read_dataset, select_questions
from utils.records.responses import collect_responses, count_responses, read_plans


@dataclass(frozen=True)
class Model:
    """Planner or generator, as this run uses it.

    Attributes:
        length: tokens of prompt and output together.
        num_contexts: posts its prompt may hold.
        fingerprint: the settings that decide its outputs.
        lead_in: what plans begin with (utils/parsing/plans).
    """

    addr: str
    task: Task
    chat: LocalChat | APIChat
    length: int
    policy: Policy
    prompts: dict[str, Prompt]
    num_contexts: int
    fingerprint: dict[str, Any]
    lead_in: str | None = None

    def fit(self, prompt_name: str, question: Record, **values: str) -> Fitted | None:
        """A prompt with the question's best posts (paper, figures 14 and 15), ready for the model to speak."""
        budget = self.length - self.policy.max_tokens
        items = self.task.best_items(question, self.num_contexts)
        values |= self.task.values(question)
        return fit_profile(self.prompts[prompt_name], items, self.chat, budget, self.task.join, **values)


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--inputs_addr", required=True, metavar="FILE", help="ranked dataset")
    parser.add_argument("--output_addr", required=True, metavar="FILE", help="where the answers go")
    plans = parser.add_mutually_exclusive_group(required=True)
    plans.add_argument(
        "--planner_model", metavar="MODEL", help="planner: train_planner.py's checkpoint, another model, or a hub name"
    )
    plans.add_argument("--plans_addr", metavar="FILE", help="plans of an earlier run: its <output>.plans.json")
    plans.add_argument(
        "--gold_plan",
        action="store_true",
        help="the titles of the rubric's aspects as plan: the paper's headroom experiment (off)",
    )
    parser.add_argument(
        "--planner_target",
        choices=["paper", "reference"],
        help="plans as titles alone, or as in the public code: the planner's text as it came, lead-in and dashes "
        "included (default: what the planner was trained with, else paper)",
    )
    parser.add_argument(
        "--max_tokens_plan", type=cli.positive_int, default=512, help="tokens a plan may have (%(default)s)"
    )
    parser.add_argument("--rag", action="store_true", help="accepted and without effect: PlanPers always uses posts")
    parser.add_argument("--num_contexts", type=cli.non_negative_int, default=10, help="posts to use (%(default)s)")
    parser.add_argument(
        "--num_generated_outputs", type=cli.positive_int, default=1, help="answers a question (%(default)s)"
    )
    parser.without_effect("--max_tokens_plan", lambda args: not args.planner_model, "without --planner_model")
    cli.add_engine_arguments(parser, "--model_addr", "generator: hub name, model folder, LoRA adapter, or API model")
    cli.add_sampling_arguments(
        parser, temperature_default=0.1, max_tokens=2048, max_model_len=f"{PAPER_LENGTH}, or the model's limit if less"
    )
    cli.add_run_arguments(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    plans_output = f"{args.output_addr}.plans.json"
    inputs = [args.inputs_addr, args.plans_addr] if args.plans_addr else [args.inputs_addr]
    cli.prepare_run(args, [args.output_addr, plans_output], inputs)
    records = read_dataset(args.inputs_addr, needs=STEP_NEEDS["planpers_gold" if args.gold_plan else "planpers"])
    task = plannable_task(args.inputs_addr, records)
    prompts = {name: load_prompt(task.prompts[name], args.prompts_dir) for name in ("planner", "planpers", "rag")}
    warn_unless_ranked(args.inputs_addr)
    questions = select_questions(records, args.limit, args.num_shards, args.shard_index)
    keys = [(question["id"], i) for question in questions for i in range(args.num_generated_outputs)]
    lead_in = find_lead_in(args.planner_target, prompts["planner"], args.planner_model, args.plans_addr)
    given = given_plans(args, task, questions, keys, lead_in)
    planner = describe_planner(args, task, prompts, lead_in) if args.planner_model else None
    generator = describe_generator(args, task, prompts, planner, lead_in)
    retry_plans = args.retry_failed and planner is not None
    collect = partial(collect_responses, records)
    answers = OutputFile(args.output_addr, generator.fingerprint, keys, collect, args.overwrite, args.retry_failed)
    collect_plans = partial(collect_responses, records, field="aspects")
    plans = OutputFile(
        plans_output, plan_fingerprint(planner, generator), keys, collect_plans, args.overwrite, retry_plans
    )
    if args.dry_run:
        answers.check()
        plans.check()
        print_dry_run(questions, keys, planner, generator, given)
        return 0

    open_outputs(answers, plans)
    if plans.journal and not plans.journal.missing(keys) and not plans.journal.holds(keys, plans.content):
        publish_plans(plans, args, None)  # a run died before it could, or the file was lost
    # Without a journal the plans are finished, and their journal was deleted.
    made = plans.pieces if plans.journal else plans_by_key(read_plans(plans_output), lead_in)
    to_plan, left = plans.left(), answers_left(answers, made)
    is_whole = not left and not (to_plan and retry_plans)
    if (answers.journal is None or is_whole) and answers.is_finished():
        return 0
    if left:
        confirm_model(args, args.model_addr, [answers.journal])
        left = answers_left(answers, made)  # all of them, where it was another model
    plan_stage, answer_stage = None, None
    if to_plan and planner is None:
        for key in to_plan:
            plans.journal.add(key, given[key])
        publish_plans(plans, args, None)
    elif to_plan:
        requests = build_plans(questions, to_plan, planner, plans.journal)
        plan_stage = make_stage(planner, requests, plan_parser(planner.lead_in), "plans", keys, to_plan)
        plan_stage = replace(plan_stage, finish=lambda device: publish_plans(plans, args, device))
    if plan_stage and not answers.pieces.keys().isdisjoint(to_plan):  # whether these are outdated hangs on it
        run_stages(args, planner, generator, plan_stage, None)
        plan_stage, left = None, answers_left(answers, made)
    if left:
        requests = build_answers(questions, left, generator, made, answers.journal)
        answer_stage = make_stage(generator, requests, task.output.parse, "answers", keys, left)
    device = run_stages(args, planner, generator, plan_stage, answer_stage)
    publish_answers(answers, args, generator, device)
    return cli.report_missing(answers.num_missing(left), "answer")


def plannable_task(path: str, records: list[Record]) -> Task:
    """The records' benchmark; UserError where it has no plans."""
    task = task_of(path, records)
    if "planpers" not in task.prompts:
        raise UserError(f"{path}: {task.name} has no plans; answer it with baselines.py")
    return task


def answers_left(answers: OutputFile, plans: Pieces) -> list[Key]:
    """The answers to ask for: also those that were given for want of a plan which is there now."""
    if answers.journal is None:
        return []
    left = set(answers.left())
    return [key for key in answers.keys if key in left or has_plan_now(answers.pieces[key], plans.get(key))]


def given_plans(
    args: argparse.Namespace, task: Task, questions: list[Record], keys: list[Key], lead_in: str | None
) -> Pieces:
    """The plans that need no planner, by key: gold ones, or those of --plans_addr; else none.

    Raises:
        UserError: --plans_addr lacks a plan.
    """
    if args.gold_plan:
        return {
            (question["id"], i): gold_plan(task.gold_plan(question), lead_in)
            for question in questions
            for i in range(args.num_generated_outputs)
        }
    if not args.plans_addr:
        return {}
    plans = plans_by_key(read_plans(args.plans_addr), lead_in)
    if missing := [key for key in keys if key not in plans]:
        named = first_five(question_id for question_id, _ in missing)
        raise UserError(
            f"{args.plans_addr}: lacks {len(missing)} of the {len(keys)} plans of this run: {named}\n"
            "  plan them with --planner_model, or give fewer --num_generated_outputs or a --limit"
        )
    return {key: plans[key] for key in keys}


def describe_planner(args: argparse.Namespace, task: Task, prompts: dict[str, Prompt], lead_in: str | None) -> Model:
    """The planner: it runs here even where the generator is behind an API, and samples as the generator does."""
    identity = identify_local_model(args.planner_model, args.cache_dir)
    chat = open_local_chat(args.planner_model, args.cache_dir)
    length = choose_length(chat, args.max_model_len, args.max_tokens_plan, PAPER_LENGTH, "--max_tokens_plan")
    policy = replace(Policy.from_arguments(args, plan_pattern(lead_in)), max_tokens=args.max_tokens_plan)
    fingerprint = run_fingerprint(
        "planpers.py",
        args,
        [prompts["planner"]],
        policy.fingerprint(),
        planner=identity,
        num_contexts=args.num_contexts,
        **target_settings(lead_in),
        max_model_len=length,
    )
    return Model(args.planner_model, task, chat, length, policy, prompts, args.num_contexts, fingerprint, lead_in)


def describe_generator(
    args: argparse.Namespace, task: Task, prompts: dict[str, Prompt], planner: Model | None, lead_in: str | None
) -> Model:
    identity = identify_model(args, args.model_addr)
    chat = open_chat(args, args.model_addr)
    args.max_model_len = choose_length(chat, args.max_model_len, args.max_tokens, PAPER_LENGTH)
    policy = Policy.from_arguments(args, task.output.schema)
    if planner is not None:
        plans = {"plans": planner.fingerprint["planner"]}
        plans |= {f"plan_{name}": planner.fingerprint[name] for name in ("prompt", "max_model_len", "max_tokens")}
    else:
        plans = {"plans": "gold" if args.gold_plan else file_hash(args.plans_addr)}
    fingerprint = run_fingerprint(
        "planpers.py",
        args,
        [prompts["planpers"], prompts["rag"]],
        policy.fingerprint(),
        model=identity,
        num_contexts=args.num_contexts,
        **plans,
        **target_settings(lead_in),
    )
    length = args.max_model_len
    return Model(args.model_addr, task, chat, length, policy, prompts, args.num_contexts, fingerprint, lead_in)


def plan_fingerprint(planner: Model | None, generator: Model) -> dict[str, Any]:
    """The settings that decide the file of plans, made by a planner or given."""
    if planner is not None:
        return planner.fingerprint
    names = ("script", "plans", "planner_target", "lead_in", "inputs")
    return {name: generator.fingerprint[name] for name in names if name in generator.fingerprint}


def make_stage(
    model: Model, requests: Iterable[Request], parse: Parser, unit: str, keys: list[Key], missing: list[Key]
) -> Stage:
    return Stage(model.addr, requests, model.policy, parse, unit, len(keys), done=len(keys) - len(missing))


def build_plans(questions: list[Record], keys: list[Key], planner: Model, journal: Journal | None) -> Iterator[Request]:
    """Stage 1: a request for a plan for each of `keys`."""
    by_id = {question["id"]: question for question in questions}
    for key in keys:
        yield fitted_request(key, planner.fit("planner", by_id[key[0]]), journal)


def build_answers(
    questions: list[Record], keys: list[Key], generator: Model, plans: Pieces, journal: Journal | None
) -> Iterator[Request]:
    """Stage 2: a request for an answer for each of `keys`, by the plan of the same number.

    Where plans have a lead-in it gets the plan's text as it came, else the titles that were read from it. Without a
    usable plan it is answered as RAG does, and the record says why. `plans` is looked at when a request is asked for:
    by then stage 1 has filled it.
    """
    by_id = {question["id"]: question for question in questions}
    for key in keys:
        question, plan = by_id[key[0]], plans[key]
        if plan["value"]:
            text = plan_text(plan["value"]) if generator.lead_in is None else plan["raw"]
            yield fitted_request(key, generator.fit("planpers", question, plan=text), journal, plan=text)
        else:
            yield fitted_request(key, generator.fit("rag", question), journal, plan=None, no_plan=plan["reason"])


def run_stages(
    args: argparse.Namespace,
    planner: Model | None,
    generator: Model,
    plan_stage: Stage | None,
    answer_stage: Stage | None,
) -> str | None:
    """Plan, then answer: on one engine where one can serve both, else the planner is gone before the generator loads.

    Returns:
        The generator's device, None where nothing was left to answer.
    """
    if plan_stage and answer_stage and share_base(args):
        length = max(planner.length, generator.length)
        return generate(lambda: VLLMEngine(args, [planner.addr, generator.addr], length), plan_stage, answer_stage)
    if plan_stage:
        generate(lambda: VLLMEngine(args, [planner.addr], planner.length), plan_stage)
    if answer_stage:
        return generate(lambda: open_engine(args, generator.addr, generator.length), answer_stage)
    return None


def share_base(args: argparse.Namespace) -> bool:
    """Planner and generator are one base model, with or without adapters on it."""
    if args.openai:
        return False
    bases = {adapter_base(model) or model for model in (args.planner_model, args.model_addr)}
    return len({model_fingerprint(base, args.cache_dir) for base in bases}) == 1


def publish_plans(plans: OutputFile, args: argparse.Namespace, device: str | None) -> None:
    pieces = plans.pieces.values()
    found = [plan["value"] for plan in pieces if plan["value"]]
    counts = {
        "plans": len(found),
        "without an aspect": len(pieces) - len(found),
        "aspects": sum(len(aspects) for aspects in found),
        "posts left out for length": sum(plan.get("num_contexts_dropped", 0) for plan in pieces),
    }
    plans.publish(
        vars(args), device, batch_invariant=batch_invariance(device), counts=counts, **describe_records(pieces)
    )
    print(f"{plans.path}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))


def publish_answers(answers: OutputFile, args: argparse.Namespace, generator: Model, device: str | None) -> None:
    counts = count_responses(answers.content())
    counts["answered without a plan"] = sum(answer["plan"] is None for answer in answers.pieces.values())
    figures = {
        "batch_invariant": batch_invariance(device, args.openai),
        "counts": counts,
        **describe_records(answers.pieces.values()),
        "token_counter": generator.chat.counter,
    }
    answers.publish(vars(args), device, **figures)
    print(f"{args.output_addr}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))


def print_dry_run(
    questions: list[Record], keys: list[Key], planner: Model | None, generator: Model, plans: Pieces
) -> None:
    """What each stage would ask. Plans that are still to be made are not counted into the answers' prompts."""
    note = ""
    if planner is not None:
        print("plans:\n" + describe_requests(build_plans(questions, keys, planner, None), planner.chat, planner.policy))
        plans = {key: {"value": None, "reason": "not made yet"} for key in keys}
        note = f" (without their plans of up to {planner.policy.max_tokens} tokens, which are still to be made)"
    requests = build_answers(questions, keys, generator, plans, None)
    print(f"answers{note}:\n" + describe_requests(requests, generator.chat, generator.policy))


if __name__ == "__main__":
    cli.run_script(main)
