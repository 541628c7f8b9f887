"""Render tables as LaTeX (booktabs), Markdown and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence

from offbeat.core.errors import escape_unprintable
from offbeat.results.tables import BOLD_NOTE, ResultTable

FORMAT_OF_SUFFIX = {".txt": "text", ".csv": "csv", ".tex": "latex", ".md": "markdown", ".json": "json"}
FORMATS = tuple(FORMAT_OF_SUFFIX.values())

CSV_COLUMNS = ("folder", "strategy", "seed", "finished", "measure", "value")


def to_csv(records: Iterable[Sequence[object]]) -> str:
    """Write one line per run and measure, with CSV_COLUMNS; a missing value (target not reached) is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for record in records:
        present = ["" if cell is None or cell != cell else cell for cell in record]
        writer.writerow([repr(cell) if isinstance(cell, float) else escape_unprintable(cell) for cell in present])
    return buffer.getvalue()


# digits stay outside of math mode so that they can be bold
LATEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{character: f"\\{character}" for character in "{}$&#_%"},
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
)


def to_latex(tables: Sequence[ResultTable], about: Sequence[str]) -> str:
    r"""Write one tabular per table, for \usepackage{booktabs}; `about`, titles and notes become comments."""
    lines = _latex_comments([*about, r"needs \usepackage{booktabs}"])
    for table in tables:
        heading, *rows = _escaped_rows(table, _escape_latex, r"\textbf{%s}")
        alignment = "l" * len(heading) if table.kind != "numbers" else "l" + "r" * (len(heading) - 1)
        lines += ["", *_latex_comments([table.title, *table.lead, *_all_notes(table)])]
        lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
        if table.kind != "pairs":
            lines += [_latex_row(heading), r"\midrule"]
        lines += [*map(_latex_row, rows), r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _latex_comments(lines: Iterable[str]) -> list[str]:
    """Return each line as a comment."""
    return [f"% {escape_unprintable(line)}" for line in lines if line]


def _latex_row(cells: Sequence[str]) -> str:
    """Join the cells of one line of a tabular."""
    return " & ".join(cells) + r" \\"


def _escape_latex(text: str) -> str:
    """Escape LaTeX syntax, and replace symbols that not every font has."""
    escaped = escape_unprintable(text).translate(LATEX_ESCAPES)
    escaped = re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)  # minus sign instead of hyphen
    # the \\ of the line before would parse a leading [ or * as its argument
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped[:1] in ("[", "*") else escaped


def to_markdown(tables: Sequence[ResultTable], about: Sequence[str]) -> str:
    """Write GitHub Markdown; `about` becomes a comment, titles and notes become paragraphs."""
    lines = [f"<!-- {escape_unprintable(line).replace('-->', '--&gt;')} -->" for line in about]
    for table in tables:
        heading, *rows = _escaped_rows(table, _escape_markdown, "**%s**")
        alignment = "---:" if table.kind == "numbers" else "---"
        lines += ["", *([f"**{_escape_markdown(table.title)}**", ""] if table.title else [])]
        for line in table.lead:
            lines += [_markdown_paragraph(line), ""]
        rules = ["---", *[alignment] * (len(heading) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in (heading, rules, *rows)]
        for note in _all_notes(table):
            lines += ["", _markdown_paragraph(note)]
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    """Escape Markdown syntax; an underscore inside a word and a bracket without a link are harmless."""
    escaped = re.sub(r"([\\`*|<]|(?<!\w)_|_(?!\w))", r"\\\1", escape_unprintable(text))
    return re.sub(r"\](?=[(\[:])", r"\\]", escaped)


def _markdown_paragraph(text: str) -> str:
    """Escape Markdown syntax, also at the beginning of a line."""
    return re.sub(r"^([>#+-])", r"\\\1", _escape_markdown(text))


def _all_notes(table: ResultTable) -> tuple[str, ...]:
    """Return the notes, with an explanation of bold cells."""
    return (*table.notes, BOLD_NOTE) if table.bold else table.notes


def _escaped_rows(table: ResultTable, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the escaped cells, with empty headings for pairs, which have none but Markdown requires."""
    rows = [["", ""], *table.rows] if table.kind == "pairs" else table.rows
    return [
        [bold % escape(cell) if (number, column) in table.bold else escape(cell) for column, cell in enumerate(row)]
        for number, row in enumerate(rows)
    ]
