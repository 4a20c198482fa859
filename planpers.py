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

from collections.abc import Sequence

from prompts import digests
from utils.base import cli
from utils.base.made import Piece
from utils.benchmarks.checks import Record
from utils.benchmarks.lampqa.plans import plan_parser, plan_pattern, plan_text, target_settings
from utils.benchmarks.task import Task
from utils.generation.chat import PAPER_LENGTH
from utils.generation.engines import choose_model
from utils.runs import planning
from utils.runs.answers import add_dataset_arguments, check_ranked, check_trained, read_datasets
from utils.runs.ask import Ask
from utils.runs.driver import run_stages
from utils.runs.planning import choose_planner, find_lead_in
from utils.runs.stage import Stage


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
    parser.not_a_setting("--rag", "it has no effect")
    # fmt: on
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    outputs = [*args.output_addr, *(f"{path}.plans.json" for path in args.output_addr)]
    cli.check_different("--output_addr", outputs)
    args = cli.prepare_run(args, outputs, [*args.inputs_addr, *(args.plans_addr or [])])
    return run_stages(prepare(args), args)


def prepare(args: cli.Arguments) -> list[Stage]:
    """Return the stages that plan, then the stages that answer, so that each model is loaded once."""

    def needs(task: Task) -> list[str]:
        return ["profile", *(task.gold_plan_needs if args.gold_plan else ())]

    datasets = read_datasets(args, needs, args.num_contexts)
    task = datasets[0].task
    prompts = planning.load_prompts(args, task)
    if args.num_contexts:
        check_ranked(args, datasets)
    lead_in = find_lead_in(args.planner_target, prompts.get("planner"), args.planner_model, args.plans_addr or [])
    planner = choose_planner(args) if args.planner_model else None
    generator = choose_model(args, wanted_length=PAPER_LENGTH)
    check_trained(generator, datasets[0], prompts["planpers"], num_contexts=args.num_contexts)

    async def plan(record: Record, ask: Ask) -> Piece:
        """Plan an answer from the asker's best posts and the question (paper, figure 15)."""
        posts = task.best_items(record, args.num_contexts)
        return await ask.record("planner", items=posts, parse=plan_parser(lead_in), schema=plan_pattern(lead_in))

    async def answer(record: Record, ask: Ask, plan: Piece) -> Piece:
        """Answer with the plan of the same number (figure 14); without a usable plan, like RAG, with the reason.

        The prompt gets the plan's raw text if plans have a lead-in, otherwise its titles.
        """
        posts = task.best_items(record, args.num_contexts)
        if not plan["value"]:
            return await ask.record("rag", items=posts, fields={"plan": None, "no_plan": plan["reason"]})
        text = plan_text(plan["value"]) if lead_in is None else plan["raw"]
        return await ask.record("planpers", items=posts, values={"plan": text}, fields={"plan": text})

    used = [prompt for name, prompt in prompts.items() if name != "planner" or planner]
    settings = {"script": "planpers.py", "model": generator.identity, "planner": planner and planner.identity}
    settings = args.settings() | settings | {"prompt": digests(used)} | target_settings(lead_in)
    plans = planning.stages_of_plans(args, datasets, settings, plan, planner, lead_in)
    answers = [
        planning.stage_of_answers(args, dataset, answer, generator, stage)
        for dataset, stage in zip(datasets, plans, strict=True)
    ]
    return plans + answers


if __name__ == "__main__":
    cli.run_script(main)
