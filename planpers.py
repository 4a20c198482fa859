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

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from prompts import Prompt, digests, load_prompt
from utils import cli
from utils.benchmarks import task_of
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import first_five
from utils.cli.flags import Arguments
from utils.files.manifest import file_hash, refuse_unranked
from utils.files.output import Key, Output, Pieces
from utils.generation import engines
from utils.generation.chat import PAPER_LENGTH, Fitted
from utils.generation.cost import prices_of
from utils.generation.driver import Request, Stage, describe_requests, fitted_request, generate
from utils.generation.encoder_decoder import check_trained
from utils.generation.engines import Model, VLLMEngine, publish_records
from utils.generation.requests import Engine
from utils.generation.thinking import NO_PARSER
from utils.parsing import plans as parsing
from utils.planner.model import choose_planner, flags_of_planner
from utils.planner.targets import find_lead_in
from utils.records.datasets import STEP_NEEDS, select_questions
from utils.records.responses import collect_responses, count_responses, read_plans
from utils.records.stream import read_questions


@dataclass(frozen=True)
class Run:
    """What both stages ask: the questions, by id, and the prompts, by name; `lead_in` is utils/parsing/plans'."""

    task: Task
    questions: dict[str, Record]
    prompts: dict[str, Prompt]
    num_contexts: int
    lead_in: str | None

    def build_plans(self, planner: Model, keys: list[Key], pieces: Pieces) -> Iterator[Request]:
        """Stage 1: a request for a plan for each of `keys`; its record goes into `pieces`."""
        for key in keys:
            yield fitted_request(key, self._fit(planner, "planner", key), pieces)

    def build_answers(self, generator: Model, plans: Pieces, keys: list[Key], pieces: Pieces) -> Iterator[Request]:
        """Stage 2: a request for an answer for each of `keys`, by the plan of the same number, if that isn't missing.

        Where plans have a lead-in it gets the plan's text as it came, else the titles that were read from it. Without a
        usable plan it is answered as RAG does, and the record says why. `plans` is looked at when a request is asked
        for: by then stage 1 has filled it.
        """
        for key in keys:
            if (plan := plans.get(key)) is None:
                continue  # a server failed to give it
            if plan["value"]:
                text = parsing.plan_text(plan["value"]) if self.lead_in is None else plan["raw"]
                yield fitted_request(key, self._fit(generator, "planpers", key, plan=text), pieces, plan=text)
            else:
                fitted = self._fit(generator, "rag", key)
                yield fitted_request(key, fitted, pieces, plan=None, no_plan=plan["reason"])

    def _fit(self, model: Model, prompt: str, key: Key, **values: str) -> Fitted | None:
        """A prompt with the question's best posts (paper, figures 14 and 15)."""
        question = self.questions[key[0]]
        items = self.task.best_items(question, self.num_contexts)
        return model.fit(self.prompts[prompt], items, self.task.join, **self.task.values(question), **values)


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="ranked dataset")
    add("--output_addr", required=True, metavar="FILE", help="where the answers go")
    add_source = parser.add_mutually_exclusive_group(required=True).add_argument
    add_source("--planner_model", metavar="MODEL",
        help="planner: train_planner.py's checkpoint, another model, or a hub name")
    add_source("--plans_addr", metavar="FILE", help="plans of an earlier run: its <output>.plans.json")
    add_source("--gold_plan", action="store_true",
        help="the titles of the rubric's aspects as plan: the paper's headroom experiment (off)")
    add("--planner_target", choices=["paper", "reference"],
        help="plans as titles alone, or as in the public code: the planner's text as it came, lead-in and dashes "
        "included (default: what the planner was trained with, else paper)")
    add("--max_tokens_plan", type=cli.positive_int, default=512,
        help="tokens a plan may have (%(default)s; more for a thinking planner)")
    add("--rag", action="store_true", help="accepted and without effect: PlanPers always uses posts")
    add("--num_contexts", type=cli.non_negative_int, default=10, help="posts to use (%(default)s)")
    cli.add_unranked_argument(parser)
    add("--num_generated_outputs", type=cli.positive_int, default=1, help="answers a question (%(default)s)")
    parser.without_effect("--max_tokens_plan", lambda args: not args.planner_model, "without --planner_model")
    cli.add_engine_arguments(parser, "--model_addr", "generator: hub name, model folder, LoRA adapter, or API model")
    add_planner_arguments(parser)
    cli.add_sampling_arguments(
        parser, temperature_default=0.1, max_tokens=2048, max_model_len=f"{PAPER_LENGTH}, or the model's limit if less"
    )
    cli.add_run_arguments(parser)
    parser.decides_nothing("--inputs_addr --output_addr --planner_model --plans_addr", "their hashes do")
    parser.decides_nothing("--planner_target", "the target that was found does")
    parser.decides_nothing("--rag", "it has no effect")
    parser.decides_nothing("--num_generated_outputs", "which pieces an output has; it remembers them")
    # fmt: on
    return parser


