"""What people's verdicts say of a judge, for readers: the corrected means, the bias, and who said what of an aspect."""

from collections.abc import Sequence
from typing import Any

from utils.scoring.aspects import MAX_VERDICT
from utils.tables.corrected import Judged, differences, figures
from utils.tables.formats import NOT_COMPARED, Cell, Table, counted, interval_text, number, signed
from utils.tables.prediction_powered import FEWEST, FEWEST_ERRORS
from utils.tables.system_scores import MACRO, few

GRADES = range(MAX_VERDICT + 1)


def corrected_tables(judged: Sequence[Judged]) -> list[Table]:
    """Nothing where people judged no system."""
    if not judged:
        return []
    compared = [_differences_table(judged)] if len(judged) > 1 else []
    return [_means_table(judged), *compared, _bias_table(judged), _confusion_table(judged)]


def _means_table(judged: Sequence[Judged]) -> Table:
    columns = ["System", "Column", "Judge's mean", "Corrected mean", "95% interval", "Weight of the judge"]
    columns += ["Judged by people", "Further ones to halve the interval"]
    rows = []
    for one in judged:
        for column, its in one.columns.items():
            texts = [one.system.name, column, number(its.judge), number(its.mean), interval_text(its.interval, number)]
            texts += [number(its.weight, 2), f"{its.seen} of {its.total}"]
            texts += ["–" if its.further is None else str(its.further)]
            rows.append(list(map(Cell, texts)))
    group = judged[0].system.task.group_words[0]
    notes = [
        "Corrected mean: what people's verdicts on all questions would give, by the judge's on all and people's on a "
        "part (prediction-powered inference, PPI++), with its interval by Student's t. It holds where the questions "
        f"that people judged are drawn at random from each {group}'s.",
        "Weight of the judge: lambda, from 0 (people's verdicts alone count) to 1; the average has that of each "
        f"{group}. It is 0 where the judge differs from people on fewer than {FEWEST_ERRORS} questions of a {group}: "
        "too few to know its rare errors. Judged by people: questions, of those that have an answer and the judge's "
        "score.",
        "Further ones to halve the interval: questions for people to judge, spread as those that they did judge; "
        "a dash where even all are too few. No correction: fewer than "
        f"{FEWEST} questions judged by people in a {group}; no interval: people's scores there are all the same.",
        *[f"{NOT_COMPARED} The next table compares."] * (len(judged) > 1),
        *(f"{one.system.name}: {_left_out(one.left_out)}." for one in judged if one.left_out),
    ]
    if on_trust := [path for one in judged for path in one.on_trust]:
        notes.append(
            f"Taken on trust, that people saw the answers that were scored: {few(on_trust)} (no hash of the responses "
            "in it, or no manifest beside the scores)."
        )
    short = {"Judge's mean": "Judge", "Corrected mean": "Corr.", "Weight of the judge": "Weight"}
    short |= {"Judged by people": "People", "Further ones to halve the interval": "To halve"}
    return Table(columns, rows, notes, num_names=2, short={**judged[0].system.task.short, MACRO: "Average", **short})


def _differences_table(judged: Sequence[Judged]) -> Table:
    """A line for every two systems and column."""
    columns = ["First system", "Second system", "Column", "Judge's difference", "Corrected difference"]
    columns += ["95% interval", "Weight of the judge", "Judged by people"]
    rows = []
    for names, by_column in differences(judged).items():
        for column, its in by_column.items():
            texts = [*names, column, signed(its.judge), signed(its.mean), interval_text(its.interval)]
            rows.append(list(map(Cell, [*texts, number(its.weight, 2), f"{its.seen} of {its.total}"])))
    notes = [
        "Difference: the first system's score minus the second's on the same question, corrected as the means are. "
        "An interval without 0 shows a difference. Judged by people: questions on which they judged both answers, or "
        "one where the other is missing. A dash: too few of them, or their differences are all the same."
    ]
    short = {"Judge's difference": "Judge", "Corrected difference": "Corr.", "Weight of the judge": "Weight"}
    short |= {**judged[0].system.task.short, MACRO: "Average", "Judged by people": "People"}
    return Table(columns, rows, notes, num_names=3, short=short)


def _left_out(questions: int) -> str:
    return f"{counted(questions, 'question')} judged by people left out, for the judge's score or the column is missing"


def _bias_table(judged: Sequence[Judged]) -> Table:
    columns = ["System", "Column", "Bias of the judge", "95% interval", "Questions"]
    rows = []
    for one in judged:
        for column, its in one.columns.items():
            texts = [one.system.name, column, signed(its.bias), interval_text(its.bias_interval), str(its.seen)]
            rows.append(list(map(Cell, texts)))
    notes = [
        "Bias of the judge: its score minus people's, the mean over the questions that people judged, with the "
        f"interval by Student's t; a dash where fewer than {FEWEST_ERRORS} questions of a "
        f"{judged[0].system.task.group_words[0]} differ."
    ]
    short = {**judged[0].system.task.short, MACRO: "Average", "Bias of the judge": "Bias"}
    return Table(columns, rows, notes, num_names=2, short=short)


def _confusion_table(judged: Sequence[Judged]) -> Table:
    """A line for each verdict of people."""
    rows = []
    for one in judged:
        for human in GRADES:
            counts = [str(one.confusion[human, judge]) for judge in GRADES]
            rows.append(list(map(Cell, [one.system.name, f"People {human}", *counts])))
    notes = ["Aspects by people's verdict and the judge's, of the answers that people judged."]
    return Table(["System", "Verdict", *(f"Judge {grade}" for grade in GRADES)], rows, notes, num_names=2)


def csv_columns(judged: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """By a system's name what its row holds besides."""
    more = {}
    for one in judged:
        record: dict[str, Any] = {}
        for column, its in one.columns.items():
            record |= {f"{column}: {name}": figure for name, figure in figures(its).items()}
        for human in GRADES:
            record |= {f"Aspects: people {human}, judge {judge}": one.confusion[human, judge] for judge in GRADES}
        more[one.system.name] = record
    for (first, second), by_column in differences(judged).items():
        for column, its in by_column.items():
            low, high = its.interval or (None, None)
            figures_of = {"difference": its.mean, "95% interval, low": low, "95% interval, high": high}
            more[first] |= {f"{column}: corrected {name} to {second}": one for name, one in figures_of.items()}
    return more
