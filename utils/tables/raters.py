"""What raters' result files say: read, held against the study's key, joined by rater, and written for other commands.

A result file is what the page of the study wrote:
`{"study": hash, "ask": ..., "rater": name, "answers": [{"id", "decisions": {slot: {"value", "seconds"}}, "comment",
"changed"}]}`.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from utils.cli import UserError
from utils.cli.errors import first_five, kind, quote
from utils.files.json_files import read_json
from utils.files.manifest import file_hash, read_manifest
from utils.tables.rating_study import ASKS, NUM_SYSTEMS, SCALES, Key, Question, Slot, slots_of

Place = tuple[str, str]  # a question's id and the key of a slot

LONGEST_SECONDS = 1e9  # 30 years: refuses infinity, and integers that no float can hold
CHOICES = {1: "first", 2: "second", 0: "tie"}  # of a pair that is not swapped


@dataclass
class Result:
    """What one rater says, by question and slot; of pairs 1 is the first system and not what was shown first."""

    rater: str
    values: dict[Place, int] = field(default_factory=dict)
    shown: dict[Place, int] = field(default_factory=dict)  # the values as the page has them
    seconds: dict[Place, float] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    path_of: dict[Place, str] = field(default_factory=dict)  # the file that says it


def read_key(path: str) -> Key:
    """The key of a study; UserError where it is not one, or was changed since it was written."""
    key = read_json(path)
    if not isinstance(key, dict) or not {"study", "ask", "systems", "raters", "questions"} <= key.keys():
        raise UserError(f"{path}: not the key of a study; give the *_key.json that was written beside its page")
    manifest = read_manifest(path)
    problem = "its hash is not that of the manifest beside it"
    if manifest is None or manifest["output_sha256"] == file_hash(path):
        problem = _problem_of(key)
    if problem:
        raise UserError(f"{path}: changed since it was written: {problem}\n  restore the file as it was written")
    return key


def _problem_of(key: dict[str, Any]) -> str | None:
    """What is wrong with a key, and with which question or rater; None for a sound one."""
    import msgspec  # here, so that --help needs no package

    def wrong(where: str, value: Any, kind: Any) -> list[str]:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            return [where + str(error)]
        return []

    # One by one: msgspec's own path does not name the key in an object.
    parts = [(f"id {quote(i)}: ", one, Question) for i, one in _items(key["questions"])]
    parts += [(f"rater {quote(name)}: ", ids, list[str]) for name, ids in _items(key["raters"])]
    if found := [problem for part in [*parts, ("", key, Key)] for problem in wrong(*part)]:
        return found[0]
    if [len(system["responses"]) > 0 for system in key["systems"]] != [True] * NUM_SYSTEMS[key["ask"]]:
        return f"its systems, or their response files, are not as many as {key['ask']} have"
    for name, ids in key["raters"].items():
        if twice := [i for i, count in Counter(ids).items() if count > 1]:
            return f"rater {quote(name)} has {first_five(twice)} twice"
        if unknown := [i for i in ids if i not in key["questions"]]:
            return f"rater {quote(name)} has {first_five(unknown)}, not among its questions"
    return None


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def slots_by_question(key: Key) -> dict[str, list[Slot]]:
    return {i: slots_of(key["ask"], len(question["aspects"])) for i, question in key["questions"].items()}


def read_results(paths: list[str], key: Key) -> list[Result]:
    """The raters' results in the order of the study's raters; those without a file are left out.

    Several files of one rater, such as of two days, are one result. UserError where they say different things, and
    where a file is not one that this study's page has written.
    """
    slots = slots_by_question(key)
    results: dict[str, Result] = {}
    for path in paths:
        content = read_json(path)
        check_origin(path, content, key)
        result = results.setdefault(content["rater"], Result(content["rater"]))
        for answer in content["answers"]:
            add_answer(result, path, answer, key, slots)
    return [results[rater] for rater in key["raters"] if rater in results]


def check_origin(path: str, content: Any, key: Key) -> None:
    if not isinstance(content, dict) or not isinstance(content.get("answers"), list) or "study" not in content:
        raise UserError(f"{path}: not a result that the page of a study has written")
    if content["study"] != key["study"]:
        its, wanted = (quote(str(one)[:8]) for one in (content["study"], key["study"]))
        raise UserError(
            f"{path}: of another study, {its}; this key is of {wanted}\n  give the key that was made with it"
        )
    if content.get("rater") not in list(key["raters"]):
        raise UserError(f"{path}: of rater {quote(content.get('rater'))}, whom the study does not have")


def add_answer(result: Result, path: str, answer: Any, key: Key, slots: dict[str, list[Slot]]) -> None:
    """Add what a file says of one question; UserError where it cannot be, or another file says it in another way."""
    if not isinstance(answer, dict) or answer.get("id") not in key["raters"][result.rater]:
        asked = answer.get("id") if isinstance(answer, dict) else answer
        raise UserError(f"{path}: id {quote(asked)} is no question that {quote(result.rater)} was given")
    question_id, where = answer["id"], f"{path}: id {quote(answer['id'])}"
    decisions, comment = answer.get("decisions"), answer.get("comment", "")
    if not isinstance(decisions, dict) or not isinstance(comment, str):
        raise UserError(f"{where}: 'decisions' is {kind(decisions)}, and 'comment' {kind(comment)}")
    scale_of = {name: SCALES[scale] for name, scale, _ in slots[question_id]}
    for name, decision in decisions.items():
        value = decision.get("value") if isinstance(decision, dict) else None
        if name not in scale_of or type(value) is not int or value not in scale_of[name].choices:
            raise UserError(f"{where}: {quote(name)}: {quote(value)} is no value that could be given there")
        place = (question_id, name)
        if result.shown.setdefault(place, value) != value:
            raise UserError(
                f"{where}: {quote(name)} is {value}, but {result.shown[place]} in {result.path_of[place]}, both of "
                f"{quote(result.rater)}\n  give the file that holds what this rater decided in the end"
            )
        result.path_of.setdefault(place, path)
        is_swapped = key["questions"][question_id]["swapped"]
        result.values[place] = {1: 2, 2: 1}.get(value, value) if is_swapped else value
        seconds = decision.get("seconds")
        if type(seconds) not in (int, float) or not 0 <= seconds <= LONGEST_SECONDS:
            raise UserError(f"{where}: {quote(name)}: its 'seconds' are {quote(seconds)}, not a number of seconds")
        result.seconds[place] = seconds
    if comment.strip():
        result.comments[question_id] = comment


# What is written


def collected(key: Key, results: list[Result]) -> dict[str, Any]:
    """What the file holds, by what the study asks."""
    makers = {"pairs": compared, "aspects": ratings, "verdicts": verdicts}
    assert makers.keys() == ASKS.keys()
    return makers[key["ask"]](key, results)


def compared(key: Key, results: list[Result]) -> dict[str, Any]:
    """The choices, by whom, and of which responses of the two systems."""
    responses = [system["responses"] for system in key["systems"]]
    raters = [result.rater for result in results]
    return {"responses": responses, "raters": raters, "choices": preferences(key, results)}


def preferences(key: Key, results: list[Result]) -> dict[str, list[str]]:
    """By question the choices of its raters."""
    given = {i: [result.values.get((i, "choice")) for result in results] for i in key["questions"]}
    choices = {i: [CHOICES[value] for value in its if value is not None] for i, its in given.items()}
    return {question_id: its for question_id, its in choices.items() if its}


def verdicts(key: Key, results: list[Result]) -> dict[str, Any]:
    """By question with all its verdicts, and by aspect's number, what people say, and of which responses."""
    found: dict[str, dict[str, int]] = {}
    for (question_id, name), value in medians(key, results).items():
        found.setdefault(question_id, {})[name] = as_verdict(value, f"{question_id} {name}")
    slots = slots_by_question(key)
    whole = {question_id: its for question_id, its in found.items() if len(its) == len(slots[question_id])}
    return {"responses": key["systems"][0]["responses"][0], "verdicts": whole}


