"""Judge scores corrected by people's: prediction-powered inference (Angelopoulos et al. 2023, Science 382).

A system's corrected score is the mean of the judge's scores on all questions, plus the mean of (people's score minus
the judge's) on the questions that people rated. It is unbiased if the rated questions were drawn at random, even if the
judge is biased.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from utils.base.errors import UserError, quote
from utils.base.json_files import read_json
from utils.base.manifest import settings_of
from utils.benchmarks import tasks
from utils.benchmarks.bespoke.criteria import LEVELS
from utils.benchmarks.choices import VERDICT_VALUES
from utils.benchmarks.scoring import cohens_kappa
from utils.data.scores import Entry, Scores, metric_of, strategy_in_words
from utils.people.graded import graded_agreement, graded_table
from utils.tables.formats import Cell, Table, interval_text, number, signed
from utils.tables.system_scores import cluster_of

# The metrics whose verdicts people can give as well: the field that names a verdict, and the possible values.
RATED = {"aspect": ("aspect", VERDICT_VALUES), "personal": ("criterion", LEVELS)}
LEAST_RATED = 20  # questions; with fewer, the interval of a mean is not reliable


@dataclass(frozen=True)
class Rated:
    """A system's questions with the judge's score, and with people's verdicts on some of them."""

    name: str
    entries: list[Entry]  # the entries with a score by the judge
    verdicts: dict[str, list[int]]  # people's verdicts by question id, in the order of the entry's details
    by_people: dict[str, float]  # the scores of people's verdicts, by question id
    strategy: str  # a name in `RATED`


def read_rated(name: str, score_addr: str, scores: Scores, people_addr: str) -> Rated:
    """Read people's verdicts on some of the responses that a judge scored; UserError if they do not match.

    `scores` is the content of the judge's file, from `read_scores`.
    """
    people = read_json(people_addr)
    if not isinstance(people, dict) or not isinstance(verdicts := people.get("verdicts"), dict):
        remedy = "use the output of human_evaluation.py --collect for --ask verdicts"
        raise UserError(f"{people_addr}: has no verdicts; {remedy}")
    if "responses" not in people:
        raise UserError(
            f"{people_addr}: has no 'responses', the SHA-256 of the response file that people rated; add it"
        )
    if settings_of(score_addr).get("responses") not in (None, people["responses"]):
        raise UserError(
            f"{people_addr}: people rated different responses from those in {score_addr}; rate the judged ones"
        )
    if (strategy := strategy_in_words(scores)) not in RATED:
        raise UserError(f"{score_addr}: has scores by {strategy}; --corrected needs scores by {' or '.join(RATED)}")
    entries = [entry for entry in scores["per_question_scores"] if entry["score"] is not None]
    answered = {entry["id"]: entry["details"] for entry in entries if entry["answered"]}
    (noun, allowed), (_, metric) = RATED[strategy], metric_of(tasks()[scores["task"]], scores)
    rated, by_people = {}, {}
    for question_id in verdicts.keys() & answered.keys():
        details, of_question = answered[question_id], verdicts[question_id]
        names = [detail[noun] for detail in details]
        is_named = strategy == "personal"  # two aspects may have the same title, so their verdicts are matched by order
        values = []
        if isinstance(of_question, dict) and (not is_named or of_question.keys() == {*names}):
            values = [of_question[name] for name in names] if is_named else [*of_question.values()]
        if len(values) != len(details) or not all(type(value) is int and value in allowed for value in values):
            where, numbers = f"{people_addr}: id {quote(question_id)}", ", ".join(map(str, allowed))
            raise UserError(f"{where}: must have one verdict of {numbers} on each {noun}, {len(details)} in all")
        rated[question_id] = values
        written = [{noun: detail[noun], "score": value} for detail, value in zip(details, values, strict=True)]
        by_people[question_id] = metric.score_of(written, False)
    if len(rated) < 2:
        raise UserError(f"{people_addr}: fewer than two of its questions have a score and an answer in {score_addr}")
    return Rated(name, entries, rated, by_people, strategy)


