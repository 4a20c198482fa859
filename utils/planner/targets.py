"""What plans begin with: the planner's target, by the flag or by what a planner or its plans remember."""

from typing import Any

from prompts import Prompt, choose_lead_in
from utils.cli import UserError
from utils.files.manifest import folder_settings, settings_of


def trained_variables(planner_model: str) -> dict[str, Any] | None:
    """What the chat template was told when a planner was trained; None for a model that was not trained as one."""
    settings = folder_settings(planner_model)
    return (settings.get("chat_template_kwargs") or {}) if settings.get("script") == "train_planner.py" else None


def find_lead_in(
    planner_target: str | None, prompt: Prompt | None, planner_model: str | None, plans_addr: str | None
) -> str | None:
    """What plans begin with: as the planner's checkpoint remembers it, or a run that planned; else by the flag.

    UserError where the flag says otherwise than what is remembered, or needs a prompt that has a lead-in.
    """
    source = planner_model or plans_addr
    settings = folder_settings(planner_model) if planner_model else settings_of(plans_addr) if plans_addr else {}
    if settings.get("script") not in ("train_planner.py", "planpers.py"):
        return choose_lead_in(planner_target or "paper", prompt)
    remembered = settings.get("planner_target", "paper")
    if planner_target not in (None, remembered):
        raise UserError(f"--planner_target {planner_target}: {source} was made with {remembered}\n  leave the flag out")
    return settings.get("lead_in")
