"""Assemble histories and questions in PersonaMem's format (arXiv 2504.14225): seeded, no model.

All variants of a persona's history have the same blocks in different orders (blocks.py) and the same questions, so with
two variants, questions come in pairs. `assemble` yields one persona's part at a time; `write_files` writes the files
for `utils/download_datasets.py --dataset PersonaMem-32k --source_dir DIR`.
"""

import csv
import hashlib
import json
import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from utils.base.errors import UserError, count_plural
from utils.base.manifest import file_hash, publishing
from utils.base.writing import open_whole
from utils.benchmarks.personamem.letters import LETTERS
from utils.building.personas import blocks
from utils.building.personas.blocks import FEW_BLOCKS, Block, CountTokens, Message, MessageId, Topics
from utils.building.personas.inputs import PERIODS, read_values

SIZES = {"32k": (32_000, 10), "128k": (128_000, 20), "1M": (1_000_000, 60)}  # tokens, blocks
FILES = ("personas", "conversations", "small_talk", "questions")
FULL = 0.9  # a history may have this share of a size's tokens
NAMESPACE = uuid.UUID("6f1d7c0e-54b5-4e0c-9a51-0d6c3f0c8a27")  # fixed, so that a question has the same id in every run
UNFILTERED = "track_full_preference_evolution"
MOST_GUESSED = 1  # right tries without the history, of three, that the filter allows
KEPT_SHARE = 0.5  # share of the questions about earlier blocks to keep in a long history
COLUMNS = (
    "persona_id", "question_id", "question_type", "topic", "context_length_in_tokens", "context_length_in_letters",
    "distance_to_ref_in_blocks", "distance_to_ref_in_tokens", "num_irrelevant_tokens",
    "distance_to_ref_proportion_in_context", "user_question_or_message", "correct_answer", "all_options",
    "shared_context_id", "end_index_in_shared_context", "stereotypical",
)  # fmt: skip


Settings = Mapping[str, Any]  # the flags --size, --n_blocks, --n_variants, --seed and --filter_questions
Inputs = dict[str, dict[str, Any]]  # by the name of an earlier step's file: its values by key
Entry = Mapping[str, Any]  # a question in questions.json


class Row(NamedTuple):
    """A row of the table, and its question."""

    columns: dict[str, str]
    entry: Entry


class Assembled(NamedTuple):
    """A persona's part of the files: histories by id, rows, and counts of what was kept and what was dropped."""

    contexts: dict[str, list[dict[str, str]]]
    rows: list[Row]
    counts: Counter[str]


class Asked(NamedTuple):
    """A question, the message before which it is asked (None: at the end), and the message that it refers to."""

    topic: str
    entry: Entry
    place: MessageId | None
    reference: MessageId
    is_of_last: bool  # whether it is about the main topic's last block (see blocks.py)


def read_inputs(folder: Path) -> Inputs:
    """Read the files of earlier steps; UserError if one is missing or damaged."""
    return {name: read_values(folder / f"{name}.json") for name in FILES}


def assemble(inputs: Inputs, settings: Settings, count_tokens: CountTokens) -> Iterator[Assembled]:
    """Yield one part per persona, so that only one persona's histories are in memory. Each text is tokenized once."""
    empty = {f"entries of {name}.json without a value": [*inputs[name].values()].count(None) for name in inputs}
    yield Assembled({}, [], Counter(empty))
    by_persona: dict[str, dict[str, dict[str, Any]]] = {"conversations": {}, "questions": {}}
    for name, values in by_persona.items():
        for key in sorted(inputs[name]):
            persona, _, topic = key.partition("/")
            if inputs[name][key] is not None:
                values.setdefault(persona, {})[topic] = inputs[name][key]
    small_talk = blocks.make_small_talk(inputs["small_talk"], count_tokens)
    for persona in sorted(inputs["personas"], key=lambda number: (len(number), number)):
        if (value := inputs["personas"][persona]) is not None:
            talks = by_persona["conversations"].get(persona, {}).items()
            topics = {topic: blocks.make_blocks(value["card"], topic, talk, count_tokens) for topic, talk in talks}
            yield assemble_persona(persona, topics, small_talk, by_persona["questions"].get(persona, {}), settings)


