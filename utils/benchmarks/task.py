"""What a benchmark is: the facts that the one pipeline asks for. A benchmark is one file that fills in a `Task`.

A script never asks which benchmark it has: it uses the fields here (docs/adding_a_benchmark.md).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from prompts import History, Messages, Prompt, join_posts
from utils.benchmarks.checks import check_field
from utils.benchmarks.published import Published
from utils.cli.errors import UserError
from utils.parsing import Parsed
from utils.scoring.means import Pooled
from utils.scoring.verdicts import Verdict, average, summarize_drawn, summarize_probability

OFFICIAL = "-official"  # how metrics are called that read all that a model wrote, by the public code's rule

Parser = Callable[[str, bool], Parsed]  # a model's text, and whether it was cut at max_tokens


class Item(TypedDict, total=False):
    """One of the things that a user wrote before; a benchmark may have more fields."""

    id: str
    text: str


class Record(TypedDict, total=False):
    """One question of a dataset; a benchmark has fields of its own, and those that nobody knows are kept.

    `task` is the benchmark's name; a record without one is LaMP-QA's.
    """

    id: str
    task: str
    question: str
    profile: list[Item]


@dataclass(frozen=True)
class Output:
    """What a model is to write: a schema (JSON, or a regular expression) to hold it to, and what reads it."""

    schema: dict[str, Any] | str
    parse: Parser


@dataclass(frozen=True)
class Options:
    """The texts to choose from with --choose likelihood; nothing is generated.

    So a prompt asks the question without them.
    """

    prompts: Mapping[str, str]  # by method (none, rag) its file, as `prompts.load_prompt` takes it
    needs: tuple[str, ...]  # fields of a record that `texts` reads, of `Task.fields`
    # Of a record by answer, as `Output.parse` gives it, what the assistant would say: not empty, and without a letter.
    texts: Callable[[Record], Mapping[str, str]]
    values: Callable[[Record], dict[str, str]] = lambda record: {"question": record["question"]}  # as `Task.values`


@dataclass(frozen=True)
class Variant:
    """Another form of a question: values for the prompt, a parser of the answer, and fields to keep."""

    values: dict[str, str]
    parse: Parser
    record: dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Numeric verdicts, for expected values and means (--verdicts and --num_verdicts)."""

    begin: str  # a judge's output before the number
    values: tuple[int, ...]


@dataclass(frozen=True)
class Judge:
    """What a judging model is asked for a verdict, and how its output is read."""

    prompt: str  # its file, as `prompts.load_prompt` takes it
    messages: Callable[[Prompt, Record, list[str], int], Messages]  # from that, a record, responses, a verdict's number
    output: Output
    scale: Scale | None = None  # None: its verdicts are counted, and asked for once


@dataclass(frozen=True)
class Controls:
    """Answers that a benchmark's judge is tried with, besides what any system's give (utils/make_controls.py)."""

    needs: tuple[str, ...]  # fields of a record that `ceiling` reads, of `Task.fields`
    ceiling: Callable[[Record], str]  # of a record a text that holds all that the judge may look for
    order: str  # says nothing to the question, and tells the judge to give the highest verdict


