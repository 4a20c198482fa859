"""The parts of evaluate_responses.py besides its calls: responses, the judge's window, and score files."""

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from prompts import Messages, Prompt, digests, load_prompt
from utils.base import cli
from utils.base.cli import Arguments
from utils.base.errors import UserError, count_noun
from utils.base.made import Key, Piece, refuse_other_source
from utils.base.manifest import file_hash, noted_settings
from utils.benchmarks.checks import Record
from utils.benchmarks.metric import OFFICIAL, Judge, Metric
from utils.benchmarks.scoring import expected_value
from utils.benchmarks.task import Task
from utils.benchmarks.thoughts import UNFINISHED_COUNT, describe_unfinished
from utils.data.datasets import read_questions, select_questions
from utils.data.responses import (
    Responses,
    answers_to,
    as_read,
    default_metric,
    match_responses,
    origin_of,
    read_responses,
    refuse_gaps,
)
from utils.data.scores import add_words, carried, score_file
from utils.generation.calls import Call
from utils.generation.engines import choose_model
from utils.generation.model import Model
from utils.generation.scoring import split_shared
from utils.runs.rendering import call_for_reward
from utils.runs.stage import StageFile, cost_in_words

SCRIPT = "evaluate_responses.py"
COUNTS = ("num_questions", "num_scored_questions", "num_unanswered", "num_unscored")  # of a score file
JUDGE_LENGTH = 32_000  # most tokens of a local judge's prompt and output together, as in the reference code
ANY_LENGTH = 2**31  # tokens; no limit for an API, whose server checks the length itself
Describe = Callable[..., str]  # returns a score file's summary line, as `describe_scores` in utils/tables/notes.py


class Request(NamedTuple):
    """A request for one verdict."""

    record: Record
    outputs: list[str | None]  # the responses that are judged together, one per system
    key: Key  # one of `Metric.keys`; the same for all samples, so that equal texts get the same verdict


@dataclass(frozen=True)
class JudgedDataset:
    """The questions whose responses are judged. The file is read when needed, never for a finished score file.

    Attributes:
        strategy: the metric's name.
    """

    path: str
    task: Task
    strategy: str
    args: Arguments

    @property
    def metric(self) -> Metric:
        return self.task.metrics[self.strategy]

    @cached_property
    def records(self) -> list[Record]:
        """Return all records, with at most --num_contexts posts (for a reward model) and --shots scored responses."""
        needs = self.metric.needs
        records = read_questions(self.path, needs, self.args.num_contexts if self.strategy == "reward" else None)
        if "shots" in needs:
            records = [{**record, "shots": record["shots"][: self.args.shots]} for record in records]
        return records

    @cached_property
    def questions(self) -> list[Record]:
        """Return the selected questions. Prints how many of their aspects lack a text that the judge sees."""
        args, metric = self.args, self.metric
        questions = select_questions(self.records, args.limit, args.num_shards, args.shard_index, args.ids_addr)
        parts = [part for question in questions for part in metric.parts(question)] if metric.parts else []
        if metric.judge and (incomplete := sum(not all(part) for part in parts)):
            number = f"{incomplete} of {count_noun(len(parts), metric.unit)}"
            print(f"note: {self.path}: judged with a text missing, such as evidence: {number}", file=sys.stderr)
        return questions


