"""Everything in planpers.py except its method: the source of plans, and their file."""

from functools import partial
from typing import Any

from prompts import Prompt, digests, load_prompt
from utils import cli
from utils.benchmarks.task import Record, Task
from utils.cli import Arguments, UserError
from utils.cli.errors import first_five
from utils.files.manifest import file_hash, noted_settings
from utils.files.output import Key, Output, Pieces
from utils.generation.calls import prices_of
from utils.generation.engines import publish_records
from utils.generation.failures import common_reasons
from utils.parsing import plans as parsing
from utils.planner.examples import trained_variables
from utils.records.responses import collect_responses, count_responses, read_plans
from utils.runs.answers import Dataset
from utils.runs.shared import Role, Shared


def add_planner_arguments(parser: cli.FlagParser) -> None:
    """Add the flags for the source of plans. The generator's API key is never sent to the planner's API."""
    # fmt: off
    add = parser.add_argument
    add_source = parser.add_mutually_exclusive_group(required=True).add_argument
    add_source("--planner_model", metavar="MODEL",
        help="planner: a checkpoint of train_planner.py, another model folder, or a hub name")
    add_source("--plans_addr", nargs="+", metavar="FILE",
        help="plans of an earlier run, one file per dataset (<output>.plans.json)")
    add_source("--gold_plan", action="store_true",
        help="use the titles of the rubric's aspects as plans: the paper's headroom experiment (off)")
    add("--planner_target", choices=["paper", "reference"],
        help="format of plans: the titles alone, or with a lead-in and dashes as in the public code (default: the "
        "planner's own format, else paper)")
    add("--max_tokens_plan", type=cli.positive_int, default=512,
        help="tokens per plan (%(default)s; more for a thinking planner)")
    parser.decides_nothing("--planner_model --plans_addr", "the settings have their hashes")
    parser.names_model("--planner_model", lambda args: args.planner_base_url is not None)
    parser.decides_nothing("--planner_target", "the target that was found does")
    parser.without_effect("--max_tokens_plan", lambda args: not args.planner_model, "without --planner_model")
    group = parser.add_argument_group("planner's API")
    group.add_argument("--planner_base_url", metavar="URL", type=cli.api_address,
        help="address of the planner's API, also if it is the generator's (default: a local planner)")
    group.add_argument("--planner_api_key_addr", metavar="FILE",
        help="file with the key to that API (default: OPENAI_API_KEY)")
    # fmt: on
    cli.add_price_arguments(parser, group, "planner_")
    parser.decides_nothing("--planner_base_url --planner_api_key_addr", "how a server is reached")
    own = "--planner_api_key_addr --planner_price_in --planner_price_out --planner_price_cached"
    why = "without --planner_base_url, because the planner is local"
    parser.without_effect(own, lambda args: not args.planner_base_url, why, "give --planner_base_url")
    parser.without_effect("--planner_base_url", lambda args: not args.planner_model, "without --planner_model")


def load_prompts(args: Arguments, task: Task) -> dict[str, Prompt]:
    """Return the prompts by name. UserError if the benchmark has no planner's prompt and no --plans_addr."""
    if "planner" not in task.prompts:
        remedy = "use baselines.py"
        remedy += ", or give your own plans with --plans_addr" if "planpers" in task.prompts else ""
        if "planpers" not in task.prompts or not args.plans_addr:
            raise UserError(f"{args.inputs_addr[0]}: {task.name} has no plans; {remedy}")
        if args.planner_target == "reference":
            raise UserError(f"--planner_target reference: {task.name} has no planner; leave the flag out")
    names = [name for name in ("planner", "planpers", "rag") if name in task.prompts]
    return {name: load_prompt(task.prompts[name], args.prompts_dir) for name in names}


def given_plans(args: Arguments, datasets: list[Dataset], lead_in: str | None) -> list[Pieces]:
    """Return each dataset's given plans: gold ones, or those of --plans_addr (UserError if incomplete)."""
    if args.gold_plan:
        return [
            {key: parsing.gold_plan(one.task.gold_plan(record), lead_in) for key, record in one.asked.items()}
            for one in datasets
        ]
    if not args.plans_addr:
        return [{} for _ in datasets]
    if len(args.plans_addr) != len(datasets):
        raise UserError(
            f"{len(args.plans_addr)} --plans_addr, {len(datasets)} --inputs_addr: give the same number of each"
        )
    return [_read_given(path, list(one.asked), lead_in) for path, one in zip(args.plans_addr, datasets, strict=True)]