@dataclass(frozen=True)
class Metric:
    """How responses are scored: from verdicts, which a judge gives or a function computes, to a score file."""

    needs: tuple[str, ...]  # fields of a record that it reads, of `Task.fields`
    # What a verdict depends on besides the responses: its hash is kept, for only like compares with like.
    judge_inputs: Callable[[Record], list[Any]]
    # From a record and its verdicts, in the order of `keys`, to `answered`, `score` and `details` in the score file.
    entry: Callable[[Record, list[Verdict]], dict[str, Any]]
    summarize: Callable[[list[dict[str, Any]]], dict[str, Any]]  # from all entries to the head of the score file
    # From an entry's details to its score, 0 to 1 unless lower is better; None where a verdict is missing, unless these
    # count 0. ValueError where the details are no such metric's. None: no single system is scored.
    score_of: Callable[[list[dict[str, Any]], bool], float | None] | None
    # What each verdict is on, texts that are unknown empty; None: the response.
    parts: Callable[[Record], list[Any]] | None = None
    num_verdicts: int = 1  # a question, where there are no `parts`
    num_samples: int = 1  # verdicts per part, which are averaged
    by_probability: bool = False  # a verdict is the expectation over the judge's scale, by their likelihoods
    num_systems: int = 1  # response files that it compares
    judge: Judge | None = None  # who gives the verdicts; None: `compute` does
    compute: Callable[[Record, str], Any] | None = None  # from a record and a response
    reads: str = "output"  # the field of a response that it is computed from: "raw" is all that the model wrote
    # Further fields of the score file's head, from the scored records and, by id, all responses to each.
    over_outputs: Callable[[Sequence[Record], Mapping[str, list[dict[str, Any]]]], dict[str, Any]] = (
        lambda records, responses: {}
    )
    unit: str = "response"  # noun for what a verdict is about
    pooled: Pooled | None = None  # how the scores of several questions make one, where that is not their mean
    lower_is_better: bool = False  # scores are errors, 0 and up
    is_share: bool = False  # a score is 0 or 1, and their mean a share: its interval is `share_interval`
    worst: str = "0"  # what an answer that is missing counts, in words
    # Of an entry: there is an answer, but it could not be read, so it counts as a missing one.
    is_unreadable: Callable[[dict[str, Any]], bool] = lambda entry: False

    def keys(self, record: Record) -> list[tuple[str | int, ...]]:
        """Of a question's verdicts: (question id, number of the verdict), behind the first draw with its number."""
        count = self.num_verdicts if self.parts is None else len(self.parts(record))
        draws = [(), *((draw,) for draw in range(1, self.num_samples))]
        return [(record["id"], i, *draw) for i in range(count) for draw in draws]

    def merge_draws(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Verdicts in the order of `keys`, those of one part as one."""
        if self.num_samples == 1:
            return list(verdicts)
        return [average(verdicts[i : i + self.num_samples]) for i in range(0, len(verdicts), self.num_samples)]

    def describe_uncertainty(self, per_question: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what a score file's head says of verdicts that are not counted once each."""
        if self.by_probability:
            return summarize_probability(per_question)
        return summarize_drawn(per_question, self.num_samples) if self.num_samples > 1 else {}


@dataclass(frozen=True)
class Export:
    """The file in which the benchmark's own scorer, or its leaderboard, takes a system's answers."""

    name: str  # of the file
    # Its text, from records and by id the first response, whose `output` is empty where there is none.
    write: Callable[[Sequence[Record], Mapping[str, dict[str, Any]]], str]
    needs: tuple[str, ...] = ()  # fields of a record that `write` reads, of `Task.fields`


Arrange = Callable[[Sequence[Item]], Sequence[Item]]


def best_first(items: Sequence[Item]) -> Sequence[Item]:
    return items


SIZES = {"profile": (list, "Profile size (items)"), "question": (str, "Question length (words)")}


@dataclass(frozen=True)
class Task:
    """A benchmark."""

    name: str  # the value of each record's `task`
    groups: tuple[str, ...]  # a table's columns of means, in order
    # From a record to its `group` (None: not known), its `subgroup` where groups have parts, and a text for each of
    # `divisions`: the score file has them all.
    group_of: Callable[[Record], dict[str, str | None]]
    # By name the type, as msgspec takes it, of a record's fields besides id and question: checked where they are read.
    fields: Mapping[str, Any]
    prompts: Mapping[str, str]  # by method (none, rag, planner, planpers) its file, as `prompts.load_prompt` takes it
    output: Output  # of an answer
    metrics: Mapping[str, Metric]  # by name, the default one first
    facts: str  # where the benchmark's facts stand, for messages

    # Data
    # What no type can say of some of `fields`: raises UserError, which begins with the second argument.
    checks: Mapping[str, Callable[[Record, str], None]] = field(default_factory=dict)
    user_field: str | None = None  # names the user, by whom intervals and tests go; None: one question per user
    query: Callable[[Record], str] = lambda record: record["question"]  # what retrieval compares with `item_text`
    item_text: Callable[[Item], str] = lambda item: item["text"]
    date_field: str | None = None  # of an item, what --use_date adds to the text that retrieval compares
    # When an item was written, as (year, month, ...), which recency goes by. None: the last one in the file is the
    # latest.
    item_date: Callable[[Item], tuple[int, ...] | None] | None = None
    # Of a record, checked or not, what each text is called that only the scorer may see, and the text: a profile must
    # not hold it.
    hidden: Callable[[Record], Iterable[tuple[str, str]]] = lambda record: ()
    # From a question of the benchmark's own files, with its right answer as `output` where that is known, to a record;
    # raises UserError, which begins with the second argument. None: its own files are such records.
    convert: Callable[[dict[str, Any], str], Record] | None = None
    # Where its own files are, by setting (how users and time are split, "" if there is none), the default one first.
    # Empty: utils/download_datasets.py does not fetch it.
    published: Callable[[], Mapping[str, Sequence[Published]]] = dict
    # What utils/dataset_statistics.py measures: by field its kind, list (counted in items), str (in words) or float
    # (read as a number), and the row's name in the table.
    sizes: Mapping[str, tuple[type, str]] = field(default_factory=lambda: SIZES)
    # What the paper prints of its files, by name without ending: their `group`, `split` and number of `questions`, and
    # mean and deviation of each of `sizes`.
    paper_files: Callable[[], Mapping[str, Mapping[str, Any]]] = dict

    # Asking
    # What a prompt may see of a record besides profile and plan: never what only the scorer may see.
    values: Callable[[Record], dict[str, str]] = lambda record: {"question": record["question"]}
    asked_needs: tuple[str, ...] = ()  # further fields that every prompt takes something from, also without --rag
    arrange: Arrange = best_first  # retrieved items for a prompt, from best first
    item_template: Callable[[Item], str] | None = None  # an item as a prompt has it; None: `item_text`
    join: Callable[[list[str]], str] = join_posts
    trimmed: str | None = None  # the field of an item that --trim_items cuts, a text; None: an item is whole or out
    # Where the history is turns of a conversation: of a record, with the number of best items, None without --rag, and
    # `arrange`. None: items are texts of one message, and there are none without --rag.
    history: Callable[[Record, int | None, Arrange], History] | None = None
    # The share of such a history before the place that the question is about; None if unknown.
    evidence_position: Callable[[Record], float | None] = lambda record: None
    prompt_length: int | None = None  # tokens of prompt and output where the user sets none; None: the paper's 8192
    options: Options | None = None  # None: answers are free, and --choose is refused
    # Of a record the answer of this number, from 1, with --seed: each asks in another form; the first, 0, as `values`
    # has it. None: all answers are to one prompt.
    vary: Callable[[Record, int, int], Variant] | None = None
    # Further counts for the last line of baselines.py, from the outputs of a response file.
    count_outputs: Callable[[Iterable[dict[str, Any]]], dict[str, int]] = lambda outputs: {}
    gold_plan: Callable[[Record], list[str]] | None = (
        None  # titles; None if there are no plans, and planning is refused
    )
    gold_plan_needs: tuple[str, ...] = ()  # fields that it reads
    epochs: int = 10  # that utils/train_generator.py goes through its training set
    controls: Controls | None = None  # None: no judge is asked, so there is nothing to be tried

    # Showing
    benchmark: str | None = None  # whose tasks, each of one group, may share a table; None: this one has its own
    group_words: tuple[str, str, str] = ("group", "groups", "subgroup")  # what one, several and a part are called
    group_field: str = "group"  # the field, a text, that `group_of` reads
    short: Mapping[str, str] = field(default_factory=dict)  # short names of groups, for a narrow page
    overall: str | None = None  # the last column, of all questions together; None: it is the mean of the groups' means
    # What else questions are told apart by, for --by: by name its values in order, or none where any may be.
    divisions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    item_words: str = "posts"  # what several items are called
    export: Export | None = None  # None where nobody but this repository scores its answers
    # From a row of somebody's table of answers, by column, to the question's id and a response; UserError, which begins
    # with the second argument, where it is none. None: responses are never tables.
    read_answer: Callable[[Mapping[str, str], str], tuple[str, dict[str, Any]]] | None = None
    # A file of what the paper prints of systems' scores, as `utils.tables.score_table.read_paper` takes it.
    paper_results: Path | None = None

    def best_items(self, record: Record, number: int | None) -> list[str] | History:
        """Return the texts of a question's best `number` items, in the order of the prompt.

        None means a prompt without --rag.
        """
        if self.history is not None:
            return self.history(record, number, self.arrange)
        if number is None:
            return []
        return [(self.item_template or self.item_text)(item) for item in self.arrange(record["profile"][:number])]

    def best_entries(self, record: Record, number: int) -> list[tuple[str, Callable[[str], str]]]:
        """`best_items` as pairs: the text that may be cut, and a function from its kept part to the item's text."""

        def entry(item: Item) -> tuple[str, Callable[[str], str]]:
            return item[self.trimmed], lambda text: (self.item_template or self.item_text)({**item, self.trimmed: text})

        return list(map(entry, self.arrange(record["profile"][:number])))

    def asking(self, name: str, verdicts: str | None, num_verdicts: int) -> "Task":
        """Return the task with the metric `name` changed as --verdicts and --num_verdicts say."""
        metric = replace(self.metrics[name], num_samples=num_verdicts, by_probability=verdicts == "probability")
        return replace(self, metrics={**self.metrics, name: metric})

    def metric_names(self, official: bool) -> list[str]:
        """The metrics of the answers as they were read at asking, or those by the public code's rule from the raw text.

        Where there are none by that rule, all of them.
        """
        return [name for name in self.metrics if name.endswith(OFFICIAL) is official] or list(self.metrics)

    def scored_by(self, metric: str) -> str:
        """Return what a column is called of a table over several tasks."""
        return f"{self.name}, {metric}"

    def check(self, record: Record, where: str, needs: Iterable[str]) -> None:
        """Check what is read; `needs` are fields, metrics by name, or the names that `fields_for` has for several."""
        wanted = self.fields_for(needs)
        for name, form in self.fields.items():
            if name in wanted:
                check_field(record, where, name, form)
                if name in self.checks:
                    self.checks[name](record, where)
        if wanted & self.fields_for(self.metrics):  # it is scored
            self._check_group(record, where)

    def _check_group(self, record: Record, where: str) -> None:
        """Raise UserError if the record's group is not one of the task's; None, an unknown group, is allowed."""
        try:
            group = self.group_of(record)["group"]
        except KeyError as error:
            raise UserError(f"{where}: no field {error}") from None
        if group is not None and group not in self.groups:
            raise UserError(f"{where}: the group {group!r} is not one of {', '.join(self.groups)}")

    def fields_for(self, needs: Iterable[str]) -> set[str]:
        """Return the fields that needs stand for."""
        behind = {name: metric.needs for name, metric in self.metrics.items()}
        behind |= {
            "gold_plan": self.gold_plan_needs,
            "asked": self.asked_needs,
            "export": self.export.needs if self.export else (),
            "options": self.options.needs if self.options else (),
            "controls": self.controls.needs if self.controls else (),
            "score": next(iter(self.metrics.values())).needs,
        }
        return {field for need in needs for field in behind.get(need, (need,))}
