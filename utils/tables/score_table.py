"""The tables of mean scores, one row per system, and of comparisons, with their notes and CSV."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, mean, stdev
from types import MappingProxyType
from typing import Any

from utils.base.errors import UserError, count_noun, plural, quote
from utils.tables.columns import (
    MACRO,
    PERMUTATION,
    T_TEST,
    Comparison,
    column_means,
    columns_of,
    has_dagger,
    join_columns,
    points_of,
)
from utils.tables.formats import NOT_COMPARED, Cell, Table, interval_text, number, p_text, signed
from utils.tables.notes import wording_columns, wording_note
from utils.tables.paper_numbers import Paper
from utils.tables.significance import ALPHA, PERMUTATIONS, RESAMPLES
from utils.tables.system_scores import Board, cluster_names

PAGE_COLUMNS = 5  # columns of means that fit on a narrow page, besides names and counts
CLUSTERED = (
    "Questions with the same {} depend on each other, so the variance is cluster-robust "
    "(CR2, with the degrees of freedom of Bell & McCaffrey 2002)."
)


# The tables


@dataclass(frozen=True)
class Row:
    """A system's means by column (None without scores), and its counts by column."""

    name: str
    means: dict[str, float | None]
    counts: dict[str, int | None]
    label: str  # the name as shown
    excluded: str  # see `System`


def make_rows(boards: list[Board], lengths: bool = False) -> list[Row]:
    """Return one row per system over all boards; a question that several metrics scored counts once.

    With `lengths`, the counts include the mean words per answer.
    """
    rows = []
    unscored = f"Unscored {plural(boards[0].metric.unit)}"
    for name in boards[0].rows:
        systems = [board.system(name) for board in boards]
        means = {}
        for board, system in zip(boards, systems, strict=True):
            means |= {board.name_of(column): score for column, score in column_means(system).items()}
        counts = {"Questions": 0, "Unanswered": 0, unscored: 0}
        for _, same in groupby(systems, key=lambda system: system.task.name):
            most = max(same, key=lambda system: len(system.asked_ids))
            more = len(most.asked_ids), most.num_unanswered, sum(most.unscored)
            counts = {head: count + extra for (head, count), extra in zip(counts.items(), more, strict=True)}
        if lengths:
            words = [system.mean_words for system in systems]
            counts = {"Words": None if None in words else round(fmean(words)), **counts}
        label = label_of(boards, name)
        excluded = next(filter(None, (system.excluded for system in systems)), "")
        rows.append(Row(name, means, counts, label, excluded))
    return rows


def label_of(boards: list[Board], name: str) -> str:
    """Return a row's name as shown: the first label of its systems that differs from the name, or the name."""
    return next((label for board in boards if (label := board.system(name).label) != name), name)


def best_of(rows: list[Row], column: str, lower_is_better: bool = False) -> set[str]:
    """Return the names of the rows with the best rounded mean; empty if all comparable rows have the same mean."""
    means = {row.name: row.means[column] for row in rows if not row.excluded}
    shown = {name: float(number(mean)) for name, mean in means.items() if mean is not None}
    best = min if lower_is_better else max
    return (
        {name for name, mean in shown.items() if mean == best(shown.values())} if len({*shown.values()}) > 1 else set()
    )


def columns_in(boards: list[Board]) -> dict[str, Board]:
    """Return each column of means, by name, with its board."""
    return {board.name_of(column): board for board in boards for column in columns_of(board.task)}


