"""What raters' result files say: read, held against the study's key, joined, and written for other commands."""

import math
import random
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, NotRequired, TypedDict

from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.json_files import read_json
from utils.files.manifest import file_hash, read_manifest
from utils.tables.rating_study import SCALES, slots_of

CHOICES = {1: "first", 2: "second", 0: "tie"}  # of a pair that is not swapped


class Decision(TypedDict):
    """A value as the page has it, and the seconds that it took."""

    value: int
    seconds: float


class Answer(TypedDict):
    """What a rater says of one question, by slot."""

    id: str
    decisions: dict[str, Decision]
    comment: NotRequired[str]


class ResultFile(TypedDict):
    """What the page of a study writes."""

    study: str
    rater: str
    answers: list[Answer]


@dataclass(frozen=True)
class Rating:
    """What raters say of one thing, such as a pair or how important an aspect is."""

    question_id: str
    slot: str
    scale: str
    about: str  # the aspect's title, or the question
    values: dict[str, int]  # by rater; of pairs 1 is the first system and not what was shown first

    @property
    def gap(self) -> int:
        return max(self.values.values()) - min(self.values.values())


@dataclass
class Results:
    """What all raters of a study say; those without a file are left out."""

    key: dict[str, Any]  # as `rating_study.make_key` makes it
    raters: list[str] = field(default_factory=list)  # in the order of the study
    decisions: dict[tuple[str, str, str], Decision] = field(default_factory=dict)  # by rater, question and slot
    comments: dict[tuple[str, str], str] = field(default_factory=dict)  # by question and rater
    ratings: list[Rating] = field(default_factory=list)  # of every slot with a value, in the order of the study

    def by_scale(self) -> dict[str, list[Rating]]:
        """Sort the ratings, also by scales that nobody has used."""
        found: dict[str, list[Rating]] = {}
        for question in self.key["questions"].values():
            for _, scale, _ in slots_of(self.key["ask"], len(question["aspects"])):
                found.setdefault(scale, [])
        for rating in self.ratings:
            found[rating.scale].append(rating)
        return found


def read_key(path: str) -> dict[str, Any]:
    """Read the key of a study; UserError where it is not one, or was changed since it was written."""
    key = read_json(path)
    if not isinstance(key, dict) or not {"study", "ask", "systems", "raters", "questions"} <= key.keys():
        raise UserError(f"{path}: not the key of a study; give the *_key.json that was written beside its page")
    manifest = read_manifest(path)
    if manifest is not None and manifest["output_sha256"] != file_hash(path):
        raise UserError(f"{path}: changed since it was written\n  restore the file as it was written")
    return key


def read_results(paths: list[str], key: dict[str, Any]) -> Results:
    """Join the files of all raters, also several of one, such as of two days.

    UserError where they say different things, and where a file is not one that this study's page has written.
    """
    results = Results(key)
    files = {path: read_result(path, key) for path in paths}
    for path, content in files.items():
        for answer in content["answers"]:
            add_answer(results, path, content["rater"], answer)
    named = {content["rater"] for content in files.values()}
    results.raters = [rater for rater in key["raters"] if rater in named]
    for question_id, question in key["questions"].items():
        order = {1: 2, 2: 1} if question["swapped"] else {}
        for slot, scale, aspect in slots_of(key["ask"], len(question["aspects"])):
            about = question["question"] if aspect is None else question["aspects"][aspect]
            said = {rater: results.decisions.get((rater, question_id, slot)) for rater in results.raters}
            values = {rater: order.get(one["value"], one["value"]) for rater, one in said.items() if one is not None}
            results.ratings += [Rating(question_id, slot, scale, about, values)] if values else []
    return results


def read_result(path: str, key: dict[str, Any]) -> ResultFile:
    """Read a rater's file; UserError where it is not one that this study's page has written."""
    import msgspec  # here, so that --help needs no package

    try:
        content = msgspec.convert(read_json(path), ResultFile)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: not a result that the page of a study has written: {error}") from None
    if content["study"] != key["study"]:
        its, wanted = (quote(study[:8]) for study in (content["study"], key["study"]))
        raise UserError(
            f"{path}: of another study, {its}; this key is of {wanted}\n  give the key that was made with it"
        )
    if content["rater"] not in key["raters"]:
        raise UserError(f"{path}: of rater {quote(content['rater'])}, whom the study does not have")
    return content


def add_answer(results: Results, path: str, rater: str, answer: Answer) -> None:
    """Add what a file says of one question; UserError where it cannot be, or another file says it in another way."""
    key, question_id = results.key, answer["id"]
    where = f"{path}: id {quote(question_id)}"
    if question_id not in key["raters"][rater]:
        raise UserError(f"{where} is no question that {quote(rater)} was given")
    slots = slots_of(key["ask"], len(key["questions"][question_id]["aspects"]))
    choices = {slot: SCALES[scale].choices for slot, scale, _ in slots}
    for slot, decision in answer["decisions"].items():
        value = decision["value"]
        if value not in choices.get(slot, ()):
            raise UserError(f"{where}: {quote(slot)}: {value} is no value that could be given there")
        known = results.decisions.setdefault((rater, question_id, slot), decision)
        if known["value"] != value:
            raise UserError(
                f"{where}: {quote(slot)} is {value}, but {known['value']} in another file of {quote(rater)}\n"
                "  give the file that holds what this rater decided in the end"
            )
    if (comment := answer.get("comment", "")).strip():
        results.comments[question_id, rater] = comment


# What is written


def collected(results: Results) -> dict[str, Any]:
    """Return what the output file holds, by what the study asks."""
    responses = [system["responses"] for system in results.key["systems"]]
    if results.key["ask"] == "pairs":
        return {"responses": responses, "raters": results.raters, "choices": preferences(results)}
    by_question: dict[str, dict[str, Any]] = {}
    for one in results.ratings:
        by_question.setdefault(one.question_id, {})[one.slot] = one.values
    if results.key["ask"] == "aspects":
        by_scale = {scale: all_values(ratings) for scale, ratings in results.by_scale().items()}
        means = {scale: fmean(values) if values else None for scale, values in by_scale.items()}
        return {"means": means, "ratings": by_question}
    questions = results.key["questions"]
    verdicts = {  # of the questions that have all of them
        question_id: {slot: as_verdict(median(its.values()), f"{question_id} {slot}") for slot, its in said.items()}
        for question_id, said in by_question.items()
        if len(said) == len(questions[question_id]["aspects"])
    }
    return {"responses": responses[0][0], "verdicts": verdicts}


def preferences(results: Results) -> dict[str, list[str]]:
    """Return the choices of its raters by question of a pair."""
    return {one.question_id: [CHOICES[value] for value in one.values.values()] for one in results.ratings}


def as_verdict(value: float, name: str) -> int:
    """Make a median between two verdicts one of them, by a coin that the name throws.

    Always the lower one, or leaving such verdicts out, would move the mean.
    """
    return math.floor(value) if random.Random(name).random() < 0.5 else math.ceil(value)


def all_values(ratings: list[Rating]) -> list[int]:
    return [value for one in ratings for value in one.values.values()]
