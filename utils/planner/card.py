"""The model card of a trained planner: README.md of its run and of each checkpoint, from the manifest and the log.

What is not known is left out, and of a path its last part is told: the card may be published with the adapter.
"""

import re
import shlex
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from utils.files.writing import write_atomically
from utils.models.hub import is_folder

SETTINGS = (
    "max_steps", "effective_batch_size", "learning_rate", "warmup_steps", "weight_decay", "lora_rank", "lora_alpha",
    "lora_dropout", "lora_target_modules", "num_contexts", "max_seq_length", "planner_target", "seed",
)  # fmt: skip
PACKAGES = ("torch", "transformers", "peft", "trl")


def write_card(folder: Path, planner: str, manifest: dict[str, Any], log: list[dict[str, Any]]) -> None:
    """Write `folder`/README.md.

    Args:
        planner: the adapter, as seen from the folder: "" for the folder itself.
        manifest: as it lies beside the adapter, with step, best_step and best_loss.
        log: what was logged up to this step.
    """
    write_atomically(folder / "README.md", make_card(planner, manifest, log))


def make_card(planner: str, manifest: dict[str, Any], log: list[dict[str, Any]]) -> str:
    arguments, fingerprint = manifest["arguments"], manifest["fingerprint"]
    on_hub = None if is_folder(arguments["model_addr"]) else arguments["model_addr"]
    settings = {name: fingerprint[name] for name in SETTINGS if fingerprint.get(name) is not None}
    made_with = [f"{name} {manifest['versions'][name]}" for name in PACKAGES if name in manifest["versions"]]
    parts = [
        f"---\n{make_front_matter(on_hub)}\n---",
        "# A planner for personalized question answering",
        f"A LoRA adapter on {describe_base(arguments['model_addr'], fingerprint['model'])}. From a question and its "
        "asker's earlier posts it writes the aspects that the answer should cover, one a line: the planner of PlanPers "
        "(LaMP-QA).",
        "## How to use it",
        f"With the code that trained it{describe_commit(manifest['git_commit'])}, from its root. `$PLANNER` is the "
        "folder of this file.",
        f"```shell\n{make_command(planner, on_hub, arguments)}\n```",
        "## How it was trained",
        f"Up to step {manifest['step']}, with train_planner.py on {manifest['device']}: {', '.join(made_with)}.",
        "\n".join(describe_data(arguments, fingerprint)),
        "\n".join(f"- {name}: {code(in_words(value))}" for name, value in settings.items()),
        "## Scores on the validation data",
        describe_scores(log, manifest["best_step"]),
    ]
    return "\n\n".join(parts) + "\n"


def make_front_matter(on_hub: str | None) -> str:
    """What the hub reads, as YAML; a base model that is a folder has no name there."""
    data = ModelCardData(
        base_model=on_hub, library_name="peft", pipeline_tag="text-generation", tags=["lora", "personalization"]
    )
    return data.to_yaml().strip()


def describe_base(model: str, identity: str) -> str:
    if is_folder(model):
        return f"a model that lay in a folder {code(Path(model).absolute().name)} ({code(identity)})"
    return f"{code(model)} (commit {code(identity.rpartition('@')[2])})"


def describe_commit(commit: str | None) -> str:
    if commit is None:
        return ""
    return f" (commit {code(commit.rstrip('+'))}{', with changes' if commit.endswith('+') else ''})"


def make_command(planner: str, on_hub: str | None, arguments: dict[str, Any]) -> str:
    """The planner's plans, and answers by its base model."""
    words = [
        "python planpers.py", f"--model_addr {shlex.quote(on_hub) if on_hub else '$MODEL'}",
        f"--planner_model $PLANNER{planner and '/' + planner}", "--inputs_addr test_ranked.json",
        "--output_addr planpers.json", "--rag", f"--num_contexts {arguments['num_contexts']}",
        "--prompts_dir $PROMPTS" if arguments["prompts_dir"] else "",
    ]  # fmt: skip
    return " ".join(filter(None, words))


def describe_data(arguments: dict[str, Any], fingerprint: dict[str, Any]) -> list[str]:
    """A line a file: its name, and the hash that tells it from any other."""
    lines = []
    for name, flag, key in (("training", "inputs_addr", "inputs"), ("validation", "validation_addr", "validation")):
        if arguments[flag]:
            lines.append(f"- {name} data: {code(Path(arguments[flag]).name)} (sha256 {code(fingerprint[key])})")
    return lines


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


def in_words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def code(text: str) -> str:
    """A code span, in which nothing is markup whatever the text holds."""
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"
