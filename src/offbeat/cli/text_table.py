"""Tables as lines of text that fit a given width.

Numbers are never cut or broken: columns that do not fit continue in a second table below, with the names repeated.
Only prose is folded, at blanks. (rich would truncate or wrap such cells.)
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size  # wide characters take two columns

GAP = 2  # blanks between columns
MIN_PROSE_WIDTH = 20

Column = Sequence[str]
Rows = Sequence[Sequence[str]]


def format_table(rows: Rows, width: int, rule: bool = False) -> list[str]:
    """Format rows with headings first and numbers on the right; `rule` draws a line below the headings."""
    names, *columns = [list(column) for column in zip(*rows, strict=True)]
    for gap in (GAP, 1):  # a narrow gap is better than two tables
        if _fits([names, *columns], width, gap):
            return _format_columns([names, *columns], width, gap, rule)
    if not all(_fits([names, column], width, GAP) for column in columns):
        lines = []  # one list per row, with a heading and a number in each line
        for name, *row in rows[1:]:
            pairs = format_pairs(list(zip(rows[0][1:], row, strict=True)), width - GAP, fold_values=False)
            lines += [name, *_indent(pairs)]
        return lines
    parts: list[list[list[str]]] = [[names]]
    for column in columns:
        if not _fits([*parts[-1], column], width, GAP):
            parts.append([names])
        parts[-1].append(column)
    lines = _format_columns(parts[0], width, GAP, rule)
    for part in parts[1:]:
        lines += ["", *_format_columns(part, width, GAP, rule)]
    return lines


def format_pairs(rows: Rows, width: int, fold_values: bool = True) -> list[str]:
    """Format names with values beside them, or below them where the line is too short."""
    lines, name_width = [], max(cell_len(name) for name, _ in rows) + GAP
    for name, value in rows:
        if name_width + cell_len(value) <= width:
            lines.append(set_cell_size(name, name_width) + value)
        else:
            lines += [name, *_indent(fold(value, width - GAP) if fold_values else [value])]
    return lines


def format_prose(rows: Rows, width: int, rule: bool = False) -> list[str]:
    """Format rows of text with headings first; fold the last column into the remaining width."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    last_width = width - sum(widths[:-1]) - GAP * (len(widths) - 1)
    lines = []
    if last_width < min(MIN_PROSE_WIDTH, widths[-1]):  # one list per row
        for name, *values in rows[1:]:
            cells = [(heading, cell) for heading, cell in zip(rows[0][1:], values, strict=True) if cell]
            lines += [name, *(_indent(format_pairs(cells, width - GAP)) if cells else [])]
        return lines
    for number, row in enumerate(rows):
        start = "".join(set_cell_size(cell, wide + GAP) for cell, wide in zip(row[:-1], widths[:-1], strict=True))
        first, *more = fold(row[-1], last_width)
        lines += [f"{start}{first}".rstrip(), *(" " * (width - last_width) + line for line in more)]
        if rule and number == 0:
            lines.append("─" * min(width, width - last_width + widths[-1]))
    return lines


def fold(text: str, width: int) -> list[str]:
    """Break text at blanks; a word that is longer than a line stays whole."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]


def _min_width(column: Column) -> int:
    """Return the least width of a column, whose heading may be folded and whose numbers may not."""
    return max(map(cell_len, [*column[0].split(), *column[1:]]), default=0)


def _fits(columns: Sequence[Column], width: int, gap: int) -> bool:
    """Return True if the columns fit with folded headings."""
    return sum(map(_min_width, columns)) + gap * (len(columns) - 1) <= width


def _format_columns(columns: Sequence[Column], width: int, gap: int, rule: bool) -> list[str]:
    """Return the lines of a table whose columns fit; folded headings end in the line above the numbers."""
    widths = [_min_width(column) for column in columns]
    spare = width - sum(widths) - gap * (len(columns) - 1)
    headings = []
    for number, column in enumerate(columns):  # spare columns unfold headings, from the first on
        headings.append(fold(column[0], widths[number] + spare))
        more = max(0, max(map(cell_len, headings[-1])) - widths[number])
        widths[number] += more
        spare -= more
    height = max(map(len, headings))
    padded = zip(*([""] * (height - len(lines)) + lines for lines in headings), strict=True)
    lines = [_format_line(line, widths, gap) for line in padded]
    if rule:
        lines.append("─" * (sum(widths) + gap * (len(widths) - 1)))
    return lines + [_format_line(row, widths, gap) for row in list(zip(*columns, strict=True))[1:]]


def _format_line(cells: Sequence[str], widths: Sequence[int], gap: int) -> str:
    """Return one line with the name on the left and the numbers on the right of their columns."""
    numbers = zip(cells[1:], widths[1:], strict=True)
    right = (" " * (gap + wide - cell_len(cell)) + cell for cell, wide in numbers)
    return (set_cell_size(cells[0], widths[0]) + "".join(right)).rstrip()


def _indent(lines: Sequence[str]) -> list[str]:
    """Move lines to the right."""
    return [" " * GAP + line for line in lines]
