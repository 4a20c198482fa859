"""Everything in evaluate_responses.py except calls to the judge: responses, the judge's window, and score files."""

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from prompts import Messages, Prompt, digests, load_prompt
from utils import cli
from utils.benchmarks.checks import Record
from utils.benchmarks.metric import OFFICIAL, Judge, Metric
from utils.benchmarks.task import Task
from utils.cli import Arguments, UserError
from utils.cli.errors import counted
from utils.cli.progress import announce
from utils.files.file_hashes import file_hash
from utils.files.manifest import noted_settings
from utils.files.output import Key, Output, refuse_other_source
from utils.generation.chat import choose_length, render_all
from utils.generation.engines import choose_model, is_classifier, pads_with_end
from utils.generation.model import Model
from utils.generation.scoring import split_shared
from utils.parsing.thoughts import UNFINISHED_COUNT, describe_unfinished
from utils.records.datasets import select_questions
from utils.records.responses import (
    answers_to,
    as_read,
    default_metric,
    match_responses,
    origin_of,
    read_responses,
    refuse_gaps,
)
from utils.records.scores import carried, score_file
from utils.runs.publishing import cost_in_words
from utils.tables.notes import describe_scores

SCRIPT = "evaluate_responses.py"
LENGTH_STEP = 64  # a local judge's window is rounded up to a multiple of this
ANY_LENGTH = 2**31  # tokens: no limit here, because the API's server checks the length itself
MANY_PROMPTS = 5000  # from this number on, rendering takes seconds, so a message is printed first


class Request(NamedTuple):
    """A verdict to ask for."""

    record: Record
    outputs: list[str | None]  # the responses that are judged together, one per system
    number: int  # the verdict's number within the question


@dataclass
class System:
    """Responses that are judged together (one file, or two for a pairwise comparison), and their score file."""

    responses: list[dict[str, list[dict[str, Any]]]]  # the contents of each file
    questions: list[Record]  # to be judged, in the dataset's order; each has a response in each file
    metric: Metric
    output: Output  # the score file; its pieces are the verdicts


@dataclass(frozen=True)
class JudgeModel(Model):
    """A judge. A local judge's window is only as long as the longest prompt needs, to leave memory to the KV cache."""

    judge: Judge = None
    prompt: Prompt = None
    requests: Callable[[], Iterable[Request]] = tuple  # all requests that a run may make

    def messages(self, request: Request) -> Messages:
        return self.judge.messages(self.prompt, *request)

    @cached_property
    def options(self) -> tuple[array, dict[str, array]]:
        """Token ids: those with which every verdict begins, and, by number, those that continue it."""
        scale = self.judge.scale
        return split_shared({str(number): self.chat.render_option(f"{scale.begin}{number}") for number in scale.values})

    def _reserve(self) -> tuple[int, int]:
        if not self.only_scores:
            return super()._reserve()
        return max(map(len, self.options[1].values())) + 1, 0  # vLLM always generates one token

    def _choose_length(self, max_tokens: int, room: int) -> int:
        needed = self.flags.max_model_len or ANY_LENGTH
        if self.gives_rewards:
            return choose_length(self.chat, self.flags.max_model_len, max_tokens, self.wanted_length)
        if not self.flags.openai and self.flags.max_model_len is None:
            prompts = [[self.messages(request)] for request in self.requests()]
            if len(prompts) >= MANY_PROMPTS:
                announce(f"measuring {counted(len(prompts), 'prompt')}")
            begin = len(self.options[0]) if self.only_scores else 0
            longest = max((len(rendered) for [rendered] in render_all(self.chat, prompts)), default=1) + begin
            needed = math.ceil((longest + max_tokens) / LENGTH_STEP) * LENGTH_STEP
        return choose_length(self.chat, self.flags.max_model_len, max_tokens, needed)


