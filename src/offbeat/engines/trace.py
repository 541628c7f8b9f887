"""The trace: what happened, row by row, in SQLite. Metrics, tables, figures and reports are functions of it.

Rows are buffered and written in blocks, so recording costs about a microsecond each. A run killed at any moment
leaves a readable file; resuming cuts it back to the last checkpoint and goes on.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from offbeat.core.errors import RunError

SCHEMA = """
CREATE TABLE IF NOT EXISTS trace (
    seq INTEGER PRIMARY KEY, now REAL, kind TEXT, client INTEGER, ticket INTEGER, version INTEGER,
    base_version INTEGER, steps INTEGER, examples INTEGER, bytes INTEGER, detail TEXT);
CREATE TABLE IF NOT EXISTS commits (seq INTEGER PRIMARY KEY, now REAL, version INTEGER);
CREATE TABLE IF NOT EXISTS notes (seq INTEGER, now REAL, ticket INTEGER, key TEXT, value REAL);
CREATE TABLE IF NOT EXISTS metrics (seq INTEGER, now REAL, version INTEGER, updates INTEGER, key TEXT, value REAL);
CREATE TABLE IF NOT EXISTS clients (seq INTEGER, now REAL, version INTEGER, client INTEGER, key TEXT, value REAL);
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT);
"""
TABLES = ("trace", "commits", "notes", "metrics", "clients")
BLOCK = 20_000  # rows held back at most
TOGETHER = 100  # rows a statement

Row = tuple[int, float, str, int | None, int | None, int, int | None, int | None, int | None, int | None, str | None]


class Record(Protocol):
    """Who is told what happens. `version` is the version when it did, `size` the bytes that travelled."""

    def add(
        self,
        now: float,
        kind: str,
        version: int,
        client: int | None = None,
        ticket: int | None = None,
        base_version: int | None = None,
        steps: int | None = None,
        examples: int | None = None,
        size: int | None = None,
        detail: str | None = None,
    ) -> None: ...
    def commit(self, now: float, version: int) -> None: ...
    def note(self, now: float, ticket: int | None, values: Mapping[str, float]) -> None: ...


class Unrecorded:
    """Nobody is: for engines whose events are looked at as they happen."""

    def add(self, now: float, kind: str, version: int, *rest: object, **more: object) -> None:
        pass

    def commit(self, now: float, version: int) -> None:
        pass

    def note(self, now: float, ticket: int | None, values: Mapping[str, float]) -> None:
        pass


class Trace:
    """Kinds of rows: dispatch, arrive, reject (by the strategy), refuse (by the gate), lost, late, duplicate, left,
    back, timer, stop. `version` is the version when the row was written, `bytes` what travelled. Commits have a table of their own;
    `seq` runs through all tables, in the order in which things happened."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.seq = 0
        self._rows: list[Row] = []
        self._append = self._rows.append  # called twice an update
        self._commits: list[tuple[int, float, int]] = []
        self._notes: list[tuple[int, float, int | None, str, float]] = []
        self._metrics: list[tuple[int, float, int, int, str, float]] = []
        self._clients: list[tuple[int, float, int, int, str, float]] = []
        try:
            self.db = sqlite3.connect(path or ":memory:", isolation_level=None)
            if path is not None:
                self.db.execute("PRAGMA journal_mode=WAL")  # readable while written
                self.db.execute("PRAGMA synchronous=FULL")
            self.db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise RunError(f"cannot open the trace {path}: {error}") from None

    def add(
        self,
        now: float,
        kind: str,
        version: int,
        client: int | None = None,
        ticket: int | None = None,
        base_version: int | None = None,
        steps: int | None = None,
        examples: int | None = None,
        size: int | None = None,
        detail: str | None = None,
    ) -> None:
        seq = self.seq
        self._append((seq, now, kind, client, ticket, version, base_version, steps, examples, size, detail))
        self.seq = seq + 1
        if len(self._rows) >= BLOCK:
            self.flush()

    def commit(self, now: float, version: int) -> None:
        self._commits.append((self.seq, now, version))
        self.seq += 1

    def note(self, now: float, ticket: int | None, values: Mapping[str, float]) -> None:
        self._notes.extend((self.seq, now, ticket, key, float(value)) for key, value in values.items())
        self.seq += 1

    def metrics(self, now: float, version: int, updates: int, values: Mapping[str, float]) -> None:
        self._metrics.extend((self.seq, now, version, updates, key, float(value)) for key, value in values.items())
        self.seq += 1

    def clients(self, now: float, version: int, values: Mapping[int, Mapping[str, float]]) -> None:
        """Metrics of each client's own."""
        for client, own in values.items():
            self._clients.extend((self.seq, now, version, client, key, float(value)) for key, value in own.items())
        self.seq += 1

    def flush(self) -> None:
        """Make everything so far durable."""
        waiting: tuple[list[Any], ...] = (self._rows, self._commits, self._notes, self._metrics, self._clients)
        if not any(waiting):
            return
        try:
            self.db.execute("BEGIN")
            for table, rows in zip(TABLES, waiting, strict=True):
                self._insert(table, rows)
            self.db.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise RunError(f"cannot write the trace {self.path}: {error}") from None
        for rows in waiting:
            rows.clear()

    def _insert(self, table: str, rows: Sequence[Any]) -> None:
        """Many rows a statement: a quarter cheaper than one by one."""
        for i in range(0, len(rows), TOGETHER):
            block = rows[i : i + TOGETHER]
            one = "(" + ",".join("?" * len(block[0])) + ")"
            statement = f"INSERT INTO {table} VALUES {','.join([one] * len(block))}"  # kept prepared by sqlite3
            self.db.execute(statement, tuple(chain.from_iterable(block)))

    def cut(self, seq: int) -> None:
        """Forget everything from `seq` on: what happened after the checkpoint will happen again."""
        self.db.execute("BEGIN")
        for table in TABLES:
            self.db.execute(f"DELETE FROM {table} WHERE seq >= ?", (seq,))
        self.db.execute("DELETE FROM facts")
        self.db.execute("COMMIT")
        self.seq = seq

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Facts about the whole run, written at its end (how it ended, host seconds): not part of the digest."""
        self.db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", [(k, str(v)) for k, v in facts.items()])

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        self.flush()
        return iter(self.db.execute(query, values))

    def digest(self) -> str:
        """A hash over every row: equal digests mean equal runs."""
        sha = hashlib.sha256()
        for table in TABLES:
            for row in self.rows(f"SELECT * FROM {table} ORDER BY seq, rowid"):
                sha.update(repr(row).encode())
        return sha.hexdigest()

    def close(self) -> None:
        self.flush()
        self.db.close()
