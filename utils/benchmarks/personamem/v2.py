"""PersonaMem-v2: which of four responses suits a user with implicit preferences (arXiv 2512.06688).

A record has PersonaMem's fields (see task.py) and the `preference` that the right option follows, which only the judge
of open answers sees. Without --asking, questions are asked as in PersonaMem. `--asking official` asks as in the public
code: the options A to D come in a system message after the question, and the model reasons first. `--asking open` shows
no options. The public code orders the options by Python's `hash`, which differs between processes; here, the order
depends only on the persona and the texts.
"""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from prompts import Messages, Prompt
from utils.base.errors import UserError, quote
from utils.benchmarks import direct
from utils.benchmarks.checks import Record, Text, check_field
from utils.benchmarks.longlamp import TEXT
from utils.benchmarks.metric import Judge, Metric, Output
from utils.benchmarks.personamem import task as personamem
from utils.benchmarks.personamem.letters import BOX_ENDS, BOX_MARKS, BOX_OPENS, LETTERS
from utils.benchmarks.personamem.results import LENGTH, TOKENS, text_in
from utils.benchmarks.personamem.task import PERSONA, read_literal
from utils.benchmarks.published import OnHub, Originals, Source
from utils.benchmarks.readers import Parsed, nothing, pattern, plain
from utils.benchmarks.scoring import Verdict, is_answered, origin
from utils.benchmarks.task import Files, Task

BENCHMARK, SIZES = "PersonaMem-v2", ("32k", "128k")
# By setting: the table's name, the name of our files, and the number of questions in each size.
TABLES = {
    "": ("benchmark.csv", BENCHMARK, 5000),
    "train": ("train.csv", f"{BENCHMARK}_train", 18_549),
    "validation": ("val.csv", f"{BENCHMARK}_validation", 2061),
}
OTHER_TABLES = "multimodal"  # a folder for questions on histories with images
LINK, MESSAGES = "chat_history_{}_link", "chat_history"

# Values of pref_type in the public code, with short names.
TYPES = {"stereotypical_pref": "stereo.", "anti_stereotypical_pref": "anti-st.", "neutral_preferences": "neutral",
         "therapy_background": "therapy", "health_and_medical_conditions": "medical", "sensitive_info": "sensitive",
         "ask_to_forget": "forget"}  # fmt: skip
# Columns with the benchmark authors' annotations of a question, besides the columns that the scorer needs.
ANNOTATIONS = (*personamem.ANNOTATIONS, "pref_type", "who", "updated", "conversation_scenario", "sensitive_info",
               *(f"distance_from_related_snippet_to_query_{size}" for size in SIZES))  # fmt: skip
UPDATED = {"True": "updated", "False": "not updated"}  # values of the column, with names for tables
READ_COLUMNS = ("user_query", "correct_answer", "incorrect_answers")
# Columns that reveal the right response. They are never copied to a record, so no prompt can show them.
SECRET_COLUMNS = ("topic_preference", "prev_pref", "related_conversation_snippet", "raw_persona_file",
                  "short_persona", "expanded_persona")  # fmt: skip


class LinkedHistories(OnHub):
    """A table of questions on the hub that links to one file per history.

    `folder` is the table's file name, and `questions` has the number of questions of each size.
    """

    def originals(self, source: Source, split: str) -> Originals:
        """Find the table, in any folder; UserError unless exactly one file has its name."""
        paths = [path for path in sorted(source.sizes) if PurePosixPath(path).name == self.folder]
        tables = [path for path in paths if OTHER_TABLES not in PurePosixPath(path).parts]
        if len(tables) != 1:
            several = f"{' and '.join(tables[:2])} may be from different releases"
            problem = several if tables else f"has no file {self.folder}"
            raise UserError(
                f"{source.name}: {problem}\n  use one copy of {self.name} as published on the hub, {self.at}"
            )
        return Originals(tables, link=LINK.format(split), messages=MESSAGES, ids_repeat=True)