def assemble_persona(
    persona: str,
    topics: Topics,
    small_talk: list[list[Message]],
    questions: Mapping[str, list[Entry]],
    settings: Settings,
) -> Assembled:
    """Return a persona's histories and rows; a persona without rows has no histories either."""
    size, key = settings["size"], f"{settings['seed']}:{persona}:{settings['size']}"
    limit, counts = round(FULL * SIZES[size][0]), Counter({"personas": 1})
    chosen = blocks.choose_blocks(topics, settings["n_blocks"], limit, key)
    if chosen is None:
        return Assembled({}, [], counts + Counter({"personas without a topic within the limit, dropped": 1}))
    drawn, main = chosen
    kept = blocks.fit_topics(drawn, main, limit, key)
    counts["blocks"] = sum(map(len, kept.values()))
    counts["blocks over the limit, dropped"] = sum(map(len, drawn.values())) - counts["blocks"]
    counts["personas without a topic of all periods"] = int(len(kept[main]) < len(PERIODS))
    orders, histories = [], []
    for number in range(settings["n_variants"]):
        orders.append(blocks.order_blocks(kept, main, number % 2 == 1, random.Random(f"{key}:order:{number}")))
        rng = random.Random(f"{key}:talk:{number}")
        messages, talk_counts = blocks.add_small_talk(orders[number], small_talk, limit, rng)
        histories.append(messages)
        counts.update(talk_counts)
    guessable = not settings["filter_questions"]
    chosen_questions, dropped = choose_questions(questions, kept[main][-1], orders[0], histories[0], guessable, key)
    counts.update(dropped)
    contexts, rows = {}, []
    for number, messages in enumerate(histories):
        context = [{"role": message.id.role, "content": message.content} for message in messages]
        context_id = hashlib.sha256(json.dumps(context, ensure_ascii=False).encode()).hexdigest()
        contexts[context_id] = context
        variant = f"{size}:{settings['seed']}:{number}"
        rows += [make_row(persona, question, messages, context_id, variant) for question in chosen_questions]
    num_equal, contexts = len(histories) - len(contexts), contexts if rows else {}
    counts.update({"histories": len(contexts), "questions": len(chosen_questions), "rows": len(rows)})
    counts["histories equal to another variant"] = num_equal
    return Assembled(contexts, rows, counts)


def is_guessed(entry: Entry) -> bool:
    """Return whether the filter drops a question, because too many tries without the history were right."""
    exempt = entry["type"] == UNFILTERED or entry["is_line"]
    return not exempt and (entry["blind"] or []).count(True) > MOST_GUESSED


def choose_questions(
    questions: Mapping[str, list[Entry]],
    last: Block,
    order: list[Block],
    messages: list[Message],
    guessable: bool,
    key: str,
) -> tuple[list[Asked], Counter[str]]:
    """Return the questions to ask, and counts of the others by reason.

    All questions about the main topic's last block are asked. About every other block, one question per type is asked,
    at the end of the history, and only if its preference does not change later.

    Args:
        last: the main topic's last block.
        order: the first variant's blocks. In a long history, questions about other blocks are kept with probability
            KEPT_SHARE, unless they are about the topic that the history begins with.
        messages: the first variant's messages. A topic's periods have the same order in all variants, so the first
            variant decides for all.
        guessable: whether to also ask questions that can be answered without the history.
    """
    places = {message.id: number for number, message in enumerate(messages)}
    periods = {(block.topic, block.period) for block in order}
    groups, kept, counts = defaultdict(list), [], Counter[str]()
    candidates = [(topic, entry) for topic, entries in questions.items() for entry in entries]
    for topic, entry in sorted(candidates, key=lambda candidate: (candidate[0], candidate[1]["id"])):
        place, reference = (where and MessageId(topic, where["period"], where["event"], 0, "user")
                            for where in (entry["place"], entry["reference"]))  # fmt: skip
        is_of_last = (topic, entry["period"]) == (last.topic, last.period)
        reasons = {
            "block not in the history": (topic, entry["period"]) not in periods,
            "guessed without the history": not guessable and is_guessed(entry),
            "earlier block, asked in the text": not is_of_last and place is not None,
            "earlier block, updated later": not is_of_last and entry["later_update"],
            "reference not in the history": reference not in places,
            "place not in the history": place is not None and place not in places,
            "not asked after its reference": place and places.get(place, 0) <= places.get(reference, 0),
        }
        if reason := next((reason for reason, is_so in reasons.items() if is_so), None):
            counts[f"questions dropped: {reason}"] += 1
        else:
            group = topic, entry["period"], entry["id" if is_of_last else "type"]
            groups[group].append(Asked(topic, entry, place, reference, is_of_last))
    for group, members in groups.items():
        question = random.Random(f"{key}:one:{group}").choice(members)
        counts["questions dropped: not drawn of their type and block"] += len(members) - 1
        is_always_kept = question.is_of_last or len(order) <= FEW_BLOCKS or question.topic == order[0].topic
        if is_always_kept or random.Random(f"{key}:keep:{question.entry['id']}").random() < KEPT_SHARE:
            kept.append(question)
        else:
            counts["questions dropped: not drawn, long history"] += 1
    return kept, counts


