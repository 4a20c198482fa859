"""What the pipeline needs to know about a benchmark. A benchmark is one file that fills in a `Task`.

A script never asks which benchmark it has; it uses the fields here (docs/adding_a_benchmark.md).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, TypedDict

from prompts import History, Messages, Prompt, join_posts
from utils.benchmarks.checks import check_field
from utils.benchmarks.published import Published
from utils.cli.errors import UserError
from utils.parsing import Parsed
from utils.scoring.means import Pooled
from utils.scoring.verdicts import Verdict, average, summarize_drawn, summarize_probability

OFFICIAL = "-official"  # suffix of metrics that read a model's whole raw text by the public code's rule
ALL = "All questions"  # a column of a table

Parser = Callable[[str, bool], Parsed]  # a model's text, and whether it was cut at max_tokens


class Item(TypedDict, total=False):
    """A text from the user's history; a benchmark may add fields."""

    id: str
    text: str


class Record(TypedDict, total=False):
    """One question of a dataset; a benchmark adds its own fields, and unknown fields are kept.

    `task` is the benchmark's name; a record without it is LaMP-QA's.
    """

    id: str
    task: str
    question: str
    profile: list[Item]


@dataclass(frozen=True)
class Output:
    """The form of a model's output: a schema (JSON, or a regular expression) to constrain it, and its parser."""

    schema: dict[str, Any] | str
    parse: Parser
    write: Callable[[str], str] = str  # returns the training target for an answer


@dataclass(frozen=True)
class Options:
    """The texts to choose from.

    With --choose likelihood nothing is generated, so these prompts do not show the options.
    """

    prompts: Mapping[str, str]  # files by method (none, rag), as `prompts.load_prompt` takes them
    needs: tuple[str, ...]  # fields of `Task.fields` that `texts` reads
    # Returns the assistant's text by answer (as `Output.parse` returns it). Texts are not empty, and have no letter.
    texts: Callable[[Record], Mapping[str, str]]
    values: Callable[[Record], dict[str, str]] = lambda record: {"question": record["question"]}  # as `Task.values`

    def of_length(self, record: Record, extreme: Callable[[Iterable[int]], int]) -> list[str]:
        """Return the answers with the longest (`extreme` is max) or shortest (min) text in characters, in order."""
        texts = self.texts(record)
        length = extreme(map(len, texts.values()))
        return [answer for answer, text in texts.items() if len(text) == length]


