"""Tables of numbers and text: CSV with a header, and plain matrices; gzipped or not."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import DataError
from offbeat.scenario.data.data_root import read_bytes


def read_text(path: Path, encoding: str = "utf-8") -> str:
    try:
        return read_bytes(path).decode(encoding)
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text in {encoding}") from None


def read_matrix(path: Path, dtype: Any = np.float32, separator: str | None = None) -> NDArray[Any]:
    """A file of nothing but numbers, as many in every row."""
    text = read_text(path)
    try:
        values = np.loadtxt(text.splitlines(), dtype=dtype, delimiter=separator, ndmin=2)
    except ValueError as error:
        raise DataError(f"{path}: not a table of numbers ({str(error).splitlines()[0]})") from None
    if values.size == 0:
        raise DataError(f"{path} is empty")
    return values


@dataclass(frozen=True)
class Table:
    """A CSV file; table[name] is a column of it."""

    names: list[str]
    rows: list[list[str]]

    def __getitem__(self, name: str) -> list[str]:
        at = self.names.index(name)
        return [row[at] for row in self.rows]


def read_table(path: Path, wanted: tuple[str, ...]) -> Table:
    """A CSV with at least the columns wanted; every row has as many cells as the header."""
    rows = _rows(path, read_text(path))
    names = next(rows, None)
    if names is None:
        raise DataError(f"{path} is empty")
    names = [name.strip().lstrip("\ufeff") for name in names]
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise DataError(f"{path} has no column {missing[0]!r}; its columns: {shown}")
    body = []
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != len(names):
            found = f"{len(row)} cells, the header {len(names)}"
            raise DataError(f"{path} row {number} has {found}: it is cut short or damaged")
        body.append(row)
    if not body:
        raise DataError(f"{path} has a header and no rows")
    return Table(names, body)


def _rows(path: Path, text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text, newline=""))
    except csv.Error as error:
        raise DataError(f"{path} is no CSV ({error})") from None


def numbers(path: Path, name: str, cells: Sequence[str], missing: tuple[str, ...] = ()) -> NDArray[np.float64]:
    """A column as numbers; cells that say that nothing was measured become nan."""
    gaps = set(missing)
    try:
        values = np.array([np.nan if cell in gaps else float(cell) for cell in cells])
        if not np.isinf(values).any():
            return values
    except ValueError:
        pass
    bad = next(i for i, cell in enumerate(cells) if cell not in gaps and not _is_number(cell))
    raise DataError(f"{path}: {name} = {cells[bad]!r} in row {bad + 2} is no number")


def _is_number(cell: str) -> bool:
    try:
        return not isinf(float(cell))
    except ValueError:
        return False
