"""How many rows each table of a trace has, and a hash of them: kept along as rows are written, stored with every
checkpoint.

A row counts as SQLite gives it back. Where one block of rows ends and the next begins makes no difference, so a run
that was stopped and resumed has the tally of one that was not.
"""

from __future__ import annotations

import hashlib
import marshal
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

BLOCK = 2_000  # rows held in memory at most, by whoever writes or reads: what a core keeps near
ENCODING = 2  # of marshal: the newest whose bytes depend on values alone, not on which objects are shared
HEAD = 5  # bytes before a list's entries: its kind and its length


class Tally:
    def __init__(self, tables: Sequence[str]) -> None:
        self._counts = dict.fromkeys(tables, 0)
        self._hashes = {table: hashlib.sha256() for table in tables}

    @classmethod
    def of(cls, db: sqlite3.Connection, tables: Sequence[str], seq: int | None = None) -> Tally:
        """Of the rows in a file: all of them, or those before `seq`."""
        tally = cls(tables)
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        for table in (table for table in tables if table in there):  # a run of an earlier version has fewer
            found = db.execute(
                f"SELECT * FROM {table} {'' if seq is None else 'WHERE seq < :seq'} ORDER BY seq, rowid", {"seq": seq}
            )
            while rows := found.fetchmany(BLOCK):
                tally.add(table, rows)
        return tally

    def add(self, table: str, rows: list[Any]) -> None:
        """Five times cheaper than `repr`: a fifth of a microsecond a row."""
        try:
            data = marshal.dumps(rows, ENCODING)
        except ValueError:  # a subclass of str or int, which a file gives back as a plain one
            data = marshal.dumps([tuple(map(_base, row)) for row in rows], ENCODING)
        self._counts[table] += len(rows)
        self._hashes[table].update(memoryview(data)[HEAD:])

    def plain(self) -> dict[str, list[Any]]:
        return {table: [count, self._hashes[table].hexdigest()] for table, count in self._counts.items()}

    def difference(self, stored: Mapping[str, Any]) -> str | None:
        """In words, what is not as it was stored."""
        for table, (count, sha) in self.plain().items():
            expected, expected_sha = stored[table]
            if count != expected:
                return f"its table {table} has {count} rows where {expected} were written"
            if sha != expected_sha:
                return f"the rows of its table {table} are not those that were written"
        return None

    def digest(self) -> str:
        return hashlib.sha256(repr(self.plain()).encode()).hexdigest()


def _base(value: Any) -> Any:
    for kind, plain in ((str, str.__str__), (int, int), (float, float)):
        if isinstance(value, kind):
            return plain(value)
    return value