class ScoreFile(StageFile):
    """The scores of responses that are judged together: those of one file, or of two for a pairwise comparison."""

    unit = "verdicts"
    knows_keys = True

    def __init__(
        self, dataset: JudgedDataset, addresses: list[str], path: str, settings: dict[str, Any], describe: Describe
    ):
        """`addresses`: the response files."""
        origins = list(map(origin_of, addresses))
        super().__init__(path, settings, dataset.args, judged=addresses, answers=origins)
        self._dataset, self._addresses, self._describe, self.metric = dataset, addresses, describe, dataset.metric
        self._scored, self._sum = set(), 0.0  # ids of the questions with a score so far, and the sum of their scores

    @cached_property
    def responses(self) -> list[Responses]:
        """Return the content of each response file. Prints a note if only first responses are judged."""
        contents = []
        for address in self._addresses:
            refuse_other_way(address, self._dataset.strategy, self.metric)
            responses = as_read(read_responses(address, self._dataset.task), self.metric.reads)
            if not self.args.allow_partial:
                refuse_gaps(address)
            if not self.args.samples and any(len(outputs) > 1 for outputs in responses.values()):
                note = "only the first response to each question is judged"
                note += "" if len(self._addresses) > 1 else "; --samples all judges every one"
                print(f"note: {address}: {note}", file=sys.stderr)
            contents.append(responses)
        return contents

    @cached_property
    def questions(self) -> dict[str, Record]:
        """Return the questions to be judged by id, in the dataset's order; each has a response in each file."""
        questions, ids = self._dataset.questions, [record["id"] for record in self._dataset.records]
        for address, responses in zip(self._addresses, self.responses, strict=True):
            questions = match_responses(questions, responses, address, ids, self.args.allow_partial)
        return {question["id"]: question for question in questions}

    def places(self, question: Record) -> list[list[tuple[Key, Key]]]:
        """Return, in a list per sample, the key of each piece of a question and the verdict's key in `Metric.keys`."""
        keys = self.metric.keys(question)
        count = len(self.responses[0][question["id"]]) if self.args.samples else 1
        return [[((*key, f"sample {number}") if number else key, key) for key in keys] for number in range(count)]

    def add(self, key: Key, piece: Piece) -> None:
        """Add a verdict, and the question's score to the running mean once its first response has all verdicts."""
        super().add(key, piece)
        if key[0] in self._scored or self.metric.score_of is None or self.metric.pooled:
            return
        question = self.questions[key[0]]
        keys = self.metric.keys(question)  # of the first response's verdicts
        if any(key not in self.pieces for key in keys):
            return
        verdicts = self.metric.merge_draws([self.pieces[key] for key in keys])
        if (score := self.metric.entry(question, verdicts)["score"]) is not None:
            self._scored.add(key[0])
            self._sum += score

    def so_far(self) -> str:
        """Return the mean score of the questions judged so far, and their number.

        It is not the macro average. A metric whose score is not a mean (RMSE) has none.
        """
        return f"{self._sum / len(self._scored):.3f} of {len(self._scored)}" if self._scored else ""

    def content(self) -> dict[str, Any]:
        [first, *others], questions = self.responses, [*self.questions.values()]
        head = {} if others else carried(questions, first)
        head |= self.metric.over_outputs(questions, first)
        samples = None
        if self.args.samples:
            samples = {
                question["id"]: [
                    {key: self.pieces[place] for place, key in places if place in self.pieces}
                    for places in self.places(question)
                ]
                for question in questions
            }
        task, strategy, records = self._dataset.task, self._dataset.strategy, self._dataset.records
        scores = score_file(task, strategy, records, {*self.questions}, self.in_order(), samples, head)
        if not others:
            add_words(scores["per_question_scores"], first, bool(self.args.samples))
        return scores

    def check_replaced(self, made: dict[str, Any]) -> None:
        """Refuse to replace the scores of another response file, which --score_addr may name by mistake.

        A response file of the same name whose content has changed is judged again.
        """
        if made["settings"].get("responses") != self.settings["responses"]:
            refuse_other_source(made.get("judged") or ["other responses"], self.figures["judged"])

    def counts(self, content: dict[str, Any]) -> dict[str, int]:
        return {name: content[name] for name in COUNTS}

    def line(self, content: dict[str, Any], figures: Mapping[str, Any]) -> str:
        line = self._describe(self._dataset.task, self.path, content, figures["tokens"], self.figures["answers"])
        return line + describe_unfinished(figures.get(UNFINISHED_COUNT, 0)) + cost_in_words(figures)


