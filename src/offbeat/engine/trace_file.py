"""The file of a trace: its tables, how it is opened to write or to read, and how rows get into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from offbeat.core.errors import RunError
from offbeat.engine.trace_digest import Tally

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
TOGETHER = 100  # rows a statement
# what SQLite says where it cannot make the files beside a trace that it needs to share it
CANNOT_WRITE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)


def opened(path: Path | None) -> sqlite3.Connection:
    """To write; None: in memory."""
    try:
        db = sqlite3.connect(path or ":memory:", isolation_level=None)
        if path is not None:
            db.execute("PRAGMA journal_mode=WAL")  # readable while written
        db.executescript(f"BEGIN;{SCHEMA}COMMIT;")
    except sqlite3.Error as error:
        raise RunError(f"cannot open the trace {path}: {error}") from None
    return db


def insert(db: sqlite3.Connection, table: str, rows: Sequence[Any]) -> None:
    """Many rows a statement: half the price of one by one. SQLite takes nan as NULL, while for a None sqlite3 first
    looks whether somebody registered an adapter: a quarter of a microsecond each.
    """
    for i in range(0, len(rows), TOGETHER):
        block = rows[i : i + TOGETHER]
        one = "(" + ",".join("?" * len(block[0])) + ")"
        statement = f"INSERT INTO {table} VALUES {','.join([one] * len(block))}"  # kept prepared by sqlite3
        db.execute(statement, [nan if value is None else value for row in block for value in row])


def files_of(path: Path) -> list[Path]:
    """A trace's file and what SQLite puts beside it."""
    return [path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))]


def read_only(path: Path) -> sqlite3.Connection:
    """The run may still be going on. Where nothing can be written beside it, the disk being full or read-only, SQLite
    cannot share the file with a writer; then there is none, and it is read as it lies there.
    """
    uri = path.resolve().as_uri()
    db = sqlite3.connect(f"{uri}?mode=ro", uri=True)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
        return db
    except sqlite3.Error as error:
        db.close()
        if (error.sqlite_errorcode & 0xFF) not in CANNOT_WRITE or _unfolded(path):
            raise
    return sqlite3.connect(f"{uri}?immutable=1", uri=True)


def _unfolded(path: Path) -> bool:
    """Are there rows that lie in the journal only?"""
    wal = path.with_name(f"{path.name}-wal")
    return wal.exists() and wal.stat().st_size > 0


def sound_tally(db: sqlite3.Connection, seq: int | None = None) -> Tally:
    """Of the rows in a file whose pages are in order; sqlite3.DatabaseError where they are not."""
    verdict = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(" ".join(str(verdict).replace("*** in database main ***", "").split()))
    return Tally.of(db, TABLES, seq)