def means_table(
    boards: list[Board],
    comparisons: Sequence[Comparison] = (),
    paper: Paper | None = None,
    lengths: bool = False,
    published: Mapping[str, list[str]] = MappingProxyType({}),
) -> Table:
    """Return the table of means; `published` has scores that the user typed: by row name, one text per column."""
    rows, columns = make_rows(boards, lengths), columns_in(boards)
    counts = list(rows[0].counts)
    best = {name: best_of(rows, name, board.metric.lower_is_better) for name, board in columns.items()}
    lines = []
    for row in rows:
        cells = [Cell(row.label)]
        for column, value in row.means.items():
            dagger = "†" if has_dagger(comparisons, row.name, column) else ""
            beside = ()
            if paper and (row.name, column) in paper.scores:
                beside = paper.printed(row.name, column), signed(_to_paper(row, column, paper), paper.decimals)
            cells.append(Cell(number(value), dagger, row.name in best[column], beside))
        lines.append(cells + [Cell("–" if count is None else str(count)) for count in row.counts.values()])
    others = {f"{name} (typed)": scores for name, scores in published.items() if scores}
    for method in paper.rows_beside(boards[0].rows, published) if paper else ():
        others[f"{method} (paper)"] = [paper.printed(method, column) for column in columns]
    lines += [[*map(Cell, [name, *printed, *["–"] * len(counts)])] for name, printed in others.items()]
    short = _short_names(boards) | dict(zip(counts[-3:], ("Qns.", "Unans.", "Unsc."), strict=True))
    heads, above = [*join_columns({"System": None}, columns, rows[0].counts)], []
    if not boards[0].is_alone:
        above = ["", *(board.task.name for board in boards), *("" for _ in counts)]
        heads[1 : 1 + len(boards)] = [board.metric_name for board in boards]
    return Table(heads, lines, [], short=short, beside=("in the paper", "difference to it"), above=above)


def _short_names(boards: list[Board]) -> dict[str, str]:
    return {**boards[0].task.short, MACRO: "Average"}


def _to_paper(row: Row, column: str, paper: Paper) -> float | None:
    mean, score = row.means[column], paper.scores.get((row.name, column))
    return None if mean is None or score is None else mean - score


def pages_of(boards: list[Board]) -> list[list[Board]]:
    """Split the boards, without splitting a task, so that each part's table fits on a narrow page."""
    pages: list[list[Board]] = [[]]
    for _, same in groupby(boards, key=lambda board: board.task.name):
        boards_of_task = list(same)
        if pages[-1] and len(pages[-1]) + len(boards_of_task) > PAGE_COLUMNS:
            pages.append([])
        pages[-1] += boards_of_task
    return pages


@dataclass(frozen=True)
class SeedsRow:
    """A method's mean and sample standard deviation over its seeds, by column; None if a seed's row has no mean."""

    method: str
    num_seeds: int
    spreads: dict[str, tuple[float, float] | None]
    excluded: str  # see `System`


def rows_over_seeds(boards: list[Board], methods: dict[str, list[str]]) -> Iterator[SeedsRow]:
    """Yield a row per method; UserError if a method has both ordinary and excluded rows."""
    by_name = {row.name: row for row in make_rows(boards)}
    for method, names in methods.items():
        rows = [by_name[name] for name in names]
        if len(excluded := {row.excluded for row in rows}) > 1:
            labels = ", ".join(row.label for row in rows)
            raise UserError(
                f"--seeds {quote(method)}: {labels}: only some of these rows are comparable with other systems\n"
                "  list them as two methods"
            )
        spreads = {}
        for column in columns_in(boards):
            means = [row.means[column] for row in rows]
            spreads[column] = None if None in means else (mean(means), stdev(means))
        yield SeedsRow(method, len(rows), spreads, *excluded)


def seeds_table(
    boards: list[Board], methods: dict[str, list[str]], comparisons: Sequence[Comparison] = (), marked: bool = True
) -> Table:
    """Return a table of means and sample standard deviations over each method's seeds; a dash if a mean is missing.

    `comparisons` are those of `compare_methods`; `marked` says that daggers mark significant ones.
    """
    lines = []
    for row in rows_over_seeds(boards, methods):
        texts = [f"{row.method} ({row.excluded})" if row.excluded else row.method]
        for column, spread in row.spreads.items():
            dagger = "†" if has_dagger(comparisons, row.method, column) else ""
            texts.append("–" if spread is None else f"{number(spread[0])} ± {number(spread[1])}{dagger}")
        lines.append([*map(Cell, [*texts, str(row.num_seeds)])])
    notes = ["Mean ± sample standard deviation over a method's n seeds."]
    if comparisons:
        notes[0] += " Tests here compare each question's mean over a method's seeds; those above compare single seeds."
        notes += dagger_notes(list(comparisons), marked)
    heads = [*join_columns({"Over seeds": None}, columns_in(boards), {"n": None})]
    return Table(heads, lines, notes, short=_short_names(boards))


