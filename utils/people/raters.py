"""Read raters' result files, check them against the study's key, and join them."""

import math
import random
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, NotRequired, TypedDict

from utils.base.errors import UserError, quote
from utils.base.json_files import read_json
from utils.base.manifest import file_hash, read_manifest, settings_of
from utils.data.scores import read_scores
from utils.people.rating_study import SCALES, slots_of

Pair = tuple[int, int | None]  # the raters' verdict, and the judge's (None if missing)
CHOICES = {1: "first", 2: "second", 0: "tie"}  # for a pair that is not swapped


class Decision(TypedDict):
    """A rater's choice on the page, and the seconds that it took."""

    value: int
    seconds: float


class Answer(TypedDict):
    """One rater's decisions on one question, by slot."""

    id: str
    decisions: dict[str, Decision]
    comment: NotRequired[str]


class ResultFile(TypedDict):
    """The file that a study's page writes."""

    study: str
    rater: str
    answers: list[Answer]


@dataclass(frozen=True)
class Rating:
    """All raters' decisions on one item, such as a pair or an aspect's importance."""

    question_id: str
    slot: str
    scale: str
    about: str  # the aspect's title, or the question's text
    swapped: bool  # whether the second system's answer is shown first
    said: dict[str, Decision | None]  # by rater, in the order of the study; None if undecided

    @property
    def values(self) -> dict[str, int]:
        """Return the values by rater; for pairs, 1 means the first system, even if it was shown second."""
        order = {1: 2, 2: 1} if self.swapped else {}
        return {
            rater: order.get(decision["value"], decision["value"])
            for rater, decision in self.said.items()
            if decision is not None
        }


@dataclass
class Results:
    """All decisions of a study's raters; raters without a file are left out."""

    key: dict[str, Any]  # see `rating_study.make_key`
    raters: list[str]  # in the order of the study
    ratings: dict[tuple[str, str], Rating]  # by question and slot, in the order of the study
    comments: dict[tuple[str, str], str] = field(default_factory=dict)  # by question and rater

    @property
    def rated(self) -> list[Rating]:
        return [rating for rating in self.ratings.values() if rating.values]

    def by_scale(self) -> dict[str, list[Rating]]:
        ratings_by_scale: dict[str, list[Rating]] = {}
        for rating in self.ratings.values():
            ratings_by_scale.setdefault(rating.scale, []).append(rating)
        return ratings_by_scale


def read_key(path: str) -> dict[str, Any]:
    """Read a study's key; UserError if the file is not a key, or has changed since it was written."""
    key = read_json(path)
    if not isinstance(key, dict) or not {"study", "ask", "systems", "raters", "questions"} <= key.keys():
        raise UserError(f"{path}: not the key of a study; use the *_key.json beside its page")
    manifest = read_manifest(path)
    if manifest is not None and manifest["output_sha256"] != file_hash(path):
        raise UserError(f"{path}: changed since it was written\n  restore the original file")
    return key


def read_results(paths: list[str], key: dict[str, Any]) -> Results:
    """Join all raters' files; UserError if several files of one rater contradict each other."""
    files = {path: read_result(path, key) for path in paths}
    named = {content["rater"] for content in files.values()}
    results = Results(key, [rater for rater in key["raters"] if rater in named], {})
    for question_id, question in key["questions"].items():
        for slot, scale, aspect in slots_of(key["ask"], len(question["aspects"])):
            about = question["question"] if aspect is None else question["aspects"][aspect]
            rating = Rating(question_id, slot, scale, about, question["swapped"], dict.fromkeys(results.raters))
            results.ratings[question_id, slot] = rating
    for path, content in files.items():
        for answer in content["answers"]:
            add_answer(results, path, content["rater"], answer)
    return results


def read_result(path: str, key: dict[str, Any]) -> ResultFile:
    """Read a rater's file; UserError unless this study's page wrote it."""
    import msgspec  # here, so that --help needs no package

    try:
        content = msgspec.convert(read_json(path), ResultFile)
    except (msgspec.ValidationError, UnicodeError) as error:  # lone surrogates cannot be encoded as UTF-8
        raise UserError(f"{path}: not a result file of a study's page: {error}") from None
    if content["study"] != key["study"]:
        study, wanted = (quote(study[:8]) for study in (content["study"], key["study"]))
        raise UserError(
            f"{path}: is from study {study}, but the key is for study {wanted}\n  use the key of that study"
        )
    if content["rater"] not in key["raters"]:
        raise UserError(f"{path}: is from rater {quote(content['rater'])}, who is not in the study")
    return content