@dataclass(frozen=True)
class JudgeModel(Model):
    """A judge with its prompt."""

    judge: Judge = None
    prompt: Prompt = None

    def messages(self, request: Request) -> Messages:
        return self.judge.messages(self.prompt, request.record, request.outputs, request.key[1])

    def call(self, request: Request) -> Call:
        """Return the call that asks for a verdict; without a prompt if it would be too long."""
        key = request.key
        if self.gives_rewards:
            return call_for_reward(self, key, self.judge, self.prompt, request.record, request.outputs[0])
        form, prompt, options = self.judge.output, self.chat.render(self.messages(request)), {}
        if self.only_scores:
            begin, tokens = self.options
            prompt, options = prompt + begin, {"options": tokens, "expected_value": expected_value}
        policy = replace(self.policy, schema=form.schema)
        if (length := self.chat.length(prompt)) > self.window.length - self.window.max_tokens:
            return Call(key, None, form.parse, policy, {"reason": f"a prompt of {length} tokens is too long"})
        return Call(key, prompt, form.parse, policy, **options)

    @cached_property
    def options(self) -> tuple[array, dict[str, array]]:
        """The token ids with which all verdicts begin, and by number, the token ids of the rest of the verdict."""
        scale = self.judge.scale
        return split_shared({str(number): self.chat.render_option(f"{scale.begin}{number}") for number in scale.values})

    def _reserve(self) -> tuple[int, int]:
        if not self.only_scores:
            return super()._reserve()
        return max(map(len, self.options[1].values())) + 1, 0  # vLLM always generates one token

    @property
    def engine_length(self) -> int:
        """As in `Model`; -1, the default for a chat model, is the longest window that fits into the memory."""
        return self.window.length if self.gives_rewards or self.flags.max_model_len else -1


def choose_judge(args: Arguments, judge: Judge) -> JudgeModel:
    """Return the judge of --evaluator_llm, not loaded yet."""
    prompt, flags = load_prompt(judge.prompt, args.prompts_dir), args.replaced(model_addr=args.evaluator_llm)
    modes = {"only_scores": args.verdicts is not None, "gives_rewards": judge.output is None}
    if judge.output is not None:  # an API's server knows its limit itself
        modes["wanted_length"] = ANY_LENGTH if args.openai else JUDGE_LENGTH
    model = choose_model(flags, JudgeModel, judge=judge, prompt=prompt, **modes)
    if judge.output is None and model.folder and not model.folder.is_classifier:
        raise UserError(f"--evaluator_llm {args.evaluator_llm}: not a sequence classifier; use a reward model")
    return model


def choose_strategy(args: Arguments, task: Task) -> str:
    """Return the name of the metric, from --strategy or the default. UserError if other flags contradict it."""
    strategy = args.strategy
    if args.reading is not None:
        strategy = (strategy or next(iter(task.metrics))).removesuffix(OFFICIAL) + OFFICIAL
    strategy = strategy or default_metric(task, args.response_addr)
    if strategy not in task.metrics:
        if args.reading is not None:
            raise UserError(f"--reading {args.reading}: {task.name} has only one reading; remove the flag")
        raise UserError(f"--strategy {strategy}: the metrics of {task.name} are {', '.join(task.metrics)}")
    metric, what = task.metrics[strategy], f"--evaluator_llm: {task.name}'s {strategy}"
    if metric.judge is None and args.evaluator_llm:
        raise UserError(f"{what} needs no judge; remove the flag")
    if metric.judge is not None and not args.evaluator_llm:
        raise UserError(f"{what} needs a judge model")
    responses, scores = len(args.response_addr), len(args.score_addr)
    if metric.num_systems == 1:
        cli.check_same_number(args, "response_addr", "score_addr")
    elif (responses, scores) != (metric.num_systems, 1):
        numbers = f"{responses} --response_addr, {scores} --score_addr"
        raise UserError(f"{numbers}: --strategy {strategy} needs two response files and one score file")
    cli.check_different("--score_addr", args.score_addr)
    check_verdicts(args, task, strategy)
    if metric.num_systems > 1 and args.samples:
        raise UserError(f"--samples: {strategy} compares the first responses of two systems; remove the flag")
    if metric.judge is None and args.num_shards > 1:
        raise UserError(f"--num_shards: {strategy} needs no judge, so it has no shards; remove the flag")
    return strategy