# A letter is read by the public code's rule: the first of these forms that occurs in the text decides, at its first
# occurrence, ignoring case. So "answer: a good one" names A, and "Final Answer: [X]" names no letter.
_LETTER_FORMS = [
    re.compile(form, re.IGNORECASE | re.MULTILINE)
    for form in (
        r"\\boxed\{([A-Z])\}",
        r"final answer:\s*+([A-Z])",
        r"answer:\s*+([A-Z])",
        r"final answer is\s*+([A-Z])",
        r"the answer is\s*+([A-Z])",
        r"\b([A-Z])\.[^\S\n]*+$",
    )
]
# Yes or No. The "no" of "no conflict" and boxes in a repeated instruction are not verdicts.
_YES_NO = r"(yes|no(?![^\S\n]++(?!(?:because|as|since|it|the|this)\b)\w))\b"
_BOX = pattern(rf"{BOX_OPENS}(?:(?:final\s)?(?:answer|verdict){BOX_MARKS})?+(yes|no)\b{BOX_ENDS}")
_EITHER_BOX = pattern(r"\bboxed\s*+\{[^\n}]{0,30}\}++\W{0,9}or\W{0,9}boxed\s*+\{[^\n}]{0,30}\}++")
_ANY_BOX = pattern(r"\bboxed\s*+\{")
_CONDITION = pattern(r"[^\w\n.!?]{0,20}(?:if|when|unless|otherwise)\b")
_SENTENCE_ENDS = pattern(r"[.!?]\W{0,3}\s|\n")
_EITHER_WORD = pattern(r"\b(?:yes\s*+(?:or|/)\s*+no|no\s*+(?:or|/)\s*+yes)\b[\s?:*_]*+")
_FINAL = pattern(rf"\b(?:answer|verdict)\b(?:\s++is\b)?+[\s:*_\"'“‘]*+{_YES_NO}(?!\s*+(?:or\b|/))")
_BEGINNING = pattern(rf"[\s*_\"'“‘]*+{_YES_NO}")
_WORD = pattern(rf"\b{_YES_NO}")


def parse_final_letter(text: str, cut: bool = False) -> Parsed:
    """Read the letter of an option, A to D; the value is "a" to "d"."""
    body = plain(text)
    letter = next((match[1].lower() for form in _LETTER_FORMS if (match := form.search(body))), None)
    if letter not in LETTERS:
        return nothing("no letter in one of the public code's forms" if letter is None else f"no option {letter}")
    return Parsed(letter, "strict", None)


def parse_yes_no(text: str, cut: bool = False) -> Parsed:
    r"""Read Yes or No; the value is 1 or 0.

    The last box decides, such as `\boxed{Yes}` or `\boxed{\text{No.}}`. Boxes that belong to a repeated instruction do
    not count: "\boxed{Yes} or \boxed{No}", and boxes in a sentence or line with both words or with a condition after a
    box. Without any box, one of these decides, in this order: the last "answer: Yes" or "verdict is No", the word at
    the beginning of the text, the only one of the two words in the first sentence. With boxes of an instruction only,
    the first of these must decide. In a text that was cut, only boxes count, and only if they agree.
    """
    body = plain(text)
    remaining = _EITHER_BOX.sub("", body)
    boxes = verdict_boxes(remaining)
    if cut and len({*boxes}) != 1:
        return nothing("the text ends before the verdict")
    if boxes:
        return Parsed(int(boxes[-1] == "yes"), "strict", None)
    if _ANY_BOX.search(_BOX.sub("", remaining)):
        return nothing("the box has neither Yes nor No")
    words = _FINAL.findall(remaining := _EITHER_WORD.sub("", remaining))[-1:]
    if not words and not _ANY_BOX.search(body):
        beginning = _BEGINNING.match(remaining)
        words = [beginning[1]] if beginning else _WORD.findall(remaining.partition(".")[0])
    words = {word.lower() for word in words}
    if len(words) != 1:
        return nothing("neither Yes nor No is the text's verdict")
    return Parsed(int(words == {"yes"}), "repaired", None)


def verdict_boxes(text: str) -> list[str]:
    """Return "yes" or "no" for each box, except in sentences or lines with both words or with a condition."""
    sentences: list[list[re.Match[str]]] = []
    for box in _BOX.finditer(text):
        if sentences and not _SENTENCE_ENDS.search(text, text.index("}", sentences[-1][-1].end()), box.start()):
            sentences[-1].append(box)
        else:
            sentences.append([box])
    verdicts = []
    for boxes in sentences:
        words = [box[1].lower() for box in boxes]
        is_conditional = any(_CONDITION.match(text, box.end()) for box in boxes)
        verdicts += words if len({*words}) == 1 and not is_conditional else []
    return verdicts


def convert(size: str, row: dict[str, Any], where: str) -> Record:
    """Return a record from a row of the table; UserError if a column is missing or malformed."""
    link = LINK.format(size)
    if missing := [column for column in (PERSONA, *READ_COLUMNS, "pref_type", link) if column not in row]:
        raise UserError(f"{where}: no column {missing[0]!r}; use a published table")
    check_field(row, where, PERSONA)
    check_field(row, where, "correct_answer")
    question, right = read_query(row["user_query"]), row["correct_answer"]
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"{where}: user_query {quote(row['user_query'][:80])} has no message of the user")
    texts = sorted([right, *read_wrong(row["incorrect_answers"], where)])  # so the table's order has no effect
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


