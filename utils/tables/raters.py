"""Read raters' result files, check them against the study's key, join them, and make tables of them."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean, median
from typing import Any, NotRequired, TypedDict

from utils.cli import UserError
from utils.cli.errors import counted, printable, quote
from utils.files.file_hashes import file_hash
from utils.files.json_files import read_json
from utils.files.manifest import read_manifest, settings_of
from utils.parsing.plans import one_line
from utils.records.scores import read_scores
from utils.scoring.reliability import cohens_kappa, krippendorffs_alpha
from utils.tables.agreement import describe_sign_test, human_figures
from utils.tables.formats import Cell, Table, interval_text, number, signed
from utils.tables.rating_study import SCALES, slots_of
from utils.tables.significance import share_interval

Pair = tuple[int, int | None]  # the raters' verdict and the judge's, None if it has none
CHOICES = {1: "first", 2: "second", 0: "tie"}  # for a pair that is not swapped
PAPER = {  # agreement of the paper's raters
    "pairs": "The paper's two raters: Cohen's kappa 0.726 (section 5.2).",
    "aspects": "The paper's two raters, on our scale complete: mean 4.9, Cohen's kappa 0.87 (section 3).",
}
LONGEST = 60  # characters of a question or an aspect


class Decision(TypedDict):
    """A value from the page, and the seconds that the rater took."""

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
    about: str  # the aspect's title, or the question
    swapped: bool  # whether the second system's answer is shown first
    said: dict[str, Decision | None]  # by rater, in the order of the study

    @property
    def values(self) -> dict[str, int]:
        """Return the values by rater; for pairs, 1 is the first system, not the one shown first."""
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
    """Read a study's key; UserError if the file is something else, or has changed since it was written."""
    key = read_json(path)
    if not isinstance(key, dict) or not {"study", "ask", "systems", "raters", "questions"} <= key.keys():
        raise UserError(f"{path}: not the key of a study; give the *_key.json beside its page")
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
        given, wanted = (quote(study[:8]) for study in (content["study"], key["study"]))
        raise UserError(
            f"{path}: is from study {given}, but the key is for study {wanted}\n  give the key of that study"
        )
    if content["rater"] not in key["raters"]:
        raise UserError(f"{path}: is from rater {quote(content['rater'])}, who is not in the study")
    return content


