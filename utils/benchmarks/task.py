"""What the pipeline needs to know about a benchmark. A benchmark is one file that fills in a `Task`.

A script never asks which benchmark it has; it uses the fields here (docs/adding_a_benchmark.md).
"""

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prompts import History, join_posts
from utils.base.errors import UserError
from utils.benchmarks.checks import Item, Record, check_field
from utils.benchmarks.metric import OFFICIAL, Controls, Metric, Output
from utils.benchmarks.published import Published

ALL = "All questions"  # a column of a table


@dataclass(frozen=True)
class Options:
    """The texts that --choose likelihood chooses from.

    Nothing is generated then, so these prompts do not show the options.
    """

    prompts: Mapping[str, str]  # files by method (none, rag), as `prompts.load_prompt` takes them
    needs: tuple[str, ...]  # fields of `Task.fields` that `texts` reads
    # Returns each option's text by its answer (a value of `Output.parse`). Texts are not empty, and have no letter.
    texts: Callable[[Record], Mapping[str, str]]

    def of_length(self, record: Record, extreme: Callable[[Iterable[int]], int]) -> list[str]:
        """Return the answers whose text is the longest (`extreme` is max) or shortest (min), in characters."""
        texts = self.texts(record)
        length = extreme(map(len, texts.values()))
        return [answer for answer, text in texts.items() if len(text) == length]


class Entries(list[tuple[str, Callable[[str], str]]]):
    """Items that are cut to fit: of each, the text to cut, and a function from its kept part to the whole text."""


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
class Files:
    """A benchmark's own files: how they are read and written, and what its paper says about them."""

    facts: str  # the file with the benchmark's facts, for messages
    # Returns the record for a question of the benchmark's own files, which has the right answer as `output`, if known.
    # Raises a UserError that begins with the second argument. None: the files already hold records.
    convert: Callable[[dict[str, Any], str], Record] | None = None
    # Returns a part's records, each after its place for messages, the content of files beside it, and counts, in words,
    # of what was left out, from the part's name and the rows of `Tables`, each after its place.
    join: Callable[[str, Mapping[str, Iterable[Any]]], tuple[list[Any], dict[str, Any], dict[str, int]]] | None = None
    # Where the benchmark's own files are, by setting (the split of users and time, or ""), the default setting first.
    # Empty: utils/download_datasets.py does not fetch the benchmark.
    published: Callable[[], Mapping[str, Sequence[Published]]] = dict
    # The same, by name, for other datasets of this benchmark's records.
    also_published: Callable[[], Mapping[str, Mapping[str, Sequence[Published]]]] = dict
    # The fields that utils/dataset_statistics.py measures: the kind of each, list (counted in items), str (in words) or
    # float (read as a number), and the row's name in the table.
    sizes: Mapping[str, tuple[type, str]] = field(default_factory=lambda: SIZES)
    # The paper's figures for its files, by name without suffix: `group`, `split`, number of `questions`, and mean and
    # standard deviation of each of `sizes`.
    paper_files: Callable[[], Mapping[str, Mapping[str, Any]]] = dict
    export: Export | None = None  # None if only this repository scores its answers
    # Returns the question's id and a response from a row of a table of answers, a dict by column; raises a UserError
    # that begins with the second argument. None: responses are never tables.
    read_answer: Callable[[Mapping[str, str], str], tuple[str, dict[str, Any]]] | None = None
    # A file of systems' scores in the paper, as `utils.tables.paper_numbers.read_paper` takes it.
    paper_results: Path | None = None


