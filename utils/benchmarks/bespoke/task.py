"""BESPOKE: questions of 30 people who gave their chat and search histories (arXiv 2509.21106).

A record is `{task, id, author, question, need, claims: [text], rubric, shots: [{response, scores, feedback}], profile:
[{id, kind, text}]}`. Only a judge sees the need (what the person wanted to know), the claims (what a good response
says), the rubric (the person's criteria), and the shots (responses to this question that the person scored). An item of
the profile is the raw transcript of a session: a chat with an assistant, or a search. All questions of a person have
the same profile.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from prompts import Messages, Prompt
from utils.benchmarks.bespoke import claims, criteria
from utils.benchmarks.bespoke.originals import HISTORIES, META_TEST, NAME, SHARED, join_tables
from utils.benchmarks.checks import Identified, Record, Text
from utils.benchmarks.longlamp import TEXT
from utils.benchmarks.metric import Judge, Metric, Output
from utils.benchmarks.published import Tables
from utils.benchmarks.task import Files, Task

HUB = "yonsei-dli/BESPOKE"


class Session(Identified, kw_only=True):
    text: Text
    kind: Literal[HISTORIES]


class Shot(msgspec.Struct):
    """A response that a person scored from 1 to 5 by criterion; None is a missing score."""

    response: Text
    scores: dict[Literal[criteria.CRITERIA], Literal[criteria.LEVELS] | None]
    feedback: dict[Literal[criteria.CRITERIA], str] = {}


def published() -> dict[str, list[Tables]]:
    """Return the parts by setting: profiles with both histories or only one, and the responses that people scored."""
    both = {"all": (*SHARED, *(f"{kind}_history" for kind in HISTORIES)), META_TEST: (*SHARED, META_TEST)}
    counts = {"all": 150, META_TEST: None}
    parts = {"": [Tables(HUB, "", NAME, {"dataset": NAME}, counts, "the paper", both, rated=META_TEST)]}
    for kind in HISTORIES:
        identity, tables = {"dataset": NAME, "setting": kind}, {"all": (*SHARED, f"{kind}_history")}
        parts[kind] = [Tables(HUB, "", f"{NAME}_{kind}", identity, {"all": 150}, "the paper", tables)]
    return parts


def hidden_texts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the texts of `Task.hidden`, which a history must not contain.

    Claims are left out, because they may be common knowledge that a person has read in a search.
    """
    yield "the information need", record.get("need")
    yield "the rubric", record.get("rubric")
    for shot in record.get("shots") or ():
        yield "a scored response", shot.get("response") if isinstance(shot, dict) else None


def personal_messages(prompt: Prompt, record: Record, responses: list[str], number: int) -> Messages:
    shots = criteria.shots_text(record["shots"])
    values = {name: record[name] for name in ("question", "need", "rubric")}
    return prompt.messages(**values, shots=shots, response=responses[0])


def recall_messages(prompt: Prompt, record: Record, responses: list[str], number: int) -> Messages:
    return prompt.messages(claim=record["claims"][number], response=responses[0])


def personal_inputs(record: Record) -> list[Any]:
    return [record[name] for name in ("question", "need", "rubric", "shots")]


def shots_of(records: list[Record]) -> dict[str, Any]:
    """Return the number of questions for which the judge sees no scored response; empty if there are none."""
    without = sum(not record["shots"] for record in records)
    return {"num_without_shots": without} if without else {}


# fmt: off
METRICS = {
    "personal": Metric(
        ("need", "rubric", "shots", "author"), personal_inputs,
        lambda record, verdicts: criteria.entry(*verdicts), criteria.summarize, criteria.score_of,
        over_outputs=lambda records, responses: shots_of(records),
        judge=Judge("bespoke/personal_judge", personal_messages, Output(criteria.SCHEMA, criteria.parse_scores))),
    "recall": Metric(
        ("claims", "author"), lambda record: [record["question"]],
        lambda record, verdicts: claims.entry(record["claims"], verdicts), claims.summarize, claims.score_of,
        parts=lambda record: [[claim] for claim in record["claims"]], unit="claim",
        judge=Judge("bespoke/recall_judge", recall_messages, Output(claims.SCHEMA, claims.parse_claim))),
}
# fmt: on

TASK = Task(
    name=NAME,
    groups=(NAME,),
    group_of=lambda record: {"group": NAME},
    group_field="task",
    user_field="author",
    fields={
        "author": Text,
        "need": Text,
        "claims": list[Text],
        "rubric": Text,
        "shots": list[Shot],
        "profile": list[Session],
    },
    prompts={"none": "bespoke/no_history", "rag": "bespoke/rag"},
    output=TEXT,
    metrics=METRICS,
    hidden=hidden_texts,
    trimmed="text",
    item_words="sessions",
    files=Files(
        facts="utils/benchmarks/bespoke/task.py",
        sizes={
            "claims": (list, "Claims per question"),
            "profile": (list, "Profile size (sessions)"),
            "question": (str, "Question length (words)"),
            "need": (str, "Need length (words)"),
        },
        published=published,
        join=join_tables,
    ),
)