def add_planner_arguments(parser: cli.FlagParser) -> None:
    """Where the planner is, if it is behind an API; of it the generator's key is never sent anywhere."""
    # fmt: off
    group = parser.add_argument_group("planner's API")
    group.add_argument("--planner_base_url", metavar="URL", type=cli.api_address,
        help="address of the planner's API, even if it is the generator's too (default: the planner runs here)")
    group.add_argument("--planner_api_key_addr", metavar="FILE",
        help="file with the key to that API (default: OPENAI_API_KEY)")
    # fmt: on
    cli.add_price_arguments(parser, group, "planner_")
    parser.decides_nothing("--planner_base_url --planner_api_key_addr", "how a server is reached")
    own = "--planner_api_key_addr --planner_price_in --planner_price_out --planner_price_cached"
    why = "without --planner_base_url, for the planner runs here"
    parser.without_effect(own, lambda args: not args.planner_base_url, why, "give --planner_base_url")
    parser.without_effect("--planner_base_url", lambda args: not args.planner_model, "without --planner_model")


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    plans_output = f"{args.output_addr}.plans.json"
    inputs = [args.inputs_addr, args.plans_addr] if args.plans_addr else [args.inputs_addr]
    cli.prepare_run(args, [args.output_addr, plans_output], inputs)
    needs = STEP_NEEDS["planpers_gold" if args.gold_plan else "planpers"]
    records = read_questions(args.inputs_addr, needs, args.num_contexts)
    task = task_of(args.inputs_addr, records)
    prompts = load_prompts(args, task)
    if args.num_contexts:
        refuse_unranked(args.inputs_addr, args.unranked)
    selected = select_questions(records, args.limit, args.num_shards, args.shard_index)
    questions = {question["id"]: question for question in selected}
    keys = [(question_id, i) for question_id in questions for i in range(args.num_generated_outputs)]
    lead_in = find_lead_in(args.planner_target, prompts.get("planner"), args.planner_model, args.plans_addr)
    run = Run(task, questions, prompts, args.num_contexts, lead_in)
    given = given_plans(args, run, keys)
    of_planner = flags_of_planner(args)
    planner_identity = engines.identify_model(of_planner, args.planner_model) if args.planner_model else None
    identity = engines.identify_model(args, args.model_addr)
    settings = args.settings() | {
        "script": "planpers.py",
        "model": identity,
        "planner": planner_identity,
        "given_plans": file_hash(args.plans_addr) if args.plans_addr else None,
        "inputs": file_hash(args.inputs_addr),
        "prompt": digests(prompt for name, prompt in prompts.items() if name != "planner" or planner_identity),
        **parsing.target_settings(lead_in),
    }
    collect_plans = partial(collect_responses, records, field="aspects")
    plans = Output(plans_output, settings, keys, collect_plans, "plans", args, dict(given))
    answers = Output(args.output_addr, settings, keys, partial(collect_responses, records), "answers", args)
    has_answers, has_plans = answers.is_finished(), plans.is_finished()  # a refusal names the file that was given
    if has_answers and has_plans and not args.dry_run:
        return max(plans.report_finished() if planner_identity else 0, answers.report_finished())
    to_plan = planner_identity is not None and (args.dry_run or not has_plans)
    planner = choose_planner(of_planner, planner_identity, lead_in) if to_plan else None
    generator = engines.choose_generator(args, identity, task.output.schema)
    check_trained(args, generator, task.name, prompts["planpers"], num_contexts=args.num_contexts)
    if args.dry_run:
        print_dry_run(args, run, keys, planner, generator, given)
        models = [model for model in (planner, generator) if model]
        engines.print_machine(args, models, [answers.path, plans.path], len(keys))
        return 0

    plans.open()
    answers.open()
    plan_stage = None
    if has_plans:
        plans.pieces |= parsing.plans_by_key(read_plans(plans_output), lead_in)
    elif planner is None:
        publish_plans(plans, args)
    else:
        requests = run.build_plans(planner, keys, plans.pieces)
        plan_stage = planner.stage(requests, parsing.plan_parser(lead_in), "plans", len(keys))
        plan_stage = replace(plan_stage, finish=partial(publish_plans, plans, of_planner, planner))
    requests = run.build_answers(generator, plans.pieces, keys, answers.pieces)
    answer_stage = generator.stage(requests, task.output.parse, "answers", len(keys))
    device = run_stages(args, planner, generator, plan_stage, answer_stage, plans, answers)
    counts = count_responses(answers.content())
    counts["answered without a plan"] = sum(answer["plan"] is None for answer in answers.pieces.values())
    found, prices = engines.reported(args, generator.completions), prices_of(args)
    publish_records(answers, device, counts, args.openai, prices, found, token_counter=generator.chat.counter)
    engines.report_shard(args, [answers.path, plans.path])
    code = max(plans.report_failed() if planner else 0, answers.report_failed())
    return max(code, cli.report_missing(len(answers.missing()), "answer"))


