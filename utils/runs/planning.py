"""The parts of planpers.py besides its method: the source of the plans, and the files that they are written to."""

from collections.abc import Sequence
from typing import Any

from prompts import Prompt, choose_lead_in, load_prompt
from utils.base import cli
from utils.base.cli import SAMPLED, Arguments
from utils.base.errors import UserError, count_noun, first_five
from utils.base.made import Pieces
from utils.base.manifest import file_hash, folder_settings, noted_settings
from utils.benchmarks.lampqa import plans as parsing
from utils.benchmarks.task import Task
from utils.data.responses import Responses, collect_responses, read_plans
from utils.generation.chat import Chat, open_local_chat
from utils.generation.engines import choose_model
from utils.generation.model import Model, settings_by_scores
from utils.generation.thinking import template_variables
from utils.runs.answers import Dataset, Method, QuestionFile, ResponseFile
from utils.runs.stage import Stage

# With --dry_run, the aspects of every plan that does not exist yet; they have about the length of a real plan.
STAND_IN = ["An aspect of the answer that is not planned yet"] * 5


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
        help="tokens per plan (%(default)s; more for a reasoning planner)")
    parser.not_a_setting("--planner_model --plans_addr", "their hashes are settings")
    parser.names_model("--planner_model", lambda args: args.planner_base_url is not None)
    parser.not_a_setting("--planner_target", "the lead-in of the plans is a setting")
    group = parser.add_argument_group("planner's API")
    group.add_argument("--planner_base_url", metavar="URL", type=cli.api_address,
        help="address of the planner's API, even if it is the generator's too (default: a local planner)")
    group.add_argument("--planner_api_key_addr", metavar="FILE",
        help="file with the key to that API (default: OPENAI_API_KEY)")
    # fmt: on
    cli.add_price_arguments(parser, group, "planner_")
    parser.not_a_setting("--planner_base_url --planner_api_key_addr", "they only decide how the server is reached")
    api_flags = "--planner_api_key_addr --planner_price_in --planner_price_out --planner_price_cached"
    why = "without --planner_base_url, because the planner is local"
    parser.without_effect(api_flags, lambda args: not args.planner_base_url, why, "add --planner_base_url")
    parser.without_effect("--planner_base_url", lambda args: not args.planner_model, "without --planner_model")


def load_prompts(args: Arguments, task: Task) -> dict[str, Prompt]:
    """Return the prompts by name. UserError if the benchmark has no prompt for a planner and no plans are given."""
    if "planner" not in task.prompts:
        remedy = "use baselines.py"
        remedy += ", or pass your own plans with --plans_addr" if "planpers" in task.prompts else ""
        if "planpers" not in task.prompts or not args.plans_addr:
            raise UserError(f"{args.inputs_addr[0]}: {task.name} has no plans; {remedy}")
        if args.planner_target == "reference":
            raise UserError(f"--planner_target reference: {task.name} has no planner; remove the flag")
    names = [name for name in ("planner", "planpers", "rag") if name in task.prompts]
    return {name: load_prompt(task.prompts[name], args.prompts_dir) for name in names}


def given_plans(args: Arguments, datasets: list[Dataset], lead_in: str | None) -> list[Pieces]:
    """Return each dataset's plans by key, with --gold_plan or --plans_addr; without these flags, empty dicts.

    UserError if a file of --plans_addr lacks a plan that this run needs.
    """
    if args.gold_plan:
        return [
            {
                key: parsing.gold_plan(dataset.task.gold_plan(record), lead_in)
                for key, record in dataset.questions.items()
            }
            for dataset in datasets
        ]
    if not args.plans_addr:
        return [{} for _ in datasets]
    cli.check_same_number(args, "plans_addr", "inputs_addr")
    pairs = zip(args.plans_addr, datasets, strict=True)
    return [_read_given(path, [*dataset.questions], lead_in) for path, dataset in pairs]


def _read_given(path: str, keys: list[Any], lead_in: str | None) -> Pieces:
    plans = parsing.plans_by_key(read_plans(path), lead_in)
    if missing := [key for key in keys if key not in plans]:
        named = first_five(question_id for question_id, _ in missing)
        raise UserError(
            f"{path}: lacks {len(missing)} of {count_noun(len(keys), 'plan')} of this run: {named}\n"
            "  make them with --planner_model, or lower --num_generated_outputs or --limit"
        )
    return {key: plans[key] for key in keys}


class PlansFile(QuestionFile):
    """Plans for the answers to a dataset: `{question id: [{"aspects": [title, ...] or null, ...}, ...]}`."""

    unit = "plans"
    stand_in_note = "with made-up plans of five aspects in place of those that do not exist yet"

    def __init__(self, dataset: Dataset, settings: dict[str, Any], given: Pieces, lead_in: str | None):
        """`given`: plans that already exist, by key."""
        super().__init__(
            dataset, f"{dataset.output_addr}.plans.json", settings, dataset.questions if given else None, given
        )
        self._lead_in = lead_in
        self.stand_in = parsing.gold_plan(STAND_IN, lead_in)

    def content(self) -> Responses:
        return collect_responses(self._dataset.records, self.in_order(), "aspects")

    def pieces_in_file(self) -> Pieces:
        return parsing.plans_by_key(read_plans(self.path), self._lead_in)

    def counts(self, content: Responses) -> dict[str, int]:
        plans = [piece["value"] for piece in self.pieces.values() if piece["value"]]
        return {
            "plans": len(plans),
            "without an aspect": len(self.pieces) - len(plans),
            "aspects": sum(len(aspects) for aspects in plans),
            "posts left out for length": sum(piece.get("num_contexts_dropped", 0) for piece in self.pieces.values()),
        }


