"""The samples of LaMP and LongLaMP as records, and LaMP's own scores of labels and ratings."""

from pathlib import Path

from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, root_mean_squared_error

from utils.benchmarks import tasks
from utils.data.originals import read_originals

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
    """Return the arguments of `read_originals`; LongLaMP's emails are in files like LaMP's."""
    folder = DATA / ("mini_longlamp" if name in CONFIGS else "mini_lamp") / CONFIGS.get(name, name.replace("-", "_"))
    split = split.replace("val", "dev")
    questions, outputs = (folder / f"{split}_{kind}.json" for kind in ("questions", "outputs"))
    if questions.exists():
        return questions, outputs if outputs.exists() else None
    split = split.replace("dev", "val")
    return folder / f"{split}.json", None, f"{folder.name}-{split}"


# fmt: off
LABELS = {
    "LaMP-1": ["[1]", "[2]"],
    "LaMP-2": [
        "sci-fi", "based on a book", "comedy", "action", "twist ending", "dystopia", "dark comedy", "classic",
        "psychology", "fantasy", "romance", "thought-provoking", "social commentary", "violence", "true story",
    ],
}
# fmt: on


def lamp_scores(name, golds, texts):
    """Return the scores of these texts by metric, with the rules of LaMP's public code."""
    if name in LABELS:
        numbers = {label: number for number, label in enumerate(LABELS[name])}
        right, found = ([numbers.get(text.strip(), -1) for text in its] for its in (golds, texts))
        f1 = f1_score(right, found, labels=list(numbers.values()), average="macro", zero_division=0)
        return {"accuracy": accuracy_score(right, found), "f1": f1}

    def number_of(text, gold):
        try:
            return float(text)
        except ValueError:
            return (
                5.0 if gold <= 3 else 1.0
            )  # the end of the scale farther from the right rating; 5 if both are equally far

    right = [float(gold) for gold in golds]
    found = [number_of(text.strip(), gold) for text, gold in zip(texts, right, strict=True)]
    return {"MAE": mean_absolute_error(right, found), "RMSE": root_mean_squared_error(right, found)}