def shares_table(boards: list[Board]) -> Table:
    """Return a table of shares with their intervals, one row per system and column."""
    rows = []
    for board in boards:
        points = ((system.name, *point) for system in board.systems for point in points_of(system).items())
        for name, column, point in points:
            right = "–" if point.mean is None else str(round(point.mean * point.questions))
            texts = [label_of(boards, name), board.name_of(column), number(point.mean)]
            texts.append(interval_text(point.interval, number))
            rows.append([*map(Cell, [*texts, right, str(point.questions)])])
    note = f"Share: questions with score 1. {share_intervals_note(cluster_names(boards))}"
    columns = ["System", "Column", "Share", "95% interval", "Right", "Questions"]
    notes = [note, f"{NOT_COMPARED} Use --baseline to compare."]
    return Table(columns, rows, notes, num_names=2, short=boards[0].task.short)


def share_intervals_note(cluster: str) -> str:
    """Describe the intervals of `share_interval`; `cluster` comes from `cluster_names`."""
    if not cluster:
        return "Interval: Wilson's, for each share alone."
    return (
        f"Interval: a t interval of the logit, or Wilson's where no {cluster} is repeated, for each share alone. "
        f"{CLUSTERED.format(cluster)} "
        f"A dash means that fewer than two {cluster} values occur, or that there is no variation between them."
    )


def intervals_table(boards: list[Board], comparisons: list[Comparison], rows_are: str = "System") -> Table:
    """Return a table with one row per comparison; `rows_are` heads the first column."""
    suffix = " (Holm)" if any(comparison.is_corrected for comparison in comparisons) else ""
    rows = []
    for comparison in comparisons:
        names = (label_of(boards, name) for name in (comparison.system, comparison.baseline))
        texts = [*names, comparison.column, signed(comparison.difference), interval_text(comparison.interval)]
        texts += [p_text(comparison.shown_p(T_TEST)), p_text(comparison.shown_p(PERMUTATION))]
        rows.append([*map(Cell, [*texts, signed(comparison.effect_size, 2), str(comparison.num_questions)])])
    average = "; the average has none" if MACRO in columns_of(boards[0].task) else ""
    drawn = dict.fromkeys("swaps of the two answers" if board.metric.pooled else "sign flips" for board in boards)
    drawn = f"{PERMUTATIONS:,} {' or '.join(drawn)}"
    all_tried = [bool(comparison.flips) for comparison in comparisons]
    if any(all_tried):
        drawn = "all sign flips" if all(all_tried) else f"{drawn} (all, if there are fewer)"
    interval = f"Interval: bootstrap, {RESAMPLES:,} resamples."
    if cluster := cluster_names(boards):
        elsewhere = "" if all(cluster_names([board]) for board in boards) else f" Without repeated values: {interval}"
        interval = f"{CLUSTERED.format(cluster)} Interval and t-test use it.{elsewhere}"
        drawn += f", with all differences of the same {cluster} together"
    note = (
        "Difference: system minus baseline, over the questions that both have a score for. "
        f"{interval} Permutation test: {drawn}, two-sided. "
        f"Effect size: Cohen's d_z of the paired differences{average}."
    )
    columns = [rows_are, "Baseline", "Column", "Difference", "95% interval", f"t-test p{suffix}"]
    columns += [f"Permutation p{suffix}", "Effect size", "Paired questions"]
    short = {"Difference": "Diff.", f"Permutation p{suffix}": "Perm. p", "Paired questions": "Pairs"}
    short = _short_names(boards) | short | ({f"t-test p{suffix}": "t-test p"} if suffix else {})
    described = dict.fromkeys(map(_describe_pairs, comparisons))  # two metrics may have the same description
    return Table(columns, rows, [note, *_too_few(comparisons), *described], num_names=3, short=short)


