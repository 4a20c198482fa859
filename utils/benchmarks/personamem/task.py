"""PersonaMem: which of four responses suits a user after many sessions (arXiv 2504.14225); one task per size.

A record is `{task, id, question, options: [four texts], target, group, ..., profile}`. `target` is the letter of the
right option, which only the scorer sees. `group` is the canonical name of the question's type. Other columns of the
published table are kept. Many questions share a context, so `profile` is a reference: to the messages of `context`
before `end`, in the file `contexts` beside the dataset (see utils/benchmarks/personamem/contexts.py).
"""

import ast
import random
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from prompts import History
from utils.base.errors import UserError, count_noun, quote
from utils.benchmarks.checks import Item, Record, Text, check_field, check_id, is_unicode
from utils.benchmarks.metric import Metric, Output
from utils.benchmarks.personamem.letters import LETTERS, parse_letter, read_officially
from utils.benchmarks.personamem.results import (
    DISTANCES,
    LENGTH,
    TOKENS,
    distance_of,
    evidence_position,
    read_answer,
    text_in,
    write_results,
)
from utils.benchmarks.published import SharedContexts
from utils.benchmarks.readers import Parsed
from utils.benchmarks.references import label_metrics
from utils.benchmarks.task import ALL, Export, Files, Options, Task
from utils.benchmarks.task import SIZES as MEASURED

HUB = "bowen-upenn/PersonaMem"
BENCHMARK = "PersonaMem"
# By size: the number of questions (from other sources, unverified), and the default window in tokens. The window is
# larger than the paper's contexts, because the estimate for an unknown tokenizer is high.
SIZES = {"32k": (589, 56_000), "128k": (2727, 210_000), "1M": (2674, 1_600_000)}
COUNTED_BY = "an unverified count of the published file"

# Canonical names in the paper's order, with the names in older public files.
TYPES = {
    "recall_user_shared_facts": ("recalling_facts_mentioned_by_the_user",),
    "suggest_new_ideas": ("identifying_new_things_not_mentioned_by_the_user",),
    "acknowledge_latest_user_preferences": ("acknowledge_latest_preferences", "recalling_the_latest_user_preferences"),
    "track_full_preference_evolution": (
        "track_full_preference_updates",
        "tracking_the_full_sequence_of_preference_updates",
    ),
    "revisit_reasons_behind_preference_updates": ("recalling_the_reasons_behind_previous_updates",),
    "provide_preference_aligned_recommendations": ("recommendation_aligned_with_users_latest_preferences",),
    "generalize_to_new_scenarios": (
        "generalizing_to_new_scenarios",
        "generalizing_past_reasons_in_memory_to_new_scenarios",
    ),
}
CANONICAL = {alias: name for name, aliases in TYPES.items() for alias in (name, *aliases)}
SHORT = ("facts", "ideas", "latest", "evol.", "reasons", "recs.", "scen.")

PERSONA = "persona_id"  # all questions are about 20 personas, and each history comes in two orders
QUESTION_COLUMNS = ("user_question_or_message", "question")  # older files have the second
READ_COLUMNS = ("question_id", "question_type", *QUESTION_COLUMNS, "correct_answer", "all_options")
PLACE_COLUMNS = ("shared_context_id", "end_index_in_shared_context")
NEEDED_COLUMNS = (PERSONA, "question_id", "question_type", "correct_answer", "all_options", *PLACE_COLUMNS)
ANNOTATIONS = ("group", "question_type", "distance_to_ref_in_blocks", TOKENS, "num_irrelevant_tokens",
               "distance_to_ref_proportion_in_context")  # fmt: skip
CARD = "system"  # the role of the persona card's messages; each opens a session

_PREFIX = re.compile(r"\s*\(([a-dA-D])\)\s*")
MOST_CHARACTERS = 1_000_000  # of a question's options; Python's literal parser takes 100 times as much memory


# Reading the published files