def add_answer(results: Results, path: str, rater: str, answer: Answer) -> None:
    """Add a file's ratings of one question; UserError if a rating is impossible or contradicts another file."""
    question_id = answer["id"]
    where = f"{path}: id {quote(question_id)}"
    if question_id not in results.key["raters"][rater]:
        raise UserError(f"{where}: the study does not ask {quote(rater)} this question")
    for slot, decision in answer["decisions"].items():
        value, rating = decision["value"], results.ratings.get((question_id, slot))
        if rating is None or value not in SCALES[rating.scale]["choices"]:
            raise UserError(f"{where}: {quote(slot)}: {value} is not a possible value")
        earlier = rating.said[rater] = rating.said[rater] or decision
        if earlier["value"] != value:
            raise UserError(
                f"{where}: {quote(slot)} is {value}, but {earlier['value']} in another file of {quote(rater)}\n"
                "  pass only the file with this rater's final decisions"
            )
    if (comment := answer.get("comment", "")).strip():
        results.comments[question_id, rater] = comment


# The output file


def collected(results: Results) -> dict[str, Any]:
    """Return the output file's content, which depends on the kind of study."""
    responses = [system["responses"] for system in results.key["systems"]]
    if results.key["ask"] == "pairs":
        return {"responses": responses, "raters": results.raters, "choices": preferences(results)}
    by_question: dict[str, dict[str, Any]] = {}
    for rating in results.rated:
        by_question.setdefault(rating.question_id, {})[rating.slot] = rating.values
    if results.key["ask"] == "aspects":
        by_scale = {scale: all_values(ratings) for scale, ratings in results.by_scale().items()}
        means = {scale: fmean(values) if values else None for scale, values in by_scale.items()}
        return {"means": means, "ratings": by_question}
    questions = results.key["questions"]
    verdicts = {  # only of questions with all aspects rated
        question_id: {
            slot: as_verdict(median(values.values()), f"{question_id} {slot}")
            for slot, values in values_by_slot.items()
        }
        for question_id, values_by_slot in by_question.items()
        if len(values_by_slot) == len(questions[question_id]["aspects"])
    }
    return {"responses": responses[0][0], "verdicts": verdicts}


def preferences(results: Results) -> dict[str, list[str]]:
    """Return the raters' choices by question, in a study of pairs."""
    return {rating.question_id: [CHOICES[value] for value in rating.values.values()] for rating in results.rated}


def as_verdict(value: float, name: str) -> int:
    """Round a median between two verdicts up or down at random, seeded with `name`, so that means are unbiased."""
    return math.floor(value) if random.Random(name).random() < 0.5 else math.ceil(value)


def all_values(ratings: list[Rating]) -> list[int]:
    return [value for rating in ratings for value in rating.values.values()]


# The raters' verdicts compared with a judge's


def read_judge(path: str, results: Results) -> dict[str, dict[str, int | None]]:
    """Return a judge's verdicts by question id and aspect, from the score file of the responses that were rated.

    UserError if the study has other responses or no verdicts, or if a verdict is not 0, 1 or 2.
    """
    if results.key["ask"] != "verdicts":
        raise UserError(
            f"--score_addr: the study has --ask {results.key['ask']}; a judge is compared only with --ask verdicts"
        )
    scores, rated = read_scores(path), results.key["systems"][0]["responses"]
    if settings_of(path).get("responses") not in (None, *rated):
        raise UserError(f"{path}: has scores of different responses from the study's; judge the ones that were rated")
    verdicts: dict[str, dict[str, int | None]] = {}
    for entry in scores["per_question_scores"]:
        for detail in entry["details"]:
            if "aspect" not in detail or detail["score"] not in (None, *SCALES["covered"]["choices"]):
                problem = "has no written verdicts by aspect; use a file of strategy aspect without --verdicts"
                raise UserError(f"{path}: question {quote(entry['id'])}: {problem}")
            verdicts.setdefault(entry["id"], {})[detail["aspect"]] = detail["score"]
    return verdicts


def judge_pairs(results: Results, judge: dict[str, dict[str, int | None]]) -> dict[str, list[Pair]]:
    """Return the raters' and the judge's verdict on every rated aspect, by question id."""
    pairs: dict[str, list[Pair]] = {}
    for rating in results.rated:
        verdict = as_verdict(median(rating.values.values()), f"{rating.question_id} {rating.slot}")
        judged = judge.get(rating.question_id, {}).get(rating.about)
        pairs.setdefault(rating.question_id, []).append((verdict, judged))
    return pairs