def _read_given(path: str, keys: list[Any], lead_in: str | None) -> Pieces:
    plans = parsing.plans_by_key(read_plans(path), lead_in)
    if missing := [key for key in keys if key not in plans]:
        named = first_five(question_id for question_id, _ in missing)
        raise UserError(
            f"{path}: lacks {len(missing)} of the {len(keys)} plans of this run: {named}\n"
            "  make them with --planner_model, or lower --num_generated_outputs or --limit"
        )
    return {key: plans[key] for key in keys}


def name_outputs(
    args: Arguments,
    datasets: list[Dataset],
    given: list[Pieces],
    prompts: dict[str, Prompt],
    identity: str,
    planner: str | None,
    lead_in: str | None,
) -> list[list[Output]]:
    """Return the outputs for answers and plans of each dataset, with the same settings for both.

    `identity` is the generator's, `planner` the planner's.
    """
    used = [prompt for name, prompt in prompts.items() if name != "planner" or planner]
    told = {"script": "planpers.py", "model": identity, "planner": planner, "prompt": digests(used)}
    settings = args.settings() | told | parsing.target_settings(lead_in)
    pairs = []
    for number, (one, plans) in enumerate(zip(datasets, given, strict=True)):
        hashes = {"inputs": file_hash(one.path)}
        hashes["given_plans"] = file_hash(args.plans_addr[number]) if args.plans_addr else None
        keys, its = list(one.asked), settings | hashes | seen_by_plans(args, one.task, number)
        answers = Output(
            one.output_addr, its, keys, partial(collect_responses, one.records), "answers", args, dataset=one.path
        )
        path = f"{one.output_addr}.plans.json"
        collect = partial(collect_responses, one.records, field="aspects")
        pairs.append([answers, Output(path, its, keys, collect, "plans", args, dict(plans), dataset=one.path)])
    return pairs


def seen_by_plans(args: Arguments, task: Task, number: int) -> dict[str, Any]:
    """Return the setting `saw` of a dataset's plans, the scorer's fields behind them; empty if there are none."""
    if args.plans_addr:
        found = noted_settings(args.plans_addr[number]).get("saw")
    elif args.gold_plan or trained_variables(args.planner_model or "") is not None:
        found = {"when": "test" if args.gold_plan else "training", "fields": list(task.gold_plan_needs)}
    else:
        found = None
    return {"saw": found} if found else {}


def keep_plans(pairs: list[list[Output]], lead_in: str | None, has_planner: bool) -> None:
    """Load plans that need no planner: read finished ones, publish given ones."""
    for _, plans in pairs:
        if plans.finished:
            plans.pieces |= parsing.plans_by_key(read_plans(plans.path), lead_in)
        elif not has_planner:
            publish_plans(plans)


def publish_plans(plans: Output, role: Role | None = None, device: str | None = None) -> None:
    """Write plans and their manifest before they are used. `role` is the planner, None for given plans."""
    pieces = plans.pieces.values()
    found = [plan["value"] for plan in pieces if plan["value"]]
    counts = {
        "plans": len(found),
        "without an aspect": len(pieces) - len(found),
        "aspects": sum(len(aspects) for aspects in found),
        "posts left out for length": sum(plan.get("num_contexts_dropped", 0) for plan in pieces),
    }
    publish_records(plans, device, counts, bool(role and role.args.openai), prices_of(plans.args, "planner_"))


def with_plans(asked: dict[Key, Record], plans: Pieces) -> dict[Key, Record]:
    """Return the records of the answers to request: those with a plan."""
    return {key: record for key, record in asked.items() if key in plans}


def publish_answers(shared: Shared, answers: Output, device: str | None) -> None:
    """Write the answers and their manifest."""
    args, model = shared.roles["generator"].args, shared.roles["generator"].model
    counts = count_responses(answers.content())
    counts["answered without a plan"] = sum(answer["plan"] is None for answer in answers.pieces.values())
    found = {}
    saw = answers.settings.get("saw") or {"when": "training", "fields": []}
    if learnt := model.saw_in_training:
        own = {"models_saw": learnt} if saw["when"] == "test" else {"fields": sorted({*saw["fields"], *learnt})}
        found["saw"] = saw | own
    publish_records(answers, device, counts, args.openai, prices_of(args), found, **model.figures)


def report(pairs: list[list[Output]]) -> int:
    """Print unusable and missing outputs, and return the exit code."""
    made = [plans for _, plans in pairs if not plans.finished] + [answers for answers, _ in pairs]
    code = max(output.report_failed(common_reasons) for output in made)
    return max(code, cli.report_missing(sum(len(answers.missing()) for answers, _ in pairs), "answer"))
