"""Ask a model about each post: whether the answer depends on the asker, and what the asker cares about.

The second question is asked only about posts for which the first one's output is true. A request depends only on the
model, the prompt and the post's text: with more posts, or with other terms for candidates, nothing is asked twice.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from prompts import digests, load_prompt
from utils.base.json_files import read_json
from utils.base.output import Key, Piece, Pieces
from utils.benchmarks.checks import Record
from utils.benchmarks.lampqa import task as lampqa
from utils.benchmarks.metric import Parser
from utils.building.candidates import text_key
from utils.generation.engines import choose_model
from utils.generation.fitting import Fitted
from utils.generation.model import Model
from utils.runs.ask import Ask
from utils.runs.files import StageFile
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


class StepFile(StageFile):
    """The outputs of a question about posts, in the order of the posts: `{id: {field: output, ...}}`."""

    def __init__(self, args: Namespace, settings: dict[str, Any], question: Question, posts: "Posts"):
        """`posts`: the posts to ask about, or the file of the step before, whose outputs say which posts pass."""
        super().__init__(str(Path(args.output_dir, f"{question.step}.json")), settings, args)
        self._question, self._posts, self.unit = question, posts, question.unit
        self.stand_in = {"value": question.stand_in}
        self.stand_in_note = f"upper bound, because {question.step} drops some posts"

    def posts(self) -> list[Record]:
        """Return the posts to ask about."""
        before = self._posts
        return before if isinstance(before, list) else before.passed()

    def passed(self) -> list[Record]:
        """Return the posts that the outputs let pass."""
        content = self.content()
        return [post for post in self.posts() if content.get(post["id"], {}).get(self._question.field)]

    def records(self) -> Iterator[tuple[StageFile, Key, Record]]:
        return ((self, text_key(post["id"], *asked_of(post).values()), post) for post in self.posts())

    def content(self) -> dict[str, Any]:
        return {
            key[0]: {
                self._question.field: piece["value"],
                **{name: piece[name] for name in piece if name not in {"value", *FIGURES}},
            }
            for key, piece in self.in_order().items()
        }

    def pieces_in_file(self) -> Pieces:
        content = read_json(self.path)
        return {
            key: {"value": content[post["id"]][self._question.field]}
            for _, key, post in self.records()
            if post["id"] in content
        }

    def counts(self, content: dict[str, Any]) -> Counts:
        return count_outputs(self._question, content)


Posts = list[Record] | StepFile


def stages_of(args: Namespace, script: str, posts: list[Record], first: Question, second: Question) -> list[Stage]:
    """Return the stages that ask both questions about these posts, and write a file for each."""
    model = choose_model(args)
    asks_first = stage_of(args, script, model, first, posts)
    return [asks_first, replace(stage_of(args, script, model, second, asks_first.files[0]), after=asks_first)]


def stage_of(args: Namespace, script: str, model: Model, question: Question, posts: Posts) -> Stage:
    settings = args.settings() | {"script": script, "step": question.step, "model": model.identity}
    settings["prompt"] = digests([load_prompt(question.prompt, args.prompts_dir)])
    file = StepFile(args, settings, question, posts)

    async def ask_it(post: Record, ask: Ask, before: Piece | None = None) -> Piece:
        return await ask.record(question.step, parse=question.parse, schema=question.schema)

    task = replace(lampqa.TASK, prompts={question.step: question.prompt}, values=asked_of)
    return Stage(task, file.records, ask_it, [file], {"generator": model})


def asked_of(record: Record) -> dict[str, str]:
    """Return the values for the prompts of figures 6 and 7, which include the post that no system sees."""
    return {"question": record["question"], "post": record["narrative"]}


def count_outputs(question: Question, content: dict[str, Any]) -> Counts:
    """Count what became of the posts, from the content of a question's file."""
    values = [record[question.field] for record in content.values()]
    unusable = "without usable output, dropped"
    return dict(Counter(unusable if value is None else question.describe(value) for value in values))
