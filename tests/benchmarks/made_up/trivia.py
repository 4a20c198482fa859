"""A made-up benchmark: what does this user call a colour or an animal? The answer is a single word."""

from pathlib import Path
from typing import Annotated

import msgspec

from utils.benchmarks import direct
from utils.benchmarks.metric import Metric, Output
from utils.benchmarks.readers import Parsed
from utils.benchmarks.task import Files, Options, Task

FOLDER = Path(__file__).parent


def parse_word(text, cut):
    words = text.split()
    return Parsed(words[0], "strict", None) if len(words) == 1 else Parsed(None, "none", "not one word")


class Note(msgspec.Struct):
    note: str


Choices = Annotated[dict[str, str], msgspec.Meta(min_length=2)]

METRICS = {
    "exact_match": Metric(
        needs=("answer",),
        judge_inputs=lambda record: [record["question"], record["answer"]],
        entry=lambda record, verdicts: direct.entry(*verdicts),
        summarize=direct.summarize_scores,
        score_of=direct.score_of,
        compute=lambda record, response: float(response.casefold() == record["answer"].casefold()),
    )
}

TASK = Task(
    name="Trivia",
    groups=("Colours", "Animals"),
    group_of=lambda record: {"group": record["kind"]},
    group_field="kind",
    fields={"kind": str, "profile": list[Note], "answer": str, "options": Choices},
    prompts={"none": str(FOLDER / "ask"), "rag": str(FOLDER / "ask_with_notes")},
    output=Output(r"\w+", parse_word),
    metrics=METRICS,
    files=Files(facts=__file__),
    item_text=lambda item: item["note"],
    options=Options(
        prompts={"none": str(FOLDER / "ask"), "rag": str(FOLDER / "ask_with_notes")},
        needs=("options",),
        texts=lambda record: record["options"],
    ),
    arrange=lambda items: items[::-1],  # the best one stands next to the question
)
