"""What raters said, as tables: who did how much, what they say, how far they agree, and where they do not."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import fmean, median

from utils.cli.errors import printable
from utils.parsing.plans import one_line
from utils.scoring.reliability import cohens_kappa, krippendorffs_alpha
from utils.tables.agreement import describe_sign_test, human_figures
from utils.tables.formats import Cell, Table, interval_text, number, signed
from utils.tables.raters import CHOICES, Rating, Results, all_values, preferences
from utils.tables.rating_study import SCALES, slots_of

PAPER = {  # what it says of its own raters
    "pairs": "The paper's two raters: Cohen's kappa 0.726 (section 5.2).",
    "aspects": "The paper's two raters, of what is called complete here: mean 4.9, Cohen's kappa 0.87 (section 3).",
}
LONGEST = 60  # characters of a question or an aspect


def all_tables(results: Results) -> list[Table]:
    """Return the tables of a study, without those that would have no rows."""
    says = preferences_table if results.key["ask"] == "pairs" else means_table
    makers = (raters_table, says, agreement_table, disagreements_table, comments_table)
    return [table for make in makers if (table := make(results)).rows]


def raters_table(results: Results) -> Table:
    """Show what each rater did; of pairs also how often they chose what was shown first."""
    key = results.key
    slots = {i: slots_of(key["ask"], len(question["aspects"])) for i, question in key["questions"].items()}
    sides = SCALES["choice"].choices if key["ask"] == "pairs" else {}
    rows = []
    for rater in results.raters:
        its = {(i, slot): said for (name, i, slot), said in results.decisions.items() if name == rater}
        ids = key["raters"][rater]
        finished = sum(all((i, slot) in its for slot, *_ in slots[i]) for i in ids)
        seconds = number(median(said["seconds"] for said in its.values()) if its else None, 1)
        shown = Counter(said["value"] for said in its.values())
        rows.append([rater, str(len(ids)), str(finished), seconds, *(str(shown[value]) for value in sides)])
    silent = [rater for rater in key["raters"] if rater not in results.raters]
    notes = [f"No file of {', '.join(silent)}."] if silent else []
    notes += ["Response 1 and Response 2 are as they were shown, which chance decided."] if sides else []
    return _table(["Rater", "Questions", "Finished", "Seconds a decision (median)", *sides.values()], rows, notes)


def preferences_table(results: Results) -> Table:
    choices = preferences(results)
    if not choices:
        return _table(["Preferred"], [], [])
    figures = human_figures(choices)
    first, second = (printable(one_line(system["name"])) for system in results.key["systems"])
    rows = []
    for choice, name in {"first": first, "second": second, "tie": "tie"}.items():
        said = sum(its.count(choice) for its in choices.values())
        rows.append([name, str(figures[choice]), number(figures[choice] / figures["num_questions"]), str(said)])
    notes = [
        f"A question goes to what more than half of its raters say, else it is a tie: {figures['no_majority']} are.",
        describe_sign_test(figures, first, second),
    ]
    return _table(["Preferred", "Questions", "Share", "Choices"], rows, notes)


def means_table(results: Results) -> Table:
    """Show by scale the mean of all ratings, and how often each value was given."""
    scales = results.by_scale()
    values = sorted({value for scale in scales for value in SCALES[scale].choices})
    rows = []
    for scale, ratings in scales.items():
        its = all_values(ratings)
        counts = [str(its.count(value)) if value in SCALES[scale].choices else "" for value in values]
        rows.append([scale, str(len(its)), number(fmean(its) if its else None, 2), *counts])
    halves = sum(median(one.values.values()) % 1 > 0 for one in results.ratings)
    note = f"Verdicts collected are medians; of {halves} between two verdicts one of these, by a coin that is fixed."
    notes = [note] if results.key["ask"] == "verdicts" else []
    return _table(["Scale", "Ratings", "Mean", *map(str, values)], rows, notes)


def agreement_table(results: Results) -> Table:
    """Show Cohen's kappa of each two raters over what both rated, and of more than two Krippendorff's alpha of all."""
    groups = [*combinations(results.raters, 2), *([results.raters] if len(results.raters) > 2 else [])]
    scales = results.by_scale()
    rows = [row for scale, ratings in scales.items() for group in groups for row in _agreement(scale, ratings, group)]
    notes = [
        "Same: share of the values that are the same. The interval, 95%, is a bootstrap over questions: a dash where "
        "all resamples agree."
    ]
    if any(SCALES[scale].steps for scale in scales):
        notes.append("Coefficients weigh a disagreement by the square of its steps.")
    notes += [PAPER[results.key["ask"]]] if results.key["ask"] in PAPER else []
    columns = ["Scale", "Raters", "Questions", "Ratings of both", "Same", "Coefficient", "Value", "Interval"]
    return _table(columns, rows, notes, num_names=2)


def _agreement(scale: str, ratings: list[Rating], group: Sequence[str]) -> Iterator[list[str]]:
    """Make the row of these raters, where they have something in common."""
    by_question: dict[str, list[list[int]]] = {}
    for one in ratings:
        values = [one.values[rater] for rater in group if rater in one.values]
        if len(values) > 1:
            by_question.setdefault(one.question_id, []).append(values)
    units = [values for its in by_question.values() for values in its]
    if units:
        same = sum(len(set(values)) == 1 for values in units) / len(units)
        name, coefficient, raters = "Krippendorff's alpha", krippendorffs_alpha, f"all {len(group)}"
        if len(group) == 2:
            name, coefficient, raters = "Cohen's kappa", cohens_kappa, " and ".join(group)
        its = coefficient(list(by_question.values()), SCALES[scale].steps)
        counts = [str(len(by_question)), str(len(units)), number(same)]
        yield [scale, raters, *counts, name, signed(its.value), interval_text(its.interval)]


def disagreements_table(results: Results) -> Table:
    """Show what raters do not say the same of, what is farthest apart first."""
    names = CHOICES if results.key["ask"] == "pairs" else {}
    apart = [one for one in results.ratings if one.gap]
    apart.sort(key=lambda one: -one.gap if SCALES[one.scale].steps else 0)
    rows = []
    for one in apart:
        said = {rater: str(names.get(value, value)) for rater, value in one.values.items()}
        rows.append([one.question_id, one.scale, one.about, *(said.get(name, "") for name in results.raters)])
    return _table(["Disagreement on", "Scale", "About", *results.raters], rows, [], num_names=3)


def comments_table(results: Results) -> Table:
    places = [(i, rater) for i in results.key["questions"] for rater in results.raters]
    rows = [[*place, results.comments[place]] for place in places if place in results.comments]
    return _table(["Comment on", "Rater", "Comment"], rows, [], num_names=3, longest=None)


def _table(
    columns: list[str], rows: list[list[str]], notes: list[str], num_names: int = 1, longest: int | None = LONGEST
) -> Table:
    """Put texts that people wrote into one line each, and cut questions and aspects."""

    def cell(text: str) -> Cell:
        line = printable(one_line(text))
        return Cell(line if longest is None or len(line) <= longest else f"{line[:longest]}…")

    return Table([cell(name).text for name in columns], [list(map(cell, row)) for row in rows], notes, num_names)
