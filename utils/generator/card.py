"""The model card of a fine-tuned generator: README.md of its run and of each checkpoint."""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from utils.models.hub import is_folder
from utils.planner.card import code

SETTINGS = (
    "task", "fusion", "num_contexts", "trim_items", "lora_rank", "max_input_length", "max_target_length", "epochs",
    "effective_batch_size", "learning_rate", "warmup_steps", "weight_decay", "patience", "seed",
)  # fmt: skip


def make_card(generator: str, manifest: dict[str, Any], log: list[dict[str, Any]]) -> str:
    """The text of a README.md, with the arguments of utils/planner/card.py's; of a path its last part is told."""
    arguments, settings = manifest["arguments"], manifest["settings"]
    model, metric = arguments["model_addr"], settings["metric"]
    base = f"a folder {code(Path(model).absolute().name)}" if is_folder(model) else code(model)
    front_matter = ModelCardData(
        base_model=None if is_folder(model) else model, library_name="transformers", tags=["personalization"]
    )
    rag = f" --rag --num_contexts {settings['num_contexts']}" if settings["num_contexts"] else ""
    flags = rag + (" --trim_items" if settings["trim_items"] else "")
    flags += " --prompts_dir $PROMPTS" if arguments["prompts_dir"] else ""
    prompts = " `$PROMPTS` is the folder of the prompts that it was trained with." if arguments["prompts_dir"] else ""
    scores = [f"| {entry['step']} | {entry['eval_score']:.4f} |" for entry in log if "eval_score" in entry]
    table = [f"| step | {metric} |", "|---|---|", *scores] if scores else ["None: nothing was evaluated yet."]
    parts = [
        f"---\n{front_matter.to_yaml().strip()}\n---",
        f"# A generator for {settings['task']}",
        f"{base} ({code(settings['model'])}), fine-tuned on questions with the profiles of those who asked them.",
        "## How to use it",
        f"With the code that trained it, from its root. `$GENERATOR` is the folder of this file.{prompts}",
        f"```shell\npython baselines.py --model_addr $GENERATOR{generator and '/' + generator} "
        f"--inputs_addr dev_ranked.json --output_addr answers.json{flags}\n```",
        "## How it was trained",
        f"Up to step {manifest['step']}, with utils/train_generator.py on {manifest['device']}.",
        "\n".join(f"- {name}: {code(settings[name])}" for name in SETTINGS if settings.get(name) is not None),
        "## Scores on the validation data",
        "\n".join(table),
        *(["The best checkpoint is chosen by these scores, so its own is optimistic."] if scores else []),
    ]
    return "\n\n".join(parts) + "\n"