@dataclass(frozen=True)
class Task:
    """A benchmark: what a record is, what a prompt shows of it, and how tables show its scores."""

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
    files: Files

    # Data
    # Further checks of some of `fields`; they raise a UserError that begins with the second argument.
    checks: Mapping[str, Callable[[Record, str], None]] = field(default_factory=dict)
    user_field: str | None = None  # the user's id, the unit of intervals and tests; None: one question per user
    query: Callable[[Record], str] = lambda record: record["question"]  # what retrieval compares with `item_text`
    item_text: Callable[[Item], str] = lambda item: item["text"]
    date_field: str | None = None  # the field of an item that --use_date adds to the text that retrieval compares
    # When an item was written, as (year, month, ...), for recency. None: the last item in the file is the latest.
    item_date: Callable[[Item], tuple[int, ...] | None] | None = None
    # Returns (name, text) pairs; only the scorer may see these texts, so a profile must not contain them. The record
    # may be unchecked.
    hidden: Callable[[Record], Iterable[tuple[str, str]]] = lambda record: ()
    annotations: tuple[str, ...] = ()  # fields that no system may see, besides the metrics' fields

    # Asking
    # The texts of a record that a prompt may show besides profile and plan; never those that only the scorer may see.
    values: Callable[[Record], dict[str, str]] = lambda record: {"question": record["question"]}
    asked_needs: tuple[str, ...] = ()  # further fields that every prompt needs, also without --rag
    arrange: Arrange = best_first  # puts retrieved items, best first, in the order of the prompt
    item_template: Callable[[Item], str] | None = None  # an item's text in a prompt; None: `item_text`
    join: Callable[[list[str]], str] = join_posts
    trimmed: str | None = None  # the text field of an item that --trim_items cuts; None: items are whole or left out
    # Returns a history that is a conversation, from a record, the number of best items (None without --rag), and
    # `arrange`. None: items are texts in one message, and a prompt without --rag has no items.
    history: Callable[[Record, int | None, Arrange], History] | None = None
    # The share of such a history before the place that the question is about; None if unknown.
    evidence_position: Callable[[Record], float | None] = lambda record: None
    prompt_length: int | None = None  # default tokens of prompt and output together; None: the paper's 8192
    options: Options | None = None  # None: answers are free, and --choose is refused
    # Other ways to ask, for --asking: by name, the benchmark asked in this way.
    ways: Mapping[str, "Task"] = field(default_factory=dict)
    # Further counts for the last line of baselines.py, from the outputs of a response file.
    count_outputs: Callable[[Iterable[dict[str, Any]]], dict[str, int]] = lambda outputs: {}
    # Returns the titles of the gold plan. None: there are no plans, so planning is refused.
    gold_plan: Callable[[Record], list[str]] | None = None
    gold_plan_needs: tuple[str, ...] = ()  # fields that `gold_plan` and `private_notes` read
    # What a teacher sees of the rubric (--objective distill), "" for nothing; None if there is no rubric.
    private_notes: Callable[[Record], str] | None = None
    epochs: int = 10  # of utils/train_generator.py over its training set
    controls: Controls | None = None  # None: there is no judge to test

    # Showing
    benchmark: str | None = None  # tasks of one group with the same value may share a table; None: never shared
    group_words: tuple[str, str, str] = ("group", "groups", "subgroup")  # for one group, several, and a part of one
    group_field: str = "group"  # the text field that `group_of` reads
    short: Mapping[str, str] = field(default_factory=dict)  # short names of groups, for a narrow page
    overall: str | None = None  # the last column, of all questions together; None: it is the mean of the groups' means
    has_own_groups: bool = False  # `groups` come from the data, not the benchmark; tables then have the column `ALL`
    # Other divisions of the questions, for --by: each division's values in order; empty if any value is possible.
    divisions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    item_words: str = "posts"  # plural noun for items

    async def answer(self, record: Record, ask: Any, args: Namespace, **more: Any) -> dict[str, Any]:
        """Answer the question alone, or with --rag after the asker's best posts (paper, figures 13 and 14).

        Returns the record of a call of `ask`, which is an `Ask` and gets `more`. A benchmark that asks otherwise
        overrides this method.
        """
        items = self.best_items(record, args.num_contexts if args.rag else None)
        if args.choose:
            return await ask.record(self.asked_prompt(args), items=items, options=self.options.texts(record))
        return await ask.record("rag" if args.rag else "none", items=items, **more)

    def asked_prompt(self, args: Namespace) -> str:
        """Return the file of the prompt that `answer` uses, as `prompts.load_prompt` takes it."""
        prompts = self.options.prompts if args.choose else self.prompts
        return prompts["rag" if args.rag else "none"]

    def asked_fields(self, args: Namespace) -> list[str]:
        """Return the fields that `answer` reads."""
        options = self.options.needs if args.choose and self.options else ()
        return [*self.asked_needs, *(["profile"] if args.rag else []), *options]

    def best_items(self, record: Record, number: int | None) -> list[str] | History:
        """Return the texts of a question's best `number` items, in the order of the prompt.

        `number` is None for a prompt without --rag.
        """
        if self.history is not None:
            return self.history(record, number, self.arrange)
        if number is None:
            return []
        return [(self.item_template or self.item_text)(item) for item in self.arrange(record["profile"][:number])]

    def best_entries(self, record: Record, number: int) -> Entries:
        """Return `best_items` as entries that can be cut."""

        def entry(item: Item) -> tuple[str, Callable[[str], str]]:
            return item[self.trimmed], lambda text: (self.item_template or self.item_text)({**item, self.trimmed: text})

        return Entries(map(entry, self.arrange(record["profile"][:number])))

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
    def scored_fields(self) -> set[str]:
        """The fields that the task's metrics read."""
        return {name for metric in self.metrics.values() for name in metric.needs}

    @property
    def hidden_fields(self) -> set[str]:
        """The fields that only the scorer may see."""
        return (self.scored_fields - {self.user_field, "profile", *self.asked_needs}) | {*self.annotations}

    @property
    def first_metric(self) -> Metric:
        """The default metric."""
        return next(iter(self.metrics.values()))

    def scored_by(self, metric: str) -> str:
        """Return the name of this task's column in a table over several tasks."""
        return f"{self.name}, {metric}"

    def check(self, record: Record, where: str, fields: Collection[str]) -> None:
        """Raise UserError, beginning with `where`, if one of these fields, which will be read, is invalid.

        If the scorer reads one of them, the record's group is checked too: it must be one of the task's groups, or None
        if it is unknown.
        """
        is_scored = not self.scored_fields.isdisjoint(fields)
        for name, form in self.fields.items():
            if name in fields or (is_scored and name == self.group_field):
                check_field(record, where, name, form)
                if name in self.checks:
                    self.checks[name](record, where)
        group = self.group_of(record)["group"] if is_scored else None
        if group is not None and group not in self.groups:
            raise UserError(f"{where}: the group {group!r} is not one of {', '.join(self.groups)}")
