"""What raters said, as tables: who did how much, what they say, how far they agree, and where they do not."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, median

from utils.cli.errors import printable
from utils.parsing.plans import one_line
from utils.tables.agreement import describe_sign_test, human_figures
from utils.tables.formats import Cell, Table, interval_text, number, signed
from utils.tables.raters import (
    CHOICES,
    Key,
    Result,
    medians,
    preferences,
    scales_by_place,
    slots_by_question,
    values_of,
)
from utils.tables.rating_study import SCALES
from utils.tables.reliability import Estimate, cohens_kappa, krippendorffs_alpha

PAPER = {  # what it says of its own raters
    "pairs": "The paper's two raters: Cohen's kappa 0.726 (section 5.2).",
    "aspects": "The paper's two raters, of what is called complete here: mean 4.9, Cohen's kappa 0.87 (section 3).",
}
LONGEST = 60  # characters of a question or an aspect


def all_tables(key: Key, results: list[Result]) -> list[Table]:
    """Of a study, without those that would have no rows."""
    says = preferences_table if key["ask"] == "pairs" else means_table
    tables = [raters_table(key, results), says(key, results), agreement_table(key, results)]
    tables += [disagreements_table(key, results), comments_table(key, results)]
    return [table for table in tables if table.rows]


def raters_table(key: Key, results: list[Result]) -> Table:
    """What each rater did; of pairs also how often they chose what was shown first."""
    slots = slots_by_question(key)
    columns = ["Rater", "Questions", "Finished", "Seconds a decision (median)"]
    columns += [*SCALES["choice"].choices.values()] if key["ask"] == "pairs" else []
    rows = []
    for result in results:
        ids = key["raters"][result.rater]
        finished = sum(all((i, name) in result.values for name, *_ in slots[i]) for i in ids)
        seconds = number(median(result.seconds.values()), 1) if result.seconds else "–"
        shown = Counter(result.shown.values())
        sides = [str(shown[value]) for value in SCALES["choice"].choices] if key["ask"] == "pairs" else []
        rows.append([result.rater, str(len(ids)), str(finished), seconds, *sides])
    silent = [rater for rater in key["raters"] if rater not in {result.rater for result in results}]
    notes = [f"No file of {', '.join(silent)}."] if silent else []
    if key["ask"] == "pairs":
        notes.append("Response 1 and Response 2 are as they were shown, which chance decided.")
    return _table(columns, rows, notes)


def preferences_table(key: Key, results: list[Result]) -> Table:
    choices = preferences(key, results)
    if not choices:
        return _table(["Preferred"], [], [])
    figures = human_figures(choices)
    names = {"first": key["systems"][0]["name"], "second": key["systems"][1]["name"], "tie": "tie"}
    rows = []
    for choice, name in names.items():
        said = sum(its.count(choice) for its in choices.values())
        share = figures[choice] / figures["num_questions"]
        rows.append([name, str(figures[choice]), number(share), str(said)])
    notes = [
        f"A question goes to what more than half of its raters say, else it is a tie: {figures['no_majority']} are.",
        describe_sign_test(figures, *(printable(one_line(names[choice])) for choice in ("first", "second"))),
    ]
    return _table(["Preferred", "Questions", "Share", "Choices"], rows, notes)


def means_table(key: Key, results: list[Result]) -> Table:
    """By scale the mean of all ratings, and how often each value was given."""
    found: dict[str, list[int]] = {}
    for place, scale in scales_by_place(key).items():
        found.setdefault(scale, []).extend(value for _, value in values_of(results, place))
    values = sorted({value for scale in found for value in SCALES[scale].choices})
    rows = []
    for scale, its in found.items():
        counts = [str(its.count(value)) if value in SCALES[scale].choices else "" for value in values]
        rows.append([scale, str(len(its)), number(fmean(its) if its else None, 2), *counts])
    halves = sum(value % 1 > 0 for value in medians(key, results).values())
    note = f"Verdicts collected are medians; of {halves} between two verdicts one of these, by a coin that is fixed."
    return _table(["Scale", "Ratings", "Mean", *map(str, values)], rows, [note] if key["ask"] == "verdicts" else [])


def agreement_table(key: Key, results: list[Result]) -> Table:
    """Of each two raters Cohen's kappa over what both rated, and of more than two also Krippendorff's alpha of all."""
    scales: dict[str, list[tuple[str, str]]] = {}
    for place, scale in scales_by_place(key).items():
        scales.setdefault(scale, []).append(place)
    rows = []
    for scale, places in scales.items():
        groups = [*combinations(results, 2), *([results] if len(results) > 2 else [])]
        rows += [row for group in groups if (row := _agreement_row(scale, places, group)) is not None]
    weighted = any(SCALES[scale].steps for scale in scales)
    notes = [
        "Same: share of the values that are the same. The interval, 95%, is a bootstrap over questions: a dash where "
        "all resamples agree."
    ]
    notes += ["Coefficients weigh a disagreement by the square of its steps."] if weighted else []
    notes += [PAPER[key["ask"]]] if key["ask"] in PAPER else []
    columns = ["Scale", "Raters", "Questions", "Ratings of both", "Same", "Coefficient", "Value", "Interval"]
    return _table(columns, rows, notes, num_names=2)


def _agreement_row(scale: str, places: list[tuple[str, str]], group: Sequence[Result]) -> list[str] | None:
    """None where these raters have nothing in common."""
    by_question: dict[str, list[list[int]]] = {}
    for place in places:
        values = [value for _, value in values_of(list(group), place)]
        if len(values) > 1:
            by_question.setdefault(place[0], []).append(values)
    questions, steps = list(by_question.values()), SCALES[scale].steps
    if not questions:
        return None
    units = [values for its in questions for values in its]
    estimate: Estimate
    if len(group) == 2:
        name, estimate = (
            "Cohen's kappa",
            cohens_kappa([[(one, other) for one, other in its] for its in questions], steps),
        )
    else:
        name, estimate = "Krippendorff's alpha", krippendorffs_alpha(questions, steps)
    raters = " and ".join(result.rater for result in group) if len(group) == 2 else f"all {len(group)}"
    same = number(sum(len(set(values)) == 1 for values in units) / len(units))
    counts = [str(len(questions)), str(len(units))]
    return [scale, raters, *counts, same, name, signed(estimate.value), interval_text(estimate.interval)]


def disagreements_table(key: Key, results: list[Result]) -> Table:
    """What raters do not say the same of, what is farthest apart first."""
    apart = []
    for (question_id, name), scale in scales_by_place(key).items():
        said = dict(values_of(results, (question_id, name)))
        if len(set(said.values())) > 1:
            far = max(said.values()) - min(said.values()) if SCALES[scale].steps else 0
            question = key["questions"][question_id]
            aspect = name.partition(".")[0]
            about = question["aspects"][int(aspect)] if aspect.isdigit() else question["question"]
            apart.append((-far, [question_id, scale, about, *(_said(key, said.get(one.rater)) for one in results)]))
    rows = [row for _, row in sorted(apart, key=lambda one: one[0])]
    return _table(["Disagreement on", "Scale", "About", *(one.rater for one in results)], rows, [], num_names=3)


def _said(key: Key, value: int | None) -> str:
    if value is None:
        return ""
    return CHOICES[value] if key["ask"] == "pairs" else str(value)


def comments_table(key: Key, results: list[Result]) -> Table:
    order = list(key["questions"])
    rows = [[i, one.rater, one.comments[i]] for i in order for one in results if i in one.comments]
    return _table(["Comment on", "Rater", "Comment"], rows, [], num_names=3, longest=None)


def _table(
    columns: list[str], rows: list[list[str]], notes: list[str], num_names: int = 1, longest: int | None = LONGEST
) -> Table:
    """Texts that people wrote stand in one line, and questions and aspects are cut."""

    def cell(text: str) -> Cell:
        line = printable(one_line(text))
        return Cell(line if longest is None or len(line) <= longest else f"{line[:longest]}…")

    return Table([cell(name).text for name in columns], [list(map(cell, row)) for row in rows], notes, num_names)