def lengths_table(boards: list[Board], comparisons: list[Comparison]) -> Table:
    """Return a table with one row per comparison: the observed difference, and the difference at equal length."""
    rows = []
    for comparison in comparisons:
        texts = [*(label_of(boards, name) for name in (comparison.system, comparison.baseline)), comparison.column]
        if (length := comparison.length) is None:
            rows.append([*map(Cell, [*texts, *["–"] * 7])])
            continue
        texts += [*(f"{words:.0f}" for words in length.words), signed(length.difference)]
        adjusted = length.at_equal_length
        texts += ["–"] * 3 if adjusted is None else [
            signed(adjusted.difference), interval_text(adjusted.interval), signed(adjusted.per_doubling)
        ]  # fmt: skip
        rows.append([*map(Cell, [*texts, str(length.num_questions)])])
    cluster = cluster_names(boards)
    robust = f", cluster-robust by {cluster}" if cluster else ""
    note = (
        "At equal length: the mean difference if both answers had the same number of words, by a regression of the "
        "questions' score differences on the log ratios of the words, with one slope, over the questions that both "
        f"have a score and an answer for; 95% interval{robust}. Per doubling: the effect of twice as many words. "
        "This also removes an advantage that a system has because it says more, and it extrapolates if lengths hardly "
        "overlap."
    )
    columns = ["System", "Baseline", "Column", "Words", "Baseline's words", "Difference", "At equal length"]
    columns += ["95% interval", "Per doubling", "Questions"]
    short = {"Difference": "Diff.", "At equal length": "Equal", "Baseline's words": "Base", "Questions": "Qns."}
    return Table(columns, rows, [note], num_names=3, short=_short_names(boards) | short)


def _too_few(comparisons: list[Comparison]) -> Iterator[str]:
    """Yield notes on comparisons with too few questions to be significant, one for each lowest possible p."""
    by_least: dict[float, list[str]] = {}
    for comparison in comparisons:
        if comparison.p_values.get(PERMUTATION) is not None and comparison.flips and 2 / comparison.flips >= ALPHA:
            name = f"{comparison.system} and {comparison.baseline}, {comparison.column}"
            by_least.setdefault(min(1, 2 / comparison.flips), []).append(name)
    for least, names in sorted(by_least.items(), reverse=True):
        limit = "1" if least == 1 else f"at least {number(least)}"
        yield f"{'; '.join(names)}: p of the permutation test is {limit}, so no difference can be significant."


# Notes on the tables' cells


