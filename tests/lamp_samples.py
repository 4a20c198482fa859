"""The samples of LaMP and LongLaMP as records."""

from pathlib import Path

from utils.benchmarks import tasks
from utils.records.originals import read_originals

DATA = Path(__file__).parent / "data"
LAMP = [f"LaMP-{number}" for number in range(1, 8)]
CONFIGS = {
    "LongLaMP-abstract": "abstract_generation_user",
    "LongLaMP-review": "product_review_user",
    "LongLaMP-topic": "topic_writing_user",
    "LongLaMP-email": "email_user",
}


def read_sample(name, split="dev"):
    if name in CONFIGS:
        split = split.replace("dev", "val")
        return list(
            read_originals(tasks()[name], DATA / "mini_longlamp" / CONFIGS[name] / f"{split}.json", None, split)
        )
    folder = DATA / "mini_lamp" / name.replace("-", "_")
    outputs = folder / f"{split}_outputs.json"
    return list(
        read_originals(tasks()[name], folder / f"{split}_questions.json", outputs if outputs.exists() else None)
    )
