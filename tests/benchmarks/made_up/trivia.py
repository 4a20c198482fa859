"""A made-up benchmark: what does this user call a colour or an animal? The answer is a word, and right or wrong."""

from functools import partial
from pathlib import Path

from utils.benchmarks.checks import check_profile, check_text
from utils.benchmarks.task import Metric, Options, Output, Task
from utils.cli import UserError
from utils.parsing import Parsed
from utils.scoring import direct

FOLDER = Path(__file__).parent


def parse_word(text, cut):
    words = text.split()
    return Parsed(words[0], "strict", None) if len(words) == 1 else Parsed(None, "none", "not one word")


def check_options(record, where):
    if len(record.get("options", [])) < 2:
        raise UserError(f"{where}: field 'options': of less than two none can be chosen")


METRICS = {
    "exact_match": Metric(
        ("answer",),
        lambda record: [record["question"], record["answer"]],
        lambda record, verdicts: direct.entry(*verdicts),
        direct.summarize_scores,
        direct.score_of,
        compute=lambda record, response: float(response.casefold() == record["answer"].casefold()),
    )
}

TASK = Task(
    name="Trivia",
    groups=("Colours", "Animals"),
    place=lambda record: {"group": record["kind"]},
    placed_by="kind",
    fields={
        "profile": partial(check_profile, field="note"),
        "answer": partial(check_text, field="answer"),
        "options": check_options,
    },
    prompts={"none": str(FOLDER / "ask"), "rag": str(FOLDER / "ask_with_notes")},
    output=Output(r"\w+", parse_word),
    metrics=METRICS,
    facts=__file__,
    item_text=lambda item: item["note"],
    options=Options(
        prompts={"none": str(FOLDER / "ask"), "rag": str(FOLDER / "ask_with_notes")},
        needs=("options",),
        texts=lambda record: record["options"],
    ),
    arrange=lambda items: items[::-1],  # the best one stands next to the question
)
