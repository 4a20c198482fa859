"""What a benchmark is: the facts that the one pipeline asks for. A benchmark is one file that fills in a `Task`.

A script never asks which benchmark it has: it calls what stands here. docs/adding_a_benchmark.md goes through it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from prompts import Messages, Prompt, join_posts
from utils.parsing import Parsed
from utils.scoring.pooled import Pooled
from utils.scoring.verdicts import Verdict

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
class Judge:
    """What a judging model is asked for a verdict, and how its output is read.

    Attributes:
        prompt: its file, as `prompts.load_prompt` takes it.
        messages: from the prompt, the record, the responses, and the number of the verdict.
    """

    prompt: str
    messages: Callable[[Prompt, Record, list[str], int], Messages]
    output: Output


@dataclass(frozen=True)
class Metric:
    """How responses are scored: from verdicts, which a judge gives or a function computes, to a score file.

    Attributes:
        needs: fields of a record that it reads, of `Task.fields`.
        shown: what a verdict hangs on besides the responses: of it a hash is kept, for only like compares with like.
        parts: what each verdict is on, such as an aspect; None where a verdict is on the whole response.
        entry: from a record and its verdicts, in the order of `keys`: `answered`, `score` and `details` of its entry in
            the score file.
        summarize: from all entries to the head of the score file.
        score_of: from an entry's details to its score, 0 to 1 unless lower is better; None where a verdict is missing,
            unless these count 0. ValueError where the details are no such metric's. None: no single system is scored.
        num_verdicts: a question, where there are no `parts`.
        num_systems: how many response files it compares.
        judge: who gives the verdicts; None: `compute` does, from the record and a response.
        unit: what a missing verdict is on, in the singular.
        pooled: how the scores of several questions make one, where that is not their mean.
        lower_is_better: scores are errors, 0 and up.
        worst: what an answer that is missing counts, in words.
    """

    needs: tuple[str, ...]
    shown: Callable[[Record], list[Any]]
    entry: Callable[[Record, list[Verdict]], dict[str, Any]]
    summarize: Callable[[list[dict[str, Any]]], dict[str, Any]]
    score_of: Callable[[list[dict[str, Any]], bool], float | None] | None
    parts: Callable[[Record], list[Any]] | None = None
    num_verdicts: int = 1
    num_systems: int = 1
    judge: Judge | None = None
    compute: Callable[[Record, str], Any] | None = None
    unit: str = "response"
    pooled: Pooled | None = None
    lower_is_better: bool = False
    worst: str = "0"

    def keys(self, record: Record) -> list[tuple[str, int]]:
        """Of a question's verdicts: (question id, number of the verdict)."""
        count = self.num_verdicts if self.parts is None else len(self.parts(record))
        return [(record["id"], i) for i in range(count)]


def best_first(items: Sequence[Item]) -> Sequence[Item]:
    return items


SIZES = {"profile": (list, "Profile size (items)"), "question": (str, "Question length (words)")}


@dataclass(frozen=True)
class Task:
    """A benchmark.

    Attributes:
        name: stands in each record as `task`.
        groups: a table's columns of means, in order.
        place: of a record, its `group`, one of `groups` or None where that is not known, and where groups have parts,
            its `subgroup`: both stand in the score file.
        placed_by: the field, a text, that `place` reads.
        group_words: what a group is called, in the singular and the plural, and what a subgroup is.
        short: by a group's name what stands for it on a narrow page.
        fields: of a record besides id and question; each with what raises UserError where it is not as it must be,
            called with the record and what an error begins with. A field is checked where a step reads it.
        query, item_text: what retrieval compares.
        stated, join: an item as a prompt has it, its `item_text` where None, and what makes one text of several.
        prompts: by method (none, rag, planner, planpers) the prompt's file, as `prompts.load_prompt` takes it.
        values: what a prompt may see of a record besides profile and plan: never what only the scorer may see.
        output: of an answer.
        metrics: by name, the default one first.
        gold_plan: the titles of a plan that is right; None where the benchmark has none, and planning is refused.
        gold_plan_needs: fields that it reads.
        arrange: the order of retrieved items in a prompt, from best first.
        sizes: what utils/dataset_statistics.py measures: by field its kind, list (counted in items) or str (in words),
            and the row's name in the table.
        convert: from a question of the benchmark's own files, with its right answer as `output` where that is known, to
            a record; raises UserError, which begins with the second argument. None: its own files are such records.
        paper_files: what the benchmark's paper prints of its files, by a file's name without its ending: their `group`,
            `split` and number of `questions`, and mean and deviation of each of `sizes`.
        facts: where the benchmark's facts stand, for messages.
    """

    name: str
    groups: tuple[str, ...]
    place: Callable[[Record], dict[str, str | None]]
    fields: Mapping[str, Callable[[Record, str], None]]
    prompts: Mapping[str, str]
    output: Output
    metrics: Mapping[str, Metric]
    facts: str
    group_words: tuple[str, str, str] = ("group", "groups", "subgroup")
    placed_by: str = "group"
    short: Mapping[str, str] = field(default_factory=dict)
    query: Callable[[Record], str] = lambda record: record["question"]
    item_text: Callable[[Item], str] = lambda item: item["text"]
    stated: Callable[[Item], str] | None = None
    join: Callable[[list[str]], str] = join_posts
    values: Callable[[Record], dict[str, str]] = lambda record: {"question": record["question"]}
    gold_plan: Callable[[Record], list[str]] | None = None
    gold_plan_needs: tuple[str, ...] = ()
    arrange: Callable[[Sequence[Item]], Sequence[Item]] = best_first
    sizes: Mapping[str, tuple[type, str]] = field(default_factory=lambda: SIZES)
    convert: Callable[[dict[str, Any], str], Record] | None = None
    paper_files: Callable[[], Mapping[str, Mapping[str, Any]]] = dict

    def best_items(self, record: Record, number: int) -> list[str]:
        """The texts of a question's best items, as many as `number`, in the order of the prompt."""
        return [(self.stated or self.item_text)(item) for item in self.arrange(record["profile"][:number])]

    def check(self, record: Record, where: str, needs: Iterable[str]) -> None:
        """Check the fields that are read.

        Args:
            where: what an error begins with.
            needs: fields, "gold_plan", metrics by name, or "score" for the first of these.
        """
        wanted = self.fields_for(needs)
        for name, check_field in self.fields.items():
            if name in wanted:
                check_field(record, where)

    def fields_for(self, needs: Iterable[str]) -> set[str]:
        """The fields that stand behind needs."""
        behind = {name: metric.needs for name, metric in self.metrics.items()}
        behind |= {"gold_plan": self.gold_plan_needs, "score": next(iter(self.metrics.values())).needs}
        return {field for need in needs for field in behind.get(need, (need,))}
