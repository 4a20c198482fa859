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
    return list(read_originals(tasks()[name], *sample_files(name, split)))


def sample_files(name, split):
    """The arguments of `read_originals`; LongLaMP's emails are in files like LaMP's."""
    folder = DATA / ("mini_longlamp" if name in CONFIGS else "mini_lamp") / CONFIGS.get(name, name.replace("-", "_"))
    split = split.replace("val", "dev")
    questions, outputs = (folder / f"{split}_{kind}.json" for kind in ("questions", "outputs"))
    if questions.exists():
        return questions, outputs if outputs.exists() else None
    split = split.replace("dev", "val")
    return folder / f"{split}.json", None, f"{folder.name}-{split}"