@dataclass(frozen=True)
class Variant:
    """Another form of a question: values for the prompt, a parser of the answer, and fields to keep."""

    values: dict[str, str]
    parse: Parser
    record: dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Numeric verdicts, for expected values and means (--verdicts and --num_verdicts)."""

    begin: str  # the judge's output before the number
    values: tuple[int, ...]


@dataclass(frozen=True)
class Judge:
    """The request to a judging model for a verdict, and the form of its output."""

    prompt: str  # its file, as `prompts.load_prompt` takes it
    messages: Callable[[Prompt, Record, list[str], int], Messages]  # from prompt, record, responses, verdict's number
    # None: the judge is a reward model, which gives a number for `messages`, a dialogue that the response ends.
    output: Output | None
    scale: Scale | None = None  # None if verdicts are counted and each is requested once


@dataclass(frozen=True)
class Controls:
    """Answers that test a benchmark's judge, besides those made from a system's answers (utils/make_controls.py)."""

    needs: tuple[str, ...]  # fields of `Task.fields` that `ceiling` reads
    ceiling: Callable[[Record], str]  # returns a text with everything that the judge looks for
    order: str  # a response that only tells the judge to give the highest verdict


@dataclass(frozen=True)
class Metric:
    """How responses are scored: from verdicts, given by a judge or computed by a function, to a score file."""

    needs: tuple[str, ...]  # fields of `Task.fields` that it reads
    # The values that a verdict depends on besides the responses. Scores are compared only if their hashes are equal.
    judge_inputs: Callable[[Record], list[Any]]
    # Returns `answered`, `score` and `details` for the score file, from a record and its verdicts (ordered as `keys`).
    entry: Callable[[Record, list[Verdict]], dict[str, Any]]
    summarize: Callable[[list[dict[str, Any]]], dict[str, Any]]  # from all entries to the head of the score file
    # Returns the score for an entry's details: 0 to 1 unless lower is better, None if a verdict is missing (with True,
    # 0 counts). ValueError if the details are not this metric's. The field is None if the metric compares systems.
    score_of: Callable[[list[dict[str, Any]], bool], float | None] | None
    # The parts of the rubric, with a verdict each and "" for missing texts; None: one verdict on the whole response.
    parts: Callable[[Record], list[Any]] | None = None
    num_verdicts: int = 1  # verdicts per question, if there are no `parts`
    num_samples: int = 1  # verdicts per part, which are averaged
    by_probability: bool = False  # a verdict is the expected value over the judge's scale
    num_systems: int = 1  # response files that it compares
    # The ways of asking (`Task.ways`, None for the usual one) whose responses it scores; empty: all.
    ways: tuple[str | None, ...] = ()
    judge: Judge | None = None  # gives the verdicts; None: `compute` does
    compute: Callable[[Record, str], Any] | None = None  # from a record and a response to the verdict
    reads: str = "output"  # the field of a response that it is computed from; "raw" is the model's whole text
    # Further fields of the score file's head, from the scored records and all responses to each, by id.
    over_outputs: Callable[[Sequence[Record], Mapping[str, list[dict[str, Any]]]], dict[str, Any]] = (
        lambda records, responses: {}
    )
    unit: str = "response"  # noun for what a verdict is about
    pooled: Pooled | None = None  # combines the scores of several questions; None: their mean
    lower_is_better: bool = False  # scores are errors, from 0 up
    is_unbounded: bool = False  # scores are rewards: any numbers, on the scale of the model that gives them
    is_share: bool = False  # a score is 0 or 1, so the mean is a share, with the interval `share_interval`
    worst: str = "0"  # the score of a missing answer, in words
    # Whether an entry's answer could not be read, so that it counts as missing.
    is_unreadable: Callable[[dict[str, Any]], bool] = lambda entry: False

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest score that there can be."""
        return -inf if self.is_unbounded else 0.0, inf if self.is_unbounded or self.lower_is_better else 1.0

    def keys(self, record: Record) -> list[tuple[str | int, ...]]:
        """Return the keys of a question's verdicts: (id, verdict's number), and the sample's number unless it is 0."""
        count = self.num_verdicts if self.parts is None else len(self.parts(record))
        draws = [(), *((draw,) for draw in range(1, self.num_samples))]
        return [(record["id"], i, *draw) for i in range(count) for draw in draws]

    def merge_draws(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Return the verdicts, in the order of `keys`, with those of each part averaged."""
        if self.num_samples == 1:
            return list(verdicts)
        return [average(verdicts[i : i + self.num_samples]) for i in range(0, len(verdicts), self.num_samples)]

    def describe_uncertainty(self, per_question: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the fields of a score file's head that describe expected or averaged verdicts."""
        if self.by_probability:
            return summarize_probability(per_question)
        return summarize_drawn(per_question, self.num_samples) if self.num_samples > 1 else {}


@dataclass(frozen=True)
class Export:
    """The file of a system's answers for the benchmark's own scorer or leaderboard."""

    name: str  # of the file
    # Returns its text from records and first responses by id; a missing response has an empty `output`.
    write: Callable[[Sequence[Record], Mapping[str, dict[str, Any]]], str]
    needs: tuple[str, ...] = ()  # fields of `Task.fields` that `write` reads


Arrange = Callable[[Sequence[Item]], Sequence[Item]]


def best_first(items: Sequence[Item]) -> Sequence[Item]:
    return items


SIZES = {"profile": (list, "Profile size (items)"), "question": (str, "Question length (words)")}


@dataclass(frozen=True)
class Task:
    """A benchmark."""

    name: str  # the value of each record's `task`
    groups: tuple[str, ...]  # a table's columns of means, in order
    # Returns a record's `group` (None if unknown), its `subgroup` if groups have parts, and a text for each of
    # `divisions`. All are written to the score file.
    group_of: Callable[[Record], dict[str, str | None]]
    # The msgspec types of a record's fields besides id and question, which are checked when they are read.
    fields: Mapping[str, Any]
    prompts: Mapping[str, str]  # files by method (none, rag, planner, planpers), as `prompts.load_prompt` takes them
    output: Output  # of an answer
    metrics: Mapping[str, Metric]  # by name, the default one first
    facts: str  # the file with the benchmark's facts, for messages

    # Data
    # Further checks of some of `fields`; they raise a UserError that begins with the second argument.
    checks: Mapping[str, Callable[[Record, str], None]] = field(default_factory=dict)
    user_field: str | None = None  # the user's id, the unit of intervals and tests; None: one question per user
    query: Callable[[Record], str] = lambda record: record["question"]  # what retrieval compares with `item_text`
    item_text: Callable[[Item], str] = lambda item: item["text"]
    date_field: str | None = None  # the field of an item that --use_date adds to the text that retrieval compares
    # When an item was written, as (year, month, ...), for recency. None: the last item in the file is the latest.
    item_date: Callable[[Item], tuple[int, ...] | None] | None = None
    # Returns (name, text) pairs that only the scorer may see, so a profile must not contain them. The record may be
    # unchecked.
    hidden: Callable[[Record], Iterable[tuple[str, str]]] = lambda record: ()
    annotations: tuple[str, ...] = ()  # fields besides those of the metrics that no system may see
    # Returns the record for a question of the benchmark's own files, whose `output` is the right answer, if known.
    # Raises UserError, beginning with the second argument. None: the files already hold records.
    convert: Callable[[dict[str, Any], str], Record] | None = None
    # Where its own files are, by setting (the split of users and time, or ""), the default one first. Empty:
    # utils/download_datasets.py does not fetch it.
    published: Callable[[], Mapping[str, Sequence[Published]]] = dict
    # The same for other datasets of its records, by name.
    also_published: Callable[[], Mapping[str, Mapping[str, Sequence[Published]]]] = dict
    # The fields that utils/dataset_statistics.py measures: the kind of each, list (counted in items), str (in words) or
    # float (read as a number), and the row's name in the table.
    sizes: Mapping[str, tuple[type, str]] = field(default_factory=lambda: SIZES)
    # The paper's figures for its files, by name without suffix: `group`, `split`, number of `questions`, and mean and
    # standard deviation of each of `sizes`.
    paper_files: Callable[[], Mapping[str, Mapping[str, Any]]] = dict

    # Asking
    # The texts of a record that a prompt may show besides profile and plan; never those that only the scorer may see.
    values: Callable[[Record], dict[str, str]] = lambda record: {"question": record["question"]}
    asked_needs: tuple[str, ...] = ()  # further fields that every prompt needs, also without --rag
    arrange: Arrange = best_first  # puts retrieved items, best first, in the order of the prompt
    item_template: Callable[[Item], str] | None = None  # an item's text in a prompt; None: `item_text`
    join: Callable[[list[str]], str] = join_posts
    trimmed: str | None = None  # the text field of an item that --trim_items cuts; None: items are whole or left out
    # Returns a history that is a conversation, from a record, the number of best items (None without --rag), and
    # `arrange`. None: items are texts in one message, which has none without --rag.
    history: Callable[[Record, int | None, Arrange], History] | None = None
    # The share of such a history before the place that the question is about; None if unknown.
    evidence_position: Callable[[Record], float | None] = lambda record: None
    prompt_length: int | None = None  # default tokens of prompt and output together; None: the paper's 8192
    options: Options | None = None  # None: answers are free, and --choose is refused
    # Returns a variant of the question for each further answer, from a record, the answer's number (from 1) and --seed.
    # Answer 0 uses `values`. None: all answers have the same prompt.
    vary: Callable[[Record, int, int], Variant] | None = None
    # Other ways to ask, for --asking: by name, the fields of this class that replace the usual ones.
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Further counts for the last line of baselines.py, from the outputs of a response file.
    count_outputs: Callable[[Iterable[dict[str, Any]]], dict[str, int]] = lambda outputs: {}
    # Returns the titles of the plan; None if there are no plans, and planning is refused.
    gold_plan: Callable[[Record], list[str]] | None = None
    gold_plan_needs: tuple[str, ...] = ()  # fields that `gold_plan` and `private_notes` read
    # What a teacher sees of the rubric (--objective distill), "" for nothing; None if there is no rubric.
    private_notes: Callable[[Record], str] | None = None
    epochs: int = 10  # of utils/train_generator.py over its training set
    controls: Controls | None = None  # None: there is no judge to test

    # Showing
    benchmark: str | None = None  # tasks of one group with the same value may share a table; None: never shared
    group_words: tuple[str, str, str] = ("group", "groups", "subgroup")  # words for one, several, and a part
    group_field: str = "group"  # the text field that `group_of` reads
    short: Mapping[str, str] = field(default_factory=dict)  # short names of groups, for a narrow page
    overall: str | None = None  # the last column, of all questions together; None: it is the mean of the groups' means
    has_own_groups: bool = False  # `groups` are the data's, not the benchmark's: besides the mean, `ALL` is a column
    # Other divisions of the questions, for --by: the values of each in order; empty if any value is possible.
    divisions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    item_words: str = "posts"  # plural noun for items
    export: Export | None = None  # None if only this repository scores its answers
    # Returns the question's id and a response from a row of a table of answers, by column; raises UserError, beginning
    # with the second argument. None: responses are never tables.
    read_answer: Callable[[Mapping[str, str], str], tuple[str, dict[str, Any]]] | None = None
    # A file of systems' scores in the paper, as `utils.tables.score_table.read_paper` takes it.
    paper_results: Path | None = None

    def best_items(self, record: Record, number: int | None) -> list[str] | History:
        """Return the texts of a question's best `number` items, in the order of the prompt.

        `number` is None for a prompt without --rag.
        """
        if self.history is not None:
            return self.history(record, number, self.arrange)
        if number is None:
            return []
        return [(self.item_template or self.item_text)(item) for item in self.arrange(record["profile"][:number])]

    def best_entries(self, record: Record, number: int) -> list[tuple[str, Callable[[str], str]]]:
        """Return `best_items` as pairs: the text to cut, and a function from its kept part to the item's text."""

        def entry(item: Item) -> tuple[str, Callable[[str], str]]:
            return item[self.trimmed], lambda text: (self.item_template or self.item_text)({**item, self.trimmed: text})

        return list(map(entry, self.arrange(record["profile"][:number])))

    def asking(self, name: str, verdicts: str | None, num_verdicts: int) -> "Task":
        """Return the task with the metric `name` changed as --verdicts and --num_verdicts say."""
        metric = self.metrics[name]
        number = max(num_verdicts, metric.num_samples)
        metric = replace(metric, num_samples=number, by_probability=verdicts == "probability")
        return replace(self, metrics={**self.metrics, name: metric})

    def metric_names(self, official: bool) -> list[str]:
        """Return the names of the metrics of parsed answers, or of raw texts by the public code's rule (`official`).

        If no metric matches, return all names.
        """
        return [name for name in self.metrics if name.endswith(OFFICIAL) is official] or list(self.metrics)

    @property
    def hidden_fields(self) -> set[str]:
        """The fields that only the scorer may see."""
        seen = {self.user_field, "profile", *self.asked_needs}
        return (self.fields_for(self.metrics) - seen) | {*self.annotations}

    @property
    def first_metric(self) -> Metric:
        """The default metric."""
        return next(iter(self.metrics.values()))

    def scored_by(self, metric: str) -> str:
        """Return the name of this task's column in a table over several tasks."""
        return f"{self.name}, {metric}"

    def check(self, record: Record, where: str, needs: Iterable[str]) -> None:
        """Check the fields that will be read; `needs` are fields, metrics, or other names that `fields_for` knows."""
        wanted = self.fields_for(needs)
        is_scored = not wanted.isdisjoint(self.fields_for(self.metrics))
        if is_scored:
            wanted.add(self.group_field)
        for name, form in self.fields.items():
            if name in wanted:
                check_field(record, where, name, form)
                if name in self.checks:
                    self.checks[name](record, where)
        if is_scored:
            self._check_group(record, where)

    def _check_group(self, record: Record, where: str) -> None:
        """Raise UserError if the record's group is not one of the task's; None, an unknown group, is allowed."""
        group = self.group_of(record)["group"]
        if group is not None and group not in self.groups:
            raise UserError(f"{where}: the group {group!r} is not one of {', '.join(self.groups)}")

    def fields_for(self, needs: Iterable[str]) -> set[str]:
        """Return the fields that `needs` (names of fields, metrics or purposes) refers to."""
        behind = {name: metric.needs for name, metric in self.metrics.items()}
        behind |= {
            "gold_plan": self.gold_plan_needs,
            "asked": self.asked_needs,
            "export": self.export.needs if self.export else (),
            "options": self.options.needs if self.options else (),
            "controls": self.controls.needs if self.controls else (),
            "score": self.first_metric.needs,
        }
        return {field for need in needs for field in behind.get(need, (need,))}