def load_prompts(args: Namespace, task: Task) -> dict[str, Prompt]:
    """The prompts by name; a benchmark without a planner's takes --plans_addr alone (UserError)."""
    if "planner" not in task.prompts:
        remedy = "answer it with baselines.py"
        remedy += ", or with plans of your own by --plans_addr" if "planpers" in task.prompts else ""
        if "planpers" not in task.prompts or not args.plans_addr:
            raise UserError(f"{args.inputs_addr}: {task.name} has no plans; {remedy}")
        if args.planner_target == "reference":
            raise UserError(f"--planner_target reference: {task.name} has no planner; leave the flag out")
    names = [name for name in ("planner", "planpers", "rag") if name in task.prompts]
    return {name: load_prompt(task.prompts[name], args.prompts_dir) for name in names}


def given_plans(args: Namespace, run: Run, keys: list[Key]) -> Pieces:
    """The plans that need no planner, by key: gold ones, or those of --plans_addr (UserError if it lacks one)."""
    if args.gold_plan:
        return {key: parsing.gold_plan(run.task.gold_plan(run.questions[key[0]]), run.lead_in) for key in keys}
    if not args.plans_addr:
        return {}
    plans = parsing.plans_by_key(read_plans(args.plans_addr), run.lead_in)
    if missing := [key for key in keys if key not in plans]:
        named = first_five(question_id for question_id, _ in missing)
        raise UserError(
            f"{args.plans_addr}: lacks {len(missing)} of the {len(keys)} plans of this run: {named}\n"
            "  plan them with --planner_model, or give fewer --num_generated_outputs or a --limit"
        )
    return {key: plans[key] for key in keys}


def run_stages(
    args: Arguments,
    planner: Model | None,
    generator: Model,
    plan_stage: Stage | None,
    answer_stage: Stage,
    plans: Output,
    answers: Output,
) -> str | None:
    """Plan, then answer: on one engine where one can serve both, else the planner is gone before the generator loads.

    Returns the generator's device, None where the store has all answers.
    """
    is_here = not (args.openai or args.planner_base_url)
    if plan_stage and is_here and engines.share_base([planner.addr, generator.addr], args.cache_dir):
        length = max(planner.length, generator.length)
        parsers = [model.policy.reasoning_parser for model in (generator, planner)]
        parser = next((one for one in parsers if one not in (None, NO_PARSER)), parsers[0])
        args = args.replaced(reasoning_parser=parser)
        return generate(partial(VLLMEngine, args, [planner.addr, generator.addr], length), plan_stage, answer_stage)
    if plan_stage:
        own = flags_of_planner(args).replaced(reasoning_parser=planner.policy.reasoning_parser)
        generate(partial(open_engine_for, own, planner, plans), plan_stage)
    return generate(partial(open_engine_for, args, generator, answers), answer_stage)


def open_engine_for(args: Namespace, model: Model, output: Output, num_outputs: int) -> Engine:
    return engines.open_engine(args, model.addr, model.length, model.completions, [output.pieces], num_outputs)


def publish_plans(plans: Output, args: Namespace, planner: Model | None = None, device: str | None = None) -> None:
    """Publish the plans, before they are used. `args` are the planner's; `planner` is None if they are given."""
    pieces = plans.pieces.values()
    found = [plan["value"] for plan in pieces if plan["value"]]
    counts = {
        "plans": len(found),
        "without an aspect": len(pieces) - len(found),
        "aspects": sum(len(aspects) for aspects in found),
        "posts left out for length": sum(plan.get("num_contexts_dropped", 0) for plan in pieces),
    }
    told = engines.reported(args, planner.completions) if planner else {}
    publish_records(plans, device, counts, bool(planner and args.openai), prices_of(plans.args, "planner_"), told)


def print_dry_run(
    args: Namespace, run: Run, keys: list[Key], planner: Model | None, generator: Model, plans: Pieces
) -> None:
    """What each stage would ask. Plans that are still to be made are not counted into the answers' prompts."""
    note = ""
    if planner is not None:
        requests, prices = run.build_plans(planner, keys, {}), prices_of(args, "planner_")
        print("plans:\n" + describe_requests(requests, planner.chat, planner.policy, prices))
        plans = {key: {"value": None, "reason": "not made yet"} for key in keys}
        note = f" (without their plans of up to {planner.policy.max_tokens} tokens, which are still to be made)"
    requests = run.build_answers(generator, plans, keys, {})
    print(f"answers{note}:\n" + describe_requests(requests, generator.chat, generator.policy, prices_of(args)))


if __name__ == "__main__":
    cli.run_script(main)
