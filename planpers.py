"""PlanPers: plan which aspects the asker wants covered, then answer with profile and plan (paper, section 4).

  python planpers.py --model_addr Qwen/Qwen2.5-7B-Instruct --planner_model planner/best \\
      --inputs_addr test_ranked.json --output_addr planpers.json
  python planpers.py --model_addr gpt-4o-mini --openai --api_key_addr key.txt --planner_model planner/best \\
      --inputs_addr test_ranked.json --output_addr planpers_gpt.json
  python planpers.py --model_addr Qwen/Qwen2.5-7B-Instruct --gold_plan \\
      --inputs_addr test_ranked.json --output_addr planpers_gold.json

The output is {question id: [{"output": answer, "plan": the plan in its prompt, ...}]} in the dataset's order. The
plans are in <output>.plans.json. Run the same command again to resume either stage.
"""

from functools import partial

from utils import cli
from utils.benchmarks.task import Record
from utils.files.output import Output, Piece, Pieces
from utils.generation.calls import describe_calls, prices_of
from utils.generation.chat import PAPER_LENGTH
from utils.generation.engines import choose_generator, identify_model, print_machine
from utils.parsing.plans import plan_parser, plan_text
from utils.planner.examples import find_lead_in
from utils.planner.model import choose_planner, flags_of_planner
from utils.runs import planning
from utils.runs.answers import add_dataset_arguments, check_ranked, check_trained, read_datasets
from utils.runs.ask import Ask
from utils.runs.command import Command, calls_of, execute, writing
from utils.runs.runner import run_steps
from utils.runs.shared import Role, Shared, Step


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add_dataset_arguments(parser, "ranked datasets")
    planning.add_planner_arguments(parser)
    add("--rag", action="store_true", help="no effect: PlanPers always uses posts")
    add("--num_contexts", type=cli.non_negative_int, default=10, help="posts to use (%(default)s)")
    cli.add_unranked_argument(parser)
    cli.add_engine_arguments(parser, "--model_addr", "generator: hub name, model folder, LoRA adapter, or API model")
    cli.add_sampling_arguments(
        parser, temperature_default=0.1, max_tokens=2048, max_model_len=f"{PAPER_LENGTH}, or the model's limit if less"
    )
    cli.add_run_arguments(parser)
    parser.decides_nothing("--rag", "it has no effect")
    # fmt: on
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    outputs = [*args.output_addr, *(f"{path}.plans.json" for path in args.output_addr)]
    cli.check_different("--output_addr", outputs)
    cli.prepare_run(args, outputs, [*args.inputs_addr, *(args.plans_addr or [])])
    return execute(prepare(args), args)


def prepare(args: cli.Arguments) -> Command:
    needs = ["profile", *(["gold_plan"] if args.gold_plan else [])]
    datasets = read_datasets(args, needs, args.num_contexts)
    task = datasets[0].task
    prompts = planning.load_prompts(args, task)
    if args.num_contexts:
        check_ranked(args, datasets)
    lead_in = find_lead_in(args.planner_target, prompts.get("planner"), args.planner_model, args.plans_addr or [])
    given = planning.given_plans(args, datasets, lead_in)
    of_planner = flags_of_planner(args)
    planner_identity = identify_model(of_planner, args.planner_model) if args.planner_model else None
    identity = identify_model(args, args.model_addr)
    pairs = planning.name_outputs(args, datasets, given, prompts, identity, planner_identity, lead_in)

    async def plan(record: Record, ask: Ask) -> Piece:
        """Plan the question after the asker's best posts (paper, figure 15)."""
        return await ask.record("planner", items=task.best_items(record, args.num_contexts), model="planner")

    async def answer(plans: Pieces, record: Record, ask: Ask) -> Piece:
        """Answer with the plan of the same number (figure 14); without a usable plan, as RAG does, with the reason.

        The prompt gets the plan's raw text if plans have a lead-in, otherwise its titles.
        """
        its, posts = plans[ask.key], task.best_items(record, args.num_contexts)
        if not its["value"]:
            return await ask.record("rag", items=posts, told={"plan": None, "no_plan": its["reason"]})
        text = plan_text(its["value"]) if lead_in is None else its["raw"]
        return await ask.record("planpers", items=posts, values={"plan": text}, told={"plan": text})

    def load(with_planner: bool) -> Shared:
        roles = {}
        if with_planner:
            roles["planner"] = Role(of_planner, choose_planner(of_planner, planner_identity, lead_in))
        roles["generator"] = Role(args, choose_generator(args, identity, task.output.schema))
        generator = roles["generator"].model
        check_trained(args, generator, task.name, prompts["planpers"], num_contexts=args.num_contexts)
        readers = {"planner": plan_parser(lead_in)}
        return Shared(task, roles, args.seed, args.num_contexts, args.prompts_dir, readers=readers)

    def steps(shared: Shared, left: list[list[Output]]) -> list[Step]:
        """Return the steps that plan, then those that answer, so that each model is loaded once."""
        first, then = [], []
        for dataset, (answers, plans) in zip(datasets, pairs, strict=True):
            if [answers, plans] not in left:
                continue
            if "planner" in shared.roles and (args.dry_run or not plans.finished):
                done = partial(planning.publish_plans, plans, shared.roles["planner"])
                first.append(Step(plan, partial(dict, dataset.asked), "plans", plans.pieces, "planner", done))
            ready = partial(planning.with_plans, dataset.asked, plans.pieces)
            done = partial(planning.publish_answers, shared, answers)
            by_plan = partial(answer, plans.pieces)
            before = next((step for step in first if step.pieces is plans.pieces), None)
            then.append(Step(by_plan, ready, "answers", answers.pieces, "generator", done, before))
        return first + then

    def describe() -> None:
        shared, note = load(with_planner=planner_identity is not None), ""
        its = steps(shared, pairs)
        models = [role.model for role in shared.roles.values()]
        if planner_identity:
            calls = (call for step in its if step.role == "planner" for call in calls_of(step, shared))
            print("plans:\n" + describe_calls(calls, models[0].chat, models[0].policy, prices_of(args, "planner_")))
            for _, plans in pairs:
                plans.pieces |= {key: {"value": None, "reason": "not made yet"} for key in plans.keys}
            note = f" (without the plans, which do not exist yet; each adds up to {models[0].policy.max_tokens} tokens)"
        calls = (call for step in its if step.role == "generator" for call in calls_of(step, shared))
        print(f"answers{note}:\n" + describe_calls(calls, models[-1].chat, models[-1].policy, prices_of(args)))
        paths = [output.path for pair in pairs for output in pair]
        print_machine(args, models, paths, sum(len(output.keys) for pair in pairs for output in pair))

    def work(left: list[list[Output]]) -> int:
        shared = load(with_planner=any(not plans.finished and planner_identity for _, plans in left))
        outputs = [output for pair in left for output in reversed(pair)]
        with writing(outputs):
            planning.keep_plans(left, lead_in, planner_identity is not None)
            run_steps(steps(shared, left), shared)
        return planning.report(left)

    return Command(pairs, describe, work)


if __name__ == "__main__":
    cli.run_script(main)
