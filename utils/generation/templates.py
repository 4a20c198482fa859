"""The variables that a user sets in a chat template, such as Qwen3's `enable_thinking`."""

import re
from argparse import Namespace
from typing import Any

from utils.cli import UserError

SETTINGS = ("chat_template_kwargs", "reasoning_effort")  # flags that a template here is told


def template_variables(args: Namespace) -> dict[str, Any]:
    """What --chat_template_kwargs and --reasoning_effort tell a template; UserError where both set one variable."""
    kwargs, effort = (vars(args).get(name) for name in SETTINGS)
    variables = dict(kwargs or {})
    if effort is not None:
        if "reasoning_effort" in variables:
            raise UserError("--reasoning_effort: is also in --chat_template_kwargs; give it once")
        variables["reasoning_effort"] = effort
    return variables


def known_variables(variables: dict[str, Any], template: str) -> dict[str, Any]:
    """Those that a template, as its text is, has a use for."""
    return {name: value for name, value in variables.items() if re.search(rf"\b{re.escape(name)}\b", template)}


def refuse_unknown(variables: dict[str, Any], known: dict[str, Any], where: str) -> None:
    """Raise UserError over a variable that a template does not know: it would change nothing, without a word."""
    if unknown := variables.keys() - known.keys():
        name = min(unknown)
        flag = "--reasoning_effort" if name == "reasoning_effort" else f"--chat_template_kwargs: {name}"
        raise UserError(f"{flag}: {where} has no such variable\n  leave it out, or look up the name in its model card")
