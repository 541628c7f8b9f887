"""The SQLite file of a trace: its tables, access for writing and reading, and a digest of its rows.

The digest depends on the values that SQLite returns, so a resumed run has the digest of an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import marshal
import sqlite3
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path

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
ROWS_PER_STATEMENT = 100
BLOCK_ROWS = 2_000  # rows in memory while writing or reading: few enough to stay in a core's cache
# SQLite errors if it cannot create the files beside a trace that it needs for sharing it
CANNOT_WRITE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
MARSHAL_VERSION = 2  # the newest one whose bytes depend on values alone, not on which objects are shared
MARSHAL_HEADER = 5  # bytes before the entries of a list: its type and length


StoredDigest = Mapping[str, Sequence[object]]  # table -> number of rows and SHA-256


class TraceDigest:
    """The number of rows in each table and a hash of them."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(TABLES, 0)
        self._hashes = {table: hashlib.sha256() for table in TABLES}

    @classmethod
    def from_database(cls, db: sqlite3.Connection, before: int | None = None) -> TraceDigest:
        """Compute the digest of the rows in a file: all of them, or those with a `seq` smaller than `before`."""
        digest = cls()
        where = "" if before is None else "WHERE seq < :before"
        for table in TABLES:
            cursor = db.execute(f"SELECT * FROM {table} {where} ORDER BY seq, rowid", {"before": before})
            while rows := cursor.fetchmany(BLOCK_ROWS):
                digest.add(table, rows)
        return digest

    def add(self, table: str, rows: list[tuple[object, ...]]) -> None:
        """Add rows; marshal takes 0.2 µs a row, a fifth of `repr`."""
        try:
            data = marshal.dumps(rows, MARSHAL_VERSION)
        except ValueError:  # a subclass of str, int or float, which SQLite returns as a plain one
            data = marshal.dumps([tuple(map(_plain_value, row)) for row in rows], MARSHAL_VERSION)
        self._counts[table] += len(rows)
        self._hashes[table].update(memoryview(data)[MARSHAL_HEADER:])

    def as_dict(self) -> dict[str, list[object]]:
        """Return the number of rows and the SHA-256 of each table, for a checkpoint."""
        return {table: [count, self._hashes[table].hexdigest()] for table, count in self._counts.items()}

    def difference(self, stored: StoredDigest) -> str | None:
        """Describe the first difference from a stored digest."""
        for table, (count, sha) in self.as_dict().items():
            expected, expected_sha = stored[table]
            if count != expected:
                return f"its table {table} has {count} rows where {expected} were written"
            if sha != expected_sha:
                return f"the rows of its table {table} are not those that were written"
        return None

    def hexdigest(self) -> str:
        """Return one hash of all tables."""
        return hashlib.sha256(repr(self.as_dict()).encode()).hexdigest()


def open_for_writing(path: Path | None) -> sqlite3.Connection:
    """Open or create a trace; None creates one in memory."""
    try:
        db = sqlite3.connect(path or ":memory:", isolation_level=None)
        if path is not None:
            db.execute("PRAGMA journal_mode=WAL")  # readable while written
        db.executescript(f"BEGIN;{SCHEMA}COMMIT;")
    except sqlite3.Error as error:
        raise RunError(f"cannot open the trace {path}: {error}") from None
    return db


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a trace that another process may be writing.

    If the disk is full or read-only SQLite cannot share the file. Then no process writes it, and it is opened as it is.
    """
    uri = path.resolve().as_uri()
    db = sqlite3.connect(f"{uri}?mode=ro", uri=True)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
        return db
    except sqlite3.Error as error:
        db.close()
        if (error.sqlite_errorcode & 0xFF) not in CANNOT_WRITE or _has_unmerged_rows(path):
            raise
    return sqlite3.connect(f"{uri}?immutable=1", uri=True)


def insert_rows(db: sqlite3.Connection, table: str, rows: Sequence[Sequence[object]]) -> None:
    """Insert rows, many per statement, which takes half the time of one by one.

    None becomes nan, which SQLite stores as NULL: for None sqlite3 first looks for an adapter, at 0.25 µs each.
    """
    for i in range(0, len(rows), ROWS_PER_STATEMENT):
        block = rows[i : i + ROWS_PER_STATEMENT]
        placeholders = "(" + ",".join("?" * len(block[0])) + ")"
        # sqlite3 caches the prepared statement
        statement = f"INSERT INTO {table} VALUES {','.join([placeholders] * len(block))}"
        db.execute(statement, [nan if value is None else value for row in block for value in row])


def trace_files(path: Path) -> list[Path]:
    """Return the file of a trace and those that SQLite creates beside it."""
    return [path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))]


def verified_digest(db: sqlite3.Connection, before: int | None = None) -> TraceDigest:
    """Return the digest of the rows before `before`; raise sqlite3.DatabaseError if the file is damaged."""
    verdict = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(" ".join(str(verdict).replace("*** in database main ***", "").split()))
    return TraceDigest.from_database(db, before)


def _has_unmerged_rows(path: Path) -> bool:
    """Return whether rows exist only in SQLite's write-ahead log."""
    wal = path.with_name(f"{path.name}-wal")
    return wal.exists() and wal.stat().st_size > 0


def _plain_value(value: object) -> object:
    """Return a str, int or float for a value of a subclass."""
    for kind, convert in ((str, str.__str__), (int, int), (float, float)):
        if isinstance(value, kind):
            return convert(value)
    return value
