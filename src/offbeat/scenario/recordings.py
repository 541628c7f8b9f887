"""Recordings of clients: CSV or Parquet files with the columns client, t, available, seconds_per_step, mbps.

Experiment files name them `trace`, as other simulators do; they are not the trace that a run writes. The values of a
row are valid for a client from its time t on. A law reads one column, so the others may be missing. Files are read once
and checked as a whole: clients begin at t = 0, times increase, no cell is empty.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from math import isfinite, isnan, nan
from pathlib import Path
from typing import ClassVar

from offbeat.core.errors import DataError, unknown_name
from offbeat.core.settings import File

AVAILABLE, SECONDS, MBPS = "available", "seconds_per_step", "mbps"
KEYS = ("client", "t")
COLUMNS = (*KEYS, AVAILABLE, SECONDS, MBPS)
MAX_ROWS = 20_000_000
Rows = Iterable[tuple[int, dict[str, object]]]  # number and cells by column
TRUTH_VALUES = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}


@dataclass(frozen=True, slots=True)
class RecordedSeries:
    """The recorded values of one client: values[i] is valid from times[i] on."""

    times: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, t: float) -> float:
        """Return the value that is valid at this time."""
        return self.values[max(bisect_right(self.times, t) - 1, 0)]

    @property
    def mean(self) -> float:
        """The mean, weighted by how long each value was valid; the last one as long as the one before it."""
        if len(self.times) == 1:
            return self.values[0]
        spans = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        spans.append(spans[-1])
        return sum(v * s for v, s in zip(self.values, spans, strict=True)) / sum(spans)


@dataclass(frozen=True, slots=True)
class Recording:
    """The values of one column of a recording for each client."""

    path: str
    name: str
    clients: dict[int, RecordedSeries]

    def series_of(self, client: int) -> RecordedSeries:
        """Return the client's values; raise DataError if there are none."""
        if client not in self.clients:
            raise DataError(f"recording {self.path}: no rows for client {client}: it has {len(self.clients)} clients")
        return self.clients[client]


@dataclass(frozen=True, kw_only=True)
class RecordedLaw:
    """Base class of laws that follow a recording; each reads one column."""

    column: ClassVar[str]
    path: File  # of the recording: CSV or Parquet

    def covers(self, clients: Iterable[int]) -> None:
        """Check before a run that every client is recorded and every value is valid."""
        for client in clients:
            self.recording.series_of(client)

    @cached_property
    def recording(self) -> Recording:
        """The recorded column, read once: changes of the file do not change a run."""
        return read_column(self.path, self.column)


def read_column(path: str, name: str) -> Recording:
    """Read a column of a file; it is read again if the file was changed."""
    try:
        changed = Path(path).stat().st_mtime_ns
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise DataError(f"cannot read the recording {path}: {getattr(error, 'strerror', None) or error}") from None
    return _read_column(path, name, changed)


@lru_cache(maxsize=16)
def _read_column(path: str, name: str, changed: int) -> Recording:
    """Read a column of the file as it was `changed` last, and check the rows of each client."""
    times: dict[int, list[float]] = {}
    values: dict[int, list[float]] = {}
    for line, row in _read_rows(path, name):
        where = f"recording {path}, row {line}"
        number = _parse_number(row["client"], "client", where)
        if number < 0 or number != int(number):
            raise DataError(f"{where}: client = {row['client']}: clients must be integers, 0 or more")
        client, t, value = int(number), _parse_number(row["t"], "t", where), _parse_value(row[name], name, where)
        before = times.setdefault(client, [])
        if t < 0:
            raise DataError(f"{where}: t = {t:g}: times must be 0 or more")
        if not before and t > 0:
            raise DataError(f"{where}: client {client} begins at t = {t:g}: begin at 0 (with available 0 if absent)")
        if before and t <= before[-1]:
            order_of = f"client {client} has t = {t:g} after {before[-1]:g}"
            raise DataError(f"{where}: {order_of}: sort each client's rows by time")
        before.append(t)
        values.setdefault(client, []).append(value)
    if not times:
        raise DataError(f"recording {path}: no rows")
    clients = {client: RecordedSeries(tuple(times[client]), tuple(values[client])) for client in times}
    return Recording(path, name, clients)


def _parse_value(cell: object, name: str, where: str) -> float:
    """Parse the value of a recording at one time: 0 or 1 in the column `available`, else a positive number."""
    if name == AVAILABLE:
        text = str(cell).strip().lower()
        if text == "":
            raise DataError(f"{where}: {name} is empty: repeat the value before")
        if text not in TRUTH_VALUES:
            raise DataError(f"{where}: available = {cell}: must be 0 or 1")
        return TRUTH_VALUES[text]
    value = _parse_number(cell, name, where)
    if value <= 0:
        raise DataError(f"{where}: {name} = {value:g}: must be positive")
    return value


def _parse_number(cell: object, name: str, where: str) -> float:
    """Parse a finite number; the messages name the column and the place."""
    text = "" if cell is None else str(cell).strip()
    if text in ("", "nan", "None"):
        raise DataError(f"{where}: {name} is empty: repeat the value before")
    try:
        value = nan if "_" in text else float(text)  # Python reads 1_0 as 10, tables do not use it
    except ValueError:
        value = nan
    if isnan(value):
        raise DataError(f"{where}: {name} = {text!r} is not a number")
    if not isfinite(value):
        raise DataError(f"{where}: {name} = {text}: must be finite")
    return value


def _read_rows(path: str, name: str) -> Rows:
    """Return rows with their numbers, after a check that the file has the column `name` and no unknown ones."""
    header, rows = _read_parquet(path) if Path(path).suffix.lower() in (".parquet", ".pq") else _read_csv(path)
    for needed in (*KEYS, name):
        if needed not in header:
            columns = ", ".join(map(repr, header)) or "none"
            raise DataError(f"recording {path}: no column {needed!r}; it has {columns} of {', '.join(COLUMNS)}")
    for column in header:
        if column not in COLUMNS:
            raise DataError(f"recording {path}: {unknown_name('column', column, COLUMNS)}")
        if header.count(column) > 1:
            raise DataError(f"recording {path}: column {column!r} occurs {header.count(column)} times: keep one")
    return rows


def _read_csv(path: str) -> tuple[list[str], Rows]:
    """Return the header and the rows of a CSV file; row numbers are its lines."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="", skipinitialspace=True)
            header = list(reader.fieldnames or [])
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read the recording {path}: {getattr(error, 'strerror', None) or error}") from None
    for line, row in rows:
        if None in row:
            raise DataError(f"recording {path}, row {line}: more cells than columns")
    return header, rows


def _read_parquet(path: str) -> tuple[list[str], Rows]:
    """Return the header and the numbered rows of a Parquet file."""
    try:
        parquet = import_module("pyarrow.parquet")  # not a dependency: most recordings are CSV
    except ImportError:
        raise DataError(f"reading {path} needs pyarrow: pip install pyarrow, or save it as CSV") from None
    try:
        if parquet.read_metadata(path).num_rows > MAX_ROWS:  # a repeated value takes no space in a file
            raise DataError(f"the recording {path} has more than {MAX_ROWS:,} rows: refused")
        table = parquet.read_table(path)
        names, rows = list(table.column_names), table.to_pylist()
    except DataError:
        raise
    # damaged, truncated, unknown compression, or invalid text
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is damaged"
        raise DataError(f"cannot read the recording {path}: {reason}") from None
    return names, enumerate(rows, start=1)
