"""How a benchmark's responses are scored: the form of a model's output, the judge, and the metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from prompts import Messages, Prompt
from utils.benchmarks.checks import Record
from utils.benchmarks.readers import Parsed
from utils.benchmarks.scoring import Pooled, Verdict, average, summarize_drawn, summarize_probability

OFFICIAL = "-official"  # suffix of metrics that read a model's whole raw text by the public code's rule

Parser = Callable[[str, bool], Parsed]  # a model's text, and whether it was cut at max_tokens


@dataclass(frozen=True)
class Output:
    """The form of a model's output: a schema (JSON, or a regular expression) to constrain it, and its parser."""

    schema: dict[str, Any] | str
    parse: Parser
    write: Callable[[str], str] = str  # returns the training target for an answer


@dataclass(frozen=True)
class Scale:
    """The numbers that a judge may give. Their expected value or mean can be a score (--verdicts, --num_verdicts)."""

    begin: str  # the judge's output before the number
    values: tuple[int, ...]


@dataclass(frozen=True)
class Judge:
    """How a judge is asked for a verdict, and the form of its output."""

    prompt: str  # the prompt's file, as `prompts.load_prompt` takes it
    messages: Callable[[Prompt, Record, list[str], int], Messages]  # from prompt, record, responses, verdict's number
    # None: the judge is a reward model, which gives a number for `messages`, a dialogue that ends with the response.
    output: Output | None
    scale: Scale | None = None  # None: --verdicts and --num_verdicts are refused


@dataclass(frozen=True)
class Controls:
    """Answers for testing a benchmark's judge, in addition to those made from a system's answers (make_controls.py)."""

    needs: tuple[str, ...]  # fields of a record that `ceiling` reads
    ceiling: Callable[[Record], str]  # returns a text with everything that the judge looks for
    order: str  # a response that only tells the judge to give the highest verdict


@dataclass(frozen=True)
class Metric:
    """How responses are scored: verdicts come from a judge or a function, and are summarized in a score file."""

    needs: tuple[str, ...]  # fields of a record that the metric reads
    # Returns the values that a verdict depends on besides the response. Scores are comparable only if they are equal.
    judge_inputs: Callable[[Record], list[Any]]
    # Returns `answered`, `score` and `details` for the score file, from a record and its verdicts (ordered as `keys`).
    entry: Callable[[Record, list[Verdict]], dict[str, Any]]
    summarize: Callable[[list[dict[str, Any]]], dict[str, Any]]  # returns the score file's head, from all entries
    # Returns the score for an entry's details, within `limits`. If a verdict is missing, it counts as 0 if the second
    # argument is True; otherwise, the score is None. ValueError if the details are not this metric's. None: the metric
    # compares systems.
    score_of: Callable[[list[dict[str, Any]], bool], float | None] | None
    # Returns the rubric's parts, "" for missing texts; each part gets a verdict. None: whole responses get a verdict.
    parts: Callable[[Record], list[Any]] | None = None
    num_verdicts: int = 1  # verdicts per question, if there are no `parts`
    num_samples: int = 1  # sampled verdicts per part, which are averaged
    by_probability: bool = False  # whether a verdict is the expected value over the judge's scale
    num_systems: int = 1  # the number of response files that are judged together
    # The ways of asking (`Task.ways`; None is the usual way) whose responses the metric can score; empty: all ways.
    ways: tuple[str | None, ...] = ()
    judge: Judge | None = None  # gives the verdicts; None: `compute` does
    compute: Callable[[Record, str], Any] | None = None  # returns the verdict on a response to a record
    reads: str = "output"  # the field of a response that is scored; "raw" is the model's whole text
    # Returns further fields of the score file's head, from the scored records and all responses to each by id.
    over_outputs: Callable[[Sequence[Record], Mapping[str, list[dict[str, Any]]]], dict[str, Any]] = (
        lambda records, responses: {}
    )
    unit: str = "response"  # the noun for the thing that gets a verdict
    pooled: Pooled | None = None  # computes one score from several questions; None: the mean of their scores
    lower_is_better: bool = False  # scores are errors, from 0 up
    is_unbounded: bool = False  # scores are rewards: any numbers, on the scale of the model that gives them
    is_share: bool = False  # a score is 0 or 1, so the mean is a share, with the interval `share_interval`
    worst: str = "0"  # the score of a missing answer, in words
    # Whether an entry's answer could not be read, so that it counts as missing.
    is_unreadable: Callable[[dict[str, Any]], bool] = lambda entry: False

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score."""
        return -inf if self.is_unbounded else 0.0, inf if self.is_unbounded or self.lower_is_better else 1.0

    def keys(self, record: Record) -> list[tuple[str | int, ...]]:
        """Return the keys of a question's verdicts: (id, verdict's number), and the sample's number unless it is 0."""
        count = self.num_verdicts if self.parts is None else len(self.parts(record))
        draws = [(), *((draw,) for draw in range(1, self.num_samples))]
        return [(record["id"], i, *draw) for i in range(count) for draw in draws]

    def merge_draws(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Return one verdict per part, the average of the part's samples, from verdicts in the order of `keys`."""
        if self.num_samples == 1:
            return list(verdicts)
        return [average(verdicts[i : i + self.num_samples]) for i in range(0, len(verdicts), self.num_samples)]

    def describe_uncertainty(self, per_question: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the fields of a score file's head that describe expected or averaged verdicts."""
        if self.by_probability:
            return summarize_probability(per_question)
        return summarize_drawn(per_question, self.num_samples) if self.num_samples > 1 else {}