def check_verdicts(args: Arguments, task: Task, strategy: str) -> None:
    """Raise UserError if the judge cannot give the verdicts that --verdicts or --num_verdicts asks for."""
    judge = task.metrics[strategy].judge
    flag = f"--verdicts {args.verdicts}" if args.verdicts else f"--num_verdicts {args.num_verdicts}"
    if (args.verdicts or args.num_verdicts > 1) and (judge is None or judge.scale is None):
        raise UserError(f"{flag}: {task.name}'s {strategy} has no verdicts per aspect; remove the flag")
    if args.verdicts and args.openai:
        raise UserError(f"{flag}: APIs do not return the likelihood of a given text; use a local judge")
    several = flag if args.num_verdicts > 1 else ""
    if task.metrics[strategy].num_samples > 1 and "temperature" in args.given:
        several = f"--strategy {strategy}"
    if several and args.temperature == 0:
        raise UserError(f"{several}: a greedy judge always gives the same verdict; set --temperature above 0")


def score_files(dataset: JudgedDataset, judge_settings: dict[str, Any], describe: Describe) -> list[ScoreFile]:
    """Return the score files of --score_addr; this reads only the hashes of their inputs."""
    args, metric, strategy = dataset.args, dataset.metric, dataset.strategy
    shared = judge_settings | {"script": SCRIPT, "strategy": strategy, "inputs": file_hash(dataset.path)}
    shared |= {"shots": args.shots} if "shots" in metric.needs else {}
    compares = metric.num_systems > 1
    systems = [args.response_addr] if compares else [[address] for address in args.response_addr]
    files = []
    for addresses, score_addr in zip(systems, args.score_addr, strict=True):
        hashes = [file_hash(address) for address in addresses]
        settings = shared | {"responses": hashes if compares else hashes[0]}
        files.append(ScoreFile(dataset, addresses, score_addr, settings, describe))
    return files


def refuse_other_way(path: str, strategy: str, metric: Metric) -> None:
    """Raise UserError if the responses were made with a value of --asking that the metric does not support."""
    settings = noted_settings(path)
    way = settings.get("asking")
    if settings and metric.ways and way not in metric.ways:
        made, *usable = (f"with --asking {name}" if name else "without --asking" for name in (way, *metric.ways))
        raise UserError(f"{path}: was made {made}; --strategy {strategy} is for responses made {' or '.join(usable)}")


def requests_to(files: list[ScoreFile], records: list[Record]) -> Iterator[tuple[ScoreFile, Key, Request]]:
    """Yield file, key and request of each verdict.

    Requests with the same question and response are adjacent. The judge's prompt ends with the aspect, so the engine
    computes the prefix that adjacent prompts share only once.
    """
    return (
        (file, place, Request(record, answers_to(file.responses, record["id"], sample), key))
        for record in records
        for file in files
        if record["id"] in file.questions
        for sample, places in enumerate(file.places(record))
        for place, key in places
    )


def settings_of_judge(args: Arguments, judge: JudgeModel) -> dict[str, Any]:
    settings = args.settings() | {"judge": judge.identity, "prompt": digests([judge.prompt])}
    if judge.gives_rewards:
        settings["num_contexts"] = args.num_contexts
    if judge.gives_rewards and judge.is_local:
        settings["dtype"] = judge.flags.dtype
        if judge.folder.pads_with_end:
            settings["padding"] = "left off"  # earlier versions read the reward at the padding; do not mix the two
    return settings