def choose_judge(args: Arguments, judge: Judge, requests: Callable[[], Iterable[Request]] = tuple) -> JudgeModel:
    """Return the judge that `args.evaluator_llm` names; nothing is loaded yet."""
    prompt, flags = load_prompt(judge.prompt, args.prompts_dir), args.replaced(model_addr=args.evaluator_llm)
    modes = {"only_scores": args.verdicts is not None, "gives_rewards": judge.output is None}
    model = choose_model(flags, JudgeModel, judge=judge, prompt=prompt, requests=requests, **modes)
    if judge.output is None and not args.openai and not is_classifier(args.evaluator_llm, args.cache_dir):
        raise UserError(f"--evaluator_llm {args.evaluator_llm}: not a sequence classifier; give a reward model")
    return model


def choose_strategy(args: Arguments, task: Task) -> str:
    """Return the name of the metric: --strategy's, or the default one. UserError if other flags contradict it."""
    strategy = args.strategy
    if args.reading is not None:
        strategy = (strategy or next(iter(task.metrics))).removesuffix(OFFICIAL) + OFFICIAL
    strategy = strategy or default_metric(task, args.response_addr)
    if strategy not in task.metrics:
        if args.reading is not None:
            raise UserError(f"--reading {args.reading}: {task.name} has only one reading; leave the flag out")
        raise UserError(f"--strategy {strategy}: the metrics of {task.name} are {', '.join(task.metrics)}")
    metric, what = task.metrics[strategy], f"--evaluator_llm: {task.name}'s {strategy}"
    if metric.judge is None and args.evaluator_llm:
        raise UserError(f"{what} is computed without a judge; leave the flag out")
    if metric.judge is not None and not args.evaluator_llm:
        raise UserError(f"{what} needs a judge; give a model")
    responses, scores = len(args.response_addr), len(args.score_addr)
    if metric.num_systems == 1:
        cli.check_same_number(args, "response_addr", "score_addr")
    elif (responses, scores) != (metric.num_systems, 1):
        numbers = f"{responses} --response_addr, {scores} --score_addr"
        raise UserError(f"{numbers}: --strategy {strategy} needs two response files and one score file")
    cli.check_different("--score_addr", args.score_addr)
    check_verdicts(args, task, strategy)
    if metric.judge is None and args.num_shards > 1:
        raise UserError(f"--num_shards: {strategy} needs no judge, so it has no shards; leave it out")
    return strategy


def check_verdicts(args: Arguments, task: Task, strategy: str) -> None:
    """Raise UserError if the judge cannot give the verdicts that --verdicts or --num_verdicts asks for."""
    judge = task.metrics[strategy].judge
    flag = f"--verdicts {args.verdicts}" if args.verdicts else f"--num_verdicts {args.num_verdicts}"
    if (args.verdicts or args.num_verdicts > 1) and (judge is None or judge.scale is None):
        raise UserError(f"{flag}: {task.name}'s {strategy} has no verdicts per aspect; leave the flag out")
    if args.verdicts and args.openai:
        raise UserError(f"{flag}: APIs do not return the likelihood of a given text; give a local judge")
    several = flag if args.num_verdicts > 1 else ""
    if task.metrics[strategy].num_samples > 1 and "temperature" in args.given:
        several = f"--strategy {strategy}"
    if several and args.temperature == 0:
        raise UserError(f"{several}: a greedy judge always gives the same verdict; give a --temperature above 0")


def read_systems(
    args: Arguments, task: Task, strategy: str, records: list[Record], of_judge: dict[str, Any]
) -> list[System]:
    """Return the responses to judge, checked against the dataset; `of_judge` has the judge's settings, or nothing."""
    metric = task.metrics[strategy]
    selected = select_questions(records, args.limit, args.num_shards, args.shard_index)
    ids = [record["id"] for record in records]
    shared = of_judge | {"script": SCRIPT, "strategy": strategy, "inputs": file_hash(args.inputs_addr)}
    compares = metric.num_systems > 1
    response_addrs = [args.response_addr] if compares else [[address] for address in args.response_addr]
    systems = []
    for addresses, score_addr in zip(response_addrs, args.score_addr, strict=True):
        responses, questions = [], selected
        for address in addresses:
            refuse_other_way(address, strategy, metric)
            responses.append(as_read(read_responses(address, task), metric.reads))
            if not args.allow_partial:
                refuse_gaps(address)
            questions = match_responses(questions, responses[-1], address, ids, args.allow_partial)
            if any(len(outputs) > 1 for outputs in responses[-1].values()):
                print(f"note: {address}: only the first response to each question is judged", file=sys.stderr)
        hashes = [file_hash(address) for address in addresses]
        settings = shared | {"responses": hashes if compares else hashes[0]}
        keys = [key for question in questions for key in metric.keys(question)]
        head = {} if compares else carried(questions, responses[0])
        head |= metric.over_outputs(questions, responses[0])
        collect = partial(score_file, task, strategy, records, {question["id"] for question in questions}, head=head)
        check = partial(refuse_other_responses, addresses, settings["responses"])
        output = Output(score_addr, settings, keys, collect, "verdicts", args, check=check)
        output.figures = {"judged": addresses, "answers": list(map(origin_of, addresses))}
        systems.append(System(responses, questions, metric, output))
    return systems