def stages_of_plans(
    args: Arguments,
    datasets: list[Dataset],
    settings: dict[str, Any],
    method: Method,
    planner: Model | None,
    lead_in: str | None,
) -> list[Stage]:
    """Return a stage per dataset that makes the missing plans and writes <output>.plans.json."""
    stages = []
    addrs, plans_by_dataset = args.plans_addr or [None] * len(datasets), given_plans(args, datasets, lead_in)
    for dataset, plans_addr, given in zip(datasets, addrs, plans_by_dataset, strict=True):
        plans = PlansFile(dataset, settings | settings_of_plans(args, dataset, plans_addr, planner), given, lead_in)
        models = {"planner": planner} if planner else {}
        stages.append(Stage(dataset.task, plans.records, method, [plans], models))
    return stages


def stage_of_answers(args: Arguments, dataset: Dataset, method: Method, model: Model, plans: Stage) -> Stage:
    """Return the stage that answers a dataset's questions with the plans of the stage `plans`."""
    settings = dict(plans.files[0].settings)
    if learnt := model.saw_in_training:
        saw = settings.get("saw") or {"when": "training", "fields": []}
        seen = {"models_saw": learnt} if saw["when"] == "test" else {"fields": sorted({*saw["fields"], *learnt})}
        settings["saw"] = saw | seen
    settings |= settings_by_scores([model], settings["inputs"], settings.get("rewarded_by", ()))
    responses = ResponseFile(dataset, settings, shows_posts=args.num_contexts > 0)
    return Stage(dataset.task, responses.records, method, [responses], {"generator": model}, after=plans)


def settings_of_plans(
    args: Arguments, dataset: Dataset, plans_addr: str | None, planner: Model | None
) -> dict[str, Any]:
    """Return a dataset's settings: its hash, the given plans' hash, and the scorer's fields that plans depend on."""
    settings = {"inputs": file_hash(dataset.path), "given_plans": None}
    if plans_addr:
        settings["given_plans"] = file_hash(plans_addr)
        given = noted_settings(plans_addr)
        saw = given.get("saw")
        settings |= {name: given[name] for name in ("chose_checkpoint", "rewarded_by") if name in given}
    elif args.gold_plan or folder_settings(args.planner_model or "").get("script") == "train_planner.py":
        saw = {"when": "test" if args.gold_plan else "training", "fields": [*dataset.task.gold_plan_needs]}
    elif planner and planner.saw_in_training:  # by utils/train_generator.py
        saw = {"when": "training", "fields": planner.saw_in_training}
    else:
        saw = None
    if planner:
        settings |= settings_by_scores([planner], settings["inputs"])
    return settings | ({"saw": saw} if saw else {})


class Planner(Model):
    """A model that writes plans. A local planner uses the chat template variables of its training."""

    def _open_chat(self) -> Chat:
        if not self.is_local:
            return super()._open_chat()
        if self.made_with.get("script") == "train_planner.py":
            return open_local_chat(self.folder, self.made_with.get("chat_template_kwargs"))
        return open_local_chat(self.folder, template_variables(self.flags), only_known=True)

    def _further(self) -> dict[str, Any]:
        further = super()._further()
        if not self.is_local:
            return further
        variables = {"chat_template_kwargs": self.chat.variables} if self.chat.variables else {}
        return {name: further[name] for name in SAMPLED if name in further} | variables


def choose_planner(args: Arguments) -> Planner:
    """Return the planner. It shares the generator's sampling flags; each of the two may be local or behind an API."""
    openai = bool(args.planner_base_url)
    flags_of_planner = {"openai": openai, "base_url": args.planner_base_url, "api_key_addr": args.planner_api_key_addr}
    flags_of_planner |= {name: getattr(args, f"planner_{name}") for name in ("price_in", "price_out", "price_cached")}
    # These flags are for the generator only, and so is --seed none.
    flags_of_planner |= dict.fromkeys(("model_id", "reasoning_parser", "extra_body"))
    flags_of_planner |= {} if openai else {"seed": args.seed or 0}
    flags = args.replaced(model_addr=args.planner_model, max_tokens=args.max_tokens_plan, **flags_of_planner)
    return choose_model(flags, Planner, max_tokens_flag="--max_tokens_plan", for_api="add --planner_base_url")


def find_lead_in(
    planner_target: str | None, prompt: Prompt | None, planner_model: str | None, plans_addrs: Sequence[str] = ()
) -> str | None:
    """Return the lead-in of plans; None if they have no lead-in.

    It is read from the manifest of the planner or of the plans files; without a manifest, --planner_target decides.
    UserError if plans files have different lead-ins, the flag contradicts a manifest, or the prompt has no lead-in.
    """
    lead_ins = {}
    for source in [planner_model] if planner_model else plans_addrs:
        settings = folder_settings(source) if planner_model else noted_settings(source)
        if settings.get("script") not in ("train_planner.py", "planpers.py"):
            lead_ins[source] = choose_lead_in(planner_target or "paper", prompt)
            continue
        target = settings.get("planner_target", "paper")
        if planner_target not in (None, target):
            raise UserError(f"--planner_target {planner_target}: {source} was made with {target}; remove the flag")
        lead_ins[source] = settings.get("lead_in")
    if len(set(lead_ins.values())) > 1:
        raise UserError(
            f"--plans_addr: {' and '.join(plans_addrs)} have different lead-ins; use a separate command for each"
        )
    return next(iter(lead_ins.values())) if lead_ins else choose_lead_in(planner_target or "paper", prompt)
