"""What a model is asked of each post: whether its answer depends on who asks, then what that asker cares about."""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prompts import Prompt, load_prompt
from utils.benchmarks.task import Parser, Record
from utils.building.candidates import text_key
from utils.files.json_files import read_json
from utils.files.outputs import OutputFile, Pieces, overwrite_run
from utils.generation.cost import prices_of
from utils.generation.driver import Request, Stage, describe_requests, generate
from utils.generation.engines import Model, confirm_model, open_engine, publish_records

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
    """A question, the model that is asked it, and the file of what it said.

    The file's pieces hang on model, prompt and the text of the post, and not on which other posts there are: with more
    of them, or with other terms for candidates, nothing is asked twice.
    """

    def __init__(self, question: Question, values: Values, model: Model, args: Namespace, script: str):
        self.question, self._values, self._args = question, values, args
        self.model = replace(model, policy=replace(model.policy, schema=question.schema))
        self._prompt: Prompt = load_prompt(question.prompt, args.prompts_dir)
        settings = {
            "script": script,
            "step": question.step,
            "model": model.identity,
            "prompt": {self._prompt.name: self._prompt.digest},
            "max_model_len": args.max_model_len,
            "dtype": args.dtype,
            **self.model.policy.fingerprint(),
        }
        path = str(Path(args.output_dir) / f"{question.step}.json")
        self.output = OutputFile(path, settings, [], self._collect, args.overwrite, args.retry_failed)

    def ask_of(self, records: list[Record]) -> None:
        """Have the file be of these posts."""
        self.output.keys = list(map(self._key, records))

    def requests(self, records: list[Record], left: set[Any]) -> Iterator[Request]:
        for record in records:
            if (key := self._key(record)) in left:
                fitted = self.model.fit(self._prompt, [], "\n".join, **self._values(record))
                yield Request(key, fitted and fitted.prompt, self.output.journal)

    def stage(self, records: list[Record]) -> Stage | None:
        """What is left to ask of these posts; None where nothing is. When it is done its file is there."""
        self.ask_of(records)
        if not (left := self.output.left()):
            self.publish(None)
            return None
        question = self.question
        requests = self.requests(records, set(left))
        stage = self.model.stage(requests, question.parse, question.unit, self.output.keys, left)
        return replace(stage, finish=self.publish)

    def publish(self, device: str | None) -> None:
        """Put the file in place where it isn't; what a server failed to give is counted in its manifest."""
        if self.output.journal is not None and not self.output.holds_pieces():
            chat, counts = self.model.chat, self.counts()
            openai, prices = self._args.openai, prices_of(self._args)
            publish_records(self.output, self._args, device, counts, openai, prices, token_counter=chat.counter)

    def said(self) -> dict[str, Any]:
        """The file's content by id, of which some may still be missing; also where its journal was deleted."""
        if self.output.journal is not None:
            return self.output.content()
        return read_json(self.output.path) if Path(self.output.path).exists() else {}

    def counts(self) -> dict[str, int]:
        """What became of how many posts."""
        values = [said[self.question.field] for said in self.said().values()]
        unusable = "without a usable output, dropped"
        return dict(Counter(unusable if value is None else self.question.describe(value) for value in values))

    def _key(self, record: Record) -> tuple[str, int]:
        return text_key(record["id"], *self._values(record).values())

    def _collect(self, pieces: Pieces) -> dict[str, Any]:
        """{id: {field: output, ...}} in the order of the posts."""
        there = {key: dict(pieces[key]) for key in self.output.keys if key in pieces}
        return {key[0]: {self.question.field: piece.pop("value"), **piece} for key, piece in there.items()}


class Asking:
    """Two questions, the second one of those posts for which the first one's output is true: by one engine."""

    def __init__(self, args: Namespace, model: Model, values: Values, first: Question, second: Question, script: str):
        self._args = args
        self.first = Step(first, values, model, args, script)
        self.second = Step(second, values, model, args, script)
        self._asked = False  # by this run

    def describe(self, records: list[Record]) -> None:
        """What a run would ask (--dry_run): of the second question at most, for the first is still to be asked."""
        for step, note in ((self.first, ""), (self.second, ", at most: the step before leaves fewer")):
            step.ask_of(records)
            step.output.check()
            requests = step.requests(records, set(step.output.keys))
            model, prices = step.model, prices_of(self._args)
            print(f"{step.question.step}{note}:\n{describe_requests(requests, model.chat, model.policy, prices)}")

    def ask(self, records: list[Record]) -> int:
        """Ask for all that is left, and publish it; returns how many outputs a server failed to give."""
        outputs = [self.first.output, self.second.output]
        try:
            self._ask(records, outputs)
            return sum(len(output.missing()) for output in outputs if output.journal is not None)
        finally:
            for output in outputs:
                if output.journal is not None:
                    output.journal.close()

    def report_failed(self) -> int:
        """The exit code for what the model gave, as `OutputFile.report_failed`."""
        steps, is_again = (self.first, self.second), not self._asked
        return max(step.output.report_failed(step.question.unit, is_again) for step in steps)

    def _ask(self, records: list[Record], outputs: list[OutputFile]) -> None:
        args = self._args
        run = overwrite_run(args.overwrite, [output.path for output in outputs])
        for step, records_of in ((self.first, lambda: records), (self.second, partial(self._passed, records))):
            step.ask_of(records_of())
            step.output.open(run)
        journals = [output.journal for output in outputs if output.journal is not None]
        if any(output.left() for output in outputs):
            confirm_model(args, args.model_addr, journals, self.first.model.completions)
        stage, later = self.first.stage(records), partial(self._second_stage, records)
        stages = [stage, later] if stage else [one for one in [later()] if one]
        self._asked = bool(stages)
        if stages:
            engine = partial(open_engine, args, args.model_addr, args.max_model_len, journals)
            generate(engine, *stages)

    def counts(self) -> dict[str, dict[str, int]]:
        return {step.question.step: step.counts() for step in (self.first, self.second)}

    def _passed(self, records: list[Record]) -> list[Record]:
        said = self.first.said()
        return [record for record in records if said.get(record["id"], {}).get(self.first.question.field)]

    def _second_stage(self, records: list[Record]) -> Stage | None:
        return self.second.stage(self._passed(records))
