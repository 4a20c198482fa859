"""The planner of planpers.py, with its own flags: a local model, or a model behind its own API."""

from typing import Any

from utils.cli.flags import Arguments
from utils.generation.chat import Chat, open_local_chat
from utils.generation.engines import choose_model
from utils.generation.model import Model
from utils.generation.requests import SAMPLED
from utils.generation.thinking import template_variables
from utils.planner.examples import trained_variables


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
    return choose_model(flags, Planner, max_tokens_flag="--max_tokens_plan")
