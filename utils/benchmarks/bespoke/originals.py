"""Join BESPOKE's published tables into records, and read the responses that people scored."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from utils.base.errors import UserError, quote
from utils.benchmarks.bespoke.criteria import CRITERIA, LEVELS
from utils.benchmarks.checks import Record, check_field, check_form, check_id
from utils.benchmarks.published import RATINGS, RESPONSES

NAME = "BESPOKE"
HISTORIES = ("chat", "search")
META_TEST = "meta_test"  # the part with responses that people scored, other than the judge's examples (shots)
SHARED = ("queries", "gold_information", "personalized_rubric", "evaluation_shot")  # tables that every part needs

Rows = Iterable[tuple[str, dict[str, Any]]]  # rows of a table, each with its place for messages
ByQuestion = dict[tuple[str, str], tuple[str, Any]]  # by person and number of the question: a place and a value


class Claims(msgspec.Struct):
    gold_information: list[str | int | float]


class Response(msgspec.Struct):
    contents: str


class Responses(msgspec.Struct):
    response_list: list[Response] | None = None


def join_tables(
    split: str, tables: Mapping[str, Rows]
) -> tuple[list[tuple[str, Record]], dict[str, dict[str, Any]], dict[str, int]]:
    """Return a part as (place for messages, record) pairs, the files beside it, and counts of what was left out.

    The files are the responses of `META_TEST` and their ratings. In `META_TEST`, each response that a person scored has
    its own record, unless it is one of the shots; a response that lacks one of the four scores has no rating. UserError
    if a row is damaged or repeated, or a question has no rubric or need.
    """
    counts = Counter[str]()
    claims = by_question(tables["gold_information"], "gold_information_value", Claims)
    rubrics = by_question(tables["personalized_rubric"], "personalized_rubric_value")
    shots = by_question(tables["evaluation_shot"], "evaluation_shot_value", Responses)
    information_needs = by_question(queries := list(tables["queries"]), "gold_information_need")
    scored = by_question(tables.get(META_TEST, ()), f"{META_TEST}_set_value", Responses)
    sessions = sessions_by_person(tables, counts)
    records, responses, ratings = [], {}, {}
    for key, (where, question) in by_question(queries, "query").items():
        person, number = key
        if key not in rubrics:
            raise UserError(f"{where}: personalized_rubric has no rubric for {person}, query {number}")
        record = {"task": NAME, "id": f"{person}-{number}", "author": person, "question": question}
        record |= {"need": information_needs[key][1], "rubric": rubrics[key][1]}
        record["claims"] = [str(claim) for claim in claims[key][1]["gold_information"]] if key in claims else []
        record["shots"] = read_scored(*shots[key], counts) if key in shots else []
        if split != META_TEST:
            records.append((where, record | {"profile": sessions.get(person, [])}))
            counts["questions of people without a session"] += person not in sessions
            continue
        for place, shot in enumerate(read_scored(*scored[key], counts) if key in scored else [], 1):
            if shot["response"] in [other["response"] for other in record["shots"]]:
                counts["responses left out, because they are among the shots"] += 1
                continue
            record_id = f"{record['id']}-{place}"
            records.append((scored[key][0], {**record, "id": record_id}))
            responses[record_id] = [{"output": shot["response"]}]
            if None not in shot["scores"].values():
                ratings[record_id] = shot["scores"]
            else:
                counts["responses without all four scores, which have no rating"] += 1
    for table in (claims, rubrics, shots, scored):
        if foreign := table.keys() - information_needs.keys():
            where, (person, number) = table[min(foreign)][0], min(foreign)
            raise UserError(f"{where}: queries has no query {number} of {person}; use tables of one release")
    people = {person for person, _ in information_needs}
    counts["sessions of people without a question"] = sum(len(sessions[person]) for person in sessions.keys() - people)
    return records, {RESPONSES: responses, RATINGS: ratings} if split == META_TEST else {}, +counts


def by_question(rows: Rows, column: str, form: Any = None) -> ByQuestion:
    """Return a column's texts by question, with `form` parsed as JSON; UserError if a row is damaged or repeated."""
    values: ByQuestion = {}
    for where, row in rows:
        person = person_of(row, where)
        number = re.search(r"\d+", str(row.get("query-id")))
        if number is None:
            raise UserError(f"{where}: column 'query-id' is {quote(str(row.get('query-id')))}; it must have a number")
        key = person, str(int(number[0]))
        check_field(row, where, column)
        value = row[column]
        if form is not None:
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise UserError(f"{where}: column {column!r} is not JSON: {quote(value[:60])}") from None
            check_form(value, form, where, column)
        if key in values:
            raise UserError(f"{where}: {person} has two rows with query {key[1]}")
        values[key] = where, value
    return values


def person_of(row: Any, where: str) -> str:
    if not isinstance(row, dict):
        raise UserError(f"{where}: not a row of a table")
    return check_id(row.get("user"), where, "user")


def read_scored(where: str, value: dict[str, Any], counts: Counter[str]) -> list[dict[str, Any]]:
    """Return a list of scored responses in the form of a record's `shots`, and count what is left out."""
    shots = []
    for response in value.get("response_list") or []:
        if not response["contents"].strip():
            counts["scored responses without text, left out"] += 1
            continue
        parts = {name: part if isinstance(part := response.get(name), dict) else {} for name in CRITERIA}
        given = {name: part.get("score") for name, part in parts.items()}
        scores = {name: level_of(score) for name, score in given.items()}
        counts["scores that are not from 1 to 5, taken as missing"] += sum(
            scores[name] is None and score not in (None, "") for name, score in given.items()
        )
        feedback = {name: part.get("feedback") for name, part in parts.items()}
        feedback = {name: text for name, text in feedback.items() if isinstance(text, str) and text.strip()}
        shots.append({"response": response["contents"], "scores": scores, "feedback": feedback})
    return shots


def level_of(value: Any) -> int | None:
    """Return a person's score: an integer from 1 to 5, which may be written as 4.0 or "4"; None for other values."""
    text = str(value).strip().removesuffix(".0")
    return int(text) if text in map(str, LEVELS) and not isinstance(value, bool) else None


def sessions_by_person(tables: Mapping[str, Rows], counts: Counter[str]) -> dict[str, list[dict[str, str]]]:
    """Return each person's sessions in the order of the tables, chats first; count sessions without text."""
    sessions: dict[str, list[dict[str, str]]] = defaultdict(list)
    for kind in HISTORIES:
        for where, row in tables.get(f"{kind}_history", ()):
            person, text = person_of(row, where), row.get("history")
            if text is not None and not isinstance(text, str):
                raise UserError(f"{where}: column 'history' is not text")
            if text and text.strip():
                sessions[person].append({"id": check_id(row.get("id"), where), "kind": kind, "text": text})
            else:
                counts["sessions without text, left out"] += 1
    return sessions
