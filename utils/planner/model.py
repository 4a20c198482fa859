"""The planner of planpers.py, with its own flags: a local model, or a model behind its own API."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

from utils.cli.flags import Arguments
from utils.generation.chat import PAPER_LENGTH, choose_length, open_chat, open_local_chat
from utils.generation.engines import open_completions
from utils.generation.model import Model, Policy
from utils.generation.requests import SAMPLED
from utils.generation.thinking import SETTINGS, find_thoughts, settle_tokens, template_variables
from utils.parsing import plans as parsing
from utils.planner.examples import trained_variables


def flags_of_planner(args: Arguments) -> Arguments:
    """Return the flags for the planner, which is local or has its own API, independently of the generator."""
    openai = bool(args.planner_base_url)
    own = {"openai": openai, "base_url": args.planner_base_url, "api_key_addr": args.planner_api_key_addr}
    own |= {"model_id": None}
    own |= {"reasoning_parser": None}  # generator only; so is --seed none, unless the planner has an API
    own |= {} if openai else {"seed": args.seed or 0}
    return args.replaced(**own)


def choose_planner(args: Namespace, identity: str, lead_in: str | None) -> Model:
    """Return the planner that its flags select, with the generator's sampling settings."""
    if args.openai:
        chat, told = open_chat(args, args.planner_model), template_flags(args)
    else:
        trained = trained_variables(args.planner_model)  # None: set only variables that the template knows
        variables, only_known = (template_variables(args), True) if trained is None else (trained, False)
        chat = open_local_chat(args.planner_model, args.cache_dir, variables, only_known=only_known)
        told = {"chat_template_kwargs": chat.variables} if chat.variables else {}
    thoughts = find_thoughts(args, chat, args.planner_model)
    room = settle_tokens(args, thoughts, args.planner_model, chat.model_limit, "max_tokens_plan")
    length = choose_length(chat, args.max_model_len, args.max_tokens_plan, PAPER_LENGTH + room, "--max_tokens_plan")
    policy = planner_policy(args, lead_in, told).for_chat(chat, thoughts)
    completions = open_completions(args, args.planner_model, identity)
    return Model(args.planner_model, identity, chat, length, policy, completions)


def template_flags(args: Namespace) -> dict[str, Any]:
    """Return the planner's chat template settings, as far as they are known without its tokenizer."""
    if not args.openai and (trained := trained_variables(args.planner_model)) is not None:
        return {"chat_template_kwargs": trained} if trained else {}
    return {name: getattr(args, name) for name in SETTINGS if getattr(args, name)}


def planner_policy(args: Namespace, lead_in: str | None, told: dict[str, Any]) -> Policy:
    """Return the generator's policy adapted to the planner; `told` holds the chat template's variables."""
    policy = Policy.from_arguments(args, parsing.plan_pattern(lead_in))
    further = {name: policy.further[name] for name in SAMPLED if name in policy.further} | told
    return replace(policy, max_tokens=args.max_tokens_plan, further=further, reasoning_parser=None, opened=None)