def dagger_notes(comparisons: list[Comparison], marked: bool) -> Iterator[str]:
    """Yield notes on daggers, or without `marked` on the tests, and on missing tests."""
    if not comparisons:
        return
    tests = [test for test in (T_TEST, PERMUTATION) if test in {comparison.test for comparison in comparisons}]
    named = " or ".join("t-test" if test == T_TEST else "permutation test" for test in tests)
    untested = [comparison for comparison in comparisons if comparison.p_values[comparison.test] is None]
    cluster = cluster_names(comparison.board for comparison in comparisons)
    robust = f", cluster-robust by {cluster}" if cluster else ""
    ordinary = [comparison for comparison in comparisons if not comparison.is_excluded]
    tested = count_noun(sum(comparison.p_values[comparison.test] is not None for comparison in ordinary), "comparison")
    is_corrected = comparisons[0].is_corrected
    correction = f"Holm's correction over {tested}" if is_corrected else f"not corrected for {tested}"
    if marked and ordinary:
        systems = (comparison.board.system(comparison.baseline) for comparison in comparisons)
        baselines = list(dict.fromkeys(system.label for system in systems))
        whom = baselines[0] if len(baselines) == 1 else f"each of {', '.join(baselines)}"
        daggers = any(has_dagger(comparisons, comparison.system, comparison.column) for comparison in comparisons)
        sign = "†: better" if daggers else "No system is better"
        if len(ordinary) < len(comparisons):
            sign = "†: better" if daggers else "No ordinary system is better"
        yield f"{sign} than {whom} (two-sided paired {named}{robust}, p < {ALPHA}, {correction})."
    elif not marked:
        yield f"{', '.join(tests)}: two-sided and paired{robust}, {correction}."
    if len(tests) > 1:
        by_swaps = dict.fromkeys(comparison.column for comparison in comparisons if comparison.test == PERMUTATION)
        yield f"By the permutation test: {'; '.join(by_swaps)}; their scores are not means over questions."
    if untested:
        units, alike = ("paired questions", "all differences equal")
        if cluster:
            units, alike = (f"{cluster} values", "no variation between them")
        why = f"fewer than two {units} in one {comparisons[0].board.task.group_words[0]}, or {alike}"
        if not any(comparison.num_questions for comparison in untested):
            why = "no paired questions"
        yield f"{count_noun(len(untested), 'comparison')} without a {named}: {why}."


def left_out_notes(comparisons: list[Comparison]) -> list[str]:
    """Describe the comparisons that could not use every question."""
    return list(dict.fromkeys(_describe_pairs(comparison) for comparison in comparisons if any(comparison.pairing[1:])))


def _describe_pairs(comparison: Comparison) -> str:
    paired, only_system, only_baseline, neither = comparison.pairing
    return comparison.board.note(
        f"{comparison.system} and {comparison.baseline}: {count_noun(paired, 'paired question')}; left out: "
        f"{only_system} scored only for {comparison.system}, {only_baseline} only for {comparison.baseline}, "
        f"{neither} for neither."
    )


def paper_notes(paper: Paper, boards: list[Board], marked: bool) -> Iterator[str]:
    names = boards[0].rows
    has_daggers = marked and any(method in names for method, _ in paper.daggers)
    daggers = ", with the paper's daggers" if has_daggers else ""
    source = f"Source: {paper.title}{daggers}."
    yield f"Beside each mean that is also in the paper: the paper's score and the difference from it. {source}"
    if paper.other_rule:
        yield f"The paper's scoring rule differs: {paper.other_rule}"
    if paper.other_model:
        yield f"{paper.model}: {paper.other_model}"
    if others := [name for name in names if name not in paper.methods]:
        yield f"Not in that table: {', '.join(others)}; its methods are {', '.join(paper.methods)}."
    for (method, column), note in paper.misprints.items():
        if method in names:
            yield f"{method}, {column}: {note}"
    yield wording_note([system for board in boards for system in board.systems])


# CSV


def csv_rows(
    boards: list[Board],
    comparisons: list[Comparison],
    paper: Paper | None,
    seeds: dict[str, list[str]],
    over_seeds: list[Comparison],
    lengths: bool = False,
    published: Mapping[str, list[str]] = MappingProxyType({}),
) -> list[list[Any]]:
    """Return a header and one row per system, with all figures of the tables and of the notes on the paper.

    These are followed by the typed rows, the paper's other rows, and a row for each method of `seeds`, with the
    comparisons of `compare_methods`.
    """
    records = [_csv_record(row, boards, comparisons, paper) for row in make_rows(boards, lengths)]
    for name, typed in published.items():
        numbers = [None if word == "–" else float(word) for word in typed]
        scores = dict(zip(columns_in(boards), numbers, strict=False))
        records += [{"System": f"{name} (typed)", **scores}] if typed else []
    for method in paper.rows_beside(boards[0].rows, published) if paper else ():
        scores = {f"{column}: paper": paper.scores.get((method, column)) for column in columns_in(boards)}
        records.append({"System": f"{method} (paper)", **scores})
    records += [_csv_seeds(row, over_seeds) for row in rows_over_seeds(boards, seeds)]
    columns = list(dict.fromkeys(column for record in records for column in record))
    return [columns, *([record.get(column) for column in columns] for record in records)]


