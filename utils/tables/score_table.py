"""The table of mean scores, a row a system, and the table of the comparisons between them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mean, stdev
from typing import Any

from utils.tables.columns import MACRO, column_means, columns_of, points_of
from utils.tables.comparisons import PERMUTATION, T_TEST, Contrast, has_dagger, is_corrected, shown_p
from utils.tables.formats import NOT_COMPARED, Cell, Table, counted, interval_text, number, p_text, plural, signed
from utils.tables.notes import wording_columns, wording_note
from utils.tables.paper_results import Paper
from utils.tables.significance import ALPHA, PERMUTATIONS, RESAMPLES
from utils.tables.system_scores import SELECTED, Board, System, cluster_names

PAGE_COLUMNS = 5  # of means, that a narrow page has room for beside names and counts


@dataclass(frozen=True)
class Row:
    """A system's means by column, None for a mean over nothing, and its counts by the head of their column."""

    name: str
    means: dict[str, float | None]
    counts: dict[str, int]
    label: str | None = None  # what stands in place of the name of what is no fair system, as `System.label`


def make_row(system: System) -> Row:
    unit = next(iter(system.task.metrics.values())).unit
    counts = {
        "Questions": len(system.asked_ids()),
        "Unanswered": system.num_unanswered(),
        f"Unscored {plural(unit)}": sum(system.unscored()),
    }
    return Row(system.name, column_means(system), counts, system.label)


def make_rows(boards: list[Board]) -> list[Row]:
    """Rows of all boards together; a question counts once, whatever number of metrics it was scored by."""
    rows = []
    for name in boards[0].rows:
        means: dict[str, float | None] = {}
        by_task: dict[str, dict[str, int]] = {}
        for board in boards:
            row = make_row(board.system(name))
            means |= {board.name_of(column): mean for column, mean in row.means.items()}
            known = by_task.setdefault(board.task.name, row.counts)
            by_task[board.task.name] = max(known, row.counts, key=lambda counts: counts["Questions"])
        heads = dict.fromkeys(head for counts in by_task.values() for head in counts)
        counts = {head: sum(its.get(head, 0) for its in by_task.values()) for head in heads}
        labels = filter(None, (board.system(name).label for board in boards))
        rows.append(Row(name, means, counts, next(labels, None)))
    return rows


def best_of(rows: list[Row], column: str, lower_is_better: bool = False) -> set[str]:
    """Names of the rows with the best mean as it is shown, where there are two or more fair ones to choose from."""
    means = {row.name: row.means[column] for row in rows if row.label is None}
    shown = {name: float(number(mean)) for name, mean in means.items() if mean is not None}
    best = min if lower_is_better else max
    return {name for name, mean in shown.items() if mean == best(shown.values())} if len(shown) > 1 else set()


def means_table(
    boards: list[Board], contrasts: Sequence[Contrast] = (), paper: Paper | None = None, notes: Sequence[str] = ()
) -> Table:
    rows, columns = make_rows(boards), columns_in(boards)
    best = {name: best_of(rows, name, board.metric.lower_is_better) for name, board in columns.items()}
    lines = []
    for row in rows:
        cells = [Cell(row.label or row.name)]
        for column, value in row.means.items():
            dagger = "†" if has_dagger(contrasts, row.name, column) else ""
            cells.append(Cell(number(value), dagger, row.name in best[column], _paper_texts(row, column, paper)))
        lines.append(cells + [Cell(str(count)) for count in row.counts.values()])
    lines += [_paper_line(method, columns, len(rows[0].counts), paper) for method in _paper_rows(rows, paper)]
    short = {**boards[0].task.short, MACRO: "Average"}
    short |= zip(rows[0].counts, ("Qns.", "Unans.", "Unsc."), strict=True)
    beside = ("in the paper", "difference to it")
    heads, above = ["System", *columns, *rows[0].counts], []
    if not boards[0].is_alone:
        above = ["", *(board.task.name for board in boards), *("" for _ in rows[0].counts)]
        heads[1 : 1 + len(boards)] = [board.metric_name for board in boards]
    return Table(heads, lines, list(notes), short=short, beside=beside, above=above)


def seeds_table(boards: list[Board], methods: dict[str, list[str]]) -> Table:
    """A line for every method and column: mean and sample standard deviation over its rows, one for each seed.

    `methods` has each method's rows. A column in which a row has no mean is a dash.
    """
    by_name, columns = {row.name: row for row in make_rows(boards)}, columns_in(boards)
    lines = []
    for method, names in methods.items():
        cells = [Cell(method)]
        for column in columns:
            means = [by_name[name].means[column] for name in names]
            known = None not in means
            cells.append(Cell(f"{number(mean(means))} ± {number(stdev(means))}" if known else "–"))
        lines.append([*cells, Cell(str(len(names)))])
    notes = [
        "Mean ± sample standard deviation over the n seeds of a method: how much the method varies from seed to seed. "
        "Tests and daggers in the table above compare single seeds, each with every seed of the baselines."
    ]
    return Table(["Over seeds", *columns, "n"], lines, notes, short={**boards[0].task.short, MACRO: "Average"})