def convert(name: str, row: dict[str, Any], where: str) -> Record:
    """Return a record from a row of the table of questions; UserError if a column is missing or malformed."""
    if missing := [column for column in NEEDED_COLUMNS if column not in row]:
        raise UserError(f"{where}: no column {missing[0]!r}; use the published questions_<size>.csv")
    record_id = check_id(row["question_id"], where)
    where = f"{where} (id {quote(record_id)})"
    question = next((row[column] for column in QUESTION_COLUMNS if column in row), "")
    if not question.strip():
        raise UserError(f"{where}: column {QUESTION_COLUMNS[0]!r} is empty")
    check_field(row, where, PERSONA)
    if row["question_type"] not in CANONICAL:
        raise UserError(f"{where}: question_type {quote(row['question_type'])} is not one of {', '.join(TYPES)}")
    options = read_options(row["all_options"], where)
    target = row["correct_answer"].strip().strip("()").lower()
    if target not in LETTERS:
        raise UserError(f"{where}: correct_answer {quote(row['correct_answer'])} is not one of (a), (b), (c), (d)")
    kept = {column: value for column, value in row.items() if column not in (*READ_COLUMNS, *PLACE_COLUMNS)}
    place = {"context": row[PLACE_COLUMNS[0]], "end": read_end(row[PLACE_COLUMNS[1]], where)}
    record = {"task": name, "id": record_id, "question": question, "options": options, "target": target}
    record |= {"group": CANONICAL[row["question_type"]], "question_type": row["question_type"]}
    return {**record, **kept, **record, "profile": place}  # our fields win over columns of the same name


def read_options(text: str, where: str) -> list[str]:
    """Return the four options without their letters, from a Python list written as text."""
    options = read_literal(text)
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise UserError(f"{where}: all_options {quote(text[:80])} is not a Python list of strings")
    letters = [match and match[1].lower() for match in map(_PREFIX.match, options)]
    if letters != list(LETTERS):
        raise UserError(
            f"{where}: all_options has {count_noun(len(options), 'text')}; it must have four, starting with (a) to (d)"
        )
    texts = [_PREFIX.sub("", option, count=1) for option in options]
    if not all(text.strip() and is_unicode(text) for text in texts):
        raise UserError(f"{where}: all_options has an option without text")
    return texts


def read_literal(text: str) -> Any:
    """Return the value of a Python literal, without running it; None if the text is too long or not a literal."""
    try:
        return ast.literal_eval(text) if len(text) < MOST_CHARACTERS else None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def read_end(text: str, where: str) -> int:
    """Return the number of messages before the question, which tables written by pandas may have as 57.0."""
    if not re.fullmatch(r"-?\d{1,9}(\.0)?", text.strip()):
        raise UserError(f"{where}: end_index_in_shared_context {quote(text)} is not a whole number")
    return int(float(text))


class Reference(msgspec.Struct):
    """A profile's reference to a context; utils/benchmarks/personamem/contexts.py checks that the context exists."""

    contexts: Text
    context: Text
    end: Annotated[int, msgspec.Meta(ge=1)]
    unit: Literal["message", "session"] = "message"
    order: list[int] = []


# Contents of prompts


def options_text(options: Sequence[str]) -> str:
    return "\n".join(f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=True))


def values(record: Record) -> dict[str, str]:
    return {"question": record["question"], "options": options_text(record["options"])}


def order_of_options(question_id: str, number: int, seed: int) -> list[str]:
    """Return the options' letters in the order in which the prompt of a further answer shows the options."""
    return random.Random(f"{seed} {question_id} {number}").sample(LETTERS, len(LETTERS))


