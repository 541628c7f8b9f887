"""The trace: what happened, row by row, in SQLite. Metrics, tables, figures and reports are functions of it.

Rows are buffered and written in blocks, so recording costs about a microsecond each; somebody who reads the trace of a
running run is two seconds behind at most, or as long as what is being computed takes. Full blocks are small, so that
SQLite and the hash find the rows in a core's own cache, and do not wait for the disk; every other write does. A run
killed at any moment leaves a readable file; resuming checks it against the last checkpoint, cuts it back there and goes
on.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from math import nan
from pathlib import Path
from typing import Any

from offbeat.core.errors import CheckpointError, OffbeatError, RunError
from offbeat.engines.tally import BLOCK, Tally

log = logging.getLogger("offbeat")

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
SKIPPED = 16  # waits at most without a look at the clock: so many may turn out long before it is noticed
LAG = 2.0  # host seconds that a reader may be behind
LOOK = 64  # rows of all tables between two looks at the clock, where nobody calls for one
SPENT = "wall_seconds"  # the fact that is summed over all resumes,
WORKER = "worker"  # and the one that is a list over them: who computed the jobs
# what SQLite says where it cannot make the files beside a trace that it needs to share it
CANNOT_WRITE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)

Row = tuple[int, float, str, int | None, int | None, int, int | None, int | None, int | None, int | None, str | None]


class Unrecorded:
    """In place of a trace where nobody records: for engines whose events are looked at as they happen."""

    def add(self, now: float, kind: str, version: int, *rest: object, **more: object) -> None:
        pass

    def commit(self, now: float, version: int) -> None:
        pass

    def note(self, now: float, ticket: int | None, values: Mapping[str, float]) -> None:
        pass


class Trace:
    """Kinds of rows: dispatch, arrive, reject (by the strategy), refuse (by the gate), lost, late, duplicate, left,
    back, timer, stop. `version` is the version when the row was written, `bytes` what travelled. Commits have a table
    of their own;
    `seq` runs through all tables, in the order in which things happened. Rows are kept as SQLite gives them back (a
    time is a float, there is no -0.0, what is not a number is None), so that their hash is that of the file. The file
    is not touched before something is written.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._flushed = self._looked = clock()
        self.seq = 0
        self._rows: list[Row] = []
        self._commits: list[tuple[int, float, int]] = []
        self._notes: list[tuple[int, float, int | None, str, float | None]] = []
        self._metrics: list[tuple[int, float, int, int, str, float | None]] = []
        self._clients: list[tuple[int, float, int, int, str, float | None]] = []
        self.tally = Tally(TABLES)  # of the rows that were flushed
        self._look_at = self._next_look()
        self._db: sqlite3.Connection | None = None
        self.patient = False  # is what cannot be written for readers written later? Whoever has it elsewhere may wait
        self._without_room = False

    @property
    def db(self) -> sqlite3.Connection:
        """Opened when it is needed. Not a cached property: what Python keeps in a `__dict__` it finds more slowly."""
        if self._db is None:
            self._db = self._opened()
        return self._db

    def _opened(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path or ":memory:", isolation_level=None)
            if self.path is not None:
                db.execute("PRAGMA journal_mode=WAL")  # readable while written
            db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise RunError(f"cannot open the trace {self.path}: {error}") from None
        return db

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
        if seq >= self._look_at:
            self._look()
        self._rows.append((seq, now + 0.0, kind, client, ticket, version, base_version, steps, examples, size, detail))
        self.seq = seq + 1

    def commit(self, now: float, version: int) -> None:
        seq = self.seq
        self._commits.append((seq, now + 0.0, version))
        self.seq = seq + 1

    def note(self, now: float, ticket: int | None, values: Mapping[str, float]) -> None:
        self._notes.extend((self.seq, now + 0.0, ticket, key, _real(value)) for key, value in values.items())
        self.seq += 1

    def metrics(self, now: float, version: int, updates: int, values: Mapping[str, float]) -> None:
        self._metrics.extend(
            (self.seq, now + 0.0, version, updates, key, _real(value)) for key, value in values.items()
        )
        self.seq += 1

    def clients(self, now: float, version: int, values: Mapping[int, Mapping[str, float]]) -> None:
        """Metrics of each client's own."""
        for client, own in values.items():
            self._clients.extend(
                (self.seq, now + 0.0, version, client, key, _real(value)) for key, value in own.items()
            )
        self.seq += 1

    def _next_look(self) -> int:
        """The row before which to look at the clock, or at a full block: a trace in memory has no readers to keep up
        with.
        """
        room = BLOCK - len(self._rows)
        if room <= 0:  # the disk has none: blocks become longer
            room = LOOK
        return self.seq + (room if self.path is None else min(room, LOOK))

    def _look(self) -> None:
        """Before a row is added: whatever is written here and not durable is followed by one that will be."""
        if len(self._rows) >= BLOCK:
            self._write(durable=False)
        else:
            self.keep_up()
        self._look_at = self._next_look()

    def keep_up(self, waits: int = 1) -> int:
        """Called before a wait: write what readers would miss for longer than they should, if the next call is as far
        off as the last.

        Returns how many such waits make a hundredth of the lag, given how many there were since the last call: where
        waits are short a look before each would cost more than they do.
        """
        if self.path is None:
            return SKIPPED
        now = self._clock()
        gap = now - self._looked
        if now + gap > self._flushed + LAG:
            self._write()
            self._flushed = now
        self._looked = now
        return max(1, min(SKIPPED, 2 * waits, int(LAG / 100 * waits / max(gap, 1e-9))))

    def _write(self, durable: bool = True) -> None:
        try:
            self.flush(durable)
            self._without_room = False
        except RunError as error:
            if not self.patient:
                raise
            if not self._without_room:
                log.warning("%s; it is tried again", error)
            self._without_room = True

    def flush(self, durable: bool = True) -> None:
        """Write everything so far; durably, with all that was written before, or for the system to do so: it has the
        rows then, whatever becomes of this process.
        """
        waiting: tuple[list[Any], ...] = (self._rows, self._commits, self._notes, self._metrics, self._clients)
        if not any(waiting):
            return
        try:
            with self._transaction(durable) as db:
                for table, rows in zip(TABLES, waiting, strict=True):
                    _insert(db, table, rows)
        except (sqlite3.Error, OverflowError) as error:
            raise RunError(f"cannot write the trace {self.path}: {error}") from None
        for table, rows in zip(TABLES, waiting, strict=True):
            self.tally.add(table, rows)
            rows.clear()
        self._look_at = self._next_look()

    @contextmanager
    def _transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        db = self.db
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        db.execute("BEGIN")
        try:
            yield db
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def check(self, seq: int, stored: Mapping[str, Any] | None) -> Tally:
        """The tally of the rows before `seq`, which must be the one that was stored. Only reads: nothing on disk is
        changed.

        A checkpoint of an earlier format tells none; then the file must be sound, and no more is known of it."""
        if self.path is None:
            raise RunError("a run whose trace is in memory cannot go on later: give it a trace with a path")
        if not self.path.is_file():
            raise RunError(f"{self.path} is gone, and the checkpoint is of row {seq}: put it back, or start over")
        try:
            with closing(read_only(self.path)) as db:
                tally = sound_tally(db, seq)
        except sqlite3.Error as error:
            raise CheckpointError(f"{self.path} is damaged: {error}") from None
        if stored is not None and (wrong := tally.difference(stored)):
            raise CheckpointError(f"{self.path} does not reach or match it: {wrong}")
        return tally

    def cut(self, seq: int, tally: Tally | None = None) -> None:
        """Forget everything from `seq` on: what happened after the checkpoint will happen again. `tally`: of what
        stays, if known.
        """
        with self._transaction() as db:
            for table in TABLES:
                db.execute(f"DELETE FROM {table} WHERE seq >= ?", (seq,))
            db.execute("DELETE FROM facts WHERE key NOT IN (?, ?)", (SPENT, WORKER))
        self.seq = seq
        self._look_at = self._next_look()
        self.tally = tally or Tally.of(self.db, TABLES)

    def clear(self) -> None:
        """Start over, in a new file: whatever is wrong with the one that is there, it is not needed."""
        if self.path is None:
            self.cut(0)
            return
        for name in files_of(self.path):
            name.unlink(missing_ok=True)

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Facts about the whole run, written at its end (how it ended, host seconds): not part of the digest."""
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", [(k, str(v)) for k, v in facts.items()])

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        self.flush()
        return iter(self.db.execute(query, values))

    def digest(self) -> str:
        """A hash over every row: equal digests mean equal runs."""
        self.flush()
        return Tally.of(self.db, TABLES).digest()

    def close(self) -> None:
        self.flush()
        self.db.close()

    def abandon(self) -> None:
        """Close after an error, which says more than what this could: a file that was not opened is left as it is."""
        if self._db is not None:
            with suppress(OffbeatError):
                self.flush()
            self._db.close()


def _insert(db: sqlite3.Connection, table: str, rows: Sequence[Any]) -> None:
    """Many rows a statement: half the price of one by one. SQLite takes nan as NULL, while for a None sqlite3 first
    looks whether somebody registered an adapter: a quarter of a microsecond each.
    """
    for i in range(0, len(rows), TOGETHER):
        block = rows[i : i + TOGETHER]
        one = "(" + ",".join("?" * len(block[0])) + ")"
        statement = f"INSERT INTO {table} VALUES {','.join([one] * len(block))}"  # kept prepared by sqlite3
        db.execute(statement, [nan if value is None else value for row in block for value in row])


def _real(value: float) -> float | None:
    """A number as SQLite gives it back."""
    return float(value) + 0.0 if value == value else None


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