def read_query(text: str) -> Any:
    """Return the user's message from a query: JSON, a Python literal or a text; None if it is not the user's."""
    try:
        query = json.loads(text)
    except (ValueError, RecursionError):
        query = read_literal(text)
        if query is None:
            return text.strip('"').strip("'")
    return query.get("content") if isinstance(query, dict) and query.get("role") == "user" else None


def read_wrong(text: str, where: str) -> list[str]:
    try:
        wrong = json.loads(text)
    except (ValueError, RecursionError):
        wrong = None
    is_three = isinstance(wrong, list) and len(wrong) == 3
    if not is_three or not all(isinstance(option, str) and option.strip() for option in wrong):
        raise UserError(f"{where}: incorrect_answers {quote(text[:80])} is not a JSON list of three texts")
    return wrong


def group_of(record: Record) -> dict[str, str | None]:
    updated = text_in(record, "updated")
    others = {"who": text_in(record, "who"), "updated": UPDATED.get(updated, updated)}
    return {**personamem.group_of(record, TYPES), **others}


# The public code's way of asking


def lettered(options: Sequence[str]) -> str:
    return "\n".join(f"{letter.upper()}. {option}" for letter, option in zip(LETTERS, options, strict=True))


def values_as_published(record: Record) -> dict[str, str]:
    return {"question": record["question"], "options": lettered(record["options"])}


# Judging open answers: the majority of three verdicts, Yes or No


def judge_inputs(record: Record) -> list[Any]:
    """Return what the judge sees: the last five messages, the question, the preference, and the right option."""
    snippet = "\n".join(f"{message['role']}: {message['content']}" for message in record["profile"].messages[-5:])
    example = record["options"][LETTERS.index(record["target"])]
    return [snippet, record["question"], record["preference"], example]


def judge_messages(prompt: Prompt, record: Record, responses: list[str], _: int) -> Messages:
    names = ("snippet", "question", "preference", "example")
    return prompt.messages(**dict(zip(names, judge_inputs(record), strict=True)), response=responses[0])


def entry(record: Record, verdicts: list[Verdict]) -> dict[str, Any]:
    """Return a question's entry; its score is the majority of its verdicts, 0 or 1, or None without a majority."""
    [verdict] = verdicts
    votes = verdict.get("drawn", [])
    score = next((value for value in (0, 1) if votes.count(value) > len(votes) / 2), None)
    score = score if is_answered(verdict) else 0
    return {"answered": is_answered(verdict), "score": score, "details": [{"score": score, **origin(verdict)}]}


OPEN = Metric(
    needs=("options", "target", "preference", "profile", PERSONA),
    judge_inputs=judge_inputs,
    entry=entry,
    summarize=lambda entries: {**direct.summarize(entries), "strategy": "open"},
    score_of=direct.score_of,
    num_samples=3,
    judge=Judge("personamem/open_judge", judge_messages, Output(r"\\boxed\{(Yes|No)\}", parse_yes_no)),
    ways=("open",),
    is_share=True,
)


def make_task(size: str) -> Task:
    name, base = f"{BENCHMARK}-{size}", personamem.make_task(size, *personamem.SIZES[size])

    def published() -> dict[str, list[LinkedHistories]]:
        at, parts = f"bowen-upenn/{BENCHMARK}", {}
        for setting, (table, files, number) in TABLES.items():
            identity = {"task": name} | ({"setting": setting} if setting else {})
            parts[setting] = [LinkedHistories(at, table, files, identity, {size: number}, personamem.COUNTED_BY)]
        return parts

    files = Files(
        facts="utils/benchmarks/personamem/v2.py",
        sizes=base.files.sizes,
        convert=partial(convert, size),
        published=published,
        paper_results=Path(__file__).with_name("v2_paper.json"),
    )
    task = replace(
        base,
        name=name,
        groups=tuple(TYPES),
        short=TYPES,
        group_of=group_of,
        files=files,
        fields=base.fields | {"preference": Text},
        annotations=ANNOTATIONS,
        divisions={**base.divisions, "who": ("self", "others"), "updated": tuple(UPDATED.values())},
        metrics={"accuracy": replace(base.metrics["accuracy"], ways=(None, "official")), "open": OPEN},
    )
    official = replace(
        task,
        prompts=dict.fromkeys(("none", "rag"), "personamem/choice_official"),
        values=values_as_published,
        output=Output(r"Final Answer: [A-D]", parse_final_letter),
    )
    open_ended = replace(
        task,
        prompts=dict.fromkeys(("none", "rag"), "personamem/open"),
        values=lambda record: {"question": record["question"]},
        output=TEXT,
        count_outputs=lambda outputs: {},
        asked_needs=("profile",),  # a method must not see the options, because they include the right answer
    )
    return replace(task, ways={"official": official, "open": open_ended})


TASKS = list(map(make_task, SIZES))
