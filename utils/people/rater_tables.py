"""Tables of a study with raters: progress, choices or ratings, agreement, disagreements and comments."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import fmean, median

from utils.base.errors import count_noun, printable
from utils.benchmarks.readers import one_line
from utils.benchmarks.scoring import cohens_kappa, krippendorffs_alpha
from utils.people.agreement import describe_sign_test, human_figures
from utils.people.raters import CHOICES, Pair, Rating, Results, all_values, preferences
from utils.people.rating_study import SCALES
from utils.tables.formats import Cell, Table, interval_text, number, signed
from utils.tables.significance import share_interval

PAPER = {  # agreement of the paper's raters
    "pairs": "The paper's two raters: Cohen's kappa 0.726 (section 5.2).",
    "aspects": "The paper's two raters, on our scale complete: mean 4.9, Cohen's kappa 0.87 (section 3).",
}
LONGEST = 60  # characters of a question or an aspect


def all_tables(results: Results) -> list[Table]:
    """Return a study's tables, without those that have no rows."""
    says = preferences_table if results.key["ask"] == "pairs" else means_table
    makers = (raters_table, says, agreement_table, disagreements_table, comments_table)
    return [table for make in makers if (table := make(results)).rows]


def raters_table(results: Results) -> Table:
    """Return a table of each rater's progress; for pairs, also how often each position was chosen."""
    key = results.key
    sides = SCALES["choice"]["choices"] if key["ask"] == "pairs" else {}
    rows = []
    for rater in results.raters:
        ids = key["raters"][rater]
        decisions = [rating.said[rater] for rating in results.ratings.values() if rating.said[rater] is not None]
        open_ids = {rating.question_id for rating in results.ratings.values() if rating.said[rater] is None}
        seconds = number(median(decision["seconds"] for decision in decisions) if decisions else None, 1)
        shown = Counter(decision["value"] for decision in decisions)
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
        number_of_choices = sum(chosen.count(choice) for chosen in choices.values())
        rows.append(
            [name, str(figures[choice]), number(figures[choice] / figures["num_questions"]), str(number_of_choices)]
        )
    ties = count_noun(figures["no_majority"], "question")
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
    """Return a table with Cohen's kappa of each pair of raters and, for three or more, Krippendorff's alpha of all."""
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
    """Yield the table's row for these raters; none if they have rated no item in common."""
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


def judge_tables(results: Results, pairs: dict[str, list[Pair]]) -> list[Table]:
    """Return a table of agreement by category, and a table of counts: raters' verdicts by the judge's."""
    group_of = {key: question["group"] or "(no category)" for key, question in results.key["questions"].items()}
    groups = dict.fromkeys(group_of[key] for key in pairs)
    parts = [(name, {key: pairs[key] for key in pairs if group_of[key] == name}) for name in groups]
    rows = []
    for name, group_pairs in parts + [("All", pairs)] * (len(groups) > 1):
        judged = [
            (key, raters_verdict, judge_verdict)
            for key in group_pairs
            for raters_verdict, judge_verdict in group_pairs[key]
            if judge_verdict is not None
        ]
        kappa = cohens_kappa(
            [[pair for pair in group_pairs[key] if pair[1] is not None] for key in group_pairs], steps=True
        )
        same = [float(raters_verdict == judge_verdict) for _, raters_verdict, judge_verdict in judged]
        figures = [number(fmean(same) if judged else None)]
        figures += [interval_text(share_interval(same, [key for key, *_ in judged]), number)]
        figures += [signed(kappa.value), interval_text(kappa.interval)]
        figures += [number(fmean(pair[side] for pair in judged) if judged else None, 2) for side in (1, 2)]
        rows.append([name, str(len({key for key, *_ in judged})), str(len(judged)), *figures])
    notes = [
        "Raters' verdict: the median over raters. Same: share of equal verdicts, with a t interval of the logit, "
        "cluster-robust by question, or Wilson's where each question has one aspect. Kappa: Cohen's, weighted by "
        "squared distance; bootstrap over questions.",
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
        answers = {rater: str(names.get(value, value)) for rater, value in rating.values.items()}
        rows.append(
            [rating.question_id, rating.scale, rating.about, *(answers.get(name, "") for name in results.raters)]
        )
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
