"""Rows as lines of text of a given width.

A number is never cut and never broken: columns that do not fit go below, with the names repeated. Only prose is
folded, at its blanks.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len  # wide characters take two places

GAP = 2  # blanks between columns
PROSE = 20  # the least room a sentence can be read in

Rows = Sequence[Sequence[str]]


def table(rows: Rows, width: int, rule: bool = False) -> list[str]:
    """Headings first; numbers on the right. `rule`: a line below the headings."""
    names, *numbers = [list(column) for column in zip(*rows, strict=True)]
    for gap in (GAP, 1):  # rather close together than apart
        if _fits([names, *numbers], width, gap):
            return _part([names, *numbers], width, gap, rule)
    if not all(_fits([names, column], width, GAP) for column in numbers):
        return _records(rows, width)
    parts: list[list[list[str]]] = [[names]]
    for column in numbers:
        if not _fits([*parts[-1], column], width, GAP):
            parts.append([names])
        parts[-1].append(column)
    made = _part(parts[0], width, GAP, rule)
    for part in parts[1:]:
        made += ["", *_part(part, width, GAP, rule)]
    return made


def pairs(rows: Rows, width: int, whole: bool = False) -> list[str]:
    """A name and what there is to tell of it, below the name where there is no room beside it. `whole`: not folded."""
    first, made = max(cell_len(name) for name, _ in rows) + GAP, []
    for name, value in rows:
        if first + cell_len(value) <= width:
            made.append(_left(name, first) + value)
        else:
            made += [name, *_indented([value] if whole else fold(value, width - GAP))]
    return made


def prose(rows: Rows, width: int, rule: bool = False) -> list[str]:
    """Headings first; all on the left, the last column is folded into what room there is."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    room = width - sum(widths[:-1]) - GAP * (len(widths) - 1)
    if room < min(PROSE, widths[-1]):
        return [line for row in rows[1:] for line in _entry(rows[0], row, width)]
    made = []
    for number, row in enumerate(rows):
        before = "".join(_left(cell, wide + GAP) for cell, wide in zip(row[:-1], widths[:-1], strict=True))
        first, *more = fold(row[-1], room)
        made += [f"{before}{first}".rstrip(), *(" " * (width - room) + line for line in more)]
        if rule and number == 0:
            made.append("─" * min(width, width - room + widths[-1]))
    return made


def fold(text: str, width: int) -> list[str]:
    """At blanks; a word that is longer than a line is left whole."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]


# ---------------------------------------------------------------- of a table that fits


def _narrowest(column: Sequence[str]) -> int:
    """Its headings may be folded, its numbers may not."""
    return max(map(cell_len, [*column[0].split(), *column[1:]]), default=0)


def _fits(columns: Sequence[Sequence[str]], width: int, gap: int) -> bool:
    return sum(map(_narrowest, columns)) + gap * (len(columns) - 1) <= width


def _part(columns: Sequence[Sequence[str]], width: int, gap: int, rule: bool) -> list[str]:
    widths = [_narrowest(column) for column in columns]
    left = width - sum(widths) - gap * (len(columns) - 1)
    folded = []
    for number, column in enumerate(columns):  # what room is left unfolds headings, from the first on
        folded.append(fold(column[0], widths[number] + left))
        more = max(0, max(map(cell_len, folded[-1])) - widths[number])
        widths[number] += more
        left -= more
    high = max(map(len, folded))
    headings = zip(*([""] * (high - len(lines)) + lines for lines in folded), strict=True)
    made = [_line(line, widths, gap) for line in headings]
    if rule:
        made.append("─" * (sum(widths) + gap * (len(widths) - 1)))
    return made + [_line(row, widths, gap) for row in list(zip(*columns, strict=True))[1:]]


def _line(cells: Sequence[str], widths: Sequence[int], gap: int) -> str:
    first, *rest = zip(cells, widths, strict=True)
    right = (" " * (gap + wide - cell_len(cell)) + cell for cell, wide in rest)
    return (_left(*first) + "".join(right)).rstrip()


def _left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


# ---------------------------------------------------------------- of one that does not


def _records(rows: Rows, width: int) -> list[str]:
    """Each row as a list of its own: a heading and a number a line."""
    made = []
    for row in rows[1:]:
        cells = list(zip(rows[0][1:], row[1:], strict=True))
        made += [row[0], *_indented(pairs(cells, width - GAP, whole=True))]
    return made


def _entry(headings: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    told = [(heading, cell) for heading, cell in zip(headings[1:], row[1:], strict=True) if cell]
    return [row[0], *(_indented(pairs(told, width - GAP)) if told else [])]


def _indented(lines: Sequence[str]) -> list[str]:
    return [" " * GAP + line for line in lines]
