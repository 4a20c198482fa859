"""A round of reinforcement learning: the calls behind sampled answers, weighted by the samples' scores.

A round is three commands: a method samples several answers per question with --trace, evaluate_responses.py scores all
samples, and training learns from every call of one role. It learns the text of a call, but not the call's prompt, nor
what other calls and searches put into that prompt.
"""

import hashlib
import json
import math
import sys
from argparse import Namespace
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median, pstdev, stdev
from typing import Any

from utils.base.errors import UserError, count_noun, count_plural, first_five, is_first_process, quote
from utils.base.manifest import noted_settings, read_manifest
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task
from utils.data.responses import read_responses, refuse_other_questions
from utils.data.scores import read_rewards
from utils.generation.fitting import Fitted, Window
from utils.generation.requests import was_cut
from utils.runs.trace import TRACE, Line, read_trace
from utils.training.examples import Example

EPSILON = 1e-4  # added to a standard deviation, as in TRL
EQUAL = 1e-6  # scores count as equal if their deviation is at most this share of the largest score (rounding)
# Larger, because PR2 divides scores (not differences) by deviations, so nearly equal scores give huge advantages.
PR2_EQUAL = 1e-2
LEAST_DEVIATION = 1e-8  # scores also count as equal up to this deviation, whatever their size
DOMINATES = 10  # note a question whose largest advantage exceeds this, or this many times the median over questions
ADVANTAGES = ("grpo", "pr2")

Sample = tuple[str, int]  # question id and number


def scored_addr(args: Namespace) -> str:
    """Return the response file of the samples to learn from; for grpo, the file that was scored."""
    return args.response_addr or args.trace_addr.removesuffix(TRACE)


def relative_scores(scores: Mapping[int, float]) -> dict[int, float]:
    """Return each sample's advantage in its question (GRPO, arXiv 2402.03300): (score - mean) / (deviation + 1e-4).

    The deviation is the population's. The result is empty if there is one score, or if all are equal (`EQUAL`).
    """
    if are_equal(scores, EQUAL, scores):
        return {}
    mean, deviation = fmean(scores.values()), pstdev(scores.values())
    return {number: (score - mean) / (deviation + EPSILON) for number, score in scores.items()}


def are_equal(some: Mapping[int, float], share: float, scores: Mapping[int, float]) -> bool:
    """Return whether there are fewer than two scores, or their deviation is at most this share of the largest score."""
    return len(some) < 2 or pstdev(some.values()) <= max(LEAST_DEVIATION, share * max(map(abs, scores.values())))


def relative_to_no_search(scores: Mapping[int, float], searched: Mapping[int, bool]) -> dict[int, float]:
    """Return each sample's advantage as in PR2's public code, which was deleted since (arXiv 2602.19317).

    Let v be the score of the one sample that did not search; its advantage is 0. A sample that searched, with score s,
    has the advantage (s - v - mean) / deviation - 2 v / (deviation of the samples that searched). Mean and deviation
    are over all samples, and deviations divide by n - 1. The result is empty unless exactly one sample did not search
    and the scores of the others differ (by more than `PR2_EQUAL`).
    """
    with_search = {number: score for number, score in scores.items() if searched[number]}
    without_search = [score for number, score in scores.items() if not searched[number]]
    if len(without_search) != 1 or any(are_equal(some, PR2_EQUAL, scores) for some in (with_search, scores)):
        return {}
    mean, deviation, search_deviation = fmean(scores.values()), stdev(scores.values()), stdev(with_search.values())
    [v] = without_search
    advantages = {
        number: (score - v - mean) / deviation - 2 * v / search_deviation for number, score in with_search.items()
    }
    return {number: advantages.get(number, 0.0) for number in scores}


def why_no_advantages(scores: Mapping[int, float], searched: Mapping[int, bool] | None = None) -> str:
    """Return why a question's samples have no advantages, as the name of its kind; `searched` is for PR2's only."""
    if len(scores) < 2:
        return "questions with fewer than two scored samples"
    if searched is None:
        return "questions whose samples have equal scores"
    if sum(not searched[number] for number in scores) != 1:
        return "questions without exactly one scored sample that did not search"
    if len(scores) < 3:
        return "questions with fewer than two scored samples that searched"
    return "questions whose samples that searched have equal scores"