class MultipleChoice(Task):
    """A benchmark whose questions have options. Each further answer (number 1 and up) sees them in another order.

    The order depends only on seed, question and answer number. The answer is the option's letter in the dataset; its
    field "shown" has the letters in the order shown, beginning with the option that was shown as (a).
    """

    async def answer(self, record: Record, ask: Any, args: Namespace) -> dict[str, Any]:
        number = ask.sample
        if args.choose or not number or "options" not in self.values(record):
            return await super().answer(record, ask, args)
        order = order_of_options(record["id"], number, args.seed or 0)
        options = [record["options"][LETTERS.index(letter)] for letter in order]

        def parse(text: str, cut: bool = False) -> Parsed:
            letter = self.output.parse(text, cut)
            return letter if letter.value is None else replace(letter, value=order[LETTERS.index(letter.value)])

        return await super().answer(
            record,
            ask,
            args,
            values=self.values({**record, "options": options}),
            parse=parse,
            schema=self.output.schema,
            fields={"shown": "".join(order)},
        )


def in_order_of_time(items: Sequence[Item]) -> Sequence[Item]:
    return sorted(items, key=lambda item: item["places"][0])


def history(record: Record, number: int | None, arrange: Callable[[Sequence[Item]], Sequence[Item]]) -> History:
    """Return the turns of a user's history for a prompt.

    The system messages have the persona card, which is never left out for length. If only the best items are used, each
    version of the card appears once.

    Args:
        number: how many of the best items to use. 0: no history and no card, to measure what the options alone reveal.
            None: all messages before the question; if they do not fit, the oldest are left out.
        arrange: puts items into the order of the prompt; it gets the cards first, then the items, best first.
    """
    if number == 0:
        return History([], [], [])
    profile, messages = record["profile"], record["profile"].messages
    if number is None:
        cards = [place for place, message in enumerate(messages) if message["role"] == CARD]
        others = [[place] for place, message in enumerate(messages) if message["role"] != CARD]
        return History(messages, cards, others[::-1])
    first_places = {message["content"]: place for place, message in reversed(list(enumerate(messages)))
                    if message["role"] == CARD}  # fmt: skip
    cards = [{"id": CARD, "places": [place]} for place in sorted(first_places.values())]
    best = profile[:number]
    places, numbers = [], {}
    for item in arrange([*cards, *best]):
        numbers.setdefault(item["id"], []).extend(range(len(places), len(places) + len(item["places"])))
        places += item["places"]
    shown, items = [messages[place] for place in places], [numbers[item["id"]] for item in best]
    return History(shown, numbers.get(CARD, []), items, places=places)


# Scores