def pages_of(boards: list[Board]) -> list[list[Board]]:
    """The boards of whole tasks, so that a table of each part fits on a narrow page."""
    pages: list[list[Board]] = [[]]
    for _, same in groupby(boards, key=lambda board: board.task.name):
        its = list(same)
        if pages[-1] and len(pages[-1]) + len(its) > PAGE_COLUMNS:
            pages.append([])
        pages[-1] += its
    return pages


def columns_in(boards: list[Board]) -> dict[str, Board]:
    """The columns of means by their names, each with the board that it is of."""
    return {board.name_of(column): board for board in boards for column in columns_of(board.task)}


def _paper_texts(row: Row, column: str, paper: Paper | None) -> tuple[str, ...]:
    """The paper's score as it is printed, and the difference to it; nothing for a row that it does not have."""
    if paper is None or (row.name, column) not in paper.scores:
        return ()
    return _printed(row.name, column, paper), signed(_to_paper(row, column, paper), paper.decimals)


def _printed(method: str, column: str, paper: Paper) -> str:
    dagger = "†" if (method, column) in paper.daggers else ""
    return f"{number(paper.scores.get((method, column)), paper.decimals)}{dagger}"


def _to_paper(row: Row, column: str, paper: Paper) -> float | None:
    mean, score = row.means[column], paper.scores.get((row.name, column))
    return None if mean is None or score is None else mean - score


def _paper_rows(rows: list[Row], paper: Paper | None) -> list[str]:
    """What the paper has of another model, and no row is named after: it gets rows of its own."""
    names = {row.name for row in rows}
    return [method for method in paper.methods if method not in names] if paper and paper.other_model else []


def _paper_line(method: str, columns: Iterable[str], num_counts: int, paper: Paper) -> list[Cell]:
    means = [Cell(_printed(method, column, paper)) for column in columns]
    return [Cell(f"{method} (paper)"), *means, *[Cell("–")] * num_counts]


def shares_table(boards: list[Board]) -> Table:
    """A line for every system and column of metrics whose means are shares, with the share's own interval."""
    rows = []
    for board in boards:
        for system in board.systems:
            for column, point in points_of(system).items():
                right = "–" if point.mean is None else str(round(point.mean * point.questions))
                texts = [system.name, board.name_of(column), number(point.mean), interval_text(point.interval, number)]
                rows.append([*map(Cell, [*texts, right, str(point.questions)])])
    columns = ["System", "Column", "Share", "95% interval", "Right", "Questions"]
    note = "Share: of the questions, those with score 1. Interval, of each share alone: Wilson's."
    if cluster := cluster_names(boards):
        note = note.replace("Wilson's", "a t interval of the logit")
        note += f" {_cluster_words(cluster)} A dash: fewer than two values of {cluster}, or no variation between them."
    notes = [note, f"{NOT_COMPARED} --baseline compares."]
    return Table(columns, rows, notes, num_names=2, short=boards[0].task.short)


def _cluster_words(cluster: str) -> str:
    return (
        f"Questions with the same {cluster} depend on each other, so the variance is cluster-robust "
        "(CR2, with the degrees of freedom of Bell & McCaffrey 2002)."
    )


def intervals_table(boards: list[Board], contrasts: list[Contrast]) -> Table:
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
    average = "; the average has none" if MACRO in columns_of(boards[0].task) else ""
    drawn = " or ".join(
        dict.fromkeys("swaps of the two answers" if board.metric.pooled else "sign flips" for board in boards)
    )
    interval = f"Interval: bootstrap, {RESAMPLES:,} resamples."
    if cluster := cluster_names(boards):
        elsewhere = "" if all(cluster_names([board]) for board in boards) else f" Where nobody has two: {interval}"
        interval = f"{_cluster_words(cluster)} Interval and t-test go by it.{elsewhere}"
        drawn += f", all differences of a {cluster} together"
    notes = [
        "Difference: system minus baseline, over the questions that both have a score of. "
        f"{interval} Permutation test: {PERMUTATIONS:,} {drawn}, two-sided. "
        f"Effect size: Cohen's d_z of the paired differences{average}."
    ]
    short = {**boards[0].task.short, MACRO: "Average"}
    short |= {"Difference": "Diff.", f"Permutation p{suffix}": "Perm. p", "Paired questions": "Pairs"}
    short |= {f"t-test p{suffix}": "t-test p"} if suffix else {}
    described = dict.fromkeys(map(_describe_pairing, contrasts))  # of two metrics it may be the same
    return Table(columns, rows, [*notes, *described], num_names=3, short=short)


# What a reader must know of these tables' cells