def examples_of_round(args: Namespace, records: list[Record], window: Window) -> tuple[list[Example], list[str]]:
    """Return an example with an advantage for each call to learn from, and lines that say what was skipped.

    A call that several samples or questions share was sampled once, so it makes one example, with the sum of their
    advantages.
    """
    responses = read_responses_to(records, scored_addr(args))
    calls, searched = read_calls(args)
    scores = sample_scores(args, responses, calls)
    record_of, counts = {record["id"]: record for record in records}, Counter[str]()
    lines: dict[Any, tuple[Line, Record]] = {}  # by call
    weights: dict[Any, float] = defaultdict(float)  # by call, the advantage
    largest: dict[str, float] = {}  # each question's largest advantage
    for question_id in responses:
        of_question = scores.get(question_id, {})
        if args.advantage == "grpo":
            did_search, advantages = None, relative_scores(of_question)
        else:
            did_search = {number: (question_id, number) in searched for number in of_question}
            advantages = relative_to_no_search(of_question, did_search)
        if not advantages:
            counts[why_no_advantages(of_question, did_search)] += 1
        else:
            largest[question_id] = max(map(abs, advantages.values()))
        for number, advantage in advantages.items():
            for line, call in with_keys(calls[question_id, number]):
                lines.setdefault(call, (line, record_of[question_id]))
                weights[call] += advantage
    examples, usual = [], run_temperature(args)
    for call, (line, record) in lines.items():
        temperature = line.get("temperature", usual)
        if line["text"] is None:
            continue
        if was_cut(line) and not args.keep_cut:
            counts["calls cut off"] += 1
        elif line.get("shared") and math.isclose(weights[call], 0, abs_tol=1e-6):
            counts["calls that samples share, whose advantages sum to 0"] += 1
        elif temperature == 0:
            counts["calls at temperature 0 (greedy, not sampled)"] += 1
        else:
            counts["calls at an unknown temperature"] += temperature is None
            example = example_of(line, record, window, weights[call], 1.0 if temperature is None else temperature)
            if not example.target:
                counts["calls with an empty text that a stop or the token limit ended"] += 1
            elif len(example.target) > window.max_tokens or example.length > window.length:
                counts["calls too long for --max_target_length, or with the prompt for the window"] += 1
            else:
                examples.append(example)
    counts["samples without a verdict"] = sum(map(len, responses.values())) - sum(map(len, scores.values()))
    unknown = counts.pop("calls at an unknown temperature", 0)
    notes = [f"skipped: {count_plural(count, what)}" for what, count in counts.items() if count]
    if unknown:
        notes.append(
            f"{count_noun(unknown, 'call')} at the model's default temperature, taken as 1; sample with --temperature 1"
        )
    for question_id, size in largest.items():
        usual_size = median(largest.values())
        if size > DOMINATES or (len(largest) > 2 and size > DOMINATES * usual_size):
            why = f"its largest advantage is {size:.1f}, the median over questions is {usual_size:.1f}"
            notes.append(f"question {quote(question_id)} dominates the loss: {why}")
    return examples, notes


def with_keys(lines: Iterable[Line]) -> Iterator[tuple[Line, Any]]:
    """Yield each line of a sample with the key of its call; lines of one shared call have the same key.

    If a sample makes equal shared calls, each is a call of its own, and they are numbered in order.
    """
    occurrences = Counter[bytes]()
    for line in lines:
        if not line.get("shared"):
            yield line, (line["id"], line["sample"], line["number"])
            continue
        sent = json.dumps([line["messages"], line.get("stop"), line["text"]])
        digest = hashlib.sha256(sent.encode()).digest()
        yield line, (digest, occurrences[digest])
        occurrences[digest] += 1


def sampled_addr(args: Namespace) -> str:
    """Return the response file whose manifest says how the texts to learn from were sampled."""
    return args.trace_addr.removesuffix(TRACE) if args.objective == "grpo" else args.response_addr


def sampling_flags(args: Namespace) -> dict[str, Any]:
    """Return, from the manifest, the flags that sampled the calls of --role; empty if unknown."""
    arguments = (read_manifest(sampled_addr(args)) or {}).get("arguments", {})
    own = next((flags for role, _, flags in arguments.get("model") or () if role == args.role), {})
    return {**arguments, **own}


def run_temperature(args: Namespace) -> float | None:
    """Return the temperature of calls whose line in the trace has none (as in older traces); None if unknown."""
    return sampling_flags(args).get("temperature")


