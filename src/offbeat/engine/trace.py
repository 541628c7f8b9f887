"""The trace: what happened in a run, row by row, in SQLite, with the bytes of each transfer.

Theory of operation. Metrics, tables, figures and reports are functions of the trace. Rows are buffered and written in
blocks, so recording one costs about a microsecond. A full block is handed to the system without waiting for the disk;
every MAX_READER_LAG seconds and before a checkpoint a durable write makes all earlier rows durable too. Readers of a
running trace are therefore at most that far behind, or as long as the current computation takes. A run killed at any
moment leaves a readable file; resuming compares it with the last checkpoint, truncates it there and continues.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError, OffbeatError, RunError
from offbeat.core.protocol import Dispatch
from offbeat.core.strategy_contract import Contract
from offbeat.engine.trace_file import (
    BLOCK_ROWS,
    TABLES,
    TraceDigest,
    insert_rows,
    open_for_writing,
    open_read_only,
    trace_files,
    verified_digest,
)

log = logging.getLogger("offbeat")

MAX_SKIPPED_WAITS = 16  # waits without a check of the clock: bounds the delay if waits suddenly become long
MAX_READER_LAG = 2.0  # host seconds that a reader may be behind
ROWS_BETWEEN_CLOCK_CHECKS = 64  # rows of all tables, if `flush_if_behind` is not called
WALL_SECONDS = "wall_seconds"  # name of the fact that is summed over all resumes
WORKER_FACT = "worker"  # name of the fact that lists the workers of all resumes

Row = tuple[int, float, str, int | None, int | None, int, int | None, int | None, int | None, int | None, str | None]


class NullTrace:
    """A trace that records nothing, for engines whose events are inspected as they happen."""

    def add(self, now: float, kind: str, version: int, *rest: object, **more: object) -> None:
        pass

    def commit(self, now: float, version: int) -> None:
        pass

    def note(self, now: float, ticket: int | None, values: Mapping[str, float]) -> None:
        pass


class Trace:
    """Record rows in a file, or in memory if `path` is None.

    Kinds of rows: dispatch, arrive, reject (by the strategy), refuse (by the gate), lost, late, duplicate, left, back,
    examples, timer, stop. `version` is the version when the row was written, `bytes` the size of the transfer. Commits
    have a table of their own. `seq` runs through all tables, in the order of what happened.

    Rows are kept as SQLite returns them (times are floats, -0.0 becomes 0.0, nan becomes None), so that their hash
    equals that of the file. The file is created by the first write.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._flushed_at = self._checked_at = clock()
        self.seq = 0
        self._rows: list[Row] = []
        self._commits: list[tuple[int, float, int]] = []
        self._notes: list[tuple[int, float, int | None, str, float | None]] = []
        self._metrics: list[tuple[int, float, int, int, str, float | None]] = []
        self._clients: list[tuple[int, float, int, int, str, float | None]] = []
        self.digest_so_far = TraceDigest()  # of the rows that were written
        self._next_check = self._next_clock_check()
        self._db: sqlite3.Connection | None = None
        self.retry_failed_writes = False  # log failed writes for readers and repeat them later instead of raising
        self._disk_full = False
        self._unsynced = False  # rows were handed to the system that may not be on the disk

    @property
    def db(self) -> sqlite3.Connection:
        # not a cached property: it would slow down access to all attributes
        if self._db is None:
            self._db = open_for_writing(self.path)
        return self._db

    # ------------------------------------------------------------ recording

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
        """Record what happened to a client, ticket or timer."""
        seq = self.seq
        if seq >= self._next_check:
            self._write_if_due()
        self._rows.append((seq, now + 0.0, kind, client, ticket, version, base_version, steps, examples, size, detail))
        self.seq = seq + 1

    def commit(self, now: float, version: int) -> None:
        """Record a new version of the model."""
        seq = self.seq
        self._commits.append((seq, now + 0.0, version))
        self.seq = seq + 1

    def note(self, now: float, ticket: int | None, values: Mapping[str, float]) -> None:
        """Record quantities of the strategy."""
        self._notes.extend((self.seq, now + 0.0, ticket, key, _real(value)) for key, value in values.items())
        self.seq += 1

    def metrics(self, now: float, version: int, updates: int, values: Mapping[str, float]) -> None:
        """Record an evaluation."""
        rows = ((self.seq, now + 0.0, version, updates, key, _real(value)) for key, value in values.items())
        self._metrics.extend(rows)
        self.seq += 1

    def clients(self, now: float, version: int, values: Mapping[int, Mapping[str, float]]) -> None:
        """Record the metrics of each client."""
        for client, metrics in values.items():
            rows = ((self.seq, now + 0.0, version, client, key, _real(value)) for key, value in metrics.items())
            self._clients.extend(rows)
        self.seq += 1

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Store facts about the whole run (how it ended, host seconds), which are not part of the digest."""
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", [(k, str(v)) for k, v in facts.items()])

    # ------------------------------------------------------------ writing

    def _next_clock_check(self) -> int:
        """Return the `seq` at which to write a full block or check the clock; in memory only blocks matter."""
        free_rows = BLOCK_ROWS - len(self._rows)
        if free_rows <= 0:  # the disk is full: blocks grow
            free_rows = ROWS_BETWEEN_CLOCK_CHECKS
        return self.seq + (free_rows if self.path is None else min(free_rows, ROWS_BETWEEN_CLOCK_CHECKS))

    def _write_if_due(self) -> None:
        if len(self._rows) >= BLOCK_ROWS:
            self._write(durable=False)
        else:
            self.flush_if_behind()
        self._next_check = self._next_clock_check()

    def flush_if_behind(self, waits: int = 1) -> int:
        """Write rows before a wait, if readers would otherwise be too far behind at the next call.

        `waits` is the number of waits since the last call. Returns the number of waits until the next one: those that
        take a hundredth of the lag, because checking the clock before each short wait would cost more than the wait.
        """
        if self.path is None:
            return MAX_SKIPPED_WAITS
        now = self._clock()
        gap = now - self._checked_at
        if now + gap > self._flushed_at + MAX_READER_LAG:
            self._write()
            self._flushed_at = now
        self._checked_at = now
        return max(1, min(MAX_SKIPPED_WAITS, 2 * waits, int(MAX_READER_LAG / 100 * waits / max(gap, 1e-9))))

    def _write(self, durable: bool = True) -> None:
        try:
            self.flush(durable)
            self._disk_full = False
        except RunError as error:
            if not self.retry_failed_writes:
                raise
            if not self._disk_full:
                log.warning("%s; retrying", error)
            self._disk_full = True

    def flush(self, durable: bool = True) -> None:
        """Write all rows.

        A durable write waits for the disk, also for rows written before. Another one survives the end of this process,
        but not of the system.
        """
        buffers: tuple[list[Any], ...] = (self._rows, self._commits, self._notes, self._metrics, self._clients)
        if not any(buffers) and not (durable and self._unsynced):
            return
        try:
            with self._transaction(durable) as db:
                for table, rows in zip(TABLES, buffers, strict=True):
                    insert_rows(db, table, rows)
        except (sqlite3.Error, OverflowError) as error:
            raise RunError(f"cannot write the trace {self.path}: {error}") from None
        for table, rows in zip(TABLES, buffers, strict=True):
            self.digest_so_far.add(table, rows)
            rows.clear()
        self._next_check = self._next_clock_check()

    @contextmanager
    def _transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        db = self.db
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        db.execute("BEGIN")
        try:
            yield db
            if durable and self._unsynced:
                db.execute("PRAGMA user_version=0")  # a commit that changes no page does not wait for the disk
            db.execute("COMMIT")
            self._unsynced = not durable
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    # ------------------------------------------------------------ resuming

    def verify(self, seq: int, stored: Mapping[str, Any]) -> TraceDigest:
        """Return the digest of the rows before `seq`, which must equal the stored one. Nothing on disk changes."""
        if self.path is None:
            raise RunError("the trace of this run is in memory: to resume a run give its trace a path")
        if not self.path.is_file():
            raise RunError(f"{self.path} is missing, and the checkpoint is of row {seq}: restore it, or start over")
        try:
            with closing(open_read_only(self.path)) as db:
                digest = verified_digest(db, seq)
        except sqlite3.Error as error:
            raise CheckpointError(f"{self.path} is damaged: {error}") from None
        if difference := digest.difference(stored):
            raise CheckpointError(f"{self.path} does not match the checkpoint: {difference}")
        return digest

    def truncate(self, seq: int, digest: TraceDigest | None = None) -> None:
        """Delete all rows from `seq` on, which will be repeated; `digest` is that of the others, if known."""
        with self._transaction() as db:
            for table in TABLES:
                db.execute(f"DELETE FROM {table} WHERE seq >= ?", (seq,))
            db.execute("DELETE FROM facts WHERE key NOT IN (?, ?)", (WALL_SECONDS, WORKER_FACT))
        self.seq = seq
        self._next_check = self._next_clock_check()
        self.digest_so_far = digest or TraceDigest.from_database(self.db)

    def clear(self) -> None:
        """Start over in a new file; an existing one is deleted without being read."""
        if self.path is None:
            self.truncate(0)
            return
        for path in trace_files(self.path):
            path.unlink(missing_ok=True)

    # ------------------------------------------------------------ reading

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Execute a query after writing all rows."""
        self.flush()
        return iter(self.db.execute(query, values))

    def digest(self) -> str:
        """Return a hash of all rows: equal digests mean equal runs."""
        self.flush()
        return TraceDigest.from_database(self.db).hexdigest()

    def close(self) -> None:
        """Write all rows and close the file."""
        self.flush()
        self.db.close()

    def close_after_error(self) -> None:
        """Close the file without raising another error; a file that was never opened is not created."""
        if self._db is not None:
            with suppress(OffbeatError):
                self.flush()
            self._db.close()


