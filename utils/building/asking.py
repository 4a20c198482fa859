"""What a model is asked of each post: whether its answer depends on who asks, then what that asker cares about."""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from prompts import Prompt, load_prompt
from utils.benchmarks import lampqa
from utils.benchmarks.task import Parser, Record
from utils.building.candidates import text_key
from utils.files.json_files import read_json
from utils.files.output import Key, Output, Piece, Pieces
from utils.generation.calls import Call, describe_calls, prices_of
from utils.generation.engines import choose_generator, identify_model, publish_records, reported
from utils.generation.model import Model
from utils.runs.ask import Ask
from utils.runs.command import open_engines, writing
from utils.runs.runner import run_steps
from utils.runs.shared import Role, Shared
from utils.runs.shared import Step as RunStep

Values = Callable[[Record], dict[str, str]]  # what the prompts are filled with


@dataclass(frozen=True)
class Question:
    """One thing that is asked of posts."""

    step: str  # its file is called so
    prompt: str  # as `load_prompt` takes it
    schema: dict[str, Any]
    parse: Parser
    field: str  # what an output is called in the file
    unit: str  # what the outputs are called, in the plural
    describe: Callable[[Any], str]  # what became of a post, by the output


class Step:
    """A question, and the file of what a model said to it.

    What is asked of a post depends on model, prompt and its text, and not on which other posts there are: with more of
    them, or with other terms for candidates, nothing is asked twice.
    """

    def __init__(self, question: Question, values: Values, args: Namespace, identity: str, script: str):
        """`identity` is the model's."""
        self.question, self._values = question, values
        self._prompt: Prompt = load_prompt(question.prompt, args.prompts_dir)
        settings = args.settings() | {
            "script": script,
            "step": question.step,
            "model": identity,
            "prompt": {self._prompt.name: self._prompt.digest},
        }
        path = str(Path(args.output_dir) / f"{question.step}.json")
        collect = partial(_collect, question.field)
        self.output = Output(path, settings, [], collect, question.unit, args, may_shrink=True)
        self.is_finished = False

    def look(self, records: list[Record]) -> None:
        """Have the file be of these posts, and see if it is finished; UserError as `Output.is_finished`."""
        self.output.keys = list(map(self._key, records))
        self.is_finished = self.output.is_finished()

    def run_step(self, records: Callable[[], list[Record]], shared: Shared) -> RunStep:
        """What is asked of these posts, as far as they are known when its turn comes; its file is there afterwards."""

        async def ask_it(record: Record, ask: Ask) -> Piece:
            return await ask.send(self.question.step, lambda: self._call(shared, ask.key, record))

        def left() -> dict[Key, Record]:
            self.look(its := records())
            return {} if self.is_finished else {self._key(record): record for record in its}

        def finish(device: str | None) -> None:
            if not self.is_finished:
                self.publish(shared.roles[self.question.step].model, device)

        return RunStep(ask_it, left, self.question.unit, self.output.pieces, self.question.step, finish=finish)

    def calls(self, records: list[Record], shared: Shared) -> Iterator[Call]:
        for record in records:
            yield self._call(shared, self._key(record), record)[1]

    def _call(self, shared: Shared, key: Key, record: Record) -> tuple[Model, Call, Callable[[], str]]:
        model = shared.roles[self.question.step].model
        fitted = model.fit(self._prompt, [], "\n".join, **self._values(record))
        return model, Call(key, fitted and fitted.prompt, self.question.parse), str

    def publish(self, model: Model, device: str | None) -> None:
        """Put the file in place; what a server failed to give is counted in its manifest."""
        args, found = self.output.args, reported(self.output.args, model.completions)
        prices, counter = prices_of(args), model.chat.counter
        publish_records(self.output, device, self.counts(), args.openai, prices, found, token_counter=counter)

    def said(self) -> dict[str, Any]:
        """The file's content by id, of which some may still be missing."""
        return read_json(self.output.path) if self.is_finished else self.output.content()

    def counts(self) -> dict[str, int]:
        """What became of how many posts."""
        values = [said[self.question.field] for said in self.said().values()]
        unusable = "without a usable output, dropped"
        return dict(Counter(unusable if value is None else self.question.describe(value) for value in values))

    def _key(self, record: Record) -> tuple[str, int]:
        return text_key(record["id"], *self._values(record).values())


def _collect(field: str, pieces: Pieces) -> dict[str, Any]:
    """{id: {field: output, ...}} in the order of the posts."""
    there = {key: dict(piece) for key, piece in pieces.items()}
    return {key[0]: {field: piece.pop("value"), **piece} for key, piece in there.items()}


class Asking:
    """Two questions, the second one of those posts for which the first one's output is true: by one engine."""

    def __init__(self, args: Namespace, values: Values, first: Question, second: Question, script: str):
        self._args, self._identity = args, identify_model(args, args.model_addr)
        self.first = Step(first, values, args, self._identity, script)
        self.second = Step(second, values, args, self._identity, script)

    @cached_property
    def shared(self) -> Shared:
        """The one model, under a name for each question."""
        model = choose_generator(self._args, self._identity, self.first.question.schema)
        roles = {
            step.question.step: Role(
                self._args, replace(model, policy=replace(model.policy, schema=step.question.schema))
            )
            for step in (self.first, self.second)
        }
        return Shared(lampqa.TASK, roles, self._args.seed, num_contexts=0)

    @property
    def model(self) -> Model:
        return self.shared.roles[self.first.question.step].model

    def describe(self, records: list[Record]) -> None:
        """What a run would ask (--dry_run): of the second question at most, for the first is still to be asked."""
        for step, note in ((self.first, ""), (self.second, ", at most: the step before leaves fewer")):
            step.look(records)
            model = self.shared.roles[step.question.step].model
            told = describe_calls(step.calls(records, self.shared), model.chat, model.policy, prices_of(self._args))
            print(f"{step.question.step}{note}:\n{told}")

    def ask(self, records: list[Record]) -> int:
        """Ask for all that is not there, and publish it; returns how many outputs a server failed to give."""
        self.first.look(records)
        self.second.look(self._passed(records))
        if self.first.is_finished and self.second.is_finished:
            return 0
        steps = (self.first, self.second)
        first = self.first.run_step(lambda: records, self.shared)
        its = [first, replace(self.second.run_step(lambda: self._passed(records), self.shared), after=first)]
        known = {step.question.step: [step.output.pieces] for step in steps}
        with writing(step.output for step in steps):
            run_steps(its, self.shared, partial(open_engines, self.shared.roles, known))
        return sum(len(step.output.missing()) for step in steps if not step.is_finished)

    def report_failed(self) -> int:
        """The exit code for what the model gave, as `Output.report_failed`."""
        return max(step.output.report_failed() for step in (self.first, self.second))

    def counts(self) -> dict[str, dict[str, int]]:
        return {step.question.step: step.counts() for step in (self.first, self.second)}

    def _passed(self, records: list[Record]) -> list[Record]:
        said = self.first.said()
        return [record for record in records if said.get(record["id"], {}).get(self.first.question.field)]
