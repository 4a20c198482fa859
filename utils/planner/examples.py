"""The planner's training examples: prompts and targets as token ids.

Targets may begin with a lead-in, by --planner_target or the manifest of a planner or of plans.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prompts import Prompt, choose_lead_in
from utils.cli import UserError
from utils.files.manifest import folder_settings, noted_settings
from utils.training import NO_LOSS


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
    sources = [planner_model] if planner_model else plans_addrs
    found = [_find(planner_target, prompt, one, is_folder=planner_model is not None) for one in sources]
    if len(set(found)) > 1:
        raise UserError(
            f"--plans_addr: {' and '.join(sources)} have different lead-ins; use a separate command for each"
        )
    return found[0] if found else choose_lead_in(planner_target or "paper", prompt)


def _find(planner_target: str | None, prompt: Prompt | None, source: str, is_folder: bool) -> str | None:
    settings = folder_settings(source) if is_folder else noted_settings(source)
    if settings.get("script") not in ("train_planner.py", "planpers.py"):
        return choose_lead_in(planner_target or "paper", prompt)
    remembered = settings.get("planner_target", "paper")
    if planner_target not in (None, remembered):
        raise UserError(f"--planner_target {planner_target}: {source} was made with {remembered}; leave the flag out")
    return settings.get("lead_in")


@dataclass(frozen=True)
class Example:
    """A training example: one question."""

    prompt: array  # token ids of the planner's prompt, up to the beginning of its reply
    target: array  # token ids of the aspects' titles, one per line, and the end of the turn
    aspects: list[str]  # the titles
    num_dropped: int  # posts dropped so that prompt and target fit
    is_cut: bool  # whether the only post left was cut at its end

    @property
    def length(self) -> int:
        """The number of tokens in prompt and target."""
        return len(self.prompt) + len(self.target)

    @property
    def row(self) -> dict[str, list[int]]:
        """The example as the trainer's row, with the whole prompt labelled `NO_LOSS`."""
        return {"input_ids": [*self.prompt, *self.target], "labels": [NO_LOSS] * len(self.prompt) + list(self.target)}


def describe_examples(path: str, examples: list[Example]) -> str:
    lengths = [example.length for example in examples]
    return (
        f"{path}: {len(examples)} questions with {sum(len(example.aspects) for example in examples)} aspects; "
        f"{sum(lengths)} tokens, {sum(len(example.target) for example in examples)} of them in targets; "
        f"longest example {max(lengths)} tokens\n"
        f"  {sum(example.num_dropped for example in examples)} posts left out for length, "
        f"{sum(example.is_cut for example in examples)} cut at the end"
    )
