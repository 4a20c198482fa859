"""The model card of a training: README.md of its run and of each checkpoint, from the manifest and the log.

What is not known is left out, and of a path only the last part is given: the card may be published with the model.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from utils.models.hub import is_folder
from utils.training.checkpoints import Selection

SETTINGS = (
    "max_steps", "epochs", "effective_batch_size", "learning_rate", "warmup_steps", "weight_decay", "patience",
    "lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules", "fusion", "num_contexts", "trim_items",
    "max_seq_length", "max_input_length", "max_target_length", "planner_target", "chat_template_kwargs", "seed",
)  # fmt: skip
PACKAGES = ("torch", "transformers", "peft", "trl")


@dataclass(frozen=True)
class Card:
    """What differs between the cards of two scripts."""

    title: str
    about: str  # with {base}, and like the title with names of settings
    folder: str  # the name of the card's own folder in the command
    command: Callable[[str, dict[str, Any]], str]  # from the folder of the model and the flags
    metadata: dict[str, Any]


def make_card(card: Card, selection: Selection, model: str, manifest: dict[str, Any], log: list[dict[str, Any]]) -> str:
    """Return the text of a README.md.

    Args:
        model: as seen from the card's folder: "" for the folder itself.
        manifest: as it lies beside the model.
    """
    arguments, settings, versions = (manifest[name] for name in ("arguments", "settings", "versions"))
    addr, identity, commit = arguments["model_addr"], settings["model"], manifest["git_commit"]
    front_matter = ModelCardData(base_model=None if is_folder(addr) else addr, **card.metadata)
    if is_folder(addr):  # which has no name on the hub
        base = f"a model from a folder {code(Path(addr).absolute().name)} ({code(identity)})"
    else:
        base = f"{code(addr)} (commit {code(identity.rpartition('@')[2])})"
    with_changes = ", with changes" if commit and commit.endswith("+") else ""
    version = f" (commit {code(commit.rstrip('+'))}{with_changes})" if commit else ""
    data = [
        f"- {name} data: {code(Path(arguments[flag]).name)} (sha256 {code(settings[key])})"
        for name, flag, key in (("training", "inputs_addr", "inputs"), ("validation", "validation_addr", "validation"))
        if arguments[flag]
    ]
    told = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    told |= {name: " ".join(value) for name, value in told.items() if isinstance(value, list)}
    made_with = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
    folder = f"{card.folder}/{model}" if model else card.folder
    parts = [
        f"---\n{front_matter.to_yaml().strip()}\n---",
        f"# {card.title.format(**settings)}",
        card.about.format(base=base),
        "## How to use it",
        f"With the code that trained it{version}, from its root. `{card.folder}` is the folder of this file."
        + (" `$PROMPTS` is the folder of the prompts that it was trained with." if arguments["prompts_dir"] else ""),
        f"```shell\n{card.command(folder, arguments)}\n```",
        "## How it was trained",
        f"Up to step {manifest['step']}, with {settings['script']} on {manifest['device']}: {', '.join(made_with)}.",
        "\n".join(data),
        "\n".join(f"- {name}: {code(value)}" for name, value in told.items()),
        "## Scores on the validation data",
        describe_scores(selection, log, manifest["best_step"]),
    ]
    return "\n\n".join(parts) + "\n"


def describe_scores(selection: Selection, log: list[dict[str, Any]], best_step: int | None) -> str:
    """Return a table with a row for each evaluation."""
    evaluations = [entry for entry in log if selection.figure in entry]
    if not evaluations:
        return "None: nothing was evaluated yet."
    with_plans = any("eval_aspect_recall" in entry for entry in evaluations)
    rows = [["step", selection.words, *(["aspect recall"] if with_plans else [])]]
    rows.append(["---"] * len(rows[0]))
    for entry in evaluations:
        best = " (best checkpoint)" if entry["step"] == best_step else ""
        recall = entry.get("eval_aspect_recall")
        shown = "" if recall is None else f"{recall:.3f} of {entry['eval_plans']} plans"
        rows.append([f"{entry['step']}{best}", f"{entry[selection.figure]:.4f}", *([shown] if with_plans else [])])
    note = "The best checkpoint is chosen by these scores, so its own is optimistic."
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{note}"


def code(value: Any) -> str:
    """Return a code span, in which nothing is markup whatever the value's text holds."""
    text = " ".join(str(value).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"
