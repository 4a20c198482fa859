"""The model card of a trained planner: README.md of its run and of each checkpoint, from the manifest and the log.

What is not known is left out, and of a path its last part is told: the card may be published with the adapter.
"""

import re
import shlex
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from utils.models.hub import is_folder

SETTINGS = (
    "max_steps", "effective_batch_size", "learning_rate", "warmup_steps", "weight_decay", "lora_rank", "lora_alpha",
    "lora_dropout", "lora_target_modules", "num_contexts", "max_seq_length", "planner_target",
    "chat_template_kwargs", "seed",
)  # fmt: skip
PACKAGES = ("torch", "transformers", "peft", "trl")


def make_card(planner: str, manifest: dict[str, Any], log: list[dict[str, Any]]) -> str:
    """The text of a README.md.

    Args:
        planner: the adapter, as seen from the card's folder: "" for the folder itself.
        manifest: as it lies beside the adapter.
    """
    arguments, settings, versions = (manifest[name] for name in ("arguments", "settings", "versions"))
    model, identity, commit = arguments["model_addr"], settings["model"], manifest["git_commit"]
    on_hub = None if is_folder(model) else model  # a folder has no name there
    tags = {"library_name": "peft", "pipeline_tag": "text-generation", "tags": ["lora", "personalization"]}
    front_matter = ModelCardData(base_model=on_hub, **tags)
    if on_hub:
        base = f"{code(model)} (commit {code(identity.rpartition('@')[2])})"
    else:
        base = f"a model that lay in a folder {code(Path(model).absolute().name)} ({code(identity)})"
    with_changes = ", with changes" if commit and commit.endswith("+") else ""
    version = f" (commit {code(commit.rstrip('+'))}{with_changes})" if commit else ""
    made_with = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
    data = [
        f"- {name} data: {code(Path(arguments[flag]).name)} (sha256 {code(settings[key])})"
        for name, flag, key in (("training", "inputs_addr", "inputs"), ("validation", "validation_addr", "validation"))
        if arguments[flag]
    ]
    told = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    told |= {name: " ".join(value) for name, value in told.items() if isinstance(value, list)}
    parts = [
        f"---\n{front_matter.to_yaml().strip()}\n---",
        "# A planner for personalized question answering",
        f"A LoRA adapter on {base}. From a question and its asker's earlier posts it writes the aspects that the "
        "answer should cover, one a line: the planner of PlanPers (LaMP-QA).",
        "## How to use it",
        f"With the code that trained it{version}, from its root. `$PLANNER` is the folder of this file.",
        f"```shell\n{make_command(planner, on_hub, arguments)}\n```",
        "## How it was trained",
        f"Up to step {manifest['step']}, with train_planner.py on {manifest['device']}: {', '.join(made_with)}.",
        "\n".join(data),
        "\n".join(f"- {name}: {code(value)}" for name, value in told.items()),
        "## Scores on the validation data",
        describe_scores(log, manifest["best_step"]),
    ]
    return "\n\n".join(parts) + "\n"


def make_command(planner: str, on_hub: str | None, arguments: dict[str, Any]) -> str:
    """The planner's plans, and answers by its base model."""
    words = [
        "python planpers.py", f"--model_addr {shlex.quote(on_hub) if on_hub else '$MODEL'}",
        f"--planner_model $PLANNER{planner and '/' + planner}", "--inputs_addr test_ranked.json",
        "--output_addr planpers.json", "--rag", f"--num_contexts {arguments['num_contexts']}",
        *(["--prompts_dir $PROMPTS"] if arguments["prompts_dir"] else []),
    ]  # fmt: skip
    return " ".join(words)


def describe_scores(log: list[dict[str, Any]], best_step: int | None) -> str:
    """A table row an evaluation."""
    evaluations = [entry for entry in log if "eval_loss" in entry]
    if not evaluations:
        return "None: nothing was evaluated yet."
    rows = ["| step | loss (nats a target token) | aspect recall |", "|---|---|---|"]
    for entry in evaluations:
        recall = entry.get("eval_aspect_recall")
        shown = "" if recall is None else f"{recall:.3f} of {entry['eval_plans']} plans"
        best = " (best checkpoint)" if entry["step"] == best_step else ""
        rows.append(f"| {entry['step']}{best} | {entry['eval_loss']:.4f} | {shown} |")
    return "\n".join(rows)


def code(value: Any) -> str:
    """A code span, in which nothing is markup whatever the value's text holds."""
    text = " ".join(str(value).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"
