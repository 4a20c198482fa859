"""Ask a model about each post: whether the answer depends on the asker, and what the asker cares about."""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from prompts import digests, load_prompt
from utils.benchmarks import lampqa
from utils.benchmarks.task import Parser, Record
from utils.building.candidates import text_key
from utils.files.json_files import read_json
from utils.files.output import Key, Output, Piece, Pieces
from utils.generation.calls import describe_calls, prices_of
from utils.generation.engines import choose_generator, identify_model, print_machine, publish_records
from utils.generation.fitting import Fitted
from utils.runs.ask import Ask
from utils.runs.command import calls_of, writing
from utils.runs.runner import run_steps
from utils.runs.shared import Role, Shared, Step

FIGURES = {field.name for field in fields(Fitted)}  # about a prompt's profile; prompts here have none


@dataclass(frozen=True)
class Question:
    """A question that is asked about posts."""

    step: str  # also the name of its file
    prompt: str  # a name for `load_prompt`
    schema: dict[str, Any]
    parse: Parser
    field: str  # the output's field in the file
    unit: str  # plural noun for the outputs
    describe: Callable[[Any], str]  # tells from the output what became of a post


class Asking:
    """Asks two questions by one engine; the second only about posts for which the first one's output is true.

    A request depends only on the model, the prompt and the post's text. With more posts, or with other terms for
    candidates, nothing is asked twice.
    """

    def __init__(self, args: Namespace, questions: tuple[Question, Question], script: str):
        self._args, self._identity, self._script = args, identify_model(args, args.model_addr), script
        self._questions = questions
        self.outputs = {one.step: self._output(one) for one in questions}

    def _output(self, question: Question) -> Output:
        args, name = self._args, question.step
        settings = args.settings() | {"script": self._script, "step": name, "model": self._identity}
        settings["prompt"] = digests([load_prompt(question.prompt, args.prompts_dir)])
        path, collect = str(Path(args.output_dir) / f"{name}.json"), partial(_collect, question.field)
        return Output(path, settings, [], collect, question.unit, args)

    @cached_property
    def _shared(self) -> Shared:
        """What all requests share; the model has one role per question, with that question's schema."""
        args, questions = self._args, self._questions
        model = choose_generator(args, self._identity, questions[0].schema)
        models = {one.step: replace(model, policy=replace(model.policy, schema=one.schema)) for one in questions}
        return Shared(
            lampqa.TASK,
            {name: Role(args, one) for name, one in models.items()},
            args.seed,
            num_contexts=0,
            prompts_dir=args.prompts_dir,
            prompts={one.step: one.prompt for one in questions},
            values=asked_of,
            readers={one.step: one.parse for one in questions},
        )

    def describe(self, records: list[Record]) -> None:
        """Print a run's requests, and what the machine lacks (--dry_run).

        The second question is counted for all posts, because the first one's outputs are not known yet.
        """
        for question, note in zip(self._questions, ("", " (at most; the step before drops some)"), strict=True):
            model = self._shared.roles[question.step].model
            calls = calls_of(self._step(question, lambda: records), self._shared)
            told = describe_calls(calls, model.chat, model.policy, prices_of(self._args))
            print(f"{question.step}{note}:\n{told}")
        paths = [output.path for output in self.outputs.values()]
        print_machine(self._args, [model], paths, 2 * len(records))

    def ask(self, records: list[Record]) -> int:
        """Make and publish the missing outputs, and return how many a server failed to give."""
        steps: list[Step] = []
        for question, its in zip(self._questions, (lambda: records, lambda: self._passed(records)), strict=True):
            self._look(question, its())
            steps.append(self._step(question, its, steps[-1] if steps else None))
        if all(output.finished for output in self.outputs.values()):
            return 0
        with writing(self.outputs.values()):
            run_steps(steps, self._shared)
        return sum(len(output.missing()) for output in self.outputs.values() if not output.finished)

    def _step(self, question: Question, records: Callable[[], list[Record]], before: Step | None = None) -> Step:
        """Return the step that asks this about the posts known when it begins, and writes its file."""
        name, output = question.step, self.outputs[question.step]

        async def ask_it(record: Record, ask: Ask) -> Piece:
            return await ask.record(name, model=name)

        def left() -> dict[Key, Record]:
            keyed = self._look(question, records())
            return {} if output.finished else keyed

        def finish(device: str | None) -> None:
            if not output.finished:
                args, model = self._args, self._shared.roles[name].model
                counts, prices = self.counts()[name], prices_of(args)
                publish_records(output, device, counts, args.openai, prices, **model.figures)

        return Step(ask_it, left, question.unit, output.pieces, name, finish=finish, after=before)

    def _look(self, question: Question, records: list[Record]) -> dict[Key, Record]:
        """Set the keys of a question's output to these posts, check if it is finished, and return the posts by key."""
        keyed = {text_key(one["id"], *asked_of(one).values()): one for one in records}
        output = self.outputs[question.step]
        output.keys = [*keyed]
        output.is_finished()
        return keyed

    def _passed(self, records: list[Record]) -> list[Record]:
        question = self._questions[0]
        said = self.said(question)
        return [record for record in records if said.get(record["id"], {}).get(question.field)]

    def said(self, question: Question) -> dict[str, Any]:
        """Return the content of a question's file by id; some ids may still be missing."""
        output = self.outputs[question.step]
        return read_json(output.path) if output.finished else output.content()

    def counts(self) -> dict[str, dict[str, int]]:
        """Count what became of the posts, by question."""
        counts = {}
        for question in self._questions:
            values = [one[question.field] for one in self.said(question).values()]
            unusable = "without usable output, dropped"
            counts[question.step] = dict(Counter(unusable if one is None else question.describe(one) for one in values))
        return counts


def asked_of(record: Record) -> dict[str, str]:
    """Return the values for the prompts of figures 6 and 7, which include the post that no system sees."""
    return {"question": record["question"], "post": record["narrative"]}


def _collect(field: str, pieces: Pieces) -> dict[str, Any]:
    """Return {id: {field: output, ...}} in the order of the posts."""
    return {
        key[0]: {field: piece["value"], **{name: piece[name] for name in piece if name not in {"value", *FIGURES}}}
        for key, piece in pieces.items()
    }