def read_responses_to(records: list[Record], path: str, task: Task | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return a response file's content; UserError if a question is not in the dataset, or has another wording there."""
    responses = read_responses(path, task)
    refuse_other_questions(path, responses, records)
    if foreign := sorted(responses.keys() - {record["id"] for record in records}):
        raise UserError(
            f"{path}: {count_noun(len(foreign), 'response')} to no question of the dataset: {first_five(foreign)}"
        )
    return responses


def note_other_model(args: Namespace, identity: str) -> None:
    """Print a note if another model wrote the texts to learn from, because the objectives assume the model's own."""
    settings, name = noted_settings(sampled_addr(args)), "planner" if args.role == "planner" else "model"
    sampled_by = (settings.get("models") or {}).get(args.role) or settings.get(name)
    if sampled_by not in (None, identity) and is_first_process():
        what = f"has calls of {sampled_by}, but the training starts from {identity}"
        print(
            f"note: {args.trace_addr or args.response_addr}: {what}; use samples of the model that is trained",
            file=sys.stderr,
        )


def note_restricted_sampling(args: Namespace) -> None:
    """Print a note if flags restricted sampling, because training computes probabilities over the whole vocabulary."""
    flags = sampling_flags(args)
    neutral = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0), "presence_penalty": (None, 0),
               "frequency_penalty": (None, 0), "repetition_penalty": (None, 1)}  # fmt: skip
    if args.objective == "distill":  # grpo uses the temperature of each call
        neutral |= {"temperature": (None, 1), "max_retries": (None, 0), "constrained_decoding": (None, "never")}
    more = flags.get("extra_body") or {}
    given = {**flags, **more}
    restricted = {name if name in more else f"--{name}": (given[name], values[1]) for name, values in neutral.items()
                  if given.get(name) not in values}  # fmt: skip
    if not is_first_process():
        return
    path = args.trace_addr or args.response_addr
    if restricted:
        used, wanted = (" and ".join(f"{flag} {values[i]}" for flag, values in restricted.items()) for i in (0, 1))
        what = f"sampled with {used}, but training uses the full distribution"
        print(f"note: {path}: {what}; to match, sample with {wanted}", file=sys.stderr)
    if "top_p" in given and given["top_p"] is None:
        what = "sampled with the model's default top_p, taken as 1"
        print(f"note: {path}: {what}; sample with --top_p 1", file=sys.stderr)


def read_calls(args: Namespace) -> tuple[dict[Sample, list[Line]], set[Sample]]:
    """Return the calls of --role by sample, and the samples that searched; UserError if the role has no call."""
    if not args.trace_addr.endswith(TRACE):
        raise UserError(f"--trace_addr {args.trace_addr}: not the name of a trace, which ends with {TRACE}")
    output = args.trace_addr.removesuffix(TRACE)
    calls: dict[Sample, list[Line]] = {}
    searched, roles = set(), set()
    for line in read_trace(output):
        sample = line["id"], line["sample"]
        calls.setdefault(sample, [])
        searched |= {sample} if "search" in line else set()
        roles |= {line["role"]} if "role" in line else set()
        if line.get("role") != args.role:
            continue
        calls[sample].append(line)
        if line.get("reasoning"):
            raise UserError(
                f"{args.trace_addr}: id {quote(line['id'])}: has thoughts, which training would ignore\n"
                "  sample with a model that does not think"
            )
    if args.role not in roles:
        raise UserError(f"--role {args.role}: {args.trace_addr} has calls of {', '.join(sorted(roles)) or 'no role'}")
    if (read_manifest(output) or {}).get("arguments", {}).get("chat_template_kwargs"):
        raise UserError(f"{output}: was made with --chat_template_kwargs, which training does not support")
    return calls, searched


def sample_scores(
    args: Namespace, responses: dict[str, list[dict[str, Any]]], calls: Mapping[Sample, list[Line]]
) -> dict[str, dict[int, float]]:
    """Return rewards (higher is better) by question id and sample number, without samples that have no verdict."""
    scores = read_rewards(args.score_addr, responses, scored_addr(args))
    known_scores = [score for of_question in scores.values() for score in of_question if score is not None]
    if args.keep_cut and min(known_scores, default=0) < 0:
        raise UserError("--keep_cut: some rewards are below 0, so 0 would not be a penalty; remove the flag")
    rewards: dict[str, dict[int, float]] = defaultdict(dict)
    for question_id, of_question in scores.items():
        for number, score in enumerate(of_question):
            called = calls.get((question_id, number))  # None if the trace lacks the sample
            if args.keep_cut and any(map(was_cut, called or ())):
                rewards[question_id][number] = 0.0
            elif score is not None and called is not None:
                rewards[question_id][number] = score
    return rewards


def example_of(line: Line, record: Record, window: Window, advantage: float, temperature: float) -> Example:
    """Return the example of a call; it may have no tokens to learn, or more than the window allows.

    If the text was cut or may have ended at a `stop`, the target has no end-of-turn token.
    """
    prompt, target = window.chat.render(line["messages"]), window.chat.render_reply(line["text"])
    target = target[:-1] if line.get("stop") or was_cut(line) else target
    return Example(record, Fitted(prompt, 0, 0), array("i", target), advantage=advantage, temperature=temperature)


def describe_round(path: str, examples: Sequence[Example]) -> str:
    """Return a description of the examples."""
    size = math.sqrt(fmean(example.advantage**2 for example in examples))
    questions = count_noun(len({example.record["id"] for example in examples}), "question")
    temperatures = sorted({example.temperature for example in examples})
    return (
        f"{path}: {count_noun(len(examples), 'call')} of {questions}, "
        f"{sum(len(example.target) for example in examples)} tokens to learn; the longest call has "
        f"{max(example.length for example in examples)} tokens; {sum(example.advantage > 0 for example in examples)} "
        f"with an advantage above 0; root mean square {size:.2f}; "
        f"sampled at temperature {' and '.join(f'{temperature:g}' for temperature in temperatures)}"
    )