def add_answer(results: Results, path: str, rater: str, answer: Answer) -> None:
    """Add a file's ratings of one question; UserError if they are impossible or contradict another file's."""
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
                "  give only the file with this rater's final decisions"
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
    verdicts = {  # for questions with all aspects rated
        question_id: {
            slot: as_verdict(median(values.values()), f"{question_id} {slot}") for slot, values in said.items()
        }
        for question_id, said in by_question.items()
        if len(said) == len(questions[question_id]["aspects"])
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


# The tables: raters' work, their choices or ratings, agreement, disagreements and comments


def all_tables(results: Results) -> list[Table]:
    """Return a study's tables, without those that have no rows."""
    says = preferences_table if results.key["ask"] == "pairs" else means_table
    makers = (raters_table, says, agreement_table, disagreements_table, comments_table)
    return [table for make in makers if (table := make(results)).rows]


def raters_table(results: Results) -> Table:
    """Return a table of each rater's work; for pairs, also how often they chose the answer shown first."""
    key = results.key
    sides = SCALES["choice"]["choices"] if key["ask"] == "pairs" else {}
    rows = []
    for rater in results.raters:
        ids = key["raters"][rater]
        said = [rating.said[rater] for rating in results.ratings.values() if rating.said[rater] is not None]
        open_ids = {rating.question_id for rating in results.ratings.values() if rating.said[rater] is None}
        seconds = number(median(decision["seconds"] for decision in said) if said else None, 1)
        shown = Counter(decision["value"] for decision in said)
        finished = len(set(ids) - open_ids)
        rows.append([rater, str(len(ids)), str(finished), seconds, *(str(shown[value]) for value in sides)])
    silent = [rater for rater in key["raters"] if rater not in results.raters]
    notes = [f"No file from {', '.join(silent)}."] if silent else []
    notes += ["Response 1 and Response 2 are in the order shown, which was random."] if sides else []
    return _table(["Rater", "Questions", "Finished", "Seconds per decision (median)", *sides.values()], rows, notes)


def preferences_table(results: Results) -> Table:
    choices = preferences(results)
    if not choices:
        return _table(["Preferred"], [], [])
    figures = human_figures(choices)
    first, second = (printable(one_line(system["name"])) for system in results.key["systems"])
    rows = []
    for choice, name in {"first": first, "second": second, "tie": "tie"}.items():
        said = sum(chosen.count(choice) for chosen in choices.values())
        rows.append([name, str(figures[choice]), number(figures[choice] / figures["num_questions"]), str(said)])
    ties = counted(figures["no_majority"], "question")
    notes = [
        f"An outcome is the choice of more than half of the raters, else a tie ({ties}).",
        describe_sign_test(figures, first, second),
    ]
    return _table(["Preferred", "Questions", "Share", "Choices"], rows, notes)


def means_table(results: Results) -> Table:
    """Return a table of each scale's mean rating, and how often each value was given."""
    scales = results.by_scale()
    values = sorted({value for scale in scales for value in SCALES[scale]["choices"]})
    rows = []
    for scale, ratings in scales.items():
        ratings_given = all_values(ratings)
        counts = [str(ratings_given.count(value)) if value in SCALES[scale]["choices"] else "" for value in values]
        rows.append(
            [scale, str(len(ratings_given)), number(fmean(ratings_given) if ratings_given else None, 2), *counts]
        )
    halves = sum(median(rating.values.values()) % 1 > 0 for rating in results.rated)
    note = f"Collected verdicts are medians; {halves} fell between two verdicts, and a fixed seed chose one."
    notes = [note] if results.key["ask"] == "verdicts" else []
    return _table(["Scale", "Ratings", "Mean", *map(str, values)], rows, notes)


def agreement_table(results: Results) -> Table:
    """Return a table of Cohen's kappa for each two raters and, if there are more, Krippendorff's alpha of all."""
    groups = [*combinations(results.raters, 2), *([results.raters] if len(results.raters) > 2 else [])]
    scales = results.by_scale()
    rows = [row for scale, ratings in scales.items() for group in groups for row in _agreement(scale, ratings, group)]
    notes = [
        "Same: share of equal values. The 95% interval is a bootstrap over questions, with a dash if all "
        "resamples agree."
    ]
    if any(SCALES[scale]["steps"] for scale in scales):
        notes.append("Coefficients weight a disagreement by its squared distance in steps.")
    notes += [PAPER[results.key["ask"]]] if results.key["ask"] in PAPER else []
    columns = ["Scale", "Raters", "Questions", "Ratings of both", "Same", "Coefficient", "Value", "Interval"]
    return _table(columns, rows, notes, num_names=2)


def _agreement(scale: str, ratings: list[Rating], group: Sequence[str]) -> Iterator[list[str]]:
    """Yield the row of these raters, if they have rated the same items."""
    by_question: dict[str, list[list[int]]] = {}
    for rating in ratings:
        values = [rating.values[rater] for rater in group if rater in rating.values]
        if len(values) > 1:
            by_question.setdefault(rating.question_id, []).append(values)
    units = [values for question_units in by_question.values() for values in question_units]
    if units:
        same = sum(len(set(values)) == 1 for values in units) / len(units)
        name, coefficient, raters = "Krippendorff's alpha", krippendorffs_alpha, f"all {len(group)}"
        if len(group) == 2:
            name, coefficient, raters = "Cohen's kappa", cohens_kappa, " and ".join(group)
        agreement = coefficient(list(by_question.values()), SCALES[scale]["steps"])
        counts = [str(len(by_question)), str(len(units)), number(same)]
        yield [scale, raters, *counts, name, signed(agreement.value), interval_text(agreement.interval)]


# The verdicts of raters against a judge's


def read_judge(path: str, results: Results) -> dict[str, dict[str, int | None]]:
    """Return a judge's verdicts by question id and aspect, from the score file of the responses that were rated.

    UserError if the study has other responses or no verdicts, or if a verdict is not 0, 1 or 2.
    """
    if results.key["ask"] != "verdicts":
        raise UserError(f"--score_addr: the study asks for {results.key['ask']}; only verdicts compare with a judge's")
    scores, rated = read_scores(path), results.key["systems"][0]["responses"]
    if settings_of(path).get("responses") not in (None, *rated):
        raise UserError(f"{path}: has scores of other responses than the study's; judge the ones that were rated")
    verdicts: dict[str, dict[str, int | None]] = {}
    for entry in scores["per_question_scores"]:
        for detail in entry["details"]:
            if "aspect" not in detail or detail["score"] not in (None, *SCALES["covered"]["choices"]):
                problem = "has no written verdicts by aspect; give a file of strategy aspect without --verdicts"
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


def judge_tables(results: Results, pairs: dict[str, list[Pair]]) -> list[Table]:
    """Return a table of agreement by category, and one of counts: raters' verdicts in rows, the judge's in columns."""
    group_of = {key: question["group"] or "(no category)" for key, question in results.key["questions"].items()}
    groups = dict.fromkeys(group_of[key] for key in pairs)
    parts = [(name, {key: pairs[key] for key in pairs if group_of[key] == name}) for name in groups]
    rows = []
    for name, group_pairs in parts + [("All", pairs)] * (len(groups) > 1):
        both = [
            (key, of_raters, of_judge)
            for key in group_pairs
            for of_raters, of_judge in group_pairs[key]
            if of_judge is not None
        ]
        kappa = cohens_kappa(
            [[pair for pair in group_pairs[key] if pair[1] is not None] for key in group_pairs], steps=True
        )
        same = [float(of_raters == of_judge) for _, of_raters, of_judge in both]
        figures = [number(fmean(same) if both else None)]
        figures += [interval_text(share_interval(same, [key for key, *_ in both]), number)]
        figures += [signed(kappa.value), interval_text(kappa.interval)]
        figures += [number(fmean(pair[side] for pair in both) if both else None, 2) for side in (1, 2)]
        rows.append([name, str(len({key for key, *_ in both})), str(len(both)), *figures])
    notes = [
        "Raters' verdict: the median over raters. Same: share of equal verdicts, with a t interval of the logit, "
        "cluster-robust by question. Kappa: Cohen's, weighted by squared distance; bootstrap over questions.",
    ]
    columns = ["Category", "Questions", "Aspects", "Same", "95% interval", "Kappa", "Interval"]
    agreement = _table([*columns, "Raters' mean", "Judge's mean"], rows, notes)
    counts = Counter(pair for question_pairs in pairs.values() for pair in question_pairs)
    choices = [*SCALES["covered"]["choices"], None]
    names = ["no verdict" if value is None else f"judge {value}" for value in choices]
    table = [[f"raters {value}", *(str(counts[value, other]) for other in choices)] for value in choices[:-1]]
    return [agreement, _table(["Verdicts", *names], table, [])]


def disagreements_table(results: Results) -> Table:
    """Return a table of raters' disagreements, largest first."""
    names = CHOICES if results.key["ask"] == "pairs" else {}
    apart = [
        (max(values) - min(values), rating)
        for rating in results.rated
        if len(values := set(rating.values.values())) > 1
    ]
    apart.sort(key=lambda entry: -entry[0] if SCALES[entry[1].scale]["steps"] else 0)
    rows = []
    for _, rating in apart:
        said = {rater: str(names.get(value, value)) for rater, value in rating.values.items()}
        rows.append([rating.question_id, rating.scale, rating.about, *(said.get(name, "") for name in results.raters)])
    return _table(["Disagreement on", "Scale", "About", *results.raters], rows, [], num_names=3)


def comments_table(results: Results) -> Table:
    places = [(i, rater) for i in results.key["questions"] for rater in results.raters]
    rows = [[*place, results.comments[place]] for place in places if place in results.comments]
    return _table(["Comment on", "Rater", "Comment"], rows, [], num_names=3, longest=None)


def _table(
    columns: list[str], rows: list[list[str]], notes: list[str], num_names: int = 1, longest: int | None = LONGEST
) -> Table:
    """Return a table with each text in one line, cut after `longest` characters."""

    def cell(text: str) -> Cell:
        line = printable(one_line(text))
        return Cell(line if longest is None or len(line) <= longest else f"{line[:longest]}…")

    return Table([cell(name).text for name in columns], [list(map(cell, row)) for row in rows], notes, num_names)