def refuse_other_way(path: str, strategy: str, metric: Metric) -> None:
    """Raise UserError if the responses were made with an --asking whose answers the metric does not score."""
    settings = noted_settings(path)
    way = settings.get("asking")
    if settings and metric.ways and way not in metric.ways:
        made, *usable = (f"with --asking {name}" if name else "without --asking" for name in (way, *metric.ways))
        raise UserError(f"{path}: was made {made}; --strategy {strategy} is for responses made {' or '.join(usable)}")


def requests_to(systems: list[System], records: list[Record]) -> dict[Key, Request]:
    """Return the requests for all systems' verdicts by key; if there are several, a key begins with a system's number.

    Verdicts on one response are adjacent, and so are responses to one question: in the judge's prompt, the aspect comes
    after the question and the response, so the engine computes the prefix that the prompts share only once.
    """
    judged = [{question["id"] for question in system.questions} for system in systems]
    return {
        (key if len(systems) == 1 else (number, *key)): Request(
            record, answers_to(system.responses, record["id"]), key[1]
        )
        for record in records
        for number, system in enumerate(systems)
        if record["id"] in judged[number]
        for key in system.metric.keys(record)
    }


def note_incomplete(path: str, systems: list[System]) -> None:
    """Print how many aspects lack a text that the judge's prompt shows, such as evidence."""
    metric, questions = (
        systems[0].metric,
        {question["id"]: question for system in systems for question in system.questions},
    )
    if metric.judge is None or metric.parts is None:
        return
    parts = [part for question in questions.values() for part in metric.parts(question)]
    if incomplete := sum(not all(part) for part in parts):
        lacking = "a text that the judge sees (such as evidence or reason), judged without it"
        print(f"note: {path}: {incomplete} of {counted(len(parts), metric.unit)} without {lacking}", file=sys.stderr)


def refuse_other_responses(addrs: list[str], hashes: Any, made: dict[str, Any]) -> None:
    """Raise UserError if a score file was made from another response file: --score_addr may name it by mistake.

    If the response file has the same name and only its content has changed, there is no error: it is judged again.
    """
    if made["settings"].get("responses") != hashes:
        refuse_other_source(made.get("judged") or ["other responses"], addrs)


def settings_of_judge(args: Arguments, judge: JudgeModel) -> dict[str, Any]:
    shown = {"num_contexts": args.num_contexts} if judge.gives_rewards else {}
    if judge.gives_rewards and not args.openai:
        shown["dtype"] = judge.flags.dtype
        if pads_with_end(judge.addr, args.cache_dir):
            shown["padding"] = "left off"  # earlier rewards were read at the padding, and do not compare
    return args.settings() | {"judge": judge.identity, "prompt": digests([judge.prompt])} | shown


def count_questions(scores: Mapping[str, Any], _: Any) -> dict[str, int]:
    names = ("num_questions", "num_scored_questions", "num_unanswered", "num_unscored")
    return {name: scores[name] for name in names}


def describe_verdicts(task: Task, output: Output, scores: dict[str, Any], figures: Mapping[str, Any]) -> str:
    """Return the line to print about a finished score file."""
    line = describe_scores(task, output.path, scores, figures["tokens"], output.figures["answers"])
    return line + describe_unfinished(figures.get(UNFINISHED_COUNT, 0)) + cost_in_words(figures)
