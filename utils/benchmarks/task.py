"""`Task`: everything that the pipeline needs to know about a benchmark.

Scripts never check which benchmark they have; they use the fields of its `Task` (docs/adding_a_benchmark.md).
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
    """The texts that --choose likelihood chooses from, and its prompts, which do not show these options."""

    prompts: Mapping[str, str]  # files by method (none, rag), as `prompts.load_prompt` takes them
    needs: tuple[str, ...]  # fields of `Task.fields` that `texts` reads
    # Returns each option's text, without its letter and not empty, by the option's answer (a value of `Output.parse`).
    texts: Callable[[Record], Mapping[str, str]]

    def of_length(self, record: Record, extreme: Callable[[Iterable[int]], int]) -> list[str]:
        """Return the answers whose text is the longest (`extreme` is max) or shortest (min), in characters."""
        texts = self.texts(record)
        length = extreme(map(len, texts.values()))
        return [answer for answer, text in texts.items() if len(text) == length]


class Entries(list[tuple[str, Callable[[str], str]]]):
    """Items that may be cut to fit: for each, the text to cut, and a function from what is left to the item's text."""


@dataclass(frozen=True)
class Export:
    """How to write a system's answers for the benchmark's own scorer or leaderboard."""

    name: str  # the file's name
    # Returns the file's text, from records and first responses by id; a missing response has an empty `output`.
    write: Callable[[Sequence[Record], Mapping[str, dict[str, Any]]], str]
    needs: tuple[str, ...] = ()  # fields of `Task.fields` that `write` reads


Arrange = Callable[[Sequence[Item]], Sequence[Item]]


def best_first(items: Sequence[Item]) -> Sequence[Item]:
    return items


SIZES = {"profile": (list, "Profile size (items)"), "question": (str, "Question length (words)")}


@dataclass(frozen=True)
class Files:
    """A benchmark's own files: how they are read and written, and what its paper says about them."""

    facts: str  # the file with the benchmark's groups and other facts, for messages
    # Returns the record for a question of the benchmark's own files, which has the right answer as `output` if known.
    # Raises a UserError that begins with the second argument. None: the files already have records.
    convert: Callable[[dict[str, Any], str], Record] | None = None
    # Joins the rows of `Tables`, by table, to the part named by the first argument. Returns (place, record) pairs, the
    # contents of the files beside the part, and the number of things left out, by description. Rows are (place, row)
    # pairs; a place is for messages.
    join: Callable[[str, Mapping[str, Iterable[Any]]], tuple[list[Any], dict[str, Any], dict[str, int]]] | None = None
    # Where the benchmark's own files are published, by setting (such as a split by users or by time, or ""), with the
    # default setting first. Empty: utils/download_datasets.py does not support the benchmark.
    published: Callable[[], Mapping[str, Sequence[Published]]] = dict
    # The same for further datasets of such records, by the dataset's name.
    also_published: Callable[[], Mapping[str, Mapping[str, Sequence[Published]]]] = dict
    # The fields that utils/dataset_statistics.py measures, each with its kind (list: counted in items; str: in words;
    # float: a number) and the name of its row.
    sizes: Mapping[str, tuple[type, str]] = field(default_factory=lambda: SIZES)
    # The paper's figures for its files, by file name without suffix: `group`, `split`, the number of `questions`, and
    # the mean and standard deviation of each of `sizes`.
    paper_files: Callable[[], Mapping[str, Mapping[str, Any]]] = dict
    export: Export | None = None  # None if the benchmark has no scorer or leaderboard of its own
    # Returns the question's id and the response in a row (a dict by column) of the public code's result table. Raises a
    # UserError that begins with the second argument. None: responses are never read from tables.
    read_answer: Callable[[Mapping[str, str], str], tuple[str, dict[str, Any]]] | None = None
    # A file with the scores in the paper's tables, which `utils.tables.paper_numbers.read_paper` reads.
    paper_results: Path | None = None