@dataclass(slots=True)
class Traffic:
    """Count the bytes of each download and upload.

    If clients keep the model that they sent or received last (class attribute `clients_keep` of the strategy), sending
    it to them again costs nothing. A strategy that shares no model costs nothing at all.
    """

    model_bytes: int
    shares: bool = True
    clients_keep: bool = False
    client_models: dict[int, Tensor] = field(default_factory=dict)  # client -> model it has, with `clients_keep`

    @classmethod
    def of(cls, contract: Contract, model: Tensor) -> Traffic:
        """Start counting for a strategy and its model."""
        return cls(model.nbytes, contract.shares, contract.clients_keep)

    def count_download(self, action: Dispatch) -> int:
        """Return the bytes of a dispatch."""
        if not self.shares:
            return 0
        extras = action.work.extras
        size = _total_bytes(extras) if extras else 0
        if self.clients_keep and self._has_model(action.client, action.model):
            return size
        return size + self.model_bytes

    def count_upload(self, client: int, local: Tensor, extras: Mapping[str, Tensor]) -> int:
        """Return the bytes of an accepted update."""
        if not self.shares:
            return 0
        if self.clients_keep:
            self.client_models[client] = local
        return self.model_bytes + _total_bytes(extras) if extras else self.model_bytes

    def wasted_upload(self) -> int:
        """Return the bytes of an upload that is late, duplicate or refused; its extras are not known."""
        return self.model_bytes if self.shares else 0

    def _has_model(self, client: int, model: Tensor) -> bool:
        """Return whether the client has this model already; it has from now on."""
        known = self.client_models.get(client)
        self.client_models[client] = model
        return known is not None and (known is model or torch.equal(known, model))


def _real(value: float) -> float | None:
    """Return a number as SQLite returns it."""
    return float(value) + 0.0 if value == value else None


def _total_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.nbytes for t in tensors.values())
