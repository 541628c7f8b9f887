"""The trace: what happened, row by row, in SQLite. Metrics, tables, figures and reports are functions of it.

Rows are buffered and written in blocks, so recording costs about a microsecond each; somebody who reads the trace of a
running run is two seconds behind at most, or as long as what is being computed takes. Full blocks are small, so that
SQLite and the hash find the rows in a core's own cache, and do not wait for the disk; every other write does, for them
too. A run killed at any moment leaves a readable file; resuming checks it against the last checkpoint, cuts it back
there and goes on.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from offbeat.core.errors import CheckpointError, OffbeatError, RunError
from offbeat.engine.trace_digest import BLOCK, Tally
from offbeat.engine.trace_file import TABLES, files_of, insert, opened, read_only, sound_tally

log = logging.getLogger("offbeat")

SKIPPED = 16  # waits at most without a look at the clock: so many may turn out long before it is noticed
LAG = 2.0  # host seconds that a reader may be behind
LOOK = 64  # rows of all tables between two looks at the clock, where nobody calls for one
SPENT = "wall_seconds"  # the fact that is summed over all resumes,
WORKER = "worker"  # and the one that is a list over them: who computed the jobs

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
        self._loose = False  # was something handed to the system that the disk may not have?

    @property
    def db(self) -> sqlite3.Connection:
        """Opened when it is needed. Not a cached property: what Python keeps in a `__dict__` it finds more slowly."""
        if self._db is None:
            self._db = opened(self.path)
        return self._db

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
        """Before a row is added: is it time to write those there are?"""
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
        if not any(waiting) and not (durable and self._loose):
            return
        try:
            with self._transaction(durable) as db:
                for table, rows in zip(TABLES, waiting, strict=True):
                    insert(db, table, rows)
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
            if durable and self._loose:
                db.execute("PRAGMA user_version=0")  # a commit that changes no page does not wait for the disk
            db.execute("COMMIT")
            self._loose = not durable
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


def _real(value: float) -> float | None:
    """A number as SQLite gives it back."""
    return float(value) + 0.0 if value == value else None