def medians(key: Key, results: list[Result]) -> dict[Place, float]:
    """The raters' median of each thing that anybody rated."""
    values = {place: [value for _, value in values_of(results, place)] for place in scales_by_place(key)}
    return {place: median(its) for place, its in values.items() if its}


def as_verdict(value: float, name: str) -> int:
    """A median between two verdicts is one of them, by a coin that the name throws: always the lower one, or leaving
    such verdicts out, would move the mean.
    """
    return math.floor(value) if random.Random(name).random() < 0.5 else math.ceil(value)


def ratings(key: Key, results: list[Result]) -> dict[str, Any]:
    """Means by scale, and all ratings by question, slot and rater."""
    every = {}
    for question_id, slots in slots_by_question(key).items():
        its = {name: dict(values_of(results, (question_id, name))) for name, *_ in slots}
        every[question_id] = {name: values for name, values in its.items() if values}
    by_scale: dict[str, list[int]] = {}
    for place, scale in scales_by_place(key).items():
        by_scale.setdefault(scale, []).extend(value for _, value in values_of(results, place))
    means = {scale: fmean(values) if values else None for scale, values in by_scale.items()}
    return {"means": means, "ratings": {question_id: its for question_id, its in every.items() if its}}


def scales_by_place(key: Key) -> dict[Place, str]:
    return {(i, name): scale for i, slots in slots_by_question(key).items() for name, scale, _ in slots}


def values_of(results: list[Result], place: Place) -> Iterator[tuple[str, int]]:
    """Who says what there."""
    return ((result.rater, result.values[place]) for result in results if place in result.values)
