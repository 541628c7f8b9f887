"""Tables as LaTeX (booktabs), Markdown and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from offbeat.core.errors import printable
from offbeat.results.tables import BOLD, Table

SUFFIXES = {".txt": "text", ".csv": "csv", ".tex": "latex", ".md": "markdown", ".json": "json"}
FORMATS = tuple(SUFFIXES.values())

TIDY = ("folder", "strategy", "seed", "finished", "measure", "value")


def tidy(records: Iterable[Sequence[object]]) -> str:
    """A line for each run and measure, under the headings of TIDY; an empty value is none (a target not reached)."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(TIDY)
    for record in records:
        writer.writerow(["" if cell is None or cell != cell else _exact(cell) for cell in record])
    return made.getvalue()


def _exact(cell: object) -> str:
    return repr(cell) if isinstance(cell, float) else printable(cell)


# ---------------------------------------------------------------- LaTeX

# ± and the like have no place in text of every font; digits stay outside of mathematics, so that they can be bold
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "¼": r"$\frac{1}{4}$",
    "–": "--",
    "…": r"\dots{}",
}


def latex(tables: Sequence[Table], about: Sequence[str]) -> str:
    r"""A tabular each, for \usepackage{booktabs}; `about` and notes are comments."""
    lines = [f"% {_one_line(line)}" for line in [*about, r"needs \usepackage{booktabs}"]]
    for table in tables:
        heading, *rows = _with_headings(table).rows
        kinds = "l" * len(heading) if table.kind != "numbers" else "l" + "r" * (len(heading) - 1)
        lines += ["", *(f"% {_one_line(line)}" for line in (table.title, *table.lead, *_notes(table)) if line)]
        lines += [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"]
        if table.kind != "pairs":
            lines += [_latex_row([_latex(cell) for cell in heading]), r"\midrule"]
        for number, row in enumerate(rows, start=1):
            cells = [
                rf"\textbf{{{_latex(cell)}}}" if (number, column) in table.bold else _latex(cell)
                for column, cell in enumerate(row)
            ]
            lines.append(_latex_row(cells))
        lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex(text: str) -> str:
    made = "".join(LATEX.get(character, character) for character in _one_line(text))
    made = re.sub(r"(?<![\w.])-(?=\d)", "$-$", made)  # a minus, not a hyphen
    return f"{{{made[0]}}}{made[1:]}" if made[:1] in ("[", "*") else made  # which \\ before it would take for its own


# ---------------------------------------------------------------- Markdown


def markdown(tables: Sequence[Table], about: Sequence[str]) -> str:
    """Of the kind that READMEs are written in; `about` is a comment, titles and notes are lines."""
    lines = [f"<!-- {_one_line(line).replace('-->', '--&gt;')} -->" for line in about]
    for table in tables:
        heading, *rows = _with_headings(table).rows
        right = "---:" if table.kind == "numbers" else "---"
        lines += ["", *([f"**{_markdown(table.title)}**", ""] if table.title else [])]
        for line in table.lead:
            lines += [_paragraph(line), ""]
        lines += [_markdown_row([_markdown(cell) for cell in heading])]
        lines += [_markdown_row(["---", *[right] * (len(heading) - 1)])]
        for number, row in enumerate(rows, start=1):
            cells = [
                f"**{_markdown(cell)}**" if (number, column) in table.bold else _markdown(cell)
                for column, cell in enumerate(row)
            ]
            lines.append(_markdown_row(cells))
        for note in _notes(table):
            lines += ["", _paragraph(note)]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """What would be an order is spelled out; an underscore inside a word, or a bracket without a link, is none."""
    made = re.sub(r"([\\`*|<]|(?<!\w)_|_(?!\w))", r"\\\1", _one_line(text))
    return re.sub(r"\](?=[(\[:])", r"\\]", made)


def _paragraph(text: str) -> str:
    return re.sub(r"^([>#+-])", r"\\\1", _markdown(text))


def _one_line(text: str) -> str:
    return printable(text)


def _notes(table: Table) -> tuple[str, ...]:
    return (*table.notes, BOLD) if table.bold else table.notes


def _with_headings(table: Table) -> Table:
    """Markdown knows no table without."""
    return table if table.kind != "pairs" else replace(table, rows=[["", ""], *table.rows])