def letters_of(entries: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the share of each letter among the letters that were read."""
    chosen = Counter(detail["label"] for entry in entries for detail in entry["details"])
    total = sum(chosen[letter] for letter in LETTERS)
    return {letter: chosen[letter] / total for letter in LETTERS} if total else {}


def count_outputs(outputs: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return how often each shown letter was chosen (position bias), and the percentage of cached prompt tokens."""
    outputs = list(outputs)
    read = [(output["output"], output.get("shown", "".join(LETTERS))) for output in outputs if output["output"]]
    chosen = Counter(LETTERS[shown.index(letter)] for letter, shown in read)
    counts = {f"chose ({letter})": chosen[letter] for letter in LETTERS}
    prompts, cached = ([output.get(f"{of}_tokens", 0) for output in outputs] for of in ("prompt", "cached"))
    if None not in prompts + cached and sum(prompts):
        counts["% of prompt tokens from the cache"] = round(100 * sum(cached) / sum(prompts))
    return counts


def same_as_right(record: Record) -> set[str]:
    """Return the letters of all options with the right option's text, including its own; empty without options."""
    texts = dict(zip(LETTERS, (text.split() for text in record.get("options", ())), strict=False))
    return {letter for letter, text in texts.items() if text == texts[record["target"]]}


def official_label(record: Record, response: str) -> str:
    """Return the right letter if the public code counts a model's whole text as right, otherwise "".

    Use this only for comparison: the public code uses the right letter when it reads a text.
    """
    return record["target"] if read_officially(response, record["target"]) else ""


def metrics() -> dict[str, Metric]:
    accuracy = label_metrics(LETTERS)["accuracy"]

    def summarize(entries: list[dict[str, Any]]) -> dict[str, Any]:
        return {**accuracy.summarize(entries), "letters": letters_of(entries)}

    def summarize_official(entries: list[dict[str, Any]]) -> dict[str, Any]:
        return {**accuracy.summarize(entries), "strategy": "accuracy-official"}

    def choice(record: Record, response: str) -> str:
        """Return the letter of a response; an option with the right option's text counts as right."""
        letter = accuracy.compute(record, response)
        return record["target"] if letter in same_as_right(record) else letter

    def over_orders(records: Iterable[Record], responses: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
        """Return the mean score over several answers (orders of the options), if questions have several.

        Also return the number of questions in which another option has the right option's text, unless it is 0.
        """
        shares, most, num_twins = [], 1, 0
        for record in records:
            answers = [choice(record, answer["output"] or "") for answer in responses[record["id"]]]
            shares.append(answers.count(record["target"]) / len(answers))
            most, num_twins = max(most, len(answers)), num_twins + (len(same_as_right(record)) > 1)
        counts = {"num_identical_to_right": num_twins} if num_twins else {}
        return counts | ({"num_orders": most, "score_over_orders": sum(shares) / len(shares)} if most > 1 else {})

    accuracy = replace(accuracy, needs=(*accuracy.needs, PERSONA), judge_inputs=judge_inputs, is_share=True)
    ours = replace(accuracy, summarize=summarize, over_outputs=over_orders, compute=choice)
    official = replace(accuracy, summarize=summarize_official, compute=official_label, reads="raw")
    official = replace(official, is_unreadable=lambda entry: False)  # its label is empty for wrong letters too
    return {"accuracy": ours, "accuracy-official": official}


def judge_inputs(record: Record) -> list[Any]:
    return [record["question"], record["target"], record.get("options")]


def group_of(record: Record, types: Mapping[str, Any] = TYPES) -> dict[str, str | None]:
    group = next((name for name in types if name == record.get("group")), None)
    return {"group": group, "topic": text_in(record, "topic"), "distance": distance_of(record)}


def make_task(size: str, questions: int, length: int) -> Task:
    name = f"{BENCHMARK}-{size}"
    return MultipleChoice(
        name=name,
        groups=tuple(TYPES),
        group_of=group_of,
        group_words=("type", "types", "topic"),
        short=dict(zip(TYPES, SHORT, strict=True)),
        overall=ALL,
        user_field=PERSONA,
        annotations=ANNOTATIONS,
        divisions={"topic": (), "distance": DISTANCES},
        fields={
            "profile": Reference,
            "options": Annotated[list[Text], msgspec.Meta(min_length=len(LETTERS), max_length=len(LETTERS))],
            "target": Literal[tuple(LETTERS)],
            PERSONA: Text,
        },
        asked_needs=("profile", "options"),
        prompts={"none": "personamem/choice", "rag": "personamem/choice"},
        prompt_length=length,
        item_words="messages or sessions",
        output=Output(r"\([a-d]\)", parse_letter),
        metrics=metrics(),
        options=Options(
            prompts={"none": "personamem/likelihood", "rag": "personamem/likelihood"},
            needs=("options",),
            texts=lambda record: dict(zip(LETTERS, record["options"], strict=True)),
        ),
        values=values,
        history=history,
        evidence_position=evidence_position,
        arrange=in_order_of_time,
        count_outputs=count_outputs,
        files=Files(
            facts="utils/benchmarks/personamem/task.py",
            sizes={
                **MEASURED,
                LENGTH: (float, "Context length (tokens)"),
                TOKENS: (float, "Distance to the reference (tokens)"),
            },
            convert=partial(convert, name),
            export=Export(f"{name.replace('-', '_')}_results.csv", write_results, needs=("target",)),
            read_answer=read_answer,
            paper_results=Path(__file__).with_name("paper.json"),
            published=lambda: {"": [SharedContexts(HUB, "", BENCHMARK, {"task": name}, {size: questions}, COUNTED_BY)]},
        ),
    )


TASKS = [make_task(size, *figures) for size, figures in SIZES.items()]
