"""Tables as Markdown, LaTeX (booktabs) or CSV. Pure."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from utils.base.errors import printable
from utils.benchmarks.readers import one_line

# Scores on the same questions are correlated, which the intervals of two systems do not show.
NOT_COMPARED = "Whether two intervals over the same questions overlap says nothing about their difference."
LONGEST_NAME, LONGEST_LINE = 28, 75  # most characters on a LaTeX page: of a row's name, and of a line above rows


@dataclass(frozen=True)
class Cell:
    """A text that may be bold, a text after it, and figures to compare it with."""

    text: str
    after: str = ""
    bold: bool = False
    beside: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """A table for readers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: list[str]
    num_names: int = 1  # the first columns that have names and are aligned left; the others have numbers
    short: Mapping[str, str] = field(default_factory=dict)  # short names for narrow pages, explained in a note
    beside: Sequence[str] = ()  # descriptions of the figures in `Cell.beside`
    above: Sequence[str] = ()  # headings above the columns' names; neighbours may share one

    def heads(self) -> list[str]:
        """Return each column's heading in one line: the heading above it, then its name."""
        above = self.above or [""] * len(self.columns)
        return [", ".join(filter(None, names)) for names in zip(above, self.columns, strict=True)]


def to_markdown(tables: Sequence[Table]) -> str:
    """Return the tables in Markdown, each with its notes as a list below it."""
    return "\n".join(map(_markdown_table, tables))


def _markdown_table(table: Table) -> str:
    heads = table.heads()
    rule = "|" + ":---|" * table.num_names + "---:|" * (len(heads) - table.num_names)
    lines = [map(markdown_text, heads), *(map(_markdown_cell, row) for row in table.rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in lines]
    lines.insert(1, rule)
    notes = ["", *(f"- {markdown_text(note)}" for note in table.notes)] if table.notes else []
    return "\n".join(lines + notes) + "\n"


def _markdown_cell(cell: Cell) -> str:
    beside = f" ({', '.join(cell.beside)})" if cell.beside else ""
    text = markdown_text(cell.text)
    return (f"**{text}**" if cell.bold else text) + cell.after + beside


# Characters of markup, HTML and links, except where they have no meaning in Markdown: a_name, <0.0001, [0.1, 0.2].
_MARKUP = re.compile(r"[|`*~]|\\(?=[!-/:-@\[-`{-~]|$)|<(?=[A-Za-z/!?])|(?<=\])\(|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)")


def markdown_text(text: str) -> str:
    """Return the text in one line, escaped for Markdown."""
    return _MARKUP.sub(r"\\\g<0>", printable(one_line(text)))


def to_latex(tables: Sequence[Table]) -> str:
    """Return the tables in LaTeX, narrow enough for a page; the document must load booktabs."""
    return r"% \usepackage{booktabs}" + "\n" + "\n\\bigskip\n\n".join(map(_latex_table, tables))


def _latex_table(table: Table) -> str:
    """Return a table in LaTeX; a row's names except the last are printed once, above the rows that share them."""
    shared = table.num_names - 1
    heads = table.columns[shared:]
    lines = [_latex_line(latex_text(table.short.get(head, head)) for head in heads), r"\midrule"]
    if any(table.above):
        widths = [(name, len(list(same))) for name, same in groupby(table.above[table.num_names :])]
        spans = [rf"\multicolumn{{{width}}}{{c}}{{{latex_text(name)}}}" for name, width in widths]
        lines.insert(0, f"& {' & '.join(spans)} \\\\")
    for names, rows in groupby(table.rows, key=lambda row: row[:shared]):
        above = "; ".join(f"{column}: {name.text}" for column, name in zip(table.columns, names, strict=False))
        for line in textwrap.wrap(above, LONGEST_LINE):
            lines.append(rf"\multicolumn{{{len(heads)}}}{{@{{}}l@{{}}}}{{{latex_text(line)}}} \\")
        for row in rows:
            lines += map(_latex_line, _latex_rows(table, row[shared:]))
    used = {*heads, *(row[shared].text for row in table.rows)}
    meanings = [f"{short}: {name}" for name, short in table.short.items() if name in used]
    notes = [f"{'; '.join(meanings)}."] if meanings else []
    return _latex_box("l" + "r" * (len(heads) - 1), lines, [*notes, *table.notes])


def _latex_rows(table: Table, row: Sequence[Cell]) -> Iterator[list[str]]:
    """Yield a row, and below it the rest of a long name and the figures beside its cells."""
    name, *cells = row
    first, *rest = textwrap.wrap(table.short.get(name.text, name.text), LONGEST_NAME) or [""]
    yield [latex_text(first), *map(_latex_cell, cells)]
    for line in rest:
        yield [rf"\quad {latex_text(line)}", *[""] * len(cells)]
    if any(cell.beside for cell in cells):
        for i, what in enumerate(table.beside):
            yield [rf"\quad {latex_text(what)}", *(latex_text(cell.beside[i]) if cell.beside else "" for cell in cells)]


def _latex_box(alignment: str, lines: Iterable[str], notes: Iterable[str]) -> str:
    """Return a box as wide as the page's text, with a tabular of these lines and the notes below it."""
    begin = [r"\noindent\begin{minipage}{\linewidth}", r"\footnotesize\centering\setlength{\tabcolsep}{3pt}"]
    begin += [rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}", r"\toprule"]
    below = [r"\par\smallskip\raggedright", *(rf"{latex_text(note)}\par" for note in notes)]
    end = [r"\bottomrule", r"\end{tabular}", *below, r"\end{minipage}"]
    return "\n".join([*begin, *lines, *end]) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = latex_text(cell.text)
    return (rf"\textbf{{{text}}}" if cell.bold else text) + latex_text(cell.after)


def _latex_line(cells: Iterable[str]) -> str:
    # Without the braces, a name that begins with [ or * would be read as an argument of the line break before it.
    return " & ".join(f"{{{cell}}}" for cell in cells) + r" \\"


_LATEX_TEXT = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other signs in LaTeX's default font
    | {"†": r"$^{\dag}$", "−": "$-$", "±": r"$\pm$"}
)


def latex_text(text: str) -> str:
    return printable(text).translate(_LATEX_TEXT)


def to_csv(rows: Iterable[Iterable[str | float | int | None]]) -> str:
    """Return rows as CSV, with numbers in full precision and an empty field for None.

    A text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    text = io.StringIO()
    shown = ([_csv_text(value) if isinstance(value, str) else value for value in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(shown)
    return text.getvalue()


def _csv_text(text: str) -> str:
    return f"'{printable(text)}" if text.lstrip().startswith(("=", "+", "-", "@")) else printable(text)


# Words and numbers for readers


def number(value: float | None, decimals: int = 4) -> str:
    return "–" if value is None else f"{value:z.{decimals}f}"


def signed(value: float | None, decimals: int = 4) -> str:
    """Return a number with its sign: a minus sign instead of a hyphen, and a plus if it rounds to 0."""
    if value is None:
        return "–"
    text = f"{round(value, decimals) + 0.0:+.{decimals}f}"  # -0.0 + 0.0 is 0.0
    return text.replace("-", "−")


def interval_text(interval: tuple[float, float] | None, form: Callable[[float], str] = signed) -> str:
    return "–" if interval is None else f"[{form(interval[0])}, {form(interval[1])}]"


def p_text(p: float | None) -> str:
    """Return a p-value with four decimals, or "<0.0001"."""
    if p is None:
        return "–"
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def few(names: Iterable[str]) -> str:
    names = list(map(one_line, names))
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
