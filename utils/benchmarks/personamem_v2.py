"""PersonaMem-v2: which of four responses suits a user with implicit preferences (arXiv 2512.06688).

A record has PersonaMem's fields (utils/benchmarks/personamem.py), and is asked and scored in the same way. That is our
choice: the public code shows options A to D in a system message after the question, and asks for reasoning first. It
orders the options by Python's `hash`, which differs between processes. Ours depends only on the persona and texts.
"""

import hashlib
import json
import random
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from utils.benchmarks import personamem
from utils.benchmarks.checks import check_field
from utils.benchmarks.personamem import PERSONA, read_literal
from utils.benchmarks.personamem_results import LENGTH, TOKENS, text_in
from utils.benchmarks.published import OnHub, Originals
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import quote
from utils.models.hub_datasets import Source
from utils.parsing.letters import LETTERS

BENCHMARK, SIZES = "PersonaMem-v2", ("32k", "128k")
TABLE, OTHER_TABLES = "benchmark.csv", "multimodal"  # a folder for questions on histories with images
LINK, MESSAGES = "chat_history_{}_link", "chat_history"

# Values of pref_type in the public code, with short names.
TYPES = {"stereotypical_pref": "stereo.", "anti_stereotypical_pref": "anti-st.", "neutral_preferences": "neutral",
         "therapy_background": "therapy", "health_and_medical_conditions": "medical", "sensitive_info": "sensitive",
         "ask_to_forget": "forget"}  # fmt: skip
# What its makers know about a question, besides the columns that only the scorer needs.
ANNOTATIONS = (*personamem.ANNOTATIONS, "pref_type", "who", "updated", "conversation_scenario", "sensitive_info",
               *(f"distance_from_related_snippet_to_query_{size}" for size in SIZES))  # fmt: skip
UPDATED = {"True": "updated", "False": "not updated"}  # values of the column, with names for tables
READ_COLUMNS = ("user_query", "correct_answer", "incorrect_answers")
# Columns that reveal the right response. They are never copied to a record, so no prompt can show them.
SECRET_COLUMNS = ("preference", "topic_preference", "prev_pref", "related_conversation_snippet", "raw_persona_file",
                  "short_persona", "expanded_persona")  # fmt: skip


class LinkedHistories(OnHub):
    """A table of questions on the hub that links to one file per history; `questions` has the count of each size."""

    def originals(self, source: Source, split: str) -> Originals:
        """Find the table, in any folder; UserError unless there is exactly one."""
        paths = [path for path in sorted(source.sizes) if PurePosixPath(path).name == TABLE]
        found = [path for path in paths if OTHER_TABLES not in PurePosixPath(path).parts]
        if len(found) != 1:
            problem = f"{found[0]} and {found[1]} may be from different releases" if found else f"has no file {TABLE}"
            raise UserError(
                f"{source.name}: {problem}\n  give one copy of {self.name} as published on the hub, {self.at}"
            )
        return Originals(found, link=LINK.format(split), messages=MESSAGES, ids_repeat=True)


def convert(size: str, row: dict[str, Any], where: str) -> Record:
    """Return a record from a row of the table; UserError if a column is missing or malformed."""
    link = LINK.format(size)
    if missing := [column for column in (PERSONA, *READ_COLUMNS, "pref_type", link) if column not in row]:
        raise UserError(f"{where}: no column {missing[0]!r}; give the published {TABLE}")
    check_field(row, where, PERSONA)
    check_field(row, where, "correct_answer")
    query, right = read_literal(row["user_query"]), row["correct_answer"]
    question = query.get("content") if isinstance(query, dict) and query.get("role") == "user" else None
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"{where}: user_query {quote(row['user_query'][:80])} is not a Python dict with a user's text")
    wrong = read_wrong(row["incorrect_answers"], where)
    if any(one.split() == right.split() for one in wrong):
        raise UserError(f"{where}: incorrect_answers has the right answer too, {quote(right[:80])}")
    texts = sorted([right, *wrong])  # sorted, so the table's order has no effect
    if row["pref_type"] not in TYPES:
        raise UserError(f"{where}: pref_type {quote(row['pref_type'])} is not one of {', '.join(TYPES)}")
    digest = hashlib.sha256(json.dumps([row[PERSONA], question, texts]).encode()).hexdigest()
    options = random.Random(digest).sample(texts, len(texts))
    record = {"task": f"{BENCHMARK}-{size}", "id": f"{row[PERSONA]}-{digest[:12]}", "question": question}
    record |= {"options": options, "target": LETTERS[options.index(right)], "group": row["pref_type"]}
    renamed = {"topic": "topic_query", LENGTH: f"total_tokens_in_chat_history_{size}",
               TOKENS: f"distance_from_related_snippet_to_query_{size}"}  # fmt: skip
    record |= {name: row[column] for name, column in renamed.items() if column in row}
    kept = {column: value for column, value in row.items() if column not in (*READ_COLUMNS, *SECRET_COLUMNS)}
    return {**record, **kept, **record, "profile": {"context": row[link], "end": None}}


def read_wrong(text: str, where: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not (isinstance(found, list) and len(found) == 3 and all(isinstance(one, str) and one.strip() for one in found)):
        raise UserError(f"{where}: incorrect_answers {quote(text[:80])} is not a JSON list of three texts")
    return found


def group_of(record: Record) -> dict[str, str | None]:
    updated = text_in(record, "updated")
    others = {"who": text_in(record, "who"), "updated": UPDATED.get(updated, updated)}
    return {**personamem.group_of(record, TYPES), **others}


def make_task(size: str) -> Task:
    name, base = f"{BENCHMARK}-{size}", personamem.make_task(size, *personamem.SIZES[size])
    about = (f"bowen-upenn/{BENCHMARK}", "", BENCHMARK, {"task": name}, {size: 5000}, personamem.COUNTED_BY)
    own = {"export": None, "read_answer": None, "paper_results": None}  # only the first version has these
    own |= {"name": name, "groups": tuple(TYPES), "short": TYPES, "facts": "utils/benchmarks/personamem_v2.py"}
    own |= {
        "group_of": group_of,
        "convert": partial(convert, size),
        "published": lambda: {"": [LinkedHistories(*about)]},
    }
    own |= {"annotations": ANNOTATIONS}
    own |= {"divisions": {**base.divisions, "who": ("self", "others"), "updated": tuple(UPDATED.values())}}
    return replace(base, **own, metrics={"accuracy": base.metrics["accuracy"]})


TASKS = list(map(make_task, SIZES))
