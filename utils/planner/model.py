"""The planner of planpers.py: a local model, or a model behind its own API, with its own flags; and its lead-in.

Plans may begin with a lead-in, by --planner_target or the manifest of a planner or of plans.
"""

from collections.abc import Sequence
from typing import Any

from prompts import Prompt, choose_lead_in
from utils.cli import UserError
from utils.cli.flags import Arguments
from utils.files.manifest import folder_settings, noted_settings
from utils.generation.chat import Chat, open_local_chat
from utils.generation.engines import choose_model
from utils.generation.model import Model
from utils.generation.requests import SAMPLED
from utils.generation.thinking import template_variables


class Planner(Model):
    """A model that plans. A local planner's template gets the variables of its training."""

    def _open_chat(self) -> Chat:
        if self.flags.openai:
            return super()._open_chat()
        trained = trained_variables(self.addr)  # None: set only variables that the template knows
        variables, only_known = (template_variables(self.flags), True) if trained is None else (trained, False)
        return open_local_chat(self.addr, self.flags.cache_dir, variables, only_known=only_known)

    def _further(self) -> dict[str, Any]:
        further = super()._further()
        if self.flags.openai:
            return further
        variables = {"chat_template_kwargs": self.chat.variables} if self.chat.variables else {}
        return {name: further[name] for name in SAMPLED if name in further} | variables


def choose_planner(args: Arguments) -> Planner:
    """Return the planner, sampled as the generator is; where it runs does not depend on where the generator does."""
    openai = bool(args.planner_base_url)
    own = {"openai": openai, "base_url": args.planner_base_url, "api_key_addr": args.planner_api_key_addr}
    own |= {name: getattr(args, f"planner_{name}") for name in ("price_in", "price_out", "price_cached")}
    own |= dict.fromkeys(("model_id", "reasoning_parser", "extra_body"))  # the generator's; so is --seed none
    own |= {} if openai else {"seed": args.seed or 0}
    flags = args.replaced(model_addr=args.planner_model, max_tokens=args.max_tokens_plan, **own)
    return choose_model(flags, Planner, max_tokens_flag="--max_tokens_plan", for_api="add --planner_base_url")


def trained_variables(planner_model: str) -> dict[str, Any] | None:
    """Return the chat template variables that a planner was trained with; None for any other model."""
    settings = folder_settings(planner_model)
    return (settings.get("chat_template_kwargs") or {}) if settings.get("script") == "train_planner.py" else None


def find_lead_in(
    planner_target: str | None, prompt: Prompt | None, planner_model: str | None, plans_addrs: Sequence[str] = ()
) -> str | None:
    """Return the lead-in of plans: from the manifest of the planner or of the plans files, else by --planner_target.

    UserError if plans files have different lead-ins, if the flag contradicts a manifest, or if the prompt lacks the
    lead-in that the flag needs.
    """
    lead_ins = {}
    for source in [planner_model] if planner_model else plans_addrs:
        settings = folder_settings(source) if planner_model else noted_settings(source)
        if settings.get("script") not in ("train_planner.py", "planpers.py"):
            lead_ins[source] = choose_lead_in(planner_target or "paper", prompt)
            continue
        target = settings.get("planner_target", "paper")
        if planner_target not in (None, target):
            raise UserError(f"--planner_target {planner_target}: {source} was made with {target}; leave the flag out")
        lead_ins[source] = settings.get("lead_in")
    if len(set(lead_ins.values())) > 1:
        raise UserError(
            f"--plans_addr: {' and '.join(plans_addrs)} have different lead-ins; use a separate command for each"
        )
    return next(iter(lead_ins.values())) if lead_ins else choose_lead_in(planner_target or "paper", prompt)