@dataclass(frozen=True)
class Task:
    """A benchmark: what a record is, what a prompt shows of it, and how tables show its scores."""

    name: str  # the value of each record's `task`
    groups: tuple[str, ...]  # groups of questions, in the order of a table's columns
    # Returns a record's `group` (None if unknown), its `subgroup` if groups have subgroups, and a text for each of
    # `divisions`. All of them are written to the score file.
    group_of: Callable[[Record], dict[str, str | None]]
    # The msgspec types of a record's fields besides id and question, which are checked when they are read.
    fields: Mapping[str, Any]
    # Prompt files by name (none, rag, planner, planpers, ...), as `prompts.load_prompt` takes them.
    prompts: Mapping[str, str]
    output: Output  # the form of an answer
    metrics: Mapping[str, Metric]  # by name, the default one first
    files: Files

    # Data
    # Further checks of some of `fields`; they raise a UserError that begins with the second argument.
    checks: Mapping[str, Callable[[Record, str], None]] = field(default_factory=dict)
    # The field with the user's id, by which intervals and tests are clustered; None: one question per user.
    user_field: str | None = None
    query: Callable[[Record], str] = lambda record: record["question"]  # what retrieval compares with `item_text`
    item_text: Callable[[Item], str] = lambda item: item["text"]
    date_field: str | None = None  # the field of an item that --use_date adds to the text that retrieval compares
    # When an item was written, as (year, month, ...), for recency. None: the last item in the file is the latest.
    item_date: Callable[[Item], tuple[int, ...] | None] | None = None
    # Returns (name, text) pairs of the texts that only the scorer may see, so a profile must not contain them. The
    # record may be unchecked.
    hidden: Callable[[Record], Iterable[tuple[str, str]]] = lambda record: ()
    annotations: tuple[str, ...] = ()  # fields that no system may see, in addition to those of the metrics

    # Asking
    # The texts of a record that a prompt may show besides profile and plan; never those that only the scorer may see.
    values: Callable[[Record], dict[str, str]] = lambda record: {"question": record["question"]}
    asked_needs: tuple[str, ...] = ()  # further fields that every prompt needs, even without --rag
    arrange: Arrange = best_first  # puts retrieved items (best first) into the order of the prompt
    item_template: Callable[[Item], str] | None = None  # an item's text in a prompt; None: `item_text`
    join: Callable[[list[str]], str] = join_posts
    trimmed: str | None = None  # the text field of an item that --trim_items cuts; None: items are whole or left out
    # Returns the turns of a history that is a conversation, from a record, the number of best items (None without
    # --rag), and `arrange`. None: items are texts in one message, and a prompt without --rag has no items.
    history: Callable[[Record, int | None, Arrange], History] | None = None
    # Returns the share of a history that comes before the place that the question is about; None if unknown.
    evidence_position: Callable[[Record], float | None] = lambda record: None
    prompt_length: int | None = None  # default window, tokens of prompt and output together; None: the paper's 8192
    options: Options | None = None  # None: answers are free text, and --choose is refused
    # Other ways to ask, for --asking: by name, the task that asks in this way.
    ways: Mapping[str, "Task"] = field(default_factory=dict)
    # Further counts for the last line of baselines.py, from the outputs of a response file.
    count_outputs: Callable[[Iterable[dict[str, Any]]], dict[str, int]] = lambda outputs: {}
    # Returns the titles of the gold plan. None: there are no plans, so planning is refused.
    gold_plan: Callable[[Record], list[str]] | None = None
    gold_plan_needs: tuple[str, ...] = ()  # fields that `gold_plan` and `private_notes` read
    # Returns the part of the rubric that a teacher sees (--objective distill), "" for nothing. None: no rubric.
    private_notes: Callable[[Record], str] | None = None
    epochs: int = 10  # default epochs of utils/train_generator.py
    controls: Controls | None = None  # None: there is no judge to test

    # Showing
    benchmark: str | None = None  # tasks with the same value may share a table; None: never
    group_words: tuple[str, str, str] = ("group", "groups", "subgroup")  # words for a group, groups, and a subgroup
    group_field: str = "group"  # the text field that `group_of` reads
    short: Mapping[str, str] = field(default_factory=dict)  # short names of groups, for a narrow page
    overall: str | None = None  # name of a last column over all questions; None: the last column is the macro average
    has_own_groups: bool = False  # `groups` come from the data, not the benchmark; tables then have the column `ALL`
    # Other divisions of the questions, for --by: by field, the possible values in order; empty for any value.
    divisions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    item_words: str = "posts"  # the plural noun for items

    async def answer(self, record: Record, ask: Any, args: Namespace, **more: Any) -> dict[str, Any]:
        """Answer the question alone, or with --rag given the asker's best posts (paper, figures 13 and 14).

        Returns the record of a call of `ask`, an `Ask`, which gets the arguments in `more`. Benchmarks that ask in
        another way override this method.
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
        """Return the best items as `Entries`, which --trim_items may cut."""

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
        """Return the names of the metrics that score parsed answers, or with `official`, raw texts.

        Raw texts are read by the public code's rule. If no metric matches, return the names of all metrics.
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
        """Raise UserError, beginning with `where`, if one of these fields is invalid.

        If the scorer reads one of them, the record's group is checked too: it must be one of the task's groups, or None
        for unknown.
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
