"""Ask a model about each post: whether the answer depends on the asker, and what the asker cares about.

The second question is asked only about posts for which the first one's output is true. A request depends only on the
model, the prompt and the post's text: with more posts, or with other terms for candidates, nothing is asked twice.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from prompts import digests, load_prompt
from utils.benchmarks import lampqa
from utils.benchmarks.checks import Record
from utils.benchmarks.metric import Parser
from utils.building.candidates import text_key
from utils.files.output import Key, Output, Piece, Pieces
from utils.generation.engines import choose_model
from utils.generation.fitting import Fitted
from utils.generation.model import Model
from utils.runs.ask import Ask
from utils.runs.stage import Stage

FIGURES = {field.name for field in fields(Fitted)}  # about a prompt's profile; prompts here have none
Counts = dict[str, int]


@dataclass(frozen=True)
class Question:
    """A question that is asked about posts."""

    step: str  # also the name of its file
    prompt: str  # a name for `load_prompt`
    schema: dict[str, Any]
    parse: Parser
    field: str  # the output's field in the file
    unit: str  # plural noun for the outputs
    describe: Callable[[Any], str]  # from an output, what became of the post
    stand_in: Any  # an output that lets a post pass (--dry_run)


def stages_of(args: Namespace, script: str, posts: list[Record], first: Question, second: Question) -> list[Stage]:
    """Return the stages that ask both questions about these posts, and write a file for each."""
    model = choose_model(args)
    asks_first = stage_of(args, script, model, first, lambda: posts)
    output = asks_first.outputs[0]

    def passed() -> list[Record]:
        content = output.content()
        return [post for post in posts if content.get(post["id"], {}).get(first.field)]

    asks_second = stage_of(args, script, model, second, passed)
    return [
        asks_first,
        replace(asks_second, after=asks_first, assumes=f"upper bound, because {first.step} drops some posts"),
    ]


def stage_of(
    args: Namespace, script: str, model: Model, question: Question, posts: Callable[[], list[Record]]
) -> Stage:
    step = question.step
    settings = args.settings() | {"script": script, "step": step, "model": model.identity}
    settings["prompt"] = digests([load_prompt(question.prompt, args.prompts_dir)])
    collect = partial(_collect, question.field)
    output = Output(str(Path(args.output_dir, f"{step}.json")), settings, None, collect, question.unit, args)
    output.read = lambda content: {
        key: {"value": content[post["id"]][question.field]} for key, post in keyed().items() if post["id"] in content
    }

    def keyed() -> dict[Key, Record]:
        return {text_key(post["id"], *asked_of(post).values()): post for post in posts()}

    async def ask_it(post: Record, ask: Ask) -> Piece:
        return await ask.record(step, parse=question.parse, schema=question.schema)

    return Stage(
        replace(lampqa.TASK, prompts={step: question.prompt}, values=asked_of),
        keyed,
        ask_it,
        [output],
        {"generator": model},
        lambda content, _: count_outputs(question, content),
        stand_in={"value": question.stand_in},
    )


def asked_of(record: Record) -> dict[str, str]:
    """Return the values for the prompts of figures 6 and 7, which include the post that no system sees."""
    return {"question": record["question"], "post": record["narrative"]}


def count_outputs(question: Question, content: dict[str, Any]) -> Counts:
    """Count what became of the posts, from the content of a question's file."""
    values = [record[question.field] for record in content.values()]
    unusable = "without usable output, dropped"
    return dict(Counter(unusable if value is None else question.describe(value) for value in values))


def _collect(field: str, pieces: Pieces) -> dict[str, Any]:
    """Return {id: {field: output, ...}} in the order of the posts."""
    return {
        key[0]: {field: piece["value"], **{name: piece[name] for name in piece if name not in {"value", *FIGURES}}}
        for key, piece in pieces.items()
    }
