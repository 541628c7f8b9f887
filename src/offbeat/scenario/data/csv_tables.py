"""Read text files with tables: CSV files with a header, and matrices of numbers; gzipped or not."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import DataError
from offbeat.scenario.data.data_files import read_bytes, truncated


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a text file, gzipped or not."""
    try:
        return read_bytes(path).decode(encoding)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not {encoding} text") from None


def read_matrix(path: Path) -> NDArray[np.float64]:
    """Read a file of numbers, separated by white space, with the same number of them in every row."""
    values = parse_matrix(path, read_text(path).splitlines())
    if values.size == 0:
        raise DataError(f"{path} is empty")
    return values


def parse_matrix(
    path: Path, lines: Iterable[str], separator: str | None = None, columns: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """Parse rows of numbers with the same columns in every row."""
    try:
        return np.loadtxt(lines, dtype=np.float64, delimiter=separator, ndmin=2, usecols=columns)
    except ValueError as error:
        raise DataError(f"{path}: not a table of numbers ({str(error).splitlines()[0]})") from None


@dataclass(frozen=True)
class CsvTable:
    """The cells of a CSV file; table[name] is a column."""

    names: list[str]
    rows: list[list[str]]

    def __getitem__(self, name: str) -> list[str]:
        column = self.names.index(name)
        return [row[column] for row in self.rows]


def read_table(path: Path, wanted: tuple[str, ...]) -> CsvTable:
    """Read a CSV file that has at least the wanted columns and as many cells in every row as in the header."""
    text = read_text(path)
    try:
        header, *rows = csv.reader(io.StringIO(text, newline=""))
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file ({error})") from None
    except ValueError:  # no row at all
        raise DataError(f"{path} is empty") from None
    names = [name.strip().lstrip("\ufeff") for name in header]
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise DataError(f"{path} has no column {missing[0]!r}; its columns: {shown}")
    body = []
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != len(names):
            raise truncated(f"{path} row {number} has {len(row)} cells, the header {len(names)}")
        body.append(row)
    if not body:
        raise DataError(f"{path} has a header and no rows")
    return CsvTable(names, body)


def parse_numbers(path: Path, name: str, cells: Sequence[str], missing: tuple[str, ...] = ()) -> NDArray[np.float64]:
    """Convert a column to numbers; cells that mark missing values become NaN."""
    gaps = set(missing)
    try:
        values = np.array([np.nan if cell in gaps else float(cell) for cell in cells])
        if not np.isinf(values).any():
            return values
    except ValueError:
        pass
    bad = next(i for i, cell in enumerate(cells) if cell not in gaps and not _is_number(cell))
    raise DataError(f"{path}: {name} = {cells[bad]!r} in row {bad + 2} is not a number")


def _is_number(cell: str) -> bool:
    """Check whether a cell is a number other than infinity."""
    try:
        return not isinf(float(cell))
    except ValueError:
        return False
