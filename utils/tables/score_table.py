"""The table of mean scores, a row a system, and the table of the comparisons between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from utils.benchmarks.task import Task
from utils.tables.comparisons import PERMUTATION, T_TEST, Contrast, has_dagger, is_corrected, shown_p
from utils.tables.formats import Cell, Table, counted, interval_text, number, p_text, plural, signed
from utils.tables.notes import wording_columns, wording_note
from utils.tables.paper_results import Paper
from utils.tables.significance import ALPHA, PERMUTATIONS, RESAMPLES
from utils.tables.system_scores import MACRO, System, column_means, columns_of


@dataclass(frozen=True)
class Row:
    """A system's means by column, None for a mean over nothing, and its counts by the head of their column."""

    name: str
    means: dict[str, float | None]
    counts: dict[str, int]


def make_row(system: System) -> Row:
    unit = next(iter(system.task.metrics.values())).unit
    counts = {
        "Questions": len(system.asked_ids()),
        "Unanswered": system.num_unanswered(),
        f"Unscored {plural(unit)}": sum(system.unscored()),
    }
    return Row(system.name, column_means(system), counts)


def best_of(rows: list[Row], column: str) -> set[str]:
    """Names of the rows with the best mean as it is shown, where there are two or more to choose from."""
    shown = {row.name: number(row.means[column]) for row in rows if row.means[column] is not None}
    return {name for name, text in shown.items() if text == max(shown.values())} if len(shown) > 1 else set()


def means_table(
    systems: list[System], contrasts: Sequence[Contrast] = (), paper: Paper | None = None, notes: Sequence[str] = ()
) -> Table:
    rows = list(map(make_row, systems))
    best = {column: best_of(rows, column) for column in rows[0].means}
    lines = []
    for row in rows:
        cells = [Cell(row.name)]
        for column, mean in row.means.items():
            dagger = "†" if has_dagger(contrasts, row.name, column) else ""
            cells.append(Cell(number(mean), dagger, row.name in best[column], _paper_texts(row, column, paper)))
        lines.append(cells + [Cell(str(count)) for count in row.counts.values()])
    heads = ["System", *rows[0].means, *rows[0].counts]
    short = {**systems[0].task.short, MACRO: "Average"}
    short |= zip(rows[0].counts, ("Qns.", "Unans.", "Unsc."), strict=True)
    return Table(heads, lines, list(notes), short=short, beside=("in the paper", "difference to it"))


def _paper_texts(row: Row, column: str, paper: Paper | None) -> tuple[str, ...]:
    """The paper's score as it is printed, and the difference to it; nothing for a row that it does not have."""
    if paper is None or (row.name, column) not in paper.scores:
        return ()
    dagger = "†" if (row.name, column) in paper.daggers else ""
    return f"{number(paper.scores[row.name, column])}{dagger}", signed(_to_paper(row, column, paper))


def _to_paper(row: Row, column: str, paper: Paper) -> float | None:
    mean, score = row.means[column], paper.scores.get((row.name, column))
    return None if mean is None or score is None else mean - score


def intervals_table(systems: list[System], contrasts: list[Contrast]) -> Table:
    """A line for every comparison."""
    suffix = " (Holm)" if is_corrected(contrasts) else ""
    columns = ["System", "Baseline", "Column", "Difference", "95% interval", f"t-test p{suffix}"]
    columns += [f"Permutation p{suffix}", "Effect size", "Paired questions"]
    rows = []
    for contrast in contrasts:
        for column, result in contrast.results.items():
            texts = [contrast.system, contrast.baseline, column]
            texts += [signed(result.difference), interval_text(result.interval)]
            texts += [p_text(shown_p(result, T_TEST)), p_text(shown_p(result, PERMUTATION))]
            texts += [signed(result.effect_size, 2), str(result.num_questions)]
            rows.append(list(map(Cell, texts)))
    average = "; the average has none" if MACRO in columns_of(systems[0].task) else ""
    notes = [
        "Difference: system minus baseline, over the questions that both have a score of. "
        f"Interval: bootstrap, {RESAMPLES:,} resamples. Permutation test: {PERMUTATIONS:,} sign flips, two-sided. "
        f"Effect size: Cohen's d_z of the paired differences{average}."
    ]
    short = {**systems[0].task.short, MACRO: "Average"}
    short |= {"Difference": "Diff.", f"Permutation p{suffix}": "Perm. p", "Paired questions": "Pairs"}
    short |= {f"t-test p{suffix}": "t-test p"} if suffix else {}
    return Table(columns, rows, [*notes, *map(_describe_pairing, contrasts)], num_names=3, short=short)


