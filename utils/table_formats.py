"""Tables as text: Markdown, LaTeX (booktabs), CSV. Pure."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest


@dataclass(frozen=True)
class Cell:
    """What stands in a cell: a text that may be bold, what follows it and is not, and figures to compare it with."""

    text: str
    after: str = ""
    bold: bool = False
    beside: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """A table for readers.

    Attributes:
        num_names: the first columns, as many, are names, aligned left; the others are numbers.
        short: by a name what stands for it on a page, which is narrower than a screen; a note tells it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str]
    num_names: int = 1
    short: Mapping[str, str] = field(default_factory=dict)


def to_markdown(tables: Sequence[Table]) -> str:
    """The tables with their notes as lists below them."""
    return "\n".join(map(_markdown_table, tables))


def _markdown_table(table: Table) -> str:
    lines = [markdown_line(table.columns)]
    lines.append("|" + ":---|" * table.num_names + "---:|" * (len(table.columns) - table.num_names))
    lines += [markdown_line(map(_markdown_cell, row)) for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    beside = f" ({', '.join(cell.beside)})" if cell.beside else ""
    return (f"**{cell.text}**" if cell.bold else cell.text) + cell.after + beside


def markdown_line(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def to_latex(tables: Sequence[Table]) -> str:
    """A tabular a table, made narrow for a page, for a document that loads booktabs; the notes are its last rows."""
    return "\n".join([r"% \usepackage{booktabs}", "\n".join(map(_latex_table, tables))])


def _latex_table(table: Table) -> str:
    width = len(table.columns)
    alignment = "l" * table.num_names + "r" * (width - table.num_names)
    lines = [
        r"{\footnotesize\setlength{\tabcolsep}{3pt}%",
        rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
        r"\toprule",
        latex_line(latex_text(table.short.get(column, column)) for column in table.columns),
        r"\midrule",
    ]
    for row in table.rows:
        lines.append(latex_line(_latex_cell(cell, table.short) for cell in row))
        # Below, for beside each other they would be wider than a page.
        below = zip_longest(*(cell.beside for cell in row), fillvalue="")
        lines += [latex_line(map(latex_text, figures)) for figures in below]
    lines += [r"\bottomrule"]
    lines += [latex_note(note, width) for note in [*_short_note(table), *table.notes]]
    return "\n".join([*lines, r"\end{tabular}}"]) + "\n"


def latex_note(note: str, width: int) -> str:
    """A note as a row below a table of `width` columns."""
    return rf"\multicolumn{{{width}}}{{@{{}}p{{\linewidth}}@{{}}}}{{\footnotesize {latex_text(note)}}} \\"


def _short_note(table: Table) -> Iterator[str]:
    """What the short names stand for."""
    used = {*table.columns, *(cell.text for row in table.rows for cell in row)}
    if meanings := [f"{short}: {name}" for name, short in table.short.items() if name in used]:
        yield f"{'; '.join(meanings)}."


def _latex_cell(cell: Cell, short: Mapping[str, str]) -> str:
    text = latex_text(short.get(cell.text, cell.text))
    return (rf"\textbf{{{text}}}" if cell.bold else text) + latex_text(cell.after)


def latex_line(cells: Iterable[str]) -> str:
    """A row of a tabular, of cells that LaTeX can read."""
    # The braces keep a name that begins with [ or * from being read as an argument of the break before it.
    return " & ".join(f"{{{cell}}}" for cell in cells) + r" \\"


_LATEX_TEXT = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other signs in LaTeX's default font
    | {"†": r"$^{\dag}$", "−": "$-$", "±": r"$\pm$"}
)


def latex_text(text: str) -> str:
    """The text with every character that means something to LaTeX spelled out."""
    return text.translate(_LATEX_TEXT)


def to_csv(rows: Iterable[Iterable[str | float | int | None]]) -> str:
    """Full-precision numbers, an empty field for None; CSV has no place for notes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


# Numbers for readers


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Such as "1 question" and "2 questions"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def signed(value: float | None, decimals: int = 4) -> str:
    """With its sign, a minus rather than a hyphen; what rounds to 0 has a plus."""
    if value is None:
        return "–"
    text = f"{round(value, decimals) + 0.0:+.{decimals}f}"  # -0.0 + 0.0 is 0.0
    return text.replace("-", "−")


def p_text(p: float | None) -> str:
    """A p-value with four decimals, never as 0."""
    if p is None:
        return "–"
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"