def make_row(persona: str, question: Asked, messages: list[Message], context_id: str, variant: str) -> Row:
    """Return a row of the table.

    Lengths are over the messages before the question. The distance to the reference is over the messages from the
    reference's first user message on. In blocks, it counts both the reference's and the question's block, so it is 1
    within a block.
    """
    entry, ids = question.entry, [message.id for message in messages]
    begin, end = ids.index(question.reference), len(ids) if question.place is None else ids.index(question.place)
    before, length = messages[:end], blocks.tokens_of(messages[:end])
    distance = blocks.tokens_of(messages[begin:end])
    num_blocks = 1 + sum(message_id.role == "system" for message_id in ids[begin + 1 : end + 1])
    irrelevant = blocks.tokens_of([message for message in before if message.id.topic == blocks.SMALL_TALK])
    identity = f"{entry['id']}:{variant}"
    options = [entry["answer"], *entry["wrong"]]
    option_order = random.Random(f"{identity}:options").sample(range(len(LETTERS)), len(LETTERS))
    lettered = [f"({letter}) {options[number]}" for letter, number in zip(LETTERS, option_order, strict=True)]
    values = (
        persona, uuid.uuid5(NAMESPACE, identity), entry["type"], question.topic, length,
        sum(len(message.content) for message in before), num_blocks, distance, irrelevant,
        f"{100 * distance / length:.2f}%", entry["question"], f"({LETTERS[option_order.index(0)]})", repr(lettered),
        context_id, end, "Yes" if entry["is_stereotypical"] else "No",
    )  # fmt: skip
    return Row(dict(zip(COLUMNS, map(str, values), strict=True)), entry)


def write_files(
    parts: Iterable[Assembled], questions: Path, contexts: Path, manifest: dict[str, Any]
) -> tuple[Counter[str], list[Row]]:
    """Write both files, each with a manifest, and return counts and the table's rows.

    Nothing is replaced before both files are on disk. The histories are replaced first, so that a new table always
    finds its histories. UserError if no question is left.
    """
    counts, rows, table_manifest, contexts_manifest = Counter[str](), [], {**manifest}, {**manifest}
    with publishing(questions, table_manifest) as new_table, publishing(contexts, contexts_manifest) as new_contexts:
        with open_whole(new_table) as table, open_whole(new_contexts) as lines:
            writer = csv.DictWriter(table, COLUMNS)
            writer.writeheader()
            for part in parts:
                writer.writerows(row.columns for row in part.rows)
                rows += part.rows
                for context_id, messages in part.contexts.items():
                    lines.write(json.dumps({context_id: messages}, ensure_ascii=False) + "\n")
                counts.update(part.counts)
        if not rows:
            reasons = "; ".join(count_plural(count, name) for name, count in counts.items() if count)
            raise UserError(f"no question is left: {reasons}")
        counts = +counts  # without zeros
        contexts_manifest["counts"] = table_manifest["counts"] = dict(counts)
        table_manifest["contexts_sha256"] = file_hash(new_contexts)
    return counts, rows