# What a reader must know of these tables' cells


def dagger_notes(contrasts: list[Contrast], marked: bool, task: Task) -> Iterator[str]:
    """What a dagger means where there is one, how was tested where cells are not `marked`, and what could not be."""
    if not contrasts:
        return
    results = [result for contrast in contrasts for result in contrast.results.values()]
    tested = counted(sum(result.p_values[T_TEST] is not None for result in results), "comparison")
    correction = f"Holm's correction over {tested}" if is_corrected(contrasts) else f"not corrected for the {tested}"
    if marked:
        baselines = list(dict.fromkeys(contrast.baseline for contrast in contrasts))
        whom = baselines[0] if len(baselines) == 1 else f"each of {', '.join(baselines)}"
        daggers = any(has_dagger(contrasts, one.system, column) for one in contrasts for column in one.results)
        sign = "†: better" if daggers else "No system is better"
        yield f"{sign} than {whom} (two-sided paired t-test, p < {ALPHA}, {correction})."
    else:
        yield f"{T_TEST}: two-sided and paired, {correction}."
    if untested := [result for result in results if result.p_values[T_TEST] is None]:
        yield (
            f"{counted(len(untested), 'comparison')} without a t-test: fewer than two paired questions in a "
            f"{task.group_words[0]}, or all differences equal."
        )


def left_out_notes(contrasts: list[Contrast]) -> Iterator[str]:
    """The comparisons that could not use every question."""
    for contrast in contrasts:
        if contrast.pairing.only_first or contrast.pairing.only_second or contrast.pairing.neither:
            yield _describe_pairing(contrast)


def _describe_pairing(contrast: Contrast) -> str:
    pairing = contrast.pairing
    return (
        f"{contrast.system} and {contrast.baseline}: {counted(pairing.paired, 'paired question')}; left out: "
        f"{pairing.only_first} scored only for {contrast.system}, {pairing.only_second} only for {contrast.baseline}, "
        f"{pairing.neither} for neither."
    )


def paper_notes(paper: Paper | None, systems: list[System], marked: bool) -> Iterator[str]:
    if paper is None:
        return
    names = [system.name for system in systems]
    daggers = marked and any(method in names for method, _ in paper.daggers)
    own = ", with its own daggers" if daggers else ""
    yield f"With each mean: the paper's {paper.title}{own}, and the difference to it."
    if others := [name for name in names if name not in paper.methods]:
        yield f"Not in that table: {', '.join(others)}; its methods are {', '.join(paper.methods)}."
    for (method, column), note in paper.misprints.items():
        if method in names:
            yield f"{method}, {column}: {note}"
    yield wording_note(systems)


# The same as CSV


def csv_rows(systems: list[System], contrasts: list[Contrast], paper: Paper | None) -> list[list[Any]]:
    """Header and rows: all that the tables and their notes on the paper show of a system, in one row."""
    records = [_csv_record(system, contrasts, paper) for system in systems]
    columns = list(dict.fromkeys(column for record in records for column in record))
    return [columns, *([record.get(column) for column in columns] for record in records)]


def _csv_record(system: System, contrasts: list[Contrast], paper: Paper | None) -> dict[str, Any]:
    row = make_row(system)
    record = {"System": row.name, **row.means, **row.counts}
    for column in row.means if paper is not None else ():
        record[f"{column}: paper"] = paper.scores.get((row.name, column))
        record[f"{column}: difference to paper"] = _to_paper(row, column, paper)
    for contrast in contrasts:
        if contrast.system == row.name:
            record |= _csv_contrast(contrast)
    return record if paper is None else record | wording_columns(system)


def _csv_contrast(contrast: Contrast) -> dict[str, Any]:
    record = {}
    for column, result in contrast.results.items():
        figures = {"paired questions": result.num_questions, "difference": result.difference, **result.p_values}
        if PERMUTATION in result.p_values:
            low, high = result.interval or (None, None)
            figures |= {"95% interval, low": low, "95% interval, high": high, "effect size": result.effect_size}
        record |= {f"{column}: {name} against {contrast.baseline}": figure for name, figure in figures.items()}
    left_out = {"here only": contrast.pairing.only_first, "there only": contrast.pairing.only_second}
    left_out["nowhere"] = contrast.pairing.neither
    return record | {f"Left out against {contrast.baseline}: scored {where}": n for where, n in left_out.items()}
