"""Ask a model about each post: whether the answer depends on the asker, and what the asker cares about.

The second question is asked only about posts that the first one lets pass. A request depends only on the model, the
prompt and the post's text, so with more posts or other terms for candidates, nothing is requested twice.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from prompts import digests, load_prompt
from utils.base.json_files import read_json
from utils.base.made import Key, Piece, Pieces
from utils.benchmarks import readers
from utils.benchmarks.checks import Record
from utils.benchmarks.lampqa import task as lampqa
from utils.benchmarks.metric import Parser
from utils.benchmarks.readers import Parsed, nothing, writable
from utils.building.candidates import text_key
from utils.generation.engines import choose_model
from utils.generation.fitting import Fitted
from utils.generation.model import Model
from utils.runs.ask import Ask
from utils.runs.stage import Stage, StageFile

_NEEDS = readers.field_named("needs_personalization")
_ENOUGH, _ASPECTS = readers.field_named("enough_details"), readers.field_named("aspects")
ASPECT_TEXTS = ("aspect", "evidence", "reason")
_BOOLEAN = readers.pattern(r"[\"']?(true|false)\b")

NEEDS_SCHEMA = _NEEDS.schema({"type": "boolean"})
_ITEM = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ASPECT_TEXTS},
    "required": list(ASPECT_TEXTS),
    "additionalProperties": False,
}
ASPECTS_SCHEMA = {
    "type": "object",
    "properties": {_ENOUGH.name: {"type": "boolean"}, _ASPECTS.name: {"type": "array", "items": _ITEM}},
    "required": [_ENOUGH.name, _ASPECTS.name],
    "additionalProperties": False,
}
FIGURES = {field.name for field in fields(Fitted)}  # of fitted profiles, which the prompts here do not have
Counts = dict[str, int]


def parse_needs(text: str, cut: bool = False) -> Parsed:
    """Parse whether a good answer depends on the asker; the value is a boolean. A cut value counts as missing."""
    entry, text = readers.own_object(text, _NEEDS)
    if entry is not None:
        value = _boolean(entry.value)
        how = entry.how if value is entry.value else "repaired"
        return _no_boolean(_NEEDS) if value is None else Parsed(value, how, None)
    if not (starts := _NEEDS.value_starts(text)):
        return readers.missing(text, _NEEDS)
    if (match := _BOOLEAN.match(text, starts[-1])) is None:
        return nothing(f"{_NEEDS.name} is {readers.describe(text[starts[-1] :])}, not true or false")
    return Parsed(match[1].lower() == "true", "repaired", None)


def parse_aspects(text: str, cut: bool = False) -> Parsed:
    """Parse a post's aspects, a list of {"aspect", "evidence", "reason"}; it is empty if the post lacks details."""
    entry, text = readers.own_object(readers.keep_commands(text), _ENOUGH, _ASPECTS)
    if entry is None:
        return nothing("no valid JSON object with aspects" if text.strip() else "the text is empty")
    listed, enough = _ASPECTS.value_in(entry.content), _ENOUGH.value_in(entry.content)
    if _boolean(enough) is False:
        return Parsed([], entry.how, None)
    if enough is not None and _boolean(enough) is None:
        return _no_boolean(_ENOUGH)
    if not isinstance(listed, list) or not listed:
        return nothing("aspects is not a list or is empty, although there are enough details")
    aspects = [_aspect(item) for item in listed]
    if None in aspects:
        return nothing(f"aspect {aspects.index(None)} lacks 'aspect', 'evidence' or 'reason'")
    return Parsed(aspects, "repaired" if enough is None else entry.how, None)


def _aspect(item: Any) -> dict[str, str] | None:
    """Return an item's texts; None if one is missing, aspect or evidence is empty, or the aspect is a placeholder."""
    if not isinstance(item, dict) or not all(isinstance(item.get(name), str) for name in ASPECT_TEXTS):
        return None
    texts = {name: writable(item[name]).strip() for name in ASPECT_TEXTS}
    texts["aspect"] = " ".join(texts["aspect"].split())
    return texts if texts["aspect"] and texts["evidence"] and not readers.is_form(texts["aspect"]) else None


def _boolean(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _no_boolean(field: Any) -> Parsed:
    return nothing(f"{field.name} is neither true nor false")


@dataclass(frozen=True)
class Question:
    """A question to ask about posts."""

    step: str  # also the name of the file
    prompt: str  # a name for `load_prompt`
    schema: dict[str, Any]
    parse: Parser
    field: str  # the field in the file that has the parsed output
    unit: str  # plural noun for the outputs
    describe: Callable[[Any], str]  # returns what became of a post, from its output
    stand_in: Any  # an output that lets a post pass, for --dry_run


class StepFile(StageFile):
    """The outputs of a question about posts, in the order of the posts: `{id: {field: output, ...}}`."""

    def __init__(self, args: Namespace, settings: dict[str, Any], question: Question, posts: "Posts"):
        """`posts`: the posts to ask about, or the file of the earlier step, whose outputs decide which posts pass."""
        super().__init__(str(Path(args.output_dir, f"{question.step}.json")), settings, args)
        self._question, self._posts, self.unit = question, posts, question.unit
        self.stand_in = {"value": question.stand_in}
        self.stand_in_note = f"upper bound, because {question.step} drops some posts"

    def posts(self) -> list[Record]:
        """Return the posts to ask about."""
        before = self._posts
        return before if isinstance(before, list) else before.passed()

    def passed(self) -> list[Record]:
        """Return the posts that pass, according to the outputs."""
        content = self.content()
        return [post for post in self.posts() if content.get(post["id"], {}).get(self._question.field)]

    def records(self) -> Iterator[tuple[StageFile, Key, Record]]:
        return ((self, text_key(post["id"], *prompt_values(post).values()), post) for post in self.posts())

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
    first_stage = stage_of(args, script, model, first, posts)
    return [first_stage, replace(stage_of(args, script, model, second, first_stage.files[0]), after=first_stage)]


def stage_of(args: Namespace, script: str, model: Model, question: Question, posts: Posts) -> Stage:
    settings = args.settings() | {"script": script, "step": question.step, "model": model.identity}
    settings["prompt"] = digests([load_prompt(question.prompt, args.prompts_dir)])
    file = StepFile(args, settings, question, posts)

    async def ask_question(post: Record, ask: Ask, before: Piece | None = None) -> Piece:
        return await ask.record(question.step, parse=question.parse, schema=question.schema)

    task = replace(lampqa.TASK, prompts={question.step: question.prompt}, values=prompt_values)
    return Stage(task, file.records, ask_question, [file], {"generator": model})


def prompt_values(record: Record) -> dict[str, str]:
    """Return the values for the prompts (figures 6 and 7 of the paper), with the post, which no system sees."""
    return {"question": record["question"], "post": record["narrative"]}


def count_outputs(question: Question, content: dict[str, Any]) -> Counts:
    """Count what became of the posts, from the content of a question's file."""
    values = [record[question.field] for record in content.values()]
    unusable = "without usable output, dropped"
    return dict(Counter(unusable if value is None else question.describe(value) for value in values))