def corrected_figures(system: Rated) -> dict[str, Any]:
    """Return a system's judge score, its corrected score, and judge minus people, each with its 95% interval.

    Means are over questions, not categories. With f the judge's scores of N questions, d people's minus the judge's of
    n of them, and A whether a question has an answer (people rate answers only; without one, both scores are 0), the
    estimate is mean f + mean A * mean d. Its variance is the sum of squares, over clusters, of their sums of
    (f - mean f + mean d * (A - mean A)) / N * sqrt(G / (G - 1)) and of mean A * (d - mean d) / n * sqrt(g / (g - 1)),
    for G clusters, g of them rated. The interval is of t with g - 1 degrees of freedom, None if all d are equal.
    """
    from scipy.special import stdtrit

    scores = {entry["id"]: entry["score"] for entry in system.entries}
    cluster = {entry["id"]: cluster_of(entry) for entry in system.entries}
    answered = {entry["id"]: float(entry["answered"]) for entry in system.entries}
    gaps = {key: score - scores[key] for key, score in system.by_people.items()}
    mean, gap, share = fmean(scores.values()), fmean(gaps.values()), fmean(answered.values())
    num_all, num_rated = len({*cluster.values()}), len({cluster[key] for key in gaps})

    def half(num_clusters: int, *parts: dict[str, float]) -> float | None:
        """Return half the width of the interval from each question's contributions to the error."""
        sums: dict[str, float] = defaultdict(float)
        for part in parts:
            for key, value in part.items():
                sums[cluster[key]] += value
        spread = math.fsum(value**2 for value in sums.values())
        return float(stdtrit(num_clusters - 1, 0.975)) * math.sqrt(spread) if num_clusters > 1 and spread else None

    weight = math.sqrt(num_all / (num_all - 1)) / len(scores) if num_all > 1 else 0.0
    judge_parts = {key: (score - mean) * weight for key, score in scores.items()}
    share_parts = {key: gap * (value - share) * weight for key, value in answered.items()}
    rated_weight = math.sqrt(num_rated / (num_rated - 1)) / len(gaps) if num_rated > 1 else 0.0
    gap_parts = {key: share * (value - gap) * rated_weight for key, value in gaps.items()}
    varies = max(gaps.values()) - min(gaps.values()) > 1e-12
    halves = {
        "uncorrected": (mean, half(num_all, judge_parts)),
        "corrected": (mean + share * gap, half(num_rated, judge_parts, share_parts, gap_parts) if varies else None),
        "judge_minus_people": (-share * gap, half(num_rated, share_parts, gap_parts) if varies else None),
    }
    figures = {"name": system.name, "num_questions": len(scores), "num_rated": len(gaps)}
    for name, (value, width) in halves.items():
        figures |= {name: value, f"{name}_interval": None if width is None else (value - width, value + width)}
    return figures


def agreement_of_people(system: Rated) -> dict[str, Any]:
    """Return the agreement of people's verdicts with the judge's.

    For scores by criterion, this is `graded_agreement`. For verdicts on aspects, it is the number of rated questions
    and the weighted kappa in each category.
    """
    rated = [entry for entry in system.entries if entry["id"] in system.verdicts]
    if system.strategy == "personal":
        judged = [[detail["score"] for detail in entry["details"]] for entry in rated]
        people, persons = [system.verdicts[entry["id"]] for entry in rated], list(map(cluster_of, rated))
        return graded_agreement(judged, people, persons, [detail["criterion"] for detail in rated[0]["details"]])
    by_group: dict[str, list[list[tuple[int, int]]]] = defaultdict(list)
    for entry in rated:
        pairs = zip(system.verdicts[entry["id"]], (detail["score"] for detail in entry["details"]), strict=True)
        by_group[entry["group"] or "(no category)"].append([pair for pair in pairs if pair[1] is not None])
    return {
        group: {"num_questions": len(questions), "kappa": (kappa := cohens_kappa(questions, steps=True)).value,
                "kappa_interval": kappa.interval}
        for group, questions in by_group.items()
    }  # fmt: skip


def corrected_tables(systems: list[dict[str, Any]]) -> list[Table]:
    """Return a table of scores, and one of the `agreement` with people."""
    names, rows = ("uncorrected", "corrected", "judge_minus_people"), []
    for figures in systems:
        texts = [figures["name"], str(figures["num_questions"]), str(figures["num_rated"])]
        for name, shown in zip(names, (number, number, signed), strict=True):
            texts += [shown(figures[name]), interval_text(figures[f"{name}_interval"], shown)]
        rows.append(list(map(Cell, texts)))
    notes = [
        "Corrected: the judge's mean over all questions, not macro, plus the mean of people's score minus the judge's "
        "on the rated ones (prediction-powered inference). It is unbiased if these were drawn at random. Intervals are "
        "clustered by user, if users are known.",
    ]
    gaps = {figures["name"]: figures["judge_minus_people"] for figures in systems}
    if len(gaps) > 1:
        spread = max(gaps.values()) - min(gaps.values())
        how = "compare the errors' intervals before you conclude that it favors a system"
        notes.append(f"The judge's error differs by up to {number(spread)} between systems; {how}.")
    if few := [figures["name"] for figures in systems if figures["num_rated"] < LEAST_RATED]:
        notes.append(f"Fewer than {LEAST_RATED} rated questions, so intervals may be too narrow: {', '.join(few)}.")
    heads = ["System", "Questions", "Rated", "Judge", "95% interval", "Corrected", "95% interval", "Judge minus people"]
    scores = Table([*heads, "95% interval"], rows, notes)
    by_criterion = {figures["name"]: figures["agreement"] for figures in systems if "criteria" in figures["agreement"]}
    if by_criterion:
        return [scores, graded_table(by_criterion)]
    agreements = []
    for figures in systems:
        for group, part in figures["agreement"].items():
            kappa = signed(part["kappa"]), interval_text(part["kappa_interval"])
            agreements.append([figures["name"], group, str(part["num_questions"]), *kappa])
    note = "Kappa: Cohen's of people's and the judge's verdicts on aspects, weighted by squared distance."
    heads = ["System", "Category", "Rated questions", "Kappa", "95% interval"]
    return [scores, Table(heads, [list(map(Cell, texts)) for texts in agreements], [note], num_names=2)]