def _csv_seeds(row: SeedsRow, comparisons: list[Comparison]) -> dict[str, Any]:
    spreads = {column: spread or (None, None) for column, spread in row.spreads.items()}
    means = {column: average for column, (average, _) in spreads.items()}
    deviations = {f"{column}: standard deviation over seeds": deviation for column, (_, deviation) in spreads.items()}
    parts = [{"System": row.method, "Seeds": row.num_seeds}, means, deviations]
    parts += [{"Excluded": row.excluded}] if row.excluded else []
    return join_columns(*parts, _csv_compared(comparisons, row.method))


def _csv_record(row: Row, boards: list[Board], comparisons: list[Comparison], paper: Paper | None) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"System": row.name}, row.means, row.counts]
    parts += [{"Excluded": row.excluded}] if row.excluded else []
    for column in row.means if paper is not None else ():
        printed, difference = paper.scores.get((row.name, column)), _to_paper(row, column, paper)
        parts.append({f"{column}: paper": printed, f"{column}: difference to paper": difference})
    parts.append(_csv_compared(comparisons, row.name))
    for board in (board for board in boards if board.metric.is_share):
        for column, point in points_of(board.system(row.name)).items():
            limits = _csv_limits(point.interval)
            parts.append({f"{board.name_of(column)}: {name}": limit for name, limit in limits})
    systems = [system for board in boards for system in board.systems if system.name == row.name]
    without_plan = max((system.num_without_plan for system in systems), default=0)
    parts += [{"Without a plan": without_plan}] if without_plan else []
    return join_columns(*parts, {} if paper is None else wording_columns(systems))


def _csv_length(comparison: Comparison) -> dict[str, float | None]:
    """Return the figures at equal length; empty if they were not requested."""
    if (length := comparison.length) is None:
        return {}
    figures: dict[str, float | None] = {"words": length.words[0], "baseline's words": length.words[1]}
    if (adjusted := length.at_equal_length) is not None:
        limits = {f"at equal length, {name}": limit for name, limit in _csv_limits(adjusted.interval)}
        figures |= {"at equal length": adjusted.difference, **limits, "per doubling": adjusted.per_doubling}
    return figures


def _csv_limits(interval: tuple[float, float] | None) -> Iterator[tuple[str, float | None]]:
    return zip(("95% interval, low", "95% interval, high"), interval or (None, None), strict=True)


def _csv_compared(comparisons: list[Comparison], system: str) -> dict[str, Any]:
    """Return the figures of all comparisons of a system, by CSV column."""
    of_system = [comparison for comparison in comparisons if comparison.system == system]
    compared: dict[str, Any] = {}  # two metrics of a task share their counts of pairs
    for _, same in groupby(of_system, key=lambda comparison: (comparison.baseline, comparison.board.title)):
        compared |= _csv_comparisons(list(same))
    return compared


def _csv_comparisons(comparisons: list[Comparison]) -> dict[str, Any]:
    """Return the figures of comparisons with one baseline on one board, by CSV column."""
    record = {}
    for comparison in comparisons:
        figures = {"paired questions": comparison.num_questions, "difference": comparison.difference}
        figures |= comparison.p_values | _csv_length(comparison)
        if PERMUTATION in comparison.p_values:
            figures |= {**dict(_csv_limits(comparison.interval)), "effect size": comparison.effect_size}
        column, baseline = comparison.column, comparison.baseline
        record |= {f"{column}: {name} against {baseline}": figure for name, figure in figures.items()}
    against = comparison.board.note(f"Left out against {comparison.baseline}")
    left_out = zip(("here only", "there only", "nowhere"), comparison.pairing[1:], strict=True)
    return record | {f"{against}: scored {where}": count for where, count in left_out}