def dagger_notes(contrasts: list[Contrast], marked: bool) -> Iterator[str]:
    """What a dagger means where there is one, how was tested where cells are not `marked`, and what could not be."""
    if not contrasts:
        return
    results = [result for contrast in contrasts for result in contrast.results.values()]
    by_permutation = {name: one for one in contrasts for name in one.results if one.results[name].test == PERMUTATION}
    tests = [test for test in (T_TEST, PERMUTATION) if test in {result.test for result in results}]
    named = " or ".join("t-test" if test == T_TEST else "permutation test" for test in tests)
    cluster = cluster_names(one.board for one in contrasts)
    robust = f", cluster-robust by {cluster}" if cluster else ""
    tested = counted(sum(result.p_values[result.test] is not None for result in results), "comparison")
    correction = f"Holm's correction over {tested}" if is_corrected(contrasts) else f"not corrected for the {tested}"
    if marked:
        baselines = list(dict.fromkeys(contrast.baseline for contrast in contrasts))
        whom = baselines[0] if len(baselines) == 1 else f"each of {', '.join(baselines)}"
        daggers = any(has_dagger(contrasts, one.system, column) for one in contrasts for column in one.results)
        sign = "†: better" if daggers else "No system is better"
        yield f"{sign} than {whom} (two-sided paired {named}{robust}, p < {ALPHA}, {correction})."
    else:
        yield f"{', '.join(tests)}: two-sided and paired{robust}, {correction}."
    if len(tests) > 1:
        yield f"By the permutation test: {'; '.join(by_permutation)}; their scores are no means of their questions'."
    if untested := [result for result in results if result.p_values[result.test] is None]:
        units, alike = ("paired questions", "all differences equal")
        if cluster:
            units, alike = (f"values of {cluster}", "no variation between them")
        why = f"fewer than two {units} in a {contrasts[0].board.task.group_words[0]}, or {alike}"
        yield f"{counted(len(untested), 'comparison')} without a {named}: {why}."


def left_out_notes(contrasts: list[Contrast]) -> list[str]:
    """The comparisons that could not use every question."""
    pairings = ((one, one.pairing) for one in contrasts)
    left_out = (one for one, its in pairings if its.only_first or its.only_second or its.neither)
    return list(dict.fromkeys(map(_describe_pairing, left_out)))


def _describe_pairing(contrast: Contrast) -> str:
    pairing = contrast.pairing
    return contrast.note(
        f"{counted(pairing.paired, 'paired question')}; left out: "
        f"{pairing.only_first} scored only for {contrast.system}, {pairing.only_second} only for {contrast.baseline}, "
        f"{pairing.neither} for neither."
    )


def paper_notes(paper: Paper | None, boards: list[Board], marked: bool) -> Iterator[str]:
    if paper is None:
        return
    names = boards[0].rows
    daggers = marked and any(method in names for method, _ in paper.daggers)
    own = ", with its own daggers" if daggers else ""
    yield f"With each mean: the paper's {paper.title}{own}, and the difference to it."
    if paper.other_model:
        yield f"{paper.model}: {paper.other_model}"
    if others := [name for name in names if name not in paper.methods]:
        yield f"Not in that table: {', '.join(others)}; its methods are {', '.join(paper.methods)}."
    for (method, column), note in paper.misprints.items():
        if method in names:
            yield f"{method}, {column}: {note}"
    yield wording_note([system for board in boards for system in board.systems])


# The same as CSV


def csv_rows(boards: list[Board], contrasts: list[Contrast], paper: Paper | None) -> list[list[Any]]:
    """Header and rows: all that the tables and their notes on the paper show of a system, in one row."""
    rows = make_rows(boards)
    records = [_csv_record(row, boards, contrasts, paper) for row in rows]
    for method in _paper_rows(rows, paper):
        scores = {f"{column}: paper": paper.scores.get((method, column)) for column in columns_in(boards)}
        records.append({"System": f"{method} (paper)", **scores})
    columns = list(dict.fromkeys(column for record in records for column in record))
    return [columns, *([record.get(column) for column in columns] for record in records)]


def _csv_record(row: Row, boards: list[Board], contrasts: list[Contrast], paper: Paper | None) -> dict[str, Any]:
    record = {"System": row.name, **row.means, **row.counts}
    record |= {SELECTED.capitalize(): "yes"} if row.label else {}
    for column in row.means if paper is not None else ():
        record[f"{column}: paper"] = paper.scores.get((row.name, column))
        record[f"{column}: difference to paper"] = _to_paper(row, column, paper)
    for contrast in contrasts:
        if contrast.system == row.name:
            record |= _csv_contrast(contrast)
    for board in (board for board in boards if board.metric.is_share):
        for column, point in points_of(board.system(row.name)).items():
            low, high = point.interval or (None, None)
            record |= {f"{board.name_of(column)}: 95% interval, low": low}
            record |= {f"{board.name_of(column)}: 95% interval, high": high}
    systems = [system for board in boards for system in board.systems if system.name == row.name]
    return record if paper is None else record | wording_columns(systems)


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
    against = contrast.board.note(f"Left out against {contrast.baseline}")
    return record | {f"{against}: scored {where}": n for where, n in left_out.items()}
